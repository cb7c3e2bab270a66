"""A tensor's statistics and fingerprint, computed on the host.

Nothing in here imports MindSpore: a tensor is recognised by its module, so that key data made of
numpy arrays can be recorded without the framework.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from mindrlhf_msprobe.storage.arrays import (
    BFLOAT16,
    bfloat16_bits_to_float32,
    dtype_name,
    float32_to_bfloat16_bits,
)
from mindrlhf_msprobe.storage.records import Leaf

FINGERPRINT_ALGORITHM = "xxh3_128"

_BLOCK = 1 << 16  # elements converted to float64 at a time: 512 KiB
_FLOAT32_BLOCK = 1 << 8  # float32 elements added up before float64 takes over
# Between these sizes squares and their sum over a block neither overflow nor vanish in float32.
_FLOAT32_SAFE = (1e-12, 1e16)


@dataclass(frozen=True)
class HostTensor:
    """A tensor's elements in host memory.

    Attributes:
        type: `mindspore.Tensor` or `numpy.ndarray`.
        dtype: MindSpore's name, e.g. `Float32`.
        array: C-contiguous; bfloat16 as its uint16 bits.
    """

    type: str
    dtype: str
    array: np.ndarray

    def values(self) -> np.ndarray:
        """Return the elements as numpy can hold them: bfloat16 as float32, all else as it is."""
        if self.dtype != BFLOAT16:
            return self.array
        # numpy 1 computes with 0-d arrays in other dtypes than with any other.
        return bfloat16_bits_to_float32(self.array.reshape(-1)).reshape(self.array.shape)


def is_tensor(value: Any) -> bool:
    """Tell whether `value` is a MindSpore tensor or a numpy array or scalar of numbers."""
    if isinstance(value, HostTensor):
        return True
    if isinstance(value, (np.ndarray, np.generic)):
        return _holds_numbers(value.dtype)
    return _is_mindspore_tensor(value)


def _holds_numbers(dtype: np.dtype) -> bool:
    return dtype.kind in "biufc" or dtype.name == "bfloat16"


def _is_mindspore_tensor(value: Any) -> bool:
    mindspore = sys.modules.get("mindspore")
    tensor_class = getattr(mindspore, "Tensor", None)
    return tensor_class is not None and isinstance(value, tensor_class)


def to_host(value: Any) -> HostTensor:
    """Bring a tensor to the host; the result may share memory with it.

    Raises:
        TypeError: its dtype cannot be held as numbers (strings, objects, dates).
    """
    if isinstance(value, HostTensor):
        return value
    if _is_mindspore_tensor(value):
        kind, name, array = "mindspore.Tensor", str(value.dtype), value.asnumpy()
    else:
        kind, name, array = "numpy.ndarray", "", np.asarray(value)
    if array.dtype.name == "bfloat16":
        name, array = BFLOAT16, array.view(np.uint16)
    elif not _holds_numbers(array.dtype):
        raise TypeError(f"dtype {array.dtype} holds no numbers")
    elif not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # ascontiguousarray would turn a 0-d array into one of shape (1,).
    contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return HostTensor(kind, name or dtype_name(array.dtype), contiguous)


def subtract(a: HostTensor, b: HostTensor) -> HostTensor:
    """Return a − b of two tensors of floats of one dtype and shape, rounded once to that dtype."""
    if a.dtype == BFLOAT16:
        difference = float32_to_bfloat16_bits(a.values() - b.values())
    else:
        difference = np.asarray(a.array - b.array)
    return HostTensor(a.type, a.dtype, difference)


def summarise(tensor: HostTensor, *, fingerprint: bool = True) -> Leaf:
    """Return a tensor's description: dtype, shape, statistics and fingerprint.

    max, min and mean follow IEEE rules (one NaN makes them NaN); the L2 norm is accumulated in
    float64, so float16 and bfloat16 do not overflow; a complex tensor's statistics are those of
    its absolute values. max and min of integers are exact.
    """
    values = tensor.values()
    if values.dtype.kind == "c":
        values = np.abs(values)
    largest, smallest, mean, norm, nans, infs = _statistics(values)
    return Leaf(
        type=tensor.type,
        dtype=tensor.dtype,
        shape=tensor.array.shape,
        max=largest,
        min=smallest,
        mean=mean,
        norm=norm,
        nan_count=nans,
        inf_count=infs,
        fingerprint=fingerprint_of(tensor) if fingerprint else None,
    )


def _statistics(values: np.ndarray) -> tuple[Any, Any, Any, Any, int, int]:
    if values.size == 0:
        return None, None, None, None, 0, 0
    with np.errstate(all="ignore"):
        largest, smallest = _number(values.max()), _number(values.min())
        if values.dtype.kind == "b":
            return largest, smallest, None, None, 0, 0
        total, squares = _sums(values.reshape(-1), max(abs(largest), abs(smallest)))
        nans = infs = 0
        if values.dtype.kind == "f" and not np.isfinite(np.float64(largest) - smallest):
            nans = int(np.count_nonzero(np.isnan(values)))
            infs = int(np.count_nonzero(np.isinf(values)))
        return largest, smallest, total / values.size, float(np.sqrt(squares)), nans, infs


def _number(value: np.generic) -> Any:
    """Return a Python number; a long double, which has none of its own, is rounded to a float."""
    return float(value) if isinstance(value, np.longdouble) else value.item()


def _sums(flat: np.ndarray, size: float) -> tuple[float, float]:
    """Return the sum and the sum of squares, accumulated in float64 block by block.

    Squares of float32 of ordinary `size` (its largest absolute value) are first added up over
    short blocks as they are: many times faster, and right to 1e-6, since none are negative.
    """
    if flat.dtype == np.float32 and _FLOAT32_SAFE[0] < size < _FLOAT32_SAFE[1]:
        whole = flat.size // _FLOAT32_BLOCK * _FLOAT32_BLOCK
        rows = flat[:whole].reshape(-1, 1, _FLOAT32_BLOCK)
        squares = float(np.matmul(rows, rows.transpose(0, 2, 1)).sum(dtype=np.float64))
        rest = flat[whole:].astype(np.float64)
        return float(flat.sum(dtype=np.float64)), squares + float(np.dot(rest, rest))
    total = squares = 0.0
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK].astype(np.float64)
        total += float(block.sum())
        squares += float(np.dot(block, block))
    return total, squares


def fingerprint_of(tensor: HostTensor) -> str:
    """Return `xxh3_128:<hex>` over dtype, shape and bytes, in order."""
    digest = xxhash.xxh3_128(f"{tensor.dtype}{list(tensor.array.shape)}".encode())
    if tensor.array.size:
        digest.update(tensor.array.reshape(-1).view(np.uint8).data)
    return f"{FINGERPRINT_ALGORITHM}:{digest.hexdigest()}"
