"""What one phase leaves behind: entries, their names, values, order and call stacks."""

import dataclasses
import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers import small_networks
from helpers.small_networks import (
    Assembled,
    Catches,
    Does,
    Echo,
    Hidden,
    Mixed,
    Opaque,
    Pair,
    Policy,
    Raises,
    Returns,
    Scale,
    Twice,
    tensor,
)
from mindspore import nn, ops

from mindrlhf_msprobe.storage.reading.reader import Run

PHASE = "actor_update"


def values(run: Run, io: str, entry: int = 0) -> dict[str, Any]:
    """Return path → (type, shape or value) of one entry's inputs or outputs."""
    return {
        r.path: (r.leaf.type, r.leaf.shape if r.leaf.is_tensor else r.leaf.value)
        for r in run.entries()[entry].records
        if r.io == io
    }


TENSOR = ("mindspore.Tensor", (2,))


def test_entries_nest_under_the_names_and_classes_of_cells(run_phase):
    """Every cell that runs is an entry inside the nearest one around it; the network is root.

    A cell with two names keeps its first one and counts its calls there.
    """
    network = Policy()
    run = run_phase(network, lambda: network(tensor(2)))
    root, backbone = "Cell.root.Policy.forward.0", "Cell.backbone.Twice.forward.0"
    assert [(e.name, e.parent) for e in run.entries()] == [
        (root, None),
        (backbone, root),
        ("Cell.backbone.first.Scale.forward.0", backbone),
        ("Cell.backbone.first.Scale.forward.1", backbone),
        ("Cell.backbone.second.Scale.forward.0", backbone),
        ("Cell.head.Scale.forward.0", root),
    ]
    entries = {e.name: e for e in run.entries()}
    times = [t for e in entries.values() for t in (e.seq, e.end)]
    assert len(set(times)) == len(times)
    for entry in entries.values():
        assert entry.seq < entry.end
        if entry.parent:
            parent = entries[entry.parent]
            assert parent.seq < entry.seq < entry.end < parent.end


def test_parents_skip_cells_that_are_not_recorded(run_phase):
    """Where a container is excluded, its child's parent is the next recorded one."""
    network = Policy()
    run = run_phase(network, lambda: network(tensor(2)), exclude=["^backbone$"])
    parents = {e.cell: e.parent for e in run.entries()}
    assert parents["backbone.first"] == "Cell.root.Policy.forward.0"
    assert "backbone" not in parents


def test_include_and_exclude_choose_cells(run_phase):
    """Only cells that match include and not exclude are entries, with their true calls."""
    network = Policy()
    run = run_phase(network, lambda: network(tensor(2)), include=["backbone"], exclude=["second"])
    assert [e.name.removeprefix("Cell.") for e in run.entries()] == [
        "backbone.Twice.forward.0",
        "backbone.first.Scale.forward.0",
        "backbone.first.Scale.forward.1",
    ]


def test_calls_restart_in_each_phase_and_step(watched, recorded):
    """Call numbers go on over the openings of a phase, and start at 0 in each phase and step."""
    probe, network = watched(Scale())
    for _ in range(2):
        for phase in ("actor_update", "actor_compute_log_prob", "actor_update"):
            with probe.phase(phase):
                network(tensor(2))
        probe.step()
    found = [(e.step, e.phase, e.opening, e.call) for e in recorded(probe).entries()]
    one_step = [("actor_update", 0, 0), ("actor_compute_log_prob", 0, 0), ("actor_update", 1, 1)]
    assert found == [(step, *rest) for step in (0, 1) for rest in one_step]


def test_sequence_numbers_order_the_whole_run(watched, recorded):
    """Sequence numbers rise over phases, key data and steps."""
    probe, network = watched(Scale(), key_data_dump=True)
    with probe.phase("actor_update"):
        network(tensor(2))
    probe.save_data(loss=1.0)
    probe.step()
    with probe.phase("actor_compute_log_prob"):
        network(tensor(2))
    run = recorded(probe)
    first, second = run.entries()
    loss = run.key_data("loss")[0].seq
    assert first.seq < first.end < loss < second.seq < second.end  # type: ignore[operator]


