"""What an input is disturbed by, and whether an output that was computed of it changed too much.

Pure functions of numpy. An input is disturbed as little as its dtype can hold. Elements are handed
over as their bits, so that float16, bfloat16, float32 and float64 are disturbed in the same way,
and nothing is rounded on the way. Left as they are: zeros, which are masks and padding as a rule;
numbers below the smallest normal one; Inf and NaN. No finite number becomes Inf.

Changes are relative, and the largest of all elements counts:

    change = max |second - first| / max(|first|, rms(first))

An element that is small beside the others of its tensor is measured by them: it is the rest of
larger terms, and carries their rounding. `ratio` is the change of the output over that of the
inputs, or over the spacing of the coarsest dtype that computes, where that is larger: rounding to
it alone changes as much.

A change is too large where it exceeds both the threshold of the output's dtype and `MOST_TIMES`
times what went in. The first is msprobe's. The second leaves alone what a healthy network does to a
rounding in 16 bits, which by itself is about as large as the threshold. Of `no_change` any bit that
differs is too much. Of `change_value` the threshold decides, or some roundings of the output where
they are larger, on operators whose result does not depend on the order; of others nothing can be
said: softmax of exchanged scores is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.storage.arrays.npy import BFLOAT16, bfloat16_bits_to_float32

#: The disturbances, as msprobe names them.
IMPROVE_PRECISION, ADD_NOISE, BIT_NOISE = "improve_precision", "add_noise", "bit_noise"
NO_CHANGE, CHANGE_VALUE = "no_change", "change_value"


@dataclass(frozen=True)
class FloatFormat:
    """How the numbers of a dtype are stored.

    Attributes:
        bits: the unsigned dtype that is as wide.
        values: numpy's dtype that holds all of its numbers.
        mantissa: how many bits of the mantissa are stored.
    """

    bits: type[np.unsignedinteger]
    values: type[np.floating]
    mantissa: int

    @property
    def spacing(self) -> float:
        """The distance between 1 and the next larger number."""
        return float(2.0**-self.mantissa)


#: By MindSpore's names.
FORMATS = {
    "Float16": FloatFormat(np.uint16, np.float16, 10),
    BFLOAT16: FloatFormat(np.uint16, np.float32, 7),
    "Float32": FloatFormat(np.uint32, np.float32, 23),
    "Float64": FloatFormat(np.uint64, np.float64, 52),
}


def bits_of(elements: np.ndarray, dtype: str) -> np.ndarray:
    """Return the bits of floating elements, in the same shape.

    Args:
        elements: of bfloat16 its uint16 bits, which are returned as they are.
        dtype: MindSpore's name of a floating dtype, e.g. `Float32`.
    """
    return np.ascontiguousarray(elements).view(FORMATS[dtype].bits).reshape(elements.shape)


def values_of(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Return what bits stand for: float16, float32 or float64; bfloat16 as float32."""
    if dtype == BFLOAT16:
        return bfloat16_bits_to_float32(bits.reshape(-1)).reshape(bits.shape)
    return np.ascontiguousarray(bits).view(FORMATS[dtype].values).reshape(bits.shape)


def _magnitudes(bits: np.ndarray, kind: FloatFormat) -> tuple[np.ndarray, np.ndarray, Any, Any]:
    """Return magnitudes, as bits, and which are negative; and those of the normal numbers' ends."""
    width = np.dtype(kind.bits).itemsize * 8
    sign = kind.bits(1 << (width - 1))
    infinity = ((1 << (width - 1 - kind.mantissa)) - 1) << kind.mantissa
    return bits & ~sign, (bits & sign) != 0, kind.bits(1 << kind.mantissa), kind.bits(infinity - 1)


