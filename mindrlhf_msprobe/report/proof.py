"""What experiments found, as lines: the conclusion, the places, what each round showed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.errors import DIVERGED, SAME
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
from mindrlhf_msprobe.report.answer import Lines, Rows, capped, listed
from mindrlhf_msprobe.report.messages import paragraph, say, text_of
from mindrlhf_msprobe.storage.records import cell_of

_MOST_ENTRIES = 4
_MOST_TRIALS = 40
_MOST_STEPS = 4
_MOST_UNDECIDED = 5
_MOST_COMMITS = 16


def proof_lines(found: Proof) -> Lines:
    """Return what `prove` concludes: the causes first, then the rounds."""
    lines = _concluded(found)
    if found.rounds:
        header = [say(f"proof.column_{name}") for name in _ROUND_COLUMNS]
        rows = [[one[name] for name in _ROUND_COLUMNS] for one in map(_round, found.rounds)]
        lines += [say("proof.rounds_made"), [Rows(header, rows)]]
    return [*lines, say("proof.files", path=found.output)]


def proof_shown(found: Proof, different: int) -> dict[str, Any]:
    """Return what a page shows of it: the same, and what each round put in and explained.

    Args:
        different: how many records of A and B are not the same.
    """
    begun = {"round": say("proof.round_none"), "different": str(different), "files": "comparison"}
    rounds = [begun | _first(found.first), *map(_round, found.rounds)]
    return {
        "tone": _TONES.get(found.conclusion.exit_code, "unknown"),
        "lines": _nested(_concluded(found)),
        "files": say("proof.files", path=found.output),
        "header": [[name, say(f"proof.column_{name}")] for name in _PAGE_COLUMNS],
        "rounds": [
            {"cells": [one.get(name, "") for name in _PAGE_COLUMNS], "link": one["link"]}
            for one in rounds
        ],
    }


def _nested(lines: Sequence[Any]) -> list[dict[str, Any]]:
    """Return lines for a page: each with those that stand under it."""
    found: list[dict[str, Any]] = []
    for line in lines:
        if isinstance(line, str):
            found.append({"text": line, "under": []})
        else:
            found[-1]["under"] += _nested(line)
    return found


def _concluded(found: Proof) -> list[Any]:
    """Return the verdict, the causes, and what it rests on."""
    many = sum(bool(cause.what or cause.replaces) for cause in found.causes)  # with tensors put in
    lines: list[Any] = [say(f"proof.{found.conclusion.value}", causes=many)]
    lines += [[text_of(why)] for why in found.why]
    if found.conclusion is Conclusion.NOT_REPRODUCIBLE and found.shown is not None:
        lines.append([say("proof.shown", shown=found.shown[0], runs=found.shown[1])])
    for number, cause in enumerate(found.causes, 1):
        lines += _cause(number, cause)
    if found.remaining is not None:
        where, behind = where_text(found.remaining), len(found.causes)
        lines.append(say("proof.remaining", where=where, causes=behind))
    if found.noise is not None:
        differ, of = found.noisy or (0, 0)
        lines.append(say("proof.noise_at", where=where_text(found.noise), differ=differ, of=of))
    return [*lines, *listed(say("proof.rests_on"), [*map(text_of, found.evidence)])]


_ROUND_COLUMNS = ("round", "seconds", "different", "put_in", "first")
_PAGE_COLUMNS = ("round", "tried", "tensors", "put_in", "explained", "different", "first", "files")
_TONES = {SAME: "good", DIVERGED: "warn"}


def where_text(where: Where | None) -> str:
    """Return where two runs first differ, in one line."""
    if where is None:
        return say("proof.nowhere")
    place = {"step": where.step, "rank": where.rank, "phase": where.phase}
    return say("proof.where", record=where.record, **place)


def _first(where: Where | None) -> dict[str, Any]:
    """Return what is shown of a first difference, and where a page shows more of it."""
    names = ("step", "rank", "phase", "entry", "key", "record")
    known = {name: getattr(where, name, None) for name in names}
    link = {name: value for name, value in known.items() if value is not None}
    return {"first": where_text(where), "link": {"view": "where", **link} if link else None}


def _cause(number: int, cause: ProvenCause) -> Iterator[Any]:
    named = (
        [cause.where.record] if cause.of_weights else cause.replaces or cause.entries or cause.keys
    )
    if cause.of_trainer and cause.keys:
        named = cause.keys
    shown = capped(named, _MOST_ENTRIES)
    if cause.between:
        cells = capped([*map(cell_of, cause.entries)], _MOST_ENTRIES)
        before, behind = cause.between
        kind = cause.entries[0].rpartition(".")[2]
        shown = [say("proof.code", **{"class": kind}, cells=cells, before=before, behind=behind)]
    why = say(f"page.cause_{cause.where.cause}")
    yield say("proof.cause", number=number, cause=why, entries=shown)
    details = [say("proof.first_at", where=where_text(cause.where)), paragraph(cause.reasons)]
    if len(cause.entries) > 1 and not cause.of_weights and not cause.of_trainer:
        details.append(say("proof.of_each"))
    if cause.what or cause.replaces:
        details.append(say("proof.put_in", place=_what(cause)))
        details += [say("proof.explained", records=cause.explained)] if cause.explained else []
        if cause.keys:
            details.append(say("proof.keys", keys=[*cause.keys]))
    else:
        details.append(say("proof.by_itself", keys=[*cause.keys]))
    yield [line for line in details if line]


def _what(cause: ProvenCause, entries: Sequence[str] = ()) -> str:
    """Return what was put in of A: which parts of which entries, where and when; which values."""
    parts = [say(f"proof.part_{part}") for part in cause.what]
    steps = [*cause.steps] if len(cause.steps) <= _MOST_STEPS else []
    since = None if steps or not cause.steps else cause.steps[0]
    where = {"phases": [*cause.phases], "steps": steps, "since": since}
    shown = capped(entries, _MOST_ENTRIES)
    return say("proof.what", what=parts, values=[*cause.replaces], entries=shown, **where)


def _round(one: Round) -> dict[str, Any]:
    """Return what is shown of a round, by the names of the columns."""
    shown = {
        **_first(one.first),
        "round": say(f"proof.round_{one.kind}", reused=one.reused),
        "seconds": f"{one.seconds:.1f}",
        "different": str(one.different),
        "put_in": "" if one.put_in is None else str(one.put_in),
        "files": Path(one.path).name,
    }
    if one.tensors is not None:
        shown["tried"] = "; ".join(_what(cause, cause.entries) for cause in one.tried)
        shown["explained"] = str(sum(cause.explained for cause in one.tried))
        shown["tensors"] = one.tensors.removeprefix(f"{Path(one.path).parent}/")
    return shown


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
    if found.candidates:
        lines.append([capped(found.candidates, _MOST_COMMITS, show=_setting)])
    for number, chosen in enumerate(found.sets, 1):
        if len(found.sets) > 1:
            lines.append(say("hunt.set", number=number))
        lines.append([*map(_setting, chosen)])
    if found.commit is not None:
        lines.append([_setting(found.commit)])
    if found.rest_is_good is not None:
        lines.append(say("hunt.rest", good=found.rest_is_good))
    undecided = (one for one in found.trials if one.result == "undecided")
    lines += listed(say("hunt.skipped"), capped(undecided, _MOST_UNDECIDED, show=_undecided))
    if found.trials:
        header = [say(f"hunt.column_{name}") for name in ("trial", "result", "seconds", "bad")]
        rows = [
            [
                *(one.path.rpartition("/")[2], say(f"hunt.result_{one.result}")),
                *(f"{one.seconds:.1f}", ", ".join(one.bad) or say("hunt.none")),
            ]
            for one in found.trials[:_MOST_TRIALS]
        ]
        lines += [say("hunt.trials", count=len(found.trials)), [Rows(header, rows)]]
    return [*lines, say("hunt.files", path=found.output)]


def _setting(one: Setting) -> str:
    return say(f"hunt.{one.kind}", name=one.name, good=one.good, bad=one.bad)


def _undecided(one: Trial) -> str:
    why = say("proof.incomparable") if one.why is None else text_of(one.why)
    named = ", ".join(capped(one.bad, _MOST_ENTRIES)) or one.path.rpartition("/")[2]
    return say("unread.at", path=named, why=why)
