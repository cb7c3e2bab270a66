"""A step of a rank whose pairs have been compared, and the first of them that does not agree.

That may be a parameter which a container used before the cell that holds it was called, and
recorded it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property

from mindrlhf_msprobe.comparison.pairing.names import ROOT
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.comparison.pairing.timeline import BEGIN
from mindrlhf_msprobe.comparison.verdict.history import (
    History,
    PairFindings,
    StepFindings,
    of_entries,
    same,
)
from mindrlhf_msprobe.config import ProbeConfig, phases_of
from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.phases import Phase
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Entry, Record, cell_name, is_optimizer_state

ONE_SIDED = (Status.ONLY_IN_A, Status.ONLY_IN_B)


class FirstDifference:
    """The first pair of a step and rank, in causal order, that does not agree.

    Args:
        step: the compared step.
        index: the number of the pair in it.
        history: the steps of its rank.

    Attributes:
        runs: both runs.
        pairs: all pairs of the step.
        left_out: what the caller left out of the comparison.
        pair, finding: the pair itself, and what its comparison found.
        event: where it is in the order of the step.
        entry: the entry it belongs to; None for key data.
        origin: the name of that entry.
        record: the record of A, or that of B if A has none.
    """

    def __init__(self, step: StepFindings, index: int, history: History) -> None:
        self.step, self.index, self.history = step, index, history
        a, b = history.sides
        self.runs: tuple[Run, Run] = (a.run, b.run)
        self.pairs, self.left_out = step.pairs, step.left_out
        self.pair, finding = step.pairs[index]
        assert finding is not None
        self.finding = finding
        self.event, self.entry, self.record = self.pair.event, self.pair.entry, self.pair.record
        self.origin = None if self.entry is None else self.entry.name

    @property
    def before(self) -> PairFindings:
        """The pairs before it."""
        return self.pairs[: self.index]

    @property
    def both(self) -> tuple[Record, Record]:
        """The records of both runs, where `both_hold` it."""
        assert self.pair.a is not None
        assert self.pair.b is not None
        return self.pair.a, self.pair.b

    @property
    def may_hold_cells(self) -> bool:
        """Whether both runs are of tools that record cells at all."""
        return all(run.dialect.records_cells for run in self.runs)

    @property
    def called(self) -> Entry:
        """The entry, where it belongs to one."""
        assert self.entry is not None
        return self.entry

    @property
    def parent(self) -> str | None:
        """The entry around its own, where that was recorded."""
        return self.parent_of(self.pair)

    def parent_of(self, pair: Pair) -> str | None:
        """Return the entry around that of a pair, where that was recorded."""
        return self.step.plan.parents.get((pair.event.phase or "", pair.event.name))

    @property
    def is_of_state(self) -> bool:
        """Whether it is of the state of an optimizer."""
        return self.entry is not None and is_optimizer_state(self.entry.cell)

    @cached_property
    def config(self) -> ProbeConfig | None:
        """What A was configured to record on its rank; None where that is not known."""
        return self.runs[0].config(self.finding.rank)

    @property
    def table(self) -> dict[str, Phase]:
        """The phases of A, by name."""
        return phases_of(self.config)

    @cached_property
    def filtered(self) -> bool:
        """Whether either run left out cells or entries by their names."""
        return is_filtered(self.runs)


#: What a rule may need of a first difference.
Need = Callable[[FirstDifference], bool]


def event(kind: str) -> Need:
    """Need one that is seen at such an event: key data, a begin or an end of an entry."""
    return lambda first: first.event.kind == kind


def part(io: str) -> Need:
    """Need that it is of one part of its entry: input, output, parameters."""
    return lambda first: first.finding.io == io


def status(*statuses: Status) -> Need:
    """Need that the comparison found one of these."""
    return lambda first: first.finding.status in statuses


def both_hold(first: FirstDifference) -> bool:
    """Return whether both runs hold it."""
    return first.finding.status not in ONE_SIDED


def direction(name: str) -> Need:
    """Need that it belongs to an entry of one direction."""
    return lambda first: first.entry is not None and first.entry.direction == name


def key(names: Collection[str]) -> Need:
    """Need key data of one of these names."""
    return lambda first: first.finding.key in names


def configs(runs: tuple[Run, Run]) -> list[ProbeConfig | None]:
    """Return what each run was configured to record, None where that is not known."""
    return [run.config() for run in runs]


def is_filtered(runs: tuple[Run, Run]) -> bool:
    """Return whether either run left out cells or entries by their names."""
    return any(
        config and (config.include or config.exclude or config.entries or config.scope)
        for config in configs(runs)
    )


def in_time(step: StepFindings, index: int, history: History) -> StepFindings:
    """Return a step whose first difference is a parameter, where it differed before the pair did.

    That is so where a cell was handed something by a container whose own inputs agree, and a
    parameter within the container differs that was recorded later, with its cell: it is what was
    handed, or a table of integers or bool that has differed since the start, or was changed in one
    run alone. The others stay where they are: of weights the cell that holds them makes use.

    Args:
        index: of the first pair that does not agree.
    """
    pair, finding = step.pairs[index]
    entry = pair.entry
    if entry is None or finding is None or finding.io != "input" or pair.event.kind != BEGIN:
        return step
    container = step.plan.parents.get((entry.phase, pair.event.name))
    if container is None or not history.comparable:
        return step
    cell = cell_name(container)
    late = [
        other
        for other, found, of in of_entries(
            step.pairs[index + 1 :], entry.phase, opening=entry.opening, io="parameters"
        )
        if found is not None and found.status is Status.DIFFERENT
        if other.a is not None and other.b is not None and other.event != pair.event
        if cell == ROOT or of.cell.startswith(f"{cell}.")
    ]

    def is_handed(parameter: Pair) -> bool:
        """Return whether a cell was handed the parameter itself, in both runs."""
        sides = ((parameter.a, pair.a), (parameter.b, pair.b))
        return all(p is not None and h is not None and same(p.leaf, h.leaf) for p, h in sides)

    def differed_before(parameter: Pair) -> bool:
        """Return whether a parameter differed from the start, or was changed in one run alone.

        What both runs change while they run may differ because of what they computed.
        """
        kept = history.kept(parameter, step.plan.step)
        if kept is None:
            return False
        a, b = kept
        return a.unchanged is not b.unchanged or (a.unchanged and same(a.leaf, b.leaf) is False)

    handed = (other for other in late if is_handed(other))
    tables = (other for other in late if other.record.leaf.is_discrete)
    for other in itertools.chain(handed, filter(differed_before, tables)):
        pairs = list(step.pairs)
        pairs.insert(index, pairs.pop(next(i for i, (p, _) in enumerate(pairs) if p is other)))
        return replace(step, pairs=tuple(pairs))
    return step
