"""Two keys that hold the same rows in saves of unlike size: the larger ones cut to the smaller."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.comparison.pairing.batch_rows import Given, Rows, unlike_axes
from mindrlhf_msprobe.comparison.pairing.composed import cut_out
from mindrlhf_msprobe.comparison.pairing.frameworks.records import Across
from mindrlhf_msprobe.comparison.pairing.names import NO_RULES, NameRules
from mindrlhf_msprobe.comparison.pairing.planner import Pair, StepData
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
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
    rules: NameRules = NO_RULES
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


_MOST_DISTANCES = 1 << 28  # elements that are compared to find the nearest rows
_UNKNOWN = message("coverage.key_unknown_rows")


def cut_keys(
    a: StepData, b: StepData, keys: Mapping[str, str], *, regroup: bool = False
) -> CutStep | None:
    """Cut the larger saves of two keys to the smaller ones; None where there are none such.

    Args:
        keys: the comparison's name of a key, A's own → B's, another one.
        regroup: cut saves of one size, too, where their rows stand in other places.
    """
    sides = [list(a.key_data), list(b.key_data)]
    notes: list[Message] = []
    extra: dict[Alone, Message] = {}
    cut: dict[str | None, int] = {}
    for key, own in keys.items():
        saves = [sorted((d for d in s if d.key == key), key=lambda d: d.micro_step) for s in sides]
        tensors = all(map(_is_one_tensor, itertools.chain(*saves)))
        found = _cut(saves, regroup=regroup) if all(saves) and tensors else None
        if found is None:
            continue
        large, pieces, unknown, how = found
        cut[key] = large
        sides[large] = [d for d in sides[large] if d.key != key] + pieces
        extra |= {(1 - large, key, micro_step): _UNKNOWN for micro_step in unknown}
        notes.append(message("pairing.key_rows", a=key, b=own, how=how))
    if not notes:
        return None
    both = replace(a, key_data=sides[0]), replace(b, key_data=sides[1])
    return CutStep(both, tuple(notes), extra, cut)


def _is_one_tensor(datum: KeyDatum) -> bool:
    leaf = datum.records[0].leaf if len(datum.records) == 1 else None
    if leaf is None or datum.records[0].location is None or not leaf.shape:
        return False
    return leaf.type != "str" and leaf.why is None


def _cut(
    saves: Sequence[Sequence[KeyDatum]], *, regroup: bool = False
) -> tuple[int, list[KeyDatum], list[int], Message] | None:
    """Return which side is the larger one, its pieces, the saves without one, and how."""
    records = [[datum.records[0] for datum in side] for side in saves]
    axes = unlike_axes([*records[0], *records[1]])
    inputs = [[{"": record} for record in side] for side in records]
    given = Given.of(inputs, (len(records[0]), len(records[1])), regroup=regroup)
    if axes is None or len(axes) > 1 or given is None or (given.of_one_size and not regroup):
        return None  # nothing tells along which axis rows lie
    ((_, axis),) = given.paths
    large = int(max(given.rows[1]) > max(given.rows[0]))
    small, by = 1 - large, "bytes"  # what the rows have in common
    try:
        for record in (*records[0], *records[1]):
            record.array()
    except (ArrayFileError, OSError):
        return None  # said of the record itself
    found = Rows.of(given, small, given.digests, same_given=False)
    if not found.matched and (near := _nearest(records[small], records[large], axis)):
        starts = [0, *itertools.accumulate(given.rows[large])]

        def names(side: int, number: int) -> list[bytes]:
            own = range(starts[number], starts[number + 1]) if side == large else ()
            return [*map(_name, own)] if side == large else near[number]

        found, by = Rows.of(given, small, names, same_given=False), "nearest"
    if regroup and given.rows[0] == given.rows[1] and not found.moved:
        return None
    pieces, unknown = [], []
    for datum, own in zip(saves[small], found.of_batch):
        if own is None:
            unknown.append(datum.micro_step)
            continue
        sources = [(records[large][number], (row,)) for number, row in own]
        piece = cut_out(sources[0][0], sources, axis)
        first = saves[large][own[0][0]]
        pieces.append(replace(first, micro_step=datum.micro_step, records=(piece,)))
    return large, pieces, unknown, found.how(by)


def _name(row: int) -> bytes:
    return f"row {row}".encode()


def _nearest(
    small: Sequence[Record], large: Sequence[Record], axis: int
) -> list[list[bytes]] | None:
    """Return the name of the row that each smaller save's row is nearest to; None if not certain.

    It is certain where every other row is ten times as far away, and no two rows of a save are
    nearest to the same one.
    """
    try:
        whole = np.concatenate([_matrix(record, axis) for record in large])
        saves = [_matrix(record, axis) for record in small]
    except (ArrayFileError, OSError, ValueError):
        return None
    if len(whole) < 2 or whole.dtype.kind != "f" or len(whole) * whole.size > _MOST_DISTANCES:
        return None
    names = []
    for rows in saves:
        nearest = []
        for row in rows:
            with np.errstate(all="ignore"):
                distances = np.abs(whole - row).astype(np.float64).sum(axis=1)
            first, second = np.argsort(distances)[:2]
            if not 10 * distances[first] <= distances[second]:  # nor where one is NaN
                return None
            nearest.append(_name(int(first)))
        if len({*nearest}) < len(nearest):
            return None
        names.append(nearest)
    return names


def _matrix(record: Record, axis: int) -> np.ndarray:
    rows = np.moveaxis(record.array(), axis, 0)
    return rows.reshape(len(rows), -1)
