"""The comparison of one step of one rank: what a worker does, and what it hands back.

A step whose tensors are small is compared in one go. Of a step with large ones, the pairs with
tensors are handed back as work of its own, so that several workers share it; and one pair that is
large by itself is shared by threads.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.processes import available_cores
from mindrlhf_msprobe.comparison.judging.arrays import Threads
from mindrlhf_msprobe.comparison.judging.by_statistics import note
from mindrlhf_msprobe.comparison.judging.noise import EXPLAINABLE, within_noise
from mindrlhf_msprobe.comparison.judging.status import (
    PairFound,
    compare_records,
    load_decoder,
    side_of,
    why_unreadable,
)
from mindrlhf_msprobe.comparison.judging.suspicion import suspicions
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerances, across_frameworks, is_across
from mindrlhf_msprobe.comparison.pairing.composed import gap_of
from mindrlhf_msprobe.comparison.pairing.correspondence import brought_together
from mindrlhf_msprobe.comparison.pairing.filters import Filters, StepFilter
from mindrlhf_msprobe.comparison.pairing.frameworks.records import beside_of
from mindrlhf_msprobe.comparison.pairing.mapping import NONE_FUSED, CellMapping, FusedRules
from mindrlhf_msprobe.comparison.pairing.names import NO_RULES, NameRules
from mindrlhf_msprobe.comparison.pairing.planner import CutStep, Pair, StepData, StepPlan, plan_step
from mindrlhf_msprobe.comparison.pairing.timeline import DATA, EventKey
from mindrlhf_msprobe.comparison.pairing.view import View
from mindrlhf_msprobe.comparison.steps.tally import Counted, Tally, is_folded, tally_of
from mindrlhf_msprobe.findings import (
    CoverageGap,
    Finding,
    Metrics,
    PackedFindings,
    Status,
    gathered,
)
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, dtype_name
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.records import Record

if TYPE_CHECKING:
    from mindrlhf_msprobe.comparison.pairing.msprobe_mapping import MsprobeMapping
    from mindrlhf_msprobe.comparison.steps.wholesale import Wholesale
    from mindrlhf_msprobe.storage.columns.layouts import Layouts


#: Bytes of the tensors that a worker compares in one go, about.
CHUNK_BYTES = 32 << 20
#: Bytes of a pair that several threads share.
LARGE = 4 * CHUNK_BYTES


@dataclass(frozen=True)
class Job:
    """What is compared with what, and how: all a worker needs to know.

    Attributes:
        sides: the two runs.
        noise: further runs of A's configuration.
        mapping: how cells of A are called in B.
        msprobe_mapping: the same by a file of the reference tool's; then names alone decide.
        fused: cells of one run that are several of the other, as the caller says.
        tokenizer: the file that tells which text a token id stands for.
        chosen: which records the caller wants compared.
        chunk_bytes: how many bytes of tensors a worker compares in one go, about.
        threads: how many share a pair of more than LARGE bytes, at most. Neither changes anything
            about the result.
    """

    sides: tuple[View, View]
    noise: tuple[View, ...] = ()
    tolerances: Tolerances = field(default_factory=Tolerances)
    mapping: NameRules = NO_RULES
    tokenizer: Path | None = None
    chosen: Filters = field(default_factory=Filters)
    chunk_bytes: int = CHUNK_BYTES
    threads: int = 1
    msprobe_mapping: MsprobeMapping | None = None
    fused: FusedRules = NONE_FUSED
    # What was read last, and how it was cut; and what was paired last: by step and rank.
    _loaded: dict[StepPlace, CutStep] = field(default_factory=dict, repr=False, compare=False)
    _layouts: list[Layouts] = field(default_factory=list, repr=False, compare=False)
    _planned: dict[StepPlace, StepPlan] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        settings = self.sides, self.noise, self.tolerances, self.mapping, self.tokenizer
        work = self.chunk_bytes, self.threads
        return Job, (*settings, self.chosen, *work, self.msprobe_mapping, self.fused)

    def load(self, at: StepPlace) -> tuple[StepData, StepData]:
        """Read what both runs recorded in one step; the last one is kept."""
        return self.cut_of(at).data

    def cut_of(self, at: StepPlace) -> CutStep:
        """Read one step, cut to batches of one size; the last one is kept."""
        if at not in self._loaded:
            if self.laid_out:
                from mindrlhf_msprobe.comparison.layouts.side import load_both

                a, b = load_both(self.sides, at.step)  # type: ignore[arg-type]
            else:
                a, b = (side.load(*at) for side in self.sides)
            a = self.under_names_of_b(a, b)
            self._loaded.clear()
            by_name = self.msprobe_mapping is not None
            mapping = CellMapping(self.mapping, self.fused)
            self._loaded[at] = brought_together(self.sides, mapping, a, b, by_name=by_name)
        return self._loaded[at]

    @property
    def laid_out(self) -> bool:
        """Whether what several ranks hold is put together."""
        return type(self.sides[0]) is not View

    def under_names_of_b(self, a: StepData, b: StepData) -> StepData:
        """Return A's data, or a repetition's, under B's names, from which mapping files lead."""
        if self.msprobe_mapping is None:
            return a
        from mindrlhf_msprobe.comparison.pairing import msprobe_partners as partners

        return partners.under_names_of_npu(b, a, self.msprobe_mapping)

    def filter(self, at: StepPlace) -> StepFilter:
        """Return what of one step is not compared."""
        unlike = any(own != shown for shown, own in self.sides[1].phases.items())
        return StepFilter(self.chosen, self.cut_of(at), unlike)

    def plan(self, at: StepPlace) -> StepPlan:
        """Pair everything both runs recorded in one step; the last plan is kept."""
        if at not in self._planned:
            by_name = self.msprobe_mapping is not None
            cut = self.cut_of(at)
            plan = plan_step(*at, *cut.data, cut.rules, by_name=by_name, across=cut.across)
            self._planned.clear()
            notes = (*plan.notes, *cut.notes)
            self._planned[at] = replace(plan, notes=notes)
        return self._planned[at]

    def stopped_by(self, at: StepPlace) -> bool:
        """Return whether one of the runs had stopped in this step, or before it."""
        if self.laid_out:
            return any(side.run.stops for side in self.sides)
        own = [(side.run, side.own(*at)) for side in self.sides]
        stops = ((run.stop_of(place.rank), place.step) for run, place in own)
        return any(stop is not None and step >= stop.step for stop, step in stops)

    def count(self, at: StepPlace) -> Wholesale | None:
        """Count what agrees in one step; None where it has to be paired as a whole."""
        named = self.mapping or self.msprobe_mapping or self.chosen.by_name
        if self.noise or named or self.laid_out:
            return None
        if self.sides[0].run.dialect is not self.sides[1].run.dialect:
            return None
        from mindrlhf_msprobe.comparison.steps import wholesale
        from mindrlhf_msprobe.storage.columns.layouts import Layouts

        if not self._layouts:
            self._layouts.append(Layouts())
        layouts = self._layouts[0]
        return wholesale.count_wholesale(self.sides, self.tolerances, at, layouts)


