"""Rollout against training: metrics by exact arithmetic, by verl's formulas, at their edges."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest

from mindrlhf_msprobe import UsageError
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.trends.rollout_correction import (
    METRICS,
    SAFETY_BOUND,
    RolloutGap,
    pearson,
    rollout_gap,
)

NON_FINITE = "rollout_corr/non_finite_tokens"
SEEDS = range(12)


def a_batch(seed, *, spread=0.3, dtype=np.float32):
    """Return log-probabilities of both policies and a mask; row 1 is an empty response."""
    random = np.random.default_rng(seed)
    shape = tuple(random.integers(2, 7, 2))
    rollout = -random.gamma(1, 2, shape).astype(dtype)
    training = (rollout + random.normal(0, spread, shape)).astype(dtype)
    lengths = random.integers(1, shape[1] + 1, shape[0])
    lengths[1] = 0
    mask = (np.arange(shape[1]) < lengths[:, None]).astype(np.int32)
    return rollout, training, mask


def exactly(rollout, training, mask, clip):
    """Compute every metric row by row in decimal arithmetic of 60 digits."""
    with localcontext() as context:
        context.prec = 60
        rows = [
            [(Decimal(float(r)), Decimal(float(t))) for r, t, m in zip(*of) if m]
            for of in zip(rollout, training, mask)
        ]
        rows = [row for row in rows if row]
        pairs = [pair for row in rows for pair in row]

        def mean(values):
            values = list(values)
            return sum(values) / len(values)

        def correlation(values):
            xs, ys = zip(*values)
            a, b = mean(xs), mean(ys)
            top = sum((x - a) * (y - b) for x, y in values)
            return top / (sum((x - a) ** 2 for x in xs) * sum((y - b) ** 2 for y in ys)).sqrt()

        off = sorted(abs(t - r) for r, t in pairs)
        where = Decimal("0.99") * (len(off) - 1)
        low = int(where)
        p99 = off[low] + (where - low) * (off[min(low + 1, len(off) - 1)] - off[low])
        chances = [(r.exp(), t.exp()) for r, t in pairs]
        apart = [abs(t - r) for r, t in chances]
        spread = (sum((x - mean(apart)) ** 2 for x in apart) / (len(apart) - 1)).sqrt()
        means = [(mean(r for r, _ in row), mean(t for _, t in row)) for row in rows]
        ppl = [r - t for r, t in means]
        ratios = [(t - r).exp() for r, t in pairs]
        low_bound, high_bound = 1 - Decimal(clip[0]), 1 + Decimal(clip[1])
        found = {
            "log_prob_diff_mean": mean(off),
            "log_prob_diff_p99": p99,
            "log_prob_diff_max": max(off),
            "kl": mean(r - t for r, t in pairs),
            "k3_kl": mean((t - r).exp() - 1 - (t - r) for r, t in pairs),
            "ppl_ratio": mean(x.exp() for x in ppl),
            "chi2_token": mean(x**2 for x in ratios) - 1,
            "chi2_seq": mean((2 * sum(t - r for r, t in row)).exp() for row in rows) - 1,
            "ratio_fraction_outside": mean(
                Decimal(x < low_bound or x > high_bound) for x in ratios
            ),
            "log_prob_pearson_corr": correlation(pairs),
            "non_finite_tokens": Decimal(0),
            "training_ppl": mean((-t).exp() for _, t in means),
            "training_log_ppl": mean(-t for _, t in means),
            "rollout_ppl": mean((-r).exp() for r, _ in means),
            "rollout_log_ppl": mean(-r for r, _ in means),
            "log_ppl_diff": mean(ppl),
            "log_ppl_abs_diff": mean(map(abs, ppl)),
            "log_ppl_diff_max": max(ppl),
            "log_ppl_diff_min": min(ppl),
        }
        of_chances = {
            "rollout_probs_diff_mean": mean(apart),
            "rollout_probs_diff_max": max(apart),
            "rollout_probs_diff_std": spread,
            "rollout_actor_probs_pearson_corr": correlation(chances),
        }
        return {
            **{f"rollout_corr/{name}": float(value) for name, value in found.items()},
            **{f"training/{name}": float(value) for name, value in of_chances.items()},
        }


@pytest.mark.parametrize("seed", SEEDS)
def test_every_metric_is_what_exact_arithmetic_gives(seed):
    """Differences from a rounding's size to several nats; an unequal clip range."""
    spread = [1e-6, 1e-3, 0.3, 2.0][seed % 4]
    rollout, training, mask = a_batch(seed, spread=spread, dtype=np.float64)
    gap = rollout_gap(rollout, training, mask, (0.2, 0.28))
    expected = exactly(rollout, training, mask, (0.2, 0.28))
    assert tuple(gap.metrics) == METRICS
    assert set(expected) == set(METRICS)
    for name, value in expected.items():
        assert gap.metrics[name] == pytest.approx(value, rel=1e-7, abs=1e-14), name
    assert (gap.empty, gap.non_finite) == (1, 0)
    assert (gap.tokens, gap.sequences) == (mask.sum(), len(mask) - 1)


