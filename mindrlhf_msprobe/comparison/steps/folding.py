"""Which findings a comparison keeps: all of few records; of many, those that do not agree."""

from __future__ import annotations

from mindrlhf_msprobe.comparison.steps.step_of_rank import StepResult

#: Records, of which more are not listed one by one where they agree.
FOLD_ABOVE = 50_000


class Folding:
    """Decides what is let go of while the steps of a comparison come in.

    Attributes:
        many: whether there are more records than are held as objects.

    Args:
        above: how many records are listed at most, and held as objects; None: all.
        steps: how many there will be.
        all_rows: list more of them, too.
    """

    def __init__(self, above: int | None, steps: int, *, all_rows: bool = False) -> None:
        self._above = above
        self._all_rows = all_rows
        self._expected = steps
        self._finished: list[StepResult] = []
        self._records = self._come = 0
        self._first: StepResult | None = None
        self.many = False

    @property
    def is_likely(self) -> bool:
        """Whether there seem to be too many records; what agrees may be counted wholesale then."""
        if self._above is None or self._all_rows or not self._come:
            return False
        return self.many or self._records * self._expected > self._above * self._come

    def came(self, result: StepResult) -> None:
        """Take note of a step, of which some pairs may still be compared."""
        self._records += result.records
        self._come += 1

    def finished(self, result: StepResult) -> None:
        """Take in a step that is finished, and let go of what agrees if there is too much."""
        if self._above is None:
            return
        self._finished.append(result)
        self.many = self.many or self._records > self._above
        if self.many:
            for each in self._finished:
                self._let_go(each)
            self._finished.clear()

    def _let_go(self, result: StepResult) -> None:
        """Fold a step, but the one of the first divergence so far: it has to be explained."""
        if self._all_rows:
            result.pack()
            return
        result.folded = True
        order, first = result.order, self._first
        later = order is None or (first is not None and (first.order or ()) <= order)
        self._first, other = (first, result) if later else (result, first)
        if other is not None:
            other.fold()
            other.pack()
