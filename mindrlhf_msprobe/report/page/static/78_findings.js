// Findings of the checks, grouped by story: what follows from a finding stands under it.
(function () {
  "use strict";
  const R = window.report;
  const { el } = R;
  let hidden = new Set();

  /** A number is shown as one, a list as JSON has it, a text as it is. */
  function shownValue(value) {
    if (value !== null && typeof value === "object")
      return R.long(JSON.stringify(value, (_, one) => R.rounded(one)), 120);
    const text = typeof value === "string" && !["NaN", "Infinity", "-Infinity"].includes(value);
    return text ? R.long(value, 120) : R.num(value, 6);
  }

  function evidence(list) {
    return el("ul", { class: "evidence" }, list.map((one) => el("li", null,
      one.link ? R.link(one.link, R.data(one.name || R.t(one.where), 120))
        : R.data(one.name || R.t(one.where), 120),
      one.values.length > 0 && el("dl", { class: "metrics" }, one.values.map(([name, value]) =>
        el("div", null, el("dt", null, R.data(name, 40)),
          el("dd", { class: "number" }, shownValue(value))))),
      one.note && el("span", { class: "faint" }, R.long(R.t(one.note), 200)))));
  }

  function findingBox(finding, deep) {
    const { link } = finding;
    const follows = finding.follows || [];
    const shown = R.state.finding === finding.id;
    const placed = link && R.known(link.step);
    return el("article", {
      class: "finding tone-" + finding.severity + (shown ? " picked" : ""),
      id: "finding-" + finding.id, "data-finding": finding.id, tabindex: "-1",
    },
      el("h3", null, R.badge(finding.severity), " ",
        link ? R.link(link, R.data(R.t(finding.text), 400)) : R.data(R.t(finding.text), 400)),
      el("p", { class: "faint" },
        R.paired() && [R.sideName(finding.side), " · "],
        el("code", null, R.data(finding.rule, 80)), " · ",
        placed && !finding.where && [R.w("step_n", { number: link.step }), " · "],
        finding.ranks && finding.ranks.length > 1 && [R.w("ranks_n", {
          number: R.cut(finding.ranks.join(", "), 60) }), " · "],
        finding.where && R.data(R.t(finding.where), 160),
        finding.again ? [" · ", R.data(R.t(finding.again), 200)]
          : finding.times > 1 && " · " + R.w("times", { n: finding.times, step: finding.last_step })),
      el("p", { class: "ways" }, link && el("a", { class: "way", href: R.href(link) },
        R.w("to_place")),
      el("a", { class: "way", href: R.href({ view: "findings", finding: finding.id }) },
        R.w("link_here"))),
      R.list(finding.causes).length > 0 && el("ul", { class: "causes" }, finding.causes.map((cause) =>
        el("li", null, R.long(R.t(cause), 400)))),
      finding.evidence.length > 0 && R.fold(R.w("evidence", { n: finding.evidence.length }),
        () => evidence(finding.evidence), shown || (!deep && finding.evidence.length <= 3)),
      finding.stack && finding.stack.length > 0 && R.fold(R.w("stack"), () =>
        el("pre", { class: "code" }, finding.stack.map((text) => [R.long(text, 400), "\n"]))),
      finding.next_step && R.fold(R.w("next_step"), () => R.code(finding.next_step)),
      follows.length > 0 && R.fold(el("b", { text: R.w("follows", { n: follows.length }) }), () =>
        el("div", { class: "follows" }, paged(follows, true)), shown || holds(follows)));
  }

  const holds = (findings) => R.known(R.state.finding) &&
    R.allFindings(findings).some((one) => one.id === R.state.finding);

  /** The first hundred, and that which is asked for. */
  function paged(findings, deep) {
    const first = findings.slice(0, 100);
    const rest = findings.slice(100);
    return [first.map((one) => findingBox(one, deep)),
      rest.length > 0 && R.fold(R.w("more", { n: rest.length }), () =>
        el("div", null, rest.slice(0, 2000).map((one) => findingBox(one, deep))), holds(rest))];
  }

  async function show(box) {
    const findings = await R.block("findings");
    if (!findings || !findings.length) {
      R.clear(box, R.missing(R.w(findings ? "no_findings" : "not_checked")));
      return;
    }
    const all = R.allFindings(findings);
    const count = (severity) => all.filter((one) => one.severity === severity).length;
    const tools = el("div", { class: "tools" }, ["error", "warning", "note"]
      .filter((severity) => count(severity)).map((severity) =>
        R.button("", () => {
          if (!hidden.delete(severity)) hidden.add(severity);
          show(box);
        }, { "aria-pressed": String(!hidden.has(severity)), class: "toggle",
          "data-severity": severity })));
    for (const button of tools.children)
      R.add(button, [R.badge(button.dataset.severity), ` ${count(button.dataset.severity)}`]);
    const told = el("span", { class: "told", text: R.w("grouped", {
      n: all.length, of: findings.length,
    }) });
    tools.append(told);
    const visible = (one) => !hidden.has(one.severity) || one.id === R.state.finding ||
      (one.follows || []).some(visible);
    R.clear(box, tools, paged(findings.filter(visible), false));
    const picked = R.known(R.state.finding) &&
      document.getElementById("finding-" + R.state.finding);
    if (picked) picked.scrollIntoView({ block: "center" });
  }

  async function change(changed, box) {
    if (changed.has("finding")) await show(box);
  }

  R.views.push({ name: "findings", show, change });
})();
