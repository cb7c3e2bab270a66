"""How far the policy that generated is from the one that trains: by token and by sequence.

Both hold the same weights and give the same sampled tokens other log-probabilities. The metrics
have verl's names, formulas and direction:

- `compute_offpolicy_metrics` in verl/trainer/ppo/rollout_corr_helper.py (`rollout_corr/…`) and
- `calculate_debug_metrics` in verl/utils/debug/metrics.py (`training/rollout_…`), of
  https://github.com/verl-project/verl at 1dda039 (August 2026).

verl has no name for the differences of log-probabilities by token, for the share of ratios outside
the clip range, and for tokens that are not finite: theirs are of this module, below
`rollout_corr/`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.phases import ROLLOUT_CORR, ROLLOUT_LOG_PROB
from mindrlhf_msprobe.sequences.batch import Sequences
from mindrlhf_msprobe.sequences.log_probs import KEYS_READ, RolloutRows, rollout_rows
from mindrlhf_msprobe.sequences.step_data import Unavailable
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.reading.series import Gathered, Missing
from mindrlhf_msprobe.trends.formulas import CLIP_RANGE

#: Before exp, verl limits the log-ratios of χ² to ±20 nats: a ratio of 5e8.
SAFETY_BOUND = 20.0

_P = "rollout_corr/"
_T = "training/"
KL, K3_KL = f"{_P}kl", f"{_P}k3_kl"
DIFF_MEAN, DIFF_MAX = f"{_P}log_prob_diff_mean", f"{_P}log_prob_diff_max"
DIFF_P99 = f"{_P}log_prob_diff_p99"
LOG_PEARSON = f"{_P}log_prob_pearson_corr"
OUTSIDE, NON_FINITE = f"{_P}ratio_fraction_outside", f"{_P}non_finite_tokens"
PPL_RATIO = f"{_P}ppl_ratio"
CHI2_TOKEN, CHI2_SEQ = f"{_P}chi2_token", f"{_P}chi2_seq"
PROBS_MEAN, PROBS_MAX = f"{_T}rollout_probs_diff_mean", f"{_T}rollout_probs_diff_max"
PROBS_STD = f"{_T}rollout_probs_diff_std"
PROBS_PEARSON = f"{_T}rollout_actor_probs_pearson_corr"

#: Every metric, in the order in which they are shown.
METRICS = (
    *(DIFF_MEAN, DIFF_P99, DIFF_MAX, KL, K3_KL, PPL_RATIO, CHI2_TOKEN, CHI2_SEQ, OUTSIDE),
    *(LOG_PEARSON, NON_FINITE),
    *(f"{_P}training_ppl", f"{_P}training_log_ppl", f"{_P}rollout_ppl", f"{_P}rollout_log_ppl"),
    *(f"{_P}log_ppl_diff", f"{_P}log_ppl_abs_diff"),
    *(f"{_P}log_ppl_diff_max", f"{_P}log_ppl_diff_min"),
    *(PROBS_MEAN, PROBS_MAX, PROBS_STD, PROBS_PEARSON),
)


@dataclass(frozen=True)
class RolloutGap:
    """What the log-probabilities of both policies say about the tokens that were sampled.

    Attributes:
        metrics: name → number, in the order of `METRICS`; without those that are undefined.
        undefined: name → why.
        tokens: how many tokens count and have two finite log-probabilities.
        non_finite: how many count and have not; every metric leaves them out.
        sequences: how many sequences have such tokens.
        empty: how many have no token that counts: empty responses, fully masked rows. They are in
            no mean; verl takes each for a sequence of perplexity 1.
    """

    metrics: Mapping[str, float]
    undefined: Mapping[str, Message]
    tokens: int
    non_finite: int
    sequences: int
    empty: int


def rollout_gaps(sequences: Sequences) -> list[tuple[RolloutRows, RolloutGap, tuple[Message, ...]]]:
    """Return how far the policies are apart in each save of a step and rank, and on what it rests.

    The clip range is the trainer's where its configuration names one, else that of PPO's paper.

    Raises:
        Unavailable: as `rollout_rows`; or a save has no dimension.
    """
    clip_range = sequences.data.settings.clip_range or CLIP_RANGE
    found = []
    for rows in rollout_rows(sequences):
        if not rows.rollout.ndim:
            raise Unavailable(message("trend.no_one_tensor", key=rows.datum.key))
        gap = rollout_gap(rows.rollout, rows.training, rows.mask, clip_range)
        left_out = [message("trend.non_finite_left_out")] if gap.non_finite else []
        found.append((rows, gap, (*rows.notes, *left_out)))
    return found


def rollout_gap(
    rollout_log_prob: np.ndarray,
    training_log_prob: np.ndarray,
    mask: np.ndarray | None = None,
    clip_range: tuple[float, float] = CLIP_RANGE,
) -> RolloutGap:
    """Compare the log-probabilities of sampled tokens, of the rollout and of the training network.

    With r and t of one token (nats), d = t − r and ρ = exp(d) = π_training / π_rollout; ⟨·⟩ over
    all tokens that count, ⟨·⟩ₛ over sequences, of which r̄ and t̄ are means over their tokens:

    - `log_prob_diff_mean`, `_max`, `_p99`: of |d|; p99 interpolates linearly between tokens.
    - `kl` = ⟨r − t⟩, `k3_kl` = ⟨ρ − 1 − d⟩: k1 and k3 of KL(π_rollout ‖ π_training); J. Schulman,
      Approximating KL Divergence, 2020, http://joschu.net/blog/kl-approx.html.
    - `training_ppl` = ⟨exp(−t̄)⟩ₛ, `training_log_ppl` = ⟨−t̄⟩ₛ; `rollout_…` of r̄.
    - `log_ppl_diff` = ⟨r̄ − t̄⟩ₛ, `_abs_diff` of |r̄ − t̄|, `_diff_max`, `_diff_min`;
      `ppl_ratio` = ⟨exp(r̄ − t̄)⟩ₛ: above 1 the training network is the less certain one.
    - `chi2_token` = ⟨ρ²⟩ − 1, `chi2_seq` = ⟨(Π ρ)²⟩ₛ − 1: χ²(π_training ‖ π_rollout); d, and its
      sum over a sequence, are limited to ±20 before, as verl does.
    - `ratio_fraction_outside`: the share of tokens with ρ below 1 − ε_low or above 1 + ε_high.
    - `log_prob_pearson_corr` of r and t; `non_finite_tokens`: how many tokens are left out.
    - `training/rollout_probs_diff_mean`, `_max`, `_std`: of |exp(t) − exp(r)|, the deviation with
      n − 1; `training/rollout_actor_probs_pearson_corr` of the probabilities (MiniMax-M1, 2025,
      arXiv:2506.13585).

    Sums run in float64. Only what exceeds it becomes infinite: `k3_kl` where d is above 709.

    Args:
        rollout_log_prob, training_log_prob: natural logarithms, any float dtype, of one shape
            [..., tokens]: a sequence a row; of one dimension, one sequence.
        mask: which tokens count (not 0), of the same shape; None: all.
        clip_range: ε_low and ε_high of `ratio_fraction_outside`.

    Raises:
        UsageError: the shapes differ, or the arrays have no dimension.
    """
    given = {"rollout": rollout_log_prob, "training": training_log_prob, "mask": mask}
    shapes = {name: list(np.shape(a)) for name, a in given.items() if a is not None}
    if len({*map(tuple, shapes.values())}) > 1 or [] in shapes.values():
        raise UsageError.saying("trend.shapes_apart", **{"mask": None, **shapes})
    rollout, training = (_rows(a, np.float64) for a in (rollout_log_prob, training_log_prob))
    counts = np.ones(rollout.shape, bool) if mask is None else _rows(np.asarray(mask) != 0, bool)
    finite = np.isfinite(rollout) & np.isfinite(training)
    held = counts & finite
    sizes = {
        "tokens": int(held.sum()),
        "non_finite": int((counts & ~finite).sum()),
        "sequences": int(held.any(axis=1).sum()),
        "empty": int((~counts.any(axis=1)).sum()),
    }
    metrics = {NON_FINITE: float(sizes["non_finite"])}
    undefined: dict[str, Message] = {}
    if sizes["tokens"]:
        with np.errstate(all="ignore"):  # what exceeds float64 becomes infinite
            metrics |= _of_tokens(rollout[held], training[held], clip_range, undefined)
            metrics |= _of_sequences(rollout, training, held)
    else:
        why = message("trend.no_finite_token" if sizes["non_finite"] else "trend.no_token")
        undefined = {name: why for name in METRICS if name != NON_FINITE}
    ordered = {name: metrics[name] for name in METRICS if name in metrics}
    return RolloutGap(ordered, undefined, **sizes)


def _rows(array: np.ndarray, dtype: type) -> np.ndarray:
    """Return an array as [sequences, tokens]."""
    held: np.ndarray = np.asarray(array, dtype)
    return held.reshape(math.prod(held.shape[:-1]), held.shape[-1])


def _of_tokens(
    rollout: np.ndarray,
    training: np.ndarray,
    clip_range: tuple[float, float],
    undefined: dict[str, Message],
) -> dict[str, float]:
    """Return what is computed of all tokens together, whichever sequence they are of; [tokens]."""
    log_ratio = training - rollout
    beyond = np.expm1(log_ratio)  # ρ − 1
    k3 = np.where(np.isposinf(beyond), np.inf, beyond - log_ratio)
    found = {
        KL: (rollout - training).mean(),
        K3_KL: k3.mean(),
        OUTSIDE: ((beyond < -clip_range[0]) | (beyond > clip_range[1])).mean(),
    }
    del beyond, k3
    limited = np.clip(log_ratio, -SAFETY_BOUND, SAFETY_BOUND)
    found[CHI2_TOKEN] = np.expm1(2 * limited).mean()
    del limited
    off = np.abs(log_ratio, out=log_ratio)
    found |= {DIFF_MEAN: off.mean(), DIFF_MAX: off.max(), DIFF_P99: np.percentile(off, 99)}
    del log_ratio, off
    probabilities = np.exp(rollout), np.exp(training)
    for name, both in ((LOG_PEARSON, (rollout, training)), (PROBS_PEARSON, probabilities)):
        correlation = pearson(*both)
        if isinstance(correlation, Message):
            undefined[name] = correlation
        else:
            found[name] = correlation
    apart = np.abs(probabilities[1] - probabilities[0])
    found |= {PROBS_MEAN: apart.mean(), PROBS_MAX: apart.max()}
    if len(apart) > 1:
        found[PROBS_STD] = apart.std(ddof=1)
    else:
        undefined[PROBS_STD] = message("trend.one_token")
    return {name: float(value) for name, value in found.items()}


def _of_sequences(rollout: np.ndarray, training: np.ndarray, held: np.ndarray) -> dict[str, float]:
    kept = held.any(axis=1)
    rows = held[kept]
    lengths = rows.sum(axis=1)
    sums = [np.where(rows, of[kept], 0.0).sum(axis=1) for of in (rollout, training)]
    of_rollout, of_training = (total / lengths for total in sums)
    apart = of_rollout - of_training
    whole = np.where(rows, training[kept] - rollout[kept], 0.0).sum(axis=1)
    limited = np.clip(whole, -SAFETY_BOUND, SAFETY_BOUND)
    found = {
        "training_ppl": np.exp(-of_training).mean(),
        "training_log_ppl": -of_training.mean(),
        "rollout_ppl": np.exp(-of_rollout).mean(),
        "rollout_log_ppl": -of_rollout.mean(),
        "log_ppl_diff": apart.mean(),
        "log_ppl_abs_diff": np.abs(apart).mean(),
        "log_ppl_diff_max": apart.max(),
        "log_ppl_diff_min": apart.min(),
        "ppl_ratio": np.exp(apart).mean(),
        "chi2_seq": np.expm1(2 * limited).mean(),
    }
    return {f"{_P}{name}": float(value) for name, value in found.items()}


def pearson(a: np.ndarray, b: np.ndarray) -> float | Message:
    """Return Pearson's correlation of two float64 arrays [n], −1 to 1, or why it is undefined.

    It is for fewer than two elements, and where one of them has the same value everywhere.
    """
    if len(a) < 2:
        return message("trend.one_token")
    if (a == a[0]).all() or (b == b[0]).all():
        return message("trend.all_equal")
    x, y = a - a.mean(), b - b.mean()
    x, y = (of / np.abs(of).max() for of in (x, y))  # squares neither vanish nor overflow
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1, 1))


class RolloutMetrics:
    """Gathers the metrics that are wanted.

    Args:
        names: derived quantities that are wanted; `ROLLOUT_CORR`: every metric.
    """

    def __init__(self, names: Iterable[str]) -> None:
        wanted = set(names)
        self._whole = ROLLOUT_CORR in wanted
        self._names = [name for name in METRICS if self._whole or name in wanted]
        self._why: Message | None = None
        self._undefined: dict[str, Message] = {}
        self._found: set[str] = set()

    @property
    def wanted(self) -> bool:
        """Whether any metric is."""
        return bool(self._names)

    def keys(self, there: Iterable[str]) -> set[str]:
        """Return which of the keys of a place are needed."""
        held = KEYS_READ.intersection(there) if self._names else frozenset[str]()
        return set(held) if held.intersection(ROLLOUT_LOG_PROB) else set()

    def read(self, sequences: Sequences, at: StepPlace, found: Gathered) -> None:
        """Take the metrics of a (step, rank)."""
        if not self._names:
            return
        try:
            gaps = rollout_gaps(sequences)
        except Unavailable as error:
            self._why = self._why or error.said
            return
        clip_range = sequences.data.settings.clip_range
        low, high = clip_range or CLIP_RANGE
        said = "trend.usual_clip_range" if clip_range is None else "trend.clip_range"
        of_range = message(said, low=low, high=high)
        for rows, gap, notes in gaps:
            for name in self._names:
                if name in gap.metrics:
                    more = (of_range, *notes) if name == OUTSIDE else notes
                    where = (*at, rows.datum.micro_step)
                    found.add("derived", name, gap.metrics[name], where, notes=more)
                    self._found.add(name)
                else:
                    self._undefined.setdefault(name, gap.undefined[name])

    def missing(self, not_recorded: Message | None) -> list[Missing]:
        """Return what was wanted and found nowhere, with the reason.

        Args:
            not_recorded: why the run holds no log-probabilities of the rollout, as it says itself.
        """
        lacking = [name for name in self._names if name not in self._found]
        if not self._found and not self._undefined:
            why = not_recorded or self._why or message("trend.no_key", names=[ROLLOUT_LOG_PROB[0]])
            return [Missing(name, why) for name in ([ROLLOUT_CORR] if self._whole else lacking)]
        whys = {name: self._undefined[name] for name in lacking if name in self._undefined}
        if self._whole and self._found == {NON_FINITE}:  # no token that counts is finite
            return [Missing(ROLLOUT_CORR, why) for why in dict.fromkeys(whys.values())]
        return [Missing(name, why) for name, why in whys.items()]
