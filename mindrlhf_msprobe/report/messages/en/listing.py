"""What a run holds (`show`), and how much room a recording takes (`estimate`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.en.words import counted, spans
from mindrlhf_msprobe.report.messages.templates import Joined


def _held(what: str, numbers: Sequence[int]) -> str:
    """Return sorted numbers of a thing as a sentence names them: steps 0 to 2 and 5."""
    if not numbers:
        return f"no {what}"
    parts: list[str] = []
    for span in spans(numbers).split(", "):
        first, _, last = span.partition("-")
        if last and int(last) == int(first) + 1:
            parts += [first, last]
        else:
            parts.append(f"{first} to {last}" if last else first)
    listed = " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)
    return f"{what}{'s' * (len(numbers) > 1)} {listed}"


def _changes(first: str | None, then: Sequence[tuple[int, str]], left: int) -> str:
    """Return a setting's values in time; `left` changes before the last one are not listed."""
    parts = [f"from step {step} on {value}" for step, value in then]
    if left:
        parts.insert(-1, f"… {left} more changes …")
    return ", ".join(([] if first is None else [first]) + parts)


def _inside(cell: str | None) -> str:
    if cell is None:
        return ""
    return f" inside {cell}" if cell else " outside every cell"


TEXTS: Mapping[str, Any] = {
    "states": lambda state: str(state),
    "code_of": lambda entry, cell, phases, steps, ranks: (
        f"{entry}{_inside(cell)}  step {steps}, {phases}, rank {ranks}"
    ),
    "code_called": lambda line, cell: f"called{_inside(cell)} from {line}",
    "code_inside": lambda cell: f"called{_inside(cell)}",
    "changes": _changes,
    "estimated": lambda step_size, steps, ranks, total, free, path: (
        f"A step of a rank: {step_size}. {counted(steps, 'step')} of {counted(ranks, 'rank')}: "
        f"{total}; {free} are free at {path}."
    ),
    "holds_none": lambda path, what, number, held: (
        f"{path} holds no {what} {number}; it holds {_held(what, held)}."
    ),
}

#: What the demo says.
DEMO: Mapping[str, Any] = {
    "number": lambda place, value, usual, whole: (
        f"{place} is {value}; expected "
        f"{'a whole number, 1 or larger' if whole else 'a number that is not negative'}, such as "
        f"{usual}."
    ),
    "needs": lambda names: (
        f"the demo trains for real and needs {' and '.join(names)}: install the package with "
        f'its demo extra, pip install ".[demo]" in a checkout.'
    ),
    "never_ran": lambda cell, phase, cells: (
        f"the cell {cell!r} never runs in {phase}, so no fault was planted."
        + (f" Cells that ran in it: {', '.join(cells)}." if cells else "")
    ),
}


#: What makes an estimate of the room on disk uncertain.
ESTIMATE: Mapping[str, Any] = {
    "left_out": Joined("{what}: {why}", "; "),
    "not_recorded": Joined("{what} was not recorded, so it is not in the estimate", ", "),
    "filtered": Joined("what {keys} left out of the recording is not in it", " and "),
}
