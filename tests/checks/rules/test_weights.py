"""Weights that are not synchronised, move where they must not, or do not move where they must."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.health_runs import HealthRun, steps_of, tensor
from helpers.snapshots import rewrite

from mindrlhf_msprobe import check_run
from mindrlhf_msprobe.findings.health import Severity

CELLS = ("embed", "layers.0.wq", "layers.1.wq", "norm", "head")
GENERATE, OLD, REFERENCE, UPDATE = (
    "actor_generate_sequences",
    "actor_compute_log_prob",
    "reference_compute_log_prob",
    "actor_update",
)


def weight(version, norm=1.0, shape=(4, 4)):
    return tensor(fingerprint=f"xxh3_128:{version}", norm=norm, shape=shape)


class Training:
    """Versions of each cell's weight by network, and what a fault does to them."""

    def __init__(self, root, cells=CELLS, steps=4, **faults):
        self.cells, self.steps, self.faults = cells, steps, faults
        self.run = HealthRun(root)
        self.now = dict.fromkeys(cells, 0)

    def fault(self, name, *arguments):
        return self.faults.get(name, lambda *_: None)(*arguments)

    def network(self, phase, step, of):
        with self.run.phase(phase):
            for cell in self.cells:
                version = f"{cell}-{of[cell]}"
                version = self.fault("version", phase, step, cell) or version
                norm = self.fault("norm", step, cell) or 1.0
                parameters = {"weight": weight(version, norm)}
                self.run.call(cell, parameters=parameters)
                if self.fault("inside", phase, step, cell):
                    self.run.call(cell, parameters={"weight": weight(version + "x")})
            if phase == UPDATE:
                for cell in self.cells:
                    gradient = self.fault("gradient", step, cell)
                    if gradient != "none":
                        zero = gradient == "zero"
                        norm, high = (0.0, 0.0) if zero else (0.1, 0.5)
                        self.run.gradients(cell, weight=tensor(high, -high, norm=norm))

    def play(self):
        reference, generating = dict(self.now), dict(self.now)
        for step in range(self.steps):
            self.network(GENERATE, step, generating)
            self.network(OLD, step, self.now)
            self.network(REFERENCE, step, reference)
            self.network(UPDATE, step, self.now)
            for key, value in (self.fault("data", step) or {}).items():
                self.run.data(key, value)
            for cell in self.cells:
                if not self.fault("still", step, cell):
                    self.now[cell] += 1
                if not self.fault("stale", step, cell):
                    generating[cell] = self.now[cell]
            self.run.end_step()
        return check_run(self.run.close())


def alarms(result):
    return [finding for finding in result.all_findings if finding.severity.counts]


def only(result):
    (finding,) = alarms(result)
    return finding


def test_healthy_training_is_silent(tmp_path):
    result = Training(tmp_path / "run").play()
    assert not alarms(result)
    names = ("not_synchronised", "moved", "frozen", "zero_gradient", "large_update")
    assert {f"weights.{name}" for name in names} <= {*result.checked}


def one_rounded_weight_of_the_reference(phase, step, cell):
    """Too little for log-probabilities to tell."""
    return "rounded" if (phase, cell) == (REFERENCE, "layers.1.wq") else None


def another_weight_of_the_reference(phase, step, cell):
    return "other" if phase == REFERENCE and step >= 2 and cell == "norm" else None


