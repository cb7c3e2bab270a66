"""A progress bar on stderr, shown only on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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
