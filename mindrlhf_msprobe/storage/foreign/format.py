"""What reading another tool's directory gives, and what a tool's format consists of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.storage.foreign.dialect import Dialect
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.reading.problems import Problem
from mindrlhf_msprobe.storage.records import Record


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


@dataclass(frozen=True)
class Format:
    """How a directory is read whose steps and ranks lie otherwise than this package's do.

    Functions of a module, so that a run can be pickled.

    Attributes:
        dialect: whose it is.
        layers: yields ((phase, step, rank), directory) for layer data below a run's directory.
        dump: reads one of those directories: the run's and its own. It raises ValueError or OSError
            where it cannot. The files of its records lie in it.
        keys: yields ((key, step, rank, micro-step), directory) for key data.
        key_data: returns the elements of one save: the run's directory, its own, key, step, rank.
    """

    dialect: Dialect
    layers: Callable[[Path, OnProblem], Iterator[tuple[tuple[str, int, int], Path]]]
    dump: Callable[[Path, Path], Dump]
    keys: Callable[[Path, OnProblem], Iterator[tuple[tuple[str, int, int, int], Path]]]
    key_data: Callable[[Path, Path, str, int, int], tuple[Record, ...]]
