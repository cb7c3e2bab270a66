"""One pair of records → its status.

The order of the statuses is the design's: where several would fit, the first one counts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.comparison.judging.by_statistics import (
    Judgement,
    judge_statistics,
    rounded,
    rounding,
    same_fingerprint,
)
from mindrlhf_msprobe.comparison.judging.metrics.arrays import ArrayComparison
from mindrlhf_msprobe.comparison.judging.metrics.blocks import Tolerance, is_finite, is_number
from mindrlhf_msprobe.comparison.judging.metrics.spans import AT_ONCE, Elements
from mindrlhf_msprobe.comparison.judging.non_finite import one_sided
from mindrlhf_msprobe.comparison.judging.texts import Decode, text_difference, token_difference
from mindrlhf_msprobe.findings import Side, Status
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Record

_LONG = 300  # characters of two texts that are not shown whole
_GRADIENTS = ("backward", PARAMETERS_GRAD)
_MOST_SIZES = 32  # of a shape that are shown; a hostile one may have millions


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
        nan_count=leaf.nan_count,
        inf_count=leaf.inf_count,
        value=leaf.value,
        fingerprint=leaf.fingerprint,
        data_name=leaf.data_name,
    )


def judge(
    a: Record,
    b: Record,
    tolerance: Tolerance,
    decode: Decode | None = None,
    elements: Elements = AT_ONCE,
) -> Judgement:
    """Compare two records and return status, metrics (with the tensors at hand) and notes.

    Args:
        decode: shows token ids as text.
        elements: compares tensors.

    Raises:
        Unanswered: the tensors are large, and what `elements` does not know yet.
    """
    both = a.location is not None and b.location is not None
    alike = _kind(a.leaf) == _kind(b.leaf)
    for record, side in ((a, "A"), (b, "B")):
        # Arrays that are about to be compared are opened then.
        reason = record.leaf.why if both and alike else why_unreadable(record)
        if reason is not None:
            return Status.UNREADABLE, None, _unreadable(side, reason)
    if a.leaf.type == b.leaf.type == "str" and a.leaf.is_tensor and b.leaf.is_tensor:
        return _judge_texts(a, b, elements)
    if "str" in (a.leaf.type, b.leaf.type) and a.leaf.is_tensor and b.leaf.is_tensor:
        kinds = ["text" if leaf.type == "str" else leaf.dtype for leaf in (a.leaf, b.leaf)]
        return Status.DTYPE_MISMATCH, None, _dtypes(*kinds)
    if not (a.leaf.is_tensor and b.leaf.is_tensor):
        if any(f".{what}." in a.name for what in _GRADIENTS):
            none = [leaf.type == "NoneType" and not leaf.opaque for leaf in (a.leaf, b.leaf)]
            if sum(none) == 1 and (a.leaf.is_tensor or b.leaf.is_tensor):
                return _judge_no_gradient(b.leaf if none[0] else a.leaf, in_a=none[1])
        return _judge_scalars(a.leaf, b.leaf, tolerance)
    by_value = not tolerance.bitwise
    if a.leaf.dtype != b.leaf.dtype and not by_value:
        return Status.DTYPE_MISMATCH, None, _dtypes(a.leaf.dtype, b.leaf.dtype)
    if a.leaf.shape != b.leaf.shape:
        notes: Messages = (message("note.shapes", a=_shape(a), b=_shape(b)),)
        return Status.SHAPE_MISMATCH, None, _with_tokens(notes, a, b, decode)
    if a.location is not None and b.location is not None:
        status, metrics, notes = _judge_arrays(a, b, tolerance, elements)
        if status is Status.DIFFERENT and metrics is not None:
            notes = _with_tokens(notes, a, b, decode, metrics.first_mismatch)
        return status, metrics, notes
    return judge_statistics(a.leaf, b.leaf, tolerance)


def _kind(leaf: Leaf) -> tuple[object, ...]:
    return leaf.type == "str", leaf.dtype, leaf.shape


def why_unreadable(record: Record) -> Message | None:
    """Return why a record's elements cannot be had, or None; of its file, header and size tell."""
    if record.leaf.why is not None or record.location is None:
        return record.leaf.why
    try:
        record.array()
    except ArrayFileError as error:
        return _of_file(record, error)
    return None


def _of_file(record: Record, error: ArrayFileError) -> Message:
    file = shortened(record.file.name if record.file else record.name)
    return message("unread.of_file", file=file, why=error.said)


def _judge_texts(a: Record, b: Record, elements: Elements) -> Judgement:
    """Compare key data that were saved as text; texts of unlike length are simply different."""
    texts = isinstance(a.leaf.value, str) and isinstance(b.leaf.value, str)
    if a.leaf.shape == b.leaf.shape and a.location is not None and b.location is not None:
        status, metrics, notes = _judge_arrays(a, b, Tolerance(), elements)
    elif texts:
        same = a.leaf.value == b.leaf.value and a.leaf.shape == b.leaf.shape
        status, metrics, notes = Status.IDENTICAL if same else Status.DIFFERENT, None, ()
    elif a.leaf.shape != b.leaf.shape:
        return Status.DIFFERENT, None, (message("note.lengths", a=_shape(a), b=_shape(b)),)
    else:
        return judge_statistics(a.leaf, b.leaf, Tolerance())
    if status is Status.DIFFERENT and texts:
        notes = (text_difference(str(a.leaf.value), str(b.leaf.value)),)
    return status, metrics, notes


