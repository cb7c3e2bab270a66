"""What to record next to look closer at the first divergence: the least that can decide.

How much room it takes is told from what was recorded, else from the networks' cells; where all
cells take too much, the outputs of some layers come first.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from mindrlhf_msprobe.comparison.pairing.frameworks.records import of_pytorch
from mindrlhf_msprobe.comparison.pairing.names import ROOT
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.comparison.pairing.timeline import BEGIN, DATA, END
from mindrlhf_msprobe.comparison.preflight.networks import all_inside_recorded, cells_of, role_of
from mindrlhf_msprobe.comparison.verdict.first_difference import (
    ONE_SIDED,
    FirstDifference,
    StepFindings,
    is_filtered,
    of_entries,
    of_saves,
)
from mindrlhf_msprobe.comparison.verdict.occasion import cell_of
from mindrlhf_msprobe.config import ProbeConfig, section_of
from mindrlhf_msprobe.errors import ConfigError, RunError
from mindrlhf_msprobe.findings import Culprit, CulpritCode, Divergence, Finding, Status
from mindrlhf_msprobe.phases import (
    PROMPTS,
    UNNAMED_PHASE,
    UPDATE_PHASES,
    Phase,
    key_data_home,
    phase_table,
)
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.reading.estimate import size_at
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Entry, cell_name

_PYNATIVE = "PyNative"  # the mode, in run.json


def next_step(first: FirstDifference, origin: str | None) -> dict[str, Any] | None:
    """Return the settings that record the place of the divergence more closely.

    First the statistics of all cells of one phase and step, which take little; then the elements
    of the one cell that is to blame, of one call and one rank, and of its inputs alone where those
    differ. A section msprobe_config, or where PrecisionDebugger recorded what its config.json says.

    None where recording more would tell no more: something is missing, the elements are at hand,
    or the cells before key data were recorded already; and where a tool wrote the run that records
    no cells, or a trainer of PyTorch was recorded.
    """
    finding, config = first.finding, first.config
    phase = first.table.get(finding.phase or "")
    lacking = finding.status in (*ONE_SIDED, Status.UNREADABLE)
    if phase is None or lacking or not first.may_hold_cells:
        return None
    if of_pytorch(pair.entry for pair, _ in first.pairs if pair.entry is not None):
        return None
    if finding.key in PROMPTS:  # nothing of the step ran before these
        return None
    if phase.name == UNNAMED_PHASE:
        return _for_debugger(first, origin)
    section = section_of(config, (phase,), finding.step, finding.step)
    if phase.counts_tokens:
        # The last token whose layers may hold the origin. For texts and tokens, the length along
        # the last axis: the first difference says where in the batch it lies, not which pass made
        # it.
        sides = finding.a, finding.b
        last = max((side.shape[-1] for side in sides if side.shape), default=0)
        section["token_range_end"] = last if first.entry is None else first.entry.token or 0
    if first.entry is None:
        # Beside the layers it shows which of the two differs first; it takes kilobytes.
        section = {"msprobe": True, "key_data_dump": True} | section
        compared = {entry.phase for _, f, entry in of_entries(first.pairs) if f is not None}
        known = phase.name in compared and not phase.counts_tokens  # all tokens never are recorded
        return None if known else section
    return _closer(section, first, origin)


def _closer(
    section: dict[str, Any], first: FirstDifference, origin: str | None
) -> dict[str, Any] | None:
    """Return a phase's section, or that of the one cell where that is known; None if recorded."""
    config, entry, finding = first.config, first.called, first.finding
    elements = config is not None and config.task == "tensor"
    if is_operator(origin or entry.name) or is_operator(entry.name):
        # The elements of all its calls inside its cell: their numbers are others where other cells
        # are recorded.
        if config is None or elements:
            return None
        section = section | {"task": "tensor", "level": config.level}
        if (cell := cell_of(first, origin or entry.name)) is not None:
            section["include"] = [f"^{re.escape(cell)}$"]
        if is_operator(origin or entry.name):
            section["entries"] = [f"{cell_name(origin or entry.name)}."]
        return section
    first_token = 0 if config is None else config.token_range_start
    if _is_at_input(first) and 0 < first_token == entry.token:  # an earlier token may differ
        return section
    earlier, name = first.step.earlier, cell_name(origin or entry.name)
    # No cell that was left out can be the one to blame: there is none; or what it was given agrees,
    # and all cells inside it were recorded.
    is_known = not first.filtered or (earlier is not None and earlier.knows(finding, origin))
    is_known = is_known or (
        first.event.kind == END
        and all_inside_recorded(first.runs, finding.rank, finding.phase or "", name)
    )
    if is_known and not elements:
        return section | _elements(first, origin)
    if is_known:
        # The operators in the cell that computed another output: where they were not recorded,
        # where Python runs them (in a graph no operator is an entry), and it was given the same.
        computed = first.event.kind == END and entry.direction in ("forward", "backward")
        devices = [file.device or {} for run in first.runs for file in run.run_files]
        in_python = all(device.get("mode") == _PYNATIVE for device in devices)
        if config is None or config.level != "L0" or not (computed and in_python):
            return None
        wanted = _elements(first, origin) | {"level": "mix"}
        wanted.pop("entries", None)  # they are parts of names of cells
        patterns = [pattern.replace("(\\.|$)", "$") for pattern in wanted["include"]]
        return section | wanted | {"include": patterns}
    # The culprit may be a cell that was left out: not where a cell was given the same, nor
    # where no cell is around it that could come before.
    blamed = first.event.kind == END or origin not in (None, entry.name)
    return None if elements and (blamed or entry.cell == ROOT) else section


