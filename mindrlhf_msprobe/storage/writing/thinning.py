"""Keeping a rank's share of a run within a bound: what is removed of old steps, and in what order.

First the elements of tensors and their sketches go, the oldest steps' first; then layer data of
every other old step, and again of every other of those that are left; key data last, in the same
way. Never those of the first step and of the last ones that have such data, of a step with a
finding, and of those before and after it.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.printable import size
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import reserve_of
from mindrlhf_msprobe.storage.manifest.manifest import Manifest
from mindrlhf_msprobe.storage.manifest.step_spans import (
    KEY_DATA,
    LAYERS,
    TENSORS,
    THINNED_KINDS,
    holds,
    with_steps,
)
from mindrlhf_msprobe.storage.reading.places import key_data_directories, layer_directories
from mindrlhf_msprobe.storage.step_lines import step_line
from mindrlhf_msprobe.storage.writing.directory import Removal

#: The last steps, of those that were ended, that are kept whole.
LAST = 2
_TARGET = 0.9  # of the bound is what is left: not every step costs a removal
_BLOCK = 4096  # bytes in which common file systems give room to files and directories
_UNHARMFUL = "note"  # findings that protect no step

#: Kind → step → bytes.
Sizes = Mapping[str, Mapping[int, int]]


def what_goes(held: Sizes, excess: int, findings: Iterable[int]) -> dict[str, list[int]]:
    """Return which steps lose what, so that `excess` bytes are freed, or as many as may be.

    Args:
        held: what there is; steps are counted as they were recorded, with gaps or without.
        findings: steps that have one.
    """
    chosen: dict[str, list[int]] = {}
    findings = [*findings]
    every = sorted({step for steps in held.values() for step in steps})
    for kind in THINNED_KINDS:
        if excess <= 0:
            break
        steps = sorted(held.get(kind, ()))
        kept = {*_kept(every, findings), *_kept(steps, findings)}
        order = steps if kind == TENSORS else _every_other(steps, kept)
        for step in (step for step in order if step not in kept):
            if excess <= 0:
                break
            chosen.setdefault(kind, []).append(step)
            excess -= held[kind][step]
            if kind == LAYERS and step not in chosen.get(TENSORS, ()):
                excess -= held.get(TENSORS, {}).get(step, 0)
    return chosen


def _kept(steps: Sequence[int], findings: Iterable[int]) -> Iterator[int]:
    """Yield the first of some steps, the last, those of findings and the nearest to each."""
    yield from (*steps[:1], *steps[-LAST:])
    for step in findings:
        at = bisect_left(steps, step)
        yield from steps[max(0, at - 1) : at + 1 + (at < len(steps) and steps[at] == step)]


def _every_other(steps: Sequence[int], kept: set[int]) -> Iterator[int]:
    """Yield steps so that those that are left lie evenly apart, the oldest first at each distance.

    A step goes where the gap that it leaves is no larger than twice the smallest there is.
    """
    left = [*steps]
    widest = 0
    while True:
        gaps = [c - a for a, b, c in zip(left, left[1:], left[2:]) if b not in kept]
        if not gaps:
            return
        widest = max(2 * widest, min(gaps))
        remaining = left[:1]
        for step, after in pairwise(left[1:]):
            if step not in kept and after - remaining[-1] <= widest:
                yield step
            else:
                remaining.append(step)
        left = [*remaining, *left[-1:]]


@dataclass(eq=False)
class Thinning:
    """Thins out one rank's share of a run. Used by the thread that writes.

    Args:
        keep: how many bytes are kept, at most, in blocks of files and directories.
        is_own: tells whether a directory is still one that this run was recorded into.
    """

    root: Path
    rank: int
    keep: int
    manifest: Manifest
    is_own: Callable[[Path], bool]

    def __post_init__(self) -> None:
        self._held: dict[str, dict[int, int]] = {kind: {} for kind in THINNED_KINDS}
        self._names: dict[str, set[str]] = {LAYERS: set(), KEY_DATA: set()}
        self._read: dict[Path, int] = {}  # of files of findings, how far
        self._findings: set[int] = set()
        self._noted: list[tuple[str, str, int]] = []  # what was recorded, and not looked at yet
        self._begun = self._warned = False

    def note(self, kind: str, step: int, names: Iterable[str]) -> None:
        """Note of which phases or keys a step that was ended has data."""
        self._noted += ((kind, name, step) for name in names)

    def thin(self) -> None:
        """Look at what was noted, and thin out old steps where all of it is too much.

        Raises:
            OSError: the directory cannot be read, or something in it not be removed.
        """
        noted, self._noted = self._noted, []
        if noted and not self._begun:
            self._begun = True
            self._take_earlier(min(step for *_, step in noted))
        for kind, name, step in noted:
            self._take(kind, name, step)
        taken = self._taken()
        if taken > self.keep:
            self._thin(taken - int(self.keep * _TARGET))
            taken = self._taken()
            if taken > self.keep and not self._warned:  # what must be kept: say so once
                self._warned = True
                steps = len({step for held in self._held.values() for step in held})
                sizes = {"keep": size(self.keep), "taken": size(taken)}
                warn("log.keep_too_small", **sizes, steps=steps, last=LAST)

    def _take(self, kind: str, name: str, step: int) -> None:
        self._names[kind].add(name)
        others, tensors = _bytes_of(self._directory(kind, name, step))
        for of, count in ((kind, others), (TENSORS, tensors)):
            if count:
                self._held[of][step] = self._held[of].get(step, 0) + count

    def _take_earlier(self, before: int) -> None:
        """Take note of what earlier attempts left; what one began to remove goes."""
        listed = self.manifest.content.thinned
        found = [
            *((LAYERS, at[:3]) for at, _ in layer_directories(self.root, _unlisted)),
            *((KEY_DATA, at[:3]) for at, _ in key_data_directories(self.root, _unlisted)),
        ]
        for kind, (name, step, rank) in dict.fromkeys(found):
            if rank == self.rank and step < before:
                self._names[kind].add(name)
                if kind == LAYERS and holds(listed, TENSORS, step):
                    self._remove(TENSORS, name, step)
                if holds(listed, kind, step):
                    self._remove(kind, name, step)
                else:
                    self._take(kind, name, step)

    def _taken(self) -> int:
        own = layout.manifest_name(self.rank)
        beside = [
            self.root / own,
            reserve_of(self.root / own),
            self.root / layout.lines_name(layout.FINDINGS, self.rank),
        ]
        beside += [self.root / layout.CONFIGURATIONS_FILE] * (self.rank == 0)
        fixed = sum(_blocks(path.stat().st_size) for path in beside if path.is_file())
        return fixed + sum(sum(steps.values()) for steps in self._held.values())

    def _thin(self, excess: int) -> None:
        self._read_findings()
        chosen = what_goes(self._held, excess, self._findings)
        if not chosen:
            return
        content = self.manifest.content
        before = content.thinned
        for kind, steps in chosen.items():
            kept = sorted({*self._held[kind]} - {*steps})
            content.thinned = with_steps(content.thinned, kind, steps, kept)
        try:
            self.manifest.save(durable=True)
        except BaseException:
            content.thinned = before
            raise
        failed: list[OSError] = []
        for kind, steps in chosen.items():
            for step in steps:
                del self._held[kind][step]
                if kind == LAYERS:
                    self._held[TENSORS].pop(step, None)
                for name in sorted(self._names[KEY_DATA if kind == KEY_DATA else LAYERS]):
                    try:
                        self._remove(kind, name, step)
                    except OSError as error:  # costs no other directory
                        failed.append(error)
        if failed:
            raise failed[0]

    def _remove(self, kind: str, name: str, step: int) -> None:
        directory = self._directory(kind, name, step)
        if not directory.is_dir() or not self.is_own(directory):
            return
        removal = Removal(description_last=True)
        if kind != KEY_DATA:  # the journal that names them goes last
            removal.remove_tensors(directory)
        if kind != TENSORS:
            removal.remove(self.root, directory)
            with suppress(OSError):  # other ranks, or files of others, are in it
                directory.parent.rmdir()

    def _directory(self, kind: str, name: str, step: int) -> Path:
        if kind == KEY_DATA:
            return layout.key_data_step_dir(self.root, name, step, self.rank)
        return layout.entry_dir(self.root, name, step, self.rank)

    def _read_findings(self) -> None:
        """Read what live checks of any rank have found since."""
        for path in self.root.glob("findings.rank*.jsonl"):
            # A pipe, or a file that is too large, protects no step.
            with suppress(OSError, ValueError):
                with layout.open_inside(self.root, path, bounds.METADATA) as file:
                    read = self._read.get(path, 0)
                    # If it was written anew, it is read from its begin.
                    file.seek(read if os.fstat(file.fileno()).st_size >= read else 0)
                    begin = file.tell()
                    whole, end, _ = file.read(bounds.METADATA).rpartition(b"\n")
                self._read[path] = begin + len(whole) + len(end)
                for found in filter(None, map(step_line, whole.splitlines())):
                    if found.get("severity") != _UNHARMFUL:
                        self._findings.add(found["step"])


def _bytes_of(directory: Path) -> tuple[int, int]:
    """Return what a rank's directory of a step takes: without elements of layer data, and these.

    A file that is linked under several names counts once.
    """
    taken = [2 * _BLOCK, 0]  # it and the step's directory around it
    seen: set[int] = set()
    waiting = [(os.fspath(directory), 0)]
    while waiting:
        path, of = waiting.pop()
        with suppress(FileNotFoundError), os.scandir(path) as found:
            for item in found:
                if item.is_dir(follow_symlinks=False):
                    waiting.append((item.path, 1 if item.name == layout.TENSOR_DIR else of))
                    taken[waiting[-1][1]] += _BLOCK
                    continue
                status = item.stat(follow_symlinks=False)
                if status.st_nlink == 1 or status.st_ino not in seen:
                    seen.add(status.st_ino)
                    elements = of or item.name == layout.SKETCH_FILE
                    taken[elements] += _blocks(status.st_size)
    return taken[0], taken[1]


def _blocks(count: int) -> int:
    return -(-count // _BLOCK) * _BLOCK


def _unlisted(path: Path, error: OSError) -> None:
    """Leave a directory alone that cannot be listed."""
