"""A Llama of MindFormers against the same one on PyTorch, dumped by the real msprobe."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from helpers import torch_llama
from helpers.msadapter import of_msadapter
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe import Probe, Tolerance, compare_runs
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.demo.networks import llama_config
from mindrlhf_msprobe.errors import ConfigError
from mindrlhf_msprobe.findings import Status

DUMPS = Path(torch_llama.__file__).parent / "data" / "torch"
SIZES = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "multiple_of": 8}
RECORDING = {"msprobe": True, "actor_train_dump": True}


def llama(**sizes: Any) -> nn.Cell:
    """Return MindFormers' Llama with the weights of the one in the dumps."""
    from mindformers.models.llama import LlamaForCausalLM

    ms.set_context(mode=ms.PYNATIVE_MODE)
    network = LlamaForCausalLM(llama_config({**SIZES, **sizes}, torch_llama.VOCABULARY, 8))
    for parameter in network.get_parameters():
        name = torch_llama.of_hugging_face(parameter.name)
        parameter.set_data(Tensor(torch_llama.weights(name, parameter.shape)))
    return network.set_train(False)


def record(path: Path, network: nn.Cell, **recording: Any) -> Path:
    """Record one forward and backward pass."""

    def loss(ids: Tensor) -> Tensor:
        logits = network(ids)[0].reshape(2, 8, -1)[:, :-1]
        return ops.cross_entropy(logits.reshape(-1, torch_llama.VOCABULARY), ids[:, 1:].reshape(-1))

    config = {**RECORDING, "dump_path": str(path), **recording}
    with Probe.from_config(config) as probe:
        probe.watch(actor=network)
        with probe.phase("actor_update"):
            ms.value_and_grad(loss, None, network.trainable_params())(Tensor(torch_llama.tokens()))
        probe.step()
    return path


