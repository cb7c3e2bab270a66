"""The calls of a phase as the page shows them: read without making an object of each value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from mindrlhf_msprobe.storage.columns.columns import Columns, record_of
from mindrlhf_msprobe.storage.columns.leaf_json import LeafJson, non_finite, statistic
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Entry, Locator, Record


class Value(NamedTuple):
    """One value of a call.

    Attributes:
        io: input, output, parameters or parameters_grad.
        record: it with its file; None where no value has one, or it cannot be read.
    """

    io: str
    path: str
    leaf: LeafJson
    argument: str = ""
    record: Record | None = None


class Calls:
    """The calls of one place: in the order of the journal, or with files in order of time.

    Args:
        run: that of the columns; its files are looked for where values may have some.

    Attributes:
        by_name: the calls.
    """

    def __init__(self, run: Run | None = None, columns: Columns | None = None) -> None:
        self._files: Locator | None = None
        self.by_name: dict[str, Entry] = {}
        if run is None or columns is None:
            return
        entries: Iterable[Entry] = columns.entries()
        if columns.objects is not None or columns.values.holds("data_name"):
            self._files = run.locator(columns.at)
            entries = sorted(entries, key=lambda call: call.seq)
        self.by_name = {call.name: call for call in entries}

    @property
    def are_stored(self) -> bool:
        """Whether values of them have files."""
        return self._files is not None

    def values(self, call: Entry) -> Iterator[Value]:
        """Yield the values of one of them in order."""
        for io, path, leaf in call.values:
            record = None
            if self._files is not None:
                with suppress(ValueError):
                    record = record_of(leaf, self._files)
            yield Value(io, path, leaf, call.argument(io, path), record)


class Measured(NamedTuple):
    """What a call returned, as the maps show it.

    Attributes:
        norm, largest: the largest L2 norm, and the largest |value|; None where none is known.
        non_finite: how many elements are NaN or infinite; where they were not counted, 1 for each
            tensor that holds any.
    """

    norm: float | None
    largest: float | None
    non_finite: int


def measured(call: Entry) -> Measured:
    """Return the measures of what a call returned."""
    norm: float | None = None
    largest: float | None = None
    count = 0
    for io, _, leaf in call.values:
        if io in ("input", "parameters") or "shape" not in leaf:
            continue
        norm = larger(norm, statistic(leaf, "Norm"))
        for name in ("Max", "Min"):
            value = statistic(leaf, name)
            largest = larger(largest, None if value is None else abs(value))
        count += sum(non_finite(leaf) or ())
    return Measured(norm, largest, count)


def larger(a: float | None, b: float | None) -> float | None:
    """Return the larger of two values, of which either may not be known; NaN is the largest."""
    if a is None or b is None:
        return b if a is None else a
    return b if not b <= a else a
