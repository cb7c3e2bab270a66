"""Masks and scores are aligned column by column: against brute force, in any layout.

The score of two tokens is made of all tokens up to each, as in a causal network. What is not a
token up to the row's own is noise in scores, and hidden by masks.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from mindrlhf_msprobe.comparison.mismatch.keyed import Columns, align_keys, columns_of
from mindrlhf_msprobe.comparison.mismatch.rows import NotAligned, Source
from mindrlhf_msprobe.comparison.mismatch.sides import Side, Value
from mindrlhf_msprobe.comparison.pairing.names import Name
from mindrlhf_msprobe.sequences.calls import read_tokens
from mindrlhf_msprobe.sequences.matching import match
from mindrlhf_msprobe.storage.arrays.npy import dtype_name, save_npy
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Entry, Record

HEADS, PAD = 3, 0
NAME = Name("mask", 0, "output", "0")

#: Convention → what lets in, what hides, dtype.
CONVENTIONS = {
    "1 lets in": (1, 0, np.int8),
    "1 hides": (1 - 1, 1, np.uint8),
    "bool": (True, False, bool),
    "bool that hides": (False, True, bool),
    "added": (0, -1e4, np.float32),
    "infinity": (0, -np.inf, np.float32),
    "float that lets in": (1, 0, np.float32),
    "half": (0, -65504, np.float16),
}


def key_of(tokens):
    """Return a number that is made of a token and of all before it."""
    made = 0
    for token in tokens:
        made = (made * 7919 + token + 7) % 1000003
    return made


def score(query, key):
    return np.array([np.sin(key_of(query) * (head + 1) + key_of(key)) for head in range(HEADS)])


class Phase:
    """Calls of a network, each with a mask and scores.

    Attributes:
        calls: of each, for every row of its ids and every column the tokens up to it, or None.
    """

    def __init__(self, directory, draw, *, shared=False):
        directory.mkdir()
        self.directory, self.draw = directory, draw
        self.entries, self.calls, self.owners, self.changed = [], [], [], {}
        self.lets, self.hides, self.dtype = CONVENTIONS[draw.choice([*CONVENTIONS])]
        self.form = draw.choice(["b 1 s k", "b s k", "b h s k"])
        self.noise = np.random.default_rng(draw.randrange(1 << 30))
        self.shared = shared

    def call(self, rows, columns, owners=None, **inputs):
        """Add a call.

        Args:
            rows, columns: for each sample the tokens up to each row and each column, or None.
            owners: of packed samples, to which one each row belongs.
        """
        number = len(self.entries)
        name = f"Cell.root.Net.forward.{number}"
        ids = [[tokens[-1] if tokens else PAD for tokens in sample] for sample in rows]
        given = {"tokens": np.array(ids, np.int32), **inputs}
        records = tuple(
            self.record(f"{name}.input.{at}", np.asarray(value), argument, "input", str(at))
            for at, (argument, value) in enumerate(given.items())
        )
        place = {"phase": "p", "step": 0, "rank": 0, "seq": 2 * number, "end": 2 * number + 1}
        self.entries.append(Entry(name, **place, records=records))
        self.calls.append((rows, columns))
        self.owners.append(owners)

    def record(self, name, array, argument="", io="output", path="0"):
        file = self.directory / f"{name}.npy"
        save_npy(file, array)
        leaf = Leaf("mindspore.Tensor", dtype_name(array.dtype), array.shape)
        return Record(name, io, path, leaf, str(file), argument)

    def seen(self, number):
        """Yield the sample, row and column of all that may be seen, with the tokens of both."""
        rows, columns = self.calls[number]
        owners = self.owners[number]
        for sample, (queries, keys) in enumerate(zip(rows, columns)):
            for row, query in enumerate(queries):
                for column, key in enumerate(keys):
                    own = owners is None or owners[row] == owners[column]
                    if own and query and key and query[: len(key)] == key:
                        yield (sample, slice(None), row, column), query, key

    def shape(self, number, heads):
        rows, columns = self.calls[number]
        return len(rows), heads, len(rows[0]), len(columns[0])

    def scores(self, number):
        """Return the scores of a call, [b, h, s, k]; noise where nobody may look."""
        made = self.noise.normal(size=self.shape(number, HEADS))
        for at, query, key in self.seen(number):
            made[at] = score(query, key)
        return made.astype(np.float32)

    def mask(self, number):
        """Return the mask of a call, [b, 1, s, k], with what was changed in it."""
        lets = np.zeros(self.shape(number, 1), bool)
        for at, _, _ in self.seen(number):
            lets[at] = True
        for at in self.changed.get(number, ()):
            lets[at] ^= True
        return lets

    def source(self, kind):
        tokens = read_tokens(self.entries)
        value = Value(0, "cell")
        for number in range(len(self.calls)):
            if kind == "scores":
                made = self.scores(number)
                for at in self.changed.get(number, ()):
                    made[at] += 1
                made = made[:, 0] if self.form == "b s k" else made
            else:
                made = np.where(self.mask(number), self.lets, self.hides).astype(self.dtype)
                if self.form == "b h s k":
                    made = np.repeat(made, HEADS, axis=1)
                made = made[:, 0] if self.form == "b s k" else made
            value.add(number, number, self.record(f"{kind}.{number}", made), {})
        side = Side(None, "p", 0, 0, tokens, values={NAME: value})
        return Source(side, value)


def prefixes(tokens):
    return [tuple(tokens[: at + 1]) for at in range(len(tokens))]


def rollout(directory, draw, samples, prompts):
    """Left-padded prompts, then one token of each, behind all columns before."""
    phase = Phase(directory, draw)
    bucket = max(prompts) + draw.randrange(3)
    columns = [[None] * (bucket - p) + prefixes(t)[:p] for t, p in zip(samples, prompts)]
    mask = np.array([[key is not None for key in keys] for keys in columns], np.int32)
    phase.call(columns, [[*keys] for keys in columns], attention_mask=mask)
    for step in range(max(len(t) - p for t, p in zip(samples, prompts)) - 1):
        longer = [[*t, *[8] * 9] for t in samples]
        rows = [[prefixes(t)[p + step]] for t, p in zip(longer, prompts)]
        columns = [[*keys, row[0]] for keys, row in zip(columns, rows)]
        positions = np.array([[p + step] for p in prompts], np.int32)
        phase.call(rows, columns, position_ids=positions)
    return phase


def training(directory, draw, samples):
    """Whole sequences in another order and other batches: padded on either side, or packed."""
    phase = Phase(directory, draw)
    order = draw.sample(range(len(samples)), len(samples))
    size = draw.randrange(1, len(samples) + 1)
    how = draw.choice(["right", "left", "packed"])
    for start in range(0, len(order), size):
        chosen = [prefixes(samples[number]) for number in order[start : start + size]]
        if how == "packed":
            rows = [key for keys in chosen for key in keys]
            ends = np.cumsum([len(keys) for keys in chosen]).astype(np.int32)
            owners = [number for number, keys in enumerate(chosen) for _ in keys]
            phase.call([rows], [rows], owners, actual_seq_len=ends)
            continue
        width = max(map(len, chosen)) + draw.randrange(3)
        gaps = [[None] * (width - len(keys)) for keys in chosen]
        rows = [[*k, *g] if how == "right" else [*g, *k] for k, g in zip(chosen, gaps)]
        mask = np.array([[key is not None for key in keys] for keys in rows], np.int32)
        phase.call(rows, rows, attention_mask=mask)
    return phase


def drawn(seed):
    """Return a generator of random numbers, samples, and how many tokens of each are its prompt."""
    draw = random.Random(seed)
    samples, prompts = [], []
    for _ in range(draw.randrange(1, 5)):
        if prompts and draw.random() < 0.4:  # several samples of one prompt
            prompts.append(prompts[-1])
            head = samples[-1][: prompts[-1]]
        else:
            prompts.append(draw.randrange(1, 6))
            head = [draw.randrange(1, 9) for _ in range(prompts[-1])]
        samples.append([*head, *(draw.randrange(1, 9) for _ in range(draw.randrange(2, 5)))])
    return draw, samples, prompts


def both(tmp_path, seed):
    draw, samples, prompts = drawn(seed)
    mine = rollout(tmp_path / "a", draw, samples, prompts)
    theirs = training(tmp_path / "b", draw, samples)
    if "b s k" in (mine.form, theirs.form):  # of the scores one head is left
        mine.form = theirs.form = "b s k"
    return draw, mine, theirs


def aligned(mine, theirs, kind):
    sources = mine.source(kind), theirs.source(kind)
    matched = match(sources[0].side.tokens, sources[1].side.tokens)
    assert columns_of(*sources) is Columns.KEYS
    return *align_keys(NAME, *sources, matched), matched


@pytest.mark.parametrize("kind", ["mask", "scores"])
@pytest.mark.parametrize("seed", range(30))
def test_the_same_network_agrees_in_every_row(tmp_path, seed, kind):
    """Whatever the padding, the order, the cache and what stands for letting in."""
    _, mine, theirs = both(tmp_path, seed)
    found, lets_in, matched = aligned(mine, theirs, kind)
    assert not found.distances.unequal.any()
    assert len(found.token) == len(set(found.token.tolist())) == matched.rows
    assert (lets_in is None) == (kind == "scores")


@pytest.mark.parametrize("kind", ["mask", "scores"])
@pytest.mark.parametrize("side", ["rollout", "training"])
@pytest.mark.parametrize("seed", range(30))
def test_one_place_that_differs_is_one_row_that_differs(tmp_path, seed, side, kind):
    """In a mask any place; in scores those of tokens up to the row's own, and no other."""
    draw, mine, theirs = both(tmp_path, 1000 + seed)
    phase = mine if side == "rollout" else theirs
    number = draw.randrange(len(phase.calls))
    rows, columns = phase.calls[number]
    seen = {(at[0], at[2], at[3]) for at, query, key in phase.seen(number)}
    own = {(at[0], at[2], at[3]) for at, query, key in phase.seen(number) if query == key}
    valid = {(sample, row) for sample, row, _ in seen}
    places = [(*at, column) for at in sorted(valid) for column in range(len(columns[0]))]
    # A token that does not see itself decides no convention.
    sample, row, column = draw.choice([at for at in places if at not in own] or places)
    if (sample, row, column) in own and kind == "mask":
        return
    phase.changed = {number: [(sample, slice(None), row, column)]}
    found, lets_in, matched = aligned(mine, theirs, kind)
    tokens, others = read_tokens(mine.entries).rows, read_tokens(theirs.entries).rows
    changed = (number, sample * len(rows[0]) + row)
    at = []
    for token in found.token.tolist():
        call = int(tokens.call[token])
        here = (call, token - int(tokens.starts[call]))
        partner = matched.partners[token]
        there = (int(others.call[partner]), int(partner - others.starts[others.call[partner]]))
        at += [token] * (changed == (here if side == "rollout" else there))
    key, owners = columns[sample][column], phase.owners[number]
    other = owners is not None and owners[row] != owners[column]
    up_to = (sample, row, column) in seen
    plain = other and column < row and len({*owners[: row + 1]}) == 2
    expected = at if up_to or kind == "mask" else []
    apart = found.token[found.distances.unequal].tolist()
    if plain and not apart:  # it may be all that the mask hides of others: it does not know them
        return
    assert apart == expected
    if kind == "mask" and at:
        what = "hidden" if up_to else "padding" if key is None else "others" if other else "later"
        by = (len(at), 0) if side == "rollout" else (0, len(at))
        assert lets_in[what] == by


