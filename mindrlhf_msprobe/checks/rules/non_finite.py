"""The first NaN or infinity of a run, in time and over its ranks, and what is said of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mindrlhf_msprobe.checks.check import Check
from mindrlhf_msprobe.checks.next_config import AT_OPTIMIZER
from mindrlhf_msprobe.checks.rule import NUMBERS, Found, rule
from mindrlhf_msprobe.checks.rules.events import (
    DATA,
    GRADIENT,
    INPUT,
    OF_ITSELF,
    OUTPUT,
    PARAMETER,
    Event,
    Events,
    Exchange,
    Group,
    collective_of,
)
from mindrlhf_msprobe.checks.views import Step, numbers_in, place_of, value_of
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.config import phases_of
from mindrlhf_msprobe.findings.health import Evidence, Severity
from mindrlhf_msprobe.phases import OVERFLOW, UPDATE_PHASES, key_data_home, standard_key
from mindrlhf_msprobe.storage.code_lines import users_line
from mindrlhf_msprobe.storage.columns.leaf_json import (
    LARGEST,
    NON_FINITE_MARKS,
    LeafJson,
    non_finite,
    numbers_of,
    statistic,
)
from mindrlhf_msprobe.storage.columns.reading import columns_of
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.place import Place
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, EntryValue, is_optimizer_state

_MOST_MORE = 8  # further origins of one step that are reported
_MOST_MASKS = 10_000  # cells whose -inf is known to do no harm
_MOST_RECORDS = 4  # of one kind that are shown
_SHARE = 0.5  # of the limit, from which on a value is close to it
_MASK = 1 - 2**-7  # of the limit, from which on it is what masks are filled with


def near_limit(run: Run, event: Event) -> list[tuple[Entry, EntryValue]]:
    """Return the last values of an event's phase before it that come close to a limit.

    Its journal is read once more for it: what is close to a limit matters where it overflows
    alone, and that is rare.
    """
    found: list[tuple[Entry, EntryValue]] = []
    own = event.entry
    if own is not None:
        for entry in columns_of(run, own.at).entries():
            if entry.time <= event.time or entry.name == own.name:
                found += [(entry, value) for value in entry.values if is_near(value[2])]
    return found[-_MOST_RECORDS:]


def is_near(leaf: LeafJson) -> bool:
    """Return whether a finite tensor comes close to its dtype's limit, and not up to it.

    What is filled with the limit itself is a mask.
    """
    limit = LARGEST.get(str(leaf.get("dtype")))
    if limit is None or non_finite(leaf) is not None:
        return False
    values = (statistic(leaf, "Max"), statistic(leaf, "Min"))
    return any(v is not None and limit * _SHARE < abs(v) < limit * _MASK for v in values)


class Scales:
    """Follows the loss scale from step to step.

    Attributes:
        known: whether the training scales its loss, as far as key data tell.
        row: steps in a row that were retried.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self.known = False
        self._scale: float | None = None
        self._fell = False
        self.row = 0

    def step(self, step: Step) -> None:
        """Read what a step says of its loss scale."""
        scales = [number for datum in step.key_data("loss_scale") for number in _numbers(datum)]
        self._fell = False
        if scales:
            self.known = True
            earlier = self._scale if self._scale is not None else scales[0]
            self._fell = min(scales) < earlier
            self._scale = scales[-1]

    def retried(self, step: Step, hard: Mapping[int, Events]) -> Iterator[Found]:
        """Yield that a step overflowed and is retried: a note, until it does not end."""
        self.row += 1
        most = self._check.threshold("retries")
        grave = self.row > most
        firsts = {rank: events.in_time()[0] for rank, events in hard.items()}
        rank, event = min(
            firsts.items(), key=lambda one: (one[1].kind not in OF_ITSELF, one[1].time, one[0])
        )
        name = "stuck" if grave else "retried"
        evidence = [Evidence(event.place, numbers_of(event.values[0][2]))]
        for key in (OVERFLOW, "loss_scale"):
            for datum in step.key_data(key, rank=rank)[:1]:
                evidence.append(Evidence(place_of(datum), {"value": _numbers(datum)}))
        yield self._check.finding(
            message(f"check_non_finite.{name}", steps=self.row),
            event.place,
            severity=Severity.WARNING if grave else Severity.NOTE,
            evidence=evidence,
            same=name,
            ranks=sorted(hard),
            causes=("check_non_finite.cause_scale_floor",) if grave else (),
        )

    def was_skipped(self, hard: Mapping[int, Events]) -> bool:
        """Return whether a step whose gradients were not finite was retried, by the step after it.

        The loss scale fell; or where it is not saved, float16 overflowed, and what comes after it
        is finite.
        """
        if self._fell or self.known:
            return self._fell
        # The first that is not finite is an infinity in float16, or came of one.
        of_float16 = (events.in_time()[0] for events in hard.values() if events.is_float16)
        return any(one.counts[1] or near_limit(self._check.run, one) for one in of_float16)


