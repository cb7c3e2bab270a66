"""The nodes that hand over what passes in a graph on Ascend: files that the device writes.

The writing itself is `ops.TensorDump`'s, which is used by its documentation and source, and by how
msprobe uses it; it has not run on Ascend yet. All else runs on CPU, where something stands in for
it: as there, that hands a tensor to a queue of limited length and goes on, and a thread of the host
writes the files one after the other: the directory is made where it is missing, the name gets the
dtype and a number, bfloat16 is written as float32, and a whole file is not writable any more.

The device hands what it dumps to a thread of the host, which writes it later, in order. So a mark
that is dumped last has been written when everything has. A file has the number of its probe, not
that of a call: files come in the order in which they were written, so a tensor belongs to the call
of its cell that was opened last, and a gradient to the last call of its cell that has had none yet.

Where no elements are recorded, what leaves the graph for a tensor is an array of at most 48 bytes,
whatever its size: `reduced` is compiled into it, and `leaf_of` reads it. The edges of integers
stand in it as digits of 16 bits. max and min are exact. mean and norm come of sums in float32 (in
float64 for float64 tensors), along rows, then over the rows, of elements over the largest of them,
so that no square overflows. There is no fingerprint: inside a graph MindSpore has no operator that
reads a tensor's bits. Every operator here is in the graph once for each tensor, so they are few.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import functools
import math
import os
import queue
import stat
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import functional as F

from mindrlhf_msprobe.capture.framework.private import EXECUTOR, RUN_OP
from mindrlhf_msprobe.capture.graph.folder import FENCE, FOLDERS
from mindrlhf_msprobe.capture.graph.probes import (
    DATA,
    NO_CELL,
    SITES,
    Lines,
    Question,
    Site,
    Taker,
    Visit,
    array_of,
    as_array,
    as_recorded,
    host_function,
    nothing_of,
    number_in,
    reduces,
    stands_in,
)
from mindrlhf_msprobe.capture.tensors.tree import TensorOutline
from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.storage.arrays.npy import open_npy
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.writing.graph_files import GraphFile

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.graph.calls import Receiver

#: How a tensor leaves the graph: as it is, or as statistics of floats, of integers, of bools. Of an
#: empty one only the news leaves it: it has no elements.
WHOLE, FLOATS, WIDE_FLOATS, INTEGERS, UNSIGNED, BOOLS, EMPTY = (
    *("whole", "floats", "wide floats"),
    *("integers", "unsigned", "bools", "empty"),
)
_KINDS = {"Float16": FLOATS, "BFloat16": FLOATS, "Float32": FLOATS, "Float64": WIDE_FLOATS}
_KINDS |= dict.fromkeys(("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32"), INTEGERS)
_KINDS |= {"UInt64": UNSIGNED, "Bool": BOOLS}

_LENGTHS = {FLOATS: 6, WIDE_FLOATS: 6, INTEGERS: 10, UNSIGNED: 10, BOOLS: 2}

_BASE = 1 << 16
_DIGITS = 4  # of an integer of 64 bits
_ONE = Tensor(np.zeros(1, np.float32))


class _Reduction(Question):
    """How a tensor of a cell leaves the graph."""

    in_python = WHOLE

    def answer(self, cell: int, tensor: Any) -> str:
        if not isinstance(tensor, TensorOutline):
            return WHOLE
        if 0 in tensor.shape:
            return EMPTY
        if cell == NO_CELL or cell in SITES.whole or not reduces():
            return WHOLE
        return _KINDS.get(tensor.dtype, WHOLE)


class _Rows(Question):
    """A shape of two axes, as near to a square as it can be, into which a tensor fits."""

    in_python = 1, -1  # not read

    def answer(self, tensor: Any) -> tuple[int, int]:
        size = math.prod(tensor.shape)
        rows = next(n for n in range(math.isqrt(size), 0, -1) if size % n == 0)
        return rows, size // rows


REDUCTION = _Reduction()
ROWS = _Rows()
_depend = ops.Depend()
_stack = ops.Stack(0)
_bitwise_and = ops.BitwiseAnd()
_right_shift = ops.RightShift()
_LOW = Tensor(_BASE - 1, mindspore.int64)
_SHIFTS = tuple(Tensor(16 * n, mindspore.int64) for n in range(_DIGITS - 1, -1, -1))
_LOWEST = Tensor(np.int64(-(1 << 63)))
#: No zero, by which the elements are divided where all of them are zero.
_SMALLEST = {
    FLOATS: float(np.finfo(np.float32).tiny),
    WIDE_FLOATS: float(np.finfo(np.float64).tiny),
}
_SMALLEST32 = Tensor(_SMALLEST[FLOATS], mindspore.float32)
_SMALLEST64 = Tensor(_SMALLEST[WIDE_FLOATS], mindspore.float64)


def reduced(how, tensor):
    """Return what leaves the graph for a tensor."""
    if how == "whole":
        return tensor
    if how == "empty":
        return _depend(_ONE, tensor)
    rows = F.reshape(tensor, ROWS(tensor))
    if how == "floats":
        values = F.cast(rows, mindspore.float32)
        edges = (F.reduce_max(values), F.reduce_min(values))
        return _stack(edges + _sums(values, edges, _SMALLEST32) + _counts(values))
    if how == "wide floats":
        edges = (F.reduce_max(rows), F.reduce_min(rows))
        counts = _counts(rows)
        counts = (F.cast(counts[0], mindspore.float64), F.cast(counts[1], mindspore.float64))
        return _stack(edges + _sums(rows, edges, _SMALLEST64) + counts)
    values = F.cast(rows, mindspore.float32)
    edges = (F.reduce_max(values), F.reduce_min(values))
    if how == "bools":
        return _stack(edges)
    exact = F.cast(rows, mindspore.int64)
    if how == "unsigned":  # in the order of its values: the host takes the same off again
        exact = exact + _LOWEST
    digits = _digits(F.reduce_max(exact)) + _digits(F.reduce_min(exact))
    return _stack(_sums(values, edges, _SMALLEST32) + digits)


def _sums(values, edges, smallest):
    """Return the sum and the sum of squares, of values over the largest of them."""
    scaled = values / F.maximum(F.maximum(edges[0], -edges[1]), smallest)
    return (_total(scaled), _total(scaled * scaled))


def _total(rows):
    return F.reduce_sum(F.reduce_sum(rows, 1))


def _counts(values):
    """Return how many are NaN, and how many infinite."""
    nans, infs = F.isnan(values), F.isinf(values)
    return (
        F.reduce_sum(F.cast(nans, mindspore.float32)),
        F.reduce_sum(F.cast(infs, mindspore.float32)),
    )


def _digits(number):
    digits = ()
    for shift in _SHIFTS:
        digit = _bitwise_and(_right_shift(number, shift), _LOW)
        digits = (*digits, F.cast(digit, mindspore.float32))
    return digits


def leaf_of(tensor: TensorOutline, numbers: np.ndarray) -> Leaf:
    """Return the description of a tensor for which `reduced` returned some numbers.

    Raises:
        ValueError: these are not as many numbers as it returns.
    """
    how, size = _KINDS[tensor.dtype], math.prod(tensor.shape)
    if numbers.shape != (_LENGTHS[how],):
        known = {"shape": str(numbers.shape), "expected": f"({_LENGTHS[how]},)"}
        raise ValueError(message("fault.statistics", **known))
    found = [float(number) for number in numbers]
    given: dict[str, Any] = {"type": "mindspore.Tensor", "dtype": tensor.dtype}
    given |= {"shape": tensor.shape, "nan_count": 0, "inf_count": 0}
    if how == BOOLS:
        return Leaf(**given, max=bool(found[0]), min=bool(found[1]))
    if how in (FLOATS, WIDE_FLOATS):
        largest, smallest, total, squares, nans, infs = found
        given |= {"nan_count": round(nans), "inf_count": round(infs)}
        if nans:  # on some devices a maximum passes over it
            return Leaf(**given, max=math.nan, min=math.nan, mean=math.nan, norm=math.nan)
        if infs:
            mean = sum(edge for edge in (largest, smallest) if math.isinf(edge))
            return Leaf(**given, max=largest, min=smallest, mean=mean, norm=math.inf)
        scale = max(largest, -smallest, _SMALLEST[how])
    else:
        total, squares = found[:2]
        edges = [_number(found[at : at + _DIGITS]) for at in (2, 2 + _DIGITS)]
        half = 1 << 63
        edges = [edge - (edge >= half) * 2 * half + (how == UNSIGNED) * half for edge in edges]
        largest, smallest = edges
        scale = max(*(abs(float(np.float32(edge))) for edge in edges), _SMALLEST[FLOATS])
    norm = math.sqrt(squares) * scale
    return Leaf(**given, max=largest, min=smallest, mean=total / size * scale, norm=norm)


def _number(digits: list[float]) -> int:
    return functools.reduce(lambda number, digit: number * _BASE + round(digit), digits, 0)


_CHANNEL = 128  # tensors that may be on their way, as many as Ascend's channel holds


class Files:
    """The files that were compiled into graphs, by number, and the thread that writes them."""

    def __init__(self) -> None:
        self._files: list[tuple[str, TensorOutline]] = []
        self._numbers: dict[tuple[str, TensorOutline], int] = {}
        self._channel: queue.Queue[tuple[str, str, np.ndarray]] = queue.Queue(_CHANNEL)
        self._written = 0
        self._writer: threading.Thread | None = None
        self._lock = threading.Lock()

    def number(self, name: str, tensor: TensorOutline) -> int:
        """Return the number of a file and of what it holds."""
        with self._lock:
            number = self._numbers.setdefault((name, tensor), len(self._files))
            if number == len(self._files):
                self._files.append((name, tensor))
            return number

    def put(self, file: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Have a file of a number written; waits where too many are on their way.

        The graph calls it.
        """
        name, tensor = self._files[number_in(file)]
        self.write(name, tensor.dtype, as_recorded(np.array(elements), tensor))
        return array_of(0)

    def write(self, name: str, dtype: str, array: np.ndarray) -> None:
        """Have a file written behind those that are on their way."""
        with self._lock:
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, daemon=True)
                self._writer.start()
        self._channel.put((name, dtype, array))

    def _write(self) -> None:
        while True:
            name, dtype, array = self._channel.get()
            path = f"{name}_{dtype.lower()}_{self._written}.npy"
            self._written += 1
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                np.save(path, array.astype(np.float32) if dtype == "BFloat16" else array)
                os.chmod(path, stat.S_IRUSR)
            except OSError:  # as on Ascend, where a line of the log is all
                continue


