"""opinions.rank<N>.jsonl: what a second computation thinks of one rank's calls, a line each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.atomic import dump_json, write_all, write_atomic
from mindrlhf_msprobe.storage.reading.opinions import read_lines


class OpinionsFile:
    """Appends opinions to the file of one rank, each as a whole line, as soon as it is given.

    What an earlier attempt wrote of the steps from `first_step` on goes: they are recorded again.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, root: Path, rank: int, first_step: int) -> None:
        self._root, self._rank = root, rank
        self._path = root / layout.opinions_name(rank)
        forget_opinions(root, rank, first_step)

    def append(self, opinion: Mapping[str, Any]) -> None:
        """Append the opinion on one call; the file is made with the first.

        Args:
            opinion: has at least `step`, `rank`, `phase`, `entry` and `tensors` or `why`.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self._path, flags, 0o666)
        try:
            before = os.fstat(file).st_size
            try:
                write_all(file, _line(opinion))
            except OSError:  # on a full disk part of a line may be there
                os.ftruncate(file, before)
                raise
        finally:
            os.close(file)


def forget_opinions(root: Path, rank: int, first_step: int) -> None:
    """Remove what is written of a rank's steps from one on, which are recorded again.

    Raises:
        OSError: the file cannot be written.
    """
    path = root / layout.opinions_name(rank)
    if not os.path.lexists(path):
        return
    plain = path.is_file() and not path.is_symlink()
    if not plain or not write_atomic(path, _before(root, rank, first_step)):
        path.unlink()


def _before(root: Path, rank: int, first_step: int) -> Iterator[bytes]:
    for line in read_lines(root, rank):
        if line["step"] < first_step:
            yield _line(line)


def _line(opinion: Mapping[str, Any]) -> bytes:
    return dump_json(opinion) + b"\n"
