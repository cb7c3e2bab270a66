"""Records that are pieces of larger ones, and what is known of them where they cannot be cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.message import Message, Messages
from mindrlhf_msprobe.comparison.pairing.frameworks.records import Across
from mindrlhf_msprobe.comparison.pairing.names import NameRule
from mindrlhf_msprobe.comparison.pairing.planner import Pair, StepData
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Record

#: A save, or an entry without a micro-step: the side, its key or name, and the micro-step.
Alone = tuple[int, str, "int | None"]


@dataclass(frozen=True)
class CutStep:
    """One step of a rank, the larger batches, or saves, of one side cut to the smaller.

    Of most steps nothing is cut: their batches are of one size.

    Attributes:
        data: both sides.
        notes: how the rows were brought together.
        extra: what one side alone has → why the other side has no such entry or save.
        cut: key, or None for the entries → which side's saves, or batches, were cut. Statistics
            are not cut.
        gradients: why only one side has an entry of a backward pass; None where nothing is known.
        rules: how cells of A are called in B.
        across: what only one of two frameworks has; None where both runs are of one.
        of_phase: phase → how its batches were cut, where each phase was by itself.
    """

    data: tuple[StepData, StepData]
    notes: Messages = ()
    extra: Mapping[Alone, Message] = field(default_factory=dict)
    cut: Mapping[str | None, int] = field(default_factory=dict)
    gradients: Message | None = None
    rules: tuple[NameRule, ...] = ()
    across: Across | None = None
    of_phase: Mapping[str, CutStep] = field(default_factory=dict)

    def is_cut(self, side: int, pair: Pair) -> bool:
        """Return whether a side has pieces where a whole run of it has other records.

        Parameters are of no batch.
        """
        what = pair.event.name if pair.entry is None else None
        return self.cut.get(what) == side and pair.record.io != "parameters"

    def why_alone(self, side: int, pair: Pair) -> Message | None:
        """Return why only one side has an entry or a save; None where this is not the reason."""
        if pair.entry is None:
            return self.extra.get((side, pair.event.name, pair.event.micro_step))
        if (of_phase := self.of_phase.get(pair.event.phase or "")) is not None:
            return of_phase.why_alone(side, pair)
        if self.gradients is not None and pair.entry.direction != "forward":
            return self.gradients
        return self.extra.get((side, pair.entry.name, None))


@dataclass(frozen=True)
class Piece(Record):
    """A record of a phase with larger batches, as it is compared with one of smaller ones.

    Attributes:
        sources: the records, and the rows of each, that make it up in this order; () for all of it.
        axis, each: along which axis the rows lie, and how many places each has there.
        gap: why it is not compared; None if it is.
        gap_if_unlike: why it does not count if it differs; None if it does.
    """

    sources: tuple[tuple[Record, tuple[int, ...]], ...] = ()
    axis: int = 0
    each: int = 1
    gap: Message | None = None
    gap_if_unlike: Message | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        own = (self.sources, self.axis, self.each, self.gap, self.gap_if_unlike)
        return Piece, (*Record.__reduce__(self)[1], *own)

    def array(self) -> np.ndarray:
        """Return the elements of its rows; see `Record.array`."""
        if not self.sources:
            return Record.array(self)
        parts = [_rows_of(r.array(), rows, self.axis, self.each) for r, rows in self.sources]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, self.axis)


def piece_of(record: Record, **changes: Any) -> Piece:
    """Return a record as a piece, all of it unless `changes` of its attributes say otherwise."""
    return replace(Piece(*Record.__reduce__(record)[1]), **changes)


def cut_out(
    record: Record, sources: Sequence[tuple[Record, tuple[int, ...]]], axis: int, each: int = 1
) -> Piece:
    """Return what rows of several records make up, under the name of `record`, of their dtype.

    Args:
        sources, axis, each: as a `Piece` has them.
    """
    old = record.leaf
    shape = list(old.shape or ())
    shape[axis] = each * sum(len(rows) for _, rows in sources)
    leaf = Leaf(old.type, old.dtype, tuple(shape), data_name=old.data_name)
    return piece_of(record, leaf=leaf, sources=tuple(sources), axis=axis, each=each)


def _rows_of(array: np.ndarray, rows: Sequence[int], axis: int, each: int) -> np.ndarray:
    first, last = rows[0], rows[-1]
    if list(rows) == list(range(first, last + 1)):  # no copy
        return array[(slice(None),) * axis + (slice(first * each, (last + 1) * each),)]
    places = [row * each + i for row in rows for i in range(each)]
    return np.take(array, places, axis)


def gap_of(pair: Iterable[Record | None], if_unlike: bool = False) -> Message | None:
    """Return why two records are not compared, or do not count if they differ; None if they do."""
    pieces = [record for record in pair if isinstance(record, Piece)]
    gaps = (piece.gap_if_unlike if if_unlike else piece.gap for piece in pieces)
    return next(filter(None, gaps), None)