def noise_added(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Return the bits of the next larger number of each element (`add_noise`)."""
    kind = FORMATS[dtype]
    magnitude, negative, smallest, largest = _magnitudes(bits, kind)
    up = ~negative & (magnitude >= smallest) & (magnitude < largest)
    down = negative & (magnitude > smallest) & (magnitude <= largest)
    one = kind.bits(1)
    return np.where(up, bits + one, np.where(down, bits - one, bits))


def last_bit_flipped(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Return the bits of each element with the last bit of the mantissa flipped (`bit_noise`)."""
    kind = FORMATS[dtype]
    magnitude, _, smallest, largest = _magnitudes(bits, kind)
    normal = (magnitude >= smallest) & (magnitude <= largest)
    return np.where(normal, bits ^ kind.bits(1), bits)


def ends_exchanged(bits: np.ndarray, axis: int | None = None) -> np.ndarray:
    """Return the elements with the first and the last one exchanged (`change_value`).

    Args:
        axis: exchange those at both ends of this axis, in every row; None: of the whole array.
    """
    if axis is None:
        return ends_exchanged(bits.reshape(-1), 0).reshape(bits.shape)
    changed = np.array(bits)
    if bits.size:
        first: list[int | slice] = [slice(None)] * bits.ndim
        last = [*first]
        first[axis], last[axis] = 0, -1
        changed[tuple(first)], changed[tuple(last)] = bits[tuple(last)], bits[tuple(first)]
    return changed


#: The disturbances of an input's elements, by name.
DISTURBANCES: dict[str, Callable[[np.ndarray, str], np.ndarray]] = {
    ADD_NOISE: noise_added,
    BIT_NOISE: last_bit_flipped,
    CHANGE_VALUE: lambda bits, dtype: ends_exchanged(bits),
}


def is_mask(values: np.ndarray) -> bool:
    """Return whether an input holds zeros and one other number at most: a mask, as a rule.

    The last bit of a mask is no rounding: `(1 - mask) * -10000` makes a large number of it.
    """
    if values.size == 0:
        return False
    first = values.reshape(-1)
    others = first[first != 0]
    return others.size == 0 or bool((others == others[0]).all())


#: Thresholds of the change of an output, by MindSpore's names of its dtype.
THRESHOLDS: Mapping[str, float] = {
    "Float16": 0.002,
    "BFloat16": 0.0002,
    "Float32": 0.0002,
    "Float64": 0.0002,
}
#: How many times what went in an output may change, whatever the threshold says.
MOST_TIMES = 100.0

_ROUNDINGS = 4  # of its own dtype, by which a sum in another order may differ
_ORDER_FREE = frozenset(
    [
        *("sum", "mean", "prod", "norm", "var", "std", "var_mean", "std_mean", "nansum"),
        *("logsumexp", "max", "min", "amax", "amin", "median", "any", "all"),
        *("ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceStd"),
        *("SumExt", "MeanExt", "ProdExt", "LogSumExp", "Norm", "LpNorm"),
    ]
)


def is_order_free(operator: str) -> bool:
    """Return whether an operator's result does not depend on the order of what it reduces.

    Args:
        operator: its name without count and direction, e.g. `Mint.sum`.
    """
    return operator.rpartition(".")[2] in _ORDER_FREE


@dataclass(frozen=True)
class OutputChange:
    """What became of one output.

    Attributes:
        change: the largest relative change; Inf where an element became NaN or Inf, or ceased to
            be.
        differing: elements whose bits differ.
        ratio: the change over that of the inputs; None where nothing was disturbed.
        threshold: of the output's dtype.
        consistent: whether the change is small enough.
    """

    change: float
    differing: int
    ratio: float | None
    threshold: float
    consistent: bool


def relative_change(first: np.ndarray, second: np.ndarray) -> float:
    """Return the largest relative change of two arrays of floating numbers of one shape.

    What is NaN, or the same Inf, in both is left out. 0 of empty arrays.
    """
    if first.size == 0:
        return 0.0
    with np.errstate(invalid="ignore"):  # a NaN of some kinds
        before, after = np.asarray(first, np.float64), np.asarray(second, np.float64)
    finite = np.isfinite(before) & np.isfinite(after)
    if not finite.all():
        same = finite | (before == after) | (np.isnan(before) & np.isnan(after))
        if not same.all():
            return float("inf")
        before, after = before[finite], after[finite]
        if before.size == 0:
            return 0.0
    difference = np.abs(after - before)
    if not difference.any():
        return 0.0
    largest = float(np.max(np.abs(before)))
    if largest == 0:
        return float("inf")
    scaled = before / largest  # its squares do not overflow
    rms = largest * float(np.sqrt(np.mean(np.square(scaled))))
    return float(np.max(difference / np.maximum(np.abs(before), rms)))


def judge(
    first: np.ndarray,
    second: np.ndarray,
    *,
    dtype: str,
    mode: str,
    disturbed_by: float,
    coarsest: str,
    thresholds: Mapping[str, float] = THRESHOLDS,
    most_times: float = MOST_TIMES,
    order_free: bool = False,
) -> OutputChange:
    """Return what became of an output, and whether that is too much.

    Args:
        first, second: the output and that of the second run, as values; of one shape.
        dtype: of the output.
        mode: the disturbance, `pert_mode`.
        disturbed_by: the relative change of the inputs.
        coarsest: the coarsest dtype among those that compute.
        thresholds: by MindSpore's names of dtypes; those that are not there are the usual ones.
        order_free: whether the inputs were reordered where the order does not count.
    """
    threshold = {**THRESHOLDS, **thresholds}.get(dtype, THRESHOLDS["Float32"])
    change = relative_change(first, second)
    differing = first.size - int(
        np.count_nonzero((first == second) | (np.isnan(first) & np.isnan(second)))
    )
    if mode == NO_CHANGE:
        return OutputChange(change, differing, None, threshold, differing == 0)
    went_in = max(disturbed_by, FORMATS[coarsest].spacing if coarsest in FORMATS else 0.0)
    ratio = change / went_in if went_in else None
    if mode == CHANGE_VALUE:
        rounding = FORMATS[dtype].spacing if dtype in FORMATS else 0.0
        consistent = not order_free or change <= max(threshold, _ROUNDINGS * rounding)
    else:
        consistent = change <= max(threshold, most_times * went_in)
    return OutputChange(change, differing, ratio, threshold, bool(consistent))


def coarsest_of(dtypes: Sequence[str]) -> str:
    """Return the floating dtype with the fewest bits of mantissa; "" where none floats."""
    floating = [dtype for dtype in dtypes if dtype in FORMATS]
    return min(floating, key=lambda dtype: FORMATS[dtype].mantissa, default="")
