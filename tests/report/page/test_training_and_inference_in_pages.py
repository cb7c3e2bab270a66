"""The view of training against inference: its numbers, its links, and what it says without any."""

from __future__ import annotations

import base64
import json
import re
import zlib
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pytest
from helpers.odd_runs import ATTACKED, HOSTILE
from helpers.runs import record_training

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.mismatch import (
    Agreement,
    Cause,
    LogProbs,
    Mismatch,
    Mismatches,
    Stage,
    Token,
    TokenMap,
    Weight,
)
from mindrlhf_msprobe.report.page.page import Shown, write_page

pytestmark = pytest.mark.slow

pytest.importorskip("bokeh")
pytest.importorskip("jinja2")

TOUCH = """
for (const element of document.querySelectorAll(
        "#mismatch button, #mismatch summary, #mismatch input"))
    if (element.isConnected) element.click();
for (const element of document.querySelectorAll("#mismatch *"))
    for (const event of ["mouseover", "mousemove", "focus"])
        element.dispatchEvent(new MouseEvent(event, {bubbles: true, clientX: 9, clientY: 9}));
"""


class Recorded:
    """A run, the page of its mismatch, and what the command says of it as JSON."""

    def __init__(self, run, page, answer):
        self.run, self.page, self.steps = run, page, answer["steps"]

    def block(self, name):
        text = self.page.read_text(encoding="utf-8")
        (found,) = re.findall(f'id="data-{name}">([^<]*)<', text)
        return zlib.decompress(base64.b64decode(found))


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """Return a demo run whose rollout counts positions wrongly from step 1 on."""
    pytest.importorskip("mindformers")
    from mindrlhf_msprobe import Probe
    from mindrlhf_msprobe.common.yaml_file import read_yaml
    from mindrlhf_msprobe.demo.command import EXAMPLE, example_path
    from mindrlhf_msprobe.demo.fault import RolloutFault
    from mindrlhf_msprobe.demo.trainer import PPOTrainer

    root = tmp_path_factory.mktemp("training_and_inference")
    config = read_yaml(example_path(EXAMPLE))
    config["msprobe_config"] |= {"dump_path": str(root / "run"), "token_range_end": 100}
    config["msprobe_config"] |= {"task": "tensor", "reference_dump": False}
    config["msprobe_config"] |= {"critic_train_dump": False}
    trainer = PPOTrainer(config, Probe.from_config(config), seed=0)
    RolloutFault("rotary-off-by-one", 1, last_layer=1).plant(trainer)
    trainer.train(2)
    trainer.probe.close()
    said = StringIO()
    files = str(root / "run"), "--html", str(root / "page.html")
    with redirect_stdout(said):
        main(["mismatch", *files, "--json", "--lang", "en"])
    return Recorded(root / "run", root / "page.html", json.loads(said.getvalue()))


def value(code):
    """Return what a code of a map stands for; see `blocks.logarithmic`."""
    return 0.0 if code == 1 else 2.0 ** ((code - 16384) / 256)


@pytest.fixture(scope="module")
def window(chromium, recorded):
    """Return the page of the recorded run, open."""
    with chromium.open(recorded.page) as page:
        yield page


@pytest.fixture
def opened(window):
    yield window.go("")
    window.nothing_forbidden()


def test_the_numbers_of_the_page_are_those_of_the_json(recorded):
    """Every value on the way, the births, the metrics; and the map to 0.14 %."""
    for said in recorded.steps:
        name = f"mismatch-A-{said['step']}-0"
        shown = json.loads(recorded.block(name))
        for own, stage in zip(shown["stages"], said["stages"], strict=True):
            assert {key: own[key] for key in stage if key != "worst"} == {
                key: stage[key] for key in stage if key != "worst"
            }
        births = [shown["stages"][number]["name"] for number in shown["births"]]
        assert births == [f"{b['cell']} {b['io']}.{b['path']}" for b in said["births"]]
        assert dict(shown["metrics"]) == said["metrics"]
        assert shown["sampled"] == said["sampled"]
        codes = np.frombuffer(recorded.block(f"heat-{name}"), "<i2")
        columns = shown["map"]["columns"]
        codes = codes.reshape(-1, len(columns))
        assert len(codes) == len(shown["map"]["tokens"])
        places = {tuple(t[:2]): row for row, t in enumerate(shown["map"]["tokens"])}
        for column, number in enumerate(columns):
            stage = said["stages"][number]
            largest = max(value(code) for code in codes[:, column].tolist())
            assert largest == pytest.approx(stage["most"], rel=0.002)
            for token in stage["worst"]:
                code = codes[places[token["sample"], token["position"]], column]
                assert value(code) == pytest.approx(token["apart"], rel=0.002)


