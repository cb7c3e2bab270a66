// Training and inference: where the same token gets other values in the two networks.
(function () {
  "use strict";
  const R = window.report;
  const { el } = R;
  const DISTANCE = { name: "distance", scale: "log" };
  const NONE = 0, NAN = 2;
  // Rows that are open at first, values and texts that are shown at once.
  const FEW = 60;
  const BARS = 300;
  const TEXTS = 10;
  const CURVES = [
    "rollout_corr/log_prob_diff_mean", "rollout_corr/log_prob_diff_max", "rollout_corr/k3_kl",
    "rollout_corr/ppl_ratio", "rollout_corr/chi2_token", "rollout_corr/ratio_fraction_outside",
  ];
  let map = null;
  let parts = null;
  let asking = 0;
  const opened = new Map();

  const sideNow = () => R.head.mismatches.find((one) => one.side === R.state.side) ||
    R.head.mismatches.find((one) => one.places.length) || R.head.mismatches[0];

  // -- the conclusion --------------------------------------------------------------------------

  // Of two runs the page holds the rollout's.
  const whereOf = (data, stage) => ({
    view: "where", step: R.state.step, rank: R.state.rank, cell: stage.cell,
    phase: R.list(sideNow().runs).length > 1 ? data.rollout : data.training,
  });

  function conclusion(data) {
    const first = R.known(data.first) ? data.stages[data.first] : null;
    return el("section", { class: "panel answer tone-" + data.tone, id: "mismatch-answer" },
      el("h2", null, R.t(data.headline),
        first && [": ", R.link(whereOf(data, first), R.data(first.name, 200))]),
      data.cause && el("p", null, R.w("cause"), ": ", R.w("cause_mismatch_" + data.cause)),
      data.sentences.map((sentence) => el("p", null, R.long(R.t(sentence), 600))),
      el("p", { class: "faint", text: R.t(data.scope) }),
      data.notes.map((note) => el("p", { class: "faint" }, R.long(R.t(note), 300))));
  }

  // -- tokens by layers ------------------------------------------------------------------------

  const roleOf = (role) => R.w("role_" + role);
  const shortOf = ([, , id, , , text]) => (text ? JSON.stringify(R.cut(text, 40)) : `id ${id}`);
  const tokenOf = (token) => R.w("token_at", { position: token[1] }) + " · " + shortOf(token) +
    " · " + roleOf(token[3]);

  const larger = (x, y) => (x === NAN || y === NAN ? NAN : Math.max(x, y));

  /** Return the rows of the map: a sample, and below it its tokens where it is open. */
  function rowsOf(data, codes) {
    const { tokens, others, columns } = data.map;
    const count = columns.length;
    const samples = new Map();
    const of = (sample) => {
      if (!samples.has(sample)) samples.set(sample, []);
      return samples.get(sample);
    };
    tokens.forEach((token, i) => of(token[0]).push({ token, at: i * count }));
    others.forEach(([sample, left], i) =>
      of(sample).push({ left, at: (tokens.length + i) * count }));
    const known = [...samples.entries()].sort(([x], [y]) => (x ?? 1e9) - (y ?? 1e9));
    const rows = [];
    const most = ([, held]) => held.reduce((found, { at }) => {
      for (let c = 0; c < count; c++) found = larger(found, codes[at + c]);
      return found;
    }, NONE);
    const all = tokens.length <= FEW;
    const worst = all ? null : known.reduce((x, y) => {
      const [a, b] = [most(x), most(y)];
      return b === NAN || (a !== NAN && b > a) ? y : x;
    })[0];
    for (const [sample, held] of known) {
      const open = opened.get(sample) ?? (all || sample === worst);
      rows.push({
        sample, open, depth: 0,
        name: R.known(sample) ? R.w("row_n", { n: sample }) : R.w("further_samples"),
        code: (c) => held.reduce((found, { at }) => larger(found, codes[at + c]), NONE),
      });
      if (open) for (const { token, left, at } of held) rows.push({
        sample, token, depth: 1, open: null,
        name: token ? `${token[1]} · ${shortOf(token)}` : R.w("tokens_left_out", { n: left }),
        note: token && token[3] !== "response" ? roleOf(token[3]) : "",
        code: (c) => codes[at + c],
      });
    }
    return rows;
  }

  /** Return the column in which a value lies: of a cell in a layer, that of the layer. */
  function columnOf(data, stage) {
    const exact = data.map.columns.findIndex((number) => data.stages[number] === stage);
    return exact >= 0 ? exact : data.map.columns.findIndex((number) => {
      const { cell } = data.stages[number];
      return cell !== "root" && stage.cell.startsWith(cell + ".");
    });
  }

  const columnName = ({ cell, nth, path }) =>
    cell + (nth ? `[${nth}]` : "") + (path === "0" ? "" : ` .${path}`);
  const nameOfToken = (token) => `${token[0]}.${token[1]}`;

  function drawMap(data, codes) {
    const box = parts.map;
    if (!data.map || !codes || !data.map.columns.length) {
      R.clear(box, R.missing(R.w("no_token_map")));
      return;
    }
    const rows = rowsOf(data, codes);
    const columns = data.map.columns.map((number) => data.stages[number]);
    const first = R.known(data.first) ? data.stages[data.first] : null;
    const origin = first ? columnOf(data, first) : -1;
    const at = first && first.worst.length ? first.worst[0] : null;
    const isOrigin = (row, c) => Boolean(at) && c === origin && row.sample === at[0] &&
      (row.token ? row.token[1] === at[1] : !row.open && row.depth === 0);
    const scale = R.scaleOf(DISTANCE, 0, 0);
    R.clear(parts.legend, el("p", { class: "faint", text: R.w("explain_token_map") }),
      R.legend(DISTANCE, scale));
    const picked = rows.findIndex((row) => row.token && nameOfToken(row.token) === R.state.token);
    const pickedColumn = columns.findIndex((one) => one.name === R.state.value);
    const before = map && map.frame.isConnected
      ? { top: map.top(), cursor: map.cursor(), focus: map.frame === document.activeElement } : null;
    map = R.heatMap(box, {
      rows: rows.map((row) => ({
        name: row.name, note: row.note, depth: row.depth, open: row.open,
        title: row.token ? `${R.w("row_n", { n: row.sample })} · ${tokenOf(row.token)}` : row.name,
        code: row.code, origin: (c) => isOrigin(row, c),
        mark: isOrigin(row, origin),
      })),
      columns: columns.map((one) => ({ label: columnName(one), title: one.name })),
      scale, none: NONE, scaleNow: () => R.scaleOf(DISTANCE, 0, 0),
      legendNow: (now) => R.legend(DISTANCE, now), tall: true, top: before && before.top,
      picked: picked >= 0 ? { row: picked, column: Math.max(0, pickedColumn) }
        : before && before.cursor,
      told: (r, c) => `${R.known(rows[r].sample) ? R.w("row_n", { n: rows[r].sample }) + " · " : ""}${
        rows[r].token ? tokenOf(rows[r].token) : rows[r].depth ? rows[r].name : R.w("largest_of_tokens")
      } · ${R.isolated(columns[c].name)}: ${R.wordOfCode(DISTANCE, rows[r].code(c))}`,
      pick: (r, c) => (rows[r].token
        ? R.go({ token: nameOfToken(rows[r].token), value: columns[c].name }) : toggle(r)),
      toggle,
    });
    if (before && before.focus) map.frame.focus({ preventScroll: true });
    function toggle(r) {
      opened.set(rows[r].sample, !rows[r].open);
      drawMap(data, codes);
    }
  }

  /** The token that is picked: what each layer made of it. */
  function drawToken(data, codes) {
    const at = data.map ? data.map.tokens.findIndex((one) => nameOfToken(one) === R.state.token) : -1;
    if (at < 0) return void R.clear(parts.token);
    const token = data.map.tokens[at];
    const { columns } = data.map;
    R.clear(parts.token, el("h3", null, R.w("row_n", { n: token[0] }), " · ",
      el("bdi", { text: R.visible(tokenOf(token)) })),
    el("div", { class: "growth" }, columns.map((number, c) => {
      const value = R.valueOfCode("log", codes[at * columns.length + c]);
      return bar(data, data.stages[number], value, data.stages[number].name === R.state.value);
    })));
  }

  // -- how it grows ----------------------------------------------------------------------------

  const LEAST = -27;
  const partOf = (value) => {
    const number = R.number(value);
    if (!Number.isFinite(number)) return R.known(value) ? 1 : 0;
    return number > 0 ? Math.min(1, Math.max(0.01, (Math.log2(number) - LEAST) / -LEAST)) : 0;
  };
  const percent = (value) => `${(100 * partOf(value)).toFixed(1)}%`;

  // A name is cut in its middle: its end tells it from its neighbours.
  const lettersOfNames = () => Math.max(24, Math.floor((0.53 * parts.growth.clientWidth) / 6.7));

  function bar(data, stage, value, strong) {
    const birth = data.births.includes(data.stages.indexOf(stage));
    const isFirst = data.stages[data.first] === stage;
    const passing = stage.born > 0 && !stage.lasting;
    return el("div", { class: "growth-row" + (isFirst ? " first" : "") + (strong ? " picked" : "") +
      (passing ? " passing" : ""),
      title: R.isolated(R.w("bar_told", {
        apart: R.num(stage.apart, 4), most: R.num(stage.most, 4), entered: R.num(stage.entered, 4),
        allowed: R.num(stage.allowed, 4), unequal: stage.unequal, rows: stage.rows,
        dtypes: stage.dtypes.join(" / "),
      })) },
    el("span", { class: "growth-name" },
      birth && el("b", { class: "flag-first", text: "◆ ", title: R.w("arises_here") }),
      passing && el("span", { class: "faint", text: "○ ", title: R.w("does_not_last") }),
      R.link(whereOf(data, stage), R.data(stage.name, lettersOfNames()))),
    el("span", { class: "growth-bar" },
      el("i", { class: "growth-fill", style: { width: percent(value) },
        colour: { background: () => R.colourOfDistance(value) } }),
      el("i", { class: "growth-limit", style: { left: percent(stage.allowed) } })),
    el("span", { class: "number", text: R.num(value, 3) }));
  }

  let outputsOnly = false;
  /** Draw the bars of all values, at least of those up to where they part. */
  function drawGrowth(data, most) {
    const shown = data.stages.filter((stage, i) => !outputsOnly || stage.io === "output" ||
      data.births.includes(i) || i === data.first);
    const input = el("input", { type: "checkbox", on: { change: () => {
      outputsOnly = input.checked;
      drawGrowth(data, BARS);
    } } });
    input.checked = outputsOnly;
    most = Math.max(most, shown.indexOf(data.stages[data.first]) + 20);
    const rest = shown.length - most;
    R.clear(parts.growth,
      el("div", { class: "tools" }, el("label", { class: "choice line" }, input, R.w("outputs_only")),
        el("span", { class: "legend" },
          el("span", { class: "sample" }, el("b", { class: "flag-first", text: "◆" }), R.w("arises_here")),
          shown.some((stage) => stage.born > 0 && !stage.lasting) &&
            el("span", { class: "sample" }, "○ ", R.w("does_not_last")),
          el("span", { class: "sample" }, el("i", { class: "growth-limit sample-limit" }),
            R.w("rounding_explains")))),
      !shown.length && R.missing(R.w("nothing_compared")),
      el("div", { class: "growth scrolling" },
        shown.slice(0, most).map((stage) => bar(data, stage, stage.apart, false)),
        rest > 0 && R.button(R.w("more", { n: rest }), () => drawGrowth(data, shown.length),
          { class: "more" })),
      data.stages_left_out > 0 && el("p", { class: "faint",
        text: R.w("left_out_here", { n: data.stages_left_out }) }));
    const list = parts.growth.querySelector(".growth");
    const first = list.querySelector(".first");
    if (first) list.scrollTop = first.offsetTop - list.offsetTop - list.clientHeight / 3;
  }

  // -- tables ----------------------------------------------------------------------------------

  const table = (heads, rows) => el("div", { class: "wide" }, el("table", { class: "compact" },
    el("thead", null, el("tr", null, heads.map((text) => el("th", { scope: "col", text })))),
    el("tbody", null, rows)));

  /** The tokens furthest apart where the networks part, or else in the last value. */
  function worst(data) {
    const stage = R.known(data.first) ? data.stages[data.first]
      : data.stages.findLast((one) => one.worst.length);
    if (!stage || !stage.worst.length) return R.missing(R.w("no_worst"));
    return [el("p", { class: "faint" }, R.w("worst_of"), " ", R.data(stage.name, 120)),
      table([R.w("sample"), R.w("position"), R.w("token"), R.w("kind_of_token"), R.w("apart")],
        stage.worst.map((token) => el("tr", null,
          el("td", { class: "number", text: token[0] }),
          el("td", { class: "number" },
            R.link({ view: "mismatch", token: nameOfToken(token) }, String(token[1]))),
          el("td", null, R.data(shortOf(token), 80)),
          el("td", { text: roleOf(token[3]) }),
          el("td", { class: "number", text: R.num(token[4], 4) }))))];
  }

  function weights(data) {
    const { compared, different, left_out: left, unknown, unknown_count: many } = data.weights;
    const { alone, alone_count: lacking } = data.weights;
    const [agreeing, all] = [compared - many, compared + lacking[0]];
    return [
      el("p", { text: different.length ? R.w("weights_differ", {
        n: different.length + left, of: compared,
      }) : agreeing <= 0 ? R.w("no_weights")
        : R.w(agreeing === all ? "weights_agree" : "weights_some_agree", { n: agreeing, of: all }) }),
      different.length > 0 && el("div", { class: "growth scrolling" }, table([R.w("side_rollout"), R.w("side_training"), R.w("apart"),
        R.w("since_step"), R.w("values_of_step")], different.map((one) => el("tr", null,
        el("td", null, R.data(one.rollout, 90)),
        el("td", null, one.training.slice(0, 6).map((name, i) => [i > 0 && ", ", R.data(name, 90)])),
        el("td", { class: "number", text: R.num(one.relative, 4) }),
        el("td", { class: "number", text: R.num(one.since) }),
        el("td", { class: "number", text: R.num(one.stale) }))))),
      left > 0 && el("p", { class: "faint", text: R.w("more", { n: left }) }),
      many > 0 && R.fold(R.w("weights_unknown", { n: many }), () => el("ul", null,
        unknown.map((name) => el("li", null, R.data(name, 200))))),
      ["rollout", "training"].map((side, i) => lacking[i] > 0 && R.fold(
        R.w("weights_alone", { n: lacking[i], side: R.w(`side_${side}`) }),
        () => el("ul", null, alone[i].map((name) => el("li", null, R.data(name, 200))))))];
  }

  function metrics(data) {
    if (!data.metrics.length) return R.missing(R.w("no_metrics"));
    return [table([R.w("metric"), R.w("value")], data.metrics.map(([name, value]) => el("tr", null,
      el("th", { scope: "row" }, R.data(name, 90)),
      el("td", { class: "number", text: R.num(value, 6), title: R.num(value, 17) })))),
    ...sampled(data)];
  }

  /** The sampled tokens whose log-probabilities are furthest apart. */
  function sampled(data) {
    const number = (value, digits) => el("td", { class: "number", text: R.num(value, digits) });
    return data.sampled.length ? [el("h3", { text: R.w("worst_sampled") }),
      table([R.w("sample"), R.w("place_in_response"), R.w("token"), R.w("side_rollout"),
        R.w("side_training")],
        data.sampled.map((one) => el("tr", null, number(one.row), number(one.place), number(one.id),
          number(one.rollout, 5), number(one.training, 5))))] : [];
  }

  const finite = (value) => (Number.isFinite(R.number(value)) ? R.number(value) : null);

  /** The metrics over the steps that were compared, a line each rank. */
  function curvesOf(side) {
    const held = R.list(side.metrics);
    const steps = [...new Set(held.map(([step]) => step))];
    if (steps.length < 2) return [];
    return CURVES.map((name) => {
      const of = held.filter(([, , values]) => name in values);
      const ranks = [...new Set(of.map(([, rank]) => rank))].slice(0, 24);
      const lines = ranks.map((rank) => {
        const mine = of.filter(([, r]) => r === rank);
        return { rank, side: "a", mine: rank === R.state.rank, strong: rank === R.state.rank,
          x: mine.map(([step]) => step), y: mine.map(([, , values]) => finite(values[name])) };
      });
      return { name, lines, steps: [Math.min(...steps), Math.max(...steps)] };
    }).filter(({ lines }) => lines.length);
  }

  function curves(side) {
    const found = curvesOf(side);
    if (!found.length) return null;
    return el("section", { class: "panel", id: "mismatch-curves" },
      el("h2", { text: R.w("metrics_over_steps") }),
      el("div", { class: "cards on-screen" }, found.map(({ name, lines, steps }) => {
        const area = el("div", { class: "chart", "data-chart": name, "data-wait": R.w("reading") });
        const points = lines.flatMap(({ rank, x, y }) => x.map((step, i) => y[i] !== null && {
          x: step, y: y[i],
          told: () => [R.placeName(step, rank) + ": " + R.num(y[i], 6)],
          call: () => R.go({ step, rank }),
        }).filter(Boolean));
        const crosses = lines.flatMap(({ x, y }) => x.filter((_, i) => y[i] === null));
        const see = new IntersectionObserver((entries) => {
          if (!entries.some((entry) => entry.isIntersecting)) return;
          see.disconnect();
          R.chart(area, { lines, below: [], crosses, marks: [], points, pointsBelow: [], steps,
            picked: R.state.step });
        }, { rootMargin: "200px" });
        see.observe(area);
        return el("section", { class: "card" }, el("h3", null, R.data(name, 90)), area);
      })));
  }

  // -- texts -----------------------------------------------------------------------------------

  function texts(data, most) {
    const box = el("div", { class: "samples" });
    if (!data.texts || !data.texts.samples.length) return R.missing(R.w("no_gap_texts"));
    const { samples, left_out: left } = data.texts;
    R.add(box, [el("p", { class: "legend" }, el("span", { class: "sample" }, "|Δ log-prob| ≤ 1e−8 ",
      el("i", { class: "ramp", colour: { background: R.colourOfAll } }), " ≥ 1")),
    samples.slice(0, most).map((sample) => el("article", { class: "sample-box" },
      el("h3", null, R.w("row_n", { n: sample.row }), " ", el("span", { class: "faint number",
        text: R.w("largest_gap", { gap: R.num(R.largestGap(sample.a), 4) }) })),
      R.samplePrompt(sample.prompt.a), R.sampleBody(sample.a))),
    samples.length > most && R.button(R.w("more", { n: samples.length - most }), () => {
      box.replaceWith(texts(data, samples.length));
    }, { class: "more" }),
    left > 0 && el("p", { class: "faint", text: R.w("left_out_here", { n: left }) })]);
    return box;
  }

  // -- the view --------------------------------------------------------------------------------

  const blockOf = (side) => `${side.side}-${R.state.step}-${R.state.rank}`;

  function absent(side) {
    const links = side.places.slice(0, 24).map(([step, rank, status]) => [
      R.link({ view: "mismatch", step, rank }, R.placeName(step, rank)), " (",
      R.w("agreement_" + status), ") "]);
    return [R.missing(R.w("no_mismatch_here", { place: R.placeName(R.state.step, R.state.rank) })),
      links.length > 0 && el("p", null, R.w("mismatch_is_in"), " ", links)];
  }

  function sides(side, box) {
    if (R.head.mismatches.length < 2) return null;
    return R.segments(R.w("run"), R.head.mismatches.map((one) => [one.side, R.sideName(one.side)]),
      side.side, (value) => R.go({ side: value }));
  }

  async function show(box) {
    const mine = ++asking;
    const side = sideNow();
    map = null;
    parts = null;
    if (!side.places.length) {
      R.clear(box, sides(side), el("section", { class: "panel" },
        R.missing(side.why ? R.t(side.why) : R.w("no_mismatch"))));
      return;
    }
    const name = blockOf(side);
    const [data, codes] = await Promise.all([R.block("mismatch-" + name),
      R.block("heat-mismatch-" + name)]);
    if (mine !== asking) return;
    if (!data) {
      R.clear(box, sides(side), el("section", { class: "panel" }, absent(side)));
      return;
    }
    parts = { data, codes, map: el("div", { class: "map" }), legend: el("div", { class: "map-legend" }),
      token: el("div", { id: "token" }), growth: el("div") };
    const panel = (key, ...children) => el("section", { class: "panel" },
      el("h2", { text: R.w(key) }), children);
    const differ = data.weights.different.length > 0;
    R.clear(box, sides(side), conclusion(data),
      side.runs.length > 1 && el("p", { class: "faint" }, R.w("side_training"), ": ",
        R.long(side.runs[1], 120)),
      el("div", { class: "where" },
        panel("token_map", parts.legend, parts.map, parts.token),
        panel("how_it_grows", parts.growth)),
      differ && panel("weights", weights(data)),
      el("div", { class: "cards" },
        el("div", { class: "view" }, panel("worst_tokens", worst(data)),
          !differ && panel("weights", weights(data))),
        panel("metrics", metrics(data))),
      panel("gap_texts", texts(data, TEXTS)), curves(side),
      data.not_compared.length > 0 && R.fold(R.w("preflight_unknown", {
        n: data.not_compared_count,
      }), () => el("ul", null, data.not_compared.map(([value, why]) => el("li", null,
        R.data(value, 160), ": ", R.long(R.t(why), 300))))),
      side.left_out > 0 && el("p", { class: "faint",
        text: R.w("left_out_here", { n: side.left_out }) }));
    drawMap(data, codes);
    drawToken(data, codes);
    drawGrowth(data, BARS);
  }

  async function change(changed, box) {
    if (["step", "rank", "theme", "side"].some((name) => changed.has(name))) await show(box);
    else if (parts && ["token", "value"].some((name) => changed.has(name))) {
      openTo(R.state.token);
      drawMap(parts.data, parts.codes);
      drawToken(parts.data, parts.codes);
    }
  }

  function openTo(token) {
    const sample = Number(String(token || "").split(".")[0]);
    if (token && !Number.isNaN(sample)) opened.set(sample, true);
  }

  function paper(box) {
    if (map && map.frame.isConnected) parts.map.append(map.onPaper());
    const found = curvesOf(sideNow());
    const held = box.querySelector("#mismatch-curves");
    if (held) R.add(held, [el("div", { class: "on-paper" },
      el("div", { class: "paper-cards" }, found.map(({ name, lines }) => el("section",
        { class: "card" }, el("h3", null, R.data(name, 90)),
        R.paperChart({ lines, below: [], crosses: [], marks: [] })))))]);
  }

  R.views.push({ name: "mismatch", show, change, paper });
})();
