"""Where the steps, ranks and keys of a run lie: our layout, and msprobe's.

msprobe's `save` writes by MindSpore's TensorDump: `<name>_<dtype>_<n>.npy` is a tensor,
`<name>.<path>_<dtype>_<n>.npy` one of a dict or a list; n counts on over all files of a process.
They lie together in the directory of a step and a rank, however often a name was saved there.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeVar

from mindrlhf_msprobe.phases import PHASES, UNNAMED_PHASE, standard_phase
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.place import KeyPlace, LayerPlace, StepPlace

_Place = TypeVar("_Place", bound=LayerPlace | KeyPlace)


def step_and_rank(parts: Sequence[str]) -> tuple[int | None, int | None]:
    """Return what the names of directories, from a step's or a rank's on, say."""
    step = layout.step_number(parts[0]) if parts else None
    rest = parts if step is None else parts[1:]
    return step, layout.rank_number(rest[0]) if rest else None


class Directories(dict[_Place, Path]):
    """Place → directory."""

    def at(self, step: int | None, rank: int | None, name: str | None = None) -> list[_Place]:
        """Return the places of a step, a rank and a phase or key (None: of any)."""
        if step is None or rank is None:
            found = [*self]
        else:
            found = self.by_step.get(StepPlace(step, rank), [])
        wanted = (name, step, rank)  # as every place begins
        return [at for at in found if all(one in (None, own) for one, own in zip(wanted, at))]

    @cached_property
    def by_step(self) -> dict[StepPlace, list[_Place]]:
        """What lies at each step of each rank: a run of many ranks is read place by place."""
        found: dict[StepPlace, list[_Place]] = {}
        for place in self:
            found.setdefault(StepPlace(place.step, place.rank), []).append(place)
        return found


def layer_directories(root: Path, unlisted: layout.OnUnlisted) -> Iterator[tuple[LayerPlace, Path]]:
    """Yield the places of layer data at, or below, `root`, each with its directory."""
    own_step = layout.step_number(root.name)
    if own_step is not None and layout.rank_directories(root, links=True):
        yield from _ranks_of(root, phase_name(root.parent), own_step, unlisted)
        return
    if own_step is None and _holds_entries(root):  # one rank's directory
        step_dir = root.absolute().parent
        own_step, rank = layout.step_number(step_dir.name), layout.rank_number(root.absolute().name)
        phase = UNNAMED_PHASE if own_step is None else phase_name(step_dir.parent)
        yield LayerPlace(phase, own_step or 0, rank or 0), root
        return
    ours = bool(layout.manifests(root))
    found: list[tuple[LayerPlace, Path]] = []
    for step, step_dir in layout.step_directories(root, links=True, unlisted=unlisted):
        phase_dir = step_dir.parent
        if phase_dir.parent == root and phase_dir.name == layout.KEY_DATA_DIR:
            continue
        if phase_dir == root:
            # A run's own directory may be called as it likes; that of a phase holds no manifest.
            phase = UNNAMED_PHASE if ours else phase_name(root)
            yield from _ranks_of(step_dir, phase, step, unlisted)
        elif ours:
            if phase_dir.parent == root:
                yield from _ranks_of(step_dir, phase_dir.name, step, unlisted)
        else:
            of_trainer = layout.trainer_step(phase_dir.parent.name)
            if phase_dir.parent == root or of_trainer is None:
                of_trainer = step
            # Of another tool's dump that of the directory, or of a process above it.
            if not phase_dir.name.isdecimal():
                phase = standard_phase(phase_dir.name)
            elif phase_dir.parent == root:
                phase = phase_name(root)
            else:
                phase = standard_phase(phase_dir.parent.name)
            found += _ranks_of(step_dir, phase, of_trainer, unlisted)
    yield from _by_process(found)


def _by_process(found: list[tuple[LayerPlace, Path]]) -> Iterator[tuple[LayerPlace, Path]]:
    """Yield the directories of a dump; of several processes of a phase each rank has a number.

    `<phase>/<process id>/step<S>/rank0` of two processes: they are counted upwards from 0 in the
    order of their process ids.
    """
    of_phases: dict[str, set[tuple[int, int]]] = {}
    for at, path in found:
        of_phases.setdefault(at.phase, set()).add((_process_of(path), at.rank))
    numbers = {
        phase: {at: number for number, at in enumerate(sorted(held))}
        for phase, held in of_phases.items()
        if len({process for process, _ in held}) > 1
    }
    for at, path in found:
        of_phase = numbers.get(at.phase, {})
        yield at._replace(rank=of_phase.get((_process_of(path), at.rank), at.rank)), path


def _process_of(directory: Path) -> int:
    """Return the process id in the path of a rank's directory of a step; -1 where there is none."""
    name = directory.parent.parent.name
    return int(name) if name.isdecimal() else -1


