"""One comparison by several processes that know nothing of each other.

Each compares a shard of the ranks and steps and writes a part; whoever has all parts joins them.
Joining reads of the runs what explains the first difference, and nothing else.

A part is a gzip file of JSON lines: the header (`Part`), a line for each step and rank, and a last
line with their number. It is written whole or not at all; what is read is checked.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import stat
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, fields
from pathlib import Path
from typing import Any

from mindrlhf_msprobe import __version__
from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.printable import few_numbers
from mindrlhf_msprobe.common.typed_json import codec
from mindrlhf_msprobe.comparison.compare import (
    Ready,
    Request,
    compare_steps,
    prepare,
    repetitions_of,
    runs_of,
)
from mindrlhf_msprobe.comparison.engine.executor import FOLD_ABOVE, Folding
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerances
from mindrlhf_msprobe.comparison.steps.step_of_rank import Job, StepResult
from mindrlhf_msprobe.comparison.steps.tally import Counted, Tally
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.findings import Comparison, CoverageGap, Finding
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.layout import UnreadError, why_unread
from mindrlhf_msprobe.storage.outputs import Output, refuse, written
from mindrlhf_msprobe.storage.place import StepPlace

#: What every part begins with; a part of another version of this package is refused.
_HEAD = {"kind": "mindrlhf_msprobe.part", "schema": 1, "version": __version__}
_SUFFIX = ".part.gz"


@dataclass(frozen=True)
class Options:
    """How the runs are compared, as `compare_runs` takes it; files by their absolute paths."""

    tolerance: Tolerances = field(default_factory=Tolerances)
    noise: tuple[str, ...] = ()
    mapping: str | None = None
    cell_mapping: Any = None
    api_mapping: Any = None
    data_mapping: Any = None
    layer_mapping: Any = None
    tokenizer: str | None = None
    phases: tuple[str, str] | None = None
    ranks: tuple[int, int] | None = None
    layout: str | None = None
    key_data_only: bool = False
    steps: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    common: bool = False
    after: str | None = None
    all_rows: bool = False


@dataclass(frozen=True)
class Part:
    """What a part is of: the header of its file.

    Attributes:
        number, of: which shard, of how many.
        runs: the directories of A and B, absolute, as the machine knows them that wrote it.
        options: how they are compared; all parts have the same.
        held: every step and rank that is to be compared, as far as that machine holds them.
        attempts: for A and B, rank → which recording was compared: its `run_id`, and when each
            attempt of it began.
        host: that machine.
    """

    number: int
    of: int
    runs: tuple[str, str | None]
    options: Options
    held: tuple[tuple[int, int], ...] = ()
    attempts: tuple[Mapping[int, str], ...] = ()
    host: str = field(default_factory=platform.node)


#: The types of what a part says of a step; pairs that wait are none of it.
_TYPES: Mapping[str, Any] = {
    "step": int,
    "rank": int,
    "findings": tuple[Finding | None, ...],
    "positions": tuple[tuple[int, int], ...],
    "gaps": tuple[CoverageGap, ...],
    "notes": Messages,
    "problems": tuple[Messages, ...],
    "counted": Counted,
    "whole": bool,
    "folded": bool,
    "tally": Tally,
    "records": int,
    "not_reached": int,
    "first_not_reached": int,
}


def output_of_part(path: Path) -> Output:
    """Return what a part is as a file that is written: it replaces an earlier part alone."""

    def is_part(path: Path) -> bool:
        with _reading(path) as lines:
            return bool(next(lines).get("kind") == _HEAD["kind"])

    return Output(path, is_part)


def write_part(
    path: Path, part: Part, results: Sequence[StepResult], runs: Iterable[str | Path]
) -> None:
    """Write a part, whole or not at all.

    Args:
        runs: into which nothing is written.

    Raises:
        RunError: it cannot be written, or takes the place of a file that is no part.
    """
    with (
        written(output_of_part(path), runs=runs) as (staged,),
        gzip.open(staged, "wb", compresslevel=1) as file,
    ):
        _write_line(file, {**_HEAD, "part": codec(Part).write(part)})
        for result in results:
            held = {name: codec(kind).write(getattr(result, name)) for name, kind in _TYPES.items()}
            _write_line(file, held)
        _write_line(file, {"end": len(results)})


def _write_line(file: gzip.GzipFile, content: Any) -> None:
    file.write(json.dumps(content, separators=(",", ":")).encode() + b"\n")


def part_files(paths: Iterable[str | Path]) -> list[Path]:
    """Return the files of parts; of a directory, those in it.

    Raises:
        UsageError: none is given, or a directory holds none.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(path.glob(f"*{_SUFFIX}")) if path.is_dir() else [path]
        if not inside:
            raise UsageError.saying("error.no_parts", path=path, suffix=_SUFFIX)
        files += inside
    return files