def _numbers(datum: KeyDatum) -> list[float]:
    array = numbers_in(datum)
    return [] if array is None else array.reshape(-1).tolist()


class Telling:
    """Makes the findings of one step.

    Args:
        hard: rank → what is not finite in the step.
        before: the step before.
    """

    def __init__(
        self, check: Check, step: Step, hard: Mapping[int, Events], before: int | None
    ) -> None:
        self._check, self._step, self._hard, self._before = check, step, hard, before
        self._near_of: dict[int, list[tuple[Entry, EntryValue]]] = {}

    def origin(self, rank: int, event: Event, ranks: Sequence[int], *, first: bool = True) -> Found:
        """Return the finding of the first event of a rank.

        Args:
            first: whether nothing before it was not finite.
        """
        said, causes = self._said(rank, event)
        if len(ranks) > 1 and collective_of(event) is not None:
            causes = ("collective", *causes)
        if not first:
            said = message("check_non_finite.also", what=said)
        entry = event.entry
        cell = None if entry is None else entry.cell
        if entry is not None and is_operator(entry.name):
            cell = entry.around or None
        if event.kind == PARAMETER or (cell is not None and is_optimizer_state(cell)):
            following = self._around_the_update(event)
        elif any("data_name" in leaf for *_, leaf in event.values):
            following = None  # its elements are there
        elif event.kind == DATA:
            unseen = self._not_recorded(event)
            following = self._check.next_recording(
                event.place, phases=() if unseen is None else (unseen,)
            )
        else:
            config = self._check.run.config(event.place.rank or 0)
            level = None  # the setting without which a run does not record operators
            if config is not None and entry is not None and is_operator(entry.name):
                level = {"level": config.level}
            how: dict[str, Any] = {"cell": cell, "elements": True, "also": level}
            following = self._check.next_recording(event.place, **how)
        if following is not None and len(ranks) > 1:
            following.pop("ranks", None)
        return self._check.finding(
            said,
            event.place,
            evidence=self.shown(event, rank),
            causes=[f"check_non_finite.cause_{name}" for name in causes],
            next_step=following,
            stack=() if entry is None else entry.stack,
            same=("arose", *event.what),
            ranks=ranks,
        )

    def _around_the_update(self, event: Event) -> dict[str, Any] | None:
        """Return how to record the update that may have made a parameter not finite.

        What enters the optimizer and what it keeps; where that is there, all elements.
        """
        run, place = self._check.run, event.place
        table = phases_of(run.config(place.rank or 0))
        role = table[place.phase].role if place.phase in table else None
        updates = [name for name in UPDATE_PHASES if name in run.phases]
        own = [name for name in updates if table[name].role == role] or updates
        of_state, gap = event.kind != PARAMETER, self._gap(place.step)
        # The first step in which a parameter of the step may have become what it is.
        first = max(0, place.step - 1) if gap is None else gap + 1
        where: dict[str, Any] = {
            "phases": tuple(dict.fromkeys((*own, place.phase or ""))),
            "first": place.step if of_state else first,
            "cell": None if event.entry is None else event.entry.cell,
        }
        closer = self._check.next_recording(place, also=AT_OPTIMIZER, **where)
        if closer is None:
            also = {"optimizer_state": True}
            closer = self._check.next_recording(place, elements=True, also=also, **where)
        return closer

    def shown(self, event: Event, rank: int | None = None) -> Iterator[Evidence]:
        """Yield what shows an event: it, what its entry was given, what came before and after."""
        for value in event.values[:_MOST_RECORDS]:
            yield Evidence(event.place_of(value), numbers_of(value[2]))
        if rank is None:
            return
        events = self._hard[rank]
        if event.kind == OUTPUT and event.entry is not None:
            given = [value for value in event.entry.values if value[0] != OUTPUT]
            note = message("check_non_finite.given")
            for value in given[:_MOST_RECORDS]:
                yield Evidence(event.place_of(value), numbers_of(value[2]), note)
        for entry, (io, path, leaf) in self._near(event):
            note = message("check_non_finite.near", dtype=str(leaf.get("dtype")))
            yield Evidence(entry.place(io, path), numbers_of(leaf), note)
        reached = {name: count for name, count in events.reached.items() if count}
        if sum(reached.values()) > len(event.values):
            yield Evidence(event.place, {"records": reached}, message("check_non_finite.reached"))

    def _near(self, event: Event) -> list[tuple[Entry, EntryValue]]:
        if id(event) not in self._near_of:
            self._near_of[id(event)] = near_limit(self._check.run, event)
        return self._near_of[id(event)]

    def _said(self, rank: int, event: Event) -> tuple[Message, Sequence[str]]:
        """Return what is said of an event, and the names of its likely causes."""
        nan, inf = event.counts
        counts = {"nan": nan, "inf": inf, "size": _size(event.values[0][2])}
        entry = event.entry
        if entry is None:
            return self._of_data(event, counts)
        if is_optimizer_state(entry.cell):
            others = self._ranks_not_seen()
            clean = not others and any(_clean_gradients(self._check.run, entry.step, rank))
            said = message("check_non_finite.optimizer_state", gradients_finite=clean, **counts)
            first = "reduction" if others else "gradient_not_recorded"
            return said, (*[first] * (not clean), "optimizer", "learning_rate", "loading")
        if event.kind == OUTPUT:
            backward = entry.direction == "backward"
            said = message("check_non_finite.born", backward=backward, **counts)
            if is_operator(entry.name):
                line = users_line(entry.stack)
                known = {"operator": entry.cell, "cell": entry.around, **counts}
                known["line"] = "" if line is None else line.place
                said = message("check_non_finite.born_of_operator", backward=backward, **known)
            return said, tuple(self._causes(event, backward, nan))
        if event.kind == GRADIENT:
            causes = ("overflow_backward", "reduction", "unscaling")
            return message("check_non_finite.gradient", **counts), causes
        if event.kind == PARAMETER:
            return self._of_parameter(rank, event, counts)
        assert event.kind == INPUT
        parent = entry.parent
        if parent is not None and not self._hard[rank].was_given(entry.phase, parent):
            code = "in_container_operator" if is_operator(entry.name) else "in_container"
            said = message(f"check_non_finite.{code}", container=parent, **counts)
            return said, ("own_code", "zero_division", "kernel")
        code = "came_in_operator" if is_operator(entry.name) else "came_in"
        said = message(f"check_non_finite.{code}", phase=entry.phase, **counts)
        return said, ("trainer_code", "not_recorded")

    def _causes(self, event: Event, backward: bool, nan: int) -> Iterator[str]:
        """Yield the likely causes of an output that is not finite, the likeliest first."""
        near = bool(self._near(event))
        dtypes = {leaf.get("dtype") for *_, leaf in event.values}
        if near or "Float16" in dtypes or not nan:
            yield "overflow_backward" if backward else "overflow"
        if event.soft:
            yield "masked_row"
        yield "singular_gradient" if backward else "zero_division"
        yield "kernel"

    def _of_parameter(
        self, rank: int, event: Event, counts: Mapping[str, int]
    ) -> tuple[Message, Sequence[str]]:
        entry = event.entry
        assert entry is not None
        gap = self._gap(entry.step)
        clean = any(
            _same_cell(cell, entry.cell) and (step < entry.step or time < event.time)
            for step in (entry.step, self._before if gap is None else None)
            if step is not None
            for cell, time in _clean_gradients(self._check.run, step, rank)
        )
        if entry.step == min(self._check.run.steps) and not clean:
            said = message("check_non_finite.parameter_at_first", **counts)
            return said, ("loading", "initialisation")
        if gap is not None and not clean:
            said = message("check_non_finite.parameter_after_gap", before=gap, **counts)
            return said, ("gradient_not_recorded", "optimizer")
        if clean and (others := self._ranks_not_seen()):
            said = message("check_non_finite.parameter_of_ranks", others=others, **counts)
            return said, ("reduction", "optimizer", "learning_rate")
        said = message("check_non_finite.parameter", gradients_finite=clean, **counts)
        if clean:
            return said, ("optimizer", "learning_rate", "loading")
        return said, ("gradient_not_recorded", "optimizer", "loading")

    def _gap(self, step: int) -> int | None:
        """Return the step before, where nothing is there of those between it and this one."""
        return self._before if self._before is not None and step - self._before > 1 else None

    def _ranks_not_seen(self) -> int:
        """Return how many ranks of the job there are beside those that are looked at."""
        sizes = [file.world.size or 1 for file in self._check.run.run_files]
        return max(sizes, default=1) - len(self._step.ranks)

    def _not_recorded(self, event: Event) -> str | None:
        """Return the phase that key data come of, where none of its cells was recorded."""
        assert event.datum is not None
        home = key_data_home(event.datum.key)
        if home is None or home.phase is None or home.before_phase:
            return None
        return None if home.phase in self._check.run.phases else home.phase

    def _of_data(self, event: Event, counts: Mapping[str, int]) -> tuple[Message, Sequence[str]]:
        assert event.datum is not None
        key = event.datum.key
        said = message("check_non_finite.data", key=key, **counts)
        if key == "advantages" and (equal := equal_rewards(self._step, event)) is not None:
            said = message("check_non_finite.zero_deviation", rewards=equal, **counts)
            return said, ("zero_deviation", "trainer_code")
        if "log_prob" in standard_key(key):
            unseen = () if self._not_recorded(event) is None else ("network_not_recorded",)
            several = ("probability_zero", "masked_row", "trainer_code")
            # A network that gives nothing but NaN is no matter of single tokens.
            all_nan = counts["nan"] == sum(_size(leaf) for *_, leaf in event.values)
            return said, ((*unseen, *several) if all_nan else (*several, *unseen))
        if key in ("ratio", "kl", "kl_loss"):
            return said, ("ratio_overflow", "probability_zero", "trainer_code")
        if key == "advantages":
            return said, ("zero_deviation", "trainer_code")
        return said, ("trainer_code", "not_recorded")


