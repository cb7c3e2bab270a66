// Records of the place, or of all places in the page: search, sort, filter.
(function () {
  "use strict";
  const R = window.report;
  const { el } = R;
  const ROW = 30;
  let asking = 0;
  let refill = null;
  let printed = null;

  function rowsOf(place, block) {
    const rows = [];
    const add = (record, of) => {
      const side = record.a || record.b || {};
      rows.push({
        record, step: place.step, rank: place.rank, ...of, order: rows.length,
        text: (record.n + " " + (of.phase || of.key) + " " + (record.arg || "")).toLowerCase(),
        dtype: side.dtype || "", status: record.s, io: record.io,
        distance: record.d, error: record.m ? record.m.max_abs_err : null,
        norm_a: record.a ? record.a.norm : null, norm_b: record.b ? record.b.norm : null,
        bad: total(record.a) === null && total(record.b) === null ? null
          : Math.max(total(record.a) ?? 0, total(record.b) ?? 0),
      });
    };
    for (const { phase, entries } of block.phases)
      for (const entry of entries)
        for (const record of entry.r)
          add(record, { phase, entry: entry.n });
    for (const { key, micro_step: micro, r } of block.keys)
      for (const record of r) add(record, { key, micro_step: micro });
    return rows;
  }

  const total = (side) => (side && (R.known(side.nan) || R.known(side.inf))
    ? (side.nan || 0) + (side.inf || 0) : null);

  const loaded = new Map();
  async function load(places) {
    const found = [];
    for (const place of places) {
      const name = `${place.step}-${place.rank}`;
      if (!loaded.has(name)) {
        const block = await R.placeBlock(place.step, place.rank);
        loaded.set(name, block ? rowsOf(place, block) : []);
      }
      found.push(loaded.get(name));
    }
    return found.length === 1 ? found[0] : found.flat();
  }

  // -- columns ---------------------------------------------------------------------------------

  const text = (value) => (R.known(value) ? String(value) : "");
  const RANKING = { unreadable: 7, only_in_a: 6, only_in_b: 6, dtype_mismatch: 5,
    shape_mismatch: 5, non_finite: 4, different: 3, within_tolerance: 2, identical: 1 };

  function columns(all) {
    const pair = R.paired();
    return [
      all && { name: "place", label: R.w("step") + " · rank", value: (row) =>
        row.step * 1e6 + row.rank, cell: (row) => `${row.step} · ${row.rank}`, class: "number" },
      { name: "phase", label: R.w("phase_or_key"), value: (row) => text(row.phase || row.key),
        cell: (row) => inPhase(row, 30), paper: (row) => inPhase(row, Infinity) },
      { name: "record", label: R.w("record"), value: (row) => row.record.n, wide: true,
        cell: (row) => R.el("a", { href: hrefOf(row) }, R.data(row.record.n, 90)),
        paper: (row) => R.data(row.record.n, Infinity) },
      { name: "dtype", label: "dtype", value: (row) => row.dtype, cell: (row) => text(row.dtype) },
      pair && { name: "status", label: R.w("status"), value: (row) => RANKING[row.status] || 0,
        cell: (row) => R.badge(row.status), down: true },
      pair && { name: "distance", label: R.w("distance"), number: (row) => row.distance,
        cell: (row) => (R.known(row.distance)
          ? [R.swatch(row.distance), R.num(row.distance, 3)] : "–") },
      pair && { name: "error", label: "max |A−B|", number: (row) => row.error,
        cell: (row) => R.num(row.error, 3) },
      { name: "norm_a", label: pair ? "norm A" : "norm", number: (row) => row.norm_a,
        cell: (row) => R.num(row.norm_a, 4) },
      pair && { name: "norm_b", label: "norm B", number: (row) => row.norm_b,
        cell: (row) => R.num(row.norm_b, 4) },
      { name: "bad", label: "NaN + Inf", number: (row) => row.bad,
        cell: (row) => R.num(row.bad) },
    ].filter(Boolean);
  }

  const inPhase = (row, most) => [R.data(row.phase || row.key, most),
    R.known(row.micro_step) && row.micro_step > 0 && ` [${row.micro_step}]`];

  const hrefOf = (row) => R.href({
    view: "where", step: row.step, rank: row.rank, phase: row.phase, entry: row.entry,
    key: row.key, micro_step: row.key ? row.micro_step : undefined, record: row.record.n,
  });

  function sorted(rows, columns) {
    const asked = R.state.sort || "";
    const down = asked.startsWith("-");
    const column = columns.find((one) => one.name === asked.replace(/^-/, ""));
    if (!column) return rows;
    const sign = down ? -1 : 1;
    if (column.number) {
      // NaN is the worst there is; what is not known stands last, however one sorts.
      const key = (row) => {
        const value = column.number(row);
        if (!R.known(value)) return null;
        const number = R.number(value);
        return Number.isNaN(number) ? Infinity : number;
      };
      const keys = new Map(rows.map((row) => [row, key(row)]));
      return [...rows].sort((x, y) => {
        const [a, b] = [keys.get(x), keys.get(y)];
        if (a === null || b === null) return (a === null) - (b === null);
        return a === b ? 0 : a < b ? -sign : sign;
      });
    }
    return [...rows].sort((x, y) => {
      const [a, b] = [column.value(x), column.value(y)];
      return a === b ? 0 : a < b ? -sign : sign;
    });
  }

  // -- the view --------------------------------------------------------------------------------

  async function show(box) {
    const mine = ++asking;
    const places = R.placesInFull();
    const here = R.place(R.state.step, R.state.rank);
    const all = R.state.scope === "all";
    printed = null;
    if (!places.length) {
      R.clear(box, R.missing(R.w("no_places_in_full")));
      return;
    }
    const tools = el("div", { class: "tools" });
    const status = el("span", { class: "told", role: "status" });
    const table = el("table", { class: "records" });
    const scroll = el("div", { class: "records-scroll on-screen", tabindex: "0" }, table);
    const search = el("input", {
      type: "search", placeholder: R.w("search_records"), "aria-label": R.w("search_records"),
      spellcheck: "false", on: { input: () => {
        R.go({ q: search.value }, true);
        fill();
      }, keydown: (event) => {
        if (event.key === "ArrowDown") {
          event.preventDefault();
          const link = table.querySelector("tbody a");
          if (link) link.focus();
        }
      } },
    });
    search.value = R.state.q || "";
    R.clear(box, tools, R.clear(status, R.w("reading")), scroll);
    const rows = all ? await load(places) : here && here.full ? await load([here]) : null;
    if (mine !== asking) return;
    const filters = (key, values, label) => {
      const options = [["", R.w("all")], ...values.map((value) =>
        [value, R.w((key === "io" ? "io_" : "status_") + value)])];
      if (key === "status") options.splice(1, 0, ["unlike", R.w("not_agreeing")]);
      return R.choose(label, options, R.state[key] || "", (value) =>
        R.go({ [key]: value }, true));
    };
    const values = (key) => [...new Set((rows || []).map((row) => row[key]).filter(Boolean))];
    R.clear(tools, search,
      R.segments(R.w("scope"), [["", R.placeName(R.state.step, R.state.rank)],
        ["all", R.w("all_places", { n: places.length })]], R.state.scope || "",
      (scope) => R.go({ scope })),
      R.paired() && filters("status", values("status"), R.w("status")),
      filters("io", values("io"), R.w("what")), status);
    if (!rows) {
      R.clear(status);
      R.clear(scroll, R.missing(R.w("place_not_in_full", {
        place: R.placeName(R.state.step, R.state.rank),
      })), R.nearestInFull(R.state));
      return;
    }
    const shown = columns(all);
    let found = rows;

    const heads = el("tr", null, shown.map((column) => {
      const button = R.button(column.label, () => {
        const now = R.state.sort || "";
        const numbers = column.number || column.down;
        const [first, second] = numbers ? ["-" + column.name, column.name]
          : [column.name, "-" + column.name];
        R.go({ sort: now === first ? second : now === second ? null : first }, true);
      });
      return el("th", { scope: "col", class: (column.number || column.class ? "number" : "") +
        (column.wide ? " wide-column" : ""), "data-sort": column.name }, button);
    }));
    const space = () => el("tr", { class: "space", "aria-hidden": "true" },
      el("td", { colspan: shown.length }));
    const [above, below] = [space(), space()];
    const body = el("tbody");
    R.clear(table, el("thead", null, heads), body);

    function rowElement(row, i) {
      return el("tr", {
        "data-record": row.record.n, "data-phase": row.phase || row.key, "data-step": row.step,
        "data-rank": row.rank, "aria-rowindex": i + 2,
        class: R.agrees(row.status) ? null : "unlike",
      }, shown.map((column) => el("td", { class: column.number || column.class ? "number" : "",
        "data-column": column.name }, column.cell(row))));
    }

    /** Return the first rows whole: paper has no place to scroll to. */
    printed = () => el("div", { class: "on-paper" },
      found.length > R.PRINTED && el("p", { text: R.w("printed_records", {
        n: R.PRINTED, of: found.length,
      }) }),
      el("table", { class: "paper-records" },
        el("colgroup", null, shown.map((column) => el("col", { class: "of-" + column.name }))),
        el("thead", null, el("tr", null, shown.map((column) => el("th", {
          scope: "col", class: column.number || column.class ? "number" : null,
          text: column.label,
        })))),
        el("tbody", null, found.slice(0, R.PRINTED).map((row) => el("tr", null,
          shown.map((column) => el("td", {
            class: column.number || column.class ? "number" : null, "data-column": column.name,
          }, (column.paper || column.cell)(row))))))));

    let drawn = [-1, -1];
    function draw(force) {
      const high = Math.max(scroll.clientHeight, window.innerHeight);
      const first = Math.max(0, Math.floor(scroll.scrollTop / ROW) - 12);
      const last = Math.min(found.length, Math.ceil((scroll.scrollTop + high) / ROW) + 12);
      if (!force && first === drawn[0] && last === drawn[1]) return;
      drawn = [first, last];
      above.firstChild.style.height = first * ROW + "px";
      below.firstChild.style.height = (found.length - last) * ROW + "px";
      R.clear(body, above, found.slice(first, last).map((row, i) => rowElement(row, first + i)),
        below);
    }

    function fill() {
      const words = (R.state.q || "").toLowerCase().split(/\s+/).filter(Boolean);
      const { status: asked, io } = R.state;
      found = sorted(rows.filter((row) => words.every((word) => row.text.includes(word)) &&
        (!asked || row.status === asked || (asked === "unlike" && !R.agrees(row.status))) &&
        (!io || row.io === io)), shown);
      const order = R.state.sort || "";
      for (const head of heads.children) {
        const mine = head.dataset.sort === order.replace(/^-/, "");
        head.setAttribute("aria-sort", !mine ? "none" : order.startsWith("-") ? "descending"
          : "ascending");
      }
      table.setAttribute("aria-rowcount", found.length + 1);
      R.clear(status, R.w("n_found", { n: found.length, of: rows.length }),
        !found.length && [" ", R.button(R.w("clear"), () => {
          search.value = "";
          R.go({ q: null, status: null, io: null }, true);
        })]);
      scroll.scrollTop = 0;
      draw(true);
    }

    let asked = false;
    scroll.addEventListener("scroll", () => {
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => {
        asked = false;
        draw();
      });
    });
    body.addEventListener("click", (event) => {
      const line = event.target.closest("tr[data-record]");
      if (!line || event.target.closest("a") || String(window.getSelection())) return;
      line.querySelector("a").click();
    });
    body.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
      const line = event.target.closest("tr");
      const next = event.key === "ArrowDown" ? line.nextElementSibling
        : line.previousElementSibling;
      const link = next && next.querySelector("a");
      event.preventDefault();
      if (link) link.focus();
      else if (event.key === "ArrowUp") search.focus();
    });
    refill = () => {
      if (search.value !== (R.state.q || "")) search.value = R.state.q || "";
      const selects = tools.querySelectorAll("select");
      for (const select of selects) select.value = "";
      const keys = R.paired() ? ["status", "io"] : ["io"];
      keys.forEach((key, i) => {
        selects[i].value = R.state[key] || "";
      });
      fill();
    };
    fill();
  }

  async function change(changed, box) {
    const any = (...names) => names.some((name) => changed.has(name));
    if (any("scope", "step", "rank", "theme")) await show(box);
    else if (any("q", "sort", "status", "io") && refill) refill();
  }

  function paper(box) {
    if (printed) R.add(box, [printed()]);
  }

  R.views.push({ name: "records", show, change, paper });
})();
