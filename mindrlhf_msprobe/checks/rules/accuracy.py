"""What a second computation in higher precision found wrong (`task: accuracy_check`)."""

from __future__ import annotations

from collections.abc import Iterator

from mindrlhf_msprobe.checks.accuracy import conclude
from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.views import Step
from mindrlhf_msprobe.checks.registry.rule import Need, rule
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Place, Severity
from mindrlhf_msprobe.storage.reading.opinions import read_opinions


@rule("accuracy.wrong", needs=(Need("opinions"),), severity=Severity.ERROR)
class Wrong:
    """Cells and operators that rounding does not explain, where nothing inside them is wrong."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._ranks: set[int] = set()

    def step(self, step: Step) -> Iterator[Found]:
        """Note which ranks there are."""
        self._ranks.update(step.ranks)
        yield from ()

    def end(self) -> Iterator[Found]:
        """Yield what is wrong, once for each tensor of a call; say what has no opinion."""
        path = self._check.run.path
        opinions = (one for rank in sorted(self._ranks) for one in read_opinions(path, rank))
        found = conclude(str(path), opinions)
        self._check.checked(found.calls - found.gaps)
        for name in found.without_opinion:
            self._check.not_checked(message("check_accuracy.no_opinion", name=name))
        for one in found.origins:
            call, first = one.first_call, one.first_tensor
            if call is None or first is None:
                continue
            place = Place(call.step, call.rank, one.phase, call.entry, first.record)
            said = message(
                "check_accuracy.wrong",
                call=one.call,
                cell=one.cell,
                tensor=one.tensor,
                precision=one.precision,
                error=first.error,
                explained=first.explained,
                reason=first.reason,
            )
            shown = {"index": [*first.at], "actual": first.actual, "exact": first.exact}
            same = one.phase, one.call, one.cell, one.tensor
            times = one.counts.get("wrong", 1)
            yield self._check.finding(said, place, shown=shown, times=times, same=same)
