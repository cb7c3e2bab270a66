"""Which time it is within a step: the n-th opening of a phase, the micro-step of key data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.comparison.pairing.timeline import DATA
from mindrlhf_msprobe.comparison.verdict.first_difference import (
    ONE_SIDED,
    FirstDifference,
    PairFindings,
)
from mindrlhf_msprobe.findings import Culprit, CulpritCode, Finding, Occasion, Status
from mindrlhf_msprobe.phases import LOSS_INPUTS, UPDATE_PHASES, key_data_home, phase_table
from mindrlhf_msprobe.storage.records import Entry


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
    said = message(
        "explanation.nth_call",
        phase=finding.phase,
        earlier=occasion.number,
        between=[phase for phase in occasion.since if phase != finding.phase],
        updated=updated and bool(occasion.weights_moved),
        weights_moved=occasion.weights_moved,
    )
    return (said,)


def earlier_update(first: FirstDifference, occasion: Occasion) -> Culprit | None:
    """Return the update before a micro-step, where key data first differ there and may come of it.

    The key agrees in the micro-step before, and an update lies between. Not where something else
    that the same micro-step computed with the updated network is known to agree. The details:
    `phase`, `micro_step` (the one it followed) and `number`, from 1 on, of the update; `record`,
    the phases whose cells would tell; `batch_agrees`, only where it is known, bit for bit.
    """
    pair = first.pair
    computed_in = _computed_in(pair, first.finding)
    if computed_in is None or not occasion.number:
        return None
    phase = _update_since(occasion, computed_in)
    micro_step, before = occasion.number, first.before
    if phase is None or not _agreed_in(before, pair, micro_step - 1):
        return None
    if any(p.entry is not None and p.event.phase == computed_in for p, _ in before):
        return None  # its cells were recorded, and say more
    if _gave_the_same(before, pair, computed_in, micro_step):
        return None
    record = tuple(dict.fromkeys((phase, computed_in)))
    details = {"phase": phase, "micro_step": micro_step - 1, "number": micro_step, "record": record}
    given = [f.status for p, f in before if f is not None and _is_given(p, micro_step)]
    if given and all(status is Status.IDENTICAL for status in given):
        details["batch_agrees"] = True
    return Culprit(CulpritCode.EARLIER_UPDATE, details)


def _computed_in(pair: Pair, finding: Finding) -> str | None:
    """Return the phase of key data that both runs hold; None of anything else."""
    if pair.event.kind != DATA:
        return None
    home = key_data_home(pair.event.name)
    lacking = finding.status in (*ONE_SIDED, Status.UNREADABLE)
    return None if home is None or lacking else home.phase


def _update_since(occasion: Occasion, phase: str) -> str | None:
    """Return the first update since the time before that moves the network a phase runs in.

    An update moves the network of its own role; what another role computed does not come of it.
    """
    table = phase_table({})
    own = {update for update in UPDATE_PHASES if table[update].role == table[phase].role}
    return next((update for update in occasion.since if update in own), None)


def _agreed_in(before: PairFindings, pair: Pair, micro_step: int) -> bool:
    """Return whether a pair's key was compared in an earlier micro-step: it agrees there, then."""
    compared = (p.event.micro_step for p, f in before if f is not None and _same_key(p, pair))
    return micro_step in compared


def _gave_the_same(before: PairFindings, pair: Pair, phase: str, micro_step: int) -> bool:
    """Return whether another result of the updated network is known to agree in a micro-step."""
    for other, found in before:
        home = key_data_home(other.event.name) if other.event.kind == DATA else None
        if found is None or home is None or home.phase != phase:
            continue
        given = home.before_phase  # to the network, not by it
        if not given and other.event.micro_step == micro_step and not _same_key(other, pair):
            return True
    return False


def _is_given(pair: Pair, micro_step: int) -> bool:
    """Return whether a pair is of what the loss is given in a micro-step."""
    event = pair.event
    return event.kind == DATA and event.name == LOSS_INPUTS and event.micro_step == micro_step


def _of_key_data(first: FirstDifference) -> Occasion:
    pair = first.pair
    saves = {p.event.micro_step for p, _ in first.pairs if _same_key(p, pair)}
    number = pair.event.micro_step
    last = [
        i
        for i, (p, _) in enumerate(first.before)
        if _same_key(p, pair) and p.event.micro_step == number - 1
    ]
    since: tuple[str, ...] = ()
    if last:
        home = key_data_home(pair.event.name)
        since = _phases(p for p, _ in first.before[last[-1] + 1 :])
        # What a micro-step of an update gave is followed by its gradients and its optimizer step.
        if home is not None and home.phase in UPDATE_PHASES and home.phase not in since:
            since = (home.phase, *since)
    return Occasion(number, max(len(saves), number + 1), since)


def _same_key(a: Pair, b: Pair) -> bool:
    return a.event.kind == b.event.kind == DATA and a.event.name == b.event.name


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
    since = _since_last_opening(first.pairs, entry, opening_of)
    moved = _weights_moved([first.pairs[i][0] for i in opening_of], number)
    return Occasion(number, count, since, moved)


def _since_last_opening(
    pairs: PairFindings, entry: Entry, opening_of: Mapping[int, int]
) -> tuple[str, ...]:
    """Return the phases since an entry's phase was last open, of its openings by pair."""
    first = next(i for i, opening in opening_of.items() if opening == entry.opening)
    last = max((i for i, opening in opening_of.items() if opening < entry.opening), default=None)
    if last is None:
        return ()
    since = _phases(p for p, _ in pairs[last + 1 : first])
    if entry.phase in UPDATE_PHASES:
        since = (entry.phase, *(phase for phase in since if phase != entry.phase))
    return since


def _weights_moved(pairs: Iterable[Pair], number: int) -> bool | None:
    """Return whether a phase's parameters were recorded again: that is done where they changed."""
    recorded = {
        p.entry.opening for p in pairs if p.entry is not None and p.record.io == "parameters"
    }
    if not any(opening < number for opening in recorded):
        return None
    return number in recorded


def _phases(pairs: Iterable[Pair]) -> tuple[str, ...]:
    """Return the phases whose entries or results are among pairs, in their order."""
    found: dict[str, None] = {}
    for pair in pairs:
        if pair.entry is not None:
            found[pair.entry.phase] = None
        elif pair.event.kind == DATA and pair.event.phase is not None:
            found[pair.event.phase] = None
    return tuple(found)