def equal_rewards(step: Step, event: Event) -> float | None:
    """Return the reward that all samples have whose advantages are not finite, if it is one."""
    datum = event.datum
    assert datum is not None
    saved = step.key_data("rewards", "reward", rank=datum.rank)
    matching = [one for one in saved if one.micro_step == datum.micro_step]
    if not matching:
        return None
    advantages, rewards = value_of(datum), value_of(matching[0])
    if not all(isinstance(one, np.ndarray) and one.ndim for one in (advantages, rewards)):
        return None
    if rewards.ndim > 1 or advantages.shape[0] != rewards.shape[0]:
        return None
    rows = ~np.isfinite(advantages.astype(np.float64).reshape(len(rewards), -1)).all(axis=1)
    values = np.unique(rewards[rows])
    return float(values[0]) if len(values) == 1 and np.isfinite(values[0]) else None


def _clean_gradients(run: Run, step: int, rank: int) -> Iterator[tuple[str, int]]:
    """Yield the cells of which gradients of parameters are all finite, and when they were recorded.

    The journals are read once more for it, where a parameter is not finite alone.
    """
    for at in run.layer_places(step, rank):
        journal = columns_of(run, at)
        for number in sorted({*journal.records(PARAMETERS_GRAD).rows.lines}):
            entry = journal.entry(number)
            if all(non_finite(leaf) is None for *_, leaf in entry.values):
                yield entry.cell, entry.seq


