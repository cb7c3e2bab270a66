"""The calls of a phase, and the sequences of tokens that they went through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, SpokenError, message
from mindrlhf_msprobe.sequences.following import Followed, Piece, follow
from mindrlhf_msprobe.sequences.inputs import CallInputs, Starts, read_inputs
from mindrlhf_msprobe.sequences.padding import Padding
from mindrlhf_msprobe.sequences.saved import (
    Beginning,
    SavedSample,
    of_saved,
    prompt_sizes,
    with_beginnings,
)
from mindrlhf_msprobe.sequences.sharing import (
    BlockSize,
    Tables,
    Written,
    begins_with,
    block_of,
    saved_before,
)
from mindrlhf_msprobe.sequences.slots import Continuing, Slot, Wanted, with_ahead
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.records import Entry, Record

UNKNOWN = -1
_MOST_NOTES = 20
_FIRST = 1 << 20  # more than positions begin with


class NoTokens(SpokenError):
    """Nothing says which tokens went through a phase; the message says what to record."""


@dataclass(frozen=True)
class TokenCall:
    """One call of a network, from its token ids on to the next call that is given some.

    Attributes:
        batch, width: of the token ids, [batch, width]; rows are counted through both.
        sequence: int64 [batch * width], the sequence each row belongs to; -1 for padding, and where
            the tokens before it are not known.
        position: int64 [batch * width], the number of the row's token in its sequence.
        given: int64 [batch * width], the positions that the network was given, or None.
        leaks: bool [batch * width], which rows see tokens of other samples by the mask that the
            network was given; None where that has no axis of tokens, or lets none see others.
    """

    batch: int
    width: int
    sequence: np.ndarray
    position: np.ndarray
    given: np.ndarray | None = None
    leaks: np.ndarray | None = None

    def behind_padding(self) -> set[int]:
        """Return the sequences that begin in this call, behind padding."""
        rows, places = (of.reshape(self.batch, self.width) for of in (self.sequence, self.position))
        if not self.width:
            return set()
        first = (rows >= 0).argmax(axis=1)
        at = np.flatnonzero(first)
        begin = places[at, first[at]] == 0
        return {*rows[at, first[at]][begin].tolist()}

    def last_rows(self) -> np.ndarray:
        """Return the row of the last token of each sample, int64 [batch]; -1 without one."""
        known = (self.sequence >= 0).reshape(self.batch, self.width)
        last = self.width - 1 - known[:, ::-1].argmax(axis=1)
        rows = np.arange(self.batch) * self.width + last
        return np.where(known.any(axis=1), rows, UNKNOWN)


@dataclass(frozen=True)
class PhaseTokens:
    """The tokens of a phase in one step of one rank.

    Attributes:
        calls: in time.
        sequences: the tokens of each, int64.
        notes: what could not be read as sequences of tokens.
        pad: the token id of padding; a sequence may end with it.
        begun: how many tokens of each sequence the call that began it was given, or its prompt has;
            0 of one that goes on otherwise behind the tokens of another.
        block: how many tokens a block of the paged cache holds; None where nothing says it.
        samples: the saved prompt and response, by number, that each sequence is; -1 of others.
        ends: how many tokens each sequence has, up to the end of that response.
        lost: how many rows are tokens of which it is not known which ones stand before them.
        drafts: how many rows are rejected drafts, by the responses that were saved: no tokens.
        fillers: the ids in the padding before tokens, by what was given or saved.
        unsure: of sequences of which nothing says whether they begin with padding, with how many
            times one token they begin.
        own: of saved samples how much padding was given before them as tokens; see `Padding.own`.
    """

    calls: tuple[TokenCall, ...]
    sequences: tuple[np.ndarray, ...]
    notes: tuple[Message, ...] = field(default=())
    pad: int | None = None
    begun: tuple[int, ...] = ()
    block: int | None = None
    samples: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    lost: int = 0
    drafts: int = 0
    fillers: frozenset[int] = frozenset()
    unsure: Mapping[int, int] = field(default_factory=dict)
    own: Mapping[bytes, tuple[int | None, int | None]] = field(default_factory=dict)

    @cached_property
    def last(self) -> np.ndarray:
        """How many tokens of each sequence are no padding behind a response, int64 [sequences]."""
        return np.array(self.ends or [len(tokens) for tokens in self.sequences], np.int64)

    @cached_property
    def count(self) -> int:
        """How many rows are tokens: of sequences up to their ends, and those that are lost."""
        return len(self.within(self.rows)) + self.lost

    def within(self, rows: TokenCall | TokenRows) -> np.ndarray:
        """Return which rows are tokens of sequences up to their ends, int64."""
        known = np.flatnonzero(rows.sequence >= 0)
        return known[rows.position[known] < self.last[rows.sequence[known]]]

    @cached_property
    def padding(self) -> int:
        """How many rows are padding behind the ends of sequences."""
        return int((self.rows.sequence >= 0).sum()) - len(self.within(self.rows))

    @cached_property
    def places(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """For each sequence the call and the row of each of its tokens, the first of several."""
        calls = [np.full(len(sequence), UNKNOWN, np.int64) for sequence in self.sequences]
        rows = [np.full(len(sequence), UNKNOWN, np.int64) for sequence in self.sequences]
        for number in reversed(range(len(self.calls))):
            call = self.calls[number]
            known = np.flatnonzero(call.sequence >= 0)
            for sequence in np.unique(call.sequence[known]).tolist():
                of_it = known[call.sequence[known] == sequence]
                calls[sequence][call.position[of_it]] = number
                rows[sequence][call.position[of_it]] = of_it
        return calls, rows

    @cached_property
    def rows(self) -> TokenRows:
        """The rows of all calls, one call behind the other."""
        sizes = [call.sequence.size for call in self.calls]
        empty = np.zeros(0, np.int64)
        return TokenRows(
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            np.repeat(np.arange(len(self.calls)), sizes),
            np.concatenate([empty, *(call.sequence for call in self.calls)]),
            np.concatenate([empty, *(call.position for call in self.calls)]),
        )


@dataclass(frozen=True)
class TokenRows:
    """The rows of a phase, numbered through its calls.

    Attributes:
        starts: int64 [calls + 1], the number of the first row of each call, and behind the last.
        call, sequence, position: int64 [rows], of each row.
    """

    starts: np.ndarray
    call: np.ndarray
    sequence: np.ndarray
    position: np.ndarray

    @property
    def count(self) -> int:
        """How many rows there are."""
        return int(self.starts[-1])


def read_tokens(
    entries: Sequence[Entry],
    given: Sequence[tuple[int, CallInputs]] = (),
    pad: int | None = None,
    samples: Sequence[SavedSample] = (),
) -> PhaseTokens:
    """Return the tokens that went through a phase.

    Args:
        entries: of one phase, step and rank.
        given: what the trainer said by `phase.tokens`, with its places in time.
        pad: the token id of padding; a call that is given ids alone may begin with it.
        samples: prompts and responses of the step; they say what stands before a window of tokens,
            what is padding, and where responses end.

    Raises:
        NoTokens: no network was given token ids, or they were not stored.
    """
    forward = sorted((e for e in entries if e.direction == "forward"), key=lambda e: e.seq)
    outermost = [entry for entry in forward if entry.parent is None]
    if not outermost:
        raise NoTokens.saying("tokens.no_entries")
    starts = Starts(given)
    calls = [(entry, what) for entry in outermost if (what := starts.at(entry)) is not None]
    if not calls:
        raise NoTokens.saying("tokens.no_ids", entry=outermost[0].name)
    builder = _Builder(pad, samples)
    inputs = with_ahead(((_read(e, what), e) for e, what in calls), known=bool(samples))
    for given_to, entry, beginnings in with_beginnings(inputs, samples):
        builder.add(given_to, entry, beginnings)
    return builder.tokens()


def _read(entry: Entry, what: CallInputs | Record) -> CallInputs:
    if isinstance(what, CallInputs):
        return what
    try:
        return read_inputs(entry, what)
    except ArrayFileError as error:
        raise NoTokens.saying("tokens.not_stored", record=what.name, why=error) from None


@dataclass
class _Open:
    """A sequence of which it is not known what stands before it, when it is first met.

    Attributes:
        start: how many tokens do.
        pieces: those of the sequence.
        note: what is said where it is not found.
    """

    start: int
    pieces: list[Piece]
    note: Message


class _Builder:
    """Puts calls together to sequences.

    Args:
        pad: the token id of padding, or None.
        samples: prompts and responses of the step.
    """

    def __init__(self, pad: int | None, samples: Sequence[SavedSample] = ()) -> None:
        self._pad, self._samples = pad, samples
        self._padding = Padding(pad, samples)
        self._lost_rows = 0
        self._sequences: list[list[int]] = []
        self._begun: list[int] = []
        self._slots: dict[int, Slot] = {}
        self._left: list[Slot] = []  # sequences that stand in no place now, and may go on
        self._continuing = Continuing(samples)
        self._ahead: np.ndarray | None = None  # what stands in the places of the next calls
        self._is_merged = False  # whether any went on in another place than its own
        self._lost: set[int] = set()  # places of which nobody knows which sequence stands there
        self._calls: list[TokenCall] = []
        self._notes: dict[Message, list[Piece]] = {}
        self._pieces: list[list[Piece]] = []  # of each call
        self._seen_all = True  # whether no call is missing
        self._is_whole = True  # whether so, and the samples have the places of the call before
        self._before: int | None = None  # samples of the call before
        self._keys: list[int] = []  # theirs
        self._block = BlockSize()
        self._tables = Tables()
        self._written = Written()
        self._open: dict[int, _Open] = {}
        self._others_move = False  # whether any position of the call is behind the last one
        self._base = 0  # the position of first tokens
        self._bases: set[int] = set()  # positions of first tokens
        self._unsure: dict[
            int, int
        ] = {}  # sequence → how many tokens it begins with that are alike
        self._cached: dict[
            int, int
        ] = {}  # sequence → tokens before it of which no row was recorded
        self._still: dict[int, int] = {}  # sequence → the place from which on positions stand still
        self._sharing: set[int] = set()  # sequences that begin with blocks of others

    def tokens(self) -> PhaseTokens:
        self._find_beginnings()
        if self._is_merged:
            for piece in (piece for pieces in self._pieces for piece in pieces):
                piece.key, piece.stays = piece.thread, True
        followed = follow(self._pieces, self._samples)
        for one in followed:
            self._put(one)
        if followed or self._open:
            self._leave_out_empty()
        drafts = sum(one.drafts for one in followed)
        made = tuple(np.array(tokens, np.int64) for tokens in self._sequences)
        numbers, ends = of_saved(made, self._samples, self._begun, self._pad)
        ends = tuple(
            min(end, self._counted(n, made[n])) if numbers[n] < 0 else end
            for n, end in enumerate(ends)
        )
        begun = prompt_sizes(self._begun, made)
        self._note_refilled(begun, numbers)
        for sequence, number in enumerate(numbers):
            if number >= 0 and begun[sequence]:
                begun[sequence] = min(len(self._samples[number].prompt), len(made[sequence]))
        if drafts:
            self._note(message("tokens.drafts", count=drafts))
        if cached := [size for n, size in self._cached.items() if n < len(made)]:
            counts = {"count": len(cached), "of": len(made), "tokens": sum(cached)}
            self._note(message("tokens.cached", **counts))
        # What is about pieces alone is known now.
        known = {id(piece) for one in followed for piece in one.pieces}
        notes = [n for n, of in self._notes.items() if not of or {*map(id, of)} - known]
        return PhaseTokens(
            *(tuple(self._calls), made, tuple(notes[:_MOST_NOTES]), self._pad, tuple(begun)),
            *(self._block.found(), numbers, ends, self._lost_rows, drafts),
            frozenset(self._padding.fillers),
            {n: size for n, size in self._unsure.items() if n < len(made)},
            self._padding.own,
        )

    def _counted(self, number: int, tokens: np.ndarray) -> int:
        """Return how many tokens come before those of a sequence whose positions stand still.

        These are padding if they are one token again and again: the loop goes on for longer ones.
        """
        first = self._still.get(number, len(tokens))
        if first == len(tokens) or bool((tokens[first:] != tokens[-1]).any()):
            return len(tokens)
        return max(1, first - int(tokens[first - 1] == tokens[-1]))

    def _note_refilled(self, begun: Sequence[int], numbers: Sequence[int]) -> None:
        """Take note of sequences that began again, as a cache was filled again.

        Args:
            begun: how many tokens of each sequence are its prompt.
            numbers: of the samples that they are.
        """
        has_cache = any(not piece.begins for pieces in self._pieces for piece in pieces)
        again = sum(
            before != size
            and at not in self._sharing
            and (number < 0 or before > len(self._samples[number].prompt))
            for at, (before, size, number) in enumerate(zip(self._begun, begun, numbers))
        )
        if again and has_cache:
            self._note(message("tokens.refilled", count=again))

    def _put(self, followed: Followed) -> None:
        """Put pieces where the saved sample says that they stand."""
        number = len(self._sequences)
        whole = self._samples[followed.sample].tokens[: followed.size]
        self._sequences.append(whole.tolist())
        self._begun.append(len(followed.pieces[0].tokens))
        for piece, (at, count, _) in zip(followed.pieces, followed.placed):
            call = self._calls[piece.call]
            call.sequence[piece.rows] = call.position[piece.rows] = UNKNOWN
            call.sequence[piece.rows[:count]] = number
            call.position[piece.rows[:count]] = at + np.arange(count)
            self._lost_rows -= piece.lost

    def _find_beginnings(self) -> None:
        """Find in what was saved what stands before tokens in blocks that others wrote."""
        for number, unknown in self._open.items():
            found = saved_before(self._sequences[number], unknown.start, self._samples)
            if found is not None:
                before, self._begun[number] = found
                self._sequences[number][:0] = before
                if not unknown.pieces[0].stays:
                    self._cached[number] = unknown.start
                continue
            for piece in unknown.pieces:
                call = self._calls[piece.call]
                ours = piece.rows[call.sequence[piece.rows] == number]
                call.sequence[ours] = call.position[ours] = UNKNOWN
                piece.lost = self._lose(piece.tokens[: len(ours)])
                self._note(unknown.note, piece)

    def _leave_out_empty(self) -> None:
        """Forget the sequences whose rows all are those of others now, or are left out."""
        kept = np.unique(np.concatenate([call.sequence for call in self._calls]))
        kept = kept[kept >= 0]
        for call in self._calls:
            known = call.sequence >= 0
            call.sequence[known] = np.searchsorted(kept, call.sequence[known])
        self._sharing = {at for at, n in enumerate(kept.tolist()) if n in self._sharing}
        for by_number in (self._still, self._cached, self._unsure):
            moved = {at: by_number[n] for at, n in enumerate(kept.tolist()) if n in by_number}
            by_number.clear()
            by_number.update(moved)
        self._sequences = [self._sequences[number] for number in kept.tolist()]
        self._begun = [self._begun[number] for number in kept.tolist()]

    def add(
        self,
        inputs: CallInputs,
        entry: Entry,
        beginnings: Sequence[Beginning | None] | None = None,
    ) -> None:
        """Add one call.

        Args:
            beginnings: of the first call of a window, what stands before the token of each sample.
        """
        batch, width = inputs.ids.shape
        given = None if inputs.positions is None else inputs.positions.reshape(-1)
        if inputs.positions is not None:
            inputs = self._with_ends(inputs, self._from_zero(inputs.ids, inputs.positions))
        self._seen_all &= entry.call == len(self._calls)
        self._pieces.append([])
        sequence = np.full(inputs.ids.size, UNKNOWN, np.int64)
        position = np.full(inputs.ids.size, UNKNOWN, np.int64)
        samples = self._samples_of(inputs, entry)
        one_each = _has_one_each(inputs, samples)
        starts = [_start(inputs, n, rows, one_each) for n, rows in enumerate(samples)]
        before, self._before = self._before, len(samples)
        self._is_whole = self._seen_all and (before == len(samples) or inputs.blocks is not None)
        if beginnings is not None:
            before = len(samples)
            self._continue(beginnings, starts, entry)
        elif not (
            inputs.blocks is not None
            or inputs.parents is not None
            or self._go_on_elsewhere(inputs, samples, starts, before, entry)
        ):
            self._lose_samples(inputs, samples, starts, entry)
            samples = []
        self._keys = self._keys_of(inputs, starts, one_each, entry)[: len(samples)]
        if one_each:
            self._reorder(inputs)
        self._others_move = one_each and self._move(starts)
        pieces = [
            (number, self._piece(inputs, key, rows, start))
            for number, (rows, start, key) in enumerate(zip(samples, starts, self._keys))
            if len(rows)
        ]
        for number, piece in sorted(pieces, key=self._turn):
            table = None if inputs.blocks is None else inputs.blocks[number]
            at = self._enter(piece, one_each, entry, table)
            if at is None:
                piece.lost = self._lose(piece.tokens)
            else:
                sequence[piece.rows] = at[0]
                position[piece.rows] = at[1] + np.arange(len(piece.rows))
                self._entered(piece, at, table)
        self._take_slots(inputs, samples, position)
        leaks = _leaks(inputs, sequence) if len(samples) > batch else None
        call = TokenCall(batch, width, sequence, position, given, leaks)
        self._calls.append(call)

    def _from_zero(self, ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return positions that begin with 0, where those of saved samples do with more.

        Args:
            ids, positions: of one call, [batch, width].
        """
        base = int(positions.min(initial=_FIRST))
        if 0 < base < _FIRST and not self._calls:
            first = {*ids[positions == base].tolist()}
            begin, there = (
                {int(s.tokens[at]) for s in self._samples if len(s.tokens) > at} for at in (0, base)
            )
            self._base = base if first <= begin and not first <= there else 0
        return positions - self._base

    def _with_ends(self, inputs: CallInputs, positions: np.ndarray) -> CallInputs:
        """Return inputs with the ends of samples in one row, where positions alone say them.

        Args:
            positions: those of the inputs, counted from 0.
        """
        inputs = replace(inputs, positions=positions)
        declared = (inputs.ends, inputs.counts, inputs.lengths, inputs.blocks, inputs.mask)
        if len(inputs.ids) > 1 or any(of is not None for of in declared):
            return inputs
        ids, slots = inputs.ids.reshape(-1).astype(np.int64), [*self._slots.values(), *self._left]
        ends = self._continuing.ends(ids, positions.reshape(-1), slots, self._bases or {0})
        return inputs if ends is None else replace(inputs, ends=ends)

    def _move(self, starts: Sequence[int | None]) -> bool:
        """Return whether the position of any sample is behind that of its last token."""
        for start, key in zip(starts, self._keys):
            last = self._slots[key].given if key in self._slots else None
            if start is not None and last is not None and start > last:
                return True
        return False

    def _entered(self, piece: Piece, at: tuple[int, int], table: np.ndarray | None) -> None:
        """Take note of where a sample's tokens stand, and in which blocks."""
        slot = self._slots[piece.key]
        piece.begins, piece.thread = at[1] == 0, slot.thread
        if piece.begins and self._padding.is_unsure:
            same = np.cumprod(piece.tokens == piece.tokens[0])
            self._unsure[at[0]] = int(same.sum())
        slot.given = None if piece.start is None else piece.start + len(piece.rows) - 1
        if table is not None:
            self._tables.took(piece.key, table)
            self._written.add(at[0], table, at[1] + len(piece.rows))

    def _samples_of(self, inputs: CallInputs, entry: Entry) -> list[np.ndarray]:
        """Return the rows of the tokens of each sample; none where padding hides which they are."""
        samples = _samples(inputs, self._padding)
        if self._padding.let_in:
            counts = {"count": self._padding.let_in, "of": len(inputs.ids)}
            self._note(message("tokens.padding_let_in", entry=entry.name, **counts))
        if samples is None:
            self._note(message("tokens.padding", entry=entry.name))
            self._lose(inputs.ids.reshape(-1))
        return samples or []

    def _go_on_elsewhere(
        self,
        inputs: CallInputs,
        samples: Sequence[np.ndarray],
        starts: Sequence[int | None],
        before: int | None,
        entry: Entry,
    ) -> bool:
        """Put the sequences into the places in which they go on, where these are not their own.

        Args:
            before: how many samples the call before had; None: there was none.

        Returns:
            Whether it is known of any of the samples where it goes on.
        """
        one_each = _has_one_each(inputs, samples)
        moves = one_each or _is_packed(inputs)  # samples may be put together anew
        is_known = not moves or _are_known(before, starts, entry.call)
        ids = inputs.ids.reshape(-1).astype(np.int64)
        ahead = self._ahead = inputs.ahead if one_each else None
        wanted = {
            key: Wanted(start, len(rows), ids[rows] if ahead is None else ahead[key])
            for key, (rows, start) in enumerate(zip(samples, starts))
            if len(rows) and start != 0 and (one_each or start)
            if not (is_known and key in self._lost)
        }
        going, slots = self._continuing, self._slots
        kept, alone = {}, len(samples) == 1
        if is_known:
            next_ones = {slot.next for slot in (*slots.values(), *self._left)}
            for key, one in wanted.items():
                if going.fits(slots.get(key), one, next_ones, alone=alone):
                    kept[key] = slots[key]
        wanted = {key: one for key, one in wanted.items() if key not in kept}
        here = {key: slot for key, slot in slots.items() if key not in kept}
        found = going.find(wanted, here, self._left, in_place=is_known)
        said = {key for key, (slot, is_it) in found.items() if is_it}
        in_place = {key for key in said if wanted[key].start in (None, found[key][0].next)}
        every = [*slots.values(), *self._left]
        new = {k for k, one in wanted.items() if going.begins(here.get(k), one, every, alone)}
        new -= in_place
        said -= new
        if not (moves or self._is_merged):
            said = set()  # drafts, or chunks of prompts: saved samples are followed later
            new = new if alone else set()
        found = {k: one for k, one in found.items() if k in said or (moves and k not in new)}
        moved = [key for key, (slot, _) in found.items() if slot is not here.get(key)]
        is_turned = len(found) == len(here) and all(s in here.values() for s, _ in found.values())
        is_turned &= not self._is_merged
        if is_known and not new and (not moved or is_turned):
            return True  # or a cache was put in another order, which what is computed says
        if is_known and not all(found[key][1] for key in moved):
            return False  # another sequence goes on there as well, or the position is wrong
        lost = {k for k, one in wanted.items() if one.start is None or not self._samples} - {*found}
        if not found and lost:
            return False
        if lost:
            self._note(self._unknown_samples(entry, len(lost)))
        self._is_merged = True
        if is_known:  # of the others nothing says that they are elsewhere
            lost -= {*here}
            kept |= {key: slot for key, slot in here.items() if key not in new}
        kept |= {key: slot for key, (slot, _) in found.items()}
        used = {slot.thread for slot in kept.values()}
        self._slots = kept
        left = (slot for slot in (*self._left, *here.values()) if slot.thread not in used)
        self._left = [slot for slot in left if not going.is_over(slot)]
        self._lost = lost
        return True

    def _lose_samples(
        self,
        inputs: CallInputs,
        samples: Sequence[np.ndarray],
        starts: Sequence[int | None],
        entry: Entry,
    ) -> None:
        """Take note that nobody knows which samples go on in a call."""
        note = self._unknown_samples(entry, len(samples))
        for number, rows in enumerate(samples):
            piece = self._piece(inputs, number, rows, starts[number])
            piece.lost = self._lose(piece.tokens)
            self._note(note, piece)
        self._left += self._slots.values()
        self._slots, self._lost = {}, {*range(len(samples))}

    def _unknown_samples(self, entry: Entry, count: int) -> Message:
        """Say that nothing tells which samples go on in a call."""
        saved = bool(self._samples)
        return message("tokens.unknown_samples", entry=entry.name, count=count, saved=saved)

    def _turn(self, numbered: tuple[int, Piece]) -> int:
        """Return when a piece is put to a sequence: behind those whose blocks it may share."""
        piece = numbered[1]
        is_new = piece.stays and piece.key not in self._slots
        return (piece.start or 0) if is_new else 0

    def _take_slots(
        self, inputs: CallInputs, samples: Sequence[np.ndarray], position: np.ndarray
    ) -> None:
        """Take note of where in a paged cache the tokens of a call are written to."""
        if inputs.slots is None or inputs.blocks is None or len(inputs.blocks) < len(samples):
            return
        for rows, blocks in zip(samples, inputs.blocks):
            written = rows[(inputs.slots[rows] >= 0) & (position[rows] >= 0)]
            tables = np.broadcast_to(blocks, (len(written), len(blocks)))
            self._block.add(tables, inputs.slots[written], position[written])

    def _keys_of(
        self, inputs: CallInputs, starts: Sequence[int | None], one_each: bool, entry: Entry
    ) -> list[int]:
        """Return what each sample keeps from call to call.

        Where blocks do not go on as the positions do, and the places of the batch do, a sample was
        given a block of another one.
        """
        keys = [*range(len(starts))]
        if inputs.blocks is not None and len(inputs.blocks) >= len(starts):
            keys = self._tables.keys(inputs.blocks, starts, self._have)
        if not one_each or keys == self._keys or len(keys) != len(self._keys):
            return keys
        if self._go_on_at(keys, starts) or not self._go_on_at(self._keys, starts):
            return keys
        for number, (key, before) in enumerate(zip(keys, self._keys)):
            if key != before:
                blocks = {"block": block_of(key), "before": block_of(before)}
                self._note(message("tokens.other_block", entry=entry.name, sample=number, **blocks))
        return self._keys

    def _have(self, key: int) -> int | None:
        slot = self._slots.get(key)
        return None if slot is None else len(slot.tokens) + slot.shift

    def _go_on_at(self, keys: Sequence[int], starts: Sequence[int | None]) -> bool:
        """Return whether each sample is given the position behind its tokens so far."""
        slots = [self._slots.get(key) for key in keys]
        return len({*keys}) == len(keys) and all(
            slot is not None and start == len(slot.tokens) + slot.shift
            for slot, start in zip(slots, starts)
        )

    def _reorder(self, inputs: CallInputs) -> None:
        """Put the sequences into the places in which they go on; one may do so in several."""
        if inputs.parents is None or inputs.blocks is not None:
            return
        before, self._slots = self._slots, {}
        lost, self._lost = self._lost, set()
        used: set[int] = set()
        for key, parent in enumerate(inputs.parents.tolist()):
            slot = before.get(parent)
            if parent in lost:
                self._lost.add(key)
            elif slot is not None and parent in used:
                self._begin(key, slot.tokens, [], slot.shift)
                self._begun[-1] = self._begun[slot.sequence]
            elif slot is not None:
                self._slots[key] = slot
            used.add(parent)

    def _piece(self, inputs: CallInputs, key: int, rows: np.ndarray, start: int | None) -> Piece:
        """Take note of a sample's tokens in the last call."""
        tokens = inputs.ids.reshape(-1)[rows].astype(np.int64)
        piece = Piece(len(self._calls), key, inputs.blocks is not None, rows, tokens, start)
        self._pieces[-1].append(piece)
        return piece

    def _enter(
        self, piece: Piece, one_each: bool, entry: Entry, table: np.ndarray | None
    ) -> tuple[int, int] | None:
        """Return the sequence that a sample's tokens belong to, and the place of the first.

        Args:
            one_each: whether the call has one token of each sample.
            table: int64 [blocks], those of the sample in a paged cache, or None.
        """
        key, tokens, start = piece.key, piece.tokens.tolist(), piece.start
        if not one_each:
            self._lost.discard(key)
        if key in self._lost:
            return None
        slot = self._slots.get(key)
        if slot is None:
            return self._first_met(piece, one_each, entry, table)
        if start is None and not one_each:
            return self._anew(key, tokens, start)
        have, at = len(slot.tokens), self._place_in(slot, start, one_each)
        stands = start is not None and start == slot.given and self._others_move
        if one_each and 0 < at < have:
            if stands:
                self._still.setdefault(slot.sequence, have)
            if stands or (tokens == [self._pad] and self._has_ended(slot)):
                at = have  # positions of a sample that has ended may stand still
        elif start is not None:
            self._still.pop(slot.sequence, None)
        if at > have and entry.call > 0:
            return self._gap(entry, piece, have)
        if not 0 < at <= have:
            if table is not None and slot.sequence in self._open and start:
                return self._behind_others(piece, table, one_each, entry)
            return self._anew(key, tokens, start)
        number = self._go_on(key, slot, at, tokens)
        if slot.sequence not in self._open:
            return number, at
        unknown = self._open[slot.sequence]
        mine = self._open.setdefault(number, replace(unknown, pieces=[]))
        mine.pieces.append(piece)
        return number, unknown.start + at

    def _first_met(
        self, piece: Piece, one_each: bool, entry: Entry, table: np.ndarray | None
    ) -> tuple[int, int] | None:
        """Return what `_enter` does, of a sample that was not met before."""
        if not piece.start or (not one_each and piece.start in self._bases):
            return self._anew(piece.key, piece.tokens.tolist(), piece.start)
        return self._behind_others(piece, table, one_each, entry)

    def _behind_others(
        self, piece: Piece, table: np.ndarray | None, one_each: bool, entry: Entry
    ) -> tuple[int, int] | None:
        """Return the sequence that begins with what others computed, and the place in it.

        What stands in blocks of a cache is known where a sequence of this phase was written to
        them. Else the saved samples may say it, once all tokens behind are known.
        """
        key, tokens, start = piece.key, piece.tokens.tolist(), piece.start or 0
        before = None
        if table is not None:
            before = self._written.before(
                table, start, self._block.found(), self._sequences, self._open
            )
        if before is not None:
            number = self._begin(key, before, tokens, 0)
            self._begun[number] = len(before) + len(tokens)
            self._sharing.add(number)
            return number, start
        is_first = entry.call == 0 and not one_each
        inside = saved_before(tokens, start, self._samples) is not None
        begins = table is None or begins_with(tokens, self._samples)
        if is_first and not inside and begins:
            return self._anew(key, tokens, start)  # padding before them may count
        if table is None and not self._samples:
            return self._gap(entry, piece, 0)
        ahead = tokens if self._ahead is None or not one_each else self._ahead[key].tolist()
        if table is None and (found := saved_before(ahead, start, self._samples)) is not None:
            number = self._begin(key, found[0], tokens, 0)
            self._begun[number] = found[1]
            self._sharing.add(number)
            if not any(sequence[:start] == found[0] for sequence in self._sequences[:number]):
                self._cached[number] = start
            return number, start
        number = self._begin(key, [], tokens, start)
        self._slots[key].start = start
        code = "gap_unlike" if self._samples else "gap"
        note = message(f"tokens.{code}", entry=entry.name, given=start, have=0)
        self._open[number] = _Open(start, [piece], note)
        return number, start

    def _has_ended(self, slot: Slot) -> bool:
        """Return whether a sample may go on with padding: by what was saved, where it was."""
        if not slot.has_ended:
            tokens = np.array(slot.tokens, np.int64)
            wholes = (sample.tokens for sample in self._samples)
            slot.has_ended = (
                not self._samples
                or slot.tokens[-1] == self._pad
                or any(np.array_equal(tokens[: len(whole)], whole) for whole in wholes)
            )
        return slot.has_ended

    def _place_in(self, slot: Slot, start: int | None, one_each: bool) -> int:
        """Return at which place of its sequence a sample goes on that is given a position."""
        have = len(slot.tokens)
        if start is None:
            return have
        if start - slot.before == have:
            slot.shift = slot.before
            return have
        at = start - slot.shift
        if at > have and (one_each or self._is_whole):  # a wrong position: `given` shows it
            slot.before, slot.shift = slot.shift, slot.shift + at - have
            return have
        return at

    def _continue(
        self, beginnings: Sequence[Beginning | None], starts: Sequence[int | None], entry: Entry
    ) -> None:
        """Put the sequences that a window continues into their places."""
        self._slots, self._lost = {}, set()
        for key, (beginning, start) in enumerate(zip(beginnings, starts)):
            if beginning is None:
                self._lost.add(key)
                continue
            have = len(beginning.tokens)
            shift = 0 if start is None else start - have
            self._begin(key, [], beginning.tokens.tolist(), shift)
            self._begun[-1] = beginning.prompt
        if self._lost:
            counts = {"count": len(self._lost), "of": len(beginnings)}
            self._note(message("tokens.no_beginning", entry=entry.name, **counts))

    def _anew(self, key: int, tokens: list[int], start: int | None) -> tuple[int, int]:
        """Return the sequence that begins with tokens; padding before them may count."""
        if start is not None and len(tokens) > 1:
            self._bases.add(start)
        return self._begin(key, [], tokens, shift=start or 0), 0

    def _go_on(self, key: int, slot: Slot, at: int, tokens: list[int]) -> int:
        """Return the sequence that goes on with tokens at a place; another one if it has others."""
        if at == len(slot.tokens):
            slot.tokens += tokens
        elif slot.tokens[at : at + len(tokens)] != tokens:
            return self._begin(key, slot.tokens[:at], tokens, slot.shift)
        return slot.sequence

    def _gap(self, entry: Entry, piece: Piece, have: int) -> tuple[int, int] | None:
        """Take note of tokens whose place in a sequence is not known; there is none."""
        given = piece.start or 0
        self._note(message("tokens.gap", entry=entry.name, given=given, have=have), piece)
        return None

    def _begin(self, key: int, before: list[int], tokens: list[int], shift: int) -> int:
        self._sequences.append([*before, *tokens])
        self._begun.append(0 if before else len(tokens))
        number = len(self._sequences) - 1
        if key in self._slots and not self._continuing.is_over(self._slots[key]):
            self._left.append(self._slots[key])
        self._slots[key] = Slot(number, self._sequences[-1], shift, thread=number)
        return number

    def _lose(self, ids: np.ndarray) -> int:
        """Count rows of which it is not known which tokens stand before them."""
        count = ids.size if self._pad is None else int((ids != self._pad).sum())
        self._lost_rows += count
        return count

    def _note(self, note: Message, piece: Piece | None = None) -> None:
        """Take note of something, or of something about a piece: unless that is found otherwise."""
        self._notes.setdefault(note, []).extend([] if piece is None else [piece])


