"""The same elements in other places: exchanged rows, swapped halves, transposed, shifted.

And how much the values of two arrays tell for an explanation of their differences. A mask that is
cut by one column is also a mask that is shifted by one, and two rows of it that are swapped may as
well have changed. So each value that an explanation predicts counts by its bits: how unlikely it is
that another change put the same value there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xxhash

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.comparison.judging.arrays import (
    ALONE,
    SPAN,
    Lower,
    Threads,
    blocks,
    compare_tensors,
)
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance, is_finite
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings import Change
from mindrlhf_msprobe.storage.arrays.expression import Permuted
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, give_back
from mindrlhf_msprobe.storage.records import Record

#: Bits without which an explanation is not told from others: one chance in a thousand.
ENOUGH = 10.0
_MOST_COUNTED = 1 << 20  # elements among which others are counted
_MOST_PAIRS = 1 << 16  # elements that differ and are looked at


_NEARLY_EQUAL = 1e-5  # relative, of norms that two tools summed
_MOST_MOVED = 1 << 26  # elements of a tensor that is looked into
_MOST_SORTED = 1 << 24
_MOST_PLACES = 1 << 22  # along an axis, of which the order is looked at
_MOST_PERIODS = 4096
#: What takes the place of what was moved away: nothing, or a label that a loss leaves out.
_FILLED = (0, -100)
_SHIFTS = (1, -1, 2, -2)
MOST_SPANS = 32
CHUNK = 1 << 18  # elements looked at together


class Fitting(NamedTuple):
    """What may have been done to all elements that differ, and whether the values tell it."""

    change: Change
    is_certain: Callable[[], bool]


def tells_one_number(predicted: Iterable[np.ndarray]) -> bool:
    """Return whether values tell for one factor or offset, which one of them itself gives.

    Args:
        predicted: the values of B that differ, in parts.
    """
    bits = _bits(_distinct(predicted))
    return bool(bits.size) and bits.sum() - bits.max() >= ENOUGH


def are_several(values: Iterable[np.ndarray]) -> bool:
    """Return whether values, in parts, are not all one."""
    return _distinct(values).size > 1


def tells_moved(pairs: tuple[np.ndarray, np.ndarray], whole: np.ndarray, choices: float) -> bool:
    """Return whether elements that differ tell that they come from other places.

    Equal pairs count once: they may have one reason. An element that there is only once is known by
    all its bits, of others it counts how few there are.

    Args:
        pairs: what stands in the same places of A and B, one-dimensional.
        whole: all elements of A, of which some are counted.
        choices: bits of the choice among all explanations of the kind; infinite: any element may
            come from any place.
    """
    x, y = (side[np.lexsort(pairs)] for side in pairs)
    predicted = y[np.append(True, (x[1:] != x[:-1]) | (y[1:] != y[:-1]))[: len(y)]]
    some = whole.reshape(-1)[:: -(-whole.size // _MOST_COUNTED)]
    values, counts = np.unique(some, return_counts=True)
    at = np.searchsorted(values, predicted).clip(max=len(values) - 1)
    count = np.where(values[at] == predicted, counts[at], 1)
    bits = np.log2(some.size / count)
    bits = np.where(count == 1, np.maximum(bits, _bits(predicted)), bits)
    if math.isinf(choices):
        choices = bits_of_order(len(predicted))
    return float(bits.sum()) - choices >= ENOUGH


def bits_of_order(count: int) -> float:
    """Return the bits of an order of so many places, each other than before."""
    return max(0.0, (math.lgamma(count + 1) - 1) / math.log(2))


def differing(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what differs in two arrays of one shape, as many pairs as are looked at."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    count = 0
    rows = max(1, _MOST_PAIRS * len(a) // max(1, a.size))
    for start in range(0, len(a), rows):
        x, y = a[start : start + rows], b[start : start + rows]
        unlike = x != y
        found.append((x[unlike], y[unlike]))
        count += len(found[-1][0])
        if count >= _MOST_PAIRS:
            break
    x, y = (np.concatenate(each)[:_MOST_PAIRS] for each in zip(*found))
    return x, y


def moved(a: Record, b: Record, threads: Threads = ALONE) -> Messages:
    """Say how the same elements stand in other places in B; nothing where that is not certain.

    Those of a transposed matrix may be rounded, too.

    Args:
        threads: share what is large.
    """
    shape, others = a.leaf.shape or (), b.leaf.shape or ()
    if a.location is None or b.location is None or not (shape and all(shape)):
        return ()
    try:
        if len(shape) == 2 and shape == others[::-1]:
            said = _transposed(a, b, threads)
            if said:
                return said
        same_kind = a.leaf.dtype == b.leaf.dtype and shape == others
        if not same_kind or math.prod(shape) > _MOST_MOVED:
            return ()
        x, y = a.array(), b.array()
        fitting = moves(x, y, range(x.ndim))
    except (ArrayFileError, RunError, OSError, TypeError, ValueError) as error:
        return (message("note.unreadable", why=error),)
    is_certain = len(fitting) == 1 and fitting[0].is_certain()
    return (said_of_change(fitting[0].change),) if is_certain else ()


def _transposed(a: Record, b: Record, threads: Threads) -> Messages:
    x, turned = a.opened(), Permuted(b.opened(), (1, 0))
    lower = Lower.of(a.leaf.dtype, b.leaf.dtype)
    # The first row alone: most matrices are no transpose, and few of its elements say so.
    rows = [side.read(0, x.shape[1]) for side in (x, turned)]
    same = np.array_equal(rows[0], rows[1], equal_nan=rows[0].dtype.kind in "fc")
    if not (same or (lower is not None and lower.rounds(*rows))):
        return ()
    compared = compare_tensors(x, turned, Tolerance(), threads, [lower] if lower else [])
    if not compared.equal and compared.rounded_to is None:
        return ()
    said = {"a": a.leaf.dtype, "b": b.leaf.dtype, "to": compared.rounded_to}
    cast = () if compared.equal else (message("checkpoint.rounded", **said),)
    return (message("inside.transposed"), *cast)


def swapped(
    a: Record,
    b: Record,
    others: Iterable[tuple[Record, Record, str, str]],
    threads: Threads = ALONE,
) -> Change | None:
    """Return that a parameter of A is, in B, another one, or the other way round.

    What A holds at the other place, too, did not come there.

    Args:
        others: further parameters of A and B, and the names of these.
        threads: share what is large.
    """
    places: dict[str, str] = {}
    for of_a, of_b, name_a, name_b in others:
        if "b" not in places and _is_one(a, of_b, threads) and not _is_one(a, of_a, threads):
            places["b"] = name_b
        if "a" not in places and _is_one(b, of_a, threads):
            places["a"] = name_a
    return Change("elsewhere", {"a": places.get("a"), "b": places.get("b")}) if places else None


def _is_one(a: Record, b: Record, threads: Threads) -> bool:
    """Return whether two records are one tensor: by elements, else by statistics.

    One number everywhere tells nothing.
    """
    x, y = a.leaf, b.leaf
    if x.shape != y.shape or not (is_finite(x.norm) and is_finite(y.norm)):
        return False
    extremes = x.max, x.min, y.max, y.min
    are_known = all(map(is_finite, extremes))
    if are_known and (x.max == x.min or extremes[:2] != extremes[2:]):
        return False
    if abs(x.norm - y.norm) > _NEARLY_EQUAL * abs(x.norm):
        return False
    if are_known and x.dtype == y.dtype and None not in (x.fingerprint, y.fingerprint):
        return x.fingerprint == y.fingerprint
    if a.location is None or b.location is None:
        return are_known and x.dtype == y.dtype
    try:
        mine, theirs = a.opened(), b.opened()
        if not are_known:
            some = mine.read(0, min(math.prod(mine.shape), SPAN))
            if some.max() == some.min():
                return False
        return compare_tensors(mine, theirs, Tolerance(), threads).equal
    except (ArrayFileError, RunError, OSError, TypeError, ValueError):
        return False


def said_of_change(change: Change) -> Message:
    """Say what was done to a parameter, beside its name."""
    return Message(f"inside.{change.kind}", {"name": None, **change.parameters})


def moves(a: np.ndarray, b: np.ndarray, numbers: Sequence[int]) -> list[Fitting]:
    """Return how the same elements may stand in other places."""
    if a.dtype.kind == "b" or a.size > _MOST_MOVED:
        return []
    found = [*_shifts(a, b, numbers)]
    if not _may_be_moved(a, b):
        return found

    def fitting(change: Change, choices: float) -> Fitting:
        return Fitting(change, lambda: tells_moved(differing(a, b), a, choices))

    if a.ndim == 2 and a.shape[0] == a.shape[1] and np.array_equal(a, b.T):
        found.append(fitting(Change("transposed", {"size": a.shape[0]}), 0))
    for axis, number in enumerate(numbers):
        if 1 < a.shape[axis] <= _MOST_PLACES and (order := _order(a, b, axis)) is not None:
            moved = [[i, j] for i, j in enumerate(order) if i != j]
            known: dict[str, Any] = {"axis": number, "size": len(order), "moved": len(moved)}
            shifts = {(i - j) % len(order) for i, j in enumerate(order)}
            known |= {"turned": min(shifts)} if len(shifts) == 1 else {}
            change = Change("order", known | {"from": moved[:MOST_SPANS]})
            found = [one for one in found if one.change.parameters.get("axis") != number]
            found.append(fitting(change, bits_of_order(len(moved))))
    if found or a.size > _MOST_SORTED or not np.array_equal(_in_order(a), _in_order(b)):
        return found
    if a.ndim > 1 and np.array_equal(np.sort(a, axis=-1), np.sort(b, axis=-1)):
        change = Change("order_inside", {"axis": numbers[-1], "size": a.shape[-1]})
        return [fitting(change, math.inf)]
    return [fitting(Change("moved", {}), math.inf)]


def _may_be_moved(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether there is no NaN, and the sum of all bits is the same on both sides.

    It is where the same elements stand in other places, and of other ones hardly ever.
    """
    apart = 0
    for _, x, y in blocks(a, b):
        if a.dtype.kind == "f":
            if np.isnan(x).any() or np.isnan(y).any():
                return False
            x, y = x + x.dtype.type(0), y + y.dtype.type(0)  # -0.0 is 0.0
        if a.itemsize > 8:  # a longdouble, of which not all bits are of the number
            continue
        bits = np.dtype(f"u{a.itemsize}")
        apart += int(x.view(bits).sum(dtype=np.uint64)) - int(y.view(bits).sum(dtype=np.uint64))
    return apart % (1 << 64) == 0


