"""Which log-probability of the rollout belongs to which of the training network, in one step.

The training network's are those of the policy that generated, before any update of the step:
`old_log_prob`, never those that an update computes. They are put together where both were saved
equally often in equal shapes, or by the tokens themselves: what a loss is given has its tokens
beside its log-probabilities, packed or in other batches, and each response is found there.

Where the sampled ids are not the trained ones, as after tokenizing texts again, only the tokens
before the first other id of a response have the same tokens before them: the others are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from mindrlhf_msprobe import phases
from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.sequences import step_data
from mindrlhf_msprobe.sequences.batch import Sequences
from mindrlhf_msprobe.sequences.beginnings import run_at_end, run_at_start
from mindrlhf_msprobe.sequences.losses import Counted, before_zeros, runs_of
from mindrlhf_msprobe.sequences.masks import Responses
from mindrlhf_msprobe.sequences.step_data import StepData, Unavailable, array_of, arrays_of
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum

#: What a loss calls the tokens it is given, prompts and responses.
_TOKENS = ("prompt_completion_ids", "input_ids", "tokens")

#: The keys that these need.
KEYS_READ = step_data.KEYS_READ.union(phases.ROLLOUT_LOG_PROB, phases.OLD_LOG_PROB)


@dataclass(frozen=True)
class RolloutRows:
    """Log-probabilities of the same tokens.

    Attributes:
        datum: the rollout's save; of several that were put together, the first.
        rollout, training: [..., tokens], as they were saved.
        mask: which tokens count, not 0; None: all.
        notes: what the rows and the mask rest on, where that is not plain.
        other_tokens: how many responses have sampled ids that are not the trained ones.
    """

    datum: KeyDatum
    rollout: np.ndarray
    training: np.ndarray
    mask: np.ndarray | None
    notes: tuple[Message, ...]
    other_tokens: int = 0


def rollout_rows(sequences: Sequences) -> list[RolloutRows]:
    """Return the log-probabilities of a step and rank that belong together, by save.

    Raises:
        Unavailable: there are none; the message says what is not there or not known.
    """
    data = sequences.data
    saves, old = data.saved(phases.ROLLOUT_LOG_PROB), data.saved(phases.OLD_LOG_PROB)
    if not saves:
        raise Unavailable(message("trend.no_key", names=[phases.ROLLOUT_LOG_PROB[0]]))
    found: list[RolloutRows] = []
    arrays = [array_of(datum) for datum in saves]
    trained = [data.in_shape_of(d, a, saves, phases.OLD_LOG_PROB) for d, a in zip(saves, arrays)]
    left_out = [message("trend.saves_left_out")] if any(one is None for one in trained) else []
    for datum, array, training in zip(saves, arrays, trained):
        if training is None:
            continue
        counted = sequences.counted(datum, array, saves)
        if counted is None and array.ndim:
            # Behind the end of a response its row is 0: a probability of 1 up to the last place.
            counted = Counted(before_zeros(array), (message("trend.mask_of_rollout"),))
        mask, notes = (None, ()) if counted is None else (counted.mask, counted.notes)
        rows = RolloutRows(datum, array, training, mask, (*notes, *left_out))
        # Token ids in the shape of the log-probabilities, as they were sampled, then as trained.
        tables = []
        for names in (phases.ROLLOUT_TOKENS, phases.OLD_TOKENS, phases.RESPONSES):
            with contextlib.suppress(Unavailable):  # texts
                table = data.in_shape_of(datum, array, saves, names)
                if table is not None and table.dtype.kind in "iu":
                    tables.append(table)
        known = len(tables) > 1 and array.ndim == 2
        found.append(_before_other_ids(rows, *tables[:2]) if known else rows)
    if not found and (by_tokens := _by_tokens(sequences, saves)) is not None:
        found.append(by_tokens)
    if not found and (by_prefix := _of_other_widths(data, saves)) is not None:
        found.append(by_prefix)
    if not found and not old:
        raise Unavailable(message("trend.no_key", names=[phases.OLD_LOG_PROB[0]]))
    if not found:
        shapes = {"shape": list(arrays[-1].shape), "other_shape": list(array_of(old[0]).shape)}
        counts = {"count": len(saves), "other_count": len(old)}
        keys = {"key": saves[0].key, "other": old[0].key}
        raise Unavailable(message("trend.rows_unknown", **keys, **counts, **shapes))
    return found


def _before_other_ids(rows: RolloutRows, sampled: np.ndarray, trained: np.ndarray) -> RolloutRows:
    """Return rows whose tokens count up to the first sampled id that is not the trained one.

    Args:
        sampled, trained: token ids in the shape of the log-probabilities; −1 behind the end.
    """
    counts = np.ones(rows.rollout.shape, bool) if rows.mask is None else rows.mask != 0
    unlike = (np.asarray(sampled, np.int64) != np.asarray(trained, np.int64)) & counts
    if not unlike.any():
        return rows
    same = counts & ~np.logical_or.accumulate(unlike, axis=-1)
    count = int(unlike.any(axis=-1).sum())
    note = message("trend.other_tokens", count=count, of=len(counts))
    return replace(rows, mask=same, notes=(*rows.notes, note), other_tokens=count)


def _of_other_widths(data: StepData, saves: Sequence[KeyDatum]) -> RolloutRows | None:
    """Return rows of tables of unlike widths, as far as their token ids are the same ones.

    None where not each table has its token ids in its own shape, a response a row in one order.
    """
    rollout, sampled = _whole(saves), _whole(data.saved(phases.ROLLOUT_TOKENS))
    training = _whole(data.saved(phases.OLD_LOG_PROB))
    trained = _whole(data.saved(phases.OLD_TOKENS) or data.saved(phases.RESPONSES))
    if rollout is None or sampled is None or training is None or trained is None:
        return None
    if rollout.shape != sampled.shape or training.shape != trained.shape:
        return None
    if len(rollout) != len(training):
        return None
    width = min(rollout.shape[1], training.shape[1])
    mask = sampled[:, :width] >= 0
    rows = RolloutRows(saves[0], rollout[:, :width], training[:, :width], mask, ())
    found = _before_other_ids(rows, sampled[:, :width], trained[:, :width])
    return found if found.mask is not None and found.mask.any() else None


def _by_tokens(sequences: Sequences, saves: Sequence[KeyDatum]) -> RolloutRows | None:
    """Return the rows whose tokens are found beside the training network's log-probabilities.

    Beside those that were saved with their tokens, else in what the losses of the step were given.
    Of several updates with the same tokens the first counts. None where nothing is found.
    """
    data = sequences.data
    rollout, own = _whole(saves), _whole(data.saved(phases.ROLLOUT_TOKENS))
    names = (
        (phases.RESPONSES, phases.PROMPTS)
        if own is None
        else (phases.ROLLOUT_TOKENS, phases.ROLLOUT_PROMPTS)
    )
    responses, prompts = (_whole(data.saved(of)) for of in names)
    if rollout is None or responses is None or rollout.shape != responses.shape:
        return None
    if not rollout.size:
        return None
    if prompts is None or len(prompts) != len(responses) or not prompts.size:
        prompts = None
    finder = _Finder(responses, prompts, sequences)
    training = np.zeros(rollout.shape, np.float64)
    mask = np.zeros(rollout.shape, bool)
    said = "trend.rows_by_old_tokens"
    found = [*_beside_tokens(data, responses, prompts)] if own is not None else []
    if not found:
        said = "trend.rows_by_tokens"
    for datum in () if found else data.saved((phases.LOSS_INPUTS,)):
        found += _given(datum, finder)
    for row, log_probs, counts in found:
        training[row, : len(log_probs)] = log_probs
        mask[row, : len(log_probs)] = counts
    if not (mask & (training != 0)).any():  # a loss that has no old policy is given zeros
        return None
    return RolloutRows(saves[0], rollout, training, mask, (message(said),))


def _beside_tokens(
    data: StepData, responses: np.ndarray, prompts: np.ndarray | None
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield rows of responses, their log-probabilities of the training network, and which count.

    A row is that of saved tokens which are its prompt and its response, and padding around them.

    Args:
        responses, prompts: token ids [samples, tokens], −1 behind the end.
    """
    old, tokens = data.saved(phases.OLD_LOG_PROB), data.saved(phases.OLD_TOKENS)
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
                yield rows.pop(0), values[last - count : last], np.ones(count, bool)


