"""Two faults at once: the first is the cause, the other one is said to be there, too."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("mindformers")
from helpers import wrong_rollouts
from helpers.rollouts import recorded

from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.demo import fault as rollout_fault
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause
from mindrlhf_msprobe.report.answer import as_text
from mindrlhf_msprobe.report.mismatch import lines_of


def always(plant):
    """Return a fault of the demo that is there from the beginning."""
    return lambda trainer: plant(trainer, lambda: True)


TEMPERATURE = always(rollout_fault.temperature)
HEAD = always(rollout_fault.lm_head_dtype)
MASK = always(rollout_fault.mask_padding)
WEIGHT = wrong_rollouts.one_weight(0)


def other_rotation(trainer):
    """Let the rollout rotate by twice the angle in all layers."""
    for layer in trainer.rollout.model.layers:
        cell = layer.attention.apply_rotary_emb

        def doubled(query, key, freqs, rotate=cell.construct):
            cos, sin, *more = freqs
            return rotate(query, key, (2 * cos * cos - 1, 2 * sin * cos, *more))

        cell.construct = doubled


LAST_WEIGHT = wrong_rollouts.weights_of_another_layer(1)

#: Both faults → the cause that is named first, and what else is said to differ.
PAIRS = {
    "weights, temperature": ((WEIGHT, TEMPERATURE), Cause.WEIGHTS, {"mismatch.also_temperature"}),
    "weights, dtype": ((WEIGHT, HEAD), Cause.WEIGHTS, {"mismatch.also_dtype"}),
    "mask, weights": ((MASK, LAST_WEIGHT), Cause.COMPUTATION, {"mismatch.weights"}),
    "dtype, rotation": (
        (wrong_rollouts.rollout_dtype(0), other_rotation),
        Cause.DTYPE,
        {"mismatch.also_beyond"},
    ),
    "dtype, temperature": ((HEAD, TEMPERATURE), Cause.DTYPE, {"mismatch.also_temperature"}),
    "computation, temperature": (
        (wrong_rollouts.output_projection(0), TEMPERATURE),
        Cause.COMPUTATION,
        {"mismatch.also_temperature"},
    ),
}


def found(path, *plants):
    def plant(trainer):
        for one in plants:
            one(trainer)

    result = find_mismatch(recorded(path / "run", 3, plant, response_length=3))
    return result, result.found[0]


def also(one):
    return {said.params["what"].code for said in one.said if said.code == "mismatch.also"}


@pytest.mark.parametrize(("plants", "cause", "others"), PAIRS.values(), ids=PAIRS)
def test_a_second_fault_is_said(tmp_path, plants, cause, others):
    """Behind the first cause, on the console and in the JSON."""
    result, one = found(tmp_path, *plants)
    assert (one.status, one.cause) == (Agreement.PARTED, cause)
    assert also(one) == others
    for lang, words in (("en", "also different: "), ("zh", "另外不同：")):
        with speaking(lang):
            assert words in as_text(lines_of(result))
    for said in one.said:
        if said.code == "mismatch.also" and said.params["what"].code.endswith("temperature"):
            both = (said.params["what"].params[side] for side in ("rollout", "training"))
            assert [*both] == [rollout_fault.TEMPERATURE, 1.0]


def test_another_rotation_is_named_though_all_weights_are_rounded(tmp_path):
    """In all layers alike, with no cell of its own: what attention hands on, of the first."""

    def plant(trainer):
        wrong_rollouts.rounded_weights(0)(trainer)
        other_rotation(trainer)

    section = {"exclude": ["rotary"]}
    run = recorded(tmp_path / "run", 3, plant, response_length=3, section=section)
    one = find_mismatch(run).found[0]
    named = "model.layers.0.attention.wo input.0", Cause.INPUT
    assert (one.first.name, one.cause) == named
    assert "mismatch.rounded_weights" in {said.code for said in one.said}
