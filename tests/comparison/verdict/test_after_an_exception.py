"""A second opening of an update whose first one raised: no update came between."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.parametrize("moved", [True, False])
def test_a_cell_that_was_not_reached_before_has_not_been_updated(of_both, moved):
    """Its weights are recorded for the first time; those of the others show whether they moved."""
    x = np.ones(3, np.float32)

    def record(recording, run):
        for number in range(2):
            with recording.phase("actor_update"):
                w = {"weight": x * (1 + number * moved)}
                recording.call("first", "Dense", lambda x: x, x, parameters=w)
                if number:  # the first opening raised here
                    by = 3 if run == "b" else 1
                    w = {"weight": x * 7}
                    recording.call("second", "Dense", lambda x, by=by: x * by, x, parameters=w)

    first = of_both(record).verdict.first_divergence
    assert first.occasion.weights_moved is moved
    assert ("update," in first.explanation or "the first update" in first.explanation) is moved


@pytest.mark.parametrize("kept", ["a", "b"])
def test_an_update_that_was_not_made_in_one_run_is_none(of_both, kept):
    """The optimizer raised in one run: there the second opening comes after no update."""
    x = np.ones(3, np.float32)

    def record(recording, run):
        for number in range(2):
            with recording.phase("actor_update"):
                for cell in ("first", "second"):
                    w = {"weight": x * (1 + number * (run != kept))}
                    recording.call(cell, "Dense", lambda x: x, x, parameters=w)

    first = of_both(record).verdict.first_divergence
    assert (first.occasion.weights_moved, first.occasion.kept_in) == (True, kept.upper())
    assert "the first update" not in first.explanation
    assert f"in {kept.upper()} its weights did not change between" in first.explanation


@pytest.mark.parametrize("raised", [True, False])
def test_micro_steps_of_unlike_number_are_not_taken_for_the_same(of_both, raised):
    """The second of three updates raised in B: its second loss is that of the third."""

    def record(recording, run):
        for number in range(3):
            if not (raised and run == "b" and number == 1):
                value = number + (0.5 if not raised and run == "b" and number else 0)
                recording.data("loss", np.float32(value))

    first = of_both(record, actor_train_dump=False).verdict.first_divergence
    assert (first.key, first.occasion.number) == ("loss", 1)
    assert ("the first update" in first.explanation) is not raised
