"""Steps and journals as rules see them: journals of all ranks, key data; read when asked for.

What is held at once is one journal, and the key data of one step as far as rules ask for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, cached_property, lru_cache, partial
from operator import itemgetter
from types import NoneType
from typing import Any

import numpy as np

from mindrlhf_msprobe.checks.records import Layout, Layouts, Records
from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.findings.health import Place
from mindrlhf_msprobe.phases import (
    OR_EARLIER,
    UPDATE_PHASES,
    key_data_home,
    phase_order,
    usual_place,
)
from mindrlhf_msprobe.sequences.batch import Sequences
from mindrlhf_msprobe.sequences.settings import Settings
from mindrlhf_msprobe.sequences.step_data import StepData
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import loads
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.journal_line import (
    PARTS,
    JournalLine,
    holds_gradients,
    split_lines,
)
from mindrlhf_msprobe.storage.leaves import leaf_from_json
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.leaf_json import LeafJson, LeafKinds, values_of
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, Record

__all__ = ["EntryView", "RecordView", "Step", "numbers_in", "place_of", "steps", "value_of"]

#: One value of an entry: io (input, output, parameters, parameters_grad), path in it, leaf.
RecordView = tuple[str, str, LeafJson]

_IO = {**{part: part.partition("_")[0] for part in PARTS}, PARAMETERS_GRAD: PARAMETERS_GRAD}


@lru_cache(maxsize=1 << 16)
def _parts(name: str) -> tuple[str, str, str, int]:
    entry = Entry(name, "", 0, 0, 0, None)
    return entry.cell, entry.class_name, entry.direction, entry.call


class EntryView:
    """One entry of a phase, step and rank; its records are made when they are asked for.

    Attributes:
        content: its line of the journal, as JSON.
        phase, step, rank: where it is.
        name, seq, parent: as the line has them.
    """

    __slots__ = (
        *("_records", "_stacks", "content"),
        *("name", "parent", "phase", "rank", "seq", "step"),
    )

    def __init__(
        self,
        content: Mapping[str, Any],
        phase: str,
        step: int,
        rank: int,
        stacks: Mapping[int | None, tuple[str, ...]],
    ) -> None:
        self.content = content
        self.name: str = content["entry"]
        self.seq: int = content["seq"]
        self.parent: str | None = content["parent"]
        self.phase, self.step, self.rank = phase, step, rank
        self._stacks = stacks
        self._records: list[RecordView] | None = None

    @classmethod
    def from_line(cls, line: JournalLine, phase: str, step: int, rank: int) -> EntryView:
        """Return the view of a line that was read already, or was not written yet."""
        more: dict[str, Any]
        head = {"entry": line.entry, "seq": line.seq, "end": line.end, "parent": line.parent}
        more = {"opening": line.opening, "token": line.token, "stack": line.stack}
        if line.around is not None:
            more["cell"] = line.around
        return cls({**line.values, **head, **more}, phase, step, rank, {line.stack: line.frames})

    @property
    def cell(self) -> str:
        """The name in its network, `root` for the network itself; of an operator `Mint.add`."""
        return _parts(self.name)[0]

    @property
    def is_operator(self) -> bool:
        """Whether it is the entry of an operator; `cell` is what that is called, `Mint.add`."""
        return is_operator(self.name)

    @property
    def around(self) -> str | None:
        """Of an operator: the cell in which it was called, "" outside all; None if not known."""
        found = self.content.get("cell") if self.is_operator else None
        return found if isinstance(found, str) else None

    @property
    def class_name(self) -> str:
        """The cell's class."""
        return _parts(self.name)[1]

    @property
    def direction(self) -> str:
        """forward, backward or parameters_grad."""
        return _parts(self.name)[2]

    @property
    def call(self) -> int:
        """The n-th time the cell ran in its phase and step, from 0."""
        return _parts(self.name)[3]

    @property
    def end(self) -> int:
        """Its place in time when it ended; when it began if it never returned."""
        end = self.content["end"]
        return self.seq if end is None else end

    @property
    def stack(self) -> tuple[str, ...]:
        """Its call stack, innermost first; () if it was not recorded."""
        return self._stacks.get(self.content.get("stack"), ())

    @property
    def records(self) -> list[RecordView]:
        """Its values; of a Python None nothing."""
        if self._records is None:
            values = values_of(self.content)
            self._records = [(_IO[part], path, leaf) for part, path, leaf in values]
        return self._records

    def record_name(self, io: str, path: str) -> str:
        """Return the full name of one of its records."""
        head = self.name if io == PARAMETERS_GRAD else f"{self.name}.{io}"
        return f"{head}.{path}" if path else head

    def place(self, io: str | None = None, path: str = "") -> Place:
        """Return where the entry, or one record of it, is."""
        record = None if io is None else self.record_name(io, path)
        seq = self.seq if io in ("input", "parameters") else self.end
        return Place(self.step, self.rank, self.phase, self.name, record, seq=seq)


