// Text: prompts and responses of both runs side by side, token by token.
(function () {
  "use strict";
  const R = window.report;
  const { el } = R;
  const PAGE = 20;
  const TOKENS = 400;
  let at = 0;
  let only = false;
  let asking = 0;

  // Log-probabilities from 0 (certain) to −10 take the whole scale.
  const partOf = (value) => Math.min(1, Math.max(0, -R.number(value) / 10));
  const colourOf = (log) => () =>
    (Number.isFinite(R.number(log)) ? R.colourOfPart(partOf(log)) : R.colourOfNaN());

  // A row that is cut may begin later: numbers of tokens and letters are those of the whole.
  const beginOf = (sample) => sample.begin || 0;

  /** Return how far both log-probabilities of a token are apart, null where one is not known. */
  function gapOf({ gaps: [rollout, training] }, i) {
    if (!rollout || !training || !R.known(rollout[i]) || !R.known(training[i])) return null;
    const gap = Math.abs(R.number(rollout[i]) - R.number(training[i]));
    return Number.isNaN(gap) ? null : gap;
  }

  /** Return what a token is coloured by: {told, colour}, null where nothing is known of it. */
  function underOf(sample, i) {
    if (sample.gaps) {
      const gap = gapOf(sample, i);
      const [rollout, training] = sample.gaps.map((one) => one && one[i]);
      return gap === null ? null : {
        told: `|Δ log-prob| ${R.num(gap, 4)} (${R.num(rollout, 9)}, ${R.num(training, 9)})`,
        colour: () => R.colourOfDistance(gap),
      };
    }
    const log = sample.log_probs ? sample.log_probs[i] : null;
    return R.known(log) ? { told: `log-prob ${R.num(log, 6)}`, colour: colourOf(log) } : null;
  }

  function token(sample, i, first) {
    const under = underOf(sample, i);
    const text = (sample.tokens || sample.ids)[i].toString();
    const told = [`#${i + beginOf(sample)}`];
    if (sample.ids && R.known(sample.ids[i])) told.push(`id ${sample.ids[i]}`);
    if (under) told.push(under.told);
    if (i === first) told.push(R.w("first_token"));
    return el(i === first ? "mark" : "span", {
      class: "token" + (i === first ? " first" : ""), title: told.join(" · "),
      colour: under ? { "--under": under.colour } : null,
    }, el("bdi", { text: text === "" ? "∅" : R.visible(text) }),
    sample.tokens ? null : " ");
  }

  /** Return the tokens around the first difference; a button shows the others. */
  function tokens(sample, firstOfAll) {
    const count = (sample.tokens || sample.ids).length;
    const first = R.known(firstOfAll) ? firstOfAll - beginOf(sample) : null;
    const box = el("div", { class: "tokens", dir: "auto" });
    const fill = (from, to) => R.clear(box,
      from > 0 && R.button(R.w("tokens_before", { n: from }), () => fill(0, to), { class: "more" }),
      Array.from({ length: to - from }, (_, k) => token(sample, from + k, first)),
      first === count && el("mark", { class: "token first", text: "⏹", title: R.w("ends_here") }),
      to < count && R.button(R.w("tokens_after", { n: count - to }),
        () => fill(from, Math.min(count, to + 4000)), { class: "more" }));
    const middle = Math.min(first ?? 0, count);
    const from = middle < TOKENS - 50 ? 0 : middle - 100;
    fill(from, Math.min(count, from + TOKENS));
    return box;
  }

  const PART = 300;

  /** A text without tokens: the first letter that differs is marked, counted as Python does. */
  function letters(text, first) {
    const each = [...text];
    const part = (from, to) => each.slice(from, to).join("");
    const from = Math.max(0, first - PART);
    return el("div", { class: "tokens", dir: "auto" }, from > 0 && R.data(part(0, from), 60),
      el("bdi", { text: R.visible(part(from, first)) }),
      el("mark", { class: "token first", title: R.w("first_token") },
        first < each.length ? R.visible(each[first]) : "⏹"),
      R.long(part(first + 1), 1500));
  }

  function body(sample, first) {
    if (!sample) return el("p", { class: "faint", text: R.w("absent") });
    if ((sample.tokens || sample.ids || []).length) {
      const saved = sample.tokens ? null : sample.text;
      return [R.known(saved) && el("div", { class: "tokens", dir: "auto" }, R.long(saved, 1500)),
        tokens(sample, first)];
    }
    const logs = R.list(sample.gaps ? sample.gaps[0] : sample.log_probs);
    const each = [...(sample.text || "")];
    // A letter a token: the colour stands under the letter.
    if (logs.length && logs.length === each.length && !sample.begin)
      return tokens({ tokens: each, log_probs: sample.log_probs, gaps: sample.gaps }, first);
    return [plain(sample, first), logs.length > 0 && bare(sample, logs.length)];
  }

  /** Log-probabilities of tokens that are not known: squares of their own. */
  const bare = (sample, count) => el("p", { class: "logs" },
    sample.gaps ? "|Δ log-prob| " : "log-prob ",
    Array.from({ length: Math.min(count, 512) }, (_, i) => [underOf(sample, i), i])
      .filter(([under]) => under).map(([{ told, colour }, i]) => el("i", {
        class: "swatch", title: `#${i} · ${told}`, colour: { background: colour },
      })));

  function plain(sample, first) {
    if (R.known(first) && sample.text !== "") return letters(sample.text, first - beginOf(sample));
    return el("div", { class: "tokens", dir: "auto" }, sample.text === ""
      ? el("span", { class: "faint", text: R.w("empty") }) : R.long(sample.text, 1500));
  }

  /** Return what a side says as a text: of ids without a tokenizer the ids. */
  const textOf = (side) => !R.known(side) ? null : typeof side === "string" ? side
    : R.known(side.text) ? side.text : R.known(side.ids) ? side.ids.join(" ") : null;
  const unlike = (sample) => R.known(sample.first_difference) || Boolean(sample.differs);

  function sampleBox(sample) {
    const { reward } = sample;
    const sides = R.sides();
    const differs = unlike(sample);
    const prompt = Object.fromEntries(sides.map((side) =>
      [side, textOf(sample.prompt && sample.prompt[side])]));
    const prompts = sides.map((side) => prompt[side]);
    const alike = sides.length < 2 || prompts[0] === prompts[1];
    const one = (side) => el("div", { class: "side", lang: "" },
      el("p", { class: "side-head" }, sides.length > 1 && el("b", { class: "side-" + side,
        text: R.sideName(side) }),
      reward && R.known(reward[side]) && el("span", { class: "number" }, " " + R.w("reward") + " ",
        el("b", { text: R.num(reward[side], 6) }),
        sides.length > 1 && JSON.stringify(reward.a) !== JSON.stringify(reward.b) && " ≠"),
      sample[side] && sample[side].ids && el("span", { class: "faint number" }, " · " +
        R.w("n_tokens", { n: sample[side].size })),
      sample[side] && sample[side].cut && el("span", { class: "faint" }, " · " + R.w("cut"))),
      !alike && el("div", { class: "prompt", dir: "auto" }, R.known(prompt[side])
        ? R.long(prompt[side], 600) : R.w("absent")),
      body(sample[side], sample.first_difference));
    return el("article", { class: "sample-box" + (differs ? " unlike" : "") },
      el("h3", null, R.w("row_n", { n: sample.row }), " ",
        sides.length > 1 && (differs
          ? el("span", { class: "badge tone-different" }, "≠ ",
            R.known(sample.first_difference)
              ? R.w(sample.a && sample.a.ids ? "differs_at" : "differs_at_letter", {
                n: sample.first_difference,
              }) : R.w("state_different"))
          : R.badge("same"))),
      alike && R.known(prompts[0]) && el("div", { class: "prompt", dir: "auto" },
        el("span", { class: "faint", text: R.w("prompt") + " " }), R.long(prompts[0], 600)),
      el("div", { class: "sides-of-text" }, sides.map(one)));
  }

  // What the view of training and inference shows of texts.
  R.sampleBody = (sample) => body(sample, null);
  R.samplePrompt = (prompt) => R.known(textOf(prompt)) && el("div", { class: "prompt", dir: "auto" },
    el("span", { class: "faint", text: R.w("prompt") + " " }), R.long(textOf(prompt), 600));
  R.largestGap = (sample) => R.list(sample.gaps && sample.gaps[0]).reduce(
    (most, _, i) => Math.max(most, gapOf(sample, i) ?? 0), 0);

  function legend() {
    return el("span", { class: "legend" }, el("span", { class: "sample" }, "log-prob 0 ",
      el("i", { class: "ramp", colour: { background: R.colourOfAll } }),
      " ≤ −10"), R.paired() && el("span", { class: "sample" }, el("mark", { class: "token first",
      text: "ab" }), R.w("first_token")));
  }

  async function show(box) {
    const mine = ++asking;
    const { step, rank } = R.state;
    const data = await R.block(`text-${step}-${rank}`);
    if (mine !== asking) return;
    if (!data || !data.samples.length) {
      const others = R.head.places.cells.map(([s, r]) =>
        [R.head.places.steps[s], R.head.places.ranks[r]])
        .filter(([s, r]) => R.has(`text-${s}-${r}`));
      R.clear(box, R.missing(R.w(others.length ? "no_text_here" : "no_text", {
        place: R.placeName(step, rank),
      })), others.length > 0 && el("p", null, R.w("text_is_in"), " ", others.slice(0, 12).map(
        ([s, r]) => [R.link({ view: "text", step: s, rank: r }, R.placeName(s, r)), " "])));
      return;
    }
    const list = el("div", { class: "samples" });
    const tools = el("div", { class: "tools" });
    const fill = () => {
      const asked = (R.state.q || "").toLowerCase();
      const holds = (text) => typeof text === "string" && text.toLowerCase().includes(asked);
      const found = data.samples.filter((sample) =>
        (!only || unlike(sample)) && (!asked || R.sides().some((side) =>
          holds(textOf(sample.prompt && sample.prompt[side])) || holds(textOf(sample[side])))));
      at = Math.min(at, Math.max(0, Math.floor((found.length - 1) / PAGE) * PAGE));
      const go = (by) => () => {
        at += by * PAGE;
        fill();
        box.scrollIntoView({ block: "start" });
      };
      const pager = found.length > PAGE && el("span", { class: "pager" },
        R.button("‹", go(-1), { disabled: at === 0, "aria-label": R.w("page_before") }), " ",
        R.w("of", { from: at + 1, to: Math.min(at + PAGE, found.length), n: found.length }), " ",
        R.button("›", go(1), { disabled: at + PAGE >= found.length,
          "aria-label": R.w("page_after") }));
      R.clear(status, R.w("n_samples", { n: found.length, of: data.samples.length }), " ", pager);
      R.clear(list, found.slice(at, at + PAGE).map(sampleBox));
    };
    const status = el("span", { class: "told", role: "status" });
    const input = el("input", { type: "checkbox", on: { change: () => {
      only = input.checked;
      at = 0;
      fill();
    } } });
    input.checked = only;
    const search = el("input", { type: "search", placeholder: R.w("search_text"),
      "aria-label": R.w("search_text"), spellcheck: "false",
      on: { input: () => {
        at = 0;
        R.go({ q: search.value }, true);
        fill();
      } } });
    search.value = R.state.q || "";
    R.add(tools, [search, R.paired() && el("label", { class: "choice line" }, input,
      R.w("only_differing")), status, legend()]);
    R.clear(box, tools, data.left_out > 0 && el("p", { class: "faint",
      text: R.w("left_out_here", { n: data.left_out }) }), list);
    fill();
  }

  async function change(changed, box) {
    if (["step", "rank"].some((name) => changed.has(name))) at = 0;
    const typing = changed.has("q") && changed.size === 1 && box.contains(document.activeElement);
    if (!typing && ["step", "rank", "theme", "q"].some((name) => changed.has(name))) await show(box);
  }

  R.views.push({ name: "text", show, change });
})();
