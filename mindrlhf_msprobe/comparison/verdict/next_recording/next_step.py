"""What to record next to look closer at the first divergence: the least that can decide."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from mindrlhf_msprobe.comparison.pairing.names import ROOT
from mindrlhf_msprobe.comparison.pairing.networks import all_inside_recorded
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.comparison.pairing.timeline import BEGIN, END
from mindrlhf_msprobe.comparison.verdict.first_difference import (
    ONE_SIDED,
    FirstDifference,
    StepFindings,
)
from mindrlhf_msprobe.comparison.verdict.operators import cell_of
from mindrlhf_msprobe.config import section_of
from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.phases import PROMPTS, UNNAMED_PHASE, phase_table
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.records import Entry, cell_name

_PYNATIVE = "PyNative"  # the mode, in run.json


def next_step(first: FirstDifference, origin: str | None) -> dict[str, Any] | None:
    """Return the settings that record the place of the divergence more closely.

    First the statistics of all cells of one phase and step, which take little; then the elements
    of the one cell that is to blame, of one call and one rank, and of its inputs alone where those
    differ. A section msprobe_config, or where PrecisionDebugger recorded what its config.json says.

    None where recording more would tell no more: something is missing, the elements are at hand,
    or the cells before key data were recorded already.
    """
    finding, config = first.finding, first.config
    phase = (config.phase_table() if config else phase_table({})).get(finding.phase or "")
    lacking = finding.status in (*ONE_SIDED, Status.UNREADABLE)
    if phase is None or lacking or finding.key in PROMPTS:  # nothing of the step ran before these
        return None
    if phase.name == UNNAMED_PHASE:
        return _for_debugger(first, origin)
    section = section_of(config, (phase,), finding.step, finding.step)
    if phase.counts_tokens:
        section["token_range_end"] = _last_token(first)
    if first.entry is None:
        compared = {p.entry.phase for p, f in first.pairs if f is not None and p.entry}
        known = phase.name in compared and not phase.counts_tokens  # all tokens never are recorded
        return None if known else section
    return _closer(section, first, first.entry, origin)


def _closer(
    section: dict[str, Any], first: FirstDifference, entry: Entry, origin: str | None
) -> dict[str, Any] | None:
    """Return a phase's section, or that of the one cell where that is known; None if recorded."""
    config = first.config
    if is_operator(origin or entry.name) or is_operator(entry.name):
        return _of_operator(section, first, entry, origin)
    first_token = 0 if config is None else config.token_range_start
    if _is_at_input(first) and 0 < first_token == entry.token:  # an earlier token may differ
        return section
    elements = config is not None and config.task == "tensor"
    if _is_cell_known(first, entry, origin):
        if elements:
            return _operators_in(section, first, entry, origin)
        return section | _elements(first, entry, origin)
    # The culprit may be a cell that was left out: not where a cell was given the same, nor
    # where no cell is around it that could come before.
    blamed = first.event.kind == END or origin not in (None, entry.name)
    return None if elements and (blamed or entry.cell == ROOT) else section


def _of_operator(
    section: dict[str, Any], first: FirstDifference, entry: Entry, origin: str | None
) -> dict[str, Any] | None:
    """Return a section that records the elements of an operator; None where they are at hand.

    Of all its calls inside its cell: their numbers are others where other cells are recorded.
    """
    config, cell = first.config, cell_of(first, origin or entry.name)
    if config is None or config.task == "tensor":
        return None
    wanted = section | {"task": "tensor", "level": config.level}
    if cell is not None:
        wanted["include"] = [f"^{re.escape(cell)}$"]
    if is_operator(origin or entry.name):
        wanted["entries"] = [f"{cell_name(origin or entry.name)}."]
    return wanted


def _operators_in(
    section: dict[str, Any], first: FirstDifference, entry: Entry, origin: str | None
) -> dict[str, Any] | None:
    """Return a section that records the operators in the cell that computed otherwise.

    None where they were recorded, where Python does not run them, and where what the cell was given
    or holds is to blame.
    """
    config, of_cell = first.config, ("forward", "backward")
    computed = first.event.kind == END and entry.direction in of_cell
    if config is None or config.level != "L0" or not (computed and _runs_in_python(first)):
        return None
    wanted = _elements(first, entry, origin) | {"level": "mix"}
    wanted.pop("entries", None)  # they are parts of names of cells
    patterns = [pattern.replace("(\\.|$)", "$") for pattern in wanted["include"]]
    return section | wanted | {"include": patterns}


def _runs_in_python(first: FirstDifference) -> bool:
    """Return whether both runs are known to be PyNative: in a graph no operator is an entry."""
    files = [file for run in first.runs for file in run.run_files]
    return all((file.device or {}).get("mode") == _PYNATIVE for file in files)


def _is_at_input(first: FirstDifference) -> bool:
    return first.event.kind == BEGIN and first.finding.io == "input"