@pytest.mark.parametrize("seed", range(10))
def test_a_mask_of_all_samples_says_nothing_of_their_padding(tmp_path, seed):
    """[s, s] lets in all before: which of it is padding is given otherwise."""
    draw, samples, prompts = drawn(seed)
    mine = rollout(tmp_path / "a", draw, samples, prompts)
    mine.form = "b s k"
    theirs = training(tmp_path / "b", draw, [*samples, [9, 9]])
    sources = mine.source("mask"), theirs.source("mask")
    value = Value(0, "cell")
    for number, call in enumerate(sources[1].side.tokens.calls):
        made = np.tril(np.ones((call.width, call.width), bool))
        value.add(number, number, theirs.record(f"shared.{number}", made), {})
    sources = sources[0], Source(sources[1].side, value)
    calls = sources[1].side.tokens.calls
    matched = match(sources[0].side.tokens, sources[1].side.tokens)
    try:
        found, _ = align_keys(NAME, *sources, matched)
    except NotAligned as error:
        why = error.why.code
    else:
        why = None
    if why is not None:
        if why == "mismatch.packed_mask":
            assert any(len({*owners}) > 1 for owners in theirs.owners if owners is not None)
        else:  # of prompts that are padded before them
            assert why == "mismatch.shared_mask"
            assert any(
                None in keys and keys[0] is None for _, columns in theirs.calls for keys in columns
            )
        return
    alone = {number for number, call in enumerate(calls) if call.batch == 1}
    at = found.token[found.distances.unequal]
    other = sources[1].side.tokens.rows.call[matched.partners[at]]
    assert {*other.tolist()} <= alone


