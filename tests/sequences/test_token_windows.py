"""Tokens that were recorded without the pass over the prompts, and behind the end of samples.

What stands before them; rows of samples that ended, while longer ones go on, are padding.
"""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.causal_phase import PAD, CausalPhase, saved_sample, values

from mindrlhf_msprobe.sequences.calls import PhaseTokens, TokenCall, read_tokens
from mindrlhf_msprobe.sequences.matching import match, without_padding
from mindrlhf_msprobe.sequences.saved import of_saved, saved_samples


def samples_of(pairs):
    return [saved_sample(p, r) for p, r in pairs]


def window(directory, pairs, first, last, *, given=True, shift=0):
    """Record the decode calls of some tokens: that of token n is given the response's n - 1."""
    phase = CausalPhase(directory)
    for token in range(first, last + 1):
        ids = [[r[token - 1] if token - 1 < len(r) else PAD] for _, r in pairs]
        out = [values([*p, *r][: len(p) + token])[-1:] for p, r in pairs]
        positions = np.array([[len(p) + token - 1 + shift] for p, _ in pairs]) if given else None
        phase.call(ids, np.array(out), first_call=first, position_ids=positions)
        phase.entries[-1] = replace(phase.entries[-1], token=token)
    return phase


def training(directory, pairs):
    """Record whole sequences in one call, padded on the right."""
    rows = [[*p, *r] for p, r in pairs]
    width = max(map(len, rows))
    ids = np.array([row + [PAD] * (width - len(row)) for row in rows])
    mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    phase = CausalPhase(directory)
    phase.call(ids, np.array([values(row) for row in ids.tolist()]), attention_mask=mask)
    return phase


def aligned(mine, other, samples):
    """Return how many rows found a partner, each of which is checked by what was returned."""
    a, b = read_tokens(mine.entries, samples=samples), read_tokens(other.entries)
    matched, count = match(a, b), 0
    theirs = other.entries[0].records[-1].array().reshape(b.calls[0].sequence.size, -1)
    starts = a.rows.starts.tolist()
    for entry, first, end in zip(mine.entries, starts, starts[1:]):
        rows = entry.records[-1].array().reshape(end - first, -1)
        for row, at in zip(rows, matched.partners[first:end].tolist()):
            if at >= 0:
                assert np.array_equal(row, theirs[at])
                count += 1
    return count, a


@pytest.mark.parametrize("given", [True, False], ids=["positions", "ids alone"])
def test_a_window_is_named_by_what_was_saved(tmp_path, given):
    """In any order; the roles of the tokens are known as well."""
    pairs = [([1, 2, 3], [4, 5, 6, 7]), ([2, 2], [5, 9, 6, 8]), ([9], [1, 2, 3, 4])]
    mine = window(tmp_path / "a", pairs, 2, 3, given=given)
    count, tokens = aligned(mine, training(tmp_path / "b", pairs[::-1]), samples_of(pairs[::-1]))
    assert count == 6
    assert sorted(tokens.begun) == [1, 2, 3]
    assert [s.tolist() for s in tokens.sequences] == [[*p, *r[:3]] for p, r in pairs]


def test_without_saved_ids_nothing_is_known(tmp_path):
    """As before: it is said, not guessed."""
    pairs = [([1, 2, 3], [4, 5, 6, 7])]
    for given in (True, False):
        mine = window(tmp_path / f"a{given}", pairs, 2, 3, given=given)
        count, tokens = aligned(mine, training(tmp_path / f"b{given}", pairs), ())
        assert count == 0
        assert tokens.notes


def test_what_fits_two_beginnings_is_left_out(tmp_path):
    """The others are aligned; the same sample twice is no doubt."""
    pairs = [([1], [4, 7, 7]), ([2], [5, 7, 7]), ([3], [6, 8, 8]), ([3], [6, 8, 8])]
    mine = window(tmp_path / "a", pairs, 2, 3)
    count, tokens = aligned(mine, training(tmp_path / "b", pairs), samples_of(pairs))
    assert count == 4
    (note,) = tokens.notes
    assert note.code == "tokens.no_beginning"
    assert (note.params["count"], note.params["of"]) == (2, 4)


