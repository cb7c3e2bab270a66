"""One pair of records → its status.

The order of the statuses is the design's: where several would fit, the first one counts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from mindrlhf_msprobe.comparison.blocks import Tolerance, same_bytes
from mindrlhf_msprobe.comparison.metrics import ArrayComparison, compare_arrays
from mindrlhf_msprobe.comparison.texts import Decode, text_difference, token_difference
from mindrlhf_msprobe.comparison.two_tools import may_be_equal, of_two_tools
from mindrlhf_msprobe.findings import Metrics, Side, Status
from mindrlhf_msprobe.storage.arrays import ArrayFileError
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Record

_MOST_SIZES = 32  # of a shape that are shown; a hostile one may have millions
_STATISTICS = ("max", "min", "mean", "norm")

#: (status, metrics, note)
Judgement = tuple[Status, "Metrics | None", str]


def side_of(record: Record | None) -> Side:
    """Return what a table shows of a record."""
    if record is None:
        return Side()
    leaf = record.leaf
    dtype = leaf.dtype if leaf.is_tensor else leaf.type
    return Side(
        name=record.name,
        dtype=dtype,
        shape=leaf.shape,
        max=leaf.max,
        min=leaf.min,
        mean=leaf.mean,
        norm=leaf.norm,
        value=leaf.value,
        fingerprint=leaf.fingerprint,
        data_name=leaf.data_name,
    )


def judge(a: Record, b: Record, tolerance: Tolerance, decode: Decode | None = None) -> Judgement:
    """Compare two records and return status, metrics (with the tensors at hand) and a note.

    Args:
        decode: shows token ids as text.
    """
    for record, side in ((a, "A"), (b, "B")):
        if record.leaf.error is not None:
            return Status.UNREADABLE, None, f"{side}: {record.leaf.error}"
    if a.leaf.type == b.leaf.type == "str" and a.leaf.is_tensor and b.leaf.is_tensor:
        return _judge_texts(a, b)
    if "str" in (a.leaf.type, b.leaf.type) and a.leaf.is_tensor and b.leaf.is_tensor:
        kinds = ["text" if leaf.type == "str" else leaf.dtype for leaf in (a.leaf, b.leaf)]
        return Status.DTYPE_MISMATCH, None, f"{kinds[0]} against {kinds[1]}"
    if not (a.leaf.is_tensor and b.leaf.is_tensor):
        if ".backward." in a.name and _no_gradient_and_zeros(a.leaf, b.leaf):
            return Status.WITHIN_TOLERANCE, None, "no gradient against a gradient of zeros"
        return _judge_scalars(a.leaf, b.leaf, tolerance)
    by_value = not tolerance.bitwise
    if a.leaf.dtype != b.leaf.dtype and not by_value:
        return Status.DTYPE_MISMATCH, None, f"{a.leaf.dtype} against {b.leaf.dtype}"
    if a.leaf.shape != b.leaf.shape:
        note = f"{_shape(a)} against {_shape(b)}"
        return Status.SHAPE_MISMATCH, None, _with_tokens(note, a, b, decode)
    if a.location is not None and b.location is not None:
        status, metrics, note = _judge_arrays(a, b, tolerance)
        if status is Status.DIFFERENT:
            note = _with_tokens(note, a, b, decode)
        return status, metrics, note
    return _judge_statistics(a.leaf, b.leaf, tolerance)


def _judge_texts(a: Record, b: Record) -> Judgement:
    """Compare key data that were saved as text; texts of unlike length are simply different."""
    texts = isinstance(a.leaf.value, str) and isinstance(b.leaf.value, str)
    if a.leaf.shape == b.leaf.shape and a.location is not None and b.location is not None:
        status, metrics, note = _judge_arrays(a, b, Tolerance())
    elif texts:
        same = a.leaf.value == b.leaf.value
        status, metrics, note = Status.IDENTICAL if same else Status.DIFFERENT, None, ""
    elif a.leaf.shape != b.leaf.shape:
        return Status.DIFFERENT, None, f"{_shape(a)} against {_shape(b)} bytes"
    else:
        return _judge_statistics(a.leaf, b.leaf, Tolerance())
    if status is Status.DIFFERENT and texts:
        note = text_difference(str(a.leaf.value), str(b.leaf.value))
    return status, metrics, note


def _with_tokens(note: str, a: Record, b: Record, decode: Decode | None) -> str:
    """Add where two sequences of token ids first differ; other numbers say nothing that way."""
    if not all((r.leaf.dtype or "").startswith(("Int", "UInt")) and r.location for r in (a, b)):
        return note
    try:
        where = token_difference(a.array(), b.array(), decode)
    except (ArrayFileError, OSError, ValueError):
        return note
    return "; ".join(filter(None, [note, where]))


def _shape(record: Record) -> str:
    sizes = list(record.leaf.shape or ())
    more = len(sizes) - _MOST_SIZES
    return str(sizes) if more <= 0 else f"{str(sizes[:_MOST_SIZES])[:-1]}, … {more} more]"


def _no_gradient_and_zeros(a: Leaf, b: Leaf) -> bool:
    """Tell whether one side has no gradient and the other zeros: a graph may have to make some."""
    none, other = (a, b) if b.is_tensor else (b, a)
    return none.type == "NoneType" and other.is_tensor and other.max == other.min == 0


def _judge_scalars(a: Leaf, b: Leaf, tolerance: Tolerance) -> Judgement:
    if a.opaque and b.opaque and a.type == b.type:
        note = f"values of type {a.type} were not saved, so they cannot be compared"
        return Status.UNREADABLE, None, note
    opaque = a.opaque or b.opaque  # nothing but the type is known
    if opaque or a.is_tensor != b.is_tensor or (a.type != b.type and tolerance.bitwise):
        kinds = [leaf.dtype if leaf.is_tensor else leaf.type for leaf in (a, b)]
        return Status.DTYPE_MISMATCH, None, f"{kinds[0]} against {kinds[1]}"
    if a.value == b.value or (_is_nan(a.value) and _is_nan(b.value)):
        return Status.IDENTICAL, None, ""
    note = f"{a.value!r} against {b.value!r}"
    if not (_is_number(a.value) and _is_number(b.value)):
        return Status.DIFFERENT, None, note
    if _is_finite(a.value) != _is_finite(b.value):
        return Status.NON_FINITE, None, note
    if _within(a.value, b.value, tolerance):
        return Status.WITHIN_TOLERANCE, None, note
    return Status.DIFFERENT, None, note


def _judge_arrays(a: Record, b: Record, tolerance: Tolerance) -> Judgement:
    arrays = []
    for record, side in ((a, "A"), (b, "B")):
        try:
            arrays.append(record.array())
        except ArrayFileError as error:
            name = record.file.name if record.file else record.name
            return Status.UNREADABLE, None, f"{side}: {name} {error}"
    same_fingerprint = _same_fingerprint(a.leaf, b.leaf)
    try:
        if same_fingerprint and same_bytes(arrays[0], arrays[1]):
            return Status.IDENTICAL, None, ""
        compared = compare_arrays(arrays[0], arrays[1], tolerance)
    except (OSError, TypeError, ValueError) as error:
        return Status.UNREADABLE, None, str(error)
    status, metrics, note = _judge_compared(a.leaf, b.leaf, compared, tolerance)
    if same_fingerprint:
        changed = "the fingerprints are equal, so a file was changed after it was recorded"
        note = f"{note}; {changed}" if note else changed
    return status, metrics, note


def _rounding(a: Leaf, b: Leaf) -> float | None:
    """Return how much an element may differ where one run knows it less exactly than the other."""
    known = [leaf.rounding for leaf in (a, b) if leaf.rounding is not None]
    return known[0] if len(known) == 1 and a.dtype == b.dtype else None


def _rounded(rounding: float) -> str:
    return f"one is a difference of two gradients, exact to {rounding:.1e}"


def _judge_compared(a: Leaf, b: Leaf, compared: ArrayComparison, tolerance: Tolerance) -> Judgement:
    if compared.equal:
        return Status.IDENTICAL, compared.metrics, _same_value_note(a, b)
    if compared.one_sided:
        return Status.NON_FINITE, compared.metrics, "NaN or infinity on one side only"
    if compared.within and not tolerance.bitwise:
        return Status.WITHIN_TOLERANCE, compared.metrics, ""
    rounding = _rounding(a, b)
    if rounding is not None and (compared.metrics.max_abs_err or math.inf) <= rounding:
        return Status.WITHIN_TOLERANCE, compared.metrics, _rounded(rounding)
    if not compared.metrics.max_abs_err:  # all that is finite on both sides agrees
        apart = replace(compared.metrics, max_abs_err=math.inf, max_rel_err=None)
        return Status.DIFFERENT, apart, "infinities of opposite sign, or NaN beside infinity"
    return Status.DIFFERENT, compared.metrics, ""


def _same_value_note(a: Leaf, b: Leaf) -> str:
    if a.dtype != b.dtype:
        return f"same values, as {a.dtype} and as {b.dtype}"
    return ""


def _same_fingerprint(a: Leaf, b: Leaf) -> bool:
    """Tell whether both hold the same bytes of the same dtype; msprobe's hash knows no dtype."""
    prints = _comparable_fingerprints(a, b)
    return prints is not None and prints[0] == prints[1] and a.dtype == b.dtype


