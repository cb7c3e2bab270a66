"""Data-parallel training on CPU, one rank of it: what the tests start with msrun.

Every rank has its own batches; gradients are averaged over the ranks by AllReduce. Called with a
JSON list of trainings, which run one after the other; what a rank says of each begins with a line
`TRAINING` and its `name`. Each is an object: `msprobe` (the configuration; a `{rank}` in its
dump_path becomes the rank), `steps`, and the names of what goes wrong: `fault` (rank, step, role:
one weight of it is changed before the step), `nan` (rank, step: its batch holds one), `kill` (rank,
step: the process kills itself inside that step's update) and `crash_at_exit` (rank: the process
ends with SIGSEGV when all is done, as MindSpore's sometimes do). `every`: gradients are averaged in
each n-th step alone. `split`: split_training.py's instead, by `tensors` or by `samples`.
`divided`: divided_training.py's, by `stages`, `contexts` or `experts`.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import mindspore as ms
import numpy as np
from divided_training import Ranks, train_divided
from mindspore import Tensor, nn, ops
from mindspore.communication import get_group_size, get_rank, init
from split_training import train_split

from mindrlhf_msprobe import MsprobeError, Probe


class Policy(nn.Cell):
    """A perceptron of two layers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        weights = np.random.default_rng(seed)
        self.hidden, self.head = nn.Dense(4, 6), nn.Dense(6, 3)
        for parameter in self.get_parameters():
            parameter.set_data(Tensor(weights.normal(size=parameter.shape).astype(np.float32)))

    def construct(self, x: Tensor) -> Tensor:
        return self.head(ops.tanh(self.hidden(x)))


def train(options: dict, *, last: bool) -> None:
    rank, size = get_rank(), get_group_size()
    if "split" in options or "divided" in options:
        if "split" in options:
            own = {"reduce": ops.AllReduce(), "fault": options.get("fault")}
            train_split(options["msprobe"], options["split"], rank, size, **own)
        else:
            ranks = Ranks(rank, size, ops.AllReduce(), ops.AllGather())
            train_divided(options["msprobe"], options["divided"], ranks, options.get("fault"))
        _end(options, rank, last=last)
        return
    settings = {"msprobe": True, "actor_train_dump": True, "reference_dump": True, "step_end": 9}
    settings |= {"key_data_dump": True, **options["msprobe"]}
    settings["dump_path"] = settings["dump_path"].format(rank=rank)
    sys.stdout.write(f"TRAINING {options['name']}\n")
    sys.stdout.flush()
    try:
        probe = Probe.from_config(settings)
    except MsprobeError as error:
        sys.stdout.write(f"REFUSED: {error}\n")
        probe = Probe()
    networks = {"actor": Policy(1), "reference": Policy(2)}
    actor, reference = networks["actor"], networks["reference"]
    probe.watch(actor=actor, reference=reference)
    optimizer = nn.SGD(actor.trainable_params(), 0.1)
    average = ops.AllReduce()
    fault, kill = options.get("fault"), options.get("kill")
    every = options.get("every", 1)

    def loss_of(x: Tensor, target: Tensor) -> Tensor:
        if kill == [rank, probe.current_step]:
            os.kill(os.getpid(), signal.SIGKILL)
        return ((actor(x) - target) ** 2).mean()

    gradients_of = ms.value_and_grad(loss_of, None, actor.trainable_params())
    for step in range(options["steps"]):
        if fault and fault[:2] == [rank, step]:
            weight = networks[fault[2]].hidden.weight
            weight.set_data(weight + Tensor(np.eye(6, 4, dtype=np.float32) * 1e-3))
        batch = np.random.default_rng(100 * step + rank).normal(size=(2, 4)).astype(np.float32)
        if options.get("nan") == [rank, step]:
            batch[0, 0] = np.nan
        with probe.phase("reference_compute_log_prob"):
            target = reference(Tensor(batch))
        probe.save_data(ref_log_prob=target)
        with probe.phase("actor_update"):
            loss, gradients = gradients_of(Tensor(batch), target)
            if step % every == every - 1:
                gradients = tuple(average(gradient) / size for gradient in gradients)
            optimizer(gradients)
        probe.save_data(loss=loss)
        try:
            probe.step()
        except SystemExit as end:
            sys.stdout.write(f"ENDED {rank}: step {step}, code {end.code}\n")
            sys.stdout.flush()
            raise
    total = sum(float(p.asnumpy().astype(np.float64).sum()) for p in actor.get_parameters())
    sys.stdout.write(f"WEIGHTS {rank}: {total!r}\n")
    probe.close()
    _end(options, rank, last=last)


def _end(options: dict, rank: int, *, last: bool) -> None:
    """Say that what this rank has to do is done.

    MindSpore may crash while a process ends, and msrun kills the others then: none ends before all
    have said that they are done.
    """
    if last:
        sys.stdout.write(f"DONE {rank}\n")
    sys.stdout.flush()
    ops.AllReduce()(Tensor([1.0])).asnumpy()  # returns when all have come: CPU has no Barrier
    if options.get("crash_at_exit") == rank:
        os.kill(os.getpid(), signal.SIGSEGV)


if __name__ == "__main__":
    ms.set_device("CPU")
    init()
    trainings = json.loads(sys.argv[1])
    for number, training in enumerate(trainings, 1):
        train(training, last=number == len(trainings))
