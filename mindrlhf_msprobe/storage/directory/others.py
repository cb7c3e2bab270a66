"""What a manifest lists under `others`: directories of steps and ranks that no run recorded.

Each is named by its path below the run's directory. Of more than `MOST_NAMED`, steps that follow
each other stand in one name, `actor_update/step0-199/rank0`. No directory of a step is called so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from mindrlhf_msprobe.storage.manifest.thinned import united

#: Directories that are named one by one: run.json is written anew at every step.
MOST_NAMED = 1000

_NUMBER = "(0|[1-9][0-9]{0,17})"
#: Of the name of a directory that is of no step.
_NONE = ("", ""), (0, 0)
#: The last part that is a step: a key may itself be called step5.
_STEPS = re.compile(rf"((?:.*/)?step){_NUMBER}(?:-{_NUMBER})?((?:/.*)?)", re.DOTALL)


def listed(names: Iterable[str]) -> list[str]:
    """Return the names of directories, each once, as a manifest lists them.

    Args:
        names: those of directories, or of several as this function returned them.
    """
    plain = list(dict.fromkeys(names))
    if len(plain) <= MOST_NAMED:
        return plain
    steps: dict[tuple[str, str], list[tuple[int, int]]] = {}
    rest = []
    for name in plain:
        if place := _parsed(name):
            around, span = place
            steps.setdefault(around, []).append(span)
        else:
            rest.append(name)
    for (before, after), spans in steps.items():
        for first, last in united(spans):
            numbers = f"{first}" if first == last else f"{first}-{last}"
            rest.append(f"{before}{numbers}{after}")
    return rest


def _parsed(name: str) -> tuple[tuple[str, str], tuple[int, int]] | None:
    """Return what stands before and behind the steps, and the first and the last of them."""
    found = _STEPS.fullmatch(name)
    if found is None:
        return None
    before, first, last, after = found.groups()
    return (before, after), (int(first), int(first if last is None else last))


class Others:
    """The directories below `root` that the manifests of a run name as none of the run's."""

    def __init__(self, root: Path, names: Iterable[str]) -> None:
        self._root = root
        self._names: set[str] = set()
        self._steps: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for name in names:
            self._names.add(name)
            around, (first, last) = _parsed(name) or _NONE
            if first < last:
                self._steps.setdefault(around, []).append((first, last))

    def __contains__(self, directory: Path) -> bool:
        """Return whether one of them is `directory`, below the run's."""
        if not self._names or not directory.is_relative_to(self._root):
            return False
        name = directory.relative_to(self._root).as_posix()
        around, (step, _) = (_parsed(name) if self._steps else None) or _NONE
        spans = self._steps.get(around, ())
        return name in self._names or any(first <= step <= last for first, last in spans)
