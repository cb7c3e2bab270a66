"""One small training, recorded by this package or by msprobe: run by the interpreter that has it.

Called with one JSON object: `tool` (ours or msprobe), `dump_path`, `task` (statistics, md5 or
tensor), `level` (L0, L1 or mix), `fault` (whether one element of a weight is 0.05 larger) and
`network` (plain, or odd: everything that cells hand over; only ours records it).
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections import namedtuple
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

STEPS = 2
Pair = namedtuple("Pair", ["left", "right"])


class Attention(nn.Cell):
    """Takes keyword arguments, returns a tensor and a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Dense(4, 4)
        self.bias = Parameter(Tensor(np.ones(4, np.float32)), name="bias")

    def construct(self, x, mask=None, flag=True, scale=0.5):
        y = (self.q(x) + self.bias) * mask
        return y, (y * scale, None, 3)


class Plain(nn.Cell):
    """An embedding, two layers of which the first is called twice, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.layers = nn.CellList([Attention(), Attention()])
        self.head = nn.Dense(4, 7)

    def construct(self, ids, mask):
        h = self.embedding(ids)
        for layer in (*self.layers, self.layers[0]):
            h = h + layer(h, mask=mask)[0]
        return self.head(h).astype(ms.float32), h.mean()


class Anything(nn.Cell):
    """Returns what has to survive: dtypes, infinities, NaN, empty tensors, names, texts."""

    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.fault = fault

    def construct(self, x, *args, text="-Infinity", number=float("-inf"), **named):
        low = ops.full((2, 2), float("-inf"), dtype=ms.float32)
        shape = (2, 3) if self.fault else (2, 2)
        return (
            Pair(x.astype(ms.bfloat16), x > 1),
            [ops.zeros((0, 3), ms.float32), ops.zeros(shape, ms.float32), x * float("nan"), low],
            {"a key/with": x, "": x, "type": x, "梯度": x / 0 if self.fault else x},
            (x.astype(ms.float64), x.astype(ms.int64) * 2**60, x.astype(ms.uint8), x.sum()),
            ("=1+1", "NaN", "@x", None, 2**70, slice(1, 2), len, low[0, 0]),
        )


class Named(nn.Cell):
    """Its parameters are called like fields of the journal."""

    def __init__(self) -> None:
        super().__init__()
        self.token = Parameter(Tensor(np.ones(3, np.float32)), name="token")
        self.end = Parameter(Tensor(np.ones(3, np.float16)), name="end", requires_grad=False)

    def construct(self, x):
        return x * self.token


class Raising(nn.Cell):
    """Never returns."""

    def construct(self, x):
        raise ValueError("no")


class Odd(nn.Cell):
    """Hands its cells everything that real networks do."""

    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.anything, self.named, self.raising = Anything(fault), Named(), Raising()
        self.block = nn.SequentialCell(nn.Dense(3, 3), nn.ReLU())

    def construct(self, x, mask):
        self.anything(x, None, [1, {"k": x}], named=(x, {"z": None}), none=[], nothing={})
        with contextlib.suppress(ValueError):
            self.raising(x)
        y = self.block(self.named(x))
        return y, y.mean()


def network_of(options: dict) -> tuple[nn.Cell, Tensor, Any]:
    """Return the network and its arguments; the weights are the same in every process."""
    odd = options.get("network") == "odd"
    network = Odd(options["fault"]) if odd else Plain()
    random = np.random.default_rng(7)
    for parameter in network.get_parameters():
        value = random.normal(size=parameter.shape)
        parameter.set_data(Tensor(value.astype(ms.dtype_to_nptype(parameter.dtype))))
    weight = network.block[0].weight if odd else network.layers[1].q.weight
    if options["fault"]:
        changed = weight.asnumpy().copy()
        changed[0, 0] += 0.05
        weight.set_data(Tensor(changed))
    if odd:
        return network, Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)), None
    ids = Tensor(np.array([[1, 2, 3], [4, 5, 0]], np.int32))
    return network, ids, Tensor(np.ones((2, 3, 1), np.float32))


def ours(options: dict, network: nn.Cell):
    """Return what begins and ends a step of this package's recording."""
    from mindrlhf_msprobe import Probe

    probe = Probe.from_config(
        {
            "msprobe": True,
            "dump_path": options["dump_path"],
            "task": "statistics" if options["task"] == "md5" else options["task"],
            "md5": options["task"] == "md5",
            "level": options.get("level", "L0"),
            "actor_train_dump": True,
            "key_data_dump": True,
            "step_end": STEPS,
        }
    )
    probe.watch(actor=network)
    phase = None

    def begin() -> None:
        nonlocal phase
        phase = probe.phase("actor_update")
        phase.__enter__()

    def end(loss: Tensor) -> None:
        phase.__exit__(None, None, None)
        probe.save_data(loss=loss, lists=[loss, Tensor(np.arange(3))], prompts=["ab", "答"])
        probe.step()

    return begin, end, probe.close


def msprobe(options: dict, network: nn.Cell):
    """Return what begins and ends a step of msprobe's recording."""
    mint.norm = ops.norm  # which CPU has not
    from msprobe.core import SingleSave
    from msprobe.mindspore import PrecisionDebugger

    try:  # of 8.x: fails on a dump without graphs
        from msprobe.mindspore.dump.graph_mode_cell_dump import GraphModeCellDump

        GraphModeCellDump.step = staticmethod(lambda *args: None)
    except ImportError:
        pass
    md5 = options["task"] == "md5"
    task = "statistics" if md5 else options["task"]
    config = {
        "task": task,
        "dump_path": options["dump_path"],
        "rank": [],
        "step": [],
        "level": options.get("level", "L0"),
        task: {"scope": [], "list": [], "data_mode": ["all"]},
    }
    if md5:
        config[task]["summary_mode"] = "md5"
    path = options["dump_path"] + ".json"
    with open(path, "w") as file:
        json.dump(config, file)
    debugger = PrecisionDebugger(config_path=path)
    SingleSave(options["dump_path"], fmk="mindspore")

    def end(loss: Tensor) -> None:
        debugger.stop()
        debugger.step()
        SingleSave.save({"loss": loss, "lists": [loss, Tensor(np.arange(3))]})
        SingleSave.step()

    return lambda: debugger.start(network), end, lambda: None


def train(options: dict) -> None:
    ms.set_device("CPU")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    network, inputs, mask = network_of(options)
    begin, end, close = {"ours": ours, "msprobe": msprobe}[options["tool"]](options, network)
    optimizer = nn.SGD(network.trainable_params(), 0.1)

    def loss_of(inputs, mask):
        output, mean = network(inputs, mask)
        return ops.logsumexp(output, -1).mean() + mean

    gradients_of = ms.value_and_grad(loss_of, None, network.trainable_params())
    for _ in range(STEPS):
        begin()
        loss, gradients = gradients_of(inputs, mask)
        end(loss)
        optimizer(gradients)
    close()


if __name__ == "__main__":
    for each in json.loads(sys.argv[1]):
        train(each)
