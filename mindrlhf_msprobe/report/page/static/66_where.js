// Where: the heat map of layers against phases, steps or ranks, and beside it what is picked.
(function () {
  "use strict";
  const R = window.report;
  const { el } = R;
  // What the reader opened and closed, and how far was scrolled: kept while the page is open.
  const DIRECTIONS = ["forward", "backward", "parameters_grad"];
  const opened = new Map();
  const differing = { on: false };
  const fitted = { on: false };
  let parts = null;
  let map = null;
  let drawing = 0;

  // What was computed of the maps that were drawn.
  const trees = new Map();
  const sums = new WeakMap();
  const ranges = new WeakMap();
  function kept(where, key, make) {
    if (!where.has(key)) where.set(key, make());
    return where.get(key);
  }

  const cellsOf = async (direction, phase) =>
    ((await R.block("cells")) || {})[`${phase}-${direction}`] || null;
  const measureOf = (name) =>
    R.head.measures.find((one) => one.name === name) || R.head.measures[0] || null;

  /** Fill in what the state leaves open: phase, direction, measure and columns. */
  R.whereState = function () {
    const { heat, phases } = R.head;
    const at = R.answerPlace();
    const directions = DIRECTIONS.filter((name) => heat.some((one) => one.direction === name));
    const wanted = R.state.direction || (at.entry && R.directionOf(at.entry));
    const direction = directions.includes(wanted) ? wanted : directions[0] || "forward";
    const name = (p) => (typeof p === "number" ? phases[p] : p);
    const held = heat.filter((one) => one.direction === direction).map((one) => name(one.phase));
    const first = held.includes(at.phase) ? at.phase : held[0];
    const phase = R.state.phase || first || phases[0] || null;
    const columns = ["phases", "steps", "ranks"].includes(R.state.columns) ? R.state.columns
      : held.length > 1 || R.head.places.steps.length < 2 ? "phases" : "steps";
    const measure = measureOf(R.state.measure);
    return { direction, directions, phase, columns, measure, held };
  };

  function columnsOf(where) {
    const { steps, ranks } = R.head.places;
    const at = (step, rank) => {
      const place = R.place(step, rank);
      return place ? place.index : -1;
    };
    if (where.columns === "phases")
      return where.held.map((phase) => ({
        label: phase, phase, place: at(R.state.step, R.state.rank), go: { phase },
        picked: phase === where.phase,
      }));
    const [numbers, key] = where.columns === "steps" ? [steps, "step"] : [ranks, "rank"];
    return numbers.map((n) => ({
      label: String(n), title: R.w(key + "_n", { number: n }), phase: where.phase,
      place: key === "step" ? at(n, R.state.rank) : at(R.state.step, n), go: { [key]: n },
      picked: n === R.state[key],
    }));
  }

  async function drawMap() {
    const mine = ++drawing;
    const where = R.whereState();
    const box = parts.map;
    const { measure } = where;
    if (!measure || !where.held.length) {
      R.clear(box, R.missing(R.w(R.head.heat.length ? "no_heat_direction" : "no_heat")));
      return;
    }
    const columns = columnsOf(where);
    const phases = [...new Set(columns.map((column) => column.phase))];
    const index = (phase) => R.head.phases.indexOf(phase);
    const given = [], heats = new Map();
    await Promise.all(phases.map(async (phase) => {
      const cells = await cellsOf(where.direction, index(phase));
      if (!cells) return;
      given.push({ phase, cells });
      heats.set(phase, await R.block(
        `heat-${index(phase)}-${where.direction}-${measure.name}`));
    }));
    if (mine !== drawing) return;
    given.sort((x, y) => index(x.phase) - index(y.phase));
    if (!given.length) {
      R.clear(box, R.missing(R.w("no_heat_phase", { phase: R.isolated(where.phase || "") })));
      return;
    }
    const places = R.head.places.cells.length;
    const root = kept(trees, [where.direction, ...given.map(({ phase }) => phase)].join("\n"),
      () => R.treeOf(given));
    const values = new Map(given.map(({ phase }) => [phase, heats.get(phase) &&
      kept(kept(sums, heats.get(phase), () => new Map()), root,
        () => R.valuesOf(measure, heats.get(phase), phase, places))]));
    const none = R.noCode(measure.scale);
    const codeOf = (row, column) => {
      const found = values.get(column.phase);
      return found ? found(row, column.place) : none;
    };
    openTo(root, where.phase);
    let rows = R.rowsOf(root, opened, where.columns === "phases" ? null : where.phase);
    if (differing.on) {
      const quiet = new Set([none, measure.scale === "log" ? 1 : 0]);
      rows = rows.filter((row) =>
        row.node.parent === null || columns.some((column) => !quiet.has(codeOf(row, column))));
    }
    const [low, high] = rangeOf(measure, heats);
    const scale = R.scaleOf(measure, low, high);
    const entry = R.state.entry ? given.find((one) => one.phase === where.phase) : null;
    const at = entry ? entry.cells.entries.indexOf(R.state.entry) : -1;
    const pickedRow = at < 0 ? -1 : rowShowing(rows, root, entry.cells.cells[at], at);
    const pickedColumn = columns.findIndex((column) => column.picked);
    const callName = (row) => row.call === null ? "" : ` [${given.find(({ phase }) =>
      phase === where.phase).cells.calls[row.call]}]`;
    const origin = originOf(where);
    const isOrigin = (row, column) => Boolean(origin) && row.call === null &&
      column.phase === origin.phase && column.place === origin.place &&
      (row.node.path === origin.cell || (row.open === false &&
        (row.node.path === "" || origin.cell.startsWith(row.node.path + "."))));
    const tell = (r, c) => {
      const row = rows[r], column = columns[c];
      if (!row || !column) return "";
      const code = codeOf(row, column);
      const value = R.wordOfCode(measure, code);
      const inside = row.open === false && row.node.children.size > 0 && code !== none;
      return [R.isolated(R.cut(row.node.path || "root", 200)) + callName(row),
        R.isolated(column.title || column.label),
        `${R.t(measure.label)} ${value}` + (inside ? " " + R.w("largest_inside") : "")].join(" · ");
    };
    const pick = (r, c) => {
      const row = rows[r], column = columns[c] || columns[Math.max(pickedColumn, 0)];
      const cells = given.find((one) => one.phase === column.phase);
      if (!cells) return;
      const heat = heats.get(column.phase);
      let found = row.call;
      if (found === null)
        found = R.worstRow(measure, heat, row.node, column.phase, column.place, places, false) ??
          R.worstRow(measure, heat, row.node, column.phase, column.place, places, true);
      if (found === null) return;
      R.go({
        ...column.go, phase: column.phase, direction: where.direction, view: "where",
        entry: cells.cells.entries[found], record: null, key: null, micro_step: null,
      });
    };
    const toggle = (r) => {
      opened.set(rows[r].node.path, !rows[r].open);
      drawMap();
    };
    const top = map && parts.shape === shape(where) ? map.top() : null;
    parts.shape = shape(where);
    const hadFocus = map && map.frame === document.activeElement;
    const before = map && hadFocus ? map.cursor() : null;
    R.clear(parts.legend,
      el("p", { class: "faint", text: R.t(measure.explanation) }), R.legend(measure, scale));
    map = R.heatMap(box, {
      rows: rows.map((row) => ({
        name: row.call === null ? row.name : callName(row).trim(),
        title: row.node.path || "root",
        note: row.call === null ? row.node.note : "",
        depth: row.depth, open: row.open,
        code: (c) => codeOf(row, columns[c]),
        origin: (c) => isOrigin(row, columns[c]),
        mark: columns.some((column) => isOrigin(row, column)),
      })),
      columns, scale, none, scaleNow: () => R.scaleOf(measure, low, high),
      legendNow: (now) => R.legend(measure, now), tall: where.columns === "phases", fit: fitted.on, top,
      picked: pickedColumn >= 0 && pickedRow >= 0 ? { row: pickedRow, column: pickedColumn }
        : before, told: tell, pick, toggle,
    });
    if (hadFocus) map.frame.focus({ preventScroll: true });
  }

  /** Return where the answer's cell stands in the maps of a direction. */
  function originOf(where) {
    const at = R.answerPlace();
    const names = at.entry && cellNames.get(at.phase + where.direction);
    const row = names ? names.entries.indexOf(at.entry) : -1;
    const place = row >= 0 && R.place(at.step, at.rank);
    return place ? { phase: at.phase, place: place.index,
      cell: names.cells[row] === "root" ? "" : names.cells[row] } : null;
  }

  const shape = (where) => [where.columns, where.direction, differing.on, fitted.on].join();

  /** Open what holds the entry that is picked. */
  let openedFor = null;
  function openTo(root, phase) {
    const { entry } = R.state;
    if (!entry || openedFor === entry) return;
    openedFor = entry;
    const find = (node) => {
      if ((node.rows.get(phase) || []).some((row) => entryName(phase, row) === entry)) return node;
      for (const child of node.children.values()) {
        const found = find(child);
        if (found) return found;
      }
      return null;
    };
    const names = cellNames.get(phase + R.whereState().direction);
    const entryName = (_, row) => names.entries[row];
    if (!names) return;
    let node = find(root);
    while (node && node.parent) {
      node = node.parent;
      opened.set(node.path, true);
    }
  }
  const cellNames = new Map();

  /** A link may name a cell: its first entry of the phase is what it means. */
  function resolveCell() {
    const { cell } = R.state;
    if (!cell) return;
    const { phase } = R.whereState();
    for (const direction of R.state.direction ? [R.state.direction] : DIRECTIONS) {
      const names = cellNames.get(phase + direction);
      if (!names) continue;
      let at = names.cells.indexOf(cell);
      if (at < 0) at = names.cells.findIndex((path) => path.startsWith(cell + "."));
      if (at >= 0)
        return void R.go({ cell: null, direction, entry: names.entries[at] }, true);
    }
    R.go({ cell: null }, true);
  }

  function rowShowing(rows, root, path, at) {
    const exact = rows.findIndex((row) => row.call === at);
    if (exact >= 0) return exact;
    const own = path === "root" ? "" : path;
    let best = -1;
    rows.forEach((row, i) => {
      const under = row.node.path === own || row.node.path === "" ||
        own.startsWith(row.node.path + ".");
      if (row.call === null && under &&
        (best < 0 || row.node.path.length > rows[best].node.path.length)) best = i;
    });
    return best;
  }

  function rangeOf(measure, heats) {
    let low = Infinity, high = -Infinity;
    const least = measure.scale === "log" ? 4 : 1;
    const rangeIn = (heat) => {
      let [from, to] = [Infinity, -Infinity];
      for (const code of heat)
        if (code >= least) {
          if (code < from) from = code;
          if (code > to) to = code;
        }
      return [from, to];
    };
    for (const heat of heats.values()) {
      if (!heat) continue;
      const [from, to] = kept(ranges, heat, () => rangeIn(heat));
      low = Math.min(low, from);
      high = Math.max(high, to);
    }
    if (high < low) return [16384, 16384 + 256];
    return high === low ? [low - 128, high + 128] : [low, high];
  }

  function tools() {
    const where = R.whereState();
    const change = (key) => (value) => R.go({ [key]: value, ...(key === "direction"
      ? { entry: null, record: null } : {}) });
    return [
      where.held.length > 0 && R.choose(R.w("phase"), where.held.map((p) => [p, p]), where.phase,
        (phase) => R.go({ phase, entry: null, record: null, key: null })),
      where.directions.length > 1 && R.segments(R.w("direction"),
        where.directions.map((name) => [name, R.w(name)]), where.direction, change("direction")),
      R.head.measures.length > 0 && R.choose(R.w("measure"),
        R.head.measures.map((one) => [one.name, R.t(one.label)]),
        where.measure.name, change("measure")),
      R.segments(R.w("columns"), ["phases", "steps", "ranks"].map((name) => [name, R.w(name)]),
        where.columns, change("columns")),
      check("only_differing", differing), check("fit", fitted),
      R.button(R.w("close_all"), () => {
        opened.clear();
        drawMap();
      }, { class: "quiet" }),
    ];
  }

  function check(key, kept) {
    const input = el("input", { type: "checkbox", on: { change: () => {
      kept.on = input.checked;
      drawMap();
    } } });
    input.checked = kept.on;
    return el("label", { class: "choice line" }, input,
      R.w(key === "only_differing" && !R.paired() ? "only_valued" : key));
  }

  async function learnNames() {
    const cells = (await R.block("cells")) || {};
    for (const [name, part] of Object.entries(cells)) {
      const [index, direction] = name.split("-");
      cellNames.set(R.head.phases[index] + direction, part);
    }
  }

  async function show(box) {
    parts = {
      path: el("div"), tools: el("div", { class: "tools" }), legend: el("div", { class: "map-legend" }),
      map: el("div", { class: "map" }), detail: el("div", { class: "detail", id: "detail" }),
    };
    map = null;
    const none = !R.head.heat.length;
    R.clear(box, parts.path, el("div", { class: "where" + (none ? " alone" : "") },
      el("section", { class: "panel" }, el("h2", { text: R.w("heat_title") }), parts.tools,
        parts.legend, parts.map),
      el("section", { class: "panel" }, parts.detail)));
    if (!none) R.add(parts.tools, tools());
    await Promise.all([R.path(parts.path), learnNames()]);
    resolveCell();
    await Promise.all([drawMap(), R.detail(parts.detail)]);
  }

  async function change(changed) {
    if (changed.has("cell") && R.state.cell) {
      await learnNames();
      resolveCell();
      return;
    }
    const any = (...names) => names.some((name) => changed.has(name));
    if (any("phase", "direction", "measure", "columns")) R.clear(parts.tools, tools());
    const work = [];
    if (any("phase", "direction", "measure", "columns", "step", "rank", "entry", "theme"))
      work.push(drawMap());
    const shown = ["phase", "direction", "step", "rank", "entry", "record", "key", "micro_step"];
    if (any(...shown, "theme"))
      work.push(R.detail(parts.detail));
    await Promise.all(work);
    if (any("entry", "record", "key") && (R.state.entry || R.state.key)) R.showDetail();
  }

  /** The map as paper can hold it: all rows, as wide as the page. */
  function paper() {
    if (map && map.frame.isConnected) parts.map.append(map.onPaper());
  }

  /** Bring into sight what is picked, if it is not. */
  R.showDetail = function () {
    if (!parts || !parts.detail.isConnected || !parts.detail.childElementCount) return;
    const area = parts.detail.getBoundingClientRect();
    if (area.top > window.innerHeight - 160 || area.bottom < 80)
      parts.detail.scrollIntoView({ block: "start" });
  };

  R.views.push({ name: "where", show, change, paper });
})();
