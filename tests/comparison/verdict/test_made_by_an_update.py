"""What the forward pass of an update makes: log-probabilities, and the losses of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from helpers.runs import Fault
from helpers.snapshots import rewrite
from helpers.updates import LOG_PROB, UPDATE, record_updates

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.findings import Cause, CulpritCode, Divergence, Relation
from mindrlhf_msprobe.report.comparison import render

KEYS = {"actor_train_dump": False, "reference_dump": False, "critic_train_dump": False}


def first(comparison) -> Divergence:
    found = comparison.verdict.first_divergence
    assert found is not None
    return found


@pytest.fixture
def compared(tmp_path: Path):
    """Return a function that records a run and one with faults, and compares them."""
    numbers = itertools.count()

    def compare(*faults, after=None, other=None, **training):
        place = tmp_path / str(next(numbers))
        a = record_updates(place / "a", **training)
        b = record_updates(place / "b", *faults, **{**training, **(other or {})})
        out = place / "out" if training.get("actor_train_dump") is False else None
        return compare_runs(a, b, output_path=out, after=after)

    return compare


def half(value):
    return value * np.float32(0.5)


TEMPERATURE = Fault("temperature", UPDATE, change=lambda v: v * np.float32(1.3))


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("updates", [1, 3])
def test_a_temperature_in_the_update_is_what_turns_logits_into_log_prob(compared, task, updates):
    """Not the gradient, which comes of it: the logits agree, the log-probabilities do not."""
    found = first(compared(TEMPERATURE, task=task, updates=updates))
    assert (found.record, found.phase, found.cause) == ("log_prob", UPDATE, Cause.DATA)
    assert found.entry is None
    assert "agree bit for bit" in found.explanation
    assert "the code that computes log_prob from these logits" in found.explanation
    assert "temperature" in found.source
    assert found.next_step is None  # the layers agree


def test_old_log_probs_are_made_of_their_own_logits(compared):
    """The same of every phase that computes log-probabilities."""
    found = first(compared(Fault("old_log_prob", LOG_PROB, change=half)))
    assert (found.record, found.cause, found.entry) == ("old_log_prob", Cause.DATA, None)
    assert "the code that computes" in found.explanation
    assert "temperature" in found.source


def test_logits_that_differ_are_named_themselves(compared):
    """A network whose output differs stands before the log-probabilities that are made of it."""
    found = first(compared(Fault("logits", UPDATE)))
    assert found.entry == "Cell.root.Net.forward.0"
    assert found.cause is Cause.COMPUTATION


def test_a_gradient_that_alone_differs_is_named(compared):
    """All that the forward pass made agrees: the loss function's own gradient."""
    found = first(compared(Fault("gradient", UPDATE)))
    assert found.record == "Cell.root.Net.backward.0.input.0"
    assert found.cause is Cause.INPUT


def test_the_second_round_keeps_the_key_data(compared, tmp_path):
    """So that log_prob is compared with the layers, and stands first again."""
    keys = compared(TEMPERATURE, **KEYS)
    found = first(keys)
    assert found.record == "log_prob"
    assert found.next_step is not None
    assert found.next_step["key_data_dump"] is True
    settings = {k: v for k, v in found.next_step.items() if k != "msprobe"}
    assert ProbeConfig(**found.next_step).key_data_dump
    layers = compared(TEMPERATURE, after=tmp_path / "0" / "out", **{**KEYS, **settings})
    assert first(layers).record == "log_prob"
    assert layers.earlier[1] is Relation.SAME
    assert first(layers).next_step is None


def test_a_run_that_saved_no_key_data_is_not_told_to(compared):
    """What A does not record is not switched on."""
    found = first(compared(Fault("logits", UPDATE), key_data_dump=False, include=["none"]))
    assert "key_data_dump" not in (found.next_step or {})


@pytest.mark.parametrize("key", ["log_prob", "loss"])
def test_what_was_made_before_does_not_come_of_the_gradient(compared, tmp_path, key):
    """Without key data in the second round the gradient is first; the key stands before it."""
    fault = TEMPERATURE if key == "log_prob" else Fault("loss", UPDATE, change=half)
    keys = compared(fault, keys=("log_prob", "loss"), **KEYS)
    assert first(keys).record == key
    layers = compared(fault, after=tmp_path / "0" / "out", key_data_dump=False)
    assert first(layers).record == "Cell.root.Net.backward.0.input.0"
    assert layers.earlier[1] is Relation.FOLLOWS
    said = render(layers)
    assert f"it named {key}" in said
    assert "results from this" not in said


