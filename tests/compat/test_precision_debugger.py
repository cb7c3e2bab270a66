"""PrecisionDebugger: msprobe's config.json and calls at level L0."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.programs import read_json

ms = pytest.importorskip("mindspore")

from helpers.small_networks import Scale, Twice, hook_count, tensor
from mindspore import nn, ops

from mindrlhf_msprobe import (
    ConfigError,
    GradComparator,
    PrecisionDebugger,
    RunError,
    SingleSave,
    UsageError,
    compare_distributed,
    compare_runs,
    open_run,
)
from mindrlhf_msprobe.report.comparison import render
from mindrlhf_msprobe.storage.reading.gradients import open_gradients

pytestmark = pytest.mark.usefixtures("older_tools")

#: As it comes with msprobe 26.2, but for level and dump_path.
MSPROBES: dict[str, Any] = {
    "task": "statistics",
    "rank": [],
    "step": [],
    "level": "L0",
    "extra_info": True,
    "async_dump": False,
    "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"},
    "tensor": {"scope": [], "list": [], "data_mode": ["all"]},
    "acc_check": {"white_list": [], "black_list": [], "error_data_path": "./"},
}
MODES = {"pynative": ms.PYNATIVE_MODE, "graph": ms.GRAPH_MODE}


class Block(nn.Cell):
    """Two layers and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 4)

    def construct(self, x: Any) -> Any:
        return self.fc2(self.act(self.fc1(x)))


class Net(nn.Cell):
    """Two blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        ms.set_seed(1)
        self.blocks = nn.SequentialCell([Block(), Block()])
        self.head = nn.Dense(4, 2)

    def construct(self, x: Any) -> Any:
        return self.head(self.blocks(x))


@pytest.fixture(params=list(MODES))
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test in both modes."""
    ms.set_context(mode=MODES[request.param])
    yield request.param
    ms.set_context(mode=ms.PYNATIVE_MODE)


def config(path: Path, **settings: Any) -> str:
    """Write msprobe's config.json; settings of a task replace its own."""
    content = {**MSPROBES, "dump_path": str(path / "dump"), **settings}
    for task in ("statistics", "tensor"):
        content[task] = {**MSPROBES[task], **settings.get(task, {})}
    file = path / "config.json"
    file.write_text(json.dumps(content))
    return str(file)


def train(steps: int = 2, debugger: Any = None) -> list[bytes]:
    """Train a small network, debugged if there is a debugger; return the bits of its losses."""
    network = Net()
    loss_of = nn.WithLossCell(network, nn.MSELoss())
    train_step = nn.TrainOneStepCell(loss_of, nn.Adam(network.trainable_params(), 0.1)).set_train()
    bits = []
    for _ in range(steps):
        if debugger is not None:
            debugger.start(network)
        loss = train_step(tensor(2, 4), tensor(2, 2))
        bits.append(loss.asnumpy().tobytes())
        if debugger is not None:
            debugger.stop()
            debugger.step()
    return bits + [p.asnumpy().tobytes() for p in network.get_parameters()]


def debug(debugger: Any, network: Any, *inputs: Any, passes: int = 1) -> None:
    """Record passes of a network, each between a start and a stop, as one step."""
    for _ in range(passes):
        debugger.start(network)
        network(*inputs)
        debugger.stop()
    debugger.step()


def entries(path: Path, step: int = 0) -> dict[str, Any]:
    """Return what msprobe's tools read of a step."""
    return read_json(path / f"dump/step{step}/rank0/dump.json")["data"]