def _are_known(before: int | None, starts: Sequence[int | None], call: int) -> bool:
    """Return whether it is known which samples go on in a call that has one token of each.

    Args:
        before: how many samples the call before had; None: there was none that was recorded.
        starts: the position of each token as it was given.
        call: the number of the call, also counting those that were not recorded.
    """
    if before is None:
        return call == 0 or None not in starts
    return before == len(starts) or all(start == 0 for start in starts)


def _start(inputs: CallInputs, slot: int, rows: np.ndarray, one_each: bool) -> int | None:
    """Return the position of a sample's first token as it was given; None where nothing says it."""
    if inputs.positions is not None and len(rows):
        return int(inputs.positions.reshape(-1)[rows[0]])
    if inputs.lengths is not None and slot < len(inputs.lengths):
        length = int(inputs.lengths[slot])
        # A length of one, in a call that has one token of each, may count this call alone.
        if length > len(rows) or not one_each:
            return max(0, length - len(rows))
    if inputs.mask is not None and inputs.mask.shape[1] > inputs.ids.shape[1]:
        return max(0, int(inputs.mask[slot].sum()) - len(rows))
    return None


def _has_one_each(inputs: CallInputs, samples: Sequence[np.ndarray]) -> bool:
    """Return whether a call has one token of each sample, behind those of the call before."""
    one_each = all(len(rows) == 1 for rows in samples)
    return one_each and (inputs.ids.shape[1] == 1 or _is_packed(inputs))


