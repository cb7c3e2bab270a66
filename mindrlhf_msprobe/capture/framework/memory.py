"""MindSpore's tensors on CPU as numpy arrays: large ones without a copy, small ones without delay.

`Tensor.asnumpy` of MindSpore 2.7 copies the elements into memory of its own, new for each tensor;
where the device is the host, they can be read where they are. Whether that gives the same numbers
is tried once, and what cannot be read this way is left to `asnumpy`. MindSpore logs an error when a
tensor that was made from numpy, and that no operator has taken, is asked for its address: only what
an operator is known to have computed is asked at once, and of all else what is large.

Of a small tensor the bytes are copied: `asnumpy` takes several times as long, to find out the
dtype.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from mindrlhf_msprobe.storage.arrays.float8 import FLOAT8

_BITS_OF_BFLOAT16 = "<u2"
_LARGE = 1 << 16  # bytes; below, a copy takes no longer than to find out where the elements are
_DTYPES = {  # by MindSpore's name of a dtype
    name: np.dtype(kind)
    for name, kind in {
        **{"Float16": "<f2", "Float32": "<f4", "Float64": "<f8", "BFloat16": _BITS_OF_BFLOAT16},
        **{"Int8": "|i1", "Int16": "<i2", "Int32": "<i4", "Int64": "<i8", "Bool": "|b1"},
        **{"UInt8": "|u1", "UInt16": "<u2", "UInt32": "<u4", "UInt64": "<u8"},
        **{"Complex64": "<c8", "Complex128": "<c16"},
        **dict.fromkeys(FLOAT8, "|u1"),
    }.items()
}
_OF_TRAINING = "_mindrlhf_msprobe_of_training"


def wait_for(tensor: Any) -> None:
    """Wait until a tensor has been computed.

    MindSpore raises what an operator met at the first wait for its outputs, and only there: later
    ones raise nothing, and find elements that were never computed. Who waits for the training
    has to pass it on to the training.

    Raises:
        Exception: an operator of the training failed; `is_of_training` knows it.
    """
    wait = getattr(tensor, "wait_pipeline", None)
    if wait is None:  # another version computes at once, or tells in asnumpy
        return
    try:
        wait()
    except Exception as error:
        setattr(error, _OF_TRAINING, True)
        raise


def is_of_training(error: BaseException) -> bool:
    """Return whether an exception is an operator's of the training, which `wait_for` met."""
    return getattr(error, _OF_TRAINING, False) is True


def elements_of(tensor: Any, dtype: str, *, computed: bool) -> np.ndarray | None:
    """Return a tensor's elements, or None where `asnumpy` has to be asked.

    Waits until they have been computed. The array is read-only, or lies where the tensor does: then
    it keeps it alive, and shows what is written into it later. bfloat16 comes as its uint16 bits, a
    float of 8 bits as its uint8 bits.

    Args:
        tensor: a mindspore.Tensor.
        dtype: MindSpore's name of its dtype.
        computed: whether it is known to be an operator's output.
    """
    kind = _DTYPES.get(dtype)
    if kind is None or not _is_possible():
        return None
    size = tensor.nbytes
    if not size or getattr(tensor, "has_init", False):
        return None
    # MindSpore 2.7 gives the address of the whole of which a slice is a part.
    if not tensor.is_contiguous() or tensor.storage_offset():
        return None
    if size < _LARGE:
        return _copied(tensor, kind)
    return _in_place(tensor, kind) if computed or _has_address(tensor) else None


def _has_address(tensor: Any) -> bool:
    """Return whether a tensor lies where operators compute, without an error in the log.

    MindSpore has no call that tells. It refuses to give out a tensor's storage, of one without an
    address otherwise than of one that has it: the refusal is compared, whatever it says, with that
    of a tensor that is known to have one. Any other answer leaves the tensor to `asnumpy`, and a
    wrong one costs a line in the log, never a number: its address is asked for, and is none.
    """
    wait_for(tensor)  # until then it has none
    answers = _storage_answers()
    return answers is not None and _storage_answer(tensor) == answers


@functools.cache
def _storage_answers() -> str | None:
    """Return the answer for an operator's output; None where it is the same for all tensors."""
    mindspore = sys.modules["mindspore"]
    given = mindspore.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    before, computed = _storage_answer(given), given * 2
    wait_for(computed)
    result = _storage_answer(computed)
    return None if before == result or result is None else result


def _storage_answer(tensor: Any) -> str | None:
    try:
        tensor.untyped_storage()
    except RuntimeError as error:
        return str(error)
    except Exception:  # another version has no such methods
        return None
    return ""


class _Memory:
    """A tensor's memory, as numpy takes it."""

    def __init__(self, tensor: Any, address: int, kind: str) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "data": (address, False),
            "shape": tuple(tensor.shape),
            "typestr": kind,
            "version": 3,
        }


def _in_place(tensor: Any, kind: np.dtype) -> np.ndarray | None:
    from mindrlhf_msprobe.capture.framework.private import address_of

    address = address_of(tensor)
    return np.asarray(_Memory(tensor, address, kind.str)) if address else None


def _copied(tensor: Any, kind: np.dtype) -> np.ndarray:
    return np.ndarray(tensor.shape, kind, tensor.get_bytes())


@functools.cache
def _is_possible() -> bool:
    """Try it: on CPU, only where it gives what `asnumpy` gives, and where that is a copy."""
    mindspore = sys.modules["mindspore"]
    try:
        if sys.byteorder != "little" or mindspore.get_context("device_target") != "CPU":
            return False
        given = mindspore.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
        for tensor in (given * 2, (given * 2).astype(mindspore.float16)):
            kind, copied = _DTYPES[str(tensor.dtype)], tensor.asnumpy()
            found = _in_place(tensor, kind)
            if found is None or not np.array_equal(found, copied):
                return False
            if not np.array_equal(_copied(tensor, kind), copied):
                return False
            if np.shares_memory(found, copied):
                return False
    except Exception:  # these are no public functions: another version may not have them
        return False
    return True
