"""Against healthy runs: what depends on the data, as experts do, and how much is kept of them."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from helpers.health_runs import HealthRun, steps_of, tensor

from mindrlhf_msprobe import check_run, open_run
from mindrlhf_msprobe.checks.check import Checking
from mindrlhf_msprobe.checks.loading import own_rules
from mindrlhf_msprobe.checks.views import steps
from mindrlhf_msprobe.storage.reading.reader import Run

EXPERTS = 4


def sized(norm, shape=(8, 4)):
    return tensor(norm, -norm, norm=norm, shape=shape)


def mixture(root, seed, kind, *, steps=4, tokens=8, change=lambda step, norms: None):
    """Record a router and experts, each of which receives some of the tokens, or none.

    Args:
        kind: what an expert without tokens does: it is `left_out`, or called with `empty` tensors
            or with `zeros`, with as many rows as there are tokens.
    """
    random = np.random.default_rng(seed)
    for run, step, _ in steps_of(root, steps):
        counts = np.bincount(random.integers(0, EXPERTS, tokens), minlength=EXPERTS)
        if seed == step:
            counts[:] = [0, tokens, 0, 0]
        norms = {"dense": 1.0}
        norms |= {f"experts.{n}": float(np.sqrt(count)) for n, count in enumerate(counts)}
        change(step, norms)
        with run.phase("actor_update"):
            run.call("dense", sized(1.0), sized(norms["dense"]))
            for n, count in enumerate(counts.tolist()):
                if not count and kind == "left_out":
                    continue
                norm = norms[f"experts.{n}"]
                of = sized(norm, (tokens if kind == "zeros" else count, 4))
                run.call(f"experts.{n}", of, of, parameters={"weight": sized(1.0, (4, 4))})
                run.call(f"experts.{n}", of, of, direction="backward")
            for n, count in enumerate(counts.tolist()):
                if count or kind != "left_out":
                    run.gradients(f"experts.{n}", weight=sized(norms[f"experts.{n}"] / 9, (4, 4)))
    return root


def alarms(run, healthy):
    result = check_run(run, healthy=healthy)
    return [one for one in result.all_findings if one.severity.counts]


@pytest.mark.parametrize("kind", ["left_out", "empty", "zeros"])
@pytest.mark.parametrize("seed", range(4))
def test_an_expert_without_tokens_is_healthy(tmp_path, kind, seed):
    """In the healthy run each has some or none; in the other it is another one's turn."""
    healthy = mixture(tmp_path / "healthy", 50 + seed, kind)
    assert alarms(mixture(tmp_path / "run", seed, kind), [healthy]) == []


@pytest.mark.parametrize("kind", ["left_out", "empty", "zeros"])
def test_an_expert_that_explodes_is_named(tmp_path, kind):
    healthy = [mixture(tmp_path / f"healthy{n}", 50 + n, kind) for n in range(2)]

    def change(step, norms):
        if step == 2:
            norms["experts.1"] = 1e4

    run = mixture(tmp_path / "run", 2, kind, change=change)
    (finding,) = alarms(run, healthy)
    assert (finding.rule, finding.place.step) == ("healthy.range", 2)
    assert "experts.1" in finding.place.record


def test_what_is_always_there_has_a_lower_bound(tmp_path):
    """Beside experts that may be idle."""
    healthy = [mixture(tmp_path / f"healthy{n}", 50 + n, "zeros") for n in range(2)]

    def change(step, norms):
        norms["dense"] = 1e-3 if step == 1 else 1.0

    (finding,) = alarms(mixture(tmp_path / "run", 9, "zeros", change=change), healthy)
    assert (finding.rule, finding.place.step) == ("healthy.range", 1)
    assert "dense" in finding.place.record


def biases(root, norms):
    run = HealthRun(root)
    for of_step in norms:
        with run.phase("critic_update"):
            for norm in of_step:
                run.call("value_head", parameters={"bias": sized(norm, (1,))})
        run.end_step()
    return run.close()


def test_a_single_number_may_cross_zero(tmp_path):
    """As the bias of a critic's head does, which begins with zero; it must not grow without end."""
    healthy = [biases(tmp_path / "healthy", [(0, 1e-3), (2e-3, 1e-3), (2e-3, 3e-3)])]
    assert alarms(biases(tmp_path / "run", [(0, 1e-3), (2e-5, 1e-6), (1e-5, 1e-4)]), healthy) == []
    (finding,) = alarms(biases(tmp_path / "large", [(0, 1e-3), (2e-5, 4.0)]), healthy)
    assert (finding.said.code, finding.place.step) == ("check_healthy.range", 1)


