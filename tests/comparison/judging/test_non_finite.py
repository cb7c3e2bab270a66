"""NaN and infinity: on which side they stand, on both, and the gradients they hide."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from helpers.runs import Fault, Recording, record_training

from mindrlhf_msprobe import Tolerance, compare_runs
from mindrlhf_msprobe.capture.tensors.summary import summarise, to_host
from mindrlhf_msprobe.comparison.verdict.first_difference import same
from mindrlhf_msprobe.findings import Cause
from mindrlhf_msprobe.storage.columns.leaf_json import is_ordinary
from mindrlhf_msprobe.storage.journal_line import JournalLine

PHASE = "actor_update"
GAP = "gradients that are unknown beside NaN or infinity"


def nan_from(place, phase=PHASE):
    def change(value):
        return np.where(np.arange(value.size).reshape(value.shape) == 0, np.nan, value)

    return Fault(place, phase, change=change)


@pytest.mark.parametrize("side", ["A", "B"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_non_finite_verdict_says_which_side(tmp_path, side, task):
    """The sentence and verdict.json name the side that holds the NaN."""
    faults = {side: [nan_from("layers.1.mlp")]}
    runs = [
        record_training(tmp_path / name, faults=faults.get(name, []), steps=1, task=task)
        for name in "AB"
    ]
    place = compare_runs(*runs).verdict.first_divergence
    assert place.cause is Cause.NON_FINITE
    assert place.non_finite_in == (side,)
    assert f"(in {side} only: 1 NaN)" in place.explanation
    assert place.to_json()["non_finite_in"] == [side]


def gradients(root, arrives, leaves, residual=1.0):
    """Record one cell's backward entry; `leaves` is a number, None, or "unknown"."""
    recording = Recording(root)
    clock = itertools.count()
    name = "Cell.a.Dense.backward.0"
    with recording.phase(PHASE):
        describe = recording.opening.describe
        inputs = [describe(np.float32([arrives, 1]), f"{name}.input.0")]
        inputs.append(describe(np.float32([residual]), f"{name}.input.1"))
        value = None if leaves in (None, "unknown") else np.float32([leaves, 2])
        output = describe(value, f"{name}.output.0")
        if leaves == "unknown":
            output["opaque"] = True
        line = JournalLine(name, next(clock), next(clock))
        line.values |= {"input": inputs, "output": [output]}
        recording.writer.sink(PHASE, recording.step).append(line)
    recording.end_step()
    return recording.close()


@pytest.mark.parametrize("tolerance", [None, Tolerance(1e-3, 1e-3)])
@pytest.mark.parametrize(
    ("a", "b", "gap"),
    [
        ((1, 3.0), (np.nan, "unknown"), True),  # as it is recorded
        ((1, "unknown"), (1, "unknown"), True),
        ((1, 3.0), (np.nan, None), True),  # as it was recorded before
        ((1, np.nan), (1, None), True),
        ((1, 3.0), (1, None), False),  # there is a gradient in one run only
        ((1, None), (1, 3.0), False),
    ],
)
def test_a_gradient_that_cannot_be_known_is_not_compared(tmp_path, a, b, gap, tolerance):
    """It is no other dtype; one that is there in one run only is missing in the other."""
    runs = [gradients(tmp_path / name, *given) for name, given in (("a", a), ("b", b))]
    verdict = compare_runs(*runs, tolerance=tolerance).verdict
    assert verdict.counts["dtype_mismatch"] == 0
    assert [(g.reason, g.records) for g in verdict.coverage] == ([(GAP, 1)] if gap else [])
    if not gap:
        assert verdict.counts["only_in_a"] + verdict.counts["only_in_b"] == 1
        assert verdict.first_divergence.cause is Cause.MISSING
        assert verdict.first_divergence.record.endswith("output.0")


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_weights_beside_nan_are_not_told_apart_by_statistics(number):
    """Without fingerprints, NaN and infinity leave nothing to tell two parameters by."""
    array = np.array([number, 1], np.float32)
    leaf = replace(summarise(to_host(array)), fingerprint=None)
    assert same(leaf, leaf) is None
    finite = replace(summarise(to_host(np.float32([1, 2]))), fingerprint=None)
    assert same(finite, finite) is True


@pytest.mark.parametrize(
    ("leaf", "ordinary"),
    [
        ({"type": "float", "value": None}, False),
        ({"type": "NoneType", "value": None}, True),
        ({"type": "NoneType", "value": None, "opaque": True}, False),
        ({"type": "float", "value": "NaN"}, False),
        ({"type": "float", "value": 1.5}, True),
        ({"type": "str", "value": "x"}, True),
        ({"type": "str", "value": None}, False),
    ],
)
def test_what_is_not_known_is_never_counted_as_identical(leaf, ordinary):
    """A line of two journals that is the same on both sides may still say nothing."""
    assert is_ordinary(leaf) is ordinary
