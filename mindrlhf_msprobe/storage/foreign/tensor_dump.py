"""The files of msprobe's `save`, as MindSpore's TensorDump writes them.

`<name>_<dtype>_<n>.npy` is a tensor, `<name>.<path>_<dtype>_<n>.npy` one of a dict or a list; n
counts on over all files of a process. They lie together in the directory of a step and a rank,
however often a name was saved there.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path

_FILE = re.compile(
    r"(?P<stem>.+)_(?:(?:bfloat|float|u?int|complex)[0-9]{1,3}|bool)_(?P<order>[0-9]{1,18})\.npy"
)

#: What was saved at once: path in the structure → file name.
Save = dict[str, str]


def saves_in(directory: Path, key: str | None = None) -> dict[str, list[Save]]:
    """Return name → what was saved under it, in the order in which it was saved.

    Args:
        directory: of a step and a rank.
        key: the name, where it is known: it may hold dots.

    Raises:
        OSError: the directory cannot be listed.
    """
    return _saves_in(directory, key, directory.stat().st_mtime_ns)


@lru_cache(maxsize=16)  # each save of a directory is read for itself
def _saves_in(directory: Path, key: str | None, _changed: int) -> dict[str, list[Save]]:
    with os.scandir(directory) as entries:
        matches = [_FILE.fullmatch(entry.name) for entry in entries if entry.is_file()]
    files = [(int(m["order"]), m["stem"], m[0]) for m in matches if m]
    found: dict[str, list[Save]] = {}
    times: Counter[str] = Counter()
    for _, stem, name in sorted(files):
        own, path = _parts(stem, key)
        if own is None:
            continue
        saves = found.setdefault(own, [])
        while len(saves) <= times[stem]:
            saves.append({})
        saves[times[stem]][path] = name
        times[stem] += 1
    return found


def _parts(stem: str, key: str | None) -> tuple[str | None, str]:
    if key is None:
        name, _, path = stem.partition(".")
        return name, path
    if stem == key:
        return key, ""
    return (key, stem[len(key) + 1 :]) if stem.startswith(f"{key}.") else (None, "")
