// What experiments proved: the verdict, its causes, and the chain of rounds that shows them.
(function () {
  "use strict";
  const R = window.report;
  const { el } = R;

  const lines = (given) => el("ul", { class: "lines" }, given.map((line) => el("li", null,
    R.long(R.t(line.text), 400), line.under.length > 0 && lines(line.under))));

  function rounds(header, rows) {
    const cell = (text, column, link) => {
      const shown = R.long(R.t(text), 200);
      return el("td", { "data-column": column },
        column === "first" && link ? R.link(link, shown) : shown);
    };
    return el("div", { class: "wide" }, el("table", { class: "compact", id: "rounds" },
      el("thead", null, el("tr", null, header.map(([, label]) =>
        el("th", { scope: "col", text: R.t(label) })))),
      el("tbody", null, rows.map(({ cells, link }) => el("tr", null,
        cells.map((text, i) => cell(text, header[i][0], link)))))));
  }

  /** Return the panel of a proof; null on a page without one. */
  R.proof = function () {
    if (!R.head.proof) return null;
    const { tone, lines: [verdict, ...rest], files, header, rounds: rows } = R.head.proof;
    return el("section", { class: "answer tone-" + tone, id: "proof" },
      el("h1", { text: R.visible(R.t(verdict.text)) }), lines(rest),
      el("p", null, R.long(R.t(files), 400)), rounds(header, rows));
  };
})();
