"""Second runs and kernels that count their calls: the training's own are not among them.

Such a kernel remembers for the life of a process. Each trial is a process of its own, forked before
anything was computed.
"""

import json

import pytest

from tests.helpers.programs import run_python

pytestmark = pytest.mark.slow

_TRIALS = '''
import json, os, sys, tempfile
import mindspore as ms, numpy as np
from mindspore import Tensor, mint, nn, ops
from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.storage.step_lines import benchmark_lines
from pathlib import Path


class Counted(nn.Cell):
    """Thirteen elements: what is left of a part is another number of them for each cut."""

    def __init__(self):
        super().__init__()
        self.dense, self.log, self.calls = nn.Dense(4, 13), ops.Log(), 0

    def construct(self, x):
        y = ops.abs(self.dense(x)) + 0.1
        routes = [mint.log, self.widest, Tensor.log, self.log]
        self.calls += 1
        return routes[self.calls % 4](y[0]) + ops.softplus(y[0]) + ops.mish(y[0])

    @staticmethod
    def widest(y):
        return ops.logsumexp(y.reshape(13, 1) * ops.ones((1, 3)), -1)


def trial(several):
    """Two steps of one training by each settings, None: without the probe."""
    ms.set_seed(2)
    network = Counted()
    weights = network.trainable_params()
    grads = ms.value_and_grad(lambda x: network(x).sum(), None, weights)
    found, rows = [], []
    given = {"msprobe": True, "actor_train_dump": True, "task": "free_benchmark", "step_end": 9}
    for number, settings in enumerate(several):
        path = Path(tempfile.mkdtemp()) / "run"
        settings = {"msprobe": False} if settings is None else {**given, **settings}
        with Probe.from_config({**settings, "dump_path": str(path)}) as probe:
            probe.watch(actor=network)
            for step in range(2 * number, 2 * number + 2):
                x = np.random.default_rng(step).standard_normal((2, 4)).astype(np.float32)
                with probe.phase("actor_update"):
                    _, gradients = grads(Tensor(x))
                for weight, gradient in zip(weights, gradients):
                    ops.assign_sub(weight, 0.01 * gradient)
                probe.step()
                found += [g.asnumpy().tobytes().hex() for g in gradients]
        rows.append([*benchmark_lines(path, 0).read()] if settings["msprobe"] else [])
    # What the kernel does next, which the count decides.
    found += [mint.log(Tensor(np.arange(13, dtype=np.float32) + 0.3)).asnumpy().tobytes().hex()]
    return found, rows


def forked(several):
    reads, writes = os.pipe()
    if not os.fork():
        with os.fdopen(writes, "w") as out:
            try:
                json.dump(trial(several), out)
            except BaseException as error:
                json.dump(repr(error), out)
            out.flush()
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as answer:
        return json.load(answer)


several = json.loads(sys.argv[1])
print(json.dumps([forked([None] * len(several)), forked(several)]))
'''

_SETTINGS = (
    {"pert_mode": "no_change", "level": "mix"},
    {"pert_mode": "bit_noise"},
    {"pert_mode": "add_noise", "level": "mix", "fuzz_stage": "backward"},
    {"pert_mode": "change_value", "level": "mix"},
)


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    """What a training computes without the probe, and with it, and the rows of each settings."""
    said = run_python(_TRIALS, tmp_path_factory.mktemp("trials"), json.dumps(_SETTINGS)).stdout
    (plain, _), (probed, rows) = json.loads(said.splitlines()[-1])
    return plain, probed, dict(zip(("no_change", "bit_noise", "backward", "change_value"), rows))


def test_training_is_unchanged_where_kernels_count_their_calls(trials):
    """By whatever name `log` is called, in operators, in cells, and inside MindSpore's Python."""
    plain, probed, _ = trials
    assert [i for i, pair in enumerate(zip(plain, probed, strict=True)) if len({*pair}) > 1] == []


def test_kernels_that_count_their_calls_are_deterministic(trials):
    """Other last bits for another cut are no finding of `no_change`, nor of any other mode."""
    *_, by_mode = trials
    names = set()
    for mode, rows in by_mode.items():
        judged = [row for row in rows if "why" not in row]
        assert judged, mode
        assert [row for row in judged if not row["consistent"]] == [], mode
        names |= {row["entry"].split(".")[-3] for row in judged}
    assert names >= {"log", "logsumexp", "softplus", "mish", "Counted"}


def test_gradients_that_would_count_are_not_computed_again(trials):
    """The gradient of `mish` calls Softplus, where no second run can have an object of its own."""
    *_, by_mode = trials
    rows = by_mode["backward"]
    why = {row["entry"].split(".")[-3]: row["why"][0]["code"] for row in rows if "why" in row}
    assert why["mish"] == "benchmark.counts"
    assert "softplus" not in why
