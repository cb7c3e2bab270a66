"""The files that graphs write on Ascend, here written by TensorDump in PyNative mode."""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from mindspore import Tensor, ops

from mindrlhf_msprobe.capture.graph import folder as graph_drain
from mindrlhf_msprobe.capture.graph.ascend import GraphReading
from mindrlhf_msprobe.capture.graph.folder import FENCE, Drain
from mindrlhf_msprobe.capture.graph.probes import SITES, Site
from mindrlhf_msprobe.capture.tensors.tree import TensorOutline
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage.writing.graph_files import files_in, remove_folder


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

    def fault(self, what: Message, error: BaseException) -> None:
        self.events.append(("fault", what, type(error).__name__))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder into which graphs write."""
    path = tmp_path / "files"
    path.mkdir()
    return path


def write(folder: Path, *dumps: tuple[str, int, Tensor]) -> None:
    """Write files as a graph would."""
    for kind, site, value in dumps:
        ops.TensorDump()(str(folder / f"{kind}.{site}"), value)


def fence(folder: Path) -> Callable[[int], None]:
    """Return what writes the file by which a drain knows that it has read all."""
    return lambda number: write(folder, (FENCE, number, MARK))


@pytest.fixture
def drain(folder: Path) -> Iterator[Callable[..., Drain]]:
    """Return a function that starts to empty the folder."""
    started = []

    def start(reader: Any, most_bytes: int = 1 << 30, **settings: Any) -> Drain:
        drain = Drain(lambda: [folder], lambda: most_bytes, reader, **settings)
        drain.start()
        started.append(drain)
        return drain

    yield start
    for drain in started:
        drain.stop()
    SITES.receiver = None


@pytest.fixture
def read(folder: Path, drain: Callable[..., Drain]) -> Callable[[], list[tuple[Any, ...]]]:
    """Return a function that lets a receiver have what was written; returns its events."""

    def hand_over() -> list[tuple[Any, ...]]:
        SITES.receiver = receiver = Receiver()
        drain(GraphReading()).fence(fence(folder))
        SITES.receiver = None
        return receiver.events

    return hand_over


MARK = Tensor(np.zeros(1, np.int32))


def sites(dtype: str) -> tuple[int, int, int]:
    """Return the numbers of a cell's call, its input and its end."""
    tensor = TensorOutline(dtype, (2,))
    return (
        SITES.number(Site(-2, "", (), (tensor,))),
        SITES.number(Site(-2, "input_args", (0,), tensor)),
        SITES.number(Site(-2, "", (), tensor)),
    )


def a_call(number: int, call: int, value: int, end: int) -> list[tuple[str, int, Tensor]]:
    """Return what a graph writes of one call."""
    tensor = Tensor([number, 1], ms.float32)
    return [("open", call, MARK), ("tensor", value, tensor), ("close", end, MARK)]


def cut_short(folder: Path) -> tuple[Path, bytes]:
    """Cut the one tensor there short; return its file and what it held."""
    (path,) = folder.glob("tensor.*")
    content = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(content[:-4])
    return path, content


def test_calls_tensors_and_gradients_meet(folder, read):
    """Files come in the order of their numbers; the last call of a cell has its gradient first."""
    call, value, end = sites("Float32")
    for number in range(2):
        write(folder, *a_call(number, call, value, end))
    for number in (11, 10):
        write(folder, ("gradient", value, Tensor([number, 1], ms.float32)))
    assert read() == [
        ("opened", 1, -2),
        ("tensor", 1, (0,), "float32", [0, 1]),
        ("closed", 1),
        ("opened", 2, -2),
        ("tensor", 2, (0,), "float32", [1, 1]),
        ("closed", 2),
        ("gradient", 2, (0,), [11, 1]),
        ("gradient", 1, (0,), [10, 1]),
    ]
    assert not list(folder.iterdir())


@pytest.mark.parametrize("dtype", ["BFloat16", "Float16", "Bool", "Int32", "Int64", "UInt8"])
def test_dtypes_come_back(folder, read, dtype):
    """bfloat16, which the file holds as float32, comes back as bfloat16; others as they are."""
    call, value, _ = sites(dtype)
    mindspore_dtype = getattr(ms, {"Bool": "bool_"}.get(dtype, dtype.lower()))
    write(folder, ("open", call, MARK), ("tensor", value, Tensor([1, 0], mindspore_dtype)))
    assert read()[1][3:] == (dtype.lower(), [1, 0])


