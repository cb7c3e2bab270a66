"""How many cores there are for this process."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Return how many cores this process may use; all of the machine where none can be named."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on this platform, or refused in a sandbox
        return os.cpu_count() or 1
