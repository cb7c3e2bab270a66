"""The probe never changes training: losses and weights are the same bits with and without it."""

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.small_networks import Decoder, HalfInside, Mixed, Scale, hook_count, tensor
from mindspore import Tensor, mint, nn, ops

from mindrlhf_msprobe import Probe, open_run

STEPS = 3
SETTINGS = {
    "absent": None,
    "off": {"msprobe": False},
    "switches off": {"actor_train_dump": False, "actor_infer_dump": False},
    "statistics": {},
    "tensor": {"task": "tensor"},
    "sketch": {"task": "sketch"},
    "looked at live": {"on_finding": "warn", "key_data_dump": True},
    "operators": {"level": "mix", "strict": True},
    "operators alone": {"level": "L1", "task": "tensor", "strict": True},
    "no parameters": {"task": "tensor", "parameters": False, "fingerprint": False},
}


def llama_task(build):
    """Return a small Llama and its loss on a fixed sentence."""
    tokens = Tensor(np.arange(16).reshape(2, 8) % 17, ms.int32)

    def loss(network):
        logits = network(tokens)[0]
        return -ops.log_softmax(logits.astype(ms.float32), -1).reshape(-1)[::5].mean()

    return build(), loss


def train(task, settings, path):
    """Train and return the bits of every loss, gradient and, at the end, weight."""
    network, loss_of = task
    probe = None
    if settings is not None:
        on = {"msprobe": True, "actor_train_dump": True, "actor_infer_dump": True, "step_end": 9}
        probe = Probe.from_config({**on, "dump_path": str(path), **settings})
        probe.watch(actor=network)
    optimizer = nn.AdamWeightDecay(network.trainable_params(), 0.01)
    step = ms.value_and_grad(lambda: loss_of(network), None, optimizer.parameters)

    def update():
        loss, gradients = step()
        optimizer(gradients)
        return [loss, *gradients]

    bits = []
    for _ in range(STEPS):
        if probe is None:
            loss_of(network)
            results = update()
        else:
            with probe.phase("actor_generate_sequences"):
                loss_of(network)
            with probe.phase("actor_update"):
                results = update()
            probe.step()
        bits += [r.asnumpy().tobytes() for r in results]
    if probe is not None:
        probe.close()
    assert hook_count(network) == 0
    return bits + [p.asnumpy().tobytes() for p in network.get_parameters()]


