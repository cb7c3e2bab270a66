"""What a manifest lists as removed: steps in, spans out, never a step that is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
