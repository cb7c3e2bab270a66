"""Networks that are copied or changed while they are recorded, and what stays of the probe."""

import copy
import pickle
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.small_networks import (
    MODES,
    Assembled,
    Catches,
    Cubed,
    Policy,
    Scale,
    Twice,
    hook_count,
    in_mode,
    tensor,
)
from mindspore import Tensor, nn

from mindrlhf_msprobe.capture.framework.private import GRAPH_EXECUTORS
from mindrlhf_msprobe.storage.reading.reader import Run

PHASE = "actor_update"
both_modes = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


def ours(network: nn.Cell) -> set[str]:
    """Return the attributes of a network's cells that are not there without the probe."""
    names = {name for _, cell in network.cells_and_names() for name in vars(cell)}
    own = {"construct", "_run_construct", "__reduce_ex__", "__deepcopy__"}
    return {name for name in names if name in own or "msprobe" in name}


class Holds(Assembled, layers=lambda: nn.CellList([Scale(2.0), Scale(3.0)]), cubed=Cubed):
    """A list of cells that never runs itself, and a cell with a bprop of its own."""

    def construct(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.cubed(x)


def registered(cell: nn.Cell, seen: list[float]) -> Any:
    """Register a hook as a user does."""
    return cell.register_forward_hook(lambda c, args, out: seen.append(float(out.sum())))


@both_modes
def test_a_copy_made_inside_a_phase_is_a_plain_network(layer_probe, recorded, mode):
    """No hook and no wrapper goes with it, but the user's own hooks do."""
    network, seen, x = Holds(), [], tensor(3, start=1.0)
    if mode == ms.PYNATIVE_MODE:
        registered(network.layers[0], seen)
    probe = layer_probe(strict=True)
    with in_mode(mode):
        probe.watch(actor=network)
        with probe.phase(PHASE):
            network(x)
            twin = copy.deepcopy(network)
            assert ours(twin) == set()
            assert hook_count(twin) == len(seen)
            twin.layers[0].factor.set_data(Tensor(np.float32(10.0)))
            inside = twin(x).asnumpy()
            network(x)
        assert hook_count(network) == hook_count(twin)
        assert len(seen) == (3 if seen else 0)
        assert hook_count(copy.deepcopy(network)) == len(seen[:1])
        assert inside.tobytes() == twin(x).asnumpy().tobytes()
    assert inside[0] == 30**3  # it runs on its own weights
    names = {entry.name for entry in recorded(probe).entries()}
    assert {n for n in names if n.startswith("Cell.cubed")} == {
        f"Cell.cubed.Cubed.forward.{n}" for n in range(2)
    }


def test_a_network_is_pickled_inside_a_phase_as_outside(run_phase):
    network, twins = Twice(), []

    def body() -> None:
        network(tensor(2))
        twins.extend([pickle.loads(pickle.dumps(network)), copy.copy(network)])

    run_phase(network, body, strict=True)
    twin, shallow = twins
    assert hook_count(twin) == hook_count(shallow) == 0
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


@pytest.mark.parametrize(
    ("add", "name", "call"),
    [
        (lambda network: setattr(network, "made", Scale(7.0)), "made", 0),
        (lambda network: network.layers.append(Scale(7.0)), "layers.1", 0),
        (lambda network: setattr(network, "first", Scale(7.0)), "first", 1),
    ],
    ids=["attribute", "list", "replaced"],
)
def test_a_cell_added_inside_a_phase_is_recorded_from_its_first_call(run_phase, add, name, call):
    """Forward, backward and its parameters' gradients, whether or not gradients came before."""
    network, x = Grows(), tensor(2, start=1.0)

    def body() -> None:
        for change in (add, lambda network: None):
            ms.value_and_grad(lambda: network(x).sum(), None, network.trainable_params())()
            change(network)

    run = run_phase(network, body, strict=True)
    names = {entry.name for entry in run.entries()}
    directions = ("forward", "backward", "parameters_grad")
    assert {f"Cell.{name}.Scale.{direction}.{call}" for direction in directions} <= names
    assert not run.manifests[0]["lost"]


@pytest.mark.parametrize("where", ["while it runs", "called directly", "never called"])
def test_a_cell_that_ran_before_it_was_seen_is_counted(run_phase, where):
    network, x = Grows(), tensor(2, start=1.0)

    def body() -> None:
        network.makes = where == "while it runs"
        network(x)
        if network.makes:
            network(x)
        else:
            network.made = Scale(7.0)
        if where == "called directly":
            network.made(x)

    run = run_phase(network, body)
    seen = [entry.name for entry in run.entries() if entry.cell == "made"]
    assert seen == (["Cell.made.Scale.forward.0"] if network.makes else [])
    lost = run.manifests[0]["lost"]
    assert sum(lost.values()) == (0 if where == "never called" else 1), lost


def sum_of(network: nn.Cell) -> Callable[[Tensor], Tensor]:
    def loss(x: Tensor) -> Tensor:
        return network(x).sum()

    return loss


def factors_of(run: Run, cell: str) -> list[float]:
    """Return the factors that a cell of this name had, as its calls recorded them."""
    entries = [e for e in run.entries() if e.cell == cell and e.direction == "forward"]
    return [r.leaf.max for e in entries for r in e.records if r.io == "parameters"]


def gaps_of(run: Run) -> dict[str, Any]:
    return run.manifests[0].get("coverage", {}).get("graph_mode", {}).get("actor", {})


def test_a_child_replaced_before_it_is_compiled_is_recorded(layer_probe, recorded):
    """The new one has its probes, its gradients and those of its parameters as any other."""
    network = Policy()
    probe = layer_probe(strict=True)
    with in_mode(ms.GRAPH_MODE):
        probe.watch(actor=network)
        network.backbone.second = Scale(7.0)
        optimizer = nn.SGD(network.trainable_params(), 0.1)
        probe.watch(optimizers={"actor": optimizer})
        step = ms.value_and_grad(sum_of(network), None, optimizer.parameters)
        with probe.phase(PHASE):
            optimizer(step(tensor(2, start=1.0))[1])
    run = recorded(probe)
    names = {entry.name for entry in run.entries()}
    assert factors_of(run, "backbone.second") == [7.0]
    assert "Cell.backbone.second.Scale.backward.0" in names
    assert "Cell.backbone.second.Scale.parameters_grad.0" in names
    assert gaps_of(run) == {}


def test_a_child_replaced_where_python_runs_is_recorded(layer_probe, recorded):
    """Also of a network that a graph held before: what ran is the new one, and it is recorded."""
    network, x = Policy(), tensor(2, start=1.0)
    probe = layer_probe(strict=True)
    probe.watch(actor=network)
    jitted = ms.jit(sum_of(network))
    with probe.phase(PHASE):
        jitted(x)
    network.backbone.second = Scale(7.0)
    with probe.phase(PHASE):
        network(x)
    run = recorded(probe)
    assert factors_of(run, "backbone.second")[-1] == 7.0
    assert gaps_of(run) == {}


@both_modes
def test_a_network_that_only_its_phase_names_is_recorded(layer_probe, recorded, mode):
    """The copy that generates, say: it has its probes from the phase's first opening on."""
    trained, generating, x = Policy(), Policy(), tensor(2, start=1.0)
    probe = layer_probe(strict=True)
    with in_mode(mode):
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


def test_a_network_that_its_phase_names_too_late_runs_on(layer_probe, recorded):
    """It was compiled without probes: training goes on, and nothing of it is recorded."""
    trained, generating, x = Policy(), Policy(), tensor(2, start=1.0)
    probe = layer_probe(strict=True)
    with in_mode(ms.GRAPH_MODE):
        before = generating(x).asnumpy()
        probe.watch(actor=trained)
        for _ in range(2):
            with probe.phase(PHASE, model=generating):
                assert (generating(x).asnumpy() == before).all()
    assert recorded(probe).entries() == []


def test_a_child_replaced_after_it_was_compiled_is_said(layer_probe, recorded):
    """What was compiled goes on with the old one; another shape compiles the new one."""
    network = Twice()
    probe = layer_probe(strict=True)
    with in_mode(ms.GRAPH_MODE):
        probe.watch(actor=network)
        for length in (2, 2, 3):
            with probe.phase(PHASE):
                network(tensor(length, start=1.0))
            if network.second.factor.asnumpy() == 3.0:
                network.second = Scale(7.0)
    run = recorded(probe)
    calls = [entry.name for entry in run.entries() if entry.cell == "second"]
    assert calls == [f"Cell.second.Scale.forward.{n}" for n in range(3)]
    assert factors_of(run, "second") == [3.0, 7.0]
    assert gaps_of(run)["second"] == [{"code": "coverage.replaced"}]


@pytest.mark.parametrize("old_runs", [False, True])
@pytest.mark.parametrize("jitted", [False, True])
def test_a_replaced_child_whose_old_graph_runs_beside_the_new_one_is_said(
    layer_probe, recorded, jitted, old_runs
):
    """Of a network or a jitted function around it: each kind of arguments has its own graph."""
    network = Twice()

    def scored(x: Tensor) -> Tensor:
        return network(x) + 1.0

    probe = layer_probe(strict=True)
    with in_mode(ms.PYNATIVE_MODE if jitted else ms.GRAPH_MODE):
        call = ms.jit(scored) if jitted else network
        probe.watch(actor=network)
        for length in (2, 3, 2 if old_runs else 3):
            with probe.phase(PHASE):
                call(tensor(length, start=1.0))
            if network.second.factor.asnumpy() == 3.0:
                network.second = Scale(7.0)
        coverage = recorded(probe).coverage().get("graph_mode", {})
    assert ("second" in coverage.get("actor", {})) is old_runs


def test_what_python_runs_has_no_wrapper(layer_probe, tmp_path):
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
def test_what_jit_captures_from_bytecode_is_recorded_or_counted(run_phase):
    """It is not supported, for MindSpore captures hooks, too; but nothing is lost silently."""
    network, x, found = Policy(), tensor(2), []

    @ms.jit(capture_mode="bytecode")
    def score(x: Tensor) -> Tensor:
        return network(x)

    run = run_phase(network, lambda: found.extend([score(x).asnumpy(), network(x).asnumpy()]))
    assert (found[0] == found[1]).all()
    assert not any("construct" in vars(cell) for _, cell in network.cells_and_names())
    calls = [entry for entry in run.entries() if entry.cell == "head"]
    assert len(calls) == 2 or run.manifests[0]["lost"]


def test_a_network_whose_construct_was_replaced_on_the_cell_keeps_it(run_phase):
    network = Twice()

    def construct(self: Any, x: Tensor) -> Tensor:
        return self.first(x) + 1

    network.construct = construct.__get__(network)
    given = network.construct
    compiled = ms.jit(sum_of(network))
    run = run_phase(network, lambda: compiled(tensor(2)), strict=True)
    assert network.construct == given
    names = {entry.name for entry in run.entries()}
    assert names == {"Cell.root.Twice.forward.0", "Cell.first.Scale.forward.0"}
    assert np.array_equal(network(tensor(2)).asnumpy(), tensor(2).asnumpy() * 2 + 1)
