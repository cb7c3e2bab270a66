"""What a run was configured not to record: absent by choice, not by divergence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.judging.suspicion import holds_non_finite
from mindrlhf_msprobe.comparison.pairing.names import ROOT
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.phases import ROLLOUT_CORR, Phase
from mindrlhf_msprobe.storage.manifest import step_spans
from mindrlhf_msprobe.storage.manifest.coverage import (
    CASTS_INPUTS,
    GRAPH_MODE,
    KEY_DATA,
    OPTIMIZERS,
    PHASES,
    reasons_of,
)
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, Record, is_optimizer_state

#: What of a step `keep_mb` has removed: kind → reason.
THINNED = "thinned"

_BACKWARD = ("backward", PARAMETERS_GRAD)
#: Of a compiled cell: its operators are run by the graph; it says nothing of the cell itself.
_OPERATORS = "coverage.operators_in_graph"


def why_no_key_data(
    config: ProbeConfig | None, coverage: Mapping[str, Any], key: str, step: int, rank: int
) -> Message | None:
    """Return why a run holds no data of a key in a step of a rank, or None if it should.

    Args:
        coverage: what the run says it could not record.
    """
    if key == ROLLOUT_CORR:
        return message("coverage.key_follows", key=key)
    if reasons := reasons_of(coverage, KEY_DATA, key):
        return message("coverage.left_out", what=key, why=reasons)
    removed = _why_removed(coverage, step_spans.KEY_DATA)
    if config is None:
        return removed
    if not config.key_data_dump:
        return message("coverage.key_data_off")
    return _why_not_step(config, step) or _why_not_rank(config, rank) or removed


def why_not_compiled(
    config: ProbeConfig | None, coverage: Mapping[str, Any], entry: Entry
) -> Message | None:
    """Return why something of an entry's cell could not be recorded, the cell being compiled.

    Args:
        coverage: what the run says it could not record in its mode.
    """
    roles = coverage.get(GRAPH_MODE)
    if not isinstance(roles, Mapping):
        return None
    phase = config.phase_table().get(entry.phase) if config is not None else None
    of_operator = is_operator(entry.name)
    wanted = [entry.around or ROOT] if of_operator else [entry.cell]
    if entry.direction == PARAMETERS_GRAD:
        wanted.append(PARAMETERS_GRAD)
    for role in roles:
        if phase is None or phase.role == role:
            for name in wanted:
                reasons = tuple(
                    why
                    for why in reasons_of(roles, role, name)
                    if of_operator == (why.code == _OPERATORS)
                )
                if reasons:
                    return message("coverage.graph_mode", why=reasons)
    return None


def casts_inputs(gap: Message | None) -> bool:
    """Return whether a cell's inputs are recorded in the dtype to which they were cast."""
    reasons = gap.params.get("why", ()) if gap is not None else ()
    return any(why.code == CASTS_INPUTS for why in reasons)


def why_no_entry(
    config: ProbeConfig | None,
    coverage: Mapping[str, Any],
    entry: Entry,
    other: ProbeConfig | None = None,
) -> Message | None:
    """Return why a run does not hold `entry`, or None if it should.

    Args:
        coverage: what the run says it could not record in its mode.
        other: the configuration of the run that holds it.
    """
    if (compiled := why_not_compiled(config, coverage, entry)) is not None:
        return compiled
    if reasons := reasons_of(coverage, PHASES, entry.phase):
        return message("coverage.left_out", what=entry.phase, why=reasons)
    removed = _why_removed(coverage, step_spans.LAYERS)
    phase = config.phase_table().get(entry.phase) if config is not None else None
    if config is None or phase is None:
        return removed
    if not config.records_phase(phase):
        return message("coverage.phase_off", phase=phase.name, switch=phase.switch)
    if is_optimizer_state(entry.cell):
        if not config.optimizer_state:
            return message("coverage.optimizer_state_off")
        unknown = next(iter(reasons_of(coverage, OPTIMIZERS, phase.role)), None)
        not_then = unknown or _why_not_time(config, phase, entry)
        return not_then or _why_not_rank(config, entry.rank) or removed
    return (
        _why_not_time(config, phase, entry)
        or _why_not_chosen(config, entry, other)
        or _why_not_rank(config, entry.rank)
        or removed
    )


def _why_removed(coverage: Mapping[str, Any], kind: str) -> Message | None:
    """Return why nothing of a kind is left of a step, if `keep_mb` has removed it."""
    return next(iter(reasons_of(coverage, THINNED, kind)), None)


