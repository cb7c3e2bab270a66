"""What of a run could not be read, and what its manifests list and its directory does not hold."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.phases import PHASES
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.manifest import step_spans
from mindrlhf_msprobe.storage.manifest.run_file import RunFile, expected_ranks
from mindrlhf_msprobe.storage.place import KeyPlace, LayerPlace, StepPlace
from mindrlhf_msprobe.storage.reading.keydata import is_ours

_LayerDirs = Mapping[LayerPlace, Path]
_KeyDirs = Mapping[KeyPlace, Path]


@dataclass(frozen=True)
class Problem:
    """Something of a run that could not be read.

    Attributes:
        path, why: the file or directory, and what is wrong with it.
        phase: the phase whose layer data it concerns, or None.
        key_data: whether it concerns key data: those under `key`, or all of them if that is None.
        step, rank: where; None where it concerns every step or every rank. What is neither of a
            phase nor of key data (a manifest, say) concerns the run and no place.
        last: the last step that it concerns, where there are several from `step` on.
        partial: whether all that is there was read: no record counts as unreadable for it.
        absent: whether it is that something which was recorded is not there any more.
    """

    path: Path
    why: Message
    phase: str | None = None
    step: int | None = None
    rank: int | None = None
    key_data: bool = False
    key: str | None = None
    last: int | None = None
    partial: bool = False
    absent: bool = False

    def concerns(self, at: StepPlace) -> bool:
        """Return whether layer data or key data of this step and rank are concerned."""
        return (self.phase is not None or self.key_data) and self.is_at(at)

    def is_at(self, at: StepPlace) -> bool:
        """Return whether it is in this step and rank, or in all of them."""
        first = at.step if self.step is None else self.step
        if not first <= at.step <= (first if self.last is None else self.last):
            return False
        return self.rank in (None, at.rank)

    def covers(self, other: Problem) -> bool:
        """Return whether it says of everything another one concerns that it cannot be read."""
        if other.phase is None and not other.key_data:
            return False
        same = self.key_data and self.key in (None, other.key) and other.key_data
        if other.phase is not None:
            same = self.phase == other.phase
        return same and self.step in (None, other.step) and self.rank in (None, other.rank)

    @property
    def message(self) -> str:
        """What is wrong, in words of the language that was chosen, else the locale's."""
        return str(self.why)

    @property
    def said(self) -> Message:
        """What is wrong with which file."""
        return message("unread.at", path=str(self.path), why=self.why)

    def __str__(self) -> str:
        return str(self.said)


def missing(
    root: Path, manifests: Sequence[RunFile], layers: _LayerDirs, keys: _KeyDirs
) -> Iterator[Problem]:
    """Yield what a run should hold and does not: manifests, and what they list.

    Args:
        root: the run's directory.
        manifests: those that could be read.
        layers, keys: the directories of layer data and of key data that it holds.
    """
    yield from _manifests(root, manifests, layers, keys)
    for manifest in manifests:
        if manifest.rank is not None:
            yield from _listed(root, manifest.rank, manifest, layers, keys)


def part_of_a_run(directory: Path) -> bool:
    """Return whether a directory without a manifest is that of one phase, or of one step, of a run.

    It is called like one, or the run around it says so.
    """
    directory = directory.absolute()
    if layout.step_of_directory(directory) is not None:
        return True
    if directory.name in {phase.name for phase in PHASES}:
        return True
    for path in layout.manifests(directory.parent)[:1]:
        try:
            return directory.name in RunFile.load(path).config.phases
        except (OSError, ValueError):  # a run stands there, whatever it says
            return True
    return False


def _manifests(
    root: Path, manifests: Sequence[RunFile], layers: _LayerDirs, keys: _KeyDirs
) -> Iterator[Problem]:
    """Yield the manifests of ranks that this tool recorded, where none says what and how."""
    there = {layout.manifest_rank(path) for path in layout.manifests(root)}
    if not there and part_of_a_run(root):
        return
    journals: dict[int, list[Path]] = {}
    for at, directory in layers.items():
        if at.rank not in there and directory != root:
            journals.setdefault(at.rank, []).append(directory / layout.JOURNAL_FILE)
    ranks = {rank for rank, paths in journals.items() if any(map(os.path.exists, paths))}
    if len(there) == 1:  # which stands for every rank, unless it knows of others
        ranks &= expected_ranks(manifests)
    if not there and not ranks:
        first = itertools.islice(keys.items(), 100)  # saves that are read to know whose they are
        ours = (at.rank for at, directory in first if is_ours(root, directory, at.key))
        ranks |= {*itertools.islice(ours, 1)}
    for rank in sorted(ranks):
        path = root / layout.manifest_name(rank)
        yield Problem(path, message("unread.manifest_missing"))


def _listed(
    root: Path, rank: int, of: RunFile, layers: _LayerDirs, keys: _KeyDirs
) -> Iterator[Problem]:
    listed, removed, manifest = of.recorded, of.thinned, layout.manifest_name(rank)
    if listed.get(step_spans.CONFIGURATIONS):
        path = root / layout.CONFIGURATIONS_FILE
        if not os.path.lexists(path):
            yield Problem(path, message("unread.listed", manifest=manifest))
    steps: dict[str, set[int]] = {}
    for layer in layers:
        if layer.rank == rank:
            steps.setdefault(layer.phase, set()).add(layer.step)
    for phase, spans in listed.get(step_spans.PHASES, {}).items():
        for first, last in _gaps(spans, steps.get(phase, ()), removed, step_spans.LAYERS):
            at = layout.entry_dir(root, phase, first, rank)
            why = _why(manifest, first, last, "entries")
            yield Problem(at, why, phase, first, rank, last=last, partial=True, absent=True)
    saves: dict[str, dict[int, int]] = {}
    for save in keys:
        if save.rank == rank:
            counts = saves.setdefault(save.key, {})
            counts[save.step] = counts.get(save.step, 0) + 1
    for key, spans in listed.get(step_spans.KEY_DATA, {}).items():
        counts = saves.get(key, {})
        for first, last in _gaps(spans, counts, removed, step_spans.KEY_DATA):
            at = layout.key_data_step_dir(root, key, first, rank)
            why = _why(manifest, first, last, "saves")
            yield _absent_saves(at, why, key, first, rank, last)
        for step, count in sorted(counts.items()):
            n = step_spans.count_at(listed, step_spans.KEY_DATA, key, step)
            if n is not None and count < n:
                at = layout.key_data_step_dir(root, key, step, rank)
                why = message("unread.fewer_saves", count=count, listed=n, manifest=manifest)
                yield _absent_saves(at, why, key, step, rank, step)


def _absent_saves(path: Path, why: Message, key: str, step: int, rank: int, last: int) -> Problem:
    return Problem(path, why, None, step, rank, True, key, last, partial=True, absent=True)


def _gaps(
    spans: Sequence[step_spans.Span], there: Iterable[int], removed: step_spans.Thinned, kind: str
) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of the steps that are listed and not there, but were not thinned."""
    lacking = step_spans.gaps(spans, sorted(there))
    found = (gap for span in lacking for gap in step_spans.outside(removed, kind, *span))
    return itertools.islice(found, 1000)


def _why(manifest: str, first: int, last: int, what: str) -> Message:
    upto = None if first == last else last
    return message("unread.missing_there", manifest=manifest, last=upto, what=what)
