"""The calls of a phase as the page shows them: read without making an object of each value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mindrlhf_msprobe.storage.columns.columns import EntryView
from mindrlhf_msprobe.storage.columns.leaf_json import LeafJson, non_finite, statistic
from mindrlhf_msprobe.storage.columns.reading import columns_of
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Entry, Record

_NOT_RETURNED = ("input", "parameters")


class Value(NamedTuple):
    """One value of a call.

    Attributes:
        io: input, output, parameters or parameters_grad.
        record: it with its file, where its elements were stored or it cannot be read; else None.
    """

    io: str
    path: str
    leaf: LeafJson
    argument: str = ""
    record: Record | None = None


class Call(NamedTuple):
    """One call of a cell, or the gradients of its parameters.

    Attributes:
        view: it as it stands in the columns.
        entry: it with its files; None where the columns say all.
    """

    view: EntryView
    entry: Entry | None = None

    @property
    def name(self) -> str:
        """The entry's."""
        return self.view.name

    @property
    def around(self) -> str | None:
        """Of an operator, the cell around it; None if not known."""
        return self.view.around if self.entry is None else self.entry.around

    def values(self) -> Iterator[Value]:
        """Yield its values in order."""
        if self.entry is not None:
            for of in self.entry.records:
                yield Value(of.io, of.path, of.leaf.to_json(), of.argument, of)
            return
        for io, path, leaf in self.view.records:
            yield Value(io, path, leaf, self.view.argument(io, path))

    def returned(self) -> Iterator[LeafJson]:
        """Yield the values it returned, or the gradients."""
        return (value.leaf for value in self.values() if value.io not in _NOT_RETURNED)


def calls_of(run: Run, phase: str, step: int, rank: int, *, files: bool = False) -> Iterator[Call]:
    """Yield the calls of one place in the order of the journal.

    Args:
        files: whether the files of stored tensors are wanted; then they come in order of time.
    """
    at = LayerPlace(phase, step, rank)
    columns = columns_of(run, at)
    objects = columns.objects
    if objects is None and files and columns.values.holds("data_name"):
        objects = run.entries(*at)
    if objects is None:
        yield from map(Call, columns.entries())
        return
    views = {view.name: view for view in columns.entries()}
    for entry in objects:
        yield Call(views[entry.name], entry)


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


def measured(call: Call) -> Measured:
    """Return the measures of what a call returned."""
    norm: float | None = None
    largest: float | None = None
    count = 0
    for leaf in call.returned():
        if "shape" not in leaf:
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
