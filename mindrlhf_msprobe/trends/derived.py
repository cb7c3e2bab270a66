"""What is derived from the key data of one step: one small function a quantity.

A quantity that a run does not hold is missing with its reason, never guessed: values by token are
put together only where it is known which rows belong together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, SpokenError, message
from mindrlhf_msprobe.phases import LOSS_INPUTS
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.trends import formulas

#: What trainers call the same thing: as key data, and as an argument of their loss.
LOG_PROB = ("log_prob", "log_probs", "per_token_logps")
OLD_LOG_PROB = ("old_log_prob", "old_log_probs", "old_per_token_logps", "old_logps")
#: Those of the network that generated: of MindRLHF's vLLM, of verl and slime, TRL, ms-swift.
ROLLOUT_LOG_PROB = (
    *("rollout_log_prob", "rollout_log_probs", "sampling_per_token_logps"),
    *("rollout_per_token_logps", "rollout_logprobs", "rollout_logps"),
)
REF_LOG_PROB = ("ref_log_prob", "ref_log_probs", "ref_per_token_logps", "ref_logps")
MASK = ("response_mask", "responses_mask", "completion_mask", "loss_mask", "action_mask")
RESPONSES = ("responses", "response", "completions")

_CLIP_KEYS = frozenset(
    {
        *("clip_range", "cliprange", "clip_eps", "clip_epsilon", "eps_clip", "clip_ratio"),
        *("epsilon_clip", "epsilon"),
    }
)
_CLIP_LOW = frozenset({"epsilon_low", "clip_ratio_low", "eps_clip_low"})
_CLIP_HIGH = frozenset({"epsilon_high", "clip_ratio_high", "eps_clip_high"})
_PAD_KEYS = frozenset({"pad_token_id", "pad_id"})
_MOST_DISTANCES = 50_000_000  # differences of elements, for finding rows by their values
_NEARER = 0.01
_MOST_SETTINGS = 100_000  # values of configurations.json that are looked at


class Unavailable(SpokenError):
    """A quantity cannot be derived in a step; the message says why."""


@dataclass(frozen=True)
class Settings:
    """What the trainer's own configuration says that a quantity needs.

    Attributes:
        clip_range: ε_low and ε_high of the clipped objective; None where it does not say.
        pad: the token that fills a response up; None where it does not say.
    """

    clip_range: tuple[float, float] | None = None
    pad: int | None = None

    @classmethod
    def read(cls, configurations: Any) -> Settings:
        """Return what configurations.json says; of several values of one setting, none."""
        found = list(_settings(configurations))
        usual = _only(found, _CLIP_KEYS, _is_clip)
        low, high = _only(found, _CLIP_LOW, _is_clip), _only(found, _CLIP_HIGH, _is_clip)
        low, high = (usual if low is None else low), (usual if high is None else high)
        clip_range = None if low is None or high is None else (low, high)
        return cls(clip_range, _only(found, _PAD_KEYS, lambda value: type(value) is int))


def _is_clip(value: Any) -> bool:
    """Return whether a setting can be a clip range; an optimizer's `epsilon` is smaller."""
    return type(value) is float and 0.01 <= value < 10


def _only(
    settings: Iterable[tuple[str, Any]], names: Container[str], fits: Callable[[Any], bool]
) -> Any:
    """Return the one value that settings of these names have; None if there is not one."""
    found = {value for name, value in settings if name in names and fits(value)}
    return found.pop() if len(found) == 1 else None


def _settings(content: Any) -> Iterator[tuple[str, Any]]:
    waiting, seen = [content], 0
    while waiting and seen < _MOST_SETTINGS:
        item = waiting.pop()
        seen += 1
        if isinstance(item, dict):
            yield from ((str(name).lower(), value) for name, value in item.items())
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


#: One value: the micro-step it belongs to, the number, and what it rests on.
Value = tuple[int, float, tuple[Message, ...]]


class KeyPlace:
    """The key data of one step and rank.

    Args:
        saves: key → its saves, by micro-step.
    """

    def __init__(self, saves: Mapping[str, Sequence[KeyDatum]], settings: Settings) -> None:
        self.settings = settings
        self._saves = saves

    def saved(self, names: Sequence[str]) -> Sequence[KeyDatum]:
        """Return the saves of the first of these keys that there is, or nothing."""
        return next((self._saves[name] for name in names if name in self._saves), ())

    def given_to_loss(self, names: Sequence[str], micro_step: int) -> np.ndarray | None:
        """Return what the loss of an update was given under one of these names, or None."""
        for datum in self._saves.get(LOSS_INPUTS, ()):
            if datum.micro_step == micro_step:
                for record in datum.records:
                    if record.path in names and record.leaf.is_tensor:
                        with contextlib.suppress(ArrayFileError):
                            return record.array()
        return None