def test_a_backbone_called_directly_has_no_parent(run_phase):
    """A trainer that calls parts of the network, not its root, gets the same entries without it."""
    network = Policy()
    run = run_phase(network, lambda: network.head(network.backbone(tensor(2))))
    assert [e.cell for e in run.entries() if e.parent is None] == ["backbone", "head"]


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((), {}, {}),
        ((tensor(2),), {}, {"0": TENSOR}),
        ((), {"x": tensor(2)}, {"x": TENSOR}),
        ((None, True, 3), {}, {"0": ("NoneType", None), "1": ("bool", True), "2": ("int", 3)}),
        ((2.5, "NaN"), {}, {"0": ("float", 2.5), "1": ("str", "NaN")}),
        (({"shape": [], "max": 2},), {}, {"0.max": ("int", 2)}),
        (({"a%2Eb": 1},), {}, {"0.a%252Eb": ("int", 1)}),
        ((float("inf"), float("-inf")), {}, {"0": ("float", np.inf), "1": ("float", -np.inf)}),
        ((10**30, 1 + 2j), {}, {"0": ("int", 10**30), "1": ("complex", "(1+2j)")}),
        (
            (tensor(2),),
            {"mask": None, "scale": 2},
            {"0": TENSOR, "mask": ("NoneType", None), "scale": ("int", 2)},
        ),
        (((tensor(2), [tensor(2), ()]),), {}, {"0.0": TENSOR, "0.1.0": TENSOR}),
        (({"a": {"b": tensor(2)}},), {}, {"0.a.b": TENSOR}),
        (({"a.b": tensor(2), "a/b": 1},), {}, {"0.a%2Eb": TENSOR, "0.a%2Fb": ("int", 1)}),
        (({1: 10, "1": 11},), {}, {"0.1": ("int", 10), "0.1~": ("int", 11)}),
        (({"": 1, None: 2},), {}, {"0.%": ("int", 1), "0.None": ("int", 2)}),
        ((Pair(tensor(2), 1),), {}, {"0.left": TENSOR, "0.right": ("int", 1)}),
        ((Hidden(tensor(2)),), {}, {"0.states": TENSOR, "0.cache": ("NoneType", None)}),
        ((OrderedDict(b=1, a=2),), {}, {"0.b": ("int", 1), "0.a": ("int", 2)}),
        ((np.arange(3),), {}, {"0": ("numpy.ndarray", (3,))}),
        ((np.float32(2),), {}, {"0": ("numpy.ndarray", ())}),
        ((np.array(["a", "b"]),), {}, {"0.0": ("str", "a"), "0.1": ("str", "b")}),
        ((ms.Parameter(tensor(2), name="p"),), {}, {"0": TENSOR}),
        ((Opaque(),), {}, {"0": ("helpers.small_networks.Opaque", None)}),
        (({1, 2},), {}, {"0": ("set", None)}),
    ],
)
def test_inputs_are_recorded_as_they_were_given(run_phase, args, kwargs, expected):
    """Positional and keyword arguments, however nested, become one record a leaf."""
    network = Echo() if args or kwargs else Returns(1)
    if not args and not kwargs:
        network.construct = lambda: 1  # a cell that takes nothing
    run = run_phase(network, lambda: network(*args, **kwargs))
    assert values(run, "input") == expected
    assert not run.manifests[0]["lost"]


def test_a_huge_integer_and_a_long_text_can_still_be_told(run_phase):
    """The one in hexadecimal, exactly; the other by its beginning, its length and a hash."""
    network = Echo()
    given = (7**6000, "x" * 9999 + "a", "x" * 9999 + "b", "\ud800")
    run = run_phase(network, lambda: network(*given))
    number, first, second, surrogate = values(run, "input").values()
    assert number == ("int", hex(7**6000))
    assert first[1].startswith("x" * 4096 + "… (10000 characters, sha1 ")
    assert first != second
    assert surrogate == ("str", "\ud800")


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (None, {"0": ("NoneType", None)}),
        (3, {"0": ("int", 3)}),
        (tensor(2), {"0": TENSOR}),
        ((tensor(2), None), {"0": TENSOR, "1": ("NoneType", None)}),
        ([tensor(2)], {"0.0": TENSOR}),
        ((), {}),
        (((tensor(2),),), {"0.0": TENSOR}),
        ({"logits": tensor(2)}, {"0.logits": TENSOR}),
        (Pair(tensor(2), 1), {"0.left": TENSOR, "0.right": ("int", 1)}),
        (Hidden(tensor(2), (1,)), {"0.states": TENSOR, "0.cache.0": ("int", 1)}),
    ],
)
def test_outputs_are_recorded_as_they_were_returned(run_phase, output, expected):
    """A single output is output.0, a tuple's elements are output.0, output.1, …; as msprobe's"""
    network = Returns(output)
    run = run_phase(network, lambda: network(tensor(2)))
    assert values(run, "output") == expected


