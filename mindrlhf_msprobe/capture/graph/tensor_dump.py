"""How a graph writes a file: `ops.TensorDump` on Ascend, and what stands in for it on a CPU.

TensorDump is used by its documentation and source, and by how msprobe uses it; not yet run on
Ascend. As there, what stands in for it hands a tensor to a queue of limited length and goes on, and
a thread of the host writes the files one after the other: the directory is made where it is
missing, the name gets the dtype and a number, bfloat16 is written as float32, and a whole file is
not writable any more.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import os
import queue
import stat
import threading

import mindspore
import numpy as np
from mindspore import Tensor, ops

from mindrlhf_msprobe.capture.framework.private import RUN_OP
from mindrlhf_msprobe.capture.graph.probes import (
    Question,
    array_of,
    as_array,
    as_recorded,
    host_function,
    number_in,
    stands_in,
)
from mindrlhf_msprobe.capture.tensors.tree import TensorOutline

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
