"""A step of a rank whose pairs have been compared, and the first of them that does not agree.

That may be a parameter which a container used before the cell that holds it was called, and
recorded it. And what both runs recorded around the step: those before and after it, and their
weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Messages, message
from mindrlhf_msprobe.comparison.judging.tolerance import is_finite
from mindrlhf_msprobe.comparison.pairing.names import ROOT, match_names
from mindrlhf_msprobe.comparison.pairing.planner import Pair, StepPlan
from mindrlhf_msprobe.comparison.pairing.timeline import BEGIN, DATA
from mindrlhf_msprobe.comparison.steps.step_of_rank import Job, StepResult, compare_whole_step
from mindrlhf_msprobe.config import ProbeConfig, phases_of
from mindrlhf_msprobe.findings import Earlier, Finding, Status
from mindrlhf_msprobe.phases import UPDATE_PHASES, Phase
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import (
    PARAMETERS_GRAD,
    Entry,
    Record,
    cell_name,
    is_optimizer_state,
)

#: A parameter of one run: the cell that holds it, and its name there.
Parameter = tuple[str, str]
_MOST_STEPS = 8  # of those before a step, that are read for their weights; and the first one


#: Pairs in causal order, each with its finding.
PairFindings = tuple[tuple[Pair, "Finding | None"], ...]


def of_entries(
    pairs: PairFindings,
    phase: str | None = None,
    *,
    opening: int | None = None,
    direction: str | None = None,
    io: str | None = None,
) -> Iterator[tuple[Pair, Finding | None, Entry]]:
    """Yield the pairs of entries, each with its finding and its entry.

    Args:
        phase, opening, direction: of the entries; None: any.
        io: the part of its entry that a record is; None: any.
    """
    for pair, finding in pairs:
        entry = pair.entry
        if (
            entry is not None
            and phase in (None, entry.phase)
            and opening in (None, entry.opening)
            and direction in (None, entry.direction)
            and io in (None, pair.record.io)
        ):
            yield pair, finding, entry


def of_saves(
    pairs: PairFindings, *keys: str, micro_step: int | None = None
) -> Iterator[tuple[Pair, Finding | None]]:
    """Yield the pairs of key data, each with its finding.

    Args:
        keys: which; none: any.
        micro_step: of the saves; None: any.
    """
    for pair, finding in pairs:
        event = pair.event
        wanted = event.kind == DATA and micro_step in (None, event.micro_step)
        if wanted and (not keys or event.name in keys):
            yield pair, finding


@dataclass(frozen=True)
class LeftOut:
    """What the caller left out of a comparison, as far as the first divergence may come of it.

    Attributes:
        records: how many stand before it; where it is an entry's output, inside that entry.
        all_else: all cells and other keys were left out, not some by their names.
        given: what the entry was given, as far as it was left out and differs.
    """

    records: int = 0
    all_else: bool = False
    given: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.records or self.given)


@dataclass(frozen=True)
class StepFindings:
    """The pairs of one step and rank in causal order, each with its finding.

    A pair without a finding was not recorded by choice on one side, cannot be compared, or was left
    out of the comparison.
    """

    plan: StepPlan
    pairs: PairFindings
    left_out: LeftOut = LeftOut()
    earlier: Earlier | None = None


@dataclass(frozen=True)
class Opened:
    """One opening of a phase in one run.

    Attributes:
        number: how often the phase had been opened in its step before.
        begin: when its first entry began, in its process's time.
        weights: each parameter as its cell first held it in this opening.
        trains: whether gradients of parameters were recorded in it.
    """

    step: int
    phase: str
    number: int
    begin: int
    weights: Mapping[Parameter, Leaf]
    trains: bool

    @property
    def is_update(self) -> bool:
        """Whether its network may be trained in it."""
        return self.trains or self.phase in UPDATE_PHASES

    def compared_with(self, weights: Mapping[Parameter, Leaf]) -> dict[Parameter, bool | None]:
        """Return whether each parameter that both have is the same; None: that is not known."""
        pairs = matched(self.weights, weights)
        return {own: same(self.weights[own], weights[other]) for own, other in pairs.items()}


@dataclass(frozen=True)
class Kept:
    """A parameter as a run held it before a step, and whether it is still the same in it.

    Attributes:
        step: in which it held it; None: when its network was first entered.
    """

    leaf: Leaf
    step: int | None
    unchanged: bool


class History:
    """The steps of one rank, one of which holds the first divergence.

    Attributes:
        job: the comparison.
        sides: the two runs.
        rank: the comparison's number of it.
        results: everything that was compared.
    """

    def __init__(self, job: Job, rank: int, results: Sequence[StepResult]) -> None:
        self.job, self.rank, self.results = job, rank, results
        self.sides = job.sides
        self._opened: dict[tuple[int, int, str], list[Opened]] = {}
        self._compared: dict[int, StepFindings | None] = {}

    @property
    def comparable(self) -> bool:
        """Whether each phase is compared with the same one, and recorded with its time."""
        if any(own != shown for view in self.sides for shown, own in view.phases.items()):
            return False
        return all(view.run.dialect.timed for view in self.sides)

    @cached_property
    def steps(self) -> list[int]:
        """The steps of which anything was compared, in their order."""
        return sorted({result.step for result in self.results if result.rank == self.rank})

    def compared(self, step: int) -> StepFindings | None:
        """Return the pairs of another step with their findings; None if there are none."""
        if step not in self._compared:
            of_step = (one for one in self.results if (one.step, one.rank) == (step, self.rank))
            result, found = next(of_step, None), None
            if result is not None:
                whole = result if result.whole else compare_whole_step(self.job, result.at)
                findings, plan = whole.findings, self.job.plan(result.at)
                if len(plan.pairs) == len(findings):
                    found = StepFindings(plan, tuple(zip(plan.pairs, findings)))
            self._compared[step] = found
        return self._compared[step]

    def before(self, step: int) -> list[int]:
        """Return steps before one, the latest first: the last few, and the first of all."""
        earlier = [other for other in reversed(self.steps) if other < step]
        return [*earlier[:_MOST_STEPS], *earlier[_MOST_STEPS:][-1:]]

    def opened(self, side: int, step: int, phases: Collection[str]) -> list[Opened]:
        """Return every opening of some phases in a step of one run, in the order of time."""
        found: list[Opened] = []
        for phase in phases:
            key = side, step, phase
            if key not in self._opened:
                entries = self.sides[side].entries(phase, step, self.rank)
                self._opened[key] = _openings(entries, step, phase)
            found += self._opened[key]
        return sorted(found, key=lambda opened: opened.begin)

    def same_opening(self, side: int, opened: Opened) -> Opened | None:
        """Return the opening of the same number in one run, None if it was not recorded."""
        found = self.opened(side, opened.step, [opened.phase])
        return next((other for other in found if other.number == opened.number), None)

    def role_of(self, phase: str) -> str | None:
        """Return the role whose network runs in a phase, None if nothing is known of it."""
        known = (table[phase].role for table in self._tables if phase in table)
        return next(known, None)

    def phases_of(self, role: str) -> list[str]:
        """Return the phases in which a role's network runs."""
        return [phase.name for phase in self._phases if phase.role == role]

    def training_phases(self, role: str) -> list[str]:
        """Return the phases that may train a role's network."""
        return [
            phase.name
            for phase in self._phases
            if phase.role == role and (phase.name in UPDATE_PHASES or phase.switch is None)
        ]

    @property
    def _tables(self) -> list[dict[str, Phase]]:
        """The phases of each run, by name."""
        return [phases_of(view.config(self.rank)) for view in self.sides]

    @property
    def _phases(self) -> list[Phase]:
        a, b = self._tables
        return [*(a | b).values()]

    def is_first(self, step: int) -> bool:
        """Return whether both runs began with a step."""
        configs = [view.config(self.rank) for view in self.sides]
        return all(config is not None and step <= config.initial_step for config in configs)

    def is_one_network(self, side: int, phase: str, other: str) -> bool | None:
        """Return whether one network of a run has run in both phases; None if it is not known."""
        one, two = (self.sides[side].network_of(name, self.rank) for name in (phase, other))
        return None if one is None or two is None else one.json is two.json

    def in_two_roles(self, finding: Finding) -> Messages:
        """Say which run has one network in the role of a finding and in another one.

        Where the finding is a parameter, or key data: what a cell computed does not come of it.
        """
        of_cell = finding.entry is not None and finding.io != "parameters"
        if of_cell or finding.phase is None:
            return ()
        networks = [view.network_of(finding.phase, self.rank) for view in self.sides]
        return tuple(
            message("explanation.one_network", run=run, role=network.role, other=network.same_as)
            for run, network in zip("AB", networks)
            if network is not None and network.same_as is not None
        )

    def initial_weights(self, side: int, role: str, phase: str) -> Mapping[Parameter, Leaf]:
        """Return the fingerprints of a phase's network when it was first entered."""
        found = {}
        first = self.sides[side].first_weights(phase, role, self.rank)
        for name, fingerprint in first.items():
            cell, _, own = name.rpartition(".")
            found[cell or ROOT, own] = Leaf("Parameter", fingerprint=fingerprint)
        return found

    def kept(self, pair: Pair, step: int) -> tuple[Kept, Kept] | None:
        """Return of each run how it held a parameter before a step; None where that is unknown."""
        found: list[Kept] = []
        for side, record in enumerate((pair.a, pair.b)):
            if record is None or pair.entry is None:
                return None
            phase, name = pair.entry.phase, parameter_of(record)
            before = self.before(step)[:1]
            last = self.opened(side, before[0], [phase])[-1:] if before else []
            leaf: Leaf | None = None
            since: int | None = None
            # As the phase of the step before held it, else as at the start.
            if last and name in last[0].weights:
                leaf, since = last[0].weights[name], last[0].step
            elif (role := self.role_of(phase)) is not None:
                leaf, since = self.initial_weights(side, role, phase).get(name), None
            unchanged = None if leaf is None else same(record.leaf, leaf)
            if leaf is None or unchanged is None:
                return None
            found.append(Kept(leaf, since, unchanged))
        return found[0], found[1]


