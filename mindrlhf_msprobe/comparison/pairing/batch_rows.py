"""Which rows of the larger batches of one phase the smaller batches of another one hold."""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.phases import UPDATE_PHASES
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.records import Entry, Record

FORWARD = "forward"

#: A row of a batch: the number of the batch, and the row in it.
Row = tuple[int, int]

#: Of each side, how many rows each batch has.
_Counts = tuple[tuple[int, ...], tuple[int, ...]]


class Batches:
    """The batches of one side: its entries, by cell and batch.

    A batch is one call of the outermost cell that was recorded, which begins first; every other
    cell runs as often for one batch as for another, or is not cut.

    Args:
        common_name: returns the name that both sides have for a cell.
        phase: what the side itself calls its phase.
    """

    def __init__(
        self, entries: Sequence[Entry], common_name: Callable[[str], str | None], phase: str
    ) -> None:
        self._updates = phase in UPDATE_PHASES
        self.entries = sorted(entries, key=lambda entry: entry.seq)
        self.cells: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            name = common_name(entry.cell)
            if entry.direction == FORWARD and name is not None:
                self.cells[name].append(entry)
        for calls in self.cells.values():
            calls.sort(key=lambda entry: entry.call)
        first = next((e for e in self.entries if e.direction == FORWARD), None)
        self.leading = None if first is None else common_name(first.cell)
        self.count = len(self.cells.get(self.leading or "", ()))
        tokens = any(entry.token is not None for entry in self.entries)
        self.usable = self.count > 0 and not tokens

    def per_batch(self, cell: str) -> int:
        """Return how often a cell runs for one batch; 0 where that is not known."""
        calls = len(self.cells.get(cell, ()))
        return calls // self.count if calls % self.count == 0 else 0

    def is_even(self, cell: str, other: Batches) -> bool:
        """Return whether a cell is known to run equally often in a batch of both sides."""
        return 0 < self.per_batch(cell) == other.per_batch(cell)

    def batch(self, cell: str, number: int) -> list[Entry]:
        """Return the calls of a cell for one batch."""
        each = self.per_batch(cell)
        return self.cells[cell][number * each : (number + 1) * each]

    def entries_of(self, number: int) -> Iterator[tuple[str, int, Entry]]:
        """Yield (cell, which call, entry) of one batch."""
        for cell in self.cells:
            for call, entry in enumerate(self.batch(cell, number)):
                yield cell, call, entry

    def given(self) -> list[dict[str, Record]]:
        """Return the tensors that the leading cell was given, batch by batch, by their paths."""
        firsts = (self.batch(self.leading or "", number)[0] for number in range(self.count))
        return [
            {r.path: r for r in first.records if r.io == "input" and r.leaf.is_tensor}
            for first in firsts
        ]

    def first_updated(self) -> int:
        """Return the first batch before which parameters changed: those are recorded again.

        Where none were recorded, an update phase may change them between any two of its openings.
        """
        seen: set[tuple[str, str]] = set()
        for number in range(self.count):
            records = [(e.call_name, r) for _, _, e in self.entries_of(number) for r in e.records]
            own = {(name, r.path) for name, r in records if r.io == "parameters"}
            if own & seen:
                return number
            seen |= own
        if self._updates and not seen and self.leading is not None:
            openings = [self.batch(self.leading, i)[0].opening for i in range(self.count)]
            return openings.count(openings[0])
        return self.count