#: The types of the fields of nearly every line, in the order of `_usual`.
_USUAL = {
    (str, int, end, parent, int, NoneType, stack, frames)
    for end in (int, NoneType)
    for parent in (str, NoneType)
    for stack, frames in ((int, NoneType), (NoneType, NoneType), (int, list))
}
_usual = itemgetter("entry", "seq", "end", "parent", "opening")


class Journal:
    """The entries of one phase of one step and rank, in the order in which they ended.

    Attributes:
        phase, step, rank: where it is.
        content: it as it is on disk; None where there is none, it is damaged, or another tool's.
        raw_lines: the lines of `content`, as many as there are entries.
    """

    def __init__(
        self, run: Run, phase: str, step: int, rank: int, layouts: Layouts | None = None
    ) -> None:
        at = self.phase, self.step, self.rank = phase, step, rank
        content = None if run.times_are_lost(step, rank) else run.journal(phase, step, rank)
        self.raw_lines = [] if content is None else split_lines(content)
        lines = None if content is None else _read(self.raw_lines)
        self._lines = lines or []
        self._layouts = Layouts() if layouts is None else layouts
        self._entries: dict[int, EntryView] = {}
        if lines is None or self._kinds is None:  # `Run.entries` says what is not
            content = None
            views = [EntryView.from_line(_line_of(one), *at) for one in run.entries(*at)]
            self._entries = dict(enumerate(views))
            self._lines = [dict(view.content) for view in views]
            for derived in ("_leaves", "_kinds"):
                self.__dict__.pop(derived, None)
        self.content = content
        self._records: dict[tuple[str, ...], Records] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def entry(self, number: int) -> EntryView:
        """Return an entry."""
        found = self._entries.get(number)
        if found is None:
            at = self.phase, self.step, self.rank
            found = self._entries[number] = EntryView(self._lines[number], *at, self._stacks)
        return found

    def entries(self) -> Iterator[EntryView]:
        """Yield the entries."""
        return map(self.entry, range(len(self)))

    @cached_property
    def _stacks(self) -> dict[int | None, tuple[str, ...]]:
        return {
            line.get("stack"): tuple(line["frames"] or ())
            for line in self._lines
            if "frames" in line
        }

    @cached_property
    def times(self) -> list[tuple[int, int | None]]:
        """When each entry began, and when it ended, or None."""
        return [(line["seq"], line["end"]) for line in self._lines]

    @cached_property
    def parents(self) -> set[str]:
        """The names of the entries that others ran in."""
        return {line["parent"] for line in self._lines if line["parent"]}

    @cached_property
    def _leaves(self) -> tuple[Layout, list[LeafJson]]:
        leaves: list[LeafJson] = []
        names: list[str] = [line["entry"] for line in self._lines]
        structures = [self._layouts.structure(line, leaves) for line in self._lines]
        return self._layouts.layout(self.phase, self.rank, names, structures), leaves

    @cached_property
    def _kinds(self) -> LeafKinds | None:
        return self.layout.kinds(self._leaves[1])

    @property
    def layout(self) -> Layout:
        """What it has in common with other journals."""
        return self._leaves[0]

    def records(self, *parts: str) -> Records:
        """Return the records of some parts (`output`, `parameters_grad`, …) as columns."""
        if parts not in self._records:
            layout, leaves = self._leaves
            rows = layout.rows(*parts)
            of = [leaves[index] for index in rows.index]
            times = self.times
            at = self.phase, self.step, self.rank
            kinds = self._kinds or LeafKinds.of(leaves)
            of_rows = [times[line] for line in rows.lines]
            self._records[parts] = Records(at, rows, of, of_rows, rows.kinds(kinds))
        return self._records[parts]

    def holds(self, name: str) -> bool:
        """Return whether a record of it has a field of this name that is not None."""
        return any(leaf.get(name) is not None for leaf in self._leaves[1])


