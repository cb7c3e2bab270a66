"""The package's logger; its level follows MSPROBE_LOG_LEVEL as in msprobe."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, TextIO

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.common.printable import printable_lines

VARIABLE = "MSPROBE_LOG_LEVEL"
_LEVELS = {
    "0": logging.DEBUG,
    "1": logging.INFO,
    "2": logging.WARNING,
    "3": logging.ERROR,
    "4": logging.CRITICAL + 1,
}

logger = logging.getLogger("mindrlhf_msprobe")


def warn(code: str, /, **params: Any) -> None:
    """Warn by the message of a code."""
    logger.warning("%s", message(code, **params), stacklevel=2)


def inform(code: str, /, **params: Any) -> None:
    """Say the message of a code at level info."""
    logger.info("%s", message(code, **params), stacklevel=2)


class _Shown(logging.Filter):
    """Puts the rank before every message, and lets nothing in it steer a terminal."""

    rank: int | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if self.rank is not None and not hasattr(record, "msprobe_rank"):
            record.msprobe_rank = self.rank
            record.msg = f"[rank {self.rank}] {record.msg}"
        text = record.getMessage()
        if not text.isprintable():
            record.msg, record.args = printable_lines(text), ()
        return True


class _Fallback(logging.StreamHandler[TextIO]):
    """Shows messages on stderr while the application has no handler that would."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("msprobe %(levelname)s %(message)s"))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        others = [handler for handler in logger.handlers if handler is not self]
        if not others and not (logger.propagate and logging.root.handlers):
            super().emit(record)


_shown = _Shown()
_refused: set[str] = set()


def configure(rank: int | None = None) -> None:
    """Set the level from MSPROBE_LOG_LEVEL (0 debug … 4 silent, default 1 info).

    Where the variable is not set, a level that the application has set stays. Messages go to
    stderr only while the application has configured no handler: its own set-up stays in charge.

    Args:
        rank: stands before every message from now on.
    """
    if rank is not None:
        _shown.rank = rank
    value = os.environ.get(VARIABLE, "").strip()
    if value in _LEVELS:
        logger.setLevel(_LEVELS[value])
    elif value or logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if value and value not in _LEVELS and value not in _refused:
        _refused.add(value)
        warn("log.level", name=VARIABLE, value=value)


if not logger.handlers:
    logger.addFilter(_shown)
    logger.addHandler(_Fallback())
    configure()
