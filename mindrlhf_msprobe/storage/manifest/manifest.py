"""run.json: what a run is, who may write into its directory, and what is said of it meanwhile.

What is said of a run while it is recorded is a note, with its place in run.json: a recorder hands
it to `RunWriter.note`, and nothing between has to know which one it is. A new kind is a class here.
"""

from __future__ import annotations

import datetime
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from mindrlhf_msprobe.common.message import Message, as_messages, message
from mindrlhf_msprobe.errors import InUseError, RunError
from mindrlhf_msprobe.phases import phase_table
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.atomic import Reserve, dump_json, write_atomic
from mindrlhf_msprobe.storage.manifest import claim as claiming
from mindrlhf_msprobe.storage.manifest import coverage, random_states, step_spans
from mindrlhf_msprobe.storage.manifest.run_file import (
    AT_FIRST_PHASE,
    AT_START,
    COUNTER,
    FINISHED,
    RUNNING,
    SCHEMA,
    TOOL,
    Attempt,
    Generation,
    Network,
    RunFile,
    Settings,
    Stop,
    World,
    began_unlike,
)
from mindrlhf_msprobe.storage.manifest.variables import version_of, versions
from mindrlhf_msprobe.storage.writing.directory import DumpPathLostError, RankLock, world_of


class Written(Enum):
    """When a note reaches the disk."""

    WITH_THE_STEP = "with the manifest, when the step ends"
    SOON = "as soon as the writing thread comes to it"
    NOW = "before the call that hands it over returns"


class Note(ABC):
    """One thing that is said of a run.

    Attributes:
        written: when it reaches the disk.
        code: of what is lost where it cannot be written.
    """

    written: Written = Written.WITH_THE_STEP
    code: ClassVar[str] = "lost.note"

    @property
    def lost(self) -> Message:
        """What is lost where it cannot be written."""
        return message(self.code)

    @abstractmethod
    def put_into(self, manifest: Manifest) -> None:
        """Put it into the content of the manifest, which is not written by this."""


@dataclass(frozen=True)
class FirstEntry(Note):
    """What was found when a role's network was first entered.

    Attributes:
        weights: parameter name → fingerprint; None where they are not recorded.
        settings: what the process runs with, by section; None where that is known already.
        phase: that it was entered in.
    """

    role: str
    weights: Mapping[str, Any] | None
    settings: Mapping[str, Any] | None
    phase: str | None = None
    written = Written.NOW

    @property
    def lost(self) -> Message:
        """The initial weights of the role."""
        return message("lost.initial_weights", role=self.role)

    def put_into(self, manifest: Manifest) -> None:
        """Note settings and weights; a further attempt notes weights that are not the first's."""
        if self.settings is not None:
            manifest.note_settings(self.settings, AT_FIRST_PHASE, self.phase)
        if self.weights is None:
            return
        target, first = manifest.target, manifest.content.initial_weights or {}
        if not manifest.further or first.get(self.role) != self.weights:
            target.initial_weights = {
                **(target.initial_weights or {}),
                self.role: dict(self.weights),
            }


@dataclass(frozen=True)
class Networks(Note):
    """What the networks and their optimizers are set to.

    Attributes:
        content: its `networks`, `modes` and `optimizers`. A network that is the same object as in
            an earlier note is not encoded again.
    """

    content: Settings
    written: Written = Written.WITH_THE_STEP
    code = "lost.networks"

    def put_into(self, manifest: Manifest) -> None:
        """Note it; a further attempt notes what is not as the first one began.

        It always notes how far its optimizers had counted.
        """
        optimizers = self.content.optimizers
        manifest.keep_encoded(self.content.networks)
        if not manifest.further or began_unlike(manifest.content, self.content):
            manifest.target.json.update(self.content.json)
        elif any(COUNTER in optimizer.settings for optimizer in optimizers.values()):
            manifest.target.optimizers = optimizers


