"""`prove`: experiments that name all causes of a difference, with a real trainer as the command."""

from __future__ import annotations

import json
import re
import sys
import time

import pytest
from helpers.policy_trainer import CONFIG, train
from helpers.proofs import BEFORE_NOISE, NAMES, names_of, proven, run_with

from mindrlhf_msprobe import UsageError
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings.proof import Conclusion
from mindrlhf_msprobe.proof.prove import Experiment, prove
from mindrlhf_msprobe.report.answer import as_text
from mindrlhf_msprobe.report.page.page import is_page
from mindrlhf_msprobe.report.proof import proof_lines


def test_a_single_cause_is_proven(healthy, tmp_path, command):
    found = proven(healthy, tmp_path, command, ["kernel:layers.1.down"])
    assert found.conclusion is Conclusion.PROVEN
    (cause,) = found.causes
    assert cause.entries == ("Cell.layers.1.down.Dense",)
    assert cause.explained > 100
    assert [one.kind for one in found.rounds] == ["graft"]
    assert found.rounds[0].different == 0
    written = json.loads((tmp_path / "out" / "proof.json").read_text())
    assert written["conclusion"] == "proven"
    assert written["causes"][0]["entries"] == ["Cell.layers.1.down.Dense"]


def test_a_call_that_was_interrupted_goes_on(healthy, tmp_path, command):
    proven(healthy, tmp_path, command, ["loss"])
    again = proven(healthy, tmp_path, command, ["loss"])
    assert [one.reused for one in again.rounds] == [True]
    assert again.conclusion is Conclusion.PROVEN
    with pytest.raises(RunError, match="another experiment"):
        proven(healthy, tmp_path, command, ["loss", "rate"])


def test_the_code_between_cells_is_one_place_in_all_layers(healthy, tmp_path, command):
    found = proven(healthy, tmp_path, command, ["gelu"])
    assert found.conclusion is Conclusion.PROVEN
    (cause,) = found.causes
    assert cause.entries == tuple(f"Cell.layers.{i}.Layer" for i in range(3))
    said = str(proof_lines(found))
    cells = "layers.0, layers.1, layers.2"
    assert f"code of Layer ({cells}) between layers.0.up and layers.0.down" in said
    assert len(found.rounds) == 1


def test_code_that_hands_a_wrong_gradient_back_is_said_as_it_runs_forward(
    healthy, tmp_path, command
):
    found = proven(healthy, tmp_path, command, ["between"])
    assert found.conclusion is Conclusion.PROVEN
    (cause,) = found.causes
    assert cause.between == ("layers.2.norm", "layers.2.up")


def test_a_later_fault_that_restores_the_loss_does_not_hide_the_first(healthy, tmp_path, command):
    found = proven(healthy, tmp_path, command, ["doubled"])
    assert found.conclusion in (Conclusion.PROVEN, Conclusion.NOT_SEPARATED)
    first, second = found.causes
    assert first.entries == ("Cell.head.Dense",)
    assert second.what == ("gradient",)


@pytest.mark.slow
def test_a_metric_that_is_logged_wrong_is_named_without_a_tensor(healthy, tmp_path, command):
    found = proven(healthy, tmp_path, command, ["logged"])
    assert found.conclusion is Conclusion.PROVEN
    assert names_of(found) == [{"kl"}]
    assert not found.rounds


@pytest.mark.slow
def test_key_data_computed_of_gradients_are_of_the_update(healthy, tmp_path, command):
    """The trainer scales the gradients of one weight, and saves their norm."""
    found = proven(healthy, tmp_path, command, ["clip"])
    assert found.conclusion is Conclusion.PROVEN
    (cause,) = found.causes
    assert cause.what == ("updated_parameters",)
    assert cause.keys == ("grad_norm",)


