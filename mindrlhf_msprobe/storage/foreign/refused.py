"""Dumps that are not read: by what they are known, and what to use instead."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage import layout

_HEAD = 4096  # bytes of a dump.json, before its entries
_LEVEL = re.compile(rb'"level"\s*:\s*"(L2)"')
_FRAMEWORK = re.compile(rb'"framework"\s*:\s*"(mindtorch|msadapter)"', re.IGNORECASE)
#: What an operator's kernel wrote: `<type>.<name>.<task>.<stream>.<timestamp>`, maybe with more
#: behind it, but never `.npy`.
_OF_ACL = re.compile(
    r"[^.]+\..+\.[0-9]{1,10}\.[0-9]{1,10}\.[0-9]{10,20}(?:\.(?:input|output)\.[^/]*)?(?:\.bin)?"
)
_MOST_LEVELS, _MOST_DIRECTORIES = 8, 2000


def refused_dump(directories: Iterable[Path]) -> Message | None:
    """Say of msprobe's dumps why they are not read, and what to use instead; None if they are.

    Args:
        directories: those of its dump.json; all are of one job.
    """
    for directory in directories:
        path = directory / layout.DUMP_FILE
        try:
            with layout.open_inside(directory, path, 1 << 62) as file:
                head = file.read(_HEAD).partition(b'"data"')[0]
        except (OSError, ValueError):  # reading it says why
            continue
        if found := _FRAMEWORK.search(head):
            return message("error.msadapter_dump", path=path, framework=found[1].decode())
        if found := _LEVEL.search(head):
            return message("error.kernel_dump", path=path, level=found[1].decode())
        return None
    return None


def refused_files(root: Path) -> Message | None:
    """Say of a directory without a dump.json which files of kernels lie in it; None if none do."""
    for directory, below, files in islice(os.walk(root), _MOST_DIRECTORIES):
        for name in sorted(files):
            if _OF_ACL.fullmatch(name) and not name.endswith(".npy"):
                return message("error.acl_dump", path=root, file=name[:200])
        if len(Path(directory).relative_to(root).parts) >= _MOST_LEVELS:
            below.clear()
    return None