FILES = Files()


class _FileNumber(Question):
    """The number of a file, as an array."""

    in_python = Tensor(array_of(0))  # not read

    def answer(self, name: str, tensor: TensorOutline) -> Tensor:
        return Tensor(array_of(FILES.number(name, tensor)))


FILE_NUMBER = _FileNumber()
WRITE = host_function("msprobe_stand_in", FILES.put, 2)
WRITE_GRADIENT = host_function("msprobe_stand_in_gradient", FILES.put, 2, in_order=False)


def _dump_by_host(file, tensor):
    """Write a tensor."""
    return WRITE(FILE_NUMBER(file, tensor), as_array(tensor))


def _dump_gradient_by_host(file, tensor):
    """Write a tensor from inside a gradient: whoever needs it waits for what is returned."""
    return WRITE_GRADIENT(FILE_NUMBER(file, tensor), as_array(tensor))


# With these attributes MindSpore itself writes gradients, in the bprop of `ops.DumpGradient`.
_tensor_dump, _gradient_dump = ops.TensorDump(), ops.TensorDump()
_gradient_dump.add_prim_attr("side_effect_io", False)
_gradient_dump.add_prim_attr("td_flag", True)
for _primitive in (_tensor_dump, _gradient_dump):
    _primitive.recompute(False)  # a recomputed cell hands over what it computed first

