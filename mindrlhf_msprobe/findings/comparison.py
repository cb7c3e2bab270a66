"""What the comparison of two runs concludes: where and why they part first, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.findings.record import Agreement, Finding, KeptFindings
from mindrlhf_msprobe.findings.settings import Difference, Preflight, Weights
from mindrlhf_msprobe.findings.words import (
    SCHEMA,
    TOOL,
    VERDICT_FILE,
    Cause,
    Nearness,
    Outcome,
    Relation,
    Shown,
    as_json,
    by_fields,
    by_names,
    words_of,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from mindrlhf_msprobe.storage.manifest.run_file import Stop


@dataclass(frozen=True)
class CheckFirst:
    """A difference before any tensor that can explain a finding, though it need not.

    Attributes:
        near: what it has in common with the finding: the cell, the phase, the role, or the run
            alone.
        what: the setting, or the initial weights.
    """

    near: Nearness
    what: Difference | Weights

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        if isinstance(self.what, Difference):
            return {"near": self.near.value, **self.what.to_json()}
        weights = self.what
        names = (*weights.different, *weights.only_in_a, *weights.only_in_b)
        return {
            "near": self.near.value,
            "section": "initial_weights",
            "name": names[0] if names else "",
            "role": weights.role,
            "different": len(weights.different),
            "compared": weights.compared,
        }


@dataclass(frozen=True)
class Occasion:
    """Which time it is within the step that a phase was opened, or a key saved.

    Attributes:
        number: how often it had been before, from 0: of a key the micro-step.
        times: how often it was in this step.
        since: the phases that ran since the time before, in their order: all or part of them.
        weights_moved: whether parameters changed since the time before; None where that is not
            known, and for key data.
        kept_in: the run in which none did, where they changed in the other one alone.
    """

    number: int = 0
    times: int = 1
    since: tuple[str, ...] = ()
    weights_moved: bool | None = None
    kept_in: str | None = None


@dataclass(frozen=True)
class Culprit:
    """What is to blame beyond the record that differs first, and the evidence.

    Attributes:
        code: a `CulpritCode`, or a name of your own.
        details: the evidence: numbers, steps, phases, `A` or `B` for a run; plain JSON. What each
            code has is said where it is made, in comparison/.
        said: the sentence for a reader; None: the text of `culprit.<code>` with the details.
    """

    code: str
    details: Mapping[str, Any] = field(default_factory=dict)
    said: Message | str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        return {"code": str(self.code), **self.details}


@dataclass(frozen=True)
class Some(Shown):
    """The places along one axis of a tensor, or of the list a key holds, where elements differ.

    Attributes:
        what: `axis` of a tensor, or `element` of a list.
        axis, size: which axis, and how many places it has.
        spans: first and last of each span of places, inclusive; of very many, the first 32.
        count: how many places differ.
    """

    what: str
    axis: int
    size: int
    spans: tuple[tuple[int, int], ...]
    count: int


@dataclass(frozen=True)
class Change:
    """The one thing that makes B of A in all elements that differ.

    Attributes:
        kind: factor, offset (B is A times, or plus, one number); rounded (one side is the other one
            rounded to a narrower dtype); order (the places along an axis stand in another order),
            order_inside (the elements along it do, within each row), moved (all elements do),
            shifted (along an axis, what fell off being lost; `filled` stands in its place, or None:
            what A has there), nearly (a factor, but for an epsilon beside a divisor), ddof
            (standard deviations divide by n and by n − 1), transposed (a square matrix),
            rotary_base (tables of a rotary embedding have two bases), epsilon (a norm was computed
            with another one), elsewhere (a parameter is that of another cell); rounding (a few
            numbers of the dtype lie between); same_statistics (all statistics are equal, the bytes
            are not).
        parameters: of that kind; `within` is the rounding that each element is known to, `every`
            says whether it holds for all elements of the tensor.
    """

    kind: str
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Inside:
    """What differs inside the first divergence; only what holds for all of it.

    Attributes:
        basis: elements, statistics, or records (of the list a key holds).
        where: the axes along which not all places differ.
        change: None where nothing holds for all elements that differ.
        elements, size: how many elements differ, and of how many; None from statistics.
        prompts: numbers of the prompts that all samples which differ belong to.
        axes: what an axis is, as far as it is known: sample, token, head, channel, token_id (of the
            vocabulary), or row (sample and token in one).
    """

    basis: str
    where: tuple[Some, ...] = ()
    change: Change | None = None
    elements: int | None = None
    size: int | None = None
    prompts: tuple[int, ...] = ()
    axes: tuple[tuple[int, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        return {
            "basis": self.basis,
            "kind": None if self.change is None else self.change.kind,
            "parameters": {} if self.change is None else as_json(self.change.parameters),
            "where": as_json(self.where),
            "different": self.elements,
            "size": self.size,
            "prompts": list(self.prompts),
            "axes": {str(axis): name for axis, name in self.axes},
        }


@dataclass(frozen=True)
class ErrorOrigin:
    """The operator that makes an error of what came in as no more than rounding.

    Attributes:
        record: its output that is too far apart, of the same step and rank as the first divergence.
        entered: the largest relative distance of what it was given; 0 where that agrees.
        distance: that of the record; the relative distance is |a−b| / max(|a|, |b|) as L2 norms.
        operator, cell, line: as of a `Divergence`.
        beside: what but its own computation may be to blame.
    """

    phase: str
    record: str
    entry: str
    distance: float
    entered: float
    operator: str
    cell: str | None
    line: str
    beside: Messages = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        shown = by_fields(self)
        del shown["beside"]
        return shown


@dataclass(frozen=True)
class Divergence:
    """Where two runs first diverge, and why.

    Attributes:
        record: the first record that differs.
        explanation: `reasons` as text.
        reasons: what happened to the record and why, as messages.
        entry: the origin: the innermost cell or operator to blame; None for key data.
        key: of key data, the key; else None.
        occasion: which micro-step of key data, or which opening of the phase, it is.
        culprit: what else is to blame, where the records around it tell; else None.
        agreed_before: how many records before it agree, in this step and rank.
        agreed_phases: how many phases before it agree, in this step and rank.
        agreed_steps: how many earlier steps agree.
        last_agreeing: the last record before it, None if it is the first.
        next_step: an msprobe_config section that records the place more closely, or None; without
            "msprobe" in it, a config.json for PrecisionDebugger.
        non_finite_in: of the cause non_finite, the sides with NaN or infinity: "A", "B".
        check_first: what differs before any tensor and can explain it, the nearest first.
        next_step_bytes: what that takes on disk for one rank, None where that is not known.
        next_step_estimated: whether that is estimated from the cells of the networks, of which
            nothing was recorded yet.
        next_step_whole: in a bisection over layers, what recording all of them would take; else
            None.
        inside: what differs inside the record, as far as that is certain.
        argument: of a positional input, what `construct` calls the argument; "" if not known.
        source: the call stack line where A called the origin, with its code; "" if not known.
        operator: the operator to blame, e.g. `Mint.matmul`, else "".
        cell: the cell to blame, or around the operator: "" outside every cell, None if not known.
        line: file and line of `source`, e.g. `attention.py:88`; "" if not known.
        born: the operator that makes an error of a first difference of mere rounding, or None.
    """

    step: int
    rank: int
    phase: str | None
    record: str
    entry: str | None
    cause: Cause
    max_abs_err: float | None = None
    max_rel_err: float | None = None
    explanation: str = ""
    reasons: tuple[Message, ...] = ()
    agreed_before: int = 0
    agreed_phases: int = 0
    agreed_steps: int = 0
    last_agreeing: str | None = None
    next_step: dict[str, Any] | None = None
    next_step_bytes: int | None = None
    next_step_estimated: bool = False
    next_step_whole: int | None = None
    key: str | None = None
    occasion: Occasion = Occasion()
    culprit: Culprit | None = None
    non_finite_in: tuple[str, ...] = ()
    check_first: tuple[CheckFirst, ...] = ()
    inside: Inside | None = None
    argument: str = ""
    source: str = ""
    operator: str = ""
    cell: str | None = None
    line: str = ""
    born: ErrorOrigin | None = None

    @property
    def is_explained(self) -> bool:
        """Whether a setting of its own cell, phase or role, or its initial weights, differ."""
        return any(check.near is not Nearness.RUN for check in self.check_first)

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        number, of_key = self.occasion.number, self.key is not None
        special: dict[str, dict[str, Any]] = {
            "next_step_whole": {"next_step_whole_bytes": self.next_step_whole},
            "key": {
                "micro_step": number if of_key else None,
                "opening": None if of_key else number,
            },
            "occasion": {"times": self.occasion.times, "since": list(self.occasion.since)},
            "argument": {"argument": self.argument or None},
            "source": {"source": self.source or None},
            "operator": {"operator": self.operator or None},
            "line": {"line": self.line or None},
        }
        shown: dict[str, Any] = {}
        for name, value in by_fields(self).items():
            shown |= special.get(name, {name: value})
        return shown


@dataclass(frozen=True)
class NotFinite(Shown):
    """How many elements of one place are NaN, and how many infinite, in A and in B.

    Attributes:
        elements: of how many; None where a run counted none, and each number only says that some
            are.
    """

    nan_a: int
    inf_a: int
    nan_b: int
    inf_b: int
    elements: int | None


@dataclass(frozen=True)
class Spread(Shown):
    """How one phase, layer or key of the diverged step differs, from the first divergence on.

    Attributes:
        place: the phase, the layer's cell or the key.
        different, compared: how many of its records differ, and of how many.
        max_abs_err, max_rel_err: the largest errors where elements were compared, else None.
        factor: its largest relative distance, as a multiple of the one at the first divergence;
            the relative distance of two records is that of their elements, |a−b| / max(|a|, |b|)
            as L2 norms, or of their recorded L2 norms. None where neither is known, and where all
            that differs does so from or to zero.
        layers: of a phase, its layers in causal order.
        zero: `from` where A is zero within rounding in all that differs, `to` where B alone is: the
            relative distance has nothing to divide by; else None.
        non_finite: None where no element is NaN or infinite, but -inf of masks.
    """

    _shown = (
        *("place", "different", "compared", "max_abs_err", "max_rel_err", "factor"),
        *("layers?", "zero?", "non_finite?"),
    )

    place: str
    different: int
    compared: int
    max_abs_err: float | None
    max_rel_err: float | None
    factor: float | None = None
    layers: tuple[Spread, ...] = ()
    zero: Literal["from", "to"] | None = None
    non_finite: NotFinite | None = None


@dataclass(frozen=True)
class RankDivergence(Shown):
    """Where one rank of two runs first diverges.

    Attributes:
        phase: None for key data.
        record: the first record of this rank that differs.
        micro_step: of key data; None for an entry's record.
    """

    rank: int
    step: int
    phase: str | None
    record: str
    micro_step: int | None = None


@dataclass(frozen=True)
class CoverageGap:
    """Records of one run that the other was configured not to record: listed, not a divergence.

    Attributes:
        reason: why, in the language of the answer; "" before there is one.
        only_in: A, B or both.
        message: the same, as a code with parameters.
    """

    reason: str
    only_in: str
    records: int
    message: Message | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        said = {"reason": self.reason, "only_in": self.only_in, "records": self.records}
        return said if self.message is None else {**said, **self.message.as_json()}


def gathered(gaps: Iterable[CoverageGap]) -> tuple[CoverageGap, ...]:
    """Return gaps of which those for one reason on one side are one, with the records of all."""
    first: dict[tuple[Any, ...], CoverageGap] = {}
    records: Counter[tuple[Any, ...]] = Counter()
    for gap in gaps:
        what = gap.message or gap.reason, gap.only_in
        first.setdefault(what, gap)
        records[what] += gap.records
    return tuple(replace(gap, records=records[what]) for what, gap in first.items())


@dataclass(frozen=True)
class NonFinite:
    """The records that agree and hold NaN or infinity on both sides.

    Attributes:
        records: how many there are.
        step, rank, phase, record: the first of them in causal order; None if there is none.
    """

    records: int = 0
    step: int | None = None
    rank: int | None = None
    phase: str | None = None
    record: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        first = {"step": self.step, "rank": self.rank, "phase": self.phase, "record": self.record}
        return {"records": self.records, "first": first if self.records else None}


@dataclass(frozen=True)
class Suspicious(NonFinite):
    """The records that agree although they are unhealthy: NaN or infinity that is not meant.

    Left out are -inf in a forward pass and in key data of masks, and gradients of a step that
    overflowed and is retried.

    Attributes:
        micro_step: of the first, if it is key data; else None.
        what: what the first holds.
    """

    micro_step: int | None = None
    what: Message | None = None

    @property
    def text(self) -> str:
        """How many there are and the first, in the language that was chosen, else the locale's."""
        known = {of.name: getattr(self, of.name) for of in fields(self)}
        return words_of((message("console.suspicious", **known),)) if self.records else ""

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        first = super().to_json()["first"]
        if first is not None and self.what is not None:
            first |= {"micro_step": self.micro_step, **self.what.as_json()}
        return {"count": self.records, "first": first, "text": self.text}


