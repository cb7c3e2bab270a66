"""Values → what a cell can hold. Names and texts of a dump are data, never formulas."""

from __future__ import annotations

import re
from typing import Any

#: What XML cannot hold at all, and what has no UTF-8 form.
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
#: What makes a spreadsheet take the text of a CSV cell for a formula; the wide forms as well.
_FORMULA = frozenset("=+-@\t\r\n＝＋－＠")


def plain(value: Any) -> bool | int | float | str | None:
    """Return `value` as one of the kinds a cell holds; what is none of them becomes text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    return clean(str(value))


def clean(text: str) -> str:
    """Return `text` with what no file can hold as U+FFFD."""
    return text if text.isprintable() else _UNWRITABLE.sub("�", text)


def harmless(text: str) -> str:
    """Return `text` so that a spreadsheet which opens a CSV file does not compute it."""
    return "'" + text if text[:1] in _FORMULA else text
