"""What is shown on a terminal: how wide texts are, how long lines are broken, a progress bar.

A Chinese character takes two columns. textwrap and rich break at spaces alone and cut what is
longer wherever a line ends, names of cells and paths among it; Chinese has no spaces.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_WIDE = "WF"  # East Asian wide and fullwidth
#: What is not broken: a wide character with the punctuation behind it, or a word of others. Slow to
#: compile, and most lines are not broken.
_PIECES = (
    r"\s+|[（「《“]*[\u2e80-\u9fff\uf900-\ufaff][，。；：、）」》”！？…]*"
    r"|[^\s\u2e80-\u9fff\uf900-\ufaff]+?(?:[，。；：、）」》！？]+|(?=[\s\u2e80-\u9fff\uf900-\ufaff（]|$))"
)
_LEAST = 40  # columns below which nothing is broken
_INDENT = 4  # of what continues a line, beyond the line's own


def width_of(text: str) -> int:
    """Return how many columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(char)
        else 2
        if unicodedata.east_asian_width(char) in _WIDE
        else 1
        for char in text
    )


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
    for piece in re.findall(_PIECES, line):
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


_REFRESH_SECONDS = 0.1


@contextmanager
def progress_bar(
    what: str, unit: str = "", clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that takes (done, total) and moves the bar.

    Args:
        unit: of what is counted, to show how many a second are done.
    """
    bar = _bar(unit) if sys.stderr.isatty() else None  # rich is slow to import
    if bar is None:
        yield lambda done, total: None
        return
    with bar as progress:
        task = progress.add_task(what, total=None)
        shown = 0.0

        def advance(done: int, total: int) -> None:
            nonlocal shown
            progress.update(task, completed=done, total=total)
            if done == total or clock() - shown >= _REFRESH_SECONDS:
                shown = clock()
                progress.refresh()

        yield advance


def _bar(unit: str) -> Any:
    """Return the bar, or None where rich is missing or damaged: no answer depends on it."""
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            Task,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import ProgressColumn as Column
        from rich.text import Text
    except Exception:
        return None

    class Rate(Column):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f} {unit}/s" if task.speed else "")

    columns: list[Any] = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        *([Rate()] if unit else []),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    ]
    # It has no thread of its own: in a process with threads, workers cannot be forked.
    return Progress(*columns, console=Console(stderr=True), auto_refresh=False)