def _with_tokens(
    notes: Messages, a: Record, b: Record, decode: Decode | None, first: int | None = None
) -> Messages:
    """Add where two sequences of token ids first differ; other numbers say nothing that way.

    Args:
        first: the flat index of the first different element, where that is known.
    """
    if not all((r.leaf.dtype or "").startswith(("Int", "UInt")) and r.location for r in (a, b)):
        return notes
    try:
        where = token_difference(a.array(), b.array(), decode, first)
    except (ArrayFileError, OSError, ValueError):
        return notes
    return notes if where is None else (*notes, where)


def _unreadable(side: str, reason: Message) -> Messages:
    return (message("note.unreadable_side", side=side, why=reason),)


def _dtypes(a: str | None, b: str | None) -> Messages:
    return (message("note.dtypes", a=shortened(a), b=shortened(b)),)


def _shape(record: Record) -> str:
    sizes = list(record.leaf.shape or ())
    more = len(sizes) - _MOST_SIZES
    return str(sizes) if more <= 0 else f"{str(sizes[:_MOST_SIZES])[:-1]}, … {more} more]"


def _judge_no_gradient(other: Leaf, *, in_a: bool) -> Judgement:
    """Judge a gradient against none: one of zeros says the same, as a graph may have to make some.

    Args:
        other: the gradient, which one run has.
        in_a: that run is A.
    """
    # msprobe's extremes on CPU skip NaN, its mean and norm do not.
    if other.max == other.min == 0 and {other.mean, other.norm} <= {0, None}:
        return Status.WITHIN_TOLERANCE, None, _ZERO_GRADIENT
    status = Status.ONLY_IN_A if in_a else Status.ONLY_IN_B
    return status, None, (message("note.no_gradient", side="B" if in_a else "A"),)


_ZERO_GRADIENT = (message("note.zero_gradient"),)


def _judge_scalars(a: Leaf, b: Leaf, tolerance: Tolerance) -> Judgement:
    if a.opaque and b.opaque and a.type == b.type:
        return Status.UNREADABLE, None, (message("note.not_saved", type=a.type),)
    opaque = a.opaque or b.opaque  # nothing but the type is known
    if opaque or a.is_tensor != b.is_tensor or (a.type != b.type and tolerance.bitwise):
        kinds = [leaf.dtype if leaf.is_tensor else leaf.type for leaf in (a, b)]
        return Status.DTYPE_MISMATCH, None, _dtypes(*kinds)
    if a.value == b.value or (_is_nan(a.value) and _is_nan(b.value)):
        return Status.IDENTICAL, None, ()
    if isinstance(a.value, str) and isinstance(b.value, str) and len(a.value + b.value) > _LONG:
        return Status.DIFFERENT, None, (text_difference(a.value, b.value),)
    shown = {"a": shortened(repr(a.value)), "b": shortened(repr(b.value))}
    notes = (message("note.values", **shown),)
    if not (is_number(a.value) and is_number(b.value)):
        return Status.DIFFERENT, None, notes
    if is_finite(a.value) != is_finite(b.value):
        side = "B" if is_finite(a.value) else "A"
        return Status.NON_FINITE, None, (message("note.value_in_one", side=side, **shown),)
    if not tolerance.bitwise and tolerance.allows(a.value, b.value):
        return Status.WITHIN_TOLERANCE, None, notes
    return Status.DIFFERENT, None, notes


def _judge_arrays(a: Record, b: Record, tolerance: Tolerance, elements: Elements) -> Judgement:
    arrays = []
    for record, side in ((a, "A"), (b, "B")):
        try:
            arrays.append(record.array())
        except ArrayFileError as error:
            return Status.UNREADABLE, None, _unreadable(side, _of_file(record, error))
    same_prints = same_fingerprint(a.leaf, b.leaf)
    try:
        opened = arrays[0], arrays[1]
        if same_prints and elements.same_bytes((a, b), opened):
            return Status.IDENTICAL, None, ()
        compared = elements.compare((a, b), opened, tolerance)
    except (OSError, TypeError, ValueError) as error:
        return Status.UNREADABLE, None, (message("note.unreadable", why=str(error)),)
    status, metrics, notes = _judge_compared(a.leaf, b.leaf, compared, tolerance)
    return status, metrics, (*notes, _FILE_CHANGED) if same_prints else notes


_FILE_CHANGED = message("note.file_changed")
_UNLIKE_INFINITIES = (message("note.unlike_infinities"),)


def _judge_compared(a: Leaf, b: Leaf, compared: ArrayComparison, tolerance: Tolerance) -> Judgement:
    if compared.equal:
        return Status.IDENTICAL, compared.metrics, _as_values(a, b)
    metrics = compared.metrics
    if compared.one_sided:
        sides = (metrics.nan_a, metrics.inf_a), (metrics.nan_b, metrics.inf_b)
        return Status.NON_FINITE, metrics, (one_sided(*sides),)
    if compared.unlike:
        if not metrics.max_abs_err:  # all that is finite on both sides agrees
            metrics = replace(metrics, max_abs_err=math.inf, max_rel_err=None)
        return Status.DIFFERENT, metrics, _UNLIKE_INFINITIES
    if compared.within and not tolerance.bitwise:
        return Status.WITHIN_TOLERANCE, metrics, ()
    allowed = rounding(a, b)
    if allowed is not None and metrics.max_abs_err is not None and metrics.max_abs_err <= allowed:
        return Status.WITHIN_TOLERANCE, metrics, (rounded(a, b),)
    return Status.DIFFERENT, metrics, ()


def _as_values(a: Leaf, b: Leaf) -> Messages:
    if a.dtype == b.dtype:
        return ()
    return (message("note.same_values", a=a.dtype, b=b.dtype),)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
