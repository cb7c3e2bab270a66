"""Weights and inputs of which nothing says whether they agree, and weights that were rounded."""

from __future__ import annotations

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.mismatch.find import PHASES, find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause

HIDDEN, VOCABULARY = 64, 40


class Projection(nn.Cell):
    """A projection whose weight is [inputs, outputs]."""

    def __init__(self, outputs):
        super().__init__()
        values = np.random.default_rng(outputs).standard_normal((HIDDEN, outputs)) / 8
        self.w = Parameter(Tensor(values.astype(np.float32)), name="w")
        self.b = Parameter(Tensor(np.arange(outputs, dtype=np.float32) / 8), name="b")

    def construct(self, x):
        return ops.matmul(x, self.w) + self.b


class SplitHead(nn.Cell):
    """A head in two parts."""

    def __init__(self):
        super().__init__()
        self.left, self.right = Projection(VOCABULARY - 16), Projection(16)

    def construct(self, x):
        return ops.cat([self.left(x), self.right(x)], -1)


class Network(nn.Cell):
    """Two layers without attention between an embedding and a head."""

    def __init__(self, head):
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, HIDDEN, embedding_table="normal")
        self.up, self.down, self.head = Projection(HIDDEN), Projection(HIDDEN), head

    def construct(self, input_ids):
        return self.head(ops.tanh(self.down(ops.tanh(self.up(self.emb(input_ids))))))


def recorded(path, training, change=lambda name, values: values, task="tensor", network=None):
    """Record one batch through a rollout network of one head, and a training network.

    Args:
        change: makes of a parameter's name and values what the rollout holds.
        network: the rollout network; None: one as all of them are.
    """
    rollout = network or Network(Projection(VOCABULARY))
    held = {p.name: p.asnumpy() for p in training.get_parameters()}
    for own in "wb":
        if f"head.{own}" not in held:
            parts = [held.pop(f"head.{part}.{own}") for part in ("left", "right")]
            held[f"head.{own}"] = np.concatenate(parts, -1)
    for parameter in rollout.get_parameters():
        parameter.set_data(Tensor(change(parameter.name, held[parameter.name].copy())))
    section = {"msprobe": True, "dump_path": str(path), "task": task, "step_end": 0}
    section |= {"actor_infer_dump": True, "actor_train_dump": True, "token_range_end": 100}
    ids = Tensor(np.random.default_rng(0).integers(1, VOCABULARY, (2, 9)).astype(np.int32))
    with Probe.from_config(section) as probe:
        probe.watch(actor=training)
        for phase, network in zip(PHASES, (rollout, training)):
            with probe.phase(phase, model=network):
                network(ids)
        probe.step()
    return path


def other_column(name, values):
    """Return weights of which one column of the head is another one."""
    if name == "head.w":
        values[:, 7] *= 1.5
    return values


def test_a_split_head_is_found_by_its_columns(tmp_path, capsys):
    """Weights of both networks are [inputs, outputs]: their columns are what is put together."""
    assert main(["mismatch", str(recorded(tmp_path / "run", Network(SplitHead())))]) == 0
    assert "weights: all 7 agree" in capsys.readouterr().out


def test_what_cannot_be_told_from_the_weights_is_no_computation(tmp_path, capsys):
    """The head's weight has other names, and other values: which of both it is stays open."""
    run = recorded(tmp_path / "run", Network(SplitHead()), other_column)
    assert main(["mismatch", str(run)]) == 1
    out = capsys.readouterr().out
    assert "cause:" not in out
    assert "head may differ because of its weights or because of what it computes" in out
    assert "5 of 7 of the rollout's weights were compared" in out
    assert "2 of the rollout's (head.w, head.b) and 4 of the training's" in out
    assert "all" not in out.split("weights:", 1)[1].splitlines()[0]
    one = find_mismatch(run).found[0]
    assert (one.status, one.cause, one.first.name) == (Agreement.PARTED, None, "head output.0")
    assert one.to_json()["weights"]["alone"]["rollout"] == ["head.w", "head.b"]


class Given(Network):
    """A network whose cell `down` is given something beside its rows, which has no tokens."""

    def __init__(self, beside):
        super().__init__(Projection(VOCABULARY))
        self.beside = Tensor(np.full((3, 5), beside, np.float32))
        right = self.down.construct
        self.down.construct = lambda x, beside: right(x) * beside.mean()

    def construct(self, input_ids):
        x = ops.tanh(self.up(self.emb(input_ids)))
        return self.head(ops.tanh(self.down(x, self.beside)))


@pytest.mark.parametrize(("beside", "cause"), [(1.5, None), (1.0, Cause.COMPUTATION)])
def test_what_a_cell_was_given_beside_its_rows_may_be_to_blame(tmp_path, capsys, beside, cause):
    """Only where it is the same tensor in both networks it is what the cell computes."""
    training = Given(beside)
    if cause is not None:
        right = training.down.construct
        training.down.construct = lambda x, beside: right(x, beside) * 1.5
    run = recorded(tmp_path / "run", training, network=Given(1.0))
    one = find_mismatch(run).found[0]
    assert (one.cause, one.first.name) == (cause, "down output.0")
    assert main(["mismatch", str(run)]) == 1
    listed = "these inputs of down were not compared: down input.1" in capsys.readouterr().out
    assert listed is (cause is None)


