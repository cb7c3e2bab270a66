"""Every path and file name of a run, in one place.

run.json  configurations.json  findings.rank<R>.jsonl  timeline.rank<R>.jsonl
free_benchmark.rank<R>.jsonl
opinions.rank<R>.jsonl  generators.rank<R>.jsonl
<phase>/step<S>/rank<R>/records.jsonl, dump.json, stack.json, construct.json
<phase>/step<S>/rank<R>/dump_tensor_data/<record>.npy
<phase>/step<S>/rank<R>/sketches.bin
data/<key>/step<S>/rank<R>/micro_step<M>/<key>.npy, <key>.json
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from mindrlhf_msprobe.common.message import Message, SpokenError, as_message, message
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.phases import UNNAMED_PHASE, standard_phase
from mindrlhf_msprobe.storage.arrays import bounds

RUN_FILE = "run.json"
CONFIGURATIONS_FILE = "configurations.json"
JOURNAL_FILE = "records.jsonl"
DUMP_FILE = "dump.json"
STACK_FILE = "stack.json"
CONSTRUCT_FILE = "construct.json"
TENSOR_DIR = "dump_tensor_data"
#: Beside the journal until the step ends: the names of the tensors, each before it is written.
TENSOR_LIST = ".msprobe_tensors"
#: The sketches of all tensors, one behind the other.
SKETCH_FILE = "sketches.bin"
#: Stands for a setting's value that could be a secret.
WITHHELD = "<withheld: it could be a secret>"
KEY_DATA_DIR = "data"
#: Kinds of lines that are appended to a file of a rank when something happens: see step_lines.
FINDINGS, TIMELINE, BENCHMARK = "findings", "timeline", "free_benchmark"
OPINIONS, GENERATORS = "opinions", "generators"
LINES = (FINDINGS, TIMELINE, BENCHMARK, OPINIONS, GENERATORS)

#: The longest file name the common file systems take, in bytes.
MAX_NAME_BYTES = 255
_MAX_KEY_BYTES = 180

_NUMBERED = re.compile(r"(step|rank|proc|micro_step)([0-9]{1,18})")
_OF_TRAINER = re.compile(r"step_([0-9]{1,18})")
_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f]")
_NOT_FOR_MSPROBE = re.compile(r"[^a-zA-Z0-9_.:-]")


def manifest_name(rank: int) -> str:
    """Return the manifest of one rank: each rank writes only its own, so nothing races."""
    return RUN_FILE if rank == 0 else f"run.rank{rank}.json"


def lines_name(kind: str, rank: int) -> str:
    """Return the file of one rank to which lines of a kind, one of `LINES`, are appended."""
    return f"{kind}.rank{rank}.jsonl"


def columns_name(rank: int) -> str:
    """Return the file that holds a copy of one rank's journals as columns."""
    return f"columns.rank{rank}.parquet"


def beside(rank: int) -> list[str]:
    """Return the files of one rank that may stand beside its manifest."""
    return [*(lines_name(kind, rank) for kind in LINES), columns_name(rank)]


def manifest_rank(path: Path) -> int:
    """Return the rank whose manifest `path`, one of `manifests`, is."""
    return 0 if path.name == RUN_FILE else int(path.name[len("run.rank") : -len(".json")])


def manifests(root: Path) -> list[Path]:
    """Return the manifests in `root`, the lowest rank first, whatever stands in their place."""
    others = {
        int(match.group(1)): path
        for path in root.glob("run.rank*.json")
        if (match := re.fullmatch(r"run\.rank([0-9]{1,18})\.json", path.name))
    }
    first = [root / RUN_FILE] if os.path.lexists(root / RUN_FILE) else []
    return first + [others[rank] for rank in sorted(others)]


def entry_dir(root: Path, phase: str, step: int, rank: int) -> Path:
    """Return the directory of one phase, step and rank."""
    phase_dir = root if phase == UNNAMED_PHASE else root / phase
    return phase_dir / f"step{step}" / f"rank{rank}"


def key_data_step_dir(root: Path, key: str, step: int, rank: int) -> Path:
    """Return the directory that holds a key's micro-steps of one step and rank."""
    return root / KEY_DATA_DIR / key / f"step{step}" / f"rank{rank}"


def key_data_dir(root: Path, key: str, step: int, rank: int, micro_step: int | None) -> Path:
    """Return the directory of one key, step, rank and micro-step; None: of a save without one."""
    own = key_data_step_dir(root, key, step, rank)
    return own if micro_step is None else own / f"micro_step{micro_step}"


def step_number(name: str) -> int | None:
    """Return S of a directory name `stepS`, else None."""
    return _number("step", name)


def step_of_directory(path: Path) -> int | None:
    """Return the step whose directory, or one rank's directory in it, `path` is, else None."""
    own = step_number(path.name)
    is_rank = rank_number(path.name) is not None or _number("proc", path.name) is not None
    return step_number(path.absolute().parent.name) if own is None and is_rank else own


