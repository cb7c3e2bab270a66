"""One small training, its operators recorded by msprobe: run by the interpreter that has it.

Called with one JSON object: `dump_path`, `level` (L1 or mix), `task` (statistics or tensor) and
`variant`: plain, rounded (mint.matmul returns results of float16's precision) or more (one layer
calls one mint.add more). With `small` the files are made small, as those are that stand in
tests/helpers/data/msprobe/operators_*.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops

_PACKAGES = "site-packages/"


class Attention(nn.Cell):
    """Calls operators of each kind."""

    def __init__(self, more: bool) -> None:
        super().__init__()
        self.q = nn.Dense(4, 4)
        self.relu = ops.ReLU()
        self.more = more

    def construct(self, x: Tensor) -> Tensor:
        q = self.q(x)
        if self.more:
            q = mint.add(q, 0.0)
        scores = mint.matmul(q, x.transpose(0, 2, 1))
        shares = ops.softmax(scores * 0.5, -1)
        mixed = mint.add(mint.matmul(shares, x), x)
        return self.relu(mint.nn.functional.silu(mixed))


class Network(nn.Cell):
    """An embedding, two layers of which the first runs twice, a head."""

    def __init__(self, more: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.layers = nn.CellList([Attention(False), Attention(more)])
        self.head = nn.Dense(4, 7)

    def construct(self, ids: Tensor) -> Tensor:
        h = self.embedding(ids)
        for layer in (*self.layers, self.layers[0]):
            h = h + layer(h)
        return self.head(h)


def rounded(matmul: Any) -> Any:
    """Return a kernel whose results have the precision of float16."""

    def wrong(input: Tensor, mat2: Tensor) -> Tensor:  # msprobe binds names of arguments
        return matmul(input, mat2).astype(ms.float16).astype(ms.float32)

    return wrong


def record(options: dict[str, Any]) -> None:
    ms.set_device("CPU")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    mint.norm = ops.norm  # which CPU has not
    if options["variant"] == "rounded":
        mint.matmul = rounded(mint.matmul)
    from msprobe.mindspore import PrecisionDebugger

    with contextlib.suppress(ImportError):  # of 8.x: fails on a dump without graphs
        from msprobe.mindspore.dump.graph_mode_cell_dump import GraphModeCellDump

        GraphModeCellDump.step = staticmethod(lambda *args: None)
    network = Network(options["variant"] == "more")
    random = np.random.default_rng(7)
    for parameter in network.get_parameters():
        parameter.set_data(Tensor(random.normal(size=parameter.shape).astype(np.float32)))
    ids = Tensor(np.array([[1, 2, 3], [4, 5, 0]], np.int32))
    labels = Tensor(np.array([0, 3, 2, 1, 6, 5], np.int32))

    def loss_of(ids: Tensor) -> Tensor:
        logits = network(ids).reshape(6, 7)
        log_probs = ops.log_softmax(logits, -1)
        taken = mint.gather(log_probs, -1, labels.reshape(6, 1).astype(ms.int64))
        return -mint.mean(taken)

    gradients_of = ms.value_and_grad(loss_of, None, network.trainable_params())
    task = options["task"]
    config = {
        "task": task,
        "dump_path": options["dump_path"],
        "rank": [],
        "step": [],
        "level": options["level"],
        task: {"scope": [], "list": [], "data_mode": ["all"]},
    }
    if options.get("md5"):
        config[task]["summary_mode"] = "md5"
    path = options["dump_path"] + ".json"
    with open(path, "w") as file:
        json.dump(config, file)
    debugger = PrecisionDebugger(config_path=path)
    debugger.start(network)
    gradients_of(ids)
    debugger.stop()
    debugger.step()
    if options.get("small"):
        make_small(Path(options["dump_path"]))


def make_small(dump: Path) -> None:
    """Write a dump's JSON without spaces, and its stacks with short paths and few frames."""
    for path in dump.glob("step*/*/*.json"):
        content = json.loads(path.read_text())
        if path.name == "stack.json":
            content = {
                number: [names, shortened(stack)] for number, (names, stack) in content.items()
            }
        path.write_text(json.dumps(content, separators=(",", ":")))


def shortened(stack: list[str]) -> list[str]:
    """Return a stack up to the second frame of this file, with short paths."""
    found = []
    for frame in stack:
        own = Path(__file__).name in frame
        path, comma, rest = frame.removeprefix("File ").partition(", line ")
        name = Path(path).name if own else _PACKAGES + path.rpartition(_PACKAGES)[2]
        found.append(f"File {name}{comma}{rest}")
        if sum(Path(__file__).name in one for one in found) == 2:
            break
    return found


if __name__ == "__main__":
    record(json.loads(sys.argv[1]))
