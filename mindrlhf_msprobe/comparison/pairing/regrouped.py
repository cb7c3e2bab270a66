"""Micro-batches of unlike size, of one phase in both runs: the larger ones are cut to the smaller.

One rank may accumulate gradients over four micro-batches where two ranks need two. What several
ranks hold of one call is put together before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.comparison.pairing.composed import Assembly, Shard, composed, gap_of, marked
from mindrlhf_msprobe.comparison.pairing.key_pieces import CutStep, cut_keys
from mindrlhf_msprobe.comparison.pairing.micro_batches import cut
from mindrlhf_msprobe.comparison.pairing.names import NameRules
from mindrlhf_msprobe.comparison.pairing.planner import StepData
from mindrlhf_msprobe.storage.arrays.expression import Tile
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, Record
from mindrlhf_msprobe.storage.shards import MEAN

#: Of each run, whether the gradients of a batch are the MEAN or the SUM of those of its
#: micro-batches; None: not said.
Reductions = tuple[str | None, str | None]


def regrouped(
    a: StepData, b: StepData, rules: NameRules, reductions: Reductions = (None, None)
) -> CutStep | None:
    """Cut the larger batches of each phase to the smaller ones; None where all are of one size.

    Args:
        rules: how cells of A are called in B.
        reductions: where they are said, gradients of parameters are those of the whole batch.
    """
    phases = [dict.fromkeys(entry.phase for entry in side.entries) for side in (a, b)]
    of_phase: dict[str, CutStep] = {}
    for phase in (phase for phase in phases[0] if phase in phases[1]):
        one, other = (
            replace(side, entries=[e for e in side.entries if e.phase == phase]) for side in (a, b)
        )
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
    a: StepData, b: StepData, phase: str, rules: NameRules, reductions: Reductions
) -> CutStep | None:
    """Cut the batches of one phase, with gradients of the whole batch where these are known."""
    whole = [_whole_gradients(side, how) for side, how in zip((a, b), reductions)]
    known = None not in whole
    if known:
        a, b = (
            replace(side, entries=[e for e in side.entries if e.direction != PARAMETERS_GRAD])
            for side in (a, b)
        )
    found = cut(a, b, rules, (phase, phase), regroup=True)
    if found is None or not known:
        return found
    data = []
    for side, gradients in zip(found.data, whole):  # they follow all that was cut
        after = max((e.seq if e.end is None else e.end for e in side.entries), default=0) + 1
        moved = [replace(e, seq=after + n, end=after + n) for n, e in enumerate(gradients or ())]
        data.append(replace(side, entries=[*side.entries, *moved]))
    return replace(found, data=(data[0], data[1]))


def _cut_of_keys(a: StepData, b: StepData) -> CutStep:
    """Cut the saves of each key whose rows are in other micro-batches, or of other ones.

    What cannot be cut and was saved another number of times is not compared.
    """
    counts = [Counter(datum.key for datum in side.key_data) for side in (a, b)]
    unlike = {key for key, n in counts[0].items() if counts[1][key] not in (0, n)}
    saved = {key for key, n in counts[0].items() if key in unlike or n == counts[1][key] > 1}
    found = cut_keys(a, b, {key: key for key in sorted(saved)}, regroup=True) or CutStep((a, b))
    left, gap = unlike - {*found.cut}, message("coverage.of_micro_batch")
    one, other = (
        replace(side, key_data=[marked(d, gap) if d.key in left else d for d in side.key_data])
        for side in found.data
    )
    return replace(found, data=(one, other))


def _whole_gradients(side: StepData, how: str | None) -> list[Entry] | None:
    """Return the gradients of parameters of all micro-batches of a phase together.

    None where they are not known: nothing says how, weights were updated in between, or
    micro-batches of unlike size were to be averaged.
    """
    calls: dict[str, list[Entry]] = defaultdict(list)
    given: dict[str, set[object]] = defaultdict(set)  # the shapes of what each cell was given
    for entry in side.entries:
        if entry.direction == PARAMETERS_GRAD:
            calls[entry.call_name].append(entry)
        elif entry.direction == "forward" and not is_operator(entry.name):
            if entry.call_name in given and any(r.io == "parameters" for r in entry.records):
                return None  # they are recorded anew after an update
            shapes = tuple(record.leaf.shape for record in entry.records if record.io == "input")
            given[entry.call_name].add(shapes)
    if not calls:
        return None
    if all(len(entries) == 1 for entries in calls.values()):
        return [entry for entries in calls.values() for entry in entries]
    if how is None or (how == MEAN and any(len(shapes) > 1 for shapes in given.values())):
        return None
    found = []
    for first, *others in calls.values():
        records = []
        for record in first.records:
            place, each = (record.io, record.path), [first, *others]
            terms = [r for entry in each for r in entry.records if (r.io, r.path) == place]
            records.append(_sum_of(record, terms, how) if len(terms) == len(each) else record)
        found.append(replace(first, records=tuple(records)))
    return found


def _sum_of(record: Record, terms: Sequence[Record], how: str) -> Record:
    """Return the gradient of the batch; the parts have no ranks to be named."""
    leaf = record.leaf
    unlike = leaf.shape is None or any(r.leaf.shape != leaf.shape for r in terms)
    if unlike or any(r.leaf.why is not None or gap_of((r,)) for r in terms):
        return composed(record, gap=message("coverage.batch_gradients"))
    if len(terms) == 1:
        return record
    if any(r.location is None for r in terms):
        return composed(record, gap=message("layout.partial_statistics"))
    shape = leaf.shape or ()
    zeros = (0,) * len(shape)
    of = Leaf(leaf.type, leaf.dtype, shape, data_name=leaf.data_name)
    divided_by = len(terms) if how == MEAN else 1
    tiles = [Tile(zeros, shape, 0, zeros)]
    parts = [(tuple(map(Shard, range(len(terms)), terms)),)]
    made = Assembly(parts, tiles, leaves=[of], divided_by=divided_by)
    return composed(record, leaf=of, sketches=None, expression=made)


def _merged(side: StepData, of_phase: Mapping[str, CutStep], number: int) -> StepData:
    """Return one side with the entries of the phases that were cut.

    Their clock begins anew: they stand where their phase began, between two ticks of the others.
    """
    made = {phase: step.data[number].entries for phase, step in of_phase.items()}
    own = {phase: [e for e in side.entries if e.phase == phase] for phase in made}
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
