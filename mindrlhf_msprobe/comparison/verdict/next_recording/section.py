"""The section msprobe_config that records whole phases of some steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.phases import Phase


def section_of(
    config: ProbeConfig | None, phases: Iterable[Phase], first: int, last: int
) -> dict[str, Any]:
    """Return the settings that record phases in the steps `first` to `last`, inclusive.

    The trainer's own phases and the number of its first step are taken from `config`.
    """
    section: dict[str, Any] = {"msprobe": True}
    if config and config.phases:
        section["phases"] = dict(config.phases)
    if config and config.initial_step:
        section["initial_step"] = config.initial_step
    section.update({phase.switch: True for phase in phases if phase.switch is not None})
    return section | {"step_start": first, "step_end": last}
