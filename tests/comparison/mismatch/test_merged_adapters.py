"""Adapters (LoRA) that one network adds beside a weight, and the other has merged into it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.runs import Recording
from helpers.small_transformers import (
    BLOCKS,
    HEADS,
    HIDDEN,
    Transformer,
    generate,
    merged,
    recorded,
    rotate,
    samples,
    train,
    weights_of,
)

from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause

ATTENTION = "blocks.{}.attn.{}"


def adapted(seed=0, rank=4, factor=2.0, parts="qv", weights=None):
    """Return a network whose projections have adapters."""
    rng = np.random.default_rng(seed)

    def drawn(*shape):
        return (rng.standard_normal(shape) / 8).astype(np.float32)

    cells = [ATTENTION.format(block, part) for block in range(BLOCKS) for part in parts]
    adapters = {cell: (drawn(rank, HIDDEN), drawn(HIDDEN, rank), factor) for cell in cells}
    return Transformer(weights or weights_of(seed), adapters=adapters)


def found(path, rollout, training, **settings):
    return find_mismatch(recorded(path, rollout, training, **settings)).found[0]


def said(one):
    return {note.code: note.params for note in one.notes if note.code == "mismatch.merged"}


@pytest.mark.parametrize(("rank", "factor", "parts"), [(4, 2.0, "qv"), (1, 0.25, "qkv")])
def test_merged_adapters_agree_with_a_note(tmp_path, capsys, rank, factor, parts):
    """W + f · B A is what W, A and B compute: the note says with which factor they were added."""
    training = adapted(rank, rank, factor, parts)
    run = recorded(tmp_path / "run", Transformer(merged(training)), training)
    one = find_mismatch(run).found[0]
    assert (one.status, one.cause, one.weights) == (Agreement.WITHIN_ROUNDING, None, ())
    note = said(one)["mismatch.merged"]
    assert note["factor"] == pytest.approx(factor, rel=1e-3)
    assert note["count"] == BLOCKS * len(parts)
    assert one.weights_alone == ((), ())
    assert main(["mismatch", str(run)]) == 0
    assert "with its adapters merged into it" in capsys.readouterr().out


@pytest.mark.parametrize("factor", [2.0, 0.01, 1e-5])
def test_merged_weights_of_a_lower_dtype_are_no_others(tmp_path, factor):
    """However little was added: what the cast rounds is said, and no weight that differs."""
    training = adapted(factor=factor)
    weights = merged(training)
    for cell in training.adapters:
        weights[cell] = weights[cell].astype(np.float16)
    one = found(tmp_path / "run", Transformer(weights), training)
    assert (one.cause, one.weights) == (Cause.DTYPE, ())


@pytest.mark.parametrize("cell", ["blocks.1.attn.v", "blocks.0.attn.q"])
def test_an_adapter_that_was_not_merged_is_named(tmp_path, capsys, cell):
    """The weight itself agrees; the other ones have theirs."""
    training = adapted()
    weights = merged(training)
    weights[cell] = training.weights[cell]
    run = recorded(tmp_path / "run", Transformer(weights), training)
    one = find_mismatch(run).found[0]
    assert (one.cause, one.first.name) == (Cause.WEIGHTS, f"{cell} output.0")
    (weight,) = one.weights
    assert weight.rollout == f"{cell}.weight"
    assert {name.rpartition(".")[0] for name in weight.lacks} == {cell}
    assert main(["mismatch", str(run)]) == 1
    assert "without its adapters" in capsys.readouterr().out


def test_a_weight_without_adapters_beside_one_with_them_lacks_none(tmp_path):
    """The neighbour's product has its shape, too; and an adapter of zeros adds nothing."""
    training = adapted(parts="qv")
    cell = "blocks.0.attn.v"
    a, b, factor = training.adapters[cell]
    training.adapters[cell] = a, np.zeros_like(b), factor
    weights = {**merged(training), cell: training.weights[cell]}
    one = found(tmp_path / "run", Transformer(weights), training)
    assert (one.status, one.weights) == (Agreement.WITHIN_ROUNDING, ())