def test_a_model_output_is_followed(run_phase):
    """A ModelOutput is recorded by the fields that were set."""
    generic = pytest.importorskip("transformers.utils.generic")

    @dataclasses.dataclass
    class Output(generic.ModelOutput):  # type: ignore[misc,name-defined]
        last_hidden_state: Any = None
        hidden_states: Any = None

    network = Returns(Output(last_hidden_state=tensor(2)))
    run = run_phase(network, lambda: network(tensor(2)))
    assert values(run, "output") == {"0.last_hidden_state": TENSOR}


def test_a_structure_that_holds_itself_ends(run_phase):
    """A list or dict that holds itself, several times over, is recorded once and marked."""
    network = Echo()
    loop: list[Any] = [1]
    loop += [loop, loop]
    knot: dict[str, Any] = {"loop": loop, "again": {}}
    knot["again"]["knot"] = knot
    run = run_phase(network, lambda: network(tensor(2), loop, knot))
    assert values(run, "input")["1.0"] == ("int", 1)
    assert len(values(run, "input")) < 12


def test_a_very_deep_structure_ends(run_phase):
    """What is nested deeper than anybody would is cut, and says so by being opaque."""
    network = Echo()
    deep: Any = tensor(2)
    for _ in range(5000):
        deep = [deep]
    run = run_phase(network, lambda: network(1, deep))
    leaf = next(r.leaf for r in run.entries()[0].records if r.path.startswith("1.0"))
    assert leaf.opaque


def test_odd_signatures_are_recorded(run_phase):
    """Keyword-only arguments, positional None and dicts of None arrive under their names."""
    network = Mixed()
    run = run_phase(network, lambda: network(tensor(2, 4), scale=2.0))
    by_cell = {
        e.cell: {r.path: r.leaf for r in e.records if r.io == "input"} for e in run.entries()
    }
    assert by_cell["root"]["scale"].value == 2.0
    assert set(by_cell["blocks.0"]) == {"0", "1", "extra.mask", "extra.scale"}
    assert "blocks" not in by_cell
    assert {"tail", "tail.0", "tail.1", "cubed"} <= set(by_cell)


def test_containers_are_followed(run_phase):
    """Cells in lists, dicts and sequences are recorded; the containers that never run are not."""

    network = Does(
        lambda net, x: net.layers[0](net.items["c_d"](net.items["a-b"](x))),
        items=nn.CellDict({"a-b": Scale(), "c_d": Scale()}),
        layers=nn.CellList([nn.SequentialCell(Scale(), Scale())]),
    )
    run = run_phase(network, lambda: network(tensor(2)), task="tensor")
    names = ["root", "items.a-b", "items.c_d", "layers.0", "layers.0.0", "layers.0.1"]
    assert [e.cell for e in run.entries()] == names
    assert all(r.array() is not None for e in run.entries() for r in e.records if r.file)


class Empty(Assembled, inner=Scale):
    """A cell with a length, which is therefore false in `if cell`."""

    def __len__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Empty)

    def __hash__(self) -> int:
        return 1

    def construct(self, x: Any) -> Any:
        return self.inner(x)


def test_cells_that_are_false_or_equal_are_still_cells(run_phase):
    """A cell that defines len() or == is found, and two equal ones are two cells."""
    network = nn.SequentialCell(Empty(), Empty())
    run = run_phase(network, lambda: network(tensor(2)))
    assert [e.cell for e in run.entries()] == ["root", "0", "0.inner", "1", "1.inner"]


def test_a_child_called_root_keeps_its_own_entry(run_phase):
    """A child whose name is root does not collide with the network itself."""
    network = Does(lambda net, x: net.root(x), root=Scale())
    run = run_phase(network, lambda: network(tensor(2)))
    names = ["Cell.root.Does.forward.0", "Cell.root~.Scale.forward.0"]
    assert [e.name for e in run.entries()] == names


def test_a_deeply_nested_network_is_recorded(run_phase):
    """Two hundred cells inside each other are two hundred entries."""
    network: nn.Cell = Scale(1.0)
    for _ in range(199):
        network = nn.SequentialCell(network)
    run = run_phase(network, lambda: network(tensor(2)))
    assert len(run.entries()) == 200
    assert not run.manifests[0]["lost"]