class Stateful(nn.Cell):
    """Dropout, batch norm, a recomputed cell, views, and operators that work in place."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.inner = nn.SequentialCell(nn.Dense(4, 4, weight_init=tensor(4, 4)), nn.Tanh())
        self.inner.recompute()
        self.table = Tensor(np.linspace(-1, 1, 12).reshape(3, 4), ms.float32)

    def construct(self, x):
        # nn.Dropout does not draw the same twice on CPU, whatever seed is set.
        y = ops.dropout(self.inner(self.norm(x)), 0.25, seed=7)
        y[0] = y[1] * 2
        view = y.view(4, 3)
        view[1] = view[2] - 1
        rows = y[1:]
        rows[0] = rows[1] * rows[1]
        y += self.table
        first, second = mint.chunk(y, 2, -1)
        z = mint.cat([second, first, y * y], -1)
        mask = z > 0
        z = ops.select(mask, z, 0.1 * z)
        return z * mint.exp(-z) + y.sum(-1, keepdims=True) * ops.stop_gradient(z)


def squared(network, **named):
    """Return a network and a loss of it, for one batch."""
    x = tensor(3, 4, start=-0.5)
    return network, lambda network: (network(x, **named) ** 2).mean()


def mixed_task():
    """Return a network of shared cells, a custom bprop and odd signatures."""
    return squared(Mixed(), scale=1.25)


def half_task():
    """Return a network with cells of another precision inside."""
    cells = Scale(1.01), HalfInside(), Scale(1.003), HalfInside()
    return squared(nn.SequentialCell(*cells))


def recomputed_task():
    """Return a network that computes its cells again for their gradients."""
    tokens = Tensor(np.arange(10).reshape(2, 5), ms.int32)
    return Decoder(recomputed=True), lambda network: (network(tokens) ** 2).mean()


def stateful_task():
    """Return a network with state, randomness, views and changes in place."""
    ms.set_seed(11)
    return squared(Stateful().set_train())


@pytest.mark.parametrize(
    ("task", "variant"),
    [
        *((mixed_task, variant) for variant in SETTINGS if variant != "absent"),
        *((half_task, variant) for variant in ("statistics", "no parameters", "operators")),
        *((recomputed_task, variant) for variant in ("statistics", "tensor")),
        *((stateful_task, variant) for variant in ("statistics", "operators", "operators alone")),
    ],
)
def test_a_network_trains_the_same(tmp_path, task, variant):
    """Bit for bit as without the probe: odd cells, other precisions, dropout, moving averages.

    Hooks run inside a cell with `to_float`, whose operators are cast; theirs are not.
    """
    expected = train(task(), None, tmp_path)
    assert train(task(), SETTINGS[variant], tmp_path / "run") == expected
    if task in (mixed_task, recomputed_task):
        return
    entries = open_run(tmp_path / "run").entries(phase="actor_update", step=0)
    if task is stateful_task:
        in_place = "Tensor.__setitem__.2.backward" in {entry.name for entry in entries}
        assert in_place == variant.startswith("operators")
        return
    dtypes = {
        f"{entry.cell} {record.io}": record.leaf.dtype
        for entry in entries
        for record in entry.records
        if entry.direction == "forward" and entry.name.startswith("Cell.")
    }
    assert (dtypes["1 input"], dtypes["1 output"]) == ("Float32", "Float32")
    assert dtypes["1.scale output"] == "Float16"


@pytest.mark.parametrize("variant", ["off", "statistics", "tensor", "sketch", "operators"])
def test_a_llama_trains_the_same(tmp_path, build_llama, variant):
    """A mindformers Llama trains bit for bit as without the probe."""
    expected = train(llama_task(build_llama), None, tmp_path)
    assert train(llama_task(build_llama), SETTINGS[variant], tmp_path / "run") == expected
    if variant != "off":
        run = open_run(tmp_path / "run")
        assert run.steps == [0, 1, 2]
        assert not run.manifests[0]["lost"]


def test_two_runs_record_the_same(tmp_path):
    """Two equal trainings leave equal entries, fingerprint by fingerprint."""
    recorded = []
    for name in ("a", "b"):
        train(mixed_task(), {}, tmp_path / name)
        recorded.append(
            [
                (entry.phase, entry.step, entry.seq, record.name, record.leaf)
                for entry in open_run(tmp_path / name).entries()
                for record in entry.records
            ]
        )
    assert len(recorded[0]) > 100
    assert recorded[0] == recorded[1]


def test_recorded_values_are_those_of_their_moment(layer_probe, recorded):
    """What is recorded does not follow an in-place update made later in the same phase."""
    probe = layer_probe(task="tensor")
    network = Scale(2.0)
    probe.watch(actor=network)
    optimizer = nn.SGD(network.trainable_params(), learning_rate=1.0)
    x = ms.Parameter(tensor(2, start=1.0), name="x")
    before = x.asnumpy().copy()
    with probe.phase("actor_update"):
        network(x)
        optimizer((Tensor(np.float32(1.5)),))
        ops.assign(x, x * 100)
        network(x)
    first, second = recorded(probe).entries()
    arrays = [{r.io: r.array() for r in e.records} for e in (first, second)]
    assert np.array_equal(arrays[0]["input"], before)
    assert np.array_equal(arrays[0]["output"], before * 2)
    assert (arrays[0]["parameters"], arrays[1]["parameters"]) == (2.0, 0.5)
    assert np.array_equal(arrays[1]["output"], before * np.float32(100) * np.float32(0.5))


def test_the_mode_may_be_set_after_watch(layer_probe, recorded):
    """In graph mode, a phase computes as without the probe, and opening it compiles nothing."""
    network = Mixed()
    x = tensor(3, 4)
    probe = layer_probe()
    probe.watch(actor=network)
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with probe.phase("actor_update"):
            inside = network(x).asnumpy()
        with probe.phase("actor_update"):
            again = network(x).asnumpy()
        outside = network(x).asnumpy()
        alone = Mixed()(x).asnumpy()
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    assert inside.tobytes() == again.tobytes() == outside.tobytes() == alone.tobytes()
    calls = [e.call for e in recorded(probe).entries() if e.cell == "root"]
    assert calls == [0, 1]


def test_jitted_functions_are_left_alone(layer_probe, recorded):
    """What ms.jit compiles, inside a phase or before it, computes as without the probe."""
    x = tensor(3, 4)

    def jitted(network):
        def loss(y):
            return (network(y) ** 2).sum()

        step = ms.jit(ms.value_and_grad(loss))
        return lambda: [t.asnumpy().tobytes() for t in step(x)]

    expected = jitted(Mixed())()
    network = Mixed()
    early, late = jitted(network), jitted(network)
    probe = layer_probe()
    probe.watch(actor=network)
    assert early() == expected
    for _ in range(2):
        with probe.phase("actor_update"):
            assert late() == expected
            assert early() == expected
            network(x)
        assert late() == early() == expected
    run = recorded(probe)
    calls = [e.call for e in run.entries() if e.cell == "root" and e.direction == "forward"]
    assert calls == list(range(6))
    assert not run.manifests[0]["lost"]


def test_phases_make_nothing_compile_again(layer_probe):
    """Opening and closing a phase leaves MindSpore's count of hooks as it was.

    MindSpore compiles every jitted function again, its optimizers included, when that changes.
    """
    hook_handle = pytest.importorskip("mindspore.common.hook_handle")
    network = Mixed()
    probe = layer_probe()
    probe.watch(actor=network)
    before = hook_handle._hook_version()
    with probe.phase("actor_update"):
        assert hook_count(network) > 0
        assert hook_handle._hook_version() == before
    assert hook_handle._hook_version() == before


def test_hooks_on_parameters_make_no_optimizer_compile_again(layer_probe):
    """An optimizer whose jitted function takes the parameters compiles as often as without them."""
    hook_handle = pytest.importorskip("mindspore.common.hook_handle")
    network = Scale(3.0)
    probe = layer_probe()
    probe.watch(actor=network)
    step = ms.value_and_grad(lambda: network(tensor(4)).sum(), None, network.trainable_params())
    before = hook_handle._hook_version()
    hooked = []
    for _ in range(2):
        with probe.phase("actor_update"):
            step()
            assert hook_handle._hook_version() == before
            hooked.append(network.factor.hooks())
        probe.step()
    assert hook_handle._hook_version() == before
    assert not network.factor.hooks()
    # The same function each time: MindSpore keeps what it compiled by the hooks' identity.
    assert len(hooked[0]) == 1
    assert hooked[0][0] is hooked[1][0]
