"""Whether two runs wrote the same in one step, told from the bytes of their files.

A run that is compared while it trains mostly agrees, and then nobody wants to see its records.
Where both runs have the same phases and keys, and all that their files say is the same but for
when, and from which line of code, it was recorded, the step agrees, and no line is parsed.
Everything else is for the comparison to judge.
"""

from __future__ import annotations

import re
from pathlib import Path

from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.reading.reader import Run

_TEXT = rb'"(?:[^"\\]|\\.)*"'
#: The head of a line of a journal: its entry, when that began, and when it ended, if it did.
_HEAD = re.compile(rb'\{"entry": (%s), "seq": (\d+), "end": (?:\d+|(null)), ' % _TEXT)
#: From which line of code it was called: of the values that are the same it says nothing.
_CALLED = re.compile(
    rb', "stack": \d+(?:, "frames": \[(?:%s(?:, )?)*\])?'
    rb'(?=, "(?:input|input_args|input_kwargs|output|parameters|parameters_grad)": )' % _TEXT
)
#: The head of the JSON of a save: when it was made.
_SAVED = re.compile(rb'\{\s*"seq": \d+,\s*')
# Inside a text a quotation mark has a backslash before it, so these are names of members.
_TENSOR, _FINGERPRINT = b'"shape": [', b'"fingerprint": "'
_NOT_KNOWN = (b'"error": ', b'"opaque": ')


def wrote_the_same(runs: tuple[Run, Run], step: int, rank: int) -> bool:
    """Return whether two runs recorded the same values in one step, in one order.

    False says nothing: the step has to be compared. So it does where a value has no fingerprint,
    could not be recorded, or a file cannot be read.
    """
    a, b = runs
    phases, keys = a.phases_at(step, rank), a.keys_at(step, rank)
    if not all(run.dialect.timed and run.run_files for run in runs):
        return False
    if (phases, keys) != (b.phases_at(step, rank), b.keys_at(step, rank)):
        return False
    return all(_same_journal(runs, phase, step, rank) for phase in phases) and all(
        _same_saves(runs, key, step, rank) for key in keys
    )


def _same_journal(runs: tuple[Run, Run], phase: str, step: int, rank: int) -> bool:
    a, b = (run.journal(phase, step, rank) for run in runs)
    if a is None or b is None or len(a.splitlines()) != len(b.splitlines()):
        return False
    if not _is_known(a):
        return False
    if a == b:
        return True
    lines = _in_time(a)
    return lines is not None and lines == _in_time(b)


def _in_time(journal: bytes) -> list[tuple[bytes | None, ...]] | None:
    """Return the lines in the order in which their entries began, without when and whence.

    None where a line does not begin as ours do, or two began at once.
    """
    found: dict[int, tuple[bytes | None, ...]] = {}
    lines = journal.split(b"\n")[:-1]
    for line in lines:
        head = _HEAD.match(line)
        if head is None:
            return None
        found[int(head[2])] = (head[1], head[3], _CALLED.sub(b"", line[head.end() :], 1))
    return [found[at] for at in sorted(found)] if len(found) == len(lines) else None


def _same_saves(runs: tuple[Run, Run], key: str, step: int, rank: int) -> bool:
    found = [_saves(run, key, step, rank) for run in runs]
    return found[0] is not None and found[0] == found[1]


def _saves(run: Run, key: str, step: int, rank: int) -> dict[str, bytes] | None:
    """Return what is described of each save of a key; None where one cannot be taken as it is."""
    found: dict[str, bytes] = {}
    for directory in run.directories(step, rank, key=key):
        content = _description(run.path, directory, key)
        head = None if content is None else _SAVED.match(content)
        if content is None or head is None or not _is_known(content):
            return None
        found[directory.name] = content[head.end() :]
    return found


def _description(root: Path, directory: Path, key: str) -> bytes | None:
    if not layout.inside(root, directory):
        return None
    try:
        return layout.read_inside(root, directory / layout.file_name(key, ".json"), bounds.DATA)
    except (OSError, ValueError):
        return None


def _is_known(content: bytes) -> bool:
    """Return whether each tensor has a fingerprint, and no value is missing."""
    if any(name in content for name in _NOT_KNOWN):
        return False
    return content.count(_TENSOR) == content.count(_FINGERPRINT)