def test_a_mapping_names_weights_that_are_inputs_by_outputs(tmp_path):
    """Then the weight is compared, and it is the cause."""
    run = recorded(tmp_path / "run", Network(SplitHead()), other_column)
    mapping = tmp_path / "names.yaml"
    mapping.write_text("head: [head.left, head.right]\n")
    one = find_mismatch(run, mapping=mapping).found[0]
    assert (one.cause, one.first.name) == (Cause.WEIGHTS, "head output.0")
    (weight,) = one.weights
    assert weight.training == ("head.left.w", "head.right.w")
    assert one.weights_alone == ((), ())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("haed: [head.left, head.right]", "matches no cell of the rollout network"),
        ("head: [head.left, head.wrong]", "no cell head.wrong"),
        ("head: [head.left, up]", "[64, 40]"),
        ("head: {parts: [head.left, head.right], groups: 5}", "[64, 24]"),
        ("haed: head", "matches no cell of the rollout network"),
        ("up: upp", "no cell upp"),
    ],
)
def test_a_line_that_maps_nothing_says_what_it_expected(tmp_path, capsys, line, said):
    """It is never left out silently."""
    run = recorded(tmp_path / "run", Network(SplitHead()), other_column)
    mapping = tmp_path / "names.yaml"
    mapping.write_text(line + "\n")
    main(["mismatch", str(run), "--mapping", str(mapping)])
    notes = [one for one in capsys.readouterr().out.splitlines() if "Note: mapping" in one]
    assert len(notes) == 1
    assert said in notes[0]


def test_a_line_that_does_not_fit_is_said_though_the_values_say_what_is_meant(tmp_path, capsys):
    """The groups of one that is right by its parts alone."""
    run = recorded(tmp_path / "run", Network(SplitHead()))
    mapping = tmp_path / "names.yaml"
    mapping.write_text("head: {parts: [head.left, head.right], groups: 7}\n")
    assert main(["mismatch", str(run), "--mapping", str(mapping)]) == 0
    assert "Note: mapping: head" in capsys.readouterr().out


def rounded(name, values):
    return values.astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("task", ["tensor", "sketch"])
def test_weights_that_were_rounded_on_their_way_are_said_to_be(tmp_path, capsys, task):
    """Float32 whose values went through float16: no update is missing."""
    run = recorded(tmp_path / "run", Network(Projection(VOCABULARY)), rounded, task)
    assert main(["mismatch", str(run)]) == 1
    out = capsys.readouterr().out
    assert "cause: weights" in out
    assert "is the training's rounded to float16" in out
    assert "after an update" not in out
    assert {weight.rounded for weight in find_mismatch(run).found[0].weights} == {"Float16"}


@pytest.mark.parametrize("factor", [1.5, 1.001])
def test_a_layer_that_was_not_brought_over_is_named_among_rounded_ones(tmp_path, factor):
    """However little it differs; that the others are rounded is said beside it."""

    def change(name, values):
        return rounded(name, values * np.float32(factor) if name == "down.w" else values)

    one = find_mismatch(recorded(tmp_path / "run", Network(Projection(VOCABULARY)), change))
    one = one.found[0]
    assert (one.cause, one.first.name) == (Cause.WEIGHTS, "down output.0")
    assert [said.code for said in one.said] == ["mismatch.weights", "mismatch.rounded_weights"]
    assert one.said[0].params["name"] == "down.w"


def test_a_cell_that_computes_otherwise_is_named_among_rounded_weights(tmp_path):
    """What rounding explains comes behind what it does not."""
    training = Network(Projection(VOCABULARY))
    down = training.down
    right = down.construct
    down.construct = lambda x: right(x) * 1.5
    one = find_mismatch(recorded(tmp_path / "run", training, rounded)).found[0]
    assert (one.cause, one.first.name) == (Cause.COMPUTATION, "down output.0")
    assert one.said[-1].code == "mismatch.rounded_weights"


def test_what_was_moved_is_said_as_between_two_runs(tmp_path, capsys):
    """Columns that were exchanged, and the weights of two cells."""
    training = Network(Projection(VOCABULARY))
    training.up.w.set_data(training.up.w * 2)
    own = {cell: getattr(training, cell).w.asnumpy().copy() for cell in ("up", "down")}
    exchanged = [1, 0, *range(2, HIDDEN)]
    said = {
        "along axis 1, in another order": {"up.w": own["up"][:, exchanged]},
        "what A holds here, B holds at down.w": {"up.w": own["down"], "down.w": own["up"]},
    }
    for words, changed in said.items():
        path = tmp_path / words[:8]
        recorded(path, training, lambda name, values, held=changed: held.get(name, values))
        assert main(["mismatch", str(path)]) == 1
        assert words in " ".join(capsys.readouterr().out.split())
        weight = find_mismatch(path).found[0].weights[0]
        assert weight.rollout == "up.w"
        assert weight.to_json()["moved"]["code"].startswith("inside.")
