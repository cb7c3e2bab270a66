"""Which log-probability of the rollout belongs to which of the training network, in one step.

The training network's are those of the policy that generated, before any update of the step:
`old_log_prob`, never those that an update computes. They are put together where both were saved
equally often in equal shapes, or by the tokens themselves: what a loss is given has its tokens
beside its log-probabilities, packed or in other batches, and each response is found there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.phases import LOSS_INPUTS, PROMPTS
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.trends import formulas
from mindrlhf_msprobe.trends.derived import (
    MASK,
    OLD_LOG_PROB,
    RESPONSES,
    ROLLOUT_LOG_PROB,
    KeyPlace,
    Unavailable,
    array_of,
    saved_alike,
)
from mindrlhf_msprobe.trends.rollout_correction import RolloutGap, rollout_gap

#: The tokens that the rollout's log-probabilities are of, in their shape, and what was asked for
#: them, a row each; −1 behind the end.
_ROLLOUT_TOKENS, _ROLLOUT_PROMPTS = ("rollout_tokens",), ("rollout_prompts",)
#: The tokens that the training network's are of, a sample a row, padded before or behind: in the
#: shape of old_log_prob, or one more column, then it is of the next token.
_OLD_TOKENS = ("old_log_prob_tokens",)
#: What a loss calls the tokens it is given, prompts and responses.
_TOKENS = ("prompt_completion_ids", "input_ids", "tokens")
_MOST_ALIKE = 64  # rows with the same response among which the prompt decides

#: The keys that these need.
KEYS_READ = frozenset(
    (
        *(*ROLLOUT_LOG_PROB, *_ROLLOUT_TOKENS, *_ROLLOUT_PROMPTS),
        *(*OLD_LOG_PROB, *_OLD_TOKENS, *MASK, *RESPONSES, *PROMPTS, LOSS_INPUTS),
    )
)


@dataclass(frozen=True)
class RolloutRows:
    """Log-probabilities of the same tokens.

    Attributes:
        datum: the rollout's save; of several that were put together, the first.
        rollout, training: [..., tokens], as they were saved.
        mask: which tokens count, not 0; None: all.
        notes: what the rows and the mask rest on, where that is not plain.
    """

    datum: KeyDatum
    rollout: np.ndarray
    training: np.ndarray
    mask: np.ndarray | None
    notes: tuple[Message, ...]


def rollout_rows(place: KeyPlace) -> list[RolloutRows]:
    """Return the log-probabilities of a step and rank that belong together, by save.

    Raises:
        Unavailable: there are none; the message says what is not there or not known.
    """
    saves, old = place.saved(ROLLOUT_LOG_PROB), place.saved(OLD_LOG_PROB)
    if not saves:
        raise Unavailable(message("trend.no_key", names=[ROLLOUT_LOG_PROB[0]]))
    found: list[RolloutRows] = []
    arrays = [array_of(datum) for datum in saves]
    alike = [saved_alike(place, d, a, saves, OLD_LOG_PROB) for d, a in zip(saves, arrays)]
    left_out = [message("trend.saves_left_out")] if any(one is None for one in alike) else []
    for datum, array, training in zip(saves, arrays, alike):
        if training is not None:
            mask, notes = _mask(place, datum, array, saves)
            found.append(RolloutRows(datum, array, training, mask, (*notes, *left_out)))
    if not found and (by_tokens := _by_tokens(place, saves)) is not None:
        found.append(by_tokens)
    if not found and not old:
        raise Unavailable(message("trend.no_key", names=[OLD_LOG_PROB[0]]))
    if not found:
        shapes = {"shape": list(arrays[-1].shape), "other_shape": list(array_of(old[0]).shape)}
        counts = {"count": len(saves), "other_count": len(old)}
        keys = {"key": saves[0].key, "other": old[0].key}
        raise Unavailable(message("trend.rows_unknown", **keys, **counts, **shapes))
    return found


def rollout_gaps(place: KeyPlace) -> list[tuple[RolloutRows, RolloutGap, tuple[Message, ...]]]:
    """Return how far the policies are apart in each save of a step and rank, and on what it rests.

    The clip range is the trainer's where its configuration names one, else that of PPO's paper.

    Raises:
        Unavailable: as `rollout_rows`; or a save has no dimension.
    """
    clip_range = place.settings.clip_range or formulas.CLIP_RANGE
    found = []
    for rows in rollout_rows(place):
        if not rows.rollout.ndim:
            raise Unavailable(message("trend.no_one_tensor", key=rows.datum.key))
        gap = rollout_gap(rows.rollout, rows.training, rows.mask, clip_range)
        left_out = [message("trend.non_finite_left_out")] if gap.non_finite else []
        found.append((rows, gap, (*rows.notes, *left_out)))
    return found


def _mask(
    place: KeyPlace, datum: KeyDatum, rollout: np.ndarray, saves: Sequence[KeyDatum]
) -> tuple[np.ndarray | None, tuple[Message, ...]]:
    """Return which tokens of a save count: by a mask, by the tokens, else by the save itself.

    Behind the end of a response its row is 0: a probability of 1 in all places up to the last.
    """
    mask = saved_alike(place, datum, rollout, saves, MASK)
    if mask is not None:
        return mask, ()
    with contextlib.suppress(Unavailable):
        tokens = saved_alike(place, datum, rollout, saves, _ROLLOUT_TOKENS)
        if tokens is not None:
            return np.greater_equal(tokens, 0), ()
    pad = place.settings.pad
    if pad is not None:
        with contextlib.suppress(Unavailable):  # texts
            responses = saved_alike(place, datum, rollout, saves, RESPONSES)
            if responses is not None:
                return np.not_equal(responses, pad), (message("trend.pad", pad=pad),)
    if not rollout.ndim:
        return None, ()
    behind = np.logical_and.accumulate((rollout == 0)[..., ::-1], axis=-1)[..., ::-1]
    return ~behind, (message("trend.mask_of_rollout"),)


def _by_tokens(place: KeyPlace, saves: Sequence[KeyDatum]) -> RolloutRows | None:
    """Return the rows whose tokens are found beside the training network's log-probabilities.

    Beside those that were saved with their tokens, else in what the losses of the step were given.
    Of several updates with the same tokens the first counts. None where nothing is found.
    """
    rollout, own = _whole(saves), _whole(place.saved(_ROLLOUT_TOKENS))
    names = (RESPONSES, PROMPTS) if own is None else (_ROLLOUT_TOKENS, _ROLLOUT_PROMPTS)
    responses, prompts = (_whole(place.saved(of)) for of in names)
    if rollout is None or responses is None or rollout.shape != responses.shape:
        return None
    if not rollout.size:
        return None
    if prompts is None or len(prompts) != len(responses) or not prompts.size:
        prompts = None
    finder = _Responses(responses, prompts, ends=own is not None)
    training = np.zeros(rollout.shape, np.float64)
    mask = np.zeros(rollout.shape, bool)
    said = "trend.rows_by_old_tokens"
    found = [*_beside_tokens(place, responses, prompts)] if own is not None else []
    if not found:
        said = "trend.rows_by_tokens"
    for datum in () if found else place.saved((LOSS_INPUTS,)):
        for tokens, before, log_probs in _given(datum):
            row = finder.take(tokens, before)
            if row is not None:
                found.append((row, log_probs))
    for row, log_probs in found:
        training[row, : len(log_probs)] = log_probs
        mask[row, : len(log_probs)] = True
    if not (mask & (training != 0)).any():  # a loss that has no old policy is given zeros
        return None
    return RolloutRows(saves[0], rollout, training, mask, (message(said),))


def _beside_tokens(
    place: KeyPlace, responses: np.ndarray, prompts: np.ndarray | None
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield rows of responses, and their log-probabilities of the training network.

    A row is that of saved tokens which are its prompt and its response, and padding around them.

    Args:
        responses, prompts: token ids [samples, tokens], −1 behind the end.
    """
    old, tokens = place.saved(OLD_LOG_PROB), place.saved(_OLD_TOKENS)
    if prompts is None or not old or len(old) != len(tokens):
        return
    samples: dict[bytes, tuple[np.ndarray, list[int]]] = {}
    for row, (prompt, response) in enumerate(zip(prompts, responses)):
        whole = np.concatenate([prompt[prompt >= 0], response[response >= 0]]).astype(np.int64)
        samples.setdefault(whole.tobytes(), (whole, []))[1].append(row)
    for log_probs, ids in zip(map(array_of, old), map(array_of, tokens)):
        shift = ids.shape[-1] - log_probs.shape[-1] if ids.ndim == log_probs.ndim == 2 else -1
        if shift not in (0, 1) or len(ids) != len(log_probs):
            continue
        for of_row, values in zip(np.asarray(ids, np.int64), log_probs):
            fits = [
                (rows, end)
                for whole, rows in samples.values()
                if (end := _end_between_padding(whole, of_row)) is not None
            ]
            if len(fits) != 1 or not fits[0][0]:  # none, or padding that may be of a sample
                continue
            rows, last = fits[0][0], fits[0][1] - shift
            count = int((responses[rows[0]] >= 0).sum())
            if last >= count:
                yield rows.pop(0), values[last - count : last]


