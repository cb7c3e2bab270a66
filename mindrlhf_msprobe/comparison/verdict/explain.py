"""Why two runs first differ there: the cause, the origin, and the messages that say so."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.judging.non_finite import sides
from mindrlhf_msprobe.comparison.judging.status import FILE_CHANGED
from mindrlhf_msprobe.comparison.pairing.names import ROOT
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.comparison.pairing.timeline import DATA, END
from mindrlhf_msprobe.comparison.preflight.generation import OwnStep
from mindrlhf_msprobe.comparison.preflight.preflight import remark, without_consequences
from mindrlhf_msprobe.comparison.verdict.axes import with_axes
from mindrlhf_msprobe.comparison.verdict.compared_place import (
    ONE_SIDED,
    JudgedStep,
    configs,
    is_filtered,
)
from mindrlhf_msprobe.comparison.verdict.culprits.check_first import check_first
from mindrlhf_msprobe.comparison.verdict.culprits.culprits import culprit_of, culprit_reasons
from mindrlhf_msprobe.comparison.verdict.culprits.gradients import (
    before_optimizer,
    enters_optimizer,
)
from mindrlhf_msprobe.comparison.verdict.culprits.sampling import all_tokens, counts_tokens
from mindrlhf_msprobe.comparison.verdict.history import History
from mindrlhf_msprobe.comparison.verdict.inside import inside
from mindrlhf_msprobe.comparison.verdict.next_recording.bisection import bisected
from mindrlhf_msprobe.comparison.verdict.next_recording.next_step import next_step
from mindrlhf_msprobe.comparison.verdict.next_recording.size import estimated_size, size_of
from mindrlhf_msprobe.comparison.verdict.next_recording.update import (
    DECIDED,
    next_update,
    with_phases,
)
from mindrlhf_msprobe.comparison.verdict.occasion import occasion_of, occasion_reasons
from mindrlhf_msprobe.findings import (
    Cause,
    Culprit,
    Divergence,
    Finding,
    Preflight,
    Status,
)
from mindrlhf_msprobe.phases import INPUT_KEYS, key_data_home, phase_table
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Entry

_NAMED_CAUSES = {
    Status.UNREADABLE: Cause.UNREADABLE,
    Status.ONLY_IN_A: Cause.MISSING,
    Status.ONLY_IN_B: Cause.MISSING,
    Status.DTYPE_MISMATCH: Cause.DTYPE,
    Status.SHAPE_MISMATCH: Cause.SHAPE,
    Status.NON_FINITE: Cause.NON_FINITE,
}
_PROMPTS = ("prompt", "prompts")  # nothing of the step has run before them

#: What is said of a cause, a sentence a message.
_Reasons = tuple[Message, ...]
#: Cause, origin, and why.
_Explained = tuple[Cause, str | None, _Reasons]


def explain(
    step: JudgedStep,
    index: int,
    runs: tuple[Run, Run],
    preflight: Preflight,
    history: History,
    *,
    agreed_steps: int,
) -> Divergence:
    """Return the first divergence, the `index`-th pair of its place, with its cause and origin.

    Args:
        history: the places of its rank.
        agreed_steps: how many earlier steps agree.
    """
    pair, finding = step.judged[index]
    assert finding is not None
    cause, origin, why = _cause(step, index, runs)
    before = [f for _, f in step.judged[:index] if f is not None]
    found = Divergence(
        step=finding.step,
        rank=finding.rank,
        phase=finding.phase,
        record=finding.record,
        entry=origin,
        cause=_NAMED_CAUSES.get(finding.status, cause),
        max_abs_err=None,
        max_rel_err=None,
        reasons=(_happened(finding), *why),
        agreed_before=len(before),
        agreed_phases=_agreed_phases(step, index),
        agreed_steps=agreed_steps,
        last_agreeing=before[-1].record if before else None,
        key=finding.key,
        argument=finding.argument,
    )
    if cause is Cause.FILE:  # nothing else is known
        return found
    phase = phase_table({}).get(finding.phase or "")
    cause = found.cause
    a, b = (OwnStep(view.run, *view.own(finding.step, finding.rank)) for view in history.sides)
    checks = check_first(preflight, step, index, cause, origin, (a, b))
    preflight = without_consequences(preflight, finding.step)
    hint = remark(preflight, phase.role if phase else None, told=bool(checks))
    occasion = occasion_of(step, index)
    by_name = step.left_out and not step.left_out.all_else
    culprit = None if by_name else culprit_of(step, index, runs, history, occasion)
    if culprit is not None:
        why = culprit_reasons(culprit, finding, why)
    why = (*why, *occasion_reasons(occasion, finding))
    proposed = _proposed(step, index, origin, runs, culprit)
    metrics = None if pair.record.leaf.type == "str" else finding.metrics  # bytes of a text
    max_abs_err, max_rel_err = None, None
    if metrics is not None:
        max_abs_err, max_rel_err = metrics.max_abs_err, metrics.max_rel_err
    return replace(
        found,
        max_abs_err=max_abs_err,
        max_rel_err=max_rel_err,
        reasons=(_happened(finding), *why, *hint),
        next_step=proposed.settings,
        next_step_bytes=proposed.size,
        next_step_estimated=proposed.estimated,
        next_step_whole=proposed.whole,
        occasion=occasion,
        culprit=culprit,
        non_finite_in=sides(finding) if finding.status is Status.NON_FINITE else (),
        check_first=checks,
        inside=with_axes(inside(step, index), step, index, runs),
        source=_source(step, pair, origin),
    )


def _cause(step: JudgedStep, index: int, runs: tuple[Run, Run]) -> _Explained:
    """Return the cause, the origin and why, as far as the records before the finding tell it."""
    pair, finding = step.judged[index]
    assert finding is not None
    if finding.status is Status.UNREADABLE:
        return _explain_unreadable(pair)
    if any(note.code == FILE_CHANGED for note in finding.notes):
        origin = pair.entry.name if pair.entry else None
        return Cause.FILE, origin, (message("explanation.file_changed"),)
    if step.left_out and finding.status not in ONE_SIDED and finding.key not in _PROMPTS:
        return _explain_chosen(step, pair, finding)
    if pair.event.kind == DATA:
        return _explain_data(step, index, runs)
    if pair.event.kind == END:
        return _explain_output(step, index, runs)
    return _explain_begin(step, index, runs)


class _Proposed(NamedTuple):
    """What to record next, and what that takes, as `Divergence` has it."""

    settings: dict[str, Any] | None
    size: int | None
    estimated: bool
    whole: int | None


def _proposed(
    step: JudgedStep,
    index: int,
    origin: str | None,
    runs: tuple[Run, Run],
    culprit: Culprit | None,
) -> _Proposed:
    finding = step.judged[index][1]
    assert finding is not None
    # What was left out of the comparison is on disk: comparing it comes first.
    settings = None if step.left_out else _next(step, index, origin, runs, culprit)
    sizes = _Sizes(step, finding, runs)
    whole = sizes(settings)
    if settings is not None:
        settings = bisected(settings, step, index, runs, sizes)
    size = sizes(settings)
    return _Proposed(settings, size, sizes.estimated, whole if size != whole else None)


class _Sizes:
    """What settings take, from what was recorded, else from the cells of the networks.

    Attributes:
        estimated: whether the last answer is from the cells.
    """

    def __init__(self, step: JudgedStep, finding: Finding, runs: tuple[Run, Run]) -> None:
        self._step, self._finding, self._runs = step, finding, runs
        self.estimated = False

    def __call__(self, settings: Mapping[str, Any] | None) -> int | None:
        """Return how many bytes one step of one rank takes, None where that is not known."""
        wanted = None if settings is None else dict(settings)
        exact = size_of(wanted, self._finding, self._runs)
        self.estimated = exact is None
        if exact is not None:
            return exact
        about = estimated_size(wanted, self._finding, self._step, self._runs[0])
        self.estimated = about is not None
        return about


def _next(
    step: JudgedStep,
    index: int,
    origin: str | None,
    runs: tuple[Run, Run],
    culprit: Culprit | None,
) -> dict[str, Any] | None:
    """Return what to record next, as far as the culprit is not found."""
    finding = step.judged[index][1]
    assert finding is not None
    if culprit is not None and culprit.code in DECIDED:
        return None
    config = runs[0].config(finding.rank)
    update = culprit and next_update(culprit, finding, config)
    return update or with_phases(culprit, next_step(step, index, origin, runs), config)


def _source(step: JudgedStep, pair: Pair, origin: str | None) -> str:
    """Return where the origin was called, the line included; "" for key data, or if not known.

    A backward entry has no call of its own in the user's code: that of its forward entry counts.
    """
    name = origin or (pair.entry.name if pair.entry else None)
    if name is None:
        return ""
    stacks = {
        p.entry.name: p.entry.stack
        for p, _ in step.judged
        if p.entry is not None and p.event.phase == pair.event.phase
    }
    forward = ".forward.".join(name.rsplit(".backward.", 1))
    stack = stacks.get(name) or stacks.get(forward) or ()
    if not stack:
        return ""
    place, _, line = stack[0].partition("\n")
    return ": ".join(filter(None, [place.rstrip(", "), line.strip()]))


def _explain_chosen(step: JudgedStep, pair: Pair, finding: Finding) -> _Explained:
    """Explain the first difference among the records that the caller wanted compared.

    What was left out before it is not known to agree.
    """
    unseen = step.left_out
    doubt = message("explanation.left_out_all")
    if not unseen.all_else:
        inside = pair.event.kind == END
        doubt = message("explanation.left_out", records=unseen.records, inside=inside)
    if pair.entry is None:
        return Cause.DATA, None, (doubt,)
    name = pair.entry.name
    if unseen.given:
        given = message("explanation.given_left_out", given=list(unseen.given))
        return Cause.INPUT, name, (given,)
    if finding.io == "parameters":
        return Cause.PARAMETER, name, (doubt,)
    if pair.event.kind != END:
        return Cause.INPUT, name, (message("explanation.given_differs"), doubt)
    return Cause.COMPUTATION, name, (message("explanation.given_agrees"), doubt)


def unreadable_place(finding: Finding) -> Divergence:
    """Return the first divergence of a place that could not be compared as a whole."""
    return Divergence(
        step=finding.step,
        rank=finding.rank,
        phase=None,
        record=finding.record,
        entry=None,
        cause=Cause.UNREADABLE,
        max_abs_err=None,
        max_rel_err=None,
        reasons=(_happened(finding), message("explanation.place_unreadable")),
        key=finding.key,
    )


def not_reached(
    pair: Pair,
    at: tuple[int, int],
    runs: tuple[Run, Run],
    records: int,
    agreed_before: int,
    agreed_steps: int,
) -> Divergence:
    """Return the divergence of two runs of which one had stopped, and that agree until then.

    Args:
        pair: the first that one run lacks, and `at` its step and rank.
        records: how many records the run lacks for that.
        agreed_before, agreed_steps: how many records of the step, and earlier steps, agree.
    """
    missing, other = ("B", "A") if pair.b is None else ("A", "B")
    step, rank = at
    stop = runs[missing == "B"].stop_of(rank)
    phase = pair.event.phase if pair.entry is not None else None
    if stop is not None and stop.step == step and stop.phase is not None:
        phase = stop.phase
    return Divergence(
        step=step,
        rank=rank,
        phase=phase,
        record=pair.record.name,
        entry=None,
        cause=Cause.STOPPED,
        max_abs_err=None,
        max_rel_err=None,
        reasons=(
            message("explanation.not_reached", stopped=missing, other=other, records=records),
        ),
        agreed_before=agreed_before,
        agreed_steps=agreed_steps,
    )


def _agreed_phases(step: JudgedStep, index: int) -> int:
    """Return how many phases ran before that of the divergence, and agree so far."""
    before = {p.event.phase for p, f in step.judged[:index] if f is not None and p.entry}
    return len(before - {step.judged[index][0].event.phase})


def _explain_unreadable(pair: Pair) -> _Explained:
    if pair.record.leaf.type == "unreadable":  # of more than one record
        return Cause.UNREADABLE, None, (message("explanation.unreadable_files"),)
    prints = [record.leaf.fingerprint for record in (pair.a, pair.b) if record is not None]
    known = len(prints) == 2 and None not in prints
    agree = prints[0] == prints[1] if known else None
    why = message("explanation.unreadable", fingerprints_agree=agree)
    return Cause.UNREADABLE, pair.entry.name if pair.entry else None, (why,)


def _happened(finding: Finding) -> Message:
    return message(
        "explanation.happened",
        record=finding.record,
        argument=finding.argument,
        status=finding.status.value,
        note=message("note.all", notes=list(finding.notes)),
    )


def _explain_output(
    step: JudgedStep, index: int, runs: tuple[Run, Run]
) -> tuple[Cause, str, _Reasons]:
    pair, finding = step.judged[index]
    assert finding is not None
    assert pair.entry is not None
    name = pair.entry.name
    if finding.status in ONE_SIDED:
        return Cause.MISSING, name, (_output_in_one_run(step, index),)
    if pair.entry.direction == "parameters_grad":
        return _explain_parameter_gradient(step, index, name)
    parameters = any(record.io == "parameters" for record in pair.entry.records)
    given = "inputs_and_parameters" if parameters else "inputs"
    if pair.entry.direction == "backward":
        given = "gradient"
    inside = (pair.entry.phase, name) in {
        (phase, parent) for (phase, _), parent in step.plan.parents.items()
    }
    why = (
        message("explanation.cell_computed", given=given, inside=inside),
        *_doubt(runs, step, finding, name),
        *_doubt_about_parameters(runs),
        *_doubt_about_agreement(step, pair),
        *_doubt_about_opaque(step, pair),
    )
    return Cause.COMPUTATION, name, why


def _output_in_one_run(step: JudgedStep, index: int) -> Message:
    pair = step.judged[index][0]
    if _missing_as_a_whole(step, index):
        return message("explanation.ended_in_one_run")
    if pair.a is not None and pair.b is not None:
        return message("explanation.gradient_in_one_run")
    return message("explanation.returned_otherwise")


def _explain_parameter_gradient(
    step: JudgedStep, index: int, name: str
) -> tuple[Cause, str, _Reasons]:
    pair = step.judged[index][0]
    why: _Reasons = (message("explanation.parameter_gradient"),)
    if before_optimizer(step, index):
        return Cause.DATA, name, why  # the culprit says more
    if enters_optimizer(pair):
        why = (*why, message("explanation.gradient_at_optimizer"))
    return Cause.COMPUTATION, name, (*why, *_doubt_about_agreement(step, pair))


def _explain_begin(step: JudgedStep, index: int, runs: tuple[Run, Run]) -> _Explained:
    pair, finding = step.judged[index]
    assert finding is not None
    if pair.entry is None:
        return Cause.UNREADABLE, None, (message("explanation.phase_unreadable"),)
    name, phase = pair.entry.name, pair.entry.phase
    if finding.io == "parameters" and finding.status in ONE_SIDED:
        return Cause.MISSING, name, (message("explanation.parameter_in_one_run"),)
    if finding.io == "parameters":
        return Cause.PARAMETER, name, (message("explanation.parameter"),)
    parent = step.plan.parents.get((phase, pair.event.name))
    if finding.status in ONE_SIDED and _missing_as_a_whole(step, index):
        return Cause.MISSING, name, (_absence(step, pair, finding, parent),)
    what = "gradient" if pair.entry.direction == "backward" else "input"
    if parent is not None:
        why = (
            message("explanation.container", container=parent, given=what),
            *_doubt(runs, step, finding, parent),
            *_doubt_about_agreement(step, pair),
        )
        return Cause.COMPUTATION, parent, why
    entered = _entered(step, index, runs, pair.entry)
    return Cause.INPUT, name, (entered, *_doubt(runs, step, finding, name))


def _entered(step: JudgedStep, index: int, runs: tuple[Run, Run], entry: Entry) -> Message:
    """Say where a cell that lies in no other recorded one has its other input from."""
    finding = step.judged[index][1]
    assert finding is not None
    phase, gradient = entry.phase, entry.direction == "backward"
    earlier = sum(
        f is not None and p.entry is not None and p.entry.phase == phase
        for p, f in step.judged[:index]
    )
    if earlier:
        code = "explanation.gradient_after" if gradient else "explanation.input_after"
        return Message(code, {"records": earlier, "phase": phase})
    if is_filtered(runs):
        return _entered_among_some(step, finding, entry)
    if entry.token:
        return message("explanation.first_token", token=entry.token)
    return message("explanation.phase_input", phase=phase)


def _entered_among_some(step: JudgedStep, finding: Finding, entry: Entry) -> Message:
    """Say the same where cells were left out by their names."""
    if not _known(step, finding, entry.name):
        return message("explanation.first_recorded_cell", phase=entry.phase)
    if entry.direction == "backward":
        return message("explanation.gradient")
    if entry.cell != ROOT:
        return message("explanation.input")
    if entry.token:
        return message("explanation.token_input", token=entry.token)
    return message("explanation.phase_input", phase=entry.phase)


def _missing_as_a_whole(step: JudgedStep, index: int) -> bool:
    pair = step.judged[index][0]
    same = [p for p, _ in step.judged if p.event == pair.event]
    return all(p.a is None for p in same) or all(p.b is None for p in same)


def _absence(
    step: JudgedStep, pair: Pair, finding: Finding, container: str | None = None
) -> Message:
    """Say how much is missing beside the first missing entry."""
    in_a = finding.status is Status.ONLY_IN_A
    missing = "B" if in_a else "A"

    def lacks(pairs: Iterable[Pair]) -> bool:
        return all((pair.b if in_a else pair.a) is None for pair in pairs)

    if lacks(p for p, _ in step.judged):
        return message("explanation.nothing_of_step", run=missing, step=finding.step)
    if pair.entry is None:
        if lacks(p for p, _ in step.judged if p.event == pair.event):
            return message("explanation.saved_in_one_run")
        return message("explanation.other_elements", key=pair.event.name)
    if lacks(_of_phase(step, pair.event.phase)):
        return message("explanation.nothing_of_phase", run=missing, phase=finding.phase)
    return message("explanation.ran_in_one_run", container=container)


def _of_phase(step: JudgedStep, phase: str | None) -> Iterator[Pair]:
    """Yield the pairs of a phase's entries that count: those with a finding, or of both runs."""
    for pair, finding in step.judged:
        counts = finding is not None or (pair.a is not None and pair.b is not None)
        if counts and pair.entry is not None and pair.entry.phase == phase:
            yield pair


