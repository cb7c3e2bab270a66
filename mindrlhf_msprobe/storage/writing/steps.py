"""A rank's steps: the directories they are recorded into, and what the end of one writes down.

Directories are made while a run is recorded and looked at when a step ends: they may be removed
under a running job, by somebody who needs the room, or replaced by others.
"""

from __future__ import annotations

import errno
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.manifest import recorded, thinned
from mindrlhf_msprobe.storage.manifest.manifest import Manifest
from mindrlhf_msprobe.storage.step_lines import time_lines
from mindrlhf_msprobe.storage.writing.directory import DumpPathLostError, recorded_file
from mindrlhf_msprobe.storage.writing.ledger import Ledger
from mindrlhf_msprobe.storage.writing.phase_files import ENTRY, PhaseFiles, Report
from mindrlhf_msprobe.storage.writing.thinning import Thinning

_HEAD = 4096  # bytes of a file by which it is known, beside its size
_ATTEMPTS = 100  # at making a directory, while other ranks remove those around it that are empty

#: A file that was recorded, its size, and how it begins.
_Written = tuple[Path, int, bytes]


class Steps:
    """The steps of one rank: what was recorded into them, and their ends. Used by one thread.

    Each directory is known by a file that was recorded into it: of open steps all are known, of
    every phase and key the last one.

    Args:
        report: called with what is lost.
        keep_bytes: how much this rank keeps on disk: above it old steps are thinned; 0: all.

    Attributes:
        lost_in: directory of a phase or a key → the step in which what it held was lost.
        thinning: thins out old steps; None: nothing does.
    """

    def __init__(
        self,
        root: Path,
        rank: int,
        manifest: Manifest,
        ledger: Ledger,
        report: Report,
        keep_bytes: int = 0,
    ) -> None:
        self._root, self._rank = root, rank
        self._manifest, self._ledger, self._report = manifest, ledger, report
        self._made: dict[Path, _Written | None] = {}
        self._last: dict[Path, _Written] = {}  # directory of a phase or a key → file
        self._saves: dict[tuple[int, str, Path], None] = {}  # (step, key, directory), in order
        self.lost_in: dict[Path, int] = {}
        self.thinning: Thinning | None = None
        if keep_bytes:
            self.thinning = Thinning(root, rank, keep_bytes, manifest, self.is_own)

    def make(self, directory: Path) -> None:
        """Make the directory of a phase or a key in a step, or return if it was made and is there.

        Files of others in it stay.

        Raises:
            OSError: it cannot be made, was removed or replaced, or something was recorded there, or
                it lies behind a symbolic link in the run's directory: that is somebody else's.
        """
        if directory in self._made:
            if not self._is_unchanged(self._made[directory]):
                why = message("fault.removed_before_end", directory=str(directory))
                raise FileNotFoundError(why)
            return
        if (link := self._link_in(directory)) is not None:
            raise OSError(errno.ELOOP, message("fault.symbolic_link"), str(link))
        if recorded_file(self._root, directory) is not None:
            raise FileExistsError(errno.EEXIST, message("fault.of_others"), str(directory))
        for attempt in range(_ATTEMPTS):
            try:
                directory.mkdir(parents=True, exist_ok=True)
                break
            except (FileNotFoundError, FileExistsError):  # a rank that begins removes empty ones
                if attempt == _ATTEMPTS - 1 or (directory.exists() and not directory.is_dir()):
                    raise
        self._made[directory] = None

    def has_save(self, step: int, key: str, directory: Path) -> bool:
        """Return whether a key was saved into a directory in an open step."""
        return (step, key, directory) in self._saves

    def note_save(self, step: int, key: str, directory: Path) -> None:
        """Note that a key was saved into a directory."""
        file = directory / layout.file_name(key, ".json")
        self._note(layout.key_data_step_dir(self._root, key, step, self._rank), file)
        self._saves[step, key, directory] = None

    def is_own(self, directory: Path) -> bool:
        """Return whether a directory of an earlier step lies where this run was recorded into."""
        place, step = directory.parent.parent, layout.step_number(directory.parent.name) or 0
        return step >= self.lost_in.get(place, 0) and self._is_unchanged(self._last.get(place))

    def end(
        self,
        step: int,
        ended: Mapping[tuple[str, int], PhaseFiles],
        lost: Mapping[Message, int],
        *,
        complete: bool,
        has_data: bool,
        times: Callable[[], Mapping[str, Any]] | None,
    ) -> None:
        """Write what msprobe's tools read and note in the manifest that a step is whole.

        Args:
            ended: (phase, step) → files, of this step and of those before it.
            lost, complete, times: as for `RunWriter.end_step`.
            has_data: whether anything was recorded in it.
        """
        manifest, content = self._manifest, self._manifest.content
        known = manifest.lost is not None
        try:
            manifest.check()
        except DumpPathLostError as error:
            for files in ended.values():  # written into what is no longer this run's
                if count := files.give_up():
                    self._report(ENTRY, error, count)
            for saved in [saved for saved in self._saves if saved[0] <= step]:
                self._report(message("lost.key_data", key=saved[1]), error, 1)
                del self._saves[saved]
            if complete or not known:
                self._report(message("lost.step"), error, 1)
            return
        self._end_phases(ended)
        self._end_saves(step)
        self._report_removed(step)
        attempt = content.attempt
        if attempt.first_step is None and (complete or has_data):
            attempt.first_step = step
        if complete:
            # Of two threads that end steps, the later step's end may be written first.
            attempt.last_completed_step = max(step, attempt.last_completed_step or 0)
        elif has_data:
            attempt.unfinished_step = step
        try:
            if times is not None:
                time_lines(self._root, self._rank).append([times()])
        except Exception as error:
            self._report(message("lost.times"), error, 1)
        manifest.note_lost(lost)
        content.recording = self._ledger.to_json(step)
        manifest.save()

    def _end_phases(self, ended: Mapping[tuple[str, int], PhaseFiles]) -> None:
        counts: dict[int, dict[str, int]] = {}
        for (phase, step), files in ended.items():
            try:
                self._ledger.wrote(phase, files.finish())
            except OSError as error:
                self._report(message("lost.msprobe_files"), error, 1)
            if files.entries:
                self._note(files.directory, files.directory / layout.JOURNAL_FILE)
            counts.setdefault(step, {})[phase] = files.entries
        for step, of_step in sorted(counts.items()):
            self._note_recorded(recorded.PHASES, step, of_step)

    def _end_saves(self, step: int) -> None:
        saves: dict[int, Counter[str]] = {}
        own: dict[Path, bool] = {}  # whether a step's directory is where it was
        for of_step, key, directory in [saved for saved in self._saves if saved[0] <= step]:
            step_dir = layout.key_data_step_dir(self._root, key, of_step, self._rank)
            if step_dir not in own:
                own[step_dir] = self._is_unchanged(self._made.get(step_dir))
            if own[step_dir] and directory.exists():
                saves.setdefault(of_step, Counter())[key] += 1
            else:
                why = message("fault.removed_before_end", directory=str(directory))
                self._report(message("lost.key_data", key=key), FileNotFoundError(why), 1)
            del self._saves[of_step, key, directory]
        for of_step, counts in saves.items():
            self._note_recorded(recorded.KEY_DATA, of_step, counts)

    def _note_recorded(self, kind: str, step: int, counts: Mapping[str, int]) -> None:
        content = self._manifest.content
        content.recorded = recorded.with_counts(content.recorded, kind, step, counts)
        if self.thinning is not None:
            of = thinned.LAYERS if kind == recorded.PHASES else thinned.KEY_DATA
            self.thinning.note(of, step, (name for name, count in counts.items() if count))

    def _report_removed(self, step: int) -> None:
        """Look at what was recorded last, and count the listed steps that are gone.

        Directories of phases and keys are known by what this step recorded from now on.
        """
        last = self._last.items()
        gone = {place: known[0] for place, known in last if not self._is_unchanged(known)}
        for place in gone:
            del self._last[place]
        for made in [*self._made]:
            if (layout.step_number(made.parent.name) or 0) <= step:
                known = self._made.pop(made)
                if known is not None and self._is_unchanged(known):
                    self._last[made.parent.parent] = known
        content = self._manifest.content
        for place, file in gone.items():
            replaced = os.path.lexists(file)  # something else stands there
            kind, of = recorded.PHASES, thinned.LAYERS
            if place.parent == self._root / layout.KEY_DATA_DIR:
                kind, of = recorded.KEY_DATA, thinned.KEY_DATA
            there = sorted(
                layout.step_number(path.parent.name) or 0
                for path in place.glob(f"step*/rank{self._rank}")
                if not replaced and recorded_file(self._root, path) is not None
            )
            spans = content.recorded.get(kind, {}).get(place.name, ())
            first = self.lost_in.get(place, 0)
            steps = sum(
                max(0, end - max(begin, first) + 1)
                for gap in recorded.gaps(recorded.before(spans, step), there)
                for begin, end in thinned.outside(content.thinned, of, *gap)
            )
            if steps:
                self.lost_in[place] = step
                named = str(place.relative_to(self._root))
                why = FileNotFoundError(message("fault.steps_removed", place=named, steps=steps))
                self._report(message("lost.steps", place=named), why, steps)

    def _note(self, directory: Path, file: Path) -> None:
        """Know the directory of an open step by a file that was recorded into it.

        Where the file is gone already, the end of the step says so.
        """
        with suppress(OSError, layout.UnreadError):
            self._made[directory] = self._read(file)

    def _is_unchanged(self, known: _Written | None) -> bool:
        if known is None:
            return True
        try:
            return self._link_in(known[0]) is None and self._read(known[0]) == known
        except (FileNotFoundError, NotADirectoryError, layout.UnreadError):
            return False
        except OSError:  # that it cannot be looked at now says nothing; writing there will
            return True

    def _read(self, file: Path) -> _Written:
        with layout.open_inside(self._root, file, sys.maxsize) as opened:
            return file, os.fstat(opened.fileno()).st_size, opened.read(_HEAD)

    def _link_in(self, path: Path) -> Path | None:
        """Return a symbolic link on the way from the run's directory to a path."""
        ways = [self._root / way for way in path.relative_to(self._root).parents]
        return next((way for way in (*ways[:-1], path) if way.is_symlink()), None)
