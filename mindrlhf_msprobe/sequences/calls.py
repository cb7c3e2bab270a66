"""The calls of a phase, and the sequences of tokens that they went through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, SpokenError, message
from mindrlhf_msprobe.sequences.batch import Sample
from mindrlhf_msprobe.sequences.beginnings import prefix_names, run_at_start
from mindrlhf_msprobe.sequences.following import Piece, follow
from mindrlhf_msprobe.sequences.inputs import CallInputs, Starts, read_inputs
from mindrlhf_msprobe.sequences.padding import Padding, as_given
from mindrlhf_msprobe.sequences.saved import (
    UNKNOWN,
    Beginning,
    SavedSamples,
    of_saved,
    prompt_sizes,
    with_beginnings,
)
from mindrlhf_msprobe.sequences.sharing import BlockSize, Tables, Written, block_of
from mindrlhf_msprobe.sequences.slots import Continuing, Slot, Wanted, with_ahead
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.records import Entry, Record

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
            0 of one that goes on with other tokens behind the tokens of another.
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
    def starts(self) -> np.ndarray:
        """Where each sequence begins, one behind the other; and where the last ends."""
        return np.cumsum([0, *map(len, self.sequences)], dtype=np.int64)

    @cached_property
    def places(self) -> np.ndarray:
        """The row of each token, one sequence behind the other; the first of several; -1: none."""
        rows = self.rows
        known = np.flatnonzero(rows.sequence >= 0)
        known = known[np.lexsort((known, -rows.call[known]))]  # of several the last one stays
        found = np.full(int(self.starts[-1]), UNKNOWN, np.int64)
        found[self.starts[rows.sequence[known]] + rows.position[known]] = known
        return found

    @cached_property
    def names(self) -> np.ndarray:
        """The name of each row's token, uint64 [rows], see `prefix_names`; 0 without a token."""
        rows = self.rows
        known = np.flatnonzero(rows.sequence >= 0)
        every = [np.zeros(0, np.uint64), *map(prefix_names, self.sequences)]
        found = np.zeros(rows.count, np.uint64)
        at = self.starts[rows.sequence[known]] + rows.position[known]
        found[known] = np.concatenate(every)[at]
        return found

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
    samples: Sequence[Sample] = (),
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

    def read(entry: Entry, what: CallInputs | Record) -> CallInputs:
        if isinstance(what, CallInputs):
            return what
        try:
            return read_inputs(entry, what)
        except ArrayFileError as error:
            raise NoTokens.saying("tokens.not_stored", record=what.name, why=error) from None

    builder = _Builder(pad, samples)
    inputs = with_ahead(((read(e, what), e) for e, what in calls), known=bool(samples))
    for given_to, entry, beginnings in with_beginnings(inputs, samples):
        builder.add(given_to, entry, beginnings)
    return builder.tokens()


@dataclass
class _Open:
    """Of a sequence of which it is not known what stands before it, when it is first met.

    Attributes:
        start: how many tokens do.
        pieces: those of the sequence.
        note: what is said where it is not found.
    """

    start: int
    pieces: list[Piece]
    note: Message


@dataclass
class _Sequence:
    """A sequence as far as it is known.

    Attributes:
        tokens: those that it was given so far.
        begun: how many tokens the call that began it was given, or its prompt has.
        shares: whether it begins with what others computed.
        cached: how many tokens stand before it of which no row was recorded.
        unsure: with how many times one token it begins, where nothing says whether that is padding.
        still: the place from which on its positions stand still, or None.
        open: what is known where it is not known what stands before it, or None.
    """

    tokens: list[int]
    begun: int
    shares: bool = False
    cached: int = 0
    unsure: int = 0
    still: int | None = None
    open: _Open | None = None

    @property
    def counted(self) -> int:
        """How many tokens come before those whose positions stand still.

        These are padding if they are one token again and again: the loop goes on for longer ones.
        """
        size = len(self.tokens)
        first = size if self.still is None else self.still
        if first == size or {*self.tokens[first:]} != {self.tokens[-1]}:
            return size
        return max(1, first - int(self.tokens[first - 1] == self.tokens[-1]))