def test_the_training_may_have_them_merged(tmp_path):
    """The other way round."""
    rollout = adapted()
    one = found(tmp_path / "run", rollout, Transformer(merged(rollout)))
    assert one.status is Agreement.WITHIN_ROUNDING
    assert said(one)["mismatch.merged"]["of_training"] is False


def test_by_sketches_what_the_cells_return_decides(tmp_path):
    """Nothing proves what the weights are made of: they are not said to agree."""
    training = adapted()
    rollout = Transformer(merged(training))
    one = found(tmp_path / "run", rollout, training, task="sketch")
    assert (one.status, one.weights) == (Agreement.WITHIN_ROUNDING, ())
    assert said(one)["mismatch.merged"]["factor"] is None
    assert len(one.weights_unknown) == 2 * BLOCKS
    rollout.weights = dict(rollout.weights)
    rollout.weights["blocks.1.attn.q"] = rollout.weights["blocks.1.attn.q"] * np.float32(1.5)
    one = found(tmp_path / "stale", rollout, training, task="sketch")
    assert (one.cause, one.first.name) == (Cause.WEIGHTS, "blocks.1.attn.q output.0")


def test_parts_of_a_fused_projection_may_have_them(tmp_path):
    """A mapping says what it is made of: each part is its own weight with its own adapters."""
    training = adapted()
    mapping = tmp_path / "names.yaml"
    parts = ", ".join(f"blocks.*.attn.{part}" for part in "qkv")
    mapping.write_text(f"blocks.*.attn.qkv: [{parts}]\n", encoding="utf-8")
    run = recorded(tmp_path / "run", Transformer(merged(training), fused=True), training)
    one = find_mismatch(run, mapping=mapping).found[0]
    assert (one.status, one.weights) == (Agreement.WITHIN_ROUNDING, ())
    assert said(one)["mismatch.merged"]["count"] == BLOCKS


def test_another_weight_beside_merged_ones_is_named(tmp_path):
    """What adapters do not explain is no merging."""
    training = adapted()
    weights = merged(training)
    weights["blocks.1.attn.v"] = weights["blocks.1.attn.v"] * np.float32(1.01)
    one = found(tmp_path / "run", Transformer(weights), training)
    assert (one.cause, one.first.name) == (Cause.WEIGHTS, "blocks.1.attn.v output.0")
    assert [weight.rollout for weight in one.weights] == ["blocks.1.attn.v.weight"]


def test_a_fault_elsewhere_is_named_without_them(tmp_path):
    """Nothing that was merged is called different beside it."""
    training = adapted()
    faults = {"blocks.1.norm2": lambda x: x * np.float32(1.1)}
    one = found(tmp_path / "run", Transformer(merged(training), faults=faults), training)
    assert (one.cause, one.first.name) == (Cause.COMPUTATION, "blocks.1.norm2 output.0")
    assert one.weights == ()


def test_another_factor_is_no_other_weight(tmp_path):
    """Merged with 1 where the training adds twice as much: which of both is wrong stays open."""
    training = adapted(factor=2.0)
    one = found(tmp_path / "run", Transformer(merged(training, 1.0)), training)
    assert (one.status, one.cause) == (Agreement.PARTED, None)
    assert one.first.name == "blocks.0.attn.q output.0"
    assert one.said[0].code == "mismatch.merged_otherwise"
    assert one.said[0].params["factor"] == pytest.approx(1.0, rel=1e-3)


def test_adapters_of_an_earlier_step_are_stale(tmp_path):
    """The rollout still has those of step 0 merged: an update was not brought over."""
    first = adapted()
    later = adapted(seed=1, weights=first.weights).adapters
    rollout = Transformer(merged(first))
    recording = Recording(tmp_path / "run", task="tensor", directions=["forward"])
    for training in (first, replace(first, adapters=later)):
        generate(recording, rollout, samples())
        train(recording, training, samples())
        recording.end_step()
    one = find_mismatch(recording.close(), steps=[1]).found[0]
    assert (one.cause, one.first.name) == (Cause.WEIGHTS, "blocks.0.attn.q output.0")
    assert {weight.stale for weight in one.weights} == {0}


