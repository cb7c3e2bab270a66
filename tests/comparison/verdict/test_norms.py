"""A norm with another epsilon, and a parameter in the place of another one, are named."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.runs import Recording

from mindrlhf_msprobe import compare_runs


def normed(x, weight, bias, epsilon, *, centred):
    """Return what a norm over the last axis makes of x, in float32."""
    x = x - x.mean(axis=-1, keepdims=True) if centred else x
    root = np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(epsilon))
    return (x / root * weight + (0 if bias is None else bias)).astype(np.float32)


def record(path, epsilon, *, centred, scale=0.3, factor=1.0, **settings):
    random = np.random.default_rng(2)
    x = (random.normal(size=(2, 3, 16)) * scale).astype(np.float32)
    parameters = {"weight": random.normal(size=16).astype(np.float32)}
    if centred:
        parameters["bias"] = random.normal(size=16).astype(np.float32)
    recording = Recording(path, **{"task": "tensor", **settings})
    with recording.phase("actor_compute_log_prob"):

        def norm(x):
            y = normed(x, parameters["weight"], parameters.get("bias"), epsilon, centred=centred)
            return y * np.float32(factor)

        recording.call("norm", "Norm", norm, x, parameters=parameters)
    recording.end_step()
    recording.close()
    return path


def change(comparison):
    first = comparison.verdict.first_divergence
    assert "norm" in first.record
    return first.inside.change if first.inside else None


@pytest.mark.parametrize("centred", [False, True], ids=["root mean square", "layer norm"])
@pytest.mark.parametrize("epsilons", [(1e-5, 1e-3), (1e-5, 1e-6), (1e-12, 1e-5)], ids=str)
def test_the_epsilons_of_a_norm_are_named(tmp_path, centred, epsilons):
    runs = [record(tmp_path / str(e), e, centred=centred, scale=0.1) for e in epsilons]
    found = change(compare_runs(*runs))
    assert found.kind == "epsilon"
    assert found.parameters["b" if epsilons[1] > epsilons[0] else "a"] == pytest.approx(
        max(epsilons), rel=0.05
    )


@pytest.mark.parametrize("shape", [(4, 6, 3, 3), (9, 6)], ids=["images", "features"])
@pytest.mark.parametrize("training", [True, False])
def test_the_epsilons_of_a_norm_of_batches_are_named(of_both, shape, training):
    """By the statistics of the batch; with running ones, which are another formula, nothing is."""
    random = np.random.default_rng(6)
    x = (random.normal(size=shape) * 0.1).astype(np.float32)
    names = "gamma", "beta", "moving_mean", "moving_variance"
    of_each = {n: random.uniform(0.5, 2, size=6).astype(np.float32) for n in names}
    around = (1, 6, *[1] * (x.ndim - 2))
    gamma, beta, mean, variance = (value.reshape(around) for value in of_each.values())
    if training:
        axes = (0, *range(2, x.ndim))
        mean, variance = x.mean(axis=axes, keepdims=True), x.var(axis=axes, keepdims=True)

    def record(recording, run):
        root = np.sqrt(variance + np.float32(1e-5 if run == "a" else 1e-3))
        made = ((x - mean) / root * gamma + beta).astype(np.float32)
        with recording.phase("actor_compute_log_prob"):
            recording.call("norm", "Norm", lambda _: made, x, parameters=of_each)

    found = change(of_both(record, task="tensor"))
    if training:
        assert found.kind == "epsilon"
        assert found.parameters["b"] == pytest.approx(1e-3, rel=0.05)
    else:
        assert found is None or found.kind != "epsilon"


def test_what_is_no_other_epsilon_is_none(tmp_path):
    """A factor on all that a norm returns changes what looks like its epsilon, row by row."""
    a = record(tmp_path / "a", 1e-5, centred=False)
    found = change(compare_runs(a, record(tmp_path / "b", 1e-5, centred=False, factor=1.25)))
    assert found.kind == "factor"
    settings = {"centred": False, "task": "statistics"}
    few = [record(tmp_path / str(e), e, **settings) for e in (1e-5, 1e-3)]
    found = change(compare_runs(*few))
    assert found is None or found.kind != "epsilon"


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("swapped", [True, False])
def test_a_parameter_that_is_another_cells_is_named(of_both, task, swapped):
    random = np.random.default_rng(4)
    weights = {name: random.normal(size=(6, 4)).astype(np.float32) for name in ("w1", "w2", "w3")}
    x = random.normal(size=(2, 4)).astype(np.float32)
    names = {"a": "w1 w2 w3", "b": "w1 w3 w2" if swapped else "w1 w3 w3"}

    def record(recording, run):
        with recording.phase("actor_compute_log_prob"):
            for cell, name in zip(weights, names[run].split()):
                w = weights[name]
                recording.call(cell, "Dense", lambda x, w=w: x @ w.T, x, parameters={"weight": w})

    first = of_both(record, task=task, fingerprint=False).verdict.first_divergence
    assert first.record == "Cell.w2.Dense.forward.0.parameters.weight"
    assert first.inside.change.kind == "elsewhere"
    expected = {"a": "w3.weight", "b": "w3.weight" if swapped else None}
    assert first.inside.change.parameters == expected


@pytest.mark.parametrize("factor", [3, 0.5])
def test_what_a_holds_there_too_did_not_come_there(of_both, factor):
    """Gammas that begin alike in every norm: one that was changed has not moved to the others."""
    alike, x = np.linspace(0.5, 1, 4, dtype=np.float32), np.ones((2, 4), np.float32)
    other = np.array([3, 0.5, 7, 0.1], np.float32) * np.float32(factor)

    def record(recording, run):
        with recording.phase("actor_compute_log_prob"):
            for cell in ("n0", "n2", "n1"):
                gamma = other if (cell, run) == ("n2", "b") else alike
                known = {"gamma": gamma}
                recording.call(cell, "Norm", lambda x, w=gamma: x * w, x, parameters=known)

    first = of_both(record, task="tensor").verdict.first_divergence
    assert first.record == "Cell.n2.Norm.forward.0.parameters.gamma"
    assert first.inside is None or first.inside.change is None


def test_the_same_parameter_of_another_network_is_no_other_place(of_both):
    """The actor starts from the values that the reference should have."""
    random = np.random.default_rng(5)
    weight, other = (random.normal(size=(6, 4)).astype(np.float32) for _ in range(2))
    x = random.normal(size=(2, 4)).astype(np.float32)

    def record(recording, run):
        for phase in ("reference_compute_log_prob", "actor_compute_log_prob"):
            w = other if (phase[0], run) == ("r", "b") else weight
            with recording.phase(phase):
                for _ in range(2):
                    known = {"weight": w}
                    recording.call("w1", "Dense", lambda x, w=w: x @ w.T, x, parameters=known)

    first = of_both(record).verdict.first_divergence
    assert first.record == "Cell.w1.Dense.forward.0.parameters.weight"
    assert first.inside is None or first.inside.change is None
