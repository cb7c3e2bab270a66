"""Findings in causal order → the first divergence and its cause."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindrlhf_msprobe.comparison.pairing import Pair, StepPlan
from mindrlhf_msprobe.comparison.timeline import DATA, END
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.findings import (
    Cause,
    CoverageGap,
    Divergence,
    Finding,
    Outcome,
    Spread,
    Status,
    Verdict,
)
from mindrlhf_msprobe.phases import INPUT_KEYS, key_order, phase_table, usual_place
from mindrlhf_msprobe.storage.reader import Run
from mindrlhf_msprobe.storage.records import cell_name

_NAMED_CAUSES = {
    Status.UNREADABLE: Cause.UNREADABLE,
    Status.ONLY_IN_A: Cause.MISSING,
    Status.ONLY_IN_B: Cause.MISSING,
    Status.DTYPE_MISMATCH: Cause.DTYPE,
    Status.SHAPE_MISMATCH: Cause.SHAPE,
    Status.NON_FINITE: Cause.NON_FINITE,
}
_ONE_SIDED = (Status.ONLY_IN_A, Status.ONLY_IN_B)


@dataclass(frozen=True)
class JudgedStep:
    """The pairs of one step and rank in causal order, each with its finding.

    A pair without a finding was not recorded by choice on one side, or cannot be compared.
    """

    plan: StepPlan
    judged: tuple[tuple[Pair, Finding | None], ...]


def conclude(steps: Sequence[JudgedStep], runs: tuple[Run, Run]) -> Verdict:
    """Return the verdict over all steps and ranks.

    Among ranks, whose clocks cannot be compared, the one that parts after the fewest entry events
    of its step comes first, key data in the order of a step; of equal ones the lowest.
    """
    findings = [f for step in steps for _, f in step.judged if f is not None]
    counts = Counter(str(finding.status) for finding in findings)
    candidates = [place for step in steps if (place := _first_divergence(step)) is not None]
    first: Divergence | None = None
    spread: tuple[Spread, ...] = ()
    if candidates and _compared_something(findings):
        step, index = min(candidates, key=_causal_order)
        first, spread = _explain(step, index, runs), _spread(step, index)
    return Verdict(
        status=_outcome(findings),
        counts={str(status): counts.get(str(status), 0) for status in Status},
        first_divergence=first,
        coverage=_coverage(steps),
        spread=spread,
        steps=len({step.plan.step for step in steps}),
        ranks=len({step.plan.rank for step in steps}),
        phases=tuple(dict.fromkeys(f.phase for f in findings if f.phase and f.entry)),
    )


def _outcome(findings: Sequence[Finding]) -> Outcome:
    if not _compared_something(findings):
        return Outcome.INCOMPARABLE
    if not all(finding.status.agrees for finding in findings):
        return Outcome.DIVERGED
    if all(finding.status is Status.IDENTICAL for finding in findings):
        return Outcome.IDENTICAL
    return Outcome.WITHIN_TOLERANCE


def _compared_something(findings: Sequence[Finding]) -> bool:
    return any(finding.status not in _ONE_SIDED for finding in findings)


def _coverage(steps: Sequence[JudgedStep]) -> tuple[CoverageGap, ...]:
    gaps: Counter[tuple[str, str]] = Counter()
    for step in steps:
        for pair, finding in step.judged:
            if finding is None:
                only_in = "both" if pair.a and pair.b else "A" if pair.a else "B"
                reason = pair.gap or f"values of type {pair.record.leaf.type} cannot be compared"
                gaps[reason, only_in] += 1
    return tuple(CoverageGap(reason, only_in, n) for (reason, only_in), n in gaps.items())


def _first_divergence(step: JudgedStep) -> tuple[JudgedStep, int] | None:
    for index, (_, finding) in enumerate(step.judged):
        if finding is not None and not finding.status.agrees:
            return step, index
    return None


def _spread(step: JudgedStep, index: int) -> tuple[Spread, ...]:
    """Return each phase and key from the first divergence on that holds a difference."""
    places: dict[str, list[Finding]] = {}
    for _, finding in step.judged[index:]:
        if finding is not None:
            places.setdefault(finding.key or finding.phase or "", []).append(finding)
    return tuple(
        _spread_of(place, findings)
        for place, findings in places.items()
        if not all(finding.status.agrees for finding in findings)
    )


def _spread_of(place: str, findings: Sequence[Finding]) -> Spread:
    metrics = [f.metrics for f in findings if f.metrics is not None]
    return Spread(
        place=place,
        different=sum(not finding.status.agrees for finding in findings),
        compared=len(findings),
        max_abs_err=max(
            (m.max_abs_err for m in metrics if m.max_abs_err is not None), default=None
        ),
        max_rel_err=max(
            (m.max_rel_err for m in metrics if m.max_rel_err is not None), default=None
        ),
    )


def _causal_order(place: tuple[JudgedStep, int]) -> tuple[float, ...]:
    step, index = place
    first = step.judged[index][0].event
    events = {pair.event for pair, _ in step.judged[:index] if pair.event.kind != DATA}
    within = (math.inf, 0, 0)
    if first.kind == DATA:
        within = (usual_place(first.name), key_order(first.name), first.micro_step)
    return step.plan.step, len(events - {first}), *within, step.plan.rank


def _explain(step: JudgedStep, index: int, runs: tuple[Run, Run]) -> Divergence:
    pair, finding = step.judged[index]
    assert finding is not None
    before = sum(1 for _, f in step.judged[:index] if f is not None)
    if pair.event.kind == DATA:
        cause, origin, why = _explain_data(step, index, runs)
    elif pair.event.kind == END:
        cause, origin, why = _explain_output(step, pair, finding, runs)
    else:
        cause, origin, why = _explain_begin(step, index, runs)
    cause = _NAMED_CAUSES.get(finding.status, cause)
    metrics = None if pair.record.leaf.type == "str" else finding.metrics  # bytes of a text
    return Divergence(
        step=finding.step,
        rank=finding.rank,
        phase=finding.phase,
        record=finding.record,
        entry=origin,
        cause=cause,
        max_abs_err=metrics.max_abs_err if metrics else None,
        max_rel_err=metrics.max_rel_err if metrics else None,
        explanation=_sentence(finding, why),
        agreed_before=before,
        next_step=_next_step(step, index, origin, runs),
    )


_WHAT_HAPPENED = {
    Status.UNREADABLE: "cannot be read",
    Status.ONLY_IN_A: "was recorded in A only",
    Status.ONLY_IN_B: "was recorded in B only",
    Status.DTYPE_MISMATCH: "has another dtype",
    Status.SHAPE_MISMATCH: "has another shape",
    Status.NON_FINITE: "is NaN or infinite on one side only",
    Status.DIFFERENT: "differs",
}


def _sentence(finding: Finding, why: str) -> str:
    note = f" ({finding.note})" if finding.note else ""
    return f"{finding.record} {_WHAT_HAPPENED[finding.status]}{note}. {why}"


def _explain_output(
    step: JudgedStep, pair: Pair, finding: Finding, runs: tuple[Run, Run]
) -> tuple[Cause, str, str]:
    assert pair.entry is not None
    name = pair.entry.name
    if finding.status in _ONE_SIDED:
        return Cause.MISSING, name, "What it was given agrees; it ended in one run only."
    parameters = any(record.io == "parameters" for record in pair.entry.records)
    given = "Its inputs and its parameters agree" if parameters else "Its inputs agree"
    inside = (pair.entry.phase, name) in {
        (phase, parent) for (phase, _), parent in step.plan.parents.items()
    }
    children = ", and so does everything recorded inside it" if inside else ""
    doubt = _doubt(runs) + _doubt_about_parameters(runs) + _doubt_about_agreement(step, pair)
    return Cause.COMPUTATION, name, f"{given}{children}: this cell computed something else.{doubt}"


def _explain_begin(
    step: JudgedStep, index: int, runs: tuple[Run, Run]
) -> tuple[Cause, str | None, str]:
    pair, finding = step.judged[index]
    assert finding is not None
    if pair.entry is None:
        return Cause.UNREADABLE, None, "Nothing of this phase can be compared."
    name, phase = pair.entry.name, pair.entry.phase
    if finding.io == "parameters":
        return (
            Cause.PARAMETER,
            name,
            "Everything before it agrees, but the cell already holds another parameter: look at "
            "loading, at weight synchronisation or at the previous update.",
        )
    parent = step.plan.parents.get((phase, pair.event.name))
    if finding.status in _ONE_SIDED and _whole_entry_missing(step, index):
        return Cause.MISSING, name, _absence(step, pair, finding, parent, runs)
    if parent is not None:
        return (
            Cause.COMPUTATION,
            parent,
            f"{parent} was given the same and handed this cell something else: the code of the "
            f"container itself, outside its cells, is the origin.{_doubt(runs)}"
            f"{_doubt_about_agreement(step, pair)}",
        )
    earlier = [
        p for p, f in step.judged[:index] if f is not None and p.entry and p.entry.phase == phase
    ]
    if earlier:
        why = (
            f"All {len(earlier)} records of {phase} before it agree; what entered this cell was "
            f"made outside the recorded cells."
        )
    elif _doubt(runs):
        why = f"It is the first recorded cell of {phase}."
    elif pair.entry.token:
        why = (
            f"Token {pair.entry.token} is the first one recorded: an earlier one may have differed."
        )
    else:
        why = f"What entered {phase} differs already: look at what the trainer handed to it."
    return Cause.INPUT, name, why + _doubt(runs)


def _whole_entry_missing(step: JudgedStep, index: int) -> bool:
    pair = step.judged[index][0]
    same = [p for p, _ in step.judged if p.event == pair.event]
    return all(p.a is None for p in same) or all(p.b is None for p in same)


def _absence(
    step: JudgedStep, pair: Pair, finding: Finding, parent: str | None, runs: tuple[Run, Run]
) -> str:
    """Say how much is missing beside the first missing entry, and whether that run was cut off."""
    in_a = finding.status is Status.ONLY_IN_A
    missing, run = ("B", runs[1]) if in_a else ("A", runs[0])
    same_phase = [
        f
        for p, f in step.judged
        if f is not None and p.entry is not None and p.entry.phase == pair.event.phase
    ]
    if all((p.b if in_a else p.a) is None for p, _ in step.judged):
        what = f"{missing} recorded nothing of step {finding.step} here."
    elif pair.entry is None:
        what = "The trainer saved it in one run only."
    elif all(f.status is finding.status for f in same_phase):
        what = f"{missing} recorded nothing of {finding.phase} in this step."
    else:
        what = f"The cell ran{f' inside {parent}' if parent else ''} in one run only."
    if run.manifests and not run.finished:
        what += f" {missing} was never closed ({run.state}): it was killed, failed or still runs."
    return what


def _explain_data(step: JudgedStep, index: int, runs: tuple[Run, Run]) -> tuple[Cause, None, str]:
    pair, finding = step.judged[index]
    assert finding is not None
    key, home = pair.event.name, pair.event.phase
    if finding.status in _ONE_SIDED:
        return Cause.MISSING, None, _absence(step, pair, finding, None, runs)
    cells = {p.entry.phase for p, f in step.judged[:index] if f is not None and p.entry}
    if key in INPUT_KEYS and home not in cells:
        made = "" if key == "prompts" else f", and the cells of {home} were not recorded"
        return Cause.INPUT, None, f"What enters the phases of this step differs already{made}."
    if home in cells and _counts_tokens(home):
        why = f"Every recorded cell of {home} agrees, but only some of its tokens were recorded."
    elif home in cells:
        why = f"Every recorded cell of {home} agrees: the trainer's own arithmetic made it differ."
    elif home is not None:
        why = f"The cells of {home}, which it comes from, were not recorded in both runs."
    elif cells:
        why = "Every recorded cell before it agrees: the trainer's own arithmetic made it differ."
    else:
        why = "No cell before it was recorded in both runs; all key data before it agree."
    return Cause.DATA, None, why + (_doubt(runs) if cells else "")


def _doubt(runs: tuple[Run, Run]) -> str:
    """Say that a cell which was left out may be to blame instead."""
    if not _filtered(runs):
        return ""
    return " But cells were left out by include/exclude, and one of those may be to blame."


def _doubt_about_agreement(step: JudgedStep, pair: Pair) -> str:
    """Say that what came before agrees by statistics or within a tolerance only."""
    for other, finding in step.judged:
        if finding is None or other.event.phase != pair.event.phase:
            continue
        if finding.status is Status.WITHIN_TOLERANCE:
            return (
                " But some records agree within a tolerance or by statistics only, not bit for bit."
            )
    return ""


def _counts_tokens(phase: str | None) -> bool:
    table = phase_table({})
    return phase in table and table[phase].counts_tokens


def _doubt_about_parameters(runs: tuple[Run, Run]) -> str:
    if all(config is None or config.parameters for config in _configs(runs)):
        return ""
    return " But its parameters were not recorded (parameters: false), and may be to blame."


def _filtered(runs: tuple[Run, Run]) -> bool:
    return any(config and (config.include or config.exclude) for config in _configs(runs))


def _configs(runs: tuple[Run, Run]) -> list[ProbeConfig | None]:
    return [run.config() for run in runs]


def _next_step(
    step: JudgedStep, index: int, origin: str | None, runs: tuple[Run, Run]
) -> dict[str, Any] | None:
    """Return the msprobe_config section that records the place of the divergence more closely.

    None where recording more would tell no more: something is missing, the elements are at hand,
    or the cells before key data were recorded already.
    """
    pair, finding = step.judged[index]
    assert finding is not None
    config = runs[0].config(finding.rank)
    table = config.phase_table() if config else phase_table({})
    phase = table.get(finding.phase or "")
    if phase is None or finding.status in (*_ONE_SIDED, Status.UNREADABLE):
        return None
    if finding.key in ("prompt", "prompts"):  # nothing of the step has run yet
        return None
    section: dict[str, Any] = {"msprobe": True}
    if config and config.phases:
        section["phases"] = dict(config.phases)
    if config and config.initial_step:
        section["initial_step"] = config.initial_step
    if phase.switch is not None:
        section[phase.switch] = True
    section.update(step_start=finding.step, step_end=finding.step)
    if phase.counts_tokens:
        section["token_range_end"] = _last_token(pair, finding)
    recorded = {p.entry.phase for p, f in step.judged if f is not None and p.entry}
    if pair.entry is None:
        return None if phase.name in recorded and not phase.counts_tokens else section
    if _filtered(runs):  # the culprit may be a cell that was left out
        return section
    if config is not None and config.task == "tensor":
        return None
    section["task"] = "tensor"
    cell = cell_name(origin) if origin else pair.entry.cell
    if cell != "root":
        section["include"] = [f"^{re.escape(cell)}(\\.|$)"]
    return section


def _last_token(pair: Pair, finding: Finding) -> int:
    """Return the last token whose layers may hold the origin.

    For texts and tokens, the length along the last axis, because the place of the first
    difference says where in the batch it lies, not which pass made it.
    """
    if pair.entry is not None:
        return pair.entry.token or 0
    lengths = [side.shape[-1] for side in (finding.a, finding.b) if side.shape]
    return max(lengths, default=0)