@dataclass(frozen=True)
class Given:
    """What tells the rows of two sides' batches apart.

    Attributes:
        inputs: of each side, batch by batch: path → the record. Of cells what the leading one was
            given, of a key what was saved.
        paths: of those that hold a row for each row of the batch, and the axis of the rows.
        rows: of each side, how many each batch has.
        kept: of each side, how many batches lie before an update.
    """

    inputs: Sequence[Sequence[Mapping[str, Record]]]
    paths: tuple[tuple[str, int], ...]
    rows: _Counts
    kept: tuple[int, int]

    @classmethod
    def of(
        cls,
        inputs: Sequence[Sequence[Mapping[str, Record]]],
        kept: tuple[int, int],
        *,
        regroup: bool = False,
    ) -> Given | None:
        """Return what tells rows apart; None where nothing says how many there are.

        Args:
            regroup: where no sizes differ, what is given first is cut along its first axis.
        """
        found = {path: [[of.get(path) for of in side] for side in inputs] for path in inputs[0][0]}
        rows: _Counts | None = None
        paths: list[tuple[str, int]] = []
        for path, records in found.items():  # along the one axis along which they differ in size
            axes = unlike_axes([record for side in records for record in side])
            sizes = _sizes(records, axes[0]) if axes is not None and len(axes) == 1 else None
            if axes is not None and sizes is not None and rows in (None, sizes):
                rows = sizes
                paths.append((path, axes[0]))
        for path, records in found.items() if rows is None and regroup else ():
            sizes = _sizes(records, 0)
            if sizes is not None and rows in (None, sizes):
                rows = sizes
                paths.append((path, 0))
        return None if rows is None else cls(inputs, tuple(paths), rows, kept)

    @property
    def stored(self) -> bool:
        """Whether the elements of all of these inputs are at hand."""
        batches = (of for side, n in zip(self.inputs, self.kept) for of in side[:n])
        return all(of[path].location is not None for of in batches for path, _ in self.paths)

    @property
    def of_one_size(self) -> bool:
        """Whether the batches that are compared with each other are of one size."""
        n = min(map(len, self.rows))
        return self.rows[0][:n] == self.rows[1][:n]

    @property
    def regrouped(self) -> bool:
        """Whether two sides were given the same rows, in other places of their batches."""
        if not self.stored:
            return False
        found = [
            [row for number in range(n) for row in self.digests(side, number)]
            for side, n in enumerate(self.kept)
        ]
        return found[0] != found[1] and sorted(found[0]) == sorted(found[1])

    @property
    def small(self) -> int:
        """The side with the smaller batches."""
        largest = [max(rows) for rows in self.rows]
        if largest[0] != largest[1]:
            return int(largest[1] < largest[0])
        return int(len(self.rows[1]) > len(self.rows[0]))

    def digests(self, side: int, number: int) -> list[bytes]:
        """Return what tells the rows of a batch apart: all that was given of each."""
        hashes = [hashlib.blake2b(digest_size=16) for _ in range(self.rows[side][number])]
        for path, axis in self.paths:
            record = self.inputs[side][number][path]
            try:
                array = np.moveaxis(record.array(), axis, 0)
                for one, row in zip(hashes, array):
                    one.update(f"{path} {record.leaf.dtype} {row.shape} ".encode())
                    one.update(np.ascontiguousarray(row).tobytes())
            except (ArrayFileError, OSError):  # the record itself will be called unreadable
                for row, one in enumerate(hashes):
                    one.update(f"{side} {number} {row}".encode())
        return [one.digest() for one in hashes]


def _sizes(records: Sequence[Sequence[Record | None]], axis: int) -> _Counts | None:
    """Return how large an input is along an axis in each batch; None where one has no such."""
    shapes = [
        [None if record is None else record.leaf.shape for record in side] for side in records
    ]
    if not all(shape for side in shapes for shape in side):
        return None
    a, b = (tuple(shape[axis] for shape in side if shape) for side in shapes)
    return a, b


def unlike_axes(records: Sequence[Record | None]) -> list[int] | None:
    """Return the axes along which tensors differ in size; None where they cannot be compared."""
    shapes = {None if record is None else record.leaf.shape for record in records}
    if None in shapes or len({len(shape or ()) for shape in shapes}) > 1:
        return None
    return [i for i, sizes in enumerate(zip(*shapes)) if len({*sizes}) > 1]