def test_dumps_lie_where_msprobe_puts_them(tmp_path, mode):
    """step<N>/rank<N> directly in the dump_path, read by open_run; training is unchanged."""
    plain = train()
    debugger = PrecisionDebugger(config_path=config(tmp_path))
    assert train(debugger=debugger) == plain
    assert sorted(p.name for p in (tmp_path / "dump/step1/rank0").iterdir()) == [
        *("construct.json", "dump.json", "records.jsonl", "stack.json")
    ]
    head = read_json(tmp_path / "dump/step0/rank0/dump.json")
    assert (head["task"], head["level"], head["framework"]) == ("statistics", "L0", "mindspore")
    found = entries(tmp_path)
    forward = found["Cell.blocks.0.fc1.Dense.forward.0"]
    assert set(forward) == {"input_args", "input_kwargs", "output", "parameters"}
    assert {"Max", "Min", "Mean", "Norm"} <= set(forward["output"][0])
    assert {"input", "output"} <= set(found["Cell.blocks.0.fc1.Dense.backward.0"])
    assert set(found["Cell.head.Dense.parameters_grad.0"]) == {"weight", "bias"}
    assert len(found) == 11 + 11 + 5  # forward, backward, gradients of parameters
    run = open_run(tmp_path / "dump")
    assert (run.phases, run.steps, run.ranks) == (["dump"], [0, 1], [0])
    assert open_run(tmp_path / "dump/step1").steps == [1]


@pytest.mark.parametrize(("section", "written"), [({}, 1), ({"overflow_nums": -1}, 2)])
def test_overflow_check_of_msprobes_config_json(tmp_path, section, written):
    """Full tensors of the cells in which NaN arose; msprobe's tools read the rest as statistics."""

    class Log(nn.Cell):
        def construct(self, x):
            return ops.log(x - 1e6)

    network = nn.SequentialCell(Log(), nn.Dense(4, 4), Log())
    overflow = {"check_mode": "all", **section}
    debugger = PrecisionDebugger(config(tmp_path, task="overflow_check", overflow_check=overflow))
    for _ in range(2):
        debug(debugger, network, tensor(2, 4))
    name = "Cell.0.Log.forward.0"
    for step in range(2):
        dump = read_json(tmp_path / f"dump/step{step}/rank0/dump.json")
        assert dump["task"] == "statistics"
        files = {
            f"{entry}: {leaf['data_name']}"
            for entry, values in dump["data"].items()
            for leaf in (*values["input_args"], *values["output"])
            if "data_name" in leaf
        }
        expected = {f"{name}: {name}.{record}.npy" for record in ("input.0", "output.0")}
        assert files == (expected if step < written else set())
        there = tmp_path / f"dump/step{step}/rank0/dump_tensor_data"
        assert {f"{name}: {file.name}" for file in there.glob("*.npy")} == files


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # (what msprobe 26.2 records with the same config.json, but that the last entry of a scope
        # and the outermost cell are recorded whole)
        ({"list": ["relu", "fc2.Dense.forward"]}, ["0.fc2.Dense.f", "1.fc2.Dense.f"]),
        (
            {"scope": ["Cell.blocks.0.act.ReLU.forward.0", "Cell.blocks.1.fc1.Dense.forward.0"]},
            ["0.act.ReLU.f", "0.fc2.Dense.f", "1.Block.f", "1.fc1.Dense.f"],
        ),
        (
            {
                "scope": ["Cell.blocks.1.fc1.Dense.forward.0", "Cell.blocks.1.act.ReLU.backward.0"],
                "list": ["fc2", "ReLU.backward"],
            },
            ["1.act.ReLU.b", "1.fc2.Dense.b", "1.fc2.Dense.f", "1.fc2.Dense.p"],
        ),
        (
            {
                "scope": [
                    "Cell.blocks.1.fc1.Dense.backward.0",
                    "Cell.blocks.0.fc2.Dense.backward.0",
                ],
                "list": ["Dense.b"],
            },
            ["0.fc2.Dense.b", "0.fc2.Dense.p", "1.fc1.Dense.b", "1.fc1.Dense.p"],
        ),
    ],
)
def test_list_and_scope_choose_entries(tmp_path, mode, settings, expected):
    """A list holds texts that occur in names, a scope the first and the last entry, in time."""
    train(1, PrecisionDebugger(config(tmp_path, statistics=settings)))
    prefix = "Cell.blocks."
    found = {name.removeprefix(prefix).rpartition(".")[0] for name in entries(tmp_path)}
    short = {f"{name.rpartition('.')[0]}.{name.rpartition('.')[2][0]}" for name in found}
    assert sorted(short) == sorted(expected)


