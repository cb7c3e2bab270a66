"""Prompts and responses that were saved as token ids: the samples of a step.

They are held against the tokens of a phase, they say which sample each of its sequences is, and
what stands before a window that was recorded without the pass over the prompts: calls that have one
token of each sample do not say which samples these are, so the tokens of a window are looked for at
their place in the responses, which the number of the generated token says. What fits one beginning
alone has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.phases import MASK, PROMPTS, RESPONSES
from mindrlhf_msprobe.sequences.batch import FILLED
from mindrlhf_msprobe.sequences.beginnings import holds, longest_common, run_at_start
from mindrlhf_msprobe.sequences.inputs import CallInputs
from mindrlhf_msprobe.sequences.step_data import rows_of
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import Entry

#: The tokens before a window, and those in it.
_Key = tuple[bytes, bytes]
#: A call: what it was given, its entry, and where it begins a window what stands before the token
#: of each sample; of a sample None where that is not known.
Call = tuple[CallInputs, Entry, "Sequence[Beginning | None] | None"]


@dataclass(frozen=True)
class SavedSample:
    """A prompt and its response as they were saved.

    Attributes:
        prompt: int64 [tokens], without padding.
        response: int64 [tokens]; behind its end padding, or less than 0.
        size: how many tokens the response has; None: all that are not less than 0.
        filler: the ids of padding that stood before the prompt, int64; the last may be its own
            first tokens, as where one token begins texts and fills them up.
    """

    prompt: np.ndarray
    response: np.ndarray
    size: int | None = None
    filler: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def with_own(self, count: int) -> SavedSample:
        """Return the sample whose prompt begins with the last ids of what stood before it."""
        filler, own = np.split(self.filler, [len(self.filler) - count])
        return replace(self, prompt=np.concatenate([own, self.prompt]), filler=filler)

    @cached_property
    def tokens(self) -> np.ndarray:
        """The prompt and the response, int64."""
        size = int((self.response >= 0).sum()) if self.size is None else self.size
        return np.concatenate([self.prompt, self.response[:size]])


@dataclass(frozen=True)
class Beginning:
    """The tokens before a window.

    Attributes:
        tokens: int64, the prompt and what was generated before.
        prompt: how many of them are the prompt.
    """

    tokens: np.ndarray
    prompt: int


def with_beginnings(
    calls: Iterable[tuple[CallInputs, Entry]], samples: Sequence[SavedSample]
) -> Iterator[Call]:
    """Yield calls in their order, and with the first of each window what stands before it.

    Args:
        samples: those of the step; without any, nothing is known of a window.
    """
    window: list[tuple[CallInputs, Entry]] = []
    before: Entry | None = None
    for inputs, entry in calls:
        if window and not _goes_on(window, inputs, entry):
            yield from _begun(window, samples)
            window = []
        if window or (samples and _begins(inputs, entry, before)):
            window.append((inputs, entry))
        else:
            yield inputs, entry, None
        before = entry
    yield from _begun(window, samples)


def _has_one_each(inputs: CallInputs) -> bool:
    plain = not inputs.flat and inputs.ends is None and inputs.blocks is None
    return plain and inputs.ids.shape[1] == 1


def _begins(inputs: CallInputs, entry: Entry, before: Entry | None) -> bool:
    """Return whether the calls right before this one were not recorded."""
    last = -1 if before is None else before.call
    return _has_one_each(inputs) and bool(entry.token) and entry.call != last + 1


def _goes_on(window: Sequence[tuple[CallInputs, Entry]], inputs: CallInputs, entry: Entry) -> bool:
    first, last = window[0][0], window[-1][1]
    follows = (entry.call, entry.token) == (last.call + 1, (last.token or 0) + 1)
    return follows and _has_one_each(inputs) and len(inputs.ids) == len(first.ids)


def _begun(
    window: Sequence[tuple[CallInputs, Entry]], samples: Sequence[SavedSample]
) -> Iterator[Call]:
    for number, (inputs, entry) in enumerate(window):
        yield inputs, entry, None if number else _beginnings(window, samples)


def _beginnings(
    window: Sequence[tuple[CallInputs, Entry]], samples: Sequence[SavedSample]
) -> list[Beginning | None]:
    """Return what stands before the window in each sample of its calls; None where nobody knows.

    A token that is generated is what the next call is given: the call of token n has the response's
    token n - 1. Where more samples fit nothing than have ended before, what was saved is of
    something else.
    """
    tokens = np.concatenate([inputs.ids for inputs, _ in window], axis=1).astype(np.int64)
    offset = (window[0][1].token or 0) - 1
    there, known = _saved_at(samples, offset, tokens.shape[1])
    fitting = [[key for key in known if key[1] == row.tobytes()] for row in tokens]
    if fitting.count([]) > len(samples) - there.total():
        return [None] * len(tokens)
    taken = Counter(keys[0] for keys in fitting if len(keys) == 1)
    return [
        known[keys[0]] if len(keys) == 1 and taken[keys[0]] <= there[keys[0]] else None
        for keys in fitting
    ]


def _saved_at(
    samples: Iterable[SavedSample], offset: int, width: int
) -> tuple[Counter[_Key], dict[_Key, Beginning]]:
    """Return how often each window is in the saved samples, and what stands before it.

    Args:
        offset: the place of the window in the responses.
        width: how many tokens it has; shorter responses are left out.
    """
    there = Counter[_Key]()
    known: dict[_Key, Beginning] = {}
    for sample in samples:
        seen = sample.response[offset : offset + width]
        if len(sample.prompt) and len(seen) == width and (seen >= 0).all():
            whole = np.concatenate([sample.prompt, sample.response[:offset]])
            key = whole.tobytes(), seen.tobytes()
            there[key] += 1
            known[key] = Beginning(whole, len(sample.prompt))
    return there, known


_MOST_ROWS = 4096
#: Stands for the id of padding where there is none: no token has it.
NO_PADDING = -1
#: Keys that hold prompts, and those that hold the responses to them.
_PAIRS = ((("rollout_prompts",), ("rollout_tokens",)), (PROMPTS, RESPONSES))


def unlike_saved(saves: Iterable[KeyDatum], sequences: Sequence[np.ndarray]) -> Message | None:
    """Say that most saved rows of token ids stand in no sequence; None where they do, or are texts.

    Of a row, what it ends and begins with again and again is taken for padding.

    Args:
        saves: of `prompts` and `responses`.
        sequences: the tokens of a phase, int64.
    """
    found, key, missing = 0, "", 0
    known = [sequence.astype(np.int64).tobytes() for sequence in sequences]
    for datum in saves:
        for row in map(_without_runs, _rows(datum)[:_MOST_ROWS]):
            found += 1
            if not any(holds(sequence, row) for sequence in known):
                key, missing = datum.key, missing + 1
    if 2 * missing <= found:
        return None
    return message("tokens.unlike_saved", key=key, missing=missing, rows=found)


def pad_of_prompts(saved: Callable[[str], Sequence[KeyDatum]]) -> int | None:
    """Return the id that saved prompts of one length are padded with, where they say it themselves.

    It is repeated at one end of a row, stands at that end of some rows but not of all, the longest
    being whole, and nowhere else.
    """
    rows = [row for names, _ in _PAIRS for name in names for d in saved(name) for row in _rows(d)]
    if len({len(row) for row in rows}) != 1:
        return None
    found = set()
    for table in (np.stack(rows), np.stack(rows)[:, ::-1]):
        for pad in np.unique(table[:, 0]).tolist():
            run = np.cumprod(table == pad, axis=1).sum(axis=1)
            alone = int((table == pad).sum()) == int(run.sum())
            if alone and run.max() > 1 and not run.min():
                found.add(pad)
    return found.pop() if len(found) == 1 else None


def are_tokens(
    pad: int, saved: Callable[[str], Sequence[KeyDatum]], sequences: Sequence[np.ndarray]
) -> bool:
    """Return whether what looks like padding behind prompts are tokens of theirs.

    A network was given such a prompt, all of it, and its response right behind.
    """
    begins = set()
    for names in _PAIRS:
        both = [[row for name in keys for d in saved(name) for row in _rows(d)] for keys in names]
        for prompt, response in zip(*both):
            if len(prompt) and len(response) and prompt[-1] == pad:
                begins.add((*prompt.tolist(), int(response[0])))
    sizes = {*map(len, begins)}
    return any(tuple(t[:size].tolist()) in begins for t in sequences for size in sizes)


def may_be_padded(saved: Callable[[str], Sequence[KeyDatum]]) -> bool:
    """Return whether prompts were saved as token ids of which the padding is not known."""
    saves = [[_rows(d) for name in names for d in saved(name)] for names, _ in _PAIRS]
    return any(_prompts(rows, None) is None for of in saves for rows in of if rows)


def saved_samples(
    saved: Callable[[str], Sequence[KeyDatum]],
    pad: int | None,
    own: Mapping[bytes, int] = MappingProxyType({}),
) -> tuple[SavedSample, ...]:
    """Return the prompts and responses of a step; none where they are texts, or do not go together.

    Prompts of one save that have one length may be padded: they are taken where it is known with
    what, or where no two begin, or end, with one token and none with the same one twice. Of those
    of unlike lengths nothing is taken away.

    Args:
        saved: returns the saves of a key.
        pad: the token id of padding, or None.
        own: with how many ids of padding prompts begin, by the tokens of the sample without them.
    """
    masks = next((rows for name in MASK if (rows := [_rows(d, "iufb") for d in saved(name)])), [])
    for names in _PAIRS:
        both = [[_rows(d) for name in keys for d in saved(name)] for keys in names]
        prompts = _all_prompts(both[0], pad)
        responses = [row for rows in both[1] for row in rows]
        if prompts is not None and 0 < len(prompts) == len(responses) < _MOST_ROWS:
            sizes = _sizes(both[1], masks, pad)
            runs = [row[: _run(row, pad)] for rows in both[0] for row in rows]
            fillers = [run[: 0 if _run(own, pad) else None] for run, own in zip(runs, prompts)]
            found = map(SavedSample, prompts, responses, sizes, fillers)
            return tuple(one.with_own(own.get(one.tokens.tobytes(), 0)) for one in found)
    return ()


def _sizes(
    responses: list[list[np.ndarray]], masks: list[list[np.ndarray]], pad: int | None
) -> list[int]:
    """Return how many tokens each response has, up to the last that counts or is no padding.

    Args:
        responses: the rows of each save.
        masks: those of each save of what says which tokens count.
        pad: the token id of padding, or None.
    """
    found = []
    fits = [[*map(len, rows)] for rows in masks] == [[*map(len, rows)] for rows in responses]
    for number, rows in enumerate(responses):
        filled = len({len(row) for row in rows}) == 1
        for at, row in enumerate(rows):
            tokens = row != FILLED
            if fits and masks[number][at].any():
                tokens = masks[number][at] != 0
            elif filled and tokens.all() and pad is not None:
                tokens = row != pad
            found.append(len(row) - int(tokens[::-1].argmax()) if tokens.any() else 0)
    return found


def _all_prompts(saves: list[list[np.ndarray]], pad: int | None) -> list[np.ndarray] | None:
    """Return the prompts of all saves; None where one's padding is not known."""
    found: list[np.ndarray] = []
    for rows in saves:
        prompts = _prompts(rows, pad)
        if prompts is None:
            return None
        found += prompts
    return found


