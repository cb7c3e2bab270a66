"""What looks at finished steps, in the process that follows a run: checks, metrics, scalars."""

from __future__ import annotations

from typing import Any, Protocol

from mindrlhf_msprobe.checks.checking import Checking
from mindrlhf_msprobe.checks.reading.views import Step
from mindrlhf_msprobe.checks.registry.loading import all_rules
from mindrlhf_msprobe.checks.registry.rule_file import read_settings
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings import Cause
from mindrlhf_msprobe.findings.health import CheckFinding
from mindrlhf_msprobe.live.reports import Diverged, Found, Report, Task, Uncompared
from mindrlhf_msprobe.phases import ROLLOUT_CORR
from mindrlhf_msprobe.storage.reading.following import FollowedRun
from mindrlhf_msprobe.storage.reading.reader import open_run
from mindrlhf_msprobe.storage.writing.findings_file import FindingsFile
from mindrlhf_msprobe.trends.derived import ROLLOUT_LOG_PROB, KeyPlace, Settings, Unavailable
from mindrlhf_msprobe.trends.rollout_rows import KEYS_READ, rollout_gaps


class Observer(Protocol):
    """Looks at the steps of a run, each once, as they end.

    Attributes:
        name: what it is called where it fails.
    """

    name: str

    def step(self, number: int) -> Report | None:
        """Look at a step."""

    def end(self) -> Report | None:
        """Take note that there is no further step."""


#: What makes an observer of a task and the run.
Kind = type["Compared"] | type["Checks"] | type["Metrics"] | type["Scalars"]


def kinds_of(task: Task) -> list[Kind]:
    """Return what a task asks for: first what the training may wait for."""
    found: list[Kind] = []
    if task.compare_to is not None:
        found.append(Compared)
    if task.checks:
        found.append(Checks)
    found.append(Metrics)
    if task.tensorboard is not None:
        found.append(Scalars)
    return found


class Compared:
    """The steps beside those of another run, up to the first divergence."""

    name = "compare_to"

    def __init__(self, task: Task, run: FollowedRun) -> None:
        from mindrlhf_msprobe.comparison.following import StepByStep

        assert task.compare_to is not None
        self._steps = StepByStep(open_run(task.compare_to), run, task.rank)
        self._ended = self._said = False

    def step(self, number: int) -> Diverged | Uncompared | None:
        """Compare a step; nothing is compared behind the first divergence."""
        if self._ended:
            return None
        if not self._steps.has(number):
            self._ended = True
            return self._uncompared(number)
        found = self._steps.compare(number)
        if found is None:
            if self._said or not self._steps.had_nothing_in_common:
                return None
            self._said = True
            return Uncompared(number, self._steps.last_step, nothing=True)
        self._ended = True
        if self._steps.is_gone:  # what it has lost since says nothing of the training
            return self._uncompared(number)
        if self._steps.unread is not None and found.cause is Cause.UNREADABLE:
            why = self._steps.unread
            return Uncompared(number, self._steps.last_step, unread=why)
        said = message("live.cause", cause=found.cause.value, reasons=[*found.reasons])
        return Diverged(number, found.phase, found.record, found.cell, said)

    def _uncompared(self, number: int) -> Uncompared:
        steps = self._steps
        return Uncompared(number, steps.last_step, gone=steps.is_gone, running=steps.is_running)

    def end(self) -> None:
        """Nothing is left to do."""


class Checks:
    """The rules that can run live, over the steps of one rank; writes findings.rank<N>.jsonl."""

    name = "checks"

    def __init__(self, task: Task, run: FollowedRun) -> None:
        self._run, self._root, self._rank = run, task.root, task.rank
        rules, _ = all_rules()
        settings = None if task.rules is None else read_settings(task.rules, rules)
        self._checking = Checking(run, [rule for rule in rules if rule.live], settings)
        self._file: FindingsFile | None = None
        self._reported: set[Any] = set()

    def step(self, number: int) -> Found | None:
        """Give a step to the rules."""
        if self._file is None:
            self._file = FindingsFile(self._root, self._rank, number)
        return self._report(self._checking.feed(Step(self._run, number, (self._rank,))))

    def end(self) -> Found | None:
        """Take what rules find only when there is no further step."""
        return self._report(self._checking.finish().all_findings)

    def _report(self, findings: list[CheckFinding]) -> Found | None:
        new = [one for one in findings if _identity(one) not in self._reported]
        if not new or self._file is None:
            return None
        self._reported.update(map(_identity, new))
        first = {_identity(one) for one in self._checking.story()}
        found = [(one, _identity(one) not in first) for one in new]
        self._file.append(*(_line(one, follows, self._rank) for one, follows in found))
        return Found(tuple(found))


def _identity(finding: CheckFinding) -> Any:
    return finding.rule, finding.said.code, finding.place.phase, finding.place.name


def _line(finding: CheckFinding, follows: bool, rank: int) -> dict[str, Any]:
    content = finding.to_json()
    head = {"step": finding.place.step, "rank": rank, "rule": finding.rule}
    said = {"params": {}, **finding.said.as_json()}
    kept = ("place", "evidence", "causes_codes", "next_step", "stack")
    return {
        **head,
        "severity": finding.severity.value,
        **said,
        "follows": follows,
        **{name: content[name] for name in kept},
    }


class Metrics:
    """How far rollout and training are apart in each step, as key data of the run."""

    name = ROLLOUT_CORR

    def __init__(self, task: Task, run: FollowedRun) -> None:
        self._run, self._root, self._rank = run, task.root, task.rank
        self._settings: Settings | None = None

    def step(self, number: int) -> None:
        """Write the metrics of a step that has the log-probabilities of both.

        What a trainer saves under this key stays; a step whose key data are gone gets none.
        """
        step = Step(self._run, number, (self._rank,))
        keys = step.keys(self._rank)
        there = KEYS_READ.intersection(keys)
        if ROLLOUT_CORR in keys or not there.intersection(ROLLOUT_LOG_PROB):
            return
        if self._settings is None:
            self._settings = Settings.read(self._run.configurations())
        saves = {name: step.key_data(name, rank=self._rank) for name in there}
        try:
            gaps = rollout_gaps(KeyPlace(saves, self._settings))
        except Unavailable:  # `trend` says why
            return
        from mindrlhf_msprobe.report.rollout_key_data import write_metrics

        for rows, gap, _ in () if self._run.is_thinned_by_now(number) else gaps:
            write_metrics(self._root, (number, self._rank, rows.datum.micro_step), gap.metrics)

    def end(self) -> None:
        """Nothing is left to do."""


class Scalars:
    """What `trend --tensorboard` writes, as the steps end."""

    name = "tensorboard"

    def __init__(self, task: Task, run: FollowedRun) -> None:
        from mindrlhf_msprobe.report.trends.event_files import EventFiles
        from mindrlhf_msprobe.trends.reading import StepByStep

        assert task.tensorboard is not None
        self._series, self._rank = StepByStep(run), task.rank
        self._files = EventFiles(task.tensorboard)

    def step(self, number: int) -> None:
        """Write the points of a step."""
        self._write(self._series.read(number, self._rank))

    def end(self) -> None:
        """Write the last points."""
        self._write(self._series.end())
        self._files.close()

    def _write(self, series: list[Any]) -> None:
        from mindrlhf_msprobe.report.trends.files import write_events

        for one in series:
            write_events(self._files, "", one)
        self._files.flush()
