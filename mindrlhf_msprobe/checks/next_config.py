"""What to record next to look closer at a finding."""

from __future__ import annotations

from typing import Any

from mindrlhf_msprobe.config import ProbeConfig, section_of
from mindrlhf_msprobe.health import Place
from mindrlhf_msprobe.phases import UNNAMED_PHASE, Phase, phase_table
from mindrlhf_msprobe.storage.reading.reader import Run

import re  # isort: skip


def next_recording(
    run: Run,
    place: Place,
    *,
    phases: tuple[str, ...] = (),
    cell: str | None = None,
    elements: bool = False,
    first: int | None = None,
) -> dict[str, Any] | None:
    """Return an msprobe_config section that records a place more closely.

    Args:
        phases: those to record; (): the place's own.
        cell: this cell and what lies in it alone.
        elements: with full tensors (`task: tensor`) instead of statistics.
        first: the first step; None: the place's.

    None where no phase is known, PrecisionDebugger recorded the run, or the run itself was recorded
    so already.
    """
    config = run.config(place.rank or 0)
    known = _known_phases(config, phases or (place.phase or UNNAMED_PHASE,))
    if not known:
        return None
    start = place.step if first is None else first
    section = section_of(config, known, start, place.step)
    if elements:
        section["task"] = "tensor"
    if cell is not None and cell != "root":
        section["include"] = [f"^{re.escape(cell)}($|\\.)"]
    if len(run.ranks) > 1 and place.rank is not None:
        section["ranks"] = [place.rank]
    return None if _was_recorded(config, known, section) else section


def _known_phases(config: ProbeConfig | None, names: tuple[str, ...]) -> list[Phase]:
    table = config.phase_table() if config else phase_table({})
    return [table[name] for name in names if name in table and name != UNNAMED_PHASE]


def _was_recorded(config: ProbeConfig | None, phases: list[Any], section: dict[str, Any]) -> bool:
    if config is None or (section.get("task") == "tensor" and config.task != "tensor"):
        return False
    whole = not (config.include or config.exclude or config.ranks)
    steps = range(section["step_start"], section["step_end"] + 1)
    on = all(config.records_phase(phase) for phase in phases)
    return whole and on and all(map(config.records_step, steps))