def read_headers(paths: Sequence[Path]) -> list[Part]:
    """Return the headers of the parts of one comparison: of every shard, each once.

    Raises:
        RunError: a part cannot be read, or they are not of one comparison.
    """
    parts: dict[int, tuple[Path, Part]] = {}
    for path in paths:
        part = _header(path)
        for known_path, known in parts.values():
            what = _unlike(known, part)
            if what is not None:
                raise RunError.saying("error.parts_unlike", path=known_path, other=path, what=what)
        parts[part.number] = path, part
    of = max(part.of for _, part in parts.values())
    missing = [number for number in range(1, of + 1) if number not in parts]
    if missing:
        raise RunError.saying("error.parts_missing", of=of, missing=few_numbers(missing))
    return [part for _, part in parts.values()]


def _header(path: Path) -> Part:
    with _reading(path) as lines:
        found = next(lines, None)
        if not isinstance(found, dict) or found.get("kind") != _HEAD["kind"]:
            raise RunError.saying("error.no_part", path=path)
        for name, own in _HEAD.items():
            if found.get(name) != own:
                other = {"value": found.get(name), "own": own}
                raise RunError.saying("error.part_of_other", path=path, name=name, **other)
        part: Part = codec(Part).read(found.get("part"))
        if not 1 <= part.number <= part.of:
            raise UnreadError.saying("unread.part")
        return part


def _unlike(a: Part, b: Part) -> Message | None:
    """Return why two parts cannot be joined; None if they can."""
    if a.of != b.of:
        return message("error.parts_of", a=a.of, b=b.of)
    if a.number == b.number:
        return message("error.parts_twice", number=a.number, of=a.of)
    for each in fields(Options):
        if getattr(a.options, each.name) != getattr(b.options, each.name):
            return message("error.parts_option", name=each.name)
    named = all(any(part.attempts) for part in (a, b))
    if not named and a.runs != b.runs:  # dumps of other tools: nothing else tells them apart
        return message("error.parts_runs_unlike", a=list(a.runs), b=list(b.runs))
    return unlike_attempts(a.attempts, b.attempts)


def unlike_attempts(
    a: Sequence[Mapping[int, str]], b: Sequence[Mapping[int, str]]
) -> Message | None:
    """Return why both are not of the same recordings, as far as they are of the same ranks."""
    for side, mine, theirs in zip("AB", a, b):
        for rank in sorted(mine.keys() & theirs.keys()):
            if mine[rank] != theirs[rank]:
                return message("error.parts_attempt", side=side, rank=rank)
    return None


def read_results(path: Path) -> Iterator[StepResult]:
    """Yield what a part says of each step.

    Raises:
        RunError: it ends too early, or says something else.
    """
    with _reading(path) as lines:
        next(lines)  # the header, which has been read
        count, end = 0, None
        for found in lines:
            if end is not None:
                raise UnreadError.saying("unread.part")
            if isinstance(found, dict) and found.keys() == {"end"}:
                end = found["end"]
            else:
                yield _read_result(found)
                count += 1
        if end != count:
            raise UnreadError.saying("unread.part")


def _read_result(found: Any) -> StepResult:
    if not isinstance(found, dict) or found.keys() != _TYPES.keys():
        raise UnreadError.saying("unread.part")
    values = {name: codec(kind).read(found[name]) for name, kind in _TYPES.items()}
    records = values.pop("records")
    values["findings"] = list(values["findings"])
    values["positions"] = list(values["positions"])
    is_packed = not values["positions"]
    if not is_packed and len(values["positions"]) != len(values["findings"]):
        raise UnreadError.saying("unread.part")
    result = StepResult(**values)
    result.records = records
    if is_packed:
        result.pack()
    return result


