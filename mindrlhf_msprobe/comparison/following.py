"""A run compared step by step with another one while it is recorded."""

from __future__ import annotations

from functools import partial

from mindrlhf_msprobe.comparison.engine.executor import run
from mindrlhf_msprobe.comparison.pairing.view import View
from mindrlhf_msprobe.comparison.preflight.preflight import preflight
from mindrlhf_msprobe.comparison.steps.same_bytes import wrote_the_same
from mindrlhf_msprobe.comparison.steps.step_of_rank import (
    Job,
    StepResult,
    compare_step,
    compare_whole_step,
)
from mindrlhf_msprobe.comparison.verdict.verdict import conclude
from mindrlhf_msprobe.findings import Divergence
from mindrlhf_msprobe.storage.reading.reader import Run

_BEFORE = 2  # steps that a divergence is explained with: a run that is followed has no more


class StepByStep:
    """Compares the steps of one rank, each once, in their order.

    Args:
        a: the run that is compared with.
        b: the run that is recorded.
        rank: whose steps.
    """

    def __init__(self, a: Run, b: Run, rank: int) -> None:
        self._job, self._runs, self._rank = Job((View(a), View(b))), (a, b), rank
        self._agreed: list[int] = []  # the last steps that do
        self.last_step = max((step for step, of in a.places if of == rank), default=None)

    def has(self, step: int) -> bool:
        """Return whether the run that is compared with has a step, whole."""
        a, _ = self._runs
        return (step, self._rank) in a.places and a.completed(step, self._rank)

    def compare(self, step: int) -> Divergence | None:
        """Compare a step; return where it first diverges, and why."""
        same = wrote_the_same(self._runs, step, self._rank)
        result = None if same else self._result(step)
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

    def _result(self, step: int) -> StepResult:
        result = compare_step(self._job, step, self._rank, wholesale=True)
        if result.diverged or result.waiting:
            (result,) = run(self._job, [(step, self._rank)], None)
        return result
