"""What two networks do not have in common: cells of one alone, their order, and their modes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.small_transformers import BLOCKS, Transformer, recorded, weights_of
from mindspore import Tensor, nn

from mindrlhf_msprobe import Probe
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.mismatch.find import PHASES, find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause

NETWORK = Transformer(weights_of())


def doubled(x):
    return x * np.float32(2)


def same(x):
    return x


def every(name, other, function):
    """Return an extra cell in each block."""
    blocks = range(BLOCKS)
    return {name.format(n): (other.format(n), function) for n in blocks}


def found(path, rollout, training, **settings):
    return find_mismatch(recorded(path / "run", rollout, training, **settings)).found[0]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("norm", "head input.0"),
        ("blocks.1.norm2", "blocks.1.up input.0"),
        ("blocks.0.norm1", "blocks.0.attn input.0"),
    ],
)
def test_a_cell_that_the_rollout_lacks_is_named(tmp_path, capsys, missing, named, fused):
    """Not the weights of the cell behind it, which agree."""
    rollout = replace(NETWORK, without=frozenset({missing}), fused=fused)
    run = recorded(tmp_path / "run", rollout, NETWORK)
    one = find_mismatch(run).found[0]
    assert (one.status, one.cause, one.first.name) == (Agreement.PARTED, Cause.INPUT, named)
    said = one.said[0]
    assert said.code == "mismatch.ran_alone"
    assert (said.params["side"], said.params["cells"]) == ("training", [f"{missing} (RMSNorm)"])
    assert said.params["skipped"]
    main(["mismatch", str(run)])
    out = capsys.readouterr().out
    assert f"{missing} (RMSNorm) ran before" in out
    assert "because of its weights" not in out


def test_a_cell_that_the_training_lacks_is_named(tmp_path):
    """The other way round."""
    rollout = replace(NETWORK, extra={"head": ("cap", np.tanh)})
    one = found(tmp_path, rollout, NETWORK)
    assert one.said[0].params["cells"] == ["cap (Extra)"]
    assert one.said[0].params["side"] == "rollout"


def test_a_layer_that_the_rollout_lacks_is_named(tmp_path):
    """With all inside it as one."""
    names = [name for name in NETWORK.weights if not name.startswith(f"blocks.{BLOCKS - 1}.")]
    rollout = Transformer({name: NETWORK.weights[name] for name in names})
    one = found(tmp_path, rollout, NETWORK)
    assert one.first.name == "norm input.0"
    assert one.said[0].params["cells"] == [f"blocks.{BLOCKS - 1} (Block)"]


def test_cells_that_do_nothing_are_not_to_blame(tmp_path):
    """Dropout in evaluation, which one class has and the other has not."""
    training = replace(NETWORK, extra=every("blocks.{}.up", "blocks.{}.dropout", same))
    rollout = replace(NETWORK, extra={"blocks.0.up": ("blocks.0.more", same)})
    rollout.faults = {"blocks.1.norm2": doubled}
    one = found(tmp_path, rollout, training)
    assert one.first.name == "blocks.1.norm2 output.0"
    rollout = replace(NETWORK, without=frozenset({"blocks.0.norm2"}))
    said = found(tmp_path / "missing", rollout, training).said[0]
    assert said.params["cells"] == ["blocks.0.norm2 (RMSNorm)"]


def test_cells_of_other_layers_that_agree_are_not_to_blame(tmp_path):
    """Every layer of the training has one that the rollout computes without a cell."""
    halves = every("blocks.{}.up", "blocks.{}.scale", lambda x: x * np.float32(0.5))
    training = replace(NETWORK, extra=halves)

    class Inline(Transformer):
        def _norm(self, name, x):
            made = super()._norm(name, x)
            if not name.endswith("norm2"):
                return made
            return made * np.float32(0.7 if name == "blocks.1.norm2" else 0.5)

    one = found(tmp_path, Inline(NETWORK.weights), training)
    assert (one.cause, one.first.name) == (Cause.INPUT, "blocks.1.up input.0")
    assert one.said[0].code == "mismatch.handed_on"


def test_cells_under_two_names_are_not_called_missing(tmp_path):
    """Both networks have one of their own there: a mapping is asked for."""

    class Renamed(Transformer):
        def _cell(self, name, *inputs, **parameters):
            return super()._cell("last" if name == "norm" else name, *inputs, **parameters)

    weights = {**NETWORK.weights, "norm": NETWORK.weights["norm"] * np.float32(1.5)}
    one = found(tmp_path, Renamed(weights), NETWORK)
    assert (one.cause, one.first.name) == (None, "head input.0")
    assert one.said[0].code == "mismatch.weights_undecided"


def test_cells_that_were_not_to_be_recorded_are_not_called_missing(tmp_path):
    """The rollout's run leaves them out."""
    rollout = replace(NETWORK, without=frozenset({"norm"}))
    a = recorded(tmp_path / "a", rollout, NETWORK, exclude=["norm"])
    b = recorded(tmp_path / "b", NETWORK, NETWORK)
    one = find_mismatch(a, b).found[0]
    assert one.first.name == "head input.0"
    assert "mismatch.ran_alone" not in {said.code for said in one.said}


NAMED = "blocks.{}.attn.qkv output.0"


