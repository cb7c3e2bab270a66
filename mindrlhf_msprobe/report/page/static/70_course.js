// Course: quantities over the steps, both runs in one picture, their difference below it.
(function () {
  "use strict";
  const R = window.report;
  const { el } = R;
  // Lines of a picture, and pictures of a group before the others are folded.
  const LINES = 24;
  const FIRST = 4;
  // How far below what is seen pictures are drawn, and how many are printed.
  const MARGIN = 300;
  const PRINTED = 60;
  let serial = 0;
  let shown = null;

  function look() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    return {
      ink: value("--ink"), faint: value("--faint"), line: value("--line"), page: value("--panel"),
      a: value("--side-a"), b: value("--side-b"), mark: value("--bad"),
      size: parseFloat(style.fontSize) * 0.86,
    };
  }

  const CONFIG = { displayModeBar: false, displaylogo: false, responsive: true, showTips: false };

  function layout(own, more) {
    const axis = {
      gridcolor: own.line, zerolinecolor: own.faint, linecolor: own.line, automargin: true,
      exponentformat: "e", minexponent: 4, tickfont: { color: own.faint },
    };
    const made = {
      font: { family: "system-ui, sans-serif", size: own.size, color: own.ink },
      paper_bgcolor: own.page, plot_bgcolor: own.page, margin: { l: 58, r: 12, t: 8, b: 34 },
      hovermode: "closest", showlegend: false, ...more,
    };
    for (const name of ["xaxis", "yaxis", "yaxis2", "yaxis3"])
      if (made[name]) made[name] = { ...axis, ...made[name] };
    return made;
  }

  async function draw(box, traces, shape) {
    const plotly = await R.charts();
    if (!plotly) {
      R.clear(box, R.missing(R.w("no_library")));
      return null;
    }
    if (!box.isConnected) return null;
    await plotly.newPlot(box, traces, shape, CONFIG);
    return plotly;
  }

  // -- one group -------------------------------------------------------------------------------

  const nameOf = (series) => [series.label, series.statistic, series.phase, R.w("rank_n", { number: series.rank })]
    .filter((part) => R.known(part) && part !== "").join(" · ");

  // Which save of its step a point is; several stand side by side between two steps.
  const save = (series, i) => (series.micro_steps ? series.micro_steps[i] || 0 : 0);
  function across(series) {
    const most = Math.max(0, ...R.list(series.micro_steps).slice(0, 10000));
    return series.steps.map((step, i) => step + (0.8 * save(series, i)) / (most + 1));
  }

  function differences(group) {
    const other = new Map();
    const key = (one) => JSON.stringify([one.rank, one.label, one.statistic, one.phase]);
    for (const one of group) if (one.side === "B") other.set(key(one), one);
    const found = [];
    for (const a of group) {
      const b = a.side === "A" && other.get(key(a));
      if (!b) continue;
      const at = new Map(b.steps.map((step, i) => [`${step}.${save(b, i)}`, b.values[i]]));
      const both = [...a.steps.keys()].filter((i) => at.has(`${a.steps[i]}.${save(a, i)}`));
      if (!both.length) continue;
      const take = (list) => both.map((i) => list[i]);
      found.push({
        ...a, steps: take(a.steps), micro_steps: a.micro_steps && take(a.micro_steps),
        values: both.map((i) =>
          R.number(at.get(`${a.steps[i]}.${save(a, i)}`)) - R.number(a.values[i])),
      });
    }
    return found;
  }

  const finite = (values) => values.map((v) => {
    const number = R.number(v);
    return Number.isFinite(number) ? number : null;
  });

  function traceOf(series, own, axis, plain) {
    const mine = series.rank === R.state.rank;
    const [side, name] = [plain ? "B − A" : R.sideName(series.side), R.plain(nameOf(series))];
    const color = plain ? own.ink : series.side === "B" ? own.b : own.a;
    return {
      type: "scatter", mode: series.steps.length < 60 ? "lines+markers" : "lines",
      x: across(series), y: finite(series.values), yaxis: axis, connectgaps: false,
      line: { color, width: mine && !series.statistic ? 2.2 : 1, dash: series.side === "B" && !plain ? "dash" : "solid" },
      marker: { size: 5, symbol: series.side === "B" && !plain ? "square-open" : "circle", color },
      opacity: mine ? 1 : 0.45,
      // A template reads names in braces: texts of a dump stand in `text` only.
      hovertemplate: "%{text}<extra></extra>",
      text: series.steps.map((step, i) => `${side} · ${name}<br>${R.w("step_n", { number: step })}` +
        (series.micro_steps ? ` · ${R.w("micro_step_n", { number: save(series, i) })}` : "") +
        `: ${R.num(R.number(series.values[i]), 9)}`),
      customdata: series.steps.map((step) => [step, series.rank]),
    };
  }

  /** NaN and Inf have no height: crosses at the foot of the picture. */
  function crosses(group, own) {
    const x = [], text = [];
    for (const series of group)
      series.values.forEach((value, i) => {
        if (typeof value !== "string" && !(typeof value === "number" && !Number.isFinite(value)))
          return;
        x.push(series.steps[i]);
        text.push(R.plain(`${R.num(value)} · ${R.sideName(series.side)} · ${nameOf(series)}`));
      });
    return x.length ? [{
      type: "scatter", mode: "markers", x, y: x.map(() => 0.02), yaxis: "y3", text,
      marker: { symbol: "x", size: 8, color: own.mark, line: { width: 1, color: own.page } },
      hovertemplate: "step %{x}: %{text}<extra></extra>",
    }] : [];
  }

  const lastOf = (finding) => Math.max(finding.link.step, finding.last_step ?? finding.link.step);

  /** The findings of what is drawn: of steps, and where one rank was chosen of this rank. */
  function findingsOf(findings, [low, high]) {
    const holds = ({ ranks, link }) => scope === "all" || !(ranks && ranks.length
      ? !ranks.includes(R.state.rank) : R.known(link.rank) && link.rank !== R.state.rank);
    return findings.filter((one) => one.link.step <= high && lastOf(one) >= low && holds(one));
  }

  /** Found several times: a light bar from the first step to the last. */
  function repeated(findings, own) {
    return findings.filter((one) => lastOf(one) > one.link.step).map((finding) => ({
      type: "scatter", mode: "lines", x: [finding.link.step, lastOf(finding)], y: [0.98, 0.98],
      yaxis: "y3", meta: "findings", customdata: [finding.id, finding.id],
      line: { color: own.mark, width: 5 }, opacity: 0.3, hoverinfo: "skip",
    }));
  }

  function marksOf(findings, own) {
    const x = findings.map((finding) => finding.link.step);
    return x.length ? [{
      type: "scatter", mode: "markers", x, y: x.map(() => 0.98), yaxis: "y3",
      customdata: findings.map((finding) => finding.id), meta: "findings",
      text: findings.map((finding) => R.plain(finding.rule + " · " +
        R.cut(R.t(finding.text), 58)) + (finding.times > 1 ? "<br>" +
          R.plain(R.w("times", { n: finding.times, step: lastOf(finding) })) : "")),
      marker: { symbol: "triangle-down", size: 11, color: own.mark },
      hovertemplate: "%{text}<extra></extra>",
    }] : [];
  }

  async function chart(box, group, findings) {
    const own = look();
    const below = differences(group);
    const steps = group.flatMap(across).reduce(
      ([low, high], step) => [Math.min(low, step), Math.max(high, step)], [Infinity, -Infinity]);
    const found = findingsOf(findings, steps);
    const lines = found.map(({ link }) => ({
      type: "line", xref: "x", yref: "paper", x0: link.step, x1: link.step, y0: 0, y1: 1,
      line: { color: own.mark, width: 1, dash: "dot" },
    }));
    if (R.known(R.state.step)) lines.push({
      type: "line", xref: "x", yref: "paper", x0: R.state.step, x1: R.state.step, y0: 0, y1: 1,
      line: { color: own.faint, width: 1 },
    });
    const whole = { domain: [0, 1], range: [0, 1], overlaying: "y", visible: false,
      fixedrange: true };
    const plotly = await draw(box, [
      ...group.map((one) => traceOf(one, own, "y")),
      ...below.map((one) => traceOf(one, own, "y2", true)),
      ...crosses(group, own), ...repeated(found, own), ...marksOf(found, own),
    ], layout(own, {
      shapes: lines,
      xaxis: { title: { text: R.w("step") }, anchor: below.length ? "y2" : "y",
        tickformat: "d", ...(steps[1] - steps[0] < 8 ? { dtick: 1 } : {}),
        range: [steps[0] - 0.02 * (steps[1] - steps[0]) - 0.3,
          steps[1] + 0.02 * (steps[1] - steps[0]) + 0.3] },
      yaxis: { domain: below.length ? [0.36, 1] : [0, 1] },
      ...(below.length ? { yaxis2: { domain: [0, 0.27], title: { text: "B − A" } } } : {}),
      yaxis3: whole,
    }));
    if (!plotly) return;
    box.on("plotly_click", ({ points }) => {
      const point = points[0];
      if (point.data.meta === "findings")
        R.follow({ view: "findings", finding: point.customdata });
      else if (Array.isArray(point.customdata))
        R.go({ step: point.customdata[0], rank: point.customdata[1] });
    });
  }

  // -- paper -----------------------------------------------------------------------------------

  function printedChart(series, findings) {
    const line = (one, side) => ({
      x: across(one), y: finite(one.values), class: side + (one.rank === R.state.rank ? ""
        : " other"),
    });
    const steps = series.flatMap((one) => one.steps).reduce(
      ([low, high], step) => [Math.min(low, step), Math.max(high, step)], [Infinity, -Infinity]);
    return R.paperChart({
      lines: series.map((one) => line(one, one.side === "B" ? "side-b" : "side-a")),
      below: differences(series).map((one) => line(one, "both")),
      crosses: series.flatMap((one) => one.steps.filter((_, i) =>
        R.known(one.values[i]) && !Number.isFinite(R.number(one.values[i])))),
      marks: findingsOf(findings, steps).map((one) => ({
        from: Math.max(one.link.step, steps[0]), to: Math.min(lastOf(one), steps[1]),
      })),
    });
  }

  function paper(box) {
    if (!shown || !box.contains(shown.cards)) return;
    const all = shown.groups.flatMap(quantities);
    const first = all.slice(0, PRINTED);
    R.add(box, [el("div", { class: "on-paper" },
      all.length > first.length && el("p", { text: R.w("printed_charts", {
        n: first.length, of: all.length,
      }) }),
      el("div", { class: "paper-cards" }, first.map((group) => {
        const { series, left, notes } = chosen(group);
        return el("section", { class: "card" }, title(group), about(left, notes),
          series.length ? printedChart(series, shown.findings) : R.missing(R.w("not_recorded")));
      })))]);
  }

  // -- the view --------------------------------------------------------------------------------

  let scope = "all";

  async function show(box) {
    const mine = ++serial;
    const [data, found] = await Promise.all([R.block("course"), R.block("findings")]);
    if (mine !== serial) return;
    const groups = data ? data.groups.filter((group) => group.series.length) : [];
    if (!groups.length) {
      R.clear(box, R.missing(R.w("no_course")));
      return;
    }
    const findings = flat(found || []).filter(({ link }) => link && R.known(link.step));
    const ranks = new Set(groups.flatMap((group) => group.series.map((one) => one.rank)));
    const cards = el("div", { class: "cards on-screen" });
    shown = { groups, findings, cards };
    R.clear(box, el("div", { class: "tools" },
      ranks.size > 1 && R.segments(R.w("ranks"), [
        ["all", R.w("all_ranks")], ["picked", R.w("rank_n", { number: R.state.rank })],
      ], scope, (value) => {
        scope = value;
        show(box);
      }),
      el("span", { class: "legend" },
        el("span", { class: "sample" }, el("i", { class: "bar side-a" }), R.sideName("A")),
        R.paired() && el("span", { class: "sample" }, el("i", { class: "bar side-b dashed" }),
          R.sideName("B")),
        findings.length > 0 && el("span", { class: "sample" }, "▼ " + R.w("finding")),
        el("span", { class: "sample" }, "✕ NaN, Inf"))),
    cards);
    const waiting = [];
    const drawn = new Set();
    const one = ([area, series]) => {
      if (drawn.has(area)) return null;
      drawn.add(area);
      return chart(area, series, findings);
    };
    // What is in sight now is drawn now, the rest when it comes into sight.
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries)
        if (entry.isIntersecting) one(waiting.find(([area]) => area === entry.target));
    }, { rootMargin: MARGIN + "px" });
    function card(group) {
      const { series, left, notes } = chosen(group);
      const area = el("div", { class: "chart", "data-chart": group.label,
        "data-wait": R.w("reading") });
      if (series.length) {
        waiting.push([area, series]);
        seen.observe(area);
      }
      return el("section", { class: "panel card", "data-group": group.id },
        title(group), about(left, notes),
        series.length ? area : R.missing(R.w("not_recorded")),
        el("div", null, R.fold(R.w("numbers"), () => table(series))));
    }
    for (const group of groups) {
      const labels = quantities(group);
      const rest = labels.slice(FIRST);
      R.add(cards, [labels.slice(0, FIRST).map(card), rest.length > 0 && R.fold(
        el("span", null, R.data(R.t(group.title), 100), ": ", R.w("more", { n: rest.length })),
        () => el("div", { class: "cards" }, rest.map(card)), false, { class: "rest" })]);
    }
    const wanted = waiting.filter(([area]) =>
      area.getBoundingClientRect().top < window.innerHeight + MARGIN);
    await Promise.all(wanted.map(one));
  }

  const title = (group) => el("h3", null, el("span", { class: "faint" },
    R.data(group.title, 60), " · "), R.data(group.label, 100));
  const about = (left, notes) => [
    left > 0 && el("p", { class: "faint", text: R.w("more_series", { n: left }) }),
    notes.slice(0, 3).map((note) => el("p", { class: "faint" }, R.long(note, 200))),
  ];

  /** Return the lines of a quantity that are drawn, how many are not, and what is said of them. */
  function chosen(group) {
    let series = scope === "all" ? group.series
      : group.series.filter((one) => one.rank === R.state.rank);
    const left = series.length - LINES;
    if (left > 0) series = [...series].sort((x, y) =>
      (y.rank === R.state.rank) - (x.rank === R.state.rank)).slice(0, LINES);
    return { series, left, notes: [...new Set(series.map((one) => R.t(one.note)).filter(Boolean))] };
  }

  /** Return the quantities of a group: [{label, series}], a picture each. */
  function quantities(group) {
    const found = new Map();
    for (const one of group.series) {
      const label = one.label || R.t(group.title);
      if (!found.has(label)) found.set(label, {
        label, id: group.id, title: R.t(group.title), series: [],
      });
      found.get(label).series.push(one);
    }
    return [...found.values()];
  }

  function table(series) {
    const rows = series.flatMap((one) => one.steps.map((step, i) => [step, one, one.values[i]]))
      .sort((x, y) => x[0] - y[0]).slice(0, 2000);
    return el("div", { class: "scrolling" }, el("table", { class: "compact" },
      el("tbody", null, rows.map(([step, one, value]) => el("tr", null,
        el("td", { class: "number", text: step }),
        el("td", { text: R.paired() ? one.side : "" }),
        el("td", null, R.data(nameOf(one), 60)),
        el("td", { class: "number", text: R.num(value, 9), title: R.num(value, 17) }))))));
  }

  function flat(findings) {
    return findings.flatMap((one) => [one, ...flat(one.follows || [])]);
  }
  R.allFindings = flat;

  async function change(changed, box) {
    if (["step", "rank", "theme"].some((name) => changed.has(name))) await show(box);
  }

  R.views.push({ name: "course", show, change, paper });
})();
