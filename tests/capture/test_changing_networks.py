"""Networks that are copied or changed while they are recorded, and what stays of the probe."""

import copy
import pickle
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.small_networks import Catches, Cubed, Policy, Scale, Twice, hook_count, tensor
from mindspore import Tensor, nn

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.capture.framework.private import GRAPH_EXECUTORS
from mindrlhf_msprobe.storage.reading.reader import Run

PHASE = "actor_update"
MODES = pytest.mark.parametrize(
    "mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"], indirect=True
)


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> Iterator[int]:
    ms.set_context(mode=request.param)
    yield request.param
    ms.set_context(mode=ms.PYNATIVE_MODE)


def ours(network: nn.Cell) -> set[str]:
    """Return the attributes of a network's cells that are not there without the probe."""
    names = {name for _, cell in network.cells_and_names() for name in vars(cell)}
    own = {"construct", "_run_construct", "__reduce_ex__", "__deepcopy__"}
    return {name for name in names if name in own or "msprobe" in name}


class Holds(nn.Cell):
    """A list of cells that never runs itself, and a cell with a bprop of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.CellList([Scale(2.0), Scale(3.0)])
        self.cubed = Cubed()

    def construct(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.cubed(x)


def registered(cell: nn.Cell, seen: list[float]) -> Any:
    """Register a hook as a user does."""
    return cell.register_forward_hook(lambda c, args, out: seen.append(float(out.sum())))


@MODES
def test_a_copy_made_inside_a_phase_is_a_plain_network(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Run], mode: int
) -> None:
    """No hook and no wrapper goes with it, but the user's own hooks do."""
    network, seen, x = Holds(), [], tensor(3, start=1.0)
    if mode == ms.PYNATIVE_MODE:
        registered(network.layers[0], seen)
    probe = layer_probe(strict=True)
    probe.watch(actor=network)
    with probe.phase(PHASE):
        network(x)
        twin = copy.deepcopy(network)
        assert ours(twin) == set()
        assert hook_count(twin) == len(seen)
        twin(x)
        network(x)
    assert hook_count(network) == hook_count(twin)
    assert len(seen) == (3 if seen else 0)
    assert hook_count(copy.deepcopy(network)) == len(seen[:1])
    twin(x)
    names = {entry.name for entry in recorded(probe).entries()}
    assert {n for n in names if n.startswith("Cell.cubed")} == {
        f"Cell.cubed.Cubed.forward.{n}" for n in range(2)
    }


def test_a_network_is_pickled_inside_a_phase_as_outside(
    layer_probe: Callable[..., Probe],
) -> None:
    network = Twice()
    probe = layer_probe(strict=True)
    probe.watch(actor=network)
    with probe.phase(PHASE):
        network(tensor(2))
        twin = pickle.loads(pickle.dumps(network))
        shallow = copy.copy(network)
    assert hook_count(twin) == hook_count(shallow) == hook_count(network) == 0
    assert ours(twin) == set()
    assert (twin(tensor(2)).asnumpy() == network(tensor(2)).asnumpy()).all()


class Grows(nn.Cell):
    """Runs the cells it has; makes one while it runs, if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Scale(2.0)
        self.layers = nn.CellList([Scale(3.0)])
        self.makes = False

    def construct(self, x: Tensor) -> Tensor:
        if self.makes and not hasattr(self, "made"):
            self.made = Scale(5.0)
        for layer in (self.first, *self.layers, *([self.made] if hasattr(self, "made") else [])):
            x = layer(x)
        return x


@pytest.mark.parametrize("where", ["attribute", "list", "replaced"])
def test_a_cell_added_inside_a_phase_is_recorded_from_its_first_call(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Run], where: str
) -> None:
    """Forward, backward and its parameters' gradients, whether or not gradients came before."""
    network, x = Grows(), tensor(2, start=1.0)
    probe = layer_probe(strict=True)
    probe.watch(actor=network)
    with probe.phase(PHASE):
        ms.value_and_grad(lambda: network(x).sum(), None, network.trainable_params())()
        if where == "attribute":
            network.made = Scale(7.0)
        elif where == "list":
            network.layers.append(Scale(7.0))
        else:
            network.first = Scale(7.0)
        ms.value_and_grad(lambda: network(x).sum(), None, network.trainable_params())()
    assert hook_count(network) == 0
    run = recorded(probe)
    name = {"attribute": "made", "list": "layers.1", "replaced": "first"}[where]
    call = 1 if where == "replaced" else 0
    names = {entry.name for entry in run.entries()}
    found = {f"Cell.{name}.Scale.{direction}.{call}" for direction in ("forward", "backward")}
    assert found <= names
    assert f"Cell.{name}.Scale.parameters_grad.{call}" in names
    assert not run.manifests[0]["lost"]


