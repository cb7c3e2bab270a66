"""Two tensors of which only statistics and fingerprints were recorded → their status.

What is not finite says nothing about what is: one NaN makes all statistics NaN, and infinite
elements, or sums that overflowed, leave little of them. So nothing that is not finite is ever
within a tolerance, a rounding or the noise.

Statistics that two tools made of what may be the same tensor are exact ones against rounded ones.
The dialect of the rounded ones says in which precisions they may have been computed.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.comparison.judging.suspicion import Counts, one_sided
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance, is_finite, is_nan, is_number
from mindrlhf_msprobe.findings import Metrics, Status
from mindrlhf_msprobe.storage.foreign.dialect import DIALECTS, StatisticsDtype
from mindrlhf_msprobe.storage.leaves import Leaf

STATISTICS = ("max", "min", "mean", "norm")
#: (status, metrics, notes)
PairFound = tuple[Status, "Metrics | None", Messages]
_SUBNORMAL = 2.0**-126  # float32 below it may be taken for zero


@cache
def note(code: str) -> Messages:
    """Return a note without parameters: what is said of very many records is one object."""
    return (message(code),)


def compare_statistics(a: Leaf, b: Leaf, tolerance: Tolerance) -> PairFound:
    """Compare two tensors of one shape by their fingerprints, else by their statistics."""
    if same_fingerprint(a, b):
        if _equal(a.max, b.max) and _equal(a.min, b.min) and not _unlike_counts(a, b):
            return Status.IDENTICAL, None, ()
        return Status.DIFFERENT, None, note("note.fingerprints_equal")
    if math.prod(a.shape or ()) == 0:
        return Status.IDENTICAL, None, note("note.no_elements")
    counts = _counts(a, b)
    if sum(counts[0]) != sum(counts[1]):
        return Status.NON_FINITE, None, (one_sided(*counts),)
    statistics = _Statistics(a, b)
    if comparable_fingerprints(a, b) is not None and a.dtype == b.dtype:
        return _compare_unlike_bytes(a, b, statistics, tolerance)
    if not statistics.known:
        return Status.UNREADABLE, None, note("note.nothing_to_compare")
    two_tools = a.dialect != b.dialect and a.dtype == b.dtype
    if two_tools and not statistics.equal and not (_has_nan(a) or _has_nan(b)):
        if may_be_equal(a, b):
            return Status.WITHIN_TOLERANCE, None, note("note.two_tools")
        return _compare_close(a, b, statistics, tolerance)
    if not statistics.finite:
        return _compare_non_finite(a, b, statistics)
    if statistics.equal:
        return Status.WITHIN_TOLERANCE, None, note("note.by_statistics")
    return _compare_close(a, b, statistics, tolerance)


class _Statistics:
    """The statistics of two tensors, side by side.

    Attributes:
        known: those that are numbers on both sides.
        whole: neither side has one that the other lacks.
        equal: all that either side has are equal, NaN beside NaN and the counts included.
        finite: all are finite on both sides, and no NaN or infinity was counted.
        further: says which of `storage.leaves.FURTHER` differ: tables and pages have none of them.
    """

    def __init__(self, a: Leaf, b: Leaf) -> None:
        masks = (a.dtype == "Bool") != (b.dtype == "Bool")  # of which there are extremes alone
        names = STATISTICS[:2] if masks else STATISTICS
        pairs = [(getattr(a, name), getattr(b, name)) for name in names]
        own, theirs = a.further or {}, b.further or {}
        further = {name: (own[name], theirs[name]) for name in own if name in theirs}
        self.further = tuple(
            message("note.further", name=name, a=x, b=y)
            for name, (x, y) in further.items()
            if not _equal(x, y)
        )
        pairs += further.values()
        self.known = [(x, y) for x, y in pairs if is_number(x) and is_number(y)]
        self.whole = all(
            is_number(x) == is_number(y) and (is_number(x) or x == y) for x, y in pairs
        )
        same = all(_equal(x, y) for x, y in self.known)
        self.equal = same and self.whole and not _unlike_counts(a, b)
        numbers = all(is_finite(x) and is_finite(y) for x, y in self.known)
        self.finite = numbers and not any(map(any, _counts(a, b)))

    def within(self, tolerance: Tolerance) -> bool:
        """Return whether all that either side has are within a tolerance; bitwise is none."""
        usable = self.finite and self.whole and bool(self.known) and not tolerance.bitwise
        return usable and all(tolerance.allows(x, y) for x, y in self.known)


def _compare_unlike_bytes(
    a: Leaf, b: Leaf, statistics: _Statistics, tolerance: Tolerance
) -> PairFound:
    """Compare tensors with unlike fingerprints: only finite statistics show by how much."""
    if _within_rounding(a, b, statistics):
        return Status.WITHIN_TOLERANCE, None, _rounded_statistics(a, b)
    if statistics.within(tolerance):
        # Whole numbers that are not equal are at least 1 apart, so a smaller tolerance excludes it,
        # e.g. for a mask or tokens in another order, whose statistics are all the same.
        sizes = [abs(v) for leaf in (a, b) for v in (leaf.max, leaf.min) if is_finite(v)]
        largest = Fraction(max(sizes, default=0)) if a.is_discrete else 0
        if not a.is_discrete or Fraction(tolerance.atol) + Fraction(tolerance.rtol) * largest >= 1:
            return Status.WITHIN_TOLERANCE, None, note("note.bytes_differ")
    if statistics.known and not statistics.finite:
        notes = *note("note.fingerprints_differ"), *note("note.no_statistic_tells")
        return Status.DIFFERENT, None, notes
    equal = statistics.known and statistics.equal
    code = "note.statistics_equal" if equal else "note.fingerprints_differ"
    return Status.DIFFERENT, None, note(code)


def _compare_non_finite(a: Leaf, b: Leaf, statistics: _Statistics) -> PairFound:
    """Compare tensors with NaN or infinity on both sides, without the same fingerprint."""
    size = math.prod(a.shape or ())
    if a.nan_count == b.nan_count == size:
        return Status.WITHIN_TOLERANCE, None, note("note.all_nan")
    if _has_nan(a) or _has_nan(b):
        if _unlike_counts(a, b) or not (_has_nan(a) and _has_nan(b)):
            return Status.DIFFERENT, None, note("note.nan_beside_infinity")
        return Status.UNREADABLE, None, note("note.nan_hides")
    if not statistics.equal:
        return Status.DIFFERENT, None, note("note.infinities")
    all_infinite = is_number(a.max) and not is_finite(a.max) and a.max == a.min
    if all_infinite or any(is_finite(x) for x, _ in statistics.known):
        return Status.WITHIN_TOLERANCE, None, note("note.by_statistics")
    return Status.UNREADABLE, None, note("note.infinities_hide")


def _compare_close(a: Leaf, b: Leaf, statistics: _Statistics, tolerance: Tolerance) -> PairFound:
    if _within_rounding(a, b, statistics):
        return Status.WITHIN_TOLERANCE, None, _rounded_statistics(a, b)
    if statistics.within(tolerance):
        return Status.WITHIN_TOLERANCE, None, note("note.by_statistics")
    return Status.DIFFERENT, None, (*note("note.statistics_differ"), *statistics.further)


def same_fingerprint(a: Leaf, b: Leaf) -> bool:
    """Return whether both hold the same bytes of the same dtype; not every hash knows the dtype."""
    prints = comparable_fingerprints(a, b)
    return prints is not None and prints[0] == prints[1] and a.dtype == b.dtype


def comparable_fingerprints(a: Leaf, b: Leaf) -> tuple[str, str] | None:
    """Return the fingerprints of one algorithm that both have, else both md5."""
    if a.fingerprint is not None and b.fingerprint is not None:
        prints = a.fingerprint, b.fingerprint
        if prints[0].partition(":")[0] == prints[1].partition(":")[0]:
            return prints
    if a.md5 is not None and b.md5 is not None:
        return a.md5, b.md5
    return None


def rounding(a: Leaf, b: Leaf) -> float | None:
    """Return how much an element may differ where one run knows it less exactly than the other."""
    known = [leaf.rounding for leaf in (a, b) if leaf.rounding is not None]
    return known[0] if len(known) == 1 and a.dtype == b.dtype else None


def rounded(a: Leaf, b: Leaf) -> Message:
    """Say how exactly the one is known."""
    return message("note.rounded", error=rounding(a, b))


def _rounded_statistics(a: Leaf, b: Leaf) -> Messages:
    return (message("note.rounded_statistics", error=rounding(a, b)),)


def _within_rounding(a: Leaf, b: Leaf, statistics: _Statistics) -> bool:
    """Return whether all statistics may be those of tensors whose elements differ by a rounding."""
    error = rounding(a, b)
    if error is None or not statistics.known or not statistics.whole or not statistics.finite:
        return False
    allowed = Tolerance(atol=error)
    whole = Tolerance(atol=error * math.sqrt(math.prod(a.shape or ())))
    return all(
        (whole if name == "norm" else allowed).allows(getattr(a, name), getattr(b, name))
        for name in STATISTICS
        if getattr(a, name) is not None
    )


def _counts(a: Leaf, b: Leaf) -> tuple[Counts, Counts]:
    """Return for each side how many elements are NaN and how many infinite.

    Where the statistics alone can tell, there is one if there may be one.
    """
    if None in (a.nan_count, a.inf_count, b.nan_count, b.inf_count):
        # An infinite mean of finite elements is a sum that overflowed.
        x, y = (
            (1, 0) if _has_nan(leaf) else (0, int(any(map(_is_infinite, (leaf.max, leaf.min)))))
            for leaf in (a, b)
        )
        return x, y
    return (a.nan_count or 0, a.inf_count or 0), (b.nan_count or 0, b.inf_count or 0)


def _is_infinite(value: Any) -> bool:
    return is_number(value) and not is_finite(value)


def _has_nan(leaf: Leaf) -> bool:
    """Return whether an element is NaN; the mean of infinities of both signs is NaN as well."""
    if leaf.nan_count is not None:
        return leaf.nan_count > 0
    if any(map(is_nan, (leaf.max, leaf.min, leaf.norm))):
        return True
    return is_nan(leaf.mean) and not (leaf.max == math.inf and leaf.min == -math.inf)


def _unlike_counts(a: Leaf, b: Leaf) -> bool:
    """Return whether NaN, or infinities, are known to be another number of elements."""
    pairs = ((a.nan_count, b.nan_count), (a.inf_count, b.inf_count))
    return any(x is not None and y is not None and x != y for x, y in pairs)


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b) or (is_nan(a) and is_nan(b))


def may_be_equal(a: Leaf, b: Leaf) -> bool:
    """Return whether the statistics differ by no more than the two tools do on equal tensors.

    Beside NaN or infinity they would have to be equal: nothing else is left to go by.
    """
    exact, found = (b, a) if DIALECTS[a.dialect].precisions else (a, b)
    if exact.nan_count or exact.inf_count:
        return False
    known = [v for v in (found.max, found.min, found.mean, found.norm) if is_finite(v)]
    for precision in DIALECTS[found.dialect].precisions:
        rounds = precision.rounding
        # All statistics are numbers of that dtype; those of a wider one never are.
        if rounds is not None and not (known and all(rounds(value) == value for value in known)):
            continue
        if _extremes_agree(exact, found, precision) and _sums_agree(exact, found, precision):
            return True
    return False


def _extremes_agree(exact: Leaf, found: Leaf, precision: StatisticsDtype) -> bool:
    """Return whether max and min are equal; those of floats, rounded to the dtype."""
    for x, y in ((exact.max, found.max), (exact.min, found.min)):
        rounds = precision.rounding is not None and not exact.is_discrete and is_finite(x)
        rounded = precision.rounding(x) if rounds and precision.rounding else x
        if y == rounded or (is_nan(y) and is_nan(rounded)):
            continue
        if not (is_finite(x) and is_finite(y) and abs(y - x) <= _SUBNORMAL):
            return False
    return True


def _sums_agree(exact: Leaf, found: Leaf, precision: StatisticsDtype) -> bool:
    """Return whether mean and norm may be of equal tensors: off by a sum's error or too large.

    Σ|x| is at most √n times the norm.
    """
    names = ("max", "min") if precision.rounding is not None else ("max", "min", "norm")
    sizes = [abs(v) for x in (exact, found) for n in names if is_finite(v := getattr(x, n))]
    scale = max(sizes, default=0.0)
    norm = exact.norm if is_finite(exact.norm) else 0.0
    total = norm * math.prod(math.sqrt(size) for size in exact.shape or ())
    for known, found_there, most, limit in (
        (exact.mean, found.mean, total, precision.largest),
        (exact.norm, found.norm, norm, math.sqrt(precision.largest)),
    ):
        if known == found_there:
            continue
        # The sum may be larger than its dtype can hold, though no element is infinite.
        overflows = most * (1 + precision.error) >= limit
        if overflows and isinstance(found_there, float) and math.isinf(found_there):
            continue
        if not (is_finite(known) and is_finite(found_there)):
            return False
        size = scale + max(abs(known), abs(found_there))
        if not abs(known - found_there) <= precision.error * size + _SUBNORMAL:
            return False
    return True
