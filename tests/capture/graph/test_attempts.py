"""Graphs that cannot hold probes: they train as without, and what is missing is coverage."""

from collections import namedtuple

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.small_networks import Assembled, in_mode, tensor
from mindspore import Parameter, Tensor, nn, ops

from mindrlhf_msprobe import Probe, open_run

Pair = namedtuple("Pair", "first second")


class Weighted(nn.Cell):
    """Multiplies by a weight what `body` makes of what the cell is given."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.arange(1, 5, dtype=np.float32)), name="weight")

    def construct(self, x):
        """Multiply."""
        return x * self.weight


class AddsInPlace(Weighted):
    """Changes its argument."""

    def construct(self, x):
        """Add, and multiply."""
        x.add_(1)
        return x * self.weight


class CopiesInPlace(Weighted):
    """Changes its argument."""

    def construct(self, x):
        """Copy, and multiply."""
        x.copy_(x * 3)
        return x * self.weight


class InALoop(Weighted):
    """Changes its argument several times."""

    def construct(self, x):
        """Multiply."""
        for _ in range(3):
            x.mul_(2)
        return x * self.weight


class OfAView(Weighted):
    """Changes a view of its argument."""

    def construct(self, x):
        """Add, and multiply."""
        x.view((4, 3)).add_(1)
        return x * self.weight


class OfATuple(Weighted):
    """Changes an element of a tuple."""

    def construct(self, pair):
        """Add, and multiply."""
        pair[0].add_(1)
        return pair[0] * self.weight


def _changed(x):
    x.add_(1)
    return x


class ByAFunction(Weighted):
    """Has a function change its argument."""

    def construct(self, x):
        """Add, and multiply."""
        return _changed(x) * self.weight


class Holding(nn.Cell):
    """Holds another cell."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def construct(self, x):
        """Call it."""
        return self.inner(x)


class Same(nn.Cell):
    """Returns what it is given."""

    def construct(self, x):
        """Return it."""
        return x


class UsedAfter(nn.Cell):
    """Uses what it gave to a cell."""

    def __init__(self, inner, *, in_tuple=False):
        super().__init__()
        self.inner, self.in_tuple = inner, in_tuple

    def construct(self, x):
        """Call the cell and add what it was given."""
        given = x * 2
        returned = self.inner((given, x)) if self.in_tuple else self.inner(given)
        return returned + given


class ChangedByCaller(Assembled, same=Same, last=Weighted):
    """Changes what a cell returned, which is what it was given."""

    def construct(self, x):
        """Call the cell, change its output and use its input."""
        given = x * 2
        returned = self.same(given)
        returned.add_(1)
        return self.last(returned) + given


class CopiesIntoCache(Weighted):
    """Changes a Parameter that it is given."""

    def construct(self, cache, x):
        """Keep the product, and add what is kept."""
        cache.copy_(x * self.weight)
        return x * self.weight + cache


class HoldsCache(nn.Cell):
    """Holds the Parameter."""

    def __init__(self):
        super().__init__()
        self.inner = CopiesIntoCache()
        self.cache = Parameter(ops.ones((3, 4)), name="cache", requires_grad=False)

    def construct(self, x):
        """Call the cell and read the Parameter."""
        return self.inner(self.cache, x) * 2 + self.cache


def trained(network, settings, path, *, jit=False):
    """Train for two steps and return the bits of losses, gradients and weights."""
    optimizer = nn.SGD(network.trainable_params(), 0.01)

    def loss_of(x):
        return network(x).sum()

    section = {"msprobe": settings is not None, "actor_train_dump": True, "step_end": 9}
    section |= {"dump_path": str(path), **(settings or {})}
    bits = []
    with in_mode(ms.PYNATIVE_MODE if jit else ms.GRAPH_MODE), Probe.from_config(section) as probe:
        probe.watch(actor=network, optimizers={"actor": optimizer})
        forward = ms.value_and_grad(loss_of, None, optimizer.parameters)
        step = ms.jit(forward) if jit else forward
        for _ in range(2):
            with probe.phase("actor_update"):
                loss, gradients = step(tensor(3, 4))
                optimizer(gradients)
            probe.step()
            bits += [each.asnumpy().tobytes() for each in (loss, *gradients)]
    return bits + [each.asnumpy().tobytes() for each in network.get_parameters()]


def reasons(path):
    """Return the codes of what `coverage.graph_mode` says of each cell."""
    found = open_run(path).coverage().get("graph_mode", {}).get("actor", {})
    return {cell: {why.code.partition(".")[2] for why in whys} for cell, whys in found.items()}


