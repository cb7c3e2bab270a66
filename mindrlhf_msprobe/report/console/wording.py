"""What the console and summary.xlsx say in the same words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.common.message import TEXT, Message, message
from mindrlhf_msprobe.common.printable import size
from mindrlhf_msprobe.findings import (
    STAND_INS,
    Chosen,
    Divergence,
    Earlier,
    Inside,
    Relation,
    Stopped,
    Verdict,
    Weights,
)
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.storage.manifest.run_file import Stop
from mindrlhf_msprobe.storage.records import direction_of

_STOPS = 4  # places where runs stopped


def capped(lines: Iterable[str], most: int, more: str = "") -> list[str]:
    """Return at most so many lines; of further ones how many there are, and where they stand."""
    whole = list(lines)
    left = len(whole) - most
    rest = [f"{say('console.more', number=left)}{more}"] if left > 0 else []
    return whole[:most] + rest


def occasion_in_words(first: Divergence) -> str:
    """Return where two runs first differ: step, phase, rank, and which time in the step it is."""
    occasion = first.occasion
    several = occasion.times > 1
    return say(
        "console.place",
        step=first.step,
        phase=first.phase,
        rank=first.rank,
        micro_step=occasion.number if several and first.key is not None else None,
        call=occasion.number + 1 if several and first.key is None else None,
    )


def origin_in_words(first: Divergence) -> str:
    """Return what is to blame: an entry, or a key; of an operator where it was called, too."""
    if not first.operator or first.entry is None:
        return first.entry or first.record
    return say(
        "console.operator",
        entry=first.entry,
        operator=first.operator,
        cell=first.cell,
        line=first.line,
        backward=direction_of(first.entry) == "backward",
    )


def ranks_in_words(verdict: Verdict) -> list[str]:
    """Return which ranks diverge, the first ones first, and which agree; [] of one rank."""
    if verdict.ranks < 2 or not verdict.parted:
        return []
    groups: dict[tuple[Any, ...], list[int]] = {}
    for one in verdict.parted:
        groups.setdefault((one.step, one.phase, one.record, one.micro_step), []).append(one.rank)
    names = ("step", "phase", "record", "micro_step")
    lines = [
        say("console.parted", ranks=ranks, first=number == 0, **dict(zip(names, where)))
        for number, (where, ranks) in enumerate(groups.items())
    ]
    if verdict.agreeing_ranks:
        lines.append(say("console.agreeing_ranks", ranks=verdict.agreeing_ranks))
    return lines


def stop_lines(stops: Sequence[Stopped]) -> list[str]:
    """Return where the runs stopped that did not finish, in lines."""
    lines = [
        say("console.stopped_run", run=stop.run, stopped=stopped_at(stop, stop.ranks))
        for stop in stops[:_STOPS]
    ]
    if len(stops) > _STOPS:
        lines.append(say("console.more_stops", number=len(stops) - _STOPS))
    return lines


def stopped_at(stop: Stopped | Stop, ranks: Sequence[int]) -> str:
    """Return where a run stopped, as the rest of a sentence that begins with the run."""
    text = str(STAND_INS.get(stop.text, " ".join(stop.text.split())))
    error = ": ".join(part for part in (stop.error, text) if part)
    return say(
        "console.stopped",
        state=stop.state,
        step=stop.step,
        phase=stop.phase,
        ranks=ranks,
        error=error,
    )


def before(first: Divergence) -> str:
    """Return what agreed before the first divergence, "" if nothing was compared before it."""
    return say(
        "console.before",
        records=first.agreed_before,
        phases=first.agreed_phases,
        steps=first.agreed_steps,
        step=first.step,
    )


def earlier_of(earlier: Earlier, relation: Relation) -> str:
    """Return how the answer compares to that of an earlier comparison."""
    return say(
        "console.earlier",
        path=earlier.path,
        relation=relation.value,
        status=str(earlier.status),
        named=str(earlier.entry or earlier.record),
        step=earlier.step,
        phase=earlier.phase,
        all_cells=bool(earlier.all_cells and earlier.entry),
        agreed=earlier.agreed_before or 0,
    )


def chosen_of(chosen: Chosen) -> list[str]:
    """Return which records of the runs were compared, and what was left out by that, in lines."""
    wanted = ("steps", "keys", "include", "exclude", "common", "first_only")
    only = {name: getattr(chosen, name) for name in wanted}
    left_out = {
        "steps": chosen.steps_left_out,
        "cells": bool(chosen.keys),
        "keys": chosen.keys_left_out,
        "steps_after": chosen.steps_after,
    }
    said = (("console.compared_only", only), ("console.left_out", left_out))
    return [say(code, **params) for code, params in said if any(params.values())]


def size_of_next(first: Divergence, one_run: bool) -> str:
    """Return what the next recording takes, as far as it is known.

    Args:
        one_run: whether the run is compared with itself, and recorded once more alone.
    """
    if first.next_step_bytes is not None:
        return say(
            "console.size_of_next",
            size=size(first.next_step_bytes),
            one_run=one_run,
            estimated=first.next_step_estimated,
        )
    return say("console.size_of_next_unknown") if "msprobe" in (first.next_step or {}) else ""


def weights_of(weights: Weights) -> str:
    """Return how many of a role's initial parameters differ, without their names."""
    return say(
        "console.weights",
        compared=weights.compared,
        different=len(weights.different),
        only_in_a=len(weights.only_in_a),
        only_in_b=len(weights.only_in_b),
    )


