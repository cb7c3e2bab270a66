"""What is derived from the key data of one step: one small function a quantity.

A quantity that a run does not hold is missing with its reason, never guessed: values by token are
put together only where it is known which rows belong together, and what is masked counts nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.phases import (
    LOG_PROB,
    LOSS_INPUTS,
    MASK,
    OLD_LOG_PROB,
    REF_LOG_PROB,
    RESPONSES,
)
from mindrlhf_msprobe.sequences import step_data
from mindrlhf_msprobe.sequences.batch import Sequences, Source
from mindrlhf_msprobe.sequences.losses import Counted, Pair
from mindrlhf_msprobe.sequences.step_data import Unavailable, array_of
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.trends import formulas

RATIO = ("ratio",)

#: One value: the micro-step it belongs to, the number, and what it rests on.
Value = tuple[int, float, tuple[Message, ...]]


def other_rows(
    sequences: Sequences, datum: KeyDatum, of: Sequence[KeyDatum], other: Sequence[str]
) -> Pair | None:
    """Return a save with other log-probabilities of its rows; None where they are not known.

    Those of a whole batch are in the order of the old ones, whose rows values tell.
    """
    array = array_of(datum)
    beside = sequences.data.beside(datum, array, of, other)
    if beside is not None:
        return Pair(array, beside)
    olds, others = sequences.data.saved(OLD_LOG_PROB), sequences.data.saved(other)
    if not len(olds) == len(others) == 1 or datum.key not in LOG_PROB:
        return None
    whole, pair = array_of(others[0]), sequences.old_rows.of(datum, of)
    if pair is None or whole.shape != array_of(olds[0]).shape:
        return None
    return None if pair.rows is None else replace(pair, other=whole[list(pair.rows)])


def _by_token(
    sequences: Sequences, own: Sequence[str], other: Sequence[str], formula: Callable[..., float]
) -> list[Value]:
    """Return a formula of two log-probabilities for each save of the first whose rows are known."""
    data = sequences.data
    first, second = data.saved(own), data.saved(other)
    if not first:
        raise Unavailable(message("trend.no_key", names=list(own[:1])))
    found: list[Value] = []
    array = np.empty(0)
    why: Unavailable | None = None
    for datum in first:
        array = array_of(datum)
        if other is OLD_LOG_PROB:
            pair = sequences.old_rows.of(datum, first)
        else:
            pair = other_rows(sequences, datum, first, other)
        if pair is None:
            continue
        notes = () if pair.rows is None else (message("trend.rows_by_value"),)
        try:
            counted = pair.counted or _counted(sequences, datum, array, first)
        except Unavailable as error:
            why = error
            continue
        value = formula(pair.own, pair.other, counted.mask)
        found.append((datum.micro_step, value, (*dict.fromkeys((*notes, *counted.notes)),)))
    if not found and not second:
        raise Unavailable(message("trend.no_key", names=list(other[:1])))
    if not found and why is not None:
        raise why
    if not found:
        shapes = {"shape": list(array.shape), "other_shape": list(array_of(second[0]).shape)}
        counts = {"count": len(first), "other_count": len(second)}
        keys = {"key": first[0].key, "other": second[0].key}
        raise Unavailable(message("trend.rows_unknown", **keys, **counts, **shapes))
    return found


def _counted(
    sequences: Sequences, datum: KeyDatum, array: np.ndarray, of: Sequence[KeyDatum]
) -> Counted:
    """Return which tokens of a save count: all where nothing says that some do not.

    Raises:
        Unavailable: some do not, and nothing says which.
    """
    counted = sequences.counted(datum, array, of)
    if counted is None and sequences.most_masked(array):
        raise Unavailable(message("trend.mask_of_other_rows", key=datum.key))
    notes = (message("trend.without_mask"),) if array.ndim else ()
    return counted or Counted(np.ones(array.shape, bool), notes)


def _of_ratios(
    sequences: Sequences, formula: Callable[[np.ndarray, np.ndarray | None], float]
) -> list[Value]:
    """Return a formula of the ratios by token that each update of a step saved.

    Raises:
        Unavailable: none were saved, or it is not known which of their tokens count.
    """
    saves = sequences.data.saved(RATIO)
    found: list[Value] = []
    why = Unavailable(message("trend.no_key", names=[*RATIO]))
    for datum in saves:
        array = array_of(datum)
        if not array.ndim or array.dtype.kind != "f":
            continue
        try:
            counted = _counted(sequences, datum, array, saves)
        except Unavailable as error:
            why = error
            continue
        notes = message("trend.of_ratios"), *counted.notes
        found.append((datum.micro_step, formula(array, counted.mask), notes))
    if not found:
        raise why
    return found


def _of_policy(
    sequences: Sequences,
    by_token: Callable[..., float],
    of_ratios: Callable[[np.ndarray, np.ndarray | None], float],
) -> list[Value]:
    """Return a formula of new and old log-probabilities, or of ratios: of what has more updates.

    Raises:
        Unavailable: neither says anything; why not, of the last for which there is a key.
    """
    best: list[Value] = []
    why: Unavailable | None = None
    for way in (
        lambda: _by_token(sequences, LOG_PROB, OLD_LOG_PROB, by_token),
        lambda: _of_ratios(sequences, of_ratios),
    ):
        try:
            found = way()
        except Unavailable as error:
            if why is None or error.said.code != "trend.no_key":
                why = error
            continue
        if len(found) > len(best):
            best = found
    if not best and why is not None:
        raise why
    return best


def _clip_fraction(sequences: Sequences) -> list[Value]:
    given = sequences.data.settings.clip_range
    limits = formulas.CLIP_RANGE if given is None else given
    by_token = partial(formulas.clip_fraction, clip_range=limits)
    values = _of_policy(sequences, by_token, partial(formulas.clipped_share, clip_range=limits))
    said = "trend.usual_clip_range" if given is None else "trend.clip_range"
    of = message(said, low=limits[0], high=limits[1])
    return [(at, value, (of, *notes)) for at, value, notes in values]


def _kl(formula: Callable[..., float]) -> Callable[[Sequences], list[Value]]:
    def kl(sequences: Sequences) -> list[Value]:
        """Of the log-probabilities in the update, else of those before it."""
        try:
            return _by_token(sequences, LOG_PROB, REF_LOG_PROB, formula)
        except Unavailable:
            if not sequences.data.saved(OLD_LOG_PROB):
                raise
        values = _by_token(sequences, OLD_LOG_PROB, REF_LOG_PROB, formula)
        of_old = message("trend.kl_of_old")
        return [(at, value, (of_old, *notes)) for at, value, notes in values]

    return kl


def _response_length(sequences: Sequences) -> list[Value]:
    data = sequences.data
    found: list[Value] = [
        (datum.micro_step, formulas.response_length(array_of(datum)), ())
        for datum in data.saved(MASK)
    ]
    for datum in () if found else data.saved((LOSS_INPUTS,)):
        if (mask := data.given_to_loss(MASK, datum.micro_step)) is not None:
            note = message("trend.length_of_loss")
            found.append((datum.micro_step, formulas.response_length(mask), (note,)))
    for datum, samples in () if found else zip(sequences.responses, sequences.saves):
        texts = [r.leaf.value for r in datum.records if r.leaf.type == "str"]
        if texts and len(texts) == len(datum.records):
            notes: tuple[Message, ...] = (message("trend.in_characters"),)
            sizes = [len(str(text)) for text in texts]
        elif samples and all(sample.source is not Source.NONE for sample in samples):
            notes = () if sequences.pad is None else (message("trend.pad", pad=sequences.pad),)
            sizes = [sample.size for sample in samples]
        else:
            raise Unavailable(message("trend.no_pad", key=datum.key))
        found.append((datum.micro_step, float(np.mean(sizes)), notes))
    if not found:
        raise Unavailable(message("trend.no_key", names=[MASK[0], RESPONSES[0]]))
    return found


#: What is derived from key data: name → function of the key data of one step and rank.
OF_KEYS: dict[str, Callable[[Sequences], list[Value]]] = {
    "ratio": partial(_of_policy, by_token=formulas.ratio, of_ratios=formulas.mean),
    "clip_fraction": _clip_fraction,
    "approx_kl": partial(
        _of_policy,
        by_token=lambda new, old, mask: formulas.kl_k3(old, new, mask),
        of_ratios=formulas.kl_of_ratios,
    ),
    "kl_k1": _kl(formulas.kl_k1),
    "kl_k3": _kl(formulas.kl_k3),
    "response_length": _response_length,
}

#: The keys that these need.
KEYS_READ = step_data.KEYS_READ.union(LOG_PROB, OLD_LOG_PROB, REF_LOG_PROB, RATIO)
