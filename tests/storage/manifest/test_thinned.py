"""What a manifest lists as removed: steps in, spans out, never a step that is kept."""

from __future__ import annotations

import json

from helpers.runs import record_training
from hypothesis import given
from hypothesis import strategies as st

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.storage.manifest import thinned

STEPS = st.sets(st.integers(0, 40), max_size=25)


@given(STEPS, st.lists(STEPS, max_size=4), st.integers(0, 40))
def test_what_is_listed_is_what_was_removed(kept, removed, again):
    """Of any removals in any order; a resumed run forgets the steps that it records again."""
    found: thinned.Thinned = {}
    for steps in removed:
        steps -= kept
        found = thinned.with_steps(found, thinned.LAYERS, steps, sorted(kept))
    gone = set().union(*removed) - kept
    assert gone <= {step for step in range(41) if thinned.holds(found, thinned.LAYERS, step)}
    assert not any(thinned.holds(found, thinned.LAYERS, step) for step in kept)
    assert not any(thinned.holds(found, thinned.TENSORS, step) for step in range(41))
    assert len(found.get(thinned.LAYERS, ())) <= len(kept) + 1
    assert thinned.checked({**found, "others": 1}) == {
        kind: [*found.get(kind, ())] for kind in thinned.KINDS
    }
    shown = [
        step for span in thinned.outside(found, thinned.LAYERS, 0, 40) for step in _range(span)
    ]
    assert shown == [s for s in range(41) if not thinned.holds(found, thinned.LAYERS, s)]
    earlier = thinned.without_steps_from(found, again)
    for step in range(41):
        before = step < again and thinned.holds(found, thinned.LAYERS, step)
        assert thinned.holds(earlier, thinned.LAYERS, step) == before
        together = thinned.both(earlier, found)
        assert thinned.holds(together, thinned.LAYERS, step) == thinned.holds(
            found, thinned.LAYERS, step
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
        assert thinned.checked(bad) == {"tensors": [], "layers": [], "key_data": []}
    assert thinned.checked({"layers": [[5, 9], [1, 6]]})["layers"] == [[1, 9]]


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
