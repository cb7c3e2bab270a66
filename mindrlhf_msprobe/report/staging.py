"""A comparison → its tables and verdict.json: made aside, they take their places together."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.findings import (
    KEY_DATA_ONLY,
    TOOL,
    VERDICT_FILE,
    Comparison,
    KeptFindings,
    table_of,
)
from mindrlhf_msprobe.report.messages import paragraph, text_of
from mindrlhf_msprobe.report.sheets import Table
from mindrlhf_msprobe.storage.arrays.atomic import dump_lines, write_atomic
from mindrlhf_msprobe.storage.outputs import (
    OutputError,
    refuse_directory,
    refuse_inside,
    remove_stale,
    staging,
)

SUMMARY_FILE = "summary.xlsx"
#: Of checkpoints, as msprobe names and writes it.
SIMILARITY_FILE = "ckpt_similarity.json"

#: Names, in a verdict.json that is a copy, the file of which it is one.
KEPT_AS = "kept_as"

_PREFIX = ".msprobe_report"
_CLAIM = ".msprobe_stamp"  # and the time: made by one process only
_STAMP = "%Y%m%d%H%M%S"  # as msprobe writes it
_EARLIER = "earlier"  # inside the staging directory: what was replaced, until all is in place
_DAY = 86_400.0  # seconds; no comparison is written for so long
_SUFFIXES = (".xlsx", ".csv")
_MOST_OF_A_VERDICT = 1 << 28  # bytes; it lists a thousand differences at most
_BLOCK = 1 << 20  # bytes that are hashed at once


@contextlib.contextmanager
def staged(output: Path) -> Iterator[Path]:
    """Yield a hidden directory inside `output`; what is written there takes its place at the end.

    What is written must hold verdict.json. The tables of an earlier comparison are removed then:
    those that its verdict.json lists and that are as it left them. On any exception `output` stays
    as it was.

    Raises:
        OutputError: the directory cannot be written, or what is written there has the name of a
            file that no comparison wrote, or that was changed since.
    """
    with _clear_errors(output):
        refuse_inside(output)
        output.mkdir(parents=True, exist_ok=True)
        _remove_stale(output)
        with staging(output, _PREFIX, lambda stage: _roll_back(stage, output)) as directory:
            yield directory
            new = _tables(directory)
            _refuse_foreign(output, [VERDICT_FILE, *new])
            # The earlier ones are kept here until all is in place, verdict.json last: the one in
            # this directory lists the new tables, and tells a later `_roll_back` how far this came.
            earlier = directory / _EARLIER
            earlier.mkdir()
            for name in _left_by_a_comparison(output):
                os.replace(output / name, earlier / name)
            for name in (*new, VERDICT_FILE):
                os.replace(directory / name, output / name)


@contextlib.contextmanager
def stamped(output: Path) -> Iterator[tuple[Path, str]]:
    """Yield a hidden directory inside `output`, and a time that no name in `output` has in it.

    What is written into the directory lies in `output` at the end, verdict last; its names hold the
    time, so that nothing is replaced. Of two processes, or of two calls in one second, each has a
    time of its own: the next second that is free. On any exception nothing is added.

    Only one process can make the directory. Its owner looks for files with that time after it has
    made it: whoever had the time before has put all files in their places by then.

    Raises:
        OutputError: the directory cannot be written.
    """
    with _clear_errors(output):
        refuse_inside(output)
        output.mkdir(parents=True, exist_ok=True)
        _remove_stale(output)
        for at in itertools.count(int(time.time())):
            stamp = time.strftime(_STAMP, time.localtime(at))
            directory = output / f"{_CLAIM}.{stamp}"
            with contextlib.suppress(FileExistsError):
                directory.mkdir()
                if not any(stamp in name for name in os.listdir(output) if name != directory.name):
                    break
                directory.rmdir()
        try:
            yield directory, stamp
            names = sorted(path.name for path in directory.iterdir())
            for name in sorted(names, key=lambda name: name.endswith(".json")):
                os.replace(directory / name, output / name)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def holds_only_a_copy(output: Path) -> bool:
    """Return whether verdict.json and summary.xlsx may be replaced without losing a comparison.

    They are not there, or are a copy of files with a time in their names, which stay.
    """
    if not any(_is_file(output / name) for name in (VERDICT_FILE, SUMMARY_FILE)):
        return True
    original = _verdict_in(output).get(KEPT_AS)
    if not (isinstance(original, str) and Path(original).name == original):
        return False
    ours = _left_by_a_comparison(output)
    return _is_file(output / original) and (
        SUMMARY_FILE in ours or not _is_file(output / SUMMARY_FILE)
    )


def check_output(output: Path, runs: Iterable[str | Path] = (), *, beside: bool = False) -> None:
    """Make sure that a comparison can be written into `output`, and leave what is there.

    What a killed comparison had half replaced is put back.

    Args:
        runs: those that are compared, whatever tool wrote them.
        beside: whether its files will have names of their own, whatever lies there.

    Raises:
        OutputError: the directory cannot be created or written, lies inside a run, or holds a
            summary.xlsx or a verdict.json that no comparison wrote.
    """
    refuse_inside(output, runs)
    refuse_directory(output)
    with _clear_errors(output):
        _remove_stale(output)
        if not beside:
            _refuse_foreign(output, (VERDICT_FILE, SUMMARY_FILE))
        missing = [path for path in (output, *output.parents) if not os.path.lexists(path)]
        try:
            output.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(prefix=_PREFIX, dir=output) as file:
                file.write(b"\0")
        finally:
            for path in missing:
                with contextlib.suppress(OSError):
                    path.rmdir()


@contextlib.contextmanager
def _clear_errors(output: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) and "\0" not in str(output):
            raise
        raise OutputError.saying(
            "error.output_unwritten", output=output, reason=_reason(error, output)
        ) from None


def _reason(error: OSError | ValueError, output: Path) -> str | Message:
    if not isinstance(error, OSError):
        return str(error)
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        places = (output, *output.parents)
        found = (path for path in places if os.path.lexists(path) and not path.is_dir())
        return message("error.directory_or_not", path=next(found, output), directory=False)
    if error.errno == errno.EISDIR and error.filename2:
        return message("error.directory_or_not", path=error.filename2, directory=True)
    return error.strerror or str(error)


def _roll_back(directory: Path, output: Path) -> None:
    """Undo a replacement that was interrupted; one that was finished, or not begun, stays."""
    earlier = directory / _EARLIER
    if not earlier.is_dir() or not (directory / VERDICT_FILE).exists():
        return
    with contextlib.suppress(OSError):
        for name, known in _tables(directory).items():
            if not (directory / name).exists() and _is_unchanged(output / name, known):
                (output / name).unlink()
        for path in sorted(earlier.iterdir(), key=lambda path: path.name == VERDICT_FILE):
            if not os.path.lexists(output / path.name):
                os.replace(path, output / path.name)


def _tables(directory: Path) -> dict[str, str]:
    """Return the tables that the verdict.json of a directory lists, each with its fingerprint.

    It may hold anything; where it is not one of ours, it lists nothing.
    """
    content = _verdict_in(directory)
    names, known = content.get("tables"), content.get("fingerprints")
    if content.get("tool") != TOOL or not (isinstance(names, list) and isinstance(known, dict)):
        return {}
    return {n: known[n] for n in names if _is_table(n) and isinstance(known.get(n), str)}


def _verdict_in(directory: Path) -> dict[str, Any]:
    """Return the content of a directory's verdict.json; {} where it is missing or no object."""
    path = directory / VERDICT_FILE
    try:
        status = os.lstat(path)  # no link, and no pipe that would wait
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_OF_A_VERDICT:
            return {}
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _left_by_a_comparison(output: Path) -> list[str]:
    """Return what stands in a directory as an earlier comparison wrote it."""
    tables = _tables(output)
    unchanged = [name for name, known in tables.items() if _is_unchanged(output / name, known)]
    return [VERDICT_FILE, *unchanged] if tables else []


