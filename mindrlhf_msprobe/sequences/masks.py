"""Whether the mask of the loss selects the tokens of responses, row by row.

Masks have holes where a response has turns: prompts of the user and what tools return are not
trained. An id of padding that was sampled is left out by a mask that was made of `ids != pad`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.sequences.batch import Sample, Sequences, Source, has_hole
from mindrlhf_msprobe.sequences.beginnings import holds
from mindrlhf_msprobe.sequences.losses import runs_of, shifted

_MOST_SEARCHED = 64  # rows that fit no response and are looked through for one
_LEAST_FOUND = 4  # tokens of a response that are looked for; fewer may stand there by chance


class Fit(Enum):
    """How the mask of a row fits its tokens."""

    FITS = "fits"
    WRONG = "wrong"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class JudgedMask:
    """What was found of a mask.

    Attributes:
        fits: of each row.
        selected: of the first row that is wrong the ids that its mask selects; empty without one.
        row: its number; -1 without one.
    """

    fits: tuple[Fit, ...]
    row: int = -1
    selected: tuple[int, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether anything is known of any row."""
        return any(fit is not Fit.UNKNOWN for fit in self.fits)

    @property
    def is_whole(self) -> bool:
        """Whether all rows are known."""
        return Fit.UNKNOWN not in self.fits


def mask_of_responses(
    mask: Sequence[np.ndarray], samples: Sequence[Sample], sequences: Sequences
) -> JudgedMask:
    """Judge a mask that has the shape of the responses.

    Args:
        mask: of each response, bool [width].
        samples: the responses.
        sequences: those of the step.
    """
    turns = any(has_hole(row, sample.ids, sequences.pad) for row, sample in zip(mask, samples))
    # The first tokens that the masks of most rows leave out.
    left_out = Counter(
        tuple(sample.ids[: int(row.argmax())].tolist())
        for row, sample in zip(mask, samples)
        if row.any()
    )
    prefix, count = left_out.most_common(1)[0] if left_out else ((), 0)
    if count < 2 or 2 * count <= left_out.total():
        prefix = ()
    fits = [_fit(row, sample, sequences, prefix, turns) for row, sample in zip(mask, samples)]
    return _judged(fits, [sample.ids[row] for row, sample in zip(mask, samples)])


def mask_of_tokens(mask: np.ndarray, ids: np.ndarray, sequences: Sequences) -> JudgedMask:
    """Judge a mask over prompts and responses, one or several in a row.

    Args:
        mask: bool [rows, columns].
        ids: int [rows, columns], or one more column: then the mask is of the next token; of as many
            it may be that, too, if that fits more rows.
        sequences: those of the step.
    """
    if (given := sequences.rows.under(mask, ids)) is not None:
        samples = [sequences.samples[row] for row in given.rows.tolist()]
        found = mask_of_responses([*given.mask], samples, sequences).fits
        outside = np.any(given.before, axis=1)
        own = [Fit.WRONG if other else fit for fit, other in zip(found, outside)]
        whole = np.concatenate([given.before, given.mask], axis=1)
        return _judged(own, [of[row] for row, of in zip(whole, ids)])
    responses = Responses(sequences.samples, sequences)
    best: list[Fit] = []
    chosen: list[np.ndarray] = []
    for shift in (1,) if ids.shape[1] > mask.shape[1] else (0, 1):
        tokens = [shifted(row, len(of), shift) for row, of in zip(mask, ids)]
        fits = [responses.fit(row, of) for row, of in zip(tokens, ids)]
        if not best or fits.count(Fit.WRONG) < best.count(Fit.WRONG):
            best, chosen = fits, tokens
    wrong = [row for row, fit in enumerate(best) if fit is Fit.WRONG]
    for number, row in enumerate(wrong):
        if sequences.has_turns:
            best[row] = responses.fit(chosen[row], ids[row], turns=True)
        searched = number < _MOST_SEARCHED and responses.is_in(ids[row])
        if best[row] is Fit.WRONG and not searched:
            best[row] = Fit.UNKNOWN
    return _judged(best, [of[row] for row, of in zip(chosen, ids)])


def _judged(fits: Sequence[Fit], selected: Sequence[np.ndarray]) -> JudgedMask:
    row = next((row for row, fit in enumerate(fits) if fit is Fit.WRONG), -1)
    return JudgedMask(tuple(fits), row, () if row < 0 else tuple(selected[row].tolist()))


def _fit(
    row: np.ndarray, sample: Sample, sequences: Sequences, prefix: tuple[int, ...], turns: bool
) -> Fit:
    """Return whether a row of a mask selects the tokens of its response.

    The token that ends it may be left out, and so may a prefix that most rows leave out, as one
    that was given to all of them.
    """
    chosen = np.flatnonzero(row)
    if not len(chosen):
        return Fit.FITS  # a response may be left out of the loss
    if chosen[-1] >= sample.padding_from:
        return Fit.WRONG
    known = sample.source is not Source.NONE
    if chosen[-1] >= sample.size:
        return Fit.FITS if known else Fit.UNKNOWN
    before = _without(sequences.pad, sample.ids[: chosen[0]])
    behind = _without(sequences.pad, sample.ids[chosen[-1] + 1 : sample.size])
    if len(behind) == 1 and (not sequences.eos or behind[0] in sequences.eos):
        behind = ()
    if not behind and before in ((), prefix):
        return Fit.FITS
    return Fit.FITS if turns else Fit.WRONG if known else Fit.UNKNOWN


