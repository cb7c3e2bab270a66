"""A tensor's statistics and fingerprint, computed on the host.

Nothing in here imports MindSpore: a tensor is recognised by its module, so that key data made of
numpy arrays can be recorded without the framework.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from mindrlhf_msprobe.capture.framework.memory import elements_of, wait_for
from mindrlhf_msprobe.capture.tensors.statistics import statistics_of
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.storage.arrays.fingerprint import fingerprint
from mindrlhf_msprobe.storage.arrays.npy import (
    BFLOAT16,
    bfloat16_bits_to_float32,
    dtype_name,
    float32_to_bfloat16_bits,
)
from mindrlhf_msprobe.storage.leaves import Leaf


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


_name_of = lru_cache(maxsize=256)(str)  # MindSpore makes a dtype's name anew each time


def is_tensor(value: Any) -> bool:
    """Return whether `value` is a MindSpore tensor or a numpy array or scalar of numbers.

    A masked array is two of them: see `TreeDescriber`.
    """
    if type(value) in _TENSOR_TYPES:
        return True
    if isinstance(value, HostTensor) or _is_mindspore_tensor(value):
        _TENSOR_TYPES.add(type(value))
        return True
    if isinstance(value, (np.ndarray, np.generic)):
        return _holds_numbers(value.dtype) and not isinstance(value, np.ma.MaskedArray)
    return False


@lru_cache(maxsize=256)  # numpy makes a dtype's name anew each time
def _holds_numbers(dtype: np.dtype) -> bool:
    return dtype.kind in "biufc" or _is_bfloat16(dtype)


@lru_cache(maxsize=256)
def _is_bfloat16(dtype: np.dtype) -> bool:
    return dtype.name == "bfloat16"


_TENSOR_TYPES: set[type] = set()  # of those that were seen, all but numpy's
_TENSOR_CLASS: list[type] = []  # MindSpore's, once it is imported


def _is_mindspore_tensor(value: Any) -> bool:
    if not _TENSOR_CLASS:
        tensor_class = getattr(sys.modules.get("mindspore"), "Tensor", None)
        if tensor_class is None:
            return False
        _TENSOR_CLASS.append(tensor_class)
    return isinstance(value, _TENSOR_CLASS[0])


def to_host(value: Any, *, computed: bool = False) -> HostTensor:
    """Bring a tensor to the host; the result may share memory with it.

    Args:
        computed: whether it is known to be an operator's output.

    Raises:
        TypeError: its dtype cannot be held as numbers (strings, objects, dates).
        Exception: what an operator of the training met; see `memory.wait_for`.
    """
    if isinstance(value, HostTensor):
        return value
    if _is_mindspore_tensor(value):
        wait_for(value)  # for all of it at once: asking for the dtype waits for a part of it
        kind, name = "mindspore.Tensor", _name_of(value.dtype)
        # In the graph of gradients are outputs only.
        computed = computed or _gradient_graph_check()(value)
        own: Any = _TENSOR_CLASS[0]
        if type(value) is own or type(value).asnumpy is own.asnumpy:  # which may be passed over
            elements = elements_of(value, name, computed=computed)
            if elements is not None:
                return HostTensor(kind, name, elements)
        array = value.asnumpy()
    else:
        kind, name, array = "numpy.ndarray", "", np.asarray(value)
    if _is_bfloat16(array.dtype):
        name, array = BFLOAT16, array.view(np.uint16)
    elif not _holds_numbers(array.dtype):
        raise TypeError(message("fault.no_numbers", dtype=str(array.dtype)))
    elif not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # ascontiguousarray would turn a 0-d array into one of shape (1,).
    contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return HostTensor(kind, name or dtype_name(array.dtype), contiguous)


@lru_cache(maxsize=1)
def _gradient_graph_check() -> Callable[[Any], bool]:
    # Not imported with this module: values of other frameworks do not need MindSpore.
    from mindrlhf_msprobe.capture.framework.private import has_gradient_graph

    return has_gradient_graph


def subtract(a: HostTensor, b: HostTensor) -> HostTensor:
    """Return a − b of two tensors of floats of one dtype and shape, rounded once to that dtype."""
    if a.dtype == BFLOAT16:
        difference = float32_to_bfloat16_bits(a.values() - b.values())
    else:
        difference = np.asarray(a.array - b.array)
    return HostTensor(a.type, a.dtype, difference)


def rounding_of(total: HostTensor, part: HostTensor) -> float:
    """Return how much an element of total − part may be off, total being a rounded sum with part.

    A rounding each of the sum, of the sum of what was added to `part`, and of the difference:
    together less than two units in the last place of the largest element.
    """
    largest = max(
        (abs(float(edge)) for t in (total, part) if t.array.size for edge in _edges(t)), default=0.0
    )
    precision = 2.0**-7 if total.dtype == BFLOAT16 else float(np.finfo(total.array.dtype).eps)
    return 2 * precision * largest


def _edges(tensor: HostTensor) -> tuple[Any, Any]:
    values = tensor.values()
    if np.iscomplexobj(values):
        values = np.abs(values)
    return values.max(), values.min()


def summarise(tensor: HostTensor, *, fingerprint: bool = True) -> Leaf:
    """Return a tensor's description: dtype, shape, statistics and fingerprint.

    max, min and mean follow IEEE rules (one NaN makes them NaN); the L2 norm is accumulated in
    float64, so float16 and bfloat16 do not overflow; a complex tensor's statistics are those of
    its absolute values. max and min of integers are exact.
    """
    return _leaf(tensor, fingerprint_of(tensor) if fingerprint else None)


def _leaf(tensor: HostTensor, fingerprint: str | None) -> Leaf:
    found = statistics_of(tensor.array, bfloat16=tensor.dtype == BFLOAT16)
    return Leaf(tensor.type, tensor.dtype, tensor.array.shape, *found, fingerprint=fingerprint)


class Summaries:
    """Describes tensors; of one that was described before, only the fingerprint is computed.

    A cell's output is the next one's input, a container's output its last child's, and the weights
    of a frozen network are the same in every step: most tensors come more than once. Equal
    fingerprints are equal elements, so a tensor that was written in place is never mistaken.

    Args:
        md5: whether what msprobe calls so is computed, too: the CRC-32 of the bytes, bfloat16 as
            float32, in hex.
        remembered: how many descriptions are kept.
    """

    def __init__(self, *, md5: bool = False, remembered: int = 1 << 13) -> None:
        self._known: dict[tuple[str, str], Leaf] = {}
        self._md5 = md5
        self._remembered = remembered

    def describe(self, tensor: HostTensor) -> Leaf:
        """Return a tensor's description, its fingerprint included."""
        fingerprint = fingerprint_of(tensor)
        key = tensor.type, fingerprint
        leaf = self._known.get(key)
        if leaf is None:
            leaf = _leaf(tensor, fingerprint)
            if self._md5:
                leaf = replace(leaf, md5=f"{zlib.crc32(tensor.values().tobytes()):08x}")
            if len(self._known) >= self._remembered:
                self._known.clear()
            self._known[key] = leaf
        return leaf


def fingerprint_of(tensor: HostTensor) -> str:
    """Return `xxh3_128:<hex>` over dtype, shape and bytes, in order."""
    return fingerprint(tensor.dtype, tensor.array)