def _refuse_foreign(output: Path, names: Iterable[str]) -> None:
    """Refuse to write over what no comparison wrote.

    Raises:
        OutputError: a file of one of these names is none of ours, or was changed since.
    """
    wanted = [name for name in names if _is_file(output / name)]
    if not wanted:
        return
    ours = set(_left_by_a_comparison(output))
    foreign = [name for name in wanted if name not in ours]
    if foreign:
        more = message("error.and_more", count=len(foreign) - 1) if len(foreign) > 1 else ""
        raise OutputError.saying("error.foreign_output", value=output / foreign[0], more=more)


def fingerprint(path: Path) -> str:
    """Return the fingerprint of a file's bytes.

    Raises:
        OSError: it cannot be read.
    """
    import xxhash

    digest = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return f"xxh3_128:{digest.hexdigest()}"


def _is_unchanged(path: Path, known: str) -> bool:
    try:
        regular = stat.S_ISREG(os.lstat(path).st_mode)  # no link, and no pipe that would wait
        return regular and fingerprint(path) == known
    except (OSError, ValueError):
        return False


def _is_table(name: Any) -> bool:
    if name == SIMILARITY_FILE:
        return True
    if not isinstance(name, str) or not name.endswith(_SUFFIXES) or "\0" in name:
        return False
    return Path(name).name == name


def _is_file(path: Path) -> bool:
    """Return whether a file, a link or a pipe stands there; a name that can be none does not."""
    try:
        return os.path.lexists(path) and (path.is_symlink() or not path.is_dir())
    except (OSError, ValueError):
        return False


def _remove_stale(output: Path) -> None:
    """Remove what a killed process left; what it had half replaced is put back first."""
    remove_stale(output, _PREFIX, lambda path: _roll_back(path, output))
    for path in output.glob(f"{_CLAIM}.*"):
        with contextlib.suppress(OSError):
            if not path.is_symlink() and time.time() - path.stat().st_mtime > _DAY:
                shutil.rmtree(path, ignore_errors=True)