def phase_name(directory: Path) -> str:
    """Return the phase whose directory this is."""
    known = {phase.name for phase in PHASES}
    name = standard_phase(directory.name)
    return name if name in known else UNNAMED_PHASE


def _ranks_of(
    step_dir: Path, phase: str, step: int, unlisted: layout.OnUnlisted
) -> Iterator[tuple[LayerPlace, Path]]:
    ranks = layout.rank_directories(step_dir, links=True, unlisted=unlisted)
    for rank, path in ranks.items():
        holds = _holds_entries(path)
        if not holds:  # but maybe what stood beside entries that are gone
            with suppress(OSError):
                beside = (layout.STACK_FILE, layout.CONSTRUCT_FILE)
                holds = any((path / name).is_file() for name in beside)
                # Tensors of which a list is kept are those of a process that was killed before the
                # first entry.
                if not (holds or (path / layout.TENSOR_LIST).exists()):
                    with os.scandir(path / layout.TENSOR_DIR) as found:
                        holds = any(item.name.endswith(".npy") for item in found)
        if holds:
            yield LayerPlace(phase, step, rank), path


def _holds_entries(directory: Path) -> bool:
    try:
        return any((directory / name).is_file() for name in (layout.JOURNAL_FILE, layout.DUMP_FILE))
    except OSError:  # reading it will say why
        return True


def key_data_directories(
    root: Path, unlisted: layout.OnUnlisted
) -> Iterator[tuple[KeyPlace, Path]]:
    """Yield the places of key data below `root`, each with its directory.

    What msprobe's `save` wrote has no directory of its own for each save. A save without a
    micro-step beside others is taken for micro-step 0, or where there is one, for the last.
    """
    data = root / layout.KEY_DATA_DIR
    for step, step_dir in layout.step_directories(root, links=True, unlisted=unlisted):
        key = step_dir.parent.name
        in_a_network, of_a_key = step_dir.parent == root, step_dir.parent.parent == data
        if not (in_a_network or of_a_key):
            continue
        ranks = layout.rank_directories(step_dir, links=True, unlisted=unlisted)
        for rank, path in ranks.items():
            if in_a_network:
                for name, saves in _dumped(path, None, unlisted).items():
                    yield from ((KeyPlace(name, step, rank, n), path) for n in range(len(saves)))
            else:
                for number, child in micro_steps(path, key, unlisted):
                    yield KeyPlace(key, step, rank, number), child


def micro_steps(path: Path, key: str, unlisted: layout.OnUnlisted) -> Sequence[tuple[int, Path]]:
    """Return the saves of a key in a rank's directory, each with its micro-step."""
    found = [
        (number, child)
        for child in layout.subdirectories(path, links=True, unlisted=unlisted)
        if (number := layout.micro_step_number(child.name)) is not None
    ]
    if not found:
        return [(n, path) for n, _ in enumerate(_dumped(path, key, unlisted).get(key, [{}]))]
    if (path / layout.file_name(key, ".json")).is_file():  # saved without a micro-step
        taken = {number for number, _ in found}
        found.append((max(taken) + 1 if 0 in taken else 0, path))
    return sorted(found)


def _dumped(directory: Path, key: str | None, unlisted: layout.OnUnlisted) -> dict[str, list[Save]]:
    try:
        return saves_in(directory, key)
    except OSError as error:
        unlisted(directory, error)
        return {}


_FILE = re.compile(
    r"(?P<stem>.+)_(?:(?:bfloat|float|u?int|complex)[0-9]{1,3}|bool)_(?P<order>[0-9]{1,18})\.npy"
)

#: What was saved at once: path in the structure → file name.
Save = dict[str, str]


def saves_in(directory: Path, key: str | None = None) -> dict[str, list[Save]]:
    """Return name → what was saved under it, in the order in which it was saved.

    Args:
        directory: of a step and a rank.
        key: the name, where it is known: it may hold dots.

    Raises:
        OSError: the directory cannot be listed.
    """
    return _saves_in(directory, key, directory.stat().st_mtime_ns)


@lru_cache(maxsize=16)  # each save of a directory is read for itself
def _saves_in(directory: Path, key: str | None, _changed: int) -> dict[str, list[Save]]:
    with os.scandir(directory) as entries:
        matches = [_FILE.fullmatch(entry.name) for entry in entries if entry.is_file()]
    files = [(int(m["order"]), m["stem"], m[0]) for m in matches if m]
    found: dict[str, list[Save]] = {}
    times: Counter[str] = Counter()
    for _, stem, name in sorted(files):
        own, _, path = stem.partition(".")
        if key is not None:
            if stem != key and not stem.startswith(f"{key}."):
                continue
            own, path = key, stem[len(key) + 1 :]
        saves = found.setdefault(own, [])
        while len(saves) <= times[stem]:
            saves.append({})
        saves[times[stem]][path] = name
        times[stem] += 1
    return found