@dataclass(frozen=True)
class PairWork:
    """One pair that is still to be compared: the `index`-th of its step."""

    step: int
    rank: int
    index: int
    a: Record
    b: Record
    repetitions: tuple[Record | None, ...] = ()

    @property
    def at(self) -> tuple[int, int, int]:
        """Where the pair is: step, rank and index."""
        return self.step, self.rank, self.index

    @cached_property
    def bytes(self) -> int:
        """How many bytes of tensors are read, at most."""
        records = (self.a, self.b, *self.repetitions)
        claimed = (
            math.prod(r.leaf.shape or (1,)) * _ITEM_BYTES.get(r.leaf.dtype or "", 4)
            for r in records
            if r is not None and r.location is not None
        )
        return sum(min(count, bounds.TENSOR) for count in claimed)


@dataclass(frozen=True)
class PairResult:
    """What the comparison of one pair found that was handed back as work of its own."""

    step: int
    rank: int
    index: int
    status: Status
    metrics: Metrics | None
    notes: Messages
    compared_by: Messages
    gap: Message | None = None


@dataclass
class StepResult:
    """What the comparison of one step of one rank found.

    Attributes:
        findings: one for each pair in causal order; None for a pair that was not recorded by
            choice on one side, or cannot be compared. Of a step that is not `whole`, pairs that
            were counted, or folded, have none.
        positions: for each of them, how many phases had been opened by then, and how many other
            events of entries came before it.
        gaps: what was not recorded by choice.
        notes: how the names of the cells were brought together.
        problems: what could not be read of A, of B and of the repetitions.
        waiting: pairs that are still to be compared; their findings say `unreadable` until then.
        counted: what was counted without a pair of its own.
        whole: whether every pair has a finding, or None.
        folded: whether findings of cells that agree are left out of the result.
        tally: what all of it adds up to, once it is finished.
        records: how many pairs there are.
        not_reached: how many pairs one run lacks because it had stopped by then.
        first_not_reached: the first of them, by its index in the plan.
    """

    step: int
    rank: int
    findings: list[Finding | None] | PackedFindings
    positions: list[tuple[int, int]]
    gaps: tuple[CoverageGap, ...] = ()
    notes: Messages = ()
    problems: tuple[Messages, ...] = ()
    waiting: tuple[PairWork, ...] = ()
    counted: Counted = field(default_factory=Counted)
    whole: bool = True
    folded: bool = False
    tally: Tally = field(default_factory=Tally)
    records: int = 0
    not_reached: int = 0
    first_not_reached: int = -1

    def __post_init__(self) -> None:
        self.count_records()

    def count_records(self) -> None:
        """Note how many pairs there are, before any is let go of."""
        self.records = len(self.findings) + sum(self.counted.identical.values())

    @property
    def at(self) -> StepPlace:
        """Which step of which rank it is."""
        return StepPlace(self.step, self.rank)

    @property
    def diverged(self) -> bool:
        """Whether a record of the step does not agree."""
        return self.tally.first is not None or any(
            finding is not None and not finding.status.agrees for finding in self.findings
        )

    def settle(self, result: PairResult) -> None:
        """Fill in what a waiting pair turned out to be."""
        assert isinstance(self.findings, list)
        finding = self.findings[result.index]
        assert finding is not None
        if result.gap:
            self.findings[result.index] = None
            self.gaps = gathered((*self.gaps, CoverageGap("", "both", 1, result.gap)))
            return
        self.findings[result.index] = replace(
            finding,
            status=result.status,
            metrics=result.metrics,
            notes=result.notes,
            compared_by=result.compared_by,
        )

    def finish(self) -> None:
        """Note which records deserve a look though they agree; to be called when none waits."""
        assert isinstance(self.findings, list)
        known = [(i, finding) for i, finding in enumerate(self.findings) if finding is not None]
        reasons = suspicions([finding for _, finding in known])
        for (index, finding), found in zip(known, reasons):
            if found:
                self.findings[index] = replace(finding, suspicions=found)
        self.tally = tally_of(self.step, self.rank, self.findings, self.positions, self.counted)

    @property
    def order(self) -> tuple[float, ...] | None:
        """By what first divergences are sorted in time; None if everything agrees."""
        if self.tally.first is None:
            return None
        return self.step, *self.tally.first.order, self.rank

    def pack(self) -> None:
        """Hold the findings in little room; nothing is settled any more."""
        if not isinstance(self.findings, PackedFindings):
            self.findings = PackedFindings(self.findings) if self.findings else []
            self.positions = []

    def fold(self) -> None:
        """Let go of the findings of cells that agree; the tally has them."""
        if isinstance(self.findings, PackedFindings):
            return  # it has been folded
        kept = [
            (finding, position)
            for finding, position in zip(self.findings, self.positions)
            if finding is not None and not is_folded(finding)
        ]
        self.findings = [finding for finding, _ in kept]
        self.positions = [position for _, position in kept]
        self.whole = False


