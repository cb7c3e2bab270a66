// The whole page: its bar, its views, keys, language and theme.
(function () {
  "use strict";
  const R = window.report;
  const { el } = R;
  const root = document.documentElement;
  let panel = null;
  let working = 0;

  const viewNow = () => R.views.find((view) => view.name === R.state.view);

  // -- what is drawn ---------------------------------------------------------------------------

  /** Do what draws; the page says when nothing of it is under way any more. */
  async function drawing(work) {
    working += 1;
    delete root.dataset.drawn;
    try {
      await work();
    } finally {
      working -= 1;
      if (working === 0) root.dataset.drawn = R.state.view;
    }
  }

  function setTheme() {
    const wanted = R.state.theme;
    const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = ["light", "dark"].includes(wanted) ? wanted : dark ? "dark" : "light";
  }

  const setLanguage = () => {
    const wanted = R.state.lang || R.head.lang;
    R.lang = Object.hasOwn(R.head.words, wanted) ? wanted : "en";
    root.lang = R.lang;
  };

  // -- the bar ---------------------------------------------------------------------------------

  function bar() {
    const other = R.lang === "zh" ? "en" : "zh";
    const dark = root.dataset.theme === "dark";
    return el("header", { class: "bar" },
      el("b", { text: R.w("title_" + R.head.kind) }), " ",
      el("span", { class: "faint" }, R.data(R.head.tool, 60), " · ", R.data(R.head.created, 40)),
      el("span", { class: "gap" }),
      el("button", { type: "button", id: "language", lang: other === "zh" ? "zh" : "en",
        text: other === "zh" ? "中文" : "English", on: { click: () => R.go({ lang: other }) } }),
      el("button", { type: "button", id: "theme", text: R.w(dark ? "light" : "dark"),
        on: { click: () => R.go({ theme: dark ? "light" : "dark" }) } }),
      el("button", { type: "button", id: "help-button", "aria-label": R.w("help"), text: "?",
        on: { click: help } }));
  }

  // -- views -----------------------------------------------------------------------------------

  function tabs() {
    const list = el("div", { class: "tabs", role: "tablist", "aria-label": R.w("views") });
    R.views.forEach((view, i) => list.append(el("a", {
      role: "tab", id: "tab-" + view.name, href: R.href({ view: view.name }),
      "aria-controls": view.name, "aria-keyshortcuts": String(i + 1),
      "aria-selected": String(view.name === R.state.view),
      tabindex: view.name === R.state.view ? "0" : "-1",
      on: { click: (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
        event.preventDefault();
        R.follow({ view: view.name });
      } },
    }, R.w("view_" + view.name))));
    list.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      const at = R.views.findIndex((view) => view.name === R.state.view);
      R.follow({ view: R.views[(at + by + R.views.length) % R.views.length].name });
      document.getElementById("tab-" + R.state.view).focus();
    });
    return list;
  }

  function markTabs() {
    for (const view of R.views) {
      const tab = document.getElementById("tab-" + view.name);
      const mine = view.name === R.state.view;
      tab.setAttribute("aria-selected", String(mine));
      tab.tabIndex = mine ? 0 : -1;
      tab.setAttribute("href", R.href({ view: view.name }));
    }
  }

  async function showView() {
    const view = viewNow();
    panel.id = view.name;
    panel.setAttribute("aria-labelledby", "tab-" + view.name);
    R.clear(panel, el("p", { class: "faint", text: R.w("reading") }));
    try {
      await view.show(panel);
    } catch (error) {
      failed(error);
    }
  }

  /** A block that cannot be read is said, and the rest of the page stays. */
  function failed(error) {
    R.clear(panel, R.missing(R.w("view_failed")), el("pre", { class: "code", text: String(error) }));
  }

  function page() {
    setLanguage();
    setTheme();
    const top = el("div", { id: "top" });
    const places = el("section", { id: "places", class: "panel" });
    panel = el("div", { class: "view", role: "tabpanel", tabindex: "-1" });
    R.clear(document.getElementById("app"), bar(),
      el("main", null, top, places, tabs(), panel));
    R.top(top);
    const strip = R.places(places);
    // The answer and the places are painted before anything of a view is decoded.
    return Promise.all([strip, new Promise((done) =>
      requestAnimationFrame(() => setTimeout(done, 0))).then(showView)]);
  }

  async function changed(names) {
    await drawing(async () => {
      if (names.has("lang") || names.has("theme")) {
        await page();
        return;
      }
      markTabs();
      const strip = R.placesChanged(names);
      if (names.has("view")) {
        const list = document.querySelector('[role="tablist"]');
        if (list.getBoundingClientRect().top > window.innerHeight / 2) list.scrollIntoView();
        await showView();
      }
      else {
        try {
          await viewNow().change(names, panel);
        } catch (error) {
          failed(error);
        }
      }
      await strip;
    });
  }

  // -- keys ------------------------------------------------------------------------------------

  const keys = () => [
    ["/", "key_search"], [`1 … ${R.views.length}`, "key_views"], ["← ↑ ↓ →", "key_arrows"],
    ["Enter", "key_enter"], ["Space, + −", "key_open"], ["n  p", "key_trouble"],
    ["d", "key_theme"], ["l", "key_language"], ["?", "key_help"], ["Esc", "key_escape"],
  ];

  function help() {
    const old = document.getElementById("help");
    if (old) old.remove();
    const box = el("dialog", { id: "help", "aria-label": R.w("help") },
      el("h2", { text: R.w("help") }),
      el("p", { text: R.w(R.paired() ? "help_pair" : "help_run") }),
      el("table", null, keys().map(([keys, word]) => el("tr", null,
        el("th", { scope: "row" }, el("kbd", { text: keys })), el("td", { text: R.w(word) })))),
      el("p", { class: "faint", text: R.w("help_link") }),
      R.button(R.w("close"), () => box.close(), { autofocus: true }));
    box.addEventListener("close", () => box.remove());
    document.body.append(box);
    box.showModal();
  }

  function search() {
    const own = () => panel.querySelector('input[type="search"]');
    const take = () => {
      const input = own();
      if (!input) return;
      input.focus();
      input.select();
    };
    if (own()) take();
    else {
      R.follow({ view: "records" });
      const wait = () => (own() ? take() : working && requestAnimationFrame(wait));
      wait();
    }
  }

  function escape(target) {
    const open = document.getElementById("help");
    if (open) open.close();
    else if (target.type === "search" && target.value) {
      target.value = "";
      R.go({ q: null }, true);
      target.dispatchEvent(new Event("input"));
    } else if (target !== document.body && target.blur) target.blur();
    else if (R.state.entry || R.state.key)
      R.go({ entry: null, record: null, key: null, micro_step: null });
  }

  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape") return void escape(event.target);
    if (document.getElementById("help")) return;
    const number = Number(event.key);
    // Lists of steps and ranks are chosen from by digits: other keys are the page's.
    const own = event.target.closest("input:not([type=checkbox]), select, textarea");
    if (own && !(own.closest("#places") && !(number >= 0))) return;
    if (event.key === "/") search();
    else if (event.key === "?") help();
    else if (event.key === "n") R.nextTrouble(1);
    else if (event.key === "p") R.nextTrouble(-1);
    else if (event.key === "d") document.getElementById("theme").click();
    else if (event.key === "l") document.getElementById("language").click();
    else if (number >= 1 && number <= R.views.length) R.follow({ view: R.views[number - 1].name });
    else return;
    event.preventDefault();
  }

  // -- start -----------------------------------------------------------------------------------

  /**
   * Paper is light, and cannot be scrolled: views add what stands on it instead. All at once, as
   * the browser prints what there is when the event ends.
   */
  function printing(begins) {
    for (const added of document.querySelectorAll(".on-paper")) added.remove();
    if (begins) root.dataset.theme = "light";
    else setTheme();
    root.toggleAttribute("data-printing", begins);
    root.style.setProperty("--closed", JSON.stringify(` (${R.w("closed_on_paper")})`));
    R.printPlaces(begins);
    R.paintAgain();
    const { paper } = viewNow();
    if (begins && paper) paper(panel);
  }

  async function open(fragment) {
    await R.followFragment(fragment);
    if (R.state.view === "where" && (R.state.entry || R.state.key)) R.showDetail();
  }

  async function start() {
    R.head = await R.block("head");
    if (!R.list(R.head.mismatches).length)
      R.views = R.views.filter((view) => view.name !== "mismatch");
    // Of one run, what was found comes first.
    const found = { run: R.has("findings") && "findings", mismatch: "mismatch" }[R.head.kind];
    if (found) R.views.sort((x, y) => (y.name === found) - (x.name === found));
    R.startState(changed);
    document.addEventListener("keydown", pressed);
    document.addEventListener("click", (event) => {
      const link = event.target.closest('a[href^="#"]');
      if (!link || event.defaultPrevented || event.button) return;
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      open(link.getAttribute("href"));
    });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      if (!R.state.theme) changed(new Set(["theme"]));
    });
    window.addEventListener("beforeprint", () => printing(true));
    window.addEventListener("afterprint", () => printing(false));
    // What hangs on the width of the window is drawn again once it stays.
    let waiting = null;
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        if (window.innerWidth === width || root.hasAttribute("data-printing")) return;
        width = window.innerWidth;
        drawing(page);
      }, 200);
    });
    await drawing(page);
  }

  // Without the head there are no words: a browser that cannot read the blocks says so itself.
  start().catch((error) => {
    if (!R.head) R.clear(document.getElementById("app"), R.el("pre", { text: String(error) }));
    throw error;
  });
})();
