"""A rank's steps: the files of each phase, their directories, and what the end of one writes down.

Files are written entry by entry, and nothing is read back: what msprobe's tools read is put
together while the journal is written.

Directories are made while a run is recorded and looked at when a step ends: they may be removed
under a running job, by somebody who needs the room, or replaced by others.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.atomic import (
    dump_json,
    open_temporary,
    write_all,
    write_atomic,
)
from mindrlhf_msprobe.storage.arrays.npy import save_npy
from mindrlhf_msprobe.storage.arrays.sketches import HEAD
from mindrlhf_msprobe.storage.journal_line import JournalLine, with_lost_files
from mindrlhf_msprobe.storage.manifest import step_spans
from mindrlhf_msprobe.storage.manifest.manifest import Manifest
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD
from mindrlhf_msprobe.storage.step_lines import time_lines
from mindrlhf_msprobe.storage.writing.background import Report
from mindrlhf_msprobe.storage.writing.directory import DumpPathLostError, recorded_file
from mindrlhf_msprobe.storage.writing.ledger import Ledger
from mindrlhf_msprobe.storage.writing.thinning import Thinning

#: What is lost where an entry is.
ENTRY = message("lost.entry")
#: Makes a directory; raises where it cannot.
Make = Callable[[Path], None]


class PhaseFiles:
    """Journal, tensors, and msprobe's three files of one phase, step and rank.

    Used by one thread. Every method returns the bytes it wrote, and raises OSError where it could
    not write.

    Args:
        make: makes `directory`.
        task, level: as dump.json names them.
        report: called with losses that show only later than the call that lost them.
    """

    def __init__(
        self, make: Make, directory: Path, task: str, report: Report, level: str = "L0"
    ) -> None:
        self._make = make
        self.directory = directory
        self._tensors = directory / layout.TENSOR_DIR
        self._report = report
        self._journal: int | None = None  # a file of whole lines, which is appended to
        self._size = 0  # its bytes
        self._dump = _Dump(directory / layout.DUMP_FILE, task, level)
        self._list: int | None = None  # names the tensors before they are written
        self._of_others: set[str] = set()  # what stood here, and in the tensors' directory, before
        self._made = self._has_tensors = self._gone = False
        self._sketches: int | None = None
        self._lost_files: dict[str | int, str] = {}  # by name; sketches by offset
        self._stacks: dict[tuple[str, ...], int] = {}
        self._entries: list[tuple[int, str, str | None, tuple[str, ...]]] = []

    def append(self, entries: Sequence[JournalLine]) -> int:
        """Append entries, all of them or none.

        A record whose file could not be written says so instead.
        """
        if self._journal is None:
            self._make_directory()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._journal = os.open(self.directory / layout.JOURNAL_FILE, flags, 0o666)
        stacks: dict[tuple[str, ...], int] = {}  # those that come for the first time
        written: list[tuple[bytes, bytes]] = []
        for line in entries:
            if self._lost_files:
                line = replace(line, values=with_lost_files(line.values, self._lost_files))
            frames = line.frames
            stack = self._stacks.get(frames, stacks.get(frames)) if frames else None
            first = bool(frames) and stack is None
            if first:
                stack = stacks[frames] = len(self._stacks) + len(stacks)
            written.append(line.to_bytes(stack, first=first))
        try:
            size = write_all(self._journal, b"".join(line for line, _ in written))
        except OSError:  # what cannot be written whole leaves nothing
            os.ftruncate(self._journal, self._size)
            raise
        self._size += size
        self._stacks.update(stacks)
        for line, (_, values) in zip(entries, written):
            self._entries.append((line.seq, line.entry, line.parent, line.frames))
            self._dump.add(line.entry, values)
        return size

    def save(self, name: str, array: np.ndarray) -> int:
        """Write a record's elements into the file `name`."""
        try:
            return save_npy(self._tensor(name), array)
        except OSError as error:
            self._lost_files[name] = error.strerror or str(error)
            raise

    def add_sketch(self, offset: int, sketch: np.ndarray) -> int:
        """Write a sketch at its place in the file of sketches."""
        try:
            if self._sketches is None:
                self._make_directory()
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._sketches = os.open(self.directory / layout.SKETCH_FILE, flags, 0o666)
                write_all(self._sketches, HEAD)
            rest, at = sketch.data, offset
            while rest:
                written = os.pwrite(self._sketches, rest, at)
                rest, at = rest[written:], at + written
        except OSError as error:
            self._lost_files[offset] = error.strerror or str(error)
            raise
        return len(sketch)

    def link(self, name: str, stored: str) -> int:
        """Give the file `stored` a second name; it is copied where it cannot be linked."""
        if stored in self._lost_files:
            self._lost_files[name] = self._lost_files[stored]
            raise OSError(message("fault.shared_elements", why=self._lost_files[stored]))
        try:
            path, source = self._tensor(name), self._tensors / stored
            try:
                path.unlink(missing_ok=True)
                os.link(source, path)
            except OSError:  # the file system has no hard links, or no more for this file
                with open(source, "rb") as file:
                    return write_atomic(path, iter(lambda: file.read(1 << 20), b""))
        except OSError as error:
            self._lost_files[name] = error.strerror or str(error)
            raise
        return 0

    def finish(self) -> int:
        """Close the journal and put dump.json, stack.json and construct.json in place."""
        has_entries = self._journal is not None
        in_place = self._close_files()
        if not has_entries:
            return 0
        if not in_place:
            gone = FileNotFoundError(message("fault.removed", directory=str(self.directory)))
            self._report(ENTRY, gone, len(self._entries))
            self._gone = True
            self._dump.drop()
            return 0
        if self._has_tensors:  # from now on the journal names them all
            (self.directory / layout.TENSOR_LIST).unlink(missing_ok=True)
        data_dir = str(self._tensors) if self._has_tensors else None
        self._entries.sort(key=lambda entry: entry[0])
        # msprobe's graph builder puts a cell's parameters_grad into the cell's last backward entry,
        # but only those that construct.json does not name.
        backward = {name.rpartition(".backward.")[0] for _, name, _, _ in self._entries}
        parents = {
            name: parent
            for _, name, parent, _ in self._entries
            if parent is not None
            or (name.rpartition(f".{PARAMETERS_GRAD}.")[0] or None) not in backward
        }
        stacks: dict[tuple[str, ...], list[str]] = {}
        for _, name, _, frames in self._entries:
            if frames:
                stacks.setdefault(frames, []).append(name)
        numbered = {
            str(number): [names, list(frames)]
            for number, (frames, names) in enumerate(stacks.items())
        }
        taken = {layout.DUMP_FILE, layout.STACK_FILE, layout.CONSTRUCT_FILE} & self._of_others
        if taken:
            self._dump.drop()
            raise FileExistsError(
                errno.EEXIST, message("fault.of_others"), str(self.directory / min(taken))
            )
        size = self._dump.finish(data_dir)
        size += write_atomic(self.directory / layout.STACK_FILE, _lines_of(numbered))
        return size + write_atomic(self.directory / layout.CONSTRUCT_FILE, _lines_of(parents))

    @property
    def entries(self) -> int:
        """How many entries stand in the journal; 0 where it was removed when it was closed."""
        return 0 if self._gone else len(self._entries)

    def give_up(self) -> int:
        """Leave what is on disk to whoever has it now; return how many entries were written."""
        self._gone = self._journal is not None
        self._close_files()
        self._dump.close()
        return len(self._entries)

    def _close_files(self) -> bool:
        """Close them; return whether the journal was not removed, or moved away, meanwhile."""
        in_place = False
        if self._journal is not None:
            with suppress(OSError):
                there = os.lstat(self.directory / layout.JOURNAL_FILE)
                in_place = os.path.samestat(os.fstat(self._journal), there)
        opened = self._list, self._sketches, self._journal
        self._list = self._sketches = self._journal = None
        for file in opened:
            if file is not None:
                os.close(file)
        return in_place

    def _make_directory(self) -> None:
        if not self._made:
            self._make(self.directory)
            self._of_others = set(os.listdir(self.directory))
            self._made = True

    def _tensor(self, name: str) -> Path:
        self._make_directory()
        if not self._has_tensors:
            self._tensors.mkdir(exist_ok=True)
            self._of_others |= set(os.listdir(self._tensors))
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._list = os.open(self.directory / layout.TENSOR_LIST, flags, 0o666)
            self._has_tensors = True
        path = self._tensors / name
        if name in self._of_others:
            raise FileExistsError(errno.EEXIST, message("fault.of_others"), str(path))
        if self._list is not None:
            write_all(self._list, name.encode() + b"\n")
        return path