@pytest.mark.slow
def test_gradients_that_may_be_of_code_around_their_cell_say_so(tmp_path, command):
    """Of parameters that this code uses itself, as with tied embeddings."""
    a, b = run_with(["tied"], tmp_path / "a"), run_with(["tied", "factor:network"], tmp_path / "b")
    again = command(["tied", "factor:network"])
    train({**CONFIG, "dump_path": str(tmp_path / "tensors"), "task": "tensor"}, ["tied"])
    found = prove(Experiment(a, b, tmp_path / "out", again, tmp_path / "tensors", again=0))
    assert found.conclusion is Conclusion.PROVEN
    code, table = found.causes
    assert code.entries == ("Cell.root.Policy",)
    assert table.what == ("parameters_grad",)
    assert table.reasons[-1].code == "proof.or_of_code"
    assert "If the code of Policy (root), named above, uses" in str(proof_lines(found))


@pytest.mark.slow
def test_each_cause_of_a_round_has_its_own_place(healthy, tmp_path, command):
    found = proven(healthy, tmp_path, command, ["rate", "forgotten"])
    assert found.conclusion is Conclusion.PROVEN
    optimizer, synchronisation = found.causes
    assert optimizer.what == ("updated_parameters",)
    assert synchronisation.entries == ("Cell.layers.0.up.Dense",)
    assert synchronisation.where.record == "Cell.layers.0.up.Dense"
    assert synchronisation.where.phase == "actor_generate_sequences"
    assert not synchronisation.reasons


@pytest.mark.slow
def test_a_class_that_is_wrong_in_all_networks_is_one_cause(healthy, tmp_path, command):
    """No code beside it is blamed for gradients that are known up to a rounding."""
    found = proven(healthy, tmp_path, command, ["normalisation"])
    assert found.conclusion is Conclusion.PROVEN
    (cause,) = found.causes
    assert cause.entries == tuple(f"Cell.layers.{i}.norm.LayerNorm" for i in range(3))
    assert len(found.rounds) <= 2


@pytest.mark.slow
def test_a_gradient_that_is_cut_is_said_with_the_cell_that_cuts_it(healthy, tmp_path, command):
    found = proven(healthy, tmp_path, command, ["cut"])
    assert found.conclusion is Conclusion.NO_PROOF
    (why,) = found.why
    assert why.code == "proof.no_gradient"
    assert why.params["side"] == "B"


@pytest.mark.slow
def test_networks_of_one_role_are_told_apart(healthy, tmp_path, command):
    """A kernel of the rollout network, and the gradient of the same cell of the trained one."""
    faults = ["rollout:layers.1.down", "backward:layers.1.down"]
    found = proven(healthy, tmp_path, command, faults)
    assert found.conclusion is Conclusion.PROVEN
    phases = [cause.phases for cause in found.causes]
    assert phases[0] == ("actor_generate_sequences",)
    assert "actor_update" in phases[-1]


@pytest.mark.slow
def test_a_runs_again_for_its_tensors_and_b_as_it_is(healthy, tmp_path, command):
    faults = ["kernel:head"]
    b = run_with(faults, tmp_path / "b")
    runs = Experiment(healthy / "a", b, tmp_path / "out", command(faults, side="{side}"))
    found = prove(runs)
    assert found.conclusion is Conclusion.PROVEN
    assert [one.kind for one in found.rounds] == ["tensors", "again", "graft"]
    assert found.shown == (2, 2)
    assert {one.code for one in found.evidence} == {
        "proof.before",
        "proof.a_again",
        "proof.b_again",
    }


def test_without_tensors_and_without_the_command_of_a_one_run_is_asked_for(
    healthy, tmp_path, command
):
    found = proven(healthy, tmp_path, command, ["loss"], tensors=None)
    assert found.conclusion is Conclusion.NO_PROOF
    assert "task: tensor" in str(found.why[0])
    assert not found.rounds


def test_tensors_that_are_not_those_of_a_are_refused(healthy, tmp_path, command):
    other = tmp_path / "other"
    train({**CONFIG, "dump_path": str(other), "task": "tensor"}, ["weights"])
    found = proven(healthy, tmp_path, command, ["loss"], tensors=other)
    assert found.conclusion is Conclusion.NO_PROOF
    assert "not deterministic" in str(found.why[0])


