"""JSON contents with a few values changed, and what is said of two snapshots."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def changed(
    content: dict[str, Any], changes: Mapping[str | tuple[Any, ...], Any]
) -> dict[str, Any]:
    """Return a copy with other values at some paths, `networks.0.cells.1`; `...` takes one away.

    A path of names with dots in them is a tuple. A place behind the last one of a list adds to it.
    """
    whole = copy.deepcopy(content)
    for path, value in changes.items():
        inside: Any = whole
        if isinstance(path, str):
            path = tuple(int(key) if key.isdecimal() else key for key in path.split("."))
        *above, last = path
        for key in above:
            inside = inside[key]
        if value is ...:
            del inside[last]
        elif isinstance(inside, list) and last == len(inside):
            inside.append(value)
        else:
            inside[last] = copy.deepcopy(value)
    return whole


def rewrite(path: Path, changes: Mapping[str | tuple[Any, ...], Any]) -> None:
    """Change a few values in a file of JSON, as `changed` does."""
    path.write_text(json.dumps(changed(json.loads(path.read_text()), changes)))