def _why_not_time(config: ProbeConfig, phase: Phase, entry: Entry) -> Message | None:
    """Return why an entry's step or token is not recorded, or None if it is."""
    if (before := _why_not_step(config, entry.step)) is not None:
        return before
    if config.steps and entry.step not in config.steps:
        return message("coverage.step_not_chosen", step=entry.step, steps=list(config.steps))
    if config.step_start <= entry.step <= config.step_end and not config.records_step(entry.step):
        chosen = {"interval": config.step_interval, "first": config.step_start}
        return message("coverage.step_interval", **chosen)
    if not config.records_step(entry.step):
        limits = {"first": config.step_start, "last": config.step_end}
        return message("coverage.step_outside", step=entry.step, **limits)
    if phase.counts_tokens and entry.token is not None and not config.records_token(entry.token):
        limits = {"first": config.token_range_start, "last": config.token_range_end}
        return message("coverage.token_outside", token=entry.token, **limits)
    return None


def _why_not_chosen(config: ProbeConfig, entry: Entry, other: ProbeConfig | None) -> Message | None:
    """Return why an entry is not among the chosen cells, entries and directions; None if it is.

    Args:
        other: the configuration of the run that holds it.
    """
    cell = entry.around if is_operator(entry.name) else entry.cell
    if cell is None:  # around an operator, and not known: it may be one that was left out
        is_chosen = not (config.include or config.exclude)
    else:
        is_chosen = config.records_cell(cell)
    if not is_chosen:
        return message("coverage.cells_left_out")
    named = [entry.name]
    if entry.direction == PARAMETERS_GRAD:  # they follow the backward entry
        head, _, number = entry.name.rpartition(f".{PARAMETERS_GRAD}.")
        named.append(f"{head}.backward.{number}")
    if not any(map(config.records_entry, named)):
        return message("coverage.entries_left_out", entries=list(config.entries))
    if config.scope and (other is None or other.scope != config.scope):
        first, last = config.scope[0], config.scope[1]
        return message("coverage.outside_scope", first=first, last=last)
    direction = "forward" if entry.direction == "forward" else "backward"
    if direction not in config.directions:
        chosen = list(config.directions)
        return message("coverage.direction_off", direction=direction, directions=chosen)
    return None


def why_no_level(
    config: ProbeConfig | None, entry: Entry, held: Collection[bool]
) -> Message | None:
    """Return why a run holds no operators, or no cells, of a phase; None if it should.

    Args:
        held: whether what it does hold of the phase are operators. Without a configuration that
            tells, a phase with operators alone, or cells alone, was recorded so.
    """
    of_operator = is_operator(entry.name)
    code = "coverage.no_operators" if of_operator else "coverage.no_cells"
    if config is not None:
        recorded = config.records_operators if of_operator else config.records_cells
        return None if recorded else message(code)
    return message(code) if {*held} == {not of_operator} else None


def why_no_gradient(sides: Sequence[Entry | None], a: Record, b: Record) -> Message | None:
    """Return why two records hold no gradients to compare, or None if they do.

    Beside NaN or infinity a gradient that is the difference of two cannot be known, and is None.
    """
    if not all(entry is not None and entry.direction in _BACKWARD for entry in sides):
        return None
    nones = [record.leaf for record in (a, b) if record.leaf.type == "NoneType"]
    unknown = any(leaf.opaque for leaf in nones)
    if len(nones) == 1:  # not every tool says which ones cannot be known
        found = (record.leaf for entry in sides if entry is not None for record in entry.records)
        unknown = unknown or any(map(holds_non_finite, found))
    return message("coverage.gradients_beside_nan") if unknown else None


def why_no_part(config: ProbeConfig | None, io: str) -> Message | None:
    """Return why a run's entries hold nothing of a part, or None if they should.

    Args:
        io: what the part is called in the names of its records.
    """
    if config is None:
        return None
    if io == "parameters" and not config.parameters:
        return message("coverage.parameters_off")
    part = {"input": "input", "output": "output", "parameters": "output"}.get(io)
    if part is not None and part not in config.parts:
        return message("coverage.part_off", part=io, parts=list(config.parts))
    return None


def _why_not_step(config: ProbeConfig, step: int) -> Message | None:
    if step >= config.initial_step:
        return None
    return message("coverage.before_start", step=config.initial_step)


def _why_not_rank(config: ProbeConfig, rank: int) -> Message | None:
    if config.records_rank(rank):
        return None
    return message("coverage.rank_off", rank=rank, ranks=list(config.ranks))
