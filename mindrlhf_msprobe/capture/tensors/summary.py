"""A tensor's elements, statistics, fingerprint and sketch, on the host; and the part that is here.

Nothing in here imports MindSpore or PyTorch: a tensor is recognised by its module, so that key data
made of numpy arrays can be recorded without the framework.

Of a tensor that is spread over ranks, as hyper-parallel's DTensor, nothing is used but what it
says of itself: any operator on it goes through a dispatcher of its own, which refuses what it does
not know and may wait for other ranks. Written from the source of hyper-parallel (mindspore-ai,
`core/dtensor.py`, `core/device_mesh.py`, `core/placement_types.py`), which is on no package index;
tried on a stand-in with its members.

On CPU MindSpore's tensors become numpy arrays, large ones without a copy, small ones without delay.
`Tensor.asnumpy` of MindSpore 2.7 copies the elements into memory of its own, new for each tensor;
where the device is the host, they can be read where they are. Whether that gives the same numbers
is tried once, and what cannot be read this way is left to `asnumpy`. MindSpore logs an error when a
tensor that was made from numpy, and that no operator has taken, gives its address: only what
an operator is known to have computed gives it at once, and of all else what is large.

Of a small tensor the bytes are copied: `asnumpy` takes several times as long, to find out the
dtype.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from mindrlhf_msprobe.common.compiled import library_beside
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.storage.arrays.float8 import FLOAT8, float8_to_float32
from mindrlhf_msprobe.storage.arrays.npy import (
    BFLOAT16,
    bfloat16_bits_to_float32,
    dtype_name,
    fingerprint,
    float32_to_bfloat16_bits,
)
from mindrlhf_msprobe.storage.arrays.sketches import FLOATS, block_for, bytes_of, rows_of, size_of
from mindrlhf_msprobe.storage.leaves import COPY, FURTHER, MEAN, SUM, Leaf, Shard, ShardAxis

_BITS_OF_BFLOAT16 = "<u2"
_LARGE = 1 << 16  # bytes; below, a copy takes no longer than to find out where the elements are
#: What numpy holds the elements of a tensor as, by MindSpore's name of its dtype.
DTYPES = {
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
    """Return a tensor's elements, or None where `asnumpy` has to give them.

    Waits until they have been computed. The array is read-only, or lies where the tensor does: then
    it keeps it alive, and shows what is written into it later. bfloat16 comes as its uint16 bits, a
    float of 8 bits as its uint8 bits.

    Args:
        tensor: a mindspore.Tensor.
        dtype: MindSpore's name of its dtype.
        computed: whether it is known to be an operator's output.
    """
    kind = DTYPES.get(dtype)
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
    address in other words than of one that has it: the refusal is compared, whatever it says, with
    that of a tensor that is known to have one. Any other answer leaves the tensor to `asnumpy`, and
    a wrong one costs a line in the log, never a number: its address is 0.
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


def _in_place(tensor: Any, kind: np.dtype) -> np.ndarray | None:
    from mindrlhf_msprobe.capture.framework.private import address_of

    address = address_of(tensor)
    if not address:
        return None
    interface = {"data": (address, False), "shape": tuple(tensor.shape), "typestr": kind.str}
    # The array holds it, and so the tensor.
    memory = SimpleNamespace(tensor=tensor, __array_interface__={**interface, "version": 3})
    return np.asarray(memory)


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
            kind, copied = DTYPES[str(tensor.dtype)], tensor.asnumpy()
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


_BLOCK = 1 << 16  # elements converted to float64 at a time: 512 KiB
_FLOAT32_BLOCK = 1 << 8  # float32 elements added up before float64 takes over
# Between these sizes squares and their sum over a block neither overflow nor vanish in float32.
_FLOAT32_SAFE = (1e-12, 1e16)
# Between these sizes squares of float64 and their sum neither overflow nor vanish, however many.
_FLOAT64_SAFE = (1e-140, 1e140)
_STATISTICS_LIBRARY = library_beside(__file__, "_statistics")


class Statistics(NamedTuple):
    """What is known of an array's elements.

    Attributes:
        max, min: IEEE rules: one NaN makes them NaN. Exact for integers.
        mean, norm: accumulated in float64; norm is the L2 norm, infinite only where it is
            itself beyond float64. None for bool.
        nan_count, inf_count: elements.
    """

    max: Any = None
    min: Any = None
    mean: Any = None
    norm: Any = None
    nan_count: int = 0
    inf_count: int = 0


class _Sums(ctypes.Structure):
    """As `statistics` in _statistics.c lays it out."""

    _fields_ = (
        ("sum", ctypes.c_double),
        ("squares", ctypes.c_double),
        ("max", ctypes.c_float),
        ("min", ctypes.c_float),
        ("non_finite", ctypes.c_int32),
    )


def _function(library: Any, name: str, *types: Any) -> Any:
    """Return a function of a compiled library that takes these types; None without the library."""
    function = getattr(library, f"msprobe_{name}", None)
    if function is not None:
        function.argtypes = types
        function.restype = None
    return function


_ADDRESS, _COUNT = ctypes.c_void_p, ctypes.c_int64
_FLOAT32, _BFLOAT16 = (
    _function(_STATISTICS_LIBRARY, name, _ADDRESS, _COUNT, ctypes.POINTER(_Sums))
    for name in ("float32", "bfloat16")
)


def statistics_of(array: np.ndarray, *, bfloat16: bool = False) -> Statistics:
    """Return the statistics of a contiguous array; complex numbers count by their absolute values.

    Args:
        bfloat16: whether the array holds the bits of bfloat16 as uint16.
    """
    if array.size == 0:
        return Statistics()
    compiled = _BFLOAT16 if bfloat16 else _FLOAT32 if array.dtype == np.float32 else None
    if compiled is not None and array.flags.aligned:
        sums = _Sums()
        compiled(array.ctypes.data, array.size, ctypes.byref(sums))
        if not sums.non_finite:
            norm = math.sqrt(sums.squares)
            return Statistics(sums.max, sums.min, sums.sum / array.size, norm)
    values = array.reshape(-1)  # numpy 1 computes with 0-d arrays in other dtypes than with others
    if bfloat16:
        values = bfloat16_bits_to_float32(values)
    elif values.dtype.kind == "c":
        values = np.abs(values)
    with np.errstate(all="ignore"):
        largest, smallest = _number(values.max()), _number(values.min())
        if values.dtype.kind == "b":
            return Statistics(largest, smallest)
        size = max(abs(largest), abs(smallest))
        total, squares = _sums(values, size)
        nans = infs = 0
        if values.dtype.kind == "f" and not np.isfinite(np.float64(largest) - smallest):
            nans = int(np.count_nonzero(np.isnan(values)))
            infs = int(np.count_nonzero(np.isinf(values)))
        mean, norm = total / values.size, float(np.sqrt(squares))
        if 0 < size < np.inf and not _FLOAT64_SAFE[0] < size < _FLOAT64_SAFE[1]:
            mean, norm = _of_extreme_sizes(values, size, mean)
    return Statistics(largest, smallest, mean, norm, nans, infs)


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
    return _by_blocks(flat)


def _by_blocks(flat: np.ndarray, exponent: int = 0) -> tuple[float, float]:
    """Return the sum and the sum of squares of elements over a power of two, in float64."""
    total = squares = 0.0
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK].astype(np.float64)
        if exponent:
            block = np.ldexp(block, -exponent)
        total += float(block.sum())
        squares += float(np.dot(block, block))
    return total, squares


def _of_extreme_sizes(flat: np.ndarray, size: float, mean: float) -> tuple[float, float]:
    """Return mean and norm of elements whose squares, or whose sum, float64 cannot hold.

    They are summed up scaled by a power of two, so that no bit of them is rounded, and rounded as
    plain sums where those are right. The mean is `mean`, that of the plain sum, where it is finite.
    """
    exponent = int(np.frexp(size)[1])
    total, squares = _by_blocks(flat, exponent)
    if not np.isfinite(mean):
        mean = float(np.ldexp(total / flat.size, exponent))
    return mean, float(np.ldexp(np.sqrt(squares), exponent))


def _number(value: np.generic) -> Any:
    """Return a Python number; a long double, which has none of its own, is rounded to a float."""
    return float(value) if isinstance(value, np.longdouble) else value.item()


_SUMS = {"sum": SUM, "avg": MEAN, "mean": MEAN}


@lru_cache(maxsize=256)
def _says_how(kind: type) -> bool:
    return all(hasattr(kind, name) for name in ("to_local", "device_mesh", "placements"))


def is_sharded(tensor: Any) -> bool:
    """Return whether a tensor is spread over ranks and says how."""
    kind: Any = type(tensor)
    return _says_how(kind)


def local_of(tensor: Any) -> Any:
    """Return the part of a tensor that this rank holds; of any other tensor itself."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def shard_of(tensor: Any) -> Shard | None:
    """Return which part this rank holds; None of a tensor that is not spread, or does not say."""
    if not is_sharded(tensor):
        return None
    try:
        mesh = tensor.device_mesh
        sizes = [int(size) for size in mesh.mesh_shape]
        names = [
            str(name) for name in mesh.mesh_dim_names or map("axis{}".format, range(len(sizes)))
        ]
        at = mesh.get_coordinate()
        places = [None] * len(sizes) if at is None else [int(place) for place in at]
        axes = {
            name: ShardAxis(size, place, _how(placement, len(tensor.shape)))
            for name, size, place, placement in zip(names, sizes, places, tensor.placements)
        }
        return Shard(tuple(map(int, tensor.shape)), axes)
    except Exception:
        # Its elements are recorded all the same: of another version, it may say it differently.
        return None