def verl(rollout, training, mask):
    """Return verl's metrics, its tensor operations one by one in numpy.

    `compute_offpolicy_metrics` of verl/trainer/ppo/rollout_corr_helper.py with `masked_mean` and
    `masked_sum` of verl/utils/torch_functional.py, and `calculate_debug_metrics` of
    verl/utils/debug/metrics.py, at 1dda039.
    """

    def masked_sum(values, axis=None):
        return (np.where(mask != 0, values, 0.0) * mask).sum(axis=axis)

    def masked_mean(values, axis=None):
        return masked_sum(values, axis) / (mask.sum(axis=axis) + 1e-8)

    of_training, of_rollout = (masked_mean(of, -1) for of in (training, rollout))
    log_ratio = training - rollout
    diff = of_rollout - of_training
    rho = np.exp(np.clip(log_ratio, -20, 20))
    found = {
        "training_ppl": np.exp(-of_training).mean(),
        "training_log_ppl": (-of_training).mean(),
        "kl": masked_mean(rollout - training),
        "k3_kl": masked_mean(np.exp(log_ratio) - log_ratio - 1),
        "rollout_ppl": np.exp(-of_rollout).mean(),
        "rollout_log_ppl": (-of_rollout).mean(),
        "log_ppl_diff": diff.mean(),
        "log_ppl_abs_diff": np.abs(diff).mean(),
        "log_ppl_diff_max": diff.max(),
        "log_ppl_diff_min": diff.min(),
        "ppl_ratio": np.exp(diff).mean(),
        "chi2_token": masked_mean(rho**2) - 1,
        "chi2_seq": np.exp(2 * np.clip(masked_sum(log_ratio, -1), -20, 20)).mean() - 1,
    }
    chances = [np.exp(of)[mask != 0] for of in (training, rollout)]
    apart = np.abs(chances[0] - chances[1])
    debug = {
        "rollout_probs_diff_max": apart.max(),
        "rollout_probs_diff_mean": apart.mean(),
        "rollout_probs_diff_std": apart.std(ddof=1),
        "rollout_actor_probs_pearson_corr": np.corrcoef(np.stack(chances))[0][1],
    }
    prefixed = {f"rollout_corr/{name}": value for name, value in found.items()}
    return prefixed | {f"training/{name}": value for name, value in debug.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_verls_metrics_have_verls_values(seed):
    """Where no response is empty: verl takes an empty one for a sequence of perplexity 1."""
    rollout, training, mask = (np.delete(of, 1, axis=0) for of in a_batch(seed, spread=1.0))
    training[0, 0] = rollout[0, 0] + 30  # beyond what χ² limits
    wide = rollout.astype(np.float64), training.astype(np.float64)
    gap = rollout_gap(rollout, training, mask)
    expected = verl(*wide, mask)
    assert len(expected) == 17
    for name, value in expected.items():
        assert gap.metrics[name] == pytest.approx(value, rel=1e-6), name


def test_the_direction_is_from_rollout_to_training():
    """A training network that is less certain has the higher perplexity, and k1 is positive."""
    rollout = np.log(np.array([[0.5, 0.5]]))
    gap = rollout_gap(rollout, np.log(np.array([[0.25, 0.25]]))).metrics
    assert gap["rollout_corr/kl"] == pytest.approx(np.log(2))
    assert gap["rollout_corr/ppl_ratio"] == pytest.approx(2)
    assert gap["rollout_corr/k3_kl"] == pytest.approx(0.5 - 1 + np.log(2))
    assert gap["rollout_corr/chi2_token"] == pytest.approx(0.25 - 1)
    assert gap["rollout_corr/chi2_seq"] == pytest.approx(0.25**2 - 1)


def test_equal_log_probabilities_are_exactly_apart_by_nothing():
    rollout, _, mask = a_batch(0)
    gap = rollout_gap(rollout, rollout.copy(), mask)
    same = {"ppl_ratio": 1.0, "log_prob_pearson_corr": 1.0, "rollout_actor_probs_pearson_corr": 1.0}
    for name, value in gap.metrics.items():
        short = name.partition("/")[2]
        if short in same:
            assert value == pytest.approx(same[short], abs=1e-15), name
        elif "ppl" not in short or "diff" in short:
            assert value == 0, name


def test_nothing_overflows_that_float64_can_hold():
    """A ratio of e^800 is infinite as such; χ² limits it as verl does, all else stays finite."""
    gap = rollout_gap(np.array([-801.0, -1.0]), np.array([-1.0, -801.0])).metrics
    infinite = [name for name, value in gap.items() if not np.isfinite(value)]
    assert infinite == ["rollout_corr/k3_kl"]
    expected = (np.exp(2 * SAFETY_BOUND) + np.exp(-2 * SAFETY_BOUND)) / 2 - 1
    assert gap["rollout_corr/chi2_token"] == pytest.approx(expected)
    assert gap["rollout_corr/chi2_seq"] == 0
    assert gap["rollout_corr/log_prob_diff_mean"] == 800


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_counted_and_left_out(bad):
    """On either side; under the mask it is nothing."""
    rollout, training, mask = a_batch(3)
    mask[:, :2] = 1
    rollout[0, 0] = training[1, 1] = bad
    gap = rollout_gap(rollout, training, mask)
    assert gap.non_finite == gap.metrics[NON_FINITE] == 2
    others = mask.copy()
    others[0, 0] = others[1, 1] = 0
    alone = rollout_gap(rollout, training, others)
    assert alone.non_finite == 0
    assert {**gap.metrics, NON_FINITE: 0.0} == alone.metrics
    assert np.isfinite([*gap.metrics.values()]).all()


def undefined(gap: RolloutGap):
    return {name: why.code for name, why in gap.undefined.items()}


def test_one_token_has_no_correlation_and_no_deviation():
    gap = rollout_gap(np.array([-1.0]), np.array([-1.5]))
    assert undefined(gap) == dict.fromkeys(
        [
            "training/rollout_probs_diff_std",
            "rollout_corr/log_prob_pearson_corr",
            "training/rollout_actor_probs_pearson_corr",
        ],
        "trend.one_token",
    )
    assert set(gap.metrics) | set(gap.undefined) == set(METRICS)
    assert gap.metrics["rollout_corr/log_prob_diff_p99"] == 0.5


def test_equal_values_have_no_correlation():
    gap = rollout_gap(np.full(3, -1.0), np.array([-1.0, -2.0, -3.0]))
    assert set(undefined(gap).values()) == {"trend.all_equal"}


@pytest.mark.parametrize(
    ("shape", "mask", "code", "empty"),
    [
        ((2, 3), np.zeros((2, 3)), "trend.no_token", 2),
        ((0, 3), None, "trend.no_token", 0),
        ((3, 0), None, "trend.no_token", 3),
        ((0,), None, "trend.no_token", 1),
    ],
)
def test_where_no_token_counts_nothing_is_defined(shape, mask, code, empty):
    gap = rollout_gap(np.zeros(shape), np.zeros(shape), mask)
    assert gap.metrics == {NON_FINITE: 0.0}
    assert set(undefined(gap).values()) == {code}
    assert (gap.tokens, gap.sequences, gap.empty) == (0, 0, empty)


def test_where_no_token_is_finite_that_is_the_reason():
    gap = rollout_gap(np.full((2, 2), np.nan), np.zeros((2, 2)))
    assert gap.metrics == {NON_FINITE: 4.0}
    assert set(undefined(gap).values()) == {"trend.no_finite_token"}


def test_further_dimensions_are_further_sequences():
    rollout, training, mask = a_batch(5)
    stacked = rollout_gap(*(np.stack([of, of]) for of in (rollout, training, mask)))
    joined = rollout_gap(*(np.concatenate([of, of]) for of in (rollout, training, mask)))
    assert stacked == joined


@pytest.mark.parametrize("shapes", [((2, 3), (3, 2), None), ((2, 3), (2, 3), (2,)), ((), (), None)])
def test_shapes_that_differ_are_named(shapes):
    arrays = [None if shape is None else np.zeros(shape) for shape in shapes]
    with pytest.raises(UsageError, match=r"expected one shape \[\.\.\., tokens\]"):
        rollout_gap(*arrays)


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_correlation_of_any_magnitude(scale):
    x, y = np.random.default_rng(1).normal(size=(2, 50))
    found = pearson(x * scale, y)
    assert found == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert isinstance(pearson(x[:1], y[:1]), Message)
