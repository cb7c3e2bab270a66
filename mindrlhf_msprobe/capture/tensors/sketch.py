"""Sketches of tensors, computed on the host."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from mindrlhf_msprobe.capture.tensors.summary import HostTensor
from mindrlhf_msprobe.common.compiled import library_beside
from mindrlhf_msprobe.storage.arrays.npy import BFLOAT16
from mindrlhf_msprobe.storage.arrays.sketches import (
    FLOATS,
    block_for,
    bytes_of,
    rows_of,
    size_of,
)

_LIBRARY = library_beside(__file__, "_sketch")


def _function(name: str, *types: Any) -> Any:
    function = getattr(_LIBRARY, f"msprobe_{name}", None)
    if function is not None:
        function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, *types)
        function.restype = None
    return function


_ADDRESS = ctypes.c_void_p
_SKETCH = {dtype: _function(f"sketch_{dtype.lower()}", _ADDRESS, _ADDRESS) for dtype in FLOATS}
_FINGERPRINTS = _function("row_fingerprints", _ADDRESS)


def bytes_of_sketch(tensor: HostTensor) -> np.ndarray:
    """Return the sketch of a tensor that is not empty, as the file of sketches holds it: uint8.

    Floats have sums and fingerprints, integers and bools fingerprints alone.
    """
    array, dtype = tensor.array, tensor.dtype
    block = block_for(dtype)
    compiled = _SKETCH.get(dtype) if block else _FINGERPRINTS
    if compiled is None or not array.flags.aligned:
        return bytes_of(array, bfloat16=dtype == BFLOAT16)
    rows, columns = rows_of(array.shape)
    buffer = np.empty(size_of(array.shape, block), np.uint8)
    buffer[-4:] = 0  # what fills up the last word
    out = buffer.ctypes.data
    if block:
        compiled(array.ctypes.data, rows, columns, out, out + 8 * rows)
    else:
        compiled(array.ctypes.data, rows, columns * array.itemsize, out)
    return buffer
