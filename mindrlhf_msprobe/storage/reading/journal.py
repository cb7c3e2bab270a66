"""The journal of a phase, read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from types import NoneType
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds


@dataclass
class JournalContent:
    """The readable lines of a journal, in the order in which the entries ended.

    Attributes:
        lines: one JSON object an entry; `frames` holds its call stack.
        damaged: how many lines cannot be read.
        torn: whether the last line was cut short, as in the journal of a killed process.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    damaged: int = 0
    torn: bool = False


def read_journal(root: Path, path: Path) -> JournalContent:
    """Read a journal of the run in `root`; damaged lines are counted and left out.

    Raises:
        OSError, ValueError: the file cannot be read, or leaves the run.
    """
    content = JournalContent()
    stacks: dict[int, list[str]] = {}
    entries: set[str] = set()
    for raw in _lines(root, path):
        if raw is None:  # where the next one begins is not looked for
            content.damaged += 1
            break
        if not raw.endswith(b"\n"):
            content.torn = True
            break
        if raw == b"\n":
            continue
        try:
            line = read_line(raw)
            if line["entry"] in entries:
                raise ValueError("an entry that was recorded already")
        except (ValueError, RecursionError):
            content.damaged += 1
            continue
        if "frames" in line:
            stacks[line["stack"]] = line["frames"]
        elif "stack" in line:
            line["frames"] = stacks.get(line["stack"], [])
        entries.add(line["entry"])
        content.lines.append(line)
    return content


def _lines(root: Path, path: Path) -> Iterator[bytes | None]:
    """Yield the lines of a journal, each with its end; None for one that is too long."""
    with layout.open_inside(root, path, bounds.JOURNAL) as file:
        while raw := file.readline(bounds.LINE):
            yield raw if len(raw) < bounds.LINE or raw.endswith(b"\n") else None


def read_line(raw: bytes) -> dict[str, Any]:
    """Read one line of a journal.

    Raises:
        ValueError, RecursionError: it is damaged.
    """
    line = json.loads(raw)
    _check(line)
    assert isinstance(line, dict)
    return line


#: What a journal line must and may hold beside the values themselves.
_FIELDS: dict[str, tuple[type, ...]] = {
    "entry": (str,),
    "seq": (int,),
    "end": (int, NoneType),
    "parent": (str, NoneType),
    "opening": (int, NoneType),
    "token": (int, NoneType),
    "stack": (int, NoneType),
    "frames": (list, NoneType),
}


def _check(line: Any) -> None:
    if not isinstance(line, dict):
        raise ValueError("a journal line that is no JSON object")
    for name, types in _FIELDS.items():
        if not isinstance(line.get(name), types):
            raise ValueError(f"a journal line whose {name} is {line.get(name)!r}")
        if int in types and line.get(name) is not None and not bounds.is_place(line[name]):
            raise ValueError(f"a journal line whose {name} is out of range")
    if len(line["entry"]) > bounds.NAME:
        raise ValueError(f"a journal line whose entry has {len(line['entry'])} characters")
    if "frames" in line and not all(isinstance(frame, str) for frame in line["frames"] or ()):
        raise ValueError("a journal line whose frames are no texts")
    if "frames" in line and not isinstance(line.get("stack"), int):
        raise ValueError("a journal line with a call stack that has no number")