def factor(value: float | None) -> str:
    """Return a growth as ×12, empty where it is not known."""
    return "" if value is None else f"×{value:.2g}" if value < 100 else f"×{value:.0f}"


def merged(messages: Iterable[Message]) -> list[Message]:
    """Return messages of which those that differ in one name stand in one: x / y was not recorded.

    Messages that differ only in which run they are about stay apart.
    """
    found: list[tuple[Message, str | None, list[str]]] = []
    for said in messages:
        for index, (first, name, values) in enumerate(found):
            other = _only_difference(first, said)
            if other is not None and name in (None, other):
                found[index] = first, other, [*values, said.params[other]]
                break
        else:
            found.append((said, None, []))
    return [
        first
        if name is None
        else Message(first.code, {**first.params, name: _joined(name, first.params[name], *values)})
        for first, name, values in found
    ]


def _joined(name: str, *values: str) -> Message | str:
    """Return several values as one; sections of run.json have words in each language."""
    return message("preflight.sections", names=values) if name == "section" else " / ".join(values)


def _only_difference(a: Message, b: Message) -> str | None:
    """Return the one parameter, a name, in which two messages differ; None of others."""
    if a.code != b.code or a.code == TEXT or a.params.keys() != b.params.keys():
        return None
    unlike = [name for name in a.params if a.params[name] != b.params[name]]
    values = [side.params[name] for side in (a, b) for name in unlike]
    if len(unlike) != 1 or unlike == ["side"]:
        return None
    return unlike[0] if all(isinstance(value, str) for value in values) else None


#: Where PrecisionDebugger's settings stand.
CONFIG_JSON = "config.json"


def settings_file(settings: Mapping[str, Any]) -> str:
    """Return where the settings of a next step stand: a section of a YAML file, or config.json."""
    return "msprobe_config" if "msprobe" in settings else CONFIG_JSON


def inside_words(inside: Inside | None) -> str:
    """Return what differs inside a record as one sentence, "" where nothing certain is known."""
    if inside is None:
        return ""
    axes = dict(inside.axes)
    where = [
        message("inside.axis", **some.to_json(), name=axes.get(some.axis))
        if some.what == "axis"
        else message("inside.element", **some.to_json())
        for some in inside.where
    ]
    change = None
    if inside.change is not None:
        known = inside.change.parameters
        of_axis = {"name": axes.get(known["axis"])} if "axis" in known else {}
        params = {**known, "basis": inside.basis, **of_axis}
        change = Message(f"inside.{inside.change.kind}", params)
    return say(
        "inside.differs",
        where=where,
        prompts=list(inside.prompts),
        change=change,
        elements=inside.elements,
        size=inside.size,
    )