def compare_step(job: Job, at: StepPlace, *, wholesale: bool = False) -> StepResult:
    """Compare one step of one rank; pairs with many bytes wait.

    Args:
        wholesale: count what agrees without a finding, where that can be done.
    """
    before = [len(view.run.problems) for view in (*job.sides, *job.noise)]
    counted = job.count(at) if wholesale and not job.stopped_by(at) else None
    if counted is None:
        plan, positions, left_out = job.plan(at), None, job.filter(at)
    else:
        plan, positions = counted.plan, counted.positions
        left_out = StepFilter(job.chosen, CutStep(counted.data))
    repetitions = _Repetitions(job, at) if job.noise else None
    result = StepResult(*at, [], positions or _positions(plan.pairs), notes=plan.notes)
    if counted is not None:
        result.counted, result.whole = counted.counted, False
    works = _walk(job, plan, result, left_out, repetitions)
    heavy = sum(work.bytes for work in works) > job.chunk_bytes
    # Of a step with many bytes those pairs wait that have any.
    result.waiting = tuple(work for work in works if heavy and work.bytes)
    for work in works:
        if not (heavy and work.bytes):
            result.settle(compare_pair(job, work))
    result.count_records()
    if counted is not None and job.chosen.first_only and (result.waiting or result.diverged):
        return compare_step(job, at)  # it ends in the middle
    views = (*job.sides, *job.noise)
    result.problems = tuple(
        tuple(problem.said for problem in view.run.problems[n:]) for view, n in zip(views, before)
    )
    return result


