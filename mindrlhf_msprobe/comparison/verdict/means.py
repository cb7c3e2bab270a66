"""Over what a run takes the mean of the tokens of an update, to make one number of them.

It is said only where the masks are at hand, and both values of the number follow from it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference
from mindrlhf_msprobe.phases import LOG_PROB, REF_LOG_PROB
from mindrlhf_msprobe.sequences.batch import Sequences
from mindrlhf_msprobe.sequences.step_data import StepData, Unavailable, array_of
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import Record
from mindrlhf_msprobe.trends.derived import other_rows
from mindrlhf_msprobe.trends.formulas import CLIP_RANGE

_MEANS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "tokens": lambda values, mask: float(values[mask].mean()),
    "sequences": lambda values, mask: float(
        np.mean([row[counts].mean() for row, counts in zip(values, mask) if counts.any()])
    ),
    "places": lambda values, mask: float(values.mean()),
}
_CLOSE = 1e-5  # of the size of the tokens' values: float32 sums of them are nearer
_APART = 50  # times as far must two means be apart to be told, and each from 0
_MOST_KL = 10.0  # by which a loss may multiply its KL
_MOST_FACTOR = 1e3  # beyond it, one of the two values is next to nothing


@dataclass(frozen=True)
class _Tokens:
    """What the tokens of an update hold in A, [samples, tokens]; `mask` says which count.

    Attributes:
        policy: the objective, without and with clipping; empty where it is not known.
        kl: by token; None where it is not known.
        kl_loss: the number made of it; None where it was not saved.
    """

    mask: np.ndarray
    policy: tuple[np.ndarray, ...]
    kl: np.ndarray | None
    kl_loss: float | None

    @property
    def size(self) -> float:
        """How large the values of the tokens are; 0 where none are known."""
        values = [*self.policy, *([] if self.kl is None else [self.kl])]
        return max((float(np.abs(of[self.mask]).mean()) for of in values), default=0.0)


def means_of(first: FirstDifference) -> dict[str, Any]:
    """Return what tells how each run makes the number of its tokens, as far as it is known.

    `means`: run → over what it takes the mean, where that alone gives both values;
    `possible_means`: run → over what it may, where several give the value, or it is 0, which
    proves nothing; then `zero` are the runs whose value is 0 but for rounding. `factor`: B's value
    to A's; `counts`: the two numbers, each (what is counted, how many), that the factor is
    the quotient of.
    """
    a, b = number_of(first.pair.a), number_of(first.pair.b)
    if a is None or b is None or not (math.isfinite(a) and math.isfinite(b)):
        return {}
    try:
        tokens = _tokens_of(first)
    except (Unavailable, ArrayFileError, OSError, ValueError, TypeError):
        tokens = None
    least = 0.0 if tokens is None else _APART * _CLOSE * tokens.size
    zero = [side for side, value in (("A", a), ("B", b)) if abs(value) <= least]
    known: dict[str, Any] = {"zero": zero} if zero else {}
    if not zero and 1 / _MOST_FACTOR < abs(b / a) < _MOST_FACTOR:
        known["factor"] = b / a
    if tokens is None:
        return known
    counts = tokens.mask.sum(axis=1)
    # Whether a mean is that over tokens, whatever their values.
    same = {"sequences": len({*counts[counts > 0].tolist()}) == 1, "places": tokens.mask.all()}
    kinds = [name for name in _MEANS if not same.get(name)]
    found = {
        names
        for names in itertools.permutations(kinds, 2)
        if any(_explains(made, (a, b)) for made in _made(first, tokens, names))
    }
    if len(found) == 1 and not zero:
        return known | {"means": dict(zip("AB", found.pop()))}
    possible = [[kind for kind in kinds if kind in names] for names in zip(*found)]
    if found and not {*possible[0]} & {*possible[1]}:
        return known | {"possible_means": dict(zip("AB", possible))}
    return known | (_counts(known["factor"], tokens.mask) if "factor" in known else {})


def _counts(factor: float, mask: np.ndarray) -> dict[str, Any]:
    """Return the two numbers of the batch whose quotient a factor is, if it is that of one pair."""
    numbers = {
        "one": 1,
        "samples": int(mask.any(axis=1).sum()),
        "tokens": int(mask.sum()),
        "places": mask.size,
    }
    pairs = {
        (numbers[over], numbers[under]): [(over, numbers[over]), (under, numbers[under])]
        for over, under in itertools.permutations(numbers, 2)
        if numbers[over] != numbers[under]
        and abs(factor - numbers[over] / numbers[under]) <= _CLOSE * abs(factor)
    }
    return {"counts": pairs.popitem()[1]} if len(pairs) == 1 else {}


#: What two means give: of the objective, of the KL beside it, and the size of the values.
_Made = tuple[tuple[float, float], tuple[float, float], float]


def _made(first: FirstDifference, tokens: _Tokens, names: tuple[str, str]) -> Iterator[_Made]:
    """Yield what may have become of the tokens where A takes one mean and B the other."""

    def both(values: np.ndarray) -> tuple[float, float]:
        a, b = (_MEANS[name](values, tokens.mask) for name in names)
        return a, b

    if first.finding.key == "kl_loss":
        if tokens.kl is not None:
            yield both(tokens.kl), (0.0, 0.0), float(np.abs(tokens.kl[tokens.mask]).mean())
        return
    for policy in tokens.policy:
        size = float(np.abs(policy[tokens.mask]).mean())
        yield both(policy), (0.0, 0.0), size
        if first.finding.key == "loss" and tokens.kl is not None:
            yield both(policy), both(tokens.kl), size
        if first.finding.key == "loss" and tokens.kl_loss:
            yield both(policy), (tokens.kl_loss, tokens.kl_loss), size


def _explains(made: _Made, values: tuple[float, float]) -> bool:
    """Return whether both values follow, with a coefficient of the KL that A's value tells."""
    policy, kl, size = made
    error = _CLOSE * (size + max(map(abs, values)))
    coefficient = (values[0] - policy[0]) / kl[0] if kl[0] else 0.0
    if not 0 <= coefficient <= _MOST_KL:
        return False
    found = [p + coefficient * k for p, k in zip(policy, kl)]
    near = all(abs(one - value) <= error for one, value in zip(found, values))
    return near and abs(values[0] - values[1]) > _APART * error


