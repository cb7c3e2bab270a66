// What all parts of the page share: words, numbers, and how elements are made.
// Texts of a dump are data: they reach the page as text nodes and titles only.
(function () {
  "use strict";
  const R = (window.report = { head: null, lang: "en", views: [] });
  // Of a page of paper: how wide it is at least, in pixels, and how many rows are printed.
  R.PAPER = 660;
  R.PRINTED = 500;
  R.nonce = document.currentScript.nonce;

  // -- words -----------------------------------------------------------------------------------

  /** Return a label in the language that is shown, with {names} filled in. */
  R.w = function (key, given) {
    const words = R.head.words[R.lang] || R.head.words.en || {};
    const text = Object.hasOwn(words, key) ? words[key] : key;
    return text.replace(/\{(\w+)\}/g, (whole, name) =>
      given && name in given ? String(given[name]) : whole);
  };

  /** Return the label of a code of Python, such as a cause; one without a label as it is. */
  R.word = function (kind, code) {
    const key = `${kind}_${code}`;
    const shown = R.w(key);
    return shown === key ? String(code) : shown;
  };

  /** Return a text of Python in the language that is shown: a string, or [en, zh]. */
  R.t = function (text) {
    if (Array.isArray(text)) return String(text[R.lang === "zh" ? 1 : 0]);
    if (text === null || text === undefined) return "";
    // Python cuts what a file gives, in both languages alike.
    return String(text).replace(/… \((\d+) characters\)$/, (_, n) => R.w("cut_from", { n }));
  };

  /** Return a list that may not be there. */
  R.list = (list) => list || [];

  const UNSEEN = new RegExp("[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u061c\\u200e\\u200f"
    + "\\u2028-\\u202e\\u2066-\\u2069]", "g");

  /** Return a text with its control characters named, of which some show it in another order. */
  R.visible = (text) => String(text).replace(UNSEEN, (mark) =>
    `⟨U+${mark.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

  /** Return a text of a dump that leaves what surrounds it in its order, without an element. */
  R.isolated = (text) => (/^[\x20-\x7e]*$/.test(text) ? text
    : "\u2068" + R.visible(text) + "\u2069");

  R.cut = function (text, most) {
    if (text.length <= most) return text;
    const tail = Math.floor(most / 3);
    return text.slice(0, most - tail - 1) + "…" + text.slice(-tail);
  };

  // -- elements --------------------------------------------------------------------------------

  /**
   * Make an element. `given`: class, text, on: {event: function}, style: {property: value}, colour:
   * {property: function that returns it of the theme}, anything else is an attribute. Children:
   * elements, texts, null.
   */
  R.el = function (tag, given, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(given || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "class") made.className = value;
      else if (name === "text") made.textContent = value;
      else if (name === "on")
        for (const [event, call] of Object.entries(value)) made.addEventListener(event, call);
      else if (name === "style")
        for (const [property, set] of Object.entries(value)) made.style.setProperty(property, set);
      else if (name === "colour")
        R.coloured(made, () => {
          for (const [property, of] of Object.entries(value)) made.style.setProperty(property, of());
        });
      else made.setAttribute(name, value === true ? "" : String(value));
    }
    R.add(made, children);
    return made;
  };

  const paints = new WeakMap();
  /** Paint what has colours of the theme now, and when the page is printed. */
  R.coloured = function (element, paint) {
    element.dataset.coloured = "";
    paints.set(element, paint);
    paint();
  };
  R.paintAgain = function () {
    for (const element of document.querySelectorAll("[data-coloured]")) paints.get(element)();
  };

  R.add = function (parent, children) {
    for (const child of children.flat(Infinity))
      if (child !== null && child !== undefined && child !== false)
        parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
    return parent;
  };

  R.clear = function (parent, ...children) {
    parent.replaceChildren();
    return R.add(parent, children);
  };

  /** Show a text of a dump: isolated from what surrounds it, cut to `most`, whole as title. */
  R.data = function (text, most) {
    const whole = R.visible(text);
    const shown = R.cut(whole, most || 120);
    return R.el("bdi", { class: "data", text: shown, title: shown === whole ? null : whole });
  };

  /** Show a text of a dump of any length: cut, with a button that shows the whole. */
  R.long = function (text, most) {
    const whole = R.visible(text);
    if (whole.length <= (most || 120)) return R.el("bdi", { class: "data", text: whole });
    const shown = R.data(whole, most);
    const more = R.el("button", {
      type: "button", class: "more", "aria-expanded": "false",
      text: R.w("whole", { n: whole.length }),
      on: {
        click: () => {
          const open = more.getAttribute("aria-expanded") !== "true";
          more.setAttribute("aria-expanded", String(open));
          more.textContent = open ? R.w("shorter") : R.w("whole", { n: whole.length });
          shown.textContent = open ? whole : R.cut(whole, most || 120);
        },
      },
    });
    return R.el("span", { class: "long" }, shown, " ", more);
  };

  R.link = function (link, ...children) {
    return R.el("a", { href: R.href(link) }, children);
  };

  R.button = function (text, call, given) {
    return R.el("button", { type: "button", text, on: { click: call }, ...given });
  };

  /** Return a select; `options`: [[value, text], …]. */
  R.choose = function (label, options, value, call) {
    const select = R.el("select", { on: { change: () => call(select.value) } });
    for (const [given, text] of options)
      select.append(R.el("option", { value: given, text: R.isolated(R.cut(text, 80)) }));
    select.value = value;
    return R.el("label", { class: "choice" }, R.el("span", { text: label }), select);
  };

  /** Return buttons of which one is pressed. */
  R.segments = function (label, options, value, call) {
    const box = R.el("div", { class: "segments", role: "group", "aria-label": label });
    for (const [given, text] of options)
      box.append(R.button(text, () => call(given), {
        "aria-pressed": String(given === value), "data-value": given,
      }));
    return R.el("div", { class: "choice" }, R.el("span", { text: label }), box);
  };

  /** Return a fold; what is in it is made when it is first opened. */
  R.fold = function (summary, make, open, given) {
    const fold = R.el("details", given || {}, R.el("summary", null, summary));
    let made = false;
    const fill = () => {
      if (!fold.open || made) return;
      made = true;
      R.add(fold, [make()]);
    };
    fold.addEventListener("toggle", fill);
    fold.open = Boolean(open);
    fill();
    return fold;
  };

  /** Return a block of text to be copied, such as YAML. */
  R.code = function (text) {
    const shown = R.el("pre", { class: "code", tabindex: "0", text });
    const copy = R.button(R.w("copy"), () => {
      const range = document.createRange();
      range.selectNodeContents(shown);
      const selected = window.getSelection();
      selected.removeAllRanges();
      selected.addRange(range);
      document.execCommand("copy");
      copy.textContent = R.w("copied");
    }, { class: "quiet" });
    return R.el("div", { class: "copying" }, copy, shown);
  };

  R.missing = (text) => R.el("p", { class: "nothing", text });

  // -- numbers ---------------------------------------------------------------------------------

  const WORDS = new Map([["Infinity", "Inf"], ["-Infinity", "−Inf"]]);

  /** Return a JSON number, or the text of one that JSON does not have, as a number. */
  R.number = (value) =>
    typeof value === "number" ? value : typeof value === "string" ? Number(value) : NaN;

  R.known = (value) => value !== null && value !== undefined;

  /** Return how a number is shown; texts and what is not known as they are. */
  R.num = function (value, digits) {
    if (!R.known(value)) return "–";
    if (typeof value === "string") return WORDS.get(value) || value;
    if (typeof value === "boolean") return String(value);
    if (Number.isNaN(value)) return "NaN";
    if (!Number.isFinite(value)) return value > 0 ? "Inf" : "−Inf";
    if (value === 0) return Object.is(value, -0) ? "−0" : "0";
    const size = Math.abs(value);
    const most = digits || 4;
    let shown;
    if (Number.isInteger(value) && size < 1e9) shown = String(value);
    else if (size >= 1e6 || size < 1e-3) {
      const [number, power] = value.toExponential(most - 1).split("e");
      shown = number.replace(/\.?0+$/, "") + "e" + power.replace("+", "");
    } else {
      shown = value.toPrecision(most);
      if (shown.includes("e")) shown = String(Number(shown));
      if (shown.includes(".")) shown = shown.replace(/\.?0+$/, "");
    }
    return shown.replaceAll("-", "−");
  };

  /** Return a number to six digits; anything else, and an integer, as it is. */
  R.rounded = (value) => (typeof value === "number" && !Number.isInteger(value)
    ? Number(value.toPrecision(6)) : value);

  /** Give two decimal fractions as many digits behind the point. */
  function alike(shown) {
    const places = shown.map((text) => (/^−?\d+(\.\d+)?$/.test(text)
      ? (text.split(".")[1] || "").length : NaN));
    const most = Math.max(...places);
    if (!(most > 0)) return shown;
    return shown.map((text, i) => (places[i] ? text : text + ".") + "0".repeat(most - places[i]));
  }

  /** Return two numbers with as many digits as it takes to tell them apart. */
  R.pair = function (a, b) {
    for (const digits of [6, 9, 13]) {
      const shown = [R.num(a, digits), R.num(b, digits)];
      if (shown[0] !== shown[1] || a === b) return alike(shown);
    }
    return [R.num(a, 17), R.num(b, 17)];
  };

  R.seconds = function (value) {
    if (!R.known(value) || typeof value !== "number") return R.num(value);
    if (value < 1e-3) return R.num(value * 1e6, 3) + " µs";
    if (value < 1) return R.num(value * 1e3, 3) + " ms";
    if (value < 600) return R.num(value, 4) + " s";
    return R.num(value / 60, 4) + " min";
  };

  // -- the place that is shown -----------------------------------------------------------------

  R.paired = () => R.head.kind === "pair";
  R.sides = () => (R.paired() ? ["a", "b"] : ["a"]);
  R.stateName = (state) =>
    R.w(state === "plain" && R.paired() ? "state_not_compared" : "state_" + state);
  R.sideName = (side) => R.w(R.paired() ? "side_" + side.toLowerCase() : "side_one");

  /** Return what the page holds of a step and rank: {index, state, different, compared, …}. */
  R.place = function (step, rank) {
    if (!R.byPlace) {
      const { steps, ranks, cells } = R.head.places;
      R.byPlace = new Map(cells.map((cell, index) => {
        const [s, r, state, different, compared, findings, full] = cell;
        return [`${steps[s]}-${ranks[r]}`, {
          index, step: steps[s], rank: ranks[r], state, different, compared, findings, full,
        }];
      }));
    }
    return R.byPlace.get(`${step}-${rank}`) || null;
  };

  R.placesInFull = () => {
    R.place(0, 0);
    return [...R.byPlace.values()].filter((place) => place.full);
  };

  R.placeName = (step, rank) => R.w("place", { step, rank });

  /** Return the places whose records are in the page, the nearest first, as links. */
  R.nearestInFull = function (state) {
    const near = R.placesInFull().sort((x, y) =>
      Math.abs(x.step - state.step) - Math.abs(y.step - state.step) ||
      Math.abs(x.rank - state.rank) - Math.abs(y.rank - state.rank));
    if (!near.length) return R.missing(R.w("no_places_in_full"));
    return R.el("p", null, R.w("records_are_in"), " ",
      near.slice(0, 8).map((one) => [
        R.link({ ...state, step: one.step, rank: one.rank }, R.placeName(one.step, one.rank)), " ",
      ]));
  };
})();