def test_a_mask_of_all_samples_that_lets_in_padding_is_not_said_to_agree(tmp_path):
    """The training's own masks hide it: something beside the rollout's must, or it is wrong."""
    draw, samples = random.Random(5), [[1, 2, 3, 4], [4, 5, 6]]
    mine, theirs = Phase(tmp_path / "a", draw), Phase(tmp_path / "b", draw)
    rows = [[*prefixes(samples[0])], [None, *prefixes(samples[1])]]
    mine.call(rows, rows, attention_mask=np.array([[1, 1, 1, 1], [0, 1, 1, 1]], np.int32))
    theirs.call(rows, rows, attention_mask=np.array([[1, 1, 1, 1], [0, 1, 1, 1]], np.int32))
    theirs.form = "b 1 s k"
    shared = written(mine, np.tril(np.ones((1, 1, 4, 4), bool)))
    own = theirs.source("mask")
    matched = match(shared.side.tokens, own.side.tokens)
    with pytest.raises(NotAligned) as error:
        align_keys(NAME, shared, own, matched)
    assert error.value.why.code == "mismatch.shared_mask"
    # Where both leave it out, or neither has padding, they agree.
    other = written(theirs, np.tril(np.ones((1, 1, 4, 4), bool)))
    found, _ = align_keys(NAME, shared, other, matched)
    assert not found.distances.unequal.any()


