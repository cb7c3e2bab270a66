"""Every path and file name of a run, in one place.

run.json  configurations.json
<phase>/step<S>/rank<R>/records.jsonl, dump.json, stack.json, construct.json
<phase>/step<S>/rank<R>/dump_tensor_data/<record>.npy
data/<key>/step<S>/rank<R>/micro_step<M>/<key>.npy, <key>.json
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from mindrlhf_msprobe.errors import UsageError

RUN_FILE = "run.json"
CONFIGURATIONS_FILE = "configurations.json"
JOURNAL_FILE = "records.jsonl"
DUMP_FILE = "dump.json"
STACK_FILE = "stack.json"
CONSTRUCT_FILE = "construct.json"
TENSOR_DIR = "dump_tensor_data"
KEY_DATA_DIR = "data"

#: The longest file name the common file systems take, in bytes.
MAX_NAME_BYTES = 255
_MAX_KEY_BYTES = 180
_TEMPORARY_BYTES = 24  # what a temporary name adds to the final one

_STEP = re.compile(r"step(\d{1,18})")
_RANK = re.compile(r"rank(\d{1,18})")
_PROCESS = re.compile(r"proc(\d{1,18})")
_MICRO_STEP = re.compile(r"micro_step(\d{1,18})")
_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f]")


def manifest_name(rank: int) -> str:
    """Return the manifest of one rank: each rank writes only its own, so nothing races."""
    return RUN_FILE if rank == 0 else f"run.rank{rank}.json"


def manifests(root: Path) -> list[Path]:
    """Return the manifests in `root`, the lowest rank first."""
    others = {
        int(match.group(1)): path
        for path in root.glob("run.rank*.json")
        if (match := re.fullmatch(r"run\.rank(\d{1,18})\.json", path.name))
    }
    first = [root / RUN_FILE] if (root / RUN_FILE).is_file() else []
    return first + [others[rank] for rank in sorted(others)]


def entry_dir(root: Path, phase: str, step: int, rank: int) -> Path:
    """Return the directory of one phase, step and rank."""
    return root / phase / f"step{step}" / f"rank{rank}"


def key_data_step_dir(root: Path, key: str, step: int, rank: int) -> Path:
    """Return the directory that holds a key's micro-steps of one step and rank."""
    return root / KEY_DATA_DIR / key / f"step{step}" / f"rank{rank}"


def key_data_dir(root: Path, key: str, step: int, rank: int, micro_step: int) -> Path:
    """Return the directory of one key, step, rank and micro-step."""
    return key_data_step_dir(root, key, step, rank) / f"micro_step{micro_step}"


def step_number(name: str) -> int | None:
    """Return S of a directory name `stepS`, else None."""
    return _number(_STEP, name)


def micro_step_number(name: str) -> int | None:
    """Return M of a directory name `micro_stepM`, else None."""
    return _number(_MICRO_STEP, name)


def rank_directories(step_dir: Path) -> dict[int, Path]:
    """Return the rank directories below a step, by rank.

    `rank<N>` is rank N; `rank` (one process) is rank 0; msprobe's `proc<pid>` directories carry no
    rank, so they are counted upwards from 0 in the order of their process ids.
    """
    ranks: dict[int, Path] = {}
    processes: list[tuple[int, Path]] = []
    for path in sorted(step_dir.iterdir()):
        if path.is_symlink() or not path.is_dir():
            continue
        rank = 0 if path.name == "rank" else _number(_RANK, path.name)
        if rank is not None:
            ranks.setdefault(rank, path)
        elif (pid := _number(_PROCESS, path.name)) is not None:
            processes.append((pid, path))
    free = 0
    for _, path in sorted(processes):
        while free in ranks:
            free += 1
        ranks[free] = path
    return dict(sorted(ranks.items()))


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    return int(match.group(1)) if match else None


def check_key(key: object) -> str:
    """Return `key` if it can name a directory of key data.

    Raises:
        UsageError: it is not a text, is empty, too long, or would leave the directory.
    """
    if not isinstance(key, str):
        raise UsageError(
            f"key data are saved under a name, got {key!r} ({type(key).__name__}); "
            f"expected a text such as 'advantages'."
        )
    if key.strip() in ("", ".", "..") or re.search(r"[/\\\x00-\x1f\x7f]", key):
        raise UsageError(
            f"the key {key!r} cannot name a directory inside {KEY_DATA_DIR}/; expected a name "
            f"without '/', '\\' or control characters and other than '.' and '..'."
        )
    try:
        length = len(key.encode("utf-8"))
    except UnicodeEncodeError:
        raise UsageError(f"the key {key!r} is not valid Unicode text.") from None
    if length > _MAX_KEY_BYTES:
        raise UsageError(
            f"the key {key[:40]!r}… is {length} bytes long; expected at most {_MAX_KEY_BYTES}, "
            f"because it becomes part of file names."
        )
    return key


def file_name(stem: str, suffix: str = ".npy") -> str:
    """Return a file name for a record: unsafe characters replaced, an overlong stem shortened.

    A changed stem ends in a hash of the whole one, so that two records never share a file.
    """
    name = _UNSAFE.sub("_", stem).encode("utf-8", errors="replace").decode("utf-8")
    if name.startswith("."):
        name = "_" + name[1:]
    room = MAX_NAME_BYTES - len(suffix) - _TEMPORARY_BYTES
    if name != stem or len(name.encode()) > room:
        digest = hashlib.sha1(stem.encode("utf-8", errors="surrogatepass")).hexdigest()[:12]
        name = name.encode()[: room - 13].decode("utf-8", errors="ignore") + "~" + digest
    return name + suffix


def inside(root: Path, path: Path) -> bool:
    """Tell whether `path`, symbolic links followed, lies inside `root`."""
    return path.resolve().is_relative_to(root.resolve())


def step_directories(root: Path) -> list[Path]:
    """Return every directory `step<S>` of layer data and of key data below `root`."""
    found: list[Path] = []
    for first in _subdirectories(root):
        if step_number(first.name) is not None:
            found.append(first)
            continue
        for second in _subdirectories(first):
            if step_number(second.name) is not None:
                found.append(second)
            elif first.name == KEY_DATA_DIR:
                found += [d for d in _subdirectories(second) if step_number(d.name) is not None]
    return found


def has_dumps(root: Path) -> bool:
    """Tell whether `root` holds layer data or key data, whoever wrote them."""
    return any(rank_directories(step_dir) for step_dir in step_directories(root))


def _subdirectories(path: Path) -> list[Path]:
    return sorted(d for d in path.iterdir() if d.is_dir() and not d.is_symlink())