def test_what_was_saved_of_something_else_is_not_used(tmp_path):
    """One sample that fits nothing, though all saved ones go on, and none is believed."""
    pairs = [([1], [4, 7, 7]), ([2], [5, 6, 7])]
    other = samples_of([([1], [4, 7, 7]), ([2], [5, 9, 9])])
    mine = window(tmp_path / "a", pairs, 2, 3)
    assert aligned(mine, training(tmp_path / "b", pairs), other)[0] == 0


def test_samples_that_ended_before_have_no_rows(tmp_path):
    """What they are given behind their end is no token of theirs."""
    pairs = [([1], [4, 7, 7, 5]), ([2], [5]), ([3], [6, 8, 8, 9])]
    mine = window(tmp_path / "a", pairs, 2, 4)
    count, _ = aligned(mine, training(tmp_path / "b", pairs), samples_of(pairs))
    assert count == 6


def test_positions_that_are_counted_otherwise_do_not_matter(tmp_path):
    """Padding may count; and what is off by one is a fault that is looked for elsewhere."""
    pairs = [([1, 2, 3], [4, 5, 6, 7]), ([2, 2], [5, 9, 6, 8])]
    for shift in (5, 1, -1):
        mine = window(tmp_path / f"a{shift}", pairs, 2, 4, shift=shift)
        training_of = training(tmp_path / f"b{shift}", pairs)
        assert aligned(mine, training_of, samples_of(pairs))[0] == 6


def test_another_batch_begins_anew(tmp_path):
    """Samples of the batch before do not go on in the places of the next."""
    first = [([1, 2, 3], [4, 5, 6, 7]), ([2, 2], [5, 9, 6, 8])]
    second = [([3, 3], [4, 5, 6, 7]), ([4], [1, 1, 1, 1])]
    mine, later = window(tmp_path / "a", first, 2, 3), window(tmp_path / "c", second, 2, 3)
    for entry in later.entries:
        name = entry.name.replace(f"forward.{entry.call}", f"forward.{entry.call + 8}")
        mine.entries.append(replace(entry, name=name, seq=entry.seq + 100))
    other = training(tmp_path / "b", [*first, *second])
    _, tokens = aligned(mine, other, samples_of([*first, *second]))
    starts = [([1, 2, 3], [4, 5, 6]), ([2, 2], [5, 9, 6]), ([4], [1, 1, 1])]
    known = {tuple(p + r) for p, r in starts}
    assert {tuple(s.tolist()) for s in tokens.sequences} - known <= {(3, 3, 4, 5, 6)}


def test_windows_of_random_samples(tmp_path):
    """Whatever fits: no row ever has a partner with another value."""
    found = 0
    for number in range(40):
        draw = random.Random(f"{random.random()}")
        vocabulary = draw.choice([2, 4, 30])
        size = draw.randint(4, 6)
        pairs = [
            (
                [draw.randint(1, vocabulary) for _ in range(draw.randint(1, 3))],
                [draw.randint(1, vocabulary) for _ in range(size)],
            )
            for _ in range(draw.randint(1, 5))
        ]
        saved = draw.sample(pairs, draw.randint(1, len(pairs)))
        first = draw.randint(1, 3)
        mine = window(tmp_path / f"a{number}", pairs, first, draw.randint(first, 4))
        known = samples_of(saved if draw.random() < 0.3 else pairs)
        found += aligned(mine, training(tmp_path / f"b{number}", pairs), known)[0]
    assert found


def saved(**keys):
    """Return a function that gives saves of keys."""
    given = {key: [SimpleNamespace(key=key, value=value)] for key, value in keys.items()}
    return lambda key: given.get(key, [])


def test_prompts_are_taken_without_their_padding():
    """Where it is known what padding is; else none are."""
    left = np.array([[0, 0, 5], [0, 6, 0]])
    responses = np.array([[1, 2], [3, 0]])

    def prompts(keys, pad):
        return [sample.prompt.tolist() for sample in saved_samples(saved(**keys), pad)]

    assert prompts({"prompts": left, "responses": responses}, 0) == [[5], [6, 0]]
    right = np.array([[5, 0, 0], [6, 7, 0]])
    assert prompts({"prompts": right, "responses": responses}, 0) == [[5], [6, 7]]
    assert prompts({"prompts": left, "responses": responses}, None) == []
    assert prompts({"prompts": [[5], [6, 0]], "responses": responses}, None) == [[5], [6, 0]]
    assert prompts({"prompts": left, "responses": responses[:1]}, 0) == []
    assert prompts({"prompts": "text", "responses": "text"}, 0) == []
    filled = np.array([[5, -1], [6, 0]])
    own = {"rollout_prompts": filled, "rollout_tokens": responses}
    assert prompts(own, 0) == [[5], [6, 0]]


