// Charts of a page that is printed: drawn at once, without the library, as wide as they come out.
(function () {
  "use strict";
  const R = window.report;
  const [WIDE, LEFT, RIGHT] = [380, 50, 8];
  const MOST = Number.MAX_VALUE / 8;

  function made(tag, given, text) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(given)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  /** Return at most about `count` round numbers between two. */
  function ticks(low, high, count) {
    const raw = (high - low) / count;
    if (!(raw > 0) || !Number.isFinite(raw)) return [low];
    const unit = 10 ** Math.floor(Math.log10(raw));
    const each = [1, 2, 5, 10].map((k) => k * unit).find((one) => one >= raw) || raw;
    const first = Math.ceil(low / each);
    const found = [];
    for (let i = 0; i <= 2 * count && (first + i) * each <= high; i++)
      found.push(Number(((first + i) * each).toPrecision(12)));
    return found.length ? found : [low];
  }

  /** Return from where to where an axis goes that shows numbers; null is none. */
  R.span = (numbers) => {
    // The length of an axis is a number, too.
    const known = numbers.filter((v) => v !== null).map((v) => Math.min(MOST, Math.max(-MOST, v)));
    const [low, high] = known.reduce(([x, y], v) => [Math.min(x, v), Math.max(y, v)],
      [Infinity, -Infinity]);
    if (high < low) return [0, 1];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
    return [low - room, high + room];
  };

  /**
   * Return a chart as an SVG. `lines`, and `below` the differences under them: [{x, y (null where
   * a value has no height), side: "a", "b" or null, mine}]; `crosses`: the steps of such; `marks`:
   * [{from, to}] steps of findings; `parted`: those of the first divergence.
   */
  R.paperChart = function ({ lines, below, crosses, marks, parted = [] }) {
    const [first, last] = R.span([...lines, ...below].flatMap((line) => line.x));
    const x = (step) => LEFT + ((step - first) / (last - first)) * (WIDE - LEFT - RIGHT);
    const high = below.length ? 230 : 180;
    const svg = made("svg", { viewBox: `0 0 ${WIDE} ${high}`, class: "paper-chart", role: "img" });
    const area = (top, height, shown, label) => {
      const [low, most] = R.span(shown.flatMap((line) => line.y));
      const y = (value) => top + height - ((value - low) / (most - low)) * height;
      for (const tick of ticks(low, most, height > 80 ? 5 : 2)) {
        svg.append(made("line", { x1: LEFT, x2: WIDE - RIGHT, y1: y(tick), y2: y(tick),
          class: "grid" }));
        svg.append(made("text", { x: LEFT - 4, y: y(tick) + 3, "text-anchor": "end" },
          R.num(tick, 4)));
      }
      if (label) svg.append(made("text", { x: LEFT + 3, y: top + 9, class: "label" }, label));
      for (const line of shown) {
        const of = (line.side ? "side-" + line.side : "both") + (line.mine ? "" : " other");
        let path = "";
        let pen = false;
        line.y.forEach((value, i) => {
          if (value !== null) {
            const at = `${x(line.x[i]).toFixed(1)} ${y(value).toFixed(1)}`;
            path += (pen ? "L" : "M") + at;
            const alone = !pen && (i + 1 === line.y.length || line.y[i + 1] === null);
            if (line.y.length < 60 || alone) svg.append(made("circle", {
              cx: x(line.x[i]).toFixed(1), cy: y(value).toFixed(1), r: 1.8, class: of,
            }));
          }
          pen = value !== null;
        });
        svg.append(made("path", { d: path, class: of }));
      }
    };
    const foot = high - 26;
    const main = below.length ? 128 : foot - 14;
    for (const step of parted) {
      svg.append(made("line", { x1: x(step), x2: x(step), y1: 20, y2: foot, class: "mark parted" }));
      svg.append(made("text", { x: x(step), y: 21, "text-anchor": "middle",
        class: "sign parted" }, "◆"));
    }
    for (const { from, to } of marks) {
      svg.append(made("line", { x1: x(from), x2: x(from), y1: 12, y2: foot, class: "mark dotted" }));
      if (to > from) svg.append(made("line", { x1: x(from), x2: x(to), y1: 8, y2: 8,
        class: "mark again" }));
      svg.append(made("text", { x: x(from), y: 11, "text-anchor": "middle", class: "sign" }, "▼"));
    }
    area(14, main, lines, "");
    if (below.length) area(main + 26, foot - main - 26, below, "B − A");
    for (const step of crosses)
      svg.append(made("text", { x: x(step), y: 10 + main, "text-anchor": "middle", class: "sign" },
        "✕"));
    for (const tick of ticks(first, last, 6))
      if (Number.isInteger(tick)) svg.append(made("text", {
        x: x(tick), y: foot + 11, "text-anchor": "middle",
      }, String(tick)));
    svg.append(made("text", { x: (LEFT + WIDE) / 2, y: high - 4, "text-anchor": "middle" },
      R.w("step")));
    return svg;
  };
})();
