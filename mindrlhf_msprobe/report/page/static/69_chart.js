// A chart of lines over the steps on the screen, drawn by bokeh; what the mouse does in it is ours.
(function () {
  "use strict";
  const R = window.report;
  const { el } = R;
  // How near to a point the mouse is at it, in pixels, and how many of such are told.
  const NEAR = 20;
  const TOLD = 4;
  // Where marks of findings and of values without a height stand, as a share of the height.
  const [TOP, FOOT] = [0.97, 0.03];
  // Where the first divergence stands: below a finding of its step.
  const PARTED = 0.9;
  const FONT = "system-ui, sans-serif";
  const drawn = new Map();

  function look() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    return {
      ink: value("--ink"), faint: value("--faint"), line: value("--line"), page: value("--panel"),
      a: value("--side-a"), b: value("--side-b"), bad: value("--bad"),
      // Of two runs, red is where they part.
      mark: value(R.paired() ? "--ink" : "--bad"),
      size: `${(parseFloat(style.fontSize) * 0.86).toFixed(1)}px`,
    };
  }

  /** Return a plot without lines: its axes and colours. `x` is its range of steps. */
  function plotOf({ Models }, own, { x, y, label, foot, ...given }) {
    const text = (name) => ({
      [name + "_text_font"]: FONT, [name + "_text_font_size"]: own.size,
      [name + "_text_font_style"]: "normal", [name + "_text_color"]: own.faint,
    });
    // Numbers as everywhere in the page, with as many digits as it takes to tell them apart.
    const numbers = new Models.BasicTickFormatter();
    numbers.doFormat = (ticks) => [6, 9, 13, 17]
      .map((digits) => ticks.map((tick) => R.num(tick, digits)))
      .find((shown, i) => i === 3 || new Set(shown).size === ticks.length);
    const axis = (more) => new Models.LinearAxis({
      formatter: numbers, axis_line_color: own.line, major_tick_line_color: own.line, minor_tick_line_color: null,
      ...text("major_label"), ...text("axis_label"), ...more,
    });
    const steps = new Models.BasicTicker({ min_interval: 1, num_minor_ticks: 0 });
    const values = new Models.BasicTicker({ desired_num_ticks: foot && label ? 3 : 5 });
    const grid = (dimension, ticker) =>
      new Models.Grid({ dimension, ticker, grid_line_color: own.line });
    return new Models.Plot({
      x_range: x, y_range: new Models.Range1d({ start: y[0], end: y[1] }),
      extra_y_ranges: { share: new Models.Range1d() },
      background_fill_color: own.page, border_fill_color: own.page, outline_line_color: null,
      toolbar: new Models.Toolbar({ tools: [new Models.BoxZoomTool()] }),
      toolbar_location: null, context_menu: null, min_border_right: 14,
      left: [axis({ ticker: values, axis_label: label })],
      below: foot ? [axis({ ticker: steps, axis_label: R.w("step") })] : [],
      center: [grid(0, steps), grid(1, values)], ...given,
    });
  }

  /** Put a glyph on a plot; `data`: its columns, which it names as fields. Return its source. */
  function put({ Models }, plot, kind, data, given, range) {
    const source = new Models.ColumnDataSource({ data });
    const fields = Object.fromEntries(Object.keys(data).map((name) => [name, { field: name }]));
    plot.add_renderers(new Models.GlyphRenderer({
      data_source: source, glyph: new Models[kind]({ ...fields, ...given }),
      ...(range ? { y_range_name: range } : {}),
    }));
    return source;
  }

  const gaps = (values) => values.map((value) => (value === null ? NaN : value));

  function putLines(bokeh, plot, lines, own) {
    const color = ({ side }) => (side ? own[side] : own.ink);
    put(bokeh, plot, "MultiLine", {
      xs: lines.map((line) => line.x), ys: lines.map((line) => gaps(line.y)),
      line_color: lines.map(color),
      line_dash: lines.map((line) => (line.side === "b" ? [6, 4] : [])),
      line_width: lines.map((line) => (line.strong ? 2.2 : 1)),
      line_alpha: lines.map((line) => (line.mine ? 1 : 0.45)),
    });
    // Of few values each is a point, of many those that stand alone: no line shows them.
    const points = lines.flatMap((line) => line.y.map((y, i) => ({ line, y, x: line.x[i], i })))
      .filter(({ line, y, i }) => y !== null && (line.y.length < 60 ||
        ((line.y[i - 1] ?? null) === null && (line.y[i + 1] ?? null) === null)));
    put(bokeh, plot, "Scatter", {
      x: points.map((point) => point.x), y: points.map((point) => point.y),
      marker: points.map(({ line }) => (line.side === "b" ? "square" : "circle")),
      line_color: points.map(({ line }) => color(line)),
      fill_color: points.map(({ line }) => (line.side === "b" ? own.page : color(line))),
      line_alpha: points.map(({ line }) => (line.mine ? 1 : 0.45)),
      fill_alpha: points.map(({ line }) => (line.mine ? 1 : 0.45)),
    }, { size: 5 });
  }

  function putMarks(bokeh, plot, { marks, crosses, parted }, own) {
    const sign = { line_color: own.mark, fill_color: own.mark };
    const again = marks.filter(({ from, to }) => to > from);
    const at = (steps, share) => ({ x: steps, y: steps.map(() => share) });
    put(bokeh, plot, "Segment", {
      x0: again.map(({ from }) => from), x1: again.map(({ to }) => to),
      y0: again.map(() => TOP), y1: again.map(() => TOP),
    }, { line_color: own.mark, line_width: 5, line_alpha: 0.3 }, "share");
    put(bokeh, plot, "Scatter", at(marks.map(({ from }) => from), TOP),
      { ...sign, marker: "inverted_triangle", size: 10 }, "share");
    put(bokeh, plot, "Scatter", at(parted, PARTED),
      { line_color: own.bad, fill_color: own.bad, marker: "diamond", size: 13 }, "share");
    put(bokeh, plot, "Scatter", at(crosses, FOOT),
      { ...sign, marker: "x", size: 8, line_width: 2 }, "share");
  }

  /** Say what is at the mouse, and do at a click what that stands for. */
  function listen(bokeh, plot, box, tip, points) {
    let mouse = null;
    box.addEventListener("pointermove", (event) => { mouse = event; }, true);
    const near = ({ x, y }) => {
      const { x_range: across, y_range: up } = plot;
      const wide = plot.inner_width / (across.end - across.start);
      const high = plot.inner_height / (up.end - up.start);
      const found = [];
      for (const point of points) {
        const value = point.share === undefined ? point.y
          : up.start + point.share * (up.end - up.start);
        const far = Math.hypot((point.x - x) * wide, (value - y) * high);
        if (far <= NEAR) found.push([far, point]);
      }
      // Points that lie on each other are told together.
      found.sort((one, other) => one[0] - other[0]);
      return found.filter(([far]) => far < found[0][0] + 2).map(([, point]) => point);
    };
    const tell = (found) => {
      R.clear(tip, found.slice(0, TOLD).map((point) => el("div", null, point.told())),
        found.length > TOLD && el("div", { text: R.w("more", { n: found.length - TOLD }) }));
      if (!mouse || !found.length) return;
      tip.style.left = Math.max(0, Math.min(mouse.clientX + 14, window.innerWidth - 340)) + "px";
      tip.style.top = Math.min(mouse.clientY + 18,
        window.innerHeight - tip.offsetHeight - 4) + "px";
    };
    box.addEventListener("mouseleave", () => tell([]));
    plot.on_event("mousemove", (event) => tell(near(event)));
    plot.on_event("tap", (event) => {
      const [found] = near(event);
      if (!found) return;
      tell([]);
      found.call();
    });
    // A rectangle that is drawn is looked at closely, until a double click.
    plot.on_event("doubletap", () => {
      plot.x_range.reset();
      plot.y_range.reset();
    });
  }

  /** Take back what stands no more in the page, or everything. */
  R.forgetCharts = function (all) {
    for (const [document, box] of drawn) {
      if (!all && box.isConnected) continue;
      document.clear();
      window.Bokeh.documents.splice(window.Bokeh.documents.indexOf(document), 1);
      drawn.delete(document);
    }
  };

  /**
   * Draw a chart in a box; return a function that marks another step as the picked one, null
   * where it is not drawn.
   *
   * `lines`, and `below` the differences under them: [{x, y (null where a value has no height),
   * side: "a", "b" or null, mine, strong}]; `crosses`: the steps of values without a height;
   * `marks`: [{from, to}] steps of findings; `parted`: those of the first divergence; `points` and
   * `pointsBelow`, what is told and done at the mouse: [{x, y, or atTop (parted) or atFoot,
   * told: () => children, call}]; `steps`: [low, high].
   */
  R.chart = async function (box, { lines, below, crosses, marks, parted = [], points,
    pointsBelow, steps, picked }) {
    const bokeh = await R.charts();
    if (!bokeh) {
      R.clear(box, R.missing(R.w("no_library")));
      return null;
    }
    if (!box.isConnected) return null;
    const { Models } = bokeh;
    const own = look();
    const room = 0.02 * (steps[1] - steps[0]) + 0.3;
    const x = new Models.Range1d({ start: steps[0] - room, end: steps[1] + room });
    const span = (shown) => R.span(shown.flatMap((line) => line.y));
    // Lines stay clear of the marks above and below them.
    const [low, high] = span(lines);
    const clear = (high - low) * 0.06;
    const rows = parted.length ? 2 : marks.length ? 1 : 0;
    const y = [low - (crosses.length ? clear : 0), high + clear * rows];
    const tip = el("div", { class: "tip", "aria-hidden": "true" });
    const first = plotOf(bokeh, own, {
      x, y, label: null, foot: !below.length, sizing_mode: "stretch_both",
    });
    const plots = [first];
    if (below.length) plots.push(plotOf(bokeh, own, {
      x, y: span(below), label: "B − A", foot: true, sizing_mode: "stretch_width",
      height: Math.round(box.clientHeight * 0.4),
    }));
    const at = plots.map((plot) => {
      put(bokeh, plot, "VSpan", { x: marks.map(({ from }) => from) },
        { line_color: own.mark, line_dash: "dotted" });
      const pickedStep = put(bokeh, plot, "VSpan", { x: R.known(picked) ? [picked] : [] },
        { line_color: own.faint });
      put(bokeh, plot, "VSpan", { x: parted }, { line_color: own.bad });
      return pickedStep;
    });
    putLines(bokeh, first, lines, own);
    putMarks(bokeh, first, { marks, crosses, parted }, own);
    const placed = points.map((point) =>
      ({ ...point, share: point.parted ? PARTED : point.atTop ? TOP : point.atFoot ? FOOT
        : undefined }));
    listen(bokeh, first, box, tip, placed);
    if (below.length) {
      putLines(bokeh, plots[1], below, own);
      listen(bokeh, plots[1], box, tip, pointsBelow);
    }
    const made = new (bokeh.loader["@bokehjs/document"].Document)();
    made.add_root(new Models.Column({ children: plots, sizing_mode: "stretch_both", spacing: 4 }));
    drawn.set(made, box);
    R.clear(box, tip);
    await bokeh.embed.add_document_standalone(made, box);
    while (box.isConnected && !made.is_idle) await new Promise(requestAnimationFrame);
    return (step) => at.forEach((source) => { source.data = { x: [step] }; });
  };
})();
