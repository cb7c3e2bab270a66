"""Findings in order of time: the same one once, and each under the one that it follows from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.findings.health import CheckFinding, Severity


@dataclass(frozen=True)
class Found:
    """A finding as a rule yields it, with what places it among the others.

    Attributes:
        finding: what is shown.
        same: findings of one rule with equal `same` are one; the first is kept, and counts them.
        follows: names of rules or areas (`non_finite.*`) from whose earlier findings it follows.
        explained_by: whether it follows from a finding of one of these rules; None: it follows from
            the first of them before it on the same rank, or one that concerns all ranks.
    """

    finding: CheckFinding
    same: Any
    follows: tuple[str, ...] = ()
    explained_by: Callable[[CheckFinding], bool] | None = field(default=None, repr=False)


class Findings:
    """Takes findings one by one and keeps each once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[Any, Found] = {}
        self.left_out = 0  # those beyond the most that are kept

    def add(self, found: Found) -> bool:
        """Take a finding; return whether it is a new one."""
        at = found.finding.rule, found.same
        earlier = self._kept.get(at)
        if earlier is None:
            if len(self._kept) >= self._most:
                self.left_out += 1
                return False
            self._kept[at] = found
            return True
        first, second = earlier.finding, found.finding
        if second.place.order < first.place.order:
            earlier, first, second = found, second, first
        merged = replace(
            first,
            times=first.times + second.times,
            last_step=max(first.last_step, second.last_step),
            ranks=tuple(sorted({*first.ranks, *second.ranks})),
        )
        self._kept[at] = replace(earlier, finding=merged)
        return False

    def all(self) -> list[Found]:
        """Return what was kept."""
        return [*self._kept.values()]


def nested(found: Iterable[Found]) -> tuple[CheckFinding, ...]:
    """Return findings in order of time, those that follow from an earlier one under it."""
    ordered = sorted(found, key=lambda one: one.finding.place.order)
    under: list[int | None] = [_reason(ordered, index) for index in range(len(ordered))]
    children: dict[int | None, list[int]] = {}
    for index, parent in enumerate(under):
        children.setdefault(parent, []).append(index)

    def with_children(index: int) -> CheckFinding:
        inside = tuple(with_children(child) for child in children.get(index, ()))
        finding = ordered[index].finding
        return replace(finding, followed_by=finding.followed_by + inside) if inside else finding

    return tuple(with_children(index) for index in children.get(None, ()))


def _reason(ordered: Sequence[Found], index: int) -> int | None:
    """Return which of the other findings explains one; the first that does.

    Without `explained_by` those before it alone: ranks count time each for itself.
    """
    own = ordered[index]
    if not own.follows:
        return None
    areas = tuple(pattern[:-1] for pattern in own.follows if pattern.endswith(".*"))
    for number in range(index if own.explained_by is None else len(ordered)):
        other = ordered[number].finding
        if own.explained_by is None and own.finding.severity.counts > other.severity.counts:
            continue  # a note is no reason for an alarm
        named = other.rule in own.follows or other.rule.startswith(areas)
        if number == index or not named:
            continue
        if _is_only_noted(other) and not _is_only_noted(own.finding):
            continue
        if _reaches(other, own.finding) if own.explained_by is None else own.explained_by(other):
            return number
    return None


def _is_only_noted(finding: CheckFinding) -> bool:
    """Return whether a finding is no reason for a fault; an overflow that is retried may be."""
    return finding.severity is Severity.NOTE and not finding.rule.startswith("non_finite.")


def _reaches(earlier: CheckFinding, later: CheckFinding) -> bool:
    """Return whether what happened at one place can show at another: on its rank, or a later step.

    Within a step ranks exchange gradients at its end alone; after it every rank has them.
    """
    ranks = earlier.place.rank, later.place.rank
    return None in ranks or ranks[0] == ranks[1] or earlier.place.step < later.place.step
