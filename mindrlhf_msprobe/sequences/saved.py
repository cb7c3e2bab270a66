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
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.phases import MASK, PROMPTS, RESPONSES
from mindrlhf_msprobe.sequences.batch import FILLED, Sample
from mindrlhf_msprobe.sequences.beginnings import holds, longest_common, run_at_start, shared_length
from mindrlhf_msprobe.sequences.inputs import CallInputs
from mindrlhf_msprobe.sequences.step_data import rows_of
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import Entry

#: The tokens before a window, and those in it.
_Key = tuple[bytes, bytes]
#: A call: what it was given, its entry, and where it begins a window what stands before the token
#: of each sample; of a sample None where that is not known.
Call = tuple[CallInputs, Entry, "Sequence[Beginning | None] | None"]


class SavedSamples:
    """The saved samples of a step, found by the tokens that they begin with.

    Args:
        samples: those of the step; their places in it are their numbers.

    Attributes:
        all: the same.
        prompted: the numbers of those whose prompt is known.
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.all = samples
        self._by_prompt: dict[bytes, list[int]] = {}
        for number, sample in enumerate(samples):
            if len(sample.prompt):
                self._by_prompt.setdefault(sample.prompt.tobytes(), []).append(number)
        self.prompted = [number for numbers in self._by_prompt.values() for number in numbers]
        self._lengths = sorted({len(samples[number].prompt) for number in self.prompted})

    def begun_by(self, tokens: np.ndarray) -> Iterator[int]:
        """Yield the samples whose whole prompt tokens begin with; int64 [tokens]."""
        for length in self._lengths:
            if length <= len(tokens):
                yield from self._by_prompt.get(tokens[:length].tobytes(), ())

    def like(self, tokens: np.ndarray) -> Iterator[int]:
        """Yield the samples whose prompt tokens begin with, or that begins with them."""
        yield from self.begun_by(tokens)
        if len(tokens) < max(self._lengths, default=0):
            start = tokens.tobytes()
            for prompt, numbers in self._by_prompt.items():
                if len(prompt) > len(start) and prompt.startswith(start):
                    yield from numbers

    def held_by(self, tokens: np.ndarray) -> int:
        """Return how many tokens are a whole prompt and its response; 0 if they begin with none."""
        return max(
            (shared_length(tokens, self.all[n].tokens) for n in self.begun_by(tokens)), default=0
        )

    def before(self, tokens: Sequence[int], start: int) -> Beginning | None:
        """Return what stands before tokens that begin at a position.

        None where no sample has them there, or where several do behind other tokens. Behind its
        end, or before its last token, which need not be given, a sample may go on with padding.
        """
        wanted = np.asarray(tokens, np.int64)
        able = [(sample, shared_length(sample.tokens[start:], wanted)) for sample in self.all]
        most = max((same for _, same in able), default=0)
        found = {
            (sample.tokens[:start].tobytes(), len(sample.prompt)): sample
            for sample, same in able
            if same == most and same >= min(len(wanted), max(1, len(sample.tokens) - start - 1))
        }
        if not most or len(found) != 1:
            return None
        (sample,) = found.values()
        return Beginning(sample.tokens[:start], len(sample.prompt))


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
    calls: Iterable[tuple[CallInputs, Entry]], samples: Sequence[Sample]
) -> Iterator[Call]:
    """Yield calls in their order, and with the first of each window what stands before it.

    A window begins where the calls right before it were not recorded.

    Args:
        samples: those of the step; without any, nothing is known of a window.
    """
    window: list[tuple[CallInputs, Entry]] = []
    before = -1
    for inputs, entry in calls:
        plain = not inputs.flat and inputs.ends is None and inputs.blocks is None
        one_each = plain and inputs.ids.shape[1] == 1
        if window:
            last = window[-1][1]
            follows = (entry.call, entry.token) == (last.call + 1, (last.token or 0) + 1)
            if not (follows and one_each and len(inputs.ids) == len(window[0][0].ids)):
                yield from _begun(window, samples)
                window = []
        begins = samples and one_each and entry.token and entry.call != before + 1
        if window or begins:
            window.append((inputs, entry))
        else:
            yield inputs, entry, None
        before = entry.call
    yield from _begun(window, samples)


def _begun(window: Sequence[tuple[CallInputs, Entry]], samples: Sequence[Sample]) -> Iterator[Call]:
    for number, (inputs, entry) in enumerate(window):
        yield inputs, entry, None if number else _beginnings(window, samples)


def _beginnings(
    window: Sequence[tuple[CallInputs, Entry]], samples: Sequence[Sample]
) -> list[Beginning | None]:
    """Return what stands before the window in each sample of its calls; None where nobody knows.

    A token that is generated is what the next call is given: the call of token n has the response's
    token n - 1. Where more samples fit nothing than have ended before, what was saved is of
    something else.
    """
    tokens = np.concatenate([inputs.ids for inputs, _ in window], axis=1).astype(np.int64)
    offset = (window[0][1].token or 0) - 1
    there = Counter[_Key]()  # how often each window is in the saved samples
    known: dict[_Key, Beginning] = {}  # and what stands before it
    for sample in samples:
        seen = sample.ids[offset : offset + tokens.shape[1]]
        if len(sample.prompt) and len(seen) == tokens.shape[1] and (seen >= 0).all():
            whole = np.concatenate([sample.prompt, sample.ids[:offset]])
            key = whole.tobytes(), seen.tobytes()
            there[key] += 1
            known[key] = Beginning(whole, len(sample.prompt))
    fitting = [[key for key in known if key[1] == row.tobytes()] for row in tokens]
    if fitting.count([]) > len(samples) - there.total():
        return [None] * len(tokens)
    taken = Counter(keys[0] for keys in fitting if len(keys) == 1)
    return [
        known[keys[0]] if len(keys) == 1 and taken[keys[0]] <= there[keys[0]] else None
        for keys in fitting
    ]


_MOST_ROWS = 4096
#: Stands for the id of padding where there is none: no token has it.
NO_PADDING = -1
#: Keys that hold prompts, and those that hold the responses to them.
_PAIRS = ((("rollout_prompts",), ("rollout_tokens",)), (PROMPTS, RESPONSES))
#: Returns the saves of a key.
_Saved = Callable[[str], Sequence[KeyDatum]]


def unlike_saved(saves: Iterable[KeyDatum], sequences: Sequence[np.ndarray]) -> Message | None:
    """Say that most saved rows of token ids stand in no sequence; None where they do, or are texts.

    Of a row, what it ends and begins with again and again is taken for padding; of each such run
    the innermost may be a token.

    Args:
        saves: of `prompts` and `responses`.
        sequences: the tokens of a phase, int64.
    """
    found, key, missing = 0, "", 0
    known = [sequence.astype(np.int64).tobytes() for sequence in sequences]
    for datum in saves:
        for whole in _rows(datum):
            found += 1
            changes = np.flatnonzero(np.diff(whole))
            row = whole[changes[0] + 1 : changes[-1] + 1] if len(changes) else whole[:0]
            if not any(holds(sequence, row) for sequence in known):
                key, missing = datum.key, missing + 1
    if 2 * missing <= found:
        return None
    return message("tokens.unlike_saved", key=key, missing=missing, rows=found)


def pad_of_prompts(saved: _Saved) -> int | None:
    """Return the id that saved prompts of one length are padded with, where they say it themselves.

    It is repeated at one end of a row, stands at that end of some rows but not of all, the longest
    being whole, and nowhere else.
    """
    rows = [row for names, _ in _PAIRS for of in _saves(saved, names) for row in of]
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


def are_tokens(pad: int, saved: _Saved, sequences: Sequence[np.ndarray]) -> bool:
    """Return whether what looks like padding behind prompts are tokens of theirs.

    A network was given such a prompt, all of it, and its response right behind.
    """
    begins = set()
    for names in _PAIRS:
        both = [[row for of in _saves(saved, keys) for row in of] for keys in names]
        for prompt, response in zip(*both):
            if len(prompt) and len(response) and prompt[-1] == pad:
                begins.add((*prompt.tolist(), int(response[0])))
    sizes = {*map(len, begins)}
    return any(tuple(t[:size].tolist()) in begins for t in sequences for size in sizes)


def may_be_padded(saved: _Saved) -> bool:
    """Return whether prompts were saved as token ids of which the padding is not known."""
    saves = [rows for names, _ in _PAIRS for rows in _saves(saved, names)]
    return any(_prompts(rows, None) is None for rows in saves if rows)


def saved_samples(
    saved: _Saved, pad: int | None, own: Mapping[bytes, int] = MappingProxyType({})
) -> tuple[Sample, ...]:
    """Return the prompts and responses of a step; none where they are texts, or do not go together.

    Prompts of one save that have one length may be padded: they are taken where it is known with
    what, or where no two begin, or end, with one token and none with the same one twice. Of those
    of unlike lengths nothing is taken away.

    Args:
        saved: returns the saves of a key.
        pad: the token id of padding, or None.
        own: with how many ids of padding prompts begin, by the tokens of the sample without them.
    """
    masks = next((rows for name in MASK if (rows := _saves(saved, (name,), "iufb"))), [])
    for names in _PAIRS:
        of_prompts, of_responses = (_saves(saved, keys) for keys in names)
        known = [_prompts(rows, pad) for rows in of_prompts]
        if any(rows is None for rows in known):
            continue
        prompts = [row for rows in known for row in rows or ()]
        responses = [row for rows in of_responses for row in rows]
        if 0 < len(prompts) == len(responses) < _MOST_ROWS:
            sizes = _sizes(of_responses, masks, pad)
            whole = (row for rows in of_prompts for row in rows)
            fillers = [
                row[: 0 if run_at_start(own, pad) else run_at_start(row, pad)]
                for row, own in zip(whole, prompts)
            ]
            found = [*map(Sample, prompts, responses, sizes, fillers)]
            for number, one in enumerate(found):
                if count := own.get(one.tokens.tobytes(), 0):
                    # Its prompt begins with the last ids of what stood before it.
                    filler, first = np.split(one.filler, [len(one.filler) - count])
                    prompt = np.concatenate([first, one.prompt])
                    found[number] = replace(one, prompt=prompt, filler=filler)
            return tuple(found)
    return ()


def _saves(saved: _Saved, names: Iterable[str], kinds: str = "iu") -> list[list[np.ndarray]]:
    """Return the first rows of each save of some keys, int64 [tokens]; none of texts."""
    saves = [datum for name in names for datum in saved(name)]
    return [_rows(datum, kinds) for datum in saves]


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


def _prompts(rows: list[np.ndarray], pad: int | None) -> list[np.ndarray] | None:
    """Return the prompts of one save without padding; None where it is not known what that is."""
    if any((row == FILLED).any() for row in rows):
        pad = FILLED
    elif len({len(row) for row in rows}) > 1:
        return rows
    if pad is None:
        for step in (1, -1):  # they may begin or end with padding
            ends = [row[::step] for row in rows]
            repeats = any(len(row) > 1 and row[0] == row[1] for row in ends)
            if repeats or 1 < len({int(row[0]) for row in ends if len(row)}) < len(rows):
                return None
        return rows
    starts, behind = ([run_at_start(row[::step], pad) for row in rows] for step in (1, -1))
    # They end in one column, unless all begin with the token that fills them up behind.
    if any(starts) and not (any(behind) and {*starts} == {1}):
        return [row[run:] for row, run in zip(rows, starts)]
    return [row[: len(row) - run] for row, run in zip(rows, behind)]


def _rows(datum: KeyDatum, kinds: str = "iu") -> list[np.ndarray]:
    """Return the first rows of a save, int64 [tokens] each; none of texts."""
    return [row.astype(np.int64) for row in (rows_of(datum, kinds) or ())[:_MOST_ROWS]]


UNKNOWN = -1


def of_saved(
    sequences: Sequence[np.ndarray],
    samples: Sequence[Sample],
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
    for sequence, size_given, number, shared in zip(
        sequences, given, partners.tolist(), common.tolist()
    ):
        size, end = 0, len(sequence)
        if number >= 0:
            size = len(samples[number].prompt)
            whole = len(samples[number].tokens)
            open_end = shared >= size and (size_given == end or shared == whole - 1)
            behind = sequence[shared:]
            # Padding is its id, or one id again and again beyond the response.
            is_padding = pad is not None and bool((behind == pad).all())
            is_padding |= end > whole and bool((behind == behind[:1]).all())
            if shared == whole or (open_end and is_padding):
                end = shared
        is_it = size > 0 and min(size, len(sequence)) <= shared
        numbers.append(number if is_it else UNKNOWN)
        ends.append(end if is_it else len(sequence))
    return tuple(numbers), tuple(ends)


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