def _explain_data(
    step: JudgedStep, index: int, runs: tuple[Run, Run]
) -> tuple[Cause, None, _Reasons]:
    pair, finding = step.judged[index]
    assert finding is not None
    key, home = pair.event.name, pair.event.phase
    if finding.status in ONE_SIDED:
        return Cause.MISSING, None, (_absence(step, pair, finding),)
    cells = {p.entry.phase for p, f in step.judged[:index] if f is not None and p.entry}
    given = key_data_home(key)
    before_it = given is not None and given.before_phase
    if key in INPUT_KEYS and (before_it or home not in cells):
        unseen = None if before_it else home
        return Cause.INPUT, None, (message("explanation.step_input", not_recorded=unseen),)
    return Cause.DATA, None, (_made(step, index, runs, cells), *(_doubt(runs) if cells else ()))


def _made(step: JudgedStep, index: int, runs: tuple[Run, Run], phases: Collection[str]) -> Message:
    """Say what is known of the cells that a key comes of; `phases` are those recorded before it."""
    pair = step.judged[index][0]
    home = pair.event.phase
    if home in phases and counts_tokens(home) and not all_tokens(step, home, runs, pair):
        return message("explanation.some_tokens", phase=home)
    if home in phases:
        return _cells_agree(step, index, home)
    if home is not None:
        switch = phase_table({})[home].switch
        return message("explanation.phase_not_recorded", phase=home, switch=switch)
    return _cells_agree(step, index) if phases else message("explanation.no_cell_before")