def test_parameters_stand_at_the_first_call_and_again_when_they_changed(run_phase):
    """A cell's own parameters alone; after an optimizer's step, only those that it changed."""
    network = Twice()
    optimizer = nn.SGD([network.second.factor], learning_rate=0.5)
    body = lambda: (network(tensor(2)), optimizer((ms.Tensor(np.float32(2.0)),)))  # noqa: E731
    run = run_phase(network, body, openings=2, task="tensor")
    found = [
        (e.name, e.opening, r.path, float(r.array()))
        for e in run.entries()
        for r in e.records
        if r.io == "parameters"
    ]
    assert found == [
        ("Cell.first.Scale.forward.0", 0, "factor", 2.0),
        ("Cell.second.Scale.forward.0", 0, "factor", 3.0),
        ("Cell.second.Scale.forward.1", 1, "factor", 2.0),
    ]


def test_parameters_and_fingerprints_can_be_left_out(run_phase):
    """Inputs and outputs alone stay then, with statistics and no hash; else a hash per tensor."""
    network = Twice()
    whole = run_phase(network, lambda: network(tensor(2)))
    less = run_phase(network, lambda: network(tensor(2)), parameters=False, fingerprint=False)
    assert {r.io for e in less.entries() for r in e.records} == {"input", "output"}
    with_hash, without = (
        [r.leaf for e in run.entries() for r in e.records] for run in (whole, less)
    )
    assert all(leaf.norm is not None for leaf in (*with_hash, *without))
    assert {leaf.fingerprint.partition(":")[0] for leaf in with_hash} == {"xxh3_128"}
    assert {leaf.fingerprint for leaf in without} == {None}


def test_an_in_place_change_by_the_cell_does_not_reach_its_inputs(run_phase):
    """Inputs are recorded as they were before the cell ran, also if the cell overwrites them."""
    network = Does(lambda _, x: ops.assign(x, x * 0 + 9))
    x = ms.Parameter(tensor(2, start=1.0), name="x")
    before = x.asnumpy().copy()
    run = run_phase(network, lambda: network(x), task="tensor")
    got = {r.io: r.array() for r in run.entries()[0].records}
    assert np.array_equal(got["input"], before)
    assert np.array_equal(got["output"], [9, 9])


def test_a_cell_that_returns_its_input_returns_the_same_object(run_phase):
    """A hooked cell passes on the very objects it was given and returned."""
    network, found = Echo(), []
    given = {"x": tensor(2), "nested": [tensor(2)]}
    run_phase(network, lambda: found.extend([network(given), network(given["nested"])]))
    assert found[0] is given
    assert found[1] is given["nested"]


def test_a_cell_that_raises_leaves_an_unfinished_entry(watched, recorded):
    """The entries of a cell that raised, and of those around it, have inputs and no end."""
    probe, network = watched(nn.SequentialCell(Scale(), Raises()))
    with pytest.raises(ArithmeticError, match="inside the cell"), probe.phase(PHASE):
        network(tensor(2))
    entries = {e.cell: e for e in recorded(probe).entries()}
    assert {cell: e.end is None for cell, e in entries.items()} == {
        "root": True,
        "0": False,
        "1": True,
    }
    assert [r.io for r in entries["1"].records] == ["input"]


def test_an_exception_caught_by_the_parent_does_not_confuse_what_follows(run_phase):
    """After a child raised and its parent went on, the next child's parent is the parent."""
    network = Catches()
    run = run_phase(network, lambda: network(tensor(2)))
    entries = {e.cell: e for e in run.entries()}
    assert entries["breaks"].end is None
    assert entries["follows"].parent == "Cell.root.Catches.forward.0"
    assert entries["follows"].end is not None
    assert entries["root"].end is not None


def test_an_exception_caught_by_the_trainer_does_not_confuse_what_follows(run_phase):
    """After a network raised inside a phase and is called again, that call has no parent."""
    network = nn.SequentialCell(Raises())

    def body() -> None:
        with pytest.raises(ArithmeticError):
            network(tensor(2))
        network[0].armed = False
        network(tensor(2))

    run = run_phase(network, body)
    assert [(e.name, e.parent, e.end is None) for e in run.entries()] == [
        ("Cell.root.SequentialCell.forward.0", None, True),
        ("Cell.0.Raises.forward.0", "Cell.root.SequentialCell.forward.0", True),
        ("Cell.root.SequentialCell.forward.1", None, False),
        ("Cell.0.Raises.forward.1", "Cell.root.SequentialCell.forward.1", False),
    ]


