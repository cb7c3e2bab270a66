"""The page of two runs: its sentence, its numbers, its links, and how one moves in it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.browser import Opened
from helpers.health_runs import HealthRun
from helpers.odd_runs import ODD
from helpers.runs import Fault, record_training

from mindrlhf_msprobe import compare_runs, open_run
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json

VIEWS = ("where", "course", "text", "findings", "records")
#: Without the charts, which take seconds to draw.
QUICK = ("where", "text", "findings", "records")
SIDES = {"A": 0, "B": 1}
#: What the page calls the numbers of a side, and what they are called in the journal.
FIELDS = {"max": "max", "min": "min", "mean": "mean", "norm": "norm"}


def two_ranks(root):
    """Three steps of two ranks; from step 1 on a cell of rank 1 is faulty."""
    fault = Fault("layers.1.mlp", "reference_compute_log_prob", step=1, rank=1)
    sizes = {"steps": 3, "ranks": (0, 1)}
    return record_training(root / "a", **sizes), record_training(
        root / "b", faults=[fault], **sizes
    )


@pytest.fixture
def ranks(chromium, page_of):
    """Return the page of two ranks, open."""
    with chromium.open(page_of(two_ranks).file) as page:
        yield page


def verdict_of(page, lang="en"):
    """Return verdict.json as the command writes it in a language."""
    output = page.file.with_name(f"verdict_{lang}")
    if not output.exists():
        compare_runs(*page.runs, output_path=output, lang=lang)
    return json.loads((output / "verdict.json").read_text(encoding="utf-8"))


def test_the_top_says_what_the_verdict_says(decoder, opened):
    """Place, sentence, cause and counts are those of verdict.json, in both languages."""
    for lang in ("en", "zh"):
        verdict = verdict_of(decoder[0], lang)
        first = verdict["first_divergence"]
        top = opened.go(f"lang={lang}").text("#answer")
        assert first["explanation"] in top
        assert str(first["step"]) in opened.text("#answer h1")
        assert first["phase"] in opened.text("#answer h1")
        for status, count in verdict["counts"].items():
            assert str(count) in top or not count, status


def test_a_click_on_the_divergence_shows_its_records_as_they_were_recorded(decoder, opened):
    """Every number of both sides, to the last digit, and the record that differs."""
    page, comparison = decoder
    first = comparison.verdict.first_divergence
    opened.go("view=findings").click("#answer-place")
    shown = opened.values("[data-open-record]", "data-open-record")
    assert first.record in shown
    assert all(name.startswith(first.entry) for name in shown)
    for side, number in SIDES.items():
        entries = open_run(page.runs[number]).entries(first.phase, first.step, first.rank)
        (record,) = [r for entry in entries for r in entry.records if r.name == first.record]
        for field, name in FIELDS.items():
            at = f'[data-open-record="{first.record}"] [data-side={side}][data-field={field}]'
            (value,) = opened.values(at, "data-value")
            assert json.loads(value) == number_to_json(getattr(record.leaf, name)), field


def test_the_error_of_stored_tensors_is_shown_where_it_is(decoder, opened):
    """A histogram, a map of rows, and how many elements differ."""
    _, comparison = decoder
    first = comparison.verdict.first_divergence
    opened.click("#answer-place")
    assert opened.page.locator("#detail .bars").is_visible()
    assert opened.page.locator("#detail canvas.errors").is_visible()
    (found,) = [f for f in comparison.findings if (f.record, f.step) == (first.record, first.step)]
    size = np.prod(found.a.shape)
    different = round(size * (1 - found.metrics.equal_percent / 100))
    assert f"{different} of {size} elements differ" in opened.text("#detail")


def test_the_call_stack_is_one_click_away(opened):
    """It names the file of the network."""
    opened.click("#answer-place")
    opened.page.locator("#detail summary", has_text="stack").first.click()
    opened.page.locator("#detail pre", has_text="small_networks.py").wait_for()  # it unfolds behind


def test_records_are_searched_filtered_and_sorted(decoder, opened):
    """Rows are those whose name holds the words, of one status, in the order of a column."""
    _, comparison = decoder
    first = comparison.verdict.first_divergence
    opened.go("view=records&q=down+output")
    assert {"down" in n and "output" in n for n in rows(opened)} == {True}
    opened.page.locator("#records input[type=search]").fill("")
    opened.page.locator("#records select").first.select_option("different")
    different = {f.record for f in comparison.findings if f.step == first.step and f.key is None}
    different &= {f.record for f in comparison.findings if f.status.value == "different"}
    keys = {f.record for f in comparison.findings if f.key is not None}
    found = opened.drawn() and rows(opened)
    assert found
    assert {*found} <= different | keys
    opened.go("view=records").click("#records th[data-sort=norm_a] button")
    assert sort_of(opened, "norm_a") == "descending"
    falling = numbers(opened, "norm_a")
    assert falling == sorted(falling, reverse=True)
    opened.click("#records th[data-sort=norm_a] button")
    assert sort_of(opened, "norm_a") == "ascending"
    rising = numbers(opened, "norm_a")
    assert rising == sorted(rising)
    assert rising != falling


def test_rows_fill_a_tall_window(chromium, decoder):
    """Nobody has to scroll before the lower half of the table is there."""
    with chromium.open(decoder[0].file, "view=records", height=2000) as opened:
        bottom = "all => Math.max(...all.map(e => e.getBoundingClientRect().bottom))"
        table = opened.page.locator("#records .records-scroll").evaluate_all(bottom)
        assert opened.page.locator("#records tr[data-record]").evaluate_all(bottom) >= table


def rows(opened: Opened) -> list[str]:
    return opened.values("#records tr[data-record]", "data-record")


def sort_of(opened: Opened, column: str) -> str:
    return opened.values(f"#records th[data-sort={column}]", "aria-sort")[0]


def numbers(opened: Opened, column: str) -> list[float]:
    shown = opened.texts(f"#records td[data-column={column}]")
    return [float(text.replace("−", "-")) for text in shown if text.strip() != "–"]


def test_a_row_leads_to_its_record(opened):
    """The link of a row opens that record."""
    opened.go("view=records&q=blocks.0.norm1+output")
    (name, *_) = rows(opened)
    opened.click("#records tr[data-record] a")
    assert opened.values("[data-open-record]", "data-open-record") == [name]


def test_rows_of_key_data_are_called_what_they_are(ranks):
    """Also `values`, which every list of JavaScript has."""
    ranks.go("view=records&q=values&io=data")
    assert ranks.texts("#records tr[data-record] [data-column=phase]") == ["values"]
    ranks.click("#records tr[data-record] a")
    assert ranks.values("[data-open-record]", "data-open-record") == ["values"]


def test_every_link_of_the_page_leads_somewhere(opened):
    """Each opens a view in which there is something."""
    links = set()
    for view in QUICK:
        opened.go(f"view={view}")
        links.update(opened.values("#top a[href], #places a[href], #findings a[href]", "href"))
    assert len(links) > 10
    for link in sorted(links):
        opened.go(link.removeprefix("#"))
        assert opened.text("[role=tabpanel]").strip(), link


def test_a_place_is_picked_by_mouse_and_by_arrows(ranks):
    """The strip, and the view below it, are those of the step and rank that were picked."""
    ranks.click('#matrix [data-step="2"][data-rank="1"]')
    assert picked(ranks) == [("2", "1")]
    assert "step=2" in ranks.fragment
    ranks.press("ArrowLeft", "ArrowUp")
    assert picked(ranks) == [("1", "0")]
    assert "step 1, rank 0" in ranks.text("#places")
    different = ranks.values("#matrix .state-different", "data-step")
    assert {*different} == {"1", "2"}
    assert {*ranks.values("#matrix .state-different", "data-rank")} == {"1"}


def picked(opened: Opened) -> list[tuple[str, str]]:
    at = "#matrix [data-step][aria-selected=true]"
    return list(zip(opened.values(at, "data-step"), opened.values(at, "data-rank")))


def test_phases_and_keys_stand_in_causal_order(ranks):
    """prompts, generation, responses, …, update, loss: as the step ran."""
    order = ranks.page.locator("#strip [data-phase], #strip [data-key]").evaluate_all(
        "all => all.map(e => e.dataset.phase || e.dataset.key)"
    )
    assert order == [
        *("prompts", "actor_generate_sequences", "responses", "actor_compute_log_prob"),
        *("old_log_prob", "reference_compute_log_prob", "ref_log_prob", "critic_compute_values"),
        *("values", "rewards", "advantages", "actor_update", "loss", "critic_update"),
        "value_loss",
    ]


def test_what_the_divergence_reached_is_a_path(ranks):
    """The cell first, then the key data and phases behind it, none before it."""
    path = ranks.go("view=where").text("#where")
    reached = path[path.index("How it spread") :]
    assert reached.index("reference_compute_log_prob") < reached.index("ref_log_prob")
    assert reached.index("ref_log_prob") < reached.index("rewards")
    assert "old_log_prob" not in reached[: reached.index("rewards")]


def test_keys_of_the_keyboard(opened):
    """`/` searches, `?` tells the keys, Escape closes that."""
    opened.press("/")
    assert opened.page.evaluate("document.activeElement.type") == "search"
    opened.page.keyboard.type("down")
    assert "q=down" in opened.drawn().fragment
    opened.go("view=where").press("?")
    assert opened.page.locator("dialog[open]").count() == 1
    opened.press("Escape")
    assert opened.page.locator("dialog[open]").count() == 0


@pytest.mark.parametrize("view", QUICK)
def test_a_link_shows_what_its_sender_saw(chromium, decoder, opened, view):
    """Reloaded, and opened anew somewhere else, an address shows the same."""
    opened.go(f"view={view}")
    if view == "where":
        opened.click("#answer-place")
    if view == "records":
        opened.click("#records th[data-sort=distance] button")
    seen, fragment = seen_of(opened), opened.fragment
    opened.page.reload()
    assert seen_of(opened.drawn()) == seen
    assert opened.fragment == fragment
    with chromium.open(decoder[0].file, fragment) as other:
        assert seen_of(other) == seen


def seen_of(opened: Opened) -> list[str]:
    """Return what is seen, of very many rows the first."""
    *most, view = opened.text("#top"), opened.text("#places"), opened.text("[role=tabpanel]")
    return [*most, *view.splitlines()[:40]]


def test_back_goes_to_where_one_came_from(opened):
    opened.go("view=text").click("#answer-place")
    assert opened.page.locator("#where").count() == 1
    opened.page.go_back()
    assert opened.drawn().page.locator("#text").count() == 1


def test_both_languages(opened):
    """The button switches every word; the fragment keeps it."""
    for view in QUICK:
        opened.go(f"view={view}&lang=en")
        english = opened.text("#app")
        opened.click("#language")
        assert "lang=zh" in opened.fragment
        assert opened.page.evaluate("document.documentElement.lang") == "zh"
        chinese = opened.text("#app")
        assert any("一" <= letter <= "鿿" for letter in chinese)
        assert len(english) > len(chinese)
        opened.click("#language")
        assert opened.text("#app") == english


def test_both_themes(chromium, decoder):
    """It opens as the system is set, and the button changes it."""
    bright = {}
    for dark in (False, True):
        with chromium.open(decoder[0].file, "view=where", dark=dark) as opened:
            bright[dark] = brightness(opened)
            opened.click("#theme")
            bright[dark, "other"] = brightness(opened)
    assert bright[False] > 200 > 60 > bright[True]
    assert bright[False, "other"] == bright[True]
    assert bright[True, "other"] == bright[False]


def brightness(opened: Opened) -> float:
    colour = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    values = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    return sum(values) / 3


def test_the_course_is_that_of_the_runs(decoder, opened):
    """The points of the loss of both sides are those that were saved."""
    page, _ = decoder
    opened.go("view=course")
    drawn = opened.page.evaluate(DRAWN)
    saved = []
    for run in map(open_run, page.runs):
        saved.append([run.key_data("loss", step=step)[0].value for step in run.steps])
    assert saved[0] in drawn
    assert saved[1] in drawn


#: The values of all lines that the chart library draws.
DRAWN = """
Bokeh.documents.flatMap(document => [...document.all_models])
    .filter(model => model.type === "GlyphRenderer" && model.glyph.type === "MultiLine")
    .flatMap(lines => [...lines.data_source.data.ys].map(line => [...line]))
