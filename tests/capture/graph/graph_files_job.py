"""Trainings in GRAPH_MODE; as a script, on the path for Ascend, stood in for on CPU.

Prints what was seen as JSON, and then kills itself inside a phase.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import mindspore as ms
import numpy as np
from helpers.programs import wait_for
from helpers.small_networks import Policy, Scale, tensor
from mindspore import Tensor, nn

from mindrlhf_msprobe import Probe, UsageError, save, save_grad

ON = {"msprobe": True, "actor_train_dump": True, "actor_infer_dump": True, "key_data_dump": True}
FOLDER = ".msprobe_graph.rank0"


def train(
    path: Path, steps: int, network: nn.Cell, x: Tensor, **settings: Any
) -> tuple[Probe, Any, list[str]]:
    """Train and return the probe, which is open, what trains on, and the bits of the weights."""
    optimizer = nn.SGD(network.trainable_params(), 0.001)
    probe = Probe.from_config({**ON, "step_end": 1, "dump_path": str(path), **settings})
    probe.watch(actor=network, optimizers={"actor": optimizer})

    def loss(x: Tensor) -> Tensor:
        y = save_grad("", "y", network(x))
        save("", "y", [y, y.sum()])
        return (y**2).mean()

    grad = ms.value_and_grad(loss, None, optimizer.parameters)
    for _ in range(steps):
        if probe.config.actor_infer_dump:
            with probe.phase("actor_generate_sequences"):
                network(x)
        with probe.phase("actor_update"):
            _, gradients = grad(x)
            optimizer(gradients)
        probe.step()
    weights = [p.asnumpy().tobytes().hex() for p in network.get_parameters()]
    return probe, lambda: grad(x), weights


def same(path: Path, **settings: Any) -> list[str]:
    """Record a network with several cells and return its weights."""
    probe, _, weights = train(path, 2, Policy(), tensor(4, 3), **settings)
    probe.close()
    return weights


def jitted(path: Path) -> None:
    """Record in PyNative mode a network of which one cell is compiled."""
    network, x = Policy(), tensor(4, 3)
    network.backbone.construct = ms.jit(network.backbone.construct)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    with Probe.from_config({**ON, "dump_path": str(path)}) as probe:
        probe.watch(actor=network)
        with probe.phase("actor_generate_sequences"):
            network(x)
            network(x)
        probe.step()
    ms.set_context(mode=ms.GRAPH_MODE)


class Kinds(nn.Cell):
    """Takes tensors of every kind, and returns some of them."""

    def construct(self, x: Tensor, half: Tensor, brain: Tensor, *others: Tensor) -> Any:
        return -x, -half, brain.astype(ms.float32), -others[0], others[1:]


def of_every_kind() -> list[Tensor]:
    """Return tensors that `Kinds` takes."""
    x = np.random.default_rng(7).standard_normal((37, 53)).astype(np.float32)
    broken, endless, nothing = x.copy(), x.copy(), np.zeros((2, 3), np.float32)
    broken[3, 4], broken[5, 6], endless[1, 2] = np.nan, np.inf, -np.inf
    exact = np.array([-(1 << 63), (1 << 63) - 1, 1 << 60, (1 << 53) + 1])
    floats = [x, x * 1e37, broken, endless, nothing, np.float32(3.5), np.zeros((0, 4), np.float32)]
    return [
        *(Tensor(x), Tensor(x, ms.float16), Tensor(x, ms.bfloat16), Tensor(x.astype(np.float64))),
        *(Tensor(array) for array in floats),
        *(Tensor((x * 40).astype(dtype)) for dtype in (np.int8, np.int16, np.int32, np.uint8)),
        *(Tensor(exact), Tensor(exact.astype(np.uint64)), Tensor(x > 0), Tensor(x > 99)),
    ]


def kinds(path: Path) -> int:
    """Record tensors of every kind and their gradients; return the size of the largest file."""
    from mindrlhf_msprobe.capture.graph.ascend import GraphReading

    sizes, take = [0], GraphReading.take

    def noting(self: Any, file: Any, *lost: Exception | None) -> None:
        sizes.append(file.size)
        take(self, file, *lost)

    GraphReading.take = noting  # type: ignore[method-assign]
    network, tensors = Kinds(), of_every_kind()
    probe = Probe.from_config({**ON, "dump_path": str(path), "key_data_dump": False})
    probe.watch(actor=network)

    def loss(x: Tensor, half: Tensor, brain: Tensor, wide: Tensor) -> Tensor:
        found = network(x, half, brain, wide, *tensors[4:])
        return sum([(each.astype(ms.float32) ** 2).sum() for each in found[:4]])

    with probe.phase("actor_update"):
        ms.value_and_grad(loss, (0, 1, 2, 3))(*tensors[:4])
    probe.step()
    probe.close()
    GraphReading.take = take  # type: ignore[method-assign]
    return max(sizes)


class Watch:
    """Looks at the folder of a run all the time."""

    def __init__(self, path: Path) -> None:
        self._folder = path / FOLDER
        self.most = 0  # bytes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(0.002):
            self.most = max(self.most, size_of(self._folder))

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()


def size_of(folder: Path) -> int:
    """Return the bytes in a folder."""
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def left(path: Path) -> bool:
    """Tell whether anything stays of what graphs wrote, after a moment."""
    return not wait_for(lambda: not (path / FOLDER).exists(), seconds=5)


def long(path: Path) -> dict[str, Any]:
    """Train 500 steps of which 2 are recorded, and on without a probe."""
    watch = Watch(path)
    x = Tensor(np.ones((64, 64), np.float32))
    probe, on, _ = train(path, 500, Scale(), x, actor_infer_dump=False)
    probe.close()
    for _ in range(5):
        on()
    stays = left(path)
    watch.end()
    return {"most": watch.most, "left": stays}


def full(path: Path) -> dict[str, Any]:
    """Record more than may wait to be read, because for a while nothing is read."""
    from mindrlhf_msprobe.capture.graph.ascend import GraphReading

    may_read, take = threading.Event(), GraphReading.take

    def later(self: Any, file: Any, *lost: Exception | None) -> None:
        if file.kind == "tensor":
            may_read.wait(5)
        take(self, file, *lost)

    x = Tensor(np.ones((256, 128), np.float32))  # 128 KiB
    _, _, plain = train(path.with_name("off"), 8, Policy(), x, msprobe=False)
    GraphReading.take = later  # type: ignore[method-assign]
    threading.Timer(1, may_read.set).start()
    watch = Watch(path)
    probe, _, weights = train(
        *(path, 8, Policy(), x), task="tensor", step_end=7, buffer_mb=1, key_data_dump=False
    )
    probe.close()
    watch.end()
    GraphReading.take = take  # type: ignore[method-assign]
    return {"most": watch.most, "equal": weights == plain}


def twice(first: Path, second: Path) -> str:
    """Record one network in two runs; return what a third one is told that wants its elements."""
    network, x = Policy(), tensor(4, 3)
    for path in (first, second):
        probe = Probe.from_config({**ON, "step_end": 1, "dump_path": str(path)})
        probe.watch(actor=network)
        with probe.phase("actor_generate_sequences"):
            network(x)
        probe.step()
        probe.close()
    path = first.with_name("third")
    with Probe.from_config({**ON, "dump_path": str(path), "task": "tensor"}) as probe:
        try:
            probe.watch(actor=network)
        except UsageError as error:
            return str(error)
    return ""


def main(path: Path) -> None:
    """Run all of them."""
    seen: dict[str, Any] = {"same": same(path / "same", task="tensor")}
    seen["reduced"] = same(path / "reduced")
    seen["kinds"] = kinds(path / "kinds")
    seen["long"] = long(path / "long")
    seen["full"] = full(path / "full")
    jitted(path / "jitted")
    seen["third"] = twice(path / "first", path / "second")
    seen["twice"] = left(path / "first") or left(path / "second")
    network = Policy()
    probe = Probe.from_config({**ON, "dump_path": str(path / "killed")})
    probe.watch(actor=network)
    with probe.phase("actor_generate_sequences"):
        # Nothing reads any more; and the job is killed when files are there.
        from mindrlhf_msprobe.capture.graph.folder import FOLDERS

        FOLDERS._drain._look = lambda: None  # type: ignore[union-attr]
        network(tensor(4, 3))
        wait_for(lambda: size_of(path / "killed" / FOLDER))
        sys.stdout.write(json.dumps(seen) + "\n")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    ms.set_context(mode=ms.GRAPH_MODE)
    main(Path(sys.argv[1]))
