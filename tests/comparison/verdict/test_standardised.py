"""Advantages of unlike standard deviations, an epsilon beside them, and what is nearly a factor."""

from __future__ import annotations

import numpy as np
import pytest

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.comparison.verdict.inside import of_elements
from mindrlhf_msprobe.findings import Inside
from mindrlhf_msprobe.report.comparison import inside_words
from mindrlhf_msprobe.report.messages import text_of


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
