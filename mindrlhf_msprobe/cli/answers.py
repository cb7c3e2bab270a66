"""How a command answers: exit codes, and results on stdout."""

from __future__ import annotations

import os
import sys

SAME = 0
DIVERGED = 1
UNDECIDED = 2


def answer(text: str, code: int) -> int:
    """Print what was found and return the exit code, also where nobody reads to the end."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        close_stdout()
    return code


def close_stdout() -> None:
    """Let go what stdout still holds: it would raise once more when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