class _Dump:
    """dump.json, one entry a line, growing under a temporary name."""

    def __init__(self, path: Path, task: str, level: str) -> None:
        # msprobe's compare takes these two.
        task = task if task == "tensor" else "statistics"
        head = {"task": task, "level": level, "framework": "mindspore"}
        self._head = dump_json(head)[:-1] + b',\n"data": {'
        self._path = path
        self._temporary = path  # its name, once it is open
        # Not a buffered file: a forked child would write what is left in its buffer again.
        self._file: int | None = None
        self._parts: list[bytes] = []
        self._unwritten = 0  # bytes
        self._written = 0  # bytes
        self._first = True
        self._failed: OSError | None = None

    def add(self, entry: str, values: bytes) -> None:
        """Add an entry; a failure shows when the file is finished."""
        if self._failed is None:
            # msprobe's tools refuse a whole dump for one text that begins with -, +, =, % or @, so
            # such a value gets a space before it; infinities are numbers that any reader of JSON
            # takes for infinite.
            if b'Infinity"' in values:
                values = _INFINITY.sub(rb"\1\g<2>1e999", values)
            values = _REFUSED.sub(rb"\1 ", values)
            self._add(b"%s\n%s: %s" % (b"" if self._first else b",", dump_json(entry), values))
            self._first = False
            if self._unwritten >= 1 << 16:
                try:
                    self._flush()
                except OSError as error:
                    self._failed = error
                    self.drop()

    def finish(self, data_dir: str | None) -> int:
        """Put the file in its place."""
        self._add(b'\n},\n"dump_data_dir": ' + dump_json(data_dir) + b"}\n")
        try:
            if self._failed is not None:
                raise self._failed
            self._flush()
            os.replace(self._temporary, self._path)
        finally:
            self.drop()
        return self._written

    def drop(self) -> None:
        """Close and remove what is not in its place yet."""
        if self.close():
            self._temporary.unlink(missing_ok=True)

    def close(self) -> bool:
        """Close what is not in its place yet; return whether there is such a file."""
        self._parts.clear()
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
        return file is not None

    def _add(self, part: bytes) -> None:
        self._parts.append(part)
        self._unwritten += len(part)

    def _flush(self) -> None:
        if self._file is None:
            self._file, self._temporary = open_temporary(self._path)
            self._parts.insert(0, self._head)
        self._written += write_all(self._file, b"".join(self._parts))
        self._parts.clear()
        self._unwritten = 0


