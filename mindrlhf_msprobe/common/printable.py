"""The one door for texts that are shown: what comes from a file cannot steer a terminal.

Numbers as people read them, sizes and spans, are the same in every language.

Control characters (escape sequences among them), characters that turn the direction of a line or
end it, and what has no UTF-8 form are shown as escapes; a text without an end is cut.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def address_free(text: str) -> str:
    """Return a text without memory addresses, which are others in every process."""
    return _ADDRESS.sub("", text)


def cut(text: str, most: int, *, with_length: bool = False) -> str:
    """Return a text; of a longer one its first characters, and how many it has `with_length`."""
    if len(text) <= most:
        return text
    return f"{text[:most]}…" + (f" ({len(text)} characters)" if with_length else "")


def shortened(text: object, most: int = 300) -> str:
    """Return a text that a file gives as a sentence quotes it.

    It is cut, and memory addresses are left out.
    """
    return cut(address_free(str(text)), most, with_length=True)


def printable(line: str) -> str:
    """Return a text as one line that can be shown."""
    return visible(cut(line, 20_000, with_length=True))


def visible(text: str, keep: str = "") -> str:
    """Return a text with escapes for what steers what shows it; whitespace may be kept."""
    if text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode() if char not in keep and _is_escaped(char) else char
        for char in text
    )


def printable_lines(text: str) -> str:
    """Return a text of several lines, each of which can be shown."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """Return JSON, on several lines, that says the same and can be shown."""
    if text.isascii():
        return text
    return "".join(
        json.dumps(char)[1:-1] if char != "\n" and _is_escaped(char) else char for char in text
    )


def _is_escaped(char: str) -> bool:
    category = unicodedata.category(char)
    return category[0] == "C" or category in ("Zl", "Zp")  # what ends a line


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
    return few_ranges([*zip(numbers, numbers)])
