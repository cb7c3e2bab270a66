"""Two records, of which at least one was put together → a status, and the ranks that differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.judging.arrays import ALONE, Threads, compare_tensors
from mindrlhf_msprobe.comparison.judging.by_statistics import PairFound
from mindrlhf_msprobe.comparison.judging.status import Decode, compare_records
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance, is_finite
from mindrlhf_msprobe.comparison.pairing.composed import Assembly, assembly_of, taking
from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.storage.arrays.expression import CHUNK, WHOLE, Expression, Tile, Tiled
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.leaves import MEAN, SUM
from mindrlhf_msprobe.storage.records import Record

_ADDED = 1e-5  # of the largest element: how far a sum may be off by rounding
_ROUNDING = 1e-6  # of a mean or norm that was put together from those of parts


def compare_joined(
    a: Record,
    b: Record,
    tolerance: Tolerance,
    decode: Decode | None = None,
    threads: Threads = ALONE,
) -> PairFound:
    """Compare two records, one or both put together from several ranks; every copy counts.

    Returns:
        What `compare_records` does. The notes name the ranks whose parts differ.
    """
    variants = [_unlike_copies(record) for record in (a, b)]
    pairs = [(x, b) for x in variants[0]] + [(a, y) for y in variants[1][1:]]
    found = [compare_records(x, _as_rounded(x, y), tolerance, decode, threads) for x, y in pairs]

    def how_bad(one: PairFound) -> tuple[bool, float]:
        return one[0].agrees, -(0.0 if one[1] is None else float(one[1].max_abs_err or 0.0))

    status, metrics, notes = min(found, key=how_bad)
    if status.agrees:
        status, metrics, notes = max(found, key=lambda f: f[0] is Status.WITHIN_TOLERANCE)
        return status, metrics, notes
    if a.leaf.shape == b.leaf.shape and a.leaf.is_tensor and status is not Status.UNREADABLE:
        with suppress(ArrayFileError, OSError, ValueError, TypeError):
            more: list[Message] = []
            sides = [("A", a, assembly_of(a), b), ("B", b, assembly_of(b), a)]
            made = [(side, own, of, other) for side, own, of, other in sides if of is not None]
            for side, _, of, _ in made:
                more += _copies(side, of)
            for side, own, of, other in made:
                more += _which_parts(side, own, of, other, tolerance) if of.of != 1 else ()
            for side, own, of, other in made:
                more += _sums(side, own, of, other)
            notes = *notes, *more
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
            both = variant.opened(), other.opened()
            tiles = [tile for tile in taken.tiles if _differs(*both, tile, tolerance)]
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


def _differs(own: Expression, other: Expression, tile: Tile, tolerance: Tolerance) -> bool:
    """Return whether two tensors differ somewhere in a part of the whole."""
    begin = (0,) * len(tile.shape)
    cut = [Tile(begin, tile.shape, 0, tile.start)]
    a, b = (Tiled([side], cut, tile.shape) for side in (own, other))
    compared = compare_tensors(a, b, tolerance)
    a.give_back()
    b.give_back()
    return not (compared.equal or (compared.within and not tolerance.bitwise))


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