def _is_cell_known(first: FirstDifference, entry: Entry, origin: str | None) -> bool:
    """Return whether no cell that was left out of the recording can be the one to blame."""
    finding, earlier = first.finding, first.step.earlier
    if not first.filtered or (earlier is not None and earlier.knows(finding, origin)):
        return True
    # What a cell was given agrees, and all cells inside it were recorded: it is this one.
    return first.event.kind == END and all_inside_recorded(
        first.runs, finding.rank, finding.phase or "", cell_name(origin or entry.name)
    )


def _elements(first: FirstDifference, entry: Entry, origin: str | None) -> dict[str, Any]:
    """Return what is added to a section to record the elements of the cell that is to blame."""
    a, b = first.runs
    cells = [cell_name(origin) if origin else entry.cell]
    only_inputs = _is_at_input(first)
    if only_inputs and entry.cell not in cells:  # handed on by the container's own code
        cells.append(entry.cell)
    wanted: dict[str, Any] = {"task": "tensor"}
    if phase_table({}).get(entry.phase) and entry.token:
        wanted["token_range_start"] = entry.token
    if len(a.ranks) > 1 and set(a.ranks) == set(b.ranks):
        wanted["ranks"] = [first.finding.rank]
    wanted["include"] = _patterns(first.step, entry.phase, cells)
    switched = _entries_of(first.step, _switched_with(entry.phase))
    of_cells = [other for other in switched if other.cell in cells]
    if directions := _directions(entry, of_cells, only_inputs):
        wanted["directions"] = directions
    if calls := _calls(first.pair, entry, origin, of_cells):
        wanted["entries"] = calls
    if only_inputs:
        wanted["parts"] = ["input"]
    return wanted


def _entries_of(step: StepFindings, phases: Collection[str]) -> list[Entry]:
    return [pair.entry for pair, _ in step.pairs if pair.entry and pair.entry.phase in phases]


def _switched_with(phase: str) -> set[str]:
    """Return the phases that one switch turns on together, which all hold the cell."""
    table = phase_table({})
    switch = table[phase].switch if phase in table else None
    return {phase, *(name for name, other in table.items() if switch and other.switch == switch)}


def _directions(entry: Entry, entries: Sequence[Entry], only_inputs: bool) -> list[str]:
    """Return the one direction that need be recorded; [] where both are, or there is one alone."""
    if entry.direction == "forward":
        return ["forward"] if any(other.direction != "forward" for other in entries) else []
    return ["backward"] if only_inputs and entry.direction == "backward" else []


def _patterns(step: StepFindings, phase: str, cells: Sequence[str]) -> list[str]:
    """Return patterns for cells of A, and for what B calls them where that is otherwise."""
    found: dict[str, None] = {}
    entries = _entries_of(step, [phase])
    for cell in cells:
        container = any(e.cell.startswith(f"{cell}.") for e in entries)
        found[_pattern(cell, container)] = None
        for pair, _ in step.pairs:
            entry = pair.entry
            if entry is None or pair.b is None or (entry.phase, entry.cell) != (phase, cell):
                continue
            name = pair.b.name.rpartition(f".{pair.b.io}.")[0]
            if (other := cell_name(name)) != name:  # it is the name of an entry
                found[_pattern(other, container)] = None
    return list(found)


def _pattern(cell: str, container: bool) -> str:
    """Return a pattern for a cell; not for what lies inside it, where that is known to agree."""
    alone = container or cell == ROOT
    return f"^{re.escape(cell)}$" if alone else f"^{re.escape(cell)}(\\.|$)"


def _calls(pair: Pair, entry: Entry, origin: str | None, entries: Sequence[Entry]) -> list[str]:
    """Return what only the names of the calls to be recorded have; [] where there are no others."""
    if entry.direction not in ("forward", "backward") or entry.token is not None:
        return []
    if not any(other.call for other in entries):
        return []
    names = {entry.name, origin or entry.name}
    names |= {r.name.rpartition(f".{r.io}.")[0] for r in (pair.a, pair.b) if r is not None}
    calls = sorted({int(call) for name in names if (call := name.rpartition(".")[2]).isdigit()})
    directions = ["forward"] if entry.direction == "forward" else ["forward", "backward"]
    return [f".{direction}.{call}" for direction in directions for call in calls]


def _for_debugger(first: FirstDifference, origin: str | None) -> dict[str, Any] | None:
    entry, config = first.entry, first.config
    if entry is None or config is None or config.task == "tensor":
        return None
    cell = cell_name(origin) if origin else entry.cell
    if is_operator(origin or entry.name):
        wanted = [] if config.entries else [f"{cell}."]
        return {
            **{"task": "tensor", "level": config.level},
            **{"step": [first.finding.step], "tensor": {"list": wanted}},
        }
    wanted = [f"Cell.{cell}."] if cell != "root" and not config.entries else []
    return {
        "task": "tensor",
        "level": "L0",
        "step": [first.finding.step],
        "tensor": {"list": wanted},
    }


def _last_token(first: FirstDifference) -> int:
    """Return the last token whose layers may hold the origin.

    For texts and tokens, the length along the last axis, because the place of the first
    difference says where in the batch it lies, not which pass made it.
    """
    if first.entry is not None:
        return first.entry.token or 0
    sides = first.finding.a, first.finding.b
    lengths = [side.shape[-1] for side in sides if side.shape]
    return max(lengths, default=0)
