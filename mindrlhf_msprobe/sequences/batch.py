"""The sequences of one step as its key data hold them: which tokens are real, and who says so.

A token of a response is real, or padding behind its end, or nobody knows: the tail of a row whose
padding is not known, or one more id of padding where a response was cut, which may have been
sampled. Whoever judges leaves out what is not known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from functools import cached_property

import numpy as np

from mindrlhf_msprobe import phases
from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.sequences.beginnings import run_at_end
from mindrlhf_msprobe.sequences.losses import Counted, OldRows, Rows, ids_under, masks_of_values
from mindrlhf_msprobe.sequences.step_data import (
    OF_UPDATES,
    StepData,
    Unavailable,
    array_of,
    arrays_of,
    rows_of,
)
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum

_LEAST_ENDS = 3  # rows that end with one id: it is then no chance
FILLED = -1  # what our integrations save behind the end of a row


class Source(Enum):
    """What says where responses end."""

    FILLED = "filled"  # ids below 0
    PAD = "pad"  # the id of padding, configured or saved
    EOS = "eos"  # the one id that stands behind tokens that end a response
    MASK = "mask"  # the id behind the ends that the mask of the loss leaves out
    ATTENTION = "attention"  # the attention mask
    LENGTHS = "lengths"  # saved lengths
    NONE = "none"


NO_PROMPT = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Sample:
    """A response as it was saved, and its prompt where that is known.

    Attributes:
        prompt: int64 [tokens], without padding; empty where it is not known.
        ids: int64 [width], the response; behind its end padding, or less than 0.
        size: the first tokens of the response that are real for sure; the token that ends it
            counts, unless it is the id of padding, too.
        filler: the ids of padding that stood before the prompt, int64; the last may be its own
            first tokens, as where one token begins texts and fills them up.
        padding_from: from here on all of the response is padding for sure.
        trained: bool [width], which tokens the mask of the loss selects; None where none is saved
            for this row.
        source: what says where the response ends.
    """

    prompt: np.ndarray
    ids: np.ndarray
    size: int
    filler: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    padding_from: int = 0
    trained: np.ndarray | None = None
    source: Source = Source.NONE

    @cached_property
    def response(self) -> np.ndarray:
        """The tokens of the response that are real for sure, int64."""
        return self.ids[: self.size]

    @cached_property
    def tokens(self) -> np.ndarray:
        """The prompt and the response, int64."""
        return np.concatenate([self.prompt, self.response])


class Sequences:
    """Which tokens of a step's responses are real, trained, or padding.

    Args:
        data: the key data of one step and rank.

    Attributes:
        eos: the ids that end a response, as they are configured; empty where they are not.
    """

    def __init__(self, data: StepData) -> None:
        self.data, self.eos = data, data.settings.eos

    @cached_property
    def responses(self) -> Sequence[KeyDatum]:
        """The saves of the responses."""
        return self.data.saved(phases.RESPONSES)

    @cached_property
    def _ids(self) -> list[list[np.ndarray] | None]:
        """Of each save of the responses its rows, int64; None of one that holds no token ids."""
        rows = [rows_of(datum) for datum in self.responses]
        return [None if of is None else [row.astype(np.int64) for row in of] for of in rows]

    @cached_property
    def _all_ids(self) -> list[np.ndarray]:
        """The rows of all saves, int64."""
        return [row for of in self._ids for row in of or ()]

    @cached_property
    def rows(self) -> Rows:
        """The rows of all saves, found by their ids."""
        return Rows(self._all_ids, self.data.pad)

    @cached_property
    def _masks(self) -> list[Sequence[np.ndarray | None]]:
        """Of each save of the responses the masks of its rows: saved beside it, else of losses."""
        given = iter(self.rows.masks(self.data))
        of_losses = [[next(given) for _ in rows or ()] for rows in self._ids]
        return [own or of for own, of in zip(self.saved_masks, of_losses)]

    @cached_property
    def _all_masks(self) -> list[np.ndarray | None]:
        """The masks of the rows of all saves."""
        return [mask for of in self._masks for mask in of]

    @cached_property
    def saved_masks(self) -> list[list[np.ndarray]]:
        """Of each save of the responses the masks saved beside it, for all its rows or no row."""
        saves = self.data.saved(phases.MASK)
        found: list[list[np.ndarray]] = []
        for at, rows in enumerate(self._ids):
            beside = rows is not None and len(saves) == len(self.responses)
            masks = rows_of(saves[at], "biuf") if beside else None
            if rows and masks and [*map(len, masks)] == [*map(len, rows)]:
                found.append([mask != 0 for mask in masks])
                continue
            whole = None if masks is None else self.ids_under(masks, at)
            given = None if whole is None else self.rows.under(np.stack(masks or ()) != 0, whole)
            found.append([] if given is None else [*given.mask])
        return found

    @cached_property
    def _known_padding(self) -> tuple[int | None, Source]:
        """The id of padding, and what says it."""
        rows, masks = self._all_ids, self._all_masks
        if (pad := self.data.pad) is not None:
            return pad, Source.PAD
        if (pad := _pad_by_eos(rows, self.eos)) is not None:
            return pad, Source.EOS
        if (pad := _pad_by_masks(rows, masks, self.eos)) is not None:
            return pad, Source.MASK
        hidden = {
            int(token)
            for seen, ids in self._attended()
            if len(seen) == len(ids)
            for token in ids[seen == 0]
        }
        return (hidden.pop(), Source.ATTENTION) if len(hidden) == 1 else (None, Source.NONE)

    @property
    def pad(self) -> int | None:
        """The id of padding: saved, configured, or inferred; None where nothing says it."""
        return self._known_padding[0]

    @cached_property
    def _last(self) -> frozenset[int]:
        """The ids that end a response: configured, or the one that all padded rows end with.

        They end with it before their padding, and so do several rows.
        """
        if self.eos or self.pad is None:
            return self.eos
        last: Mapping[bool, list[int]] = {True: [], False: []}
        for ids in self._all_ids:
            size = len(ids) - run_at_end(ids, self.pad)
            if size:
                last[size < len(ids)].append(int(ids[size - 1]))
        ends = {*last[True]}
        several = [*last[True], *last[False]]
        known = len(ends) == 1 and several.count(min(ends)) >= _LEAST_ENDS
        return frozenset(ends) if known else frozenset()

    @cached_property
    def _is_pad_end(self) -> bool:
        """Whether the first id of padding behind a response is the token that ended it.

        It is if it is configured so. Where no end is, masks say it that select it in most of the
        padded rows of which they select any token.
        """
        if self.pad is None or self.eos:
            return self.pad in self.eos
        beyond = []
        for ids, mask in zip(self._all_ids, self._all_masks):
            size = len(ids) - run_at_end(ids, self.pad)
            if mask is not None and size < len(ids) and mask.any():
                beyond.append(run_at_end(mask, False) + size - len(ids))
        return 2 * beyond.count(-1) > len(beyond)

    @cached_property
    def saves(self) -> list[list[Sample] | None]:
        """Of each save of the responses its rows; None of one that holds no token ids."""
        both = enumerate(zip(self._ids, self._masks))
        return [None if ids is None else [*self._samples(at, ids, m)] for at, (ids, m) in both]

    @cached_property
    def samples(self) -> list[Sample]:
        """The rows of all saves, one save behind the other."""
        return [sample for of in self.saves for sample in of or ()]

    @cached_property
    def has_turns(self) -> bool:
        """Whether masks leave real tokens inside responses out: prompts of later turns, tools."""
        return any(
            sample.trained is not None and has_hole(sample.trained, sample.ids, self.pad)
            for sample in self.samples
        )

    def sample_of(self, ids: np.ndarray) -> Sample:
        """Return a row of token ids with its end, int64 [tokens]; ids below 0 are behind it."""
        size, padding_from, source = self._end(ids, None, filled=bool((ids < 0).any()))
        return Sample(NO_PROMPT, ids, size, padding_from=padding_from, source=source)

    def counted(self, datum: KeyDatum, array: np.ndarray, of: Sequence[KeyDatum]) -> Counted | None:
        """Return which elements of a save by token count; None where nothing says it.

        The mask of its rows says it, else the ends of the responses that it is of.

        Args:
            array: what was saved, [samples, tokens].
            of: all saves of its key.
        """
        with contextlib.suppress(Unavailable):
            if (found := self._by_rows(datum, array, of)) is not None:
                return found
            # The mask that was given to its own loss or saved beside it; that of the responses; or
            # one that losses were given with old log-probabilities that are those of the rows.
            mask = self.data.beside(datum, array, of, phases.MASK)
            if mask is None:
                mask = self._mask_of_responses(datum, array, of)
            if mask is None and datum.key not in OF_UPDATES:
                names = (
                    phases.REF_LOG_PROB if datum.key in phases.REF_LOG_PROB else phases.OLD_LOG_PROB
                )
                is_own = datum.key in names
                own = array if is_own else self.data.in_shape_of(datum, array, of, names)
                mask = None if own is None else masks_of_values(self.data, own, names)
            if mask is not None:
                return Counted(np.asarray(mask != 0))
            tokens = self.data.in_shape_of(datum, array, of, phases.ROLLOUT_TOKENS)
            if tokens is not None:
                return Counted(np.asarray(tokens >= 0))
            masks = self.data.saved(phases.MASK)
            if len(masks) == 1 and len(of) > 1:  # of one of several updates of all its rows
                mask = array_of(masks[0])
                if mask.shape == array.shape:
                    return Counted(np.asarray(mask != 0), (message("trend.mask_in_order"),))
        return self._by_ends(datum, array, of)

    @cached_property
    def old_rows(self) -> OldRows:
        """The old log-probabilities of the step, whose rows those of updates are."""
        olds = self.data.saved(phases.OLD_LOG_PROB)
        return OldRows(self.data, [self.counted(datum, array_of(datum), olds) for datum in olds])

    def _by_rows(
        self, datum: KeyDatum, array: np.ndarray, of: Sequence[KeyDatum]
    ) -> Counted | None:
        """Return which elements of a save of an update count by the rows that it was given.

        These are those of its log-probabilities, where they are found by their values; None where
        its own loss was given a mask.
        """
        own = self.data.saved(phases.LOG_PROB)
        given = self.data.given_to_loss(phases.MASK, datum.micro_step)
        if datum.key not in OF_UPDATES or len(own) != len(of):
            return None
        if given is not None and given.shape == array.shape:
            return None
        of_step = next((one for one in own if one.micro_step == datum.micro_step), None)
        pair = None if of_step is None else self.old_rows.of(of_step, own)
        if pair is None or pair.counted is None or pair.own.shape != array.shape:
            return None
        by_value = () if pair.rows is None else (message("trend.rows_by_value"),)
        return replace(pair.counted, notes=(*by_value, *pair.counted.notes))

    def most_masked(self, array: np.ndarray) -> int:
        """Return how many elements of a save by token do not count at most, whichever rows it has.

        Its rows are some of the batch. 0 where nothing says that any token does not count.
        """
        rows = [mask for mask in self._all_masks if mask is not None]
        for datum in () if rows else self.data.saved(phases.MASK):
            rows += rows_of(datum, "biuf") or ()
        for datum in () if rows else self.data.saved((phases.LOSS_INPUTS,)):
            given = self.data.given_to_loss(phases.MASK, datum.micro_step)
            rows += () if given is None or given.ndim != 2 else [*given]
        if not rows:
            known = [sample for sample in self.samples if sample.source is not Source.NONE]
            rows = [np.arange(len(sample.ids)) < sample.size for sample in known]
        if array.ndim != 2 or any(len(row) != array.shape[1] for row in rows):
            return array.size if array.ndim > 1 and rows else 0
        return sum(sorted((int((row == 0).sum()) for row in rows), reverse=True)[: len(array)])

    def _mask_of_responses(
        self, datum: KeyDatum, array: np.ndarray, of: Sequence[KeyDatum]
    ) -> np.ndarray | None:
        """Return the mask of responses for a save of their rows, or of whole sequences.

        These have the responses in their last columns, and one column fewer than tokens, or none.
        Of rows that no loss was given a mask of, where others were, nothing counts.
        """
        at = next(number for number, one in enumerate(of) if one is datum)
        prompts = self.data.saved(phases.PROMPTS)
        ids = self._ids[at] if len(self._ids) == len(of) else None
        masks: Sequence[np.ndarray] = ()
        if ids is not None and any(mask is not None for mask in self._masks[at]):
            both = zip(ids, self._masks[at])
            masks = [np.zeros(len(row), bool) if mask is None else mask for row, mask in both]
        elif len(saves := self.data.saved(phases.MASK)) == len(of):
            masks = rows_of(saves[at], "biuf") or ()
        if array.ndim != 2 or len(masks) != len(array) or len({*map(len, masks)}) != 1:
            return None
        width = len(masks[0])
        found = np.zeros(array.shape, bool)
        if array.shape[1] != width:
            given = rows_of(prompts[at], "biuf") if len(prompts) == len(of) else None
            whole = {len(row) + width for row in given or ()}
            if len(whole) != 1 or whole.pop() - array.shape[1] not in (0, 1):
                return None
        found[:, array.shape[1] - width :] = np.stack(masks) != 0
        return found

    def _by_ends(
        self, datum: KeyDatum, array: np.ndarray, of: Sequence[KeyDatum]
    ) -> Counted | None:
        """Return which elements stand before the ends of the responses that they are of."""
        at = next((n for n, one in enumerate(of) if one is datum), len(of))
        if len(of) != len(self.saves) or at >= len(of) or array.ndim != 2:
            return None
        samples = self.saves[at]
        if not samples or len(samples) != len(array):
            return None
        if any(len(s.ids) != array.shape[1] or s.source is Source.NONE for s in samples):
            return None
        sizes = np.array([sample.size for sample in samples])
        is_filled = samples[0].source in (Source.FILLED, Source.LENGTHS)
        notes = () if is_filled else (message("trend.pad", pad=self.pad),)
        return Counted(np.asarray(np.arange(array.shape[1]) < sizes[:, None]), notes)

    def ids_under(self, masks: Sequence[np.ndarray], at: int) -> np.ndarray | None:
        """Return the prompts and responses of a save, if a mask has their width, or one less.

        Args:
            masks: a row of each.
            at: the number of the save.
        """
        prompts, rows = self.data.saved(phases.PROMPTS), self._ids[at]
        given = rows_of(prompts[at]) if len(prompts) == len(self._ids) else None
        if given is None or rows is None or not len(given) == len(rows) == len(masks):
            return None
        whole = [np.concatenate(both).astype(np.int64) for both in zip(given, rows)]
        more = {len(ids) - len(mask) for ids, mask in zip(whole, masks)}
        fits = len({*map(len, masks)}) == len(more) == 1 and more <= {0, 1}
        return np.stack(whole) if fits else None

    def _samples(
        self, at: int, rows: Sequence[np.ndarray], masks: Sequence[np.ndarray | None]
    ) -> Iterator[Sample]:
        lengths: Sequence[int | None] = self._saved_lengths(at, rows) or [None] * len(rows)
        filled = any(bool((ids < 0).any()) for ids in rows)
        for ids, length, trained in zip(rows, lengths, masks):
            size, start, source = self._end(ids, length, filled=filled)
            yield Sample(NO_PROMPT, ids, size, padding_from=start, trained=trained, source=source)

    def _end(self, ids: np.ndarray, length: int | None, *, filled: bool) -> tuple[int, int, Source]:
        """Return how many tokens are real for sure, from where on all are padding, and why.

        Args:
            length: the saved one; None where there is none.
            filled: whether ids below 0 stand behind the end.
        """
        width = len(ids)
        if filled:
            size = width - run_at_end(np.sign(ids), FILLED)
            return size, size, Source.FILLED
        if self.pad is not None:
            size = width - run_at_end(ids, self.pad)
            return size, self._padding_from(ids, size, length), self._known_padding[1]
        if length is not None:
            return length, length, Source.LENGTHS
        if not width or int(ids[-1]) in self.eos:
            return width, width, Source.EOS
        tail = run_at_end(ids, int(ids[-1]))
        return width - (tail if tail > 1 else 0), width, Source.NONE

    def _padding_from(self, ids: np.ndarray, size: int, length: int | None) -> int:
        """Return from where on a row of known padding is padding for sure.

        The first id of padding may be the token that ended the response, or the last sampled one of
        a response that no token ended.
        """
        width = len(ids)
        if size == width:
            return width
        if length is not None and size <= length <= size + 1:
            return length
        if self._is_pad_end:
            return size + 1
        is_ended = size > 0 and int(ids[size - 1]) in self._last
        may_be_sampled = not is_ended and (self._last or width - size == 1)
        return size + 1 if may_be_sampled else size

    def _saved_lengths(self, at: int, rows: Sequence[np.ndarray]) -> list[int] | None:
        """Return the lengths that were saved of the rows, or that their attention mask says."""
        for names in (phases.LENGTHS, phases.ATTENTION_MASK):
            saves = self.data.saved(names)
            held = rows_of(saves[at], "biuf") if len(saves) == len(self.responses) else None
            if held is None:
                continue
            if names is phases.LENGTHS:
                found = [int(one) for row in held for one in row.tolist()]
            else:
                # How many of a row's last columns stand before the end of its attention mask.
                own = [seen[max(0, len(seen) - len(ids)) :] for seen, ids in zip(held, rows)]
                found = [len(seen) - run_at_end(seen != 0, False) for seen in own]
            if len(found) == len(rows) and all(0 <= n <= len(r) for n, r in zip(found, rows)):
                return found
        return None

    @cached_property
    def prompts(self) -> list[np.ndarray]:
        """The prompt of each response without padding, int64 [tokens]; empty where not known."""
        tables = [rows_of(datum) for datum in self.data.saved(phases.PROMPTS)]
        rows = [row.astype(np.int64) for of in tables for row in of or ()]
        real = [np.flatnonzero((row != self.pad) & (row >= 0)) for row in rows]
        found = [row[at[0] : at[-1] + 1] if len(at) else row[:0] for row, at in zip(rows, real)]
        return found if len(found) == len(self.samples) else []

    def _attended(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield rows of attention masks, saved or given to losses, and the ids of their tokens."""
        saves = (
            self.data.saved(phases.ATTENTION_MASK),
            self.data.saved(phases.PROMPTS),
            self.responses,
        )
        for mask, prompts, responses in zip(*saves) if len({*map(len, saves)}) == 1 else ():
            prompt_rows, answered = rows_of(prompts), rows_of(responses)
            if prompt_rows is not None and answered is not None:
                whole = (np.concatenate(both) for both in zip(prompt_rows, answered))
                yield from zip(rows_of(mask, "biuf") or (), whole)
        for datum in self.data.saved((phases.LOSS_INPUTS,)):
            inputs = arrays_of(datum)
            for name in phases.ATTENTION_MASK:
                given = inputs.get(name)
                ids = None if given is None else ids_under(given, inputs)
                if given is not None and ids is not None:
                    yield from zip(given, ids)


