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

  /** Return a line as charts take it. */
  function lineOf(series, side) {
    const mine = series.rank === R.state.rank;
    return {
      x: across(series), y: finite(series.values), side, mine, strong: mine && !series.statistic,
    };
  }

  const lineOfSide = (series) => lineOf(series, series.side === "B" ? "b" : "a");

  /** Return what is told of the values of a line; a click goes to their step and rank. */
  function pointsOf(series, side) {
    return across(series).map((x, i) => {
      const [step, value] = [series.steps[i], R.number(series.values[i])];
      const high = Number.isFinite(value);
      return (high || lost(series.values[i])) && {
        x: high ? x : step, y: value, atFoot: !high,
        told: () => [side, " · ", R.data(nameOf(series), 60), " · ", R.w("step_n", { number: step }),
          series.micro_steps && " · " + R.w("micro_step_n", { number: save(series, i) }),
          ": " + R.num(series.values[i], 9)],
        call: () => R.go({ step, rank: series.rank }),
      };
    }).filter(Boolean);
  }

  // NaN and Inf have no height: crosses at the foot of the picture.
  const lost = (value) => R.known(value) && !Number.isFinite(R.number(value));
  const lostOf = (group) => group.flatMap((one) =>
    one.steps.filter((_, i) => lost(one.values[i])));

  const lastOf = (finding) => Math.max(finding.link.step, finding.last_step ?? finding.link.step);

  /** The findings of what is drawn: of steps, and where one rank was chosen of this rank. */
  function findingsOf(findings, [low, high]) {
    const holds = ({ ranks, link }) => scope === "all" || !(ranks && ranks.length
      ? !ranks.includes(R.state.rank) : R.known(link.rank) && link.rank !== R.state.rank);
    return findings.filter((one) => one.link.step <= high && lastOf(one) >= low && holds(one));
  }

  const pointOf = (finding, low) => ({
    x: Math.max(finding.link.step, low), atTop: true,
    told: () => [R.paired() && R.sideName(finding.side) + " · ",
      R.data(`${finding.rule} · ${R.t(finding.text)}`, 90),
      finding.times > 1 && " · " + R.w("times", { n: finding.times, step: lastOf(finding) })],
    call: () => R.follow({ view: "findings", finding: finding.id }),
  });

  const stepsOf = (lists) => lists.flat().reduce(
    ([low, high], step) => [Math.min(low, step), Math.max(high, step)], [Infinity, -Infinity]);

  /** Where the runs part first, if what is drawn holds that step and rank: [step], else []. */
  function partedOf([low, high]) {
    const at = R.answerPlace();
    const shown = scope === "all" || at.rank === R.state.rank;
    return R.paired() && shown && at.step >= low && at.step <= high ? [at.step] : [];
  }

  const partedPoint = (step) => ({
    x: step, atTop: true, parted: true,
    told: () => [R.w("first_divergence") + " · ",
      R.placeName(step, R.answerPlace().rank)],
    call: () => R.follow(R.answerPlace()),
  });

  const marksOf = (found, [low, high]) => found.map((one) => ({
    from: Math.max(one.link.step, low), to: Math.min(lastOf(one), high),
  }));

  /** Draw a quantity; return what marks another step as the picked one. */
  function chart(box, group, findings) {
    const below = differences(group);
    const steps = stepsOf(group.map(across));
    const found = findingsOf(findings, steps);
    const parted = partedOf(steps);
    return R.chart(box, {
      lines: group.map(lineOfSide), below: below.map((one) => lineOf(one, null)),
      crosses: lostOf(group), marks: marksOf(found, steps), parted, steps, picked: R.state.step,
      points: [...parted.map(partedPoint), ...found.map((one) => pointOf(one, steps[0])),
        ...group.flatMap((one) => pointsOf(one, R.sideName(one.side)))],
      pointsBelow: below.flatMap((one) => pointsOf(one, "B − A")).filter((one) => !one.atFoot),
    });
  }

  // -- paper -----------------------------------------------------------------------------------

  function printedChart(series, findings) {
    const steps = stepsOf(series.map((one) => one.steps));
    return R.paperChart({
      lines: series.map(lineOfSide), below: differences(series).map((one) => lineOf(one, null)),
      crosses: lostOf(series), marks: marksOf(findingsOf(findings, steps), steps),
      parted: partedOf(steps),
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
    R.forgetCharts();
    const marks = [];
    shown = { groups, findings, cards, marks };
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
        partedOf([-Infinity, Infinity]).length > 0 && el("span", { class: "sample flag-first" },
          "◆ " + R.w("first_divergence")),
        findings.length > 0 && el("span", { class: "sample" }, "▼ " + R.w("finding")),
        el("span", { class: "sample" }, "✕ NaN, Inf"))),
    cards);
    const waiting = [];
    const drawn = new Set();
    const one = async ([area, series]) => {
      if (drawn.has(area)) return;
      drawn.add(area);
      const step = R.state.step;
      const mark = await chart(area, series, findings);
      if (mark) marks.push(mark);
      if (mark && step !== R.state.step) mark(R.state.step);
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
    // Both runs' lines of a rank stay together: one alone is compared with nothing.
    if (left > 0) series = [...series].sort((x, y) =>
      (y.rank === R.state.rank) - (x.rank === R.state.rank) ||
      Boolean(x.statistic) - Boolean(y.statistic) || x.rank - y.rank).slice(0, LINES);
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
        el("td", { class: "number", text: R.num(value, 6), title: R.num(value, 17) }))))));
  }

  function flat(findings) {
    return findings.flatMap((one) => [one, ...flat(one.follows || [])]);
  }
  R.allFindings = flat;

  async function change(changed, box) {
    if (changed.has("rank") || changed.has("theme")) await show(box);
    else if (changed.has("step") && shown) for (const mark of shown.marks) mark(R.state.step);
  }

  R.views.push({ name: "course", show, change, paper });
})();