"""


def test_of_very_many_lines_those_of_both_runs_are_drawn(ranks):
    """Half of them A's and half B's, the rank that is picked among them."""
    ranks.page.evaluate(MANY_LINES)
    ranks.go("view=course")
    dashes = ranks.page.evaluate(DRAWN.replace("data.ys", "data.line_dash"))[:24]
    assert [bool(dash) for dash in dashes].count(True) == 12


#: Gives the first quantity of the page twenty ranks.
MANY_LINES = """
report.block("course").then(({groups: [{series}]}) => {
    const of = Object.groupBy(series, one => one.side);
    series.splice(0, series.length, ...["A", "B"].flatMap(side =>
        Array.from({length: 20}, (_, rank) => ({...of[side][0], rank}))));
})
"""


def test_the_mouse_tells_a_point_and_picks_its_step(decoder, opened):
    """Both runs' values, to the digits that tell them apart; a click goes to step and rank."""
    page, _ = decoder
    opened.go("view=course&step=0")
    label = opened.values("#course [data-chart]", "data-chart")[0]
    saved = [open_run(run).key_data(label, step=1)[0].value for run in page.runs]
    told = opened.point_at(1, float(saved[0]))
    assert told.startswith(f"A (baseline) · {label} · rank 0 · step 1")
    assert float(told.splitlines()[0].split(": ")[1].replace("−", "-")) == pytest.approx(saved[0])
    assert "step=1&rank=0" in opened.click_here().fragment
    assert picked(opened) == [("1", "0")]


