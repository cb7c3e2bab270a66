"""Which of many wrong calls begin it, by the names of their cells, in linear time."""

from __future__ import annotations

import random

from mindrlhf_msprobe.checks.rules.computed_again import conclude
from mindrlhf_msprobe.storage.operators import parse_operator
from mindrlhf_msprobe.storage.step_lines import CallOpinion, TensorOpinion

CELLS = ["", "root", "a", "a.b", "a.b.c", "ab", "root.x", "b"]


def call(number, cell, entry):
    tensor = TensorOpinion(f"{entry}.output.{number}", "wrong", ratio=9.0)
    return CallOpinion(0, 0, "actor_update", entry, cell, tensors=(tensor,))


def holds(outer, inner):
    """Return whether a call is inside another, as one pair at a time says it."""
    if parse_operator(outer.entry) is not None:
        return False
    if parse_operator(inner.entry) is not None and inner.cell == outer.cell:
        return True
    if outer.cell == "root":
        return inner.cell not in ("", "root")
    return inner.cell.startswith(f"{outer.cell}.")


def test_a_wrong_call_begins_it_where_nothing_inside_it_was_wrong_before():
    rng = random.Random(0)
    for _ in range(300):
        calls = []
        for number in range(6):
            cell = rng.choice(CELLS)
            entry = rng.choice([f"Cell.{cell}.Dense.forward.0", "Functional.add.0.forward"])
            calls.append(call(number, cell, entry))
        expected = {
            one.tensors[0].record
            for number, one in enumerate(calls)
            if not any(holds(one, before) for before in calls[:number])
        }
        found = conclude("run", calls).origins
        assert {one.worst.record for one in found} == expected


def test_no_call_is_compared_with_all_before_it(monkeypatch):
    """How often names are looked at grows with the calls, not with their square."""
    from mindrlhf_msprobe.checks.rules import computed_again

    asked = []
    monkeypatch.setattr(computed_again, "parse_operator", lambda entry: asked.append(entry))
    for number in (100, 200):
        asked.clear()
        calls = [call(n, f"a.{n}", f"Cell.a.{n}.Dense.forward.0") for n in range(number)]
        conclude("run", calls)
        assert len(asked) <= 3 * number
