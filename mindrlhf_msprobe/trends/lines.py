"""Lines of a journal as trends read them: parameters, gradients and the state of optimizers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mindrlhf_msprobe.common.fast_json import loads
from mindrlhf_msprobe.storage.journal_line import holds_gradients
from mindrlhf_msprobe.storage.leaves import leaf_from_json
from mindrlhf_msprobe.storage.reading.leaf_json import LeafJson, flat, values_of
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import (
    OPTIMIZER_STATE,
    PARAMETERS_GRAD,
    Entry,
    Record,
    is_optimizer_state,
    network_name,
)

_ESCAPED = re.compile("%([0-9A-F]{2})")
_STATE = OPTIMIZER_STATE.encode()


class Value(NamedTuple):
    """One value of a line.

    Attributes:
        path: the place inside the structure.
        leaf: what was recorded of it.
        record: it with its file, where the line was read as an entry.
    """

    path: str
    leaf: LeafJson
    record: Record | None = None


class Line:
    """One line of a journal; only what is asked for is made of it.

    Attributes:
        name: the entry's.
        phase, step, rank: where it is.
        cell, call: whose it is, and which call of its cell.
        of_gradients, of_optimizer: whether it holds gradients of parameters, an optimizer's state.
    """

    __slots__ = (
        *("_content", "_entry", "_run", "_values", "call", "cell", "name"),
        *("of_gradients", "of_optimizer", "phase", "rank", "step"),
    )

    def __init__(self, run: Run, content: Any, phase: str, step: int, rank: int) -> None:
        self._run, self._content = run, content
        self._entry: Entry | None = None
        self._values: dict[str, list[Value]] = {}
        self.phase, self.step, self.rank = phase, step, rank
        self.name: str = content["entry"]
        self.cell, self.call, self.of_gradients, self.of_optimizer = _of_name(self.name)

    @classmethod
    def of_entry(cls, run: Run, entry: Entry) -> Line:
        """Return the line of an entry that was read already."""
        line = cls(run, {"entry": entry.name}, entry.phase, entry.step, entry.rank)
        line._entry = entry
        return line

    def values(self, io: str) -> list[Value]:
        """Return its parameters, outputs, or gradients (`PARAMETERS_GRAD`)."""
        found = self._values.get(io)
        if found is None:
            found = self._values[io] = self._made(io)
        return found

    def _made(self, io: str) -> list[Value]:
        if self._entry is not None:
            of = (record for record in self._entry.records if record.io == io)
            return [Value(record.path, record.leaf.to_json(), record) for record in of]
        if io == PARAMETERS_GRAD:
            found = values_of(self._content) if self.of_gradients else ()
            return [Value(path, leaf) for _, path, leaf in found]
        return [Value(path, leaf) for path, leaf in flat(self._content.get(io))]

    def elements(self, value: Value) -> np.ndarray:
        """Map the elements of a value into memory, read-only.

        Raises:
            ArrayFileError, ValueError: they were not stored, or cannot be read.
        """
        if value.record is not None:
            return value.record.array()
        leaf = leaf_from_json(dict(value.leaf))
        files = self._run.locator(self.phase, self.step, self.rank)
        return Record("", "", value.path, *files.locate(leaf, leaf.data_name)).array()

    def parameter(self, value: Value) -> str:
        """Return the name in its network of the parameter that a value is, or is a gradient of."""
        own = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), value.path)
        return network_name(self.cell, own)


@lru_cache(maxsize=1 << 16)
def _of_name(name: str) -> tuple[str, int, bool, bool]:
    entry = Entry(name, "", 0, 0, 0, None)
    return entry.cell, entry.call, holds_gradients(name), is_optimizer_state(entry.cell)


def lines_of(run: Run, phase: str, step: int, rank: int) -> Iterator[Line]:
    """Yield the lines of one place that hold parameters, gradients, or an optimizer's state."""
    raw = None if run.times_are_lost(step, rank) else run.journal_lines(phase, step, rank)
    found = None if raw is None else _plain(run, raw, phase, step, rank)
    if found is not None:
        yield from found
        return
    # Another tool's, damaged or cut off: reading it whole says so.
    for entry in run.entries(phase, step, rank):
        yield Line.of_entry(run, entry)


def _plain(run: Run, raw: list[bytes], phase: str, step: int, rank: int) -> list[Line] | None:
    """Return the lines of a journal as it ought to be; None of any other."""
    wanted = [line for line in raw if b"parameters" in line or _STATE in line]
    try:
        lines = [Line(run, loads(line), phase, step, rank) for line in wanted]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return lines if len({line.name for line in lines}) == len(lines) else None
