// Colours: one scale from "the same" to "far apart" that is read without telling red from green.
(function () {
  "use strict";
  const R = window.report;
  const LIGHT = [[255, 236, 179], [248, 177, 88], [222, 94, 84], [146, 44, 118], [48, 16, 74]];
  const DARK = [[72, 32, 110], [150, 48, 120], [222, 94, 84], [248, 177, 88], [255, 244, 205]];
  const OTHERS = {
    light: { none: [255, 255, 255], zero: [223, 230, 236], nan: [0, 110, 190], gone: [120, 130, 140] },
    dark: { none: [24, 28, 33], zero: [50, 59, 68], nan: [70, 170, 240], gone: [128, 138, 148] },
  };
  const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
  R.dark = () => document.documentElement.dataset.theme === "dark";
  const others = () => OTHERS[R.dark() ? "dark" : "light"];

  function between(part) {
    const stops = R.dark() ? DARK : LIGHT;
    const at = Math.min(Math.max(part, 0), 1) * (stops.length - 1);
    const i = Math.min(Math.floor(at), stops.length - 2);
    return stops[i].map((from, k) => Math.round(from + (stops[i + 1][k] - from) * (at - i)));
  }

  // Distances from 2^-27 (about 1e-8) to 1 take the whole scale.
  const LEAST = -27;
  R.colourOfDistance = function (value) {
    if (!R.known(value)) return null;
    const number = R.number(value);
    if (!Number.isFinite(number)) return css(others().nan);
    if (number === 0) return css(others().zero);
    return css(between((Math.log2(Math.abs(number)) - LEAST) / -LEAST));
  };
  R.colourOfPart = (part) => css(between(part));
  R.colourOfNaN = () => css(others().nan);
  R.colourOfZero = () => css(others().zero);
  /** Return the whole scale, as a background. */
  R.colourOfAll = () => "linear-gradient(90deg, " +
    Array.from({ length: 9 }, (_, i) => css(between(i / 8))).join(", ") + ")";

  // -- codes of heat maps ----------------------------------------------------------------------

  const NONE = 0, ZERO = 1, NAN = 2, UNMEASURED = 3;
  R.valueOfCode = function (scale, code) {
    if (scale !== "log") return code < 0 ? null : code;
    if (code === NONE) return null;
    return code === ZERO ? 0 : code === NAN ? NaN : 2 ** ((code - 16384) / 256);
  };
  R.noCode = (scale) => (scale === "log" ? NONE : -1);

  R.STATUSES = [
    "identical", "within_tolerance", "different", "non_finite", "mismatch", "only_in_a",
    "only_in_b", "unreadable",
  ];
  const GLYPHS = ["", "≈", "≠", "!", "#", "A", "B", "?"];

  // A growth that is infinite: the error arose in this cell.
  const arises = (measure, code) => measure.name === "growth" && code === NAN;

  /** Return how a code is told. */
  R.wordOfCode = function (measure, code) {
    if (code === R.noCode(measure.scale)) return R.w("no_value");
    if (measure.scale === "status") return R.w("status_" + R.STATUSES[code]);
    if (arises(measure, code)) return R.w("arose_here");
    if (measure.scale === "log" && code === UNMEASURED) return R.w("unmeasured");
    return R.num(R.valueOfCode(measure.scale, code), 3);
  };

  /** Return {colour(code) → [r, g, b], mark(code) → sign, low, high} of the codes of a map. */
  R.scaleOf = function (measure, low, high) {
    const own = others();
    if (measure.scale === "status") {
      const parts = [own.zero, between(0.1), between(0.62), own.nan, between(0.9), own.gone,
        own.gone, own.gone];
      return {
        colour: (code) => (code < 0 ? own.none : parts[code] || own.gone),
        mark: (code) => GLYPHS[code] || "", low: null, high: null,
      };
    }
    const log = measure.scale === "log";
    const fixed = measure.name === "distance";
    const from = fixed ? 16384 + LEAST * 256 : log ? low : 0;
    const to = fixed ? 16384 : log ? high : Math.log2(1 + Math.max(high, 1));
    const part = (code) => ((log ? code : Math.log2(1 + code)) - from) / (to - from || 1);
    const table = new Map();
    const colour = (code) => {
      if (code === R.noCode(measure.scale)) return own.none;
      if (log && code === NAN) return own.nan;
      if (log ? code === ZERO : code === 0) return own.zero;
      let found = table.get(code);
      if (!found) table.set(code, (found = between(log || to > from ? part(code) : 1)));
      return found;
    };
    const value = (code) => R.valueOfCode(measure.scale, code);
    return {
      colour,
      mark: (code) => (log && code === UNMEASURED ? "≠" : !log || code !== NAN ? ""
        : arises(measure, code) ? "∞" : "×"),
      low: log ? value(from) : 1,
      high: log ? value(to) : Math.max(high, 1),
      fixed,
    };
  };

  /** Return what the colours of a map mean. */
  R.legend = function (measure, scale) {
    const own = others();
    const sample = (colour, text, sign) => R.el("span", { class: "sample" },
      R.el("i", { class: "swatch", style: { background: css(colour) }, text: sign || "" }), text);
    if (measure.scale === "status")
      return R.el("div", { class: "legend" }, R.STATUSES.map((name, code) =>
        sample(scale.colour(code), R.w("status_" + name), GLYPHS[code])));
    return R.el("div", { class: "legend" },
      sample(own.zero, R.w("zero")),
      R.el("span", { class: "sample" }, (scale.fixed ? "≤ " : "") + R.num(scale.low, 2),
        R.el("i", { class: "ramp", colour: { background: R.colourOfAll } }),
        (scale.fixed ? "≥ " : "") + R.num(scale.high, 2)),
      measure.scale === "log" && sample(own.nan, arises(measure, NAN) ? R.w("arose_here")
        : "NaN, Inf", scale.mark(NAN)),
      scale.fixed && sample(scale.colour(UNMEASURED), R.w("unmeasured"), scale.mark(UNMEASURED)),
      sample(own.none, R.w("no_value")));
  };

  R.swatch = function (value) {
    const known = R.known(value);
    const finite = !known || Number.isFinite(R.number(value));
    return R.el("i", {
      class: "swatch" + (known ? "" : " empty"), "aria-hidden": "true",
      text: finite ? "" : "×",
      colour: known ? { background: () => R.colourOfDistance(value) } : null,
    });
  };

  // A sign beside every colour.
  R.SIGNS = {
    same: "=", close: "≈", different: "≠", missing: "∅", error: "✕", warning: "▲", note: "i",
    healthy: "✓", plain: "·", identical: "=", within_tolerance: "≈", non_finite: "!",
    dtype_mismatch: "#", shape_mismatch: "#", only_in_a: "A", only_in_b: "B", unreadable: "?",
  };
  const TONES = {
    identical: "same", within_tolerance: "close", different: "different",
    non_finite: "error", dtype_mismatch: "different", shape_mismatch: "different",
    only_in_a: "missing", only_in_b: "missing", unreadable: "missing",
  };
  R.agrees = (status) => !status || status === "identical" || status === "within_tolerance";

  /** Return a status, a severity or a state as a word with a sign. */
  R.badge = function (name) {
    if (!name) return null;
    return R.el("span", { class: "badge tone-" + (TONES[name] || name) },
      R.el("span", { "aria-hidden": "true", text: R.SIGNS[name] || "·" }), " ",
      R.word(TONES[name] ? "status" : "state", name));
  };
})();
