"""Numbers as people read them, the same in every language: sizes and spans."""

from __future__ import annotations

from collections.abc import Sequence

_FEW = 8
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: int) -> str:
    """Return a number of bytes in the unit that reads best, e.g. `512 B`, `1.5 KiB`."""
    value = float(min(count, 1 << 200))  # what a shape claims may be beyond every float
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def spans(numbers: Sequence[int]) -> str:
    """Return sorted numbers as spans: 0-2, 5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def few_ranges(ranges: Sequence[Sequence[int]]) -> str:
    """Return the first of ranges (first, last), with how many more there are: 1-3, 5, … (+2)."""
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges[:_FEW])
    return shown + (f", … (+{len(ranges) - _FEW})" if len(ranges) > _FEW else "")


def few_numbers(numbers: Sequence[int]) -> str:
    """Return the first of several numbers, with how many more there are: 0, 2, … (+5)."""
    shown = ", ".join(map(str, numbers[:_FEW]))
    return shown + (f", … (+{len(numbers) - _FEW})" if len(numbers) > _FEW else "")
