"""What a blank workbook is made of: its sheets without their rows, the styles and the colours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

PLAIN = ""
DIFFERS = "differs"
MISSING = "missing"
SUSPICIOUS = "suspicious"
CLOSE = "close"

#: Each colour's name and its fill, as RRGGBB: two reds, orange and yellow.
FILLS = {
    DIFFERS: "FFC7CE",
    MISSING: "FF9999",
    SUSPICIOUS: "FFCC99",
    CLOSE: "FFEB9C",
}

#: The last row of each filter in a blank workbook: the last one of any sheet.
LAST_ROW = 1_048_576

#: How a cell's value is shown.
KINDS = AS_IT_IS, WRAPPED, PERCENT, LINK = "", "wrapped", "percent", "link"
#: The number of a style in the file, by (colour, how its value is shown).
Styles = Mapping[tuple[str, str], int]


class Outline(NamedTuple):
    """What of a sheet is known without its rows; widths are in characters."""

    name: str
    header: tuple[str, ...]
    widths: tuple[float, ...]
    filtered: bool
    frozen: int


class Blank(NamedTuple):
    """The files of a workbook, by name, and the styles that its rows can have."""

    files: Mapping[str, bytes]
    styles: Styles