def _in_order(array: np.ndarray) -> np.ndarray:
    found = np.sort(array, axis=None)
    give_back(array)
    return found


def _order(a: np.ndarray, b: np.ndarray, axis: int) -> list[int] | None:
    """Return from which place of A each place of B along an axis comes, if that is certain."""
    keys = []
    for x in (np.moveaxis(array, axis, 0) for array in (a, b)):
        step = max(1, CHUNK * len(x) // x.size)
        parts = (np.ascontiguousarray(x[at : at + step]) for at in range(0, len(x), step))
        keys.append(np.concatenate([*map(keys_of_rows, parts)]))
    order = order_between(*keys)
    return None if order is None else order.tolist()


def keys_of_rows(values: np.ndarray) -> np.ndarray:
    """Return a fingerprint of each row of a contiguous array, uint64."""
    rows = values.view(np.uint8).reshape(len(values), -1)
    return np.array([xxhash.xxh3_64_intdigest(row.data) for row in rows], np.uint64)


def order_between(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray | None:
    """Return which of `mine` each row of `theirs` is, given their keys; None if they are others."""
    places = {key: number for number, key in enumerate(mine.tolist())}
    order = np.array([places.get(key, -1) for key in theirs.tolist()], np.int64)
    each_once = len(places) == len(mine) and np.array_equal(np.sort(order), np.arange(len(mine)))
    return order if each_once else None


def _shifts(a: np.ndarray, b: np.ndarray, numbers: Sequence[int]) -> Iterator[Fitting]:
    """Yield how far B's elements may stand behind A's along an axis, what fell off being lost.

    It is a shift of the whole where in its place stands what A has there, or what is filled in.
    """
    for axis, number in enumerate(numbers):
        n = a.shape[axis]
        x, y = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
        for shift in _SHIFTS:
            if n >= 2 * abs(shift) + 2 and _same(*_overlap(x, y, shift)):
                came = y[:shift] if shift > 0 else y[shift:]
                stood = x[:shift] if shift > 0 else x[shift:]
                filled = next((v for v in _FILLED if bool((came == v).all())), None)
                whole = filled is not None or np.array_equal(came, stood)
                known: dict[str, Any] = {"axis": number, "size": n, "by": shift}
                known |= {"filled": filled, "whole": whole}
                change = Change("shifted", known)
                yield Fitting(change, partial(_tells_shift, x, y, shift, a))


def _overlap(x: np.ndarray, y: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what stands in Y, and where it stood in X before a shift along the first axis."""
    return (y[shift:], x[:-shift]) if shift > 0 else (y[:shift], x[-shift:])


def _tells_shift(x: np.ndarray, y: np.ndarray, shift: int, a: np.ndarray) -> bool:
    """Return whether a shift along the first axis is told from another one, and from changes.

    Args:
        x, y: views of A and B.
    """
    periods = range(1, min(len(x) // 2, _MOST_PERIODS) + 1)
    if any(_same(x[by : by + 1], x[:1]) and _same(*_overlap(x, x, by)) for by in periods):
        return False
    places = slice(shift, None) if shift > 0 else slice(None, shift)
    return tells_moved(differing(x[places], y[places]), a, math.log2(a.ndim * len(_SHIFTS)))


def _same(new: np.ndarray, old: np.ndarray) -> bool:
    """Return whether two arrays are equal, some rows at a time."""
    rows = max(1, CHUNK * len(old) // max(1, old.size))
    places = (slice(start, start + rows) for start in range(0, len(old), rows))
    return all(bool((new[place] == old[place]).all()) for place in places)


def _distinct(parts: Iterable[np.ndarray]) -> np.ndarray:
    found = [np.unique(part[:_MOST_PAIRS]) for part in parts]
    return np.unique(np.concatenate(found)) if found else np.zeros(0)


def _bits(values: np.ndarray) -> np.ndarray:
    """Return how many digits each value has in base two; of a whole number all, float64.

    An infinity has none.
    """
    mantissa, exponent = np.frexp(np.abs(values.astype(np.float64)))
    if values.dtype.kind != "f":
        return exponent.astype(np.float64)
    whole = (np.where(np.isfinite(mantissa), mantissa, 0) * 2.0**53).astype(np.int64)
    lowest = np.log2(np.maximum(whole & -whole, 1))
    return np.where(whole > 0, 53 - lowest, 0)
