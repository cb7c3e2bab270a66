"""What reinforcement learning derives from log-probabilities, masks and norms: plain numpy.

Every function takes arrays of one shape and returns a float64 number; NaN where nothing counts.
Sums run in float64, whatever the dtype that was recorded.
"""

from __future__ import annotations

import numpy as np

#: The clip range of PPO's paper, below and above 1, for trainers that do not say theirs.
CLIP_RANGE = (0.2, 0.2)


def mean(values: np.ndarray, mask: np.ndarray | None = None) -> float:
    """Return the mean of the elements that count; NaN where none does.

    Args:
        mask: which elements count, of the same shape; None: all.
    """
    counted = values if mask is None else values[np.asarray(mask) != 0]
    return float(counted.mean(dtype=np.float64)) if counted.size else float("nan")


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):  # −inf log-probabilities; the result says what came of them
        return np.subtract(a, b, dtype=np.float64)


def ratio(log_prob: np.ndarray, old_log_prob: np.ndarray, mask: np.ndarray | None = None) -> float:
    """Return the mean importance ratio π(a|s) / π_old(a|s) = exp(log_prob − old_log_prob).

    Schulman et al., Proximal Policy Optimization Algorithms, 2017, arXiv:1707.06347, section 3.

    Args:
        log_prob, old_log_prob: natural logarithms, by token, of one shape.
        mask: which tokens count, of the same shape; None: all.
    """
    with np.errstate(all="ignore"):
        return mean(np.exp(_difference(log_prob, old_log_prob)), mask)


def clip_fraction(
    log_prob: np.ndarray,
    old_log_prob: np.ndarray,
    mask: np.ndarray | None = None,
    clip_range: tuple[float, float] = CLIP_RANGE,
) -> float:
    """Return the share of tokens whose ratio is below 1 − ε_low or above 1 + ε_high: 0 to 1.

    The range of arXiv:1707.06347, equation 7; the share as OpenAI Baselines' ppo2 logs it
    (`clipfrac`). A token whose ratio is NaN is not counted as clipped.

    Args:
        log_prob, old_log_prob, mask: as for `ratio`.
        clip_range: ε_low and ε_high; they differ where a trainer clips higher (Yu et al., DAPO,
            2025, arXiv:2503.14476).
    """
    with np.errstate(all="ignore"):
        return clipped_share(np.exp(_difference(log_prob, old_log_prob)), mask, clip_range)


def clipped_share(
    ratios: np.ndarray, mask: np.ndarray | None = None, clip_range: tuple[float, float] = CLIP_RANGE
) -> float:
    """Return what `clip_fraction` does, of ratios by token."""
    beyond = np.asarray(ratios, np.float64) - 1
    clipped = (beyond < -clip_range[0]) | (beyond > clip_range[1])
    return mean(clipped.astype(np.float64), mask)


def kl_k1(log_prob: np.ndarray, ref_log_prob: np.ndarray, mask: np.ndarray | None = None) -> float:
    """Return the estimate k1 = −log r of KL(π ‖ π_ref), r = π_ref / π: unbiased, may be negative.

    J. Schulman, Approximating KL Divergence, 2020, http://joschu.net/blog/kl-approx.html. In nats
    a token, over tokens that π sampled.

    Args:
        log_prob, ref_log_prob: natural logarithms, by token, of one shape.
        mask: which tokens count, of the same shape; None: all.
    """
    with np.errstate(all="ignore"):
        return mean(_difference(log_prob, ref_log_prob), mask)


def kl_k3(log_prob: np.ndarray, ref_log_prob: np.ndarray, mask: np.ndarray | None = None) -> float:
    """Return the estimate k3 = (r − 1) − log r of KL(π ‖ π_ref), r = π_ref / π: never negative.

    J. Schulman, Approximating KL Divergence, 2020, http://joschu.net/blog/kl-approx.html; GRPO's
    KL term (Shao et al., DeepSeekMath, 2024, arXiv:2402.03300, equation 4). In nats a token.

    Args:
        log_prob, ref_log_prob, mask: as for `kl_k1`.
    """
    with np.errstate(all="ignore"):
        log_r = _difference(ref_log_prob, log_prob)
        k3 = np.where(np.isposinf(log_r), np.inf, np.expm1(log_r) - log_r)
        return mean(k3, mask)


def kl_of_ratios(ratios: np.ndarray, mask: np.ndarray | None = None) -> float:
    """Return `kl_k3` of KL(π_old ‖ π) of ratios r = π / π_old by token: (r − 1) − log r.

    Args:
        ratios: by token.
        mask: which tokens count, of the same shape; None: all.
    """
    with np.errstate(all="ignore"):
        held = np.asarray(ratios, np.float64)
        return mean(held - 1 - np.log(held), mask)


def response_length(mask: np.ndarray) -> float:
    """Return the mean number of tokens of a response.

    Args:
        mask: [..., tokens], not zero where a token of the response counts.
    """
    counts = np.count_nonzero(np.asarray(mask), axis=-1) if np.ndim(mask) else np.array([])
    return float(np.mean(counts)) if counts.size else float("nan")


def joint_norm(norms: np.ndarray | list[float]) -> float:
    """Return the L2 norm of several tensors together, of the norm of each: √Σ‖xᵢ‖².

    What clipping by global norm computes: Pascanu et al., 2013, arXiv:1211.5063.
    """
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.sum(np.square(np.asarray(norms, np.float64)))))


def squared_distance(a: np.ndarray, b: np.ndarray, block: int = 1 << 20) -> float:
    """Return ‖a − b‖² of two tensors of one shape, in float64, block by block."""
    flat, other = a.reshape(-1), b.reshape(-1)
    total = 0.0
    for start in range(0, flat.size, block):
        d = _difference(flat[start : start + block], other[start : start + block])
        total += float(np.dot(d, d))
    return total


def cosine(a: np.ndarray, b: np.ndarray, block: int = 1 << 20) -> float:
    """Return a·b / (‖a‖ ‖b‖) of two tensors of one size, in float64, block by block: −1 to 1.

    1 if both are zero everywhere, 0 if one is, NaN if one is not finite.
    """
    flat, other = a.reshape(-1), b.reshape(-1)
    dot = of_a = of_b = 0.0
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, block):
            x = flat[start : start + block].astype(np.float64)
            y = other[start : start + block].astype(np.float64)
            dot, of_a, of_b = dot + float(x @ y), of_a + float(x @ x), of_b + float(y @ y)
        if of_a == 0 or of_b == 0:
            return float(of_a == of_b)
        found = dot / np.sqrt(of_a) / np.sqrt(of_b)
    return float(np.clip(found, -1, 1))