#: Writes a tensor, in the order of the program: `dump(file, tensor)`.
dump = _dump_by_host if stands_in() else _tensor_dump
#: Writes a tensor from inside a gradient: whoever needs it waits for what is returned.
dump_gradient = _dump_gradient_by_host if stands_in() else _gradient_dump


def write_now(path: str) -> None:
    """Write a mark behind everything that graphs have handed over.

    Called as an operator it takes the same way through the device as in a graph; as a Python
    function it would write at once.

    Raises:
        Exception: what the device met meanwhile.
    """
    if stands_in():
        FILES.write(path, "Int32", np.zeros(1, np.int32))
        return
    mindspore.runtime.synchronize()
    RUN_OP(ops.TensorDump(), "TensorDump", (path, Tensor(np.zeros(1, np.int32))))


OPEN, TENSOR, CLOSE, GRADIENT = "open", "tensor", "close", "gradient"
#: What the kind of a file begins with that holds the statistics of a tensor, not its elements; and
#: that of one that is of key data.
REDUCED, OF_KEY_DATA = "reduced_", "value_"
_TENSORS, _GRADIENTS = {TENSOR, REDUCED + TENSOR}, {GRADIENT, REDUCED + GRADIENT}
_OF_PHASES = frozenset({OPEN, CLOSE, *_TENSORS, *_GRADIENTS})