def _openings(entries: Sequence[Entry], step: int, phase: str) -> list[Opened]:
    numbers = sorted({entry.opening for entry in entries})
    known: dict[Parameter, Leaf] = {}  # as last recorded: again only where they changed
    found = []
    for number in numbers:
        ours = [entry for entry in entries if entry.opening == number]
        held = [(e.cell, r) for e in ours for r in e.records if r.io == "parameters"]
        first: dict[Parameter, Leaf] = {}
        for cell, record in held:
            first.setdefault((cell, record.path), record.leaf)
        trains = any(entry.direction == PARAMETERS_GRAD for entry in ours)
        begin = min(entry.seq for entry in ours)
        found.append(Opened(step, phase, number, begin, {**known, **first}, trains))
        known |= {(cell, record.path): record.leaf for cell, record in held}
    return found


def matched(a: Mapping[Parameter, Leaf], b: Mapping[Parameter, Leaf]) -> dict[Parameter, Parameter]:
    """Return which parameter of one network is which of another one, a prefix taken off."""
    names = match_names({cell for cell, _ in a}, {cell for cell, _ in b})
    if names.unlike:
        return {}
    there = {(names.common_b(cell), own): (cell, own) for cell, own in b}
    known = {(cell, own): (names.common_a(cell), own) for cell, own in a}
    return {parameter: there[name] for parameter, name in known.items() if name in there}


def parameter_of(record: Record) -> Parameter:
    """Return which parameter of a run a record is of."""
    return cell_name(record.name.removesuffix(f".parameters.{record.path}")), record.path


def same(a: Leaf, b: Leaf) -> bool | None:
    """Return whether two parameters of one run are the same; None where that is not known.

    By their fingerprints; where none were recorded, by all four statistics.
    """
    if a.is_tensor and b.is_tensor and (a.dtype, a.shape) != (b.dtype, b.shape):
        return None
    if a.fingerprint is not None and b.fingerprint is not None:
        if a.fingerprint.partition(":")[0] != b.fingerprint.partition(":")[0]:
            return None
        return a.fingerprint == b.fingerprint
    if a.fingerprint is not None or b.fingerprint is not None:
        return None
    statistics = [(leaf.max, leaf.min, leaf.mean, leaf.norm) for leaf in (a, b)]
    if not all(map(is_finite, (*statistics[0], *statistics[1]))):
        return None  # beside NaN and infinity statistics say nothing of the other elements
    return statistics[0] == statistics[1]


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
