"""Floats of 8 bits as float32, exactly: numpy has no dtypes for them.

Different bits become different bits, those of NaN included, so that fingerprints tell them apart.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

#: MindSpore's names of their dtypes: as it prints them, and as it calls them in Python.
FLOAT8 = {"Float8E4M3FN": "float8_e4m3fn", "Float8E5M2": "float8_e5m2", "HiFloat8": "hifloat8"}


def float8_to_float32(dtype: str, bits: np.ndarray) -> np.ndarray:
    """Return the values of 8-bit floats given as uint8 bits, any shape.

    Args:
        dtype: one of `FLOAT8`.
    """
    return np.asarray(_values(dtype)[bits])


@cache
def _values(dtype: str) -> np.ndarray:
    """Return the value of each of the 256 patterns of bits."""
    if dtype == "Float8E5M2":  # the upper half of a float16
        return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)
    if dtype == "HiFloat8":
        positive = np.array([_hifloat8(bits) for bits in range(128)])
        values = np.concatenate([positive, -positive])
        values[128] = np.nan  # it has one zero, and its NaN in the place of the other
        return values.astype(np.float32)
    # 4 bits of exponent and 3 of fraction; there is no infinity.
    exponent, fraction = np.divmod(np.arange(128), 8)
    positive = np.ldexp(np.where(exponent, 8.0 + fraction, 2.0 * fraction), exponent - 10)
    positive[127] = np.nan
    return np.concatenate([positive, -positive]).astype(np.float32)


def _hifloat8(bits: int) -> float:
    """Return the value of 7 bits, the first of which say how many are the exponent's.

    The more of those, the fewer are left for the fraction (arXiv 2409.16626, table 1). The first
    bit of an exponent is its sign; behind it a bit that is always set is left out.
    """
    if bits < 8:  # no fraction
        return math.ldexp(1.0, bits - 23) if bits else 0.0
    if bits == 0x6F:
        return math.inf
    least, of_exponent, of_both = next(kind for kind in _HIFLOAT8 if bits >= kind[0])
    of_fraction = of_both - of_exponent
    held, fraction = divmod((bits - least) % (1 << of_both), 1 << of_fraction)
    if not of_exponent:
        exponent = 0
    else:
        negative, rest = divmod(held, 1 << (of_exponent - 1))
        exponent = rest + (1 << (of_exponent - 1))
        exponent = -exponent if negative else exponent
    return math.ldexp((1 << of_fraction) + fraction, exponent - of_fraction)


#: From which bits on; how many bits are the exponent's; how many are its and the fraction's.
_HIFLOAT8 = ((96, 4, 5), (64, 3, 5), (32, 2, 5), (16, 1, 4), (8, 0, 3))