@pytest.mark.parametrize(
    ("modes", "forward", "backward"),
    [
        (["input"], {"input_args", "input_kwargs"}, {"input"}),
        (["output"], {"output", "parameters"}, {"output"}),
        (["forward"], {"input_args", "input_kwargs", "output", "parameters"}, None),
        (["backward", "output"], None, {"output"}),
    ],
)
def test_data_mode_chooses_parts(tmp_path, mode, modes, forward, backward):
    """input, output, forward and backward, alone and together; only those files are stored."""
    train(1, PrecisionDebugger(config(tmp_path, task="tensor", tensor={"data_mode": modes})))
    found = entries(tmp_path)
    sides = [
        found.get(f"Cell.blocks.1.fc1.Dense.{direction}.0") for direction in ("forward", "backward")
    ]
    assert [side and set(side) - {"output_kwargs"} for side in sides] == [forward, backward]
    stored = {p.name for p in (tmp_path / "dump/step0/rank0/dump_tensor_data").iterdir()}
    named = set()
    for values in found.values():
        named |= {part.split('"')[0] for part in json.dumps(values).split('"data_name": "')[1:]}
    assert stored == named


def test_steps_and_ranks_are_chosen(tmp_path):
    """Numbers and ranges; steps between them are not recorded."""
    debugger = PrecisionDebugger(config(tmp_path), step=[0, "3-4"], dump_path=str(tmp_path / "two"))
    train(6, debugger)
    run = open_run(tmp_path / "two")
    assert run.steps == [0, 3, 4]
    assert not (tmp_path / "dump").exists()
    saved = run.config()
    assert saved is not None
    assert (saved.step_start, saved.step_end, saved.steps) == (0, 4, (0, 3, 4))


def test_a_rank_that_is_not_chosen_records_nothing(tmp_path):
    """Of a rank outside `rank` nothing is written, and its calls do nothing."""
    train(1, PrecisionDebugger(config(tmp_path, rank=["1-3"])))
    PrecisionDebugger.start("no cell")
    assert not (tmp_path / "dump").exists()


def test_tokens_are_counted_from_each_start(tmp_path, mode):
    """A token range is inclusive; calls keep their true numbers over several starts in a step."""
    debugger = PrecisionDebugger(config(tmp_path))
    network, x = Scale(), tensor(2)
    for tokens in ((1, 2), [0, 0], None):
        debugger.start(network, token_range=tokens)
        for _ in range(3):
            network(x)
        debugger.stop()
        network(x)
    PrecisionDebugger.step()
    calls = [name.rpartition(".")[2] for name in entries(tmp_path)]
    assert calls == ["1", "2", "3", "6", "7", "8"]
    assert hook_count(network) == 0


def test_there_is_one_debugger(tmp_path, warnings_of):
    """Made again it is the same, whatever the arguments, which are said to change nothing."""
    for call in (PrecisionDebugger.start, PrecisionDebugger.stop, PrecisionDebugger.step):
        with pytest.raises(UsageError, match="before PrecisionDebugger"):
            call()
    debugger = PrecisionDebugger(config(tmp_path))
    assert PrecisionDebugger() is debugger
    assert PrecisionDebugger(config(tmp_path)) is debugger
    assert not warnings_of()
    assert PrecisionDebugger(config(tmp_path), task="tensor") is debugger
    assert "task='tensor'" in warnings_of()[0]
    network = Twice()
    PrecisionDebugger.start(network)
    network(tensor(2))
    PrecisionDebugger.stop()
    PrecisionDebugger.stop()
    debugger.start()  # the network that was last given
    network(tensor(2))
    debugger.step()  # a stop was forgotten
    assert len([name for name in entries(tmp_path) if "root" in name]) == 2


