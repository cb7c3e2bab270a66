"""What a manifest lists of a run's steps: steps in, spans out, and no step too many or too few."""

from __future__ import annotations

import json
import random
import shutil

import pytest
from helpers.runs import Recording, record_training
from hypothesis import given
from hypothesis import strategies as st

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.storage.manifest import step_spans
from mindrlhf_msprobe.storage.manifest.step_spans import (
    KEY_DATA,
    LAYERS,
    MOST_READ,
    MOST_SPANS,
    PHASES,
    TENSORS,
    THINNED_KINDS,
    Thinned,
    both_recorded,
    both_thinned,
    holds,
    outside,
    read_recorded,
    read_thinned,
    recorded_before,
    thinned_before,
    with_counts,
    with_steps,
)


def listed(steps, n=3):
    content = {}
    for step in steps:
        content = with_counts(content, PHASES, step, {"actor_update": n})
    return content


def steps_of(content):
    spans = read_recorded(content)[PHASES]["actor_update"]
    return {step for first, last, _ in spans for step in range(first, last + 1)}


def test_what_is_listed_of_two_parts_is_that_of_either():
    """No step is lost, and none is listed that neither part has: it would seem to be missing."""
    draw = random.Random(5)
    for _ in range(200):
        parts = [sorted(draw.sample(range(400), draw.randrange(1, MOST_SPANS))) for _ in range(4)]
        merged = {}
        for steps in parts:
            merged = both_recorded(merged, listed(steps, draw.choice([1, 2])))
        wanted = set().union(*parts)
        assert steps_of(merged) == wanted
        known = read_recorded(merged)
        spans = known[PHASES]["actor_update"]
        later = with_counts(known, PHASES, 9000, {"actor_update": 3})
        assert steps_of(later) >= {9000, *(step for step in wanted if step > spans[0][1])}


def test_more_spans_than_are_read_are_joined_where_they_follow_each_other():
    spans = [[step, step, step % 2] for step in range(MOST_READ)]
    apart = [[step, step, 1] for step in range(MOST_READ + 1, MOST_READ + 99, 2)]
    one, other = ({PHASES: {"actor_update": part}} for part in (spans, apart))
    merged = both_recorded(one, other)
    assert steps_of(merged) == steps_of(one) | steps_of(other)
    assert len(merged[PHASES]["actor_update"]) == 50


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
    assert len(content[KEY_DATA]) == 25
    assert content[KEY_DATA]["loss"] == [[0, 3, 1]]
    assert content["unlisted"] == [KEY_DATA]
    opened = open_run(run)
    assert (len(opened.keys), list(opened.problems)) == (41, [])
    for key in ("loss_0_3", "loss_3_9"):
        shutil.rmtree(run / "data" / key)
    (problem,) = open_run(run).problems
    assert "loss_0_3" in str(problem)


def test_that_keys_are_not_listed_survives_what_is_made_of_the_list(keys_of_every_step):
    content = json.loads((keys_of_every_step / "run.json").read_bytes())["recorded"]
    for made in (
        read_recorded(content),
        both_recorded({}, content),
        both_recorded(content, {}),
        recorded_before(content, 1),
        with_counts(content, KEY_DATA, 4, {"loss": 1}),
    ):
        assert made["unlisted"] == [KEY_DATA]
    few = read_recorded(listed([1, 2]))
    assert "unlisted" not in few


STEPS = st.sets(st.integers(0, 40), max_size=25)


@given(STEPS, st.lists(STEPS, max_size=4), st.integers(0, 40))
def test_what_is_listed_is_what_was_removed(kept, removed, again):
    """Of any removals in any order; a resumed run forgets the steps that it records again."""
    found: Thinned = {}
    for steps in removed:
        steps -= kept
        found = with_steps(found, LAYERS, steps, sorted(kept))
    gone = set().union(*removed) - kept
    assert gone <= {step for step in range(41) if holds(found, LAYERS, step)}
    assert not any(holds(found, LAYERS, step) for step in kept)
    assert not any(holds(found, TENSORS, step) for step in range(41))
    assert len(found.get(LAYERS, ())) <= len(kept) + 1
    assert read_thinned({**found, "others": 1}) == {
        kind: [*found.get(kind, ())] for kind in THINNED_KINDS
    }
    shown = [step for span in outside(found, LAYERS, 0, 40) for step in _range(span)]
    assert shown == [s for s in range(41) if not holds(found, LAYERS, s)]
    earlier = thinned_before(found, again)
    for step in range(41):
        before = step < again and holds(found, LAYERS, step)
        assert holds(earlier, LAYERS, step) == before
        together = both_thinned(earlier, found)
        assert holds(together, LAYERS, step) == holds(found, LAYERS, step)


def _range(span):
    return range(span[0], span[1] + 1)


def test_what_another_hand_wrote_is_left_out():
    """A manifest is data: what is no span lists nothing."""
    no_spans = {"layers": [[3, 1], ["a", 2], [1], [-1, 2], [True, 2]]}
    for bad in (None, 3, [], {"layers": 3}, no_spans):
        assert read_thinned(bad) == {"tensors": [], "layers": [], "key_data": []}
    assert read_thinned({"layers": [[5, 9], [1, 6]]})["layers"] == [[1, 9]]


# Others.


def test_none_of_many_directories_of_another_tool_is_taken_for_the_runs(tmp_path):
    """However many stood there, and after a second run of the same kind, too."""
    phases = ("actor_update", "critic_update", "reward_compute")
    theirs = {
        f"{phase}/step{step}/rank0" for phase in phases for step in range(2, 360) if step != 200
    }
    for name in theirs:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "dump.json").write_text('{"data": {}}')
    for steps in (1, 2):
        run = open_run(record_training(tmp_path, steps=steps, existing="overwrite"))
        assert list(run.steps) == [*range(steps)]
        assert {p.relative_to(tmp_path).as_posix() for p in run.left_out} == theirs
    named = json.loads((tmp_path / "run.json").read_bytes())["others"]
    assert sorted(named) == sorted(theirs)
