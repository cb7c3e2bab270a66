"""What a manifest lists of a run, so that what is missing later is seen to be missing."""

from __future__ import annotations

import random

from mindrlhf_msprobe.storage import recorded


def listed(steps, n=3):
    spans = []
    for step in steps:
        spans = recorded.with_step(spans, step, n)
    return {recorded.PHASES: {"actor_update": spans}}


def steps_of(content):
    spans = recorded.checked(content)[recorded.PHASES]["actor_update"]
    return {step for first, last, _ in spans for step in range(first, last + 1)}


def test_a_run_of_many_parts_lists_the_steps_of_all_of_them():
    """Each part recorded every tenth step of its own: a loss in the last part is seen."""
    merged, wanted = {}, set()
    for part in range(5):
        steps = range(part * 1000, part * 1000 + 600, 10)
        merged = recorded.both(merged, listed(steps))
        wanted |= {*steps}
    assert steps_of(merged) == wanted
    later = {
        recorded.PHASES: {
            "actor_update": recorded.with_step(
                recorded.checked(merged)[recorded.PHASES]["actor_update"], 9000, 3
            )
        }
    }
    assert steps_of(later) >= {*sorted(wanted)[1:], 9000}


def test_what_is_listed_of_two_parts_is_that_of_either():
    """No step is lost, and none is listed that neither part has: it would seem to be missing."""
    draw = random.Random(5)
    for _ in range(200):
        parts = [
            sorted(draw.sample(range(400), draw.randrange(1, recorded.MOST_SPANS)))
            for _ in range(4)
        ]
        merged = {}
        for steps in parts:
            merged = recorded.both(merged, listed(steps, draw.choice([1, 2])))
        assert steps_of(merged) == set().union(*parts)


def test_more_spans_than_are_read_are_joined_where_they_follow_each_other():
    spans = [[step, step, step % 2] for step in range(recorded.MOST_READ)]
    apart = [[step, step, 1] for step in range(recorded.MOST_READ + 1, recorded.MOST_READ + 99, 2)]
    one, other = ({recorded.PHASES: {"actor_update": part}} for part in (spans, apart))
    merged = recorded.both(one, other)
    assert steps_of(merged) == steps_of(one) | steps_of(other)
    assert len(merged[recorded.PHASES]["actor_update"]) == 50
