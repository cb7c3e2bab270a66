"""What a shard of a comparison found, as a file: counts, findings and the first difference.

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
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerances
from mindrlhf_msprobe.comparison.steps.step_of_rank import StepResult
from mindrlhf_msprobe.comparison.steps.tally import Counted, Tally
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.findings import CoverageGap, Finding
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.layout import UnreadError, why_unread
from mindrlhf_msprobe.storage.outputs import Output, written

#: What every part begins with; a part of another version of this package is refused.
_HEAD = {"kind": "mindrlhf_msprobe.part", "schema": 1, "version": __version__}
_SUFFIX = ".part.gz"

#: A step and a rank.
At = tuple[int, int]


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
    held: tuple[At, ...] = ()
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


def place_of_part(path: str | Path, number: int, of: int) -> Path:
    """Return where a part is written: in a directory, under a name with the shard's number."""
    path = Path(path)
    return path / f"shard_{number}_of_{of}{_SUFFIX}" if path.is_dir() else path


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
