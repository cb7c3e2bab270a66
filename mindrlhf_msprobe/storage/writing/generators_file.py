"""generators.rank<N>.jsonl: the states of random generators behind each rollout of a rank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.step_lines import StepLines


def append_states(root: Path, rank: int, step: int, call: int, states: Mapping[str, Any]) -> None:
    """Append the states behind one call.

    Args:
        call: the number of the rollout in its step.
        states: generator → state.

    Raises:
        OSError: the file cannot be written, or something that is no plain file stands there.
    """
    generator_lines(root, rank).append([{"step": step, "call": call, "states": states}])


def read_states(root: Path, rank: int, step: int, call: int) -> Mapping[str, Any] | None:
    """Return the states behind one call, as they were written last; None if none were."""
    found = None
    for line in generator_lines(root, rank).read():
        if (line["step"], line.get("call")) == (step, call) and isinstance(
            line.get("states"), dict
        ):
            found = line["states"]
    return found


def generator_lines(root: Path, rank: int) -> StepLines:
    """Return the file of a rank, a line for each call: `step`, `call` and `states`."""
    name = layout.generators_name(rank)
    return StepLines(root, name, most=bounds.JOURNAL, longest=bounds.TIMELINE_LINE)