class GraphReading:
    """Hands each file to the phase that is open, or to the current probe as key data.

    It hands over what the host functions of probes.py would.
    """

    def __init__(self) -> None:
        self._receiver: Receiver | None = None
        # The calls of a cell that are open, and those whose tensors have had no gradient yet.
        self._running: dict[int, list[int]] = {}
        self._without: dict[int, list[int]] = {}

    @property
    def is_recording(self) -> bool:
        """Whether a phase is open."""
        return SITES.receiver is not None

    def wants(self, kind: str) -> bool:
        """Return whether files of a kind are read now; if not, they are removed."""
        if kind.startswith(OF_KEY_DATA):
            return CURRENT.probe is not None
        return kind == FENCE or (kind in _OF_PHASES and SITES.receiver is not None)

    def is_payload(self, kind: str) -> bool:
        """Return whether files of a kind hold what is recorded, and may be lost."""
        return kind.removeprefix(OF_KEY_DATA) in _TENSORS | _GRADIENTS

    def take(self, file: GraphFile, error: Exception | None = None) -> None:
        """Hand over what a file holds.

        Args:
            error: why that was lost, which is counted; what came before and after the file stays in
                its place.
        """
        self._hand_over(file, lost=error is not None)
        if error is not None:
            self.fault(error, file.kind)

    def fault(self, error: Exception, kind: str = "") -> None:
        """Count a file that cannot be read."""
        taker = SITES.values if kind.startswith(OF_KEY_DATA) else SITES.receiver
        if taker is not None:
            taker.fault(message("lost.graph_file"), error)

    def _hand_over(self, file: GraphFile, *, lost: bool) -> None:
        receiver, site = SITES.receiver, SITES[file.probe]
        if receiver is not self._receiver:
            self._receiver, self._without = receiver, {}
            self._running = {NO_CELL: self._running.get(NO_CELL, [])}
        taker = SITES.taker_of(site)
        if taker is None:
            return
        kind, running = file.kind.removeprefix(OF_KEY_DATA), self._running
        if kind == OPEN:
            running.setdefault(site.cell, []).append(taker.opened(site))
        elif kind == CLOSE:
            taker.closed(running[site.cell].pop(), site)
        elif kind in _TENSORS:
            call = running[site.cell][-1]
            self._without.setdefault(file.probe, []).append(call)
            if not lost:
                taker.tensor(call, site, _found(file, site))
        elif kind in _GRADIENTS:  # the last call of a cell has its gradient first
            call = 0 if site.cell == NO_CELL else self._without[file.probe].pop()
            if not lost:
                taker.gradient(call, site, _found(file, site))


def _found(file: GraphFile, site: Site) -> np.ndarray | Leaf:
    if file.kind.startswith(REDUCED):
        return leaf_of(site.outline, open_npy(file.path))
    if 0 in site.outline.shape:  # the file says only that it was there
        return nothing_of(site.outline)
    elements = open_npy(file.path)
    return as_recorded(elements.reshape(site.outline.shape), site.outline)


READING = GraphReading()
MARK = Tensor(np.zeros(1, np.int32))