def test_several_networks_are_numbered_as_msprobe_numbers_them(tmp_path, mode):
    """A list of networks: the number of each leads its cells' names, and parameters keep theirs."""
    debugger = PrecisionDebugger(task="tensor", level="L0", dump_path=str(tmp_path / "dump"))
    networks = [Twice(), Scale(4.0)]
    names = [p.name for network in networks for p in network.get_parameters()]
    for _ in range(2):
        debugger.start(networks)
        networks[1](networks[0](tensor(2)))
        debugger.stop()
    debugger.step()
    found = entries(tmp_path)
    assert {"Cell.0.second.Scale.forward.1", "Cell.1.Scale.forward.1"} <= set(found)
    assert [p.name for network in networks for p in network.get_parameters()] == names
    stored = tmp_path / "dump/step0/rank0/dump_tensor_data/Cell.1.Scale.forward.0.output.0.npy"
    assert np.array_equal(np.load(stored), tensor(2).asnumpy() * np.float32(2 * 2 * 3 * 4))


def test_two_dumps_are_compared(tmp_path):
    """compare_distributed takes the step directories of two debuggers' runs."""
    for name in ("a", "b"):
        PrecisionDebugger._instance = None
        train(1, PrecisionDebugger(config(tmp_path), dump_path=str(tmp_path / name)))
    steps = [str(tmp_path / name / "step0") for name in ("a", "b")]
    compare_distributed(*steps, str(tmp_path / "out"))
    assert read_json(tmp_path / "out/verdict.json")["status"] == "identical"


def test_a_dump_path_named_like_a_phase_is_still_a_debuggers_run(tmp_path):
    """MindSpeed-RL's layout, one debugger's directory for each phase, can be read from above."""
    debugger = PrecisionDebugger(level="L0", dump_path=str(tmp_path / "run/actor_update"))
    debug(debugger, Scale(), tensor(2))
    assert open_run(tmp_path / "run/actor_update").phases == ["dump"]
    assert open_run(tmp_path / "run").phases == ["actor_update"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"level": "L2"}, "level is 'L2', which is not offered.*L0, L1 or mix|L0.*L1.*mix"),
        ({"level": "debug"}, "level is 'debug', which is not offered"),
        ({"level": "l0"}, "level is 'l0'.*L0.*L1.*mix"),
        ({"task": "structure"}, "task is 'structure', which is not offered"),
        *(
            ({"task": "free_benchmark", "free_benchmark": settings}, said)
            for settings, said in [
                ({"pert_mode": "to_cpu"}, "free_benchmark: pert_mode is 'to_cpu'.*improve_preci"),
                ({"fuzz_device": "cpu"}, "free_benchmark: fuzz_device is 'cpu'.*npu"),
                (
                    {"handler_type": "fix", "pert_mode": "add_noise"},
                    "pert_mode is 'add_noise'.*improve_precision",
                ),
            ]
        ),
        ({"task": "tensors"}, "task is 'tensors'.*overflow_check.*Did you mean 'tensor'"),
        (
            {"task": "overflow_check", "overflow_check": {"overflow_nums": 0}},
            "overflow_check: overflow_nums is 0 .*1 or larger, or -1",
        ),
        ({"dumppath": "x"}, "unknown key 'dumppath' .*Did you mean 'dump_path'"),
        ({"step": 3}, "step is 3 .*list of whole numbers"),
        ({"step": ["5-3"]}, "'5-3' is not one"),
        ({"step": [True]}, "True is not one"),
        ({"rank": [-1]}, "rank is .*-1 is not one"),
        ({"dump_path": 5}, "dump_path is 5"),
        ({"load": {"path": "x"}}, "load: graft.*entries is None"),
        ({"dump_enable": False}, "dump_enable is False, which is not offered"),
        ({"statistics": {"data_mode": ["all", "input"]}}, "data_mode is .*all"),
        ({"statistics": {"data_mode": ["inputs"]}}, "data_mode is .*backward"),
        ({"statistics": {"data_mode": "all"}}, "data_mode is 'all'.*list of texts"),
        ({"statistics": {"list": [3]}}, "list is .*list of texts"),
        ({"statistics": {"scope": ["Cell.a.Dense.forward.0"]}}, "scope is .*two entries"),
        ({"statistics": {"scope": ["a", "b"]}}, "scope.0. is 'a'.*name of an entry"),
        ({"statistics": {"tensor_list": ["fc"]}}, "tensor_list is .*not offered"),
        ({"statistics": {"summary_mode": "xor"}}, "summary_mode is 'xor'.*statistics or md5"),
        ({"statistics": {"lists": []}}, "unknown key 'lists'.*Did you mean 'list'"),
        *(
            ({"task": "grad_probe", "grad_probe": settings}, said)
            for settings, said in [
                ({"grad_level": "L3"}, r"grad_probe: grad_level is 'L3'"),
                ({"bounds": [1, 0]}, r"grad_probe: bounds is \[1, 0\]"),
                ({"param_list": "head.bias"}, r"grad_probe: param_list is 'head.bias'"),
                ({"param": []}, r"unknown key 'param'"),
            ]
        ),
    ],
)
def test_what_is_wrong_or_not_offered_is_refused(tmp_path, settings, said):
    """The message names the file, the key, the value and what was expected."""
    file = config(tmp_path, **settings)
    with pytest.raises(ConfigError, match=said) as error:
        PrecisionDebugger(file)
    assert str(error.value).startswith((file, "msprobe_config.scope"))
    assert PrecisionDebugger._instance is None
    assert not (tmp_path / "dump").exists()


