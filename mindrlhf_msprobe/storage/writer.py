"""Records → files of one rank.

The journal of a phase is appended to, one line an entry; everything else is written beside its
place and renamed in. The files for msprobe's tools are written from the journal when a step ends.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.storage import layout, manifest
from mindrlhf_msprobe.storage.arrays import save_npy
from mindrlhf_msprobe.storage.atomic import dump_json, write_json
from mindrlhf_msprobe.storage.journal import msprobe_files, read_journal
from mindrlhf_msprobe.storage.manifest import Manifest


class RunWriter:
    """Writes what one rank records into `root`.

    Args:
        settings: what the process runs with, by section, for the manifest.

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
    ) -> None:
        self.root = root
        self.rank = rank
        self._task = task
        self._manifest = Manifest.claim(root, rank, dict(config), existing, settings)
        self._journals: dict[Path, _Journal] = {}
        self._key_data_dirs: set[Path] = set()
        self._step_has_data = False

    def next_step(self) -> int:
        """Return the step after the last one an earlier attempt completed, 0 in a new run."""
        done = [a.get("last_completed_step") for a in self._manifest.content["attempts"][:-1]]
        return max((step for step in done if isinstance(step, int)), default=-1) + 1

    def append_entry(
        self, phase: str, step: int, entry: dict[str, Any], frames: tuple[str, ...]
    ) -> None:
        """Append one entry to the journal of its phase and step."""
        self._journal(phase, step).append(entry, frames)

    def save_tensor(
        self, phase: str, step: int, record: str, array: np.ndarray, fingerprint: str | None
    ) -> str:
        """Save a record's elements and return the file's name.

        Equal tensors of a phase and step (equal fingerprints) are stored once and hard-linked.
        """
        return self._journal(phase, step).save_tensor(record, array, fingerprint)

    def save_key_data(
        self,
        key: str,
        step: int,
        micro_step: int,
        content: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        """Save one key's arrays (file name → array) and, last, the JSON that describes them."""
        step_dir = layout.key_data_step_dir(self.root, key, step, self.rank)
        if step_dir not in self._key_data_dirs:
            _start_afresh(step_dir)
            self._key_data_dirs.add(step_dir)
        self._step_has_data = True
        directory = layout.key_data_dir(self.root, key, step, self.rank, micro_step)
        directory.mkdir(exist_ok=True)
        for name, array in arrays.items():
            save_npy(directory / name, array)
        write_json(directory / layout.file_name(key, ".json"), dict(content))

    def save_configurations(self, content: Mapping[str, Any]) -> None:
        """Write configurations.json, whole or not at all."""
        write_json(self.root / layout.CONFIGURATIONS_FILE, dict(content), indent=4)

    def save_first_entry(
        self, role: str, weights: Mapping[str, Any] | None, settings: Mapping[str, Any] | None
    ) -> None:
        """Write what was found when a role's network was first entered, into the manifest.

        Args:
            weights: parameter name → fingerprint; None where they are not recorded.
            settings: what the process runs with, by section; None where that is known already.
        """
        if settings is not None:
            self._manifest.note_settings(settings, manifest.AT_FIRST_PHASE)
        if weights is not None:
            self._manifest.note_weights(role, weights)
        if settings is not None or weights is not None:
            self._manifest.save()

    def note_graph_gaps(self, role: str, gaps: Mapping[str, str]) -> dict[str, str]:
        """Note what could not be recorded in graphs; see `Manifest.note_graph_gaps`."""
        new = self._manifest.note_graph_gaps(role, gaps)
        if new:
            self._manifest.save()
        return new

    def end_step(self, step: int, lost: Mapping[str, int], *, complete: bool = True) -> None:
        """Write what msprobe's tools read and note in the manifest that `step` is whole."""
        for journal in self._journals.values():
            journal.finish(self._task)
        attempt = self._manifest.attempt
        if attempt["first_step"] is None and (complete or self._step_has_data):
            attempt["first_step"] = step
        if complete:
            attempt["last_completed_step"] = step
        elif self._step_has_data:
            attempt["unfinished_step"] = step
        self._manifest.content["lost"] = dict(lost)
        self._manifest.save()
        self._journals.clear()
        self._key_data_dirs.clear()
        self._step_has_data = False

    def close(self, *, failed: bool = False) -> None:
        """Mark the run as ended."""
        state = manifest.FAILED if failed else manifest.FINISHED
        self._manifest.content["state"] = self._manifest.attempt["state"] = state
        self._manifest.save()

    def _journal(self, phase: str, step: int) -> _Journal:
        directory = layout.entry_dir(self.root, phase, step, self.rank)
        journal = self._journals.get(directory)
        if journal is None:
            _start_afresh(directory)
            journal = self._journals[directory] = _Journal(directory)
            self._step_has_data = True
        return journal


def _start_afresh(directory: Path) -> None:
    """Make `directory`, without what an earlier attempt at the same step left in it."""
    if directory.is_dir():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)


class _Journal:
    """The journal and the tensors of one phase, step and rank."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / layout.JOURNAL_FILE
        self._file: int | None = None
        self._stacks: dict[tuple[str, ...], int] = {}
        self._stored: dict[str, Path] = {}

    def append(self, entry: dict[str, Any], frames: tuple[str, ...]) -> None:
        line = dict(entry)
        if frames:
            known = frames in self._stacks
            line["stack"] = self._stacks.setdefault(frames, len(self._stacks))
            if not known:
                line["frames"] = list(frames)
        self._write(dump_json(line) + b"\n")

    def _write(self, line: bytes) -> None:
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o666)
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def save_tensor(self, record: str, array: np.ndarray, fingerprint: str | None) -> str:
        directory = self._directory / layout.TENSOR_DIR
        directory.mkdir(exist_ok=True)
        path = directory / layout.file_name(record)
        stored = self._stored.get(fingerprint) if fingerprint else None
        if stored is None or not _link(stored, path):
            save_npy(path, array)
            if fingerprint:
                self._stored[fingerprint] = path
        return path.name

    def finish(self, task: str) -> None:
        """Close the journal and write dump.json, stack.json and construct.json from it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        has_tensors = (self._directory / layout.TENSOR_DIR).is_dir()
        data_dir = str(self._directory / layout.TENSOR_DIR) if has_tensors else None
        lines = read_journal(self._directory, self._path).lines if self._path.exists() else []
        files = msprobe_files(lines, task, data_dir)
        for name, content in files.items():
            write_json(self._directory / name, content)


def _link(stored: Path, path: Path) -> bool:
    """Hard-link `path` to what is stored; False where the file system cannot."""
    try:
        path.unlink(missing_ok=True)
        os.link(stored, path)
    except OSError:
        return False
    return True
