"""What a run was configured not to record: absent by choice, not by divergence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.comparison.judging.non_finite import holds_non_finite
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, Record

_BACKWARD = ("backward", PARAMETERS_GRAD)


def why_no_key_data(
    config: ProbeConfig | None, coverage: Mapping[str, Any], key: str, step: int, rank: int
) -> str | None:
    """Return why a run holds no data of a key in a step of a rank, or None if it should.

    Args:
        coverage: what the run says it could not record.
    """
    left_out = coverage.get("key_data")
    if isinstance(left_out, Mapping) and key in left_out:
        return f"{key} not recorded: {left_out[key]}"
    if config is None:
        return None
    if not config.key_data_dump:
        return "key data not recorded (key_data_dump: false)"
    return _why_not_step(config, step) or _why_not_rank(config, rank)


def without_recorded(coverage: Mapping[str, Any], entries: Sequence[Entry]) -> Mapping[str, Any]:
    """Return what a run says it could not record, without what it recorded all the same."""
    if any(entry.direction in _BACKWARD for entry in entries):
        return {what: why for what, why in coverage.items() if what != "backward"}
    return coverage


def why_not_compiled(
    config: ProbeConfig | None, coverage: Mapping[str, Any], entry: Entry
) -> str | None:
    """Return why something of an entry's cell could not be recorded, the cell being compiled.

    Args:
        coverage: what the run says it could not record in its mode.
    """
    roles = coverage.get("graph_mode")
    if not isinstance(roles, Mapping):
        return None
    phase = config.phase_table().get(entry.phase) if config is not None else None
    wanted = [entry.cell]
    if entry.direction == PARAMETERS_GRAD:
        wanted.append(PARAMETERS_GRAD)
    for role, cells in roles.items():
        if isinstance(cells, Mapping) and (phase is None or phase.role == role):
            for name in wanted:
                if name in cells:
                    return f"not recorded in graph mode: {cells[name]}"
    return None


def why_no_entry(
    config: ProbeConfig | None,
    coverage: Mapping[str, Any],
    entry: Entry,
    other: ProbeConfig | None = None,
) -> str | None:
    """Return why a run does not hold `entry`, or None if it should.

    Args:
        coverage: what the run says it could not record in its mode.
        other: the configuration of the run that holds it.
    """
    if (compiled := why_not_compiled(config, coverage, entry)) is not None:
        return compiled
    phases = coverage.get("phases")
    if isinstance(phases, Mapping) and entry.phase in phases:
        return f"{entry.phase} not recorded: {phases[entry.phase]}"
    if entry.direction in _BACKWARD and "backward" in coverage:
        return f"backward {coverage['backward']}"
    if config is None:
        return None
    phase = config.phase_table().get(entry.phase)
    if phase is None:
        return None
    if not config.records_phase(phase):
        return f"{phase.name} not recorded ({phase.switch}: false)"
    if (before := _why_not_step(config, entry.step)) is not None:
        return before
    if config.steps and entry.step not in config.steps:
        return f"step {entry.step} is none of those recorded (steps: {list(config.steps)})"
    if not config.records_step(entry.step):
        return (
            f"step {entry.step} lies outside step_start {config.step_start} … step_end "
            f"{config.step_end}"
        )
    if phase.counts_tokens and entry.token is not None and not config.records_token(entry.token):
        return (
            f"token {entry.token} lies outside token_range_start {config.token_range_start} … "
            f"token_range_end {config.token_range_end}"
        )
    if not config.records_cell(entry.cell):
        return "cells left out by include/exclude"
    if not _records_entry(config, entry):
        return f"entries left out by entries: {list(config.entries)}"
    if config.scope and (other is None or other.scope != config.scope):
        return f"entries may lie outside scope {config.scope[0]} … {config.scope[1]}"
    direction = "forward" if entry.direction == "forward" else "backward"
    if direction not in config.directions:
        return f"{direction} not recorded (directions: {list(config.directions)})"
    return _why_not_rank(config, entry.rank)


def why_not_by_msprobe(entry: Entry | None, record: Record) -> str | None:
    """Return why msprobe records no such value of an entry, or None if it should."""
    if entry is not None and entry.direction == "backward" and record.leaf.type == "NoneType":
        return "msprobe records no gradient that is None"
    return None


def why_never_by_msprobe(key: str, keys: Collection[str]) -> str | None:
    """Return why a run of msprobe's holds no data of a key, or None if it should.

    It saves what a trainer hands it by name; this package takes more from the trainer itself.

    Args:
        keys: what that run holds, in any step.
    """
    return None if key in keys else "key data that msprobe saved in no step of the other run"


def why_no_gradient(sides: Sequence[Entry | None], a: Record, b: Record) -> str | None:
    """Return why two records hold no gradients to compare, or None if they do.

    Beside NaN or infinity a gradient that is the difference of two cannot be known, and is None.
    """
    if not all(entry is not None and entry.direction in _BACKWARDS for entry in sides):
        return None
    nones = [record.leaf for record in (a, b) if record.leaf.type == "NoneType"]
    unknown = any(leaf.opaque for leaf in nones)
    if len(nones) == 1:  # a run of before it was said which ones cannot be known
        found = (record.leaf for entry in sides if entry is not None for record in entry.records)
        unknown = unknown or any(map(holds_non_finite, found))
    return "gradients that cannot be known beside NaN or infinity" if unknown else None


def why_no_part(config: ProbeConfig | None, io: str) -> str | None:
    """Return why a run's entries hold nothing of a part, or None if they should.

    Args:
        io: what the part is called in the names of its records.
    """
    if config is None:
        return None
    if io == "parameters" and not config.parameters:
        return "parameters not recorded (parameters: false)"
    part = {"input": "input", "output": "output", "parameters": "output"}.get(io)
    if part is not None and part not in config.parts:
        return f"{io} not recorded (parts: {list(config.parts)})"
    return None


_BACKWARDS = ("backward", PARAMETERS_GRAD)


def _records_entry(config: ProbeConfig, entry: Entry) -> bool:
    """Tell whether an entry passes `entries`; a cell's parameter gradients follow its backward."""
    if entry.direction == PARAMETERS_GRAD:
        head, _, number = entry.name.rpartition(f".{PARAMETERS_GRAD}.")
        if config.records_entry(f"{head}.backward.{number}"):
            return True
    return config.records_entry(entry.name)


def _why_not_step(config: ProbeConfig, step: int) -> str | None:
    if step >= config.initial_step:
        return None
    return f"the run began at step {config.initial_step} (initial_step)"


def _why_not_rank(config: ProbeConfig, rank: int) -> str | None:
    if config.records_rank(rank):
        return None
    return f"rank {rank} not recorded (ranks: {list(config.ranks)})"
