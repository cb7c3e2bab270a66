"""What a manifest lists under `others`: directories of steps and ranks that no run recorded.

Each is named by its path below the run's directory. Of more than `MOST_NAMED`, steps that follow
each other stand in one name, `actor_update/step0-199/rank0`. No directory of a step is called so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

#: Directories that are named one by one: run.json is written anew at every step.
MOST_NAMED = 1000

_NUMBER = "(0|[1-9][0-9]{0,17})"
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
        place = _parsed(name)
        if place is None:
            rest.append(name)
        else:
            before, first, last, after = place
            steps.setdefault((before, after), []).append((first, last))
    for (before, after), spans in steps.items():
        for first, last in _joined(spans):
            rest.append(
                f"{before}{first}{after}" if first == last else f"{before}{first}-{last}{after}"
            )
    return rest


def _parsed(name: str) -> tuple[str, int, int, str] | None:
    """Return what stands before the steps, the first and the last of them, and what behind."""
    found = _STEPS.fullmatch(name)
    if found is None:
        return None
    before, first, last, after = found.groups()
    return before, int(first), int(first if last is None else last), after


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


class Others:
    """The directories below `root` that the manifests of a run name as none of the run's."""

    def __init__(self, root: Path, names: Iterable[str]) -> None:
        self._root = root
        self._names: set[str] = set()
        self._steps: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for name in names:
            self._names.add(name)
            place = _parsed(name)
            if place is not None and place[1] < place[2]:
                before, first, last, after = place
                self._steps.setdefault((before, after), []).append((first, last))

    def __contains__(self, directory: Path) -> bool:
        """Tell whether one of them is `directory`, below the run's."""
        try:
            name = directory.relative_to(self._root).as_posix()
        except ValueError:
            return False
        if name in self._names:
            return True
        place = _parsed(name) if self._steps else None
        if place is None:
            return False
        before, step, _, after = place
        return any(first <= step <= last for first, last in self._steps.get((before, after), ()))
