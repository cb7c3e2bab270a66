"""Cells of a MindFormers Llama computed again: real runs, forward and backward."""

from __future__ import annotations

import json
import re
import runpy
import sys

import mindspore as ms
import numpy as np
import pytest
from mindformers.models.llama import LlamaForCausalLM
from mindspore import Tensor, nn, ops
from replay.operator_runs import replayed

from mindrlhf_msprobe import Probe, open_run
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.demo.networks import build_networks, initialize, llama_config
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.replay.offline import folder, template
from mindrlhf_msprobe.replay.offline.computing import Recomputed, prepare
from mindrlhf_msprobe.replay.offline.recorded_call import CallPlace, ReplayRequest, find_call
from mindrlhf_msprobe.replay.offline.replaying import replay_entry
from mindrlhf_msprobe.storage.records import cell_name

pytestmark = pytest.mark.slow

SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "multiple_of": 16}
LINEAR = "model.layers.1.feed_forward.w2"
LAYER = "Cell.model.layers.1.LLamaDecodeLayer.forward.0"
RECORDING = {"msprobe": True, "actor_train_dump": True, "task": "tensor"}
#: What the script is given as --network.
NETWORKS = f"""
import mindspore as ms
from mindspore import nn
from mindrlhf_msprobe.demo.networks import build_networks

SIZES = {SIZES!r}

def actor():
    return build_networks(SIZES, SIZES, 13, 8, seed=77)["actor"]

def wider():
    return build_networks({{**SIZES, "multiple_of": 64}}, SIZES, 13, 8, seed=77)["actor"]

def another():
    return nn.Dense(3, 4)

def otherwise():
    network = actor()
    network.model.layers[1].feed_forward.w1.activation = nn.Tanh()
    return network

def nothing():
    return None
"""


def networks():
    return build_networks(SIZES, SIZES, 13, 8, seed=5)


def record(path, network, **settings):
    """Record one forward and backward pass; the tokens are always the same."""
    tokens = Tensor(np.random.default_rng(3).integers(1, 13, (2, 8)), ms.int32)
    with Probe.from_config({**RECORDING, **settings, "dump_path": str(path)}) as probe:
        probe.watch(actor=network)
        with probe.phase("actor_update"):
            ms.value_and_grad(
                lambda tokens: ops.log_softmax(network(tokens)[0], -1)[:, :, 0].sum(),
                None,
                network.trainable_params(),
            )(tokens)
        probe.step()
    return path


