"""Trainings of the demo with operators recorded: wrong kernels in Llama and in the loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("mindformers")
import mindspore as ms
from helpers import wrong_rollouts
from helpers.rollouts import recorded
from mindspore import ops

from mindrlhf_msprobe import Tolerance, compare_runs
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.findings import Cause, Divergence, Outcome

SECTION = {
    "level": "mix",
    "directions": ["forward", "backward"],
    "include": [r"layers\.1", "^$"],
    "actor_infer_dump": False,
}
#: Kernels on CPU round otherwise from call to call, by where their input lies.
TOLERANCE = Tolerance(rtol=1e-5, atol=1e-6)


def record(path: Path, plant: Callable[[Any], None] | None = None) -> Path:
    settings: dict[str, Any] = {"section": SECTION, "response_length": 3}
    return recorded(path, 0, plant, steps=1 + 1, task="statistics", **settings)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("right") / "run")


def blamed(a: Path, b: Path) -> Divergence:
    first = compare_runs(a, b, tolerance=TOLERANCE).verdict.first_divergence
    assert first is not None
    return first


def test_a_primitive_inside_a_layer_of_llama_is_named(
    right: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the attribute that holds it, its class, and the cell it is called in."""
    kernel = ops.Softmax.__call__
    held: list[ops.Softmax] = []

    def wrong(self: ops.Softmax, *args: Any) -> ms.Tensor:
        result = kernel(self, *args)
        return result * ms.Tensor(1.001, ms.float32) if self in held else result

    def softmax_of_layer_1(trainer: Any) -> None:
        held.append(trainer.networks["actor"].model.layers[1].attention.softmax)

    monkeypatch.setattr(ops.Softmax, "__call__", wrong)
    first = blamed(right, record(tmp_path / "run", softmax_of_layer_1))
    assert first.operator == "Primitive.softmax.Softmax"
    assert (first.cell, first.cause) == ("model.layers.1.attention", Cause.COMPUTATION)
    assert "softmax" in first.source


def test_an_operator_of_the_loss_is_named(
    right: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside every cell, by its line in the trainer."""
    kernel = ops.clamp

    def wrong(*args: Any, **kwargs: Any) -> ms.Tensor:
        return kernel(*args, **kwargs) * ms.Tensor(1.001, ms.float32)

    monkeypatch.setattr(ops, "clamp", wrong)
    first = blamed(right, record(tmp_path / "run"))
    assert (first.operator, first.cell) == ("Functional.clamp", "")
    assert (first.phase, first.cause) == ("actor_update", Cause.COMPUTATION)
    assert first.line.startswith("trainer.py:")
    assert "clipped = ops.clamp(ratio" in first.source


def test_two_trainings_agree(right: Path, tmp_path: Path) -> None:
    verdict = compare_runs(right, record(tmp_path / "run"), tolerance=TOLERANCE).verdict
    assert verdict.status in (Outcome.IDENTICAL, Outcome.WITHIN_TOLERANCE)
    assert verdict.compared > 1000


def test_training_against_inference_looks_at_cells(tmp_path: Path) -> None:
    """With operators recorded, too, the same cell is named."""
    plant = wrong_rollouts.projection(1)
    run = recorded(tmp_path / "run", 1, plant, response_length=3, section={"level": "mix"})
    assert find_mismatch(run).found[0].first.name == "model.layers.1.attention.w_qkv output.0"
