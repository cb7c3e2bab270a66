"""Which time it is within a step: the n-th opening of a phase, the micro-step of key data.

An operator is told by where it was called, and by what may be to blame beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.rules import rule
from mindrlhf_msprobe.comparison.pairing.operators import forward_of
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.comparison.pairing.timeline import DATA
from mindrlhf_msprobe.comparison.verdict.first_difference import (
    ONE_SIDED,
    FirstDifference,
    event,
    of_saves,
)
from mindrlhf_msprobe.findings import Culprit, CulpritCode, Finding, Occasion, Status
from mindrlhf_msprobe.phases import LOSS_INPUTS, UPDATE_PHASES, key_data_home, phase_table
from mindrlhf_msprobe.storage.code_lines import code_line, users_frame
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.manifest.coverage import OPERATORS, reasons_of
from mindrlhf_msprobe.storage.operators import parse_operator
from mindrlhf_msprobe.storage.records import Entry, cell_name, is_optimizer_state


def occasion_of(first: FirstDifference) -> Occasion:
    """Return which time it is that the first difference's phase was opened, or its key saved."""
    if first.event.kind == DATA:
        return _of_key_data(first)
    return Occasion() if first.entry is None else _of_entry(first, first.entry)


def occasion_reasons(occasion: Occasion, finding: Finding) -> tuple[Message, ...]:
    """Return which opening of a phase it is; nothing if it is the first, or of key data."""
    if finding.entry is None or not occasion.number:
        return ()
    updated = finding.phase in UPDATE_PHASES and finding.phase in occasion.since
    updated = updated and bool(occasion.weights_moved) and occasion.kept_in is None
    said = message(
        "explanation.nth_call",
        phase=finding.phase,
        earlier=occasion.number,
        between=[phase for phase in occasion.since if phase != finding.phase],
        updated=updated,
        weights_moved=occasion.weights_moved,
        **({} if occasion.kept_in is None else {"kept_in": occasion.kept_in}),
    )
    return (said,)


@rule(event(DATA))
def earlier_update(first: FirstDifference) -> Culprit | None:
    """Return the update before a micro-step, where key data first differ there and may come of it.

    The key agrees in the micro-step before, and an update lies between. Not where something else
    that the same micro-step computed with the updated network is known to agree. The details:
    `phase`, `micro_step` (the one it followed) and `number`, from 1 on, of the update; `record`,
    the phases whose cells would tell; `batch_agrees`, only where it is known, bit for bit.
    """
    occasion, home = occasion_of(first), key_data_home(first.event.name)
    computed_in = None if home is None else home.phase
    lacking = first.finding.status in (*ONE_SIDED, Status.UNREADABLE)
    if computed_in is None or lacking or not occasion.number:
        return None
    # An update moves the network of its own role; what another role computed does not come of it.
    table = phase_table({})
    own = {update for update in UPDATE_PHASES if table[update].role == table[computed_in].role}
    phase = next((update for update in occasion.since if update in own), None)
    key, micro_step, before = first.event.name, occasion.number, first.before
    # Where its key was compared in an earlier micro-step, it agrees there.
    compared = {p.event.micro_step for p, f in of_saves(before, key) if f is not None}
    if phase is None or micro_step - 1 not in compared:
        return None
    if any(p.entry is not None and p.event.phase == computed_in for p, _ in before):
        return None  # its cells were recorded, and say more
    if any(None in (p.a, p.b) and not p.stopped for p, _ in of_saves(first.pairs, key)):
        return None  # an update that an exception ended saves less: whose micro-step is unknown
    # Another result of the updated network that agrees there.
    for other, found in of_saves(before, micro_step=micro_step):
        home = key_data_home(other.event.name)
        is_result = home is not None and home.phase == computed_in and not home.before_phase
        if found is not None and is_result and other.event.name != key:
            return None
    record = tuple(dict.fromkeys((phase, computed_in)))
    details = {"phase": phase, "micro_step": micro_step - 1, "number": micro_step, "record": record}
    saved = of_saves(before, LOSS_INPUTS, micro_step=micro_step)
    given = [found.status for _, found in saved if found is not None]
    if given and all(status is Status.IDENTICAL for status in given):
        details["batch_agrees"] = True
    return Culprit(CulpritCode.EARLIER_UPDATE, details)


