"""What differs in one parameter of two checkpoints: read and compared in spans of a few MiB."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.comparison.judging.by_statistics import compare_statistics
from mindrlhf_msprobe.comparison.judging.metrics.arrays import (
    SPAN,
    ArrayComparison,
    Lower,
    Threads,
    compare_tensors,
)
from mindrlhf_msprobe.comparison.judging.metrics.blocks import Tolerance
from mindrlhf_msprobe.comparison.judging.noise import Distance, by_distance, distance_of
from mindrlhf_msprobe.comparison.judging.status import side_of_leaf, status_of_elements
from mindrlhf_msprobe.comparison.judging.suspicion import suspicions
from mindrlhf_msprobe.comparison.pairing.composed import transposed
from mindrlhf_msprobe.comparison.pairing.fused import order_between, row_keys
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.findings import Finding, Metrics, Side, Status
from mindrlhf_msprobe.storage.arrays.expression import Expression
from mindrlhf_msprobe.storage.arrays.fingerprint import fingerprint_of_parts
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import CheckpointError
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Record

_IO = "parameters"
_EXPLAINABLE = (Status.NON_FINITE, Status.DIFFERENT)


def compare_parameter(pair: Pair, rank: int, tolerance: Tolerance, threads: Threads) -> Finding:
    """Compare one parameter; its elements where both sides have them, else statistics."""
    status, metrics = Status.UNREADABLE, None
    notes: Messages = ()
    a, b = pair.a, pair.b
    sides = _side(a), _side(b)
    if a is None or b is None:
        status = Status.ONLY_IN_B if a is None else Status.ONLY_IN_A
    elif (unread := next(((s, r) for s, r in zip("AB", (a, b)) if r.leaf.why), None)) is not None:
        notes = (message("note.unreadable_side", side=unread[0], why=unread[1].leaf.why),)
    elif a.leaf.shape != b.leaf.shape:
        shapes = (str([*(record.leaf.shape or ())]) for record in (a, b))
        said = message("note.shapes", **dict(zip("ab", shapes)))
        status, notes = Status.SHAPE_MISMATCH, (said, *_transposed(a, b, threads))
    else:
        stored = a.location is not None and b.location is not None
        compare = _by_elements if stored else _by_statistics
        try:
            status, metrics, notes, sides = compare(a, b, tolerance, threads)
        except (CheckpointError, TypeError) as error:
            notes = (message("note.unreadable", why=error),)
    return finding_of(pair.record.name, rank, status, sides, notes, metrics)


_Judged = tuple[Status, "Metrics | None", Messages, tuple[Side, Side]]


def _by_elements(a: Record, b: Record, tolerance: Tolerance, threads: Threads) -> _Judged:
    compared = _compared(a, b, tolerance, threads)
    status, metrics, notes = status_of_elements(a.leaf, b.leaf, compared, tolerance)
    if a.leaf.dtype != b.leaf.dtype and status is not Status.IDENTICAL:
        dtypes = {"a": a.leaf.dtype, "b": b.leaf.dtype}
        notes = (*notes, message("note.dtypes", **dtypes))
        if compared.rounded_to is not None and status is Status.DIFFERENT:
            status = Status.WITHIN_TOLERANCE
            notes = (message("checkpoint.rounded", **dtypes, to=compared.rounded_to),)
    if status in _EXPLAINABLE:
        moved = _transposed(a, b, threads)
        if not moved and _are_near(*compared.norms):
            moved = _in_another_order(a, b)
        notes = (*notes, *moved)
    counts = ((m.nan_a, m.inf_a), (m.nan_b, m.inf_b)) if (m := metrics) else ((0, 0), (0, 0))
    of_a, of_b = (
        replace(_side(record), norm=norm, nan_count=nan, inf_count=inf)
        for record, norm, (nan, inf) in zip((a, b), compared.norms, counts)
    )
    return status, metrics, notes, (of_a, of_b)


def _by_statistics(a: Record, b: Record, tolerance: Tolerance, threads: Threads) -> _Judged:
    """Compare with what a run recorded without elements."""
    x, y = (r.leaf if r.location is None else describe(r, threads) for r in (a, b))
    sides = side_of_leaf(a.name, x), side_of_leaf(b.name, y)
    if x.dtype != y.dtype and tolerance.bitwise:
        notes = (message("note.dtypes", a=x.dtype, b=y.dtype),)
        return Status.DTYPE_MISMATCH, None, notes, sides
    return (*compare_statistics(x, y, tolerance), sides)


def _transposed(a: Record, b: Record, threads: Threads) -> Messages:
    """Say of two matrices that do not agree if the one is the other one transposed."""
    shape = a.leaf.shape or ()
    matrices = len(shape) == 2 and shape == (b.leaf.shape or ())[::-1] and all(shape)
    if not matrices or a.location is None or b.location is None:
        return ()
    turned, lower = transposed(b), Lower.of(a.leaf.dtype, b.leaf.dtype)
    try:
        # The first row alone: most matrices are no transpose, and few of its elements say so.
        x, y = (_elements(record).read(0, shape[1]) for record in (a, turned))
        same = np.array_equal(x, y, equal_nan=x.dtype.kind in "fc")
        if not (same or (lower is not None and lower.rounds(x, y))):
            return ()
        compared = _compared(a, turned, Tolerance(), threads)
    except (CheckpointError, TypeError) as error:
        return (message("note.unreadable", why=error),)
    if not compared.equal and compared.rounded_to is None:
        return ()
    said = {"a": a.leaf.dtype, "b": b.leaf.dtype, "to": compared.rounded_to}
    cast = () if compared.equal else (message("checkpoint.rounded", **said),)
    return (message("inside.transposed"), *cast)


def _in_another_order(a: Record, b: Record) -> Messages:
    """Say of two matrices if the one has the rows, or the columns, of the other one, moved."""
    same = a.leaf.dtype == b.leaf.dtype and _size(a) <= _MOST_MOVED
    for axis in (0, 1) if same else ():
        own, others = (row_keys(record, transposed=bool(axis)) for record in (a, b))
        if own is None or others is None:
            return ()
        order = order_between(own, others)
        if order is not None:
            places = [*enumerate(order.tolist())]
            moved = [[place, other] for place, other in places if place != other]
            said: dict[str, object] = {"axis": axis, "size": len(places), "moved": len(moved)}
            shifts = {(place - other) % len(places) for place, other in places}
            said |= {"turned": min(shifts)} if len(shifts) == 1 else {}
            return (message("inside.order", **said, **{"from": moved[:_SHOWN]}, name=None),)
    return ()


def say_swapped(
    pairs: Sequence[tuple[int, Pair]], findings: Sequence[Finding], threads: Threads
) -> list[Finding]:
    """Return the findings; of a parameter that stands in the place of another one, they say which.

    Args:
        pairs: what each finding is of, with its rank.
    """
    by_kind: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, (one, (rank, _)) in enumerate(zip(findings, pairs)):
        if one.status is Status.DIFFERENT and one.a.norm and one.b.norm:
            by_kind[rank, one.a.dtype, one.b.dtype, one.a.shape].append(number)
    places: dict[int, dict[str, str]] = defaultdict(dict)
    for numbers in by_kind.values():
        in_b = sorted((findings[number].b.norm or 0.0, number) for number in numbers)
        for here in numbers:
            norm, mine = findings[here].a.norm or 0.0, pairs[here][1].a
            first = bisect_left(in_b, (norm - _NEAR * norm, 0))
            for other, there in in_b[first : first + _MOST_NEAR]:
                theirs = pairs[there][1].b
                if there == here or mine is None or theirs is None or not _are_near(norm, other):
                    continue
                if _are_one(mine, theirs, threads):
                    places[here]["b"], places[there]["a"] = theirs.name, mine.name
                    break
    return [
        _with_note(one, message("inside.elsewhere", a=of.get("a"), b=of.get("b")))
        if (of := places.get(number))
        else one
        for number, one in enumerate(findings)
    ]


_SHOWN = 32  # rows that stand in other places
_NEAR = 1e-6  # relative, of the norms of the same elements that were added in any order
_MOST_NEAR = 8  # parameters of about one norm that are compared with one
_MOST_MOVED = 1 << 26  # elements of a matrix whose rows are looked for


def _are_near(a: float | None, b: float | None) -> bool:
    """Return whether two norms may be of the same elements, which were added in any order."""
    return a is not None and b is not None and abs(a - b) <= _NEAR * abs(a)


def _are_one(a: Record, b: Record, threads: Threads) -> bool:
    """Return whether two parameters have the same elements, and not all of these are one number."""
    try:
        some = _elements(a).read(0, min(_size(a), SPAN))
        return some.max() != some.min() and _compared(a, b, Tolerance(), threads).equal
    except (CheckpointError, TypeError):
        return False


def _side(record: Record | None) -> Side:
    return Side() if record is None else Side(record.name, record.leaf.dtype, record.leaf.shape)


def finding_of(
    name: str,
    rank: int,
    status: Status,
    sides: tuple[Side, Side],
    notes: Messages = (),
    metrics: Metrics | None = None,
) -> Finding:
    """Return what is found of one entry of a checkpoint."""
    found = Finding(name, status, 0, rank, None, _IO, name, *sides, metrics=metrics, notes=notes)
    (why,) = suspicions([found])
    return replace(found, suspicions=why) if why else found


def against_noise(
    finding: Finding, members: Sequence[Record], b: Record, threads: Threads
) -> tuple[Finding, bool]:
    """Return the finding with how it stands to the noise, and whether that explains it.

    Args:
        members: the parameter of A and of A's repetitions, as far as they have it.
    """
    if finding.status not in _EXPLAINABLE:
        return finding, False
    runs = len(members) - 1
    usable = [r.leaf for r in (*members, b) if r.location is not None and r.leaf.why is None]
    same = len({(leaf.dtype, leaf.shape) for leaf in usable}) == 1
    if not runs or len(usable) < runs + 2 or not same:
        return _with_note(finding, message("checkpoint.no_noise")), False
    values = (_size(b),) * (1 if b.leaf.is_discrete else 2)

    def distance(x: Record, y: Record) -> Distance:
        return distance_of(_compared(x, y, Tolerance(), threads), b.leaf)

    try:
        noise = by_distance(b, members, distance, values)
    except CheckpointError as error:
        return _with_note(finding, message("note.noise_unknown", error=error)), False
    status = Status.WITHIN_TOLERANCE if noise.natural else finding.status
    return _with_note(replace(finding, status=status), noise.note), noise.natural


def _with_note(finding: Finding, note: Message) -> Finding:
    return replace(finding, notes=(*finding.notes, note))


def _size(record: Record) -> int:
    return math.prod(record.leaf.shape or ())


def _compared(a: Record, b: Record, tolerance: Tolerance, threads: Threads) -> ArrayComparison:
    """Compare the elements of two parameters of one shape, also as rounded to the lower dtype.

    Raises:
        CheckpointError: a file cannot be read.
        TypeError: the elements are no numbers.
    """
    lower = Lower.of(a.leaf.dtype, b.leaf.dtype)
    return compare_tensors(_elements(a), _elements(b), tolerance, threads, lower)


def _elements(record: Record) -> Expression:
    """Return the elements of a parameter, to be read by spans.

    Raises:
        CheckpointError: a file that a run recorded cannot be read.
    """
    try:
        return record.opened()
    except (ArrayFileError, OSError, ValueError) as error:
        path = str(record.file)
        raise CheckpointError.saying("unread.at", path=path, why=error) from None


def describe(record: Record, threads: Threads) -> Leaf:
    """Return the statistics and the fingerprint of a parameter, as a run records them.

    Raises:
        CheckpointError: a file cannot be read.
    """
    statistics, elements = _Statistics(), _elements(record)
    dtype, shape = record.leaf.dtype or "", record.leaf.shape or ()

    def parts() -> Iterator[np.ndarray]:
        for part in threads.in_order(elements.read, _size(record)):
            statistics.add(part)
            yield part

    return statistics.leaf(record.leaf, fingerprint_of_parts(dtype, shape, parts()))


class _Statistics:
    """What is accumulated over the parts of a parameter; IEEE rules: one NaN makes them NaN."""

    def __init__(self) -> None:
        self._extremes: list[np.generic] = []
        self._sum = self._squares = 0.0
        self._nan = self._inf = 0
        self._size = 0

    def add(self, part: np.ndarray) -> None:
        """Add a part."""
        self._extremes += [part.max(), part.min()]
        self._size += part.size
        wide = part.astype(np.float64)
        with np.errstate(all="ignore"):
            self._sum += float(wide.sum())
            self._squares += float(wide @ wide)
        if part.dtype.kind == "f":
            self._nan += int(np.isnan(part).sum())
            self._inf += int(np.isinf(part).sum())

    def leaf(self, leaf: Leaf, fingerprint: str) -> Leaf:
        """Return the description of a parameter with what its parts, which were added, say."""
        leaf = replace(leaf, fingerprint=fingerprint)
        if not self._size:
            return leaf
        extremes = np.array(self._extremes)
        leaf = replace(leaf, max=extremes.max().item(), min=extremes.min().item())
        if leaf.dtype == "Bool":
            return leaf
        mean, norm = self._sum / self._size, float(np.sqrt(self._squares))
        return replace(leaf, mean=mean, norm=norm, nan_count=self._nan, inf_count=self._inf)
