"""Entries as rules see them: what is not asked for is not made."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from mindrlhf_msprobe.findings.health import Place
from mindrlhf_msprobe.storage.journal_line import PARTS, JournalLine
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.reading.leaf_json import LeafJson, values_of
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry

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
        self.parent: str | None = content.get("parent")
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
        end = self.content.get("end")
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
