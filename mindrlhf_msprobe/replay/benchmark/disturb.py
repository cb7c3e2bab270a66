"""What an input is disturbed by: as little as its dtype can hold.

Pure functions of numpy. Elements are handed over as their bits, so that float16, bfloat16, float32
and float64 are disturbed alike, and nothing is rounded on the way. Left as they are: zeros, which
are masks and padding as a rule; numbers below the smallest normal one; Inf and NaN. No finite
number becomes Inf.
"""

from __future__ import annotations

from collections.abc import Callable
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
