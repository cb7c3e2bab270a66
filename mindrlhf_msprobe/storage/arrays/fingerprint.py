"""The fingerprint of a tensor on the host: an order-sensitive hash of dtype, shape and bytes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import xxhash

from mindrlhf_msprobe.storage.arrays.npy import BFLOAT16, float32_to_bfloat16_bits

ALGORITHM = "xxh3_128"
_AT_ONCE = 1 << 22  # elements that are converted at once


def fingerprint(dtype: str, array: np.ndarray) -> str:
    """Return `xxh3_128:<hex>` over dtype, shape and bytes, in order.

    Args:
        dtype: MindSpore's name.
        array: C-contiguous; bfloat16 as its uint16 bits.
    """
    digest = xxhash.xxh3_128(_kind(dtype, array.shape))
    if array.size:
        digest.update(array.data)  # C-contiguous: its buffer is its bytes
    return f"{ALGORITHM}:{digest.hexdigest()}"


def fingerprint_of_file(dtype: str, array: np.ndarray) -> str:
    """Return the same of what a file holds, where bfloat16 is stored as float32."""
    if dtype != BFLOAT16:
        return fingerprint(dtype, array)
    flat = array.reshape(-1)
    parts = (flat[start : start + _AT_ONCE] for start in range(0, flat.size, _AT_ONCE))
    return fingerprint_of_parts(dtype, array.shape, parts)


def fingerprint_of_parts(dtype: str, shape: tuple[int, ...], parts: Iterable[np.ndarray]) -> str:
    """Return the same of an array whose elements come part by part, in row-major order.

    Args:
        parts: C-contiguous; bfloat16 as float32.
    """
    digest = xxhash.xxh3_128(_kind(dtype, shape))
    for part in parts:
        digest.update((float32_to_bfloat16_bits(part) if dtype == BFLOAT16 else part).data)
    return f"{ALGORITHM}:{digest.hexdigest()}"


@lru_cache(maxsize=1024)
def _kind(dtype: str, shape: tuple[int, ...]) -> bytes:
    return f"{dtype}{list(shape)}".encode()