@dataclass(frozen=True)
class Verdict:
    """What a comparison concludes.

    Attributes:
        status: `identical`, `within_tolerance`, `diverged` or `incomparable`.
        counts: status → how many pairs.
        coverage: what one run was not to record: `reason`, `only_in`, `records`.
        spread: how the difference spreads in the step and rank of the first divergence.
        parted: the ranks that diverge, the first one first; see `comparison.verdict.conclude`.
        agreeing_ranks: the ranks of which everything compared agrees.
        not_read: what could not be read, where all that was compared agrees: the runs are
            incomparable then.
        non_finite: what agrees with NaN or infinity on both sides.
        suspicious: what of `non_finite` is not meant to be so.
    """

    status: Outcome
    counts: dict[str, int]
    first_divergence: Divergence | None
    coverage: tuple[CoverageGap, ...] = ()
    spread: tuple[Spread, ...] = ()
    steps: int = 0
    ranks: int = 0
    phases: tuple[str, ...] = ()
    parted: tuple[RankDivergence, ...] = ()
    agreeing_ranks: tuple[int, ...] = ()
    not_read: Messages = ()
    non_finite: NonFinite = NonFinite()
    suspicious: Suspicious = Suspicious()

    @property
    def unread(self) -> tuple[str, ...]:
        """`not_read` as texts; each in the language that was chosen, else the locale's."""
        return tuple(map(str, self.not_read))

    @property
    def compared(self) -> int:
        """How many pairs were looked at, missing ones included."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class Stopped(Shown):
    """Where a run stopped that did not finish.

    Attributes:
        run: A or B.
        state: failed, interrupted (it ended inside a step, without close()), killed, or running.
        phase: the phase that was open then; None where none was, or it is not known.
        error, text: the exception's type and text; None and "" where there was none.
        ranks: those that stopped there.
    """

    run: str
    state: str
    step: int
    phase: str | None
    error: str | None
    text: str
    ranks: tuple[int, ...]

    @classmethod
    def all_of(cls, run: str, stops: Iterable[Stop]) -> Iterator[Self]:
        """Yield where the ranks of a run stopped, those that stopped at one place together."""
        together: dict[tuple[str, int, str | None, str | None, str], list[int]] = {}
        for stop in stops:
            key = (stop.state, stop.step, stop.phase, stop.error, stop.text)
            together.setdefault(key, []).append(stop.rank)
        for key, ranks in together.items():
            yield cls(run, *key, tuple(ranks))


@dataclass(frozen=True)
class RuleUse(Shown):
    """How often one tolerance, or the noise of further runs, decided.

    Attributes:
        compared_by: the tolerance, or the noise, as `Finding.compared_by` has it.
        records: how many records were compared by it.
        passed: how many of them agree only because of it.
    """

    _shown = ("rule", "records", "passed", "codes=compared_by")

    compared_by: Messages
    records: int
    passed: int

    @property
    def rule(self) -> str:
        """What `compared_by` says, in the language that was chosen, else the locale's."""
        return words_of(self.compared_by)


