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


def change(a, b):
    first = compare_runs(a, b, workers=1).verdict.first_divergence
    assert "norm" in first.record
    return first.inside.change if first.inside else None


@pytest.mark.parametrize("centred", [False, True], ids=["root mean square", "layer norm"])
@pytest.mark.parametrize("epsilons", [(1e-5, 1e-3), (1e-5, 1e-6), (1e-12, 1e-5)], ids=str)
def test_the_epsilons_of_a_norm_are_named(tmp_path, centred, epsilons):
    runs = [record(tmp_path / str(e), e, centred=centred, scale=0.1) for e in epsilons]
    found = change(*runs)
    assert found.kind == "epsilon"
    assert found.parameters["b" if epsilons[1] > epsilons[0] else "a"] == pytest.approx(
        max(epsilons), rel=0.05
    )


@pytest.mark.parametrize("shape", [(4, 6, 3, 3), (9, 6)], ids=["images", "features"])
@pytest.mark.parametrize("training", [True, False])
def test_the_epsilons_of_a_norm_of_batches_are_named(tmp_path, shape, training):
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
    for side, epsilon in (("a", 1e-5), ("b", 1e-3)):
        recording = Recording(tmp_path / side, task="tensor")
        with recording.phase("actor_compute_log_prob"):

            def norm(x, epsilon=epsilon):
                root = np.sqrt(variance + np.float32(epsilon))
                return ((x - mean) / root * gamma + beta).astype(np.float32)

            recording.call("norm", "Norm", norm, x, parameters=of_each)
        recording.end_step()
        recording.close()
    found = change(tmp_path / "a", tmp_path / "b")
    if training:
        assert found.kind == "epsilon"
        assert found.parameters["b"] == pytest.approx(1e-3, rel=0.05)
    else:
        assert found is None or found.kind != "epsilon"


def test_what_is_no_other_epsilon_is_none(tmp_path):
    """A factor on all that a norm returns changes what looks like its epsilon, row by row."""
    a = record(tmp_path / "a", 1e-5, centred=False)
    found = change(a, record(tmp_path / "b", 1e-5, centred=False, factor=1.25))
    assert found.kind == "factor"
    few = record(tmp_path / "c", 1e-3, centred=False, task="statistics")
    found = change(record(tmp_path / "d", 1e-5, centred=False, task="statistics"), few)
    assert found is None or found.kind != "epsilon"


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("swapped", [True, False])
def test_a_parameter_that_is_another_cells_is_named(tmp_path, task, swapped):
    random = np.random.default_rng(4)
    weights = {name: random.normal(size=(6, 4)).astype(np.float32) for name in ("w1", "w2", "w3")}
    x = random.normal(size=(2, 4)).astype(np.float32)
    for side, names in (("a", "w1 w2 w3"), ("b", "w1 w3 w2" if swapped else "w1 w3 w3")):
        recording = Recording(tmp_path / side, task=task, fingerprint=False)
        with recording.phase("actor_compute_log_prob"):
            for cell, name in zip(weights, names.split()):
                weight = weights[name]
                recording.call(
                    cell, "Dense", lambda x, w=weight: x @ w.T, x, parameters={"weight": weight}
                )
        recording.end_step()
        recording.close()
    first = compare_runs(tmp_path / "a", tmp_path / "b", workers=1).verdict.first_divergence
    assert first.record == "Cell.w2.Dense.forward.0.parameters.weight"
    assert first.inside.change.kind == "elsewhere"
    expected = {"a": "w3.weight", "b": "w3.weight" if swapped else None}
    assert first.inside.change.parameters == expected


@pytest.mark.parametrize("factor", [3, 0.5])
def test_what_a_holds_there_too_did_not_come_there(tmp_path, factor):
    """Gammas that begin alike in every norm: one that was changed has not moved to the others."""
    alike, x = np.linspace(0.5, 1, 4, dtype=np.float32), np.ones((2, 4), np.float32)
    other = np.array([3, 0.5, 7, 0.1], np.float32) * np.float32(factor)
    for side, second in (("a", alike), ("b", other)):
        recording = Recording(tmp_path / side, task="tensor")
        with recording.phase("actor_compute_log_prob"):
            for cell, gamma in (("n0", alike), ("n2", second), ("n1", alike)):
                known = {"gamma": gamma}
                recording.call(cell, "Norm", lambda x, w=gamma: x * w, x, parameters=known)
        recording.end_step()
        recording.close()
    first = compare_runs(tmp_path / "a", tmp_path / "b", workers=1).verdict.first_divergence
    assert first.record == "Cell.n2.Norm.forward.0.parameters.gamma"
    assert first.inside is None or first.inside.change is None


def test_the_same_parameter_of_another_network_is_no_other_place(tmp_path):
    """The actor starts from the values that the reference should have."""
    random = np.random.default_rng(5)
    weight, other = (random.normal(size=(6, 4)).astype(np.float32) for _ in range(2))
    x = random.normal(size=(2, 4)).astype(np.float32)
    for side, reference in (("a", weight), ("b", other)):
        recording = Recording(tmp_path / side)
        phases = {"reference_compute_log_prob": reference, "actor_compute_log_prob": weight}
        for phase, own in phases.items():
            with recording.phase(phase):
                for _ in range(2):
                    recording.call(
                        "w1", "Dense", lambda x, w=own: x @ w.T, x, parameters={"weight": own}
                    )
        recording.end_step()
        recording.close()
    first = compare_runs(tmp_path / "a", tmp_path / "b", workers=1).verdict.first_divergence
    assert first.record == "Cell.w1.Dense.forward.0.parameters.weight"
    assert first.inside is None or first.inside.change is None
