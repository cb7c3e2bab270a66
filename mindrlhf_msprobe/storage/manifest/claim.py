"""Who may write into a run's directory, and what of an earlier run goes before."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.errors import InUseError, RunError
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.atomic import is_temporary_of_ours, reserve_of
from mindrlhf_msprobe.storage.manifest.run_file import RUNNING, RunFile
from mindrlhf_msprobe.storage.writing.directory import (
    RankLock,
    Removal,
    is_journal,
    is_removable,
    process_started,
    was_recorded,
    world_of,
)
from mindrlhf_msprobe.storage.writing.graph_files import sweep_folders

_SHOWN = 3  # files that are named
_ADVICE = message("error.advice")


def own_manifest(root: Path, rank: int) -> RunFile | None:
    """Return what an earlier attempt at this rank noted, or None."""
    path = root / layout.manifest_name(rank)
    return RunFile.read(path) if path.is_file() else None


def resumed_manifest(root: Path, rank: int, first_step: int) -> RunFile | None:
    """Return what an earlier attempt at this rank noted; None where there was none.

    Args:
        first_step: the step from which on a run without a manifest would be recorded.

    Raises:
        RunError: what stands in the manifest's place is not one of this package, or there is none
            and dumps of this rank stand where this run would record.
    """
    path = root / layout.manifest_name(rank)
    if os.path.lexists(path):
        found = RunFile.read(path)
        if not _is_ours(path):
            raise RunError.saying("error.resume_foreign_manifest", path=path)
        return found
    steps: dict[bool, set[int]] = {True: set(), False: set()}  # of this package, or of another tool
    for step, step_dir in layout.step_directories(root):
        directory = layout.rank_directories(step_dir).get(rank)
        if directory is not None and was_recorded(root, directory):
            steps[is_removable(root, directory)].add(step)
    last = max(steps[True] | steps[False], default=-1)
    if last < first_step:
        return None
    what = message("error.holds_dumps", root=root, rank=rank, last=last)
    if not steps[True]:
        raise RunError.saying("error.resume_foreign", what=what)
    replaced = message("error.what_was_recorded")
    if steps[False]:
        replaced = message("error.what_a_journal_names", journal=layout.JOURNAL_FILE)
    raise RunError.saying(
        "error.resume_without_manifest", what=what, name=path.name, replaced=replaced
    )


def refuse_other_run(root: Path, rank: int, world: dict[str, Any]) -> None:
    """Refuse a directory that holds an earlier run, another job's, or another tool's dumps.

    Raises:
        RunError: it does.
    """
    own = root / layout.manifest_name(rank)
    if own.is_file():
        started: str | Message | None = None
        with suppress(RunError):
            started = RunFile.read(own).attempt.started
        started = started or message("error.unknown_time")
        raise RunError.saying("error.holds_a_run", root=root, started=started, advice=_ADVICE)
    if refuse_other_job(root, rank, world, "refuse") or not layout.has_dumps(root):
        return
    if any(
        is_journal(path / layout.JOURNAL_FILE)
        for _, step_dir in layout.step_directories(root)
        for path in layout.rank_directories(step_dir).values()
    ):
        raise RunError.saying("error.holds_journals", root=root, run_file=layout.RUN_FILE)
    raise RunError.saying("error.foreign_dumps", root=root, run_file=layout.RUN_FILE)


def refuse_other_job(root: Path, rank: int, world: dict[str, Any], existing: str) -> bool:
    """Return whether other ranks record here, those of this job.

    Raises:
        RunError: a rank of another job records here now; with `refuse`, also if one did.
    """
    others = [path for path in layout.manifests(root) if layout.manifest_rank(path) != rank]
    for path in others:
        lock = RankLock(root, layout.manifest_rank(path))
        running = lock.is_held_by_another()
        try:
            theirs = RunFile.read(path)
        except RunError:
            if existing == "refuse" and not running:
                raise
            theirs = RunFile({})
        if running:
            # It has the lock before it has written its manifest; until then an earlier run's may
            # stand there.
            holder, process = lock.holder(), (theirs.attempt.pid, theirs.world.host)
            if None in process or process != (holder.get("pid"), holder.get("host")):
                theirs = RunFile({"world": holder.get("world")})
        why = _another_job(theirs, world, running)
        if why and running:
            raise InUseError.saying(
                "error.being_written",
                root=root,
                holder_in_words=lock.holder_in_words(),
                rank=lock.rank,
                name=path.name,
                why=why,
            )
        if why and existing == "refuse":
            raise RunError.saying(
                "error.of_another_job", root=root, name=path.name, why=why, advice=_ADVICE
            )
    return bool(others)


def _another_job(theirs: RunFile, world: dict[str, Any], running: bool) -> Message | None:
    """Return how a manifest shows that it is of another job; None if it does not.

    Ranks of one job wait for each other, so none has ended a step before another was even started.
    Ranks that nothing connects may be run one after the other.
    """
    of = theirs.json.get("world")
    if of is None and running:  # it is about to say
        return None
    if not isinstance(of, dict) or any(of.get(key) != value for key, value in world.items()):
        shown = {key: of.get(key) for key in world} if isinstance(of, dict) else of
        return message("error.another_world", shown=str(shown), world=str(world))
    attempt = theirs.attempt
    try:
        started = datetime.datetime.fromisoformat(attempt.started or "").timestamp()
    except ValueError:
        return None
    worked = attempt.first_step is not None or attempt.state not in (None, RUNNING)
    if worked and (running or world["scheduler"]) and started < int(process_started()):
        return message("error.started_before", state=attempt.state, started=attempt.started)
    return None


def refuse_links(root: Path, phases: Collection[str]) -> None:
    """Refuse a directory in which a link stands where a phase or key data would be written.

    Raises:
        RunError: one does. What it leads to may be another run's, or not a run's at all.
    """
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        wanted = path.name in phases or path.name == layout.KEY_DATA_DIR or layout.is_step(path)
        links = [path] if wanted and path.is_symlink() else []
        if wanted and not links and path.is_dir():
            with suppress(FileNotFoundError):  # another rank, which begins too, may have removed it
                links = [below for below in sorted(path.iterdir()) if below.is_symlink()]
        if links:
            raise RunError.saying(
                "error.link_in_run", root=root, relative_to=links[0].relative_to(root)
            )


def remove_rank(root: Path, rank: int, world_size: int) -> list[str]:
    """Remove what this rank recorded here before; rank 0 also removes ranks beyond the world.

    Returns:
        as `remove_dumps`.

    Raises:
        RunError: what stands in the manifest's place is not a manifest of this package.
    """
    own, ours = root / layout.manifest_name(rank), [*filter(_is_ours, layout.manifests(root))]
    if own not in ours and os.path.lexists(own):
        raise RunError.saying("error.foreign_manifest", value=own)

    def goes(_: int, other: int) -> bool:
        return other == rank or (rank == 0 and other >= world_size)

    left = remove_dumps(root, goes)
    gone = [layout.manifest_rank(path) for path in ours if goes(0, layout.manifest_rank(path))]
    removed = [
        root / name for of in gone for name in (*layout.beside(of), layout.manifest_name(of))
    ]
    configurations = root / layout.CONFIGURATIONS_FILE
    if rank == 0 and ours and configurations.is_file() and not configurations.is_symlink():
        removed.append(configurations)
    for path in removed:
        path.unlink(missing_ok=True)
    return left


def _is_ours(path: Path) -> bool:
    """Return whether a file is a manifest of this package."""
    try:
        content = RunFile.load(path).json
    except (OSError, ValueError):
        return False
    return not path.is_symlink() and {"schema", "attempts", "world"} <= content.keys()


def remove_dumps(root: Path, wanted: Callable[[int, int], bool]) -> list[str]:
    """Remove what was recorded of the (step, rank) that are wanted, and what is empty then.

    Files that no journal of this package names stay, and are mentioned.

    Returns:
        the directories, below `root`, of those (step, rank) in which something stays.
    """
    removed = Removal()
    left: list[str] = []
    for step, step_dir in layout.step_directories(root):
        top = root / step_dir.relative_to(root).parts[0]
        if top != step_dir and layout.manifests(top):  # another run's
            continue
        with suppress(FileNotFoundError):  # another rank, which begins too, may have removed it
            for rank, path in layout.rank_directories(step_dir).items():
                if not wanted(step, rank):
                    continue
                if path.name == f"rank{rank}":
                    removed.remove(root, path)
                if path.exists():
                    left.append(str(path.relative_to(root)))
        for directory in (step_dir, step_dir.parent, step_dir.parent.parent):
            if directory != root:
                with suppress(OSError):  # something is in it, perhaps of a rank that has begun
                    directory.rmdir()
    if removed.left:
        shown = ", ".join(str(path.relative_to(root)) for path in removed.left[:_SHOWN])
        left_out = max(0, len(removed.left) - _SHOWN)
        warn("log.not_recorded_there", root=str(root), shown=shown, left=left_out)
    return left


def sweep(root: Path, rank: int) -> None:
    """Remove what a killed attempt was writing beside the manifest of this rank, and its graphs."""
    manifest = root / layout.manifest_name(rank)
    names = manifest.name, layout.columns_name(rank)
    for path in (path for name in names for path in root.glob(f".{name}.*")):
        known = path == reserve_of(manifest) or is_temporary_of_ours(path.name)
        if known and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)
    sweep_folders(root, rank, world_of()["size"])