def test_gaps_of_texts_are_those_of_the_key_data(recorded):
    """Token by token, of every response; none behind its end."""
    run = open_run(recorded.run)
    mask = run.key_data("response_mask", 1)[0].value
    both = [run.key_data(key, 1)[0].value for key in ("rollout_log_prob", "old_log_prob")]
    shown = json.loads(recorded.block("mismatch-A-1-0"))["texts"]["samples"]
    assert len(shown) == len(both[0])
    for row in shown:
        for own, saved in zip(row["a"]["gaps"], both, strict=True):
            known = [(a, b) for a, b in zip(own, saved[row["row"]].tolist()) if a != "NaN"]
            assert len(known) == mask[row["row"]].sum()
            assert all(a == pytest.approx(b, rel=1e-8) for a, b in known)


def test_the_conclusion_is_a_sentence_that_leads_to_its_place(recorded, opened):
    """First on a page of its own: at the step in which they part."""
    said = next(one for one in recorded.steps if one["status"] == "parted")
    first = f"{said['first']['cell']} {said['first']['io']}.{said['first']['path']}"
    text = opened.text("#mismatch-answer")
    assert f"step {said['step']}" in opened.text("#answer h1")
    assert first in opened.text("#mismatch-answer h2")
    assert all(sentence in text for sentence in said["explanation"])
    opened.click("#mismatch-answer h2 a")
    assert "phase=actor_compute_log_prob" in opened.fragment
    assert said["first"]["cell"] in opened.text("#where .detail")


def test_the_map_tells_each_token_and_shows_the_one_that_is_picked(recorded, opened):
    """By the keyboard, too; the address keeps the token."""
    opened.page.locator("#mismatch [data-heat]").focus()
    opened.press("Home", "ArrowDown")
    told = opened.text("#mismatch .told")
    assert told.startswith("sample 0 · position 0")
    assert "behind padding" in told
    opened.press("Enter")
    assert "token=0.0" in opened.fragment
    assert opened.text("#token h3").startswith("sample 0")
    shown = json.loads(recorded.block("mismatch-A-1-0"))
    assert opened.page.locator("#token .growth-row").count() == len(shown["map"]["columns"])
    opened.page.reload()
    assert opened.drawn().text("#token h3").startswith("sample 0")


def test_births_are_marked_and_tokens_are_coloured(recorded, opened):
    """◆ in the list of all values; under each token how far its log-probabilities are apart."""
    births = json.loads(recorded.block("mismatch-A-1-0"))["births"]
    marked = opened.page.locator(".growth.scrolling .flag-first")
    assert marked.count() == len(births) > 0
    titles = opened.values("#mismatch .token, #mismatch .logs .swatch", "title")
    assert any("|Δ log-prob|" in title for title in titles)
    opened.go("view=mismatch&step=0")
    assert "AGREE" in opened.text("#mismatch-answer")
    assert "no row differs" not in opened.text("#mismatch").lower()


def test_metrics_over_the_steps_are_curves(opened):
    """As two steps were compared."""
    opened.page.locator("#mismatch [data-chart]").first.scroll_into_view_if_needed()
    opened.page.wait_for_selector(
        "#mismatch [data-chart] .bk-Column, #mismatch [data-chart] canvas"
    )
    assert "rollout_corr/log_prob_diff_mean" in opened.text("#mismatch")


def test_it_is_printed_with_its_map(opened):
    """And with its curves, dark on white."""
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.page.locator("#mismatch .map .on-paper .paper-row").count() > 10
    assert opened.page.locator("#mismatch .paper-chart").count() > 0
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.page.locator("#mismatch .on-paper").count() == 0


def test_it_speaks_chinese(opened):
    """Every label and every sentence."""
    text = opened.go("view=mismatch&lang=zh").text("#mismatch")
    assert "token 与层" in text
    assert "how it grows" not in text.lower()


def test_report_has_the_view_and_a_line_that_leads_to_it(recorded, chromium, tmp_path):
    """Beside the checks."""
    main(["report", str(recorded.run), "-o", str(tmp_path / "report.html"), "--lang", "en"])
    with chromium.open(tmp_path / "report.html") as page:
        page.click("#answer .lines a:has-text('PARTED')")
        assert "view=mismatch" in page.fragment
        assert "PARTED" in page.text("#mismatch-answer")


def test_a_run_without_tokens_says_how_to_record_them(chromium, tmp_path):
    """In one line of the view."""
    run = record_training(tmp_path / "run", steps=1)
    main(["report", str(run), "-o", str(tmp_path / "report.html"), "--lang", "en"])
    with chromium.open(tmp_path / "report.html", "view=mismatch") as page:
        assert "task: sketch" in page.text("#mismatch")


# -- results that are odd or hostile ---------------------------------------------------------------


def stage(cell, apart, **given):
    usual = {"nth": 0, "entered": 0.0, "apart": apart, "most": apart, "allowed": 1e-6}
    usual |= {"rows": 2, "unequal": 1, "arising": 1, "dtypes": ("Float32", "Float32")}
    return Stage(cell=cell, io="output", path="0", **{**usual, **given})


def result(*, status=Agreement.PARTED, cause=Cause.COMPUTATION, **given):
    usual = {"step": 0, "rank": 0, "rollout": "a", "training": "b"}
    return Mismatch(**{**usual, "status": status, "cause": cause, **given})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return open_run(record_training(tmp_path_factory.mktemp("tiny") / "run", steps=1))


