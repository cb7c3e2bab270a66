"""How much room the next recording takes: from what was recorded, else from the networks' cells."""

from __future__ import annotations

from typing import Any

from mindrlhf_msprobe.comparison.pairing.networks import cells_of
from mindrlhf_msprobe.comparison.pairing.timeline import DATA
from mindrlhf_msprobe.comparison.verdict.first_difference import (
    FirstDifference,
    StepFindings,
    is_filtered,
)
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.errors import ConfigError, RunError
from mindrlhf_msprobe.findings import Divergence, Finding
from mindrlhf_msprobe.phases import UPDATE_PHASES, Phase, key_data_home
from mindrlhf_msprobe.storage.reading.holdings.estimate import size_at
from mindrlhf_msprobe.storage.reading.reader import Run

#: Of statistics, in bytes: one entry in the journal and in dump.json; the call stack of a cell.
#: Decoders that were recorded on CPU took 2.0 to 2.7 KB an entry, and 1 to 2 KB a stack.
_ENTRY, _STACK = 2200, 2000
_ENTRIES_OF_A_CALL = 2.5  # of a cell that is trained: forward, backward, some gradients


def size_of(
    settings: dict[str, Any] | None, place: Finding | Divergence, runs: tuple[Run, Run]
) -> int | None:
    """Return how many bytes a recording with these settings takes, None where that is not known.

    Of one step, of one rank; from what the first run recorded there, whatever its task.
    """
    if is_filtered(runs) or (wanted := _config(settings)) is None:
        return None
    if wanted.records_operators and not _has_operators(runs[0], place.rank):
        return None
    try:
        phases = [phase.name for phase in _phases(wanted)]
        return size_at(runs[0], wanted, place.step, place.rank, phases)
    except (OSError, RunError):
        return None


def size_of_next(
    settings: dict[str, Any] | None, first: FirstDifference
) -> tuple[int | None, bool]:
    """Return how many bytes a recording with these settings takes, and whether that is estimated.

    From what was recorded, else from the cells of the networks; None where that is not known.
    """
    exact = size_of(settings, first.finding, first.runs)
    about = _estimated_size(settings, first) if exact is None else None
    return (exact, False) if about is None else (about, True)


def _estimated_size(settings: dict[str, Any] | None, first: FirstDifference) -> int | None:
    """Return about how many bytes statistics with these settings take, of one step and rank.

    From the cells of the networks in run.json, and from how often the step went through each phase.
    None where the networks were not recorded, or elements are asked for, whose sizes they do not
    tell.
    """
    wanted = _config(settings)
    if wanted is None or wanted.task == "tensor" or wanted.records_operators:
        return None
    total = 0
    for phase in _phases(wanted):
        if not cells_of(first.runs[0], phase.role):
            return None
        cells = [
            c for c in cells_of(first.runs[0], phase.role, phase.name) if wanted.records_cell(c)
        ]
        trained = phase.name in UPDATE_PHASES and "backward" in wanted.directions
        each = _ENTRIES_OF_A_CALL if trained else 1
        total += int(len(cells) * (_STACK + _ENTRY * each * _passes(first.step, phase, wanted)))
    return total or None


def _has_operators(run: Run, rank: int) -> bool:
    config = run.config(rank)
    return config is not None and config.records_operators


def _config(settings: dict[str, Any] | None) -> ProbeConfig | None:
    if settings is None or "msprobe" not in settings:
        return None
    try:
        return ProbeConfig(**settings)
    except (ConfigError, TypeError):
        return None


def _phases(wanted: ProbeConfig) -> list[Phase]:
    return [phase for phase in wanted.phase_table().values() if wanted.records_phase(phase)]


def _passes(step: StepFindings, phase: Phase, wanted: ProbeConfig) -> int:
    """Return how often the network ran in a phase of the step, as far as its key data tell."""
    keys = [pair.event for pair, _ in step.pairs if pair.event.kind == DATA]
    homes = [(event, key_data_home(event.name)) for event in keys]
    saves = (event.micro_step + 1 for event, home in homes if home and home.phase == phase.name)
    passes = max(saves, default=1)
    if phase.counts_tokens:
        passes *= wanted.token_range_end - wanted.token_range_start + 1
    return passes
