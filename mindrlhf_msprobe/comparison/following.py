"""A run compared step by step with another one while it is recorded.

A run that is compared while it trains mostly agrees, and then nobody wants to see its records: what
agrees is counted on columns.
"""

from __future__ import annotations

from contextlib import suppress

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.comparison.engine.executor import run
from mindrlhf_msprobe.comparison.pairing.view import View
from mindrlhf_msprobe.comparison.preflight.preflight import preflight
from mindrlhf_msprobe.comparison.steps.step_of_rank import Job, StepResult, compare_step
from mindrlhf_msprobe.comparison.verdict.first_difference import ONE_SIDED
from mindrlhf_msprobe.comparison.verdict.verdict import conclude
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings import Divergence
from mindrlhf_msprobe.storage.manifest.run_file import RUNNING
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.reading.reader import Run, open_run

_BEFORE = 2  # steps that a divergence is explained with: a run that is followed has no more


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
        at = StepPlace(step, self._rank)
        return bool(a.phases_at(at) or a.keys_at(at)) and a.completed(*at)

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
        result = self._result(step)
        self.unread = next(iter(self._job.sides[0].unread([(step, self._rank)])), None)
        compared = any(result.counted.identical.values()) or any(
            one is not None and one.status not in ONE_SIDED for one in result.findings
        )
        _, b = self._runs
        at = StepPlace(step, self._rank)
        holds = b.phases_at(at) or b.keys_at(at)
        self.had_nothing_in_common = bool(holds) and not compared
        if not result.diverged:
            self._agreed = [*self._agreed, step][-_BEFORE:]
            return None
        verdict = conclude(
            [*map(self._result, self._agreed), result], self._job, preflight(*self._runs)
        )
        return verdict.first_divergence

    def _result(self, step: int) -> StepResult:
        at = StepPlace(step, self._rank)
        result = compare_step(self._job, at, wholesale=True)
        if result.diverged or result.waiting:
            (result,) = run(self._job, [at], None)
        return result
