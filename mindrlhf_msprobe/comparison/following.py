"""A run compared step by step with another one while it is recorded.

A run that is compared while it trains mostly agrees, and then nobody wants to see its records.
Where both runs have the same phases and keys, and all that their files say is the same but for
when, and from which line of code, it was recorded, the step agrees, and no line is parsed.
Everything else is for the comparison to judge.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from pathlib import Path

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.comparison.engine.executor import run
from mindrlhf_msprobe.comparison.pairing.view import View
from mindrlhf_msprobe.comparison.preflight.preflight import preflight
from mindrlhf_msprobe.comparison.steps.step_of_rank import (
    Job,
    StepResult,
    compare_step,
    compare_whole_step,
)
from mindrlhf_msprobe.comparison.verdict.verdict import conclude
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings import Divergence, Status
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.journal_line import split_lines
from mindrlhf_msprobe.storage.manifest.run_file import RUNNING
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.storage.reading.reader import Run, open_run

_ALONE = (Status.ONLY_IN_A, Status.ONLY_IN_B)
_BEFORE = 2  # steps that a divergence is explained with: a run that is followed has no more
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


class StepByStep:
    """Compares the steps of one rank, each once, in their order.

    Args:
        a: the run that is compared with.
        b: the run that is recorded.
        rank: whose steps.

    Attributes:
        had_nothing_in_common: whether both runs recorded something in the step that was compared
            last, and nothing of it could be compared.
        unread: what of the run that is compared with could not be read in that step; None if all
            could.
    """

    def __init__(self, a: Run, b: Run, rank: int) -> None:
        self._rank = rank
        self._compare_with(a, b)
        self._agreed: list[int] = []  # the last steps that do
        self.had_nothing_in_common = False
        self.unread: Message | None = None

    def _compare_with(self, a: Run, b: Run) -> None:
        self._job, self._runs = Job((View(a), View(b))), (a, b)

    def has(self, step: int) -> bool:
        """Return whether the run that is compared with has a step, whole.

        It may still be recorded itself: before a step is missed, it is read anew.
        """
        if not self._holds(step):
            a, b = self._runs
            with suppress(RunError):
                self._compare_with(open_run(a.path), b)
        return self._holds(step)

    def _holds(self, step: int) -> bool:
        a, _ = self._runs
        at = step, self._rank
        return bool(a.phases_at(*at) or a.keys_at(*at)) and a.completed(*at)

    @property
    def last_step(self) -> int | None:
        """The last step that the run that is compared with has whole; None if it has none."""
        a, _ = self._runs
        own = (at for at in a.places if at[1] == self._rank and a.completed(*at))
        return max((step for step, _ in own), default=None)

    @property
    def is_gone(self) -> bool:
        """Whether the run that is compared with was removed."""
        return not self._runs[0].path.is_dir()

    @property
    def is_running(self) -> bool:
        """Whether the run that is compared with is still recorded."""
        stop = self._runs[0].stop_of(self._rank)
        return stop is not None and stop.state == RUNNING

    def compare(self, step: int) -> Divergence | None:
        """Compare a step; return where it first diverges, and why."""
        same = wrote_the_same(self._runs, step, self._rank)
        result = None if same else self._result(step)
        unread = [] if result is None else self._job.sides[0].unread([(step, self._rank)])
        self.unread = next(iter(unread), None)
        self.had_nothing_in_common = result is not None and self._is_empty(result, step)
        if result is None or not result.diverged:
            self._agreed = [*self._agreed, step][-_BEFORE:]
            return None
        verdict = conclude(
            [*map(self._result, self._agreed), result],
            self._job.sides,
            self._job.plan,
            partial(compare_whole_step, self._job),
            preflight(*self._runs),
        )
        return verdict.first_divergence

    def _is_empty(self, result: StepResult, step: int) -> bool:
        _, b = self._runs
        at = step, self._rank
        compared = any(result.counted.identical.values()) or any(
            one is not None and one.status not in _ALONE for one in result.findings
        )
        return not compared and bool(b.phases_at(*at) or b.keys_at(*at))

    def _result(self, step: int) -> StepResult:
        result = compare_step(self._job, step, self._rank, wholesale=True)
        if result.diverged or result.waiting:
            (result,) = run(self._job, [(step, self._rank)], None)
        return result


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
    return all(_same_journal(runs, LayerPlace(phase, step, rank)) for phase in phases) and all(
        _same_saves(runs, key, step, rank) for key in keys
    )


def _same_journal(runs: tuple[Run, Run], at: LayerPlace) -> bool:
    a, b = (run.journal(at) for run in runs)
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
    lines = split_lines(journal)
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
