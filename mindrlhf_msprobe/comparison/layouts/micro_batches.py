"""Runs of other layouts that cut a batch into other micro-batches: their rows brought together.

One rank may accumulate gradients over four micro-batches where two ranks need two. What several
ranks hold of one call is put together before; here the larger batches are cut to the smaller ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.comparison.pairing.names import NameRule
from mindrlhf_msprobe.comparison.pairing.planner import StepData
from mindrlhf_msprobe.comparison.pairing.rows.key_pieces import cut_keys
from mindrlhf_msprobe.comparison.pairing.rows.micro_batches import cut
from mindrlhf_msprobe.comparison.pairing.rows.pieces import CutStep, piece_of
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import Entry


def regrouped(a: StepData, b: StepData, rules: tuple[NameRule, ...]) -> CutStep | None:
    """Cut the larger batches of each phase to the smaller ones; None where all are of one size.

    Args:
        rules: how cells of A are called in B.
    """
    phases = [dict.fromkeys(entry.phase for entry in side.entries) for side in (a, b)]
    of_phase: dict[str, CutStep] = {}
    for phase in (phase for phase in phases[0] if phase in phases[1]):
        one, other = (replace(side, entries=_of(phase, side.entries)) for side in (a, b))
        found = cut(one, other, rules, (phase, phase), regroup=True)
        if found is not None:
            backward = (any(e.direction != "forward" for e in s.entries) for s in found.data)
            of_phase[phase] = found if all(backward) else replace(found, gradients=None)
    if not of_phase:
        return None
    data = _merged(a, of_phase, 0), _merged(b, of_phase, 1)
    counts = [Counter(datum.key for datum in side.key_data) for side in data]
    unlike = {key for key, n in counts[0].items() if counts[1][key] not in (0, n)}
    saved = {key for key, n in counts[0].items() if key in unlike or n == counts[1][key] > 1}
    of_keys = cut_keys(*data, {key: key for key in sorted(saved)}, regroup=True)
    extra = {} if of_keys is None else of_keys.extra
    known = set() if of_keys is None else {*of_keys.cut}
    data = data if of_keys is None else of_keys.data
    left = unlike - known
    sides = [replace(s, key_data=[_not_compared(d, left) for d in s.key_data]) for s in data]
    notes = [note for step in of_phase.values() for note in step.notes]
    notes += [] if of_keys is None else of_keys.notes
    return CutStep((sides[0], sides[1]), tuple(notes), extra, of_phase=of_phase)


def _of(phase: str, entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.phase == phase]


def _not_compared(datum: KeyDatum, keys: set[str]) -> KeyDatum:
    """Return a save without what it says of one micro-batch, where the other run has others."""
    if datum.key not in keys:
        return datum
    why = message("coverage.of_micro_batch")
    return replace(datum, records=tuple(piece_of(record, gap=why) for record in datum.records))


def _merged(side: StepData, of_phase: Mapping[str, CutStep], number: int) -> StepData:
    """Return one side with the entries of the phases that were cut.

    Their clock begins anew: they stand where their phase began, between two ticks of the others.
    """
    made = {phase: step.data[number].entries for phase, step in of_phase.items()}
    own = {phase: _of(phase, side.entries) for phase in made}
    moved = {phase for phase, entries in made.items() if [*entries] != own[phase]}
    latest = [entry.seq if entry.end is None else entry.end for p in moved for entry in made[p]]
    factor = max(latest, default=0) + 2

    def at(entry: Entry, begin: int, times: int) -> Entry:
        end = None if entry.end is None else begin + entry.end * times
        return replace(entry, seq=begin + entry.seq * times, end=end)

    entries = [at(entry, 0, factor) for entry in side.entries if entry.phase not in moved]
    for phase in moved:
        begin = min(entry.seq for entry in own[phase]) * factor
        entries += [at(entry, begin, 1) for entry in made[phase]]
    key_data = [replace(d, seq=None if d.seq is None else d.seq * factor) for d in side.key_data]
    entries.sort(key=lambda entry: entry.seq)
    return replace(side, entries=entries, key_data=key_data)
