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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, SpokenError, message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.atomic import put_in_place, temporary_of, write_json
from mindrlhf_msprobe.storage.arrays.buffers import BufferPool
from mindrlhf_msprobe.storage.arrays.npy import save_npy
from mindrlhf_msprobe.storage.arrays.sketches import HEAD
from mindrlhf_msprobe.storage.directory.job import DumpPathLostError
from mindrlhf_msprobe.storage.directory.removal import files_in, recorded_file, remove_save
from mindrlhf_msprobe.storage.directory.step_directories import StepDirectories
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.leaves import count_leaves
from mindrlhf_msprobe.storage.manifest import recorded, thinned
from mindrlhf_msprobe.storage.manifest.manifest import Manifest
from mindrlhf_msprobe.storage.manifest.notes import Note, Written
from mindrlhf_msprobe.storage.manifest.run_file import Stop
from mindrlhf_msprobe.storage.step_lines import time_lines
from mindrlhf_msprobe.storage.writing.background import Background, FaultSink, Job
from mindrlhf_msprobe.storage.writing.ledger import CONFIGURATIONS, KEY_DATA, STEP, Ledger
from mindrlhf_msprobe.storage.writing.phase_files import ENTRY, PhaseFiles
from mindrlhf_msprobe.storage.writing.thinning import Thinning

#: Bytes that may wait to be written unless the configuration says otherwise.
DEFAULT_BUFFER = 512 << 20
_LARGE_SKETCH = 1 << 14  # bytes; a smaller one is made as soon as it is read
_MOST_SKETCHES = 1 << 13  # of other phases and steps that are known
_LEAF_BYTES = 1024  # what one described value occupies, about, until its line is written


_TENSOR = message("lost.tensor")

_SKETCH = message("lost.sketch")

#: An entry, and how many values it describes; or a sketch with its offset and its fingerprint.
_Item = tuple[JournalLine, int] | tuple[np.ndarray, int, str]


def _raise(what: Message, error: BaseException, count: int) -> None:
    raise error


def _named(key: str) -> Message:
    return message("lost.key_data", key=key)


class StepEndedError(SpokenError):
    """Something was handed over for a step that had ended."""


@dataclass(eq=False, slots=True)
class _Phase:
    """One phase of one step.

    Attributes:
        stored: the file of every fingerprint handed over.
        named: the name of every file that tensors were handed over for.
        sketched: the offset of the sketch of every fingerprint, and the end of the last of them.
        batch: entries and sketches that were handed over last, with no tensor after them.
    """

    files: PhaseFiles
    stored: dict[str, str] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    sketched: dict[str, int] = field(default_factory=dict)
    end_of_sketches: int = len(HEAD)
    batch: Job | None = None