def _is_packed(inputs: CallInputs) -> bool:
    """Return whether samples stand one behind the other in one row, by what says where they end."""
    many = [of for of in (inputs.counts, inputs.lengths) if of is not None and len(of) > 1]
    in_row = len(inputs.ids) == 1 and any(of.sum() == inputs.ids.size for of in many)
    return inputs.flat or inputs.ends is not None or (in_row and inputs.ids.size > 1)


def _samples(inputs: CallInputs, padding: Padding) -> list[np.ndarray] | None:
    """Return the rows of the tokens of each sample of a call, int64; None where nobody knows."""
    batch, width = inputs.ids.shape
    if _is_packed(inputs):
        found = _packed(inputs)
        padding.begin(inputs, found, packed=True)
        return found
    if width > 1 and padding.may_be_own and (given := padding.given(inputs)) is not None:
        parts = _parts(inputs, given, padding)
        padding.begin(inputs, parts, packed=len(parts) > batch)
    valid = padding.tokens(inputs)
    return None if valid is None else _parts(inputs, valid, padding)


def _parts(inputs: CallInputs, valid: np.ndarray, padding: Padding) -> list[np.ndarray]:
    """Return the rows of the tokens of each sample, int64, where these are known, bool."""
    batch, width = inputs.ids.shape
    rows = [np.flatnonzero(valid[number]) + number * width for number in range(batch)]
    if width == 1:
        return rows
    return [part for of_row in rows for part in _split(inputs, of_row, padding)]