def _is_at_input(first: FirstDifference) -> bool:
    return first.event.kind == BEGIN and first.finding.io == "input"


def _elements(first: FirstDifference, origin: str | None) -> dict[str, Any]:
    """Return what is added to a section to record the elements of the cell that is to blame."""
    (a, b), entry = first.runs, first.called
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
    # One switch may turn on several phases, which all hold the cell.
    table = phase_table({})
    switch = table[entry.phase].switch if entry.phase in table else None
    phases = {entry.phase, *(p.name for p in table.values() if switch and p.switch == switch)}
    of_cells = [e for _, _, e in of_entries(first.pairs) if e.phase in phases and e.cell in cells]
    # The one direction that need be recorded, where there are several.
    others = any(other.direction != "forward" for other in of_cells)
    if entry.direction == "forward" and others:
        wanted["directions"] = ["forward"]
    elif entry.direction == "backward" and only_inputs:
        wanted["directions"] = ["backward"]
    if calls := _calls(first.pair, entry, origin, of_cells):
        wanted["entries"] = calls
    if only_inputs:
        wanted["parts"] = ["input"]
    return wanted


def _patterns(step: StepFindings, phase: str, cells: Sequence[str]) -> list[str]:
    """Return patterns for cells of A, and for what B calls them where that is another name."""
    found: dict[str, None] = {}
    of_phase = [*of_entries(step.pairs, phase)]
    for cell in cells:
        container = any(e.cell.startswith(f"{cell}.") for _, _, e in of_phase)
        found[_pattern(cell, container)] = None
        for pair, _, entry in of_phase:
            if pair.b is None or entry.cell != cell:
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
    called = is_operator(origin or entry.name)
    whole = bool(config.entries) or (cell == ROOT and not called)
    wanted = [] if whole else [f"{cell}." if called else f"Cell.{cell}."]
    level = config.level if called else "L0"
    return {
        **{"task": "tensor", "level": level},
        **{"step": [first.finding.step], "tensor": {"list": wanted}},
    }