def _without(pad: int | None, ids: np.ndarray) -> tuple[int, ...]:
    return tuple(one for one in ids.tolist() if one != pad)


@dataclass(frozen=True)
class _Response:
    """The tokens of a response, and how many of them a mask may select.

    Attributes:
        tokens: up to the padding behind its end.
        least: how many must be selected: all but the token that ends it, or the last one.
        ended: whether the last token is one that ends responses.
    """

    tokens: tuple[int, ...]
    least: int
    ended: bool


class Responses:
    """The responses of a step, found by their tokens.

    Args:
        samples: the responses; their numbers are what is found.
        sequences: those of the step.
    """

    def __init__(self, samples: Sequence[Sample], sequences: Sequences) -> None:
        self._samples, self._sequences = samples, sequences
        self._trained: set[tuple[int, ...]] = set()
        self._by_first: dict[int, dict[_Response, list[int]]] = {}
        for number, sample in enumerate(samples):
            tokens = tuple(sample.ids[: sample.padding_from].tolist())
            # A mask may leave out ids of padding that were sampled first.
            first = next((n for n, token in enumerate(tokens) if token != sequences.pad), 0)
            for start in {0, first} if tokens else ():
                ended = bool(tokens[-1] in sequences.eos)
                found = _Response(tokens[start:], sample.size - 1 - start, ended)
                of_token = self._by_first.setdefault(tokens[start], {})
                of_token.setdefault(found, []).append(number)
        for of, masks in zip(sequences.saves, sequences.saved_masks):
            for sample, mask in zip(of or (), masks):
                chosen = np.flatnonzero(mask)
                whole = sample.ids[chosen[0] : chosen[-1] + 1] if len(chosen) else chosen
                self._trained.add(tuple(whole.tolist()))

    def fit(self, mask: np.ndarray, ids: np.ndarray, turns: bool = False) -> Fit:
        """Return whether all that a row of a mask selects are responses.

        Not known where it selects what may be padding behind the end of one.

        Args:
            mask: bool [columns], which tokens it selects.
            turns: whether the first and the last tokens of responses may be left out.
        """
        runs = [*runs_of(mask)]
        at, found = 0, Fit.FITS
        while at < len(runs):
            start = runs[at][0]
            fits = (
                (upto, fit)
                for upto in reversed(range(at, len(runs)))
                if (fit := self._fit(ids[start : runs[upto][1]], len(ids) - start, turns))
                is not Fit.WRONG
            )
            last, fit = next(fits, (at, Fit.WRONG))
            if fit is Fit.WRONG:
                return fit
            found = fit if fit is Fit.UNKNOWN else found
            at = last + 1
        return found

    def _fit(self, chosen: np.ndarray, room: int, turns: bool) -> Fit:
        span = tuple(chosen.tolist())
        samples = [self._samples[n] for n in self.fitting(span, turns=turns, room=room)]
        if span in self._trained:
            return Fit.FITS
        if not samples:
            return Fit.WRONG
        known = any(s.source is not Source.NONE or len(span) <= s.size for s in samples)
        return Fit.FITS if known else Fit.UNKNOWN

    def fitting(
        self, span: tuple[int, ...], *, turns: bool = False, room: int | None = None
    ) -> Iterator[int]:
        """Yield the numbers of the responses that tokens are, but for the one that ends each.

        Args:
            turns: whether the last tokens of responses may be left out.
            room: how many tokens there are from the first of them on; where these end, a response
                may be cut.
        """
        size = len(span)
        for one, numbers in self._by_first.get(span[0], {}).items():
            if one.tokens[:size] == span and (size >= one.least or turns or size == room):
                yield from numbers
            ends = size == len(one.tokens) + 1 and not one.ended
            # With the token that ends it, which was not saved.
            if ends and span[-1] != self._sequences.pad and span[:-1] == one.tokens:
                yield from numbers

    def is_in(self, ids: np.ndarray) -> bool:
        """Return whether a response stands in a row of tokens, behind its prompt if it is short."""
        row = ids.astype(np.int64).tobytes()
        prompts = self._sequences.prompts
        for number, sample in enumerate(self._samples):
            wanted = sample.ids[: max(sample.size - 1, 1)]
            if len(wanted) < _LEAST_FOUND and len(prompts) == len(self._samples):
                wanted = np.concatenate([prompts[number], wanted])
            if len(wanted) >= _LEAST_FOUND and holds(row, wanted.astype(np.int64)):
                return True
        return False