def test_a_difference_that_is_gone_is_not_reproducible(healthy, tmp_path, command):
    b = run_with(["kernel:head"], tmp_path / "b")
    found = prove(
        Experiment(
            *(healthy / "a", b, tmp_path / "out", command([])), tensors=healthy / "tensors", again=1
        )
    )
    assert found.conclusion is Conclusion.NOT_REPRODUCIBLE
    assert found.shown == (1, 2)
    assert found.conclusion.exit_code == 1
    assert [one.code for one in found.why] == ["proof.trains_as_a"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", BEFORE_NOISE)
def test_noise_behind_a_cause_is_no_cause(healthy, tmp_path, command, fault):
    """What cells computed of the noise says nothing of these cells."""
    found = proven(healthy, tmp_path, command, [fault, "noise"], again=1)
    assert found.conclusion is Conclusion.NOT_ALONE, found
    assert [one.code for one in found.why] == ["proof.noise"]
    assert found.remaining.is_at(found.noise)
    (names,) = names_of(found)
    assert NAMES[fault] in names


def test_equal_runs_have_nothing_to_prove(healthy, tmp_path, command):
    runs = Experiment(healthy / "a", healthy / "tensors", tmp_path / "out", command([]))
    assert prove(runs).conclusion is Conclusion.NOTHING_DIFFERS


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; print('no card'); sys.exit(3)", "exit code 3.*no card"),
        ("import os; os.kill(os.getpid(), 6)", "killed by signal 6"),
        ("pass", "recorded no run"),
        ("import time; time.sleep(60)", r"stopped after 1\.5 s"),
    ],
)
def test_a_command_that_makes_no_run(healthy, tmp_path, program, said):
    b = healthy / "loss"
    command = [sys.executable, "-c", program]
    began = time.monotonic()
    runs = Experiment(healthy / "a", b, tmp_path / "out", command, healthy / "tensors", seconds=1.5)
    found = prove(runs)
    assert found.conclusion is Conclusion.NO_PROOF
    assert re.search(said, str(found.why[0]), re.DOTALL)
    assert time.monotonic() - began < 50


def test_what_cannot_be_used_is_refused(healthy, tmp_path):
    b = healthy / "tensors"
    with pytest.raises(UsageError, match="no_such_program"):
        prove(Experiment(healthy / "a", b, tmp_path / "out", ["no_such_program"]))
    with pytest.raises(RunError, match="lies inside"):
        prove(Experiment(healthy / "a", b, b / "out", [sys.executable]))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="not of an experiment"):
        prove(Experiment(healthy / "a", b, tmp_path, [sys.executable]))
    assert (tmp_path / "file").read_text() == "mine"


def test_the_answer_in_both_languages(healthy, tmp_path, command, cli):
    b = healthy / "loss"
    page = tmp_path / "proof.html"
    options = ("--tensors", healthy / "tensors", "--again", 0, "-o", tmp_path / "out")
    options += ("--html", page)
    shown = cli("prove", healthy / "a", b, *options, "--", *command(["loss"])).out
    assert "PROVEN" in shown
    assert "loss" in shown
    shown = cli("prove", healthy / "a", b, *options, "--lang", "zh", "--", *command(["loss"])).out
    assert "已证实" in shown
    assert str(page) in shown
    assert is_page(page)


@pytest.mark.slow
def test_a_value_that_is_replaced_is_named(tmp_path, command):
    runs = [tmp_path / "a", tmp_path / "b"]
    train({**CONFIG, "dump_path": str(runs[0]), "task": "tensor"}, ["replaces"])
    run_with(["replaces", "advantages"], runs[1])
    found = prove(Experiment(*runs, tmp_path / "out", command(["replaces", "advantages"])))
    assert found.conclusion is Conclusion.PROVEN
    assert [cause.replaces for cause in found.causes] == [("advantages",)]
    assert "put in: advantages, by probe.replace" in as_text(proof_lines(found))