def number_of(record: Record | None) -> float | None:
    """Return the number that a record holds; None of anything else."""
    if record is None:
        return None
    try:
        value = record.array().reshape(-1)[0] if record.leaf.is_tensor else record.leaf.value
        return float(value)
    except (ArrayFileError, OSError, ValueError, TypeError):
        return None


def _tokens_of(first: FirstDifference) -> _Tokens | None:
    """Return what the tokens of the micro-step hold; None where it is not known which count.

    Raises:
        Unavailable: something cannot be read.
    """
    run, at = first.runs[0], (first.finding.step, first.finding.rank)
    sequences = Sequences(StepData.at(run, *at))

    def save_of(*names: str) -> KeyDatum | None:
        saves = sequences.data.saved(names)
        return next((d for d in saves if d.micro_step == first.event.micro_step), None)

    datum, saves = save_of(*LOG_PROB), sequences.data.saved(LOG_PROB)
    array = None if datum is None else array_of(datum)
    if datum is None or array is None or array.ndim != 2:
        return None
    old = sequences.old_rows.of(datum, saves)
    counted = (old and old.counted) or sequences.counted(datum, array, saves)
    if counted is None or not counted.mask.any():
        return None
    saved = {key: array_of(d) for key in ("ratio", "kl") if (d := save_of(key)) is not None}
    held = {key: a.astype(np.float64) for key, a in saved.items() if a.shape == array.shape}
    if "ratio" not in held and old is not None:
        held["ratio"] = np.exp(old.own.astype(np.float64) - old.other)
    reference = None if "kl" in held else other_rows(sequences, datum, saves, REF_LOG_PROB)
    if reference is not None:  # as GRPO estimates it; another one does not give both values
        apart = reference.other.astype(np.float64) - reference.own
        held["kl"] = np.exp(apart) - 1 - apart
    kl_loss = save_of("kl_loss")
    number = None if kl_loss is None else number_of(kl_loss.records[0])
    policy: tuple[np.ndarray, ...] = ()
    if "ratio" in held:
        rows = None if old is None else old.rows
        policy = tuple(_objectives(sequences, first.event.micro_step, held["ratio"], rows))
    return _Tokens(counted.mask, policy, held.get("kl"), number)


def _objectives(
    sequences: Sequences, micro_step: int, ratio: np.ndarray, rows: Sequence[int] | None
) -> Iterator[np.ndarray]:
    """Yield the negated objective of each token, as PPO and GRPO have it: unclipped and clipped.

    Args:
        rows: which rows of the batch they are, where that was found by their values.
    """
    advantages = sequences.data.given_to_loss(("advantages",), micro_step)
    if advantages is None:
        saves = sequences.data.saved(("advantages",))
        advantages = array_of(saves[0]) if len(saves) == 1 else None
        if advantages is not None and rows is not None:
            advantages = advantages[list(rows)]
    if advantages is None or not advantages.ndim or len(advantages) != len(ratio):
        return
    gain = advantages.astype(np.float64).reshape(len(ratio), -1)
    if gain.shape[1] not in (1, ratio.shape[1]):
        return
    yield -ratio * gain
    low, high = sequences.data.settings.clip_range or CLIP_RANGE
    yield -np.minimum(ratio * gain, np.clip(ratio, 1 - low, 1 + high) * gain)
