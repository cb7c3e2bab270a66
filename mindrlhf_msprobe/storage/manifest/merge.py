"""Several directories of one run, recorded by nodes without shared storage, put together."""

from __future__ import annotations

import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.printable import cut
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.atomic import write_json
from mindrlhf_msprobe.storage.manifest import coverage, random_states, step_spans
from mindrlhf_msprobe.storage.manifest.run_file import (
    Attempt,
    Part,
    RunFile,
    Settings,
    expected_ranks,
)
from mindrlhf_msprobe.storage.outputs import refuse_inside
from mindrlhf_msprobe.storage.writing.directory import RankLock

#: What nodes of one job may set differently: it changes nothing that is recorded.
_OF_A_NODE = frozenset(
    {"dump_path", "existing", "strict", "buffer_mb", "keep_mb", "rules", "tensorboard"}
)
#: What a further attempt notes under its own entry where it is different, as `Manifest` does.
_SETTINGS = [name for name in Settings.every_key() if name not in ("taken", "taken_in", "at_start")]

#: (phase or data/<key>, step, rank)
_Place = tuple[str, int, int]


@dataclass(frozen=True)
class Merged:
    """What `merge_runs` put together.

    Attributes:
        ranks, steps: what it holds.
        missing: ranks that the job was to record and that are in none of the inputs.
        files: how many files it has.
        copied: how many of them are copies; the others are hard links.
        left_out: files and directories of the inputs that belong to no run.
        remarks: what was decided between inputs that say different things.
    """

    path: Path
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    missing: tuple[int, ...]
    files: int
    copied: int
    left_out: tuple[Path, ...] = ()
    remarks: Messages = ()


@dataclass
class _Input:
    root: Path
    manifests: dict[int, RunFile]
    places: dict[_Place, Path] = field(default_factory=dict)
    left_out: list[Path] = field(default_factory=list)


