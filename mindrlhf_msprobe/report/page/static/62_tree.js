// The cells of a network as a tree, with the values of a heat map: own ones and of what is inside.
(function () {
  "use strict";
  const R = window.report;

  const numeric = (name) => /^\d+$/.test(name);

  /**
   * Return the tree of several phases. `given`: [{phase, cells: a part of data-cells}].
   * A node: {path, name, note, parent, children: Map, rows: Map of phase → rows, deep}.
   */
  R.treeOf = function (given) {
    const made = (path, name, parent) =>
      ({ path, name, note: "", parent, children: new Map(), rows: new Map(), deep: false });
    const root = made("", "root", null);
    for (const { phase, cells } of given)
      cells.cells.forEach((path, row) => {
        let node = root;
        if (path !== "root" && path !== "") {
          // A name that no cell can have is one row: its points part nothing.
          const parts = path.length > 400 ? [path] : path.split(".");
          for (let i = 0; i < parts.length; i++) {
            let child = node.children.get(parts[i]);
            if (!child) {
              child = made(parts.slice(0, i + 1).join("."), parts[i], node);
              node.children.set(parts[i], child);
            }
            node = child;
          }
        }
        if (!node.rows.has(phase)) node.rows.set(phase, []);
        node.rows.get(phase).push(row);
        node.note = node.note || cells.classes[row] || "";
      });
    mark(root);
    return root;
  };

  /** Mark what holds layers: a name that is a number, further inside. */
  function mark(node) {
    for (const child of node.children.values()) {
      mark(child);
      if (numeric(child.name) || child.deep) node.deep = true;
    }
    if (numeric(node.name)) node.deep = false;
  }

  /** Whether a node is open as long as nobody opened or closed it: containers of layers are. */
  R.openAtFirst = (node) => node.parent === null || node.deep;

  /**
   * Return the rows to show: [{node, depth, open, call}]. `changed`: path → open or not.
   * `phase`: of it, the calls of an open node are rows of their own; null: of none.
   */
  R.rowsOf = function (root, changed, phase) {
    const shown = [];
    const visit = (node, depth, prefix) => {
      const calls = phase === null ? [] : node.rows.get(phase) || [];
      const opens = node.children.size > 0 || calls.length > 1;
      const open = opens ? changed.get(node.path) ?? R.openAtFirst(node) : null;
      const bare = node.rows.size === 0 && node.parent !== null;
      const name = prefix + node.name;
      // A container without entries of its own is written before its only child, or its layers.
      if (bare && open) {
        for (const child of node.children.values()) visit(child, depth, name + ".");
        return;
      }
      shown.push({ node, depth, open, name, call: null });
      if (!open) return;
      if (calls.length > 1)
        for (const row of calls)
          shown.push({ node, depth: depth + 1, open: null, name: null, call: row });
      for (const child of node.children.values()) visit(child, depth + 1, "");
    };
    visit(root, 0, "");
    return shown;
  };

  /** Return a node's rows of a phase, with those of all inside it. */
  R.rowsInside = function (node, phase) {
    let found = node.rows.get(phase) || [];
    for (const child of node.children.values()) found = found.concat(R.rowsInside(child, phase));
    return found;
  };

  // What of several values stands for them: a NaN before the largest; counts are added.
  function worse(scale, a, b) {
    if (scale === "log") return a === 2 || b === 2 ? 2 : Math.max(a, b);
    if (scale === "status" || a < 0 || b < 0) return Math.max(a, b);
    return Math.min(a + b, 32767);
  }

  // Of these a container's own value says more than the largest inside it.
  const OWN = new Set(["norm", "norm_b", "max"]);

  /**
   * Return functions of the values of a phase: code(row of R.rowsOf, place index).
   * `heat`: the Int16Array of the block, or null.
   */
  R.valuesOf = function (measure, heat, phase, places) {
    const none = R.noCode(measure.scale);
    const kept = new Map();
    const over = (rows) => {
      const codes = new Int16Array(places).fill(none);
      for (const row of rows)
        for (let i = 0, at = row * places; i < places; i++, at++)
          codes[i] = worse(measure.scale, codes[i], heat[at]);
      return codes;
    };
    const total = (node, open) => {
      const key = (open ? "open " : "shut ") + node.path;
      if (!kept.has(key)) {
        const own = node.rows.get(phase) || [];
        const alone = own.length && (open || OWN.has(measure.name));
        kept.set(key, alone ? over(own) : open ? new Int16Array(places).fill(none)
          : over(R.rowsInside(node, phase)));
      }
      return kept.get(key);
    };
    return function (row, place) {
      if (!heat || place < 0) return none;
      if (row.call !== null) return heat[row.call * places + place];
      return total(row.node, row.open === true)[place];
    };
  };

  /** Return the worst of a node's rows at a place, of equals the first. */
  R.worstRow = function (measure, heat, node, phase, place, places, inside) {
    const rows = inside ? [...R.rowsInside(node, phase)].sort((x, y) => x - y)
      : node.rows.get(phase) || [];
    let best = rows.length ? rows[0] : null;
    if (!heat || place < 0) return best;
    for (const row of rows) {
      const code = heat[row * places + place];
      const known = heat[best * places + place];
      if (worse(measure.scale === "count" ? "status" : measure.scale, known, code) !== known)
        best = row;
    }
    return best;
  };
})();