def _end_between_padding(sample: np.ndarray, ids: np.ndarray) -> int | None:
    """Return where a sample ends in a row of which all else is padding; None if it is not there.

    What is before it is one token again and again, and so is what is behind it. A row of one token
    alone says nothing.
    """
    changes = np.flatnonzero(np.diff(ids)) + 1
    if not changes.size:
        return None
    first, last = int(changes[0]), int(changes[-1])
    before = int(np.argmax(sample != ids[0])) if (sample != ids[0]).any() else len(sample)
    begin = first - before
    end = begin + len(sample)
    inside = begin >= 0 and last <= end <= len(ids)
    return end if inside and np.array_equal(sample, ids[begin:end]) else None


def _whole(saves: Sequence[KeyDatum]) -> np.ndarray | None:
    """Return the tables of several saves as one, in the order in which they were made."""
    try:
        arrays = [array_of(datum) for datum in saves]
    except Unavailable:
        return None
    if not arrays or {a.ndim for a in arrays} != {2} or len({a.shape[1] for a in arrays}) > 1:
        return None
    return np.concatenate(arrays)


def _given(datum: KeyDatum) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield each response that a loss was given: its tokens, those before it, log-probabilities.

    A response is a run of tokens that the mask selects; those before it reach back to the run
    before. Tokens have the mask's length, or one more: then the mask is that of the next token.
    """
    held: dict[str, np.ndarray] = {}
    for record in datum.records:
        if record.leaf.is_tensor and record.path in (*_TOKENS, *MASK, *OLD_LOG_PROB):
            with contextlib.suppress(ArrayFileError):
                held[record.path] = record.array()
    tokens, mask, old = (_first(held, names) for names in (_TOKENS, MASK, OLD_LOG_PROB))
    if tokens is None or mask is None or old is None or mask.ndim != 2:
        return
    shift = tokens.shape[-1] - mask.shape[1] if tokens.ndim == 2 else -1
    if old.shape != mask.shape or len(tokens) != len(mask) or shift not in (0, 1):
        return
    for of_row, counted, log_probs in zip(tokens, mask != 0, old):
        edges = np.flatnonzero(np.diff(counted, prepend=False, append=False))
        end_before = 0
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist()):
            before = of_row[end_before : start + shift]
            yield of_row[start + shift : end + shift], before, log_probs[start:end]
            end_before = end + shift


def _first(held: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray | None:
    return next((held[name] for name in names if name in held), None)


class _Responses:
    """The responses of a step, each found once by its tokens.

    Args:
        responses: token ids [samples, tokens], filled up behind the end by one token.
        prompts: token ids [samples, tokens], filled up before or behind; None: not known.
        ends: whether responses hold the token that ended them even where the trainer fills up
            with the same one, and so takes it for no token of the response.
    """

    def __init__(
        self, responses: np.ndarray, prompts: np.ndarray | None, *, ends: bool = False
    ) -> None:
        self._responses, self._prompts = responses, prompts
        self._free = np.ones(len(responses), bool)
        filled = np.logical_and.accumulate((responses == responses[:, -1:])[:, ::-1], axis=1)
        self._least = responses.shape[1] - filled.sum(axis=1)  # tokens that are no filling
        self._ends = int(ends)
        self._begin: dict[int, list[int]] = {}
        for row, first in enumerate(responses[:, 0].tolist()):
            self._begin.setdefault(first, []).append(row)

    def take(self, tokens: np.ndarray, before: np.ndarray) -> int | None:
        """Return the row of a response; None if there is none, or none that was not taken.

        What stands before it must be the row's prompt; where prompts are not known, only one row
        may have these tokens.
        """
        count = len(tokens)
        if count > self._responses.shape[1]:
            return None
        rows = np.array(self._begin.get(int(tokens[0]), ()), np.intp)
        rows = rows[self._free[rows] & (self._least[rows] - self._ends <= count)]
        rows = rows[(self._responses[rows, :count] == tokens).all(axis=1)]
        whole = rows[self._least[rows] <= count]
        rows = self._of_prompt(whole if whole.size else rows, before)
        if not len(rows):
            return None
        self._free[rows[0]] = False
        return int(rows[0])

    def _of_prompt(self, rows: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Return those of some rows whose prompt is the longest that these tokens end with."""
        rows = rows[:_MOST_ALIKE]
        if self._prompts is None or not rows.size:
            return rows if len(rows) == 1 else rows[:0]
        lengths = np.array([_common_end(self._prompts[row], before) for row in rows.tolist()])
        return rows[(lengths == lengths.max()) & (lengths > 0)]


def _common_end(prompt: np.ndarray, before: np.ndarray) -> int:
    """Return how long a prompt is, without its filling, if these tokens end with it; else 0."""
    real, behind = np.flatnonzero(prompt != prompt[0]), np.flatnonzero(prompt != prompt[-1])
    filled_before = prompt[real[0] :] if real.size else prompt[:0]
    filled_behind = prompt[: behind[-1] + 1] if behind.size else prompt[:0]
    found = 0
    for own in (prompt, filled_before, filled_behind):
        if 0 < own.size <= before.size and np.array_equal(before[-own.size :], own):
            found = max(found, own.size)
    return found
