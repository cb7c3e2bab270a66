"""The arithmetic of the demo's trainer, checked against its definitions."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("mindspore")
from mindrlhf_msprobe.demo import task
from mindrlhf_msprobe.demo.fault import disturb
from mindrlhf_msprobe.demo.trainer import generalized_advantages, response_mask, whiten


def test_advantages_are_the_discounted_sum_of_the_residuals():
    """Advantages equal the double sum of their definition, term by term."""
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=3).astype(np.float32), rng.normal(size=(3, 5))
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]], np.float32)
    gamma, lam = 0.9, 0.8
    advantages, returns = generalized_advantages(
        rewards, values.astype(np.float32), mask, gamma, lam
    )
    for row, length in enumerate([5, 2, 1]):
        value = [*values[row, :length], 0.0]
        reward = [0.0] * (length - 1) + [float(rewards[row])]
        delta = [reward[t] + gamma * value[t + 1] - value[t] for t in range(length)]
        for t in range(length):
            expected = sum((gamma * lam) ** k * delta[t + k] for k in range(length - t))
            assert advantages[row, t] == pytest.approx(expected, abs=1e-5)
            assert returns[row, t] == pytest.approx(expected + value[t], abs=1e-5)
        assert not advantages[row, length:].any()


def test_the_mask_ends_with_the_first_end_token():
    """The mask covers the answer and its END, nothing behind it."""
    responses = np.array([[3, task.END, 2, task.END], [1, 2, 3, 4], [task.END, 1, 1, 1]], np.int32)
    assert response_mask(responses).tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]


def test_whitened_advantages_have_mean_0_and_variance_1_over_the_answers():
    """Only the answers' tokens count."""
    mask = np.array([[1, 1, 0], [1, 1, 1]], np.float32)
    whitened = whiten(np.array([[1, 5, 100], [2, 8, 3]], np.float32), mask)
    answered = whitened[mask == 1]
    assert answered.mean() == pytest.approx(0, abs=1e-6)
    assert answered.std() == pytest.approx(1, abs=1e-5)
    assert whitened[0, 2] == 0


@pytest.mark.parametrize(
    ("response", "reward"), [("7", 1.0), ("6", 0.25), ("", -0.5), ("+=", -0.5), ("7+", -0.3)]
)
def test_the_reward_judges_the_text(response, reward):
    """The right sum earns 1, a near one less, no number a penalty."""
    assert task.reward("3+4=", response) == pytest.approx(reward)


def test_texts_survive_encoding():
    """decode undoes encode and stops at END."""
    assert task.decode([*task.encode("3+4=12"), task.END, 5]) == "3+4=12"


def test_a_fault_really_changes_every_kind_of_output():
    """Floating, integer and bool outputs change, nested or not; all else stays the same object."""
    import mindspore as ms
    from mindspore import Tensor

    for value in (
        Tensor(np.zeros((2, 3)), ms.float32),
        Tensor(np.ones(3), ms.int32),
        Tensor(np.array([True, False])),
        Tensor(np.float32(2.0)),
    ):
        assert not np.array_equal(disturb(value).asnumpy(), value.asnumpy())
    first, second = Tensor(np.ones(2), ms.int32), Tensor(np.ones(2), ms.float32)
    output = disturb((first, {"x": second}))
    assert output[0] is first
    assert output[1]["x"].asnumpy()[0] == pytest.approx(1.001)
