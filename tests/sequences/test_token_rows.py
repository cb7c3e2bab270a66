"""Rows of two phases are brought together by their tokens: against brute force, in any layout.

The network of these tests returns for each token a number that is made of all tokens up to it and
of nothing else, as a causal network does. So rows that are aligned must be equal, and every row
whose tokens the other side has seen must have found its partner.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers.causal_phase import HIDDEN, PAD, CausalPhase, value, values

from mindrlhf_msprobe.sequences.calls import NoTokens, read_tokens
from mindrlhf_msprobe.sequences.layouts import only_layout, rows_of_tokens
from mindrlhf_msprobe.sequences.matching import match
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Entry, Record


def rows_by_token(phase):
    """Return the tokens of a phase, and for each call its rows and which of the call's they are."""
    tokens = read_tokens(phase.entries)
    outputs = [entry.records[-1] for entry in phase.entries]
    shapes = [(r.leaf.shape, c.batch, c.width) for r, c in zip(outputs, tokens.calls)]
    layouts = only_layout(shapes)
    rows = [
        rows_of_tokens(record.array(), layouts[shape], call) if shape in layouts else None
        for record, shape, call in zip(outputs, shapes, tokens.calls)
    ]
    return tokens, rows


def check(mine, other, *, all_rows=True):
    """Compare alignment with brute force: equal values, and no row that has a partner left out."""
    a, rows_a = rows_by_token(mine)
    b, rows_b = rows_by_token(other)
    matched = match(a, b)
    seen = {bytes(row) for found in rows_b if found for row in found[0]}
    aligned = 0
    for number, found in enumerate(rows_a):
        for row, at in zip(*found or ((), ())):
            if a.calls[number].sequence[at] < 0:
                continue
            partner = int(matched.partners[a.rows.starts[number] + at])
            if partner < 0:
                assert bytes(row) not in seen or not all_rows
                continue
            call = int(b.rows.call[partner])
            there = partner - b.rows.starts[call]
            if rows_b[call] is None:
                continue
            theirs, places = rows_b[call]
            assert np.array_equal(theirs[np.flatnonzero(places == there)[0]], row)
            aligned += 1
    return aligned


KINDS = ["b s d", "t d", "b h s d", "b s h d"]