def _same_cell(gradients_of: str, cell: str) -> bool:
    """Return whether gradients of a network's parameters include those of a cell in it."""
    return (
        gradients_of in ("root", cell)
        or gradients_of.endswith(f".{cell}")
        or cell.endswith(f".{gradients_of}")
    )


def _size(leaf: Mapping[str, Any]) -> int:
    return math.prod(leaf.get("shape") or ())


@rule(
    "non_finite.first",
    needs=(NUMBERS,),
    severity=Severity.ERROR,
    thresholds={"retries": 8},
    marks=NON_FINITE_MARKS,
    live=True,
)
class FirstNonFinite:
    """What is not finite is reported where it arose; everything after it stands under it."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._ranks: dict[int, Events] = {}
        self._before: int | None = None
        self._masks: set[str] = set()
        #: The finding that began steps in a row with something that is not finite, and its ranks.
        self._chain: Found | None = None
        self._chain_ranks: set[int] = set()
        self._scales = Scales(check)
        #: A step with nothing but gradients that overflowed, until the next one tells more.
        self._open: tuple[Step, dict[int, Events], int | None] | None = None

    def entry(self, entry: Entry) -> None:
        """Take an entry that may hold something of interest."""
        self._ranks.setdefault(entry.rank, Events()).add(entry)

    def step(self, step: Step) -> Iterator[Found]:
        """Yield what arose in a step, or in the one before it that was waiting."""
        ranks, self._ranks = self._ranks, {}
        before, self._before = self._before, step.number
        for rank in step.ranks:
            for key in step.keys(rank):
                for datum in step.key_data(key, rank=rank):
                    ranks.setdefault(rank, Events()).add_data(step.placed(datum))
        self._scales.step(step)
        hard = {rank: events for rank, events in ranks.items() if events.hard}
        if self._open is not None:  # whether the step before was skipped shows now
            earlier, self._open = self._open, None
            spread = any(not event.is_backward for of in hard.values() for event in of.hard)
            if spread or not self._scales.was_skipped(earlier[1]):
                yield from self._origins(*earlier)
            else:
                yield from self._scales.retried(*earlier[:2])
        if not hard:
            self._chain = None
            self._scales.row = 0
            for entry, _ in (soft for events in ranks.values() for soft in events.soft):
                if len(self._masks) < _MOST_MASKS:  # its -inf did no harm
                    self._masks.add(_maker(entry))
            return
        backward = all(event.is_backward for events in hard.values() for event in events.hard)
        overflows = [number for datum in step.key_data(OVERFLOW) for number in _numbers(datum)]
        if backward and any(overflows):  # the step was not applied
            yield from self._scales.retried(step, hard)
        elif backward and not step.last:
            self._open = step, hard, before
        else:
            yield from self._origins(step, hard, before)

    def end(self) -> Iterator[Found]:
        """Yield what was still waiting for a step that never came."""
        if self._open is not None:
            earlier, self._open = self._open, None
            yield from self._origins(*earlier)

    def _origins(self, step: Step, hard: dict[int, Events], before: int | None) -> Iterator[Found]:
        """Yield where it arose in a step: the first over all ranks, then what others have left."""

        def is_own(event: Event) -> bool:
            """Return whether key data are known to have arisen on their rank."""
            is_advantage = event.datum is not None and event.datum.key == "advantages"
            return is_advantage and equal_rewards(step, event) is not None

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
            exchange = Exchange(self._check.run, step.number, before, is_own)
            origins, carried = exchange.independent(groups)
        outputs = [one for one in origins if one.event.kind == OUTPUT]
        if chain is not None and not outputs:
            # The same NaN, a step later: it came with the parameters, or the gradients.
            place = chain.finding.place
            new = sorted({*firsts} - self._chain_ranks)
            if new:
                group = Group(firsts[new[0]], new)
                yield self._carried(group, place, telling)
            self._chain_ranks |= {*firsts}
            now, ranks = replace(place, step=step.number), tuple(firsts)
            again = replace(chain.finding, place=now, last_step=step.number, ranks=ranks)
            yield replace(chain, finding=again)
            return
        for event, of in outputs if chain is not None else origins:
            found = telling.origin(of[0], event, of, first=chain is None)
            if self._chain is None:
                self._chain, self._chain_ranks = found, set()
            follows = chain is not None and found.same != chain.same
            yield self._under(found, chain) if chain is not None and follows else found
        assert self._chain is not None
        self._chain_ranks |= {*firsts}
        for group, origin in carried:
            yield self._carried(group, origin.event.place, telling)
        yield from self._more(hard, firsts, telling)

    def _first(self, events: Events) -> Event:
        """Return the first event of a rank; a cell whose -inf became NaN is to blame itself."""
        in_time = events.in_time()
        first = in_time[0]
        for entry, values in events.soft if first.soft else ():
            is_before = entry.time <= first.time and entry.phase == first.phase
            # -inf is what a cell usually makes: it did before, or makes only 0 and -inf.
            of_zero = all(leaf.get("Max") in (0, 0.0) for io, _, leaf in values if io == "output")
            if is_before and not (of_zero or _maker(entry) in self._masks):
                return Event(OUTPUT, entry.time, entry, values)
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
                    found = telling.origin(rank, event, [rank], first=False)
                    yield self._under(found, self._chain)

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

    def _under(self, found: Found, chain: Found) -> Found:
        """Return a finding that follows from the one which began a chain."""
        at = chain.finding.place
        return replace(
            found, follows=("non_finite.first",), explained_by=lambda other: other.place == at
        )


def _maker(entry: Entry) -> str:
    """Return what makes a mask: a cell, or an operator inside one."""
    return f"{entry.around} {entry.cell}" if is_operator(entry.name) else entry.cell