@pytest.fixture
def shown(tiny, chromium, tmp_path):
    """Return a function that writes the page of a result and returns it, to be opened."""

    def write(found):
        runs = (str(tiny.path),)
        file = tmp_path / "page.html"
        mismatches = (Mismatches(runs, (found,)),) if isinstance(found, Mismatch) else (found,)
        write_page(Shown((tiny,), mismatches=mismatches), file)
        return chromium.open(file, "view=mismatch&step=0&rank=0")

    return write


def test_hostile_texts_stay_texts(shown):
    """Names of cells and parameters, tokens, reasons: whatever is clicked or pointed at."""
    texts = [*HOSTILE.values()]
    tokens = tuple(Token(0, at, at, 0, "response", 0.5, text) for at, text in enumerate(texts))
    stages = tuple(stage(text, 0.5, worst=tokens[:3]) for text in texts)
    why = message("mismatch.nothing_compared")
    found = result(
        **{"rollout": texts[0], "training": texts[1], "first": stages[0], "stages": stages},
        weights=tuple(Weight(text, (text,), 0.1, (text, text)) for text in texts),
        weights_unknown=tuple(texts),
        weights_compared=2 * len(texts),
        metrics=dict.fromkeys(texts, 1.0),
        not_compared=tuple((text, why) for text in texts),
        said=(message("mismatch.computation", cell=texts[2]),),
        token_map=TokenMap(
            tuple(range(len(texts))), tokens, np.full((len(texts), len(texts)), 0.5, np.float32)
        ),
    )
    with shown(found) as page:
        page.page.evaluate(TOUCH)
        page.drawn()
        seen = page.text("#mismatch")
        assert page.page.evaluate(f"window.{ATTACKED}") is None
        assert page.page.locator("iframe, object, embed, base, form").count() == 0
        assert HOSTILE["script"] in seen
        for text in HOSTILE.values():
            quoted = page.page.evaluate("encodeURIComponent", text)
            page.go(f"view=mismatch&token={quoted}&value={quoted}&side={quoted}")
            assert page.page.evaluate(f"window.{ATTACKED}") is None


def test_what_is_not_finite_or_not_there_is_said(shown):
    """NaN rows, a token that a layer did not have, tokens that were left out."""
    apart = np.array([[np.inf, np.nan], [1e-9, 0.0]], np.float32)
    tokens = (Token(0, 0, 1, 0, "prompt", np.inf), Token(0, 1, 2, 0, "first", 1e-9))
    stages = stage("x", np.inf, worst=tokens[:1]), stage("y", 0.0, arising=0)
    left = ((0, 7, np.array([0.5, 0.5])), (None, 9, np.array([np.nan, 0.25])))
    found = result(
        **{"first": stages[0], "stages": stages, "metrics": {"kl": float("nan")}},
        token_map=TokenMap((0, 1), tokens, apart, left),
    )
    with shown(found) as page:
        names = page.texts("#mismatch .heat .name")
        assert any("7 more tokens" in name for name in names)
        assert any("further samples" in name for name in names)
        assert "NaN" in page.text("#mismatch")
        assert "Inf" in page.text("#mismatch")
        assert "undefined" not in page.text("#mismatch")


def test_values_that_were_not_compared_are_counted_as_such(shown):
    """At the top, by reason; never that everything is covered."""
    why = message("mismatch.no_sums"), message("mismatch.keys_not_stored")
    given = {"status": Agreement.IDENTICAL, "cause": None, "rows": 5, "tokens": 9}
    names = [f"layer{number} output.0" for number in range(6)]
    found = result(
        not_compared=(*((name, why[0]) for name in names), ("mask", why[1])),
        weights_unknown=("table",),
        **given,
    )
    with shown(found) as page:
        text = page.text("#coverage")
        assert "Not checked 4" in text
        assert "6 values not compared" in text
        assert str(why[0]) in text
        assert "layer0 output.0" in text
        assert "mask" in text
        assert "4 of 9 tokens" in text
        assert "table" in text
    with shown(result(**given | {"rows": 9})) as page:
        assert "Everything" not in page.text("#coverage")
    with shown(why[0]) as page:
        assert str(why[0]) in page.text("#coverage")


@pytest.mark.parametrize(
    "found",
    [
        result(status=Agreement.UNDECIDED, cause=None, said=(message("mismatch.no_sums"),)),
        message("mismatch.no_sums"),
        result(cause=Cause.SAMPLING, log_probs=LogProbs(np.zeros((9, 9)), np.zeros((9, 9)))),
    ],
    ids=["undecided", "why", "sampling"],
)
def test_a_result_without_values_still_says_what_it_has(shown, found):
    """No map, no bars, no texts: a sentence each."""
    with shown(found) as page:
        text = page.text("#mismatch")
        assert text.strip()
        assert "undefined" not in text
        assert "cannot be read" not in text
