"""Several updates in one step: which micro-step, which call of a phase, and which update before."""

from __future__ import annotations

import json
import random

import numpy as np
import openpyxl
import pytest
from helpers.runs import Recording
from helpers.timelines import datum, keys

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.findings import Cause, CulpritCode
from mindrlhf_msprobe.report.comparison import render
from mindrlhf_msprobe.report.messages.words import ordinal

LOG_PROB, UPDATE, CRITIC = "actor_compute_log_prob", "actor_update", "critic_update"
GENERATE = "actor_generate_sequences"
NO_LAYERS = dict.fromkeys(("actor_infer", "actor_train", "reference", "critic_train"), False)
NO_LAYERS = {f"{name}_dump": value for name, value in NO_LAYERS.items()}


def ppo(
    path,
    fault=None,
    *,
    updates=3,
    interleaved=True,
    chunks=1,
    unsaved=(),
    batches=False,
    **settings,
):
    """Record a step of `updates` minibatches; `fault` is a place that becomes a little larger."""
    recording = Recording(path, **settings)
    weights = {"actor": np.float64(0.3), "critic": np.float64(0.7)}

    def touch(place, value):
        return value * 1.001 if place == fault else value

    def save(key, micro_step, value):
        value = touch(f"{key} {micro_step}", value)
        if key not in unsaved:
            recording.data(key, value)
        return value

    def run(phase, role, number, x):
        with recording.phase(phase):
            return recording.call(
                "root",
                "Net",
                lambda x: touch(f"{phase} {number}", np.tanh(x * weights[role])),
                x,
                parameters={"weight": weights[role]},
            )

    def actor(n):
        if batches:
            save("loss_inputs", n, x + n)
        log_prob = save("log_prob", n, run(UPDATE, "actor", n, x))
        kl_loss = save("kl_loss", n, log_prob * 0.1)
        loss = save("loss", n, kl_loss + log_prob.sum() * n)
        weights["actor"] -= touch(f"optimizer {n}", 0.01 + 0.01 * loss.sum())

    def critic(n):
        loss = save("critic_loss", n, run(CRITIC, "critic", n, x) ** 2)
        weights["critic"] -= touch(f"critic optimizer {n}", 0.01 + 0.01 * loss.sum())

    x = np.arange(1.0, 5.0)
    save("prompts", 0, x)
    for n in range(chunks):
        save("old_log_prob", n, run(LOG_PROB, "actor", n, x))
    if interleaved:
        for n in range(updates):
            actor(n)
            critic(n)
    else:
        for update in (actor, critic):
            for n in range(updates):
                update(n)
    recording.end_step()
    return recording.close()


@pytest.fixture
def compared(tmp_path):
    def compare(fault, **settings):
        a = ppo(tmp_path / "a", **settings)
        b = ppo(tmp_path / "b", fault, **settings)
        return compare_runs(a, b, output_path=tmp_path / "out")

    return compare


PLACES = [
    f"{what} {n}" for what in ("log_prob", "kl_loss", "loss", "critic_loss") for n in range(3)
]


def test_any_value_of_any_minibatch_is_named_with_its_micro_step(tmp_path):
    """Random trainings of several updates: the key and the micro-step are those of the fault."""
    draw = random.Random(12)
    for number in range(24):
        settings = {
            "interleaved": draw.random() < 0.5,
            "chunks": draw.choice([1, 1, 2, 3]),
            "actor_infer_dump": False,
            "actor_train_dump": draw.random() < 0.3,
            "critic_train_dump": draw.random() < 0.3,
            "reference_dump": False,
        }
        fault = draw.choice(PLACES)
        a = ppo(tmp_path / f"a{number}", **settings)
        b = ppo(tmp_path / f"b{number}", fault, **settings)
        found = compare_runs(a, b).verdict.first_divergence
        case = f"{fault} with {settings}"
        assert f"{found.record} {found.occasion.number}" == fault, case
        assert found.to_json()["micro_step"] == int(fault[-1]), case
        said = found.culprit is not None
        recorded = settings["critic_train_dump" if "critic" in fault else "actor_train_dump"]
        first_of_it = fault.startswith(("log_prob", "critic_loss")) and not fault.endswith("0")
        assert said == (first_of_it and not recorded), case


