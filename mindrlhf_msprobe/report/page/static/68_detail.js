// One entry or one key, down to its records: the statistics of both sides, and what differs.
(function () {
  "use strict";
  const R = window.report;
  const { el } = R;
  const FIELDS = ["dtype", "shape", "max", "min", "mean", "norm", "nan", "inf", "fp", "value",
    "file", "why"];
  const NUMBERS = new Set(["max", "min", "mean", "norm", "nan", "inf"]);
  const LABELS = { nan: "NaN", inf: "Inf" };
  const SHOWN_IO = ["input", "output", "parameters", "parameters_grad", "data"];

  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const labelOf = (field) =>
    ["fp", "value", "file", "why"].includes(field) ? R.w("field_" + field)
      : LABELS[field] || field;

  // -- one record ------------------------------------------------------------------------------

  function cell(side, field, value, shown, differs, from) {
    const whole = field === "why" ? R.t(value)
      : typeof value === "object" ? JSON.stringify(value) : value;
    const content = shown === undefined ? R.long(whole, 80)
      : differs && from < shown.length
        ? [shown.slice(0, from), el("mark", { text: shown.slice(from) })] : shown;
    return el("td", {
      class: NUMBERS.has(field) ? "number" : "value", "data-side": side.toUpperCase(),
      "data-field": field, "data-value": typeof value === "string" ? value : JSON.stringify(value),
      title: typeof value === "number" ? String(value) : null,
    }, content);
  }

  function difference(a, b) {
    const [x, y] = [R.number(a), R.number(b)];
    if (!Number.isFinite(x) || !Number.isFinite(y)) return "";
    if (x === y) return "0";
    const most = Math.max(Math.abs(x), Math.abs(y));
    return `${R.num(y - x, 3)} (${R.num((100 * Math.abs(y - x)) / most, 3)} %)`;
  }

  function statistics(record) {
    const sides = R.sides();
    const fields = FIELDS.filter((field) =>
      sides.some((side) => record[side] && R.known(record[side][field])));
    const two = sides.length > 1;
    return el("div", { class: "wide" }, el("table", { class: "sides" },
      el("thead", null, el("tr", null, el("td"),
        sides.map((side) => el("th", { scope: "col", class: "side-" + side,
          text: R.sideName(side) + (record[side] ? "" : " · " + R.w("absent")) })),
        two && el("th", { scope: "col", text: "B − A" }))),
      el("tbody", null, fields.map((field) => {
        const [a, b] = ["a", "b"].map((side) => (record[side] ? record[side][field] : undefined));
        const differs = two && record.a && record.b && field !== "file" && !same(a, b);
        const number = NUMBERS.has(field);
        const shown = two && number ? R.pair(a, b) : [R.num(a, 6), R.num(b, 6)];
        let from = 0;
        while (from < shown[0].length && shown[0][from] === shown[1][from]) from++;
        const text = (value, i) => (number ? shown[i] : field === "shape" && Array.isArray(value)
          ? `[${value.join(", ")}]` : typeof value !== "number" ? undefined
            : Number.isInteger(value) ? R.num(value, 17) : two ? R.pair(a, b)[i]
              : R.num(value, 6));
        return el("tr", { class: differs ? "differs" : null },
          el("th", { scope: "row" }, el("span", { class: "sign", text: differs ? "≠" : "" }),
            labelOf(field)),
          [a, b].slice(0, sides.length).map((value, i) => (R.known(value)
            ? cell(sides[i], field, value, text(value, i), differs, number ? from : Infinity)
            : el("td", { class: "faint", text: "–" }))),
          two && el("td", { class: "number faint", text: number && record.a && record.b
            ? difference(a, b) : "" }));
      }))));
  }

  function firstValues(record) {
    const sides = R.sides().filter((side) => record[side] && record[side].first);
    const count = Math.max(0, ...sides.map((side) => record[side].first.length));
    if (!count) return null;
    const value = (side, i) => record[side].first[i];
    const indices = Array.from({ length: Math.min(count, 64) }, (_, i) => i);
    const differs = (i) => sides.length > 1 && !same(value("a", i), value("b", i));
    return el("div", { class: "wide" }, el("table", { class: "firsts" },
      el("caption", { text: R.w("first_values") }),
      el("tbody", null,
        el("tr", { class: "faint" }, el("th", { scope: "row", text: "#" }),
          indices.map((i) => el("th", { scope: "col", text: i }))),
        sides.map((side) => el("tr", null,
          el("th", { scope: "row", text: R.paired() ? side.toUpperCase() : "" }),
          indices.map((i) => {
            const shown = sides.length > 1 ? R.pair(value("a", i), value("b", i))[
              side === "a" ? 0 : 1] : R.num(value(side, i), 6);
            return el("td", { class: "number" + (differs(i) ? " differs" : "") }, shown);
          }))),
        sides.length > 1 && el("tr", { class: "signs" }, el("td"),
          indices.map((i) => el("td", { text: differs(i) ? "≠" : "" }))))));
  }

  // The errors of a stored tensor by rows: small squares, the darker the larger.
  function errorMap(rows) {
    const [high, wide] = rows.shape;
    const values = rows.values.map(R.number);
    const known = values.filter((v) => v > 0 && Number.isFinite(v)).map(Math.log2);
    const low = known.reduce((x, y) => Math.min(x, y), Infinity);
    const top = known.reduce((x, y) => Math.max(x, y), -Infinity);
    const size = Math.max(2, Math.min(22, Math.floor(480 / Math.max(wide, 1))));
    const tall = Math.max(2, Math.min(22, Math.floor(320 / Math.max(high, 1))));
    const ratio = window.devicePixelRatio || 1;
    const canvas = el("canvas", {
      class: "errors", role: "img", "aria-label": R.w("error_map"),
      style: { width: wide * size + "px", height: high * tall + "px" },
    });
    canvas.width = wide * size * ratio;
    canvas.height = high * tall * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    R.coloured(canvas, () => values.forEach((value, i) => {
      pen.fillStyle = value === 0 ? R.colourOfZero() : !Number.isFinite(value) ? R.colourOfNaN()
        : R.colourOfPart(top > low ? (Math.log2(value) - low) / (top - low) : 1);
      const gap = size > 5 && tall > 5 ? 1 : 0;
      pen.fillRect((i % wide) * size, Math.floor(i / wide) * tall, size - gap, tall - gap);
    }));
    const [allRows, allColumns] = rows.of || rows.shape;
    const axes = rows.axes ? R.t(rows.axes) : R.w("error_axes", { rows: allRows, columns: allColumns });
    const span = (i, count, all) => {
      const from = Math.floor((i * all) / count), to = Math.ceil(((i + 1) * all) / count) - 1;
      return to > from ? `${from}–${to}` : String(from);
    };
    const told = el("p", { class: "told", role: "status", text: axes });
    canvas.addEventListener("mousemove", (event) => {
      const column = Math.floor(event.offsetX / size), row = Math.floor(event.offsetY / tall);
      if (row >= high || column >= wide) return;
      told.textContent = `[${span(row, high, allRows)}, ${span(column, wide, allColumns)}] · ` +
        `max |A−B| ${R.num(values[row * wide + column])}`;
    });
    canvas.addEventListener("mouseleave", () => {
      told.textContent = axes;
    });
    return el("figure", null, el("figcaption", { text: R.w("error_map") }), canvas,
      known.length > 0 && el("p", { class: "faint" }, R.num(2 ** low, 2), " ",
        el("i", { class: "ramp", colour: { background: R.colourOfAll } }), " ",
        R.num(2 ** top, 2)), told);
  }

  /** How many elements are how far apart: bars of powers of ten. */
  function histogram({ edges, counts }) {
    const most = counts.reduce((x, y) => Math.max(x, y), 1);
    const power = (i) => R.num(10 ** R.number(edges[i]), 2);
    const told = el("p", { class: "told", role: "status" });
    const ends = `|A−B|: ${power(0)} … ${power(counts.length)}`;
    told.textContent = ends;
    const bars = el("div", { class: "bars", role: "img", "aria-label": R.w("histogram"), on: {
      mouseleave: () => {
        told.textContent = ends;
      } } }, counts.map((count, i) => el("span", {
      title: `${power(i)} … ${power(i + 1)}: ${count}`,
      on: { mouseenter: () => {
        told.textContent = `|A−B| ${power(i)} … ${power(i + 1)}: ${R.w("n_elements", { n: count })}`;
      } },
    }, el("i", { style: { height: (100 * count) / most + "%" } }))));
    return el("figure", null, el("figcaption", { text: R.w("histogram") }), bars, told);
  }

  function errors(box, error) {
    const first = error.first_mismatch && error.first_mismatch.length > 0;
    R.clear(box, el("h4", { text: R.w("error_place") }),
      R.known(error.different) && el("p", { class: "number", text: R.w("elements_differ", {
        n: R.num(error.different), of: R.num(error.size),
        part: R.num((100 * error.different) / Math.max(error.size, 1), 3),
      }) }),
      first && el("p", null, R.w("first_mismatch"), " ",
        el("b", { class: "number", text: `[${error.first_mismatch.join(", ")}]` })));
    const both = el("div", { class: "figures" });
    box.append(both);
    if (error.histogram && error.histogram.counts.length) both.append(histogram(error.histogram));
    if (error.rows && error.rows.values.length) both.append(errorMap(error.rows));
  }

  function heading(record) {
    const side = record.a || record.b || {};
    return el("span", { class: "record-head" },
      el("span", { class: "tag", text: R.w("io_" + record.io) }), " ",
      R.data(record.path, 60), record.arg && el("span", { class: "faint" }, " ",
        R.data(record.arg, 40)), " ",
      R.badge(record.s), " ",
      R.known(record.d) && el("span", { class: "number" }, R.swatch(record.d), R.num(record.d, 3)),
      el("span", { class: "faint number" }, " ", side.dtype, " ",
        side.shape && `[${side.shape.join(", ")}]`));
  }

  function recordFold(record, open) {
    const fold = R.fold(heading(record), () => {
      const error = el("div");
      if (record.e) errors(error, record.e);
      return el("div", { class: "record-body" },
        el("p", { class: "faint" }, R.long(record.n, 120)),
        R.list(record.notes).length > 0 && el("ul", { class: "notes" }, record.notes.map((note) =>
          el("li", null, R.long(R.t(note), 300)))),
        statistics(record),
        record.m && Object.keys(record.m).length > 0 && el("dl", { class: "metrics" },
          Object.entries(record.m).map(([name, value]) => el("div", null,
            el("dt", null, R.data(name, 40)), el("dd", { class: "number", text: R.num(value, 6),
              title: R.known(value) ? String(value) : null })))),
        firstValues(record), error);
    }, open, { class: "record" + (R.agrees(record.s) ? "" : " unlike"), "data-of": record.n });
    const mark = () => {
      if (fold.open) fold.setAttribute("data-open-record", record.n);
      else fold.removeAttribute("data-open-record");
    };
    fold.addEventListener("toggle", mark);
    mark();
    return fold;
  }

  function records(list) {
    const wanted = list.findIndex((record) => record.n === R.state.record);
    const unlike = list.findIndex((record) => !R.agrees(record.s));
    const first = wanted >= 0 ? wanted : unlike >= 0 ? unlike : list.length === 1 ? 0
      : list.findIndex((record) => record.io === "output");
    const order = [...list.keys()];
    order.sort((x, y) => SHOWN_IO.indexOf(list[x].io) - SHOWN_IO.indexOf(list[y].io) || x - y);
    const most = 200;
    const make = (i) => recordFold(list[i], i === first || i === wanted);
    const shown = order.slice(0, most).map(make);
    // What is asked for is shown, however many stand before it.
    if (first >= 0 && order.indexOf(first) >= most) shown.unshift(make(first));
    const rest = order.slice(most);
    return [shown, rest.length > 0 && R.fold(R.w("more", { n: rest.length }), () =>
      el("div", null, rest.map((i) => recordFold(list[i], false))))];
  }

  // -- one entry -------------------------------------------------------------------------------

  const RANKING = ["unreadable", "only_in_a", "only_in_b", "dtype_mismatch", "shape_mismatch",
    "non_finite", "different", "within_tolerance", "identical"];
  const worst = (list) => RANKING.find((status) => list.some((one) => one.s === status)) || null;
  const furthest = (list) => {
    let found = null;
    for (const { d } of list) {
      if (!R.known(d)) continue;
      const number = R.number(d);
      if (!Number.isFinite(number)) return d;
      if (found === null || number > found) found = number;
    }
    return found;
  };
  R.furthest = furthest;

  function line(entry) {
    const distance = furthest(entry.r.filter((one) => one.io !== "parameters"));
    return el("li", null,
      el("a", { href: R.href({ ...R.state, direction: R.directionOf(entry.n),
        entry: entry.n, record: null }) },
        R.data(entry.n, 90)), " ", R.badge(worst(entry.r)), " ",
      R.known(distance) && el("span", { class: "number" }, R.swatch(distance), R.num(distance, 3)));
  }

  function entriesOf(block, phase) {
    const index = R.head.phases.indexOf(phase);
    return block.phases.filter((one) => one.phase === index || one.phase === phase)
      .flatMap((one) => one.entries);
  }

  /** Of a phase: what does not agree, in the order of time; of one run all there is. */
  function showPhase(box, block, phase) {
    const entries = entriesOf(block, phase);
    const unlike = R.paired() ? entries.filter((one) => one.r.some((record) =>
      !R.agrees(record.s))) : entries;
    const rest = unlike.slice(40);
    R.clear(box, el("h2", null, R.data(phase, 120), " ",
      el("span", { class: "faint", text: R.placeName(R.state.step, R.state.rank) })),
    !entries.length ? R.missing(R.w("phase_not_here", {
      phase: R.isolated(phase), place: R.placeName(R.state.step, R.state.rank),
    })) : el("p", { text: R.paired() ? R.w("entries_differ", {
      n: unlike.length, of: entries.length,
    }) : R.w("n_entries", { n: entries.length }) }),
    el("ol", { class: "inside" }, unlike.slice(0, 40).map(line)),
    rest.length > 0 && R.fold(R.w("more", { n: rest.length }), () =>
      el("ol", { class: "inside", start: 41 }, rest.slice(0, 2000).map(line))));
  }

  function showEntry(box, block, where) {
    const entries = entriesOf(block, where.phase);
    const found = entries.filter((one) => one.n === R.state.entry);
    if (!found.length) {
      R.clear(box, el("h2", null, R.data(R.state.entry, 120)),
        R.missing(R.w(entries.length ? "entry_not_here" : "phase_not_here", {
          phase: R.isolated(where.phase || ""), place: R.placeName(R.state.step, R.state.rank),
        })));
      return;
    }
    const entry = found.find((one) => one.r.some((record) => !R.agrees(record.s))) || found[0];
    const at = entries.indexOf(entry);
    const inside = entries.filter((one) => one.parent === entry.n && one !== entry);
    const parent = entry.parent && entries.find((one) => one.n === entry.parent);
    const around = (by, key) => entries[at + by] && el("a", {
      class: "way", href: R.href({ ...R.state, entry: entries[at + by].n, record: null }),
      title: R.isolated(entries[at + by].n),
    }, R.w(key));
    const stack = R.known(entry.st) ? block.stacks[entry.st] : null;
    R.clear(box,
      el("h2", null, R.long(entry.n, 140), " ", R.badge(worst(entry.r))),
      el("p", { class: "faint" }, R.data(where.phase, 60), entry.o > 0 && ` #${entry.o}`, " · ",
        R.placeName(R.state.step, R.state.rank), entry.c && [" · ", R.data(entry.c, 60)],
        R.known(entry.token) && ` · ${R.w("token_n", { n: entry.token })}`,
        entry.t && R.known(entry.t[0]) && ` · ${R.w("order", { n: entry.t[0] })}`),
      el("p", { class: "ways" }, parent && el("a", {
        class: "way", href: R.href({ ...R.state, entry: parent.n, record: null }),
        title: R.isolated(parent.n),
      }, R.w("outer")), around(-1, "entry_before"), around(1, "entry_after")),
      stack && stack.length > 0 && R.fold(el("span", null, R.w("stack"), " ",
        el("span", { class: "faint" }, R.data(stack[0], 80))),
      () => el("pre", { class: "code" }, stack.map((text) => [R.long(text, 400), "\n"]))),
      el("h3", { text: R.w("n_records", { n: entry.r.length }) }),
      records(entry.r),
      inside.length > 0 && [el("h3", { text: R.w("inside", { n: inside.length }) }),
        el("ol", { class: "inside" }, inside.slice(0, 100).map(line)),
        inside.length > 100 && R.fold(R.w("more", { n: inside.length - 100 }), () =>
          el("ol", { class: "inside" }, inside.slice(100, 1100).map(line)))]);
  }

  function showKey(box, block) {
    const index = R.head.keys.indexOf(R.state.key);
    const saves = block.keys.filter((one) => one.key === index || one.key === R.state.key);
    const { micro_step: asked } = R.state;
    const list = saves.filter((one) => !R.known(asked) || one.micro_step === asked)
      .flatMap((one) => one.r);
    const title = el("h2", null, R.data(R.state.key, 120), " ",
      el("span", { class: "faint", text: R.placeName(R.state.step, R.state.rank) }));
    if (!list.length) {
      R.clear(box, title, R.missing(R.w("key_not_here", {
        place: R.placeName(R.state.step, R.state.rank),
      })));
      return null;
    }
    const numbers = [...new Set(saves.map((one) => one.micro_step))];
    R.clear(box, title, numbers.length > 1 && el("p", { class: "ways" },
      R.link({ ...R.state, micro_step: null, view: "where" }, R.w("all_saves")), " ",
      numbers.map((n) => [el("a", {
        href: R.href({ ...R.state, micro_step: n, view: "where" }),
        "aria-current": n === asked ? "true" : null,
      }, R.w("micro_step_n", { number: n })), " "])),
    records(list));
  }

  // -- what is picked --------------------------------------------------------------------------

  async function entryOf(record) {
    const block = await R.placeBlock(R.state.step, R.state.rank);
    for (const { entries } of block ? block.phases : [])
      for (const entry of entries)
        if (entry.r.some((one) => one.n === record)) return entry.n;
    return null;
  }

  let asking = 0;
  R.detail = async function (box) {
    const mine = ++asking;
    const { step, rank, key, record } = R.state;
    let { entry } = R.state;
    if (!entry && !key && record) entry = await entryOf(record);
    if (mine !== asking) return;
    if (entry && entry !== R.state.entry) return void R.go({ entry }, true);
    const { phase } = R.state;
    if (!entry && !key && !phase) {
      R.clear(box, el("h2", { text: R.w("detail") }), el("p", { text: R.w("pick_told") }));
      return;
    }
    const block = await R.placeBlock(step, rank);
    if (mine !== asking) return;
    if (!block) {
      R.clear(box, el("h2", null, R.data(entry || key || phase, 120)),
        R.missing(R.w("place_not_in_full", { place: R.placeName(step, rank) })),
        R.nearestInFull(R.state));
      return;
    }
    if (entry) showEntry(box, block, R.whereState());
    else if (key) showKey(box, block);
    else showPhase(box, block, phase);
  };
})();