@pytest.mark.parametrize("task", ["tensor", "sketch"])
@pytest.mark.parametrize(("part", "block"), [("q", 0), ("k", 2), ("v", 0), ("v", 2)])
def test_a_stale_part_of_a_fused_projection_is_named_before_its_uses(tmp_path, part, block, task):
    """The training rotates queries before it computes values: the projection still comes first."""
    weights = weights_of()
    weights[f"blocks.{block}.attn.{part}"] = weights[f"blocks.{block}.attn.{part}"] * np.float32(
        1.2
    )
    rollout = Transformer(weights, fused=True)
    run = recorded(tmp_path / "run", rollout, Transformer(weights_of()), task=task)
    one = find_mismatch(run).found[0]
    assert (one.cause, one.first.name) == (Cause.WEIGHTS, NAMED.format(block))
    assert one.said[0].params["name"] == f"blocks.{block}.attn.qkv.weight"
    assert len(one.origins) == 1


@pytest.mark.parametrize("part", ["q", "v"])
def test_a_part_that_computes_otherwise_is_named_before_its_uses(tmp_path, part):
    """Of the training, where all weights agree."""
    faults = {f"blocks.1.attn.{part}": lambda x: x * np.float32(1.1)}
    training = Transformer(weights_of(), faults=faults)
    run = recorded(tmp_path / "run", Transformer(weights_of(), fused=True), training)
    one = find_mismatch(run).found[0]
    assert (one.cause, one.first.name) == (Cause.COMPUTATION, NAMED.format(1))


@pytest.mark.parametrize("part", ["q", "k"])
def test_what_rotates_a_part_is_named_behind_the_projection(tmp_path, part):
    """The projection agrees, and stands first."""
    faults = {f"blocks.1.attn.rotary_{part}": lambda x: x[:, :, ::-1]}
    rollout = Transformer(weights_of(), fused=True, faults=faults)
    run = recorded(tmp_path / "run", rollout, Transformer(weights_of()))
    one = find_mismatch(run).found[0]
    assert one.first.name == f"blocks.1.attn.rotary_{part} output.0"


class Network(nn.Cell):
    """An embedding, a projection with dropout behind it, and a head."""

    def __init__(self, p):
        super().__init__()
        self.emb, self.up = nn.Embedding(40, 64), nn.Dense(64, 64)
        self.drop, self.head = nn.Dropout(p=p), nn.Dense(64, 40)

    def construct(self, ids):
        return self.head(self.drop(self.up(self.emb(ids))))


def recorded_in(path, p, modes, drop=None):
    """Record both phases of one network in the modes that are given.

    Args:
        drop: the mode of the dropout alone, in the training.
    """
    section = {"msprobe": True, "dump_path": str(path), "task": "tensor", "step_end": 0}
    section |= {"actor_infer_dump": True, "actor_train_dump": True, "token_range_end": 100}
    ids = Tensor(np.random.default_rng(0).integers(1, 40, (2, 9)).astype(np.int32))
    network = Network(p)
    with Probe.from_config(section) as probe:
        probe.watch(actor=network)
        for phase, mode in zip(PHASES, modes):
            network.set_train(mode)
            if drop is not None and phase == PHASES[1]:
                network.drop.set_train(drop)
            with probe.phase(phase):
                network(ids)
        probe.step()
    return path


@pytest.mark.parametrize("modes", [(False, True), (True, False), (True, True)])
def test_active_dropout_is_said_where_both_part_by_it(tmp_path, capsys, modes):
    """The cell, and the mode of either network."""
    run = recorded_in(tmp_path / "run", 0.3, modes)
    one = find_mismatch(run).found[0]
    assert (one.cause, one.first.name) == (Cause.COMPUTATION, "drop output.0")
    said = {said.code: said.params for said in one.said}["mismatch.modes"]
    words = ["training" if mode else "evaluation" for mode in modes]
    assert [said["rollout"], said["training"]] == words
    assert {*said["dropping"]} == {"drop"}
    assert "mismatch.modes" not in {note.code for note in one.notes}
    main(["mismatch", str(run)])
    assert "set_train(False)" in capsys.readouterr().out


def test_dropout_that_alone_is_in_training_is_said(tmp_path):
    """The network around it is in evaluation in both."""
    one = find_mismatch(recorded_in(tmp_path / "run", 0.3, (False, False), drop=True)).found[0]
    said = {said.code: said.params for said in one.said}["mismatch.modes"]
    assert (said["cells"], said["dropping"]) == (["drop"], ["drop"])


def test_modes_that_change_nothing_are_a_note(tmp_path):
    """Dropout of nothing: both agree, and that the modes differ is a note."""
    one = find_mismatch(recorded_in(tmp_path / "run", 0.0, (False, True))).found[0]
    assert one.status is Agreement.IDENTICAL
    (note,) = [note for note in one.notes if note.code == "mismatch.modes"]
    assert note.params["dropping"] == []


@pytest.mark.parametrize(("p", "mode"), [(0.3, False), (0.0, True)])
def test_one_mode_without_active_dropout_is_not_mentioned(tmp_path, p, mode):
    """Nothing to say."""
    one = find_mismatch(recorded_in(tmp_path / "run", p, (mode, mode))).found[0]
    assert one.status is Agreement.IDENTICAL
    assert "mismatch.modes" not in {note.code for note in one.notes}
