"""What to record next to look closer at the first divergence."""

from __future__ import annotations

import re
from typing import Any

from mindrlhf_msprobe.comparison.judged import ONE_SIDED, JudgedStep, is_filtered
from mindrlhf_msprobe.comparison.pairing import Pair
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.findings import Finding, Status
from mindrlhf_msprobe.phases import UNNAMED_PHASE, phase_table
from mindrlhf_msprobe.storage.reader import Run
from mindrlhf_msprobe.storage.records import cell_name


def next_step(
    step: JudgedStep, index: int, origin: str | None, runs: tuple[Run, Run]
) -> dict[str, Any] | None:
    """Return the settings that record the place of the divergence more closely.

    A section msprobe_config, or where PrecisionDebugger recorded what its config.json says.

    None where recording more would tell no more: something is missing, the elements are at hand,
    or the cells before key data were recorded already.
    """
    pair, finding = step.judged[index]
    assert finding is not None
    config = runs[0].config(finding.rank)
    table = config.phase_table() if config else phase_table({})
    phase = table.get(finding.phase or "")
    if phase is None or finding.status in (*ONE_SIDED, Status.UNREADABLE):
        return None
    if finding.key in ("prompt", "prompts"):  # nothing of the step has run yet
        return None
    if phase.name == UNNAMED_PHASE:
        return _for_debugger(pair, finding, origin, config)
    section: dict[str, Any] = {"msprobe": True}
    if config and config.phases:
        section["phases"] = dict(config.phases)
    if config and config.initial_step:
        section["initial_step"] = config.initial_step
    if phase.switch is not None:
        section[phase.switch] = True
    section.update(step_start=finding.step, step_end=finding.step)
    if phase.counts_tokens:
        section["token_range_end"] = _last_token(pair, finding)
    recorded = {p.entry.phase for p, f in step.judged if f is not None and p.entry}
    if pair.entry is None:
        return None if phase.name in recorded and not phase.counts_tokens else section
    if is_filtered(runs):  # the culprit may be a cell that was left out
        return section
    if config is not None and config.task == "tensor":
        return None
    section["task"] = "tensor"
    cell = cell_name(origin) if origin else pair.entry.cell
    if cell != "root":
        section["include"] = [f"^{re.escape(cell)}(\\.|$)"]
    return section


def _for_debugger(
    pair: Pair, finding: Finding, origin: str | None, config: ProbeConfig | None
) -> dict[str, Any] | None:
    if pair.entry is None or config is None or config.task == "tensor":
        return None
    cell = cell_name(origin) if origin else pair.entry.cell
    wanted = [f"Cell.{cell}."] if cell != "root" and not config.entries else []
    return {"task": "tensor", "level": "L0", "step": [finding.step], "tensor": {"list": wanted}}


def _last_token(pair: Pair, finding: Finding) -> int:
    """Return the last token whose layers may hold the origin.

    For texts and tokens, the length along the last axis, because the place of the first
    difference says where in the batch it lies, not which pass made it.
    """
    if pair.entry is not None:
        return pair.entry.token or 0
    lengths = [side.shape[-1] for side in (finding.a, finding.b) if side.shape]
    return max(lengths, default=0)
