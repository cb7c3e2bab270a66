"""What was asked for wrongly, or cannot be done, in English."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.en.words import few


def _estimate_no_cell(path: str, given: Sequence[str], of: int, cell: str, phase: str) -> str:
    return (
        f"{path}: {' and '.join(given)} leave{'s' * (len(given) == 1)} no cell of the {of} that "
        f"were recorded, such as {cell}; expected regular expressions that match names of cells, "
        f"which `mindrlhf-msprobe show {path} {phase}` lists."
    )


def _holds_runs(path: object, runs: Sequence[str]) -> str:
    return f"{path} is not a run, but holds runs: {few(runs)}. Give one of them."


TEXTS: Mapping[str, Any] = {
    "together": lambda of: "".join(of),
    "holds_runs": _holds_runs,
    "estimate_no_cell": _estimate_no_cell,
    "no_msprobe_name": lambda module, name, names: (
        f"module {module!r} has no attribute {name!r}: msprobe is not installed, and "
        f"mindrlhf_msprobe stands in with {names or 'its modules'} alone"
    ),
    "playback_differs": lambda name, path, step, call, differences, more, batch: (
        f"{'the batch' if batch else name} is not the one of {path}, step {step}, call {call}: "
        + "; ".join(map(str, differences))
        + (f"; and {more} more" if more else "")
        + ". Give both trainings the same data in the same order, or play another run."
    ),
}
