// The top of the page: the answer, what differed before the runs began, what was not covered.
(function () {
  "use strict";
  const R = window.report;
  const { el } = R;
  const TONES = { bad: "≠", warn: "▲", good: "✓", unknown: "?" };

  function runs() {
    return el("dl", { class: "runs" }, R.head.runs.map((run) => [
      el("dt", { class: "side-" + run.side.toLowerCase(), text: R.sideName(run.side) }),
      el("dd", null, R.long(run.path, 100), el("div", { class: "faint" },
        R.list(run.facts).slice(0, 12).map(([name, value], i) => [i > 0 && " · ",
          R.data(R.t(name), 40), " ", R.data(R.word("run", R.t(value)), 80)]))),
    ]));
  }

  function answer() {
    const said = R.head.answer;
    if (!said)
      return el("section", { class: "answer tone-unknown", id: "answer" },
        el("h1", { text: R.w("no_answer") }));
    const cause = said.cause && R.data(R.word("cause", said.cause), 200);
    const headline = R.t(said.headline);
    return el("section", { class: "answer tone-" + said.tone, id: "answer" },
      el("h1", null,
        el("span", { class: "sign", "aria-hidden": "true", text: said.tone === "bad" && !R.paired() ? "✕"
          : TONES[said.tone] || "" }), " ",
        said.place ? R.link(said.place, el("bdi", { text: R.visible(headline) })) : R.visible(headline)),
      said.sentence && el("p", { class: "sentence", id: "answer-sentence" },
        el("bdi", { text: R.visible(R.t(said.sentence)) })),
      el("p", { class: "ways" },
        said.place && el("a", { class: "way", href: R.href(said.place), id: "answer-place" },
          R.w("to_place")),
        said.cause && said.place && el("a", { class: "way", id: "answer-cause",
          href: R.href(said.place) }, R.w("cause"), ": ", cause),
        said.cause && !said.place && el("span", { id: "answer-cause" },
          R.w("cause"), ": ", cause),
        R.has("path") && R.button(R.w("to_path"), () => R.showPath())),
      R.list(said.lines).length > 0 && el("ul", { class: "lines" }, said.lines.map((line) => el("li", null,
        line.link ? R.link(line.link, R.data(R.t(line.text), 400)) : R.long(R.t(line.text), 400)))),
      R.list(said.counts).length > 0 && el("ul", { class: "counts" },
        said.counts.map(([label, number, tone]) => el("li", { class: "tone-" + tone },
          el("b", { text: R.num(number) }), " ",
          R.word(label in R.SIGNS && /^(error|warning|note)$/.test(label) ? "state" : "status", label)))),
      said.next_step && R.fold(R.w("next_step"), () => el("div", null,
        said.next_step_note && el("p", { text: R.t(said.next_step_note) }),
        R.code(said.next_step))));
  }

  function preflight() {
    if (!R.paired() || !R.head.preflight) return null;
    const { rows, weights, unknown } = R.head.preflight;
    const table = (given) => el("div", { class: "wide" }, el("table", { class: "compact" },
      el("thead", null, el("tr", null,
        ["setting", "side_a", "side_b"].map((key) => el("th", { scope: "col", text: R.w(key) })))),
      el("tbody", null, given.map((row) => el("tr", { class: row.near ? "near" : null },
        el("th", { scope: "row" }, row.near && el("span", {
          class: "mark", text: "◆ ", title: R.w("near"),
        }), el("span", { class: "faint" }, R.data(R.t(row.section), 40), " · "),
          R.data(R.t(row.name), 80)),
        ["a", "b"].map((side) => el("td", { class: "number" }, R.known(row[side])
          ? R.long(R.t(row[side]), 60) : el("span", { class: "faint", text: R.w("not_set") }))))))));
    const near = rows.filter((row) => row.near);
    const far = rows.filter((row) => !row.near);
    // Paths and what was recorded differ in every pair: they stand last.
    far.sort((x, y) => Boolean(x.place) - Boolean(y.place));
    const shown = near.length ? 0 : far.filter((row) => !row.place).slice(0, 5).length;
    const first = near.length ? near : far.slice(0, shown);
    const rest = far.slice(shown);
    return el("section", { id: "preflight", class: "panel" },
      el("h2", null, R.w("preflight"), " ", el("span", { class: "count", text: rows.length })),
      !rows.length && !weights.length && el("p", { text: R.w("preflight_same") }),
      first.length > 0 && table(first),
      rest.length > 0 && R.fold(R.w("more_settings", { n: rest.length }), () => table(rest)),
      weights.length > 0 && el("ul", null, weights.map((text) =>
        el("li", null, R.long(R.t(text), 300)))),
      unknown.length > 0 && R.fold(R.w("preflight_unknown", { n: unknown.length }), () =>
        el("ul", null, unknown.map((text) => el("li", null, R.long(R.t(text), 300))))));
  }

  function coverage() {
    const gaps = [...R.list(R.head.coverage), ...R.list(R.head.not_checked).map((one) =>
      ({ ...one, of: one.only_in, only_in: null }))];
    const [problems, notes, left] = ["problems", "notes", "left_out"].map((name) =>
      R.list(R.head[name]));
    const { line, items: unchecked = [] } = R.head.unchecked || {};
    const total = gaps.length + problems.length + left.length + unchecked.length;
    const list = (items, make) => {
      const shown = items.slice(0, 4).map(make);
      const rest = items.slice(4);
      return [
        el("ul", null, shown),
        rest.length > 0 && R.fold(R.w("more", { n: rest.length }), () =>
          el("ul", null, rest.slice(0, 500).map(make),
            rest.length > 500 && el("li", { text: R.w("more", { n: rest.length - 500 }) }))),
      ];
    };
    const text = (item) => el("li", null, R.long(R.t(item), 300));
    return el("section", { id: "coverage", class: "panel" },
      el("h2", null, R.w(R.paired() ? "not_covered" : "not_covered_run"), " ", el("span", { class: "count", text: total })),
      total === 0 && R.head.kind !== "mismatch" && el("p", { text: R.w("all_covered") }),
      problems.length > 0 && [el("h3", { text: R.w("problems") }), list(problems, text)],
      gaps.length > 0 && list(gaps, (gap) => el("li", null,
        gap.only_in && R.paired() && el("span", { class: "tag", text: gap.only_in === "both"
          ? R.w("both") : R.w("only_in", { side: gap.only_in }) }),
        gap.of && R.paired() && el("span", { class: "tag", text: R.w("of_run", {
          side: gap.of,
        }) }), " ",
        R.long(R.t(gap.text), 300),
        R.known(gap.records) && el("span", { class: "faint", text: " · " +
          R.w("n_records", { n: gap.records }) }))),
      unchecked.length > 0 && R.fold(R.t(line), () => el("ul", null, unchecked.map((one) =>
        el("li", null, one.of && R.paired() && el("span", { class: "tag",
          text: R.w("of_run", { side: one.of }) }), " ", R.long(R.t(one.text), 300))))),
      left.length > 0 && [el("h3", { text: R.w("left_out") }), list(left, text)],
      notes.length > 0 && R.fold(R.w("notes", { n: notes.length }), () =>
        el("ul", null, notes.map(text))));
  }

  R.top = function (box) {
    R.clear(box, R.proof(), answer(), el("div", { class: "beside" }, runs(), preflight(), coverage()));
  };
})();
