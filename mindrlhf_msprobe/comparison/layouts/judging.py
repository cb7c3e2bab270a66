"""Two records, of which at least one was put together → a status, and the ranks that differ.

One rank may accumulate gradients over four micro-batches where two ranks need two. What several
ranks hold of one call is put together before; here the larger batches are cut to the smaller ones.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.judging.by_statistics import PairFound
from mindrlhf_msprobe.comparison.judging.metrics.blocks import Tolerance, is_finite
from mindrlhf_msprobe.comparison.judging.status import Decode, compare_records
from mindrlhf_msprobe.comparison.pairing.composed import (
    Assembly,
    Shard,
    assembly_of,
    composed,
    gap_of,
    marked,
    taking,
)
from mindrlhf_msprobe.comparison.pairing.key_pieces import CutStep, cut_keys
from mindrlhf_msprobe.comparison.pairing.micro_batches import cut
from mindrlhf_msprobe.comparison.pairing.names import NameRules
from mindrlhf_msprobe.comparison.pairing.planner import StepData
from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.storage.arrays.expression import (
    CHUNK,
    WHOLE,
    Tile,
    boxes_of_span,
)
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, Record
from mindrlhf_msprobe.storage.shards import MEAN, SUM

_ADDED = 1e-5  # of the largest element: how far a sum may be off by rounding
_ROUNDING = 1e-6  # of a mean or norm that was put together from those of parts


def compare_joined(
    a: Record, b: Record, tolerance: Tolerance, decode: Decode | None = None
) -> PairFound:
    """Compare two records, one or both put together from several ranks; every copy counts.

    Returns:
        What `compare_records` does. The notes name the ranks whose parts differ.
    """
    variants = [_unlike_copies(record) for record in (a, b)]
    pairs = [(x, b) for x in variants[0]] + [(a, y) for y in variants[1][1:]]
    found = [compare_records(x, _as_rounded(x, y), tolerance, decode) for x, y in pairs]

    def how_bad(one: PairFound) -> tuple[bool, float]:
        return one[0].agrees, -(0.0 if one[1] is None else float(one[1].max_abs_err or 0.0))

    status, metrics, notes = min(found, key=how_bad)
    if status.agrees:
        status, metrics, notes = max(found, key=lambda f: f[0] is Status.WITHIN_TOLERANCE)
        return status, metrics, notes
    if a.leaf.shape == b.leaf.shape and a.leaf.is_tensor and status is not Status.UNREADABLE:
        with suppress(ArrayFileError, OSError, ValueError, TypeError):
            sides = [("A", a, b), ("B", b, a)]
            made = [(s, own, of, o) for s, own, o in sides if (of := assembly_of(own)) is not None]
            copies = (_copies(side, of) for side, _, of, _ in made)
            parts = (_which_parts(s, own, of, o, tolerance) for s, own, of, o in made if of.of != 1)
            sums = (_sums(*of_side) for of_side in made)
            notes = *notes, *(note for some in (*copies, *parts, *sums) for note in some)
    return status, metrics, notes


def _unlike_copies(own: Record) -> list[Record]:
    """Return a record with each copy of its parts; itself alone where all are known to be equal."""
    made = assembly_of(own)
    if made is None or made.copies == 1:
        return [own]
    for part in made.parts:
        for terms in itertools.zip_longest(*part):
            prints = {shard.record.leaf.fingerprint for shard in terms if shard is not None}
            if len(prints) != 1 or None in prints:
                return [taking(own, copy) for copy in range(made.copies)]
    return [own]


def _as_rounded(a: Record, b: Record) -> Record:
    """Return B with A's mean and norm where these are the same but for the rounding of parts."""
    made = [of for of in (assembly_of(a), assembly_of(b)) if of is not None]
    elements = a.location is not None is not b.location
    if elements or all(len(of.tiles) <= 1 for of in made) or a.leaf.shape != b.leaf.shape:
        return b
    leaf = b.leaf
    largest = max((abs(v) for v in (leaf.max, leaf.min) if is_finite(v)), default=0.0)
    if _close(a.leaf.mean, leaf.mean, largest):
        leaf = replace(leaf, mean=a.leaf.mean)
    if _close(a.leaf.norm, leaf.norm, leaf.norm):
        leaf = replace(leaf, norm=a.leaf.norm)
    return b if leaf is b.leaf else replace(b, leaf=leaf)


def _close(a: object, b: object, scale: object) -> bool:
    if not (is_finite(a) and is_finite(b) and is_finite(scale)):
        return False
    return abs(a - b) <= _ROUNDING * abs(scale)  # type: ignore[operator,arg-type]


def _which_parts(
    side: str, own: Record, made: Assembly, other: Record, tolerance: Tolerance
) -> Iterator[Message]:
    """Say which ranks hold the parts that differ, or the terms of a sum that does."""
    stored = own.location is not None and other.location is not None
    odd: set[int] = set()
    sums = False
    variants = _unlike_copies(own)
    for variant in variants:
        taken = assembly_of(variant)
        assert taken is not None
        copies = range(made.copies) if len(variants) == 1 else [taken.taken]
        if stored:
            tiles = _by_elements(variant, taken, other, tolerance)
        else:
            tiles = _by_extremes(taken, other)
        for tile in tiles:
            odd |= {shard.rank for copy in copies for shard in made.terms(tile, copy)}
            sums |= len(made.terms(tile, 0)) > 1
    if not odd:
        return
    if sums:
        yield message("note.sum_differs", side=side, ranks=sorted(odd))
    else:
        others = [rank for rank in made.ranks if rank not in odd] if stored else []
        yield message("note.parts_differ", side=side, ranks=sorted(odd), others=others)