def test_what_a_cell_made_comes_of_that_cell(compared, tmp_path):
    """The order is known: the forward pass is before log_prob."""
    fault = Fault("logits", UPDATE)
    keys = compared(fault, **KEYS)
    assert first(keys).record == "log_prob"
    layers = compared(fault, after=tmp_path / "0" / "out", key_data_dump=False)
    assert layers.earlier[1] is Relation.INSIDE
    assert "it named log_prob at step 0, actor_update, which results from this" in render(layers)


def test_what_is_made_of_gradients_comes_of_them(compared, tmp_path):
    """grad_norm is made behind the backward pass."""
    fault = Fault("gradient", UPDATE)
    assert first(compared(fault, **KEYS)).record == "grad_norm"
    layers = compared(fault, after=tmp_path / "0" / "out", key_data_dump=False)
    assert layers.earlier[1] is Relation.INSIDE


# One number of many tokens.


@pytest.mark.parametrize("cells", [False, True])
def test_a_loss_that_alone_differs_is_made_by_what_sums(compared, cells):
    """log_prob, ratio and kl agree: no layer is asked for, and loss_inputs is named."""
    fault = Fault("loss", UPDATE, change=half)
    settings = {} if cells else KEYS
    found = first(compared(fault, **settings))
    assert (found.record, found.cause) == ("loss", Cause.DATA)
    assert found.culprit is not None
    assert found.culprit.code is CulpritCode.AGGREGATION
    assert {"log_prob", "ratio", "kl"} <= set(found.culprit.details["agree"])
    assert found.next_step is None
    assert "loss_inputs" in found.explanation
    assert "actor_train_dump" not in found.explanation


@pytest.mark.parametrize("updates", [1, 3])
@pytest.mark.parametrize(
    ("training", "saved", "missing"),
    [
        ({}, "advantages, response_mask, old_log_prob, ref_log_prob", "Its settings ("),
        (
            {"with_mask": False},
            "advantages, old_log_prob, ref_log_prob",
            "The mask and the settings",
        ),
        (
            {"rewarded": False},
            "response_mask, old_log_prob, ref_log_prob",
            "The advantages and the settings",
        ),
        (
            {"rewarded": False, "with_mask": False},
            "old_log_prob, ref_log_prob",
            "The mask, the advantages and the settings",
        ),
    ],
)
def test_what_was_saved_of_what_a_loss_is_given_is_not_called_missing(
    compared, training, saved, missing, updates
):
    """What was saved and agrees is named, and loss_inputs is asked for what was not."""
    fault = Fault("loss", UPDATE, change=lambda v: v * np.float32(1.37))
    found = first(compared(fault, updates=updates, **training, **KEYS))
    assert f"Of the inputs of the loss, {saved} agree bit for bit, too." in found.explanation
    assert f"{missing}" in found.explanation
    assert "in no key data: save loss_inputs" in found.explanation
    assert "The inputs of the loss were not saved" not in found.explanation


def test_random_numbers_explain_no_sum_of_what_agrees(tmp_path):
    """Numpy's generator is in another state: nothing is drawn in a loss that alone differs."""
    runs = []
    for name, faults in (("a", ()), ("b", (Fault("loss", UPDATE, step=1, change=half),))):
        runs.append(record_updates(tmp_path / name, *faults, steps=2, **KEYS))
        states = {"numpy_state": [[0, f"{7:08x}{ord(name):08x}"]]}
        rewrite(runs[-1] / "run.json", {"random_states": states})
    comparison = compare_runs(*runs)
    assert [d.setting for d in comparison.preflight.differences] == ["numpy_state"]
    found = first(comparison)
    assert found.culprit.code is CulpritCode.AGGREGATION
    assert "random generator" not in found.explanation


