"""The first NaN or infinity of a run: in time, and over its ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from mindrlhf_msprobe.checks.check import Check
from mindrlhf_msprobe.checks.rule import NUMBERS, Found, rule
from mindrlhf_msprobe.checks.rules.birth import Scales, Telling, equal_rewards
from mindrlhf_msprobe.checks.rules.events import (
    OUTPUT,
    Event,
    Events,
    Exchange,
    Group,
    collective_of,
)
from mindrlhf_msprobe.checks.views import Step
from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Severity
from mindrlhf_msprobe.storage.columns.columns import EntryView
from mindrlhf_msprobe.storage.columns.leaf_json import NON_FINITE_MARKS
from mindrlhf_msprobe.storage.place import Place

_MOST_MORE = 8  # further births of one step that are reported
_MOST_MASKS = 10_000  # cells whose -inf is known to do no harm


@dataclass
class _Chain:
    """Steps in a row with something that is not finite.

    Attributes:
        found: the finding that began it.
        ranks: those that have it.
    """

    found: Found
    ranks: set[int]

    @property
    def place(self) -> Place:
        """Where it began."""
        return self.found.finding.place


@rule(
    "non_finite.first",
    needs=(NUMBERS,),
    severity=Severity.ERROR,
    thresholds={"retries": 8},
    marks=NON_FINITE_MARKS,
    live=True,
)
class FirstNonFinite:
    """What is not finite is reported where it was born; everything after it stands under it."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._ranks: dict[int, Events] = {}
        self._before: int | None = None
        self._masks: set[str] = set()
        self._chain: _Chain | None = None
        self._scales = Scales(check)
        #: A step with nothing but gradients that overflowed, until the next one tells more.
        self._open: tuple[Step, dict[int, Events], int | None] | None = None

    def entry(self, entry: EntryView) -> None:
        """Take an entry that may hold something of interest."""
        events = self._ranks.get(entry.rank)
        if events is None:
            events = self._ranks[entry.rank] = Events()
        events.add(entry)

    def step(self, step: Step) -> Iterator[Found]:
        """Yield what was born in a step, or in the one before it that was waiting."""
        ranks, self._ranks = self._ranks, {}
        before, self._before = self._before, step.number
        for rank in step.ranks:
            for key in step.keys(rank):
                for datum in step.key_data(key, rank=rank):
                    ranks.setdefault(rank, Events()).add_data(step.placed(datum))
        self._scales.step(step)
        hard = {rank: events for rank, events in ranks.items() if events.hard}
        yield from self._waiting(hard)
        if not hard:
            self._chain = None
            self._scales.clean()
            for entry, _ in (soft for events in ranks.values() for soft in events.soft):
                if len(self._masks) < _MOST_MASKS:  # its -inf did no harm
                    self._masks.add(_maker(entry))
            return
        backward = all(event.is_backward for events in hard.values() for event in events.hard)
        if backward and self._scales.is_retried(step):
            yield from self._scales.retried(step, hard)
        elif backward and not step.last:
            self._open = step, hard, before
        else:
            yield from self._births(step, hard, before)

    def _waiting(self, hard: dict[int, Events]) -> Iterator[Found]:
        """Yield what waited for this step to show whether it was skipped."""
        if self._open is None:
            return
        earlier, self._open = self._open, None
        spread = any(not event.is_backward for of in hard.values() for event in of.hard)
        if spread or not self._scales.was_skipped(earlier[1]):
            yield from self._births(*earlier)
        else:
            yield from self._scales.retried(*earlier[:2])

    def end(self) -> Iterator[Found]:
        """Yield what was still waiting for a step that never came."""
        if self._open is not None:
            earlier, self._open = self._open, None
            yield from self._births(*earlier)

    def _births(self, step: Step, hard: dict[int, Events], before: int | None) -> Iterator[Found]:
        """Yield the births of one step: the first over all ranks, then what is left of others."""
        firsts = {rank: self._first(events) for rank, events in hard.items()}
        telling = Telling(self._check, step, hard, before)
        chain = self._chain
        by_event: dict[Any, Group] = {}  # ranks whose first events are the same, together
        for rank, event in sorted(firsts.items()):
            by_event.setdefault(event.what, Group(event, [])).ranks.append(rank)
        groups = [*by_event.values()]
        # What began on its own ranks, and what came from others, with where from.
        origins: list[Group] = []
        carried: list[tuple[Group, Group]] = []
        if chain is None or any(group.event.kind == OUTPUT for group in groups):
            exchange = Exchange(self._check.run, step.number, before, partial(_is_own, step))
            origins, carried = exchange.independent(groups)
        births = [one for one in origins if one.event.kind == OUTPUT]
        if chain is not None and not births:
            # The same NaN, a step later: it came with the parameters, or the gradients.
            new = sorted({*firsts} - chain.ranks)
            if new:
                group = Group(firsts[new[0]], new)
                yield self._carried(group, chain.place, telling)
            chain.ranks |= {*firsts}
            again = replace(
                chain.found.finding,
                place=replace(chain.place, step=step.number),
                last_step=step.number,
                ranks=tuple(firsts),
            )
            yield replace(chain.found, finding=again)
            return
        for event, ranks in births if chain is not None else origins:
            found = telling.born(ranks[0], event, ranks, first=chain is None)
            if self._chain is None:
                self._chain = _Chain(found, set())
            follows = chain is not None and found.same != chain.found.same
            yield self._under(found, chain) if chain is not None and follows else found
        assert self._chain is not None
        self._chain.ranks |= {*firsts}
        for group, origin in carried:
            yield self._carried(group, origin.event.place, telling)
        yield from self._more(hard, firsts, telling)

    def _first(self, events: Events) -> Event:
        """Return the first event of a rank; a cell whose -inf became NaN is to blame itself."""
        in_time = events.in_time()
        first = in_time[0]
        for entry, records in events.soft if first.soft else ():
            is_before = entry.end <= first.time and entry.phase == first.phase
            # -inf is what a cell usually makes: it did before, or makes only 0 and -inf.
            of_zero = all(leaf.get("Max") in (0, 0.0) for io, _, leaf in records if io == "output")
            if is_before and not (of_zero or _maker(entry) in self._masks):
                return Event(OUTPUT, entry.end, entry, records)
        return first

    def _more(
        self, hard: dict[int, Events], firsts: dict[int, Event], telling: Telling
    ) -> Iterator[Found]:
        """Yield further entries of a rank that made it of finite values."""
        reported = {event.what for event in firsts.values()}
        count = 0
        for rank, events in sorted(hard.items()):
            for event in events.in_time():
                if event.kind == OUTPUT and event.what not in reported and count < _MOST_MORE:
                    reported.add(event.what)
                    count += 1
                    assert self._chain is not None
                    yield self._under(telling.born(rank, event, [rank], first=False), self._chain)

    def _carried(self, group: Group, origin: Place, telling: Telling) -> Found:
        event, ranks = group
        said = message(
            "check_non_finite.carried",
            ranks=ranks,
            origin=origin.rank,
            step=origin.step,
            kind=event.kind,
            collective=collective_of(event) or "",
        )
        return self._check.finding(
            said,
            event.place,
            evidence=telling.shown(event),
            stack=() if event.entry is None else event.entry.stack,
            same=("carried", event.what),
            ranks=ranks,
            causes=(),
            follows=("non_finite.first",),
            explained_by=lambda other: other.place == origin,
        )

    def _under(self, found: Found, chain: _Chain) -> Found:
        """Return a finding that follows from the one which began a chain."""
        at = chain.place
        return replace(
            found, follows=("non_finite.first",), explained_by=lambda other: other.place == at
        )


def _maker(entry: EntryView) -> str:
    """Return what makes a mask: a cell, or an operator inside one."""
    return f"{entry.around} {entry.cell}" if entry.is_operator else entry.cell


def _is_own(step: Step, event: Event) -> bool:
    """Return whether key data are known to have arisen on their rank."""
    is_advantage = event.datum is not None and event.datum.key == "advantages"
    return is_advantage and equal_rewards(step, event) is not None