def rank_number(name: str) -> int | None:
    """Return R of a directory name `rankR`, 0 of `rank`, else None."""
    return 0 if name == "rank" else _number("rank", name)


def micro_step_number(name: str) -> int | None:
    """Return M of a directory name `micro_stepM`, else None."""
    return _number("micro_step", name)


#: Called with a directory that could not be listed, and why.
OnUnlisted = Callable[[Path, OSError], None]


def rank_directories(
    step_dir: Path, *, links: bool = False, unlisted: OnUnlisted | None = None
) -> dict[int, Path]:
    """Return the rank directories below a step, by rank.

    `rank<N>` is rank N; `rank` (one process) is rank 0; msprobe's `proc<pid>` directories carry no
    rank, so they are counted upwards from 0 in the order of their process ids. So is a directory
    whose rank is taken already (`rank` beside `rank0`): none is left out.

    Args:
        links: whether symbolic links to directories are listed, which may leave the run.
        unlisted: called with a directory that cannot be listed; without it, that raises OSError.
    """
    ranks: dict[int, Path] = {}
    others: list[tuple[int, Path]] = []
    found = [
        (rank_number(p.name), p) for p in subdirectories(step_dir, links=links, unlisted=unlisted)
    ]
    for rank, path in sorted(found, key=lambda at: at[1].name != f"rank{at[0]}"):
        process = _number("proc", path.name) if rank is None else -1
        if rank is not None and rank not in ranks:
            ranks[rank] = path
        elif process is not None:
            others.append((process, path))
    free = 0
    for _, path in sorted(others):
        while free in ranks:
            free += 1
        ranks[free] = path
    return dict(sorted(ranks.items()))


def _number(kind: str, name: str) -> int | None:
    match = _NUMBERED.fullmatch(name)
    return int(match[2]) if match and match[1] == kind else None


def check_key(key: object) -> str:
    """Return `key` if it can name a directory of key data.

    Raises:
        UsageError: it is not a text, is empty, too long, or would leave the directory.
    """
    if not isinstance(key, str):
        raise UsageError.saying("error.key_no_text", key=key, name=type(key).__name__)
    if key.strip() in ("", ".", "..") or _UNSAFE.search(key):
        raise UsageError.saying("error.key_no_directory", key=key, key_data_dir=KEY_DATA_DIR)
    try:
        length = len(key.encode("utf-8"))
    except UnicodeEncodeError:
        raise UsageError.saying("error.key_no_unicode", key=key) from None
    if length > _MAX_KEY_BYTES:
        raise UsageError.saying(
            "error.key_too_long", value=key[:40], length=length, max_key_bytes=_MAX_KEY_BYTES
        )
    return key


def file_name(stem: str, suffix: str = ".npy") -> str:
    """Return a file name for a key or a table: unsafe characters replaced, overlong ones shortened.

    A changed stem ends in a hash of the whole one, so that no two share a file.
    """
    return _file_name(stem, suffix, _UNSAFE, "~")


def record_file_name(record: str) -> str:
    """Return the name of the file that holds a record's elements, as `file_name` does.

    It has only characters that msprobe's tools take in a path.
    """
    return _file_name(record, ".npy", _NOT_FOR_MSPROBE, "-")


def _file_name(stem: str, suffix: str, unsafe: re.Pattern[str], before_hash: str) -> str:
    name = unsafe.sub("_", stem).encode("utf-8", errors="replace").decode("utf-8")
    if name.startswith("."):
        name = "_" + name[1:]
    room = MAX_NAME_BYTES - len(suffix) - 24  # what a temporary name adds to the final one
    if name != stem or len(name.encode()) > room:
        digest = hashlib.sha1(stem.encode("utf-8", errors="surrogatepass")).hexdigest()[:12]
        name = name.encode()[: room - 13].decode("utf-8", errors="ignore") + before_hash + digest
    return name + suffix


def inside(root: Path, path: Path) -> bool:
    """Return whether `path`, symbolic links followed, lies inside `root`."""
    if _is_linkless(root, path):
        return True
    try:
        real, top = os.path.realpath(path), os.path.realpath(root)
    except (OSError, ValueError):  # links in a circle, a name that is none
        return False
    return real == top or real.startswith(top.rstrip(os.sep) + os.sep)


def _is_linkless(root: Path, path: Path) -> bool:
    """Return whether `path` leads from `root` downwards, and no link lies between: most do."""
    top, whole = os.fspath(root), os.fspath(path)
    if not whole.startswith(top + os.sep):
        return whole == top
    names = whole[len(top) + 1 :].split(os.sep)
    if os.pardir in names:
        return False
    try:
        for name in names:
            top = f"{top}{os.sep}{name}"
            if os.path.islink(top):
                return False
    except ValueError:  # a name that is none
        return False
    return True


