"""Calls that have several tokens of a sequence, followed along the responses that were saved.

Speculative decoding gives drafts to the network, of which some are rejected: their rows are tokens
of no sample. A prompt may be given in chunks. Positions say which tokens a row stands behind,
unless they are what is wrong; the prompts and responses that were saved as token ids say it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.sequences.beginnings import shared_length
from mindrlhf_msprobe.sequences.saved import SavedSamples


@dataclass
class Piece:
    """The tokens of one sample in one call.

    Attributes:
        call: the number of the call.
        key: what the sample keeps from call to call: its place in the batch, or its first block.
        stays: whether it keeps that whatever samples stand beside it, as it does a block.
        rows: int64 [tokens], rows of the call's token ids.
        tokens: int64 [tokens].
        start: the position of the first as it was given, or None.
        begins: whether a sequence begins with it.
        lost: how many of its rows are tokens of which it was not known where they stand.
        thread: a number of its sequence, or -1 where that is not known.
    """

    call: int
    key: int
    stays: bool
    rows: np.ndarray
    tokens: np.ndarray
    start: int | None
    begins: bool = False
    lost: int = 0
    thread: int = -1


@dataclass
class Guess:
    """A saved sample that a sequence may be.

    Attributes:
        sample, tokens, prompt: its number, its tokens, and how many of them are the prompt.
        have, last: how many of them were given, and the last place.
        placed: of each piece the position of its first token, how many of its tokens are those of
            the sample, and how many are rejected drafts; those behind the end are neither.
    """

    sample: int
    tokens: np.ndarray
    prompt: int
    have: int
    last: int = 0
    shift: int = 0
    placed: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether at most the last token, which is sampled, was not given."""
        return self.have >= len(self.tokens) - 1

    def place(self, piece: Piece) -> tuple[int, int] | None:
        """Return where a piece goes on and how many of its tokens are the sample's; or None."""
        size = len(self.tokens)
        able = [q for q in range(self.last + 1, self.have + 1) if q < size]
        able = [q for q in able if self.tokens[q] == piece.tokens[0]]
        if not able:
            return (size, 0) if self.have == size else None
        given = () if piece.start is None else (piece.start - self.shift, piece.start)
        wanted = [q for q in (*given, self.have) if q in able]
        at = wanted[0] if wanted else able[-1]
        same = shared_length(self.tokens[at:], piece.tokens)
        in_prompt = at + same < min(self.prompt, at + len(piece.tokens))
        return None if in_prompt else (at, same)

    def add(self, piece: Piece) -> bool:
        """Go on with a piece; return whether the sample does."""
        found = self.place(piece)
        if found is None:
            return False
        at, same = found
        over = at + same >= len(self.tokens)
        self.placed.append((at, same, 0 if over else len(piece.tokens) - same))
        if same:
            self.have, self.last = at + same, at
            self.shift = 0 if piece.start is None else piece.start - at
        return True


class _Thread:
    """A sequence: its pieces, and what it may be."""

    def __init__(self, piece: Piece, guesses: list[Guess]) -> None:
        self.pieces = [piece]
        self.guesses = guesses

    def fits(self, piece: Piece) -> bool:
        """Return whether a piece may go on with it, before its end."""
        return any((found := guess.place(piece)) and found[1] for guess in self.guesses)

    @property
    def is_over(self) -> bool:
        """Whether it may have left the batch."""
        return any(guess.is_over for guess in self.guesses)

    @property
    def state(self) -> frozenset[tuple[int, int, int]]:
        """What it may be, and how far it is."""
        return frozenset((guess.sample, guess.have, guess.last) for guess in self.guesses)

    def add(self, piece: Piece) -> None:
        """Go on with a piece."""
        self.pieces.append(piece)
        self.guesses = [guess for guess in self.guesses if guess.add(piece)]


def follow(
    calls: Sequence[Sequence[Piece]], saved: SavedSamples
) -> list[tuple[Guess, list[Piece]]]:
    """Return the saved samples that sequences are in all their pieces, and these.

    Nothing where calls have one token of each sequence behind its beginning and all is known: the
    positions are enough then.

    Args:
        calls: the pieces of each, in the order of the batch.
    """
    later = [piece for pieces in calls for piece in pieces if not piece.begins]
    if not saved.all or not any(len(piece.rows) > 1 or piece.lost for piece in later):
        return []
    threads = _Threads(saved)
    if not all(map(threads.add, calls)):
        return []
    found: list[tuple[Guess, list[Piece]]] = []
    used: dict[int, int] = {}  # of several equal samples each sequence has one of its own
    for thread in threads.found:
        able = [guess for guess in thread.guesses if guess.have >= guess.prompt]
        if able:
            best = min(able, key=lambda g: (used.get(g.sample, 0), -g.have, g.sample))
            used[best.sample] = used.get(best.sample, 0) + 1
            found.append((best, thread.pieces))
    return found