def _read(raw_lines: list[bytes]) -> list[dict[str, Any]] | None:
    """Return the lines of a journal; None if one is damaged, which `Run.entries` knows to say."""
    contents = []
    try:
        for raw in raw_lines:
            content = loads(raw)
            if not _is_usual(content):
                JournalLine.from_json(content)  # says whether it is a line
            contents.append(content)
    except (ValueError, RecursionError):
        return None
    names = {content["entry"] for content in contents}
    return contents if len(names) == len(contents) else None


def _is_usual(content: Any) -> bool:
    """Return whether a line is a good one, as nearly all are, at a fraction of the full check."""
    try:
        entry, seq, end, parent, opening = _usual(content)
    except (KeyError, TypeError):
        return False
    get, frames = content.get, content.get("frames")
    rest = type(get("token")), type(get("stack")), type(frames)
    types = (type(entry), type(seq), type(end), type(parent), type(opening), *rest)
    good = types in _USUAL and len(entry) <= bounds.NAME
    if good and frames:
        good = {*map(type, frames)} == {str}
    if good and PARAMETERS_GRAD in entry and holds_gradients(entry):
        good = type(get(PARAMETERS_GRAD)) is dict
    return good and 0 <= seq < bounds.PLACE and (end is None or 0 <= end < bounds.PLACE)


def _line_of(entry: Entry) -> JournalLine:
    """Return an entry of which there is no readable line as one."""
    line = JournalLine(entry.name, entry.seq, entry.end, entry.parent, entry.opening, entry.token)
    line.frames, line.around = entry.stack, entry.around
    line.attributes = entry.attributes
    values: dict[str, dict[str, object]] = {}
    for record in entry.records:
        values.setdefault(record.io, {})[record.path] = record.leaf.to_json()
    line.values = values.get(PARAMETERS_GRAD, {}) if holds_gradients(entry.name) else values
    if PARAMETERS_GRAD in values:
        line.values = {PARAMETERS_GRAD: line.values}
    return line


_MOST_BYTES = 1 << 28  # of one step's key data that are held
_PHASE_SPAN = 1 << 40  # as `storage.foreign` spaces phases that carry no time


def steps(run: Run) -> Iterator[Step]:
    """Yield the steps of a run in order. What cannot be read is in `run.problems` afterwards."""
    places: dict[int, list[int]] = {}
    for at_step, rank in sorted(run.places):
        places.setdefault(at_step, []).append(rank)
    last = max(places, default=None)
    settings = cache(partial(Settings.read, run))
    for number, ranks in places.items():
        yield Step(run, number, ranks, last=number == last, settings=settings)


class _Arrays:
    """The arrays of a step's key data, up to a bound."""

    def __init__(self) -> None:
        self._held: dict[str, np.ndarray] = {}
        self._room = _MOST_BYTES

    def array(self, location: str | None, read: Callable[[], np.ndarray]) -> np.ndarray:
        """Return an array that was read before, or read it."""
        found = self._held.get(location or "")
        if found is None:
            found = read()
            if location is not None and found.nbytes <= self._room:
                self._room -= found.nbytes
                self._held[location] = found
        return found


