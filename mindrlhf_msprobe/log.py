"""The package's logger; its level follows MSPROBE_LOG_LEVEL as in msprobe."""

from __future__ import annotations

import logging
import os

_LEVELS = {
    "0": logging.DEBUG,
    "1": logging.INFO,
    "2": logging.WARNING,
    "3": logging.ERROR,
    "4": logging.CRITICAL + 1,
}

logger = logging.getLogger("mindrlhf_msprobe")


def configure(rank: int | None = None) -> None:
    """Set the level from MSPROBE_LOG_LEVEL (0 debug … 4 silent, default 1 info).

    A handler on stderr is added only where the application has configured none, so that a
    trainer's own logging set-up stays in charge.
    """
    logger.setLevel(_LEVELS.get(os.environ.get("MSPROBE_LOG_LEVEL", "1"), logging.INFO))
    if not logger.hasHandlers():
        where = "" if rank is None else f" [rank {rank}]"
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"msprobe %(levelname)s{where} %(message)s"))
        logger.addHandler(handler)