class Border(nn.Cell):
    """Passes a tensor on as it is, and writes the gradient that comes back, or its statistics."""

    def construct(self, tensor, file, how, written):
        """Return the tensor."""
        return tensor

    def bprop(self, tensor, file, how, written, out, dout):
        """Return the gradient as it is; its file comes behind those that `written` waits for."""
        leaves = reduced(how, _depend(dout, written))
        return _depend(dout, dump_gradient(file, leaves)), file, how, written


BORDER = Border()


class _File(Question):
    """The file a probe writes, without what TensorDump appends to the name."""

    in_python = "nothing"  # not read

    def answer(
        self, kind: str, cell: int, part: str, path: tuple[Any, ...], value: Any, how: str = WHOLE
    ) -> str:
        """Return the path."""
        number = SITES.number(Site(cell, part, path, value))
        kind = kind if how in (WHOLE, EMPTY) else REDUCED + kind
        kind = OF_KEY_DATA + kind if cell == NO_CELL else kind
        return FOLDERS.file(f"{kind}.{number}", lambda: READING)


FILE = _File()


def opened(cell, path, given):
    """Open a call and return what stands for it."""
    dump(FILE(OPEN, cell, "", path, given), MARK)
    return MARK


def closed(cell, path, call, returned):
    """Close a call."""
    dump(FILE(CLOSE, cell, "", path, returned), call)


def handed_over(cell, part, path, tensor, call):
    """Hand a tensor over."""
    how = REDUCTION(cell, tensor)
    dump(FILE(TENSOR, cell, part, path, tensor, how), reduced(how, F.stop_gradient(tensor)))


def watched(cell, part, path, tensor, call):
    """Hand a tensor over, and later its gradient; return the tensor."""
    how = REDUCTION(cell, tensor)
    leaves = reduced(how, F.stop_gradient(tensor))
    written = _depend(MARK, dump(FILE(TENSOR, cell, part, path, tensor, how), leaves))
    return BORDER(tensor, FILE(GRADIENT, cell, part, path, tensor, how), how, written)


# What a call is given and what it returns.

_HEAD = ("from mindrlhf_msprobe.capture.graph.ascend import closed, handed_over, opened, watched",)


def entering(visit: Visit, returned: str, *, ends: bool = False) -> Lines:
    """Write the function that opens a call, hands over tensors of it and returns an expression.

    Args:
        ends: whether that closes the call, too.
    """
    opening = f"call = opened(constants[0], {visit.path!r}, {visit.source})"
    closing = [_closing(visit)] if ends else []
    lines = opening, *_handing_over(visit), *closing, f"return {returned}"
    return _HEAD, lines, (visit.cell,)


def leaving(visit: Visit, returned: str) -> Lines:
    """Write the function that hands over what a call returns and closes it; as `entering`."""
    return _HEAD, (*_handing_over(visit), _closing(visit), f"return {returned}"), (visit.cell,)


def _closing(visit: Visit) -> str:
    return f"closed(constants[0], {visit.path!r}, call, {visit.source})"


def _handing_over(visit: Visit) -> Iterator[str]:
    for found in visit.found:
        place = f"constants[0], {found.site.part!r}, {found.site.path!r}"
        if found.watched:
            yield f"{found.passed} = watched({place}, {found.source}, call)"
        else:
            yield f"handed_over({place}, {found.source}, call)"


def wait() -> None:
    """Return when everything that graphs have written so far has been read, or removed.

    Raises:
        TimeoutError: it does not come.
    """
    if FOLDERS.is_used:
        EXECUTOR.sync()
        FOLDERS.fence(write_now)


def read_written(taker: Taker | None = None) -> None:
    """Hand over what graphs wrote; where no phase is open, key data alone, the rest is forgotten.

    Args:
        taker: counts it, if that fails; None: what takes key data.
    """
    try:
        wait()
    except OSError as error:  # they do not come, or the folder cannot be listed
        (taker or SITES.values).fault(message("lost.graph_files"), error)


# Key data: the gradient that `save_grad` waits for.


def gradient_saved(name, tensor):
    """Return a tensor, whose gradient will be saved."""
    return BORDER(tensor, FILE(GRADIENT, NO_CELL, DATA, (name,), tensor), "whole", MARK)