@pytest.mark.parametrize(("number", "word"), [(1, "first"), (2, "second")])
def test_the_update_before_a_micro_step_is_named_everywhere(compared, tmp_path, number, word):
    """log_prob agrees in micro-step 0 and differs in micro-step 1: the first update."""
    comparison = compared(f"optimizer {number - 1}", **NO_LAYERS)
    first = comparison.verdict.first_divergence
    assert (first.record, first.cause, first.culprit.code) == (
        "log_prob",
        Cause.DATA,
        CulpritCode.EARLIER_UPDATE,
    )
    details = {"phase": UPDATE, "micro_step": number - 1, "number": number, "record": (UPDATE,)}
    assert first.culprit.details == details
    text = render(comparison)
    assert f"DIVERGED at step 0, actor_update, rank 0, micro-step {number}\n" in text
    said = f"agrees in micro-step {number - 1} and differs in micro-step {number}. To blame is the"
    assert f"{said} {word} update" in text
    written = json.loads((tmp_path / "out" / "verdict.json").read_text())["first_divergence"]
    assert (written["micro_step"], written["opening"], written["times"]) == (number, None, 3)
    assert written["culprit"] == {"code": "earlier_update", **details, "record": [UPDATE]}
    known, _, wanted = first.explanation.partition("Key data alone do not tell which")
    assert ", or the batch or the forward pass of" in known
    assert wanted == f": record the cells of {UPDATE}, with gradients, in step 0 of both runs."
    sheet = openpyxl.load_workbook(tmp_path / "out" / "summary.xlsx")["verdict"]
    cells = {row[1]: row[2] for row in sheet.iter_rows(values_only=True)}
    assert f"micro-step {number}" in cells["where"]
    assert f"{word} update" in cells["explanation"]


def test_a_batch_that_agrees_is_not_suspected(compared):
    """What the loss was given is recorded, so only the update and the forward pass are left."""
    first = compared("optimizer 0", batches=True, **NO_LAYERS).verdict.first_divergence
    assert first.record == "log_prob"
    assert first.culprit.details["batch_agrees"] is True
    assert ", or the forward pass of micro-step 1 (its batch agrees" in first.explanation


def test_the_critics_own_update_is_named(compared):
    first = compared("critic optimizer 1", **NO_LAYERS).verdict.first_divergence
    assert first.record == "critic_loss"
    assert first.culprit.details["phase"] == CRITIC
    assert (first.culprit.details["micro_step"], first.culprit.details["number"]) == (1, 2)


@pytest.mark.parametrize("fault", ["kl_loss 1", "loss 2", "log_prob 0"])
def test_an_update_before_is_not_blamed_where_the_updated_network_gave_the_same(compared, fault):
    """log_prob of the same micro-step agrees, so the update before it is right."""
    first = compared(fault, **NO_LAYERS).verdict.first_divergence
    assert first.record == fault[:-2]
    assert first.culprit is None
    assert "is to blame" not in first.explanation


@pytest.mark.parametrize(("key", "home"), [("ref_log_prob", None), ("responses", GENERATE)])
def test_an_update_is_blamed_only_for_what_its_own_network_computed(of_both, key, home):
    """The actor's update moves the actor; both of its phases are proposed to be recorded."""

    def record(recording, run):
        for n in range(2):
            more = n * 0.5 * (run == "b")
            recording.data("prompts", np.arange(3.0))
            recording.data(key, np.arange(3.0) + more)
            recording.data("log_prob", np.arange(3.0) + more)
            recording.data("loss", 1.0 + more)

    first = of_both(record, **NO_LAYERS).verdict.first_divergence
    assert (first.record, first.occasion.number) == (key, 1)
    if home is None:
        assert first.culprit is None
        return
    assert first.culprit.details["record"] == (UPDATE, home)
    assert first.next_step["actor_train_dump"] is first.next_step["actor_infer_dump"] is True