def test_findings_and_values_without_a_height_are_marked(chromium, page_of):
    """At the top of a chart the finding, which a click leads to; at its foot NaN and Inf."""
    with chromium.open(page_of(ODD["not_finite"]).file, "view=course") as opened:
        (finding, *_) = opened.page.evaluate("report.block('findings')")
        assert "Inf" in opened.point_at(finding["link"]["step"], "foot")
        assert finding["rule"] in opened.point_at(finding["link"]["step"], "top")
        assert f"finding={finding['id']}" in opened.click_here().fragment


#: The colours of what is marked in the first chart, by the shape of the marks.
MARKS = """
Object.fromEntries(Bokeh.documents[0].roots()[0].children[0].renderers
    .map(({glyph, data_source}) => [glyph, data_source.get_column("x")])
    .filter(([glyph, x]) => glyph.marker && glyph.marker.value && x.length)
    .map(([glyph]) => [glyph.marker.value, glyph.fill_color.value]))
"""


def test_where_the_runs_part_is_marked_as_no_finding_is(chromium, page_of):
    """On screen and on paper: red is the first divergence, which a click leads to."""
    page = page_of(ODD["not_finite"])
    first = compare_runs(*page.runs).verdict.first_divergence
    with chromium.open(page.file, "view=course") as opened:
        assert "first divergence" in opened.text("#course .legend")
        colours = opened.page.evaluate(MARKS)
        assert {"diamond", "inverted_triangle"} <= {*colours}
        red = colours.pop("diamond")
        assert red not in colours.values()
        opened.page.emulate_media(media="print")
        opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        signs = (
            opened.page.locator(".paper-chart")
            .first.locator(".sign")
            .evaluate_all("all => all.map(e => [e.textContent, getComputedStyle(e).fill])")
        )
        (printed,) = {colour for sign, colour in signs if sign == "◆"}
        assert printed not in {colour for sign, colour in signs if sign != "◆"}
        opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
        opened.page.emulate_media(media="null")
        told = opened.point_at(first.step, "parted")
        assert told.startswith(f"first divergence · step {first.step}, rank {first.rank}")
        opened.click_here()
        assert opened.fragment.startswith("view=where")
        assert first.record in opened.values("[data-open-record]", "data-open-record")


