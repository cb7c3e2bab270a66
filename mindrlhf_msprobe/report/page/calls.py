"""The calls of a phase as the page shows them: read without making an object of each value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mindrlhf_msprobe.storage.arrays.atomic import loads
from mindrlhf_msprobe.storage.journal_line import argument_of
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.reading.leaf_json import LeafJson, non_finite, statistic, values_of
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Entry, Record

_NOT_RETURNED = ("input", "input_args", "input_kwargs", "parameters")


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
        content: its line of the journal as JSON, or one that holds its head alone.
        stack: its call stack, innermost first.
        entry: it as it was read; None where its line is plain.
    """

    name: str
    seq: int
    content: Mapping[str, Any]
    stack: tuple[str, ...]
    entry: Entry | None = None

    @property
    def around(self) -> str | None:
        """Of an operator, the cell around it; None if not known."""
        if self.entry is not None:
            return self.entry.around
        found = self.content.get("cell") if is_operator(self.name) else None
        return found if isinstance(found, str) else None

    def values(self) -> Iterator[Value]:
        """Yield its values in order."""
        if self.entry is not None:
            for of in self.entry.records:
                yield Value(of.io, of.path, of.leaf.to_json(), of.argument, of)
            return
        names = self.content.get("input_names")
        names = names if type(names) is list else ()
        for part, path, leaf in values_of(self.content):
            io = part.partition("_")[0] if part.startswith(("input", "output")) else part
            yield Value(io, path, leaf, argument_of(names, io, path))

    def returned(self) -> Iterator[LeafJson]:
        """Yield the values it returned, or the gradients."""
        if self.entry is not None:
            yield from (r.leaf.to_json() for r in self.entry.records if r.io not in _NOT_RETURNED)
        else:
            yield from (
                leaf for part, _, leaf in values_of(self.content) if part not in _NOT_RETURNED
            )


def calls_of(run: Run, phase: str, step: int, rank: int, *, files: bool = False) -> Iterator[Call]:
    """Yield the calls of one place in the order of the journal.

    Args:
        files: whether the files of stored tensors are wanted.
    """
    lines = None if run.times_are_lost(step, rank) else run.journal_lines(phase, step, rank)
    if lines is not None and not (files and any(b'"data_name"' in line for line in lines)):
        try:
            found = _plain(lines)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            found = []
        if len({call.name for call in found}) == len(lines):
            yield from found
            return
    for entry in run.entries(phase, step, rank):  # with files, another tool's, damaged, cut off
        head = {"end": entry.end, "parent": entry.parent, "opening": entry.opening}
        token = {} if entry.token is None else {"token": entry.token}
        yield Call(entry.name, entry.seq, head | token, entry.stack, entry)


def _plain(lines: list[bytes]) -> list[Call]:
    stacks: dict[Any, tuple[str, ...]] = {None: ()}
    found = []
    for raw in lines:
        line = loads(raw)
        number = line.get("stack")
        if "frames" in line:
            stacks[number] = tuple(map(str, line["frames"] or ()))
        name, seq = line["entry"], line["seq"]
        if type(name) is not str or type(seq) is not int:
            raise ValueError(name, seq)
        found.append(Call(name, seq, line, stacks.get(number, ())))
    return found


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
