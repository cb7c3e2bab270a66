// What is shown, kept in the URL fragment: a reload or a link shows the same.
(function () {
  "use strict";
  const R = window.report;
  const KEYS = [
    "view", "step", "rank", "phase", "direction", "measure", "columns", "cell", "entry", "record",
    "key", "micro_step", "finding", "q", "sort", "status", "io", "scope", "side", "token", "value",
    "lang", "theme",
  ];
  const NUMBERS = new Set(["step", "rank", "micro_step", "finding"]);
  /** Return the place of the answer; nothing of it may be known. */
  R.answerPlace = () => (R.head.answer && R.head.answer.place) || {};

  R.directionOf = function (entry) {
    const found = /\.(forward|backward|parameters_grad)(\.|$)/.exec(entry);
    return found ? found[1] : "forward";
  };

  // What names one thing: a link elsewhere leaves it behind.
  const TARGETS = ["cell", "entry", "record", "key", "micro_step", "finding", "token", "value"];
  // What a link leaves as the reader set it.
  const KEPT = ["measure", "columns", "q", "sort", "status", "io", "scope", "side", "lang", "theme"];
  R.state = {};
  // What an address asks for and the page does not have: {step, rank}.
  R.absent = {};

  function read(fragment) {
    const found = {};
    for (const [name, value] of new URLSearchParams(fragment.replace(/^#/, ""))) {
      if (!KEYS.includes(name) || value === "") continue;
      if (NUMBERS.has(name)) {
        if (/^-?\d+$/.test(value)) found[name] = Number(value);
      } else found[name] = value;
    }
    return found;
  }

  function look(found) {
    R.absent = {};
    for (const key of ["step", "rank"])
      if (R.known(found[key]) && !R.head.places[key + "s"].includes(found[key]))
        R.absent[key] = found[key];
    return completed(found);
  }

  function written(state) {
    const given = new URLSearchParams();
    for (const key of KEYS)
      if (R.known(state[key]) && state[key] !== "") given.set(key, state[key]);
    return "#" + given.toString();
  }

  /** Fill in what the fragment leaves open: the place of the answer, else the first place. */
  function completed(found) {
    const head = R.head;
    const at = R.answerPlace();
    const { steps, ranks, cells } = head.places;
    const state = { ...found };
    if (!R.known(state.step) && !R.known(state.rank)) {
      const first = cells[0];
      state.step = at.step ?? (first ? steps[first[0]] : null);
      state.rank = at.rank ?? (first ? ranks[first[1]] : null);
      const asked = ["phase", ...TARGETS].some((key) => R.known(state[key]));
      if (!asked && (state.view ?? R.views[0].name) === "where" && at.view === "where")
        for (const key of ["phase", ...TARGETS]) if (R.known(at[key])) state[key] = at[key];
    }
    if (!steps.includes(state.step)) state.step = steps[0] ?? null;
    if (!ranks.includes(state.rank)) state.rank = ranks[0] ?? null;
    if (!R.views.some((view) => view.name === state.view)) state.view = R.views[0].name;
    if (!head.phases.includes(state.phase)) delete state.phase;
    return state;
  }

  /** Return what a link of Python or of the page says, as a state. */
  function target(link) {
    const state = { ...R.state };
    for (const key of TARGETS) delete state[key];
    for (const [name, value] of Object.entries(link))
      if (KEYS.includes(name)) state[name] = value;
    if (typeof link.phase === "number") state.phase = R.head.phases[link.phase];
    if (typeof link.key === "number") state.key = R.head.keys[link.key];
    if (link.entry && !link.direction)
      state.direction = R.directionOf(link.entry);
    if (link.cell && !link.direction) delete state.direction;
    if (!link.view && (link.entry || link.key || link.phase)) state.view = "where";
    return state;
  }

  R.href = (link) => written(target(link));

  let changing = null;
  function take(next) {
    const before = R.state;
    const changed = new Set(KEYS.filter((key) => before[key] !== next[key]));
    R.state = next;
    R.sayAbsent();
    return changed.size && changing ? changing(changed) : null;
  }

  /**
   * Change what is shown; return the promise that it is drawn. `replace`: without a step in the
   * browser's history.
   */
  R.go = function (changes, replace) {
    const state = { ...R.state, ...changes };
    for (const [key, value] of Object.entries(state)) if (!R.known(value)) delete state[key];
    const fragment = written(state);
    if (fragment !== location.hash) {
      if (replace) history.replaceState(null, "", fragment);
      else history.pushState(null, "", fragment);
    }
    return take("step" in changes || "rank" in changes ? look(state) : completed(state));
  };

  /** Go where a link leads. */
  R.follow = function (link) {
    const state = target(link);
    for (const key of KEYS) if (!(key in state)) state[key] = null;
    R.go(state);
  };

  /** Go where a link of the page leads; it may have been drawn a while ago. */
  R.followFragment = function (fragment) {
    const found = read(fragment);
    const kept = found.entry || found.cell ? KEPT : [...KEPT, "direction"];
    for (const key of KEYS)
      if (kept.includes(key)) found[key] = R.state[key];
      else if (!(key in found)) found[key] = null;
    R.go(found);
  };

  R.startState = function (call) {
    changing = call;
    R.state = look(read(location.hash));
    const moved = () => take(look(read(location.hash)));
    window.addEventListener("hashchange", moved);
    window.addEventListener("popstate", moved);
  };
})();
