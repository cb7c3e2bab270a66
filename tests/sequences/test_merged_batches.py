"""Requests that begin alone and are decoded together, in any order: against an exact oracle.

And rows of which the network is given with which row of the call before each goes on.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers.causal_phase import PAD, CausalPhase, count_named, saved_sample, values

from mindrlhf_msprobe.sequences.calls import read_tokens


class Engine:
    """Records calls, and knows of each row which tokens it stands behind.

    Args:
        given: what tells positions: `positions`, `lengths` or nothing.
        flat: whether ids are [tokens], and the sizes of samples are given.
        row: whether they are [1, tokens], or with `flat` [tokens], and no sizes are given.
        base: the position of first tokens.
    """

    def __init__(self, directory, given="positions", flat=False, row=False, base=0):
        self.phase, self.given, self.flat, self.row = CausalPhase(directory), given, flat, row
        self.truth, self.base = [], base

    def call(self, parts):
        """Add a call with some tokens of some samples: the whole sample, first and last of each."""
        width = max(stop - start for _, start, stop in parts)
        packed = self.flat or self.row
        assert packed or all(stop - start == width for _, start, stop in parts)
        rows = [whole[:stop] for whole, start, stop in parts for stop in range(start + 1, stop + 1)]
        shape = (-1,) if self.flat else (1, -1) if self.row else (len(parts), width)
        ids = np.array([row[-1] for row in rows]).reshape(shape)
        places = np.array([len(row) - 1 for row in rows], np.int32).reshape(ids.shape) + self.base
        inputs = {"position_ids": places} if self.given == "positions" else {}
        if self.flat and not self.row:
            sizes = [stop - start for _, start, stop in parts]
            inputs["q_seq_lens"] = np.array(sizes, np.int32)
        if self.given == "lengths":
            inputs["batch_valid_length"] = np.array([stop for *_, stop in parts], np.int32)
        out = np.array([values(row)[-1] for row in rows]).reshape(*ids.shape, -1)
        self.phase.call(ids, out, **inputs)
        self.truth.append(rows)

    def check(self, samples):
        """Return how many rows are named, of how many; each must be named right."""
        tokens = read_tokens(self.phase.entries, pad=PAD, samples=samples)
        return count_named(tokens, self.truth), sum(map(len, self.truth)), tokens


def requests(draw, vocabulary, count, alike=False):
    """Return prompts and responses as lists."""
    size = draw.randrange(2, 6)
    lengths = [size if alike else draw.randrange(2, 7) for _ in range(count)]
    prompts = [[draw.randrange(2, vocabulary) for _ in range(n)] for n in lengths]
    return [
        (p, [draw.randrange(2, vocabulary) for _ in range(draw.randrange(1, 9))]) for p in prompts
    ]


def served(draw, engine, pairs, room=3, shuffled=False, chunk=None, cached=False):
    """Serve requests: each is prefilled alone as there is room, all that run are decoded together.

    Args:
        shuffled: whether requests change their places as others join or leave the batch.
        chunk: prompts are given so many tokens at a time.
        cached: whether the first tokens of some prompts were computed before.
    """
    waiting, running, size_before = [*pairs], [], 0
    while waiting or running:
        while waiting and len(running) < room:
            prompt, response = waiting.pop(0)
            begin = draw.randrange(0, len(prompt)) if cached else 0
            size = chunk or len(prompt)
            for at in range(begin, len(prompt), size):
                stop = min(at + size, len(prompt))
                engine.call([([*prompt, *response], at, stop)])
            if len(response) > 1:
                running.append([[*prompt, *response], len(prompt)])
            if draw.random() < 0.5:
                break
        if shuffled and len(running) != size_before:
            draw.shuffle(running)
        size_before = len(running)
        if running:
            engine.call([(whole, at, at + 1) for whole, at in running])
        for one in running:
            one[1] += 1
        running = [one for one in running if one[1] < len(one[0]) - 1]


def scheduled(draw, engine, pairs, chunk=None):
    """Serve requests: each call has the next part of all that run, prompts in chunks beside others.

    Args:
        chunk: prompts are given so many tokens at a time at most; None: whole, each alone.
    """
    waiting, running = [[[*p, *r], len(p), 0] for p, r in pairs], []
    while waiting or running:
        if waiting:
            running.append(waiting.pop(0))
            if chunk is None:
                whole, size, _ = running[-1]
                engine.call([(whole, 0, size)])
                running[-1][2] = size
        running = [one for one in running if one[2] < len(one[0]) - 1]
        parts = []
        for one in running:
            whole, prompt, fed = one
            one[2] = min(fed + (chunk or 1), prompt) if fed < prompt else fed + 1
            parts.append((whole, fed, one[2]))
        if parts:
            engine.call(parts)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("base", [0, 2])
@pytest.mark.parametrize("chunk", [None, 1, 3, 50])
@pytest.mark.parametrize("seed", range(4))
def test_requests_in_one_row_are_named(tmp_path, chunk, base, flat, seed):
    """[1, tokens] or [tokens] with positions alone: each request's next tokens behind another's."""
    draw = random.Random(f"{chunk} {base} {seed}")
    pairs = requests(draw, 50_000, draw.randrange(2, 8), alike=draw.random() < 0.3)
    engine = Engine(tmp_path, flat=flat, row=True, base=base)
    scheduled(draw, engine, pairs, chunk)
    named, of, tokens = engine.check(saved(draw.sample(pairs, len(pairs))))
    assert named == of, tokens.notes


def saved(pairs):
    return [saved_sample(p, r) for p, r in pairs]


@pytest.mark.parametrize("kind", ["plain", "shuffled", "chunks", "cached"])
@pytest.mark.parametrize("given", ["positions", "lengths", "nothing"])
@pytest.mark.parametrize("seed", range(6))
def test_requests_that_are_merged_are_named(tmp_path, given, kind, seed):
    """By positions and saved samples; with a large vocabulary all are."""
    draw = random.Random(f"{given} {kind} {seed}")
    if given == "nothing" and kind in ("cached", "chunks"):
        pytest.skip("nothing says where a part of a prompt stands")
    pairs = requests(draw, 50_000, draw.randrange(2, 8), alike=draw.random() < 0.3)
    engine = Engine(tmp_path, given)
    more = {"shuffled": {"shuffled": True}, "chunks": {"chunk": 2}, "cached": {"cached": True}}
    served(draw, engine, pairs, **more.get(kind, {}))
    order = draw.sample(pairs, len(pairs))
    named, of, tokens = engine.check(saved(order))
    assert named == of, tokens.notes


@pytest.mark.parametrize("seed", range(20))
def test_a_prompt_is_not_cut_where_its_end_may_go_on_another_request(tmp_path, seed):
    """Its last tokens are those that running requests are given next at these positions."""
    draw = random.Random(seed)
    pairs = requests(draw, 50_000, draw.randrange(2, 8))
    for number, (prompt, _) in enumerate(pairs):
        wholes = [[*p, *r] for p, r in pairs[:number]]
        for at in range(draw.randrange(1, len(prompt)), len(prompt)):
            prompt[at] = draw.choice([w[at] for w in wholes if len(w) > at] or [prompt[at]])
    engine = Engine(tmp_path)
    served(draw, engine, pairs)
    named, of, tokens = engine.check(saved(pairs))
    assert named == of, tokens.notes


@pytest.mark.parametrize("seed", range(30))
def test_no_row_is_named_wrong(tmp_path, seed):
    """Also where many fit: few tokens, prompts alike."""
    draw = random.Random(seed)
    pairs = requests(draw, draw.choice([20, 50]), draw.randrange(1, 7), alike=True)
    if draw.random() < 0.5:
        pairs = [(pairs[0][0], response) for _, response in pairs]
    engine = Engine(tmp_path, draw.choice(["positions", "lengths"]), flat=draw.random() < 0.5)
    served(draw, engine, pairs, cached=draw.random() < 0.5)
    engine.check(saved(pairs))


@pytest.mark.parametrize("seed", range(40))
def test_no_row_of_one_row_is_named_wrong(tmp_path, seed):
    """As above, in calls whose samples stand one behind the other."""
    draw = random.Random(seed)
    pairs = requests(draw, draw.choice([20, 50]), draw.randrange(1, 7), alike=draw.random() < 0.5)
    if draw.random() < 0.3:
        pairs = [(pairs[0][0], response) for _, response in pairs]
    engine = Engine(tmp_path, row=True, flat=draw.random() < 0.5)
    scheduled(draw, engine, pairs, draw.choice([None, 2, 4, 9]))
    engine.check(saved(pairs))


@pytest.mark.parametrize("row", [False, True])
def test_positions_alone_name_requests_of_unlike_lengths(tmp_path, row):
    """Where no two requests are as long, nothing else is needed, also where positions go on."""
    engine = Engine(tmp_path, row=row)
    wholes = [[5, 6, 7, 8, 9], [6, 7, 8, 9, 5, 4], [8, 9, 5, 4, 3, 2, 1]]
    for at, whole in enumerate(wholes, start=2):
        engine.call([(whole, 0, at)])
    engine.call([(whole, at, at + 1) for at, whole in enumerate(wholes, start=2)])
    engine.call([(wholes[2], 5, 6), (wholes[0], 3, 4)])
    named, of, _ = engine.check(())
    assert named == of


def test_requests_of_one_length_without_saved_samples_are_not_guessed(tmp_path):
    """Their rows are left out, and that is said."""
    engine = Engine(tmp_path)
    wholes = [[5, 6, 7, 8], [6, 7, 8, 9]]
    for whole in wholes:
        engine.call([(whole, 0, 2)])
    engine.call([(whole, 2, 3) for whole in wholes])
    named, of, tokens = engine.check(())
    assert (named, of) == (4, 6)
    assert tokens.notes
    assert engine.check(saved([(w[:2], w[2:]) for w in wholes]))[:2] == (6, 6)


@pytest.mark.parametrize("base", [0, 1, 2])
def test_a_turn_of_a_tool_is_given_alone(tmp_path, base):
    """Several tokens of one request between calls that have one of each, from whatever position."""
    engine = Engine(tmp_path, base=base)
    wholes = [[5, 6, 7, 20, 21, 22, 23, 24, 25], [8, 9, 30, 31, 32, 33, 34]]
    engine.call([(wholes[0], 0, 3)])
    engine.call([(wholes[1], 0, 2)])
    engine.call([(wholes[0], 3, 4), (wholes[1], 2, 3)])
    engine.call([(wholes[1], 3, 6)])
    engine.call([(wholes[0], 4, 8)])
    named, of, tokens = engine.check(
        saved([(wholes[0][:3], wholes[0][3:]), (wholes[1][:2], wholes[1][2:])])
    )
    assert (named, of) == (14, 14)
    assert not tokens.notes


@pytest.mark.parametrize("row", [False, True])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_samples_that_share_the_pass_over_their_prompt(tmp_path, count, row):
    """One pass, then each sample goes on from it: its rows are recorded, nothing was cached."""
    engine = Engine(tmp_path, row=row)
    draw = random.Random(count)
    pairs = []
    for prompt in ([5, 6, 7], [8, 9]):
        pairs += [(prompt, [draw.randrange(20, 9999) for _ in range(n + 1)]) for n in range(count)]
        engine.call([(prompt, 0, len(prompt))])
    for at in range(count):
        going = [(p, r) for p, r in pairs if at < len(r) - 1]
        if going:
            engine.call([([*p, *r], len(p) + at, len(p) + at + 1) for p, r in going])
    named, of, tokens = engine.check(saved(pairs))
    assert named == of
    assert not tokens.notes


@pytest.mark.parametrize("name", ["beam_idx", "reorder_index"])
@pytest.mark.parametrize("seed", range(10))
def test_rows_go_on_with_the_row_that_the_index_names(tmp_path, seed, name):
    """Of any order, and where several go on with one: as the beams were made by hand."""
    draw = random.Random(seed)
    count = draw.randrange(2, 6)
    beams = [[n + 1, *[draw.randrange(1, 9) for _ in range(2)]] for n in range(count)]
    phase = CausalPhase(tmp_path / "phase")
    phase.call(beams, values([1] * count), position_ids=[[0, 1, 2]] * count)
    expected = [[beam[: at + 1] for beam in beams for at in range(3)]]
    for at in range(3, 8):
        parents = [draw.randrange(count) for _ in range(count)]
        beams = [[*beams[parent], draw.randrange(1, 9)] for parent in parents]
        ids, positions = [[beam[-1]] for beam in beams], [[at]] * count
        index = np.array(parents, np.int32)
        phase.call(ids, values([1] * count), position_ids=positions, **{name: index})
        expected.append(beams)
    found = read_tokens(phase.entries)
    assert not found.notes
    assert count_named(found, expected) == sum(map(len, expected))
