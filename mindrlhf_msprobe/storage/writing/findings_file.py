"""findings.rank<N>.jsonl: what was found in the steps of one rank while it trained, a line each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.fast_json import loads
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import dump_json, write_all, write_atomic


class FindingsFile:
    """Appends findings to the file of one rank, each as a whole line.

    What an earlier attempt found in the steps from `first_step` on goes: they are recorded again.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, root: Path, rank: int, first_step: int) -> None:
        self._path = root / layout.findings_name(rank)
        forget_findings(root, rank, first_step)

    def append(self, *findings: Mapping[str, Any]) -> None:
        """Append findings; the file is made with the first.

        Args:
            findings: each has at least `step`, `rank`, `rule`, `severity`, `code` and `params`.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self._path, flags, 0o666)
        try:
            write_all(file, b"".join(map(_line, findings)))
        finally:
            os.close(file)


def forget_findings(root: Path, rank: int, first_step: int) -> None:
    """Remove what was found in a rank's steps from one on, which are recorded again.

    Raises:
        OSError: the file cannot be written.
    """
    path = root / layout.findings_name(rank)
    if os.path.lexists(path):
        kept = [one for one in read_findings(root, rank) if one["step"] < first_step]
        if kept:
            write_atomic(path, map(_line, kept))
        else:
            path.unlink()


def _line(finding: Mapping[str, Any]) -> bytes:
    return dump_json(finding) + b"\n"


def read_findings(root: Path, rank: int) -> Iterator[dict[str, Any]]:
    """Yield what was found in a rank's steps while it trained; nothing where nothing was.

    A line that is none, as the last one of a killed process may be, is left out.
    """
    try:
        content = layout.read_inside(root, root / layout.findings_name(rank))
    except (OSError, ValueError):
        return
    yield from findings_in(content)


def findings_in(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the findings that whole lines of such a file hold."""
    for raw in content.splitlines():
        try:
            found = loads(raw)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and bounds.is_place(found.get("step")):
            yield found