def test_what_cannot_be_read_is_a_fault(folder, read):
    """A file of another shape, of no open call, or of another tool never stops the others."""
    call, value, end = sites("Float32")
    write(
        folder,
        ("tensor", value, Tensor([1, 2], ms.float32)),
        ("open", call, MARK),
        ("tensor", value, Tensor([1, 2, 3], ms.float32)),
        ("close", end, MARK),
    )
    (folder / "somebody_else.npy").write_bytes(b"")
    assert [event[0] for event in read()] == ["fault", "opened", "fault", "closed"]
    assert [path.name for path in folder.iterdir()] == ["somebody_else.npy"]


def test_what_is_written_between_phases_is_removed(folder, drain):
    """A phase gets what was written while it was open, and nothing else stays."""
    call, _, _ = sites("Float32")
    write(folder, ("open", call, MARK))
    draining = drain(GraphReading())
    draining.fence(fence(folder))
    assert not list(folder.iterdir())
    SITES.receiver = receiver = Receiver()
    draining.fence(fence(folder))
    assert receiver.events == []


def test_a_file_that_is_still_written_is_waited_for(folder, drain):
    """What comes behind it is not read before it; nothing of it is lost."""
    call, value, _ = sites("Float32")
    SITES.receiver = receiver = Receiver()
    write(folder, ("open", call, MARK), ("tensor", value, Tensor([1, 2], ms.float32)))
    path, content = cut_short(folder)
    write(folder, ("tensor", value, Tensor([3, 4], ms.float32)))
    finish = threading.Timer(0.2, lambda: path.write_bytes(content))
    finish.start()
    drain(GraphReading()).fence(fence(folder))
    assert [event[-1] for event in receiver.events[1:]] == [[1, 2], [3, 4]]


def test_a_file_that_stays_cut_short_is_counted(folder, read, monkeypatch):
    """The disk was full: the tensor is lost, and its gradient still finds its call."""
    monkeypatch.setattr(graph_drain, "_SETTLED", 0.05)
    call, value, _ = sites("Float32")
    write(folder, ("open", call, MARK), ("tensor", value, Tensor([1, 2], ms.float32)))
    cut_short(folder)
    write(folder, ("gradient", value, Tensor([5, 6], ms.float32)))
    events = read()
    assert events[1:] == [
        ("fault", message("lost.graph_file"), "CutShortError"),
        ("gradient", 1, (0,), [5, 6]),
    ]
    assert not list(folder.iterdir())


class Slow(Receiver):
    """Takes nothing more until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()

    def tensor(self, call: int, site: Site, array: np.ndarray) -> None:
        self.may.wait(30)
        super().tensor(call, site, array)


def test_no_more_waits_than_may(folder, drain):
    """Above the bound tensors are removed unread, each is counted, and calls stay whole."""
    call, value, end = sites("Float32")
    SITES.receiver = receiver = Slow()
    size = 200  # bytes of a file, which has a header of 128
    draining = drain(GraphReading(), most_bytes=3 * size)
    most = []
    for number in range(20):
        write(folder, *a_call(number, call, value, end))
        draining.look()
        payload = [file.size for file in files_in(folder) if file.kind == "tensor"]
        most.append(sum(payload))
    assert 0 < max(most) <= 3 * size
    receiver.may.set()
    draining.fence(fence(folder))
    kinds = [event[0] for event in receiver.events]
    assert kinds.count("opened") == kinds.count("closed") == 20
    assert kinds.count("tensor") + kinds.count("fault") == 20
    assert kinds.count("tensor") == len([event for event in most if event]) - kinds.count("fault")
    assert {event[2] for event in receiver.events if event[0] == "fault"} == {"FolderFullError"}
    assert not list(folder.iterdir())


def test_files_that_do_not_come_are_not_waited_for_for_ever(folder, drain):
    """A device that writes nothing more costs a minute, and a second at each later phase."""
    now = itertools.count(step=0.5)
    draining = drain(GraphReading(), clock=lambda: next(now))
    for waited in ("60 s", "1 s", "1 s"):
        with pytest.raises(TimeoutError, match=f"have written nothing for {waited}"):
            draining.fence(lambda number: None)
    draining.fence(fence(folder))  # it writes again


def test_only_files_of_graphs_are_removed(folder, tmp_path):
    """A folder with something else in it stays, and so does what a link leads to."""
    call, _, _ = sites("Float32")
    write(folder, ("open", call, MARK))
    own = folder / "own.npy"
    own.write_bytes(b"")
    link = tmp_path / "link"
    link.symlink_to(folder)
    remove_folder(link)
    assert len(list(folder.iterdir())) == 2
    remove_folder(folder)
    assert list(folder.iterdir()) == [own]
    own.unlink()
    remove_folder(folder)
    assert not folder.exists()