def laid_out(kind, batch, width, rows):
    """Return rows [batch, width, hidden] as a network may return them."""
    if kind == "t d":
        return rows.reshape(batch * width, HIDDEN)
    if kind == "b s h d":
        return rows.reshape(batch, width, 2, HIDDEN // 2)
    if kind == "b h s d":
        return rows.reshape(batch, width, 2, HIDDEN // 2).swapaxes(1, 2)
    return rows


def rollout(draw, directory, samples, prompts):
    """Record a prefill of padded prompts and a decode call for each further token.

    Returns:
        The phase, and how many tokens of the samples it was given.
    """
    phase, kind = CausalPhase(directory), draw.choice(KINDS)
    batch, bucket = len(samples), max(prompts) + draw.randrange(3)
    left = draw.random() < 0.5
    ids = np.full((batch, bucket), PAD)
    out = np.zeros((batch, bucket, HIDDEN))
    positions = np.zeros((batch, bucket), np.int32)
    mask = np.zeros((batch, bucket), np.int32)
    for number, (tokens, length) in enumerate(zip(samples, prompts)):
        place = slice(bucket - length, bucket) if left else slice(0, length)
        ids[number, place] = tokens[:length]
        out[number, place] = values(tokens)[:length]
        positions[number, place] = np.arange(length)
        mask[number, place] = 1
    lengths = np.array(prompts, np.int32)
    how = draw.choice(["positions and lengths", "mask", "lengths"])
    if left and how == "lengths":
        how = "mask"
    given = {
        "position_ids": positions if how.startswith("positions") else None,
        "batch_valid_length": lengths if "lengths" in how else None,
        "attention_mask": mask if how == "mask" else None,
    }
    phase.call(ids, laid_out(kind, batch, bucket, out), **given)
    for step in range(max(len(t) - p for t, p in zip(samples, prompts)) - 1):
        at = [p + step for p in prompts]
        ids = np.array([[t[i] if i < len(t) else PAD] for t, i in zip(samples, at)])
        out = np.array([[value([*t, *[PAD] * len(at)][: i + 1])] for t, i in zip(samples, at)])
        now = np.array(at, np.int32)[:, None]
        given = {
            "position_ids": now if how.startswith("positions") else None,
            "batch_valid_length": now[:, 0] + 1 if "lengths" in how else None,
        }
        phase.call(ids, laid_out(kind, batch, 1, out), **given)
    steps = max(len(t) - p for t, p in zip(samples, prompts)) - 1
    return phase, sum(min(len(t), p + steps) for t, p in zip(samples, prompts))


def training(draw, directory, samples):
    """Record whole sequences in another order and other batches: padded, masked or packed."""
    phase, kind = CausalPhase(directory), draw.choice(KINDS)
    order = draw.sample(range(len(samples)), len(samples))
    size = draw.randrange(1, len(samples) + 1)
    how = draw.choice(["right", "left", "packed"])
    for start in range(0, len(order), size):
        chosen = [samples[n] for n in order[start : start + size]]
        if how == "packed":
            ids = np.concatenate(chosen)[None]
            out = np.concatenate([values(tokens) for tokens in chosen])[None]
            ends = np.cumsum([len(tokens) for tokens in chosen]).astype(np.int32)
            phase.call(ids, laid_out(kind, 1, ids.size, out), actual_seq_len=ends)
            continue
        width = max(map(len, chosen)) + draw.randrange(3)
        ids = np.full((len(chosen), width), PAD)
        out = np.zeros((len(chosen), width, HIDDEN))
        mask = np.zeros((len(chosen), width), np.int32)
        for row, tokens in enumerate(chosen):
            place = slice(0, len(tokens)) if how == "right" else slice(width - len(tokens), width)
            ids[row, place], mask[row, place] = tokens, 1
            out[row, place] = values(tokens)
        phase.call(ids, laid_out(kind, len(chosen), width, out), attention_mask=mask)
    return phase


@pytest.mark.parametrize("seed", range(60))
def test_prefill_and_decode_find_their_rows_in_whole_sequences(tmp_path, seed):
    """Left and right padding, packed batches, micro-batches, other orders, repeated prompts."""
    draw = random.Random(seed)
    count = draw.randrange(1, 6)
    prompts, samples = [], []
    for _ in range(count):
        if prompts and draw.random() < 0.3:  # several samples of one prompt
            prompts.append(prompts[-1])
            head = samples[-1][: prompts[-1]]
        else:
            prompts.append(draw.randrange(1, 6))
            head = [draw.randrange(1, 9) for _ in range(prompts[-1])]
        samples.append([*head, *(draw.randrange(1, 9) for _ in range(draw.randrange(1, 5)))])
    for name in "ab":
        (tmp_path / name).mkdir()
    mine, given = rollout(draw, tmp_path / "a", samples, prompts)
    other = training(draw, tmp_path / "b", samples)
    aligned = check(mine, other)
    known = [found is not None for side in (mine, other) for found in rows_by_token(side)[1]]
    notes = read_tokens(mine.entries).notes
    assert not notes or "which side" in str(notes[0])
    assert aligned == given if all(known) and not notes else aligned <= given


def test_padding_of_prompts_of_one_token_may_be_on_either_side(tmp_path):
    """Positions that are 0 everywhere fit both: nothing is guessed."""
    phase = CausalPhase(tmp_path)
    zeros, ones = np.zeros((2, 3), np.int32), np.ones(2, np.int32)
    rows = np.zeros((2, 3, HIDDEN))
    phase.call([[0, 0, 4]] * 2, rows, position_ids=zeros, batch_valid_length=ones)
    tokens = read_tokens(phase.entries)
    assert not tokens.sequences
    assert "on which side" in str(tokens.notes[0])


def test_a_batch_that_is_as_wide_as_it_is_long_is_read_by_its_other_calls(tmp_path):
    """[8, 8, hidden] may be batch or sequence first; [8, 1, hidden] of decode says which."""
    samples = [[number + 1, *range(3, 10)] for number in range(8)]
    phase = CausalPhase(tmp_path)
    phase.call(list(samples), [values(s) for s in samples])
    phase.call([[4]] * 8, [[value([*s, 4])] for s in samples])
    tokens, rows = rows_by_token(phase)
    assert [len(sequence) for sequence in tokens.sequences] == [9] * 8
    for call, found in zip(tokens.calls, rows):
        for row, at in zip(*found):
            tokens_of = tokens.sequences[call.sequence[at]][: call.position[at] + 1]
            assert np.array_equal(row, value(tokens_of.tolist()))


def test_logits_of_the_last_token_alone_are_that_tokens_row(tmp_path):
    """A prefill that returns [batch, hidden] has the last valid token of each sample."""
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    samples = [[1, 2, 3], [4, 5]]
    mine = CausalPhase(tmp_path / "a")
    lengths = np.array([3, 2], np.int32)
    ids = [[1, 2, 3, PAD], [4, 5, PAD, PAD]]
    mine.call(ids, [value(s) for s in samples], batch_valid_length=lengths)
    other = CausalPhase(tmp_path / "b")
    other.call(
        [[1, 2, 3, PAD, PAD], [4, 5, 6, PAD, PAD]], [values([*s, 0, 0, 0][:5]) for s in samples]
    )
    assert check(mine, other, all_rows=False) == 2


def test_a_cache_that_is_filled_again_repeats_its_rows(tmp_path):
    """After a preemption all tokens of a sample go through the network once more."""
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    tokens = [1, 2, 3, 4, 5]
    mine = CausalPhase(tmp_path / "a")

    def call(start, stop):
        positions = np.arange(start, stop, dtype=np.int32)[None]
        mine.call([tokens[start:stop]], [values(tokens)[start:stop]], position_ids=positions)

    for span in ((0, 2), (2, 3), (0, 3), (3, 4)):
        call(*span)
    other = CausalPhase(tmp_path / "b")
    other.call([tokens], [values(tokens)])
    assert check(mine, other) == 2 + 1 + 3 + 1


def test_one_wrong_position_does_not_split_a_sequence(tmp_path):
    """The calls behind it go on where they would have gone on."""
    tokens = [1, 2, 3, 4, 5, 6]
    phase = CausalPhase(tmp_path)
    phase.call([tokens[:2]], [values(tokens)[:2]], position_ids=np.array([[0, 1]]))
    for at, position in ((2, 2), (3, 4), (4, 4), (5, 5)):
        places = np.array([[position]])
        phase.call([[tokens[at]]], [values(tokens)[at : at + 1]], position_ids=places)
    found = read_tokens(phase.entries)
    assert [sequence.tolist() for sequence in found.sequences] == [tokens]


def test_a_cache_that_is_filled_again_has_the_prompt_it_had(tmp_path):
    """What was generated before is no prompt, though the network is given it at once."""
    tokens = [1, 2, 3, 4, 5]
    phase = CausalPhase(tmp_path)
    for start, stop in ((0, 2), (2, 3), (0, 4), (4, 5)):
        places = np.arange(start, stop)[None]
        phase.call([tokens[start:stop]], [values(tokens)[start:stop]], position_ids=places)
    assert read_tokens(phase.entries).begun == (2, 2)


def test_decode_without_its_prompt_is_not_guessed(tmp_path):
    """A token window that leaves out the prompt: rows are left out, and it is said why."""
    phase = CausalPhase(tmp_path)
    position = np.array([[3]], np.int32)
    phase.call([[7]], [[value([1, 2, 3, 7])]], first_call=2, position_ids=position)
    tokens = read_tokens(phase.entries)
    assert (tokens.calls[0].sequence == -1).all()
    assert "position 3" in str(tokens.notes[0])


def test_a_smaller_batch_in_decode_is_not_guessed(tmp_path):
    """Which samples have ended nobody says."""
    phase = CausalPhase(tmp_path)
    phase.call([[1, 2], [3, 4]], [values([1, 2]), values([3, 4])])
    phase.call([[5]], [[value([3, 4, 5])]])
    tokens = read_tokens(phase.entries)
    assert (tokens.calls[1].sequence == -1).all()
    assert "which of the samples" in str(tokens.notes[0])


def test_one_row_of_tokens_with_blocks_of_a_cache(tmp_path):
    """As engines with a paged cache give them: [tokens], samples by their first block."""
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    samples = [[1, 2, 3, 4], [5, 6, 7]]
    mine = CausalPhase(tmp_path / "a")

    def call(parts, order):
        spans = [(samples[n], *parts[n]) for n in order]
        mine.call(
            np.concatenate([tokens[a:b] for tokens, a, b in spans]),
            np.concatenate([values(tokens)[a:b] for tokens, a, b in spans]),
            positions=np.concatenate([np.arange(a, b) for _, a, b in spans]).astype(np.int32),
            q_seq_lens=np.array([b - a for _, a, b in spans], np.int32),
            batch_valid_length=np.array([b for _, _, b in spans], np.int32),
            block_tables=np.array([[10 * (n + 1), 0] for n in order], np.int32),
        )

    mine.entries.clear()
    call({0: (0, 2), 1: (0, 2)}, (0, 1))
    call({0: (2, 3), 1: (2, 3)}, (1, 0))
    call({0: (3, 4)}, (0,))
    for entry in mine.entries:
        ids = entry.records[0]
        assert len(ids.leaf.shape) == 1
    other = CausalPhase(tmp_path / "b")
    other.call([samples[0]], [values(samples[0])])
    other.call([samples[1]], [values(samples[1])])
    assert check(mine, other) == 7


@pytest.mark.parametrize("shape", [(), (4,), (2, 3, 5)])
def test_a_network_without_token_ids_says_what_to_record(tmp_path, shape):
    """Floats alone, or integers of other shapes, name no row."""
    phase = CausalPhase(tmp_path)
    phase.call([[1]], [[value([1])]])
    (entry,) = phase.entries
    record = phase.record(entry.name, "input", "0", np.zeros(shape, np.int32), "x")
    entries = [Entry(entry.name, "p", 0, 0, 0, 1, records=(record,))]
    with pytest.raises(NoTokens, match="batch, sequence"):
        read_tokens(entries)


def test_ids_that_were_not_stored_say_how_to_record_them(tmp_path):
    """Statistics alone know no token."""
    leaf = Leaf("mindspore.Tensor", "Int32", (2, 3), max=3, min=1)
    record = Record("x.input.0", "input", "0", leaf, None, "tokens")
    with pytest.raises(NoTokens, match="task: sketch"):
        read_tokens([Entry("Cell.root.Net.forward.0", "p", 0, 0, 0, 1, records=(record,))])


def test_leading_padding_of_ids_alone_is_what_the_configuration_calls_padding(tmp_path):
    """As networks do that make their mask of the ids; without a word about it nothing is left."""
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    mine, other = CausalPhase(tmp_path / "a"), CausalPhase(tmp_path / "b")
    tokens = [5, 3, 4]
    mine.call([[PAD, PAD, *tokens]], [[*np.zeros((2, HIDDEN)), *values(tokens)]])
    other.call([tokens], [values(tokens)])
    plain = [read_tokens(phase.entries) for phase in (mine, other)]
    assert match(*plain).rows == 0
    told = [read_tokens(phase.entries, pad=PAD) for phase in (mine, other)]
    assert match(*told).rows == 3
    assert told[0].calls[0].sequence.tolist() == [-1, -1, 0, 0, 0]