@pytest.mark.parametrize(
    ("faults", "rule", "step", "phase", "cell"),
    [
        (
            {"version": one_rounded_weight_of_the_reference},
            *("reference", 0, REFERENCE, "layers.1.wq"),
        ),
        ({"version": another_weight_of_the_reference}, "moved", 2, REFERENCE, "norm"),
        (
            {"inside": lambda *at: at == (OLD, 1, "head")},  # within a phase that computes
            *("moved", 1, OLD, "head"),
        ),
        (
            {"gradient": lambda step, c: "zero" if c == "layers.1.wq" and step >= 1 else None},
            *("zero_gradient", 2, UPDATE, "layers.1.wq"),
        ),
        (
            {"norm": lambda step, cell: 9.0 if cell == "head" and step >= 2 else None},
            *("large_update", 2, UPDATE, "head"),
        ),
    ],
)
def test_a_planted_fault_is_named(tmp_path, faults, rule, step, phase, cell):
    """Its rule, step, phase and cell, that it is one parameter, and no other alarm."""
    finding = only(Training(tmp_path / "run", **faults).play())
    assert (finding.rule, finding.place.step) == (f"weights.{rule}", step)
    assert (finding.place.phase, finding.said.params["count"]) == (phase, 1)
    assert f"Cell.{cell}." in finding.place.record
    if rule == "reference":
        assert finding.place.entry == f"Cell.{cell}.Dense.forward.0"
        assert finding.said.params["total"] == len(CELLS)


@pytest.mark.parametrize("seed", range(3))
def test_a_generating_network_with_old_weights_says_of_which_step(tmp_path, seed):
    random = np.random.default_rng(seed)
    stale = {str(cell) for cell in random.choice(CELLS, random.integers(1, 5), replace=False)}
    training = Training(tmp_path / "run", stale=lambda step, cell: cell in stale and step >= 1)
    finding = only(training.play())
    assert (finding.rule, finding.place.step, finding.place.phase) == (
        "weights.not_synchronised",
        2,
        GENERATE,
    )
    params = finding.said.params
    assert (params["count"], params["total"], params["still"]) == (len(stale), len(CELLS), 1)


def test_weights_of_another_dtype_are_not_compared(tmp_path):
    """A generating network in bfloat16 has fingerprints of its own."""
    training = Training(tmp_path / "run")
    call = training.run.call

    def in_bfloat16(cell, *args, parameters=None, **how):
        if training.run._phase == GENERATE:
            parameters = {"weight": tensor(fingerprint="xxh3_128:of16", dtype="BFloat16")}
        call(cell, *args, parameters=parameters, **how)

    training.run.call = in_bfloat16
    assert not alarms(training.play())


@pytest.mark.parametrize("name", ["moving_mean", "moving_variance", "running_var"])
def test_averages_of_batches_are_no_weights(tmp_path, name):
    """A layer that normalises writes them itself, whenever it computes."""
    training, count = Training(tmp_path / "run"), [0]
    call = training.run.call

    def normalising(cell, *args, parameters=None, **how):
        for _ in range(2):
            count[0] += training.run._phase != REFERENCE
            known = 0 if training.run._phase == REFERENCE else count[0]
            call(cell, *args, parameters={name: weight(f"{cell}-{known}")}, **how)

    training.run.call = normalising
    assert not alarms(training.play())


def synchronised(phase, step, cell):
    """The reference gets the trained weights at step 2, as TR-DPO has it."""
    return f"{cell}-2" if phase == REFERENCE and step >= 2 else None


def test_a_reference_that_is_given_the_trained_weights(tmp_path):
    """That may be meant, so it is a warning that says which weights these are."""
    finding = only(Training(tmp_path / "run", version=synchronised).play())
    assert (finding.rule, finding.place.step) == ("weights.moved", 2)
    assert finding.severity is Severity.WARNING
    assert finding.said.code == "check_weights.moved_to_trained"
    assert finding.causes[0].code == "check_weights.cause_synchronised"


def test_a_reference_that_is_the_actor_is_said_to_be(tmp_path):
    """One object was watched under two roles."""
    training = Training(tmp_path / "run", version=synchronised)
    training.play()
    networks = [{"role": "reference", "phases": [REFERENCE], "same_as": "actor"}]
    rewrite(tmp_path / "run" / "run.json", {"networks": networks})
    finding = only(check_run(tmp_path / "run"))
    assert (finding.rule, finding.severity) == ("weights.moved", Severity.ERROR)
    assert finding.said.params["other"] == "actor"