def mesh_of(parameters: Iterable[Any]) -> dict[str, dict[str, int]]:
    """Return the largest device mesh over which parameters are spread; empty where none is.

    By axis its `size` and the `place` of this rank, as run.json holds it.
    """
    largest: Shard | None = None
    for parameter in filter(is_sharded, parameters):
        shard = shard_of(parameter)
        if shard is not None and (largest is None or shard.ranks > largest.ranks):
            largest = shard
    if largest is None:
        return {}
    return {
        name: {"size": axis.size, "place": axis.place}
        for name, axis in largest.axes.items()
        if axis.place is not None
    }


def _how(placement: Any, dimensions: int) -> int | str:
    """Return what layout.yaml calls a placement."""
    if placement.is_replicate():
        return COPY
    if type(placement).__name__ == "Shard":  # others cut in another order
        return int(placement.dim) % max(dimensions, 1)
    if placement.is_partial():
        return _SUMS.get(str(placement.reduce_op), f"partial {placement.reduce_op}")
    return str(placement)


@dataclass(frozen=True)
class HostTensor:
    """A tensor's elements in host memory.

    Attributes:
        type: `mindspore.Tensor`, `numpy.ndarray` or `torch.Tensor`.
        dtype: MindSpore's name, e.g. `Float32`.
        array: C-contiguous; bfloat16 as its uint16 bits, floats of 8 bits as float32.
        shard: of a tensor that is spread over ranks, which part this is; or None.
    """

    type: str
    dtype: str
    array: np.ndarray
    shard: Shard | None = None

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
    """Bring a tensor to the host, of one that is spread over ranks the part that is here.

    The result may share memory with it.

    Args:
        computed: whether it is known to be an operator's output.

    Raises:
        TypeError: its dtype cannot be held as numbers (strings, objects, dates).
        Exception: what an operator of the training met; see `memory.wait_for`.
    """
    if isinstance(value, HostTensor):
        return value
    if is_sharded(value):
        return replace(to_host(value.to_local(), computed=computed), shard=shard_of(value))
    if _is_mindspore_tensor(value):
        # Not imported with this module: values of other frameworks do not need MindSpore.
        from mindrlhf_msprobe.capture.framework.private import has_gradient_graph

        wait_for(value)  # for all of it at once: the dtype waits for a part of it
        kind, name = "mindspore.Tensor", _name_of(value.dtype)
        # In the graph of gradients are outputs only.
        computed = computed or has_gradient_graph(value)
        own: Any = _TENSOR_CLASS[0]
        if type(value) is own or type(value).asnumpy is own.asnumpy:  # which may be passed over
            elements = elements_of(value, name, computed=computed)
            if elements is not None:
                if name in FLOAT8:
                    elements = float8_to_float32(name, elements)
                return HostTensor(kind, name, elements)
        array = value.asnumpy()
    elif is_torch_tensor(value):
        return _of_torch(value)
    else:
        kind, name, array = "numpy.ndarray", "", np.asarray(value)
    if _is_bfloat16(array.dtype):
        name, array = BFLOAT16, array.view(np.uint16)
    elif name in FLOAT8:  # numpy is given bytes of no meaning
        array = float8_to_float32(name, array.view(np.uint8))
    elif not _holds_numbers(array.dtype):
        raise TypeError(message("fault.no_numbers", dtype=str(array.dtype)))
    elif not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    # ascontiguousarray would turn a 0-d array into one of shape (1,).
    contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return HostTensor(kind, name or dtype_name(array.dtype), contiguous)


