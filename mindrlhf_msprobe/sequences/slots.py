"""Which open sequence each sample of a call goes on with, where the batch is put together anew.

In continuous batching requests begin alone, join and leave the batch, and change places. Positions
say how many tokens stand before the next one; the prompts and responses that were saved say which
one that is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mindrlhf_msprobe.sequences.beginnings import shared_length
from mindrlhf_msprobe.sequences.inputs import CallInputs
from mindrlhf_msprobe.sequences.saved import SavedSamples
from mindrlhf_msprobe.storage.records import Entry

_AHEAD = 16  # calls whose tokens are looked at together


@dataclass(eq=False)
class Slot:
    """A place of the batch, and the sequence that stands in it.

    Attributes:
        sequence: its number.
        tokens: those that it was given so far.
        shift: what positions are counted from: padding may count, too.
        thread: a number that it keeps when it changes its place.
        given: the position of its last token as it was given, or None.
        has_ended: whether padding alone follows.
        start: how many tokens of which it is not known stand before these.
        guesses: what it may be of saved samples, or None.
        seen: how many of its tokens these were held against.
        before: what positions were counted from before one was wrong.
    """

    sequence: int
    tokens: list[int]
    shift: int = 0
    thread: int = 0
    given: int | None = None
    has_ended: bool = False
    start: int = 0
    guesses: list[np.ndarray] | None = None
    seen: int = 0

    def __post_init__(self) -> None:
        self.before = self.shift

    @property
    def next(self) -> int:
        """The position of its next token."""
        return len(self.tokens) + self.shift


class Wanted(NamedTuple):
    """A sample of a call that goes on with some sequence.

    Attributes:
        start: the position of its first token as it was given, or None.
        size: how many tokens it has in this call.
        ahead: int64, these, and those that stand in its place in the calls right behind.
    """

    start: int | None
    size: int
    ahead: np.ndarray


class Continuing:
    """Finds the sequences that samples go on with, by their positions and by saved samples."""

    def __init__(self, saved: SavedSamples) -> None:
        self._saved = saved
        self._prompted = [saved.all[number] for number in saved.prompted]

    def fits(
        self, slot: Slot | None, wanted: Wanted, expected: Container[int | None], *, alone: bool
    ) -> bool:
        """Return whether a sample may go on with the sequence in its own place.

        Args:
            expected: the positions of the next tokens of all sequences.
            alone: whether the call has no other sample.
        """
        if slot is None:
            return False
        back = wanted.start is not None and 0 < wanted.start - slot.shift <= len(slot.tokens)
        if back and wanted.size > 1:  # drafts before were rejected
            return not self.begins(slot, wanted)
        same = self._same(slot, wanted)
        if same is None:
            near = wanted.start in (None, slot.next) or (back and not slot.guesses)
            return (near or wanted.start == slot.given) and not self.is_over(slot)
        if wanted.start in (None, slot.next, len(slot.tokens) + slot.before) or not same:
            return same > 0
        if 1 < same == len(wanted.ahead):
            return True  # its position is what is wrong
        return wanted.start not in expected and not self.begins(slot, wanted, (slot,), alone)

    def begins(
        self, slot: Slot | None, wanted: Wanted, slots: Sequence[Slot] = (), alone: bool = False
    ) -> bool:
        """Return whether a sample is no sequence so far, but a saved one from a position on.

        Args:
            slot: what stands in its place.
            slots: all sequences. Of several tokens some may be drafts of one that has begun.
            alone: whether the call has no other sample.
        """
        start, least = wanted.start or 0, 0
        if not start or (slot is not None and not self._guesses(slot)):
            return False
        if wanted.size == 1 and not alone:
            least = max(2, len(wanted.ahead))  # one token may be like another by chance
        able = [
            sample.prompt.tolist()
            for sample in self._prompted
            if start < len(sample.tokens)
            and shared_length(sample.tokens[start:], wanted.ahead)
            >= (least or min(wanted.size, len(sample.tokens) - start))
        ]
        if wanted.size == 1:
            return bool(able)
        begun = (slot.tokens for slot in slots if slot.tokens)
        return bool(able) and not any(
            tokens[: len(prompt)] == prompt[: len(tokens)] for tokens in begun for prompt in able
        )

    def find(
        self,
        wanted: Mapping[int, Wanted],
        here: Mapping[int, Slot],
        others: Sequence[Slot],
        *,
        in_place: bool,
    ) -> dict[int, tuple[Slot, bool]]:
        """Return the sequence that each sample goes on with, as far as only one may be.

        Args:
            wanted: of each place of the batch.
            here: what stood in the places so far.
            others: further sequences that were begun.
            in_place: whether of several that may be it the one in its own place is; else the first
                that was begun.

        Returns:
            For each place the sequence, and whether a saved sample says so.
        """
        slots = [*others, *here.values()]
        able = {place: self._able(one, slots) for place, one in wanted.items()}
        found: dict[int, tuple[Slot, bool]] = {}
        used: set[int] = set()
        for place in sorted(able, key=lambda place: (len(able[place][0]), place)):
            fitting, is_said = able[place]
            left = [slot for slot in fitting if slot.thread not in used]
            own = here.get(place)
            if own not in left or not in_place:
                own = min(left, key=lambda slot: slot.thread, default=None)
            if own is not None and (is_said or all(s.tokens == own.tokens for s in left)):
                found[place] = own, is_said
                used.add(own.thread)
        return found

    def _able(self, wanted: Wanted, slots: Sequence[Slot]) -> tuple[list[Slot], bool]:
        """Return the sequences that a sample may go on with, and whether saved samples say so."""
        same = [(slot, self._same(slot, wanted)) for slot in slots]
        said = [(slot, count) for slot, count in same if count]
        if said:
            said = [one for one in said if wanted.start in (None, one[0].next)] or said
            most = max(count for _, count in said)
            best = [slot for slot, count in said if count == most]
            return [slot for slot in best if not self.is_over(slot)] or best, True
        unknown = [slot for slot, count in same if count is None and wanted.start is not None]
        going = [s for s in unknown if wanted.start == s.next and not self.is_over(s)]
        return going or [s for s in unknown if self.is_over(s) and wanted.start == s.given], False

    def _same(self, slot: Slot, wanted: Wanted) -> int | None:
        """Return with how many of its tokens a saved sample goes on; None where none goes on.

        0 unless with all that it has in this call. The last token of a sample need not be given to
        the network.
        """
        have = len(slot.tokens)
        going = [tokens[have:] for tokens in self._guesses(slot) if len(tokens) > have]
        same = max((shared_length(tokens, wanted.ahead) for tokens in going), default=0)
        if any(same >= min(wanted.size, len(tokens)) for tokens in going):
            return same
        return 0 if any(len(tokens) > 1 for tokens in going) else None

    def ends(
        self, ids: np.ndarray, positions: np.ndarray, slots: Sequence[Slot], bases: Collection[int]
    ) -> np.ndarray | None:
        """Return where samples end that stand one behind the other in a row, int64 [samples].

        A sample begins where positions jump, and may begin wherever a sequence goes on, or a new
        one begins, by position and saved samples. Of all ways that one counts in which most tokens
        are expected, of these the one that cuts the fewest prompts, and of these the one of most
        samples. Padding behind them is left out. None
        where no sequence that has begun goes on in the row, or where all of it is one sample.

        Args:
            ids, positions: int64 [tokens].
            slots: the sequences that have begun.
            bases: positions of the first tokens of sequences.
        """
        size = len(ids)
        jumps = [*(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), size]
        by_next: dict[int, list[Slot]] = {}
        for slot in slots:
            by_next.setdefault(slot.next, []).append(slot)
        of_each = all(position in by_next for position in positions.tolist())
        # column → of each sequence: how many tokens are expected, and how many complete its prompt
        known: dict[int, list[tuple[int, int]]] = {}
        goes_on = False
        for at, position in enumerate(positions.tolist()):
            row, begins = ids[at : jumps[bisect_right(jumps, at)]], at == 0 or at in jumps
            any_of = 0 if self._prompted else len(row) if begins else int(of_each)
            going: list[tuple[Slot, int]] = []
            for slot in by_next.get(position, ()):
                tails = (tokens[len(slot.tokens) :] for tokens in self._guesses(slot))
                same = max((shared_length(tail, row) for tail in tails), default=any_of)
                going.append((slot, same))
            open_ones = [(slot, same) for slot, same in going if not self.is_over(slot)]
            goes_on |= any(same for _, same in open_ones)
            able = going if begins else open_ones
            known[at] = [(same, self._rest(slot.tokens, row)) for slot, same in able if same]
            begun = (shared_length(sample.tokens, row) for sample in self._prompted)
            if position in bases and (same := max(begun, default=0)):
                known[at].append((same, self._rest([], row)))
        if not goes_on:
            return None
        # column → tokens not expected, prompts cut, −samples, end of the first sample
        best = {size: (0, 0, 0, size)}
        starts = [at for at in known if known[at] or at == 0 or at in jumps]
        for at in reversed(starts):
            jump, of = jumps[bisect_right(jumps, at)], known[at] or [(0, 0)]
            most = at + max(same for same, _ in of)
            ways = []
            for end in (end for end in best if at < end <= most or end == jump):
                more, cut = min((max(0, end - at - same), end - at < rest) for same, rest in of)
                after = best[end]
                ways.append((more + after[0], cut + after[1], after[2] - 1, end))
            best[at] = min(ways)
        found = [best[0][-1]]
        while found[-1] < size:
            found.append(best[found[-1]][-1])
        while len(found) > 1 and not known[found[-2]]:
            found.pop()
        return None if found == [size] else np.array(found, np.int64)

    def _rest(self, tokens: Sequence[int], row: np.ndarray) -> int:
        """Return how many tokens of a row complete the prompt that a sequence has begun with."""
        given = np.array([*tokens, *row.tolist()], np.int64)
        sizes = (len(self._saved.all[number].prompt) for number in self._saved.begun_by(given))
        return max((size - len(tokens) for size in sizes), default=0)

    def is_over(self, slot: Slot) -> bool:
        """Return whether it has all tokens of a saved sample, but for the last at most."""
        guesses = self._guesses(slot)
        return bool(guesses) and all(len(t) <= len(slot.tokens) + 1 for t in guesses)

    def _guesses(self, slot: Slot) -> list[np.ndarray]:
        """Return the saved samples whose tokens begin with a sequence, or that it begins with."""
        have = len(slot.tokens)
        if slot.guesses is None:
            tokens = np.array(slot.tokens, np.int64)
            numbers = self._saved.prompted if slot.start else self._saved.like(tokens)
            tails = [self._saved.all[number].tokens[slot.start :] for number in numbers]
            slot.guesses = [t for t in tails if shared_length(t, tokens) == min(len(t), have)]
            slot.seen = have
        elif slot.seen < have:
            added = np.array(slot.tokens[slot.seen :], np.int64)
            parts = ((whole, whole[slot.seen : have]) for whole in slot.guesses)
            slot.guesses = [t for t, part in parts if np.array_equal(part, added[: len(part)])]
            slot.seen = have
        return slot.guesses


def with_ahead(
    calls: Iterable[tuple[CallInputs, Entry]], *, known: bool
) -> Iterator[tuple[CallInputs, Entry]]:
    """Yield calls in their order, with the tokens of those behind that have one of each sample.

    Args:
        known: whether saved samples say anything of these; if not, no call is looked at before.
    """
    kept: list[tuple[CallInputs, Entry]] = []
    for one in calls:
        kept.append(one)
        if not known or len(kept) > _AHEAD:
            yield _looking_ahead(kept)
            kept.pop(0)
    while kept:
        yield _looking_ahead(kept)
        kept.pop(0)


def _looking_ahead(kept: Sequence[tuple[CallInputs, Entry]]) -> tuple[CallInputs, Entry]:
    inputs, entry = kept[0]
    in_row = len(inputs.ids) == 1 and inputs.positions is not None
    if not in_row and (inputs.flat or inputs.ids.shape[1] != 1):
        return inputs, entry
    columns: list[np.ndarray] = []
    for number, (other, of) in enumerate(kept):
        if other.ids.shape != inputs.ids.shape or of.call != entry.call + number:
            break
        if inputs.ids.shape[1] != 1 or inputs.flat:
            # In a row positions must say it: it may as well be several tokens of one.
            given, then = inputs.positions, other.positions
            if given is None or then is None or not np.array_equal(then, given + number):
                break
        columns.append(other.ids.reshape(-1, 1))
    return replace(inputs, ahead=np.concatenate(columns, axis=1).astype(np.int64)), entry
