"""The calls of a phase as the page shows them: read without making an object of each value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mindrlhf_msprobe.storage.columns.columns import EntryView
from mindrlhf_msprobe.storage.columns.leaf_json import LeafJson, non_finite, statistic
from mindrlhf_msprobe.storage.columns.reading import columns_of
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Record


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


def calls_of(
    run: Run, phase: str, step: int, rank: int, *, files: bool = False
) -> Iterator[EntryView]:
    """Yield the calls of one place in the order of the journal.

    Args:
        files: whether the files of stored tensors are wanted; then they come in order of time.
    """
    at = LayerPlace(phase, step, rank)
    columns = columns_of(run, at)
    stored = files and columns.values.holds("data_name")
    if columns.objects is None and not stored:
        return columns.entries()
    columns.files = run.locator(at)
    return iter(sorted(columns.entries(), key=lambda call: call.seq))


def values_of(call: EntryView) -> Iterator[Value]:
    """Yield the values of a call in order."""
    for number, (io, path, leaf) in enumerate(call.records):
        yield Value(io, path, leaf, call.argument(io, path), call.record(number))


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


def measured(call: EntryView) -> Measured:
    """Return the measures of what a call returned."""
    norm: float | None = None
    largest: float | None = None
    count = 0
    for io, _, leaf in call.records:
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
