"""The files that a graph writes on Ascend, here written by TensorDump in PyNative mode."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from mindspore import Tensor, ops  # noqa: E402

from mindrlhf_msprobe.capture.graph_ascend import DumpFolder  # noqa: E402
from mindrlhf_msprobe.capture.graph_outline import TensorOutline  # noqa: E402
from mindrlhf_msprobe.capture.graph_probes import SITES, Site  # noqa: E402


class Receiver:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.calls = 0

    def opened(self, site: Site) -> int:
        self.calls += 1
        self.events.append(("opened", self.calls, site.cell))
        return self.calls

    def tensor(self, call: int, site: Site, array: np.ndarray) -> None:
        self.events.append(
            ("tensor", call, site.path, array.dtype.name, array.astype(np.float64).tolist())
        )

    def closed(self, call: int, site: Site) -> None:
        self.events.append(("closed", call))

    def gradient(self, call: int, site: Site, array: np.ndarray) -> None:
        self.events.append(("gradient", call, site.path, array.tolist()))

    def fault(self, what: str, error: BaseException) -> None:
        self.events.append(("fault", what, type(error).__name__))


@pytest.fixture
def folder(tmp_path: Path) -> DumpFolder:
    return DumpFolder(tmp_path / "dump")


def write(folder: DumpFolder, *dumps: tuple[str, int, Tensor]) -> None:
    """Write files as a graph would, and wait for them."""
    before = len(list(folder.path.iterdir()))
    for kind, site, value in dumps:
        ops.TensorDump()(str(folder.path / f"{kind}.{site}"), value)
    for _ in range(200):
        if len(list(folder.path.iterdir())) == before + len(dumps):
            return
        time.sleep(0.01)
    raise AssertionError("TensorDump wrote fewer files than asked")


MARK = Tensor(np.zeros(1, np.int32))


def sites(dtype: str) -> tuple[int, int, int]:
    """Return the numbers of a cell's call, its input and its end."""
    tensor = TensorOutline(dtype, (2,))
    return (
        SITES.number(Site(-1, "", (), (tensor,))),
        SITES.number(Site(-1, "input_args", (0,), tensor)),
        SITES.number(Site(-1, "", (), tensor)),
    )


def test_calls_tensors_and_gradients_meet(folder: DumpFolder) -> None:
    """Files come in the order of their numbers; the last call of a cell has its gradient first."""
    call, value, end = sites("Float32")
    write(
        folder,
        *(
            dump
            for n in range(2)
            for dump in (
                ("open", call, MARK),
                ("tensor", value, Tensor([n, 1], ms.float32)),
                ("close", end, MARK),
            )
        ),
        ("gradient", value, Tensor([11, 1], ms.float32)),
        ("gradient", value, Tensor([10, 1], ms.float32)),
    )
    receiver = Receiver()
    folder.hand_over(receiver)
    assert receiver.events == [
        ("opened", 1, -1),
        ("tensor", 1, (0,), "float32", [0, 1]),
        ("closed", 1),
        ("opened", 2, -1),
        ("tensor", 2, (0,), "float32", [1, 1]),
        ("closed", 2),
        ("gradient", 2, (0,), [11, 1]),
        ("gradient", 1, (0,), [10, 1]),
    ]
    assert not list(folder.path.iterdir())


@pytest.mark.parametrize("dtype", ["BFloat16", "Float16", "Bool", "Int32", "Int64", "UInt8"])
def test_dtypes_come_back(folder: DumpFolder, dtype: str) -> None:
    """bfloat16, which the file holds as float32, comes back as bfloat16; others as they are."""
    call, value, _ = sites(dtype)
    mindspore_dtype = getattr(ms, {"Bool": "bool_"}.get(dtype, dtype.lower()))
    write(folder, ("open", call, MARK), ("tensor", value, Tensor([1, 0], mindspore_dtype)))
    receiver = Receiver()
    folder.hand_over(receiver)
    assert receiver.events[1][3:] == (dtype.lower(), [1, 0])


def test_what_cannot_be_read_is_a_fault(folder: DumpFolder) -> None:
    """A file of another shape, of no open call, or of another tool never stops the others."""
    call, value, end = sites("Float32")
    write(
        folder,
        ("tensor", value, Tensor([1, 2], ms.float32)),
        ("open", call, MARK),
        ("tensor", value, Tensor([1, 2, 3], ms.float32)),
        ("close", end, MARK),
    )
    (folder.path / "somebody_else.npy").write_bytes(b"")
    receiver = Receiver()
    folder.hand_over(receiver)
    assert [event[0] for event in receiver.events] == ["fault", "opened", "fault", "closed"]


def test_what_was_written_between_phases_is_forgotten(folder: DumpFolder) -> None:
    """A phase reads only what was written while it was open."""
    call, _, _ = sites("Float32")
    write(folder, ("open", call, MARK))
    folder.clear()
    receiver = Receiver()
    folder.hand_over(receiver)
    assert receiver.events == []