_INFINITY = re.compile(rb'("(?:Max|Min|Mean|Norm)": |"type": "float", "value": )"(-?)Infinity"')
_REFUSED = re.compile(rb'("value": ")(?=[-+=%@])')


def _lines_of(content: dict[str, Any]) -> Iterator[bytes]:
    """Yield a JSON object, one member a line."""
    before = b"{\n"
    for name, value in content.items():
        yield before + dump_json(name) + b": " + dump_json(value)
        before = b",\n"
    yield b"\n}\n" if content else b"{}\n"


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
        saves: (step, key, directory) of what was saved in open steps, in order.
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
        self.saves: dict[tuple[int, str, Path], None] = {}
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

    def note_save(self, step: int, key: str, directory: Path) -> None:
        """Note that a key was saved into a directory."""
        file = directory / layout.file_name(key, ".json")
        self._note(layout.key_data_step_dir(self._root, key, step, self._rank), file)
        self.saves[step, key, directory] = None

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
            for saved in [saved for saved in self.saves if saved[0] <= step]:
                self._report(message("lost.key_data", key=saved[1]), error, 1)
                del self.saves[saved]
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
            self._note_recorded(step_spans.PHASES, step, of_step)

    def _end_saves(self, step: int) -> None:
        saves: dict[int, Counter[str]] = {}
        own: dict[Path, bool] = {}  # whether a step's directory is where it was
        for of_step, key, directory in [saved for saved in self.saves if saved[0] <= step]:
            step_dir = layout.key_data_step_dir(self._root, key, of_step, self._rank)
            if step_dir not in own:
                own[step_dir] = self._is_unchanged(self._made.get(step_dir))
            if own[step_dir] and directory.exists():
                saves.setdefault(of_step, Counter())[key] += 1
            else:
                why = message("fault.removed_before_end", directory=str(directory))
                self._report(message("lost.key_data", key=key), FileNotFoundError(why), 1)
            del self.saves[of_step, key, directory]
        for of_step, counts in saves.items():
            self._note_recorded(step_spans.KEY_DATA, of_step, counts)

    def _note_recorded(self, kind: str, step: int, counts: Mapping[str, int]) -> None:
        content = self._manifest.content
        listed = content.json["recorded"]  # it was checked when an earlier attempt's was read
        content.recorded = step_spans.with_counts(listed, kind, step, counts)
        if self.thinning is not None:
            of = step_spans.LAYERS if kind == step_spans.PHASES else step_spans.KEY_DATA
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
            kind, of = step_spans.PHASES, step_spans.LAYERS
            if place.parent == self._root / layout.KEY_DATA_DIR:
                kind, of = step_spans.KEY_DATA, step_spans.KEY_DATA
            there = sorted(
                layout.step_number(path.parent.name) or 0
                for path in place.glob(f"step*/rank{self._rank}")
                if not replaced and recorded_file(self._root, path) is not None
            )
            spans = content.recorded.get(kind, {}).get(place.name, ())
            first = self.lost_in.get(place, 0)
            steps = sum(
                max(0, end - max(begin, first) + 1)
                for gap in step_spans.gaps(step_spans.before(spans, step), there)
                for begin, end in step_spans.outside(content.thinned, of, *gap)
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
            return file, os.fstat(opened.fileno()).st_size, opened.read(4096)  # how it begins

    def _link_in(self, path: Path) -> Path | None:
        """Return a symbolic link on the way from the run's directory to a path."""
        ways = [self._root / way for way in path.relative_to(self._root).parents]
        return next((way for way in (*ways[:-1], path) if way.is_symlink()), None)