@pytest.mark.parametrize("where", ["while it runs", "called directly", "never called"])
def test_a_cell_that_ran_before_it_was_seen_is_counted(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Run], where: str
) -> None:
    network, x = Grows(), tensor(2, start=1.0)
    probe = layer_probe()
    probe.watch(actor=network)
    with probe.phase(PHASE):
        network.makes = where == "while it runs"
        network(x)
        if network.makes:
            network(x)
        else:
            network.made = Scale(7.0)
        if where == "called directly":
            network.made(x)
    assert hook_count(network) == 0
    run = recorded(probe)
    seen = [entry.name for entry in run.entries() if entry.cell == "made"]
    assert seen == (["Cell.made.Scale.forward.0"] if network.makes else [])
    lost = run.manifests[0]["lost"]
    assert sum(lost.values()) == (0 if where == "never called" else 1), lost


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE], indirect=True)
def test_a_child_replaced_before_it_is_compiled_is_recorded(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Run], mode: int
) -> None:
    """The new one has its probes, its gradients and those of its parameters as any other."""
    network = Policy()
    probe = layer_probe(strict=True)
    probe.watch(actor=network)
    network.backbone.second = Scale(7.0)
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    probe.watch(optimizers={"actor": optimizer})
    step = ms.value_and_grad(lambda_of(network), None, optimizer.parameters)
    with probe.phase(PHASE):
        optimizer(step(tensor(2, start=1.0))[1])
    run = recorded(probe)
    entries = {entry.name: entry for entry in run.entries()}
    new = entries["Cell.backbone.second.Scale.forward.0"]
    assert {r.path: r.leaf.max for r in new.records if r.io == "parameters"} == {"factor": 7.0}
    assert "Cell.backbone.second.Scale.backward.0" in entries
    assert "Cell.backbone.second.Scale.parameters_grad.0" in entries
    assert set(run.manifests[0]["coverage"].get("graph_mode", {}).get("actor", {})) == set()


def lambda_of(network: nn.Cell) -> Callable[[Tensor], Tensor]:
    def loss(x: Tensor) -> Tensor:
        return network(x).sum()

    return loss


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE], indirect=True)
def test_a_child_replaced_where_python_runs_is_recorded(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Run], mode: int
) -> None:
    """Also of a network that a graph held before: what ran is the new one, and it is recorded."""
    network, x = Policy(), tensor(2, start=1.0)
    probe = layer_probe(strict=True)
    probe.watch(actor=network)
    jitted = ms.jit(lambda_of(network))
    with probe.phase(PHASE):
        jitted(x)
    network.backbone.second = Scale(7.0)
    with probe.phase(PHASE):
        network(x)
    run = recorded(probe)
    new = [e for e in run.entries() if e.cell == "backbone.second" and e.direction == "forward"][-1]
    assert {r.path: r.leaf.max for r in new.records if r.io == "parameters"} == {"factor": 7.0}
    assert not run.manifests[0]["coverage"].get("graph_mode", {}).get("actor", {})


@MODES
def test_a_network_that_only_its_phase_names_is_recorded(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Run], mode: int
) -> None:
    """The copy that generates, say: it has its probes from the phase's first opening on."""
    trained, generating, x = Policy(), Policy(), tensor(2, start=1.0)
    probe = layer_probe(strict=True)
    probe.watch(actor=trained)
    for _ in range(2):
        with probe.phase(PHASE, model=generating):
            generating(x)
    with probe.phase("actor_compute_log_prob"):
        trained(x)
    run = recorded(probe)
    counts = [
        Counter(e.cell for e in run.entries(phase) if e.direction == "forward")
        for phase in ("actor_compute_log_prob", PHASE)
    ]
    assert len(counts[0]) > 2
    assert counts[1] == {cell: 2 * calls for cell, calls in counts[0].items()}


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE], indirect=True)
def test_a_network_that_its_phase_names_too_late_runs_on(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Run], mode: int
) -> None:
    """It was compiled without probes: training goes on, and nothing of it is recorded."""
    trained, generating, x = Policy(), Policy(), tensor(2, start=1.0)
    before = generating(x).asnumpy()
    probe = layer_probe(strict=True)
    probe.watch(actor=trained)
    for _ in range(2):
        with probe.phase(PHASE, model=generating):
            assert (generating(x).asnumpy() == before).all()
    assert recorded(probe).entries() == []


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE], indirect=True)
def test_a_child_replaced_after_it_was_compiled_is_said(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Run], mode: int
) -> None:
    """What was compiled goes on with the old one; another shape compiles the new one."""
    network = Twice()
    probe = layer_probe(strict=True)
    probe.watch(actor=network)
    with probe.phase(PHASE):
        network(tensor(2, start=1.0))
    network.second = Scale(7.0)
    with probe.phase(PHASE):
        network(tensor(2, start=1.0))
    with probe.phase(PHASE):
        network(tensor(3, start=1.0))
    run = recorded(probe)
    factors = [
        r.leaf.max
        for entry in run.entries()
        for r in entry.records
        if r.name.startswith("Cell.second.Scale.forward") and r.io == "parameters"
    ]
    calls = [entry.name for entry in run.entries() if entry.cell == "second"]
    assert calls == [f"Cell.second.Scale.forward.{n}" for n in range(3)]
    assert factors == [3.0, 7.0]
    noted = run.manifests[0]["coverage"]["graph_mode"]["actor"]["second"]
    assert noted == [{"code": "coverage.replaced"}]


