"""Where nothing is recorded a graph without probes runs: compiled once, counted all the same."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ms = pytest.importorskip("mindspore")

from helpers.small_networks import MODES, Assembled, Policy, Scale, Twice, in_mode, tensor
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe import Probe, UsageError, open_run
from mindrlhf_msprobe.capture.graph import probes as graph_probes
from mindrlhf_msprobe.capture.graph.moments import COMPILATIONS

GENERATE, SCORE, UPDATE = "actor_generate_sequences", "actor_compute_log_prob", "actor_update"


class Counts:
    """How often MindSpore compiled, and how often a graph called the host."""

    def __init__(self) -> None:
        self.compiled = 0
        self.host_calls = 0

    def taken(self) -> tuple[int, int]:
        """Return both, and count anew."""
        found = self.compiled, self.host_calls
        self.compiled = self.host_calls = 0
        return found


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    """Count, in GRAPH_MODE."""
    counted = Counts()
    array_of = graph_probes.array_of

    def called(number: int) -> np.ndarray:
        counted.host_calls += 1
        return array_of(number)

    def compiled() -> None:
        counted.compiled += 1
        counted.host_calls = 0  # what the compiler called

    monkeypatch.setattr(graph_probes, "array_of", called)
    COMPILATIONS.listeners.append(compiled)
    with in_mode(ms.GRAPH_MODE):
        yield counted
    COMPILATIONS.listeners.remove(compiled)


def test_outside_the_window_nothing_calls_the_host(layer_probe, counts):
    """Each graph is compiled once: when it is called first, and never again."""
    network, x = Twice(), tensor(2, 3)
    optimizer = nn.SGD(network.trainable_params(), 0.01)
    probe = layer_probe(steps=[1, 3])
    probe.watch(actor=network, optimizers={"actor": optimizer})

    def loss(x: Tensor) -> Tensor:
        return network(x).sum()

    step = ms.value_and_grad(loss, None, optimizer.parameters)
    compiled, called = [], []
    for _ in range(5):
        with probe.phase(SCORE):
            network(x)
        with probe.phase(UPDATE):
            _, gradients = step(x)
            optimizer(gradients)
        probe.step()
        found = counts.taken()
        compiled.append(found[0])
        called.append(found[1] > 0)
    network(x)  # in no phase
    assert counts.taken() == (0, 0)
    assert compiled == [3, 3, 0, 0, 0]
    assert called == [False, True, False, True, False]
    probe.close()
    run = open_run(probe.config.dump_path)
    names = {s: {e.name for e in run.entries(step=s)} for s in (1, 3)}
    assert names[1] == names[3] != set()
    assert {e.step for e in run.entries()} == {1, 3}
    assert "graph_mode" not in run.manifests[0].get("coverage", {})


def test_compiling_ahead_compiles_what_is_recorded_first(layer_probe, counts):
    """`compile()` before a phase does what the first recorded call needs, and that alone."""
    network, x = Twice(), tensor(2, 3)
    probe = layer_probe(step_end=0)
    probe.watch(actor=network)
    network.compile(x)
    assert counts.taken()[0] == 1
    with probe.phase(SCORE):
        network(x)
    assert counts.taken()[0] == 0
    probe.step()
    other = tensor(3, 3)
    network.compile(other)  # nothing is recorded any more
    with probe.phase(SCORE):
        network(other)
    assert counts.taken() == (1, 0)
    probe.close()
    assert len(open_run(probe.config.dump_path).entries()) == 4


def test_what_holds_no_watched_cell_is_compiled_once(layer_probe, counts):
    """In phases that are recorded and outside of them; another network's, too."""
    network, other, helper, x = Scale(), Scale(), Scale(), tensor(2, 3)
    probe = layer_probe()
    probe.watch(actor=network, reference=other)

    @ms.jit
    def double(x: Tensor) -> Tensor:
        return x + x

    with probe.phase(SCORE):
        double(x)
        helper(x)
    with probe.phase(UPDATE):
        double(x)
        helper(x)
        network(x)
        other(x)
    double(x)
    helper(x)
    tail = Twice()
    tail(x)
    with probe.phase(SCORE):
        tail(x)
    # double, helper, network, other (to find out that it is none of the actor's), tail.
    assert counts.taken()[0] == 5
    with probe.phase(SCORE):
        other(x)
    assert counts.taken() == (1, 0)  # the reference's own graph, in the actor's phase
    probe.close()
    assert {e.cell for e in open_run(probe.config.dump_path).entries()} == {"root"}