def _in_place():
    for changing in (AddsInPlace, CopiesInPlace, InALoop, OfAView, ByAFunction):
        yield pytest.param(lambda c=changing: UsedAfter(c()), id=changing.__name__)
    yield pytest.param(lambda: UsedAfter(OfATuple(), in_tuple=True), id="tuple")
    yield pytest.param(lambda: UsedAfter(Holding(AddsInPlace())), id="two cells deep")
    yield pytest.param(ChangedByCaller, id="by the caller")
    yield pytest.param(HoldsCache, id="a Parameter that is passed")


@pytest.mark.parametrize("make", [*_in_place()])
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "jit"])
def test_a_change_in_place_reaches_who_holds_the_tensor(tmp_path, make, jit):
    """As without probes: MindSpore loses it where a probe stands around the cell."""
    plain = trained(make(), None, tmp_path / "none", jit=jit)
    assert trained(make(), {}, tmp_path / "run", jit=jit) == plain
    run = open_run(tmp_path / "run")
    assert not run.manifests[0]["lost"]
    recorded = {entry.name for entry in run.entries() if entry.direction == "forward"}
    assert recorded or all("changed_in_place" in why for why in reasons(tmp_path / "run").values())
    assert recorded or "root" in reasons(tmp_path / "run")


def test_cells_left_out_change_in_place_as_well(tmp_path):
    """A probe at the root, or none but forward ones, is enough to lose a change."""
    plain = trained(UsedAfter(AddsInPlace()), None, tmp_path / "none")
    for i, settings in enumerate(({"exclude": ["^inner$"]}, {"directions": ["forward"]})):
        assert trained(UsedAfter(AddsInPlace()), settings, tmp_path / str(i)) == plain


def test_without_gradients_a_change_in_place_is_recorded(run_phase):
    """A graph that is not differentiated holds its probes."""
    network = UsedAfter(AddsInPlace())
    run = run_phase(network, lambda: network(tensor(3, 4)), mode=ms.GRAPH_MODE)
    assert [entry.cell for entry in run.entries()] == ["root", "inner"]
    assert not reasons(run.path)


class TakesPair(Weighted):
    """Takes and returns a named tuple."""

    def construct(self, pair):
        """Multiply its first element."""
        return Pair(pair.first * self.weight, pair.second)


class MakesPair(Assembled, inner=lambda: Holding(TakesPair())):
    """Gives a named tuple to a cell."""

    def construct(self, x):
        """Call it."""
        returned = self.inner(Pair(x, x * 2))
        return returned.first + returned.second


class TakesSparse(Weighted):
    """Takes and returns a COOTensor."""

    def construct(self, sparse, x):
        """Multiply."""
        return sparse, x * self.weight


class MakesSparse(Assembled, inner=TakesSparse):
    """Gives a COOTensor to a cell."""

    def construct(self, x):
        """Call it."""
        indices = Tensor([[0, 1], [1, 2]], ms.int32)
        sparse, returned = self.inner(ms.COOTensor(indices, x[0, :2], (3, 4)), x)
        return returned + sparse.values.sum()


class ReturnsNone(Assembled, first=Weighted, last=Weighted):
    """Returns a dict with None in it."""

    def construct(self, x):
        """Multiply."""
        y = self.last(self.first(x))
        return y, {"twice": y * 2, "none": None}


class TakesNone(Assembled, inner=ReturnsNone):
    """Uses a dict with None in it."""

    def construct(self, x):
        """Call a cell."""
        y, named = self.inner(x)
        return y + named["twice"]


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "jit"])
@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (MakesPair, {}),
        (MakesPair, {"directions": ["forward"]}),
        (MakesSparse, {}),
        (TakesNone, {"include": ["^inner$"]}),
    ],
    ids=["named tuple", "named tuple, forward", "COOTensor", "None in a dict"],
)
def test_what_does_not_compile_with_probes_trains_without(tmp_path, make, settings, jit):
    """MindSpore's own graph runs; every cell in it is coverage, also one that was not reached."""
    plain = trained(make(), None, tmp_path / "none", jit=jit)
    assert trained(make(), settings, tmp_path / "run", jit=jit) == plain
    names = {name for name, _ in make().cells_and_names() if name} | {"root"}
    if "include" in settings:
        names = {"inner"}
    assert set(reasons(tmp_path / "run")) == names
    codes = {"not_compiled", "python_in_graph"}
    assert all(why & codes for why in reasons(tmp_path / "run").values())


