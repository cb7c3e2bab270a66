"""Records → files of one rank.

What is handed over is written by a thread in the background, in order. The journal of a phase is
appended to, one line an entry, each after the files of its tensors; everything else is written
beside its place and renamed in.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.message import Message, SpokenError, message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.atomic import put_in_place, temporary_of, write_json
from mindrlhf_msprobe.storage.arrays.npy import save_npy
from mindrlhf_msprobe.storage.arrays.sketches import HEAD
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.leaves import count_leaves
from mindrlhf_msprobe.storage.manifest import step_spans
from mindrlhf_msprobe.storage.manifest.manifest import Manifest, Note, Written
from mindrlhf_msprobe.storage.manifest.run_file import Stop
from mindrlhf_msprobe.storage.writing.background import Background, BufferPool, Job, Report
from mindrlhf_msprobe.storage.writing.directory import DumpPathLostError, files_in, remove_save
from mindrlhf_msprobe.storage.writing.ledger import CONFIGURATIONS, KEY_DATA, STEP, Ledger
from mindrlhf_msprobe.storage.writing.steps import ENTRY, PhaseFiles, Steps

#: Bytes that may wait to be written unless the configuration sets it.
DEFAULT_BUFFER = 512 << 20
_LEAF_BYTES = 1024  # what one described value occupies, about, until its line is written

_TENSOR = message("lost.tensor")
_SKETCH = message("lost.sketch")

#: An entry, and how many values it describes; or a sketch with its offset and its fingerprint.
_Item = tuple[JournalLine, int] | tuple[np.ndarray, int, str]


def _raise(what: Message, error: BaseException, count: int) -> None:
    raise error


class StepEndedError(SpokenError):
    """Something was handed over for a step that had ended."""


class Sink:
    """Takes what is recorded of one phase in one step; may be used by several threads.

    Every method raises StepEndedError once the step has ended.
    """

    def __init__(self, writer: RunWriter, phase: str, step: int) -> None:
        self._writer, self._phase, self._step = writer, phase, step
        self.files: PhaseFiles | None = None  # once there is anything
        self._stored: dict[str, str] = {}  # the file of every fingerprint handed over
        self._named: set[str] = set()  # of every file that tensors were handed over for
        self._sketched: dict[str, int] = {}  # the offset of the sketch of every fingerprint
        self._end_of_sketches = len(HEAD)
        # Entries and sketches that were handed over last, with no tensor after them.
        self._batch: Job | None = None

    def append(self, line: JournalLine) -> None:
        """Take an entry that ended, which belongs to the writer from now on."""
        records = count_leaves(line.values)
        with self._writer.lock:
            self._add((line, records), records * _LEAF_BYTES)
            self._writer.phases.add(self._phase)

    def save(self, record: str, array: np.ndarray, fingerprint: str | None) -> str:
        """Take a record's elements, as they are now, and return the name of their file.

        Equal tensors (equal fingerprints) are stored once and hard-linked.
        """
        name = layout.record_file_name(record)
        with self._writer.lock:
            files, stored = self._opened(), self._stored
            self._batch = None  # the next entry comes after this tensor
            source = stored.get(fingerprint) if fingerprint else None
            if source == name:  # the file has these elements
                return name
            if name in self._named:  # it gets others, and nothing may share it any more
                for other in [each for each, file in stored.items() if file == name]:
                    del stored[other]
            self._named.add(name)
            if source is not None:

                def link(source: str = source) -> None:
                    self._writer.manifest.check()
                    self._wrote(files.link(name, source))

                self._writer.background.hand_over(_TENSOR, link, _LEAF_BYTES)
                return name
            if fingerprint:
                stored[fingerprint] = name

            def write(arrays: Mapping[str, np.ndarray]) -> None:
                try:
                    self._wrote(files.save(name, arrays[name]))
                except OSError:
                    if fingerprint:
                        stored.pop(fingerprint, None)
                    raise

            self._writer.hand_over_arrays(_TENSOR, {name: array}, write)
        return name

    def save_sketch(self, fingerprint: str, made: Callable[[], np.ndarray]) -> int:
        """Take the sketch of a tensor, and return its offset in the file of sketches.

        Equal tensors (equal fingerprints) have one sketch.

        Args:
            made: returns it, uint8; called where there is none yet.
        """
        with self._writer.lock:
            self._opened()
            offset = self._sketched.get(fingerprint)
        if offset is not None:
            return offset
        sketch = self._writer.copied_sketch(fingerprint)
        if sketch is None:
            sketch = made()
        with self._writer.lock:
            self._opened()
            offset = self._sketched.get(fingerprint)
            if offset is None:  # nor has another thread made it
                offset = self._sketched[fingerprint] = self._end_of_sketches
                self._end_of_sketches += sketch.nbytes
                self._add((sketch, offset, fingerprint), sketch.nbytes)
        return offset

    def _opened(self) -> PhaseFiles:
        self._writer.refuse_ended(self._step)
        if self.files is None:
            self.files = self._writer.phase_files(self._phase, self._step)
        return self.files

    def _wrote(self, size: int, records: int = 0) -> None:
        self._writer.ledger.wrote(self._phase, size, records)

    def _add(self, item: _Item, size: int) -> None:
        """Hand over an entry, or a sketch, with what came before it and waits."""
        files, background = self._opened(), self._writer.background
        if self._batch is None or not background.join(self._batch, item, size):
            self._batch = background.hand_over_batch(
                ENTRY, lambda items: self._append(files, items), item, size
            )

    def _append(self, files: PhaseFiles, items: Sequence[_Item]) -> None:
        """Write sketches, then append entries; each that cannot be written is reported by itself.

        An entry comes after its sketches.
        """
        report = self._writer.background.report
        lines = [item for item in items if len(item) == 2]
        sketches = [item for item in items if len(item) == 3]
        try:
            self._writer.manifest.check()
        except DumpPathLostError as error:
            for what, lost in ((ENTRY, lines), (_SKETCH, sketches)):
                if lost:
                    report(what, error, len(lost))
            return
        for sketch, offset, fingerprint in sketches:
            try:
                self._wrote(files.add_sketch(offset, sketch))
            except OSError as error:
                self._sketched.pop(fingerprint, None)
                report(_SKETCH, error)
            else:
                if sketch.nbytes >= 1 << 14:  # a smaller one is made as soon as it is read
                    if len(known := self._writer.large_sketches) >= 1 << 13:
                        known.clear()
                    file = files.directory / layout.SKETCH_FILE
                    known[fingerprint] = file, offset, sketch.nbytes
        # All together; where that fails, one by one.
        groups = [lines] if lines else []
        while groups:
            group = groups.pop(0)
            try:
                size = files.append([line for line, _ in group])
            except Exception as error:
                if len(group) == 1:
                    report(ENTRY, error)
                else:
                    groups = [[line] for line in group]
            else:
                self._wrote(size, sum(records for _, records in group))


class RunWriter:
    """Writes what one rank records into `root`; may be used by several threads.

    Entries, tensors and key data are handed over, at most waiting for room. All other calls return
    when everything handed over so far is readable on disk.

    Args:
        settings: what the process runs with, by section, for the manifest.
        buffer_bytes: how much may wait to be written, copies of tensors and lines together.
        fault: called with everything that could not be written, by the writing thread. What it
            raises is raised by the next call of the writer; without one every fault is raised so.
        ledger: takes what writing costs.
        keep_bytes: how much this rank keeps on disk: above it old steps are thinned; 0: all.

    Attributes:
        task, level: of the phases that open from now on.
        manifest: takes what is not recorded, and why; it is written when the step ends.

    Raises:
        RunError: the directory holds another run, or cannot be written.
    """

    def __init__(
        self,
        root: Path,
        *,
        rank: int,
        config: Mapping[str, Any],
        existing: str,
        task: str,
        settings: Mapping[str, Any] | None = None,
        buffer_bytes: int = DEFAULT_BUFFER,
        fault: Report = _raise,
        ledger: Ledger | None = None,
        keep_bytes: int = 0,
    ) -> None:
        self.root = root
        self.rank = rank
        self.task, self.level = task, str(config.get("level", "L0"))
        self._copies = bool(config.get("columns", True))
        self._manifest = message("lost.manifest", file=layout.manifest_name(rank))
        self.manifest = Manifest.claim(root, rank, dict(config), existing, settings)
        self.ledger = ledger or Ledger()
        self._buffer_bytes = buffer_bytes
        self._buffers = BufferPool(buffer_bytes)
        self.background = Background(buffer_bytes, fault, self.ledger)
        # Held while something is handed over, so that a link comes after what it links to, and
        # nothing for a step comes after its end.
        self.lock = threading.RLock()
        self.phases: set[str] = set()  # of which entries were handed over
        self._sinks: dict[tuple[str, int], Sink] = {}  # of phases and steps that have not ended
        # Where the sketches of fingerprints were written, and their bytes.
        self.large_sketches: dict[str, tuple[Path, int, int]] = {}
        self._ended = -1  # the last step of which the end was handed over
        self._steps_with_data: set[int] = set()
        self._saves = itertools.count()
        report = self.background.report
        self._steps = Steps(root, rank, self.manifest, self.ledger, report, keep_bytes)

    @property
    def continues(self) -> bool:
        """Whether an earlier attempt had begun this run."""
        return len(self.manifest.content.attempts) > 1

    def next_step(self) -> int:
        """Return the step after the last one an earlier attempt completed, 0 in a new run."""
        done = [a.last_completed_step for a in self.manifest.content.attempts[:-1]]
        return max((step for step in done if step is not None), default=-1) + 1

    def sink(self, phase: str, step: int) -> Sink:
        """Return what takes the entries and the elements of one phase in one step."""
        with self.lock:
            return self._sinks.setdefault((phase, step), Sink(self, phase, step))

    def phase_files(self, phase: str, step: int) -> PhaseFiles:
        """Return the files of a phase, of which something comes for the first time in a step."""
        self._steps_with_data.add(step)
        directory = layout.entry_dir(self.root, phase, step, self.rank)
        report = self.background.report
        return PhaseFiles(self._steps.make, directory, self.task, report, self.level)

    def copied_sketch(self, fingerprint: str) -> np.ndarray | None:
        """Read the sketch of an equal tensor of another phase or step; None where there is none.

        A weight is the same in every phase between two updates, and its sketch takes a thirtieth
        of its bytes.
        """
        path, offset, size = self.large_sketches.get(fingerprint, (None, 0, 0))
        if path is None:
            return None
        try:
            with open(path, "rb", buffering=0) as file:
                content = os.pread(file.fileno(), size, offset)
        except OSError:  # removed since
            return None
        return np.frombuffer(content, np.uint8) if len(content) == size else None

    def save_key_data(
        self,
        key: str,
        step: int,
        micro_step: int | None,
        content: Callable[[], Mapping[str, Any]],
        arrays: Mapping[str, np.ndarray],
        *,
        numbered: bool = False,
    ) -> None:
        """Save one key's arrays (file name → array) and, last, the JSON that describes them.

        They appear together, whole or not at all, and take the place of what was saved in this step
        under the same key and micro-step.

        Args:
            micro_step: None: beside the micro-steps.
            content: returns what the JSON holds; called here, while the arrays are written.
            numbered: write a JSON for each array, too.

        Raises:
            StepEndedError: the step has ended.
        """
        what = message("lost.key_data", key=key)
        step_dir = layout.key_data_step_dir(self.root, key, step, self.rank)
        directory = layout.key_data_dir(self.root, key, step, self.rank, micro_step)
        # Several threads may save at one micro-step: each makes its files in a place of its own.
        beside = step_dir / "save" if micro_step is None else directory
        temporary = temporary_of(beside, next(self._saves))
        sizes: list[int] = []

        def write_arrays(copies: Mapping[str, np.ndarray]) -> None:
            self._steps.make(step_dir)
            temporary.mkdir()
            try:
                sizes.append(sum(save_npy(temporary / name, copies[name]) for name in copies))
            except BaseException:
                drop()
                raise

        def write_description() -> None:
            if not sizes:  # what describes arrays that could not be written describes nothing
                return
            self.manifest.check()
            try:
                size = 0
                if numbered:
                    described["numbered"] = True
                    for name, leaf in files_in(described.get("data")):
                        size += write_json(temporary / f"{name[:-4]}.json", {"data": leaf})
                size += write_json(temporary / layout.file_name(key, ".json"), described)
                if (step, key, directory) in self._steps.saves:
                    remove_save(directory, key)
                put_in_place(temporary, directory, last=layout.file_name(key, ".json"))
            except BaseException:
                drop()
                raise
            self.ledger.wrote(KEY_DATA, sizes[0] + size, count_leaves(described.get("data")))
            self._steps.note_save(step, key, directory)

        def drop() -> None:
            shutil.rmtree(temporary, ignore_errors=True)

        def give_up() -> None:
            with suppress(DumpPathLostError):  # which has been reported
                self.manifest.check()
                drop()

        with self.lock:
            self.refuse_ended(step)
            self._steps_with_data.add(step)
            self.hand_over_arrays(what, arrays, write_arrays)
        try:
            described = dict(content())
            with self.lock:
                self.refuse_ended(step)
                self.background.hand_over(what, write_description)
        except Exception:
            self.background.hand_over(what, give_up)
            raise

    def save_configurations(self, made: Callable[[], Mapping[str, Any]]) -> None:
        """Write configurations.json, whole or not at all.

        Args:
            made: returns all there is to write by then; called by the writing thread.
        """
        path = self.root / layout.CONFIGURATIONS_FILE

        def write() -> None:
            self.manifest.check()
            self.ledger.wrote(CONFIGURATIONS, write_json(path, dict(made()), indent=4))
            content = self.manifest.content
            content.recorded = {**content.recorded, step_spans.CONFIGURATIONS: True}
            self.manifest.save()

        self.background.finish(message("lost.configurations"), write)

    def note(self, note: Note) -> None:
        """Put what is said of the run into the manifest; the note says when it is written."""

        def write() -> None:
            self.manifest.check()
            note.put_into(self.manifest)
            if note.written is not Written.WITH_THE_STEP:
                self.manifest.save()

        if note.written is Written.NOW:
            self.background.finish(note.lost, write)
        else:
            self.background.hand_over(note.lost, write)

    def end_step(
        self,
        step: int,
        lost: Mapping[Message, int],
        *,
        complete: bool = True,
        times: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        """Write what msprobe's tools read and note in the manifest that `step` is whole.

        Args:
            lost: kind of loss → how many so far; looked at when everything else is written.
            times: returns when what in the step ran; called by the writing thread.
        """
        with self.lock:  # what comes for this step from now on is refused
            self._ended = max(self._ended, step)
            sinks = {at: self._sinks.pop(at) for at in [*self._sinks] if at[1] <= step}
            ended = {at: sink.files for at, sink in sinks.items() if sink.files is not None}
            has_data = step in self._steps_with_data
            self._steps_with_data = {other for other in self._steps_with_data if other > step}
            end = partial(self._steps.end, step, ended, lost, times=times)

            def write() -> None:
                end(complete=complete, has_data=has_data)
                self._buffers.trim()

            def thin() -> None:
                if thinning is not None and self.manifest.lost is None:
                    thinning.thin()

            job = self.background.begin(self._manifest, write)
            if (thinning := self._steps.thinning) is not None:  # nobody waits for it
                self.background.begin(message("lost.old_steps"), thin)
        try:
            with self.ledger.charge(STEP):
                self.background.wait_for(job)
        finally:  # an interrupted wait ends the step too
            self.ledger.end_step(step)

    def close(self, stop: Stop | None = None, lost: Mapping[Message, int] | None = None) -> None:
        """Mark the run as ended.

        Args:
            stop: where it stopped; None if it finished.
            lost: as for `end_step`; None: as it said.
        """

        def copy_journals() -> None:
            if self._copies:
                from mindrlhf_msprobe.storage.columns.export import copy_of_rank

                copy_of_rank(self.root, self.rank)

        def write() -> None:
            if lost is not None:
                self.manifest.note_lost(lost)
            self.manifest.close(stop, copy_journals)

        self.background.finish(self._manifest, write)
        self.background.stop()

    def wait(self) -> None:
        """Return when everything handed over so far is readable on disk."""
        self.background.finish(self._manifest, lambda: None)

    def abandon(self) -> None:
        """Write nothing more: called in a forked child, which leaves the run to its parent."""
        self.lock = threading.RLock()
        self.background.abandon()

    def hand_over_arrays(
        self,
        what: Message,
        arrays: Mapping[str, np.ndarray],
        write: Callable[[Mapping[str, np.ndarray]], None],
    ) -> None:
        """Let `write` have copies of arrays, or the arrays themselves if they exceed the budget."""
        for array in arrays.values():
            if array.dtype.hasobject:
                raise ValueError(message("fault.objects", dtype=str(array.dtype)))

        def checked(copies: Mapping[str, np.ndarray]) -> None:
            self.manifest.check()
            write(copies)

        nbytes = sum(array.nbytes for array in arrays.values())
        if nbytes > self._buffer_bytes:
            self.background.finish(what, lambda: checked(arrays), nbytes)
            return
        size = sum(map(self._buffers.size_for, arrays.values()))
        self.background.make_room(size)
        copies = {name: self._buffers.copy(array) for name, array in arrays.items()}

        def write_copies() -> None:
            try:
                checked({name: copy.array for name, copy in copies.items()})
            finally:
                for copy in copies.values():
                    self._buffers.release(copy)

        self.background.hand_over(what, write_copies, size)

    def refuse_ended(self, step: int) -> None:
        """Raise StepEndedError if a step has ended."""
        if step <= self._ended:
            raise StepEndedError.saying("fault.step_ended", step=step)