class Cached(Assembled, body=Twice, once=lambda: Scale(0.5), head=lambda: Scale(5.0)):
    """Takes a prompt, then single tokens; a head runs at single tokens only."""

    def construct(self, x: Tensor) -> Tensor:
        x = self.body(x)
        if x.shape[0] == 1:
            return self.head(self.once(self.once(x)))
        return self.head(x)


class JittedTwice(Twice):
    """Compiled where Python runs what is around it."""

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        return self.second(self.alias(self.first(x)))


class Halves(Assembled, half=lambda: Scale(0.5), last=lambda: Scale(2.0)):
    """Runs a cell as often as the numbers ask for."""

    def construct(self, x: Tensor) -> Tensor:
        while x.sum() > 1:
            x = self.half(x)
        return self.last(x)


def generated(mode: int, path: Path, network: nn.Cell, window: tuple[int, int], how: str) -> Any:
    """Generate twice a step, for two steps; return what tells the entries apart."""
    section = {"msprobe": True, "dump_path": str(path), "actor_infer_dump": True, "step_end": 9}
    section |= {"token_range_start": window[0], "token_range_end": window[1]}
    with in_mode(mode), Probe.from_config(section) as probe:
        probe.watch(actor=network)
        for step in range(2):
            for part in range(2):
                with probe.phase(GENERATE):
                    for token in range(6):
                        rows = 4 if how == "cache" and not token else 1
                        x = tensor(rows, 2, start=1.0 + token + part + step)
                        if how == "phases":
                            network.set_train(False)
                            network.phase = "prefill" if not token else "increment"
                        if how == "parts":
                            network.head(network.backbone(x))
                        else:
                            network(x)
            probe.step()
    return [
        (
            *(e.step, e.name, e.token, e.opening, e.parent),
            [(r.name, r.leaf.fingerprint) for r in e.records],
        )
        for e in open_run(str(path)).entries()
    ]


@pytest.mark.parametrize("window", [(0, 2), (3, 4), (1, 1), (5, 9), (8, 9)])
@pytest.mark.parametrize(
    ("make", "how"),
    [(Twice, ""), (Cached, "cache"), (Twice, "phases"), (Policy, "parts"), (Halves, "")],
)
def test_tokens_and_calls_are_counted_as_in_pynative(make, how, window, tmp_path):
    """Whether the tokens before the window, and those of an earlier opening, had probes or not."""
    eager = generated(ms.PYNATIVE_MODE, tmp_path / "a", make(), window, how)
    compiled = generated(ms.GRAPH_MODE, tmp_path / "b", make(), window, how)
    assert compiled == eager
    assert bool(eager) == (window[0] < 6)


@pytest.mark.parametrize("make", [Twice, Cached])
def test_tokens_outside_the_window_run_without_probes(make, watched, counts):
    """Once a run has shown which calls of cells a graph makes."""
    probe, network = watched(make(), token_range_start=0, token_range_end=1)
    called = []
    for _ in range(2):
        with probe.phase(GENERATE):
            for token in range(5):
                network(tensor(1 if token else 4, 2))
                called.append(counts.taken()[1] > 0)
        probe.step()
    assert called == [True, True, False, False, False] * 2
    with probe.phase(SCORE):  # the same graphs with probes
        network(tensor(1, 2))
    assert counts.taken()[0] == 0


def test_a_jitted_part_of_a_network_counts_too(tmp_path):
    """In PyNative mode the cells around it count the tokens; its own calls are counted as well."""
    plain, jitted = (
        generated(ms.PYNATIVE_MODE, tmp_path / name, nn.SequentialCell(cell, Scale()), (2, 3), "")
        for name, cell in (("plain", Twice()), ("jitted", JittedTwice()))
    )
    assert repr(jitted) == repr(plain).replace("0.Twice", "0.JittedTwice")