def called(path, network, later=lambda: None):
    """Record one forward pass of numbers; `later` is done when the network is watched."""
    with Probe.from_config({**RECORDING, "dump_path": str(path)}) as probe:
        probe.watch(actor=network)
        later()
        with probe.phase("actor_update"):
            network(Tensor(np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)))
        probe.step()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return runs of the healthy network, and of one whose linear layer rounds to float16."""
    root = tmp_path_factory.mktemp("cells")
    network = networks()["actor"]
    found = {"healthy": record(root / "healthy", network)}
    linear = dict(network.cells_and_names())[LINEAR]
    construct = linear.construct
    linear.construct = lambda x: construct(x).astype(ms.float16).astype(ms.float32)
    found["rounded"] = record(root / "rounded", network)
    linear.construct = construct
    found["statistics"] = record(root / "statistics", network, task="statistics")
    (root / "networks_of_tests.py").write_text(NETWORKS, encoding="utf-8")
    return found


def request(runs, output, network, entry=LAYER):
    """Return the replay of an entry of the healthy run."""
    return ReplayRequest((str(runs["healthy"]),), entry, str(output), network=network)


def again(run, entry, output, network=None, compute_dtype=None):
    """Return what the script finds, in this process."""
    template.WORDS.update(folder.words_of("en"))
    prepare()
    call = find_call(open_run(run), entry, CallPlace())
    folder.write_side(output, call, compute_dtype=compute_dtype)
    network = networks()["actor"] if network is None else network
    return replayed(Recomputed(output, None, network))


def test_every_cell_of_a_llama_is_ordinary_forward_and_backward(runs, tmp_path):
    """Computed again it is the same bit for bit; float64 is as near as rounding lets it be."""
    network, kinds, gradients = networks()["actor"], set(), 0
    for entry in open_run(runs["healthy"]).entries("actor_update"):
        if entry.direction != "forward" or entry.class_name in kinds:
            continue
        kinds.add(entry.class_name)
        found = again(runs["healthy"], entry.name, tmp_path / entry.class_name, network)
        assert found["values"], entry.name
        for name, value in found["values"].items():
            # A gradient that goes on beside the cell is recorded as the difference of two.
            most = 1e-6 if name.startswith("gradient:input") else 0
            assert value["again"]["max_abs"] <= most, (entry.name, name)
        gradients += sum(name.startswith("gradient:") for name in found["values"])
        assert found["verdict"] == "ordinary", (entry.name, found)
    assert len(kinds) > 8
    assert gradients > 30


def test_a_linear_layer_that_rounds_to_float16_is_wrong(runs, tmp_path):
    """And so is nothing else of its run that was given the same."""
    entry = f"Cell.{LINEAR}.Linear.forward.0"
    found = again(runs["rounded"], entry, tmp_path / "rounded")
    assert found["values"]["output.0"]["verdict"] == "wrong"
    assert found["values"]["gradient:input.0"]["verdict"] == "wrong"  # it went through the cast
    other = entry.replace("w2", "w3")
    assert again(runs["rounded"], other, tmp_path / "other")["verdict"] == "ordinary"


def test_lower_precision_inside_a_network_is_ordinary_where_it_is_declared(runs, tmp_path):
    """compute_dtype says that the network itself computes in fewer bits."""
    entry = f"Cell.{LINEAR}.Linear.forward.0"
    found = again(runs["rounded"], entry, tmp_path, compute_dtype="Float16")
    assert found["verdict"] == "ordinary"


def test_two_runs_as_a_new_user_would(runs, tmp_path, monkeypatch, capsys):
    """The command says which run is wrong; the folder runs by itself, without this package."""
    monkeypatch.chdir(runs["healthy"].parent)
    entry, output = f"Cell.{LINEAR}.Linear.backward.0", tmp_path / "out"
    command = ["replay", str(runs["healthy"]), str(runs["rounded"]), entry, "-o", str(output)]
    assert main([*command, "--network", "networks_of_tests:actor", "--lang", "en"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert "B is the wrong one." in said
    assert "The inputs are the same in A and B, bit for bit." in said
    assert [line for line in said if line.startswith("A agrees with float64 to ")]
    assert [line for line in said if line.startswith("B is off by ")]
    files = {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()}
    assert {path for path in files if path.endswith(".py")} == {"replay.py"}
    assert {"a/entry.json", "b/entry.json", "words.json"} <= files


def test_the_script_needs_no_package_of_ours(runs, tmp_path):
    """It is imported nowhere."""
    replay_entry(request(runs, tmp_path, "somewhere:network"), run=False)
    text = (tmp_path / "replay.py").read_text(encoding="utf-8")
    assert "import mindrlhf" not in text
    assert "from mindrlhf" not in text
    assert "from somewhere import network" in text


def test_without_mindspore_it_is_said_of_a_cell(runs, tmp_path, monkeypatch):
    """Before anything is written."""
    monkeypatch.setitem(sys.modules, "mindspore", None)
    with pytest.raises(RunError, match=r"MindSpore, which cannot be imported|无法导入"):
        replay_entry(request(runs, tmp_path / "out", "somewhere:network"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("wider", "feed_forward.w1.weight has shape"),
        ("another", "has no cell model.layers.1"),
        ("otherwise", "is a Tanh in the network that was built"),
        ("nothing", "returned a NoneType"),
    ],
)
def test_another_network_is_refused(runs, tmp_path, monkeypatch, factory, said):
    """The message names the weight, or what else is another one."""
    monkeypatch.chdir(runs["healthy"].parent)
    replay_entry(request(runs, tmp_path, f"networks_of_tests:{factory}"), run=False)
    result = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["replay.py", "--json", str(result)])
    with pytest.raises(SystemExit) as refused:
        runpy.run_path(str(tmp_path / "replay.py"), run_name="__main__")
    assert said in str(refused.value)
    assert said in json.loads(result.read_text(encoding="utf-8"))["refused"]


def test_of_a_refused_network_no_folder_is_left(runs, tmp_path, monkeypatch):
    """It is another one; a script that fails otherwise stays, to be run by itself."""
    monkeypatch.chdir(runs["healthy"].parent)
    out = tmp_path / "out"
    with pytest.raises(RunError, match=r"feed_forward\.w1\.weight"):
        replay_entry(request(runs, out, "networks_of_tests:wider"))
    assert not [*tmp_path.iterdir()]
    with pytest.raises(RunError, match=re.escape(f"{out / 'replay.py'}")):
        replay_entry(request(runs, out, "networks_of_tests:no_such"))
    assert (out / "replay.py").exists()
    assert (out / "a" / "entry.json").exists()


def test_a_record_without_elements_says_what_to_record(runs, tmp_path):
    of_statistics = {"healthy": runs["statistics"]}
    with pytest.raises(RunError, match=r"task: tensor.*step_start: 0"):
        replay_entry(request(of_statistics, tmp_path / "out", "m:f"), run=False)


def test_what_is_asked_wrongly_is_said(runs, tmp_path):
    """No network, an entry that is not there, a folder of somebody else."""
    output = tmp_path / "out"
    for error, said, network, entry in (
        (UsageError, "--network", None, LAYER),
        (UsageError, "MODULE:FUNCTION", "no network", LAYER),
        (RunError, r"layers\.1", None, LAYER.replace("layers.1", "layer.1")),
        (UsageError, "not the entry of a call", None, "Cell.lm_head.Linear.parameters_grad.0"),
    ):
        with pytest.raises(error, match=said):
            replay_entry(request(runs, output, network, entry), run=False)
    output.mkdir()
    (output / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(RunError, match="thesis"):
        replay_entry(request(runs, output, "m:f"), run=False)
    assert (output / "thesis.txt").read_text(encoding="utf-8") == "mine"


def test_compare_prints_the_command_and_does_it(runs, tmp_path, monkeypatch, capsys):
    """Under the answer; with --replay it says which run is wrong."""
    monkeypatch.chdir(runs["healthy"].parent)
    command = ["compare", str(runs["healthy"]), str(runs["rounded"]), "-o", str(tmp_path / "out")]
    assert main([*command, "--lang", "en"]) == 1
    printed = capsys.readouterr().out
    line = next(line for line in printed.splitlines() if "mindrlhf-msprobe replay" in line)
    assert cell_name(line.split(" -o ")[0].split()[-1]) == LINEAR
    network = ["--network", "networks_of_tests:actor", "--lang", "en"]
    assert main([*command, "--replay", *network]) == 1
    assert "B is the wrong one." in capsys.readouterr().out


def test_a_primitive_is_taken_from_its_network(runs, tmp_path):
    """With --network: the very one that the cell around it holds, with its attributes."""
    path = record(tmp_path / "mix", networks()["actor"], level="mix", include=[LINEAR])
    entries = open_run(path).entries("actor_update")
    entry = next(e.name for e in entries if e.name.startswith("Primitive.matmul.MatMul"))
    found = again(path, entry, tmp_path / "out")
    assert {"output.0", "gradient:input.0"} <= found["values"].keys()
    assert {value["again"]["max_abs"] for value in found["values"].values()} == {0}
    assert found["verdict"] == "ordinary"


def test_a_network_that_says_it_computes_in_float16_is_ordinary(tmp_path):
    """compute_dtype of MindFormers, to_float of MindSpore: rounding is that of float16 then."""
    config = llama_config(SIZES, 13, 8)
    config.compute_dtype = ms.float16
    half = LlamaForCausalLM(config)
    initialize(half, np.random.default_rng(5))
    half.set_train(False)
    path = record(tmp_path / "half", half, directions=["forward"])
    for number, entry in enumerate((LAYER, f"Cell.{LINEAR}.Linear.forward.0")):
        found = again(path, entry, tmp_path / f"out{number}", half)
        assert found["verdict"] == "ordinary"
        assert found["values"]["output.0"]["Float64"]["max_abs"] > 1e-4

    first, last = nn.Dense(8, 16).to_float(ms.float16), nn.Dense(16, 4).to_float(ms.float32)
    network = nn.SequentialCell(first, last)
    called(tmp_path / "mixed", network)
    for entry in ("Cell.0.Dense.forward.0", "Cell.root.SequentialCell.forward.0"):
        found = again(tmp_path / "mixed", entry, tmp_path / entry, network)
        assert found["verdict"] == "ordinary", found
        assert found["values"]["output.0"]["Float64"]["max_abs"] > 1e-5


@pytest.mark.parametrize("trained", [True, False])
def test_cells_are_in_the_mode_in_which_they_were_recorded(tmp_path, trained):
    """The function that returns the network does not know it: no dropout, other batch norms."""

    def built(training):
        network = nn.SequentialCell(nn.Dense(8, 8), nn.BatchNorm1d(8), nn.Dropout(p=0.5))
        return network.set_train(training)

    network = built(not trained)

    def later():
        network.set_train(trained)
        network[0].set_train(not trained)

    called(tmp_path / "run", network, later)
    for entry in open_run(tmp_path / "run").entries("actor_update"):
        if entry.direction == "backward":
            continue
        other = built(not trained)
        found = again(tmp_path / "run", entry.name, tmp_path / entry.name, other)
        assert (other.training, other[0].training) == (trained, not trained)
        assert (other[1].training, other[2].training) == (trained, trained)
        if trained and entry.class_name in ("Dropout", "SequentialCell"):  # another mask each time
            assert found["verdict"] == "undecided"
        else:
            assert found["values"]["output.0"]["again"]["max_abs"] == 0, entry.name
            assert found["verdict"] != "wrong"


#: A MindFormers YAML of the network that was recorded.
YAML = """\
model:
  model_config:
    type: LlamaConfig
    batch_size: 2
    seq_length: 8
    hidden_size: 32
    num_layers: 2
    num_heads: 2
    vocab_size: 13
    multiple_of: 16
    pad_token_id: 0
    use_past: false
    use_flash_attention: false
    fused_rms_norm: false
    use_rope_slice: true
    compute_dtype: float32
    param_init_type: float32
    softmax_compute_type: float32
    layernorm_compute_type: float32
    rotary_dtype: float32
  arch:
    type: LlamaForCausalLM
"""


#: What the script replaces.
CASTS = [
    *((ops.Cast, "__call__"), (ops, "cast"), (ms._checkparam, "check_type_name")),
    *((Tensor, name) for name in ("astype", "to", "type", "half", "bfloat16", "float")),
]


def test_the_network_of_a_mindformers_yaml(runs, tmp_path, monkeypatch):
    """The folder has a copy of the file; the script builds the network of it."""
    given = tmp_path / "llama.yaml"
    given.write_text(YAML, encoding="utf-8")
    output, result = tmp_path / "out", tmp_path / "result.json"
    replay_entry(request(runs, output, str(given)))
    given.unlink()
    monkeypatch.setattr(sys, "argv", ["replay.py", "--json", str(result)])
    for owner, name in CASTS:  # the script, which ends then, does not put them back
        monkeypatch.setattr(owner, name, getattr(owner, name))
    runpy.run_path(str(output / "replay.py"), run_name="__main__")
    found = json.loads(result.read_text(encoding="utf-8"))
    assert found["sides"]["A"]["verdict"] == "ordinary"
    assert found["answer"][0].startswith("A agrees with float64 to ")
    assert "Float64" in found["sides"]["A"]["values"]["output.0"]