def test_a_mask_that_tells_packed_samples_nowhere_apart_is_not_said_to_agree(tmp_path):
    """Either it is wrong, or what attention is given beside it tells them apart."""
    draw, samples = random.Random(5), [[1, 2, 3], [4, 5, 6]]
    mine = rollout(tmp_path / "a", draw, samples, [2, 1])
    theirs = Phase(tmp_path / "b", draw)
    mine.form = theirs.form = "b 1 s k"
    rows = [key for sample in samples for key in prefixes(sample)]
    ends = np.array([3, 6], np.int32)
    theirs.call([rows], [rows], [0, 0, 0, 1, 1, 1], actual_seq_len=ends)
    found, _, _ = aligned(mine, theirs, "mask")
    assert not found.distances.unequal.any()
    theirs.changed = {0: [(0, slice(None), row, at) for row in (3, 4, 5) for at in (0, 1, 2)]}
    with pytest.raises(NotAligned) as error:
        aligned(mine, theirs, "mask")
    assert error.value.why.code == "mismatch.packed_mask"


def written(phase, made):
    """Return a value whose one call has these elements."""
    value = Value(0, "cell")
    value.add(0, 0, phase.record("made", made), {})
    return Source(Side(None, "p", 0, 0, read_tokens(phase.entries)), value)


def whole(tmp_path, name, samples):
    phase = Phase(tmp_path / name, random.Random(0))
    rows = [prefixes(tokens) for tokens in samples]
    phase.call(rows, rows)
    return phase


def test_what_lets_in_is_not_guessed(tmp_path):
    """Where tokens see themselves and others do not, either may be the mask."""
    phase = whole(tmp_path, "a", [[1, 2, 3], [4, 5, 6]])
    made = np.tile(np.tril(np.ones((3, 3), np.uint8)), (2, 1, 1))
    right = written(phase, made)
    made = made.copy()
    made[0, 1, 1] = 0
    wrong = written(whole(tmp_path, "b", [[1, 2, 3], [4, 5, 6]]), made)
    matched = match(right.side.tokens, wrong.side.tokens)
    assert not align_keys(NAME, right, right, matched)[0].distances.unequal.any()
    with pytest.raises(NotAligned) as error:
        align_keys(NAME, wrong, right, matched)
    assert error.value.why.code == "mismatch.mask_convention"


def test_scores_against_a_mask_are_not_compared(tmp_path):
    """It is said."""
    phase = whole(tmp_path, "a", [[1, 2, 3]])
    mask = written(phase, np.tril(np.ones((1, 3, 3), np.uint8)))
    scores = written(whole(tmp_path, "b", [[1, 2, 3]]), np.full((1, 3, 3), 0.25, np.float32))
    with pytest.raises(NotAligned) as error:
        align_keys(NAME, mask, scores, match(mask.side.tokens, scores.side.tokens))
    assert error.value.why.code == "mismatch.mask_or_scores"


@pytest.mark.parametrize(
    ("made", "columns"),
    [
        (np.tril(np.full((2, 3, 3), 0.5, np.float32)), Columns.KEYS),
        (np.tril(np.ones((2, 4, 3, 3), np.uint8)), Columns.KEYS),
        (np.random.default_rng(0).normal(size=(2, 3, 3)), None),
        (np.random.default_rng(0).normal(size=(2, 4, 3, 3)), Columns.EITHER),
    ],
)
def test_an_axis_as_long_as_the_sequence_is_what_its_values_say(tmp_path, made, columns):
    """Hidden states, heads, masks or probabilities of one shape."""
    a, b = (written(whole(tmp_path, name, [[1, 2, 3], [4, 5, 6]]), made) for name in "ab")
    assert columns_of(a, b) is columns