def _cells_agree(step: JudgedStep, index: int, phase: str | None = None) -> Message:
    """Say what it means that the cells before a key agree: all of them, or those of a phase."""
    statuses = [
        finding.status
        for pair, finding in step.judged[:index]
        if finding is not None and pair.entry and phase in (None, pair.entry.phase)
    ]
    close = sum(status is Status.WITHIN_TOLERANCE for status in statuses)
    return message("explanation.cells_agree", phase=phase, close=close, records=len(statuses))


def _doubt(
    runs: tuple[Run, Run],
    step: JudgedStep | None = None,
    finding: Finding | None = None,
    origin: str | None = None,
) -> _Reasons:
    """Say that a cell which was left out may be to blame instead, unless that is known."""
    if not is_filtered(runs):
        return ()
    if step is not None and finding is not None and _known(step, finding, origin):
        return ()
    return (message("explanation.but_filtered"),)


def _known(step: JudgedStep, finding: Finding, origin: str | None) -> bool:
    """Tell whether an earlier comparison looked at all cells, and blamed this one."""
    return step.earlier is not None and step.earlier.knows(finding, origin)


def _doubt_about_agreement(step: JudgedStep, pair: Pair) -> _Reasons:
    """Say that what came before agrees by statistics or within a tolerance only."""
    for other, finding in step.judged:
        if finding is None or other.event.phase != pair.event.phase:
            continue
        if finding.status is Status.WITHIN_TOLERANCE:
            return (message("explanation.but_not_bitwise"),)
    return ()


def _doubt_about_opaque(step: JudgedStep, pair: Pair) -> _Reasons:
    """Say that the cell was given something that cannot be compared."""
    for other, finding in step.judged:
        same = other.event.name == pair.event.name and other.event.phase == pair.event.phase
        if same and finding is None and other.a is not None and other.b is not None:
            record = other.record
            return (message("explanation.but_opaque", record=record.name, type=record.leaf.type),)
    return ()


def _doubt_about_parameters(runs: tuple[Run, Run]) -> _Reasons:
    if all(config is None or config.parameters for config in configs(runs)):
        return ()
    return (message("explanation.but_no_parameters"),)
