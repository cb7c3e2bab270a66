"""A counter of updates that falls, in the state of an optimizer or between two attempts."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.runs import Recording

from mindrlhf_msprobe import check_run
from mindrlhf_msprobe.storage.manifest.manifest import FirstEntry, Networks
from mindrlhf_msprobe.storage.manifest.run_file import Settings

ONES = np.ones(2, np.float32)
RULE = "weights.counter"


def found(root):
    result = check_run(root)
    assert RULE in result.checked
    return [f for f in result.findings if f.rule == RULE]


def attempt(root, begin, optimizer, *, existing, weights=None):
    """Record two steps of an attempt at a run, without the state of its optimizer."""
    run = Recording(root, step=begin, existing=existing)
    run.writer.manifest.begin(begin)
    if weights is not None:
        run.writer.note(FirstEntry("actor", {"head.weight": f"xxh3_128:{weights}"}, {}, None))
    run.writer.note(Networks(Settings({"optimizers": {"actor": optimizer}})))
    for _ in range(2):
        with run.phase("actor_update"):
            run.call("head", "Dense", lambda x: x, ONES)
        run.end_step()
    run.close()


@pytest.mark.parametrize(
    ("counts", "fell"), [((1, 2, 3, 4), None), ((1, 2, 1, 2), 2), ((5, 5, 6, 0), 3)]
)
def test_the_state_of_an_optimizer(tmp_path, counts, fell):
    """Once; a step that was skipped stays."""
    run = Recording(tmp_path / "run")
    for count in counts:
        with run.phase("actor_update"):
            run.call("head", "Dense", lambda x: x, ONES)
            state = {"moment1.head.weight": ONES, "global_step": np.array([count], np.int32)}
            run.call("optimizer_state", "Adam", lambda state=state: state)
        run.end_step()
    findings = found(run.close())
    assert [f.place.step for f in findings] == ([] if fell is None else [fell])
    if fell is not None:
        assert findings[0].said.params["now"] == counts[fell]


@pytest.mark.parametrize(
    ("counts", "begins", "fell"),
    [
        ((0, 2, 4), (0, 2, 4), None),
        ((0, 2, 0), (0, 2, 4), 4),
        ((0, 0), (0, 2), None),
        ((0, 4, 2), (0, 4, 2), None),  # from an earlier checkpoint
        ((0, 3, 4, 1), (0, 3, 4, 3), 3),
    ],
)
def test_what_attempts_began_with(tmp_path, counts, begins, fell):
    """Where no state is recorded. That nothing was updated before is possible."""
    for number, (count, begin) in enumerate(zip(counts, begins)):
        existing = "resume" if number else "refuse"
        optimizer = {"class": "Adam", "settings": {"global_step": count}}
        attempt(tmp_path / "run", begin, optimizer, existing=existing)
    findings = found(tmp_path / "run")
    assert [f.place.step for f in findings] == ([] if fell is None else [fell])


@pytest.mark.parametrize(
    ("kind", "count", "weights", "resumed", "fell"),
    [
        ("Adam", 0, "other", 2, True),
        ("Adam", 2, "other", 2, False),
        ("Adam", 0, "first", 2, False),  # nothing was updated before
        ("Mine", 0, "other", 2, False),  # which may not count
        ("Adam", 0, "other", 0, False),  # begun anew with other weights
    ],
)
def test_a_run_that_began_with_0_and_goes_on_with_it(tmp_path, kind, count, weights, resumed, fell):
    """The first attempt began with nothing counted, so that the count cannot be lower."""
    attempts = ((0, 0, "first", "refuse"), (resumed, count, weights, "resume"))
    for begin, counted, holds, existing in attempts:
        optimizer = {"class": kind, "settings": {"global_step": counted}}
        attempt(tmp_path / "run", begin, optimizer, existing=existing, weights=holds)
    findings = found(tmp_path / "run")
    assert [f.said.code for f in findings] == ["check_weights.not_counted"] * fell
    assert [f.place.step for f in findings] == [2] * fell


@pytest.mark.parametrize(("count", "fell"), [(0, True), (1, True), (2, False), (3, False)])
def test_an_attempt_begins_with_what_the_state_before_says(tmp_path, count, fell):
    """Also where the state of the first resumed step has not fallen: it was restored too low."""
    for begin, first in ((0, 0), (2, count)):
        run = Recording(tmp_path / "run", step=begin, existing="resume" if begin else "refuse")
        run.writer.manifest.begin(begin)
        optimizer = {"class": "Adam", "settings": {"global_step": first}}
        run.writer.note(Networks(Settings({"optimizers": {"actor": optimizer}})))
        for number in (1, 2):
            with run.phase("actor_update"):
                run.call("head", "Dense", lambda x: x, ONES)
                state = {"global_step": np.array([first + number], np.int32)}
                run.call("optimizer_state", "Adam", lambda state=state: state)
            run.end_step()
        run.close()
    findings = found(tmp_path / "run")
    assert [f.place.step for f in findings] == ([2] if fell else [])
