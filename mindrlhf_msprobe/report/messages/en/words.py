"""Plurals, ordinals and lists in English."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, what: str) -> str:
    """Return `1 record`, `2 records`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def listed(items: Sequence[str], last: str = "and") -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    items = [str(item) for item in items]
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"