@pytest.mark.parametrize("gradient", ["some", "none"])
@pytest.mark.parametrize("cell", CELLS)
def test_a_frozen_layer(tmp_path, cell, gradient):
    training = Training(
        tmp_path / "run",
        still=lambda step, c: c == cell,
        gradient=lambda step, c: gradient if c == cell else None,
    )
    finding = only(training.play())
    assert finding.rule == "weights.frozen"
    assert f"Cell.{cell}." in finding.place.record
    assert finding.said.code.endswith("frozen" if gradient == "some" else "frozen_without_gradient")


def test_what_the_trainer_does_not_train_is_no_finding(tmp_path):
    """Of one layer, which run.json says; another one that stays is named as ever."""
    network = {"role": "actor", "phases": [UPDATE], "untrained": ["layers.1.wq.weight"]}

    def checked(name, *cells):
        training = Training(
            tmp_path / name,
            still=lambda step, cell: cell in cells,
            gradient=lambda step, cell: "none" if cell in cells else None,
        )
        training.play()
        rewrite(tmp_path / name / "run.json", {"networks": [network]})
        return check_run(tmp_path / name)

    assert not alarms(checked("on purpose", "layers.1.wq"))
    finding = only(checked("another", "layers.1.wq", "head"))
    assert (finding.rule, finding.said.params["count"]) == ("weights.frozen", 1)
    assert "Cell.head." in finding.place.record


def test_what_is_frozen_on_purpose_is_no_finding(tmp_path):
    """Most parameters without gradients (LoRA), a learning rate of 0, and steps that overflow."""
    lora = Training(
        tmp_path / "lora",
        still=lambda step, cell: cell != "head",
        gradient=lambda step, cell: "none" if cell != "head" else None,
    )
    assert not alarms(lora.play())
    warm_up = Training(
        tmp_path / "warm_up",
        steps=3,
        still=lambda step, cell: step < 2,
        data=lambda step: {"lr": np.float32(0 if step < 2 else 1)},
    )
    assert not alarms(warm_up.play())
    skipped = Training(
        tmp_path / "skipped",
        steps=3,
        still=lambda step, cell: step < 2,
        data=lambda step: {"overflow": np.bool_(step < 2)},
    )
    assert not alarms(skipped.play())


def test_an_update_that_moves_nothing(tmp_path):
    """From the second one on: the first alone may have been skipped."""
    finding = only(Training(tmp_path / "run", still=lambda step, cell: True).play())
    assert (finding.rule, finding.said.params["count"]) == ("weights.frozen", len(CELLS))
    for steps, rules in ((2, []), (3, ["weights.frozen"])):
        short = Training(tmp_path / str(steps), steps=steps, still=lambda step, cell: True)
        assert [one.rule for one in alarms(short.play())] == rules


def test_a_gradient_of_the_last_step_need_not_have_moved_anything_yet(tmp_path):
    training = Training(
        tmp_path / "run",
        still=lambda step, cell: cell == "head",
        gradient=lambda step, cell: "none" if cell == "head" and step < 3 else None,
    )
    finding = only(training.play())
    assert finding.said.code.endswith("frozen_without_gradient")
    assert (finding.said.params["count"], finding.said.params["total"]) == (1, len(CELLS))


def test_parameters_without_fingerprints_are_not_called_frozen(tmp_path):
    for run, *_ in steps_of(tmp_path / "run", 3):
        with run.phase(UPDATE):
            run.call("head", parameters={"weight": tensor(shape=(4, 4))})
            run.gradients("head", weight=tensor())
    assert not alarms(check_run(tmp_path / "run"))


@pytest.mark.parametrize("given", ["zero", "none"])
def test_experts_without_tokens_are_a_note(tmp_path, given):
    """Frozen on purpose or by mistake, without any gradient, they are not."""
    experts = tuple(f"layers.1.experts.{n}.up" for n in range(4))
    idle = experts[2]
    result = Training(
        tmp_path / "run",
        cells=(*CELLS, *experts),
        still=lambda step, cell: cell == idle,
        gradient=lambda step, cell: given if cell == idle else None,
    ).play()
    found = {finding.rule for finding in result.all_findings}
    assert "weights.frozen" in found
    assert bool(alarms(result)) == (given == "none")
