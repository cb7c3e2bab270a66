"""Blank workbooks: sheets with headers, widths, filters and styles, and no rows yet.

openpyxl makes them. To import it takes as long as to import numpy, so a command that writes tables
lets a process of its own do both while the runs are compared (`made_beside`). Everywhere else, and
where that process cannot be had or ends early, they are made here when they are needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING

from mindrlhf_msprobe.report.formats.outline import Blank, Outline

if TYPE_CHECKING:
    from mindrlhf_msprobe.report.formats.blank_process import BlankProcess

_MOST_AHEAD = 4  # so that neither process waits for the other to read: a pipe holds 64 KiB


_process: ContextVar[BlankProcess | None] = ContextVar("blank_process", default=None)


@contextlib.contextmanager
def made_beside() -> Iterator[None]:
    """Have blank workbooks made by a process of its own, where there is a core for it."""
    from mindrlhf_msprobe.report.formats.blank_process import start

    process = start()
    token = _process.set(process)
    try:
        yield
    finally:
        _process.reset(token)
        if process is not None:
            process.close()


def is_made_beside() -> bool:
    """Tell whether another process makes blank workbooks."""
    return _process.get() is not None


def expect(workbooks: Iterable[tuple[Outline, ...]], *, no_others: bool) -> None:
    """Have blank workbooks made while this process goes on.

    Args:
        no_others: these are all that will be wanted, so the process that makes them can end.
    """
    process = _process.get()
    if process is None:
        return
    wanted = list(dict.fromkeys(workbooks))
    for outlines in wanted[:_MOST_AHEAD]:
        process.ask(outlines)
    if no_others and len(wanted) <= _MOST_AHEAD:
        process.ask_no_more()


def blank(outlines: tuple[Outline, ...]) -> Blank:
    """Return the blank workbook of these sheets."""
    process = _process.get()
    made = None if process is None else process.take(outlines)
    return _made_here(outlines) if made is None else made


@lru_cache(maxsize=8)  # the tables of most keys have the same outline
def _made_here(outlines: tuple[Outline, ...]) -> Blank:
    from mindrlhf_msprobe.report.formats.blank_openpyxl import make

    return make(outlines)