@dataclass(frozen=True, slots=True)
class _Held(Record):
    """An element of key data whose array is held while its step is looked at."""

    arrays: _Arrays = field(default_factory=_Arrays)

    def array(self) -> np.ndarray:
        """Return the record's elements; see `Record.array`."""
        return self.arrays.array(self.location, partial(Record.array, self))


class _Saves:
    """The key data of one step, read when they are first asked for."""

    def __init__(self, run: Run, number: int) -> None:
        self._run, self._number = run, number
        self._arrays = _Arrays()
        self._held: dict[tuple[str, int], list[KeyDatum]] = {}

    def of(self, name: str, rank: int) -> list[KeyDatum]:
        """Return what a rank saved under a key."""
        at = name, rank
        if at not in self._held:
            there = name in self._run.keys_at(self._number, rank)
            found = self._run.key_data(name, self._number, rank) if there else []
            self._held[at] = [self._with_arrays(datum) for datum in found]
        return self._held[at]

    def _with_arrays(self, datum: KeyDatum) -> KeyDatum:
        """Return key data whose arrays are read once, as far as there is room for them."""
        records = [_Held(*[*Record.__reduce__(one)[1], self._arrays]) for one in datum.records]
        return replace(datum, records=tuple(records))


class Step:
    """One step of a run, with all of its ranks.

    Attributes:
        run: the run.
        number: the step.
        last: whether it is the run's last one.
        ranks: those that recorded anything in it.
        complete: whether every rank ended it; the last step of a killed run may be cut off.
        parameters, gradients: (rank, phase) → parameters of cells, gradients of them, of those
            journals that `journals` gave.
        spans: (rank, phase) → when its entries began and ended, of these journals.
    """

    def __init__(
        self,
        run: Run,
        number: int,
        ranks: Sequence[int],
        *,
        last: bool = False,
        settings: Callable[[], Settings] | None = None,
    ) -> None:
        self.run, self.number, self.ranks, self.last = run, number, tuple(ranks), last
        self.parameters: dict[tuple[int, str], Records] = {}
        self.gradients: dict[tuple[int, str], Records] = {}
        self.spans: dict[tuple[int, str], tuple[int, int]] = {}
        self._saves = _Saves(run, number)
        self._settings = settings or partial(Settings.read, run)
        self._sequences: dict[int, Sequences] = {}

    @property
    def complete(self) -> bool:
        """Whether every rank ended the step."""
        return all(self.run.completed(self.number, rank) for rank in self.ranks)

    def journals(self, layouts: Layouts | None = None) -> Iterator[Journal]:
        """Yield its journals, each read when it is asked for, and not held.

        Of each rank in turn the phases as a step usually runs them.

        Args:
            layouts: those of the steps before, so that what is alike is computed once.
        """
        known = Layouts() if layouts is None else layouts
        for rank in self.ranks:
            for phase in sorted(self.phases(rank), key=lambda name: (phase_order(name), name)):
                journal = Journal(self.run, phase, self.number, rank, known)
                yield journal
                if times := journal.times:
                    ends = (begin if end is None else end for begin, end in times)
                    self.spans[rank, phase] = min(times)[0], max(ends)
                if parameters := journal.records("parameters"):
                    self.parameters[rank, phase] = parameters
                if gradients := journal.records(PARAMETERS_GRAD):
                    self.gradients[rank, phase] = gradients

    def keys(self, rank: int | None = None) -> list[str]:
        """Return the names of the key data of the step, or of one rank of it."""
        of = self.ranks if rank is None else (rank,)
        return sorted({key for one in of for key in self.run.keys_at(self.number, one)})

    def key_data(self, *names: str, rank: int | None = None) -> list[KeyDatum]:
        """Return what was saved under the first of these names that there is, by rank.

        It is read when it is first asked for, and kept until the step ends.
        """
        of = self.ranks if rank is None else (rank,)
        for name in names:
            found = [datum for one in of for datum in self._saves.of(name, one)]
            if found:
                return found
        return []

    def placed(self, datum: KeyDatum) -> KeyDatum:
        """Return key data where they arose, however late they were saved.

        The result of a phase stands behind it, or before the phase that usually follows; what the
        trainer computes between the phases before the first update. Of several saves under one key
        it is not known which is of which opening: they stay where they were saved.
        """
        home, rank = key_data_home(datum.key), datum.rank
        if home is None or home.after_updates or datum.seq is None:
            return datum
        if len(self.key_data(datum.key, rank=rank)) > 1:
            return datum
        own = self.spans.get((rank, home.phase or ""))
        if own is not None:
            at = own[0] - 0.5 if home.before_phase else own[1] + 0.5
        else:
            place = usual_place(datum.key)
            later = [
                begin
                for (of, phase), (begin, _) in self.spans.items()
                if of == rank and phase_order(phase) > place
            ]
            at = min(later, default=datum.seq + 1) - 0.5
        if at >= datum.seq:
            return datum
        # Between two entries there is no whole number.
        return replace(datum, seq=at, phase=home.phase)  # type: ignore[arg-type]

    def saved(self, *names: str) -> Iterator[KeyDatum]:
        """Yield what each rank saved under the first of these names that it has."""
        for rank in self.ranks:
            yield from self.key_data(*names, rank=rank)

    def sequences(self, rank: int) -> Sequences:
        """Return which tokens of a rank's prompts and responses are real, trained or padding."""
        if rank not in self._sequences:
            data = StepData(self.keys(rank), partial(self._saves.of, rank=rank), self._settings())
            self._sequences[rank] = Sequences(data)
        return self._sequences[rank]

    def mask_of(self, datum: KeyDatum, array: np.ndarray) -> np.ndarray | None:
        """Return which elements of a save by token count, bool in its shape; None: not known.

        Behind the ends of responses nothing counts, nor what the mask of the loss leaves out.
        """
        saves = self.key_data(datum.key, rank=datum.rank)
        counted = self.sequences(datum.rank).counted(datum, array, saves)
        return None if counted is None else counted.mask

    def counted_in(self, datum: KeyDatum) -> np.ndarray | None:
        """Return the numbers of a save that count, float64; None if it holds other things."""
        array = numbers_in(datum)
        mask = None if array is None or array.ndim < 2 else self.mask_of(datum, array)
        return array if array is None or mask is None else array[mask]

    def phases(self, rank: int) -> list[str]:
        """Return the phases of which a rank recorded layer data."""
        return self.run.phases_at(self.number, rank)


