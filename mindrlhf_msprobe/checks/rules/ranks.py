"""Ranks that do not do the same: one that recorded less, other shapes, replicas that disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.views import EntryView, Step
from mindrlhf_msprobe.checks.registry.rule import LAYERS, ranks, rule
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.health import Evidence, Place, Severity


@rule("ranks.calls", needs=(LAYERS, ranks(2)), severity=Severity.WARNING, live=True)
class Calls:
    """The same phase runs the same cells equally often on every rank."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._calls: dict[str, dict[int, Counter[str]]] = {}

    def entry(self, entry: EntryView) -> None:
        """Count a call."""
        of_rank = self._calls.setdefault(entry.phase, {}).setdefault(entry.rank, Counter())
        of_rank[entry.name.rpartition(".")[0]] += 1

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the phases in which ranks differ."""
        calls, self._calls = self._calls, {}
        if not step.complete:
            return
        for phase, by_rank in calls.items():
            totals = {rank: sum(counts.values()) for rank, counts in by_rank.items()}
            usual, most = Counter(totals.values()).most_common(1)[0]
            if len(set(totals.values())) < 2 or most < 2:
                continue
            for rank, total in totals.items():
                if total != usual:
                    at = Place(step.number, rank, phase)
                    yield self._check.finding(
                        message("check_ranks.calls", count=total, usual=usual),
                        at,
                        evidence=[Evidence(at, {"entries": totals})],
                        same=("calls", phase, rank),
                    )