def test_texts_of_both_sides_stand_side_by_side(opened):
    """The prompt, both responses, the rewards beside them."""
    text = opened.go("view=text&step=1").text("#text")
    assert text.index("one") < text.index("1 2 3") < text.index("two") < text.index("4 5 1")


def far_apart(root):
    """Responses that differ behind letters of two code units, and behind many tokens."""
    paths = []
    for side in "ab":
        run, ids = HealthRun(root / side), np.arange(9000, dtype=np.int32)
        run.data("responses", [f"😀😀 is {side}."])
        run.end_step()
        run.data("responses", np.where(ids < 8000, ids, ids + (side == "b"))[None])
        run.end_step()
        paths.append(run.close())
    return tuple(paths)


def test_the_first_token_or_letter_that_differs_is_marked(chromium, page_of):
    """Of both sides, wherever it stands, with its number."""
    marked = "#text .side mark"
    with chromium.open(page_of(far_apart).file, "view=text&step=0") as opened:
        assert opened.texts(marked) == ["a", "b"]
        opened.go("view=text&step=1")
        assert [text.strip() for text in opened.texts(marked)] == ["8000", "8001"]
        assert [told.split(" · ")[0] for told in opened.values(marked, "title")] == ["#8000"] * 2


@pytest.mark.parametrize("width", [1280, 3840])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures(chromium, decoder, tmp_path, width, theme):
    """Every view fits its window; pictures are kept for people to look at."""
    page = decoder[0].file
    with chromium.open(page, width=width, height=width // 2, dark=theme == "dark") as opened:
        for view in VIEWS:
            opened.go(f"view={view}")
            if view == "where":
                opened.click("#answer-place")
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width, view
            assert opened.screenshot(f"{view}_{width}_{theme}", tmp_path).stat().st_size > 10_000


def test_an_error_that_arose_in_a_cell_is_told_so(opened):
    """An infinite growth is no NaN."""
    opened.go("view=where&measure=growth").click("#answer-place")
    for lang, words in (("en", "∞, arose here"), ("zh", "∞，在此产生")):
        opened.go(f"{opened.fragment}&lang={lang}")
        assert words in opened.text(".map .told")
        assert words in opened.text(".map-legend .legend")
        assert "NaN" not in opened.text(".map-legend .legend")


def test_keys_go_from_one_place_that_differs_to_the_next(ranks):
    """Also to another step, from wherever the focus is."""
    ranks.go("view=where").press("n")
    assert picked(ranks) == [("2", "1")]
    ranks.press("n")
    assert picked(ranks) == [("2", "1")]
    ranks.press("p")
    assert picked(ranks) == [("1", "1")]
    ranks.page.locator("#places select").first.focus()
    ranks.press("n")
    assert picked(ranks) == [("2", "1")]


def test_a_step_that_is_not_in_the_page_is_said(ranks):
    """Until one goes to another."""
    assert "Step 99 is not in this page" in ranks.go("step=99&rank=1").text("#absent")
    ranks.click('#matrix [data-step="2"][data-rank="1"]')
    assert not ranks.page.locator("#absent").is_visible()


def test_many_ranks_take_part_of_the_window_only(ranks):
    """The rank that is picked is in sight."""
    ranks.page.evaluate(MANY_RANKS)
    area = ranks.page.locator(".places").bounding_box()
    assert area["height"] < 450
    cell = ranks.page.locator("#matrix [aria-selected=true]").bounding_box()
    assert area["y"] < cell["y"] < area["y"] + area["height"] - cell["height"]


#: Shows the page as if there were 64 ranks, the last of them picked.
MANY_RANKS = """
const ranks = Array.from({length: 64}, (_, i) => i);
report.head.places.ranks = ranks;
report.head.places.cells = [0, 1, 2].flatMap(
    s => ranks.map(r => [s, r, "same", 0, 1, 0, false]));
report.byPlace = null;
report.state.rank = 63;
report.places(document.getElementById("places"));
"""
