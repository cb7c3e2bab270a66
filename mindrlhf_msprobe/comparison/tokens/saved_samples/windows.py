"""What stands before the tokens of a window that was recorded without the pass over the prompts.

Calls that have one token of each sample do not say which samples these are. Where the step holds
prompts and responses as token ids, the tokens of a window are looked for at their place in the
responses: the number of the token that is generated says it. What fits one beginning alone has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.tokens.inputs import CallInputs
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
    """

    prompt: np.ndarray
    response: np.ndarray
    size: int | None = None

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
