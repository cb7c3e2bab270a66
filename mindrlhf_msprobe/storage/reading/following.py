"""A run of one rank as it grows: the last steps that ended are there, earlier ones are let go."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.phases import phase_order
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.manifest import step_spans
from mindrlhf_msprobe.storage.manifest.run_file import RunFile
from mindrlhf_msprobe.storage.place import KeyPlace, LayerPlace, StepPlace
from mindrlhf_msprobe.storage.reading.places import Directories, micro_steps
from mindrlhf_msprobe.storage.reading.reader import Run


class FollowedRun(Run):
    """What one rank of a running job has recorded, as far as it was taken.

    Nothing is listed that was recorded earlier, so a step costs the same however many there are.

    Args:
        path: the run's directory.
        rank: the rank.

    Raises:
        RunError: the rank has no manifest there.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self._begin(path)
        self._rank = rank
        self._phases_seen: set[str] = set()
        self._keys_seen: set[str] = set()
        self._first_step: int | None = None
        self._read_own_manifest()

    def _read_own_manifest(self) -> None:
        self._use([RunFile.read(self.path / layout.manifest_name(self._rank))])

    def take(self, step: int) -> bool:
        """Add a step that has ended; return whether anything was recorded in it."""
        with suppress(RunError):  # one that is damaged: what it said before is what is known
            self._read_own_manifest()
        held = {at for at, _ in self._recorded_at} | {step}
        kept = sorted(held)[-3:]
        before = {*kept} - {step}
        layers = {at: d for at, d in self._layer_dirs.items() if at.step in before}
        keys = {at: d for at, d in self._key_dirs.items() if at.step in before}
        known = len(layers) + len(keys)
        config = self.config(self._rank)
        for phase in config.phase_table() if config is not None else ():
            directory = layout.entry_dir(self.path, phase, step, self._rank)
            if (directory / layout.JOURNAL_FILE).is_file():
                layers[LayerPlace(phase, step, self._rank)] = directory
                self._phases_seen.add(phase)
        for key in layout.subdirectories(self.path / layout.KEY_DATA_DIR, unlisted=self._unlisted):
            own = layout.key_data_step_dir(self.path, key.name, step, self._rank)
            for number, path in micro_steps(own, key.name, self._unlisted) if own.is_dir() else ():
                keys[KeyPlace(key.name, step, self._rank, number)] = path
                self._keys_seen.add(key.name)
        self._layer_dirs, self._key_dirs = Directories(layers), Directories(keys)
        self._lost_times.clear()
        self.problems.clear()
        self._known_problems.clear()
        found = len(layers) + len(keys) > known
        if self._first_step is None and found:
            self._first_step = step
        return found

    def stop_of(self, rank: int) -> None:
        """Return None: of a run that is followed only steps that have ended are known."""

    def is_thinned_by_now(self, step: int) -> bool:
        """Return whether `keep_mb` has removed layer or key data of a step, before or since."""
        config = self.config(self._rank)
        if config is None or not config.keep_mb:
            return False
        at, kinds = StepPlace(step, self._rank), (step_spans.LAYERS, step_spans.KEY_DATA)
        return any(self._is_thinned_by_now(kind, at) for kind in kinds)

    @property
    def steps(self) -> list[int]:
        """The first step that was taken, and those that are held."""
        first = set() if self._first_step is None else {self._first_step}
        return sorted({step for step, _ in self._recorded_at} | first)

    @property
    def phases(self) -> list[str]:
        """The phases of which any step held layer data."""
        return sorted(self._phases_seen, key=lambda name: (phase_order(name), name))

    @property
    def keys(self) -> list[str]:
        """The names under which any step held key data."""
        return sorted(self._keys_seen)