@pytest.fixture(scope="module")
def llamas(tmp_path_factory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("llamas")
    network = llama()
    return {
        "tensor": record(path / "tensor", network, task="tensor"),
        "mix": record(path / "mix", network, level="mix"),
        "bias": record(path / "bias", llama(qkv_has_bias=True)),
    }


def agreeing(result: Any) -> set[str]:
    """Return the cells of A of which a record was compared and agrees."""
    assert not [f.record for f in result.findings if not f.status.agrees]
    return {f.entry.partition(".forward")[0] for f in result.findings if ".forward" in f.entry}


@pytest.mark.parametrize("dump", ["tensor", "mix_8x"])
def test_the_same_weights_agree_forward_and_backward(llamas, dump):
    result = compare_runs(llamas["tensor"], DUMPS / dump, workers=1)
    cells = agreeing(result)
    assert result.verdict.status == "within_tolerance"
    assert len(result.findings) == 168
    for cell in ("attention.wq.Linear", "feed_forward.w2.Linear", "ffn_norm.LlamaRMSNorm"):
        assert f"Cell.model.layers.1.{cell}" in cells
    directions = {f.entry.split(".")[-2] for f in result.findings}
    assert directions == {"forward", "backward", "parameters_grad"}
    table = [f for f in result.findings if f.io == "parameters" and "tok_embeddings" in f.entry]
    assert [f.path for f in table] == ["embedding_weight"]
    assert any(note.code == "pairing.preset" for note in result.remarks)


def test_a_dump_of_msadapter_is_compared_as_one_of_pytorch(llamas, tmp_path):
    result = compare_runs(llamas["mix"], of_msadapter("mix_8x", tmp_path, "mindtorch"), workers=1)
    of_pytorch = compare_runs(llamas["mix"], DUMPS / "mix_8x", workers=1)
    assert result.verdict.status == "within_tolerance"
    assert result.verdict.counts == of_pytorch.verdict.counts
    assert agreeing(result) == agreeing(of_pytorch)


#: What Megatron calls what Hugging Face's Llama has, in this order.
MEGATRON = {
    "Module.model.": "Module.0.module.module.",
    "Module.lm_head": "Module.0.module.module.output_layer",
    "module.layers": "module.decoder.layers",
    "embed_tokens": "embedding.word_embeddings",
    "self_attn.o_proj": "self_attention.linear_proj",
    "self_attn.q_proj": "self_attention.linear_q",
    "self_attn.k_proj": "self_attention.linear_k",
    "self_attn.v_proj": "self_attention.linear_v",
    "self_attn": "self_attention",
    "post_attention_layernorm": "pre_mlp_layernorm",
    "mlp.down_proj": "mlp.linear_fc2",
    "mlp.gate_proj": "mlp.gating",
    "mlp.up_proj": "mlp.hidden",
    "module.norm.": "module.decoder.final_layernorm.",
    "rotary_emb": "rotary_pos_emb",
    "mlp.act_fn": "mlp.activation_func",
}


def test_names_of_megatron_are_known(llamas, tmp_path):
    directory = tmp_path / "step0/rank"
    directory.mkdir(parents=True)
    for file in ("dump.json", "construct.json"):
        text = (DUMPS / "mix_8x/step0/rank" / file).read_text()
        for old, new in MEGATRON.items():
            text = text.replace(old, new)
        directory.joinpath(file).write_text(text)
    cells = agreeing(compare_runs(llamas["tensor"], tmp_path, workers=1))
    for cell in ("norm_out", "layers.1.attention.wo", "layers.1.feed_forward.w1", "tok_embeddings"):
        assert any(cell in name for name in cells), cell


def test_a_phase_without_backward_lacks_none(tmp_path):
    config = {**RECORDING, "dump_path": str(tmp_path)}
    network = llama()
    with Probe.from_config(config) as probe:
        probe.watch(actor=network)
        for phase in ("actor_compute_log_prob", "actor_update"):
            with probe.phase(phase):
                network(Tensor(torch_llama.tokens()))
        probe.step()
    phases = ("actor_compute_log_prob", "dump")
    result = compare_runs(tmp_path, DUMPS / "mix_8x", phases=phases, workers=1)
    assert result.verdict.status == "within_tolerance"
    assert "coverage.phase_without_backward" in str(result.to_json())


def test_floats_of_another_width_are_another_dtype(llamas, tmp_path):
    directory = tmp_path / "step0/rank"
    directory.mkdir(parents=True)
    text = (DUMPS / "mix_8x/step0/rank/dump.json").read_text()
    text = text.replace("torch.float32", "torch.bfloat16")
    directory.joinpath("dump.json").write_text(text)
    first = compare_runs(llamas["tensor"], tmp_path, workers=1).verdict.first_divergence
    assert first.cause.value == "dtype"
    by_value = compare_runs(llamas["tensor"], tmp_path, tolerance=Tolerance(rtol=1e-2, atol=1e-2))
    assert agreeing(by_value)
    (note,) = [note for note in by_value.remarks if note.code == "pairing.other_floats"]
    assert note.params == {"a": ["Float32"], "b": ["BFloat16"]}


def test_the_other_way_round_it_is_the_same(llamas):
    result = compare_runs(DUMPS / "tensor", llamas["tensor"], workers=1)
    assert result.verdict.status == "within_tolerance"
    assert len(result.findings) == 168


def test_only_equal_bytes_are_called_identical(llamas):
    """Weights are, with their elements at hand; by statistics nothing is."""
    result = compare_runs(llamas["tensor"], DUMPS / "tensor", workers=1)
    same = [f for f in result.findings if f.status is Status.IDENTICAL]
    assert same
    assert {f.io for f in same if f.a.dtype == "Float32"} >= {"parameters"}
    assert all(f.a.fingerprint or f.metrics for f in same)
    by_statistics = compare_runs(llamas["tensor"], DUMPS / "mix_8x", workers=1)
    assert not [f for f in by_statistics.findings if f.status is Status.IDENTICAL]


@pytest.mark.parametrize("dump", ["L1", "mix_8x"])
def test_operators_that_were_given_the_same_are_compared(llamas, dump):
    result = compare_runs(llamas["mix"], DUMPS / dump, workers=1)
    assert result.verdict.status == "within_tolerance"
    entries = {f.entry for f in result.findings}
    assert "Functional.cross_entropy.0.forward" in entries
    assert sum(entry.startswith("Primitive.") for entry in entries) > 10
    arguments = [f for f in result.findings if f.entry.endswith(".backward") and f.io == "output"]
    assert len(arguments) >= 40


def test_a_wrong_gradient_of_an_argument_is_named(llamas, tmp_path):
    """And nothing is said of what msprobe has of a step inside an operator."""
    shutil.copytree(DUMPS / "mix_8x", tmp_path, dirs_exist_ok=True)
    directory = tmp_path / "step0/rank"
    content = json.loads((directory / "dump.json").read_text())
    for name in ("Torch.rsqrt.1.backward", "Functional.linear.3.backward"):
        (gradient,) = content["data"][name]["output"]
        for statistic in ("Max", "Min", "Mean", "Norm"):
            gradient[statistic] *= 1.01
    directory.joinpath("dump.json").write_text(json.dumps(content))

    result = compare_runs(llamas["mix"], tmp_path, workers=1)

    (found,) = [f.record for f in result.findings if not f.status.agrees]
    assert found == "Primitive.rsqrt.Rsqrt.1.backward.output.0"


def test_a_tolerance_that_is_given_counts(llamas):
    result = compare_runs(llamas["tensor"], DUMPS / "tensor", tolerance=Tolerance(atol=1e-12))
    assert result.verdict.status == "diverged"


def test_a_wrong_base_of_the_rotary_embedding_is_named(llamas):
    first = compare_runs(llamas["tensor"], DUMPS / "rope", workers=1).verdict.first_divergence
    assert first.entry == "Cell.model.freqs_mgr.FreqsMgr.forward.0"
    assert first.cause.value == "computation"
    assert first.inside.change.kind == "rotary_base"
    assert first.inside.change.parameters == {"a": 10000.0, "b": 500.0}


def test_a_transposed_weight_is_named(llamas):
    first = compare_runs(llamas["tensor"], DUMPS / "transposed", workers=1).verdict.first_divergence
    assert first.record.startswith("Cell.model.layers.1.attention.wo.Linear.forward.0.parameters")
    assert first.cause.value == "parameter"
    assert first.inside.change.kind == "transposed"


def test_a_missing_bias_is_named(llamas):
    first = compare_runs(llamas["bias"], DUMPS / "tensor", workers=1).verdict.first_divergence
    assert first.record == "Cell.model.layers.0.attention.wq.Linear.forward.0.parameters.bias"
    assert first.cause.value == "missing"


def test_weights_interleaved_by_head_are_compared_row_by_row(llamas):
    """The projections agree then; the rotary embedding that goes with them is the other one."""
    result = compare_runs(llamas["tensor"], DUMPS / "interleaved", workers=1)
    found = {f.entry: f.status for f in result.findings if f.io == "parameters"}
    assert found["Cell.model.layers.1.attention.wq.Linear.forward.0"] is Status.IDENTICAL
    assert result.verdict.first_divergence.entry.startswith("Cell.model.layers.0.attention.")
    assert any(note.code == "pairing.interleaved" for note in result.remarks)


def test_a_layer_that_one_network_has_more_is_missing_in_the_other(llamas, tmp_path):
    run = record(tmp_path / "a", llama(num_layers=3))
    result = compare_runs(run, DUMPS / "tensor", workers=1)
    assert result.verdict.status == "diverged"
    missing = {f.entry for f in result.findings if f.status is Status.ONLY_IN_A}
    assert "Cell.model.layers.2.attention.wo.Linear.forward.0" in missing


def test_the_gradient_of_a_weight_that_two_cells_share_counts_once(tmp_path):
    """A hook on PyTorch tells that of tied embeddings twice, one on MindSpore once."""
    run = record(tmp_path / "run", llama(tie_word_embeddings=True))
    result = compare_runs(run, DUMPS / "tied", workers=1)
    assert "Cell.lm_head.Linear" in agreeing(result)
    assert "coverage.shared_parameter" in str(result.to_json())
    untied = compare_runs(record(tmp_path / "untied", llama()), DUMPS / "tied", workers=1)
    assert untied.verdict.first_divergence.record.startswith("Cell.lm_head.Linear.forward.0.param")
    other = compare_runs(run, DUMPS / "mix_8x", workers=1).verdict.first_divergence
    # What A's head holds stands in the embedding of both: from there it did not come to B's.
    assert other.inside is None


class Perceptron(nn.Cell):
    """Layers between norms, as in the dump; of `fc1` the bias has no gradient but rounding."""

    def __init__(self, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Dense(6, 10), nn.Dense(10, 10), nn.Dense(10, 3)
        self.bn, self.act = nn.BatchNorm1d(10, momentum=0.9), nn.ReLU()
        self.ln = nn.LayerNorm((10,), epsilon=epsilon)
        for name, parameter in self.parameters_and_names():
            own = name.replace("gamma", "weight").replace("beta", "bias")
            if "moving" not in name:
                turned = parameter.ndim == 2 and not name.startswith("fc3")
                values = torch_llama.weights(own, parameter.shape[:: -1 if turned else 1])
                parameter.set_data(Tensor(np.ascontiguousarray(values.T if turned else values)))

    def construct(self, x: Tensor) -> Tensor:
        return self.fc3(self.ln(self.fc2(self.act(self.bn(self.fc1(x))))))


@pytest.mark.parametrize("epsilon", [1e-5, 1e-3])
def test_norms_and_transposed_layers_agree_and_another_epsilon_is_named(tmp_path, epsilon):
    ms.set_context(mode=ms.PYNATIVE_MODE)
    network, given = Perceptron(epsilon).set_train(True), Tensor(torch_llama.features())
    with Probe.from_config({**RECORDING, "dump_path": str(tmp_path)}) as probe:
        probe.watch(actor=network)
        with probe.phase("actor_update"):
            loss = ms.value_and_grad(
                lambda x: (network(x) ** 2).mean(), None, network.trainable_params()
            )
            loss(given)
        probe.step()
    result = compare_runs(tmp_path, DUMPS / "perceptron", workers=1)
    if epsilon == 1e-5:
        assert {"Cell.fc2.Dense", "Cell.bn.BatchNorm1d"} <= agreeing(result)
        assert "coverage.other_framework_buffer" in str(result.to_json())
        assert any(f.record == "Cell.fc1.Dense.parameters_grad.0.bias" for f in result.findings)
    else:
        assert result.verdict.first_divergence.entry == "Cell.ln.LayerNorm.forward.0"


@pytest.mark.parametrize(
    "lines",
    [
        "model.a: model.b\nmodel.b: model.a\n",
        "model.*.a: model.*.b\nmodel.*.b: model.*.c\nmodel.*.c: model.*.a\n",
    ],
)
def test_a_mapping_in_a_circle_is_an_error(llamas, tmp_path, lines):
    mapping = tmp_path / "names.yaml"
    mapping.write_text(lines)
    with pytest.raises(ConfigError, match="circle"):
        compare_runs(llamas["tensor"], DUMPS / "tensor", mapping=mapping)


def test_a_dump_of_an_unknown_framework_is_said_to_be_one(llamas, tmp_path):
    directory = tmp_path / "step0" / "rank"
    directory.mkdir(parents=True)
    content = {"framework": "jax", "task": "statistics", "data": {}}
    directory.joinpath("dump.json").write_text(json.dumps(content))
    result = compare_runs(llamas["tensor"], tmp_path, workers=1)
    assert not result
    known = "mindspore, pytorch, mindtorch, msadapter"
    assert f"jax, which is not known; known are {known})" in str(result.to_json())


def test_a_dump_of_an_unknown_version_is_said_to_be_one(llamas, tmp_path):
    directory = tmp_path / "step0" / "rank"
    directory.mkdir(parents=True)
    content = json.loads((DUMPS / "mix_8x/step0/rank/dump.json").read_text())
    for entry in content["data"].values():
        entry["args"] = entry.pop("input_args", entry.pop("input", None))
        entry["results"] = entry.pop("output", None)
        for name in ("input_kwargs", "parameters"):
            entry.pop(name, None)
    directory.joinpath("dump.json").write_text(json.dumps(content))
    result = compare_runs(llamas["tensor"], tmp_path, workers=1)
    assert not result
    said = str(result.to_json())
    assert "unread.other_form" in said
    assert "args, results" in said


@pytest.mark.parametrize("lost", ["construct.json", "stack.json", "part", "all"])
def test_a_damaged_dump_is_compared_as_far_as_it_is_there(llamas, tmp_path, lost):
    """Without the files beside it all is compared; a .pt cut in half is unreadable."""
    shutil.copytree(DUMPS / "tensor", tmp_path, dirs_exist_ok=True)
    directory = tmp_path / "step0" / "rank"
    if lost.endswith(".json"):
        (directory / lost).unlink()
    name = "Module.model.layers.1.self_attn.o_proj.Linear.forward.0.parameters.weight.pt"
    files = {"part": [next(directory.rglob(name))], "all": [directory / "dump.json"]}
    for file in files.get(lost, []):
        os.truncate(file, file.stat().st_size // 2)
    result = compare_runs(llamas["tensor"], tmp_path, workers=1)
    if lost.endswith(".json"):
        assert len(agreeing(result)) > 20
    else:
        assert result.verdict.first_divergence.cause.value == "unreadable"
    if lost == "part":
        assert [f.status for f in result.findings if not f.status.agrees] == [Status.UNREADABLE]


def test_the_command_says_what_it_did(llamas, tmp_path, capsys):
    out = tmp_path / "out"
    code = main(["compare", str(llamas["tensor"]), str(DUMPS / "tensor"), "-o", str(out)])
    said = capsys.readouterr().out
    assert code == 0
    assert "MindSpore against PyTorch" in said
    assert "0.0001 of the largest element" in said
    assert message("coverage.other_framework_cell").code in out.joinpath("verdict.json").read_text()


def test_a_mapping_is_proposed_and_can_be_used_as_it_is(llamas, tmp_path, capsys):
    """Of runs whose names no preset knows: by shapes and statistics alone."""
    dump = tmp_path / "renamed"
    text = (DUMPS / "mix_8x/step0/rank/dump.json").read_text()
    for old, new in (("self_attn", "sa"), ("_proj", "x"), ("mlp", "m"), ("layernorm", "ln")):
        text = text.replace(old, new)
    (dump / "step0/rank").mkdir(parents=True)
    (dump / "step0/rank/dump.json").write_text(text)
    out = tmp_path / "out"
    given = ["compare", str(llamas["tensor"]), str(dump), "-o", str(out), "--lang", "en"]
    assert main([*given, "--mapping", "suggest"]) == 0
    proposal = (out / "mapping.yaml").read_text()
    lines = [line for line in proposal.splitlines() if not line.startswith("#")]
    assert all(re.search(r"# [01]\.\d\d: \d+ of \d+ equal", line) for line in lines)
    assert "model.layers.*.attention.wq: model.layers.*.sa.qx  #" in proposal
    assert "model.layers.*.feed_forward.w1.activation: model.layers.*.m.act_fn" in proposal
    assert str(out / "mapping.yaml") in capsys.readouterr().out
    assert main([*given, "--mapping", str(out / "mapping.yaml")]) == 0
    assert main([*given, "--mapping", "suggest"]) == 2  # what a user may have edited is kept
    assert "already there" in capsys.readouterr().err
    assert (out / "mapping.yaml").read_text() == proposal


class Halves(nn.Cell):
    """Cut the last axis, as MindSpore's SplitWithSize, which no CPU has."""

    def construct(self, x: Tensor, sizes: tuple[int, ...], axis: int) -> list[Tensor]:
        ends = np.cumsum(sizes).tolist()
        return [x[..., end - size : end] for end, size in zip(ends, sizes)]


@pytest.fixture(scope="module")
def fused(tmp_path_factory) -> Path:
    """Record MindFormers' Llama with fused weights, whose rows alternate by head."""
    network = llama_of_fused_weights()
    return record(tmp_path_factory.mktemp("fused"), network, task="tensor")


def llama_of_fused_weights() -> nn.Cell:
    from mindformers.models.llama import LlamaForCausalLM

    ms.set_context(mode=ms.PYNATIVE_MODE)
    config = llama_config({**SIZES, "qkv_concat": True}, torch_llama.VOCABULARY, 8)
    network = LlamaForCausalLM(config)
    for name, cell in network.cells_and_names():
        for attribute in ("split_qkv", "split"):
            if name.endswith(("attention", "feed_forward")) and hasattr(cell, attribute):
                setattr(cell, attribute, Halves().construct)
    for parameter in network.get_parameters():
        name = torch_llama.of_hugging_face(parameter.name)
        around = name.rpartition(".attention.")[0] or name.rpartition(".feed_forward.")[0]
        if "w_qkv" in name:
            names = [f"{around}.self_attn.{part}_proj.weight" for part in "qkv"]
        elif "w_gate_hidden" in name:
            names = [f"{around}.mlp.{part}_proj.weight" for part in ("gate", "up")]
        else:
            parameter.set_data(Tensor(torch_llama.weights(name, parameter.shape)))
            continue
        rows, columns = parameter.shape
        parts = [torch_llama.weights(n, (rows // len(names), columns)) for n in names]
        groups = torch_llama.HEADS if len(names) == 3 else rows // 2
        turns = [part.reshape(groups, -1, columns) for part in parts]
        parameter.set_data(Tensor(np.concatenate(turns, axis=1).reshape(rows, columns)))
    return network.set_train(False)


@pytest.mark.parametrize("dump", ["tensor", "mix_8x"])
def test_fused_cells_are_proposed_with_their_parts_and_compared_so(fused, tmp_path, dump):
    """In full tensors it is seen how the parts alternate; in statistics it is not."""
    given = ["compare", str(DUMPS / dump), str(fused), "-o", str(tmp_path), "--lang", "en"]
    assert main([*given, "--mapping", "suggest"]) == 0
    proposal = (tmp_path / "mapping.yaml").read_text()
    qkv = ", ".join(f"model.layers.*.self_attn.{part}_proj" for part in "qkv")
    gate_up = "model.layers.*.mlp.gate_proj, model.layers.*.mlp.up_proj"
    if dump == "tensor":
        expected = f"{{parts: [{qkv}], groups: 2}}", f"{{parts: [{gate_up}], groups: 48}}"
    else:
        expected = f"[{qkv}]", f"[{gate_up}]"
        assert proposal.count("full tensors would tell") == 2
    assert f"model.layers.*.attention.w_qkv: {expected[0]}  # 0.9" in proposal
    assert f"model.layers.*.feed_forward.w_gate_hidden: {expected[1]}  # 0.9" in proposal
    assert "q_proj" not in proposal.partition("without partner")[2]
    assert main([*given, "--mapping", str(tmp_path / "mapping.yaml")]) == 0


def test_nothing_is_proposed_of_runs_without_cells(llamas, tmp_path, capsys):
    out = str(tmp_path / "out")
    given = ["compare", str(llamas["tensor"]), str(DUMPS / "L1"), "-o", out]
    assert main([*given, "--mapping", "suggest"]) == 2
    said = capsys.readouterr().out
    assert "No mapping can be proposed" in said
    assert "mindrlhf-msprobe compare" not in said


def test_a_nan_in_one_part_of_a_fused_weight_is_not_lost():
    from mindrlhf_msprobe.comparison.pairing.composed import joined
    from mindrlhf_msprobe.storage.leaves import Leaf
    from mindrlhf_msprobe.storage.records import Record

    leaves = [
        Leaf("torch.Tensor", "Float32", (2, 2), max=m, min=m, mean=m, norm=m)
        for m in (1.0, float("nan"), 2.0)
    ]
    records = [Record(f"x.{n}", "parameters", "weight", leaf) for n, leaf in enumerate(leaves)]
    whole = joined(records, "x").leaf
    assert whole.shape == (6, 2)
    assert all(np.isnan(value) for value in (whole.max, whole.min, whole.mean, whole.norm))