END, PROMPT = 9, 3


def phase(sequences, pad, samples=()):
    """Return a phase of one padded call."""
    made = tuple(np.array(tokens) for tokens in sequences)
    width = max(map(len, made))
    at = np.tile(np.arange(width), (len(made), 1))
    known = at < np.array([[len(tokens)] for tokens in made])
    sequence = np.where(known, np.arange(len(made))[:, None], -1).reshape(-1)
    call = TokenCall(len(made), width, sequence, np.where(known, at, -1).reshape(-1))
    begun = (PROMPT,) * len(made)
    numbers, ends = of_saved(made, samples, begun, pad)
    return PhaseTokens((call,), made, (), pad, begun, samples=numbers, ends=ends)


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("filled", ["pad", "pad for the last token", "end"])
@pytest.mark.parametrize("seed", range(5))
def test_rows_behind_the_end_are_padding(saved, filled, seed):
    """Whatever the engine goes on with, and however the training pads."""
    draw = random.Random(f"{saved} {filled} {seed}")
    pad = PAD if filled != "end" or draw.random() < 0.5 else None
    samples, rollout, training, real = [], [], [], 0
    for number in range(6):
        prompt = [10 + number, *(draw.randrange(1, 9) for _ in range(PROMPT - 1))]
        response = [*(draw.randrange(1, 9) for _ in range(draw.randrange(6))), END]
        samples.append(saved_sample(prompt, response))
        whole = [*prompt, *response]
        given = whole[:-1] if filled == "pad for the last token" else whole
        real += len(given)
        rollout.append([*given, *[END if filled == "end" else PAD] * draw.randrange(1, 5)])
        training.append([*whole, *[PAD] * (draw.randrange(3) if pad is not None else 0)])
    known = tuple(samples) if saved else ()
    sides = phase(rollout, pad, known), phase(training, pad, known)
    mine, theirs = without_padding(*sides), without_padding(*sides[::-1])
    assert mine.count == real == match(mine, theirs).rows
    assert mine.padding == sum(map(len, rollout)) - real


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("end", [END, PAD])
def test_padding_at_a_position_that_stands_still_takes_no_token_back(tmp_path, saved, end):
    """Not that of the sample that ended, nor is it a token of another one of the same prompt."""
    prompt, others = [4, 5], [PAD, 6, 7]
    wholes = [[*prompt, end], [*prompt, *others]]
    phase = CausalPhase(tmp_path)
    phase.call([prompt] * 2, np.zeros((2, 2, 3)), position_ids=np.array([[0, 1]] * 2, np.int32))
    for step, other in enumerate(others):
        ids = [[end if step == 0 else PAD], [other]]
        positions = np.array([[2], [2 + step]], np.int32)
        phase.call(ids, np.zeros((2, 1, 3)), position_ids=positions)
    samples = [saved_sample(prompt, w[2:]) for w in wholes] if saved else []
    tokens = read_tokens(phase.entries, pad=PAD, samples=samples)
    assert [list(one) for one in tokens.sequences] == [[*wholes[0], PAD, PAD], wholes[1]]
    if saved:
        assert tokens.last.tolist() == [3, 5]


def test_other_tokens_are_no_padding():
    """A sample that goes on with tokens of its own on either side keeps its rows."""
    mine, theirs = phase([[1, 2, 3, 4, 4]], PAD), phase([[1, 2, 3, 5, 6]], PAD)
    assert without_padding(mine, theirs).padding == without_padding(theirs, mine).padding == 0
    cut = phase([[1, 2, 3]], PAD)
    assert without_padding(phase([[1, 2, 3, 4, 5]], PAD), cut).padding == 0
