"""What the comparison of two runs concludes as a whole: its verdict, and what it is of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, fields, replace
from itertools import groupby
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.findings.as_json import Shown, as_json, by_fields, with_codes, words_of
from mindrlhf_msprobe.findings.divergence import Divergence, RankDivergence, Spread
from mindrlhf_msprobe.findings.kept import KeptFindings
from mindrlhf_msprobe.findings.record import Agreement, Finding
from mindrlhf_msprobe.findings.settings import Preflight
from mindrlhf_msprobe.findings.words import SCHEMA, TOOL, Outcome, Relation


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
        spread: in causal order, where the difference went in the step and rank of the first
            divergence.
        parted: every rank that diverges, the one that does so first at the head, in the order in
            which they do; see `comparison.verdict.conclude`.
        agreeing_ranks: the ranks of which everything that was compared agrees.
        not_read: where all that was compared agrees and the runs are incomparable all the same:
            what of them could not be read.
        non_finite: what agrees although it is NaN or infinite, on both sides.
        suspicious: what of that is not meant to be so.
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
        """What `not_read` says, each in the language that was chosen, else the locale's."""
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


@dataclass(frozen=True)
class RuleUse:
    """How often one tolerance, or the noise of further runs, decided.

    Attributes:
        compared_by: the tolerance, or the noise, as `Finding.compared_by` has it.
        records: how many records were compared by it.
        passed: how many of them agree only because of it.
    """

    compared_by: Messages
    records: int
    passed: int

    @property
    def rule(self) -> str:
        """What `compared_by` says, in the language that was chosen, else the locale's."""
        return words_of(self.compared_by)

    def to_json(self) -> dict[str, Any]:
        """Return the object of verdict.json."""
        codes = {"codes": as_json(self.compared_by)}
        return {"rule": self.rule, "records": self.records, "passed": self.passed, **codes}


@dataclass(frozen=True)
class Earlier:
    """What an earlier comparison found, of the same training recorded otherwise.

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
        steps_left_out: those that were not asked for.
        keys_left_out: those that were not asked for; with `keys`, no cell was compared either.
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
        findings: one for each pair, in causal order; those of cells that agree are left out where
            they are in `agreements`.
        agreements: of a comparison of very many records, what agrees, by phase, step and rank.
        preflight: what differs before any tensor.
        rules: the tolerances that were used, and how often.
        remarks: how the runs were brought together, e.g. which prefix was taken off.
        incomplete: what could not be read of either run, and what it lost while recording.
        tables: the files written, by name, relative to `output_path`.
        fingerprints: (name, fingerprint) of each, by which a later comparison knows them again.
        verdict_file: what the verdict is called beside them.
        chosen: which part of the runs was compared; None: all of it.
        all_cells: whether neither run left out cells by their names.
        earlier: what an earlier comparison found, and how this one stands to it.
        stops: where the runs stopped, as far as they did not finish.
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
    verdict_file: str = "verdict.json"
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
        """What `remarks` say, each in the language that was chosen, else the locale's."""
        return tuple(map(str, self.remarks))

    @property
    def problems(self) -> tuple[str, ...]:
        """What `incomplete` says, likewise."""
        return tuple(map(str, self.incomplete))

    def __bool__(self) -> bool:
        return self.verdict.status in (Outcome.IDENTICAL, Outcome.WITHIN_TOLERANCE)

    def to_json(self) -> dict[str, Any]:
        """Return the content of verdict.json."""
        verdict, first = self.verdict, self.verdict.first_divergence
        return {
            "schema": SCHEMA,
            "tool": TOOL,
            "status": verdict.status.value,
            "counts": verdict.counts,
            **with_codes("unread", verdict.not_read),
            "non_finite_on_both_sides": verdict.non_finite.to_json(),
            "suspicious": verdict.suspicious.to_json(),
            "first_divergence": as_json(first),
            "tables": list(self.tables),
            "fingerprints": dict(self.fingerprints),
            "spread": as_json(verdict.spread),
            "ranks": as_json({"parted": verdict.parted, "agreeing": verdict.agreeing_ranks}),
            "preflight": self.preflight.to_json(),
            "tolerance": as_json(self.rules),
            "coverage": as_json(verdict.coverage),
            "notes": list(self.notes),
            "note_codes": as_json(self.remarks),
            "problems": list(self.problems),
            "problem_codes": as_json(self.incomplete),
            "recorded": {"all_cells": self.all_cells},
            **({} if self.chosen is None else {"chosen": self.chosen.to_json()}),
            **({} if self.earlier is None else {"after": self.earlier[0].to_json(self.earlier[1])}),
            "stopped": as_json(self.stops),
        }