def _walk(
    job: Job,
    plan: StepPlan,
    result: StepResult,
    left_out: StepFilter,
    repetitions: _Repetitions | None,
) -> list[PairWork]:
    """Enter the finding or the gap of each pair; return the pairs whose values are to be compared.

    With first_only they are compared at once, and nothing after the first divergence.
    """
    findings = result.findings
    assert isinstance(findings, list)
    gaps: Counter[tuple[Message, str]] = Counter()
    works: list[PairWork] = []
    not_reached: list[int] = []
    diverged: EventKey | None = None  # where nothing more is compared with first_only
    for index, pair in enumerate(plan.pairs):
        if diverged not in (None, pair.event):
            findings.append(None)
            continue
        gap = _gap(pair, repetitions, left_out)
        if gap is not None:
            gaps[gap] += 1
            findings.append(None)
            if pair.stopped and gap[0] == pair.gap:
                not_reached.append(index)
            continue
        if pair.a is not None and pair.b is not None:
            records = repetitions.repeated(pair) if repetitions is not None else ()
            works.append(PairWork(result.step, result.rank, index, pair.a, pair.b, records))
        findings.append(_finding(plan, pair, *_one_sided(pair)))
        if job.chosen.first_only:
            if works:
                result.settle(compare_pair(job, works.pop()))
            finding = findings[index]
            if finding is not None and not finding.status.agrees:
                diverged = pair.event
    result.not_reached, result.first_not_reached = len(not_reached), min(not_reached, default=-1)
    own = (CoverageGap("", only_in, n, why) for (why, only_in), n in gaps.items())
    result.gaps = gathered((*own, *result.gaps))
    return works


def compare_whole_step(job: Job, at: StepPlace) -> StepResult:
    """Compare one step here and now, every pair of it."""
    result = compare_step(job, at)
    for work in result.waiting:
        result.settle(compare_pair(job, work))
    result.waiting = ()
    result.finish()
    return result


