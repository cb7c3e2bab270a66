"""What a rule is, and the decorator that makes one of a function or a class.

A rule of one step alone is a generator function: it is given the step, with all of its ranks, and
its `Check`, and yields findings. A rule that looks at journals or entries, or waits for the end, is
a class with any of the methods `journal`, `entry`, `step` and `end`; one instance is made for each
run. Where it has `learns = True`, it is given the healthy runs before (`Check.learning`).
`Step.parameters` and `Step.gradients` hold those of all journals of the step. An entry's `values`
hold the JSON of its records; `records` makes an object of each, which takes forty times as long.

    @rule("rl.kl_negative", needs=(key("kl"),), severity=Severity.ERROR, thresholds={"atol": 1e-6})
    def kl_negative(step: Step, check: Check) -> Iterator[Found]: ...

    @rule("history.jump", needs=(steps(9),))
    class Jump:
        def __init__(self, check: Check) -> None: ...
        def journal(self, journal: Columns) -> None: ...      # records of many entries, as columns
        def entry(self, entry: Entry) -> None: ...        # in the order in which they ended
        def step(self, step: Step) -> Iterator[Found]: ...    # when all ranks' entries were given
        def end(self) -> Iterator[Found]: ...                 # after the last step
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.findings.health import CheckFinding, Severity

_Made = TypeVar("_Made", bound=Callable[..., Any])


@dataclass(frozen=True)
class Need:
    """Something a run must hold for a rule to say anything.

    Attributes:
        kind: numbers, layers, parameters, gradients, backward, fingerprints, elements, key, phase,
            ranks, steps, or healthy.
        names: of kind key and phase, those of which one is enough.
        count: of kind ranks and steps, how many there must be.
    """

    kind: str
    names: tuple[str, ...] = ()
    count: int = 1

    @property
    def said(self) -> Message:
        """Why a rule with this need did not run."""
        params = {"names": ", ".join(self.names), "count": self.count}
        return message("checks.lacks", kind=self.kind, **params)


#: Statistics of layer data, or any key data; layer data at all; entries with parameters; entries
#: with gradients of parameters; backward entries; fingerprints of layer data; runs that are known
#: to be healthy (`--healthy`).
NUMBERS = Need("numbers")
LAYERS = Need("layers")
PARAMETERS = Need("parameters")
GRADIENTS = Need("gradients")
BACKWARD = Need("backward")
FINGERPRINTS = Need("fingerprints")
HEALTHY = Need("healthy")


def key(*names: str) -> Need:
    """Need key data of one of these names."""
    return Need("key", names)


def phase(*names: str) -> Need:
    """Need layer data of one of these phases."""
    return Need("phase", names)


def ranks(count: int) -> Need:
    """Need at least so many ranks."""
    return Need("ranks", count=count)


def steps(count: int) -> Need:
    """Need at least so many steps."""
    return Need("steps", count=count)


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: `<area>.<name>`, by which rule files and findings call it.
        make: the function, or the class.
        needs: all of which a run must hold.
        severity: of its findings that say no other one.
        causes: codes of what its findings usually come from, the likeliest first.
        thresholds: name → default.
        follows: names of rules, or areas (`non_finite.*`), from whose earlier findings its
            findings follow: they stand under those.
        marks: bytes of which a journal's line must hold one for `entry` to be given its entry;
            none: it is given every entry. A line without the bytes costs nothing.
        live: whether it can run while training (`on_finding`), where a rank sees its own steps
            alone, as they end.
        names: tells of an entry's name whether `entry` is given the entry; it is called once for
            all journals that hold the same entries. None: it is given every entry.
    """

    name: str
    make: Callable[..., Any]
    needs: tuple[Need, ...] = ()
    severity: Severity = Severity.WARNING
    causes: tuple[str, ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=dict)
    follows: tuple[str, ...] = ()
    marks: tuple[bytes, ...] = ()
    live: bool = False
    names: Callable[[str], bool] | None = None

    @property
    def area(self) -> str:
        """The part of the name before the first dot."""
        return self.name.partition(".")[0]


def rule(
    name: str,
    *,
    needs: Collection[Need] = (),
    severity: Severity | str = Severity.WARNING,
    causes: Collection[str] = (),
    thresholds: Mapping[str, float] | None = None,
    follows: Collection[str] = (),
    marks: Collection[bytes] = (),
    live: bool = False,
    names: Callable[[str], bool] | None = None,
) -> Callable[[_Made], _Made]:
    """Make a rule of a function or a class; see `Rule` for the arguments.

    What is decorated stays what it is; the rule is its attribute `rule`.
    """
    given = tuple(needs), Severity(severity), tuple(causes), dict(thresholds or {})

    def decorate(make: _Made) -> _Made:
        made = Rule(name, make, *given, tuple(follows), tuple(marks), live, names)
        make.rule = made  # type: ignore[attr-defined]
        return make

    return decorate


def as_rule(found: Any, name: str) -> Rule:
    """Return the rule that an object is, or a rule of a bare function or class.

    Args:
        name: what a bare function's rule is called.

    Raises:
        UsageError: it is neither.
    """
    if isinstance(found, Rule):
        return found
    made = getattr(found, "rule", None)
    if isinstance(made, Rule):
        return made
    if callable(found):
        return Rule(name, found)
    raise UsageError.saying("checks.no_rule", name=name, found=type(found).__name__)


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
        place, here = other.place, own.finding.place
        # What happened on its rank, or in an earlier step, can show there: within a step ranks
        # exchange gradients at its end alone; after it every rank has them.
        reaches = None in (place.rank, here.rank) or place.rank == here.rank
        reaches = reaches or place.step < here.step
        if reaches if own.explained_by is None else own.explained_by(other):
            return number
    return None


def _is_only_noted(finding: CheckFinding) -> bool:
    """Return whether a finding is no reason for a fault; an overflow that is retried may be."""
    return finding.severity is Severity.NOTE and not finding.rule.startswith("non_finite.")


class Named:
    """Arrays with a place for each name, as rules keep them from step to step."""

    def __init__(self) -> None:
        self._places: dict[Hashable, int] = {}
        self._last: dict[Hashable, tuple[Any, np.ndarray]] = {}
        self._columns: dict[Hashable, np.ndarray] = {}

    @property
    def names(self) -> list[Any]:
        """The names in the order of their places."""
        return [*self._places]

    def places(self, names: Sequence[Hashable], whose: Hashable = None) -> np.ndarray:
        """Return the place of each name, a new one for those that were never seen.

        Args:
            whose: for the same names, one object, as last time of the same the answer is at hand.
        """
        last = self._last.get(whose)
        if last is None or last[0] is not names:
            known = self._places
            found = np.array([known.setdefault(name, len(known)) for name in names], np.intp)
            last = self._last[whose] = names, found
        return last[1]

    def column(self, name: Hashable, fill: Any) -> np.ndarray:
        """Return an array, a row a place, to be changed in place; new rows hold `fill`."""
        array = self._columns.get(name)
        count = len(self._places) - (0 if array is None else len(array))
        if array is None or count:
            kind = object if isinstance(fill, str) else None
            new = np.full((count, *np.shape(fill)), fill, kind)
            array = self._columns[name] = new if array is None else np.concatenate([array, new])
        return array


_NUMBER = re.compile(r"\d+")


@lru_cache(maxsize=1 << 16)
def pattern_of(name: str) -> str:
    """Return what names have in common that differ in numbers alone."""
    return _NUMBER.sub("#", name)