def array_of(datum: KeyDatum) -> np.ndarray:
    """Return the one tensor of a save.

    Raises:
        Unavailable: it holds none, several, or one that cannot be read.
    """
    if len(datum.records) != 1 or not datum.records[0].leaf.is_tensor:
        raise Unavailable(message("trend.no_one_tensor", key=datum.key))
    try:
        return datum.records[0].array()
    except ArrayFileError as error:
        why = message("trend.unread_key", key=datum.key, why=error.said)
        raise Unavailable(why) from None


def _beside(
    place: KeyPlace,
    datum: KeyDatum,
    array: np.ndarray,
    of: Sequence[KeyDatum],
    names: Sequence[str],
) -> np.ndarray | None:
    """Return what belongs to the same rows as one save, under one of `names`; None if unknown.

    It does where the loss of the same update was given it, or where as many saves of the same
    shapes were made of both.
    """
    given = place.given_to_loss(names, datum.micro_step)
    if given is not None and given.shape == array.shape:
        return given
    return saved_alike(place, datum, array, of, names)


def saved_alike(
    place: KeyPlace,
    datum: KeyDatum,
    array: np.ndarray,
    of: Sequence[KeyDatum],
    names: Sequence[str],
) -> np.ndarray | None:
    """Return what was saved under one of `names` as often as `of`, in a save's shape, or None."""
    others = place.saved(names)
    if len(others) != len(of):
        return None
    found = next((o for o in others if o.micro_step == datum.micro_step), None)
    other = None if found is None else array_of(found)
    return other if other is not None and other.shape == array.shape else None


def _rows_by_value(array: np.ndarray, whole: np.ndarray) -> np.ndarray | None:
    """Return the rows of a batch that those of a part of it are, found by their values.

    In the first update of a step the policy is still the old one: the log-probabilities of a row
    are those of one row of the batch, and far from those of all others. None where a row is not a
    hundred times nearer to one than to the next, or two are nearest to the same.
    """
    if array.ndim < 2 or array.shape[1:] != whole.shape[1:] or len(array) > len(whole):
        return None
    if array.size * len(whole) > _MOST_DISTANCES or not whole.size:
        return None
    rows, others = (np.asarray(a, np.float64).reshape(len(a), -1) for a in (array, whole))
    if not (np.isfinite(rows).all() and np.isfinite(others).all()):
        return None
    taken: list[int] = []
    for row in rows:
        distance = np.abs(others - row).sum(axis=1)
        nearest = int(distance.argmin())
        equal = (others == others[nearest]).all(axis=1)
        if distance[nearest] > _NEARER * distance[~equal].min(initial=np.inf):
            return None
        free = [n for n in np.flatnonzero(equal).tolist() if n not in taken]
        if not free:
            return None
        taken.append(free[0])
    return whole[taken]


def _old_rows(
    place: KeyPlace, datum: KeyDatum, array: np.ndarray, of: Sequence[KeyDatum]
) -> tuple[np.ndarray | None, bool]:
    """Return the old log-probabilities of a save's rows, and whether they were found by value."""
    given = place.given_to_loss(OLD_LOG_PROB, datum.micro_step)
    if given is not None and given.shape == array.shape:
        return given, False
    others = place.saved(OLD_LOG_PROB)
    beside = _beside(place, datum, array, of, OLD_LOG_PROB)
    whole = beside if beside is not None else array_of(others[0]) if len(others) == 1 else None
    found = None if whole is None else _rows_by_value(array, whole)
    if found is None or (beside is not None and np.array_equal(found, beside)):
        return beside, False
    return found, True


