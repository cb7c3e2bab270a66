// Steps × ranks, in which one picks a place; below it the phases and key data of that place.
(function () {
  "use strict";
  const R = window.report;
  const { el } = R;
  // More cells than these are shown in windows of steps, that of the picked one first.
  const CELLS = 6400;
  // Ranks share this part of the window; lower than so many pixels no row becomes.
  const HIGH = 0.36;
  const LOWEST = 9;
  const windowOf = (ranks) => Math.min(400, Math.max(50, Math.floor(CELLS / ranks.length)));

  function told(place) {
    if (!place) return R.w("not_recorded");
    const parts = [R.placeName(place.step, place.rank), R.stateName(place.state)];
    if (R.paired()) parts.push(R.w("n_differ", { n: place.different, of: place.compared }));
    if (place.findings) parts.push(R.w("n_findings", { n: place.findings }));
    if (!place.full) parts.push(R.w("not_in_full"));
    return parts.join(" · ");
  }

  // -- the matrix ------------------------------------------------------------------------------

  let from = 0;

  /** `paper`: the width it is drawn for, of a page that is printed. */
  function matrix(box, paper) {
    const { steps, ranks } = R.head.places;
    if (!steps.length || !ranks.length) return R.clear(box, R.missing(R.w("no_places")));
    const picked = steps.indexOf(R.state.step);
    const count = windowOf(ranks);
    if (picked < from || picked >= from + count)
      from = Math.max(0, Math.floor(picked / count) * count);
    const shown = steps.slice(from, from + count);
    const letter = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const room = (paper || Math.max(box.clientWidth, 300)) - 6.2 * letter;
    const share = room / shown.length;
    const size = Math.min(Math.round(1.85 * letter),
      paper && share < 9 ? share : Math.max(9, Math.floor(share)));
    const every = Math.max(1, Math.ceil(30 / size));
    const usual = Math.max(size, 14);
    const limit = Math.max(220, Math.round(window.innerHeight * HIGH));
    const tall = Math.min(usual, Math.max(LOWEST, Math.floor(limit / ranks.length)));
    const everyRank = Math.max(1, Math.ceil(0.9 * letter / tall));
    const signs = size >= 15 && tall >= 13;
    const grid = el("div", {
      class: "matrix" + (signs ? " signs" : ""), role: "grid", id: "matrix",
      "aria-label": R.w("matrix"), "aria-rowcount": ranks.length, "aria-colcount": shown.length,
      style: { "--size": size + "px", "--tall": tall + "px", "--columns": shown.length },
      on: { click: clicked, keydown: moved, mouseover: hovered, mouseleave: () => tell() },
    });
    grid.append(el("div", { class: "steps", role: "row" },
      el("span", { class: "corner", role: "columnheader", text: R.w("step") }),
      shown.map((step, i) => el("span", {
        class: "head" + (i % every ? " unseen" : ""), role: "columnheader", text: step,
      }))));
    const at = R.answerPlace();
    ranks.forEach((rank, i) => {
      const row = el("div", { class: "row", role: "row" }, el("span", {
        class: "corner" + (i % everyRank ? " unseen" : ""), role: "rowheader",
        text: R.w("rank_n", { number: rank }),
      }));
      for (const step of shown) {
        const place = R.place(step, rank);
        const state = place ? place.state : "none";
        row.append(el("span", {
          class: "cell state-" + state + (step === at.step && rank === at.rank ? " first" : "") +
            (place && place.full ? " full" : ""),
          role: "gridcell", tabindex: "-1", "data-step": step, "data-rank": rank,
          "aria-label": told(place), "aria-selected": "false",
          text: signs && place ? R.SIGNS[state] || "" : "",
        }));
      }
      grid.append(row);
    });
    const pager = steps.length > count && el("p", { class: "pager" },
      R.button("«", () => page(-1), { "aria-label": R.w("earlier_steps") }), " ",
      `${shown[0]} – ${shown[shown.length - 1]}`, " ",
      R.button("»", () => page(1), { "aria-label": R.w("later_steps") }));
    function page(by) {
      const next = Math.min(Math.max(0, from + by * count), steps.length - 1);
      R.go({ step: steps[next] }, true);
    }
    const states = new Set(R.head.places.cells.map((cell) => cell[2]));
    R.clear(box, pager, el("div", { class: "wide places", style: paper ? {} : {
      "max-height": limit + 3 * letter + "px",
    } }, grid),
      el("div", { class: "legend" }, Object.keys(R.SIGNS).filter((state) => states.has(state))
        .map((state) => el("span", { class: "sample" },
          el("i", { class: "cell state-" + state, text: R.SIGNS[state] }),
          R.stateName(state))),
      R.known(at.step) && el("span", { class: "sample" }, el("i", { class: "cell first" }),
        R.w(R.paired() ? "first_divergence" : "first_finding"))));
    mark();
  }

  const cellOf = (step, rank) =>
    document.querySelector(`#matrix .cell[data-step="${step}"][data-rank="${rank}"]`);

  function mark() {
    for (const cell of document.querySelectorAll('#matrix [aria-selected="true"]')) {
      cell.setAttribute("aria-selected", "false");
      cell.tabIndex = -1;
    }
    const cell = cellOf(R.state.step, R.state.rank);
    if (cell) {
      cell.setAttribute("aria-selected", "true");
      cell.tabIndex = 0;
      intoSight(cell);
    }
    tell();
  }

  /** Scroll the matrix, and nothing but it, until a cell is seen beside its headings. */
  function intoSight(cell) {
    const box = cell.closest(".places");
    const corner = box.querySelector(".corner").getBoundingClientRect();
    const [area, at] = [box.getBoundingClientRect(), cell.getBoundingClientRect()];
    const [left, top] = [area.left + corner.width, area.top + corner.height];
    if (at.left < left || at.right > area.left + box.clientWidth)
      box.scrollLeft += at.left - (left + area.right) / 2;
    if (at.top < top || at.bottom > area.top + box.clientHeight)
      box.scrollTop += at.top - (top + area.bottom) / 2;
  }

  function tell(place) {
    const box = document.getElementById("told-place");
    if (box) box.textContent = told(place || R.place(R.state.step, R.state.rank));
  }

  const numbersOf = (cell) => [Number(cell.dataset.step), Number(cell.dataset.rank)];

  function hovered(event) {
    const cell = event.target.closest(".cell");
    if (cell) tell(R.place(...numbersOf(cell)) || undefined);
  }

  function pick(step, rank, replace) {
    R.go({ step, rank }, replace);
  }

  function clicked(event) {
    const cell = event.target.closest(".cell");
    if (cell) pick(...numbersOf(cell));
  }

  R.move = function (by, across) {
    const { steps, ranks } = R.head.places;
    const s = Math.min(Math.max(steps.indexOf(R.state.step) + by, 0), steps.length - 1);
    const r = Math.min(Math.max(ranks.indexOf(R.state.rank) + across, 0), ranks.length - 1);
    pick(steps[s], ranks[r], true);
  };

  function moved(event) {
    const moves = {
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
      Home: [-1e9, 0], End: [1e9, 0], PageUp: [-10, 0], PageDown: [10, 0],
    };
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    R.move(...moves[event.key]);
    const cell = cellOf(R.state.step, R.state.rank);
    if (cell) cell.focus({ preventScroll: true });
  }

  /** Go to the next place that is not well, in the order of the steps. */
  R.nextTrouble = function (by) {
    const order = R.head.places.cells.map(([s, r, state]) =>
      [R.head.places.steps[s], R.head.places.ranks[r], state])
      .sort((x, y) => x[0] - y[0] || x[1] - y[1]);
    const quiet = new Set(["same", "close", "healthy", "plain"]);
    const here = order.findIndex(([s, r]) => s === R.state.step && r === R.state.rank);
    for (let i = here + by; i >= 0 && i < order.length; i += by)
      if (!quiet.has(order[i][2])) return pick(order[i][0], order[i][1], true);
    return undefined;
  };

  // -- the strip -------------------------------------------------------------------------------

  const FLAGS = { first: "◆", unfinished: "…", only_a: "A", only_b: "B", not_recorded: "∅",
    not_compared: "·" };

  function flagged(flags) {
    return R.list(flags).map((flag) => el("span", { class: "flag flag-" + flag }, FLAGS[flag] || "", " ",
      R.w(flag === "first" && !R.paired() ? "first_finding" : "flag_" + flag)));
  }

  function howFar(compared, different, distance, findings, gravest) {
    const parts = [];
    if (R.paired() && compared) {
      parts.push(el("span", { class: "number" }, R.w("n_differ", { n: different, of: compared })));
      if (different && R.known(distance))
        parts.push(el("span", { class: "number" }, R.w("distance"), " ", R.num(distance, 3)));
    }
    if (findings) parts.push(el("span", { class: "tone-" + gravest }, R.SIGNS[gravest], " ",
      R.w("n_findings", { n: findings })));
    return parts;
  }

  // What of a run is not well has no distance: it has the colour of the gravest finding.
  const GRAVE = { error: "different", warning: "warning", note: "note" };
  const tint = (different, compared, distance, gravest) =>
    R.paired() && different ? R.colourOfDistance(distance ?? 1e-3)
      : !R.paired() && gravest ? `var(--state-${GRAVE[gravest]})`
        : compared ? R.colourOfZero() : null;

  function phaseCard(item, longest) {
    const [, index, opening, a, b, compared, different, distance, findings, flags = [],
      gravest] = item;
    const name = R.head.phases[index];
    const colour = tint(different, compared, distance, gravest);
    const times = [["a", a], ["b", b]].filter(([, time]) => R.known(time));
    return el("a", {
      class: "phase" + (flags.includes("first") ? " first" : "") +
        (compared || !R.paired() ? "" : " bare"),
      href: R.href({ view: "where", step: R.state.step, rank: R.state.rank, phase: name }),
      "data-phase": name,
      "aria-current": R.state.phase === name && !R.state.key ? "true" : null,
    },
      el("span", { class: "tint", style: colour ? { background: colour } : {} }),
      el("span", { class: "name" }, R.data(name, 60), opening > 0 && ` #${opening}`),
      el("span", { class: "facts" }, howFar(compared, different, distance, findings,
        gravest)),
      el("span", { class: "flags" }, flagged(flags)),
      times.length > 0 && el("span", { class: "times" }, times.map(([side, time]) =>
        el("span", { class: "time" },
          R.paired() && el("b", { text: side.toUpperCase() }), " ",
          el("span", { class: "number", text: R.seconds(time) }),
          el("i", { class: "bar side-" + side, style: {
            width: Math.max(2, 100 * R.number(time) / longest) + "%",
          } })))));
  }

  function keyPill(item) {
    const [, index, saves, , , compared, different, distance, findings, flags = [],
      gravest] = item;
    const name = R.head.keys[index];
    const colour = tint(different, compared, distance, gravest);
    const told = [name, R.w("n_saves", { n: saves })];
    if (R.paired()) told.push(R.w("n_differ", { n: different, of: compared }));
    if (findings) told.push(R.w("n_findings", { n: findings }));
    return el("a", {
      class: "key" + (flags.includes("first") ? " first" : ""),
      href: R.href({ view: "where", step: R.state.step, rank: R.state.rank, key: name }),
      title: told.map(R.isolated).join(" · "), "data-key": name,
      "aria-current": R.state.key === name ? "true" : null,
    },
      el("i", { class: "swatch" + (colour ? "" : " empty"), style: colour ? { background: colour }
        : {} }),
      R.data(name, 40),
      R.paired() && different > 0 && el("b", { class: "number", text: " ≠" }),
      findings > 0 && el("b", { class: "tone-" + gravest,
        text: " " + R.SIGNS[gravest] + findings }),
      flags.filter((flag) => flag !== "first").map((flag) => ` ${FLAGS[flag] || flag}`),
      flags.includes("first") && " ◆");
  }

  async function strip(box) {
    const { step, rank } = R.state;
    let data;
    try {
      data = await R.block("strip");
    } catch {
      R.clear(box, R.missing(R.w("view_failed")));
      return;
    }
    if (step !== R.state.step || rank !== R.state.rank) return;
    drawStrip(box, data);
  }

  let stripData = null;
  function drawStrip(box, data) {
    const { step, rank } = R.state;
    stripData = data;
    const items = data ? data.places[`${step}-${rank}`] : null;
    if (!items || !items.length) {
      R.clear(box, R.missing(R.w(R.place(step, rank) ? "no_strip" : "not_recorded")));
      return;
    }
    const longest = Math.max(1e-9, ...items.flatMap((item) => [item[3], item[4]])
      .map(R.number).filter(Number.isFinite));
    const shown = [];
    let keys = null;
    for (const item of items) {
      if (item[0] === "key") {
        if (!keys) shown.push((keys = el("li", { class: "keys" })));
        keys.append(keyPill(item));
      } else {
        keys = null;
        shown.push(el("li", null, phaseCard(item, longest)));
      }
    }
    R.clear(box, el("ol", { class: "strip", id: "strip", "aria-label": R.w("strip") }, shown));
  }

  // -- both ------------------------------------------------------------------------------------

  let box = null;
  R.places = function (given) {
    box = given;
    const { steps, ranks } = R.head.places;
    const choose = (key, numbers) => R.choose(R.w(key), numbers.map((n) => [n, String(n)]),
      R.state[key], (value) => pick(key === "step" ? Number(value) : R.state.step,
        key === "rank" ? Number(value) : R.state.rank));
    const matrixBox = el("div");
    R.clear(box,
      el("h2", null, R.w("steps_and_ranks")),
      el("div", { class: "tools" },
        steps.length > 0 && choose("step", steps), ranks.length > 0 && choose("rank", ranks),
        R.button("‹ " + R.w("before"), () => R.nextTrouble(-1), { title: R.w("before_told") }),
        R.button(R.w("after") + " ›", () => R.nextTrouble(1), { title: R.w("after_told") }),
        el("span", { id: "told-place", role: "status", class: "told" })),
      el("p", { id: "absent", class: "tone-warning", role: "status" }), matrixBox,
      el("h2", null, R.w("strip"), " ", el("span", { class: "faint", id: "strip-place" })),
      el("div", { id: "strip-box" }));
    matrix(matrixBox);
    R.sayAbsent();
    return R.placesChanged(new Set());
  };

  /** Say what of an address the page does not have. */
  R.sayAbsent = function () {
    const place = R.placeName(R.state.step, R.state.rank);
    const words = { step: "step_absent", rank: "rank_absent" };
    document.getElementById("absent").textContent = Object.entries(R.absent)
      .map(([key, number]) => R.w(words[key], { number, place })).join(" ");
  };

  /** Draw both as wide as paper, or again as wide as the window. */
  R.printPlaces = function (begins) {
    if (!box) return;
    matrix(box.children[3], begins ? R.PAPER : 0);
    if (stripData) drawStrip(document.getElementById("strip-box"), stripData);
  };

  R.placesChanged = function (changed) {
    const { step, rank } = R.state;
    if (changed.has("step") || changed.has("rank")) {
      const selects = box.querySelectorAll("select");
      if (selects[0]) selects[0].value = step;
      if (selects[1]) selects[1].value = rank;
      if (cellOf(step, rank)) mark();
      else matrix(box.children[3]);
    }
    document.getElementById("strip-place").textContent =
      R.known(step) ? R.placeName(step, rank) : "";
    const only = ["phase", "key", "step", "rank", "theme"];
    if (!changed.size || only.some((name) => changed.has(name)))
      return strip(document.getElementById("strip-box"));
    return undefined;
  };
})();