def _of_key_data(first: FirstDifference) -> Occasion:
    number = first.event.micro_step
    before = replace(first.event, micro_step=number - 1)
    saves = {p.event.micro_step for p, _ in of_saves(first.pairs, first.event.name)}
    last = [i for i, (p, _) in enumerate(first.before) if p.event == before]
    since: tuple[str, ...] = ()
    if last:
        home = key_data_home(first.event.name)
        since = _phases(p for p, _ in first.before[last[-1] + 1 :])
        # What a micro-step of an update gave is followed by its gradients and its optimizer step.
        if home is not None and home.phase in UPDATE_PHASES and home.phase not in since:
            since = (home.phase, *since)
    return Occasion(number, max(len(saves), number + 1), since)


def _of_entry(first: FirstDifference, entry: Entry) -> Occasion:
    opening_of = {
        i: p.entry.opening
        for i, (p, _) in enumerate(first.pairs)
        if p.entry is not None and p.event.phase == entry.phase
    }
    openings = set(opening_of.values())
    number = entry.opening
    count = max(len(openings), number + 1)
    if number not in openings or not number:
        return Occasion(number, count)
    begin = next(i for i, opening in opening_of.items() if opening == number)
    last = max((i for i, opening in opening_of.items() if opening < number), default=None)
    since: tuple[str, ...] = ()  # the phases since its own was last open
    if last is not None:
        since = _phases(p for p, _ in first.pairs[last + 1 : begin])
        if entry.phase in UPDATE_PHASES:
            since = (entry.phase, *(phase for phase in since if phase != entry.phase))
    pairs = [first.pairs[i][0] for i in opening_of]
    moved = [_weights_moved(pairs, side, number) for side in (0, 1)]
    kept = "AB"[moved.index(False)] if set(moved) == {False, True} else None
    known = [one for one in moved if one is not None]
    return Occasion(number, count, since, any(known) if known else None, kept)


def _weights_moved(pairs: Iterable[Pair], side: int, number: int) -> bool | None:
    """Return whether one run recorded a phase's parameters again: that is done where they changed.

    Those of a cell that an exception kept from running before are recorded for the first time. One
    that the other run alone recorded again stands beside the record of before.
    """
    moved: dict[tuple[str, str], bool] = {}  # of what was recorded before this opening
    last: dict[tuple[str, str], Leaf] = {}
    for p in pairs:
        record = (p.a, p.b)[side]
        if p.entry is None or record is None or record.io != "parameters":
            continue
        name = p.entry.cell, record.path
        if p.entry.opening < number:
            last[name] = record.leaf
        elif p.entry.opening == number and name in last:
            moved[name] = moved.get(name, False) or record.leaf != last[name]
    return any(moved.values()) if last else None


def _phases(pairs: Iterable[Pair]) -> tuple[str, ...]:
    """Return the phases whose entries or results are among pairs, in their order."""
    phases = (
        pair.event.phase if pair.entry is None else pair.entry.phase
        for pair in pairs
        if pair.entry is not None or pair.event.kind == DATA
    )
    return tuple(dict.fromkeys(phase for phase in phases if phase is not None))


_RANDOM = re.compile(
    r"(?:^|[._])(?:\w*dropout\w*|rand\w*|(?:log_?|standard_?)?normal_?|uniform\w*|bernoulli\w*"
    r"|multinomial\w*|gumbel_softmax|poisson|exponential_|cauchy_|geometric_|laplace|gamma|rrelu"
    r"|\w*candidate_sampler|random\w*)(?:\.|$)",
    re.IGNORECASE,
)