def read_inside(root: Path, path: Path, most: int = bounds.METADATA) -> bytes:
    """Return the content of a file of the run in `root`.

    Args:
        most: how many bytes it may have.

    Raises:
        OSError: it is missing or cannot be read.
        ValueError: as for `open_inside`.
    """
    with open_inside(root, path, most) as file:
        return file.read(most)


def open_inside(root: Path, path: Path, most: int) -> BinaryIO:
    """Open a file of the run in `root`.

    Args:
        most: how many bytes it may have.

    Raises:
        OSError: it is missing or cannot be read.
        ValueError: it is no regular file, a symbolic link that leaves the run, or too large. The
            message says what the file is, not its name.
    """
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        if not inside(root, path):
            raise UnreadError.saying("unread.link_leaves")
        status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise UnreadError.saying("unread.no_file")
    if status.st_size > most:
        most_bytes = bounds.in_bytes(most)
        raise UnreadError.saying("unread.too_large", size=status.st_size, most=most_bytes)
    return open(path, "rb")


def read_json(root: Path, path: Path, most: int = bounds.METADATA) -> Any:
    """Return the content of a JSON file of the run in `root`.

    Args:
        most: how many bytes it may have.

    Raises:
        OSError: it is missing or cannot be read.
        ValueError: as `read_inside` does, or it is not valid JSON.
    """
    raw = read_inside(root, path, most)
    try:
        return json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnreadError.saying("unread.no_json", why=str(error)) from None


class UnreadError(SpokenError, ValueError):
    """What a file holds cannot be used: the rest of a sentence that begins with the file."""


def why_unread(error: Exception) -> Message:
    """Return what reading a file raised as the rest of a sentence on the file."""
    if isinstance(error, SpokenError):
        return error.said
    if isinstance(error, OSError):  # its text has the path, which stands before it already
        return message("unread.failed", why=error.strerror or str(error))
    if isinstance(error, RecursionError):
        return message("unread.nested")
    if isinstance(error, ValueError):
        return as_message(str(error))
    return message("unread.raised", error=type(error).__name__, why=str(error))


def step_directories(
    root: Path, *, links: bool = False, unlisted: OnUnlisted | None = None
) -> list[tuple[int, Path]]:
    """Return every directory `step<S>` of layer data and of key data below `root`, with S.

    verl has one level more above it, `step_<S>/<phase>/step0`; so has what vLLM dumps,
    `<phase>/<process id>/step<S>`, and what slime dumps beside it, `<phase>/<phase>/step<S>`.

    Args:
        links, unlisted: as in `rank_directories`.
    """

    def below(path: Path) -> list[Path]:
        return subdirectories(path, links=links, unlisted=unlisted)

    found: list[Path] = []
    for first in below(root):
        if first.name == KEY_DATA_DIR:  # a key may itself be called step5
            found += [directory for key in below(first) for directory in below(key)]
        elif is_step(first):
            found.append(first)
        else:
            for second in below(first):
                if is_step(second):
                    found.append(second)
                    continue
                # Two directories, one in the other, that are no run and its phase.
                names = first.name, second.name
                of_phases = all(standard_phase(name) != name for name in names)
                if trainer_step(names[0]) is not None or names[1].isdecimal() or of_phases:
                    found += below(second)
    numbered = ((step_number(directory.name), directory) for directory in found)
    return [(step, directory) for step, directory in numbered if step is not None]


def trainer_step(name: str) -> int | None:
    """Return S of a directory name `step_S`, which verl gives a step, else None."""
    match = _OF_TRAINER.fullmatch(name)
    return int(match[1]) if match else None


def is_step(path: Path) -> bool:
    """Return whether a directory is called `step<S>`."""
    return step_number(path.name) is not None


def has_dumps(root: Path) -> bool:
    """Return whether `root` holds layer data or key data, whoever wrote them."""
    return any(rank_directories(step_dir) for _, step_dir in step_directories(root))


def holds_run(path: Path) -> bool:
    """Return whether a directory is to be read as a run, whoever recorded it."""
    return (path / RUN_FILE).exists() or has_dumps(path)


def check_directory(path: Path) -> None:
    """Refuse a path at which there is no directory.

    Raises:
        RunError: there is none.
    """
    if not path.is_dir():
        what = message("error.no_directory") if path.exists() else message("error.no_path")
        raise RunError.saying("error.no_run_there", root=path, what=what)


def subdirectories(
    path: Path, *, links: bool = False, unlisted: OnUnlisted | None = None
) -> list[Path]:
    """Return the directories in `path`, sorted by name.

    Args:
        links, unlisted: as in `rank_directories`.
    """
    try:
        found = [d for d in path.iterdir() if d.is_dir() and (links or not d.is_symlink())]
        return sorted(found, key=lambda directory: directory.name)
    except FileNotFoundError:  # removed since it was listed
        return []
    except OSError as error:
        if unlisted is None:
            raise
        unlisted(path, error)
        return []