def _end_between_padding(sample: np.ndarray, ids: np.ndarray) -> int | None:
    """Return where a sample ends in a row of which all else is padding; None if it is not there.

    What is before it is one token again and again, and so is what is behind it. A row of one token
    alone says nothing.
    """
    changes = np.flatnonzero(np.diff(ids)) + 1
    if not changes.size:
        return None
    first, last = int(changes[0]), int(changes[-1])
    begin = first - run_at_start(sample, ids[0])
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


def _given(datum: KeyDatum, finder: _Finder) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield each response that a loss was given: its row, log-probabilities, and which count.

    A response is a run of tokens that the mask selects, or several with holes between them; what
    stands before it reaches back to the response before. Tokens have the mask's length, or one
    more: then the mask is that of the next token.
    """
    held = arrays_of(datum, (*_TOKENS, *phases.MASK, *phases.OLD_LOG_PROB))
    tokens, mask, old = (
        step_data.first_of(held, names) for names in (_TOKENS, phases.MASK, phases.OLD_LOG_PROB)
    )
    if tokens is None or mask is None or old is None or mask.ndim != 2:
        return
    shift = tokens.shape[-1] - mask.shape[1] if tokens.ndim == 2 else -1
    if old.shape != mask.shape or len(tokens) != len(mask) or shift not in (0, 1):
        return
    for ids, counted, log_probs in zip(tokens, mask != 0, old):
        runs = [*runs_of(counted)]
        at = before = 0
        while at < len(runs):
            start = runs[at][0]
            ahead = ids[before : start + shift]
            spans = ((n, end) for n, (_, end) in enumerate(runs[at:], start=at))
            taken = (
                (n, end, finder.take(ids[start + shift : end + shift], ahead)) for n, end in spans
            )
            found = next((one for one in taken if one[2] is not None), None)
            if found is not None:
                at, end, row = found[0], found[1], found[2]
                yield row or 0, log_probs[start:end], counted[start:end]
            before = runs[at][1] + shift
            at += 1


class _Finder:
    """The responses of a step, each found once by its tokens and those before it.

    Args:
        responses: token ids [samples, tokens], filled up behind the end by one token.
        prompts: token ids [samples, tokens], filled up before or behind; None: not known.
        sequences: those of the step.
    """

    def __init__(
        self, responses: np.ndarray, prompts: np.ndarray | None, sequences: Sequences
    ) -> None:
        self._prompts = prompts
        self._samples = [sequences.sample_of(ids) for ids in responses.astype(np.int64)]
        self._responses = Responses(self._samples, sequences)
        self._taken: set[int] = set()

    def take(self, tokens: np.ndarray, before: np.ndarray) -> int | None:
        """Return the row of a response; None if there is none, or none that was not taken.

        What stands before it must be the row's prompt; where prompts are not known, only one row
        may have these tokens.
        """
        found = self._responses.fitting(tuple(tokens.tolist()))
        free = [row for row in dict.fromkeys(found) if row not in self._taken]
        whole = [row for row in free if self._samples[row].size <= len(tokens)]
        rows = (whole or free)[:64]  # rows with the same response among which the prompt decides
        if self._prompts is not None:
            lengths = [_common_end(self._prompts[row], before) for row in rows]
            longest = max(lengths, default=0)
            rows = [row for row, size in zip(rows, lengths) if size == longest > 0]
        elif len(rows) > 1:
            rows = []
        self._taken.update(rows[:1])
        return rows[0] if rows else None


def _common_end(prompt: np.ndarray, before: np.ndarray) -> int:
    """Return how long a prompt is, without its filling, if these tokens end with it; else 0."""
    filled_before = prompt[run_at_start(prompt, prompt[0]) :]
    filled_behind = prompt[: len(prompt) - run_at_end(prompt, prompt[-1])]
    found = 0
    for own in (prompt, filled_before, filled_behind):
        if 0 < own.size <= before.size and np.array_equal(before[-own.size :], own):
            found = max(found, own.size)
    return found
