"""What reading another tool's directory gives, what a format consists of, and what is not read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.foreign.dialect import Dialect
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.place import KeyPlace, LayerPlace
from mindrlhf_msprobe.storage.reading.problems import Problem
from mindrlhf_msprobe.storage.records import Record

_HEAD = 4096  # bytes of a dump.json, before its entries
_LEVEL = re.compile(rb'"level"\s*:\s*"(L2)"')
#: What an operator's kernel wrote: `<type>.<name>.<task>.<stream>.<timestamp>`, maybe with more
#: behind it, but never `.npy`.
_OF_ACL = re.compile(
    r"[^.]+\..+\.[0-9]{1,10}\.[0-9]{1,10}\.[0-9]{10,20}(?:\.(?:input|output)\.[^/]*)?(?:\.bin)?"
)
_MOST_LEVELS, _MOST_DIRECTORIES = 8, 2000


@dataclass(frozen=True)
class Dump:
    """One dump, read.

    Attributes:
        lines: its entries as journal lines.
        unreadable: the files beside the entries that are there and cannot be read, each with why.
        dialect: the name of the tool that wrote it.
        lost: the files that held entries or values which cannot be read, each with why.
    """

    lines: list[JournalLine]
    unreadable: list[tuple[Path, Message]]
    dialect: str
    lost: tuple[tuple[Path, Message], ...] = ()


#: Called with what cannot be read.
OnProblem = Callable[[Problem], None]


class Format:
    """How a directory is read whose steps and ranks lie otherwise than this package's do.

    Attributes:
        dialect: whose it is.
    """

    dialect: Dialect

    def places(
        self, root: Path, problem: OnProblem
    ) -> Iterator[tuple[LayerPlace | KeyPlace, Path]]:
        """Yield what lies below a run's directory, each place with its own directory."""
        raise NotImplementedError

    def dump(self, root: Path, directory: Path) -> Dump:
        """Read layer data, whose files lie in their directory.

        Raises:
            ValueError, OSError: they cannot be read.
        """
        raise NotImplementedError

    def key_data(self, root: Path, directory: Path, at: KeyPlace) -> tuple[Record, ...]:
        """Return the elements of one save."""
        raise NotImplementedError


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
