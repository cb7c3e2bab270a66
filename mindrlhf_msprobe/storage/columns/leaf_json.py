"""What is read of a leaf's JSON: statistics as numbers, and whether they are finite.

A leaf here is the JSON object that stands in the journal (`storage/leaves.py`): reading it makes no
object, and a pass over a run has millions of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mindrlhf_msprobe.storage.arrays.atomic import number_from_json

LeafJson = Mapping[str, Any]
STATISTICS = ("Max", "Min", "Mean", "Norm")
COUNTS = ("nan_count", "inf_count")
#: The fields of a tensor of which no more is said than usual, beside `COUNTS`.
USUAL = frozenset(("type", "dtype", "shape", *STATISTICS, "fingerprint"))
_LARGE = 1e300  # larger numbers are left to those who know what may overflow

#: Whatever holds a NaN or an infinity has one of these in its line.
NON_FINITE_MARKS = (b'"NaN"', b'Infinity"')

#: The largest finite number of each floating dtype, by MindSpore's name.
LARGEST = {
    "Float16": 65504.0,
    "BFloat16": 3.3895313892515355e38,
    "Float32": 3.4028234663852886e38,
    "Float64": 1.7976931348623157e308,
}


def statistic(leaf: LeafJson, name: str) -> float | None:
    """Return a statistic (`Max`, `Min`, `Mean`, `Norm`) as a number; None if it is none.

    NaN and infinities are numbers.
    """
    value = leaf.get(name)
    if type(value) is float:
        return value
    if type(value) is str:
        value = number_from_json(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None


def is_float(leaf: LeafJson) -> bool:
    """Return whether a leaf is a tensor of floating numbers with at least one element."""
    shape = leaf.get("shape")
    return type(shape) is list and 0 not in shape and is_float_dtype(leaf.get("dtype"))


def is_float_dtype(dtype: Any) -> bool:
    """Return whether a dtype, as JSON has it, is one of floating numbers."""
    return isinstance(dtype, str) and "float" in dtype.lower()


def non_finite(leaf: LeafJson) -> tuple[int, int] | None:
    """Return how many NaN and how many infinities a leaf holds; None if it is finite.

    Where they were not counted (msprobe's), 1 stands for at least one. A norm or a mean that
    overflows over finite elements is no infinity: where max and min are finite and nothing was
    counted, only a NaN among the statistics says that there is one.
    """
    nan, inf = leaf.get("nan_count"), leaf.get("inf_count")
    if type(nan) is int and type(inf) is int:
        return (nan, inf) if nan or inf else None
    if "shape" not in leaf:
        value = None if leaf.get("type") == "str" else number_from_json(leaf.get("value"))
        if type(value) is not float or math.isfinite(value):
            return None
        return (1, 0) if math.isnan(value) else (0, 1)
    # msprobe's max and min pass over NaN on CPU; its mean and norm do not.
    values = [value for name in STATISTICS if (value := statistic(leaf, name)) is not None]
    extremes = [statistic(leaf, name) or 0.0 for name in ("Max", "Min")]
    # inf and -inf together make a mean of NaN; so do finite numbers whose sums overflow to both.
    if any(map(math.isinf, extremes)):
        return 0, 1
    return (1, 0) if any(map(math.isnan, values)) else None


def numbers_of(leaf: LeafJson) -> dict[str, Any]:
    """Return what evidence shows of a leaf: dtype, shape, statistics and counts."""
    shown: dict[str, Any] = {name: leaf[name] for name in ("dtype", "shape") if name in leaf}
    for name in STATISTICS:
        value = statistic(leaf, name)
        if value is not None:
            shown[name.lower()] = value
    more = ("nan_count", "inf_count", "value", "data_name")
    shown |= {name: leaf[name] for name in more if name in leaf}
    return shown


def is_ordinary(leaf: LeafJson) -> bool:
    """Return whether a value of the same JSON is identical, and deserves no look.

    A tensor has a fingerprint and finite statistics, any other value is at hand and finite.
    """
    if "error" in leaf or "opaque" in leaf or "data_name" in leaf:
        return False
    shape = leaf.get("shape")
    if shape is None:
        # Null is no number: not known. Of a whole number beyond 64 bits a float stands there.
        kind, value = leaf["type"], leaf.get("value")
        return type(value).__name__ == kind and (kind == "str" or _is_moderate(value))
    # It is described by dtype, shape and fingerprint, and is no text.
    if type(leaf.get("fingerprint")) is not str or type(leaf.get("dtype")) is not str:
        return False
    if type(shape) is not list or not all(type(size) is int and size >= 0 for size in shape):
        return False
    if leaf["type"] == "str" or "text" in leaf or any(leaf.get(name) for name in COUNTS):
        return False
    return all(_is_moderate(leaf.get(name, leaf)) for name in STATISTICS)


def _is_moderate(value: Any) -> bool:
    """Return whether a value is None, a truth value, or a finite number of no unusual size."""
    return value is None or (type(value) in (float, int, bool) and -_LARGE < value < _LARGE)


def are_moderate(numbers: np.ndarray) -> np.ndarray:
    """Return which float64 numbers are finite, and of no unusual size."""
    found: np.ndarray = np.abs(numbers) < _LARGE
    return found
