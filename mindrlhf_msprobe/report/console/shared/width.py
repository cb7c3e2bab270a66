"""Texts on a terminal: how wide they are, and how long lines are broken.

A Chinese character takes two columns. textwrap and rich break at spaces alone and cut what is
longer wherever a line ends, names of cells and paths among it; Chinese has no spaces.
"""

from __future__ import annotations

import re
import shutil
import unicodedata
from typing import TextIO

_WIDE = "WF"  # East Asian wide and fullwidth
#: What is not broken: a wide character with the punctuation behind it, or a word of others.
_PIECES = re.compile(
    r"\s+|[（「《“]*[\u2e80-\u9fff\uf900-\ufaff][，。；：、）」》”！？…]*"
    r"|[^\s\u2e80-\u9fff\uf900-\ufaff]+?(?:[，。；：、）」》！？]+|(?=[\s\u2e80-\u9fff\uf900-\ufaff（]|$))"
)
_LEAST = 40  # columns below which nothing is broken
_INDENT = 4  # of what continues a line, beyond the line's own


def width_of(text: str) -> int:
    """Return how many columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 2 if _is_wide(char) else 1 for char in text)


def padded(text: str, width: int) -> str:
    """Return a text with spaces behind it, so that it takes `width` columns."""
    return text + " " * (width - width_of(text))


def wrapped(line: str, width: int) -> list[str]:
    """Return a line as lines of at most `width` columns, the further ones indented.

    A word that is longer, a path say, stays whole: it can be marked and copied.
    """
    if width < _LEAST or width_of(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + _INDENT)
    lines, current, used = [], "", 0
    for piece in _PIECES.findall(line):
        columns = width_of(piece)
        if current.strip() and not piece.isspace() and used + columns > width:
            lines.append(current.rstrip())
            current, used = indent, len(indent)
        elif piece.isspace() and lines and not current.strip():
            continue  # at the beginning of a further line
        current += piece
        used += columns
    return [*lines, current.rstrip()]


def fitted(text: str, stream: TextIO) -> str:
    """Return a text of several lines as a stream shows it: broken on a terminal, else as it is."""
    try:
        terminal = stream.isatty()
    except ValueError:  # it is closed
        terminal = False
    if not terminal:
        return text  # for grep and scripts: a line is a line
    width = shutil.get_terminal_size().columns
    return "\n".join(part for line in text.split("\n") for part in wrapped(line, width))


def _is_wide(char: str) -> bool:
    return unicodedata.east_asian_width(char) in _WIDE