def _by_elements(own: Record, made: Assembly, other: Record, tolerance: Tolerance) -> list[Tile]:
    """Return the parts that differ somewhere."""
    readers = own.opened(), other.opened()
    found = []
    for tile in made.tiles:
        size = math.prod(tile.shape)
        spans = ((at, min(at + CHUNK, size)) for at in range(0, size, CHUNK))
        for start, shape in (box for span in spans for box in boxes_of_span(tile.shape, *span)):
            at = [t + s for t, s in zip(tile.start, start)]
            same = _same(readers[0].box(at, shape), readers[1].box(at, shape), tolerance)
            for reader in readers:
                reader.give_back()
            if not same:
                found.append(tile)
                break
    return found


def _same(x: np.ndarray, y: np.ndarray, tolerance: Tolerance) -> bool:
    with np.errstate(all="ignore"):
        same = (x == y) | ((x != x) & (y != y))
        if tolerance.bitwise or same.all():
            return bool(same.all())
        u, v = x.astype(np.float64), y.astype(np.float64)
        allowed = tolerance.atol + tolerance.rtol * np.maximum(abs(u), abs(v))
        return bool((same | (abs(u - v) <= allowed)).all())


def _by_extremes(made: Assembly, other: Record) -> list[Tile]:
    """Return the parts whose statistics lie outside of what the other side has anywhere."""
    found, whole = [], other.leaf
    for tile in made.tiles:
        if len(made.terms(tile, 0)) > 1:
            continue
        part = made.terms(tile, made.taken)[0].record.leaf
        counts = (part.nan_count, whole.nan_count), (part.inf_count, whole.inf_count)
        more = any(x is not None and y is not None and x > y for x, y in counts)
        larger = is_finite(part.max) and is_finite(whole.max) and part.max > whole.max
        smaller = is_finite(part.min) and is_finite(whole.min) and part.min < whole.min
        if more or larger or smaller:
            found.append(tile)
    return found


def _copies(side: str, made: Assembly) -> Iterator[Message]:
    """Say that ranks which hold the same do not agree among themselves.

    Those are named whose copy of a part is not that of more than half of them.
    """
    odd: set[int] = set()
    for part in () if made.is_cut else made.parts:
        if len(part) == 1 or any(len(copy) > 1 for copy in part):
            continue
        prints = [_print(copy[0].record) for copy in part]
        most = max(prints, key=prints.count)
        if 2 * prints.count(most) > len(prints):  # else nothing tells which are the odd ones
            odd |= {copy[0].rank for copy, own in zip(part, prints) if own != most}
    if odd:
        yield message("note.copies_differ", side=side, ranks=sorted(odd))


def _sums(side: str, own: Record, made: Assembly, other: Record) -> Iterator[Message]:
    """Say that unlike copies of a part are together what the other run has, as a sum or a mean.

    That may be how the network works, or a reduction that is missing: it does not agree by it.
    """
    leaf, small = own.leaf, math.prod(own.leaf.shape or ()) * 8 <= WHOLE
    if made.copies == 1 or made.is_cut or leaf.is_discrete or not small:
        return
    if own.location is None or other.location is None:
        return
    total = made.added().array().astype(np.float64)
    whole = other.array().astype(np.float64)
    for how, value in ((SUM, total), (MEAN, total / made.copies)):
        with np.errstate(all="ignore"):  # the same but for the rounding of a sum
            largest = abs(whole).max(initial=0.0)
            near = largest > 0 and abs(value - whole).max(initial=0.0) <= _ADDED * largest
        if near:
            yield message("note.copies_added", side=side, ranks=made.ranks, how=how)
            break


def _print(record: Record) -> object:
    """Return what tells a copy from another one."""
    leaf = record.leaf
    if leaf.fingerprint is not None or record.location is None:
        return leaf.fingerprint, repr((leaf.max, leaf.min, leaf.mean, leaf.norm))
    import hashlib

    digest = hashlib.blake2b(digest_size=16)
    for block in record.opened().blocks(CHUNK):
        digest.update(block.tobytes())
    return digest.hexdigest()


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
    a: StepData, b: StepData, phase: str, rules: NameRules, reductions: Reductions
) -> CutStep | None:
    """Cut the batches of one phase, with gradients of the whole batch where these are known."""
    found = cut(a, b, rules, (phase, phase), regroup=True)
    whole = _whole_gradients(a, reductions[0]), _whole_gradients(b, reductions[1])
    if found is None or whole[0] is None or whole[1] is None:
        return found
    one, other = (
        replace(side, entries=[e for e in side.entries if e.direction != PARAMETERS_GRAD])
        for side in (a, b)
    )
    found = cut(one, other, rules, (phase, phase), regroup=True)
    if found is None:
        return None
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
    found = cut_keys(a, b, {key: key for key in sorted(saved)}, regroup=True)
    if found is None:
        found = CutStep((a, b))
    left = unlike - {*found.cut}
    gap = message("coverage.of_micro_batch")
    one, other = (
        replace(
            side,
            key_data=[
                marked(datum, gap) if datum.key in left else datum for datum in side.key_data
            ],
        )
        for side in found.data
    )
    return replace(found, data=(one, other))


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
    if any(r.leaf.why is not None or gap_of((r,)) for r in terms):
        return composed(record, gap=message("coverage.batch_gradients"))
    if any(r.leaf.shape != leaf.shape or r.leaf.shape is None for r in terms):
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


def _of(phase: str, entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.phase == phase]


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