def _prompts(rows: list[np.ndarray], pad: int | None) -> list[np.ndarray] | None:
    """Return the prompts of one save without padding; None where it is not known what that is."""
    if any((row == FILLED).any() for row in rows):
        pad = FILLED
    elif len({len(row) for row in rows}) > 1:
        return rows
    if pad is None:
        return None if _may_have_padding(rows) else rows
    starts, ends = ([_run(row[::step], pad) for row in rows] for step in (1, -1))
    # They end in one column, unless all begin with the token that fills them up behind.
    before = any(starts) and not (any(ends) and {*starts} == {1})
    return [_unpadded(row, pad, before=before) for row in rows]


def _run(row: np.ndarray, pad: int | None) -> int:
    """Return with how many ids of padding a row begins."""
    return 0 if pad is None else run_at_start(row, pad)


def _may_have_padding(rows: list[np.ndarray]) -> bool:
    """Return whether rows of one length may begin or end with padding."""
    for step in (1, -1):
        ends = [row[::step] for row in rows]
        repeats = any(len(row) > 1 and row[0] == row[1] for row in ends)
        if repeats or (
            len(rows) > 1 and 1 < len({int(row[0]) for row in ends if len(row)}) < len(rows)
        ):
            return True
    return False


def _unpadded(row: np.ndarray, pad: int, *, before: bool) -> np.ndarray:
    """Return a row without the padding before or behind its tokens."""
    tokens = np.flatnonzero(row != pad)
    if not len(tokens):
        return row[:0]
    return row[tokens[0] :] if before else row[: tokens[-1] + 1]


