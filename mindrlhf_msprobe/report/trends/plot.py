"""A plot of plain ASCII: what every terminal shows, and every log file keeps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

HEIGHT = 9  # rows
#: What stands for a point of the first line, of the second, and of both in one place.
MARKS, BOTH = "*o", "@"
_BETWEEN, _NOT_FINITE = ".", "!"
_LEAST = 30  # columns


def plot(lines: Sequence[tuple[np.ndarray, np.ndarray]], width: int) -> list[str]:
    """Return the rows of a plot of one or two lines, each at most `width` columns.

    Points of a line are joined by dots; where a value is not finite stands `!` below.

    Args:
        lines: x and y of each, float64 [n], x ascending; at least one point in all.
    """
    x = np.concatenate([line[0] for line in lines])
    finite = np.concatenate([line[1][np.isfinite(line[1])] for line in lines])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    labels = _labels(high, low)
    margin = max(map(len, labels))
    columns = max(_LEAST, width) - margin - 2
    grid = [[" "] * columns for _ in range(HEIGHT)]
    below = [" "] * columns
    span = _Span(float(x.min()), float(x.max()), columns), _Span(high, low, HEIGHT)
    for xs, ys in lines:
        _join(grid, xs, ys, *span)
    for (xs, ys), mark in zip(lines, MARKS):
        for at, value in zip(xs.tolist(), ys.tolist()):
            column = span[0].place(at)
            if not np.isfinite(value):
                below[column] = _NOT_FINITE
                continue
            row = grid[span[1].place(value)]
            row[column] = mark if row[column] in (" ", _BETWEEN, mark) else BOTH
    shown = {0: labels[0], HEIGHT - 1: labels[1]} if high > low else {HEIGHT // 2: labels[0]}
    shown = shown if finite.size else {}
    rows = [f"{shown.get(n, ''):>{margin}} |{''.join(r).rstrip()}" for n, r in enumerate(grid)]
    rows.append(f"{'':>{margin}} +{'-' * columns}")
    if _NOT_FINITE in below:
        rows.append(f"{'':>{margin}}  {''.join(below).rstrip()}")
    return [*rows, f"{'':>{margin}}  {_axis(float(x.min()), float(x.max()), columns)}".rstrip()]


class _Span:
    """Numbers between two ends → places 0 to n − 1; all equal ones stand in the middle."""

    def __init__(self, first: float, last: float, count: int) -> None:
        self._first, self._last, self._count = first, last, count

    def place(self, value: float) -> int:
        if self._first == self._last:
            return self._count // 2
        # Halves first: the distance of two floats may be larger than any float.
        share = (value / 2 - self._first / 2) / (self._last / 2 - self._first / 2)
        return min(self._count - 1, max(0, round(share * (self._count - 1))))


def _join(
    grid: list[list[str]], xs: np.ndarray, ys: np.ndarray, across: _Span, down: _Span
) -> None:
    """Draw dots from each point to the next, unless one of them is not finite."""
    points = list(zip(xs.tolist(), ys.tolist()))
    for (x, y), (next_x, next_y) in itertools.pairwise(points):
        if not (np.isfinite(y) and np.isfinite(next_y)):
            continue
        start, end = across.place(x), across.place(next_x)
        top, bottom = down.place(y), down.place(next_y)
        for column in range(start + 1, end):
            share = (column - start) / (end - start)
            grid[round(top + (bottom - top) * share)][column] = _BETWEEN


def _labels(high: float, low: float) -> tuple[str, str]:
    """Return two numbers as text, with as many digits as tell them apart, four at least."""
    for digits in range(4, 17):
        shown = f"{high:.{digits}g}", f"{low:.{digits}g}"
        if shown[0] != shown[1] or high == low:
            return shown
    return f"{high!r}", f"{low!r}"


def _axis(first: float, last: float, columns: int) -> str:
    ends = f"{int(first)}", f"{int(last)}"
    if first == last:
        return f"{ends[0]:>{columns // 2 + 1}}"
    return ends[0] + ends[1].rjust(columns - len(ends[0]))
