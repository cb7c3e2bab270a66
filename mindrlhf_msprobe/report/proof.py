"""What experiments found, as lines: the conclusion, the places, what each round showed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mindrlhf_msprobe.findings.proof import (
    Conclusion,
    Hunt,
    Proof,
    ProvenCause,
    Round,
    Setting,
    Trial,
    Where,
)
from mindrlhf_msprobe.report.answer import Lines, Rows, capped
from mindrlhf_msprobe.report.messages import paragraph, say, text_of
from mindrlhf_msprobe.storage.records import cell_name

_MOST_ENTRIES = 4
_MOST_TRIALS = 40
_MOST_STEPS = 4
_MOST_UNDECIDED = 5


def proof_lines(found: Proof) -> Lines:
    """Return what `prove` concludes: the causes first, then the rounds."""
    many = sum(bool(cause.what) for cause in found.causes)  # with tensors put in
    lines: list[Any] = [say(f"proof.{found.conclusion.value}", causes=many)]
    lines += [[text_of(why)] for why in found.why]
    if found.conclusion is Conclusion.NOT_REPRODUCIBLE and found.shown is not None:
        lines.append([say("proof.shown", shown=found.shown[0], runs=found.shown[1])])
    for number, cause in enumerate(found.causes, 1):
        lines += _cause(number, cause)
    if found.remaining is not None:
        lines.append(say("proof.remaining", where=where_text(found.remaining)))
    if found.noise is not None:
        lines.append(say("proof.noise_at", where=where_text(found.noise)))
    if found.evidence:
        lines += [say("proof.rests_on"), [text_of(one) for one in found.evidence]]
    if found.rounds:
        header = [say(f"proof.column_{name}") for name in _ROUND_COLUMNS]
        lines += [say("proof.rounds_made"), [Rows(header, [*map(_round, found.rounds)])]]
    return [*lines, say("proof.files", path=found.output)]


_ROUND_COLUMNS = ("round", "seconds", "different", "put_in", "first")


def where_text(where: Where | None) -> str:
    """Return where two runs first differ, in one line."""
    if where is None:
        return say("proof.nowhere")
    place = {"step": where.step, "rank": where.rank, "phase": where.phase}
    return say("proof.where", record=where.record, **place)


def _cause(number: int, cause: ProvenCause) -> Iterator[Any]:
    of_weights = any("parameters" in part and part != "parameters_grad" for part in cause.what)
    named = [cause.where.record] if of_weights else cause.entries or cause.keys
    if cause.of_trainer and cause.keys:
        named = cause.keys
    shown = capped(named, _MOST_ENTRIES)
    if cause.between:
        cells = capped([*map(_cell_of, cause.entries)], _MOST_ENTRIES)
        before, behind = cause.between
        kind = cause.entries[0].rpartition(".")[2]
        shown = [say("proof.code", **{"class": kind}, cells=cells, before=before, behind=behind)]
    yield say("proof.cause", number=number, cause=cause.where.cause, entries=shown)
    details = [say("proof.first_at", where=where_text(cause.where)), paragraph(cause.reasons)]
    if len(cause.entries) > 1 and not of_weights and not cause.of_trainer:
        details.append(say("proof.of_each"))
    if cause.what:
        parts = [say(f"proof.part_{part}") for part in cause.what]
        steps = [*cause.steps][:_MOST_STEPS] if len(cause.steps) <= _MOST_STEPS else []
        since = None if steps or not cause.steps else cause.steps[0]
        where = {"phases": [*cause.phases], "steps": steps, "since": since}
        details.append(say("proof.put_in", what=parts, **where))
        details.append(say("proof.explained", records=cause.explained))
        if cause.keys:
            details.append(say("proof.keys", keys=[*cause.keys]))
    else:
        details.append(say("proof.by_itself", keys=[*cause.keys]))
    yield [line for line in details if line]


def _cell_of(head: str) -> str:
    """Return the cell in the name of its entries."""
    return cell_name(f"{head}.forward.0")


def _round(one: Round) -> list[str]:
    name = say(f"proof.round_{one.kind}", reused=one.reused)
    seconds = f"{one.seconds:.1f}"
    put_in = "" if one.put_in is None else str(one.put_in)
    return [name, seconds, str(one.different), put_in, where_text(one.first)]


def hunt_lines(found: Hunt) -> Lines:
    """Return what `hunt` concludes: the smallest set first, then the trials."""
    lines: list[Any] = [
        say(
            "hunt.headline",
            found=found.found,
            sets=len(found.sets),
            settings=sum(map(len, found.sets)),
            commit=None if found.commit is None else found.commit.name,
            of=len(found.settings),
        )
    ]
    lines += [[text_of(why)] for why in found.why]
    for number, chosen in enumerate(found.sets, 1):
        if len(found.sets) > 1:
            lines.append(say("hunt.set", number=number))
        lines.append([*map(_setting, chosen)])
    if found.commit is not None:
        lines.append([_setting(found.commit)])
    if found.rest_is_good is not None:
        lines.append(say("hunt.rest", good=found.rest_is_good))
    undecided = [one for one in found.trials if one.result == "undecided"]
    if undecided:
        lines.append(say("hunt.skipped"))
        lines.append(capped(undecided, _MOST_UNDECIDED, show=_undecided))
    if found.trials:
        header = [say(f"hunt.column_{name}") for name in ("trial", "result", "seconds", "bad")]
        rows = [*map(_trial, found.trials[:_MOST_TRIALS])]
        lines += [say("hunt.trials", count=len(found.trials)), [Rows(header, rows)]]
    return [*lines, say("hunt.files", path=found.output)]


def _setting(one: Setting) -> str:
    return say(f"hunt.{one.kind}", name=one.name, good=one.good, bad=one.bad)


def _trial(one: Trial) -> list[str]:
    bad = ", ".join(one.bad) or say("hunt.none")
    name = one.path.rpartition("/")[2]
    return [name, say(f"hunt.result_{one.result}"), f"{one.seconds:.1f}", bad]


def _undecided(one: Trial) -> str:
    why = say("proof.incomparable") if one.why is None else text_of(one.why)
    return say("hunt.undecided_trial", name=one.path.rpartition("/")[2], why=why)
