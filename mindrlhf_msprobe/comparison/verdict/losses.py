"""What of an update is not of its network: its loss, how a number is made of its tokens, its lr."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mindrlhf_msprobe import phases
from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.rules import rule
from mindrlhf_msprobe.comparison.pairing.timeline import DATA
from mindrlhf_msprobe.comparison.verdict.first_difference import (
    FirstDifference,
    event,
    key,
    of_saves,
    status,
)
from mindrlhf_msprobe.findings import Culprit, CulpritCode, Status
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import Record

if TYPE_CHECKING:
    from mindrlhf_msprobe.sequences.batch import Sequences

#: What a loss makes of what it is given and of the policy's log-probabilities alone.
_OF_LOSS = ("ratio", "kl", "kl_loss", "actor_loss")
_MADE_BEFORE = (*phases.LOG_PROB, "entropy", "ratio", "kl", "kl_loss", "actor_loss")
#: Numbers that are made of the tokens' log-probabilities; of a critic's, others.
_NUMBERS = ("kl_loss", "actor_loss", "loss")
#: What a loss is the sum of, each with a coefficient.
_PARTS = ("actor_loss", "kl_loss", "entropy")
#: What a loss may be given, in the words of messages; what it is set to stands in none of them.
_NAMED = {"masks": phases.MASK, "advantages": ("advantages",)}
_GIVEN = (
    phases.LOSS_INPUTS,
    *_NAMED["advantages"],
    *phases.MASK,
    *phases.OLD_LOG_PROB,
    *phases.REF_LOG_PROB,
)
_OF_CRITIC = ("value_loss", "critic_loss")


_OTHER = status(Status.DIFFERENT, Status.NON_FINITE, Status.SHAPE_MISMATCH)


@rule(_OTHER, event(DATA), key(phases.SET_KEYS))
def schedule(first: FirstDifference) -> Culprit | None:
    """Return that a key was set for the update; the details: `phase`."""
    phase = first.event.phase
    return None if phase is None else Culprit(CulpritCode.SCHEDULE, {"phase": phase})


@rule(_OTHER, event(DATA), key(_NUMBERS))
def aggregation(first: FirstDifference) -> Culprit | None:
    """Return that another number was made of tokens that agree bit for bit.

    They agree in its micro-step. The details: `key`, `agree` (the keys of these), `inputs` (whether
    what the loss is given was recorded, and agrees), what else it may be given: `given` (the keys
    that agree bit for bit), `unlike` (those that do not) and `missing` (what was not saved), what
    `means_of` tells, and `parts`: the numbers that a loss is the sum of, where these agree.
    """
    phase, number, statuses = first.event.phase, first.finding.key, _statuses(first)
    agree = [one for one in _MADE_BEFORE if statuses.get(one) and _identical(statuses[one])]
    if phase is None or not {*phases.LOG_PROB} & {*agree}:
        return None
    if any(math.prod(record.leaf.shape or ()) != 1 for record in first.both):
        return None
    # A loss may have the critic's in it: that must agree where there is a critic.
    critics = [found for name in _OF_CRITIC for found in statuses.get(name, [])]
    has_critic = number == "loss" and any("values" in run.keys for run in first.runs)
    if not _identical(critics) or (has_critic and not critics):
        return None
    inputs = statuses.get(phases.LOSS_INPUTS, [])
    known: dict[str, Any] = {"phase": phase, "key": number, "agree": agree}
    known["inputs"] = bool(inputs) and _identical(inputs)
    # What is known of that which a loss may be given beside the policy's values.
    whole = _statuses(first, all_micro_steps=True)
    saved = [name for name in _GIVEN if whole.get(name)]
    known["given"] = [name for name in saved if _identical(whole[name])]
    known["unlike"] = [name for name in saved if name not in known["given"]]
    unsaved = {} if phases.LOSS_INPUTS in saved else _NAMED
    known["missing"] = [name for name, keys in unsaved.items() if not {*keys} & {*saved}]
    if number == "loss" and "actor_loss" in agree:
        known["parts"] = [part for part in _PARTS if part in agree]
        if known["parts"] == [*_PARTS[:2]]:
            known |= _coefficients(first)
        return Culprit(CulpritCode.AGGREGATION, known)
    return Culprit(CulpritCode.AGGREGATION, known | means_of(first))


@rule(_OTHER, event(DATA), key(_OF_LOSS))
def loss(first: FirstDifference) -> Culprit | None:
    """Return that the loss made another key of what it was given and of log_prob.

    Both agree bit for bit; the details: `phase`, and `agree`, how many records these are.
    """
    phase, statuses = first.event.phase, _statuses(first)
    inputs = statuses.get(phases.LOSS_INPUTS, [])
    log_probs = [found for name in phases.LOG_PROB for found in statuses.get(name, [])]
    made_of = [*inputs, *log_probs]
    if phase is None or not (inputs and log_probs and _identical(made_of)):
        return None
    return Culprit(CulpritCode.LOSS, {"phase": phase, "agree": len(made_of)})


def _coefficients(first: FirstDifference) -> dict[str, Any]:
    """Return run → with what it multiplies kl_loss, as its loss says where actor_loss is added."""
    saves = of_saves(first.pairs, micro_step=first.event.micro_step)
    pairs = {pair.event.name: pair for pair, _ in saves}
    found = {}
    for side in "ab":
        records = [getattr(pairs[name], side) for name in (*_PARTS[:2], "loss")]
        actor, kl, loss = map(number_of, records)
        if not (actor is not None and kl and loss is not None and math.isfinite(loss / kl)):
            return {}
        found[side.upper()] = (loss - actor) / kl
    return {"coefficients": found}


def _identical(statuses: list[Status]) -> bool:
    return all(found is Status.IDENTICAL for found in statuses)


def _statuses(first: FirstDifference, *, all_micro_steps: bool = False) -> dict[str, list[Status]]:
    """Return what was found of each key in the micro-step of the first difference."""
    found: dict[str, list[Status]] = {}
    micro_step = None if all_micro_steps else first.event.micro_step
    for pair, finding in of_saves(first.pairs, micro_step=micro_step):
        if finding is not None:
            found.setdefault(pair.event.name, []).append(finding.status)
    return found


# Over what a run takes the mean of the tokens of an update, to make one number of them. It is said
# only where the masks are at hand, and both values of the number follow from it.

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
    from mindrlhf_msprobe.sequences.step_data import Unavailable  # much is loaded for it

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
    from mindrlhf_msprobe.sequences.batch import Sequences
    from mindrlhf_msprobe.sequences.step_data import StepData, array_of
    from mindrlhf_msprobe.trends.derived import other_rows

    run, at = first.runs[0], (first.finding.step, first.finding.rank)
    sequences = Sequences(StepData.at(run, *at))

    def save_of(*names: str) -> KeyDatum | None:
        saves = sequences.data.saved(names)
        return next((d for d in saves if d.micro_step == first.event.micro_step), None)

    datum, saves = save_of(*phases.LOG_PROB), sequences.data.saved(phases.LOG_PROB)
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
    reference = None if "kl" in held else other_rows(sequences, datum, saves, phases.REF_LOG_PROB)
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
    from mindrlhf_msprobe.sequences.step_data import array_of
    from mindrlhf_msprobe.trends.formulas import CLIP_RANGE

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
