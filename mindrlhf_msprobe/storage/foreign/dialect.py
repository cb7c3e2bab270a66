"""How the tools differ whose files are read, what a format consists of, and what is not read.

A comparison knows no tool by its name: it reads the dialects of what it compares.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.npy import BFLOAT16, rounded

if TYPE_CHECKING:
    from mindrlhf_msprobe.storage.journal_line import JournalLine
    from mindrlhf_msprobe.storage.place import KeyPlace, LayerPlace
    from mindrlhf_msprobe.storage.reading.problems import Problem
    from mindrlhf_msprobe.storage.records import Record


@dataclass(frozen=True)
class StatisticsDtype:
    """A dtype in which statistics may have been computed.

    Attributes:
        rounding: takes a number to the nearest one of the dtype; None where that is all there is.
        error: what a sum may be off, relative to what is summed.
        largest: the largest finite number of the dtype, beyond which a sum overflows.
    """

    rounding: Callable[[float], float] | None
    error: float
    largest: float


@dataclass(frozen=True)
class Dialect:
    """What one tool's files say, and what they never do.

    Attributes:
        name: the tool's; "" of this package.
        precisions: of statistics; none where they are exact: summed in float64, NaN if one element
            is NaN.
        timed: each entry says when it ran.
        records_cells: it may hold what cells received and returned, not key data alone.
        first_step: the number of its first step; a recording counts from 0.
        printed: its numbers are printed ones, with no more digits than these.
        numbers_single: a single tensor of key data may be saved as the first one of a list is.
        no_root, no_absent_gradient, no_other_keys: why there is no outermost cell, no gradient
            that is None, and nothing but what the trainer saved by name; None where there is.
    """

    name: str = ""
    precisions: tuple[StatisticsDtype, ...] = ()
    timed: bool = True
    records_cells: bool = True
    first_step: int = 0
    printed: bool = False
    numbers_single: bool = False
    no_root: Message | None = None
    no_absent_gradient: Message | None = None
    no_other_keys: Message | None = None


def _float16(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float16(value))


def _bfloat16(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(rounded(np.array([value], np.float32), BFLOAT16)[0])


#: This package's own.
OWN = Dialect()
#: msprobe's. Its statistics are MindSpore's operators on the tensor: they sum float32 in float32,
#: float16 in float16, and in a network under `to_float` they round whatever the cell takes or holds
#: to that dtype first; on CPU its max and min pass over NaN. <key>.npy and <key>0.npy are the same.
MSPROBE = Dialect(
    name="msprobe",
    precisions=(
        StatisticsDtype(None, 1e-5, float(np.finfo(np.float32).max)),
        StatisticsDtype(_float16, 2.0**-10, float(np.finfo(np.float16).max)),
        StatisticsDtype(_bfloat16, 2.0**-7, _bfloat16(3.38e38)),
    ),
    timed=False,
    numbers_single=True,
    no_root=message("coverage.msprobe_no_root"),
    no_absent_gradient=message("coverage.msprobe_no_gradient"),
    no_other_keys=message("coverage.msprobe_never_saved"),
)

#: That of MindSpore's own Dump, whose statistics a device may sum in the dtype of the tensor
#: (`device_stat_precision_mode: low`).
MINDSPORE = Dialect(name="mindspore", precisions=MSPROBE.precisions)
#: That of MindFormers' monitor: scalars alone.
MINDFORMERS = Dialect(
    name="mindformers",
    timed=False,
    records_cells=False,
    first_step=1,
    printed=True,
    no_other_keys=message("coverage.monitor_never_saved"),
)
#: That of the rollouts that hyper-parallel's RL trainer writes: key data alone.
HYPER_RL = Dialect(
    name="hyper_rl",
    timed=False,
    records_cells=False,
    no_other_keys=message("coverage.hyper_rl_never_saved"),
)


#: Every dialect by its name, as leaves have it.
DIALECTS = {dialect.name: dialect for dialect in (OWN, MSPROBE, MINDSPORE, MINDFORMERS, HYPER_RL)}


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
OnProblem = Callable[["Problem"], None]


class Format:
    """How a directory is read whose steps and ranks do not lie as this package's do.

    Attributes:
        dialect: whose it is.
    """

    dialect: Dialect

    def __init_subclass__(cls) -> None:
        DIALECTS.setdefault(cls.dialect.name, cls.dialect)

    def places(
        self, root: Path, problem: OnProblem
    ) -> Iterator[tuple[LayerPlace | KeyPlace, Path]]:
        """Yield what lies below a run's directory, each place with its own directory."""
        raise NotImplementedError

    def dump(self, root: Path, directory: Path, at: LayerPlace) -> Dump:
        """Read the layer data of one place.

        The `data_name` of a leaf is the plain name of a file in the directory, which several places
        may share.

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
                head = file.read(4096).partition(b'"data"')[0]
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