@dataclass(frozen=True)
class Generated(Note):
    """What phases generate with: the phase's name → its settings and how they changed."""

    content: Mapping[str, Generation]
    code = "lost.generation"

    def put_into(self, manifest: Manifest) -> None:
        """Note it; a further attempt notes what is not as the first one began."""
        first = manifest.content.generation
        same = all(
            phase in first and first[phase].settings == of.settings and not of.changes
            for phase, of in self.content.items()
        )
        if not (manifest.further and same):
            manifest.target.generation = dict(self.content)


@dataclass(frozen=True)
class CheckpointPath(Note):
    """From what a role's network was loaded, "" for nothing, or what it was saved to.

    Attributes:
        saved_after: it was saved there, after so many steps; None: it was loaded.
    """

    role: str
    path: str
    saved_after: int | None = None
    code = "lost.checkpoints"

    def put_into(self, manifest: Manifest) -> None:
        """Note it beside those of other roles and steps."""
        content = manifest.content
        path = str(self.path)  # a trainer may give one of pathlib
        if self.saved_after is None:
            content.checkpoints = {**(content.checkpoints or {}), self.role: path}
            return
        saved = content.saved_checkpoints or {}
        of_role = {**saved.get(self.role, {}), f"{self.saved_after}": path}
        content.saved_checkpoints = {**saved, self.role: of_role}


@dataclass(frozen=True)
class StepStates(Note):
    """The states of random generators in the steps of this attempt."""

    content: Mapping[str, Any]
    code = "lost.random_states"

    def put_into(self, manifest: Manifest) -> None:
        """Note them behind those of earlier attempts."""
        before = manifest.states_before
        manifest.content.random_states = {
            name: [*before.get(name, ()), *self.content.get(name, ())]
            for name in dict.fromkeys([*before, *self.content])
        }


@dataclass(frozen=True)
class Replaced(Note):
    """What one key of the manifest says from now on, in the place of what it said before.

    Attributes:
        key: its name in `RunFile`, e.g. `played` or `grafted`.
        content: as JSON; nobody changes it any more.
    """

    key: str
    content: Any
    written: Written = Written.WITH_THE_STEP

    @property
    def lost(self) -> Message:
        """What the key would have said."""
        return message("lost.configuration" if self.key == "config" else self.code)

    def put_into(self, manifest: Manifest) -> None:
        """Note it."""
        manifest.content.json[self.key] = self.content


#: Keys of which the JSON stands in one line.
_IN_ONE_LINE = ("recorded", "thinned", "generation", "random_states", "initial_weights", "networks")