class Wrapped(Transformer):
    """A network whose weights stand in a cell of their own inside those that have adapters."""

    own = ""  # behind the cells of adapters: PEFT names them

    def _dense(self, name, x):
        if name not in self.adapters:
            return super()._dense(name, x)
        a, b, factor = self.adapters[name]

        def added(x):
            weight = self.weights[name]
            base = f"{name}.base_layer"
            base = self._cell(base, "Dense", lambda x: x @ weight.T, x, weight=weight)
            low = self._cell(f"{name}.lora_A{self.own}", "Dense", lambda x: x @ a.T, x, weight=a)
            up = self._cell(f"{name}.lora_B{self.own}", "Dense", lambda x: x @ b.T, low, weight=b)
            return base + np.float32(factor) * up

        return self._cell(name, "LoraLinear", added, x)


def test_a_weight_inside_the_cell_with_adapters_is_found(tmp_path):
    """`q.weight` is `q.base_layer.weight` with what `q.lora_A` and `q.lora_B` add."""
    made = adapted()
    training = Wrapped(made.weights, adapters=made.adapters)
    one = found(tmp_path / "run", Transformer(merged(made)), training)
    assert one.status is Agreement.WITHIN_ROUNDING
    assert said(one)["mismatch.merged"]["count"] == 2 * BLOCKS
    assert one.weights_alone == ((), ())


class Named(Wrapped):
    """As PEFT does: `q.base_layer.weight`, `q.lora_A.default.weight`."""

    own = ".default"


class Interleaved(Transformer):
    """A network whose fused projection has its queries, keys and values head by head."""

    def _attention(self, x, positions, name):
        def rotated(own, given):
            return self._cell(f"{name}.rotary_{own}", "Rotary", rotate, given, positions)

        heads = self._dense(f"{name}.qkv", x).reshape(*x.shape[:2], HEADS, 3, -1)
        q, k, v = (heads[..., part, :].reshape(x.shape) for part in range(3))
        return self._dense(f"{name}.out", self._mixed(name, rotated("q", q), rotated("k", k), v))

    def _weight(self, name):
        weight = super()._weight(name)
        if not name.endswith(".qkv"):
            return weight
        return weight.reshape(3, HEADS, -1, HIDDEN).swapaxes(0, 1).reshape(weight.shape)


@pytest.mark.parametrize("kind", [Transformer, Wrapped, Named])
@pytest.mark.parametrize(("rollout", "parts"), [(Transformer, "qkv"), (Interleaved, "qv")])
def test_a_fused_projection_holds_them_without_a_mapping(tmp_path, kind, rollout, parts):
    """`qkv` is `q`, `k` and `v` with their adapters, however these are wrapped, and in any order.

    A weight of it that is another one is still named.
    """
    made = adapted(parts=parts)
    training = kind(made.weights, adapters=made.adapters)
    weights = merged(made)
    one = found(tmp_path / "run", rollout(weights, fused=True), training)
    assert (one.status, one.weights, one.weights_alone) == (
        *(Agreement.WITHIN_ROUNDING, ()),
        ((), ()),
    )
    assert said(one)["mismatch.merged"]["factor"] == pytest.approx(2.0, rel=1e-3)
    assert said(one)["mismatch.merged"]["count"] == BLOCKS
    weights["blocks.1.attn.k"] = weights["blocks.1.attn.k"] * np.float32(1.25)
    one = found(tmp_path / "stale", rollout(weights, fused=True), training)
    assert one.cause is Cause.WEIGHTS
    assert [weight.rollout for weight in one.weights] == ["blocks.1.attn.qkv.weight"]
