"""PyTorch tensors as key data. PyTorch is not imported here: whose tensor comes, has done so."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from mindrlhf_msprobe.storage.arrays.npy import BFLOAT16


def is_torch_tensor(value: Any) -> bool:
    """Return whether `value` is a tensor of PyTorch."""
    tensor_class = getattr(sys.modules.get("torch"), "Tensor", None)
    return isinstance(tensor_class, type) and isinstance(value, tensor_class)


def elements_of(tensor: Any) -> tuple[str, np.ndarray]:
    """Return a tensor's dtype, by MindSpore's name of it, and its elements on the host.

    Its gradient is left alone, and nothing is added to the graph of gradients. bfloat16 comes as
    its uint16 bits; what numpy has no dtype for (float8 and the like) as float32, exactly; a sparse
    tensor with all its elements. The array may share memory with the tensor.

    Raises:
        Exception: it has no elements that could be had (a meta tensor).
    """
    torch = sys.modules["torch"]
    found = tensor.detach()
    if getattr(found, "layout", None) is not getattr(torch, "strided", None):
        found = found.to_dense()
    if getattr(found, "is_quantized", False):
        found = found.dequantize()
    for resolve in ("resolve_conj", "resolve_neg"):  # which older versions do not have
        found = getattr(found, resolve, lambda same=found: same)()
    found = found.cpu()
    dtype = str(found.dtype).rpartition(".")[2]
    if dtype == "bfloat16":
        return BFLOAT16, found.contiguous().view(torch.int16).numpy().view(np.uint16)
    try:
        array = found.numpy()
    except TypeError:  # numpy has no such dtype; a wider one holds its values exactly
        array = found.to(torch.float32).numpy()
    name = dtype[:2].upper() + dtype[2:] if dtype.startswith("uint") else dtype.capitalize()
    return name, array