def _by_token(
    place: KeyPlace,
    own: Sequence[str],
    other: Sequence[str],
    formula: Callable[..., float],
    **options: Any,
) -> list[Value]:
    """Return a formula of two log-probabilities for each save of the first whose rows are known."""
    first, second = place.saved(own), place.saved(other)
    if not first:
        raise Unavailable(message("trend.no_key", names=list(own[:1])))
    found: list[Value] = []
    array = np.empty(0)
    for datum in first:
        array, by_value = array_of(datum), False
        if other is OLD_LOG_PROB:
            beside, by_value = _old_rows(place, datum, array, first)
        else:
            beside = _beside(place, datum, array, first, other)
        if beside is None:
            continue
        mask = _beside(place, datum, array, first, MASK)
        notes = [message("trend.rows_by_value")] if by_value else []
        if mask is None and array.ndim:
            notes.append(message("trend.without_mask"))
        found.append((datum.micro_step, formula(array, beside, mask, **options), tuple(notes)))
    if not found and not second:
        raise Unavailable(message("trend.no_key", names=list(other[:1])))
    if not found:
        shapes = {"shape": list(array.shape), "other_shape": list(array_of(second[0]).shape)}
        counts = {"count": len(first), "other_count": len(second)}
        keys = {"key": first[0].key, "other": second[0].key}
        raise Unavailable(message("trend.rows_unknown", **keys, **counts, **shapes))
    return found


def _ratio(place: KeyPlace) -> list[Value]:
    return _by_token(place, LOG_PROB, OLD_LOG_PROB, formulas.ratio)


def _clip_fraction(place: KeyPlace) -> list[Value]:
    clip_range = place.settings.clip_range
    said = "trend.clip_range" if clip_range is not None else "trend.usual_clip_range"
    clip_range = formulas.CLIP_RANGE if clip_range is None else clip_range
    values = _by_token(place, LOG_PROB, OLD_LOG_PROB, formulas.clip_fraction, clip_range=clip_range)
    of = message(said, low=clip_range[0], high=clip_range[1])
    return [(at, value, (of, *notes)) for at, value, notes in values]


def _kl(formula: Callable[..., float]) -> Callable[[KeyPlace], list[Value]]:
    def kl(place: KeyPlace) -> list[Value]:
        """Of the log-probabilities in the update, else of those before it."""
        try:
            return _by_token(place, LOG_PROB, REF_LOG_PROB, formula)
        except Unavailable:
            if not place.saved(OLD_LOG_PROB):
                raise
        values = _by_token(place, OLD_LOG_PROB, REF_LOG_PROB, formula)
        of_old = message("trend.kl_of_old")
        return [(at, value, (of_old, *notes)) for at, value, notes in values]

    return kl


def _response_length(place: KeyPlace) -> list[Value]:
    masks: list[Value] = [
        (datum.micro_step, formulas.response_length(array_of(datum)), ())
        for datum in place.saved(MASK)
    ]
    found = masks or _from_loss_inputs(place) or [*_from_responses(place)]
    if not found:
        raise Unavailable(message("trend.no_key", names=[MASK[0], RESPONSES[0]]))
    return found


def _from_loss_inputs(place: KeyPlace) -> list[Value]:
    """Return the lengths that the masks say which the loss was given."""
    given = (
        (datum.micro_step, place.given_to_loss(MASK, datum.micro_step))
        for datum in place.saved((LOSS_INPUTS,))
    )
    note = (message("trend.length_of_loss"),)
    return [(at, formulas.response_length(mask), note) for at, mask in given if mask is not None]


def _from_responses(place: KeyPlace) -> Iterator[Value]:
    for datum in place.saved(RESPONSES):
        texts = [r.leaf.value for r in datum.records if r.leaf.type == "str"]
        pad = place.settings.pad
        if texts and len(texts) == len(datum.records):
            length = float(np.mean([len(str(text)) for text in texts]))
            yield datum.micro_step, length, (message("trend.in_characters"),)
        elif pad is not None:
            length = formulas.response_length(np.not_equal(array_of(datum), pad))
            yield datum.micro_step, length, (message("trend.pad", pad=pad),)
        else:
            raise Unavailable(message("trend.no_pad", key=datum.key))


#: What is derived from key data: name → function of the key data of one step and rank.
OF_KEYS: dict[str, Callable[[KeyPlace], list[Value]]] = {
    "ratio": _ratio,
    "clip_fraction": _clip_fraction,
    "kl_k1": _kl(formulas.kl_k1),
    "kl_k3": _kl(formulas.kl_k3),
    "response_length": _response_length,
}

#: The keys that these need.
KEYS_READ = frozenset((*LOG_PROB, *OLD_LOG_PROB, *REF_LOG_PROB, *MASK, *RESPONSES, LOSS_INPUTS))