def place_of(datum: KeyDatum, path: str = "") -> Place:
    """Return where key data are; those without a time stand where they usually do.

    They are of the phase whose result they are, whichever was the last to begin when they were
    saved; of an unknown key nothing else tells.
    """
    seq: float = usual_place(datum.key) * _PHASE_SPAN if datum.seq is None else datum.seq
    record = f"{datum.key}.{path}" if path else datum.key
    home, at = key_data_home(datum.key), (datum.key, datum.micro_step)
    phase = datum.phase if home is None else home.phase
    if datum.key in OR_EARLIER and datum.phase not in (None, *UPDATE_PHASES):
        phase = None  # made before an update
    return Place(datum.step, datum.rank, phase, None, record, *at, seq=seq)


def value_of(datum: KeyDatum) -> Any:
    """Return what was saved, or None where it cannot be read."""
    try:
        return datum.value
    except (ArrayFileError, ValueError, OSError, KeyError):
        return None


def numbers_in(datum: KeyDatum) -> np.ndarray | None:
    """Return what was saved as a float64 array of any shape; None if it holds other things."""
    try:
        return np.asarray(value_of(datum), np.float64)
    except (TypeError, ValueError):
        return None


def elements_of(
    run: Run, entry: EntryView, io: str, path: str, leaf: LeafJson
) -> np.ndarray | None:
    """Map a record's elements into memory, read-only; None where the run does not hold them."""
    if "data_name" not in leaf:
        return None
    files = run.locator(entry.phase, entry.step, entry.rank)
    located = files.locate(leaf_from_json(dict(leaf)), str(leaf["data_name"]))
    try:
        return Record(entry.name, io, path, *located).array()
    except ArrayFileError:
        return None