@dataclass(frozen=True)
class Rows:
    """Which rows of the larger batches the smaller ones hold.

    Attributes:
        of_batch: for each smaller batch, its rows; None where they are not known.
        matched: how many have a row that nothing tells from them.
        assumed: how many have none, and stand in the order of their batches.
        moved: whether rows stand in another order.
    """

    of_batch: tuple[tuple[Row, ...] | None, ...]
    matched: int
    assumed: int
    moved: bool

    @classmethod
    def of(
        cls,
        given: Given,
        small: int,
        names: Callable[[int, int], Sequence[bytes]],
        *,
        same_given: bool = True,
    ) -> Rows:
        """Bring the rows of both sides together by what tells them apart.

        Args:
            small: the side with the smaller batches.
            names: returns what tells the rows of a side's batch apart.
            same_given: whether equal rows were given the same, so that one without a partner was
                given something else. Else a row that is compared may differ, and stands in its
                order only if no other row of its pass has another place.
        """
        sizes, kept = given.rows[small], given.kept
        large = [
            ((number, row), name)
            for number in range(kept[1 - small])
            for row, name in enumerate(names(1 - small, number))
        ]
        batches = [
            names(small, number) if number < kept[small] else None for number in range(len(sizes))
        ]
        whole = sum(given.rows[1 - small])
        found: list[tuple[Row, ...] | None] = []
        same: list[bool] = []
        moved = False
        for numbers, regular in _passes(sizes, whole):
            each = [batches[number] or () for number in numbers]
            starts = itertools.accumulate((sizes[number] for number in numbers), initial=0)
            wanted = [
                (start + i, row) for start, own in zip(starts, each) for i, row in enumerate(own)
            ]
            partners = _partners(wanted, large, regular, same_given)
            order = [row for row, _ in partners if row is not None]
            moved |= any(x > y for x, y in itertools.pairwise(order))
            left = iter(partners)
            for own in each:
                of_own = [*itertools.islice(left, len(own))]
                rows = tuple(row for row, _ in of_own if row is not None)
                known = of_own and len(rows) == len(of_own)  # not if one row is not
                found.append(rows if known else None)
                same += [equal for _, equal in of_own] if known else []
        return cls(tuple(found), sum(same), len(same) - sum(same), moved)

    def how(self, by: str = "inputs") -> Message:
        """Return how rows were brought together, as the end of a sentence.

        Args:
            by: what rows that are compared have in common: the same `inputs`, the
                same `bytes`, or that they are the `nearest`.
        """
        found = {"matched": bool(self.matched), "assumed": bool(self.assumed)}
        return message("pairing.rows", alike=by, moved=bool(self.moved), **found)


def _passes(sizes: Sequence[int], whole: int) -> Iterator[tuple[list[int], bool]]:
    """Yield batches that together are as many rows as the whole; the rest, if any, is not."""
    batches: list[int] = []
    rows = 0
    for number, size in enumerate(sizes):
        batches.append(number)
        rows += size
        if rows == whole:
            yield batches, True
            batches, rows = [], 0
    if batches:
        yield batches, False


def _partners(
    wanted: Sequence[tuple[int, bytes]],
    large: Sequence[tuple[Row, bytes]],
    regular: bool,
    same_given: bool,
) -> list[tuple[Row | None, bool]]:
    """Return the row that is compared with each wanted one, and whether the two are equal.

    Args:
        wanted: (place in the pass, what tells the row apart).
    """
    equal = _equal_rows(wanted, [digest for _, digest in large])
    if not same_given:
        regular &= all(place in (None, own) for place, (own, _) in zip(equal, wanted))
    taken = set(equal)
    free = dict.fromkeys(place for place in range(len(large)) if place not in taken)
    found = list(equal)
    for i, (own, _) in enumerate(wanted):
        if found[i] is None and regular and free:
            place = own if own in free else next(iter(free))
            found[i] = place
            del free[place]
    return [(None if p is None else large[p][0], q is not None) for p, q in zip(found, equal)]


def _equal_rows(wanted: Sequence[tuple[int, bytes]], large: Sequence[bytes]) -> list[int | None]:
    """Return where each wanted row has an equal one: at its own place if it can, else first."""
    found = [own if own < len(large) and large[own] == digest else None for own, digest in wanted]
    taken = set(found)
    places: dict[bytes, deque[int]] = defaultdict(deque)
    for place, digest in enumerate(large):
        if place not in taken:
            places[digest].append(place)
    for i, (_, digest) in enumerate(wanted):
        if found[i] is None and places[digest]:
            found[i] = places[digest].popleft()
    return found
