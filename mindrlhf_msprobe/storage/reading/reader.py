"""A run as an object: what was recorded, read when it is wanted.

Reads this package's runs, also those of a killed job, and msprobe's dumps: rank directories
`rank`, `rank<N>`, `proc<pid>`; key data with or without micro-steps; seed-style `<key>0.npy`.
Other tools' directories are read by the formats in `storage.foreign`.
What cannot be read is listed in `Run.problems`, never silently left out.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.common.rules import installed
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.errors import ConfigError, RunError
from mindrlhf_msprobe.phases import phase_order, role_of
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.foreign import msprobe as foreign
from mindrlhf_msprobe.storage.foreign.dialect import (
    MSPROBE,
    OWN,
    Dialect,
    Format,
    refused_dump,
    refused_files,
)
from mindrlhf_msprobe.storage.journal_line import (
    JournalLine,
    argument_of,
    entry_in,
    read_lines,
    stacks_of,
)
from mindrlhf_msprobe.storage.leaves import made_by
from mindrlhf_msprobe.storage.manifest import step_spans
from mindrlhf_msprobe.storage.manifest.run_file import (
    FINISHED,
    KILLED,
    RUNNING,
    Mode,
    Network,
    RunFile,
    Stop,
    expected_ranks,
    stop_of,
)
from mindrlhf_msprobe.storage.place import AnyPlace, KeyPlace, LayerPlace, StepPlace
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum, is_ours, read_key_datum
from mindrlhf_msprobe.storage.reading.places import (
    Directories,
    key_data_directories,
    layer_directories,
    phase_name,
    step_and_rank,
)
from mindrlhf_msprobe.storage.reading.problems import Problem, missing
from mindrlhf_msprobe.storage.records import Entry, Locator, Record, bounded
from mindrlhf_msprobe.storage.step_lines import StepLines, StepTimes, time_lines
from mindrlhf_msprobe.storage.writing.directory import RankLock

_T = TypeVar("_T")
_MOST_NAMED = 20  # of the entries of one place that cannot be read
_MOST_SHOWN = 200  # characters of a name


def open_run(path: str | Path) -> Run:
    """Open a run's directory, or one phase's, step's or rank's directory inside it.

    A rank's directory may also be given by the `dump.json` in it, as msprobe's compare takes it.

    Raises:
        RunError: there is no such directory, it holds no run, or one whose manifest has a schema
            that this version does not read.
    """
    return Run(directory_of(path))


def directory_of(path: str | Path) -> Path:
    """Return the directory that is opened where a path is given: that of a `dump.json`."""
    path = Path(path)
    return path.parent if path.name == layout.DUMP_FILE and path.is_file() else path


def _of_a_run(path: Path) -> Message | None:
    """Say of which run a file or directory is a part; or which runs lie in it, if any do."""
    if not path.exists():
        return None
    for root in path.absolute().parents[:6]:
        if layout.manifests(root):
            return message("error.part_of_run", path=path, root=root)
    try:
        runs = [root.name for root in layout.subdirectories(path) if layout.manifests(root)]
    except OSError:  # a file
        runs = []
    return message("error.holds_runs", path=path, runs=runs[:_MOST_NAMED]) if runs else None


class Run:
    """What one training job recorded.

    Attributes:
        path: its directory.
        run_files: what run.json and the other ranks' manifests say, each key an attribute; empty
            for msprobe's.
        problems: what could not be read so far.
        left_out: directories of dumps that stood here before the run.
    """

    def __init__(self, path: Path) -> None:
        self._begin(path)
        if not path.is_dir() and (of_a_run := _of_a_run(path)):
            raise RunError(of_a_run)
        layout.check_directory(path)
        try:
            empty = "" if any(path.iterdir()) else message("error.empty")
        except OSError as error:
            raise RunError.saying("error.unread", path=path, why=error.strerror or error) from None
        self._use([*self._read_manifests()])
        files = self.run_files
        others = {path / name for file in files for name in file.others or ()}
        self._find(others)
        unlisted = [*self.problems]
        for problem in missing(path, files, self._layer_dirs, self._key_dirs):
            if not any(known.covers(problem) for known in unlisted):
                self._problem(problem)
        if not any((files, self.problems, self._layer_dirs, self._key_dirs)):
            self._use_other_format()
        elif self.foreign and (why := refused_dump(self._layer_dirs.values())):
            raise RunError(why)
        if not any((files, self.problems, self._layer_dirs, self._key_dirs)):
            refused = refused_files(path) or message(
                "error.no_run",
                path=path,
                run_file=layout.RUN_FILE,
                key_data_dir=layout.KEY_DATA_DIR,
                empty=empty,
            )
            raise RunError(_of_a_run(path) or refused)

    def _begin(self, path: Path) -> None:
        """Know nothing yet of what is in a directory."""
        self.path = path
        self._format: Format | None = None  # neither this package's nor msprobe's
        self.problems: list[Problem] = []
        self.copies: dict[int, Any] = {}  # of journals, by rank, as storage.columns opened them
        self.left_out: list[Path] = []
        self._known_problems: set[Problem] = set()
        self._layer_dirs: Directories[LayerPlace] = Directories()
        self._key_dirs: Directories[KeyPlace] = Directories()
        self._lost_times: dict[StepPlace, set[str]] = {}
        self._use([])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "copies": {}}

    def _use_other_format(self) -> None:
        """Take the directory for another tool's, if it is one."""
        from mindrlhf_msprobe.storage.foreign.hyper_rl import HyperRLRollouts
        from mindrlhf_msprobe.storage.foreign.mindformers_monitor import MindFormersMonitor
        from mindrlhf_msprobe.storage.foreign.mindspore_dump import MindSporeDump

        others, broken = installed("mindrlhf_msprobe.formats", lambda kind, name: kind())
        for known in (MindSporeDump(), MindFormersMonitor(), HyperRLRollouts(), *others):
            for at, directory in known.places(self.path, self._problem):
                if isinstance(at, KeyPlace):
                    self._key_dirs[at] = directory
                else:
                    self._add_layer(at, directory)
            if self._layer_dirs or self._key_dirs or self.problems:
                self._format = known
                return
        if broken:
            raise RunError(broken[0][1])

    def _use(self, files: list[RunFile]) -> None:
        """Take manifests for what they say of the run."""
        self.run_files = files
        self._configs: dict[int, ProbeConfig | None] = {}
        of_ranks = [file for file in files if file.rank is not None]
        self._thinned = {file.rank: file.thinned for file in of_ranks}
        self._listed = {file.rank: file.recorded for file in of_ranks}
        self.__dict__.pop("_of_rank", None)

    def _find(self, others: Collection[Path]) -> None:
        """Find the directories of layer data and of key data.

        Args:
            others: directories that no run recorded, as the manifests say.
        """
        for layer, directory in layer_directories(self.path, self._unlisted):
            if self.is_thinned(step_spans.LAYERS, layer):
                continue
            if directory in others and not (directory / layout.JOURNAL_FILE).exists():
                self.left_out.append(directory)
                continue
            self._add_layer(layer, directory)
        for at, directory in key_data_directories(self.path, self._unlisted):
            if self.is_thinned(step_spans.KEY_DATA, at):
                continue
            of_others = directory in others or directory.parent in others
            if of_others and not is_ours(self.path, directory, at.key):
                self.left_out.append(directory)
                continue
            if at in self._key_dirs:
                why = message("unread.same_place", save=True)
                self._problem(Problem(directory, why, None, at.step, at.rank, True, at.key))
            self._key_dirs.setdefault(at, directory)

    def _add_layer(self, at: LayerPlace, directory: Path) -> None:
        if at in self._layer_dirs:
            self._problem(Problem(directory, message("unread.same_place"), *at))
        self._layer_dirs.setdefault(at, directory)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def manifests(self) -> list[dict[str, Any]]:
        """The JSON of `run_files`."""
        return [file.json for file in self.run_files]

    @cached_property
    def dialect(self) -> Dialect:
        """What its files say and never do; msprobe's where nothing in it is this package's."""
        if self._format is not None:
            return self._format.dialect
        layers = self._layer_dirs.values()
        ours = self.run_files or any(os.path.exists(d / layout.JOURNAL_FILE) for d in layers)
        return OWN if ours else MSPROBE

    @property
    def foreign(self) -> bool:
        """Whether another tool wrote it."""
        return self.dialect != OWN  # a pickled run has a copy

    @property
    def finished(self) -> bool:
        """Whether every rank closed its run; an unfinished one was killed or still runs."""
        return all(file.state == FINISHED for file in self.run_files)

    @property
    def state(self) -> str:
        """finished, failed, interrupted, or running (also of a killed process).

        unknown for msprobe's runs; `stops` says more.

        Where the ranks' are not the same, each with its ranks.
        """
        ranks: dict[str, list[str]] = {}
        for file in self.run_files:
            ranks.setdefault(shortened(file.state, 40), []).append(str(file.rank))
        if len(ranks) < 2:
            return next(iter(ranks), "unknown")
        said = (f"{state} (rank {', '.join(of)})" for state, of in sorted(ranks.items()))
        return ", ".join(said)

    @cached_property
    def stops(self) -> list[Stop]:
        """Where its ranks stopped, those that did not finish: failed, were killed, still run."""
        found = []
        for stop in self._noted_stops:
            if stop.phase is None and stop.state in (RUNNING, KILLED):
                entries = self.each_entry(None, stop.step, stop.rank)
                last = max(entries, key=lambda entry: entry.seq, default=None)
                stop = replace(stop, phase=None if last is None else last.phase)
            found.append(stop)
        return found

    def stop_of(self, rank: int) -> Stop | None:
        """Return where a rank stopped, as its manifest says; a single manifest is of every rank."""
        stops = self._noted_stops
        if len(self.run_files) == 1:
            return stops[0] if stops else None
        return next((stop for stop in stops if stop.rank == rank), None)

    @cached_property
    def _noted_stops(self) -> list[Stop]:
        found = (
            stop_of(file, held=file.rank is not None and RankLock(self.path, file.rank).is_held())
            for file in self.run_files
        )
        return sorted((stop for stop in found if stop is not None), key=lambda stop: stop.rank)

    @property
    def _recorded_at(self) -> set[StepPlace]:
        return {*self._layer_dirs.by_step, *self._key_dirs.by_step}

    @property
    def steps(self) -> list[int]:
        """The steps of which anything was recorded."""
        return sorted({step for step, _ in self._recorded_at})

    @property
    def phases(self) -> list[str]:
        """The phases of which layer data were recorded, in the order in which a step runs them."""
        names = {at.phase for at in self._layer_dirs}
        return sorted(names, key=lambda name: (phase_order(name), name))

    @property
    def ranks(self) -> list[int]:
        """The ranks that recorded anything."""
        return sorted({rank for _, rank in self._recorded_at})

    def is_thinned(self, kind: str, at: AnyPlace) -> bool:
        """Return whether `keep_mb` has removed what a place had; see `storage.manifest.step_spans`.

        Args:
            kind: TENSORS (the elements of layer data), LAYERS or KEY_DATA.
        """
        return step_spans.holds(self._thinned.get(at.rank, {}), kind, at.step)

    def _is_thinned_by_now(self, kind: str, at: AnyPlace) -> bool:
        """Return the same of a run that is being recorded, and may have removed it since."""
        with suppress(OSError, ValueError):
            file = RunFile.load(self.path / layout.manifest_name(at.rank))
            self._thinned[at.rank] = file.thinned
        return self.is_thinned(kind, at)

    @property
    def missing_ranks(self) -> list[int]:
        """The ranks that the job was to record and that have no manifest here.

        They recorded into another directory, or never began; [] for msprobe's runs.
        """
        files = self.run_files
        return sorted(expected_ranks(files) - {file.rank for file in files})

    @property
    def keys(self) -> list[str]:
        """The names under which key data were saved."""
        return sorted({at.key for at in self._key_dirs})

    @property
    def places(self) -> set[StepPlace]:
        """Every step of each rank of which anything was recorded."""
        found = self._recorded_at
        ranks = {rank for _, rank in found} or {0}
        for problem in self.problems:
            if problem.partial or (problem.phase is None and not problem.key_data):
                continue
            if problem.step is not None:
                at = ranks if problem.rank is None else {problem.rank}
                found |= {StepPlace(problem.step, rank) for rank in at}
            elif not found:  # nothing tells its steps
                found.add(StepPlace(0, problem.rank or 0))
        return found

    def directories(
        self,
        step: int | None = None,
        rank: int | None = None,
        *,
        phase: str | None = None,
        key: str | None = None,
    ) -> list[Path]:
        """Return the directories of one phase's layer data or of one key's data.

        Args:
            step, rank: of this one only; None: of all.
        """
        if phase:
            return [self._layer_dirs[place] for place in self._layer_dirs.at(step, rank, phase)]
        return [self._key_dirs[place] for place in self._key_dirs.at(step, rank, key)]

    def config(self, rank: int = 0) -> ProbeConfig | None:
        """Return what the run was configured to record, or None where that is not known.

        A manifest that does not name every setting, or has a value that cannot be used, says
        nothing; settings that this version does not know are left out.
        """
        if rank not in self._configs:
            self._configs[rank] = None
            for file in self._files_of(rank)[:1]:
                said = file.config.json
                with suppress(ConfigError, KeyError, TypeError):
                    names = (field.name for field in fields(ProbeConfig))
                    self._configs[rank] = ProbeConfig(**{name: said[name] for name in names})
        return self._configs[rank]

    @property
    def lost(self) -> list[str]:
        """`losses` as texts; each in the language that was chosen, else the locale's."""
        return [*map(str, self.losses)]

    @property
    def losses(self) -> list[Message]:
        """What the run says it could not record, by rank and kind."""
        return [
            message("lost.records", rank=file.rank, count=shortened(count), what=kind)
            for file in self.run_files
            for kind, count in file.losses
        ]

    @property
    def cost(self) -> dict[int, dict[str, Any]]:
        """What recording cost each rank, as its manifest says; see `storage.ledger.Ledger`."""
        return {
            file.rank: cost
            for file in self.run_files
            if file.rank is not None and (cost := file.recording) is not None
        }

    def coverage(self, rank: int = 0) -> dict[str, Any]:
        """Return what a rank could not record in its mode, and why: a tuple of messages for each.

        Under `graph_mode` stand role → cell name → why, under `phases` and `key_data` name → why.
        """
        return next((file.reasons for file in self._files_of(rank)), {})

    def mode(self, phase: str, step: int, rank: int = 0) -> Mode | None:
        """Return the mode of a phase's network in a step; None if unknown or changed within it."""
        changes = [mode for file in self._files_of(rank) for mode in file.modes.get(phase, ())]
        noted = [mode for mode in changes if mode.step is not None and mode.step <= step]
        if not noted or (noted[-1].step == step and len(noted) > 1):
            return None
        return noted[-1]

    def timeline(self, step: int, rank: int = 0) -> StepTimes | None:
        """Return when the phases of a finished step ran; None where that is not known.

        What cannot be read is a problem.
        """
        with self._times(rank, step) as lines:
            return lines.of_step(step)
        return None

    def timed_steps(self, rank: int = 0) -> list[int]:
        """Return the steps whose times `timeline` knows, also those of which nothing else was."""
        with self._times(rank) as lines:
            return lines.steps()
        return []

    @contextmanager
    def _times(self, rank: int, step: int | None = None) -> Iterator[StepLines[StepTimes]]:
        lines = time_lines(self.path, rank)
        try:
            yield lines
        except (OSError, ValueError) as error:
            self._problem(Problem(lines.path, layout.why_unread(error), None, step, rank))
        self._count_damaged(lines, rank)

    def side_lines(self, lines: StepLines[_T], rank: int) -> Iterator[_T]:
        """Yield the lines of a file beside the journals; an unreadable line becomes a problem."""
        yield from lines.read()
        self._count_damaged(lines, rank)

    def _count_damaged(self, lines: StepLines[Any], rank: int) -> None:
        if lines.damaged:
            why = message("unread.damaged_lines", count=lines.damaged)
            self._problem(Problem(lines.path, why, None, None, rank))

    def initial_weights(self, role: str, rank: int = 0) -> dict[str, str]:
        """Return the fingerprints of the parameters of a role's network when it was first entered.

        By the parameters' names; without those of which none is known.
        """
        for file in self._files_of(rank):
            weights = (file.initial_weights or {}).get(role)
            if isinstance(weights, dict):
                return {str(n): value for n, value in weights.items() if isinstance(value, str)}
        return {}

    def first_weights(self, phase: str, role: str, rank: int = 0) -> dict[str, str]:
        """Return the same of the network of a phase.

        They stand under the first phase in which it ran; under the role those of the one network
        that has none of its own. Where it is not known which network ran in the phase, the role's.
        """
        network = self.network_of(phase, rank)
        names = [phase] if network is None else network.phases or []
        found = next(filter(None, (self.initial_weights(name, rank) for name in names)), None)
        if found is None and network is not None:
            # Those that stand under the role may be of another network of it.
            others = [
                other.json
                for file in self._files_of(rank)
                for other in file.networks
                if other.role == network.role
                and not any(self.initial_weights(name, rank) for name in other.phases or ())
            ]
            found = None if others == [network.json] else {}
        return self.initial_weights(role, rank) if found is None else found

    def network_of(self, phase: str, rank: int = 0) -> Network | None:
        """Return the network that ran in a phase; None if that is not known, or several did.

        Of two phases in which one network ran it has the same `json`.
        """
        for file in self._files_of(rank):
            networks = (*file.networks, *file.attempt.networks)
            ran = [network for network in networks if phase in (network.phases or ())]
            watched = [n for n in networks if n.role == role_of(phase) and not n.phases]
            found = ran or watched  # where nothing told of phases
            return found[0] if len(found) == 1 else None
        return None

    def completed(self, step: int, rank: int = 0) -> bool:
        """Return whether `step` was ended by `Probe.step()`; msprobe's runs do not say.

        An attempt that began with this step, or before it, is the one that counts.
        """
        for file in self._files_of(rank):
            ended = False
            for attempt in file.attempts:
                first, last = attempt.first_step, attempt.last_completed_step
                begins = attempt.begins_with
                if begins is not None and begins <= step:
                    ended = False
                if first is not None and last is not None and first <= step <= last:
                    ended = True
            if ended:
                return True
        return not self.run_files

    def configurations(self) -> dict[str, Any] | None:
        """Return the content of configurations.json, or None if there is none."""
        path = self.path / layout.CONFIGURATIONS_FILE
        if not os.path.lexists(path):
            return None
        try:
            content = layout.read_json(self.path, path)
        except (OSError, ValueError) as error:
            self._problem(Problem(path, layout.why_unread(error)))
            return None
        return content if isinstance(content, dict) else {"": content}

    def entries(
        self, phase: str | None = None, step: int | None = None, rank: int | None = None
    ) -> list[Entry]:
        """Return the entries of a phase, step and rank (None: of all), as they began in time."""
        return [*self.each_entry(phase, step, rank)]

    def each_entry(
        self, phase: str | None = None, step: int | None = None, rank: int | None = None
    ) -> Iterator[Entry]:
        """Yield the same one by one; those before are let go of.

        What cannot be read is a problem.
        """
        places = sorted(
            self._layer_dirs.at(step, rank, phase),
            key=lambda at: (at.step, at.rank, phase_order(at.phase), at.phase),
        )
        for _, phases in itertools.groupby(places, lambda at: (at.step, at.rank)):
            yield from heapq.merge(*map(self._entries_at, phases), key=lambda entry: entry.seq)

    def _entries_at(self, at: LayerPlace) -> Iterator[Entry]:
        lines, dialect = self._read_dump(at)
        timeless = self._without_times(at)
        damaged: dict[int, Message] = {}
        files = self.locator(at)
        for number in sorted(range(len(lines)), key=lambda n: lines[n].seq):
            line = lines[number]
            try:
                entry = entry_of(line, files, at, dialect)
            except Exception as error:  # one entry that is none costs no other
                why, name = layout.why_unread(error), line.entry[:_MOST_SHOWN]
                damaged[number] = message("unread.of_file_colon", file=name, why=why)
                continue
            usual = timeless and at.phase not in timeless
            yield foreign.in_usual_order(entry) if usual else entry
        said = [damaged[number] for number in sorted(damaged)]
        if (more := len(said) - _MOST_NAMED) > 0:
            said[_MOST_NAMED:] = [message("unread.more", count=more, what="entries")]
        for why in said:
            self._problem(Problem(self._layer_dirs[at], why, *at))

    def times_are_lost(self, at: AnyPlace) -> bool:
        """Return whether a journal of one place is missing, and its dump.json is read instead.

        Then nothing tells when what happened in the step, but the order in which phases usually
        run.
        """
        return bool(self._without_times(at))

    def _without_times(self, at: AnyPlace) -> set[str]:
        """Return the phases of one place that this tool recorded and of which the journal lacks."""
        place = StepPlace(at.step, at.rank)
        if place not in self._lost_times:
            lost = self._lost_times[place] = set()
            for layer in self._layer_dirs.at(*place):
                try:
                    self.journal_path(layer).lstat()
                except FileNotFoundError:
                    if not self.foreign and self._is_ours(layer):
                        lost.add(layer.phase)
                except OSError:  # reading it says why
                    pass
        return self._lost_times[place]

    def _is_ours(self, at: LayerPlace) -> bool:
        """Return whether this tool recorded a phase: others may add to the run's directory."""
        phase, step, rank = at
        if rank in self._listed:
            spans = self._listed[rank].get(step_spans.PHASES, {}).get(phase, ())
            return any(first <= step <= last for first, last, _ in spans)
        config = self.config(rank)
        table = {} if config is None else config.phase_table()
        if config is None or phase not in table:
            return not self.run_files
        return config.records_phase(table[phase])

    def layer_places(self, step: int | None = None, rank: int | None = None) -> list[LayerPlace]:
        """Return where layer data were recorded, in a step and on a rank (None: in any)."""
        return sorted(self._layer_dirs.at(step, rank))

    def phases_at(self, at: StepPlace) -> list[str]:
        """Return the phases of which layer data were recorded in one place."""
        return [layer.phase for layer in self.layer_places(*at)]

    def keys_at(self, at: StepPlace) -> list[str]:
        """Return the names of the key data that were saved in one place."""
        return sorted({save.key for save in self._key_dirs.at(*at)})

    def journal_path(self, at: LayerPlace) -> Path:
        """Return where the journal of one place lies, if it has one."""
        return self._layer_dirs[at] / layout.JOURNAL_FILE

    def journal(self, at: LayerPlace) -> bytes | None:
        """Return a whole journal as it is on disk.

        None where there is no journal, or it is not whole: `entries` knows what that means.
        """
        try:
            if self._leaves_run(self._layer_dirs[at]):
                return None
            content = layout.read_inside(self.path, self.journal_path(at), bounds.JOURNAL)
        except (OSError, ValueError):
            return None
        whole = content.endswith(b"\n") or not content
        listed = self._entries_listed(at)
        if not whole or (listed and content.count(b"\n") < listed):
            return None
        return content

    def _leaves_run(self, directory: Path) -> bool:
        """Return whether a link leads a directory of entries, or that of its tensors, out of it."""
        linked = (directory, directory / layout.TENSOR_DIR)
        return not all(layout.inside(self.path, path) for path in linked)

    def _entries_listed(self, at: LayerPlace) -> int:
        """Return how many entries a manifest lists of a phase; 0 where that is not known."""
        listed = self._listed.get(at.rank, {})
        return step_spans.count_at(listed, step_spans.PHASES, at.phase, at.step) or 0

    def locator(self, at: LayerPlace) -> Locator:
        """Return what finds the files that the entries of one place name."""
        directory = self._layer_dirs[at]
        if self._format is None:
            directory = directory / layout.TENSOR_DIR
        gone = self.is_thinned(step_spans.TENSORS, at)
        return Locator(self.path, directory, gone=gone)

    def entries_named(self, at: LayerPlace, names: Iterable[str]) -> Iterator[Entry]:
        """Yield the entries of one place in whose line one of some texts stands.

        Other lines are not parsed; what cannot be read is left out.
        """
        content = self.journal(at)
        if content is None:
            yield from self.each_entry(*at)
            return
        texts = [name.encode("utf-8") for name in names]
        raw = (line for line in content.split(b"\n") if any(text in line for text in texts))
        lines = [JournalLine.from_json(line, {}) for line in read_lines(raw, json.loads).lines]
        files, found = self.locator(at), list[Entry]()
        with suppress(ValueError):
            found = [entry_of(line, files, at) for line in lines]
        yield from sorted(found, key=lambda entry: entry.seq)

    def key_data(
        self, name: str | None = None, step: int | None = None, rank: int | None = None
    ) -> list[KeyDatum]:
        """Return what was saved under `name` (None: all), by step, rank and micro-step."""
        found = []
        for at in sorted(self._key_dirs.at(step, rank, name)):
            directory = self._key_dirs[at]
            if self._format is not None:
                records = self._format.key_data(self.path, directory, at)
                found.append(KeyDatum(*at, seq=None, records=records))
                continue
            ours, completed = bool(self.run_files), self.completed(at.step, at.rank)
            datum = read_key_datum(self.path, directory, at, ours=ours, completed=completed)
            unread = datum is not None and any(r.leaf.why is not None for r in datum.records)
            if unread and self._is_thinned_by_now(step_spans.KEY_DATA, at):
                continue
            if datum is not None:
                found.append(replace(datum, seq=None) if self.times_are_lost(at) else datum)
        return sorted(found, key=lambda d: (d.step, d.rank, d.key, d.micro_step))

    def _files_of(self, rank: int) -> list[RunFile]:
        """Return the manifest of a rank; a run with a single one has it for every rank."""
        if len(self.run_files) == 1:
            return self.run_files
        return self._of_rank.get(rank, [])

    @cached_property
    def _of_rank(self) -> dict[int | None, list[RunFile]]:
        found: dict[int | None, list[RunFile]] = {}
        for file in self.run_files:
            found.setdefault(file.rank, []).append(file)
        return found

    def _read_manifests(self) -> Iterator[RunFile]:
        for path in layout.manifests(self.path):
            try:
                file = RunFile.load(path)
            except (OSError, ValueError) as error:
                self._problem(Problem(path, layout.why_unread(error)))
                continue
            file.check_schema(path)
            if unread := file.unread:
                why = message("unread.not_whole", fields=", ".join(unread))
                self._problem(Problem(path, why))
            yield file

    def lines(self, at: LayerPlace) -> list[JournalLine]:
        """Return the lines of one place, ours or made of msprobe's: values as they were nested.

        What cannot be read is a problem.
        """
        return self._read_dump(at)[0]

    def _read_dump(self, at: LayerPlace) -> tuple[list[JournalLine], str]:
        """Return the lines of one place, and the name of the tool that wrote them."""
        directory, journal = self._layer_dirs[at], self.journal_path(at)
        read = directory
        try:
            if self._leaves_run(directory):
                raise layout.UnreadError.saying("unread.a_link_leaves")
            if journal.is_file():
                read = journal
                return self._read_lines(at), OWN.name
            if self._format is not None:
                dump = self._format.dump(self.path, directory, at)
            else:
                dump = foreign.read_dump(self.path, directory, phase_order(at.phase))
            lines = dump.lines
            for file, why in dump.lost:
                self._problem(Problem(file, why, *at))
            for beside, why in dump.unreadable:
                self._problem(Problem(beside, why, *at, partial=True))
            if at.phase in self._without_times(at):
                for line in lines:
                    line.values = foreign.with_changed_texts(line.values)
                why = message("unread.no_journal", file=layout.DUMP_FILE)
                self._problem(Problem(journal, why, *at, partial=True))
            return lines, dump.dialect
        except Exception as error:  # a file that is of no known form costs no other
            if not self._is_thinned_by_now(step_spans.LAYERS, at):
                self._problem(Problem(read, layout.why_unread(error), *at))
            return [], OWN.name

    def _read_lines(self, at: LayerPlace) -> list[JournalLine]:
        journal = self.journal_path(at)
        *raw, rest = layout.read_inside(self.path, journal, bounds.JOURNAL).split(b"\n")
        content = read_lines(raw, json.loads)  # whole numbers of any size
        lost = content.damaged
        # Only a step that was not ended may end in a line cut short.
        if rest and self.completed(at.step, at.rank):
            lost[len(raw) + 1] = entry_in(rest)
        if lost:
            named = [[n, lost[n][:_MOST_SHOWN]] for n in [*lost][:_MOST_NAMED]]
            why = message("unread.damaged_lines", count=len(lost), lines=named)
            self._problem(Problem(journal, why, *at))
        listed = self._entries_listed(at)
        if not lost and len(content.lines) < listed:
            of = {"listed": listed, "manifest": layout.manifest_name(at.rank)}
            why = message("unread.fewer_entries", count=len(content.lines), **of)
            self._problem(Problem(journal, why, *at, partial=True))
        stacks = stacks_of(content.lines)
        return [JournalLine.from_json(line, stacks) for line in content.lines]

    def _unlisted(self, path: Path, error: OSError) -> None:
        """Note a directory that cannot be listed, and everything that may lie in it."""
        why = message("unread.unlisted", why=error.strerror or str(error))
        parts = path.relative_to(self.path).parts
        if parts[:1] == (layout.KEY_DATA_DIR,):
            key = parts[1] if len(parts) > 1 else None
            step, rank = step_and_rank(parts[2:])
            self._problem(Problem(path, why, None, step, rank, True, key))
            return
        step, rank = step_and_rank(parts)
        if step is None and rank is not None:  # a step's directory was opened
            step, phase = layout.step_number(self.path.name), phase_name(self.path.parent)
        elif parts and layout.step_number(parts[0]) is None:
            phase = parts[0]
            step, rank = step_and_rank(parts[1:])
        else:
            phase = phase_name(self.path)
        self._problem(Problem(path, why, phase, step, rank))

    def _problem(self, problem: Problem) -> None:
        if problem not in self._known_problems:
            self._known_problems.add(problem)
            self.problems.append(problem)


def entry_of(line: JournalLine, files: Locator, at: LayerPlace, dialect: str = OWN.name) -> Entry:
    """Return the entry that a line is.

    Args:
        files: finds the files that it names.
        dialect: the name of the tool that wrote it.

    Raises:
        ValueError: a value of it cannot be read.
    """
    if len(line.entry) > bounds.NAME:
        raise layout.UnreadError.saying("unread.long_name", length=len(line.entry))
    try:
        records = tuple(
            Record(
                record,
                io,
                path,
                *files.locate(made_by(dialect, leaf), leaf.data_name),
                argument_of(line.input_names, io, path),
                files.sketches_of(leaf),
            )
            for record, io, path, leaf in bounded(line.records(), bounds.VALUES)
        )
    except (TypeError, AttributeError, RecursionError) as error:
        raise layout.UnreadError(layout.why_unread(error)) from error
    return Entry(
        line.entry,
        *at,
        line.seq,
        line.end,
        parent=line.parent,
        opening=line.opening,
        token=line.token,
        stack=line.frames[: bounds.FRAMES],
        records=records,
        around=line.around,
        attributes=line.attributes,
    )
