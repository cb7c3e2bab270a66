"""A page of an odd run shows what is there, says what is not, and does nothing else.

That a page made no request, no error and no dialog is looked at whenever it is closed.
"""

from __future__ import annotations

import re

import pytest
from helpers.odd_runs import ATTACKED, HOSTILE, LONG, ODD, RIGHT_TO_LEFT, hostile, long_names

pytestmark = pytest.mark.slow

VIEWS = ("where", "course", "text", "findings", "records")
#: What each page has to say somewhere.
SAID = {
    "one_step": ["DIVERGED at step 0"],
    "cut_off": ["B was killed in step 1", "not reached: the run had stopped in step 1"],
    "rank_missing": ["rank 1", "only in A"],
    "key_data_only": ["DIVERGED at step 1", "advantages"],
    "layers_only": ["DIVERGED at step 1", "Cell.layers.1.mlp.Dense.forward.0"],
    "not_finite": ["NaN", "Inf"],
    "nothing": [],
    "unlike": ["INCOMPARABLE", "nothing in common"],
    "hostile": [
        re.sub("[\u2028\u2029]", lambda end: f"⟨U+{ord(end[0]):04X}⟩", text)
        for text in HOSTILE.values()
    ],
    "long_names": [LONG[:40], "show all"],
    "right_to_left": [RIGHT_TO_LEFT[0], "⟨U+202E⟩abc⟨U+202C⟩ 123"],
    "many_prompts": ["Not checked", "prompt number 0", "9800 more are not in this page"],
    "huge_values": ["1e308"],
}

#: Texts, titles and options with marks, but for a pair that encloses the whole of it.
TURNED = """
[...document.querySelectorAll("#app *")].flatMap(element => [element.title,
    ...[...element.childNodes].filter(n => n.nodeType === 3).map(n => n.data)])
    .filter(text => /[\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066\\u2067]/.test(text))
"""


def seen_of(opened):
    """Open every view, and return all that is seen."""
    seen = []
    for view in VIEWS:
        opened.go(f"view={view}")
        assert opened.text(f"#{view}").strip(), view
        assert "cannot be read" not in opened.text(f"#{view}"), view
        # Nobody has to scroll sideways for a name; tables scroll in a place of their own.
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 1280, view
        # Marks that would turn the direction are named, in titles and lists to choose from as well.
        assert opened.page.evaluate(TURNED) == [], view
        seen.append(opened.text())
    return "\n".join(seen)


@pytest.mark.parametrize("name", ODD)
def test_every_view_of_an_odd_run_opens(chromium, page_of, name):
    """There is something in each view, and the page says what matters of this run.

    No view is wider than its window, and no text of a run turns the direction of what is seen.
    """
    with chromium.open(page_of(ODD[name]).file) as opened:
        assert opened.text("#answer").strip()
        seen = seen_of(opened)
    assert [text for text in SAID[name] if text not in seen] == []
    assert "undefined" not in seen
    assert "[object" not in seen


def test_hostile_texts_stay_texts(chromium, page_of):
    """Whatever is clicked, opened, focused or pointed at: no text of a run becomes a script."""
    with chromium.open(page_of(hostile).file) as opened:
        for view in VIEWS:
            opened.go(f"view={view}")
            opened.page.evaluate(TOUCH_ALL)
            opened.drawn()
            assert opened.page.evaluate(ATTRIBUTES) == []
            assert opened.page.evaluate(f"window.{ATTACKED}") is None, view
            if view == "course":
                series = opened.page.evaluate("report.block('course')")["groups"][0]["series"][0]
                told = opened.point_at(series["steps"][0], series["values"][0])
                assert series["label"][:20] in told
        assert opened.page.locator("iframe, object, embed, base, form").count() == 0


#: Opens all folds, and tells every element but charts what a mouse and a keyboard would.
TOUCH_ALL = """
for (const fold of document.querySelectorAll("details")) fold.open = true;
for (const element of document.querySelectorAll("body *:not([data-chart] *)"))
    for (const kind of ["mouseover", "focus", "pointerover"])
        element.dispatchEvent(new Event(kind, {bubbles: true}));
"""
#: Attributes by which an element would run something, or ask for something from outside.
ATTRIBUTES = """
[...document.querySelectorAll("*")].flatMap(element => [...element.attributes]
    .filter(a => /^on/i.test(a.name) || a.name === "srcdoc" ||
        (["href", "src", "action", "xlink:href"].includes(a.name) && !/^(#|data:,$)/.test(a.value)))
    .map(a => `${element.tagName} ${a.name}=${a.value.slice(0, 80)}`))
"""


def test_hostile_fragments_stay_texts(chromium, page_of):
    """Whoever sends a link to a page cannot make it run anything either."""
    with chromium.open(page_of(hostile).file) as opened:
        for text in HOSTILE.values():
            quoted = opened.page.evaluate("encodeURIComponent", text)
            for key in ("view", "phase", "entry", "q", "sort", "lang", "theme", "measure", "step"):
                opened.go(f"{key}={quoted}")
            opened.go(f"view=records&q={quoted}&sort={quoted}")
        assert "Comparison of two runs" in opened.go("lang=constructor").text("#app")
        assert opened.page.evaluate(f"window.{ATTACKED}") is None
        assert opened.page.evaluate(ATTRIBUTES) == []


def test_a_long_name_can_be_seen_whole(chromium, page_of):
    """It is cut, and a button shows the rest."""
    with chromium.open(page_of(long_names).file, "view=text") as opened:
        assert LONG not in opened.text()
        opened.page.locator("#text button.more").first.click()
        assert LONG in opened.text()


def test_a_page_that_was_cut_off_says_how_long_it_should_be(chromium, page_of, tmp_path):
    """Wherever it was cut: in its data, between its scripts, in the last one; a whole one not."""
    whole = page_of(ODD["one_step"]).file
    page, cut = whole.read_bytes(), tmp_path / "report.html"
    scripts = page.index(b"<script nonce")
    for size in (page.index(b'id="data-') + 50, scripts - 500, scripts + 9000, len(page) - 200):
        cut.write_bytes(page[:size])
        with chromium.open(cut, cut=True) as opened:
            assert f"it should have {len(page)} bytes" in opened.text("#app"), size
            assert f"应有 {len(page)} 字节" in opened.text("#app")
    with chromium.open(whole) as opened:
        assert "bytes. Copy it again" not in opened.text()