@dataclass(frozen=True)
class Earlier:
    """What an earlier comparison found, of the same training with other settings of the recording.

    Attributes:
        path: where it was written.
        step, rank, phase, record, entry: of its first divergence; None where it found none.
        all_cells: whether its runs left no cell out by name, and all of them were compared.
        agreed_before: how many records of that step and rank, before it, agreed.
    """

    path: str
    status: Outcome
    step: int | None = None
    rank: int | None = None
    phase: str | None = None
    record: str | None = None
    entry: str | None = None
    all_cells: bool = False
    agreed_before: int | None = None

    def knows(self, finding: Finding, origin: str | None) -> bool:
        """Return whether it looked at all cells and blamed the same one."""
        place = (self.step, self.phase, self.entry)
        return (
            self.all_cells and origin is not None and place == (finding.step, finding.phase, origin)
        )

    def to_json(self, relation: Relation) -> dict[str, Any]:
        """Return the object of verdict.json."""
        return {"path": self.path, "relation": relation.value, **by_fields(self)}


@dataclass(frozen=True)
class Chosen:
    """Which part of two runs the caller wanted compared, and what was left out by that.

    Attributes:
        steps: ranges of steps, e.g. 2-5; "" for all.
        include, exclude: regular expressions on the names of records.
        keys: a key, or two that are compared, with a `=` between them.
        common: what one run alone has is coverage.
        first_only: nothing was compared after the first divergence.
        steps_left_out: those that were not chosen.
        keys_left_out: those that were not chosen; with `keys`, no cell was compared either.
        steps_after: those behind the first divergence, with `first_only`.
    """

    steps: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    common: bool = False
    first_only: bool = False
    steps_left_out: tuple[int, ...] = ()
    keys_left_out: tuple[str, ...] = ()
    steps_after: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        shown = {**by_fields(self), "steps": self.steps or None}
        left_out = {
            "steps": shown.pop("steps_left_out"),
            "keys": shown.pop("keys_left_out"),
            "layer_data": bool(self.keys),
            "steps_after_the_first_divergence": shown.pop("steps_after"),
        }
        return {**shown, "left_out": left_out}