def test_a_mask_saved_behind_the_loss_is_not_said_to_agree(of_both):
    """It differs, too: it is named, and not what sums alone."""

    def record(recording, run):
        mask = np.array([[1, 1, 1], [1, 0, run == "a"]], np.float32)
        values = np.arange(6, dtype=np.float32).reshape(2, 3) - 9
        with recording.phase(UPDATE):
            pass
        recording.data("log_prob", values)
        recording.data("loss", np.float32((values * mask).sum()))
        recording.data("response_mask", mask)

    found = first(of_both(record, **KEYS))
    assert (found.record, found.culprit.code) == ("loss", CulpritCode.AGGREGATION)
    assert "response_mask does not agree bit for bit: check that, too" in found.explanation
    assert found.culprit.details["missing"] == ["advantages"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("key", ["kl_loss", "actor_loss", "loss"])
def test_means_over_tokens_and_over_sequences_are_told_apart(compared, key, seed):
    """Where the masks are at hand, they explain the factor; either run may have either.

    Also where ratio and kl were not saved, and follow from other log-probabilities.
    """
    draw = np.random.default_rng(seed)
    keys = ("log_prob", key) if seed % 2 else ("log_prob", "ratio", "kl", key)
    lengths = draw.integers(1, 12, size=draw.integers(3, 8)).tolist()
    if len({*lengths}) == 1:
        lengths[0] += 1
    ways = ["tokens", "sequences"]
    draw.shuffle(ways)
    beta = float(draw.choice([0.0, 0.04, 0.3]))
    training = {"keys": keys, "lengths": lengths, "aggregation": ways[0], "beta": beta, **KEYS}
    training["off_policy"] = True
    found = first(compared(other={"aggregation": ways[1]}, **training))
    assert (found.record, found.culprit.code) == (key, CulpritCode.AGGREGATION)
    assert found.culprit.details["means"] == {"A": ways[0], "B": ways[1]}
    assert found.next_step is None


TRL = {
    "responses": "completions",
    "log_prob": "per_token_logps",
    "old_log_prob": "old_per_token_logps",
    "ref_log_prob": "ref_per_token_logps",
}
OTHERS = {"log_prob": "log_probs", "old_log_prob": "old_logps", "ref_log_prob": "ref_logps"}


@pytest.mark.parametrize("names", [TRL, OTHERS])
@pytest.mark.parametrize(
    ("fault", "other"), [(TEMPERATURE, {}), (None, {"aggregation": "sequences"})]
)
@pytest.mark.parametrize("cells", [False, True])
def test_another_trainers_names_give_the_same_answer(compared, names, fault, other, cells):
    """Every name of the table in quick_start.md."""
    training = {"keys": ("log_prob", "loss"), "off_policy": True, **({} if cells else KEYS)}
    faults = () if fault is None else (fault,)
    usual = first(compared(*faults, other=other, **training))
    found = first(compared(*faults, other=other, names=names, **training))
    assert found.record == names.get(usual.record, usual.record)
    assert (found.phase, found.cause) == (usual.phase, usual.cause)
    assert (found.culprit and found.culprit.code) == (usual.culprit and usual.culprit.code)
    assert found.next_step == usual.next_step
    if fault is None:
        assert found.culprit.details["means"] == {"A": "tokens", "B": "sequences"}


@pytest.mark.parametrize(
    ("seed", "key"), [(0, "kl_loss"), (1, "actor_loss"), (2, "loss"), (3, "loss")]
)
def test_a_forgotten_mask_is_told_from_other_means(compared, key, seed):
    """The mean over all places is the commonest fault."""
    draw = np.random.default_rng(seed)
    lengths = [*draw.integers(1, 9, size=3).tolist(), 9]
    training = {"keys": ("log_prob", key), "lengths": lengths, "off_policy": True, **KEYS}
    found = first(compared(other={"aggregation": "places"}, **training))
    assert found.culprit.details["means"] == {"A": "tokens", "B": "places"}
    assert "B over all positions, with padding" in found.explanation


@pytest.mark.parametrize("way", ["sequences", "places"])
def test_what_cancels_out_tells_no_mean(compared, way):
    """In a first update ratio is 1: the mean of centred advantages is 0, over sequences or not."""
    training = {"keys": ("log_prob", "ratio", "actor_loss"), "beta": 0.0, **KEYS}
    found = first(compared(other={"aggregation": way}, **training))
    assert found.culprit.code is CulpritCode.AGGREGATION
    assert "means" not in found.culprit.details
    possible = {"A": ["tokens"], "B": ["sequences", "places"]}
    assert found.culprit.details["possible_means"] == possible
    assert "B's is 0 but for rounding" in found.explanation
    assert "×" not in found.explanation, "a factor that rounding made"


@pytest.mark.parametrize(
    ("way", "over", "under"),
    [
        ("sum", ("tokens", 19), ("one", 1)),
        ("sums", ("tokens", 19), ("samples", 4)),
        ("area", ("tokens", 19), ("places", 28)),
    ],
)
@pytest.mark.parametrize("key", ["kl_loss", "loss"])
def test_a_factor_of_counts_is_named(compared, way, over, under, key):
    """As GRPO without a mean by length has it."""
    training = {"keys": ("log_prob", key), "off_policy": True, **KEYS}
    found = first(compared(other={"aggregation": way}, **training))
    assert found.culprit.details["factor"] == pytest.approx(over[1] / under[1], rel=1e-4)
    assert found.culprit.details["counts"] == [over, under]
    assert "means" not in found.culprit.details


def test_parts_that_agree_leave_how_they_are_added(compared):
    """What makes a number of the tokens is not to blame."""
    keys = ("log_prob", "ratio", "kl", "kl_loss", "actor_loss", "loss")
    found = first(compared(other={"beta": 0.9}, keys=keys, updates=2, **KEYS))
    assert found.culprit.details["parts"] == ["actor_loss", "kl_loss"]
    assert "the way it is made of actor_loss, kl_loss" in found.explanation
    assert "c is 0.05 in A and 0.9 in B" in found.explanation
    assert found.next_step is None


TOKENS = ("log_prob", "ratio", "kl", "loss")


@pytest.mark.parametrize(
    ("factor", "other", "training"),
    [
        *((factor, {}, {}) for factor in (0.5, 0.9, 1.01, 2.0, 4.0)),
        (1, {"beta": 0.5}, {"keys": TOKENS}),
        (1, {"aggregation": "sequences"}, {"with_mask": False, "keys": ("log_prob", "kl_loss")}),
    ],
)
def test_what_is_not_known_to_be_another_mean_is_none(compared, factor, other, training):
    """A loss that is multiplied, another coefficient, and means without a mask at hand."""
    fault = Fault("loss", UPDATE, change=lambda v: v * np.float32(factor))
    found = first(compared(fault, other=other, **training, **KEYS))
    assert found.culprit.code is CulpritCode.AGGREGATION
    assert found.culprit.details.get("means") is None


def test_masks_of_the_loss_inputs_count(compared):
    """They are at hand there, too; and then loss_inputs is not asked for."""
    gives = ("advantages", "completion_mask", "old_per_token_logps")
    training = {"with_mask": False, "gives": gives, "keys": ("log_prob", "kl", "kl_loss"), **KEYS}
    found = first(compared(other={"aggregation": "sequences"}, **training))
    assert found.culprit.details["means"] == {"A": "tokens", "B": "sequences"}


def test_without_log_probs_layers_are_asked_for(compared):
    """A loss alone may come of the network."""
    found = first(compared(Fault("loss", UPDATE, change=half), keys=("loss",), **KEYS))
    assert found.culprit is None
    assert found.next_step is not None


# What the trainer makes itself.


@pytest.mark.parametrize("cells", [False, True])
def test_rewards_that_alone_differ_are_the_trainers_own(compared, cells):
    """What they are made of agrees, and no further round would tell more."""
    found = first(compared(Fault("rewards"), **({} if cells else KEYS)))
    assert (found.record, found.cause) == ("rewards", Cause.DATA)
    assert found.next_step is None
    assert "the trainer's own arithmetic made it" in found.explanation
    assert "Recording more would not tell more" in found.explanation


def test_what_one_reward_function_gave_is_the_trainers_own_too(of_both):
    """Rewards by function are saved before their sum."""

    def record(recording, run):
        recording.data("responses", np.arange(6).reshape(2, 3))
        recording.data("rewards.format", np.float32([1, run == "a"]))
        recording.data("rewards", np.float32([2, run == "a"]))

    found = first(of_both(record))
    assert found.record == "rewards.format"
    assert "the trainer's own arithmetic made it differ (a reward function" in found.explanation


@pytest.mark.parametrize("saved", [["prompts"], []])
def test_rewards_of_what_was_not_saved_are_not_judged(of_both, saved):
    """Without responses nothing is known of who made rewards differ; nor with a phase unseen."""

    def record(recording, run):
        for key in saved or ["responses"]:
            recording.data(key, np.arange(6).reshape(2, 3))
        recording.data("rewards", np.float32([1, run == "a"]))

    found = first(of_both(record, **({} if saved else {"phases": {"reward_compute": "reward"}})))
    assert found.record == "rewards"
    assert "own arithmetic" not in found.explanation