def compare_pair(job: Job, work: PairWork) -> PairResult:
    """Compare one pair of records; what goes wrong with it costs nothing but its own finding."""
    tolerance, by = job.tolerances.matching(work.a.name, work.b.name)
    if tolerance.bitwise and is_across(work.a.leaf, work.b.leaf):
        tolerance, by = across_frameworks(work.a.leaf, work.b.leaf, beside_of(work.a))
    gap = None
    with Threads(min(job.threads, available_cores()) if work.bytes > LARGE else 1) as threads:
        try:
            decode = None if job.tokenizer is None else load_decoder(job.tokenizer)
            compare = compare_records
            if job.laid_out:
                from mindrlhf_msprobe.comparison.layouts.judging import compare_joined as compare
            status, metrics, notes = compare(work.a, work.b, tolerance, decode, threads)
        except Exception as error:
            failed = message("note.failed", error=f"{type(error).__name__}: {error}")
            return PairResult(*work.at, Status.UNREADABLE, None, (failed,), by)
        if status is Status.DIFFERENT:
            gap = gap_of((work.a, work.b), if_unlike=True)
            if work.a.leaf.at_optimizer != work.b.leaf.at_optimizer:
                gap = message("coverage.gradients_at_optimizer")
        if job.noise and status in EXPLAINABLE and gap is None:
            (status, metrics, notes), by_noise = _by_noise(work, (status, metrics, notes), threads)
            by = (*by, *by_noise)
    return PairResult(*work.at, status, metrics, notes, by, gap)


def _by_noise(work: PairWork, found: PairFound, threads: Threads) -> tuple[PairFound, Messages]:
    status, metrics, notes = found
    by: Messages = ()
    try:
        noise = within_noise(work.a, work.b, work.repetitions, threads)
    except (ArrayFileError, OSError, TypeError, ValueError, ArithmeticError) as error:
        said = message("note.noise_unknown", error=error)
    else:
        said = message("note.no_repetition") if noise is None else noise.note
        if noise is not None:
            status = Status.WITHIN_TOLERANCE if noise.natural else status
            count = sum(record is not None for record in work.repetitions)
            by = (message("tolerance.noise", repetitions=count),)
    return (status, metrics, (*notes, said)), by


_DTYPES = map(np.dtype, np.typecodes["AllInteger"] + "?efdFD")
_ITEM_BYTES = {dtype_name(dtype): dtype.itemsize for dtype in _DTYPES}


class _Repetitions:
    """What the repetitions of A recorded in the same step.

    They are whole. Of what A has in pieces, they recorded nothing: a piece has the name of another
    one's call, and another shape than the whole, which is no noise.
    """

    def __init__(self, job: Job, at: StepPlace) -> None:
        self._cut = job.cut_of(at)
        a, b = job.load(at)
        loaded = [job.under_names_of_b(view.load(*at), b) for view in job.noise]
        self._of_a = [_index(plan_step(*at, a, data)) for data in loaded]
        by_name = job.msprobe_mapping is not None
        plans = [plan_step(*at, d, b, job.mapping, by_name=by_name) for d in loaded]
        self._of_b = [_index(plan, 1) for plan in plans]

    def repeated(self, pair: Pair) -> tuple[Record | None, ...]:
        if self._cut.is_cut(0, pair):
            return (None,) * len(self._of_a)
        key = _key_of(pair, pair.a)
        return tuple(index.get(key) for index in self._of_a)

    def explain(self, pair: Pair) -> bool:
        """Return whether a record that one run has alone comes and goes among the repetitions."""
        if self._cut.is_cut(0, pair):
            return False
        if pair.b is None:
            key = _key_of(pair, pair.a)
            return any(index.get(key, pair.a) is None for index in self._of_a)
        key = _key_of(pair, pair.b)
        return any(index.get(key) is not None for index in self._of_b)


