"""What a manifest lists as removed: steps in, spans out, never a step that is kept."""

from __future__ import annotations

import json

from helpers.runs import record_training
from hypothesis import given
from hypothesis import strategies as st

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.storage.manifest import step_spans

STEPS = st.sets(st.integers(0, 40), max_size=25)


@given(STEPS, st.lists(STEPS, max_size=4), st.integers(0, 40))
def test_what_is_listed_is_what_was_removed(kept, removed, again):
    """Of any removals in any order; a resumed run forgets the steps that it records again."""
    found: step_spans.Thinned = {}
    for steps in removed:
        steps -= kept
        found = step_spans.with_steps(found, step_spans.LAYERS, steps, sorted(kept))
    gone = set().union(*removed) - kept
    assert gone <= {step for step in range(41) if step_spans.holds(found, step_spans.LAYERS, step)}
    assert not any(step_spans.holds(found, step_spans.LAYERS, step) for step in kept)
    assert not any(step_spans.holds(found, step_spans.TENSORS, step) for step in range(41))
    assert len(found.get(step_spans.LAYERS, ())) <= len(kept) + 1
    assert step_spans.read_thinned({**found, "others": 1}) == {
        kind: [*found.get(kind, ())] for kind in step_spans.THINNED_KINDS
    }
    shown = [
        step
        for span in step_spans.outside(found, step_spans.LAYERS, 0, 40)
        for step in _range(span)
    ]
    assert shown == [s for s in range(41) if not step_spans.holds(found, step_spans.LAYERS, s)]
    earlier = step_spans.thinned_before(found, again)
    for step in range(41):
        before = step < again and step_spans.holds(found, step_spans.LAYERS, step)
        assert step_spans.holds(earlier, step_spans.LAYERS, step) == before
        together = step_spans.both_thinned(earlier, found)
        assert step_spans.holds(together, step_spans.LAYERS, step) == step_spans.holds(
            found, step_spans.LAYERS, step
        )


def _range(span):
    return range(span[0], span[1] + 1)


def test_what_another_hand_wrote_is_left_out():
    """A manifest is data: what is no span lists nothing."""
    for bad in (
        None,
        3,
        [],
        {"layers": 3},
        {"layers": [[3, 1], ["a", 2], [1], [-1, 2], [True, 2]]},
    ):
        assert step_spans.read_thinned(bad) == {"tensors": [], "layers": [], "key_data": []}
    assert step_spans.read_thinned({"layers": [[5, 9], [1, 6]]})["layers"] == [[1, 9]]


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
