"""A run compared step by step with another one while it is recorded."""

from __future__ import annotations

from functools import partial

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
from mindrlhf_msprobe.findings import Divergence
from mindrlhf_msprobe.storage.reading.reader import Run

_HELD = 3  # steps, as of a run that is followed


class StepByStep:
    """Compares the steps of one rank, each once, in their order.

    Args:
        a: the run that is compared with.
        b: the run that is recorded.
        rank: whose steps.
    """

    def __init__(self, a: Run, b: Run, rank: int) -> None:
        self._job, self._rank = Job((View(a), View(b))), rank
        self._results: list[StepResult] = []
        self.last_step = max((step for step, of in a.places if of == rank), default=None)

    def has(self, step: int) -> bool:
        """Return whether the run that is compared with has a step, whole."""
        a = self._job.sides[0].run
        return (step, self._rank) in a.places and a.completed(step, self._rank)

    def compare(self, step: int) -> Divergence | None:
        """Compare a step; return where it first diverges, and why."""
        result = compare_step(self._job, step, self._rank, wholesale=True)
        if result.diverged or result.waiting:
            (result,) = run(self._job, [(step, self._rank)], None)
        self._results = [*self._results[1 - _HELD :], result]
        if not result.diverged:
            return None
        runs = self._job.sides[0].run, self._job.sides[1].run
        verdict = conclude(
            self._results,
            self._job.sides,
            self._job.plan,
            partial(compare_whole_step, self._job),
            preflight(*runs),
        )
        return verdict.first_divergence
