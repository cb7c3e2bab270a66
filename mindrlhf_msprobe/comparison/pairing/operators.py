"""Which operator's entry of A is which of B: numbers in their names do not tell.

The calls of an operator are counted over a whole phase, so one call more in one run would shift all
that follow. The operators inside one call of a cell that both runs have are aligned in the
order in which they ran, between the cells that ran there; so are those outside every cell. What is
left over is in one run alone. A backward entry belongs to its forward entry.

Of all pairs of the items of two sequences in order, the one is taken whose pairs are worth
most, and of equal ones the one that pairs the earliest items.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property

from mindrlhf_msprobe.comparison.judging.tolerance import is_finite
from mindrlhf_msprobe.storage.code_lines import users_line
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.operators import parse_operator
from mindrlhf_msprobe.storage.records import Entry, Record

#: What a pair of items is worth: their places → a whole number; 0 or less: they are no pair.
Worth = Callable[[int, int], int]

_EXACT = 1 << 18  # pairs of items that are looked at one by one
_STEPS = 1 << 21  # of the search for the fewest insertions
_INSERTED = 400

_Pairs = list[tuple[int, int]]


def align_sequences(
    a: Sequence[Hashable], b: Sequence[Hashable], worth: Worth, same: Worth
) -> _Pairs:
    """Return the places of items that are pairs, in order.

    Args:
        a, b: the kinds of the items: two items of one kind are worth the most that either of them
            is in any pair, but for what tells equal ones apart.
        worth: of two items.
        same: 1 for two items that cannot be worth more, else 0.
    """
    if tuple(a) == tuple(b):
        return [(i, i) for i in range(len(a))]
    first, last = 0, 0
    shorter = min(len(a), len(b))
    while first < shorter and same(first, first):
        first += 1
    while last < shorter - first and same(len(a) - 1 - last, len(b) - 1 - last):
        last += 1
    ends = [(len(a) - last + i, len(b) - last + i) for i in range(last)]
    middle = _middle(a, b, (first, len(a) - last), (first, len(b) - last), worth)
    return [*((i, i) for i in range(first)), *middle, *ends]


def _middle(
    a: Sequence[Hashable],
    b: Sequence[Hashable],
    of_a: tuple[int, int],
    of_b: tuple[int, int],
    worth: Worth,
) -> _Pairs:
    """Align what lies between two places of each: exactly, or around items of one kind."""
    if (of_a[1] - of_a[0]) * (of_b[1] - of_b[0]) <= _EXACT:
        return _exact(of_a, of_b, worth)
    part_a, part_b = a[of_a[0] : of_a[1]], b[of_b[0] : of_b[1]]
    found = _fewest_insertions(part_a, part_b)
    if found is None:
        found = _nth_of_its_kind(part_a, part_b)
    pairs: _Pairs = []
    at = of_a[0], of_b[0]
    for i, j in [*((of_a[0] + i, of_b[0] + j) for i, j in found), (of_a[1], of_b[1])]:
        if 0 < (i - at[0]) * (j - at[1]) <= _EXACT:
            pairs += _exact((at[0], i), (at[1], j), worth)
        if i < of_a[1] and j < of_b[1]:
            pairs.append((i, j))
        at = i + 1, j + 1
    return pairs


def _exact(of_a: tuple[int, int], of_b: tuple[int, int], worth: Worth) -> _Pairs:
    """Return the pairs that are worth most, the earliest ones of several."""
    rows, columns = range(*of_a), range(*of_b)
    height, width = len(rows), len(columns)
    if not (height and width):
        return []
    most = [[0] * (width + 1) for _ in range(height + 1)]  # from each pair of places on
    values = [[max(worth(i, j), 0) for j in columns] for i in rows]
    for i in range(height - 1, -1, -1):
        row, below, value = most[i], most[i + 1], values[i]
        for j in range(width - 1, -1, -1):
            best = below[j] if below[j] >= row[j + 1] else row[j + 1]
            together = value[j] + below[j + 1]
            row[j] = together if value[j] and together >= best else best
    pairs: _Pairs = []
    i = j = 0
    while i < height and j < width:
        if values[i][j] and most[i][j] == values[i][j] + most[i + 1][j + 1]:
            pairs.append((of_a[0] + i, of_b[0] + j))
            i, j = i + 1, j + 1
        elif most[i][j] == most[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _fewest_insertions(a: Sequence[Hashable], b: Sequence[Hashable]) -> _Pairs | None:
    """Return pairs of one kind such that the fewest items are left (Myers 1986).

    None where that takes too long.
    """
    reach: dict[int, int] = {1: 0}
    trace: list[dict[int, int]] = []
    steps = 0
    for inserted in range(min(len(a) + len(b), _INSERTED) + 1):
        trace.append(dict(reach))
        for k in range(-inserted, inserted + 1, 2):
            down = k == -inserted or (k != inserted and reach.get(k - 1, -1) < reach.get(k + 1, -1))
            i = reach.get(k + 1, 0) if down else reach.get(k - 1, 0) + 1
            j = i - k
            while i < len(a) and j < len(b) and a[i] == b[j]:
                i, j = i + 1, j + 1
                steps += 1
            reach[k] = i
            if i >= len(a) and j >= len(b):
                return _traced(trace, len(a), len(b))
        steps += 2 * inserted + 1
        if steps > _STEPS:
            return None
    return None


def _traced(trace: list[dict[int, int]], i: int, j: int) -> _Pairs:
    pairs: _Pairs = []
    for inserted in range(len(trace) - 1, -1, -1):
        reach, k = trace[inserted], i - j
        down = k == -inserted or (k != inserted and reach.get(k - 1, -1) < reach.get(k + 1, -1))
        before = k + 1 if down else k - 1
        x = reach.get(before, 0)
        y = x - before
        while i > x and j > y and i > 0 and j > 0:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        if inserted:
            i, j = x, y
    return pairs[::-1]


def _nth_of_its_kind(a: Sequence[Hashable], b: Sequence[Hashable]) -> _Pairs:
    """Pair the n-th item of each kind, as far as that keeps the order."""
    places = {item: place for place, item in enumerate(_numbered(b))}
    found = [(i, places[item]) for i, item in enumerate(_numbered(a)) if item in places]
    ends: list[int] = []  # the lowest last place of a chain of each length
    chain: list[int] = []  # which pair that is
    before: list[int] = []
    for number, (_, j) in enumerate(found):
        length = bisect_left(ends, j)
        before.append(chain[length - 1] if length else -1)
        ends[length : length + 1] = [j]
        chain[length : length + 1] = [number]
    pairs = []
    at = chain[-1] if chain else -1
    while at >= 0:
        pairs.append(found[at])
        at = before[at]
    return pairs[::-1]


def _numbered(items: Sequence[Hashable]) -> list[tuple[Hashable, int]]:
    seen: Counter[Hashable] = Counter()
    numbered = []
    for item in items:
        numbered.append((item, seen[item]))
        seen[item] += 1
    return numbered


#: Where operators ran: the nearest cell around that both runs have, by the name of its entry in A;
#: outside every cell the opening of the phase, and the token.
Context = tuple[object, ...]

_CELL = 16  # what a pair of cells is worth beside one of operators
_SAME_LINE, _SAME_FORM, _SAME_OPERATOR, _EDITED_LINE = 4, 3, 2, 1
#: Of the largest value: so far may statistics of one tensor be apart, as kernels round.
NEAR = 1e-3
_EQUAL_FORM, _EQUAL_VALUES = 1, 1  # tell equal ones apart


class Operator:
    """One entry of an operator, as far as it has to be compared with others.

    Args:
        cell: the cell around it, under the name both runs have for it; None if not known.
        called: what it is called in both runs; None: as in its entry's name. With it the runs are
            of two frameworks, and only operators that were given the same are a pair: one of a
            framework often does what several of the other do.
    """

    def __init__(
        self, entry: Entry, cell: str | None, called: Callable[[str], str] | None = None
    ) -> None:
        self.entry = entry
        parts = parse_operator(entry.name)
        name = "" if parts is None else parts.operator
        self.what = (name if called is None else called(name), cell)
        self.across = called is not None
        line = users_line(entry.stack)
        self.line = None if line is None else line.key

    @cached_property
    def given(self) -> list[Record]:
        """What it was given."""
        return [record for record in self.entry.records if record.io == "input"]

    @cached_property
    def form(self) -> tuple[object, ...]:
        """The dtypes and shapes of what it was given."""
        return tuple((r.path, r.leaf.dtype or r.leaf.type, r.leaf.shape) for r in self.given)

    @cached_property
    def values(self) -> tuple[object, ...]:
        """What it was given, as far as it was recorded."""
        found: list[object] = []
        for record in self.given:
            leaf = record.leaf
            if leaf.fingerprint is not None:
                found.append((record.path, leaf.fingerprint))
            elif leaf.is_tensor:
                found.append((record.path, repr((leaf.max, leaf.min, leaf.mean, leaf.norm))))
            else:
                found.append((record.path, leaf.type, repr(leaf.value)))
        return tuple(found)

    @property
    def kind(self) -> tuple[object, ...]:
        """What two of them have in common that are worth the most as a pair."""
        return (*self.what, self.line) if self.line is not None else (*self.what, None, self.form)


#: A cell that both runs have, by the name of its entry in A, or an operator.
Item = str | Operator


def pair_operators(
    a: Mapping[Context, Sequence[Item]], b: Mapping[Context, Sequence[Item]]
) -> dict[str, str]:
    """Return name of B's entry → name of A's, for operators that are compared with each other.

    Args:
        a, b: what ran inside each call of a cell, or outside every cell, in the order of time.
    """
    paired: dict[str, str] = {}
    for context, items in a.items():
        others = b.get(context, ())
        for x, y in _aligned(items, others):
            paired[y.entry.name] = x.entry.name
    return paired


def _aligned(a: Sequence[Item], b: Sequence[Item]) -> list[tuple[Operator, Operator]]:
    lines = [{(x.what[0], x.line) for x in side if isinstance(x, Operator)} for side in (a, b)]
    scale = 2 * (len(a) + len(b)) + 1  # more than all that tells equal ones apart

    def worth(i: int, j: int) -> int:
        x, y = a[i], b[j]
        if isinstance(x, str) or isinstance(y, str):
            return _CELL * scale if x == y else 0
        unknown = x.what[0] == y.what[0] and None in (x.what[1], y.what[1])  # where one of it ran
        if x.what != y.what and not unknown:
            return 0
        if x.across and not _given_the_same(x, y):
            return 0
        if x.line is None or y.line is None:
            most = _SAME_FORM if x.form == y.form else _SAME_OPERATOR
        elif x.line == y.line:
            most = _SAME_LINE
        elif (x.what[0], x.line) in lines[1] or (y.what[0], y.line) in lines[0]:
            return 0
        else:  # two lines may be one that was edited, unless the other run has it, too
            most = _EDITED_LINE
        form = _EQUAL_FORM if x.form == y.form else 0
        return most * scale + form + (_EQUAL_VALUES if form and x.values == y.values else 0)

    def same(i: int, j: int) -> int:
        x, y = a[i], b[j]
        if isinstance(x, str) or isinstance(y, str):
            return int(x == y)
        return int(x.kind == y.kind and x.values == y.values)

    mine, theirs = ([(x,) if isinstance(x, str) else x.kind for x in side] for side in (a, b))
    pairs = align_sequences(mine, theirs, worth, same)
    found = [(a[i], b[j]) for i, j in pairs]
    return [(x, y) for x, y in found if isinstance(x, Operator) and isinstance(y, Operator)]


def _given_the_same(x: Operator, y: Operator) -> bool:
    """Return whether all tensors that two operators were given may be the same ones."""
    given = [[r.leaf for r in one.given if r.leaf.is_tensor] for one in (x, y)]
    if not given[0] or len(given[0]) != len(given[1]):
        return False
    return all(may_be_one(a, b) for a, b in zip(*given))


def may_be_one(a: Leaf, b: Leaf) -> bool:
    """Return whether two tensors have the same extremes and norm, as far as kernels round them."""
    if math.prod(a.shape or ()) != math.prod(b.shape or ()) or a.is_discrete != b.is_discrete:
        return False
    known = [(v, w) for v, w in ((a.max, b.max), (a.min, b.min), (a.norm, b.norm)) if is_finite(v)]
    known = [(v, w) for v, w in known if is_finite(w)]
    largest = max((abs(v) for pair in known for v in pair), default=0.0)
    return len(known) > 1 and all(abs(v - w) <= NEAR * largest for v, w in known)


def pair_backward(paired: Mapping[str, str], a: Sequence[str], b: Sequence[str]) -> dict[str, str]:
    """Return name of B's backward entry → name of A's, for those of paired forward entries.

    Args:
        paired: name of B's forward entry → name of A's.
        a, b: the names of all backward entries of operators.
    """
    there = set(a)
    forward = {name: paired[of] for name in b if (of := forward_of(name)) in paired}
    found = {n: f"{other.removesuffix('.forward')}.backward" for n, other in forward.items()}
    return {name: backward for name, backward in found.items() if backward in there}


def forward_of(backward: str) -> str:
    """Return the name of an operator's forward entry, by that of its backward entry."""
    return f"{backward.removesuffix('.backward')}.forward"
