"""Runs of other layouts that cut a batch into other micro-batches: their rows brought together.

One rank may accumulate gradients over four micro-batches where two ranks need two. What several
ranks hold of one call is put together before; here the larger batches are cut to the smaller ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.comparison.layouts.joined import Assembly, Tile, joined
from mindrlhf_msprobe.comparison.layouts.layout import MEAN
from mindrlhf_msprobe.comparison.pairing.names import NameRule
from mindrlhf_msprobe.comparison.pairing.planner import StepData
from mindrlhf_msprobe.comparison.pairing.rows.key_pieces import cut_keys
from mindrlhf_msprobe.comparison.pairing.rows.micro_batches import cut
from mindrlhf_msprobe.comparison.pairing.rows.pieces import CutStep, Piece, piece_of
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, Record

#: Of each run, whether the gradients of a batch are the MEAN or the SUM of those of its
#: micro-batches; None: not said.
Reductions = tuple[str | None, str | None]


def regrouped(
    a: StepData, b: StepData, rules: tuple[NameRule, ...], reductions: Reductions = (None, None)
) -> CutStep | None:
    """Cut the larger batches of each phase to the smaller ones; None where all are of one size.

    Args:
        rules: how cells of A are called in B.
        reductions: where they are said, gradients of parameters are those of the whole batch.
    """
    phases = [dict.fromkeys(entry.phase for entry in side.entries) for side in (a, b)]
    of_phase: dict[str, CutStep] = {}
    for phase in (phase for phase in phases[0] if phase in phases[1]):
        one, other = (replace(side, entries=_of(phase, side.entries)) for side in (a, b))
        found = cut(one, other, rules, (phase, phase), regroup=True)
        whole = [_whole_gradients(s, how) for s, how in zip((one, other), reductions)]
        if found is not None and whole[0] is not None and whole[1] is not None:
            lacking = [_without_gradients(side) for side in (one, other)]
            found = cut(lacking[0], lacking[1], rules, (phase, phase), regroup=True)
            if found is not None:
                of = zip(found.data, whole)
                both = [_with_gradients(side, entries or ()) for side, entries in of]
                found = replace(found, data=(both[0], both[1]))
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


def _without_gradients(side: StepData) -> StepData:
    kept = [entry for entry in side.entries if entry.direction != PARAMETERS_GRAD]
    return replace(side, entries=kept)


def _with_gradients(side: StepData, gradients: Sequence[Entry]) -> StepData:
    """Return one side with gradients of the whole batch, which follow all that was cut."""
    after = max((e.seq if e.end is None else e.end for e in side.entries), default=0) + 1
    moved = [replace(e, seq=after + n, end=after + n) for n, e in enumerate(gradients)]
    return replace(side, entries=[*side.entries, *moved])


def _whole_gradients(side: StepData, how: str | None) -> list[Entry] | None:
    """Return the gradients of parameters of all micro-batches of a phase together.

    None where they are not known: nothing says how, weights were updated in between, or
    micro-batches of unlike size were to be averaged.
    """
    calls: dict[str, list[Entry]] = defaultdict(list)
    shapes: dict[str, set[object]] = defaultdict(set)
    for entry in side.entries:
        if entry.direction == PARAMETERS_GRAD:
            calls[entry.call_name].append(entry)
        elif entry.direction == "forward" and not is_operator(entry.name):
            given = [r.leaf.shape for r in entry.records if r.io == "input"]
            if entry.call_name in shapes and any(r.io == "parameters" for r in entry.records):
                return None
            shapes[entry.call_name].add(tuple(given))
    if not calls or all(len(entries) == 1 for entries in calls.values()):
        return [entry for entries in calls.values() for entry in entries] if calls else None
    if how is None or (how == MEAN and any(len(of) > 1 for of in shapes.values())):
        return None
    return [_added(entries, how) for entries in calls.values()]


def _added(entries: Sequence[Entry], how: str) -> Entry:
    first = entries[0]
    records = []
    for record in first.records:
        own = [r for e in entries for r in e.records if (r.io, r.path) == (record.io, record.path)]
        records.append(_sum_of(record, own, how) if len(own) == len(entries) else record)
    return replace(first, records=tuple(records))


def _sum_of(record: Record, terms: Sequence[Record], how: str) -> Record:
    """Return the gradient of the batch; the parts have no ranks to be named."""
    leaf = record.leaf
    if any(r.leaf.why is not None or (isinstance(r, Piece) and r.gap) for r in terms):
        return piece_of(record, gap=message("coverage.batch_gradients"))
    if any(r.leaf.shape != leaf.shape or r.leaf.shape is None for r in terms):
        return piece_of(record, gap=message("coverage.batch_gradients"))
    if len(terms) == 1:
        return record
    if any(r.location is None for r in terms):
        return piece_of(record, gap=message("layout.partial_statistics"))
    shape = leaf.shape or ()
    zeros = (0,) * len(shape)
    tile = Tile(zeros, shape, zeros, (tuple(range(len(terms))),))
    of = Leaf(leaf.type, leaf.dtype, shape, data_name=leaf.data_name)
    divided_by = len(terms) if how == MEAN else 1
    ranks = tuple(range(len(terms)))
    made = Assembly(ranks, tuple(terms), (tile,), divided_by, leaves=(of,))
    return joined(record, of, sketches=None, made_of=made, copy=0, sources=())


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