def _split(inputs: CallInputs, rows: np.ndarray, padding: Padding) -> list[np.ndarray]:
    """Return the samples that stand one behind the other in a row: each begins its positions again.

    Without positions by what a square mask lets the tokens see. A saved sample is no several ones.

    Args:
        rows: int64 [tokens], those of one row of the batch.
    """
    whole, starts = rows, np.zeros(len(rows), bool)
    if inputs.positions is not None and len(rows):
        given = inputs.positions.reshape(-1)[rows]
        starts[1:] = (np.diff(given) != 1) & (given[1:] == given[0])
    elif inputs.sees is not None and len(rows):
        number, columns = divmod(rows, inputs.ids.shape[1])
        sees = inputs.sees[int(number[0]) if len(inputs.sees) > 1 else 0]
        starts[1:] = (sees[columns].argmax(axis=1) == columns)[1:]
        is_token = sees[columns, columns]
        rows, starts = rows[is_token], starts[is_token]
    begins = np.flatnonzero(starts)
    if not len(begins) or starts[1:].all():
        return [whole]
    ids = inputs.ids.reshape(-1)[rows]
    if padding.begins(ids.astype(np.int64)) > begins[0]:
        return [whole]
    parts = np.split(rows, begins)
    last = int(np.cumprod(starts[::-1] & (ids[::-1] == ids[-1])).sum())  # padding at one position
    return parts[:-last] if last > 1 or (last and ids[-1] == padding.pad) else parts