_Index = dict[tuple["str | None", str, str], "Record | None"]


def _index(plan: StepPlan, side: int = 0) -> _Index:
    """Return what each record of one side of a plan is compared with, None for nothing."""
    sides = ((pair, (pair.a, pair.b)) for pair in plan.pairs if pair.gap is None)
    return {
        _key_of(pair, both[side]): both[1 - side] for pair, both in sides if both[side] is not None
    }


def _key_of(pair: Pair, record: Record | None) -> tuple[str | None, str, str]:
    assert record is not None
    micro_step = str(pair.event.micro_step) if pair.event.kind == DATA else ""
    return pair.event.phase, record.name, micro_step


def _gap(
    pair: Pair, repetitions: _Repetitions | None, left_out: StepFilter
) -> tuple[Message, str] | None:
    """Return why a pair is not compared, and which run has it, or None if it is."""
    side = "both" if pair.a and pair.b else "A" if pair.a else "B"
    why = pair.gap
    if why is None or pair.stopped:  # a filter goes before that the run had stopped
        why = left_out.why(pair) or why or gap_of((pair.a, pair.b)) or _why_no_values(pair)
    if why is not None:
        return why, side
    alone = side != "both" and pair.unreadable is None and pair.record.leaf.why is None
    if alone and repetitions is not None and repetitions.explain(pair):
        return message("coverage.varies_among_repetitions"), side
    return None


def _why_no_values(pair: Pair) -> Message | None:
    """Return why the values of a pair say nothing about each other, or None if they do.

    What a trainer saves is never left out in silence.
    """
    if pair.a is None or pair.b is None:
        return None
    a, b = pair.a.leaf, pair.b.leaf
    if a.whole != b.whole:
        return message("coverage.gradients_in_several_places")
    if a.opaque and b.opaque and a.type == b.type and pair.record.io != "data":
        return message("coverage.values_of_type", type=a.type)
    return None


def _one_sided(pair: Pair) -> tuple[Status, Messages]:
    """Return the status of a pair of which one run has nothing."""
    if pair.a is not None and pair.b is not None:
        return Status.UNREADABLE, note("note.not_compared")  # until it has been
    reason = pair.unreadable if pair.unreadable is not None else why_unreadable(pair.record)
    if reason is not None:
        return Status.UNREADABLE, (message("note.unreadable", why=reason),)
    return (Status.ONLY_IN_A if pair.b is None else Status.ONLY_IN_B), ()


def _finding(plan: StepPlan, pair: Pair, status: Status, notes: Messages) -> Finding:
    is_data = pair.record.io == "data"
    entry = pair.entry.name if pair.entry else ""  # of A's, or of B's where a mapping leads from it
    names = [record.name for record in (pair.a, pair.b) if record is not None]
    return Finding(
        record=next((name for name in names if name.startswith(entry)), names[0]),
        status=status,
        step=plan.step,
        rank=plan.rank,
        phase=pair.event.phase,
        io=pair.record.io,
        path=pair.record.path,
        a=side_of(pair.a),
        b=side_of(pair.b),
        entry=pair.entry.name if pair.entry else None,
        key=pair.event.name if is_data else None,
        micro_step=pair.event.micro_step if is_data else None,
        notes=notes,
        stack=pair.entry.stack if pair.entry else (),
        argument=pair.record.argument or (pair.b.argument if pair.b else ""),
    )


def _positions(pairs: Sequence[Pair]) -> list[tuple[int, int]]:
    seen: set[object] = set()
    openings: set[tuple[str | None, int]] = set()
    positions = []
    for pair in pairs:
        if pair.event.kind != DATA:
            openings.add((pair.event.phase, pair.entry.opening if pair.entry else 0))
        positions.append((len(openings), len(seen) - (pair.event in seen)))
        if pair.event.kind != DATA:
            seen.add(pair.event)
    return positions
