"""Where a difference went: how much of it is NaN or infinite, and what differs from zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mindrlhf_msprobe.report.comparison import render
from mindrlhf_msprobe.report.page.page import _node

NAN, INF = np.nan, np.inf


@pytest.fixture
def compared(of_both):
    """Compare two runs, each of one cell whose output is `cell`, and of key data behind it."""

    def compare(a: Mapping[str, Any], b: Mapping[str, Any], **settings: Any):
        def record(recording, run):
            values = a if run == "a" else b
            with recording.phase("actor_compute_log_prob"):
                for number, cell in enumerate(("cell", "then")):
                    y = values.get(cell, np.ones(3, "f4"))
                    recording.call(f"layers.{number}", "Dense", lambda x, y=y: y, np.ones(3, "f4"))
            for key in values.keys() - {"cell", "then"}:
                recording.data(key, values[key])

        return of_both(record, **settings)

    return compare


def spread_of(comparison, place: str):
    """Return the line of a phase, a key or a layer."""
    found = comparison.verdict.spread
    return next(s for s in (*found, *(x for f in found for x in f.layers)) if s.place == place)


CELL = np.array([1, 2, 4], "f4")
FINITE = np.arange(12, dtype="f4").reshape(3, 4) + 1
EIGHT_NAN = np.where(FINITE > 4, NAN, FINITE + np.float32(0.5))


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("a", "b", "counts", "words"),
    [
        (FINITE, EIGHT_NAN, (0, 0, 8, 0), "B: 8 NaN of 12 elements"),
        (EIGHT_NAN, FINITE, (8, 0, 0, 0), "A: 8 NaN of 12 elements"),
        (
            np.where(FINITE > 10, INF, FINITE),
            np.where(FINITE > 10, INF, EIGHT_NAN),
            (0, 2, 6, 2),
            "A: 2 Inf, B: 6 NaN and 2 Inf of 12 elements",
        ),
        (EIGHT_NAN, EIGHT_NAN - 1, (8, 0, 8, 0), "A: 8 NaN, B: 8 NaN of 12 elements"),
        ([FINITE[0], FINITE[1]], [FINITE[0], EIGHT_NAN[2]], (0, 0, 4, 0), "B: 4 NaN of 8 elements"),
        (1.5, NAN, (0, 0, 1, 0), "B: 1 NaN of 1 element"),
    ],
)
def test_a_line_says_how_many_elements_are_not_finite(compared, task, a, b, counts, words):
    """Of each run, beside the largest error of what is finite; also where nothing is."""
    given = [{"cell": c, "old_log_prob": k} for c, k in ((CELL, a), (CELL + 1, b))]
    found = compared(*given, task=task)
    lacking = spread_of(found, "old_log_prob").non_finite
    assert (lacking.nan_a, lacking.inf_a, lacking.nan_b, lacking.inf_b) == counts
    after = next(x for x in render(found, lang="en").splitlines() if "old_log_prob" in x)
    assert words in after
    assert found.verdict.spread[-1].to_json()["non_finite"]["nan_b"] == counts[2]


def test_layers_and_the_page_say_it_too(compared):
    """A layer behind the first divergence, in the phase in which that is."""
    then = np.array([NAN, INF, 3], "f4")
    found = compared({"cell": CELL}, {"cell": CELL + 1, "then": then})
    layer = spread_of(found, "layers.1")
    assert (layer.non_finite.nan_b, layer.non_finite.inf_b) == (1, 1)
    assert "layers.1 (1 of 2 records; B: 1 NaN and 1 Inf of 6 elements)" in render(found, lang="en")
    assert spread_of(found, "layers.0").non_finite is None
    node = _node(layer, {}, is_first=False)
    assert "NaN" in node["non_finite"][0]


def test_a_mask_is_none_of_it(compared):
    """-inf in the same places of both runs, in a forward pass, is meant."""
    masked = np.array([-INF, 1, 2], "f4")
    found = compared({"cell": CELL, "then": masked}, {"cell": CELL + 1, "then": masked * 2})
    assert spread_of(found, "layers.1").non_finite is None


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(
    ("a", "b", "way"),
    [
        (np.zeros(3, "f4"), np.full(3, 1e-9, "f4"), "from"),
        (np.zeros(3, "f4"), np.full(3, 5, "f4"), "from"),
        (np.full(3, 5, "f4"), np.zeros(3, "f4"), "to"),
        (np.array([1e-9, -3e-9, 2e-9], "f4"), np.array([4e-9, 1e-9, -2e-9], "f4"), "from"),
        (np.ones(3, "f4"), np.array([1, 3, 1], "f4"), None),
    ],
)
def test_what_differs_from_zero_is_no_multiple(compared, a, b, way, lang):
    """A relative distance has a denominator near zero there, and its factor says nothing."""
    nearly = CELL + np.float32(1e-6)
    found = compared({"cell": CELL, "kl": a}, {"cell": nearly, "kl": b}, task="tensor")
    line = spread_of(found, "kl")
    words = {"en": {"from": "from zero", "to": "to zero"}, "zh": {"from": "从零", "to": "变为零"}}
    after = next(x for x in render(found, lang=lang).splitlines() if "kl" in x)
    assert line.zero == way
    assert (line.factor is None) == (way is not None)
    assert ("×" in after.partition(": kl" if lang == "en" else "：kl")[2]) == (way is None)
    assert way is None or words[lang][way] in after
