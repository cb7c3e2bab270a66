"""Why two runs first differ there: the cause, the origin, and the messages that say so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.rules import Rule, first_answer, rule
from mindrlhf_msprobe.comparison.judging.status import FILE_CHANGED
from mindrlhf_msprobe.comparison.judging.suspicion import sides
from mindrlhf_msprobe.comparison.judging.tolerance import is_across
from mindrlhf_msprobe.comparison.pairing.composed import gap_of
from mindrlhf_msprobe.comparison.pairing.frameworks.records import made_in_forms
from mindrlhf_msprobe.comparison.pairing.names import OUTER, ROOT
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.comparison.pairing.timeline import BEGIN, DATA, END
from mindrlhf_msprobe.comparison.preflight.preflight import (
    remark,
    resumed_differently,
    without_consequences,
)
from mindrlhf_msprobe.comparison.verdict import culprits, next_step, occasion
from mindrlhf_msprobe.comparison.verdict.axes import with_axes
from mindrlhf_msprobe.comparison.verdict.beyond_rounding import error_begins, said_of_beginning
from mindrlhf_msprobe.comparison.verdict.first_difference import (
    ONE_SIDED,
    FirstDifference,
    Need,
    both_hold,
    configs,
    direction,
    event,
    key,
    of_entries,
    part,
    status,
)
from mindrlhf_msprobe.comparison.verdict.inside import inside
from mindrlhf_msprobe.comparison.verdict.sampling import all_tokens, counts_tokens
from mindrlhf_msprobe.findings import Cause, Culprit, Divergence, Finding, Preflight, Status
from mindrlhf_msprobe.phases import (
    INPUT_KEYS,
    PROMPTS,
    key_data_home,
    phase_table,
    role_of,
    standard_key,
)
from mindrlhf_msprobe.storage.manifest.run_file import COUNTER, counted_at
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, Record

_NAMED_CAUSES = {
    Status.UNREADABLE: Cause.UNREADABLE,
    Status.ONLY_IN_A: Cause.MISSING,
    Status.ONLY_IN_B: Cause.MISSING,
    Status.DTYPE_MISMATCH: Cause.DTYPE,
    Status.SHAPE_MISMATCH: Cause.SHAPE,
    Status.NON_FINITE: Cause.NON_FINITE,
}

#: Cause, origin, and why, a sentence a message.
_Explained = tuple[Cause, str | None, Messages]


def explain(first: FirstDifference, preflight: Preflight, *, agreed_steps: int) -> Divergence:
    """Return the first divergence with its cause and origin.

    Args:
        agreed_steps: how many earlier steps agree.
    """
    finding, history = first.finding, first.history
    explained = first_answer(_CAUSES, first)
    assert explained is not None
    cause, origin, why = explained
    before = [f for _, f in first.before if f is not None]
    found = Divergence(
        step=finding.step,
        rank=finding.rank,
        phase=finding.phase,
        record=finding.record,
        entry=origin,
        cause=_NAMED_CAUSES.get(finding.status, cause),
        reasons=(happened(finding), *why),
        agreed_before=len(before),
        agreed_phases=len(_phases_compared(first) - {first.event.phase}),
        agreed_steps=agreed_steps,
        last_agreeing=before[-1].record if before else None,
        key=finding.key,
        argument=finding.argument,
    )
    if cause is Cause.FILE:  # nothing else is known
        return found
    phase = phase_table({}).get(finding.phase or "")
    checks = culprits.check_first(preflight, first, found.cause, origin)
    preflight = without_consequences(preflight, finding.step)
    when = occasion.occasion_of(first)
    by_name = first.left_out and not first.left_out.all_else
    culprit, failed = (
        (None, ()) if by_name or first.is_of_state else culprits.EXPLANATIONS.answer(first)
    )
    drawn = culprit is None or culprit.code not in culprits.OF_WHAT_AGREES
    role = phase.role if phase else None
    hint = remark(preflight, role, known=bool(checks), drawn=drawn)
    if drawn and found.cause is not Cause.COMPUTATION:
        hint = (*hint, *resumed_differently(preflight, finding.step))
    if first.is_of_state and (resumed := _resumed(first, preflight)):
        why, hint = (message("explanation.state_of_resumed"), *resumed), ()
    if culprit is not None:
        why = culprits.culprit_reasons(culprit, finding, why)
    earlier = first.step.plan.pairs[first.index]
    if earlier is not first.pair:  # recorded before it, a parameter, and may come of it
        why = (*why, message("explanation.recorded_late", record=earlier.record.name))
    why = (*why, *occasion.occasion_reasons(when, finding), *history.in_two_roles(finding))
    beginning = error_begins(first)
    if beginning is not None:
        why = (*why, *said_of_beginning(beginning))
    # Where the origin was called, the line included; for key data where the network was called
    # whose output they are made of.
    made_of = output_before(first)
    frame = occasion.frame_of(first, origin if made_of is None else made_of[0].name) or ""
    where, _, line = frame.partition("\n")
    metrics = None if first.record.leaf.type == "str" else finding.metrics  # bytes of a text
    return replace(
        found,
        max_abs_err=metrics.max_abs_err if metrics else None,
        max_rel_err=metrics.max_rel_err if metrics else None,
        reasons=(happened(finding), *why, *hint, *failed),
        **_proposed(first, origin if beginning is None else beginning.entry, culprit),
        born=beginning,
        occasion=when,
        culprit=culprit,
        non_finite_in=sides(finding) if finding.status is Status.NON_FINITE else (),
        check_first=checks,
        inside=with_axes(inside(first), first),
        source=": ".join(filter(None, [where.rstrip(", "), line.strip()])),
        **occasion.place_of(first, origin),
    )


def _resumed(first: FirstDifference, preflight: Preflight) -> Messages:
    """Return which run went on with another state of the optimizer than the one that differs.

    As the runs' settings say, or as its own state after the step before says.
    """
    step, entry, history = first.finding.step, first.called, first.history
    if said := resumed_differently(preflight, step, at_step=True):
        return said
    for name, view in zip("AB", history.sides):
        own_step, own_rank = view.own(step, history.rank)
        recorded = [
            record.leaf.max
            for other in view.entries(entry.phase, step - 1, history.rank)
            if other.name == entry.name
            for record in other.records
            if record.path.rpartition(".")[2] == COUNTER and type(record.leaf.max) is int
        ]
        counts = counted_at(view.run.run_files, own_rank, own_step, role_of(entry.phase))
        for optimizer, count in counts.items():
            if len(counts) == len(recorded) == 1 and count < recorded[0]:
                known = {"side": name, "step": step, "optimizer": optimizer}
                note = message("preflight.resumed", **known, count=count, against=recorded[0])
                return (message("remark.sentence", what=note),)
    return ()


def _proposed(
    first: FirstDifference, origin: str | None, culprit: Culprit | None
) -> dict[str, Any]:
    """Return what to record next, and what that takes, as `Divergence` has it."""
    settings = None
    is_decided = culprit is not None and culprit.code in next_step.DECIDED
    # What was left out of the comparison is on disk: comparing it comes first.
    if not (is_decided or first.left_out or first.is_of_state):
        update = culprit and next_step.next_update(culprit, first)
        settings = update or next_step.with_phases(
            culprit, next_step.next_step(first, origin), first
        )
    whole, estimated = next_step.size_of_next(settings, first)
    size = whole
    if settings is not None:
        settings = next_step.bisected(settings, first)
        size, estimated = next_step.size_of_next(settings, first)
    return {
        "next_step": settings,
        "next_step_bytes": size,
        "next_step_estimated": estimated,
        "next_step_whole": whole if size != whole else None,
    }


@rule(both_hold, lambda first: bool(first.left_out) and first.finding.key not in PROMPTS)
def _chosen(first: FirstDifference) -> _Explained:
    """Explain the first difference among the records that the caller wanted compared."""
    unseen, at_end = first.left_out, first.event.kind == END
    doubt = message("explanation.left_out_all")
    if not unseen.all_else:
        doubt = message("explanation.left_out", records=unseen.records, inside=at_end)
    if first.entry is None:
        return Cause.DATA, None, (doubt,)
    name = first.entry.name
    if unseen.given:
        given = message("explanation.given_left_out", given=list(unseen.given))
        return Cause.INPUT, name, (given,)
    if first.finding.io == "parameters":
        return Cause.PARAMETER, name, (doubt,)
    if not at_end:
        return Cause.INPUT, name, (message("explanation.given_differs"), doubt)
    return Cause.COMPUTATION, name, (message("explanation.given_agrees"), doubt)


def _phases_compared(first: FirstDifference) -> set[str]:
    """Return the phases of which cells were compared before the divergence."""
    return {entry.phase for _, f, entry in of_entries(first.before) if f is not None}


@rule(status(Status.UNREADABLE))
def _unreadable(first: FirstDifference) -> _Explained:
    pair = first.pair
    if pair.record.leaf.type == "unreadable":  # of more than one record
        return Cause.UNREADABLE, None, (message("explanation.unreadable_files"),)
    if any(note.code == "note.nan_hides" for note in first.finding.notes):
        return Cause.UNREADABLE, first.origin, (message("explanation.nan_hides"),)
    from mindrlhf_msprobe.comparison.layouts.joining import NO_SUCH_DIMENSION, UNLIKE_PARTS

    held = [record.leaf for record in (pair.a, pair.b) if record is not None]
    codes = {leaf.why.code for leaf in held if leaf.why is not None}
    if codes & {NO_SUCH_DIMENSION, UNLIKE_PARTS}:
        return Cause.UNREADABLE, first.origin, (message("explanation.layout_unfit"),)
    prints = [leaf.fingerprint for leaf in held]
    known = len(prints) == 2 and None not in prints
    agree = prints[0] == prints[1] if known else None
    why = message("explanation.unreadable", fingerprints_agree=agree)
    return Cause.UNREADABLE, first.origin, (why,)


def _file_changed(first: FirstDifference) -> _Explained | None:
    """Explain elements in the file of one run that are not those which were recorded."""
    if not any(note.code == FILE_CHANGED for note in first.finding.notes):
        return None
    sides = (("A", first.pair.a), ("B", first.pair.b))
    found = [name for name, r in sides if r is not None and r.holds_what_was_recorded() is False]
    run = found[0] if len(found) == 1 else None
    return Cause.FILE, first.origin, (message("explanation.file_changed", run=run),)


def happened(finding: Finding) -> Message:
    """Say what was found of a record."""
    return message(
        "explanation.happened",
        record=finding.record,
        argument=finding.argument,
        status=finding.status.value,
        note=message("note.all", notes=list(finding.notes)),
    )


@rule(event(END), status(*ONE_SIDED))
def _output_in_one_run(first: FirstDifference) -> _Explained:
    said = message("explanation.returned_otherwise")
    if _missing_as_a_whole(first):
        said = message("explanation.ended_in_one_run")
    elif first.pair.a is not None and first.pair.b is not None:
        said = message("explanation.gradient_in_one_run")
    return Cause.MISSING, first.origin, (said,)


@rule(event(END), lambda first: first.is_of_state)
def _state_of_optimizer(first: FirstDifference) -> _Explained:
    """Explain what is known of the update after which the state of an optimizer differs."""
    entry, before, history = first.called, first.finding.step - 1, first.history
    gradients = any(
        found is not None
        for _, found, _ in of_entries(first.before, entry.phase, direction=PARAMETERS_GRAD)
    )
    kept = history.before(before + 1)[:1] == [before] and all(
        any(other.name == entry.name for other in view.entries(entry.phase, before, history.rank))
        for view in history.sides
    )
    said = message("explanation.optimizer_state", gradients=gradients, before=kept, step=before)
    return Cause.PARAMETER, first.origin, (said,)


@rule(event(END), direction(PARAMETERS_GRAD))
def _parameter_gradient(first: FirstDifference) -> _Explained:
    why: Messages = (message("explanation.parameter_gradient"),)
    if culprits.before_optimizer(first):
        return Cause.DATA, first.origin, why  # the culprit says more
    if culprits.enters_optimizer(first.pair):
        why = (*why, message("explanation.gradient_at_optimizer"))
    return Cause.COMPUTATION, first.origin, (*why, *_doubt_about_agreement(first))


@rule(event(END), lambda first: is_operator(first.called.name))
def _operator(first: FirstDifference) -> _Explained:
    """Explain that an operator is to blame: whatever was left out, it was given the same."""
    entry = first.called
    given = "gradient" if entry.direction == "backward" else "inputs"
    why = (
        *occasion.other_attributes(first, entry),
        message("explanation.operator_computed", given=given),
        *occasion.not_mindspores(first, entry),
        *occasion.beside_operator(entry),
        *_doubt_about_agreement(first),
        *_doubt_about_opaque(first),
    )
    return Cause.COMPUTATION, entry.name, why


@rule(event(END))
def _cell(first: FirstDifference) -> _Explained:
    entry, parents = first.called, first.step.plan.parents
    parameters = any(record.io == "parameters" for record in entry.records)
    given = "inputs_and_parameters" if parameters else "inputs"
    if entry.direction == "backward":
        given = "gradient"
    inside = (entry.phase, entry.name) in {(phase, of) for (phase, _), of in parents.items()}
    recorded = all(config is None or config.parameters for config in configs(first.runs))
    computed = message("explanation.cell_computed", given=given, inside=inside)
    if masks := _masks_not_compared(first, entry.name):
        computed = message("explanation.computed_or_mask", masks=masks)
    why = (
        computed,
        *_doubt(first, entry.name),
        *([] if recorded else [message("explanation.but_no_parameters")]),
        *_doubt_about_agreement(first),
        *_doubt_about_opaque(first),
    )
    return Cause.COMPUTATION, entry.name, why


def _plain(cause: Cause, code: str, *needs: Need) -> Callable[[FirstDifference], _Explained | None]:
    """Return a rule that says one sentence of the entry."""
    said: Messages = (message(f"explanation.{code}"),)
    return Rule(lambda first: (cause, first.origin, said), (event(BEGIN), *needs))


@rule(event(BEGIN), status(*ONE_SIDED))
def _missing(first: FirstDifference) -> _Explained | None:
    if not _missing_as_a_whole(first):
        return None
    return Cause.MISSING, first.origin, (_absence(first, first.parent),)


@rule(event(BEGIN), lambda first: first.parent is None)
def _input(first: FirstDifference) -> _Explained:
    why = (_entered(first, first.called), *_doubt(first, first.origin))
    return Cause.INPUT, first.origin, why


@rule(event(BEGIN))
def _container(first: FirstDifference) -> _Explained:
    """Explain that what a cell was given differs: the container around it made it."""
    entry, parent = first.called, first.parent or ""
    what = "gradient" if entry.direction == "backward" else "input"
    code = (
        "explanation.container_of_operator" if is_operator(entry.name) else "explanation.container"
    )
    said = message(code, container=parent, given=what)
    if masks := _masks_not_compared(first, parent):
        said = message("explanation.container_or_mask", container=parent, given=what, masks=masks)
    why = (said, *_doubt(first, parent), *_doubt_about_agreement(first))
    return Cause.COMPUTATION, parent, why


def _entered(first: FirstDifference, entry: Entry) -> Message:
    """Say where a cell that lies in no other recorded one has its other input from."""
    phase, gradient = entry.phase, entry.direction == "backward"
    earlier = sum(f is not None for _, f, _ in of_entries(first.before, phase))
    if earlier:
        code = "explanation.gradient_after" if gradient else "explanation.input_after"
        if is_operator(entry.name):
            code = f"{code}_operators"
        return message(code, records=earlier, phase=phase)
    if first.filtered:  # the first that was recorded of several, where it did not begin the phase
        if is_operator(entry.name):
            return message("explanation.first_recorded_operator", phase=phase)
        if not _known(first, entry.name):
            return message("explanation.first_recorded_cell", phase=phase)
        if gradient or entry.cell != ROOT:
            return message("explanation.gradient" if gradient else "explanation.input")
    if entry.token:
        code = "explanation.token_input" if first.filtered else "explanation.first_token"
        return message(code, token=entry.token)
    return message("explanation.phase_input", phase=phase)


def _missing_as_a_whole(first: FirstDifference) -> bool:
    same = [p for p, _ in first.pairs if p.event == first.event]
    return all(p.a is None for p in same) or all(p.b is None for p in same)


def _absence(first: FirstDifference, container: str | None = None) -> Message:
    """Say how much is missing beside the first missing entry, or that its files are."""
    in_a = first.finding.status is Status.ONLY_IN_A
    missing = "B" if in_a else "A"
    phase, key = (first.event.phase, None) if first.entry else (None, first.event.name)
    for problem in first.runs[in_a].problems:
        at = problem.is_at(StepPlace(first.finding.step, first.finding.rank))
        if at and problem.partial and (problem.phase, problem.key) == (phase, key):
            return message("explanation.not_on_disk", run=missing, why=problem.said)

    def lacks(pairs: Iterable[Pair]) -> bool:
        return all((pair.b if in_a else pair.a) is None for pair in pairs)

    if lacks(p for p, _ in first.pairs):
        return message("explanation.nothing_of_step", run=missing, step=first.finding.step)
    if first.entry is None:
        if lacks(p for p, _ in first.pairs if p.event == first.event):
            return message("explanation.saved_in_one_run")
        return message("explanation.other_elements", key=first.event.name)
    # Those that count: with a finding, or of both runs.
    of_phase = of_entries(first.pairs, first.event.phase)
    if lacks(p for p, f, _ in of_phase if f is not None or None not in (p.a, p.b)):
        return message("explanation.nothing_of_phase", run=missing, phase=first.finding.phase)
    called = is_operator(first.entry.name)
    code = "explanation.called_in_one_run" if called else "explanation.ran_in_one_run"
    return message(code, container=container)


@rule(event(DATA), status(*ONE_SIDED))
def _data_in_one_run(first: FirstDifference) -> _Explained:
    return Cause.MISSING, None, (_absence(first),)


@rule(event(DATA), key(INPUT_KEYS))
def _step_input(first: FirstDifference) -> _Explained | None:
    home, given = first.event.phase, key_data_home(first.event.name)
    before_it = given is not None and given.before_phase
    if not before_it and home in _phases_compared(first):
        return None
    unseen = None if before_it else home
    return Cause.INPUT, None, (message("explanation.step_input", not_recorded=unseen),)


@rule(event(DATA))
def _data(first: FirstDifference) -> _Explained:
    phases, found = _phases_compared(first), output_before(first)
    if found is not None:  # what its network returned agrees
        code = "made_of_logits" if _is_of_vocabulary(found[1], first.record) else "made_of_output"
        names = {"key": first.finding.key, "phase": first.event.phase, "record": found[1].name}
        said = message(f"explanation.{code}", **names)
    else:
        said = own_arithmetic(first) or _made(first, phases)
    return Cause.DATA, None, (said, *(_doubt(first) if phases else ()))


def _made(first: FirstDifference, phases: Collection[str]) -> Message:
    """Say what is known of the cells that a key comes of; `phases` are those recorded before it."""
    home = first.event.phase
    if home in phases and counts_tokens(home) and not all_tokens(first, home):
        return message("explanation.some_tokens", phase=home)
    if home in phases or (home is None and phases):
        # That the cells before the key agree: all of them, or those of its phase.
        pairs = of_entries(first.before, home)
        statuses = [finding.status for _, finding, _ in pairs if finding is not None]
        close = statuses.count(Status.WITHIN_TOLERANCE)
        known = {"phase": home, "close": close, "records": len(statuses)}
        return message("explanation.cells_agree", **known)
    if home is None or not first.may_hold_cells:
        return message("explanation.no_cell_before")
    switch = phase_table({})[home].switch
    return message("explanation.phase_not_recorded", phase=home, switch=switch)


def _doubt(first: FirstDifference, origin: str | None = None) -> Messages:
    """Say that a cell which was left out may be to blame instead, unless that is known."""
    if not first.filtered or _known(first, origin):
        return ()
    return (message("explanation.but_filtered"),)


def _known(first: FirstDifference, origin: str | None) -> bool:
    """Return whether an earlier comparison looked at all cells, and blamed this one."""
    earlier = first.step.earlier
    return earlier is not None and earlier.knows(first.finding, origin)


def _doubt_about_agreement(first: FirstDifference) -> Messages:
    """Say that what came before agrees by statistics or within a tolerance only."""
    close = [
        (pair, finding)
        for pair, finding in first.pairs
        if finding is not None and pair.event.phase == first.event.phase
        if finding.status is Status.WITHIN_TOLERANCE
    ]
    if any(f.metrics is None and p.a and p.b and is_across(p.a.leaf, p.b.leaf) for p, f in close):
        return (message("explanation.but_below_tolerance"),)
    return (message("explanation.but_not_bitwise"),) if close else ()


def _masks_not_compared(first: FirstDifference, origin: str) -> str:
    """Return the masks and positions that an entry was given and that no pair brought together.

    Two frameworks make them in other forms.
    """
    return ", ".join(
        pair.record.name
        for pair, finding in first.pairs
        if finding is None
        and (pair.event.phase, pair.event.name) == (first.event.phase, origin)
        and pair.record.io == "input"
        and pair.gap is not None
        and pair.gap.code == "coverage.other_framework_value"
        and made_in_forms(pair.record) is not None
    )


def _doubt_about_opaque(first: FirstDifference) -> Messages:
    """Say that the cell was given something that cannot be, or was not, compared."""
    for other, finding in first.pairs:
        same = (other.event.name, other.event.phase) == (first.event.name, first.event.phase)
        if same and finding is None and other.a is not None and other.b is not None:
            record = other.record
            gap = gap_of((other.a, other.b))
            if gap is not None:
                return (message("explanation.but_gap", record=record.name, why=gap),)
            return (message("explanation.but_opaque", record=record.name, type=record.leaf.type),)
    return ()


#: Tried from first to last. The lines are for any difference, for key data, for what an entry
#: returned, and for what it was given.
_CAUSES: tuple[Callable[[FirstDifference], _Explained | None], ...] = (
    *(_unreadable, _file_changed, _chosen),
    *(_data_in_one_run, _step_input, _data),
    *(_output_in_one_run, _state_of_optimizer, _parameter_gradient, _operator, _cell),
    _plain(Cause.UNREADABLE, "phase_unreadable", lambda first: first.entry is None),
    _plain(Cause.MISSING, "parameter_in_one_run", part("parameters"), status(*ONE_SIDED)),
    _plain(Cause.PARAMETER, "parameter", part("parameters")),
    *(_missing, _input, _container),
)


#: What a trainer makes of what its network returns.
_OF_OUTPUTS = ("old_log_prob", "ref_log_prob", "log_prob", "entropy", "values")
#: What it makes of what it was given, what the networks gave, and what it is set to.
_REWARDS = ("rewards", "reward")
_OWN = (*_REWARDS, "advantages", "returns")


def output_before(first: FirstDifference) -> tuple[Entry, Record] | None:
    """Return the call whose output a key was made of, with its logits, else its first output.

    It is the last one of the key's phase with no cell around it, but one that trains it. None where
    anything of the phase does not agree bit for bit, or was not recorded.
    """
    key, phase = standard_key(first.finding.key or ""), first.event.phase
    if key not in _OF_OUTPUTS or first.finding.status is Status.UNREADABLE:
        return None
    outputs: list[tuple[Entry, Record]] = []
    for pair, finding, entry in of_entries(first.before):
        if finding is None or entry.phase != phase:
            continue
        if finding.status is not Status.IDENTICAL:
            return None
        outermost = entry.cell == ROOT or (entry.parent is None and entry.cell != OUTER)
        if entry.direction == "forward" and outermost and pair.record.io == "output":
            outputs.append((entry, pair.record))
    last = [record for entry, record in outputs if entry is outputs[-1][0]]
    if not last:
        return None
    return outputs[-1][0], next((r for r in last if _is_of_vocabulary(r, first.record)), last[0])


def _is_of_vocabulary(output: Record, key: Record) -> bool:
    """Return whether an output has an axis more than what was made of it: one for each token id."""
    shapes = output.leaf.shape, key.leaf.shape
    return None not in shapes and len(shapes[0] or ()) == len(shapes[1] or ()) + 1


def own_arithmetic(first: FirstDifference) -> Message | None:
    """Say that the trainer itself made a key differ, and that no recording tells more of it.

    Only where all that was recorded before agrees bit for bit, the responses or what a network gave
    for them among it, and no phase of the trainer's own may have made it; else None.
    """
    key = first.finding.key or ""
    kind = key.partition(".")[0]  # rewards.format is what one reward function gave
    before = [(pair, found) for pair, found in first.before if found is not None]
    if kind not in _OWN or any(found.status is not Status.IDENTICAL for _, found in before):
        return None
    keys = [*dict.fromkeys(found.key for _, found in before if found.key is not None)]
    homes = [home for home in map(key_data_home, keys) if home is not None]
    if not any(home.phase and not home.before_phase for home in homes):
        return None
    recorded = {pair.entry.phase for pair, _ in before if pair.entry is not None}
    if any(config and {*config.phases} - recorded for config in configs(first.runs)):
        return None
    return message("explanation.own_arithmetic", key=key, keys=keys, rewards=kind in _REWARDS)