def _comparable_fingerprints(a: Leaf, b: Leaf) -> tuple[str, str] | None:
    """Return the fingerprints of one algorithm that both have: ours first, then msprobe's."""
    if a.fingerprint is not None and b.fingerprint is not None:
        prints = a.fingerprint, b.fingerprint
        if prints[0].partition(":")[0] == prints[1].partition(":")[0]:
            return prints
    if a.md5 is not None and b.md5 is not None:
        return a.md5, b.md5
    return None


def _judge_statistics(a: Leaf, b: Leaf, tolerance: Tolerance) -> Judgement:
    """Compare what was recorded without the elements: fingerprints, else statistics."""
    if _same_fingerprint(a, b):
        if _equal(a.max, b.max) and _equal(a.min, b.min):
            return Status.IDENTICAL, None, ""
        return Status.DIFFERENT, None, "the fingerprints are equal, but max or min is not"
    if math.prod(a.shape or ()) == 0:
        return Status.IDENTICAL, None, "no elements"
    non_finite_a, non_finite_b = _non_finite(a, b)
    if non_finite_a != non_finite_b:
        note = f"{non_finite_a} against {non_finite_b} NaN or infinite elements"
        return Status.NON_FINITE, None, note
    proven_different = _comparable_fingerprints(a, b) is not None and a.dtype == b.dtype
    pairs = [(getattr(a, name), getattr(b, name)) for name in _STATISTICS]
    known = [(x, y) for x, y in pairs if x is not None and y is not None]
    equal = all(_equal(x, y) for x, y in known) and len(known) == sum(
        x is not None or y is not None for x, y in pairs
    )
    if not equal and known and of_two_tools(a, b) and may_be_equal(a, b):
        return Status.WITHIN_TOLERANCE, None, "by statistics of two tools, which round unlike"
    rounding = _rounding(a, b)
    if known and rounding is not None and _statistics_within(a, b, rounding):
        return Status.WITHIN_TOLERANCE, None, f"by statistics: {_rounded(rounding)}"
    close = bool(known) and not tolerance.bitwise
    close = close and all(_within(x, y, tolerance) for x, y in known)
    if proven_different:
        if close and _may_be_close(a, b, tolerance):
            return Status.WITHIN_TOLERANCE, None, "by statistics only: the bytes differ"
        note = "the fingerprints differ"
        return Status.DIFFERENT, None, f"{note}, the statistics are equal" if equal else note
    if not known:
        return Status.UNREADABLE, None, "neither statistics nor comparable fingerprints"
    if equal or close:
        return Status.WITHIN_TOLERANCE, None, "by statistics only: they never prove identity"
    return Status.DIFFERENT, None, "by statistics only"