def _rows(datum: KeyDatum, kinds: str = "iu") -> list[np.ndarray]:
    """Return the first rows of a save, int64 [tokens] each; none of texts."""
    return [row.astype(np.int64) for row in (rows_of(datum, kinds) or ())[:_MOST_ROWS]]


def _without_runs(row: np.ndarray) -> np.ndarray:
    """Return a row without runs of one id at its ends; of each the innermost may be a token."""
    changes = np.flatnonzero(np.diff(row))
    return row[changes[0] + 1 : changes[-1] + 1] if len(changes) else row[:0]


UNKNOWN = -1


def of_saved(
    sequences: Sequence[np.ndarray],
    samples: Sequence[SavedSample],
    begun: Sequence[int] = (),
    pad: int | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the number of each sequence's sample, and how many of its tokens are no padding.

    A sequence is the sample that it shares the most tokens with, if these are the prompt or all
    that the sequence has. One that has a whole response ends with it. One that has all of it but
    the last token, which need not be given to a network, or was given in one call, as by a
    generation without a cache, ends where nothing but padding follows. -1 and all tokens of others.

    Args:
        begun: how many tokens the call that began each sequence was given.
        pad: the token id of padding, or None.
    """
    partners, common = longest_common(sequences, [sample.tokens for sample in samples])
    numbers, ends = [], []
    given = begun or [-1] * len(sequences)
    for sequence, size_given, number, alike in zip(
        sequences, given, partners.tolist(), common.tolist()
    ):
        size, end = 0, len(sequence)
        if number >= 0:
            size = len(samples[number].prompt)
            whole = len(samples[number].tokens)
            open_end = alike >= size and (size_given == end or alike == whole - 1)
            if alike == whole or (open_end and _is_padding(sequence[alike:], end > whole, pad)):
                end = alike
        is_it = size > 0 and min(size, len(sequence)) <= alike
        numbers.append(number if is_it else UNKNOWN)
        ends.append(end if is_it else len(sequence))
    return tuple(numbers), tuple(ends)


def _is_padding(behind: np.ndarray, over: bool, pad: int | None) -> bool:
    """Return whether tokens are padding: its id, or one id again and again beyond the response.

    Args:
        over: whether there are more of them than the response has.
    """
    if pad is not None and bool((behind == pad).all()):
        return True
    return over and bool((behind == behind[0]).all())


def prompt_sizes(begun: Sequence[int], sequences: Sequence[np.ndarray]) -> list[int]:
    """Return how many tokens of each sequence are its prompt, as far as the phase itself says it.

    The cache of a sequence may be filled again with all tokens so far. Then an earlier sequence has
    these tokens, but for the last, and was begun with fewer.

    Args:
        begun: how many tokens the call that began each sequence was given.
    """
    found = [*begun]
    earlier: dict[bytes, list[int]] = {}
    sizes: set[int] = set()
    for number, (size, sequence) in enumerate(zip(begun, sequences)):
        given = sequence[:size]
        for shorter in sorted(size_before for size_before in sizes if 0 < size_before < size):
            for other in earlier.get(sequence[:shorter].tobytes(), ()):
                before = sequences[other][:size]
                if len(before) >= size - 1 and np.array_equal(before, given[: len(before)]):
                    found[number] = min(found[number], shorter)
        earlier.setdefault(given.tobytes(), []).append(number)
        sizes.add(size)
    return found
