"""Pages as they are printed: dark on white, whole, and saying what is not there."""

from __future__ import annotations

import re
import zlib

import pytest

pytestmark = pytest.mark.slow

#: What a page of paper is drawn with, compressed.
PARTS = re.compile(rb"stream\r?\n(.*?)\r?\nendstream", re.DOTALL)
#: The colours that scripts gave to elements, and of the squares of the map of errors.
COLOURS = """
[...[...document.querySelectorAll("main [style]")].filter(e => e.checkVisibility())
    .map(e => e.getAttribute("style")),
 ...[...document.querySelectorAll("canvas.errors")].map(c => c.toDataURL())]
"""
PAPER = "(({color, backgroundColor}) => [color, backgroundColor])(getComputedStyle(document.body))"


def test_it_can_be_printed(opened):
    """On paper there are pages with something on them, and the buttons are not."""
    opened.go("view=where")
    assert len(opened.page.pdf()) > 10_000
    opened.page.emulate_media(media="print")
    assert not opened.page.locator("#theme").is_visible()
    opened.page.emulate_media(media="null")


def test_colours_are_printed_though_backgrounds_are_not_wanted(opened):
    """A browser leaves backgrounds out unless the page says that they matter."""
    opened.go("view=where&theme=dark").click("#answer-place")
    swatch = opened.page.locator("#detail .swatch:not(.empty)").first
    pdf = opened.page.pdf(print_background=False)
    drawn = b"".join(zlib.decompress(part) for part in PARTS.findall(pdf) if part[:1] == b"x")
    opened.go(f"{opened.fragment.replace('theme=dark', 'theme=light')}")
    colour = swatch.evaluate("e => getComputedStyle(e).backgroundColor")
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    found = {tuple(map(float, numbers)) for numbers in re.findall(FILL, drawn)}
    assert any(one == pytest.approx((red, green, blue), abs=1e-3) for one in found), (colour, found)


#: Sets the colour of what is filled.
FILL = rb"([\d.]+) ([\d.]+) ([\d.]+) rg"


def test_the_dark_theme_is_printed_dark_on_white(opened):
    """With the colours of the light theme, which those of the dark one are read against."""
    seen = {}
    for theme in ("light", "dark"):
        opened.go(f"view=where&theme={theme}").click("#answer-place")
        opened.page.emulate_media(media="print")
        opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        seen[theme] = opened.page.evaluate(COLOURS)
        assert opened.page.evaluate(PAPER) == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]
        opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
        opened.page.emulate_media(media="null")
    assert len(seen["dark"]) > 10
    assert seen["dark"] == seen["light"] != opened.page.evaluate(COLOURS)


def test_what_is_closed_says_so_on_paper(printed):
    """Nobody takes what is folded for not being there."""
    closed = "getComputedStyle(e, '::after').content"
    ask = f"all => all.map(e => [e.parentElement.open, {closed}])"
    shown = printed("view=where")
    folds = shown.page.locator("main summary:visible").evaluate_all(ask)
    assert {said for is_open, said in folds if not is_open} == {'" (closed: not printed)"'}
    assert {said for is_open, said in folds if is_open} <= {"none"}


@pytest.fixture
def printed(opened):
    """Return a function that shows a view as it stands on paper."""

    def show(fragment):
        opened.go(fragment)
        opened.page.set_viewport_size({"width": 720, "height": 1000})
        opened.drawn().page.emulate_media(media="print")
        opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        wide = "all => Math.max(0, ...all.map(e => e.scrollWidth - e.clientWidth))"
        assert opened.page.locator(".on-paper, .on-paper table").evaluate_all(wide) == 0
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 720
        return opened

    yield show
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.page.locator(".on-paper").count() == 0
    opened.page.emulate_media(media="null")
    opened.page.set_viewport_size({"width": 1280, "height": 900})
    opened.drawn()


def test_all_charts_are_printed(printed):
    """Also those that nobody has scrolled to or unfolded."""
    shown = printed("view=course")
    quantities = "report.block('course').then(({groups}) => groups.map("
    quantities += "g => new Set(g.series.map(s => s.label)).size))"
    assert shown.page.locator("#course .on-paper svg").count() == min(
        60, sum(shown.page.evaluate(quantities))
    )
    assert shown.page.locator("#course .on-paper svg path[d^=M]").count() > 1
    assert not shown.page.locator("#course .on-screen").is_visible()


def test_rows_of_records_are_printed_whole(printed):
    """As many as are said, under their whole names."""
    shown = printed("view=records&scope=all")
    count = int(shown.text("#records .told").split()[0])
    names = shown.texts("#records .on-paper td[data-column=record]")
    assert len(names) == min(count, 500)
    if count > 500:
        assert f"the first 500 of {count}" in shown.text("#records .on-paper p")
    assert not any("…" in name for name in names)


def test_a_map_is_printed_with_all_its_columns(printed):
    """Those of the screen, though paper is less wide."""
    shown = printed("view=where&columns=phases")
    heads = shown.page.locator("#where .heat .head").all_text_contents()
    assert shown.texts("#where .on-paper .paper-heads span") == heads
    assert shown.page.locator("#where .on-paper .paper-row").count() > 2
