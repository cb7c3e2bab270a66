"""Blocks of a paged cache: their size, and samples that share some of them.

The tokens before a row are those in its blocks.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers.causal_phase import CausalPhase, count_named, saved_sample, values

from mindrlhf_msprobe.sequences.calls import read_tokens
from mindrlhf_msprobe.sequences.sharing import BlockSize

SIZE = 4  # tokens of a block
BLOCKS = 8  # of a sample


class Engine:
    """A packed engine that keeps a paged cache, and gives full blocks of a prompt to others.

    Args:
        first_call: the number of the first call that is recorded.
        slots: whether it says where each token is written to.
    """

    def __init__(self, tmp_path, *, first_call=0, slots=False):
        self.phase = CausalPhase(tmp_path / "phase")
        self.expected = []  # of each recorded call, the tokens up to each row
        self._tables, self._have, self._tokens = {}, {}, {}
        self._calls, self._first, self._slots = 0, first_call, slots

    def begin(self, name, tokens, blocks, cached=0):
        """Add a sample; so many of its tokens are in the cache already."""
        self._tables[name] = [*blocks, *[0] * (BLOCKS - len(blocks))]
        self._have[name], self._tokens[name] = cached, tokens

    def have(self, name):
        """Return how many tokens of a sample are in the cache."""
        return self._have[name]

    def call(self, **counts):
        """Compute the next tokens of some samples."""
        ids, positions, lengths, tables, slots, expected = [], [], [], [], [], []
        for name, count in counts.items():
            at = self._have[name]
            for place in range(at, at + count):
                ids.append(self._tokens[name][place])
                positions.append(place)
                expected.append(tuple(self._tokens[name][: place + 1]))
                slots.append(self._tables[name][place // SIZE] * SIZE + place % SIZE)
            self._have[name] = at + count
            lengths.append(at + count)
            tables.append(self._tables[name])
        self._calls += 1
        if self._calls > self._first:
            rows = values(ids)
            self.phase.call(
                ids,
                rows,
                first_call=self._first,
                positions=positions,
                batch_valid_length=lengths,
                q_seq_lens=[*counts.values()],
                block_tables=tables,
                slot_mapping=slots if self._slots else None,
            )
            self.expected.append(expected)

    def found(self, samples=()):
        """Return the tokens of the phase; each row that is known must stand where it was put."""
        tokens = read_tokens(self.phase.entries, samples=samples)
        count_named(tokens, self.expected)
        for call in tokens.calls:
            known = call.sequence >= 0
            assert (call.given[known] == call.position[known]).all()
        return tokens


def blocks_of(number):
    return [*range(10 * number + 1, 10 * number + 1 + BLOCKS)]


def group(draw, engine, count, size):
    """Let samples of one prompt share its full blocks, in any order of their calls."""
    prompt = [draw.randrange(1, 9) for _ in range(size)]
    full = (size - 1) // SIZE
    wholes = {f"s{n}": prompt + [draw.randrange(1, 9) for _ in range(8)] for n in range(count)}
    leader = blocks_of(0)
    engine.begin("s0", wholes["s0"], leader)
    waiting = [*wholes][1:]
    while any(engine.have(name) < size + 7 for name in wholes if name not in waiting) or waiting:
        if waiting and engine.have("s0") >= full * SIZE and draw.random() < 0.5:
            name = waiting.pop(0)
            blocks = [*leader[:full], *blocks_of(int(name[1:]))[full:]]
            engine.begin(name, wholes[name], blocks, cached=full * SIZE)
        live = [n for n in wholes if n not in waiting and engine.have(n) < size + 7]
        chosen = [name for name in live if draw.random() < 0.7]
        counts = {}
        for name in chosen:
            left = size - engine.have(name)
            counts[name] = min(left, draw.randrange(1, 4)) if left > 0 else 1
        if counts:
            engine.call(**counts)
    return [saved_sample(prompt, w[size:]) for w in wholes.values()]


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_rows_stand_behind_what_their_blocks_hold(tmp_path, seed, saved, slots):
    """Whoever wrote it; also with nothing saved."""
    draw = random.Random(seed)
    engine = Engine(tmp_path, slots=slots)
    samples = group(draw, engine, draw.randrange(2, 5), draw.randrange(5, 12))
    tokens = engine.found(samples if saved else ())
    assert all((call.sequence >= 0).all() for call in tokens.calls)
    assert not tokens.notes
    assert tokens.lost == 0


def test_a_block_that_was_given_to_another_sample_holds_that_ones_tokens(tmp_path):
    """Not those of the one that had it before."""
    engine = Engine(tmp_path)
    engine.begin("old", [3] * 8, [5, 6])
    engine.call(old=8)
    engine.begin("a", [1, 2, 3, 4, 5, 6], [5, 7])
    engine.call(a=6)
    engine.begin("b", [1, 2, 3, 4, 5, 8], [5, 8], cached=4)
    engine.call(b=2)
    tokens = engine.found()
    assert all((call.sequence >= 0).all() for call in tokens.calls)
    (tmp_path / "other").mkdir()
    other = Engine(tmp_path / "other")
    other.begin("a", [1, 2, 3, 4, 5, 6, 7, 8, 9], [5, 7, 9])
    other.call(a=9)
    other.begin("new", [8] * 7, [6, 7])
    other.call(new=7)
    other.begin("b", [1, 2, 3, 4, 8, 8, 8, 8, 1], [5, 7, 8], cached=8)
    other.call(b=1)
    lost = other.found()
    assert [call.sequence.tolist() for call in lost.calls[2:]] == [[-1]]
    assert lost.lost == 1
    assert [note.code for note in lost.notes] == ["tokens.gap"]


def test_blocks_of_an_earlier_step_are_known_by_what_was_saved(tmp_path):
    """Without that their rows are left out, and that is said: no positions are at fault."""
    engine = Engine(tmp_path, first_call=1)
    prompt = [1, 2, 3, 4, 5, 6]
    engine.begin("x", prompt, [1, 2])
    engine.call(x=6)
    wholes = {"a": [*prompt, 7, 8, 9], "b": [*prompt, 8, 8, 1]}
    for name, block in (("a", 3), ("b", 4)):
        engine.begin(name, wholes[name], [1, block, 9], cached=4)
    engine.call(a=2, b=2)
    engine.call(a=1, b=1)
    samples = [saved_sample(w[:6], w[6:]) for w in wholes.values()]
    tokens = engine.found(samples)
    assert all((call.sequence >= 0).all() for call in tokens.calls)
    assert not tokens.notes
    alone = engine.found()
    assert (alone.lost, alone.sequences) == (6, ())
    assert {note.code for note in alone.notes} == {"tokens.gap"}


def test_a_window_of_a_paged_cache_is_found_in_what_was_saved(tmp_path):
    """The first of its calls has one token of each sample; unlike prompts, alike tokens."""
    engine = Engine(tmp_path, first_call=1)
    wholes = {"a": [1, 2, 3, 4, 5, 6, 7], "b": [2, 2, 3, 9, 9, 9, 9], "c": [3, 2, 3, 4, 4, 6, 1]}
    for number, (name, whole) in enumerate(wholes.items()):
        engine.begin(name, whole, blocks_of(number))
    engine.call(a=3, b=3, c=3)
    for _ in range(3):
        engine.call(a=1, b=1, c=1)
    samples = [saved_sample(w[:3], w[3:]) for w in wholes.values()]
    tokens = engine.found(samples)
    assert tokens.begun == (3, 3, 3)
    assert tokens.samples == (0, 1, 2)
    assert not tokens.notes


def test_chunks_of_prompts_that_are_alike_are_no_refilled_cache(tmp_path):
    """The second sample of a prompt is given it in one call, the first in two."""
    engine = Engine(tmp_path)
    wholes = {"a": [1, 2, 3, 4, 5, 6], "b": [1, 2, 3, 4, 5, 7]}
    for number, (name, whole) in enumerate(wholes.items()):
        engine.begin(name, whole, blocks_of(number))
    engine.call(a=3)
    engine.call(a=2, b=5)
    samples = [saved_sample(w[:5], w[5:]) for w in wholes.values()]
    assert not engine.found(samples).notes


@pytest.mark.parametrize("saved", [False, True])
def test_a_cache_that_an_earlier_step_left_says_not_what_stands_in_it(tmp_path, saved):
    """The first call begins behind it: that is no offset. Saved samples tell the tokens."""
    engine = Engine(tmp_path)
    tokens = [5, 6, 7, 8, 9, 1, 2, 3]
    engine.begin("a", tokens, [1, 2], cached=SIZE)
    engine.begin("b", [4, *tokens[1:], 9], [3, 4, 5])
    engine.call(a=2, b=6)
    engine.call(a=1, b=1)
    known = [saved_sample(tokens[:6], tokens[6:])] if saved else []
    found = engine.found(known)
    assert (found.lost, found.count) == ((0, 10) if saved else (3, 10))


def written(draw, size, tokens, samples=3):
    """Return tables [tokens, blocks], slots and positions of the tokens of some samples."""
    each = tokens // size + 1
    blocks = draw.sample(range(1, 500), each * samples)
    rows = []
    for sample in range(samples):
        table = blocks[sample * each : (sample + 1) * each]
        for at in range(draw.randrange(1, tokens + 1)):
            rows.append((table, table[at // size] * size + at % size, at))
    return tuple(np.array(column) for column in zip(*rows))


@pytest.mark.parametrize("seed", range(30))
def test_the_size_follows_from_where_tokens_are_written(seed):
    """Also of calls that fill less than one block, and with one slot in five wrong."""
    draw = random.Random(seed)
    size = draw.choice([1, 2, 4, 7, 16, 32, 128])
    found = BlockSize()
    for _ in range(draw.randrange(1, 4)):
        tables, slots, positions = written(draw, size, draw.choice([3, 40, 150]))
        found.add(tables, slots, positions)
    assert found.found() == size
    tables, slots, positions = written(draw, size, 60)
    wrong = np.arange(len(slots)) % 5 == 4
    other = BlockSize()
    other.add(tables, np.where(wrong, slots + 3, slots), positions)
    assert other.found() == size


def test_what_nothing_says_is_not_guessed():
    """No slots; a first block that any size puts at 0; slots of no block."""
    assert BlockSize().found() is None
    first = BlockSize()
    first.add(np.zeros((3, 2), np.int64), np.arange(3), np.arange(3))
    assert first.found() is None
    none = BlockSize()
    none.add(np.array([[5, 6]] * 4), np.array([900001, 3, 71, 999999]), np.arange(4))
    assert none.found() is None
