"""Removing what an earlier run recorded: files that its journals name, and nothing else.

A directory goes when it is empty then. Whatever else lies there is somebody's own: it is left, and
remembered, so that it can be mentioned.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.atomic import is_temporary_of_ours
from mindrlhf_msprobe.storage.arrays.sketches import HEAD

_DATA_NAME = re.compile(rb'"data_name": "([A-Za-z0-9_.:-]+)"')
_OF_MSPROBE = (layout.DUMP_FILE, layout.STACK_FILE, layout.CONSTRUCT_FILE)


class Removal:
    """What was removed of a run, and what was left because no journal of it names it.

    Args:
        description_last: remove the JSON of a save after its arrays, so that a removal that was cut
            short can be ended; else before them, so that no save is read without its arrays.

    Attributes:
        left: files and directories that stand where the run was.
    """

    def __init__(self, *, description_last: bool = False) -> None:
        self.left: list[Path] = []
        self._description_last = description_last

    def remove(self, root: Path, directory: Path) -> None:
        """Remove what was recorded into one rank's directory of a step, of a phase or a key.

        Raises:
            OSError: something that was recorded cannot be removed.
        """
        key = _key_of(root, directory)
        if not _is_directory(directory):
            return
        if key is None:
            self._remove_phase(directory)
        else:
            for name in _names(directory):
                path = directory / name
                if not _is_directory(path):
                    continue
                if is_temporary_of_ours(name):
                    _unlink(path, _names(path))
                elif layout.micro_step_number(name) is not None:
                    remove_save(path, key, description_last=self._description_last)
                self._remove_if_empty(path)
            remove_save(directory, key, description_last=self._description_last)
        self._remove_if_empty(directory)

    def remove_tensors(self, directory: Path) -> None:
        """Remove the elements and sketches in one rank's directory of a step of a phase.

        Raises:
            OSError: they cannot be removed.
        """
        journal, tensors = directory / layout.JOURNAL_FILE, directory / layout.TENSOR_DIR
        if is_journal(journal) and _is_directory(tensors):
            _unlink(tensors, _tensors_in(journal))
            self._remove_if_empty(tensors)
        _remove_sketches(directory)

    def _remove_phase(self, directory: Path) -> None:
        journal = directory / layout.JOURNAL_FILE
        tensors = directory / layout.TENSOR_DIR
        listed: set[str] = set()
        if _is_file(listing := directory / layout.TENSOR_LIST):  # plain names lead nowhere else
            lines = listing.read_bytes().decode("utf-8", errors="replace").splitlines()
            listed = {line for line in lines if re.fullmatch(r"[A-Za-z0-9_.:-]+\.npy", line)}
        if is_journal(journal):
            if _is_directory(tensors):
                listed |= _tensors_in(journal)
            _unlink(directory, [*_OF_MSPROBE, layout.JOURNAL_FILE])
        if _is_directory(tensors):
            _unlink(tensors, listed)
            self._remove_if_empty(tensors)
        _unlink(directory, [layout.TENSOR_LIST])
        _remove_sketches(directory)

    def _remove_if_empty(self, directory: Path) -> None:
        """Remove a directory with nothing but temporary files of ours in it; else note the rest."""
        names = _names(directory)
        _unlink(directory, [name for name in names if is_temporary_of_ours(name)])
        rest = _names(directory)
        if not rest:
            with suppress(FileNotFoundError):
                directory.rmdir()
        known = {path.name for path in self.left if path.parent == directory}
        below = {path.parent.name for path in self.left if path.parent.parent == directory}
        self.left += [directory / name for name in rest if name not in known | below]


def remove_save(directory: Path, key: str, *, description_last: bool = False) -> None:
    """Remove what this package saved under a key into a directory; the JSON first, or last.

    Raises:
        OSError: something cannot be removed.
    """
    description = layout.file_name(key, ".json")
    if (listed := _files_of(directory / description)) is not None:
        names = [*listed, description] if description_last else [description, *listed]
        _unlink(directory, names)


def _remove_sketches(directory: Path) -> None:
    """Remove a file of sketches, as far as it was written."""
    path = directory / layout.SKETCH_FILE
    if _is_file(path):
        with open(path, "rb") as file:
            ours = HEAD.startswith(file.read(len(HEAD)))
        if ours:
            path.unlink(missing_ok=True)


def _unlink(directory: Path, names: Iterable[str]) -> None:
    for name in names:
        path = directory / name
        if _is_file(path):
            path.unlink(missing_ok=True)


def recorded_file(root: Path, directory: Path) -> Path | None:
    """Return the journal in a rank's directory of a step, or of a key the JSON of its first save.

    None where this package recorded nothing.
    """
    key = _key_of(root, directory)
    if key is None:
        journal = directory / layout.JOURNAL_FILE
        return journal if is_journal(journal) else None
    description = layout.file_name(key, ".json")
    found = (directory / name / description for name in ("", *_names(directory)))
    return next((path for path in found if _files_of(path) is not None), None)


def was_recorded(root: Path, directory: Path) -> bool:
    """Return whether a rank's directory of a step holds what this or another tool recorded."""
    if recorded_file(root, directory) is not None:
        return True
    return _key_of(root, directory) is None and _is_file(directory / layout.DUMP_FILE)


