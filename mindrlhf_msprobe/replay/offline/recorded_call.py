"""What a run recorded of one call: forward, backward, and the parameters at that moment."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.errors import MsprobeError, RunError, UsageError
from mindrlhf_msprobe.findings import Cause, Comparison
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.operators import Attributes, OperatorName, parse_operator
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.storage.reading.reader import Run, entry_of, open_run
from mindrlhf_msprobe.storage.records import (
    PARAMETERS_GRAD,
    Entry,
    Locator,
    Record,
    cell_name,
    class_name,
    direction_of,
    is_around,
    network_name,
)

_MOST_NEAR = 10_000


@dataclass(frozen=True)
class CallPlace:
    """Where in a run: None for any."""

    phase: str | None = None
    step: int | None = None
    rank: int | None = None


@dataclass(frozen=True)
class ReplayRequest:
    """What is to be computed again.

    Attributes:
        runs: the dump_path of one run or of two.
        entry: the name of an entry, forward or backward; None: all operators.
        output: the folder.
        place: where the entry is; the first that has its elements.
        network: `module:factory` or a YAML of MindFormers, for a cell.
        device: where it is computed; None: as MindSpore chooses.
        compute_dtype: the lowest dtype that it computes in; None: of inputs, parameters, outputs.
    """

    runs: tuple[str, ...]
    entry: str | None
    output: str
    place: CallPlace = field(default_factory=CallPlace)
    network: str | None = None
    device: str | None = None
    compute_dtype: str | None = None


@dataclass(frozen=True)
class Half:
    """One direction of a call.

    Attributes:
        values: part (`input_args`, `output`, …) → nested lists and dicts of leaves.
        records: (io, path) → the value there.
        recomputed: of a backward half whose forward run was repeated (recompute), whether that was
            given what the forward half holds: same, other or unknown; "" where it was not.
    """

    entry: Entry
    values: dict[str, Any]
    records: dict[tuple[str, str], Record]
    recomputed: str = ""


@dataclass(frozen=True)
class RecordedParameter:
    """A parameter as it was when the call ran.

    Attributes:
        cell, name: the cell that holds it, and what it is called there.
        gradient: what the call's backward pass gave it, where that is known to be of this call.
    """

    cell: str
    name: str
    record: Record
    gradient: Record | None

    @property
    def network_name(self) -> str:
        """What it is called in its network."""
        return network_name(self.cell, self.name)


@dataclass(frozen=True)
class RecordedCall:
    """One call of an operator or of a cell.

    Attributes:
        operator: its name, or None for a cell.
        backward: None where no gradient was recorded, or one of another run of it.
        parameters: of the cell and those inside it.
        inside: the cells inside it that ran, with their classes.
        attributes: of a primitive, what it is made with; None where that is not known.
        unlike: why the gradients are not those of this run: MindSpore repeated it (recompute), with
            `other` inputs, or `unknown` ones; "" if it did not.
    """

    run: Run
    forward: Half
    backward: Half | None
    operator: OperatorName | None
    parameters: tuple[RecordedParameter, ...] = field(default=())
    attributes: Attributes | None = field(default=None, hash=False)
    unlike: str = ""
    inside: tuple[tuple[str, str], ...] = ()

    @property
    def entry(self) -> Entry:
        """The forward entry."""
        return self.forward.entry

    @property
    def place(self) -> CallPlace:
        """Where it was recorded."""
        return CallPlace(self.entry.phase, self.entry.step, self.entry.rank)


def find_call(run: Run, name: str, place: CallPlace) -> RecordedCall:
    """Return a call by the name of its entry, forward or backward.

    Args:
        place: where it is looked for; the first step that has its elements is taken.

    Raises:
        RunError: there is no such entry; the message names the nearest.
        UsageError: several phases have one, and none was chosen; or it is of no call.
    """
    # A name of no entry has near ones.
    wanted = _in_direction(name, "forward") if direction_of(name) else ""
    near: dict[str, None] = {}
    found: RecordedCall | None = None
    for calls in _places(run, place):
        having = {phase: lines for phase, lines in calls.items() if wanted in lines.by_name}
        if len(having) > 1:
            listed = ", ".join(having)
            raise UsageError.saying("replay.several_phases", entry=shortened(name), phases=listed)
        for lines in having.values() if found is None else ():
            found = lines.call(wanted)
            if has_elements(found.forward):
                return found
        for lines in calls.values() if len(near) < _MOST_NEAR else ():
            near.update(dict.fromkeys(lines.by_name))
    if found is not None:
        return found
    import difflib  # slow to import, and only a mistake needs it

    close = difflib.get_close_matches(wanted or name, near, n=3, cutoff=0.3)
    hint = message("error.nearest_records", names=", ".join(close)) if close else ""
    raise RunError.saying("replay.no_entry", path=run.path, name=shortened(name), hint=hint)


def _places(run: Run, place: CallPlace) -> Iterator[dict[str, _Lines]]:
    """Yield phase → its entries, of every step and rank in turn that a place names."""
    for at in sorted(run.places):
        if place.step in (None, at.step) and place.rank in (None, at.rank):
            phases = [p for p in run.phases_at(at) if place.phase in (None, p)]
            yield {phase: _Lines(run, LayerPlace(phase, *at)) for phase in phases}


def operator_calls(run: Run, place: CallPlace) -> Iterator[RecordedCall]:
    """Yield every call of an operator that returned tensors, in the order of places and time."""
    for lines in (lines for calls in _places(run, place) for lines in calls.values()):
        for name in lines.by_name:
            operator = parse_operator(name)
            if operator is not None and operator.direction == "forward":
                call = lines.call(name)
                records = call.forward.records.items()
                if any(io == "output" and one.leaf.is_tensor for (io, _), one in records):
                    yield call


def _in_direction(entry: str, direction: str) -> str:
    """Return the forward or the backward entry of a call, by either of them.

    Raises:
        UsageError: it is the entry of no call.
    """
    operator, own = parse_operator(entry), direction_of(entry)
    if operator is not None:
        return replace(operator, direction=direction).entry
    if own == direction:
        return entry
    head, found, call = entry.rpartition(f".{own}.")
    if own not in ("forward", "backward") or not found:
        raise UsageError.saying("replay.no_call", entry=shortened(entry))
    return f"{head}.{direction}.{call}"


def has_elements(half: Half) -> bool:
    """Return whether the elements of any tensor were recorded."""
    return any(record.location is not None for record in half.records.values())


class _Lines:
    """The entries of one place, by name, with their values as they were nested."""

    def __init__(self, run: Run, at: LayerPlace) -> None:
        self._run, self._at = run, at
        self.by_name: dict[str, JournalLine] = {}
        for line in run.lines(at):
            self.by_name.setdefault(line.entry, line)
        self._entries: dict[str, Entry] = {}

    @cached_property
    def _files(self) -> Locator:
        return self._run.locator(self._at)

    def _half(self, name: str) -> Half | None:
        line = self.by_name.get(name)
        if line is None:
            return None
        try:
            entry = self._entries.get(name) or entry_of(line, self._files, self._at)
        except ValueError:
            return None
        self._entries[name] = entry
        records = {(r.io, r.path): r for r in entry.records}
        return Half(entry, line.values, records, line.recomputed)

    def call(self, name: str) -> RecordedCall:
        forward = self._half(name)
        if forward is None:
            raise RunError.saying("replay.unread_entry", path=self._run.path, entry=shortened(name))
        unlike, backward = "", self._half(_in_direction(name, "backward"))
        if backward is not None and backward.recomputed not in ("", "same"):
            unlike, backward = backward.recomputed, None
        operator = parse_operator(name)
        parameters = () if operator else tuple(self._parameters(forward.entry, backward))
        attributes = forward.entry.attributes
        inside, around = {}, forward.entry.cell
        for other in () if operator else self.by_name:
            if direction_of(other) == "forward" and parse_operator(other) is None:
                cell, kind = cell_name(other), class_name(other)
                if kind and is_around(around, cell):
                    inside[cell] = kind
        return RecordedCall(
            *(self._run, forward, backward, operator, parameters, attributes, unlike),
            tuple(inside.items()),
        )

    def _parameters(self, entry: Entry, backward: Half | None) -> Iterator[RecordedParameter]:
        """Yield the parameters of a cell and of those inside it, as they were when it ran."""
        latest: dict[tuple[str, str], Record] = {}
        whole = entry.cell == "root"
        for line in sorted(self.by_name.values(), key=lambda line: line.seq):
            if "parameters" not in line.values or line.seq > entry.time:
                continue
            half = self._half(line.entry)
            cell = "" if half is None else half.entry.cell
            if half is None or not (
                whole or cell == entry.cell or cell.startswith(entry.cell + ".")
            ):
                continue
            for (io, path), record in half.records.items():
                if io == "parameters":
                    latest[cell, unquote(path)] = record  # dots in a name were escaped
        for (cell, name), record in latest.items():
            yield RecordedParameter(cell, name, record, self._gradient(cell, name, entry, backward))

    def _gradient(self, cell: str, name: str, entry: Entry, backward: Half | None) -> Record | None:
        """Return the gradient that a parameter got from one call alone, where that is certain.

        There are as many gradients of it as backward calls of its cell, and one of each while this
        call went backward.
        """
        if backward is None:
            return None
        of_cell = [line for line in self.by_name.values() if cell_name(line.entry) == cell]
        grads = [line for line in of_cell if direction_of(line.entry) == PARAMETERS_GRAD]
        own = [line for line in of_cell if direction_of(line.entry) == "backward"]
        # The time from the backward entry to the next one of its cell.
        head, begins = backward.entry.name.rpartition(".")[0], backward.entry.seq
        same = [line for line in self.by_name.values() if line.entry.rpartition(".")[0] == head]
        ends = min((line.seq for line in same if line.seq > begins), default=1 << 62)
        span = range(begins, ends)
        within = [line for line in grads if line.seq in span]
        calls = [line for line in own if line.seq in span]
        if len(grads) != len(own) or len(within) != 1 or len(calls) != 1:
            return None
        half = self._half(within[0].entry)
        found = [] if half is None else [*half.records.items()]
        of_it = [r for (_, path), r in found if unquote(path.partition(".")[0]) == name]
        one = of_it[0] if len(of_it) == 1 else None
        return None if one is None or one.location is None or one.leaf.at_optimizer else one


#: Causes that lie in what the entry computes.
_COMPUTED = (Cause.COMPUTATION, Cause.NON_FINITE)


def request_of(comparison: Comparison, output: str, network: str | None) -> ReplayRequest:
    """Return the replay, on both sides, of the entry that is to blame.

    Args:
        output: the folder.
        network: of a cell, as `replay` takes it.

    Raises:
        UsageError: the runs do not diverge at something that was computed, or are one run.
        RunError: it was recorded without its elements.
    """
    entry, at = _blamed(comparison)
    runs = (comparison.run_a, comparison.run_b)
    return ReplayRequest(runs, entry, output, at, network=network)


def _blamed(comparison: Comparison) -> tuple[str, CallPlace]:
    """Return the entry that computed differently, and where.

    Raises:
        UsageError: the runs do not diverge at something that was computed, or are one run.
    """
    first = comparison.verdict.first_divergence
    one_run = comparison.run_a == comparison.run_b
    if first is None or first.entry is None or first.cause not in _COMPUTED or one_run:
        cause = "" if first is None else first.cause.value
        raise UsageError.saying("replay.nothing_computed", cause=cause)
    if first.born is not None:
        return first.born.entry, CallPlace(first.born.phase, first.step, first.rank)
    return first.entry, CallPlace(first.phase, first.step, first.rank)


def command_for(comparison: Comparison, output: str) -> str:
    """Return the command that replays the entry that is to blame; "" where it cannot be.

    That is where the elements of both sides are at hand.
    """
    runs = (comparison.run_a, comparison.run_b)
    try:
        entry, at = _blamed(comparison)
        for run in map(Path, runs):  # whether any may lie there, without opening the run
            if at.phase is not None and at.step is not None and layout.manifests(run):
                directory = layout.entry_dir(run, at.phase, at.step, at.rank or 0)
                if directory.is_dir() and not (directory / layout.TENSOR_DIR).is_dir():
                    return ""
        calls = [find_call(open_run(run), entry, at) for run in runs]
    except MsprobeError:
        return ""
    if not all(has_elements(call.forward) for call in calls):
        return ""
    words = ["mindrlhf-msprobe", "replay", *runs, entry, "-o", output]
    words += ["--phase", str(at.phase), "--step", str(at.step)]
    words += ["--rank", str(at.rank)] if at.rank else []
    words += [] if parse_operator(entry) else ["--network", "MODULE:FUNCTION"]
    return shlex.join(words)
