"""The nodes that hand over what passes in a graph on Ascend: files that the device writes.

Written from the documentation of `ops.TensorDump` and `ops.DumpGradient`; the reading of files is
tested on those that PyNative TensorDump makes, the nodes have not run on Ascend yet.

TensorDump appends the dtype and a number that counts up to the file's name, which puts the files
of one process in order. When a phase closes, `DumpFolder` reads them and hands them to the same
receiver that on CPU is called while the graph runs.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, ops
from mindspore.ops import functional as F

from mindrlhf_msprobe.capture.graph_keydata import DATA, NO_CELL, VALUES
from mindrlhf_msprobe.capture.graph_probes import SITES, Question, Receiver, Site, as_recorded

#: e.g. tensor.17_float32_203.npy, gradient.17_out_bfloat16_204.npy
_FILE = re.compile(
    r"(?P<kind>open|tensor|close|gradient|open_value|value|close_value|value_gradient)"
    r"\.(?P<site>\d+)"
    r"(?:_(?:in|out))?_(?P<dtype>[a-z0-9]+)_(?P<order>\d+)\.npy"
)


class DumpFolder:
    """The directory into which the device writes.

    Args:
        path: made where it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Save key data; remove what else was written, while no phase was open."""
        self.hand_over(None)

    def hand_over(self, receiver: Receiver | None) -> None:
        """Hand every file to a receiver, in the order in which they were written; remove them.

        Key data are saved. Without a receiver, the rest is forgotten.
        """
        files = [(m, path) for path in self.path.iterdir() if (m := _FILE.fullmatch(path.name))]
        # The calls of a cell that are open, and those whose tensors have had no gradient yet.
        running: dict[int, list[int]] = {}
        without: dict[int, list[int]] = {}
        values: list[int] = []  # that are saved, and not yet closed
        for match, path in sorted(files, key=lambda file: int(file[0]["order"])):
            kind, number = match["kind"], int(match["site"])
            try:
                if "value" in kind:
                    self._hand_over_value(kind, number, path, values)
                elif receiver is not None:
                    self._hand_over(receiver, kind, number, path, running, without)
            except Exception as error:
                if receiver is None:
                    VALUES.fault(error)
                else:
                    receiver.fault("a file that a graph wrote", error)
            path.unlink()

    def _hand_over_value(self, kind: str, number: int, path: Path, values: list[int]) -> None:
        site = SITES[number]
        if kind == "open_value":
            values.append(VALUES.opened())
        elif kind == "value":
            VALUES.tensor(values[-1], site, self._read(path, site))
        elif kind == "close_value":
            VALUES.closed(values.pop(), site)
        else:
            VALUES.gradient(site, self._read(path, site))

    def _hand_over(
        self,
        receiver: Receiver,
        kind: str,
        number: int,
        path: Path,
        running: dict[int, list[int]],
        without: dict[int, list[int]],
    ) -> None:
        site = SITES[number]
        if kind == "open":
            running.setdefault(site.cell, []).append(receiver.opened(site))
        elif kind == "close":
            receiver.closed(running[site.cell].pop(), site)
        elif kind == "tensor":
            call = running[site.cell][-1]
            without.setdefault(number, []).append(call)
            receiver.tensor(call, site, self._read(path, site))
        else:  # the last call of a cell has its gradient first
            receiver.gradient(without[number].pop(), site, self._read(path, site))

    @staticmethod
    def _read(path: Path, site: Site) -> np.ndarray:
        elements = np.load(path, allow_pickle=False)
        return as_recorded(elements.reshape(site.outline.shape), site.outline)


def _own_folder() -> DumpFolder:
    path = Path(tempfile.mkdtemp(prefix="mindrlhf_msprobe_dump_"))
    process = os.getpid()

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return DumpFolder(path)


FOLDER = _own_folder()


class _File(Question):
    """The file a probe writes, without what TensorDump appends to the name."""

    def answer(self, kind: str, cell: int, part: str, path: tuple[Any, ...], value: Any) -> str:
        """Return the path."""
        number = SITES.number(Site(cell, part, path, value))
        return str(FOLDER.path / f"{kind}.{number}")

    def __call__(self, *arguments: Any) -> str:
        """Return what is not read."""
        return str(FOLDER.path / "nothing")


FILE = _File()
MARK = Tensor(np.zeros(1, np.int32))
_dump = ops.TensorDump()
_dump_gradient = getattr(ops, "DumpGradient", ops.TensorDump)()


def opened(cell, args, kwargs):
    """Open a call and return what stands for it."""
    _dump(FILE("open", cell, "", (), (args, kwargs)), MARK)
    return MARK


def closed(cell, call, output):
    """Close a call."""
    _dump(FILE("close", cell, "", (), output), call)
    return call


def handed_over(cell, part, path, tensor, call):
    """Hand a tensor over and return the call."""
    _dump(FILE("tensor", cell, part, path, tensor), F.stop_gradient(tensor))
    return call


def watched(cell, part, path, tensor, call):
    """Hand a tensor over, and later its gradient; return the tensor."""
    _dump(FILE("tensor", cell, part, path, tensor), F.stop_gradient(tensor))
    return _dump_gradient(FILE("gradient", cell, part, path, tensor), tensor, "out")


def before_phase() -> None:
    """Save the key data that graphs wrote while no phase was open, and forget the rest."""
    mindspore.runtime.synchronize()
    FOLDER.clear()


VALUES.flush = before_phase


def after_phase(receiver: Receiver) -> None:
    """Hand over what graphs wrote."""
    mindspore.runtime.synchronize()
    FOLDER.hand_over(receiver)


# Key data: a value that `save` is given, and the gradient that `save_grad` waits for.


def value_opened(name, data):
    """Open a value that is saved and return what stands for it."""
    _dump(FILE("open_value", NO_CELL, DATA, (name,), data), MARK)
    return MARK


def value_tensor(path, tensor, value):
    """Hand over a tensor of a value that is saved."""
    _dump(FILE("value", NO_CELL, DATA, path, tensor), F.stop_gradient(tensor))


def value_closed(name, data, value):
    """Close a value that is saved."""
    _dump(FILE("close_value", NO_CELL, DATA, (name,), data), value)


def gradient_saved(name, tensor):
    """Return a tensor, whose gradient will be saved."""
    return _dump_gradient(FILE("value_gradient", NO_CELL, DATA, (name,), tensor), tensor, "out")
