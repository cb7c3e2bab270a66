"""Whole numbers as spans, the same in every language."""

from __future__ import annotations

from collections.abc import Sequence


def spans(numbers: Sequence[int]) -> str:
    """Return sorted numbers as spans: 0-2, 5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def few_numbers(numbers: Sequence[int], most: int = 8) -> str:
    """Return the first of several numbers, with how many more there are: 0, 2, … (+5)."""
    shown = ", ".join(map(str, numbers[:most]))
    return shown + (f", … (+{len(numbers) - most})" if len(numbers) > most else "")
