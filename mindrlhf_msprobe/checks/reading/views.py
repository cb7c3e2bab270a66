"""Entries and steps as rules see them: what is not asked for is not made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mindrlhf_msprobe.checks.reading.values import LeafJson, flat
from mindrlhf_msprobe.health import Place
from mindrlhf_msprobe.phases import usual_place
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.journal_line import PARTS, JournalLine, holds_gradients
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry

#: One value of an entry: io (input, output, parameters, parameters_grad), path in it, leaf.
RecordView = tuple[str, str, LeafJson]

_IO = tuple((part, part.partition("_")[0]) for part in PARTS)
_PHASE_SPAN = 1 << 40  # as `storage.foreign` spaces phases that carry no time


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
        *("_line", "_parts", "_records", "_stacks", "content"),
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
        self.parent: str | None = content.get("parent")
        self.phase, self.step, self.rank = phase, step, rank
        self._stacks = stacks
        self._records: list[RecordView] | None = None
        self._parts: dict[str, list[tuple[str, LeafJson]]] = {}
        self._line: JournalLine | None = None

    @classmethod
    def of_line(cls, line: JournalLine, phase: str, step: int, rank: int) -> EntryView:
        """Return the view of a line that was read already, or was not written yet."""
        head = {"entry": line.entry, "seq": line.seq, "end": line.end, "parent": line.parent}
        more = {"opening": line.opening, "token": line.token, "stack": line.stack}
        view = cls({**line.values, **head, **more}, phase, step, rank, {line.stack: line.frames})
        view._line = line
        return view

    @property
    def line(self) -> JournalLine:
        """Its line of the journal."""
        if self._line is None:
            self._line = JournalLine.from_json(self.content)
        return self._line

    @property
    def cell(self) -> str:
        """The cell's name in its network, `root` for the network itself."""
        return _parts(self.name)[0]

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
        end = self.content.get("end")
        return self.seq if end is None else end

    @property
    def opening(self) -> int:
        """How many times its phase had been opened in this step before."""
        return self.content.get("opening") or 0

    @property
    def token(self) -> int | None:
        """The generated token it belongs to, in the generate phase, else None."""
        return self.content.get("token")

    @property
    def stack(self) -> tuple[str, ...]:
        """Its call stack, innermost first; () if it was not recorded."""
        return self._stacks.get(self.content.get("stack"), ())

    @property
    def records(self) -> list[RecordView]:
        """Its values; of a Python None nothing."""
        if self._records is None:
            self._records = self._found()
        return self._records

    def _found(self) -> list[RecordView]:
        if holds_gradients(self.name):
            return [
                (io, path, leaf)
                for io, at, structure in self.line.parts()
                for path, leaf in flat(structure, at)
            ]
        get = self.content.get
        return [(io, *found) for part, io in _IO if get(part) for found in self.part(part)]

    def part(self, name: str) -> list[tuple[str, LeafJson]]:
        """Return (path, leaf) of `input_args`, `output`, `parameters` or the like, alone.

        A rule that looks at one of them need not have the others made.
        """
        found = self._parts.get(name)
        if found is None:
            structure = self.content.get(name)
            found = self._parts[name] = flat(structure) if structure else []
        return found

    def record_name(self, io: str, path: str) -> str:
        """Return the full name of one of its records."""
        head = self.name if io == PARAMETERS_GRAD else f"{self.name}.{io}"
        return f"{head}.{path}" if path else head

    def place(self, io: str | None = None, path: str = "") -> Place:
        """Return where the entry, or one record of it, is."""
        record = None if io is None else self.record_name(io, path)
        seq = self.seq if io in ("input", "parameters") else self.end
        return Place(self.step, self.rank, self.phase, self.name, record, seq=seq)


class Step:
    """One step of a run, with all of its ranks, after its entries were given to the rules.

    Attributes:
        run: the run.
        number: the step.
        last: whether it is the run's last one.
        ranks: those that recorded anything in it.
        complete: whether every rank ended it; the last step of a killed run may be cut off.
    """

    def __init__(self, run: Run, number: int, ranks: Sequence[int], *, last: bool = False) -> None:
        self.run, self.number, self.ranks, self.last = run, number, tuple(ranks), last
        self._saves: dict[tuple[str | None, int], list[KeyDatum]] = {}

    @property
    def complete(self) -> bool:
        """Whether every rank ended the step."""
        return all(self.run.completed(self.number, rank) for rank in self.ranks)

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
            found = [datum for one in of for datum in self._of(name, one)]
            if found:
                return found
        return []

    def _of(self, name: str, rank: int) -> list[KeyDatum]:
        at = name, rank
        if at not in self._saves:
            there = name in self.run.keys_at(self.number, rank)
            self._saves[at] = self.run.key_data(name, self.number, rank) if there else []
        return self._saves[at]

    def phases(self, rank: int) -> list[str]:
        """Return the phases of which a rank recorded layer data."""
        return self.run.phases_at(self.number, rank)


def place_of(datum: KeyDatum, path: str = "") -> Place:
    """Return where key data are; those without a time stand where they usually do."""
    seq: float = usual_place(datum.key) * _PHASE_SPAN if datum.seq is None else datum.seq
    record = f"{datum.key}.{path}" if path else datum.key
    at = datum.key, datum.micro_step
    return Place(datum.step, datum.rank, datum.phase, None, record, *at, seq=seq)


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
