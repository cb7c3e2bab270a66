"""Samples of a paged cache: which one goes on in a call, and what stands in blocks that they share.

A sample whose prompt begins like another's may be given that one's blocks (prefix caching). Its
first call then begins behind them, and its first block says no longer which sample it is. How many
tokens a block holds follows from block tables, slots and positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mindrlhf_msprobe.sequences.beginnings import shared_length

_MOST = 1024  # tokens of a block
_FITTING = 0.5  # of all tokens: so many must stand in the slots that a size says


class BlockSize:
    """Finds out the size of blocks, call by call."""

    def __init__(self) -> None:
        self._sizes = np.arange(1, _MOST + 1)
        self._fitting = np.zeros(_MOST, np.int64)
        self._seen = 0

    def add(self, tables: np.ndarray, slots: np.ndarray, positions: np.ndarray) -> None:
        """Add tokens of which it is known where they are written to.

        Args:
            tables: int64 [tokens, blocks], the blocks of each token's sample.
            slots, positions: int64 [tokens].
        """
        for at in range(len(slots)):
            place = positions[at] // self._sizes
            inside = place < tables.shape[1]
            block = tables[at][np.where(inside, place, 0)]
            slot = block * self._sizes + positions[at] % self._sizes
            self._fitting += inside & (slot == slots[at])
        self._seen += len(slots)
        kept = self._fitting >= _FITTING * self._seen
        if kept.any() and len(self._sizes) > 1:
            self._sizes, self._fitting = self._sizes[kept], self._fitting[kept]

    def found(self) -> int | None:
        """Return the size; None where nothing, or more than one size, fits."""
        fits = self._sizes[self._fitting >= _FITTING * max(1, self._seen)]
        return int(fits[0]) if len(fits) == 1 else None


_OF_BLOCK = 1 << 32  # more than there are blocks: samples that share the first have other keys


def block_of(key: int) -> int:
    """Return the first block of what a sample keeps from call to call."""
    return key % _OF_BLOCK


class Tables:
    """The block tables of samples, by what each keeps from call to call: its key.

    The key of a sample is its first block, as long as no other sample has it.
    """

    def __init__(self) -> None:
        self._tables: dict[int, np.ndarray] = {}
        self._of_block: dict[int, list[int]] = {}

    def keys(
        self, blocks: np.ndarray, starts: Sequence[int | None], have: Mapping[int, int]
    ) -> list[int]:
        """Return the keys of the samples of a call.

        Args:
            blocks: int64 [samples or more, any].
            starts: the position of each sample's first token, or None.
            have: key → the position behind its last token.
        """
        found: dict[int, int] = {}
        by_block: dict[int, list[int]] = {}
        for number in range(len(starts)):
            by_block.setdefault(int(blocks[number, 0]), []).append(number)
        for block, numbers in by_block.items():
            begin = [number for number in numbers if not starts[number]]
            if begin and all(starts[number] == 0 for number in begin):
                self._of_block[block] = []  # what stood there is overwritten
            members = self._of_block.get(block, [])
            going = [number for number in numbers if number not in begin]
            known = self._going_on(going, members, blocks, starts, have)
            found |= known
            used = {*known.values()}
            for number in [*begin, *(n for n in going if n not in known)]:
                taken = used if number in begin else used | {*members}
                keys = (block + at * _OF_BLOCK for at in range(1 << 20))
                found[number] = next(key for key in keys if key not in taken)
                used.add(found[number])
        return [found[number] for number in range(len(starts))]

    def took(self, key: int, table: np.ndarray) -> None:
        """Take note of the blocks with which a sample went on."""
        self._tables[key] = table
        known = self._of_block.setdefault(block_of(key), [])
        if key not in known:
            known.append(key)

    def _going_on(
        self,
        numbers: Sequence[int],
        members: Sequence[int],
        blocks: np.ndarray,
        starts: Sequence[int | None],
        have: Mapping[int, int],
    ) -> dict[int, int]:
        """Return the keys of samples that go on; those that fit best are found first."""
        able = [
            (
                have.get(key) == starts[number],
                shared_length(self._tables[key], blocks[number]),
                number,
                key,
            )
            for number in numbers
            for key in members
        ]
        found: dict[int, int] = {}
        for is_next, shared, number, key in sorted(able, key=lambda a: (not a[0], -a[1], a[2:])):
            before, table = self._tables[key], blocks[number]
            # It may be the table of before, with further blocks behind.
            goes_on = is_next or shared == min(len(before), len(table))
            goes_on = goes_on or before[shared] <= 0 or table[shared] <= 0
            if number not in found and key not in found.values() and goes_on:
                found[number] = key
        return found


class Written:
    """Which sequences were written to which blocks, the last ones last."""

    def __init__(self) -> None:
        self._by: dict[int, tuple[np.ndarray, int]] = {}

    def add(self, sequence: int, table: np.ndarray, end: int) -> None:
        """Take note that a sequence was written up to a position."""
        self._by.pop(sequence, None)
        self._by[sequence] = table, end

    def before(
        self,
        table: np.ndarray,
        start: int,
        size: int | None,
        tokens_of: Callable[[int], list[int] | None],
    ) -> list[int] | None:
        """Return the tokens that stand in the blocks before a position; None where nobody knows.

        Args:
            table: int64 [blocks], of a sample that begins there.
            size: how many tokens a block holds; None: as many as follow from the blocks that it
                shares with others.
            tokens_of: returns the tokens of a sequence; None where it is not known what stands
                before these.
        """
        shared = {
            n: shared_length(table, of) for n, (of, _) in self._by.items() if of[0] == table[0]
        }
        most = max(shared.values(), default=0)
        if most and size is None and start % most == 0:
            size = start // most
        count = most if size is None else -(-start // size)
        able = [n for n, same in shared.items() if same >= count and self._by[n][1] >= start]
        if not count or not able:
            return None
        last = able[-1]
        tokens = tokens_of(last)
        numbers = [*self._by]
        for number in numbers[numbers.index(last) + 1 :]:
            # Up to where a later sequence was written to these blocks.
            of, end = self._by[number]
            used = of if size is None else of[: -(-end // size)]
            at = np.flatnonzero(np.isin(table[:count], used))
            if not len(at):
                continue
            end = start if size is None else min(start, (int(at[-1]) + 1) * size)
            own = tokens_of(number)
            if tokens is None or own is None or own[:end] != tokens[:end]:
                return None  # it was given to another sample
        return None if tokens is None else tokens[:start]
