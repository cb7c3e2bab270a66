"""Jumps, gradients by layer, dead activations, routing, and what healthy runs never did."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from helpers.health_runs import HealthRun, a_nan, steps_of, tensor

from mindrlhf_msprobe import check_run, check_runs
from mindrlhf_msprobe.capture.tensors.summary import summarise, to_host


def sized(norm, **others):
    return tensor(high=abs(norm), low=-abs(norm), norm=norm, **others)


def training(root, seed, *, steps=20, change=lambda step, of: None, drift=0.0):
    """Record a training whose norms and losses scatter; `change` may alter a step's norms."""
    random = np.random.default_rng(seed)
    for run, step, _ in steps_of(root, steps):
        of = {f"layers.{n}": 10 ** random.normal(0, 0.05) for n in range(4)}
        of |= {f"grad.{n}": 10 ** random.normal(-2, 0.1) for n in range(4)}
        of["loss"] = random.normal(2, 0.1) + 0.1 * drift * step
        of["act"], of["extra"], of["router"] = 1.0, 0, (0.0, 7.0)
        change(step, of)
        with run.phase("actor_update"):
            for n in range(4):
                given = of[f"layers.{n}"]
                out = a_nan() if given is None else sized(given)
                run.call(f"layers.{n}", output=out)
            run.call("act", tensor(), sized(of["act"]), kind="SiLU")
            low, high = of["router"]
            run.call(
                "router", output=tensor(high, low, dtype="Int32", shape=(32, 1)), kind="Router"
            )
            for _ in range(of["extra"]):
                run.call("layers.3")
            for n in range(4):
                run.gradients(f"layers.{n}", weight=sized(of[f"grad.{n}"]))
        run.data("loss", np.float32(of["loss"]))
    return root


def alarms(result):
    return [finding for finding in result.all_findings if finding.severity.counts]


def only(root, **how):
    (finding,) = alarms(check_run(root, **how))
    return finding


@pytest.mark.parametrize("seed", range(4))
def test_healthy_training_is_silent(tmp_path, seed):
    result = check_run(training(tmp_path / "run", seed, steps=30))
    assert not alarms(result)
    assert {f"history.{n}" for n in ("jump", "gradients", "dead", "routing")} <= {*result.checked}


def scaled(at, by, *names):
    """Return a change: from a step on, these norms are so many times what they are."""

    def change(step, of):
        for name in names if step >= at else ():
            of[name] *= by

    return change


def set_to(at, **values):
    """Return a change: in one step alone, something is what is said here."""
    return lambda step, of: of.update(values) if step == at else None


def of_layers(factor):
    """Return a change: gradients grow from layer to layer."""

    def change(step, of):
        for n in range(4):
            of[f"grad.{n}"] *= factor ** (3 - n)

    return change


def a_loss_and_its_gradients(step, of):
    """The loss is saved after them."""
    set_to(15, loss=100)(step, of)
    scaled(15, 100 if step == 15 else 1, *(f"grad.{n}" for n in range(4)))(step, of)


@pytest.mark.parametrize(
    ("change", "rule", "step", "name", "said"),
    [
        (scaled(12, 20, "layers.2", "layers.3", "grad.1"), "jump", 12, "layers.2", {"others": 2}),
        (set_to(15, loss=100), "jump", 15, "loss", {"others": 0}),
        (scaled(12, 1 / 40, "layers.1"), "jump", 12, "layers.1", {}),
        (a_loss_and_its_gradients, "jump", 15, "loss", {"others": 4}),
        (of_layers(30.0), "gradients", 0, "layers.0", {"explode": True}),
        (of_layers(1 / 30), "gradients", 0, "layers.0", {"explode": False}),
        (lambda step, of: of.update(act=0.0 if step >= 3 else 1.0), "dead", 3, "act", {}),
        (set_to(5, router=(3.0, 3.0)), "routing", 5, "router", {}),
    ],
)
def test_a_planted_fault_is_named_once(tmp_path, change, rule, step, name, said):
    """At the first of all that it shows in, and with how many others there are."""
    for seed in range(3) if rule == "jump" and step == 12 else (0,):
        finding = only(training(tmp_path / str(seed), seed, change=change))
        assert (finding.rule, finding.place.step) == (f"history.{rule}", step)
        assert finding.place.key == name or f"Cell.{name}." in finding.place.record
        assert {code: finding.said.params[code] for code in said} == said


def test_small_gradients_of_a_batch_are_no_jump(tmp_path):
    """Where advantages happen to be small, so is every gradient and the loss; weights are not."""
    names = [*(f"grad.{n}" for n in range(4)), "loss"]

    def change(step, of):
        scaled(12, 1 / 40 if step == 12 else 1, *names)(step, of)

    assert not alarms(check_run(training(tmp_path / "run", 0, change=change)))