@contextmanager
def _reading(path: Path) -> Iterator[Iterator[Any]]:
    """Yield the lines of a part, as JSON.

    Raises:
        RunError: they cannot be read, or the caller finds a wrong one (UnreadError).
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UnreadError.saying("unread.no_regular_file")
        with gzip.open(path, "rb") as file:
            yield _lines(file)
    except (OSError, EOFError, ValueError, zlib.error, RecursionError) as error:
        why = message("unread.part") if isinstance(error, _BROKEN) else why_unread(error)
        raise RunError.saying("error.part_unread", path=path, why=why) from None


#: What gzip and JSON raise where a file was cut, or is none of theirs.
_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, json.JSONDecodeError, UnicodeDecodeError)


def _lines(file: gzip.GzipFile) -> Iterator[Any]:
    while line := file.readline(bounds.PART_LINE):
        if not line.endswith(b"\n"):
            raise UnreadError.saying("unread.part")
        yield json.loads(line)


_PathLike = str | Path


@dataclass(frozen=True)
class Sharded:
    """What became of a shard.

    Attributes:
        path: the part that was written.
        number, of: which shard, of how many.
        ranks, steps: how many it compared something of.
        records: how many it compared.
        different: how many of them do not agree.
        first: the first of those; None if all agree.
    """

    path: Path
    number: int
    of: int
    ranks: int
    steps: int
    records: int
    different: int
    first: Finding | None

    def to_json(self) -> dict[str, Any]:
        """Return it as the command prints it as JSON."""
        first = self.first
        shown = first and {"step": first.step, "rank": first.rank, "record": first.record}
        names = ("number", "of", "ranks", "steps", "records", "different")
        counts = {name: getattr(self, name) for name in names}
        return {"part": str(self.path), **counts, "first": shown}


def compare_shard(request: Request, number: int, of: int, output: _PathLike) -> Sharded:
    """Compare what one of several processes is to compare, and write the part.

    Args:
        number, of: which shard, from 1 on, of how many.
        output: the file; in a directory, its name is that of the shard.

    Raises:
        RunError, ConfigError, UsageError: as `mindrlhf_msprobe.compare_runs`.
        OutputError: the part cannot be written.
    """
    if not (type(number) is type(of) is int and 1 <= number <= of):
        raise UsageError.saying("error.shard", value=f"{number}/{of}")
    if request.first_only:
        raise UsageError.saying("error.shard_first_only")
    path = Path(output)
    if path.is_dir():
        path = path / f"shard_{number}_of_{of}{_SUFFIX}"
    runs = runs_of(request)
    prepared = prepare(request)
    refuse(output_of_part(path), runs=runs)
    held = prepared.rank_steps()
    results = compare_steps(prepared, shard_of(prepared.job, held, number, of))
    both = os.path.abspath(request.a), None if request.b is None else os.path.abspath(request.b)
    options = _options(request, prepared.job)
    part = Part(number, of, both, options, tuple(held), _attempts(prepared.job))
    write_part(path, part, results, runs)
    findings = (one for result in results for one in result.findings if one is not None)
    first = _first(results)
    return Sharded(
        path=path,
        number=number,
        of=of,
        ranks=len({result.rank for result in results}),
        steps=len({result.step for result in results}),
        records=sum(result.tally.compared for result in results),
        different=sum(not finding.status.agrees for finding in findings),
        first=None if first is None or first.tally.first is None else first.tally.first.finding,
    )


def shard_of(job: Job, rank_steps: Sequence[StepPlace], number: int, of: int) -> list[StepPlace]:
    """Return what a shard compares: a block of ranks, or of the steps of one rank.

    The blocks depend on how many ranks the job has, as its manifests say, and not on which of them
    lie on this machine: with a shard for each host, each compares the ranks of its own.
    """
    files = [] if job.laid_out else [f for side in job.sides for f in side.run.run_files]
    sizes = [file.world.size or 0 for file in files]
    world = max([1, *sizes, *(rank + 1 for _, rank in rank_steps)])
    steps = Counter(rank for _, rank in rank_steps)
    seen: Counter[int] = Counter()
    chosen = []
    for step, rank in rank_steps:
        # The place among all is (rank + seen / steps) / world, its block that times `of`.
        block = (rank * steps[rank] + seen[rank]) * of // (world * steps[rank])
        seen[rank] += 1
        if block == number - 1:
            chosen.append(StepPlace(step, rank))
    return chosen


def _attempts(job: Job) -> tuple[dict[int, str], ...]:
    """Return which recording of each rank of A and B lies here, and when its attempts began."""
    return tuple(
        {
            file.rank or 0: " ".join(
                [file.run_id or "", *(attempt.started or "" for attempt in file.attempts)]
            )
            for file in side.run.run_files
        }
        for side in job.sides
    )


def _options(request: Request, job: Job) -> Options:
    """Return how the runs are compared, so that it can be said in a file."""
    chosen = job.chosen
    said = {each.name: getattr(request, each.name) for each in fields(Options)}
    files = (name for name in _FILES if isinstance(said[name], (str, Path)))
    said |= {name: os.path.abspath(said[name]) for name in files}
    said |= {name: said[name] and tuple(said[name]) for name in ("phases", "ranks")}
    said |= {name: getattr(chosen, name) for name in ("include", "exclude", "keys")}
    steps = ",".join(f"{first}-{last}" for first, last in chosen.steps) or None
    noise = tuple(map(os.path.abspath, repetitions_of(request)))
    return Options(**said | {"tolerance": job.tolerances, "noise": noise, "steps": steps})


#: Options that name a file; those of mappings may also be a mapping itself, or True.
_FILES = (
    *("mapping", "cell_mapping", "api_mapping", "data_mapping", "layer_mapping"),
    *("tokenizer", "layout", "after"),
)


def reduce_parts(
    paths: Iterable[_PathLike],
    a: _PathLike | None = None,
    b: _PathLike | None = None,
    ready: Ready = lambda runs: None,
) -> Comparison:
    """Join the parts of all shards: the comparison that one process would have made.

    Args:
        paths: the parts, or directories that hold them.
        a, b: where the runs lie on this machine; None: where the parts say.
        ready: as for `compare_as_requested`.

    Raises:
        RunError: a part cannot be read, they are not of one comparison, one is missing, or what
            explains the first difference does not lie on this machine.
        UsageError: no part is given.
    """
    files = part_files(paths)
    parts = read_headers(files)
    options = {f.name: getattr(parts[0].options, f.name) for f in fields(Options)}
    options["keys"] = dict(parts[0].options.keys)
    results = _joined(files, parts, all_rows=options["all_rows"])
    first = _first(results)
    by = parts[0] if first is None else _holder(first.at, parts)
    runs = by.runs if a is None else (a, b)
    if len([run for run in runs if run]) != len([run for run in by.runs if run]):
        raise UsageError.saying("error.parts_runs")
    for run in runs:
        if run is not None and not os.path.isdir(run):
            raise RunError.saying("error.part_not_here", path=run, host=by.host)
    prepared = prepare(Request(*runs, **options))
    ready(runs_of(prepared.request))
    attempts = _attempts(prepared.job)
    for part in parts:
        what = unlike_attempts(attempts, part.attempts)
        if what is not None:
            raise RunError.saying("error.parts_of_others", number=part.number, what=what)
    here = {at for side in prepared.job.sides for at in side.rank_steps()}
    if first is not None and (first.step, first.rank) not in here:
        where = {"step": first.step, "rank": first.rank, "host": by.host}
        raise RunError.saying("error.part_elsewhere", **where, a=by.runs[0], b=by.runs[1])
    away = {rank for part in parts for _, rank in part.held} - {rank for _, rank in here}
    if away:
        prepared.steps = {step for part in parts for step, _ in part.held}
        notes = (note for note in prepared.notes if note.code != "pairing.missing_ranks")
        said = message("pairing.ranks_not_here", ranks=few_numbers(sorted(away)))
        prepared.notes = [*notes, said]
    else:
        prepared.rank_steps()
    return prepared.conclude(results)


def _joined(paths: Sequence[Path], parts: Sequence[Part], *, all_rows: bool) -> list[StepResult]:
    """Return what all parts found, in the order of the steps; what agrees is folded as in one.

    Raises:
        RunError: a part cannot be read, or something was compared by none.
    """
    results: dict[StepPlace, StepResult] = {}
    held = {StepPlace(*at) for part in parts for at in part.held}
    folding = Folding(FOLD_ABOVE, len(held), all_rows=all_rows)
    for path in paths:
        for result in read_results(path):
            at = result.at
            if at in results or at not in held:
                why = message("error.part_step", step=at[0], rank=at[1])
                raise RunError.saying("error.part_unread", path=path, why=why)
            results[at] = result
            folding.came(result)
            folding.finished(result)
    left = sorted(held - results.keys())
    if left:
        by = _holder(left[0], parts)
        where = {"step": left[0][0], "rank": left[0][1], "host": by.host, "count": len(left)}
        raise RunError.saying("error.parts_lack", **where, of=by.of)
    return [results[at] for at in sorted(results)]


def _holder(at: StepPlace, parts: Sequence[Part]) -> Part:
    """Return the part of a machine that holds this step of a rank."""
    return next(part for part in parts if at in part.held)


def _first(results: Iterable[StepResult]) -> StepResult | None:
    """Return the step of the first difference; None if all agree."""
    ordered = [(order, result) for result in results if (order := result.order) is not None]
    return min(ordered, key=lambda found: found[0])[1] if ordered else None
