"""Small files in which the ranks of a job say something to each other."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.storage.arrays.atomic import write_all

_MOST = 1 << 20  # bytes of a file


def digest(ids: Sequence[Any]) -> str:
    """Return a short text for the numbers of processes."""
    return hashlib.sha1("".join(map(str, ids)).encode()).hexdigest()[:12]


def create(path: Path, content: dict[str, Any]) -> bool:
    """Create a file that there is not; return whether it was this process that did.

    Raises:
        OSError: it cannot be written.
    """
    try:
        write(path, json.dumps(content).encode(), os.O_EXCL)
    except FileExistsError:
        return False
    return True


def write(path: Path, content: bytes, flags: int = 0) -> None:
    """Write the beginning of a file, through no link; waits for no reader of a pipe.

    Raises:
        OSError: it cannot be written.
    """
    flags |= os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.open(path, flags, 0o666)
    try:
        write_all(file, content)
    finally:
        os.close(file)


def read(path: Path) -> dict[str, Any] | None:
    """Return what a file holds, {} while it is being written; None where there is none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        found = json.loads(os.read(file, _MOST))
    except (OSError, ValueError, RecursionError):
        return {}
    finally:
        os.close(file)
    return found if isinstance(found, dict) else {}
