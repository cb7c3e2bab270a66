// The first divergence and what it reached, in causal order: at most one screen.
(function () {
  "use strict";
  const R = window.report;
  const { el } = R;
  const LAYERS = 9;

  const share = (item) => R.known(item.compared) && item.compared > 0
    ? R.w("n_differ", { n: item.different, of: item.compared }) : "";
  const factor = (item) => R.known(item.factor)
    ? el("span", { class: "number factor", title: R.w("factor_told") }, "×" + R.num(item.factor, 3))
    : item.zero ? el("span", { class: "factor", text: R.t(item.zero) }) : null;
  const held = (item) => item.non_finite
    ? el("span", { class: "factor", text: " " + R.t(item.non_finite) }) : null;
  const SIGN = { first: "◆", reached: "→", same: "=" };

  function layers(item) {
    const list = R.list(item.layers);
    const line = (layer) => el("li", { class: "path-" + layer.tone }, R.link(layer.link,
      el("span", { class: "sign", text: SIGN[layer.tone] || "" }), " ",
      R.data(layer.name, 44), " ", factor(layer), held(layer),
      el("span", { class: "faint number" }, " ", share(layer))));
    const rest = list.slice(LAYERS);
    return list.length > 0 && [
      el("ol", { class: "layers" }, list.slice(0, LAYERS).map(line)),
      rest.length > 0 && R.fold(R.w("more", { n: rest.length }), () =>
        el("ol", { class: "layers" }, rest.map(line))),
    ];
  }

  function agreed(items) {
    return el("li", { class: "path-item path-same" },
      el("b", null, "= ", R.w("n_agree", { n: items.length })),
      el("span", { class: "faint" }, items.slice(0, 6).map((item) => [R.data(item.name, 30), " "]),
        items.length > 6 && "…"));
  }

  /** Show data-path in `box`; return whether there is one. */
  R.path = async function (box) {
    const path = await R.block("path");
    if (!path || !path.length) {
      R.clear(box);
      return false;
    }
    const shown = [];
    let same = [];
    const flush = () => {
      if (same.length) shown.push(agreed(same));
      same = [];
    };
    for (const item of path) {
      if (item.tone === "same") {
        same.push(item);
        continue;
      }
      flush();
      shown.push(el("li", { class: `path-item path-${item.tone} path-of-${item.what}` },
        R.link(item.link, el("span", { class: "sign", text: SIGN[item.tone] || "" }), " ",
          el("b", null, R.data(item.name, 44))), " ", factor(item), held(item),
        el("div", { class: "faint number", text: share(item) }),
        item.tone === "first" && el("div", { class: "flag flag-first",
          text: R.w("first_divergence") }),
        layers(item)));
    }
    flush();
    const fold = R.fold(R.el("span", null, R.w("path"), " ",
      el("span", { class: "faint", text: R.w("path_told") })),
    () => el("ol", { class: "path" }, shown), true, { id: "path", class: "panel" });
    R.clear(box, fold);
    return true;
  };

  /** Go to the path, and bring it into sight. */
  R.showPath = async function () {
    await R.go({ view: "where" });
    const fold = document.getElementById("path");
    if (!fold) return;
    fold.open = true;
    fold.scrollIntoView({ block: "start" });
  };
})();