def is_removable(root: Path, directory: Path) -> bool:
    """Return whether `Removal` knows what of a directory that was recorded is this package's."""
    return _key_of(root, directory) is not None or is_journal(directory / layout.JOURNAL_FILE)


def is_journal(path: Path) -> bool:
    """Return whether a file is a journal of this package, as far as it was written."""
    if not _is_file(path):
        return False
    with open(path, "rb") as file:
        line = file.readline(1 << 20)
    if not line:
        return True
    if re.match(rb'\{"entry": "[^"]*", "seq": -?[0-9]+', line):
        return True
    try:
        content = json.loads(line)
    except ValueError:
        return False
    return isinstance(content, dict) and {"entry", "seq"} <= content.keys()


def _key_of(root: Path, directory: Path) -> str | None:
    """Return the key whose rank directory this is, None for a phase's."""
    parts = directory.relative_to(root).parts
    return parts[1] if len(parts) == 4 and parts[0] == layout.KEY_DATA_DIR else None


def _tensors_in(journal: Path) -> set[str]:
    with open(journal, "rb") as file:
        return {name.decode() for line in file for name in _DATA_NAME.findall(line)}


def _files_of(description: Path) -> set[str] | None:
    """Return the files beside the JSON of a save; None if it is not this package's."""
    if not _is_file(description):
        return None
    try:
        content: Any = json.loads(description.read_bytes())
        if not isinstance(content, dict) or "seq" not in content:
            return None
        arrays = {name for name, _ in files_in(content.get("data")) if os.sep not in name}
        numbered = arrays if content.get("numbered") is True else ()
        return arrays | {f"{name[:-4]}.json" for name in numbered}
    except (OSError, ValueError, RecursionError):
        return None


def files_in(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield (file name, leaf) for what a structure of leaves says lies beside it."""
    if isinstance(content, dict):
        name = content.get("data_name")
        if isinstance(name, str):
            yield name, content
        content = list(content.values())
    if isinstance(content, list):
        for item in content:
            yield from files_in(item)


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:  # another rank, which begins too, may have removed it
        return []


def _is_file(path: Path) -> bool:
    return stat.S_ISREG(_mode(path))


def _is_directory(path: Path) -> bool:
    return stat.S_ISDIR(_mode(path))


def _mode(path: Path) -> int:
    """Return what stands at a path itself, 0 for nothing: a link is no file and no directory."""
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a name with a null character
        return 0
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # nothing can stand there
            return 0
        raise
