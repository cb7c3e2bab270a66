"""Cells that ran in one of both networks alone are named where both part behind them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.small_transformers import BLOCKS, Transformer, recorded, weights_of

from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
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