def is_torch_tensor(value: Any) -> bool:
    """Return whether `value` is a tensor of PyTorch."""
    tensor_class = getattr(sys.modules.get("torch"), "Tensor", None)
    return isinstance(tensor_class, type) and isinstance(value, tensor_class)


def _of_torch(tensor: Any) -> HostTensor:
    """Bring a tensor of PyTorch to the host.

    Its gradient is left alone, and nothing is added to the graph of gradients. What numpy has no
    dtype for (float8 and the like) comes as float32, exactly; a sparse tensor with all elements.

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
        bits = found.contiguous().view(torch.int16).numpy().view(np.uint16)
        return HostTensor("torch.Tensor", BFLOAT16, bits)
    try:
        array = found.numpy()
    except TypeError:  # numpy has no such dtype; a wider one holds its values exactly
        array = found.to(torch.float32).numpy()
    name = dtype[:2].upper() + dtype[2:] if dtype.startswith("uint") else dtype.capitalize()
    contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return HostTensor("torch.Tensor", name, contiguous)


def subtract(a: HostTensor, b: HostTensor) -> HostTensor:
    """Return a − b of two tensors of floats of one dtype and shape, rounded once to that dtype."""
    if a.dtype == BFLOAT16:
        difference = float32_to_bfloat16_bits(a.values() - b.values())
    else:
        difference = np.asarray(a.array - b.array)
    return replace(a, array=difference)


def rounding_of(total: HostTensor, part: HostTensor) -> float:
    """Return how much an element of total − part may be off, total being a rounded sum with part.

    A rounding each of the sum, of the sum of what was added to `part`, and of the difference:
    together less than two units in the last place of the largest element.
    """
    parts = [t.values() for t in (total, part) if t.array.size]
    parts = [np.abs(values) if np.iscomplexobj(values) else values for values in parts]
    edges = [abs(float(edge)) for values in parts for edge in (values.max(), values.min())]
    largest = max(edges, default=0.0)
    precision = 2.0**-7 if total.dtype == BFLOAT16 else float(np.finfo(total.array.dtype).eps)
    return 2 * precision * largest


def unread(value: Any, error: BaseException) -> Leaf:
    """Return what stands in the place of a tensor that could not be recorded."""
    why = message("unread.raised", error=type(error).__name__, why=error)
    return Leaf(type(value).__name__, why=why)


def summarise(tensor: HostTensor, *, fingerprint: bool = True) -> Leaf:
    """Return a tensor's description: dtype, shape, statistics and fingerprint.

    max, min and mean follow IEEE rules (one NaN makes them NaN); the L2 norm is accumulated in
    float64, so float16 and bfloat16 do not overflow; a complex tensor's statistics are those of
    its absolute values. max and min of integers are exact.
    """
    leaf = _leaf(tensor, fingerprint_of(tensor) if fingerprint else None)
    return _of_shard(leaf, tensor)


def _leaf(tensor: HostTensor, fingerprint: str | None) -> Leaf:
    found = statistics_of(tensor.array, bfloat16=tensor.dtype == BFLOAT16)
    leaf = Leaf(tensor.type, tensor.dtype, tensor.array.shape, *found, fingerprint=fingerprint)
    if not FURTHER or not tensor.array.size or "Float" not in tensor.dtype:
        return leaf
    values = tensor.values().reshape(-1)
    return replace(leaf, further={name: float(of(values)) for name, of in FURTHER.items()})


def _of_shard(leaf: Leaf, tensor: HostTensor) -> Leaf:
    return leaf if tensor.shard is None else replace(leaf, shard=tensor.shard)


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
        return _of_shard(leaf, tensor)


def fingerprint_of(tensor: HostTensor) -> str:
    """Return `xxh3_128:<hex>` over dtype, shape and bytes, in order."""
    return fingerprint(tensor.dtype, tensor.array)


_SKETCH_LIBRARY = library_beside(__file__, "_sketch")


_ROWS = (_ADDRESS, _COUNT, _COUNT, _ADDRESS)
_SKETCH = {
    dtype: _function(_SKETCH_LIBRARY, f"sketch_{dtype.lower()}", *_ROWS, _ADDRESS)
    for dtype in FLOATS
}
_FINGERPRINTS = _function(_SKETCH_LIBRARY, "row_fingerprints", *_ROWS)


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
