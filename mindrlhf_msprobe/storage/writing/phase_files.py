"""The files of one phase, step and rank, written entry by entry.

Nothing is read back: what msprobe's tools read is put together while the journal is written.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
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
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD

_FLUSH = 1 << 16  # bytes of dump.json that are written at once

#: What is lost where an entry is.
ENTRY = message("lost.entry")
#: Called with what was lost, why, and how many records that is.
Report = Callable[[Message, BaseException, int], None]
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
        self._journal: _Journal | None = None
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
            self._journal = _Journal(self.directory / layout.JOURNAL_FILE)
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
        size = self._journal.append(b"".join(line for line, _ in written))
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
        self._close_files()
        if self._journal is None:
            return 0
        if self._journal.close():
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
        self._close_files()
        if self._journal is not None:
            self._journal.close()
            self._dump.close()
            self._gone = True
        return len(self._entries)

    def _close_files(self) -> None:
        opened, self._list, self._sketches = (self._list, self._sketches), None, None
        for file in opened:
            if file is not None:
                os.close(file)

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


class _Journal:
    """An append-only file of whole lines."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._path = path
        self._file = os.open(path, flags, 0o666)
        self._size = 0

    def append(self, lines: bytes) -> int:
        """Write whole lines; what cannot be written whole leaves nothing."""
        try:
            size = write_all(self._file, lines)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += size
        return size

    def close(self) -> bool:
        """Close the file and return whether it was removed, or moved away, meanwhile."""
        try:
            in_place = os.path.samestat(os.fstat(self._file), os.lstat(self._path))
        except OSError:
            in_place = False
        os.close(self._file)
        return not in_place


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
            if self._unwritten >= _FLUSH:
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