def _statistics_within(a: Leaf, b: Leaf, error: float) -> bool:
    """Tell whether all statistics may be those of tensors whose elements differ by `error`."""
    allowed = Tolerance(atol=error)
    whole = Tolerance(atol=error * math.sqrt(math.prod(a.shape or ())))
    return all(
        _within(getattr(a, name), getattr(b, name), whole if name == "norm" else allowed)
        for name in _STATISTICS
    )


def _may_be_close(a: Leaf, b: Leaf, tolerance: Tolerance) -> bool:
    """Tell whether tensors of unlike bytes may be within the tolerance at all.

    Whole numbers that are not equal are at least 1 apart, so a smaller tolerance excludes it, e.g.
    for a mask or for tokens in another order, whose statistics are all the same.
    """
    if a.dtype is None or not a.dtype.lower().startswith(("bool", "int", "uint")):
        return True
    bounds = [abs(v) for leaf in (a, b) for v in (leaf.max, leaf.min) if _is_number(v)]
    return tolerance.atol + tolerance.rtol * max(bounds, default=0) >= 1


def _non_finite(a: Leaf, b: Leaf) -> tuple[int, int]:
    """Return how many elements are not finite; 0 or 1 where only the statistics can tell."""
    if None in (a.nan_count, a.inf_count, b.nan_count, b.inf_count):
        return _seems_non_finite(a), _seems_non_finite(b)
    return (a.nan_count or 0) + (a.inf_count or 0), (b.nan_count or 0) + (b.inf_count or 0)


def _seems_non_finite(leaf: Leaf) -> int:
    """Tell by the statistics; an infinite mean of finite elements is a sum that overflowed."""
    extremes = any(_is_number(v) and not _is_finite(v) for v in (leaf.max, leaf.min))
    return int(extremes or _is_nan(leaf.mean))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _is_finite(value: float) -> bool:
    return isinstance(value, int) or math.isfinite(value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b) or (_is_nan(a) and _is_nan(b))


def _within(a: Any, b: Any, tolerance: Tolerance) -> bool:
    if _equal(a, b):
        return True
    if not (_is_number(a) and _is_number(b)):
        return False
    try:
        return bool(abs(a - b) <= tolerance.atol + tolerance.rtol * max(abs(a), abs(b)))
    except OverflowError:  # a Python integer beyond every float
        return False