def has_hole(selects: np.ndarray, ids: np.ndarray, pad: int | None) -> bool:
    """Return whether a mask leaves out tokens between others, which are no ids of padding."""
    chosen = np.flatnonzero(selects)
    if not len(chosen):
        return False
    inside = slice(int(chosen[0]), int(chosen[-1]))
    left = ~selects[inside]
    return bool((left & (ids[inside] != pad)).any()) if pad is not None else bool(left.any())


def _pad_by_eos(rows: Sequence[np.ndarray], eos: frozenset[int]) -> int | None:
    """Return the id that fills all rows up behind a token that ends a response; None if none.

    Where tokens that end responses fill rows up, too, it is one of these.
    """
    found: set[int] = set()
    for ids in rows:
        run = run_at_end(ids, int(ids[-1])) if len(ids) else 0
        last = int(ids[-1]) if len(ids) else FILLED
        if last in eos:
            found |= {last} if run > 1 else set()
        elif eos & {*ids.tolist()}:
            before = int(ids[len(ids) - run - 1])
            found |= {last if before in eos else FILLED}
    return found.pop() if len(found) == 1 and FILLED not in found else None


def _pad_by_masks(
    rows: Sequence[np.ndarray], masks: Sequence[np.ndarray | None], eos: frozenset[int]
) -> int | None:
    """Return the id that stands behind all that masks select, to the ends of rows; None if none.

    It is one id in all rows, whose mask leaves out the whole run of it at the end.
    """
    found: set[int] = set()
    for ids, mask in zip(rows, masks):
        if mask is None or not len(ids) or mask[-1] or int(ids[-1]) in eos:
            continue
        fill = int(ids[-1])
        if mask[len(ids) - run_at_end(ids, fill) :].any():
            return None
        found.add(fill)
    return found.pop() if len(found) == 1 else None