def cell_of(first: FirstDifference, origin: str | None) -> str | None:
    """Return the cell of an entry, or the one around an operator.

    "" outside every cell; None where it is not known.
    """
    if origin is None:
        return None
    if parse_operator(origin) is None:
        return cell_name(origin)
    for entry in _called(first, [origin, forward_of(origin)]):
        if entry.around is not None:
            return entry.around
    return None


def place_of(first: FirstDifference, origin: str | None) -> dict[str, Any]:
    """Return the operator, the cell and the line of code of an origin, as `Divergence` has them."""
    operator = None if origin is None else parse_operator(origin)
    cell = cell_of(first, origin)
    frame = frame_of(first, origin)
    line = None if frame is None else code_line(frame)
    return {
        "operator": "" if operator is None else operator.operator,
        "cell": None if cell is not None and is_optimizer_state(cell) else cell,
        "line": "" if line is None else line.place,
    }


def frame_of(first: FirstDifference, origin: str | None) -> str | None:
    """Return the frame of the user's code that called an origin; None if that is not known.

    A backward entry has no call of its own in the user's code: that of its forward entry counts.
    """
    name = origin or (first.entry.name if first.entry else None)
    if name is None:
        return None
    forward = (
        forward_of(name) if parse_operator(name) else ".forward.".join(name.rsplit(".backward.", 1))
    )
    frames = (users_frame(entry.stack) for entry in _called(first, [name, forward]))
    return next((frame for frame in frames if frame is not None), None)


def _called(first: FirstDifference, names: Iterable[str]) -> list[Entry]:
    """Return the entries of the first difference's phase, in the order of their names.

    An entry that B alone has may be called as another one of A: what belongs to it is of B alone.
    """
    phase = first.event.phase
    only_in_b = all(pair.a is None for pair, _ in first.pairs if pair.event == first.event)
    wanted = dict.fromkeys(names)
    found: dict[str, Entry] = {}
    for pair, _ in first.pairs:
        entry = pair.entry
        if entry is None or entry.name not in wanted or pair.event.phase != phase:
            continue
        if entry.name not in found or (pair.a is None) == only_in_b:
            found[entry.name] = entry
    if first.entry is not None and first.entry.name in wanted:
        found[first.entry.name] = first.entry
    return [found[name] for name in wanted if name in found]


def other_attributes(first: FirstDifference, entry: Entry) -> Messages:
    """Return which attributes of an operator differ; () if none do, or that is not known.

    They stand in its forward entry.
    """
    names = (entry.name, forward_of(entry.name))
    for pair, _ in first.pairs:
        if pair.attributes and pair.event.phase == first.event.phase and pair.event.name in names:
            changes = [
                message("explanation.one_attribute", name=name, a=a, b=b)
                for name, a, b in pair.attributes
            ]
            return (message("explanation.other_attributes", changes=changes),)
    return ()


def not_mindspores(first: FirstDifference, entry: Entry) -> Messages:
    """Say in which runs something else stands in the place of an operator, as run.json tells."""
    operator = parse_operator(entry.name)
    if operator is None:
        return ()
    name = operator.operator
    if operator.kind == "Primitive":
        name = f"Primitive.{operator.name.rpartition('.')[2]}"
    found: dict[str, list[str]] = {}
    for side, run in zip("AB", first.runs):
        for why in reasons_of(run.coverage(first.finding.rank), OPERATORS, name):
            if why.code == "coverage.operator_replaced":
                found.setdefault(str(why.params["by"]), []).append(side)
    return tuple(
        message("explanation.not_mindspores", runs=", ".join(sides), by=by)
        for by, sides in found.items()
    )


def beside_operator(entry: Entry) -> Messages:
    """Return what but its own computation can make an operator's output differ."""
    operator = parse_operator(entry.name)
    if operator is None:
        return ()
    if operator.communicates:
        return (message("explanation.but_other_ranks"),)
    if _RANDOM.search(operator.name):
        return (message("explanation.but_random"),)
    return ()
