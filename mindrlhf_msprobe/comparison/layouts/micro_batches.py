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
        found = _cut_of_phase(one, other, phase, rules, reductions)
        if found is not None:
            backward = (any(e.direction != "forward" for e in s.entries) for s in found.data)
            of_phase[phase] = found if all(backward) else replace(found, gradients=None)
    if not of_phase:
        return None
    of_keys = _cut_of_keys(_merged(a, of_phase, 0), _merged(b, of_phase, 1))
    notes = [note for step in (*of_phase.values(), of_keys) for note in step.notes]
    return CutStep(of_keys.data, tuple(notes), of_keys.extra, of_phase=of_phase)


def _cut_of_phase(
    a: StepData, b: StepData, phase: str, rules: tuple[NameRule, ...], reductions: Reductions
) -> CutStep | None:
    """Cut the batches of one phase, with gradients of the whole batch where these are known."""
    found = cut(a, b, rules, (phase, phase), regroup=True)
    whole = _whole_gradients(a, reductions[0]), _whole_gradients(b, reductions[1])
    if found is None or whole[0] is None or whole[1] is None:
        return found
    lacking = _without_gradients(a), _without_gradients(b)
    found = cut(*lacking, rules, (phase, phase), regroup=True)
    if found is None:
        return None
    one, other = found.data
    return replace(found, data=(_with_gradients(one, whole[0]), _with_gradients(other, whole[1])))


def _cut_of_keys(a: StepData, b: StepData) -> CutStep:
    """Cut the saves of each key whose rows are in other micro-batches, or of other ones.

    What cannot be cut and was saved another number of times is not compared.
    """
    counts = [Counter(datum.key for datum in side.key_data) for side in (a, b)]
    unlike = {key for key, n in counts[0].items() if counts[1][key] not in (0, n)}
    saved = {key for key, n in counts[0].items() if key in unlike or n == counts[1][key] > 1}
    found = cut_keys(a, b, {key: key for key in sorted(saved)}, regroup=True)
    if found is None:
        found = CutStep((a, b))
    left = unlike - {*found.cut}
    one, other = (
        replace(side, key_data=[_not_compared(datum, left) for datum in side.key_data])
        for side in found.data
    )
    return replace(found, data=(one, other))


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
    for entry in side.entries:
        if entry.direction == PARAMETERS_GRAD:
            calls[entry.call_name].append(entry)
    given = _given_by_cell(side.entries)
    if not calls or given is None:
        return None
    if all(len(entries) == 1 for entries in calls.values()):
        return [entry for entries in calls.values() for entry in entries]
    if how is None or (how == MEAN and any(len(shapes) > 1 for shapes in given.values())):
        return None
    return [_added(entries, how) for entries in calls.values()]


def _given_by_cell(entries: Sequence[Entry]) -> dict[str, set[object]] | None:
    """Return cell → the shapes that its forward passes were given; None after an update of weights.

    An update shows by parameters that are recorded anew.
    """
    shapes: dict[str, set[object]] = {}
    for entry in entries:
        if entry.direction != "forward" or is_operator(entry.name):
            continue
        if entry.call_name in shapes and any(r.io == "parameters" for r in entry.records):
            return None
        given = tuple(record.leaf.shape for record in entry.records if record.io == "input")
        shapes.setdefault(entry.call_name, set()).add(given)
    return shapes


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