class Manifest:
    """The manifest of one rank: claimed when the probe starts, rewritten when a step ends.

    Its settings (versions, device, seeds, …) and its initial weights are those of the first
    attempt at the run. A further attempt keeps them, and notes under its own entry in `attempts`
    what is different for it. An attempt that entered no network and ended no step leaves nothing
    to keep: the next one counts as the first.

    Attributes:
        lost: what was removed or replaced under the running job, the directory, its lock or the
            manifest; then nothing more is written.
        further: whether an earlier attempt left something to keep.
        states_before: the states of random generators in earlier attempts.
    """

    def __init__(
        self, root: Path, rank: int, content: RunFile, lock: RankLock, *, further: bool = False
    ) -> None:
        self._path, self._rank = root / layout.manifest_name(rank), rank
        self.lost: Path | None = None
        self._lock = lock
        self.content = content
        self.further = further
        self._written: tuple[int, ...] | None = None  # which file was written last
        self.states_before: dict[str, Any] = {}
        self._lost_before = RunFile({**content.json})  # what they lost
        self._reserve = Reserve(self._path)
        # Thousands of fingerprints that change once, in a file that is written at every step, and
        # thousands of attributes: (id of the part) → the part, encoded.
        self._encoded_once: dict[int, tuple[Any, bytes]] = {}

    def check(self) -> None:
        """Return if the directory, its lock and the manifest in it are still those of this run.

        Raises:
            DumpPathLostError: one is not, or was not when it was looked at before.
        """
        if self.lost is None:
            self.lost = self._lock.lost()
        if self.lost is None and self._written is not None:
            found = _fingerprint(self._path)
            if found != self._written:
                # It may have been edited, or be an older state that was brought back.
                try:
                    there, own = RunFile.load(self._path), self.content
                    is_own = there.run_id == own.run_id
                    is_own = is_own and 0 < len(there.attempts) <= len(own.attempts)
                except (OSError, ValueError):
                    is_own = False
                if not is_own:
                    self.lost = self._path
            self._written = found  # not to be read again
        if self.lost is not None:
            raise DumpPathLostError(self.lost)

    def save(self, *, durable: bool = False) -> None:
        """Write the manifest, whole or not at all, also where the disk has become full.

        Args:
            durable: return when it would also survive a power cut.

        Raises:
            DumpPathLostError: its directory, or what stands in its place, is no longer of this run.
        """
        self.check()
        content = self._encoded(self.content.json)
        try:
            write_atomic(self._path, [content])
        except OSError as error:
            if not self._reserve.write(self._path, content, error):
                raise
        self._reserve.keep(len(content))
        self._written = _fingerprint(self._path)
        for path in (self._path, self._path.parent) if durable else ():
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def close(self, stop: Stop | None = None, then: Callable[[], None] = lambda: None) -> None:
        """Write the manifest for the last time; `stop` says how a run ended that did not finish.

        `then` is called before others may record here.

        One that lost its directory stays as it was, that of a run that was not ended.
        """
        self.content.state = self.content.attempt.state = FINISHED if stop is None else stop.state
        if stop is not None:
            self.content.stopped = self.content.attempt.stopped = stop.noted()
        try:
            with suppress(DumpPathLostError):
                self.save()
                if stop is None:
                    then()
        finally:
            if self.lost is None:
                self._reserve.drop()
            self._lock.release()

    def _encoded(self, content: Mapping[str, Any], *, depth: int = 0) -> bytes:
        """Return the manifest or an attempt as JSON; its initial weights are encoded only once."""
        break_ = b"\n" + b" " * depth
        members = []
        for name, value in content.items():
            if name == "attempts" and not depth:
                attempts = (
                    # What another hand wrote into an earlier attempt is kept as it is.
                    self._encoded(item, depth=2) if isinstance(item, dict) else dump_json(item)
                    for item in value
                )
                encoded = b"[\n  " + b",\n  ".join(attempts) + b"\n ]"
            elif name == "initial_weights" and isinstance(value, dict):
                roles = [dump_json(role) + b": " + self._once(part) for role, part in value.items()]
                encoded = b"{" + b", ".join(roles) + b"}"
            elif name == "networks" and isinstance(value, list):
                encoded = b"[" + b",".join(break_ + b"  " + self._once(n) for n in value) + b"]"
            elif name in _IN_ONE_LINE:
                encoded = dump_json(value)
            else:
                encoded = dump_json(value, indent=1).replace(b"\n", break_ + b" ")
            members.append(break_ + b" " + dump_json(name) + b": " + encoded)
        return b"{" + b",".join(members) + break_ + b"}" + (b"" if depth else b"\n")

    def _once(self, part: Any) -> bytes:
        """Return a part as JSON in one line, encoded anew only if it is another object."""
        if id(part) not in self._encoded_once:
            self._encoded_once[id(part)] = part, dump_json(part)
        return self._encoded_once[id(part)][1]

    @property
    def target(self) -> Settings:
        """Where what this attempt runs with is noted."""
        return self.content.attempt if self.further else self.content

    def note_settings(
        self, settings: Mapping[str, Any], taken: str, phase: str | None = None
    ) -> None:
        """Note this attempt's settings, section by section; `save` writes them.

        Args:
            taken: the moment: `start` or `first_phase`. What was different at the start stays
                under `at_start`.
            phase: the first phase, at that moment.
        """
        target = self.target
        if taken != AT_START:
            known = {**self.content.json, **self.content.attempt.json}
            at_start = {
                name: known[name]
                for name, value in settings.items()
                if known.get(name) not in (None, value)
            }
            if at_start:
                target.at_start = at_start
        for name, value in settings.items():
            setattr(target, name, value)
            if self.further and value == getattr(self.content, name):
                delattr(target, name)
        target.taken = taken
        if phase is not None:
            target.taken_in = phase

    def note_lost(self, counts: Mapping[Message, int]) -> None:
        """Note how many records were lost so far, by kind, beside what earlier attempts lost."""
        self.content.note_lost(counts, self._lost_before)

    def begin(self, step: int) -> None:
        """Note the step with which this attempt begins; what earlier ones left of it goes.

        Raises:
            OSError: it cannot be removed.
        """
        self.content.attempt.begins_with = step
        # The run began with its earliest attempt, wherever the configuration lets this one begin.
        began = [attempt.begins_with for attempt in self.content.attempts]
        self.content.config.initial_step = min(begin for begin in began if begin is not None)
        if len(began) > 1:
            own = self._rank
            left = claiming.remove_dumps(
                self._path.parent, lambda at, rank: rank == own and at >= step
            )
            # A copy of the journals, which go on.
            with suppress(OSError):
                (self._path.parent / layout.columns_name(own)).unlink()
            self._note_others(left)
            self.content.recorded = step_spans.recorded_before(self.content.recorded, step)
            if any(self.content.thinned.values()):
                self.content.thinned = step_spans.thinned_before(self.content.thinned, step)
            # Those that an earlier attempt saved after more steps than are left of it.
            if (saved := self.content.saved_checkpoints) is not None:
                self.content.saved_checkpoints = {
                    role: {n: at for n, at in paths.items() if not n.isdigit() or int(n) <= step}
                    for role, paths in saved.items()
                    if isinstance(paths, dict)
                }
            known = self.content.random_states
            self.states_before = random_states.without_steps_from(known, step)
            self.content.random_states = self.states_before
            self.save()

    def _note_others(self, left: Iterable[str]) -> None:
        """Note directories of steps and ranks in which something stays that no run recorded."""
        if named := [*dict.fromkeys([*(self.content.others or ()), *left])]:
            self.content.others = named

    def keep_encoded(self, networks: Iterable[Network]) -> None:
        """Keep the JSON of these networks, of all that were noted so far."""
        kept = {id(network.json) for network in networks}
        for network in (*self.content.attempt.networks, *self.content.networks):
            if id(network.json) not in kept:
                self._encoded_once.pop(id(network.json), None)

    def note_graph_gaps(
        self, role: str, gaps: Mapping[str, str | Message | Iterable[str | Message]]
    ) -> dict[str, tuple[Message, ...]]:
        """Note which cells of a role's network could not be recorded where they are compiled.

        Args:
            gaps: cell name → why, one reason or several; `save` writes them.

        Returns:
            those that were not noted before.
        """
        known = self.content.coverage
        roles = known.get(coverage.GRAPH_MODE, {})
        reasons = {cell: as_messages(why) for cell, why in gaps.items()}
        cells, new = coverage.note_reasons(roles.get(role, {}), reasons)
        if new:  # replaced, not changed: the thread that writes may be reading it
            self.content.coverage = {**known, coverage.GRAPH_MODE: {**roles, role: cells}}
        return new

    def note_left_out(self, kind: str, name: str, why: str | Message) -> bool:
        """Note that something which is switched on is not recorded; return whether it is news.

        Args:
            kind: `phases` or `key_data`; `name` is one of them.
        """
        whole, new = self.content.coverage, {name: as_messages(why)}
        names, added = coverage.note_reasons(whole.get(kind, {}), new, alone=True)
        if added:
            self.content.coverage = {**whole, kind: names}
        return bool(added)

    @classmethod
    def claim(
        cls,
        root: Path,
        rank: int,
        config: dict[str, Any],
        existing: str,
        settings: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Claim `root` for this rank of this job and return its manifest.

        Args:
            existing: what to do about an earlier run: `refuse`, `resume` or `overwrite`.
            settings: what the process runs with, by section; versions add to those known here.

        Raises:
            RunError: the directory holds another run and `existing` refuses it, a process that is
                still running writes into it, or it cannot be written.
        """
        lock = RankLock(root, rank)
        try:
            root.mkdir(parents=True, exist_ok=True)
            if not lock.acquire():
                who = lock.holder_in_words()
                raise InUseError.saying("error.own_rank_written", root=root, holder=who, rank=rank)
            manifest = cls._claimed(root, rank, config, existing, lock)
            known = settings or {}
            whole = {**versions(), **known.get("versions", {})}
            manifest.note_settings({**known, "versions": whole}, AT_START)
            write_atomic(manifest._path, [manifest._encoded(manifest.content.json)])
            manifest._written = _fingerprint(manifest._path)
            if existing == "refuse":  # another job may have claimed it at the same moment
                try:
                    claiming.refuse_other_job(root, rank, world_of(), existing)
                except RunError:
                    manifest._path.unlink(missing_ok=True)
                    raise
        except OSError as error:
            lock.release()
            raise RunError.saying(
                "error.dump_path_unwritten", root=root, value=error.strerror or error
            ) from None
        except RunError:
            lock.release()
            raise
        return manifest

    @classmethod
    def _claimed(
        cls, root: Path, rank: int, config: dict[str, Any], existing: str, lock: RankLock
    ) -> Manifest:
        world = world_of()
        earlier = None
        left: list[str] = []
        claiming.refuse_links(root, phase_table(config.get("phases") or {}))
        if existing != "refuse":
            claiming.refuse_other_job(root, rank, world, existing)
        if existing == "overwrite":
            left = claiming.remove_rank(root, rank, world["size"])
        elif existing == "resume":
            earlier = claiming.resumed_manifest(root, rank, config.get("initial_step") or 0)
        else:
            claiming.refuse_other_run(root, rank, world)
        claiming.sweep(root, rank)
        content = _new_content(rank, world, config, earlier)
        further = earlier is not None and _left_something(earlier)
        manifest = cls(root, rank, content, lock, further=further)
        manifest._note_others(left)
        return manifest


def _new_content(
    rank: int, world: dict[str, Any], config: dict[str, Any], earlier: RunFile | None
) -> RunFile:
    import uuid  # slow to import, and only a run that is recorded needs it

    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    attempt = Attempt.make(
        started=now, pid=os.getpid(), first_step=None, last_completed_step=None, state=RUNNING
    )
    known = earlier or RunFile({})
    content = RunFile.make(
        schema=SCHEMA,
        tool=TOOL,
        tool_version=version_of(TOOL) or "unknown",
        run_id=known.run_id or uuid.uuid4().hex,
        state=RUNNING,
        attempts=[],
        world=World.make(**world, rank=rank, host=platform.node()),
    )
    # What another hand wrote into an earlier attempt is kept as it is.
    before = known.json.get("attempts")
    content.json["attempts"] = [*(before if isinstance(before, list) else []), attempt.json]
    if _left_something(known):  # what a further attempt leaves as the first one noted it
        names = (*Settings.every_key(), "random_states", "saved_checkpoints")
        content.json.update((name, known.json[name]) for name in names if name in known.json)
    content.json.update(config=config, coverage={}, lost={})
    content.note_lost({}, known)
    content.recorded = known.recorded
    if any(known.thinned.values()):
        content.thinned = known.thinned
    if known.others is not None:
        content.others = known.others
    return content


def _fingerprint(path: Path) -> tuple[int, ...] | None:
    """Return what tells a file from one that replaced it."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _left_something(earlier: RunFile) -> bool:
    """Return whether an earlier attempt entered a network or ended a step."""
    ended = any(attempt.last_completed_step is not None for attempt in earlier.attempts)
    return ended or bool(earlier.initial_weights) or earlier.taken == AT_FIRST_PHASE