def test_files_that_cannot_be_read_are_refused(tmp_path):
    """No file, no JSON, no object, no path."""
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    for path, said in [
        (str(tmp_path / "none.json"), "no such file"),
        (str(tmp_path / "broken.json"), "cannot be read as JSON"),
        (str(tmp_path / "list.json"), "expected a JSON object"),
        (5, "config_path is 5"),
    ]:
        with pytest.raises(ConfigError, match=said):
            PrecisionDebugger(config_path=path)  # type: ignore[arg-type]


def test_runs_are_not_mixed(tmp_path):
    """A dump_path that holds a run is refused; `existing` in config.json says otherwise."""
    PrecisionDebugger(config(tmp_path))
    PrecisionDebugger._instance = None
    with pytest.raises(RunError, match="already holds a run"):
        PrecisionDebugger(config(tmp_path))
    PrecisionDebugger(config(tmp_path, existing="overwrite"))


@pytest.mark.parametrize("saver_first", [True, False])
def test_a_debugger_and_a_single_save_share_a_directory(tmp_path, saver_first):
    """As in MindSpeed-RL: one run, whichever is made first and whichever ends the step first."""
    path = tmp_path / "run"
    if saver_first:
        SingleSave(path)
    debugger = PrecisionDebugger(level="L0", dump_path=str(path), step=[1])
    SingleSave(str(path))
    network = Scale()
    for step in range(3):
        debugger.start(network)
        SingleSave.save({"y": network(tensor(2))})
        debugger.stop()
        for tool in (SingleSave, debugger) if step % 2 else (debugger, SingleSave):
            tool.step()
    run = open_run(path)
    assert [d.step for d in run.key_data("y")] == [0, 1, 2]
    assert [e.step for e in run.entries("dump")] == [1]
    assert len(run.manifests[0]["attempts"]) == 1
    config = run.config()
    assert config is not None
    assert (config.steps, config.key_data_dump) == ((1,), True)