def test_what_is_compiled_without_probes_before_watch_is_refused(layer_probe, counts):
    """Also where only the graph without probes was compiled while another role was recorded."""
    network, other, x = Scale(), Scale(), tensor(2, 2)
    probe = layer_probe(step_start=3)
    probe.watch(actor=network)
    both = nn.SequentialCell([network, other])
    both(x)
    with pytest.raises(UsageError, match="has been compiled already"):
        probe.watch(reference=other)
    probe.watch(actor=network)


def test_after_the_run_the_graphs_are_the_trainers_own(layer_probe, counts):
    """A closed probe leaves no wrapper and no probe in what is compiled from then on."""
    network, x = Twice(), tensor(2, 2)
    probe = layer_probe()
    probe.watch(actor=network)
    with probe.phase(SCORE):
        expected = network(x).asnumpy()
    probe.close()
    counts.taken()
    assert (network(x).asnumpy() == expected).all()
    assert counts.taken()[1] == 0
    assert not any("construct" in vars(cell) for _, cell in network.cells_and_names())


class Drawing(Assembled, body=Twice):
    """Draws random numbers before and after another cell."""

    def construct(self, x: Tensor) -> Tensor:
        return self.body(x + ops.standard_normal((4, 6))) * ops.rand(4, 6)


def drawn(probe: Probe, how: str) -> list[bytes]:
    """Run a network that draws random numbers inside and outside of what is recorded."""
    gc.collect()  # with an earlier network MindSpore forgets a key that this one would share
    ms.set_seed(3)
    network, later, x = Drawing(), Drawing(), tensor(4, 6)
    optimizer = nn.SGD(network.trainable_params(), 0.01)

    def loss(x: Tensor) -> Tensor:
        return network(x).sum()

    trained = ms.value_and_grad(loss, None, optimizer.parameters)
    jitted = ms.jit(loss)
    probe.watch(actor=network, optimizers={"actor": optimizer})
    found: list[bytes] = []

    def run() -> None:
        if how == "function":
            value = jitted(x)
        elif how == "update":
            value, gradients = trained(x)
            optimizer(gradients)
        else:
            value = network(x)
        found.append(value.asnumpy().tobytes())

    for _ in range(4):
        with probe.phase(GENERATE):
            for _ in range(3):
                run()
        run()
        probe.step()
    probe.close()
    for _ in range(2):
        run()
        found.append(later(x).asnumpy().tobytes())
    return found


@pytest.mark.parametrize("how", ["cell", "function", "update"])
@pytest.mark.parametrize("first", [0, 1])
def test_random_numbers_go_on_through_the_window(how, first, layer_probe, counts):
    """A graph keeps its random state: one of the two runs, before, inside and after the window."""
    plain = drawn(Probe(), how)
    probe = layer_probe(step_start=first, step_end=2, token_range_start=1, token_range_end=1)
    assert drawn(probe, how) == plain
    assert {(e.step, e.token) for e in open_run(probe.config.dump_path).entries()} >= {
        (step, 1) for step in range(first, 3)
    }


def test_gradients_of_counted_passes_line_up_with_pynative(layer_probe, tmp_path):
    """A backward entry belongs to no token, in either mode."""
    found = []
    for name, mode in MODES.items():
        network, x = Twice(), tensor(2, 3)
        with in_mode(mode), layer_probe(dump_path=str(tmp_path / name)) as probe:
            probe.watch(actor=network)
            gradient = ms.grad(network)
            with probe.phase(UPDATE, token_range=(1, 2)):
                for _ in range(4):
                    gradient(x)
            probe.step()
        entries = open_run(tmp_path / name).entries()
        found.append({(e.name, e.token) for e in entries if e.direction != "parameters_grad"})
    assert found[0] == found[1]
    assert {token for name, token in found[1] if ".backward." in name} == {None}
