"""Lists in Chinese."""

from __future__ import annotations

from collections.abc import Sequence


def listed(items: Sequence[str], last: str = "和") -> str:
    """Return `a`, `a 和 b`, `a、b 和 c`."""
    items = [str(item) for item in items]
    if len(items) < 2:
        return "".join(items)
    return f"{'、'.join(items[:-1])} {last} {items[-1]}"