@pytest.mark.parametrize("old_runs", [False, True])
@pytest.mark.parametrize("jitted", [False, True])
def test_a_replaced_child_whose_old_graph_runs_beside_the_new_one_is_said(
    layer_probe: Callable[..., Probe],
    recorded: Callable[[Probe], Run],
    jitted: bool,
    old_runs: bool,
) -> None:
    """Of a network or a jitted function around it: each kind of arguments has its own graph."""
    network = Twice()

    def scored(x: Tensor) -> Tensor:
        return network(x) + 1.0

    probe = layer_probe(strict=True)
    ms.set_context(mode=ms.PYNATIVE_MODE if jitted else ms.GRAPH_MODE)
    try:
        call = ms.jit(scored) if jitted else network
        probe.watch(actor=network)
        for length in (2, 3, 2 if old_runs else 3):
            with probe.phase(PHASE):
                call(tensor(length, start=1.0))
            if network.second.factor.asnumpy() == 3.0:
                network.second = Scale(7.0)
        coverage = recorded(probe).coverage().get("graph_mode", {})
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    assert ("second" in coverage.get("actor", {})) is old_runs


def test_what_python_runs_has_no_wrapper(layer_probe: Callable[..., Probe], tmp_path: Path) -> None:
    """A user's own error is shown with the user's frames; only what jit compiles gets probes."""
    network, x = Catches(), tensor(2)
    compile_graph = [vars(executor)["compile"] for executor in GRAPH_EXECUTORS]
    probe = layer_probe(strict=True)
    probe.watch(actor=network)
    assert ours(network) == set()
    with pytest.raises(ArithmeticError) as raised:
        network.breaks(x)
    files = [frame.filename for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert all("mindspore" in file or "/tests/" in file for file in files)
    with probe.phase(PHASE):
        network(x)
    assert ours(network) == set()
    compiled = Policy()
    probe.watch(reference=compiled)

    @ms.jit
    def score(x: Tensor) -> Tensor:
        return compiled.backbone(x)

    with probe.phase("reference_compute_log_prob"):
        score(x)
    assert not any("construct" in vars(cell) for _, cell in compiled.cells_and_names())
    probe.close()
    assert [vars(executor)["compile"] for executor in GRAPH_EXECUTORS] == compile_graph


@pytest.mark.filterwarnings("ignore")
def test_what_jit_captures_from_bytecode_is_recorded_or_counted(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Run]
) -> None:
    """It is not supported, for MindSpore captures hooks, too; but nothing is lost silently."""
    network, x = Policy(), tensor(2)
    probe = layer_probe()
    probe.watch(actor=network)

    @ms.jit(capture_mode="bytecode")
    def score(x: Tensor) -> Tensor:
        return network(x)

    with probe.phase(PHASE):
        assert (score(x).asnumpy() == network(x).asnumpy()).all()
    assert not any("construct" in vars(cell) for _, cell in network.cells_and_names())
    run = recorded(probe)
    calls = [entry for entry in run.entries() if entry.cell == "head"]
    assert len(calls) == 2 or run.manifests[0]["lost"]


def test_a_network_whose_construct_was_replaced_on_the_cell_keeps_it(
    layer_probe: Callable[..., Probe], recorded: Callable[[Probe], Run]
) -> None:
    network = Twice()

    def construct(self: Any, x: Tensor) -> Tensor:
        return self.first(x) + 1

    network.construct = construct.__get__(network)
    given = network.construct
    probe = layer_probe(strict=True)
    probe.watch(actor=network)
    compiled = ms.jit(lambda_of(network))
    with probe.phase(PHASE):
        compiled(tensor(2))
    assert network.construct == given
    names = {entry.name for entry in recorded(probe).entries()}
    assert names == {"Cell.root.Twice.forward.0", "Cell.first.Scale.forward.0"}
    assert np.array_equal(network(tensor(2)).asnumpy(), tensor(2).asnumpy() * 2 + 1)