class _Threads:
    """Puts the pieces of calls together.

    Attributes:
        found: the sequences so far, in the order in which they began.
    """

    def __init__(self, saved: SavedSamples) -> None:
        self.found: list[_Thread] = []
        self._saved = saved
        self._at: dict[int, _Thread] = {}
        self._keys: list[int] = []  # of the call before

    def add(self, pieces: Sequence[Piece]) -> bool:
        """Add a call; False where the places of the batch change and nothing says how."""
        guesses = {piece.key: _guesses(self._saved, piece) for piece in pieces if piece.begins}
        keys = [piece.key for piece in pieces]
        moved = bool(pieces) and not pieces[0].stays and not {*keys} >= {*self._keys}
        begun: set[int] = set()
        for piece in (one for one in pieces if one.begins):
            thread = self._at.get(piece.key)
            # It may go on with what stood in its place, whatever its position.
            goes_on = moved or (thread is not None and thread.fits(piece))
            if guesses[piece.key] or not goes_on:
                begun.add(piece.key)
        going = [piece for piece in pieces if piece.key not in begun]
        if moved and going:
            left = [self._at[key] for key in self._keys if key in self._at]
            places = None if begun else _in_order(left, going)
            if places is None:
                return False
            self._at = {piece.key: thread for piece, thread in zip(going, places)}
        for piece in pieces:
            if piece.key in begun:
                self._at[piece.key] = _Thread(piece, guesses[piece.key])
                self.found.append(self._at[piece.key])
            elif piece.key in self._at:
                self._at[piece.key].add(piece)
        self._keys = keys
        return True


def _in_order(threads: Sequence[_Thread], pieces: Sequence[Piece]) -> list[_Thread] | None:
    """Return which of more threads each piece goes on with; None where it may be unlike ones.

    They keep their order in the batch, and those that left it are over.
    """
    ways: list[list[int]] = []  # to put the first pieces to the first threads
    for number in range(len(pieces) + 1):
        row = [int(number == 0)]
        for upto, thread in enumerate(threads):
            left = row[upto] if thread.is_over else 0
            fits = number > 0 and ways[number - 1][upto] and thread.fits(pieces[number - 1])
            row.append(min(2, left + (ways[number - 1][upto] if fits else 0)))
        ways.append(row)
    several = ways[-1][-1] > 1 and not _are_equal(threads, pieces)
    if several or not ways[-1][-1]:
        return None
    found: list[_Thread] = []
    number = len(pieces)
    for upto in range(len(threads), 0, -1):
        if threads[upto - 1].is_over and ways[number][upto - 1]:
            continue
        number -= 1
        found.insert(0, threads[upto - 1])
    return found


def _are_equal(threads: Sequence[_Thread], pieces: Sequence[Piece]) -> bool:
    """Return whether all threads that each piece may go on with have the same tokens so far."""
    first, last = _earliest(threads, pieces), _earliest(threads[::-1], pieces[::-1])
    if first is None or last is None:
        return False
    for piece, low, high in zip(pieces, first, (len(threads) - 1 - at for at in last[::-1])):
        able = [thread for thread in threads[low : high + 1] if thread.fits(piece)]
        if len({thread.state for thread in able}) > 1:
            return False
    return True


def _earliest(threads: Sequence[_Thread], pieces: Sequence[Piece]) -> list[int] | None:
    """Return the first threads that pieces may go on with in their order; None if there is none."""
    found: list[int] = []
    for piece in pieces:
        start = found[-1] + 1 if found else 0
        at = next((n for n in range(start, len(threads)) if threads[n].fits(piece)), None)
        if at is None:
            return None
        found.append(at)
    return found


def _guesses(saved: SavedSamples, piece: Piece) -> list[Guess]:
    """Return the samples that begin with a piece; the prompt's first tokens may be all."""
    given = piece.tokens.astype(np.int64)
    guesses = []
    for number in saved.like(given):
        tokens = saved.all[number].tokens
        same, size = shared_length(tokens, given), len(saved.all[number].prompt)
        if same < min(len(given), len(tokens)) and len({*given[size:].tolist()}) == 1:
            same = min(same, size)  # behind the prompt it is padding
        if same in (len(given), len(tokens)) or size == same < len(given):
            guess = Guess(number, tokens, size, same, same - 1, piece.start or 0)
            guess.placed.append((0, same, 0))
            guesses.append(guess)
    return guesses