def test_heads_that_sequences_outgrow_are_no_scores(tmp_path):
    """Four tokens have no three keys."""
    phase = whole(tmp_path, "a", [[1, 2, 3], [4, 5, 6]])
    phase.call(
        [[(1, 2, 3, 4)], [(4, 5, 6, 7)]], [[], []], position_ids=np.full((2, 1), 3, np.int32)
    )
    value = Value(0, "cell")
    for number, width in enumerate((3, 1)):
        made = np.random.default_rng(0).normal(size=(2, 4, width, 3))
        value.add(number, number, phase.record(f"made.{number}", made), {})
    source = Source(Side(None, "p", 0, 0, read_tokens(phase.entries)), value)
    assert columns_of(source, source) is Columns.FEATURES


def test_token_ids_of_as_many_samples_as_tokens_are_no_mask(tmp_path):
    """Nor is a padding mask: [b, k] has no axis of queries."""
    sources = []
    for name, steps in (("a", 1), ("b", 2)):
        phase = whole(tmp_path, name, [[1, 2], [3, 4]])
        value = Value(0, "cell")
        value.add(0, 0, phase.record("made.0", np.array([[1, 2], [3, 4]], np.int32)), {})
        for step in range(1, steps):
            rows = [[(1, 2, 5)], [(3, 4, 6)]]
            phase.call(rows, [[], []], position_ids=np.full((2, 1), 2, np.int32))
            value.add(step, step, phase.record(f"made.{step}", np.array([[5], [6]], np.int32)), {})
        sources.append(Source(Side(None, "p", 0, 0, read_tokens(phase.entries)), value))
    assert columns_of(*sources) is None


def test_columns_behind_padding_are_not_guessed(tmp_path):
    """Behind prompts that end in padding the next token may stand there, or behind it."""
    phase = Phase(tmp_path / "a", random.Random(0))
    rows = [[(1,), (1, 2), None], [(3,), (3, 4), (3, 4, 5)]]
    mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
    phase.call(rows, rows, attention_mask=mask)
    phase.call([[(1, 2, 6)], [(3, 4, 5, 6)]], [[], []], position_ids=np.array([[2], [3]], np.int32))
    keys = Side(None, "p", 0, 0, read_tokens(phase.entries)).keys
    assert keys.known(0, 3)
    assert not keys.known(1, 4)


@pytest.mark.parametrize("kind", ["mask", "scores"])
def test_a_cache_that_is_filled_again_has_columns_of_its_own(tmp_path, kind):
    """Those of the calls before are gone."""
    tokens = prefixes([4, 5, 6, 7, 8, 9])
    mine = Phase(tmp_path / "a", random.Random(5))
    for start, stop, held in ((0, 3, 0), (3, 4, 0), (0, 4, 0), (4, 5, 0), (5, 6, 0)):
        positions = np.arange(start, stop, dtype=np.int32)[None]
        mine.call([tokens[start:stop]], [tokens[held:stop]], position_ids=positions)
    theirs = Phase(tmp_path / "b", random.Random(6))
    theirs.call([tokens], [tokens])
    theirs.form = mine.form
    found, _, matched = aligned(mine, theirs, kind)
    assert not found.distances.unequal.any()
    assert len(found.token) == matched.rows == 3 + 1 + 4 + 1 + 1


@pytest.mark.parametrize("kind", ["mask", "scores"])
def test_a_token_that_was_taken_back_is_none_of_those_before(tmp_path, kind):
    """Its column is still in the cache, and must be hidden."""
    mine = Phase(tmp_path / "a", random.Random(7))
    first, back, other = prefixes([1, 2, 3]), (1, 2, 3, 4), (1, 2, 3, 5)
    mine.call([first], [first], position_ids=np.arange(3, dtype=np.int32)[None])
    for rows, columns in (([back], [*first, back]), ([other], [*first, back, other])):
        mine.call([rows], [columns], position_ids=np.array([[3]], np.int32))
    theirs = Phase(tmp_path / "b", random.Random(8))
    theirs.call([prefixes([1, 2, 3, 5])], [prefixes([1, 2, 3, 5])])
    theirs.form = mine.form
    found, _, _ = aligned(mine, theirs, kind)
    assert not found.distances.unequal.any()
    assert 4 in found.token
    mine.changed = {2: [(0, slice(None), 0, 3)]}  # the token that was taken back is seen
    found, _, _ = aligned(mine, theirs, kind)
    assert found.token[found.distances.unequal].tolist() == ([4] if kind == "mask" else [])