def test_a_cell_that_calls_itself_nests(run_phase):
    """A recursive cell is its own parent, one call inside the other."""
    network = Does(lambda net, x, depth: net(x + 1, depth - 1) if depth else x)
    run = run_phase(network, lambda: network(tensor(2), 2))
    assert [(e.call, e.parent) for e in run.entries()] == [
        (0, None),
        (1, "Cell.root.Does.forward.0"),
        (2, "Cell.root.Does.forward.1"),
    ]


def test_a_phase_opened_inside_a_running_cell(layer_probe, recorded):
    """A cell entered before the phase opened is not recorded; what begins inside is, whole."""
    probe = layer_probe()

    def opens(net: nn.Cell, x: Any) -> Any:
        with probe.phase(PHASE):
            return net.inner(x)

    network = Does(opens, inner=Scale())
    probe.watch(actor=network)
    network(tensor(2))
    assert [(e.cell, e.parent) for e in recorded(probe).entries()] == [("inner", None)]


def test_a_phase_that_opens_in_one_cell_and_closes_after_it(layer_probe, recorded):
    """A cell that returns inside the phase but began before it leaves no entry and no fault."""
    probe = layer_probe()
    context = probe.phase(PHASE)

    def opens(_: nn.Cell, x: Any) -> Any:
        context.__enter__()
        return x

    network = nn.SequentialCell(Does(opens), Scale())
    probe.watch(actor=network)
    network(tensor(2))
    context.__exit__(None, None, None)
    run = recorded(probe)
    assert [e.cell for e in run.entries()] == ["1"]
    assert not run.manifests[0]["lost"]


def test_threads_do_not_mix_their_entries(run_phase):
    """Cells that run in several threads at once nest within their thread, and none is lost."""
    network = Policy()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                network(tensor(2))
        except BaseException as error:
            failures.append(error)

    def body() -> None:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run = run_phase(network, body)
    assert not failures
    assert not run.manifests[0]["lost"]
    entries = run.entries()
    assert len(entries) == 20 * 6
    assert len({e.name for e in entries}) == len(entries)
    by_name = {e.name: e for e in entries}
    for entry in entries:
        assert (entry.parent is None) == (entry.cell == "root")
        if entry.parent:
            assert by_name[entry.parent].cell == ("backbone" if "." in entry.cell else "root")


def test_a_thread_that_is_still_running_leaves_its_entries(run_phase):
    """A cell that another thread has not left when the phase ends is an unfinished entry."""
    started, finish = threading.Event(), threading.Event()

    def waits(_: nn.Cell, x: Any) -> Any:
        started.set()
        finish.wait(30)
        return x

    network = Does(waits)
    thread = threading.Thread(target=lambda: network(tensor(2)))

    def body() -> None:
        thread.start()
        started.wait(30)

    run = run_phase(network, body)
    finish.set()
    thread.join()
    assert [(e.name, e.end) for e in run.entries()] == [("Cell.root.Does.forward.0", None)]


def test_the_stack_names_the_users_and_the_models_lines(run_phase):
    """A call stack shows this test and the model's file, not MindSpore's nor the probe's."""
    network = Policy()
    run = run_phase(network, lambda: network(tensor(2)))
    stack = next(e for e in run.entries() if e.cell == "backbone.first").stack
    files = [frame.partition(",")[0].removeprefix("File ") for frame in stack]
    assert files[:2] == [small_networks.FILE, small_networks.FILE]
    assert "in construct" in stack[0]
    assert "self.alias(self.first(x))" in stack[0]
    assert __file__ in files
    assert not any("/mindspore/" in file or "mindrlhf_msprobe" in file for file in files)
    assert not any("contextlib" in file or "threading.py" in file for file in files)


def test_a_real_llama_is_recorded(run_phase, build_llama):
    """A mindformers Llama leaves one entry a cell that runs, every tensor with its statistics."""
    network = build_llama()
    tokens = ms.Tensor(np.arange(8).reshape(1, 8), ms.int32)
    run = run_phase(network, lambda: network(tokens))
    cells = [e.cell for e in run.entries()]
    assert cells[0] == "root"
    assert {"model", "lm_head", "model.layers.0", "model.layers.1.attention.wo"} <= set(cells)
    assert len(cells) > 30
    for entry in run.entries():
        assert entry.end is not None
        for record in entry.records:
            assert record.leaf.why is None
            assert not record.leaf.is_tensor or record.leaf.fingerprint
    stack = next(e for e in run.entries() if e.cell == "model.layers.1").stack
    assert any("mindformers" in frame for frame in stack)
    assert not run.manifests[0]["lost"]
