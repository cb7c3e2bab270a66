"""What to record next to look closer at a finding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.config import phases_of, section_of
from mindrlhf_msprobe.phases import UNNAMED_PHASE
from mindrlhf_msprobe.storage.manifest import step_spans
from mindrlhf_msprobe.storage.place import Place, StepPlace
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import is_optimizer_state


def next_recording(
    run: Run,
    place: Place,
    *,
    phases: tuple[str, ...] = (),
    cell: str | None = None,
    elements: bool = False,
    first: int | None = None,
    also: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Return an msprobe_config section that records a place more closely.

    Args:
        phases: those to record; (): the place's own.
        cell: this cell and what lies in it alone.
        elements: with full tensors (`task: tensor`) instead of statistics.
        first: the first step; None: the place's.
        also: settings without which a run did not record so.

    None where no phase is known, PrecisionDebugger recorded the run, the run itself was recorded so
    already, or a tool wrote it that records no cells.
    """
    if not run.dialect.records_cells:
        return None
    rank = place.rank or 0
    config = run.config(rank)
    table = phases_of(config)
    names = phases or (place.phase or UNNAMED_PHASE,)
    known = [table[name] for name in names if name in table and name != UNNAMED_PHASE]
    if not known:
        return None
    start = place.step if first is None else first
    section = section_of(config, known, start, place.step)
    section |= also or {}
    if elements:
        section["task"] = "tensor"
    if cell is not None and is_optimizer_state(cell):
        section["optimizer_state"] = True
    elif cell not in (None, "root"):
        section["include"] = [f"^{re.escape(cell)}($|\\.)"]
    if len(run.ranks) > 1 and place.rank is not None:
        section["ranks"] = [place.rank]
    if any(run.is_thinned(kind, StepPlace(place.step, rank)) for kind in step_spans.THINNED_KINDS):
        return section
    if config is None or any(getattr(config, k) != to for k, to in (also or {}).items()):
        return section
    # Whether the run itself was recorded so.
    whole = not (config.include or config.exclude or config.ranks)
    whole = whole and (section.get("task") != "tensor" or config.task == "tensor")
    covers = range(section["step_start"], section["step_end"] + 1)
    whole = whole and all(map(config.records_phase, known))
    return None if whole and all(map(config.records_step, covers)) else section


#: How what enters an optimizer, and what it keeps, is recorded: gradients as they are after they
#: were added up, reduced, unscaled and clipped, and the state that the update left.
AT_OPTIMIZER = {"key_data_dump": True, "task": "grad_probe", "optimizer_state": True}
#: How parameters are recorded so that networks can be told apart by them.
PARAMETERS = {"key_data_dump": True, "parameters": True, "fingerprint": True}