def _leaks(inputs: CallInputs, sequence: np.ndarray) -> np.ndarray | None:
    """Return which rows see tokens of other samples of their row, bool [batch * width]; or None."""
    if inputs.sees is None:
        return None
    of = sequence.reshape(inputs.ids.shape)
    other = (of[:, :, None] != of[:, None, :]) & (of[:, :, None] >= 0) & (of[:, None, :] >= 0)
    found: np.ndarray = (inputs.sees & other).any(axis=2).reshape(-1)
    return found if found.any() else None


def _packed(inputs: CallInputs) -> list[np.ndarray]:
    """Return the samples of one row of tokens: by where they end, how many they are, or blocks."""
    rows = np.arange(inputs.ids.size)
    if inputs.ends is not None:
        return [*np.split(rows[: inputs.ends[-1]], inputs.ends[:-1])]
    for counts in (inputs.counts, inputs.lengths):
        if counts is not None and (counts > 0).all() and counts.sum() == len(rows):
            return [*np.split(rows, np.cumsum(counts)[:-1])]
    if inputs.blocks is not None and len(inputs.blocks) == len(rows):
        return [*rows.reshape(-1, 1)]
    if inputs.positions is not None:
        breaks = np.flatnonzero(np.diff(inputs.positions.reshape(-1)) != 1) + 1
        return [*np.split(rows, breaks)]
    return [rows]
