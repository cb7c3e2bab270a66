"""Which item of one sequence is which of another, where some were put in or taken out.

The order of both is kept. Of all ways to pair them, the one is taken whose pairs are worth most,
and of equal ones the one that pairs the earliest items.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence

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
    """Return the pairs that are worth most, the earliest ones of equal ways."""
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
    return [(of_a[0] + i, of_b[0] + j) for i, j in _best_pairs(values, most)]


def _best_pairs(values: list[list[int]], most: list[list[int]]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of places that are worth most together.

    Args:
        values: what each pair is worth.
        most: from each pair of places on.
    """
    i = j = 0
    while i < len(values) and j < len(values[0]):
        if values[i][j] and most[i][j] == values[i][j] + most[i + 1][j + 1]:
            yield i, j
            i, j = i + 1, j + 1
        elif most[i][j] == most[i + 1][j]:
            i += 1
        else:
            j += 1


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