@dataclass(frozen=True)
class Comparison:
    """A finished comparison; true only if something was compared and nothing diverged.

    Attributes:
        run_a, run_b, output_path: the directories.
        findings: one for each pair, in causal order, but those of agreeing cells that `agreements`
            counts.
        agreements: of more than 50 000 records, what agrees, by phase, step and rank.
        preflight: what differs before any tensor.
        rules: the tolerances that were used, and how often.
        remarks: how the runs were aligned, e.g. which prefix was taken off.
        incomplete: what could not be read of either run, and what it lost while recording.
        tables: the files written, by name, relative to `output_path`.
        fingerprints: (name, fingerprint) of each table, by which a later comparison knows it again.
        verdict_file: the name of verdict.json beside the tables.
        chosen: which part of the runs was compared, None for all of it.
        all_cells: whether neither run left out cells by their names.
        earlier: with `after`, what the earlier comparison found, and whether this one confirms it.
        stops: where the runs stopped that did not finish.
    """

    run_a: str
    run_b: str
    verdict: Verdict
    findings: Sequence[Finding] = field(repr=False)
    preflight: Preflight = Preflight()
    rules: tuple[RuleUse, ...] = ()
    remarks: Messages = ()
    incomplete: Messages = ()
    output_path: str | None = None
    tables: tuple[str, ...] = ()
    fingerprints: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    verdict_file: str = VERDICT_FILE
    chosen: Chosen | None = None
    agreements: tuple[Agreement, ...] = field(default=(), repr=False)
    all_cells: bool = True
    earlier: tuple[Earlier, Relation] | None = None
    stops: tuple[Stopped, ...] = ()

    def by_place(self) -> Iterator[tuple[tuple[int, int], Iterator[Finding]]]:
        """Yield each step and rank, and its findings in causal order."""
        if isinstance(self.findings, KeptFindings):
            yield from self.findings.by_place()
        else:
            yield from groupby(self.findings, lambda finding: (finding.step, finding.rank))

    @property
    def notes(self) -> tuple[str, ...]:
        """`remarks` as texts; each in the language that was chosen, else the locale's."""
        return tuple(map(str, self.remarks))

    @property
    def problems(self) -> tuple[str, ...]:
        """`incomplete` as texts; likewise."""
        return tuple(map(str, self.incomplete))

    def __bool__(self) -> bool:
        return self.verdict.status in (Outcome.IDENTICAL, Outcome.WITHIN_TOLERANCE)

    def to_json(self) -> dict[str, Any]:
        """Return the content of verdict.json."""
        verdict = self.verdict
        return {
            **{"schema": SCHEMA, "tool": TOOL},
            **by_names(verdict, "status", "counts", "unread?", "unread_codes=not_read?"),
            **by_names(verdict, "non_finite_on_both_sides=non_finite", "suspicious"),
            **by_names(verdict, "first_divergence"),
            **{"tables": list(self.tables), "fingerprints": dict(self.fingerprints)},
            **by_names(verdict, "spread"),
            "ranks": by_names(verdict, "parted", "agreeing=agreeing_ranks"),
            **by_names(self, "preflight", "tolerance=rules"),
            **by_names(verdict, "coverage"),
            **by_names(self, "notes", "note_codes=remarks", "problems"),
            **by_names(self, "problem_codes=incomplete"),
            "recorded": {"all_cells": self.all_cells},
            **({} if self.chosen is None else {"chosen": self.chosen.to_json()}),
            **({} if self.earlier is None else {"after": self.earlier[0].to_json(self.earlier[1])}),
            **by_names(self, "stopped=stops"),
        }