def test_misuse_is_refused(tmp_path):
    """No network, no cell, no token range: said at once."""
    debugger = PrecisionDebugger(config(tmp_path))
    with pytest.raises(UsageError, match="without a model"):
        debugger.start()
    with pytest.raises(UsageError, match="not a cell"):
        debugger.start(3)
    for tokens in ((2, 1), (0,), "01", (0, True), (-1, 2)):
        with pytest.raises(UsageError, match="two whole numbers"):
            debugger.start(Scale(), token_range=tokens)  # type: ignore[arg-type]
    debugger.stop()
    debugger.step()


def test_the_next_step_of_two_debugged_runs_is_a_config_json(tmp_path):
    """What to record next stands in the words of the file that the script reads."""
    for name, factor in (("a", 1.0), ("b", 1.5)):
        PrecisionDebugger._instance = None
        (tmp_path / name).mkdir()
        debugger = PrecisionDebugger(config_path=config(tmp_path / name))
        network = Net()
        weight = network.blocks[1].fc1.weight
        weight.set_data(weight * factor)
        debug(debugger, network, tensor(2, 4))
    result = compare_runs(tmp_path / "a/dump", tmp_path / "b/dump")
    wanted = {"list": ["Cell.blocks.1.fc1."]}
    again = {"task": "tensor", "level": "L0", "step": [0], "tensor": wanted}
    assert result.verdict.first_divergence.next_step == again
    assert f"  config.json: {json.dumps(again)}" in render(result)
    PrecisionDebugger._instance = None
    (tmp_path / "c").mkdir()
    PrecisionDebugger(config_path=config(tmp_path / "c", **again))


def test_steps_can_be_numbered_from_where_a_training_resumes(tmp_path):
    debugger = PrecisionDebugger(config_path=config(tmp_path))
    PrecisionDebugger.set_init_step(7)
    train(1, debugger)
    assert open_run(tmp_path / "dump").steps == [7]
    with pytest.raises(UsageError, match=r"start_at\(9\) after something was recorded"):
        debugger.set_init_step(9)


def test_md5_is_the_crc_32_of_the_bytes(tmp_path):
    """As msprobe's summary_mode md5 writes it; bfloat16 as float32."""
    settings = {"statistics": {"summary_mode": "md5"}}
    debugger = PrecisionDebugger(config_path=config(tmp_path, **settings))
    network = nn.Identity()
    for dtype in (ms.float32, ms.bfloat16):
        debugger.start(network)
        network(tensor(2, 4).astype(dtype))
        debugger.stop()
    expected = f"{zlib.crc32(tensor(2, 4).astype(ms.float32).asnumpy().tobytes()):08x}"
    rounded = tensor(2, 4).astype(ms.bfloat16).astype(ms.float32).asnumpy().tobytes()
    debugger.step()
    found = entries(tmp_path)
    inputs = [found[f"Cell.root.Identity.forward.{n}"]["input_args"][0] for n in (0, 1)]
    assert [leaf["md5"] for leaf in inputs] == [expected, f"{zlib.crc32(rounded):08x}"]
    assert {"fingerprint", "Max"} <= set(inputs[0])


def monitored(
    path: Path, steps: int = 3, *, flipped_from: int = 99, starts: bool = False, **settings: Any
) -> list[bytes]:
    """Train as scripts for msprobe's grad_probe do, and return the bits of the weights.

    Args:
        flipped_from: the step from which the gradient of head.weight has the wrong sign.
        starts: whether the network is started and stopped, too.
    """
    path.mkdir(exist_ok=True)
    network = Net()
    optimizer = nn.Adam(network.trainable_params(), 0.1)
    debugger = PrecisionDebugger(config(path, task="grad_probe", level="L1", **settings))
    debugger.monitor(optimizer)
    loss_of = nn.WithLossCell(network, nn.MSELoss())
    differentiate = ms.value_and_grad(loss_of, None, optimizer.parameters)
    for step in range(steps):
        if starts:
            debugger.start(network)
        for part in (0.0, 1.0):  # two passes for an update
            gradients = differentiate(tensor(2, 4, start=step + part), tensor(2, 2))[1]
        signs = (
            -1.0 if step >= flipped_from and p.name == "head.weight" else 1.0
            for p in optimizer.parameters
        )
        optimizer(tuple(g * sign for g, sign in zip(gradients, signs)))
        if starts:
            debugger.stop()
        debugger.step()
    debugger.stop()
    debugger._shared.probe.close()
    PrecisionDebugger._instance = None
    return [p.asnumpy().tobytes() for p in network.get_parameters()]


