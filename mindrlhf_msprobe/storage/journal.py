"""The journal of a phase: its lines, and what msprobe's tools read made from them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.records import values_of


@dataclass
class JournalContent:
    """The readable lines of a journal, in the order in which the entries ended.

    Attributes:
        lines: one JSON object an entry; `frames` holds its call stack.
        damaged: how many lines could not be read; a journal of a killed process ends in at most
            one such line.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    damaged: int = 0


def read_journal(path: Path) -> JournalContent:
    """Read a journal; lines that are cut short or damaged are counted and left out."""
    content = JournalContent()
    stacks: dict[int, list[str]] = {}
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return content
    for raw in data.split(b"\n"):
        if not raw:
            continue
        try:
            line = json.loads(raw)
            _check(line)
        except (ValueError, RecursionError):
            content.damaged += 1
            continue
        if "frames" in line:
            stacks[line["stack"]] = line["frames"]
        elif "stack" in line:
            line["frames"] = stacks.get(line["stack"], [])
        content.lines.append(line)
    return content


def _check(line: Any) -> None:
    if not isinstance(line, dict) or not isinstance(line.get("entry"), str):
        raise ValueError("a journal line without its entry's name")
    if not isinstance(line.get("seq"), int):
        raise ValueError("a journal line without its place in time")


def msprobe_files(
    lines: Iterable[dict[str, Any]], task: str, data_dir: str | None
) -> dict[str, Any]:
    """Return the contents of dump.json, stack.json and construct.json by file name.

    As in msprobe, dump.json lists entries as they ended (children before their container) and
    construct.json as they began.
    """
    lines = list(lines)
    begun = sorted(lines, key=lambda line: line["seq"])
    stacks: dict[tuple[str, ...], list[str]] = {}
    for line in begun:
        if line.get("frames"):
            stacks.setdefault(tuple(line["frames"]), []).append(line["entry"])
    return {
        layout.DUMP_FILE: {
            "task": task,
            "level": "L0",
            "framework": "mindspore",
            "dump_data_dir": data_dir,
            "data": {line["entry"]: values_of(line) for line in lines},
        },
        layout.STACK_FILE: {
            str(number): [entries, list(frames)]
            for number, (frames, entries) in enumerate(stacks.items())
        },
        layout.CONSTRUCT_FILE: {line["entry"]: line.get("parent") for line in begun},
    }