def test_a_router_in_several_phases_and_calls_is_one_finding(tmp_path):
    for run, *_ in steps_of(tmp_path / "run", 3):
        for phase in ("actor_compute_log_prob", "actor_update"):
            with run.phase(phase):
                for _ in range(2):
                    one = tensor(2.0, 2.0, dtype="Int32", shape=(32, 1))
                    run.call("router", output=one, kind="Router")
    finding = only(tmp_path / "run")
    assert (finding.rule, finding.place.phase) == ("history.routing", "actor_compute_log_prob")
    assert (finding.place.step, finding.last_step) == (0, 2)


def test_a_call_whose_few_tokens_go_to_one_expert_is_healthy(tmp_path):
    """The next call has others, as a decoder has for every token that it generates."""
    for run, *_ in steps_of(tmp_path / "run", 3):
        with run.phase("actor_generate_sequences"):
            for high, low in ((2.0, 2.0), (3.0, 0.0), (1.0, 1.0)):
                indices = tensor(high, low, dtype="Int32", shape=(16, 1))
                run.call("router", output=indices, kind="Router")
    assert not alarms(check_run(tmp_path / "run"))


def test_tokens_by_expert_as_key_data(tmp_path):
    for run, step, _ in steps_of(tmp_path / "run", 2):
        load = np.array([5, 6, 4, 7]) if step == 0 else np.array([0, 22, 0, 0])
        run.data("tokens_per_expert", load)
    with_layers = training(tmp_path / "layers", 0, steps=2)
    assert not alarms(check_run(with_layers))
    result = check_run(tmp_path / "run")
    assert "history.routing" in {one.rule for one in result.not_checked} or alarms(result)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("range", lambda of: of.update({"layers.1": 50.0})),
        ("finite", lambda of: of.update({"layers.1": None})),
        ("calls", lambda of: of.update(extra=1)),
    ],
)
def test_what_healthy_runs_never_did(tmp_path, kind, change):
    healthy = [training(tmp_path / f"healthy{seed}", seed, steps=4) for seed in (1, 2)]
    assert not alarms(check_run(training(tmp_path / "same", 3, steps=4), healthy=healthy))
    bad = training(
        tmp_path / "bad", 4, steps=4, change=lambda step, of: change(of) if step == 2 else None
    )
    found = {finding.said.code: finding for finding in check_run(bad, healthy=healthy).all_findings}
    finding = found[f"check_healthy.{kind}"]
    assert finding.place.step == 2
    assert ("layers.3" if kind == "calls" else "layers.1") in finding.place.name


@pytest.mark.parametrize("number", [1, 3])
def test_a_slow_drift_against_healthy_runs(tmp_path, number):
    """A fifth of a standard deviation a step, in three of three seeds; none without."""
    healthy = [training(tmp_path / f"healthy{n}", 100 + n, steps=40) for n in range(number)]
    for seed in range(3):
        drifting = training(tmp_path / f"drift{seed}", seed, steps=40, drift=0.2)
        steady = training(tmp_path / f"steady{seed}", seed, steps=40)
        results = check_runs([drifting, steady], healthy=healthy).runs
        (finding,) = alarms(results[0])
        assert (finding.rule, finding.place.key) == ("healthy.drift", "loss")
        assert 5 < finding.place.step < 40
        assert not alarms(results[1])


def test_the_command_takes_healthy_runs(tmp_path):
    """As `check_run` does; the drift is in the answer, and the exit code says it."""
    healthy = training(tmp_path / "healthy", 100, steps=40)
    drifting = training(tmp_path / "drifting", 0, steps=40, drift=0.2)
    command = [sys.executable, "-m", "mindrlhf_msprobe", "check", str(drifting)]
    alone = subprocess.run(command, capture_output=True, text=True)
    beside = subprocess.run([*command, "--healthy", str(healthy)], capture_output=True, text=True)
    assert (alone.returncode, beside.returncode) == (0, 1)
    assert "healthy.drift" in beside.stdout


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", ["indices", "scores"])
def test_an_expert_that_is_first_for_nearly_all_tokens(tmp_path, seed, kind):
    """Of the full tensors of a router, whose statistics do not tell it: top 2 of 8 experts."""
    random = np.random.default_rng(seed)
    run = HealthRun(tmp_path / "run", task="tensor")
    for step in range(3):
        scores = random.normal(0, 1, (64, 8)).astype(np.float32)
        if step == 1:
            scores[:, seed % 8] += 9
        array = scores if kind == "scores" else np.argsort(-scores)[:, :2].astype(np.int32)
        with run.phase("actor_update"):
            name = "Cell.layers.0.router.TopKRouter.forward.0.output.0"
            file = run.recording.writer.sink("actor_update", step).save(name, array, None)
            leaf = summarise(to_host(array)).stored(file, fingerprint=True)
            run.call("layers.0.router", output=leaf, kind="TopKRouter")
        run.end_step()
    finding = only(run.close())
    assert (finding.rule, finding.place.step) == ("history.routing", 1)
    assert finding.place.record == "Cell.layers.0.router.TopKRouter.forward.0.output.0"
    assert finding.said.params["share"] >= 0.95
