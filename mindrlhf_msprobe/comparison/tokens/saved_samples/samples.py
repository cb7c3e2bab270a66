"""Which saved prompt and response each sequence of a phase is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mindrlhf_msprobe.comparison.tokens.beginnings import longest_common
from mindrlhf_msprobe.comparison.tokens.saved_samples.windows import SavedSample

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