@dataclass
class _Call:
    """A call that is put to the sequences.

    Attributes:
        inputs, entry: what it was given, positions counted from 0, and its entry.
        samples: the rows of the tokens of each sample.
        one_each: whether it has one token of each sample, behind those of the call before.
        starts: the position of each sample's first token as it was given, or None.
    """

    inputs: CallInputs
    entry: Entry
    samples: list[np.ndarray]
    one_each: bool
    starts: list[int | None]

    @cached_property
    def ids(self) -> np.ndarray:
        """Its token ids, int64 [rows]."""
        return self.inputs.ids.reshape(-1).astype(np.int64)


class _Builder:
    """Puts calls together to sequences.

    Args:
        pad: the token id of padding, or None.
        samples: prompts and responses of the step.
    """

    def __init__(self, pad: int | None, samples: Sequence[Sample] = ()) -> None:
        self._pad, self._saved = pad, SavedSamples(samples)
        self._padding = Padding(pad, self._saved)
        self._lost_rows = 0
        self._sequences: list[_Sequence] = []
        self._slots: dict[int, Slot] = {}
        self._left: list[Slot] = []  # sequences that stand in no place now, and may go on
        self._continuing = Continuing(self._saved)
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
        self._others_move = False  # whether any position of the call is behind the last one
        self._base = 0  # the position of first tokens
        self._bases: set[int] = set()  # positions of first tokens

    def tokens(self) -> PhaseTokens:
        self._find_beginnings()
        pieces = [piece for pieces in self._pieces for piece in pieces]
        for piece in pieces if self._is_merged else ():
            piece.key, piece.stays = piece.thread, True
        followed = follow(self._pieces, self._saved)
        for sample, of_sample in followed:  # where the saved sample says that its pieces stand
            number = len(self._sequences)
            whole = sample.tokens[: sample.have].tolist()
            self._sequences.append(_Sequence(whole, len(of_sample[0].tokens)))
            for piece, (place, count, _) in zip(of_sample, sample.placed):
                call = self._calls[piece.call]
                call.sequence[piece.rows] = call.position[piece.rows] = UNKNOWN
                call.sequence[piece.rows[:count]] = number
                call.position[piece.rows[:count]] = place + np.arange(count)
                self._lost_rows -= piece.lost
        if followed or any(one.open for one in self._sequences):
            # Those whose rows all are those of others now, or are left out, are none.
            kept = np.unique(np.concatenate([call.sequence for call in self._calls]))
            kept = kept[kept >= 0]
            for call in self._calls:
                known = call.sequence >= 0
                call.sequence[known] = np.searchsorted(kept, call.sequence[known])
            self._sequences = [self._sequences[number] for number in kept.tolist()]
        held, samples = self._sequences, self._saved.all
        made = tuple(np.array(one.tokens, np.int64) for one in held)
        given = [one.begun for one in held]
        numbers, ends = of_saved(made, samples, given, self._pad)
        ends = tuple(
            min(end, one.counted) if number < 0 else end
            for one, number, end in zip(held, numbers, ends)
        )
        begun = prompt_sizes(given, made)
        again = 0  # sequences that began again, as a cache was filled again
        for at, (one, number) in enumerate(zip(held, numbers)):
            prompt = len(samples[number].prompt) if number >= 0 else 0
            again += one.begun != begun[at] and not one.shares and one.begun > prompt
            if number >= 0 and begun[at]:
                begun[at] = min(prompt, len(made[at]))
        if again and not all(piece.begins for piece in pieces):
            self._note(message("tokens.refilled", count=again))
        drafts = sum(rejected for sample, _ in followed for _, _, rejected in sample.placed)
        if drafts:
            self._note(message("tokens.drafts", count=drafts))
        if cached := [one.cached for one in held if one.cached]:
            counts = {"count": len(cached), "of": len(made), "tokens": sum(cached)}
            self._note(message("tokens.cached", **counts))
        # What is about pieces alone is known now.
        found = {id(piece) for _, of_sample in followed for piece in of_sample}
        notes = [n for n, of in self._notes.items() if not of or {*map(id, of)} - found]
        return PhaseTokens(
            *(tuple(self._calls), made, tuple(notes[:_MOST_NOTES]), self._pad, tuple(begun)),
            *(self._block.found(), numbers, ends, self._lost_rows, drafts),
            frozenset(self._padding.fillers),
            {at: one.unsure for at, one in enumerate(held) if one.unsure},
            self._padding.own,
        )

    def _find_beginnings(self) -> None:
        """Find in what was saved what stands before tokens in blocks that others wrote."""
        for number, one in enumerate(self._sequences):
            if one.open is None:
                continue
            found = self._saved.before(one.tokens, one.open.start)
            if found is not None:
                one.begun = found.prompt
                one.tokens[:0] = found.tokens.tolist()
                if not one.open.pieces[0].stays:
                    one.cached = one.open.start
                continue
            for piece in one.open.pieces:
                call = self._calls[piece.call]
                ours = piece.rows[call.sequence[piece.rows] == number]
                call.sequence[ours] = call.position[ours] = UNKNOWN
                piece.lost = self._lose(piece.tokens[: len(ours)])
                self._note(one.open.note, piece)

    def add(
        self, inputs: CallInputs, entry: Entry, beginnings: Sequence[Beginning | None] | None = None
    ) -> None:
        """Add one call.

        Args:
            beginnings: of the first call of a window, what stands before the token of each sample.
        """
        batch, width = inputs.ids.shape
        given = None if inputs.positions is None else inputs.positions.reshape(-1)
        inputs = self._with_ends(inputs)
        self._seen_all &= entry.call == len(self._calls)
        self._pieces.append([])
        sequence = np.full(inputs.ids.size, UNKNOWN, np.int64)
        position = sequence.copy()
        samples = self._samples_of(inputs, entry)
        one_each = all(len(rows) == 1 for rows in samples)
        one_each = one_each and (width == 1 or _is_packed(inputs))
        starts = [_start(inputs, n, rows, one_each) for n, rows in enumerate(samples)]
        call = _Call(inputs, entry, samples, one_each, starts)
        before, self._before = self._before, len(samples)
        self._is_whole = self._seen_all and (before == len(samples) or inputs.blocks is not None)
        if beginnings is not None:
            self._continue(beginnings, call)
        elif not (
            inputs.blocks is not None
            or inputs.parents is not None
            or self._go_on_in_other_places(call, before)
        ):
            self._lose_samples(call)
        self._keys = self._keys_of(call)[: len(call.samples)]
        if one_each and inputs.parents is not None and inputs.blocks is None:
            self._reorder(inputs.parents)
        lasts = [self._slots[key].given if key in self._slots else None for key in self._keys]
        self._others_move = one_each and any(
            start is not None and last is not None and start > last
            for start, last in zip(starts, lasts)
        )
        pieces = [
            (number, self._piece(call, key, number))
            for number, key in enumerate(self._keys)
            if len(samples[number])
        ]
        for number, piece in sorted(pieces, key=self._turn):
            table = None if inputs.blocks is None else inputs.blocks[number]
            at = self._enter(call, piece, table)
            if at is None:
                piece.lost = self._lose(piece.tokens)
            else:
                sequence[piece.rows] = at[0]
                position[piece.rows] = at[1] + np.arange(len(piece.rows))
                self._entered(piece, at, table)
        if inputs.slots is not None and inputs.blocks is not None:
            # Where in a paged cache the tokens are written to.
            has_all = len(inputs.blocks) >= len(call.samples)
            for rows, table in zip(call.samples, inputs.blocks) if has_all else ():
                written = rows[(inputs.slots[rows] >= 0) & (position[rows] >= 0)]
                tables = np.broadcast_to(table, (len(written), len(table)))
                self._block.add(tables, inputs.slots[written], position[written])
        leaks = _leaks(inputs, sequence) if len(call.samples) > batch else None
        self._calls.append(TokenCall(batch, width, sequence, position, given, leaks))

    def _with_ends(self, inputs: CallInputs) -> CallInputs:
        """Return inputs whose positions begin with 0, where those of saved samples do with more.

        With the ends of samples in one row, where positions alone say them.
        """
        if inputs.positions is None:
            return inputs
        base = int(inputs.positions.min(initial=_FIRST))
        if 0 < base < _FIRST and not self._calls:
            first = {*inputs.ids[inputs.positions == base].tolist()}
            begin, there = (
                {int(s.tokens[at]) for s in self._saved.all if len(s.tokens) > at}
                for at in (0, base)
            )
            self._base = base if first <= begin and not first <= there else 0
        positions = inputs.positions - self._base
        inputs = replace(inputs, positions=positions)
        declared = (inputs.ends, inputs.counts, inputs.lengths, inputs.blocks, inputs.mask)
        if len(inputs.ids) > 1 or any(of is not None for of in declared):
            return inputs
        ids, slots = inputs.ids.reshape(-1).astype(np.int64), [*self._slots.values(), *self._left]
        ends = self._continuing.ends(ids, positions.reshape(-1), slots, self._bases or {0})
        return inputs if ends is None else replace(inputs, ends=ends)

    def _turn(self, numbered: tuple[int, Piece]) -> int:
        """Return when a piece is put to a sequence: behind those whose blocks it may share."""
        piece = numbered[1]
        is_new = piece.stays and piece.key not in self._slots
        return (piece.start or 0) if is_new else 0

    def _entered(self, piece: Piece, at: tuple[int, int], table: np.ndarray | None) -> None:
        """Take note of where a sample's tokens stand, and in which blocks."""
        slot = self._slots[piece.key]
        piece.begins, piece.thread = at[1] == 0, slot.thread
        if piece.begins and self._padding.is_unsure:
            self._sequences[at[0]].unsure = run_at_start(piece.tokens, piece.tokens[0])
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

    def _go_on_in_other_places(self, call: _Call, before: int | None) -> bool:
        """Put the sequences into the places in which they go on, where these are not their own.

        Args:
            before: how many samples the call before had; None: there was none that was recorded.

        Returns:
            Whether it is known of any of the samples where it goes on.
        """
        starts, one_each = call.starts, call.one_each
        moves = one_each or _is_packed(call.inputs)  # samples may be put together anew
        if not moves:
            is_known = True
        elif before is None:
            is_known = call.entry.call == 0 or None not in starts
        else:
            is_known = before == len(starts) or all(start == 0 for start in starts)
        ids = call.ids
        ahead = self._ahead = call.inputs.ahead if one_each else None
        wanted = {
            key: Wanted(start, len(rows), ids[rows] if ahead is None else ahead[key])
            for key, (rows, start) in enumerate(zip(call.samples, starts))
            if len(rows) and start != 0 and (one_each or start)
            if not (is_known and key in self._lost)
        }
        going, slots = self._continuing, self._slots
        kept, alone = {}, len(call.samples) == 1
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
        lost = {k for k, one in wanted.items() if one.start is None or not self._saved.all}
        lost -= {*found}
        if not found and lost:
            return False
        if lost:
            self._note(self._unknown_samples(call, len(lost)))
        self._is_merged = True
        if is_known:  # of the others nothing says that they stand in other places
            lost -= {*here}
            kept |= {key: slot for key, slot in here.items() if key not in new}
        kept |= {key: slot for key, (slot, _) in found.items()}
        used = {slot.thread for slot in kept.values()}
        self._slots = kept
        left = (slot for slot in (*self._left, *here.values()) if slot.thread not in used)
        self._left = [slot for slot in left if not going.is_over(slot)]
        self._lost = lost
        return True

    def _lose_samples(self, call: _Call) -> None:
        """Take note that nobody knows which samples go on in a call."""
        note = self._unknown_samples(call, len(call.samples))
        for number in range(len(call.samples)):
            piece = self._piece(call, number, number)
            piece.lost = self._lose(piece.tokens)
            self._note(note, piece)
        self._left += self._slots.values()
        self._slots, self._lost = {}, {*range(len(call.samples))}
        call.samples = []

    def _unknown_samples(self, call: _Call, count: int) -> Message:
        """Say that nothing tells which samples go on in a call."""
        saved = bool(self._saved.all)
        return message("tokens.unknown_samples", entry=call.entry.name, count=count, saved=saved)

    def _keys_of(self, call: _Call) -> list[int]:
        """Return what each sample keeps from call to call.

        Where blocks do not go on as the positions do, and the places of the batch do, a sample was
        given a block of another one.
        """
        starts, blocks = call.starts, call.inputs.blocks
        keys = [*range(len(starts))]
        if blocks is not None and len(blocks) >= len(starts):
            have = {key: slot.next for key, slot in self._slots.items()}
            keys = self._tables.keys(blocks, starts, have)
        if not call.one_each or keys == self._keys or len(keys) != len(self._keys):
            return keys
        if self._go_on_at(keys, starts) or not self._go_on_at(self._keys, starts):
            return keys
        for number, (key, before) in enumerate(zip(keys, self._keys)):
            if key != before:
                said = {"block": block_of(key), "before": block_of(before), "sample": number}
                self._note(message("tokens.other_block", entry=call.entry.name, **said))
        return self._keys

    def _go_on_at(self, keys: Sequence[int], starts: Sequence[int | None]) -> bool:
        """Return whether each sample is given the position behind its tokens so far."""
        slots = [self._slots.get(key) for key in keys]
        return len({*keys}) == len(keys) and all(
            slot is not None and start == slot.next for slot, start in zip(slots, starts)
        )

    def _reorder(self, parents: np.ndarray) -> None:
        """Put the sequences into the places in which they go on; one may do so in several.

        Args:
            parents: int64 [batch], which place each went on from.
        """
        before, self._slots = self._slots, {}
        lost, self._lost = self._lost, set()
        used: set[int] = set()
        for key, parent in enumerate(parents.tolist()):
            slot = before.get(parent)
            if parent in lost:
                self._lost.add(key)
            elif slot is not None and parent in used:
                begun = self._sequences[slot.sequence].begun
                self._begin(key, slot.tokens, [], slot.shift, begun)
            elif slot is not None:
                self._slots[key] = slot
            used.add(parent)

    def _piece(self, call: _Call, key: int, number: int) -> Piece:
        """Take note of the tokens of a call's sample."""
        rows, stays = call.samples[number], call.inputs.blocks is not None
        start = call.starts[number]
        piece = Piece(len(self._calls), key, stays, rows, call.ids[rows], start)
        self._pieces[-1].append(piece)
        return piece

    def _enter(self, call: _Call, piece: Piece, table: np.ndarray | None) -> tuple[int, int] | None:
        """Return the sequence that a sample's tokens belong to, and the place of the first.

        Args:
            table: int64 [blocks], those of the sample in a paged cache, or None.
        """
        key, start, one_each = piece.key, piece.start, call.one_each
        if not one_each:
            self._lost.discard(key)
        if key in self._lost:
            return None
        slot = self._slots.get(key)
        if slot is None:
            if not start or (not one_each and start in self._bases):
                return self._anew(piece)
            return self._behind_others(call, piece, table)
        if start is None and not one_each:
            return self._anew(piece)
        sequence = self._sequences[slot.sequence]
        have, at = len(slot.tokens), self._place_in(slot, start, one_each)
        stands = start is not None and start == slot.given and self._others_move
        if one_each and 0 < at < have:
            if stands and sequence.still is None:
                sequence.still = have
            if stands or (piece.tokens.tolist() == [self._pad] and self._has_ended(slot)):
                at = have  # positions of a sample that has ended may stand still
        elif start is not None:
            sequence.still = None
        if at > have and call.entry.call > 0:
            self._gap(call, piece, have)
            return None
        if not 0 < at <= have:
            if table is not None and sequence.open and start:
                return self._behind_others(call, piece, table)
            return self._anew(piece)
        number, tokens = slot.sequence, piece.tokens.tolist()
        if at == have:
            slot.tokens += tokens
        elif slot.tokens[at : at + len(tokens)] != tokens:  # it goes on with other tokens
            number = self._begin(key, slot.tokens[:at], tokens, slot.shift)
        if sequence.open is None:
            return number, at
        own = self._sequences[number]
        own.open = own.open or replace(sequence.open, pieces=[])
        own.open.pieces.append(piece)
        return number, sequence.open.start + at

    def _behind_others(
        self, call: _Call, piece: Piece, table: np.ndarray | None
    ) -> tuple[int, int] | None:
        """Return the sequence that begins with what others computed, and the place in it.

        What stands in blocks of a cache is known where a sequence of this phase was written to
        them. Else the saved samples may say it, once all tokens behind are known.
        """
        key, tokens, start = piece.key, piece.tokens.tolist(), piece.start or 0
        if table is not None:
            before = self._written.before(table, start, self._block.found(), self._known)
            if before is not None:
                begun = len(before) + len(tokens)
                return self._begin(key, before, tokens, 0, begun, shares=True), start
        is_first = call.entry.call == 0 and not call.one_each
        inside = self._saved.before(tokens, start) is not None
        wholes = (sample.tokens for sample in self._saved.all)
        begins = table is None or any(of[: len(tokens)].tolist() == tokens for of in wholes)
        if is_first and not inside and begins:
            return self._anew(piece)  # padding before them may count
        if table is None and not self._saved.all:
            self._gap(call, piece, 0)
            return None
        ahead = tokens if self._ahead is None or not call.one_each else self._ahead[key].tolist()
        if table is None and (found := self._saved.before(ahead, start)) is not None:
            before = found.tokens.tolist()
            is_new = not any(one.tokens[:start] == before for one in self._sequences)
            number = self._begin(key, before, tokens, 0, found.prompt, shares=True)
            self._sequences[number].cached = start if is_new else 0
            return number, start
        number = self._begin(key, [], tokens, start)
        self._slots[key].start = start
        code = "gap_unlike" if self._saved.all else "gap"
        note = message(f"tokens.{code}", entry=call.entry.name, given=start, have=0)
        self._sequences[number].open = _Open(start, [piece], note)
        return number, start

    def _known(self, number: int) -> list[int] | None:
        """Return the tokens of a sequence; None where it is not known what stands before them."""
        one = self._sequences[number]
        return one.tokens if one.open is None else None

    def _has_ended(self, slot: Slot) -> bool:
        """Return whether a sample may go on with padding: by what was saved, where it was."""
        if not slot.has_ended:
            tokens = np.array(slot.tokens, np.int64)
            wholes = (sample.tokens for sample in self._saved.all)
            slot.has_ended = (
                not self._saved.all
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

    def _continue(self, beginnings: Sequence[Beginning | None], call: _Call) -> None:
        """Put the sequences that a window continues into their places."""
        self._slots, self._lost = {}, set()
        for key, (beginning, start) in enumerate(zip(beginnings, call.starts)):
            if beginning is None:
                self._lost.add(key)
                continue
            shift = 0 if start is None else start - len(beginning.tokens)
            self._begin(key, [], beginning.tokens.tolist(), shift, beginning.prompt)
        if self._lost:
            counts = {"count": len(self._lost), "of": len(beginnings)}
            self._note(message("tokens.no_beginning", entry=call.entry.name, **counts))

    def _anew(self, piece: Piece) -> tuple[int, int]:
        """Return the sequence that begins with tokens; padding before them may count."""
        if piece.start is not None and len(piece.tokens) > 1:
            self._bases.add(piece.start)
        return self._begin(piece.key, [], piece.tokens.tolist(), piece.start or 0), 0

    def _gap(self, call: _Call, piece: Piece, have: int) -> None:
        """Take note of tokens whose place in a sequence is not known."""
        given = piece.start or 0
        self._note(message("tokens.gap", entry=call.entry.name, given=given, have=have), piece)

    def _begin(
        self,
        key: int,
        before: list[int],
        tokens: list[int],
        shift: int,
        begun: int | None = None,
        *,
        shares: bool = False,
    ) -> int:
        """Begin a sequence in a place; `begun` and `shares` are attributes of `_Sequence`."""
        if begun is None:
            begun = 0 if before else len(tokens)
        number = len(self._sequences)
        self._sequences.append(_Sequence([*before, *tokens], begun, shares))
        if key in self._slots and not self._continuing.is_over(self._slots[key]):
            self._left.append(self._slots[key])
        self._slots[key] = Slot(number, self._sequences[-1].tokens, shift, thread=number)
        return number

    def _lose(self, ids: np.ndarray) -> int:
        """Count rows of which it is not known which tokens stand before them."""
        count = ids.size if self._pad is None else int((ids != self._pad).sum())
        self._lost_rows += count
        return count

    def _note(self, note: Message, piece: Piece | None = None) -> None:
        """Take note of something, or of something about a piece: unless that is found later."""
        self._notes.setdefault(note, []).extend([] if piece is None else [piece])


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
    given = as_given(inputs, padding.pad) if width > 1 and padding.may_be_own else None
    if given is not None:
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
    if padding.saved.held_by(ids.astype(np.int64)) > begins[0]:
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
