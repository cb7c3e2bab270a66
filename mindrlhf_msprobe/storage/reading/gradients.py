"""Gradients of parameters by update: of this package's runs, and of msprobe's grad_probe.

An update is one call of the optimizer. Where gradients were not recorded at the optimizer, each
backward pass counts as one.
"""

from __future__ import annotations

import math
import re
from dataclasses import field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.phases import UNNAMED_PHASE
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, open_npy
from mindrlhf_msprobe.storage.arrays.signs import packed_signs, read_signs
from mindrlhf_msprobe.storage.journal_line import holds_gradients
from mindrlhf_msprobe.storage.leaves import plain_path
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.storage.reading.problems import Problem
from mindrlhf_msprobe.storage.reading.reader import Run, open_run
from mindrlhf_msprobe.storage.records import Entry, Locator, Record, network_name

_SUMMARY = re.compile(r"grad_summary_[0-9]{1,18}\.csv")


@dataclass(frozen=True)
class Gradient:
    """The gradient of one parameter in one update.

    Attributes:
        parameter: its name in the network, e.g. `model.norm_out.weight`.
        phase: the phase that updated it.
        update: the n-th call of the optimizer in its phase and step, from 0.
        shape: of the parameter; of a file of msprobe that cannot be read, None.
        record: what was recorded, with the elements or without; None for msprobe's grad_probe.
        signs: the file that holds its signs, or None.
        why: it cannot be used, or None.
    """

    parameter: str
    phase: str
    update: int
    shape: tuple[int, ...] | None
    record: Record | None = None
    signs: Path | None = field(default=None, repr=False)
    why: Message | None = None

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape or ()) if self.shape is not None else 0

    @property
    def has_elements(self) -> bool:
        """Whether all elements were recorded."""
        return self.record is not None and self.record.location is not None

    @property
    def has_signs(self) -> bool:
        """Whether the signs are known, which the elements tell too."""
        return self.signs is not None or self.has_elements

    def elements(self) -> np.ndarray:
        """Map the elements into memory, read-only, in C order: [size].

        Raises:
            ArrayFileError: they were not recorded, or the file cannot be used.
        """
        if self.why is not None or self.record is None:
            raise ArrayFileError(self.why or message("unread.statistics_alone"))
        return self.record.array().reshape(-1)

    def packed(self) -> np.ndarray:
        """Return the signs, one bit an element: uint8 [ceil(size / 8)]; see `packed_signs`.

        Raises:
            ArrayFileError: they were not recorded, or the file cannot be used.
        """
        if self.signs is None or self.why is not None:
            return packed_signs(self.elements())
        if self.record is not None:
            return read_signs(self.signs, self.size)
        return np.packbits(_msprobe_signs(self.signs).reshape(-1))


def open_gradients(path: str | Path) -> Gradients:
    """Open a run, or what msprobe's grad_probe wrote, to read gradients.

    Raises:
        RunError: there is no such directory, or it holds neither.
    """
    path = Path(path)
    if not path.is_dir():
        return _Recorded(open_run(path))
    if _has_summaries(path):  # of msprobe's grad_probe
        return _Probed(path, {layout.rank_number(path.absolute().name) or 0: path})
    try:
        of_ranks = layout.rank_directories(path)
    except OSError as error:
        why = error.strerror or str(error)
        raise RunError.saying("error.unread", path=path, why=why) from None
    probed = {rank: of_rank for rank, of_rank in of_ranks.items() if _has_summaries(of_rank)}
    return _Probed(path, probed) if probed else _Recorded(open_run(path))


#: Where gradients are read from. `places()` returns every (step, rank), in order, `at(step, rank)`
#: the gradients of one, as they were recorded; `problems` is what could not be read so far.
Gradients: TypeAlias = "_Recorded | _Probed"


class _Recorded:
    """The gradients of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.path, self.problems = run.path, run.problems

    def places(self) -> list[tuple[int, int]]:
        return sorted({(at.step, at.rank) for at in self._run.layer_places()})

    def at(self, step: int, rank: int) -> list[Gradient]:
        files: dict[str, Locator] = {}
        found = []
        for entry in self._run.each_entry(None, step, rank):
            if holds_gradients(entry.name):
                if entry.phase not in files:
                    files[entry.phase] = self._run.locator(LayerPlace(entry.phase, step, rank))
                found += gradients_of(entry, files[entry.phase])
        return found


def gradients_of(entry: Entry, files: Locator) -> list[Gradient]:
    """Return the gradients that an entry of gradients holds.

    Args:
        files: finds the files of its place.
    """
    found = []
    for record in entry.records:
        if record.leaf.shape is None and record.leaf.why is None:
            continue  # None: it had no gradient
        located, signs = files.locate(record.leaf, record.leaf.signs)
        found.append(
            Gradient(
                parameter_of(entry, record),
                entry.phase,
                entry.call,
                record.leaf.shape,
                record,
                None if signs is None else Path(signs),
                located.why,
            )
        )
    return found


def parameter_of(entry: Entry, record: Record) -> str:
    """Return the name of a parameter in its network, of a record of it or of its gradient."""
    return network_name(entry.cell, plain_path(record.path))


class _Probed:
    """What msprobe's grad_probe wrote: `rank<R>/step<S>/<parameter>.npy`, bool; S counts updates.

    Args:
        path: the directory of all ranks, or of one.
        ranks: rank → its directory.
    """

    def __init__(self, path: Path, ranks: dict[int, Path]) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self._directories = {
            (step, rank): directory
            for rank, of_rank in ranks.items()
            for directory in layout.subdirectories(of_rank, unlisted=self._unlisted)
            if (step := layout.step_number(directory.name)) is not None
        }

    def places(self) -> list[tuple[int, int]]:
        return sorted(self._directories)

    def at(self, step: int, rank: int) -> list[Gradient]:
        directory = self._directories.get((step, rank))
        if directory is None:
            return []
        try:
            files = sorted(directory.iterdir())
        except OSError as error:
            self._unlisted(directory, error)
            return []
        found = [self._gradient(file) for file in files if file.suffix in (".npy", ".pt")]
        try:  # a step's summary has them in order
            raw = layout.read_inside(self.path, directory.parent / f"grad_summary_{step}.csv")
        except (OSError, ValueError):
            return found
        lines = raw.decode("utf-8-sig", errors="replace").splitlines()[1:]
        names = {line.partition(",")[0]: number for number, line in enumerate(lines)}
        return sorted(found, key=lambda gradient: names.get(gradient.parameter, len(names)))

    def _gradient(self, file: Path) -> Gradient:
        shape, why = None, None
        try:
            if file.suffix == ".pt":
                raise ArrayFileError.saying("unread.of_pytorch")
            if not layout.inside(self.path, file):
                raise ArrayFileError.saying("unread.link_leaves")
            shape = _msprobe_signs(file).shape
        except ArrayFileError as error:
            why = error.said
        return Gradient(file.stem, UNNAMED_PHASE, 0, shape, None, file, why)

    def _unlisted(self, path: Path, error: OSError) -> None:
        why = message("unread.unlisted", why=error.strerror or str(error))
        self.problems.append(Problem(path, why))


def _msprobe_signs(file: Path) -> np.ndarray:
    signs = open_npy(file)
    if signs.dtype != np.bool_:
        raise ArrayFileError.saying("unread.no_signs", held=signs.dtype.name)
    return signs


def _has_summaries(path: Path) -> bool:
    try:
        return any(_SUMMARY.fullmatch(file.name) for file in path.iterdir())
    except OSError:
        return False
