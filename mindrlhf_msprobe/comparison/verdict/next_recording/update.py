"""What to record next where the update before the first divergence has to be known."""

from __future__ import annotations

from typing import Any

from mindrlhf_msprobe.config import ProbeConfig, section_of
from mindrlhf_msprobe.findings import Culprit, CulpritCode, Finding
from mindrlhf_msprobe.phases import phase_table

#: What is decided: a further recording would tell no more.
DECIDED = frozenset(
    {
        CulpritCode.OPTIMIZER,
        CulpritCode.BEFORE_OPTIMIZER,
        CulpritCode.NOT_SYNCHRONISED,
        CulpritCode.SYNCHRONISATION,
        CulpritCode.FOLLOWS_TRAINED,
        CulpritCode.CHANGED_BETWEEN,
        CulpritCode.SAMPLING,
        CulpritCode.LOSS,
        CulpritCode.SCHEDULE,
    }
)
_BY_THE_UPDATE = frozenset(
    {
        CulpritCode.GRADIENTS_NOT_RECORDED,
        CulpritCode.UPDATE_NOT_RECORDED,
        CulpritCode.OPTIMIZER_OR_SYNCHRONISATION,
        CulpritCode.NOT_MOVED,
    }
)


def next_update(
    culprit: Culprit, finding: Finding, config: ProbeConfig | None
) -> dict[str, Any] | None:
    """Return the settings that record the update before a parameter that differs, and its phase.

    From the update's step to that of the parameter, with gradients: statistics and fingerprints
    are enough to tell. None where something else is asked for, or a run of these settings would
    have recorded it already.
    """
    if culprit.code not in _BY_THE_UPDATE or culprit.details.get("trained_agrees"):
        return None
    table = config.phase_table() if config else phase_table({})
    names = (finding.phase, culprit.details.get("trained") or culprit.details["phase"])
    phases = [phase for name in names if (phase := table.get(name or "")) is not None]
    first, last = culprit.details["step"], finding.step
    if config is not None and culprit.code is not CulpritCode.GRADIENTS_NOT_RECORDED:
        on = all(config.records_phase(phase) for phase in phases)
        if on and all(config.records_step(step) for step in range(first, last + 1)):
            return None
    return section_of(config, phases, first, last)


def with_phases(
    culprit: Culprit | None, settings: dict[str, Any] | None, config: ProbeConfig | None
) -> dict[str, Any] | None:
    """Return settings that also record the phases without which the culprit is not known."""
    if settings is None or culprit is None or "msprobe" not in settings:
        return settings
    table = config.phase_table() if config else phase_table({})
    phases = [table[name] for name in culprit.details.get("record", ()) if name in table]
    return settings | {phase.switch: True for phase in phases if phase.switch is not None}