def test_an_update_before_is_not_blamed_where_nothing_was_updated(compared):
    """Chunks of the first scoring lie before all updates."""
    first = compared("old_log_prob 1", chunks=3, **NO_LAYERS).verdict.first_divergence
    assert (first.record, first.occasion.number, first.culprit) == ("old_log_prob", 1, None)


def test_a_loss_of_its_own_says_it_with_log_prob_unsaved(compared):
    first = compared(
        "optimizer 0", unsaved=("log_prob", "kl_loss"), **NO_LAYERS
    ).verdict.first_divergence
    assert (first.record, first.occasion.number) == ("loss", 1)
    assert first.culprit.details["number"] == 1


@pytest.mark.parametrize(
    ("number", "call", "word"), [(1, "second", "first"), (2, "third", "second")]
)
def test_the_nth_call_of_a_phase_is_said(compared, tmp_path, number, call, word):
    """A cell of the n-th opening: which call of the phase it is, and after which update."""
    comparison = compared(f"actor_update {number}")
    first = comparison.verdict.first_divergence
    assert (first.entry, first.cause) == (f"Cell.root.Net.forward.{number}", Cause.COMPUTATION)
    assert f"DIVERGED at step 0, actor_update, rank 0, {call} call of this phase\n" in render(
        comparison
    )
    said = f"This is the {call} call of actor_update in this step, after the {word} update"
    assert said in first.explanation
    written = json.loads((tmp_path / "out" / "verdict.json").read_text())["first_divergence"]
    assert (written["opening"], written["micro_step"], written["times"]) == (number, None, 3)
    assert written["since"] == [UPDATE, CRITIC]


def test_a_call_after_which_nothing_was_updated_is_not_said_to_follow_an_update(compared):
    """Gradients that are only accumulated leave the weights, which are then not recorded again."""
    first = compared("actor_compute_log_prob 1", chunks=2).verdict.first_divergence
    assert first.entry == "Cell.root.Net.forward.1"
    said = "second call of actor_compute_log_prob in this step, after the first; its weights did"
    assert said in first.explanation
    assert "update" not in first.explanation.split("This is the")[1]


def test_one_call_in_a_step_needs_no_number(compared):
    comparison = compared("actor_compute_log_prob 0")
    assert "DIVERGED at step 0, actor_compute_log_prob, rank 0\n" in render(comparison)


U = ("log_prob", "kl_loss", "loss")


def saved(*names):
    """Return data saved one after the other."""
    return [datum(name, 100 + i, names[:i].count(name)) for i, name in enumerate(names)]


def test_a_mean_saved_after_all_updates_stands_behind_them():
    assert keys(*saved("log_prob", "log_prob", "loss")) == ["log_prob.0", "log_prob.1", "loss.0"]
    data = saved("log_prob", "loss", "log_prob", "loss", "critic_loss", "critic_loss")
    assert keys(*data) == [
        *("log_prob.0", "loss.0", "log_prob.1", "loss.1"),
        *("critic_loss.0", "critic_loss.1"),
    ]


def test_updates_without_a_time_are_told_apart_by_their_micro_steps():
    data = [datum(key, None, n) for key in U for n in range(2)]
    assert keys(*data) == [f"{key}.{n}" for n in range(2) for key in U]


def test_numbers_in_words():
    assert [ordinal(n) for n in (1, 2, 9, 10, 11, 12, 21, 22, 23, 111, 112)] == [
        *("first", "second", "ninth", "10th", "11th", "12th"),
        *("21st", "22nd", "23rd", "111th", "112th"),
    ]
