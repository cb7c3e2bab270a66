"""Where answers go: never into a run, never over what this tool did not write, whole or not at all.

Every command that writes a file goes through here, before it begins and when it writes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.manifest.run_file import TOOL, RunFile

_DAY = 86_400.0  # seconds; nothing is written for so long
#: What is no name of a directory, and is probably meant as a file's.
_OF_FILES = (".csv", ".html", ".json", ".xlsx")


class OutputError(RunError):
    """Something cannot be written where it is to be.

    Attributes:
        comparison: what was to be written there, where it was finished before this showed;
            None where nothing was compared yet.
    """

    comparison: Any = None


class Output(NamedTuple):
    """One file that is to be written.

    Attributes:
        path: where.
        is_ours: returns whether a file that stands there already is an earlier one of its kind.
        write: writes it, given a hidden path that takes its place later.
    """

    path: Path
    is_ours: Callable[[Path], bool]
    write: Callable[[Path], object] = Path.touch


def json_of(*keys: str, many: bool = False) -> Callable[[Path], bool]:
    """Return what tells a JSON file of ours: an object with these keys, or a list of such."""

    def is_ours(path: Path) -> bool:
        if path.stat().st_size > bounds.DATA:
            return False
        content = json.loads(path.read_bytes())
        several = content if many and isinstance(content, list) and content else [content]
        return all(isinstance(one, dict) and {*keys} <= one.keys() for one in several)

    return is_ours


def csv_of(*headers: Iterable[str]) -> Callable[[Path], bool]:
    """Return what tells a CSV file of ours: it begins with one of these headers."""
    known = [[*header] for header in headers]

    def is_ours(path: Path) -> bool:
        import csv  # slow to import

        with open(path, encoding="utf-8-sig", newline="") as file:
            return next(csv.reader([file.readline(1 << 20)]), None) in known

    return is_ours


def refuse(*outputs: Output, runs: Iterable[str | Path] = ()) -> None:
    """Refuse, before anything takes time, what could not be written at the end.

    Args:
        runs: what is read, whatever tool wrote it: nothing is written into it either.

    Raises:
        RunError: a file lies inside a run.
        OutputError: it would take the place of what this tool did not write, of another answer of
            it, or of what was changed since.
    """
    for path, is_ours, _ in outputs:
        refuse_inside(path, runs)
        if not os.path.lexists(path):
            continue
        ours = False
        # A link is the user's own; nobody may write into a pipe for ever.
        with contextlib.suppress(Exception):  # whatever a file of others holds
            ours = stat.S_ISREG(os.lstat(path).st_mode) and is_ours(path)
        if not ours:
            raise OutputError.saying("error.foreign_file", path=path)


def refuse_inside(path: Path, runs: Iterable[str | Path] = ()) -> None:
    """Refuse a path that is a run or lies inside one, one of these or any other.

    Raises:
        RunError: it does.
    """
    if "\0" in str(path):
        return  # cannot be written at all
    target = Path(os.path.realpath(path))
    given = {Path(os.path.realpath(run)) for run in runs if "\0" not in str(run)}
    for around in (target, *target.parents):
        is_run = around in given
        # Or a manifest of this tool stands there, whole or not.
        for manifest in layout.manifests(around)[:1] if os.path.isdir(around) else ():
            try:
                is_run = is_run or RunFile.load(manifest).tool == TOOL
            except (OSError, ValueError):
                is_run = True
        if is_run:
            where = message("error.output_there", is_run=around == target, run=str(around))
            raise RunError.saying("error.output_inside", output=path, where=where)


def refuse_directory(path: str | Path, *but: str) -> Path:
    """Return the path of a directory for several files; refuse one that is a file, or looks so.

    Args:
        but: the suffix of a file that may be given all the same.

    Raises:
        OutputError: a file stands there, or the name is that of one.
    """
    path = Path(path)
    if os.path.isdir(path) or path.suffix.lower() in but:
        return path
    if os.path.lexists(path) or path.suffix.lower() in _OF_FILES:
        raise OutputError.saying("error.no_output_directory", path=path)
    return path


@contextlib.contextmanager
def written(*outputs: Output, runs: Iterable[str | Path] = ()) -> Iterator[list[Path]]:
    """Yield a hidden path for each of several files, which take their places together.

    On any exception all is as it was before, directories that were made included.

    Raises:
        RunError, OutputError: as for `refuse`, or one cannot be written.
    """
    refuse(*outputs, runs=runs)
    with replaced(*(output.path for output in outputs)) as parts:
        yield parts


def write_all(*outputs: Output, runs: Iterable[str | Path] = ()) -> list[Path]:
    """Write several files, which take their places together; return their paths.

    Raises:
        RunError, OutputError: as for `written`.
    """
    with written(*outputs, runs=runs) as parts:
        for output, part in zip(outputs, parts):
            output.write(part)
    return [output.path for output in outputs]


@contextlib.contextmanager
def replaced(*paths: Path) -> Iterator[list[Path]]:
    """Yield paths as `written` does, whatever stands in their place.

    Raises:
        OutputError: a file cannot be written.
    """
    first = paths[0]
    above = {around for path in paths for around in path.absolute().parents}
    new = sorted((one for one in above if not os.path.lexists(one)), reverse=True)
    done: list[Path] = []
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        with staging(first.parent, ".msprobe_output") as stage:
            parts = [stage / f"{number}{path.suffix}" for number, path in enumerate(paths)]
            yield parts
            kept = [part.with_name(f"before-{part.name}") for part in parts]
            for path, before in zip(paths, kept):
                if path.exists():  # it has a second name until what replaces it stands there
                    try:
                        os.link(path, before)
                    except OSError:  # a file system without links
                        shutil.copy2(path, before)
            try:
                for part, path in zip(parts, paths):
                    os.replace(part, path)
                    done.append(path)
            except BaseException:
                for path, before in zip(done, kept):
                    os.replace(before, path) if before.exists() else path.unlink()
                raise
    except BaseException as error:
        for directory in new:
            with contextlib.suppress(OSError):
                directory.rmdir()
        cannot_be = isinstance(error, ValueError) and "\0" in str(first)
        if not isinstance(error, OSError) and not cannot_be:
            raise
        why = getattr(error, "strerror", None) or str(error)
        raise OutputError.saying("error.file_unwritten", path=str(first), why=why) from None


@contextlib.contextmanager
def staging(
    directory: Path, prefix: str, undo: Callable[[Path], None] = lambda _: None
) -> Iterator[Path]:
    """Yield a hidden directory in which files are made before they take their places.

    Those of processes that were killed go.

    Args:
        undo: is given a directory before it goes, where an exception or a kill ended the work.
    """
    remove_stale(directory, prefix, undo)
    stage = Path(tempfile.mkdtemp(prefix=f"{prefix}.{host()}.{os.getpid()}.", dir=directory))
    try:
        yield stage
    except BaseException:
        undo(stage)
        raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def remove_stale(directory: Path, prefix: str, undo: Callable[[Path], None]) -> None:
    """Remove the staging directories of processes that were killed; `undo` is given each before."""
    for path in directory.glob(f"{prefix}.*"):
        if path.is_dir() and not path.is_symlink() and _is_stale(path):
            undo(path)
            shutil.rmtree(path, ignore_errors=True)


def _is_stale(path: Path) -> bool:
    """Return whether nobody writes there any more; on another machine, after a day."""
    if path.name.count(".") < 4:  # nothing that was made here
        return False
    of, pid = path.name.split(".")[2:4]
    if of == host() and pid.isascii() and pid.isdigit() and len(pid) < 19:
        try:
            os.kill(int(pid), 0)
        except (ProcessLookupError, OverflowError):
            return True
        except OSError:  # it runs as another user
            pass
        return False
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime > _DAY
    return False


def host() -> str:
    """Return this machine's name as a part of a file's name, without dots."""
    return re.sub("[^0-9A-Za-z]", "-", os.uname().nodename)[:40] or "host"