def test_an_optimizer_is_monitored_as_by_msprobe(tmp_path: Path) -> None:
    """Without a network: a step a call of the optimizer, parameters by their own names."""
    bits = monitored(tmp_path / "a")
    assert bits == monitored(tmp_path / "b", flipped_from=99)
    assert bits != monitored(tmp_path / "c", flipped_from=1)
    found = open_gradients(tmp_path / "a/dump").at(2, 0)
    assert [g.parameter for g in found] == [p.name for p in Net().trainable_params()]
    assert all(g.signs is not None and g.update == 0 for g in found)
    assert open_run(tmp_path / "a/dump").steps == [0, 1, 2]
    for other, expected in (("b", ["1.0", "1.0", "1.0"]), ("c", ["1.0", "0.0"])):
        GradComparator.compare(tmp_path / "a/dump", tmp_path / other / "dump", tmp_path / "out")
        rows = [line.split(",") for line in (tmp_path / "out/similarities.csv").read_text().split()]
        assert rows[0] == ["step", "0", "1", "2"]
        (of_head,) = [row for row in rows if row[0] == "head.weight"]
        assert of_head[1 : 1 + len(expected)] == expected


def test_a_monitored_optimizer_belongs_to_a_network_that_was_started(
    tmp_path: Path, mode: str
) -> None:
    """Its layers are recorded as ever; in PyNative and graph mode alike."""
    monitored(tmp_path, starts=True, step=["1-2"])
    run = open_run(tmp_path / "dump")
    assert run.steps == [1, 2]
    found = open_gradients(run.path).at(1, 0)
    assert {g.parameter for g in found} == {p.name for p in Net().trainable_params()}
    assert {g.update for g in found} == {0}
    assert any(entry.direction == "forward" for entry in run.entries(step=1))


def test_levels_of_grad_probe_are_msprobes(tmp_path: Path) -> None:
    """L0 has msprobe's md5 and no signs; L1 signs; L2 shares within the bounds, too."""
    names = {"L0": {"md5"}, "L1": {"signs"}, "L2": {"signs", "shares"}}
    for level, expected in names.items():
        settings = {"grad_level": level, "bounds": [], "param_list": ["head.bias"]}
        monitored(tmp_path / level, steps=1, grad_probe=settings)
        (leaf,) = entries(tmp_path / level)["Cell.root.Parameters.parameters_grad.0"]["head.bias"]
        assert {"md5", "signs", "shares"} & set(leaf) == expected
        assert "md5" in leaf or len(leaf.get("shares", [0] * 5)) == 5


def test_free_benchmark_of_config_json(tmp_path):
    """msprobe's own config.json maps onto ours: operators run again, those of its list alone."""
    section = {
        **{"scope": [], "list": ["mindspore.Tensor.__mul__"], "fuzz_device": "npu"},
        **{"pert_mode": "bit_noise", "handler_type": "check", "fuzz_level": "L1"},
        **{"fuzz_stage": "forward", "if_preheat": False, "preheat_step": 15, "max_sample": 20},
    }
    file = config(tmp_path, task="free_benchmark", level="L1", free_benchmark=section)
    debugger, network = PrecisionDebugger(file), Scale()
    debugger.start(network)
    network(tensor(2, start=1.0)) * 2
    debugger.stop()
    debugger.step()
    lines = (tmp_path / "dump/free_benchmark.rank0.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows
    assert {row["entry"].rsplit(".", 2)[0] for row in rows} == {"Tensor.__mul__"}
    assert {row["pert_mode"] for row in rows} == {"bit_noise"}