class Sink:
    """Takes what is recorded of one phase in one step, as the methods of `RunWriter` say."""

    def __init__(self, writer: RunWriter, phase: str, step: int) -> None:
        self._writer, self._phase, self._step = writer, phase, step

    def append(self, line: JournalLine) -> None:
        """Take an entry that ended."""
        self._writer.append_entry(self._phase, self._step, line)

    def save(self, record: str, array: np.ndarray, fingerprint: str | None) -> str:
        """Take a record's elements, as they are now, and return the name of their file."""
        return self._writer.save_tensor(self._phase, self._step, record, array, fingerprint)

    def save_sketch(self, fingerprint: str, made: Callable[[], np.ndarray]) -> int:
        """Take the sketch of a tensor, and return its place in the file of sketches."""
        return self._writer.save_sketch(self._phase, self._step, fingerprint, made)


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
        fault: FaultSink = _raise,
        ledger: Ledger | None = None,
        keep_bytes: int = 0,
    ) -> None:
        self.root = root
        self.rank = rank
        self.task, self.level = task, str(config.get("level", "L0"))
        self._copies = bool(config.get("columns", True))
        self._manifest = message("lost.manifest", file=layout.manifest_name(rank))
        self.manifest = Manifest.claim(root, rank, dict(config), existing, settings)
        self._ledger = ledger or Ledger()
        self._buffer_bytes = buffer_bytes
        self._buffers = BufferPool(buffer_bytes)
        self._background = Background(buffer_bytes, fault, self._ledger)
        # Held while something is handed over, so that a link comes after what it links to, and
        # nothing for a step comes after its end.
        self._lock = threading.RLock()
        self.phases: set[str] = set()  # of which entries were handed over
        self._phases: dict[tuple[str, int], _Phase] = {}
        # Where the sketches of fingerprints were written, and their bytes.
        self._large_sketches: dict[str, tuple[Path, int, int]] = {}
        self._ended = -1  # the last step of which the end was handed over
        self._steps_with_data: set[int] = set()
        # Of the writing thread: what was saved, in that order, and where.
        self._key_data: dict[tuple[int, str, Path], None] = {}
        self._saves = itertools.count()
        self._directories = StepDirectories(root)
        self._thinning: Thinning | None = None
        if keep_bytes:
            self._thinning = Thinning(
                root, rank, keep_bytes, self.manifest, self._directories.is_own
            )

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
        return Sink(self, phase, step)

    def append_entry(self, phase: str, step: int, line: JournalLine) -> None:
        """Append one entry, which belongs to the writer from now on, to its phase's journal.

        Raises:
            StepEndedError: the step has ended.
        """
        records = count_leaves(line.values)
        with self._lock:
            self._add(phase, self._phase(phase, step), (line, records), records * _LEAF_BYTES)
            self.phases.add(phase)

    def _add(self, phase: str, known: _Phase, item: _Item, size: int) -> None:
        """Hand over an entry, or a sketch, with what came before it and waits."""
        if known.batch is None or not self._background.join(known.batch, item, size):
            known.batch = self._background.hand_over_batch(
                ENTRY, lambda items: self._append(phase, known, items), item, size
            )

    def _append(self, phase: str, known: _Phase, items: Sequence[_Item]) -> None:
        """Write sketches, then append entries; each that cannot be written is reported by itself.

        An entry comes after its sketches.
        """
        lines = [item for item in items if len(item) == 2]
        sketches = [item for item in items if len(item) == 3]
        try:
            self.manifest.check()
        except DumpPathLostError as error:
            for what, lost in ((ENTRY, lines), (_SKETCH, sketches)):
                if lost:
                    self._background.report(what, error, len(lost))
            return
        for sketch, offset, fingerprint in sketches:
            try:
                self._ledger.wrote(phase, known.files.add_sketch(offset, sketch))
            except OSError as error:
                known.sketched.pop(fingerprint, None)
                self._background.report(_SKETCH, error)
                continue
            if sketch.nbytes >= _LARGE_SKETCH:
                if len(self._large_sketches) >= _MOST_SKETCHES:
                    self._large_sketches.clear()
                path = known.files.directory / layout.SKETCH_FILE
                self._large_sketches[fingerprint] = path, offset, sketch.nbytes
        self._append_lines(phase, known.files, lines)

    def _append_lines(
        self, phase: str, files: PhaseFiles, lines: Sequence[tuple[JournalLine, int]]
    ) -> None:
        if not lines:
            return
        try:
            size = files.append([line for line, _ in lines])
        except Exception as error:
            if len(lines) == 1:
                self._background.report(ENTRY, error)
                return
            for line in lines:
                self._append_lines(phase, files, [line])
            return
        self._ledger.wrote(phase, size, sum(records for _, records in lines))

    def save_sketch(
        self, phase: str, step: int, fingerprint: str, made: Callable[[], np.ndarray]
    ) -> int:
        """Save the sketch of a tensor and return its offset in the file of sketches.

        Equal tensors of a phase and step (equal fingerprints) have one sketch.

        Args:
            made: returns it, uint8; called where there is none yet.

        Raises:
            StepEndedError: the step has ended.
        """
        with self._lock:
            offset = self._phase(phase, step).sketched.get(fingerprint)
        if offset is not None:
            return offset
        sketch = self._copied_sketch(fingerprint)
        if sketch is None:
            sketch = made()
        with self._lock:
            known = self._phase(phase, step)
            offset = known.sketched.get(fingerprint)
            if offset is None:  # nor has another thread made it
                offset = known.sketched[fingerprint] = known.end_of_sketches
                known.end_of_sketches += sketch.nbytes
                self._add(phase, known, (sketch, offset, fingerprint), sketch.nbytes)
        return offset

    def _copied_sketch(self, fingerprint: str) -> np.ndarray | None:
        """Read the sketch of an equal tensor of another phase or step; None where there is none.

        A weight is the same in every phase between two updates, and its sketch takes a thirtieth
        of its bytes.
        """
        path, offset, size = self._large_sketches.get(fingerprint, (None, 0, 0))
        if path is None:
            return None
        try:
            with open(path, "rb", buffering=0) as file:
                content = os.pread(file.fileno(), size, offset)
        except OSError:  # removed since
            return None
        return np.frombuffer(content, np.uint8) if len(content) == size else None

    def save_tensor(
        self, phase: str, step: int, record: str, array: np.ndarray, fingerprint: str | None
    ) -> str:
        """Save a record's elements and return the file's name.

        Equal tensors of a phase and step (equal fingerprints) are stored once and hard-linked. The
        elements are those of now, whatever becomes of the array.

        Raises:
            StepEndedError: the step has ended.
        """
        name = layout.record_file_name(record)
        with self._lock:
            known = self._phase(phase, step)
            known.batch = None  # the next entry comes after this tensor
            files, stored = known.files, known.stored
            source = stored.get(fingerprint) if fingerprint else None
            if source == name:  # the file has these elements
                return name
            if name in known.named:  # it gets others, and nothing may share it any more
                for other in [each for each, file in stored.items() if file == name]:
                    del stored[other]
            known.named.add(name)
            if source is not None:
                link = partial(files.link, name, source)
                self._hand_over(_TENSOR, lambda: self._ledger.wrote(phase, link()), _LEAF_BYTES)
                return name
            if fingerprint:
                stored[fingerprint] = name

            def write(arrays: Mapping[str, np.ndarray]) -> None:
                try:
                    self._ledger.wrote(phase, files.save(name, arrays[name]))
                except OSError:
                    if fingerprint:
                        stored.pop(fingerprint, None)
                    raise

            self._hand_over_arrays(_TENSOR, {name: array}, write)
        return name

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
        what = _named(key)
        step_dir = self._step_dir(key, step)
        directory = layout.key_data_dir(self.root, key, step, self.rank, micro_step)
        # Several threads may save at one micro-step: each makes its files in a place of its own.
        beside = step_dir / "save" if micro_step is None else directory
        temporary = temporary_of(beside, next(self._saves))
        sizes: list[int] = []

        def write_arrays(copies: Mapping[str, np.ndarray]) -> None:
            self._directories.make(step_dir)
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
                if (step, key, directory) in self._key_data:
                    remove_save(directory, key)
                put_in_place(temporary, directory, last=layout.file_name(key, ".json"))
                self._directories.note(step_dir, directory / layout.file_name(key, ".json"))
            except BaseException:
                drop()
                raise
            self._ledger.wrote(KEY_DATA, sizes[0] + size, count_leaves(described.get("data")))
            self._key_data[step, key, directory] = None

        def drop() -> None:
            shutil.rmtree(temporary, ignore_errors=True)

        def give_up() -> None:
            with suppress(DumpPathLostError):  # which has been reported
                self.manifest.check()
                drop()

        with self._lock:
            self._refuse_ended(step)
            self._steps_with_data.add(step)
            self._hand_over_arrays(what, arrays, write_arrays)
        try:
            described = dict(content())
            with self._lock:
                self._refuse_ended(step)
                self._background.hand_over(what, write_description)
        except Exception:
            self._background.hand_over(what, give_up)
            raise

    def _step_dir(self, key: str, step: int) -> Path:
        return layout.key_data_step_dir(self.root, key, step, self.rank)

    def save_configurations(self, made: Callable[[], Mapping[str, Any]]) -> None:
        """Write configurations.json, whole or not at all.

        Args:
            made: returns all there is to write by then; called by the writing thread.
        """
        path = self.root / layout.CONFIGURATIONS_FILE

        def write() -> None:
            self._ledger.wrote(CONFIGURATIONS, write_json(path, dict(made()), indent=4))
            content = self.manifest.content
            content.recorded = {**content.recorded, recorded.CONFIGURATIONS: True}
            self.manifest.save()

        self._finish(message("lost.configurations"), write)

    def note(self, note: Note) -> None:
        """Put what is said of the run into the manifest; the note says when it is written."""

        def write() -> None:
            note.put_into(self.manifest)
            if note.written is not Written.WITH_THE_STEP:
                self.manifest.save()

        if note.written is Written.NOW:
            self._finish(note.lost, write)
        else:
            self._hand_over(note.lost, write)

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
        with self._lock:  # what comes for this step from now on is refused
            self._ended = max(self._ended, step)
            ended = {
                phase: self._phases.pop(phase) for phase in list(self._phases) if phase[1] <= step
            }
            has_data = step in self._steps_with_data
            self._steps_with_data = {other for other in self._steps_with_data if other > step}

            def write() -> None:
                known = self.manifest.lost is not None
                try:
                    self.manifest.check()
                except DumpPathLostError as error:
                    self._count_lost_step(step, [phase.files for phase in ended.values()], error)
                    if complete or not known:
                        self._background.report(message("lost.step"), error)
                    return
                self._end_phases({phase: ended[phase].files for phase in ended})
                self._end_key_data(step)
                self._report_removed(step)
                self._note_step(step, complete=complete, has_data=has_data)
                try:
                    if times is not None:
                        time_lines(self.root, self.rank).append([times()])
                except Exception as error:
                    self._background.report(message("lost.times"), error)
                self.manifest.note_lost(lost)
                self.manifest.content.recording = self._ledger.to_json(step)
                self.manifest.save()
                self._buffers.trim()

            def thin() -> None:
                if self._thinning is not None and self.manifest.lost is None:
                    self._thinning.thin()

            job = self._background.begin(self._manifest, write)
            if self._thinning is not None:  # nobody waits for it
                self._background.begin(message("lost.old_steps"), thin)
        try:
            with self._ledger.charge(STEP):
                self._background.wait_for(job)
        finally:  # an interrupted wait ends the step too
            self._ledger.end_step(step)

    def _end_phases(self, ended: Mapping[tuple[str, int], PhaseFiles]) -> None:
        for (phase, _), files in ended.items():
            try:
                self._ledger.wrote(phase, files.finish())
            except OSError as error:
                self._background.report(message("lost.msprobe_files"), error)
            if files.entries:
                self._directories.note(files.directory, files.directory / layout.JOURNAL_FILE)
        for step in {step for _, step in ended}:
            counts = {name: files.entries for (name, at), files in ended.items() if at == step}
            self._note_recorded(recorded.PHASES, step, counts)

    def _end_key_data(self, step: int) -> None:
        saves: dict[int, Counter[str]] = {}
        ended = [saved for saved in self._key_data if saved[0] <= step]
        own = {
            place: self._directories.is_there(self._step_dir(*place))
            for place in {(key, of_step) for of_step, key, _ in ended}
        }
        for of_step, key, directory in ended:
            if own[key, of_step] and directory.exists():
                saves.setdefault(of_step, Counter())[key] += 1
            else:
                why = message("fault.removed_before_end", directory=str(directory))
                self._background.report(_named(key), FileNotFoundError(why))
            del self._key_data[of_step, key, directory]
        for of_step, counts in saves.items():
            self._note_recorded(recorded.KEY_DATA, of_step, counts)

    def _note_recorded(self, kind: str, step: int, counts: Mapping[str, int]) -> None:
        content = self.manifest.content
        content.recorded = recorded.with_counts(content.recorded, kind, step, counts)
        if self._thinning is not None:
            of = thinned.LAYERS if kind == recorded.PHASES else thinned.KEY_DATA
            self._thinning.note(of, step, (name for name, count in counts.items() if count))

    def _report_removed(self, step: int) -> None:
        """Count the listed steps that are not in the directories they were recorded into."""
        content = self.manifest.content
        for place, replaced in self._directories.end_step(step).items():
            kind, of = recorded.PHASES, thinned.LAYERS
            if place.parent == self.root / layout.KEY_DATA_DIR:
                kind, of = recorded.KEY_DATA, thinned.KEY_DATA
            there = sorted(
                layout.step_number(path.parent.name) or 0
                for path in place.glob(f"step*/rank{self.rank}")
                if not replaced and recorded_file(self.root, path) is not None
            )
            spans = content.recorded.get(kind, {}).get(place.name, ())
            first = self._directories.lost_in.get(place, 0)
            steps = sum(
                max(0, end - max(begin, first) + 1)
                for gap in recorded.gaps(recorded.before(spans, step), there)
                for begin, end in thinned.outside(content.thinned, of, *gap)
            )
            if steps:
                self._directories.lost_in[place] = step
                named = str(place.relative_to(self.root))
                why = FileNotFoundError(message("fault.steps_removed", place=named, steps=steps))
                self._background.report(message("lost.steps", place=named), why, steps)

    def _note_step(self, step: int, *, complete: bool, has_data: bool) -> None:
        attempt = self.manifest.content.attempt
        if attempt.first_step is None and (complete or has_data):
            attempt.first_step = step
        if complete:
            # Of two threads that end steps, the later step's end may be written first.
            attempt.last_completed_step = max(step, attempt.last_completed_step or 0)
        elif has_data:
            attempt.unfinished_step = step

    def _count_lost_step(
        self, step: int, ended: Sequence[PhaseFiles], error: DumpPathLostError
    ) -> None:
        """Count what was written of a step into a directory that is no longer this run's."""
        for files in ended:
            if count := files.give_up():
                self._background.report(ENTRY, error, count)
        for saved in [saved for saved in self._key_data if saved[0] <= step]:
            self._background.report(_named(saved[1]), error)
            del self._key_data[saved]

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

        self._background.finish(self._manifest, write)
        self._background.stop()

    def wait(self) -> None:
        """Return when everything handed over so far is readable on disk."""
        self._background.finish(self._manifest, lambda: None)

    def abandon(self) -> None:
        """Write nothing more: called in a forked child, which leaves the run to its parent."""
        self._lock = threading.RLock()
        self._background.abandon()

    def _hand_over_arrays(
        self,
        what: Message,
        arrays: Mapping[str, np.ndarray],
        write: Callable[[Mapping[str, np.ndarray]], None],
    ) -> None:
        """Let `write` have copies of arrays, or the arrays themselves if they exceed the budget."""
        for array in arrays.values():
            if array.dtype.hasobject:
                raise ValueError(message("fault.objects", dtype=str(array.dtype)))
        nbytes = sum(array.nbytes for array in arrays.values())
        if nbytes > self._buffer_bytes:
            self._finish(what, lambda: write(arrays), nbytes)
            return
        size = sum(map(self._buffers.size_for, arrays.values()))
        self._background.make_room(size)
        copies = {name: self._buffers.copy(array) for name, array in arrays.items()}

        def write_copies() -> None:
            try:
                self.manifest.check()
                write({name: copy.array for name, copy in copies.items()})
            finally:
                for copy in copies.values():
                    self._buffers.release(copy)

        self._background.hand_over(what, write_copies, size)

    def _hand_over(self, what: Message, work: Callable[[], object], size: int = 0) -> None:
        """Do `work` later, if the directory is then still the one that was claimed."""
        self._background.hand_over(what, self._in_place(work), size)

    def _finish(self, what: Message, work: Callable[[], object], size: int = 0) -> None:
        """Do `work`, as `_hand_over`, after all that was handed over, and wait for it."""
        self._background.finish(what, self._in_place(work), size)

    def _in_place(self, work: Callable[[], object]) -> Callable[[], None]:
        def checked() -> None:
            self.manifest.check()
            work()

        return checked

    def _refuse_ended(self, step: int) -> None:
        if step <= self._ended:
            raise StepEndedError.saying("fault.step_ended", step=step)

    def _phase(self, phase: str, step: int) -> _Phase:
        self._refuse_ended(step)
        known = self._phases.get((phase, step))
        if known is None:
            directory = layout.entry_dir(self.root, phase, step, self.rank)
            files = PhaseFiles(
                self._directories.make,
                directory,
                self.task,
                self._background.report,
                self.level,
            )
            known = self._phases[phase, step] = _Phase(files)
            self._steps_with_data.add(step)
        return known
