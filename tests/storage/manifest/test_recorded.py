"""What a manifest lists of a run, so that what is missing later is seen to be missing."""

from __future__ import annotations

import json
import random
import shutil

import pytest
from helpers.runs import Recording

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.storage.manifest import step_spans


def listed(steps, n=3):
    content = {}
    for step in steps:
        content = step_spans.with_counts(content, step_spans.PHASES, step, {"actor_update": n})
    return content


def steps_of(content):
    spans = step_spans.read_recorded(content)[step_spans.PHASES]["actor_update"]
    return {step for first, last, _ in spans for step in range(first, last + 1)}


def test_what_is_listed_of_two_parts_is_that_of_either():
    """No step is lost, and none is listed that neither part has: it would seem to be missing."""
    draw = random.Random(5)
    for _ in range(200):
        parts = [
            sorted(draw.sample(range(400), draw.randrange(1, step_spans.MOST_SPANS)))
            for _ in range(4)
        ]
        merged = {}
        for steps in parts:
            merged = step_spans.both_recorded(merged, listed(steps, draw.choice([1, 2])))
        wanted = set().union(*parts)
        assert steps_of(merged) == wanted
        known = step_spans.read_recorded(merged)
        spans = known[step_spans.PHASES]["actor_update"]
        later = step_spans.with_counts(known, step_spans.PHASES, 9000, {"actor_update": 3})
        assert steps_of(later) >= {9000, *(step for step in wanted if step > spans[0][1])}


def test_more_spans_than_are_read_are_joined_where_they_follow_each_other():
    spans = [[step, step, step % 2] for step in range(step_spans.MOST_READ)]
    apart = [
        [step, step, 1] for step in range(step_spans.MOST_READ + 1, step_spans.MOST_READ + 99, 2)
    ]
    one, other = ({step_spans.PHASES: {"actor_update": part}} for part in (spans, apart))
    merged = step_spans.both_recorded(one, other)
    assert steps_of(merged) == steps_of(one) | steps_of(other)
    assert len(merged[step_spans.PHASES]["actor_update"]) == 50


@pytest.fixture
def keys_of_every_step(tmp_path, monkeypatch):
    """A run whose trainer makes up names: `loss` and ten keys of its own in each of four steps."""
    monkeypatch.setattr(step_spans, "MOST_KEYS", 25, raising=False)
    recording = Recording(tmp_path / "a")
    for step in range(4):
        for key in ("loss", *(f"loss_{step}_{i}" for i in range(10))):
            recording.data(key, float(step))
        recording.end_step()
    return recording.close()


def test_keys_that_change_their_names_do_not_fill_run_json(keys_of_every_step):
    """Of the first ones it is known what is missing; of the rest, that nobody lists them."""
    run = keys_of_every_step
    content = json.loads((run / "run.json").read_bytes())["recorded"]
    assert len(content[step_spans.KEY_DATA]) == 25
    assert content[step_spans.KEY_DATA]["loss"] == [[0, 3, 1]]
    assert content["unlisted"] == [step_spans.KEY_DATA]
    opened = open_run(run)
    assert (len(opened.keys), list(opened.problems)) == (41, [])
    for key in ("loss_0_3", "loss_3_9"):
        shutil.rmtree(run / "data" / key)
    (problem,) = open_run(run).problems
    assert "loss_0_3" in str(problem)


def test_that_keys_are_not_listed_survives_what_is_made_of_the_list(keys_of_every_step):
    content = json.loads((keys_of_every_step / "run.json").read_bytes())["recorded"]
    for made in (
        step_spans.read_recorded(content),
        step_spans.both_recorded({}, content),
        step_spans.both_recorded(content, {}),
        step_spans.recorded_before(content, 1),
        step_spans.with_counts(content, step_spans.KEY_DATA, 4, {"loss": 1}),
    ):
        assert made["unlisted"] == [step_spans.KEY_DATA]
    few = step_spans.read_recorded(listed([1, 2]))
    assert "unlisted" not in few