def load() -> None:
    """Import all that writes the tables, which takes its time."""
    import mindrlhf_msprobe.report.summary
    import mindrlhf_msprobe.report.workbook  # noqa: F401


def write_comparison(comparison: Comparison, output: Path, csv: bool = False) -> Comparison:
    """Write all tables and verdict.json into `output`; return the comparison that names them.

    summary.xlsx is the first of them. They take the place of an earlier comparison's all
    together; until then, and whatever goes wrong, that one stays whole.

    Args:
        csv: write each table as a CSV file as well, and summary.xlsx as one for each sheet.

    Raises:
        OutputError: the directory cannot be written, or holds a file of one of these names that
            no comparison wrote.
    """
    from mindrlhf_msprobe.report.workbook import tables_of

    comparison = with_texts(comparison)
    only = any(remark.code == KEY_DATA_ONLY for remark in comparison.remarks)
    of_records = tables_of(comparison.findings, comparison.agreements, key_data_only=only)
    with staged(output) as directory:
        written = replace(comparison, output_path=str(output))
        return _write(written, "summary", of_records, directory, csv)


def write_beside(comparison: Comparison, output: Path, csv: bool = False) -> Comparison:
    """Write all tables and the verdict under names with the time in them, as msprobe names them.

    `compare_result_<time>.xlsx` is the table of a phase, `compare_result_rank<N>_<time>.xlsx` that
    of one of its ranks where there are several; of several phases, and of keys, the name comes
    first; `summary_<time>.xlsx` and `verdict_<time>.json` come with them. What is in `output` stays
    there. summary.xlsx and verdict.json are copies of the latest ones, unless they are those of a
    comparison that is nowhere else.

    Args:
        csv: as for `write_comparison`.

    Raises:
        OutputError: the directory cannot be written.
    """
    from mindrlhf_msprobe.report.workbook import tables_of

    comparison = with_texts(comparison)
    findings = comparison.findings
    tables = findings.ranks if isinstance(findings, KeptFindings) else map(table_of, findings)
    phases = {phase for phase, is_key in tables if not is_key}
    phases |= {agreement.phase for agreement in comparison.agreements}
    with stamped(output) as (directory, stamp):

        def file_of_a_rank(phase: str, rank: int | None) -> str:
            of_phase = f"_{phase}" if len(phases) > 1 else ""
            of_rank = "" if rank is None else f"_rank{rank}"
            return f"compare_result{of_phase}{of_rank}_{stamp}"

        of_records = [
            replace(table, stem=f"{table.stem}_{stamp}") if table.of[0] == "key" else table
            for table in tables_of(findings, comparison.agreements, file_of_a_rank=file_of_a_rank)
        ]
        summary = f"summary_{stamp}"
        named = replace(comparison, output_path=str(output), verdict_file=f"verdict_{stamp}.json")
        written = _write(named, summary, of_records, directory, csv)
    if holds_only_a_copy(output):
        with staged(output) as directory:
            shutil.copyfile(output / f"{summary}.xlsx", directory / SUMMARY_FILE)
            copied = (SUMMARY_FILE, fingerprint(directory / SUMMARY_FILE))
            copy = replace(
                written, tables=(SUMMARY_FILE, *written.tables[1:]), fingerprints=(copied,)
            )
            content = {**copy.to_json(), KEPT_AS: written.verdict_file}
            write_atomic(directory / VERDICT_FILE, [dump_lines(content)])
    return written


def _write(
    comparison: Comparison, stem: str, of_records: Sequence[Table], directory: Path, csv: bool
) -> Comparison:
    """Write the tables, the summary that leads to them first, and the verdict into a directory.

    Args:
        stem: what the summary is called.

    Returns:
        The comparison that names them.
    """
    from mindrlhf_msprobe.report.summary import summary_of
    from mindrlhf_msprobe.report.workbook import file_names, write_tables

    _, *names_of_records = file_names([Table(stem, ()), *of_records])
    links: dict[tuple[str, str], str] = {}
    for table, own in zip(of_records, names_of_records):
        links.setdefault(table.of, own[0])
    tables = [Table(stem, summary_of(comparison, links)), *of_records]
    names = write_tables(tables, directory, csv=csv)
    files = tuple((name, fingerprint(directory / name)) for name in names)
    written = replace(comparison, tables=tuple(names), fingerprints=files)
    write_atomic(directory / comparison.verdict_file, [dump_lines(written.to_json())])
    return written


def with_texts(comparison: Comparison) -> Comparison:
    """Return a comparison that says in words what its messages are.

    That is why the runs first differ, and why something was not compared. What has no message
    keeps the text that it has.
    """
    verdict = comparison.verdict
    first = verdict.first_divergence
    if first is not None and first.reasons:
        first = replace(first, explanation=paragraph(first.reasons))
    coverage = tuple(
        gap if gap.message is None else replace(gap, reason=text_of(gap.message))
        for gap in verdict.coverage
    )
    verdict = replace(verdict, first_divergence=first, coverage=coverage)
    return replace(comparison, verdict=verdict)