#: What is decided: a further recording would tell no more.
DECIDED = frozenset(
    {
        CulpritCode.OPTIMIZER,
        CulpritCode.BEFORE_OPTIMIZER,
        CulpritCode.NOT_SYNCHRONISED,
        CulpritCode.SYNCHRONISATION,
        CulpritCode.FOLLOWS_TRAINED,
        CulpritCode.CHANGED_BETWEEN,
        CulpritCode.MOVED,
        CulpritCode.WRITTEN,
        CulpritCode.SAMPLING,
        CulpritCode.LOSS,
        CulpritCode.AGGREGATION,
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


def next_update(culprit: Culprit, first: FirstDifference) -> dict[str, Any] | None:
    """Return the settings that record the update before a parameter that differs, and its phase.

    From the update's step to that of the parameter, with gradients: statistics and fingerprints
    are enough to tell. None where something else is needed, or a run of these settings would
    have recorded it already.
    """
    if culprit.code not in _BY_THE_UPDATE or culprit.details.get("trained_agrees"):
        return None
    config = first.config
    names = (first.finding.phase, culprit.details.get("trained") or culprit.details["phase"])
    phases = [phase for name in names if (phase := first.table.get(name or "")) is not None]
    since, last = culprit.details["step"], first.finding.step
    if config is not None and culprit.code is not CulpritCode.GRADIENTS_NOT_RECORDED:
        on = all(config.records_phase(phase) for phase in phases)
        if on and all(config.records_step(step) for step in range(since, last + 1)):
            return None
    return section_of(config, phases, since, last)


def with_phases(
    culprit: Culprit | None, settings: dict[str, Any] | None, first: FirstDifference
) -> dict[str, Any] | None:
    """Return settings that also record the phases without which the culprit is not known."""
    if settings is None or culprit is None or "msprobe" not in settings:
        return settings
    table = first.table
    phases = [table[name] for name in culprit.details.get("record", ()) if name in table]
    return settings | {phase.switch: True for phase in phases if phase.switch is not None}


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
    recorded = runs[0].config(place.rank)
    if wanted.records_operators and not (recorded and recorded.records_operators):
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
    None where the networks were not recorded, or elements are wanted, whose sizes they do not
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
        total += int(len(cells) * (_STACK + _ENTRY * each * _passes(first, phase, wanted)))
    return total or None


def _config(settings: dict[str, Any] | None) -> ProbeConfig | None:
    if settings is None or "msprobe" not in settings:
        return None
    try:
        return ProbeConfig(**settings)
    except (ConfigError, TypeError):
        return None


def _phases(wanted: ProbeConfig) -> list[Phase]:
    return [phase for phase in wanted.phase_table().values() if wanted.records_phase(phase)]


def _passes(first: FirstDifference, phase: Phase, wanted: ProbeConfig) -> int:
    """Return how often the network ran in a phase of the step, as far as its key data tell."""
    passes = 1
    for pair, _ in of_saves(first.pairs):
        home = key_data_home(pair.event.name)
        if home is not None and home.phase == phase.name:
            passes = max(passes, pair.event.micro_step + 1)
    if phase.counts_tokens:
        passes *= wanted.token_range_end - wanted.token_range_start + 1
    return passes


#: Bytes of one step and rank that a recording may take without being cut into rounds.
BUDGET = 1 << 30


def bisected(settings: dict[str, Any], first: FirstDifference) -> dict[str, Any]:
    """Return settings that take no more than `BUDGET`, as far as layers can be left out.

    First the range of layers that may be to blame: behind the last one that is known to agree, up
    to the one that differs. If all cells of these are too much, the outputs of every n-th layer.
    Settings that take less, choose cells already or want elements are returned as they are.
    """
    chosen = settings.get("include") or settings.get("task", "statistics") != "statistics"
    if chosen or _is_within_budget(settings, first):
        return settings
    finding, run = first.finding, first.runs[0]
    if finding.phase in (None, UNNAMED_PHASE):
        return settings
    cells = cells_of(run, role_of(run, finding.rank, finding.phase or ""))
    layers = _Layers.from_cells(cells)
    if layers is None:
        return settings
    last, differing = layers.between(first) if first.filtered else (None, None)
    narrow = settings | layers.only(last, differing)
    if _is_within_budget(narrow, first):
        return narrow
    backward = first.entry is not None and first.entry.direction != "forward"
    outputs = {"directions": ["backward" if backward else "forward"], "parts": ["output"]}
    numbers = layers.behind(last, differing)
    one, _ = size_of_next(settings | outputs | layers.include(numbers[:1]), first)
    count = max(1, min(len(numbers), BUDGET // (one or BUDGET)))
    spread = [numbers[(i + 1) * len(numbers) // count - 1] for i in range(count)]
    return settings | layers.include(spread) | outputs


def _is_within_budget(settings: dict[str, Any], first: FirstDifference) -> bool:
    """Return whether a recording is not known to take more than the budget."""
    taken, _ = size_of_next(settings, first)
    return taken is None or taken <= BUDGET


def _pass_of(entry: Entry) -> tuple[str, int, int | None, int]:
    return entry.direction, entry.opening, entry.token, entry.call


class _Layers:
    """The layers of a network: the cells whose names differ by a number alone.

    Attributes:
        prefix: of their names, before the number.
        numbers: in their order.
    """

    def __init__(self, prefix: str, numbers: Iterable[int]) -> None:
        self.prefix, self.numbers = prefix, sorted(numbers)
        self._inside = re.compile(rf"{re.escape(prefix)}\.(\d{{1,9}})(\.|$)")

    @classmethod
    def from_cells(cls, cells: Sequence[str]) -> _Layers | None:
        """Return those under which most cells lie; None of a network without layers."""
        numbers: dict[str, set[int]] = defaultdict(set)
        below: dict[str, int] = defaultdict(int)
        for cell in cells:
            parts = cell.split(".")
            for i, part in enumerate(parts):
                if i and part.isascii() and part.isdigit() and len(part) < 10:
                    prefix = ".".join(parts[:i])
                    numbers[prefix].add(int(part))
                    below[prefix] += 1
        known = [prefix for prefix in numbers if len(numbers[prefix]) > 1]
        if not known:
            return None
        prefix = max(known, key=lambda p: (below[p], -len(p)))
        return cls(prefix, numbers[prefix])

    def number_of_cell(self, cell: str) -> int | None:
        """Return the number of the layer that a cell is, or lies in."""
        match = self._inside.match(cell)
        return int(match[1]) if match else None

    def behind(self, last: int | None, first: int | None) -> list[int]:
        """Return the layers behind the `last` that agrees, up to the `first` that differs."""
        behind = [n for n in self.numbers if last is None or n > last]
        return [n for n in behind if first is None or n <= first]

    def between(self, first: FirstDifference) -> tuple[int | None, int | None]:
        """Return the last layer that agrees before the first difference, and the layer of it."""
        entry, phase = first.entry, first.event.phase or ""
        differing = None
        if first.event.kind != DATA and entry is not None:
            differing = self.number_of_cell(entry.cell)
        agreeing: list[int] = []  # those whose own output does
        for _, finding, other in of_entries(first.before, phase, io="output"):
            # Of the same pass: an earlier one went through all layers.
            if finding is None or (entry is not None and _pass_of(other) != _pass_of(entry)):
                continue
            number = self.number_of_cell(other.cell)
            if other.cell == f"{self.prefix}.{number}" and number not in (None, differing):
                agreeing.append(number)
        last = max(agreeing, default=None)
        if last is not None and differing is not None and last > differing:
            return None, differing  # of a backward pass, or of layers that run in another order
        return last, differing

    def include(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return what selects layers themselves, not what lies inside them."""
        return {"include": [self._pattern(numbers, "$")]}

    def only(self, last: int | None, first: int | None) -> dict[str, Any]:
        """Return what selects all cells that may be to blame between two layers."""
        if last is not None and first is not None:
            return {"include": [self._pattern(self.behind(last, first), r"(\.|$)")]}
        outside = [n for n in self.numbers if last is not None and n <= last]
        outside += [n for n in self.numbers if first is not None and n > first]
        return {"exclude": [self._pattern(outside, r"(\.|$)")]} if outside else {}

    def _pattern(self, numbers: Sequence[int], end: str) -> str:
        return rf"^{re.escape(self.prefix)}\.({'|'.join(map(str, numbers))}){end}"
