"""Weights that are rounded to a lower dtype on their way, though both networks hold float32."""

from __future__ import annotations

import numpy as np

from mindrlhf_msprobe.storage.arrays.npy import (
    BFLOAT16,
    bfloat16_bits_to_float32,
    float32_to_bfloat16_bits,
)

#: The dtypes.
ROUNDED = ("Float16", BFLOAT16)


def rounded(values: np.ndarray, dtype: str | None) -> np.ndarray:
    """Return values rounded to the nearest ones of a lower dtype, float32.

    Args:
        dtype: by MindSpore's name; None: float32.
    """
    if dtype == BFLOAT16:
        return bfloat16_bits_to_float32(float32_to_bfloat16_bits(values.astype(np.float32)))
    with np.errstate(over="ignore"):
        return values.astype((dtype or "float32").lower()).astype(np.float32)


def rounded_to(values: np.ndarray, others: np.ndarray) -> str | None:
    """Return the lower dtype to which others are rounded in float32 values; None if to none."""
    if (values.dtype, others.dtype) != (np.float32, np.float32):
        return None
    return next((d for d in ROUNDED if np.array_equal(values, rounded(others, d))), None)