class Wrong(Weighted):
    """Does not compile, with probes or without."""

    def construct(self, x):
        """Multiply what cannot be multiplied."""
        return ops.matmul(x, self.weight * x)


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "jit"])
def test_errors_of_the_training_are_its_own(tmp_path, jit):
    """What does not compile without probes raises the very same with them."""
    raised = []
    for settings in (None, {}):
        with pytest.raises(Exception, match=r".") as error:
            trained(UsedAfter(Wrong()), settings, tmp_path / "run", jit=jit)
        raised.append((error.type, str(error.value).partition("\n")[0]))
    assert raised[0] == raised[1]


class Mixed(Weighted):
    """Takes and returns what is no tensor, too."""

    def construct(self, x, text="text", flag=True, named=None):
        """Multiply."""
        y = x * self.weight
        return y, text, flag, {"deep": (y, [y, None, 2])}, [], named


class TakesMixed(Assembled, inner=Mixed):
    """Uses it."""

    def construct(self, x):
        """Call it in two ways."""
        first = self.inner(x)
        second = self.inner(x, "q", flag=False, named={"x": (x, [1, x])})
        return first[0] + second[3]["deep"][1][0]


def test_hooks_are_no_part_of_jitted_code(tmp_path):
    """Odd values, which MindSpore cannot hand to a hook that it compiles, are recorded."""
    plain = trained(TakesMixed(), None, tmp_path / "none", jit=True)
    assert trained(TakesMixed(), {}, tmp_path / "run", jit=True) == plain
    assert not reasons(tmp_path / "run")
    forward = [e.name for e in open_run(tmp_path / "run").entries() if e.direction == "forward"]
    assert len(forward) == 2 * 3


class Summed(Holding):
    """A network's output as one number."""

    def construct(self, x):
        """Add it up."""
        return self.inner(x).sum()


class TrainStep(nn.Cell):
    """Trains, and returns what it does not know as None, as MindFormers' wrappers do."""

    def __init__(self, network):
        super().__init__()
        self.loss = Summed(network)
        self.optimizer = nn.SGD(network.trainable_params(), 0.01)
        self.gradients = ops.GradOperation(get_by_list=True)

    def construct(self, x):
        """Train for one step; Python makes None while the graph runs."""
        loss = self.loss(x)
        gradients = self.gradients(self.loss, self.optimizer.parameters)(x)
        return ops.depend(loss, self.optimizer(gradients)), None


def one_step(step, network, tmp_path, *, on=True):
    """Train for one step in graph mode, recorded or not."""
    section = {"msprobe": on, "actor_train_dump": True, "dump_path": str(tmp_path / "run")}
    with in_mode(ms.GRAPH_MODE), Probe.from_config(section) as probe:
        probe.watch(actor=network, optimizers={"actor": step.optimizer})
        with probe.phase("actor_update"):
            return step(tensor(3, 4))


@pytest.mark.parametrize("inner", [Weighted, AddsInPlace])
def test_a_step_that_returns_none_is_recorded(tmp_path, inner):
    """None only leaves the graph; a change in place still does without probes."""
    weights = []
    for on in (False, True):
        network = UsedAfter(inner())
        _, none = one_step(TrainStep(network), network, tmp_path, on=on)
        assert none is None
        weights.append(network.inner.weight.asnumpy().tobytes())
    assert weights[0] == weights[1]
    directions = {entry.direction for entry in open_run(tmp_path / "run").entries()}
    found = set().union(*reasons(tmp_path / "run").values())
    if inner is Weighted:
        assert directions >= {"forward", "backward"}
        assert not found
    else:
        assert "forward" not in directions
        assert found == {"changed_in_place"}


class Picks(Weighted):
    """Picks elements, which MindSpore differentiates by operators that scatter."""

    def construct(self, x):
        """Multiply what is picked in several ways."""
        y = x * self.weight
        rows = Tensor([[0, 1], [2, 3]], ms.int32)
        picked = ops.gather_nd(y, rows).sum() + y[1, 2] + ops.topk(y, 2)[0].sum()
        return y + picked + ops.sort(y)[0] + y.max(axis=1, keepdims=True)


class SkipsUpdates(TrainStep):
    """Updates weights where nothing overflowed."""

    def construct(self, x):
        """Train for one step."""
        loss = self.loss(x)
        gradients = self.gradients(self.loss, self.optimizer.parameters)(x)
        if ops.isfinite(loss):
            self.optimizer(gradients)
        return loss


@pytest.mark.parametrize("step", [TrainStep, SkipsUpdates])
def test_what_only_seems_to_change_in_place_is_recorded(tmp_path, step):
    """Operators that scatter into a new tensor, and an optimizer in a branch."""
    network = UsedAfter(Picks())
    one_step(step(network), network, tmp_path)
    assert not reasons(tmp_path / "run")
    directions = {entry.direction for entry in open_run(tmp_path / "run").entries()}
    assert directions >= {"forward", "backward"}
