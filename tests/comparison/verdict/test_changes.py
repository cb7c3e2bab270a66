"""Changes of one cell that are named: a norm's epsilon, a rotary base, standard deviations.

And a parameter in the place of another one. Nothing else is taken for one of them.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.runs import Recording

from mindrlhf_msprobe import Tolerance, compare_runs
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.comparison.verdict.changes import rotary_bases
from mindrlhf_msprobe.comparison.verdict.inside import of_elements
from mindrlhf_msprobe.findings import Inside
from mindrlhf_msprobe.report.comparison import inside_words
from mindrlhf_msprobe.report.messages import text_of


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


def table(base: float, size: int = 32) -> np.ndarray:
    powers = base ** (-np.arange(size // 2) / (size // 2))
    return np.tile(np.cos(np.outer(np.arange(20), powers)), 2).astype(np.float32)


@pytest.mark.parametrize("angle", [1e-30, 1e-8, 0.0, float("nan"), 2.0])
@pytest.mark.parametrize("size", [4, 512])
def test_wide_tensors_of_any_values_are_none(angle: float, size: int) -> None:
    """The power that a base is computed by is beyond float64 for small angles of wide tensors."""
    any_values = np.full((3, size), np.sin(angle))
    assert rotary_bases(any_values, table(500.0, size)) is None
    assert rotary_bases(np.cos(any_values), any_values) is None


def test_the_bases_of_tables_in_unlike_dtypes_are_named(of_both):
    """A tolerance lets them be compared by value; half precision is exact enough for a base."""

    def record(recording, run):
        made = table(10000.0) if run == "a" else table(500.0).astype(np.float16)
        with recording.phase("actor_compute_log_prob"):
            recording.call("freqs", "Freqs", lambda _: made, np.arange(4))

    result = of_both(record, {"tolerance": Tolerance(rtol=1e-2, atol=1e-2)}, task="tensor")
    change = result.verdict.first_divergence.inside.change
    assert change.kind == "rotary_base"
    assert change.parameters == {"a": 10000.0, "b": 500.0}


@pytest.mark.parametrize("size", [8, 128])
def test_a_table_of_few_digits_has_the_base_of_one_of_many(size: int) -> None:
    """bfloat16 comes as float32 that was cut."""
    exact = table(10000.0, size)
    cut = (exact.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert rotary_bases(exact, cut) is None
    assert rotary_bases(exact, exact.astype(np.float16)) is None
    found = rotary_bases(table(500.0, size), cut)
    assert found is not None
    assert found.parameters["b"] == pytest.approx(10000.0, rel=5e-3)


def look(a: np.ndarray, b: np.ndarray) -> Inside | None:
    return of_elements(a.astype(np.float32), b.astype(np.float32), "Float32")


def advantages(
    rewards: np.ndarray, axis: int | None, ddof: int, epsilon: float, *, root: bool = False
) -> np.ndarray:
    """Return rewards less their mean, divided by their deviation; epsilon may be under the root."""
    known = {"axis": axis, "keepdims": True}
    variance = rewards.var(ddof=ddof, **known)
    divided = np.sqrt(variance + epsilon) if root else np.sqrt(variance) + epsilon
    return (rewards - rewards.mean(**known)) / divided


@pytest.mark.parametrize("epsilon", [1e-6, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("ddofs", [(0, 1), (1, 0)])
@pytest.mark.parametrize("root", [False, True], ids=["beside the deviation", "under the root"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((8,), None), ((64,), None), ((4, 8), None), ((16, 4), 1), ((16, 6), 1), ((4, 16), 0)],
)
def test_an_epsilon_is_solved_for(shape, axis, root, ddofs, epsilon):
    """Whatever deviations the groups have, of which each has a factor of its own.

    It stands beside the deviation, or beside the variance, as norms have it.
    """
    rewards = np.random.default_rng(3).normal(size=shape) * np.geomspace(0.2, 0.9, shape[-1])
    a, b = (advantages(rewards, axis, ddof, epsilon, root=root) for ddof in ddofs)
    found = look(a, b).change
    n = rewards.size if axis is None else shape[axis]
    if found.kind == "factor":  # the epsilon is no more than rounding
        assert epsilon <= 1e-5
        assert found.parameters["ddof"] == n
        return
    assert found.kind == "ddof"
    assert {k: found.parameters[k] for k in "abn"} == {"a": ddofs[0], "b": ddofs[1], "n": n}
    if root and not found.parameters.get("root"):
        assert n >= 32 or epsilon < 1e-5, "of many values, the two places cannot be told apart"
    elif epsilon >= 1e-5:
        spread = np.atleast_1d((rewards.var if root else rewards.std)(axis=axis))
        expected = [epsilon / spread.max(), epsilon / spread.min()]
        assert found.parameters["epsilon"] == pytest.approx(expected, rel=0.1, abs=2e-6)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_groups_of_samples_with_one_value_for_each_token(lang):
    """As GRPO has them: 4 groups of 4 samples, masked behind the ends of responses."""
    random = np.random.default_rng(5)
    rewards = random.uniform(0, 1, size=(4, 4))
    mask = np.arange(12) < random.integers(3, 12, size=(16, 1))
    a, b = (advantages(rewards, 1, ddof, 1e-4).reshape(16, 1) * mask for ddof in (0, 1))
    found = look(a, b)
    assert (found.change.kind, found.change.parameters["n"]) == ("ddof", 4)
    said = text_of(Message("inside.ddof", found.change.parameters), lang)
    assert "ddof" in said
    assert ("epsilon of" if lang == "en" else "epsilon，") in said.replace("beside it ", "")


def test_what_has_no_deviation_of_one_is_not_standardised():
    """A factor is a factor, and noise is none."""
    a = np.random.default_rng(1).normal(size=64)
    assert look(a, a * 0.5).change.kind == "factor"
    noise = a * (1 + np.random.default_rng(2).normal(size=64) * 1e-2)
    assert look(a, noise) is None or look(a, noise).change is None


def test_a_factor_that_an_epsilon_hides_is_said_as_such():
    """Each row is divided by something of its own, beside which an epsilon stands."""
    random = np.random.default_rng(4)
    x, size = random.normal(size=(8, 16)) + 3, random.uniform(0.5, 3, size=(8, 1))
    found = look(x / (2 * size + 1e-4), x / (size + 1e-4)).change
    assert found.kind == "nearly"
    assert found.parameters["smallest"] < 2 < 2.001
    assert found.parameters["largest"] == pytest.approx(2, rel=1e-3)
    other = x / (size * random.uniform(0.9, 1.1, size=(8, 1)))
    rest = look(x / size, other)
    assert rest is None or rest.change is None or rest.change.kind != "nearly"


@pytest.mark.parametrize("by", [1, -1, 2])
def test_a_shift_is_said_where_it_explains_all_elements(by):
    """What came in is nothing, a label that is left out, or what stood there."""
    a = np.random.default_rng(6).integers(1000, 30000, size=(4, 12))
    b = np.roll(a, by, axis=1)
    came = (slice(None), slice(0, by) if by > 0 else slice(by, None))
    for filled in (0, -100, a[came]):
        b[came] = filled
        found = of_elements(a, b, "Int64").change
        assert (found.kind, found.parameters["by"]) == ("shifted", by)
        assert found.parameters["whole"]
    b[came] = np.random.default_rng(7).integers(30000, 60000, size=b[came].shape)
    found = of_elements(a, b, "Int64")
    assert not found.change.parameters["whole"]
    said = inside_words(found)
    assert "shifted" not in said
    assert f"but for the {'first' if by > 0 else 'last'} {abs(by)}" in said


def test_one_place_along_an_axis_is_not_a_number_of_places():
    """`5 of 64` reads as five places."""
    a = np.random.default_rng(8).normal(size=(4, 64))
    b = a.copy()
    b[:, 5] += [0.5, 0.25, 0.125, 0.3]
    assert "place 5 of 64 along axis 1" in inside_words(look(a, b))
    b[:, 9] += 1
    assert "places 5, 9 of 64 along axis 1" in inside_words(look(a, b))