def generating(root, lengths):
    run = HealthRun(root)
    for length in lengths:
        with run.phase("actor_generate_sequences"):
            for _ in range(length):
                run.call("head")
        with run.phase("actor_update"):
            given = tensor(shape=(length, 4), norm=float(np.sqrt(length)))
            run.call("head", given, given)
        run.end_step()
    return run.close()


def test_responses_of_another_length_are_healthy(tmp_path):
    """As many calls and rows as tokens, which depend on the data."""
    healthy = [generating(tmp_path / "healthy", [4, 5, 4])]
    assert alarms(generating(tmp_path / "run", [3, 9, 40]), healthy) == []


def test_calls_and_shapes_that_never_vary_must_not(tmp_path):
    healthy = [generating(tmp_path / "healthy", [4, 4, 4])]
    found = alarms(generating(tmp_path / "run", [4, 5]), healthy)
    assert {one.said.code for one in found} == {"check_healthy.calls", "check_healthy.shape"}
    assert {one.place.step for one in found} == {1}


def long_run(root, seed, number, *, drift=0.0):
    random = np.random.default_rng(seed)
    for run, step, _ in steps_of(root, number):
        with run.phase("actor_update"):
            run.call("dense", output=sized(10 ** random.normal(0, 0.05)))
            run.call("expert", output=sized(1.0, (int(random.integers(1, 1000)), 4)))
        run.data("loss", np.float32(random.normal(2, 0.1) + 0.1 * drift * step))
    return root


def kept_of(healthy, run):
    """Return how many objects, and bytes of arrays, are held after a run and a healthy one."""
    opened = open_run(run)
    checking = Checking(opened, own_rules(), healthy=[open_run(healthy)])
    for step in steps(opened):
        checking.feed(step)
    seen, stack, of_arrays = {}, [checking], 0
    while stack:
        one = stack.pop()
        if id(one) not in seen and not isinstance(
            one, (type, type(gc), type(repr), type(kept_of), Run)
        ):
            seen[id(one)] = one
            of_arrays += one.nbytes if isinstance(one, np.ndarray) and one.base is None else 0
            stack += gc.get_referents(one)
    return len(seen), of_arrays


def test_what_is_kept_does_not_grow_with_the_steps(tmp_path):
    """Neither of healthy runs nor of the run."""
    short, long = (
        kept_of(long_run(tmp_path / f"healthy{n}", 1, n), long_run(tmp_path / f"run{n}", 2, n))
        for n in (128, 256)  # as many means are kept
    )
    assert abs(long[0] - short[0]) < 50  # of 128 steps
    assert long[1] - short[1] < 2000


@pytest.mark.parametrize("seed", range(2))
def test_a_drift_in_a_long_run(tmp_path, seed):
    """Where means of some steps each are compared; its place is one of those steps."""
    healthy = [long_run(tmp_path / f"healthy{n}", 100 + n, 256) for n in range(2)]
    (finding,) = alarms(long_run(tmp_path / "drifting", seed, 256, drift=0.2), healthy)
    assert (finding.rule, finding.place.key) == ("healthy.drift", "loss")
    assert 3 < finding.place.step < 60
    assert finding.place.rank == 0
    assert alarms(long_run(tmp_path / "steady", seed, 256), healthy) == []


def of_a_seed(root, seed, *, weights=0, drift=0.0, number=30):
    """Record a run whose norms have a level, and a slow motion of their own, by its weights."""
    random, level = np.random.default_rng(seed), np.random.default_rng(weights)
    levels, slopes = level.normal(0, 0.1, 8), level.normal(0, 0.004, 8)
    for run, step, _ in steps_of(root, number):
        with run.phase("actor_update"):
            for n, (at, slope) in enumerate(zip(levels, slopes)):
                moved = drift * step if n == 3 else 0
                norm = at + slope * step + moved + random.normal(0, 0.003)
                run.call(f"layers.{n}", output=sized(10**norm))
        run.data("reward", np.float32(0.3 * (weights % 3) + random.normal(2, 0.1)))
    return root


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_run_of_another_seed_does_not_drift(tmp_path, seed, number):
    """Its norms and rewards begin elsewhere, and its norms learn otherwise."""
    healthy = [of_a_seed(tmp_path / f"healthy{n}", 90 + n, weights=n) for n in range(number)]
    assert alarms(of_a_seed(tmp_path / "run", seed, weights=7 + seed), healthy) == []


@pytest.mark.parametrize("number", [1, 2])
def test_a_norm_that_drifts_in_a_run_of_the_same_weights(tmp_path, number):
    healthy = [of_a_seed(tmp_path / f"healthy{n}", 90 + n) for n in range(number)]
    (finding,) = alarms(of_a_seed(tmp_path / "run", 3, drift=0.01), healthy)
    assert (finding.rule, finding.place.entry) == ("healthy.drift", "Cell.layers.3.Dense.forward.0")
