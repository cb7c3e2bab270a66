"""What is said of one birth: its kind, the evidence, likely causes, and what to record next."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.values import numbers_of
from mindrlhf_msprobe.checks.reading.views import EntryView, RecordView, Step, place_of, value_of
from mindrlhf_msprobe.checks.rules.non_finite.events import (
    DATA,
    GRADIENT,
    INPUT,
    OUTPUT,
    PARAMETER,
    Event,
    Events,
)
from mindrlhf_msprobe.checks.rules.non_finite.near_limit import near_limit
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.health import Evidence
from mindrlhf_msprobe.phases import UPDATE_PHASES

_MOST_RECORDS = 4  # of one kind that are shown
_COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|isend|irecv|send_?recv"
    r"|row_?parallel|column_?parallel|vocab_?parallel|parallel_?cross_?entropy|\bhccl|\bgloo",
    re.IGNORECASE,
)
_FRAMES = 3  # of a call stack in which a collective is looked for
_FLOAT16 = ("Float16",)


def collective_of(event: Event) -> str | None:
    """Return the name of the collective by which an event may have come from another rank.

    A cell says so by its class or name, a call by its innermost frames. Gradients of parameters
    are reduced over ranks before they enter the optimizer.
    """
    entry = event.entry
    if entry is None:
        return None
    for name in (entry.class_name, entry.cell.rpartition(".")[2], *entry.stack[:_FRAMES]):
        found = _COLLECTIVE.search(name)
        if found is not None:
            return name if name == entry.class_name else found.group()
    return None


class Telling:
    """Makes the findings of one step.

    Args:
        hard: rank → what is not finite in the step.
        before: the same of the step before.
    """

    def __init__(
        self, check: Check, step: Step, hard: Mapping[int, Events], before: Mapping[int, Events]
    ) -> None:
        self._check, self._step, self._hard, self._before = check, step, hard, before
        self._near_of: dict[int, list[tuple[EntryView, RecordView]]] = {}

    def born(self, rank: int, event: Event, ranks: Sequence[int], *, first: bool = True) -> Found:
        """Return the finding of the first event of a rank.

        Args:
            first: whether nothing before it was not finite.
        """
        said, causes = self._said(rank, event)
        if not first:
            said = message("check_non_finite.also", what=said)
        cell = None if event.entry is None else event.entry.cell
        own = len(ranks) == 1
        if event.kind == PARAMETER:
            phases = [name for name in UPDATE_PHASES if name in self._check.run.phases]
            begin = max(0, event.place.step - 1)
            following = self._check.next_recording(
                event.place, phases=(*phases, event.phase or ""), first=begin, cell=cell
            )
        elif event.kind == DATA:
            following = self._check.next_recording(event.place)
        else:
            following = self._check.next_recording(event.place, cell=cell, elements=True)
        if following is not None and not own:
            following.pop("ranks", None)
        return self._check.finding(
            said,
            event.place,
            evidence=self.shown(event, rank),
            causes=causes,
            next_step=following,
            stack=() if event.entry is None else event.entry.stack,
            same=("born", *event.what),
            ranks=ranks,
        )

    def shown(self, event: Event, rank: int | None = None) -> Iterator[Evidence]:
        """Yield what shows an event: it, what its entry was given, what came before and after."""
        for record in event.records[:_MOST_RECORDS]:
            yield self._evidence(event, record)
        if rank is None:
            return
        events = self._hard[rank]
        if event.kind == OUTPUT and event.entry is not None:
            given = [record for record in event.entry.records if record[0] != OUTPUT]
            note = message("check_non_finite.given")
            for record in given[:_MOST_RECORDS]:
                yield self._evidence(event, record, note)
        for entry, (io, path, leaf) in self._near(event):
            note = message("check_non_finite.near", dtype=str(leaf.get("dtype")))
            yield Evidence(entry.place(io, path), numbers_of(leaf), note)
        reached = {name: count for name, count in events.reached.items() if count}
        if sum(reached.values()) > len(event.records):
            yield Evidence(event.place, {"records": reached}, message("check_non_finite.reached"))

    def _near(self, event: Event) -> list[tuple[EntryView, RecordView]]:
        if id(event) not in self._near_of:
            self._near_of[id(event)] = near_limit(self._check.run, event)
        return self._near_of[id(event)]

    def _evidence(self, event: Event, record: Any, note: Message | None = None) -> Evidence:
        io, path, leaf = record
        if event.entry is None:
            assert event.datum is not None
            return Evidence(place_of(event.datum, path), numbers_of(leaf), note)
        return Evidence(event.entry.place(io, path), numbers_of(leaf), note)

    def _said(self, rank: int, event: Event) -> tuple[Message, Sequence[str]]:
        """Return what is said of an event, and its likely causes."""
        nan, inf = event.counts
        counts = {"nan": nan, "inf": inf, "size": _size(event.records[0][2])}
        entry = event.entry
        if entry is None:
            return self._of_data(rank, event, counts)
        if event.kind == OUTPUT:
            backward = entry.direction == "backward"
            said = message("check_non_finite.born", backward=backward, **counts)
            return said, tuple(self._causes(event, backward, nan))
        if event.kind == GRADIENT:
            return message("check_non_finite.gradient", **counts), _named(
                "overflow_backward", "reduction", "unscaling"
            )
        if event.kind == PARAMETER:
            return self._of_parameter(rank, event, counts)
        assert event.kind == INPUT
        parent = entry.parent
        if parent is not None and not self._hard[rank].was_given(entry.phase, parent):
            said = message("check_non_finite.in_container", container=parent, **counts)
            return said, _named("own_code", "zero_division", "kernel")
        said = message("check_non_finite.came_in", phase=entry.phase, **counts)
        return said, _named("trainer_code", "not_recorded")

    def _causes(self, event: Event, backward: bool, nan: int) -> Iterator[str]:
        """Yield the likely causes of an output that is not finite, the likeliest first."""
        near = bool(self._near(event))
        dtypes = {leaf.get("dtype") for *_, leaf in event.records}
        if near or dtypes & {*_FLOAT16} or not nan:
            yield _cause("overflow_backward" if backward else "overflow")
        if event.soft:
            yield _cause("masked_row")
        yield _cause("singular_gradient" if backward else "zero_division")
        yield _cause("kernel")

    def _of_parameter(
        self, rank: int, event: Event, counts: Mapping[str, int]
    ) -> tuple[Message, Sequence[str]]:
        entry = event.entry
        assert entry is not None
        now, earlier = self._hard[rank].clean_gradients, self._before.get(rank)
        cells = [cell for cell, time in now.items() if time < event.time]
        cells += [] if earlier is None else earlier.clean_gradients
        clean = any(_same_cell(cell, entry.cell) for cell in cells)
        if entry.step == min(self._check.run.steps) and not clean:
            said = message("check_non_finite.parameter_at_first", **counts)
            return said, _named("loading", "initialisation")
        said = message("check_non_finite.parameter", gradients_finite=clean, **counts)
        if clean:
            return said, _named("optimizer", "learning_rate", "loading")
        return said, _named("gradient_not_recorded", "optimizer", "loading")

    def _of_data(
        self, rank: int, event: Event, counts: Mapping[str, int]
    ) -> tuple[Message, Sequence[str]]:
        assert event.datum is not None
        key = event.datum.key
        said = message("check_non_finite.data", key=key, **counts)
        if key == "advantages" and (equal := self._equal_rewards(event)) is not None:
            said = message("check_non_finite.zero_deviation", rewards=equal, **counts)
            return said, _named("zero_deviation", "trainer_code")
        if "log_prob" in key:
            return said, _named("probability_zero", "masked_row", "trainer_code")
        if key in ("ratio", "kl", "kl_loss"):
            return said, _named("ratio_overflow", "probability_zero", "trainer_code")
        if key == "advantages":
            return said, _named("zero_deviation", "trainer_code")
        return said, _named("trainer_code", "not_recorded")

    def _equal_rewards(self, event: Event) -> float | None:
        """Return the reward that all samples have whose advantages are not finite, if it is one."""
        datum = event.datum
        assert datum is not None
        saved = self._step.key_data("rewards", "reward", rank=datum.rank)
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


def _same_cell(gradients_of: str, cell: str) -> bool:
    """Tell whether gradients of a network's parameters include those of a cell in it."""
    return (
        gradients_of in ("root", cell)
        or gradients_of.endswith(f".{cell}")
        or cell.endswith(f".{gradients_of}")
    )


def _named(*causes: str) -> tuple[str, ...]:
    return tuple(map(_cause, causes))


def _cause(name: str) -> str:
    return f"check_non_finite.cause_{name}"


def _size(leaf: Mapping[str, Any]) -> int:
    shape: Iterable[int] = leaf.get("shape") or ()
    size = 1
    for length in shape:
        size *= length
    return size