def merge_runs(paths: Sequence[str | Path], output: str | Path) -> Merged:
    """Put the directories of one run together, as if its nodes had shared one.

    Files are hard-linked, or copied where they cannot be. The output appears whole or not at all.

    Args:
        paths: the dump_path of each node, two or more.
        output: the directory to make.

    Raises:
        UsageError: fewer than two inputs, or one given twice or inside another.
        RunError: an input is no run of this package, is still being written, or cannot be read;
            they are of different jobs or configurations; two hold the same rank and step; the
            output exists, lies inside an input or cannot be written.
    """
    roots, target = [Path(path) for path in paths], Path(output)
    _check_paths(roots, target)
    inputs = [_read(root) for root in roots]
    _check_one_job(inputs)
    _check_apart(inputs)
    partial = target.absolute().parent / f".{target.absolute().name[:80]}.{os.getpid()}.merging"
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        try:
            copied = Counter(_fill(partial, inputs))
            by_rank: dict[int, list[RunFile]] = {}
            for rank, manifest in (of for one in inputs for of in one.manifests.items()):
                by_rank.setdefault(rank, []).append(manifest)
            manifests = {rank: _one_manifest(of_rank) for rank, of_rank in by_rank.items()}
            for rank, manifest in manifests.items():
                write_json(partial / layout.manifest_name(rank), manifest.json)
            remarks = tuple(_write_configurations(partial, inputs))
            if os.path.lexists(target):
                raise RunError.saying("error.merge_taken", target=target)
            os.rename(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        at = f" ({error.filename})" if error.filename else ""
        raise RunError.saying(
            "error.merge_unmade", target=target, value=error.strerror or error, at=at
        ) from None
    places = [place for one in inputs for place in one.places]
    return Merged(
        path=target,
        ranks=tuple(sorted({*manifests, *(rank for _, _, rank in places)})),
        steps=tuple(sorted({step for _, step, _ in places})),
        missing=tuple(sorted(expected_ranks(manifests.values()) - {*manifests})),
        files=copied.total() + len(manifests),
        copied=copied[True],
        left_out=tuple(path for one in inputs for path in one.left_out),
        remarks=remarks,
    )


def _check_paths(roots: Sequence[Path], target: Path) -> None:
    if len(roots) < 2:
        raise UsageError.saying("error.merge_two", len=len(roots))
    if os.path.lexists(target):
        raise RunError.saying("error.merge_exists", target=target)
    for root in roots:
        layout.check_directory(root)
    for index, root in enumerate(roots):
        for other in roots[index + 1 :]:
            if layout.inside(root, other) or layout.inside(other, root):
                raise UsageError.saying("error.merge_same", root=root, other=other)
        if layout.inside(root, target):
            raise RunError.saying("error.merge_inside", target=target, root=root)
    refuse_inside(target)


def _read(root: Path) -> _Input:
    """Read what a directory holds.

    Raises:
        RunError: it is no run, is still being written, or cannot be read as a whole.
    """
    manifests: dict[int, RunFile] = {}
    for path in layout.manifests(root):
        rank = layout.manifest_rank(path)
        manifests[rank] = RunFile.read(path)
        if manifests[rank].rank != rank:
            said = manifests[rank].json.get("world")
            raise RunError.saying("error.merge_rank", path=path, rank=rank, world=said)
        lock = RankLock(root, rank)
        if lock.is_held_by_another():
            raise RunError.saying(
                "error.merge_running", root=root, holder_in_words=lock.holder_in_words(), rank=rank
            )
    if not manifests:
        raise RunError.saying("error.merge_no_run", root=root, run_file=layout.RUN_FILE)
    found = _Input(root, manifests)
    try:
        known = set(_places(found))
        own = {layout.CONFIGURATIONS_FILE, *(path.name for path in layout.manifests(root))}
        # Copies of journals are not merged: they are made of a run at any time.
        own.update(name for rank in manifests for name in layout.beside(rank))
        for path in sorted(root.iterdir()):
            _refuse_links(root, path)
            if path not in known and path.name not in own and not path.name.startswith("."):
                found.left_out.append(path)
    except OSError as error:
        raise RunError.saying(
            "error.unread", path=error.filename or root, why=error.strerror or error
        ) from None
    return found


def _places(found: _Input) -> Iterator[Path]:
    """Note the rank directories of a run; yield what belongs to it at its top."""
    for step, step_dir in layout.step_directories(found.root, links=True):
        name = step_dir.parent.relative_to(found.root)
        if name == Path("."):
            continue
        for rank, path in layout.rank_directories(step_dir, links=True).items():
            _refuse_links(found.root, path)
            kind = (
                step_spans.KEY_DATA if name.parts[0] == layout.KEY_DATA_DIR else step_spans.LAYERS
            )
            manifest = found.manifests.get(rank)
            if manifest is not None and step_spans.holds(manifest.thinned, kind, step):
                pass  # what is left of it was about to be removed
            elif (path.name, step_dir.name) == (f"rank{rank}", f"step{step}"):
                found.places[str(name), step, rank] = path
            else:
                found.left_out.append(path)
            yield found.root / name.parts[0]


def _refuse_links(root: Path, path: Path) -> None:
    for name in (path, *path.parents):
        if name == root:
            return
        if name.is_symlink():
            raise RunError.saying("error.merge_link", name=name)


def _check_one_job(inputs: Sequence[_Input]) -> None:
    first = inputs[0]
    reference = next(iter(first.manifests.values()))
    for one in inputs:
        for rank, manifest in one.manifests.items():
            of = {"root": first.root, "rank": rank, "other": one.root}
            where = message("error.not_one_job", **of)
            for name, mine, theirs in _differences(reference, manifest):
                raise RunError.saying(
                    "error.merge_other_job",
                    where=where,
                    name=name,
                    short=cut(repr(mine), 80),
                    short2=cut(repr(theirs), 80),
                )


def _differences(a: RunFile, b: RunFile) -> Iterator[tuple[str, Any, Any]]:
    keys = sorted({*a.config.json, *b.config.json} - _OF_A_NODE)
    parts: tuple[tuple[str, Part, Part, Iterable[str]], ...] = (
        ("world.", a.world, b.world, ("size", "scheduler")),
        ("msprobe_config.", a.config, b.config, keys),
    )
    for prefix, left, right, names in parts:
        for name in names:
            mine, theirs = left.json.get(name), right.json.get(name)
            if mine != theirs:
                yield prefix + name, mine, theirs


def _check_apart(inputs: Sequence[_Input]) -> None:
    seen: dict[_Place, Path] = {}
    for one in inputs:
        for place, path in one.places.items():
            if place in seen:
                _, step, rank = place
                raise RunError.saying(
                    "error.merge_step_twice", step=step, rank=rank, value=seen[place], path=path
                )
            seen[place] = path
    first_of: dict[int, _Input] = {}
    for one in inputs:
        for rank in one.manifests:
            other = first_of.setdefault(rank, one)
            hold = all(any(at[2] == rank for at in of.places) for of in (one, other))
            if other is not one and not hold:
                raise RunError.saying(
                    "error.merge_rank_twice", root=other.root, root2=one.root, rank=rank
                )


def _fill(partial: Path, inputs: Sequence[_Input]) -> Iterator[bool]:
    for one in inputs:
        for path in one.places.values():
            yield from _tree(path, partial / path.relative_to(one.root))
    for rank in {rank: None for one in inputs for rank in one.manifests}:
        for kind in layout.LINES:
            yield from _lines(partial, layout.lines_name(kind, rank), rank, inputs)


def _lines(partial: Path, name: str, rank: int, inputs: Sequence[_Input]) -> Iterator[bool]:
    """Copy a file of lines of a rank, of several attempts one after the other.

    A further attempt would append to a file that is linked, and to that of the input with it. A
    line that was cut short at the end of a file stays one by itself.
    """

    def first_step(one: _Input) -> int:
        return min((step for _, step, of in one.places if of == rank), default=0)

    having = (one for one in inputs if rank in one.manifests and (one.root / name).is_file())
    sources = sorted(having, key=first_step)
    if not sources:
        return
    with open(partial / name, "xb") as target:
        for source in sources:
            last = b"\n"
            with open(source.root / name, "rb") as file:
                while part := file.read(1 << 20):  # bytes that are copied at once
                    target.write(part)
                    last = part[-1:]
            if last != b"\n":
                target.write(b"\n")
    yield True


def _tree(source: Path, target: Path) -> Iterator[bool]:
    """Link or copy everything below a rank's directory; yield for each file if it is a copy."""
    target.mkdir(parents=True)
    with os.scandir(source) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_symlink():
                raise RunError.saying("error.merge_link", name=entry.path)
            if entry.is_dir(follow_symlinks=False):
                yield from _tree(Path(entry.path), target / entry.name)
            elif not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                raise RunError.saying("error.merge_no_file", path=entry.path)
            elif not (entry.name.startswith(".") and entry.name.endswith(".tmp")):
                try:
                    os.link(entry.path, target / entry.name, follow_symlinks=False)
                except OSError:  # another file system, one without links, or no more to this file
                    shutil.copy2(entry.path, target / entry.name, follow_symlinks=False)
                    yield True
                else:
                    yield False


def _write_configurations(partial: Path, inputs: Sequence[_Input]) -> Iterator[Message]:
    """Write configurations.json of the input with the lowest rank; say where others differ."""
    chosen: tuple[Path, bytes] | None = None
    for one in sorted(inputs, key=lambda one: min(one.manifests)):
        path = one.root / layout.CONFIGURATIONS_FILE
        try:
            content = layout.read_inside(one.root, path)
        except FileNotFoundError:
            continue
        except ValueError as error:
            why = layout.why_unread(error)
            raise RunError.saying("error.manifest_unread", path=path, why_unread=why) from None
        if chosen is None:
            chosen = path, content
            (partial / layout.CONFIGURATIONS_FILE).write_bytes(content)
        elif content != chosen[1]:
            yield message("error.merge_other_configurations", path=str(path), taken=str(chosen[0]))


def _one_manifest(manifests: Sequence[RunFile]) -> RunFile:
    """Return one rank's manifest: of several, those of later attempts continue the first."""
    first, *later = sorted(
        manifests, key=lambda of: next((one.started or "" for one in _attempts(of)), "")
    )
    merged = RunFile({**first.json})
    merged.attempts = _attempts(first)
    for manifest in later:
        own = {
            name: manifest.json[name]
            for name in _SETTINGS
            if name in manifest.json and manifest.json[name] != first.json.get(name)
        }
        begun, *rest = _attempts(manifest) or [Attempt({})]
        merged.attempts = [*merged.attempts, Attempt({**begun.json, **own}), *rest]
        merged.state, merged.recording = manifest.state, manifest.recording or {}
        states = random_states.joined(merged.random_states, manifest.random_states)
        if states:
            merged.random_states = states
        merged.recorded = step_spans.both_recorded(merged.recorded, manifest.recorded)
        again = begun.begins_with  # from there on it recorded what the one before may have thinned
        first_ones = merged.thinned
        before = first_ones if again is None else step_spans.thinned_before(first_ones, again)
        if any((together := step_spans.both_thinned(before, manifest.thinned)).values()):
            merged.thinned = together
        merged.lost = dict(Counter(merged.counts_lost) + Counter(manifest.counts_lost))
        if codes := {**merged.lost_codes, **manifest.lost_codes}:
            merged.lost_codes = codes
        merged.coverage = coverage.joined(merged.coverage, manifest.coverage)
    return merged


def _attempts(manifest: RunFile) -> list[Attempt]:
    return [attempt for attempt in manifest.attempts if attempt.json]
