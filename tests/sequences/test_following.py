"""Drafts, chunks and batches that shrink, followed along the responses that were saved."""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers.causal_phase import PAD, CausalPhase, saved_sample, values

from mindrlhf_msprobe.sequences.calls import read_tokens

DRAFTS = 2


def drawn(draw, count):
    """Return samples of any lengths; no two prompts are alike."""
    samples = []
    for number in range(count):
        prompt = [10 + number, *[draw.randrange(1, 9) for _ in range(draw.randrange(1, 6))]]
        response = [draw.randrange(1, 99) for _ in range(draw.randrange(1, 9))]
        samples.append((np.array(prompt), np.array(response)))
    return [saved_sample(*sample) for sample in samples]


def right_padded(rows):
    width = max(map(len, rows))
    return [[*row, *[PAD] * (width - len(row))] for row in rows]


class Decoding:
    """Speculative decoding of given responses: each call has a token and drafts of each sample.

    Args:
        wrong: what is added to the positions of calls behind the prompts.
    """

    def __init__(self, tmp_path, draw, samples, wrong=0):
        self.phase = CausalPhase(tmp_path / "phase")
        self.expected = []  # of each call, the sample and position of each row; -1 of others
        self.rejected = 0
        self._draw, self._samples, self._wrong = draw, samples, wrong

    def run(self):
        """Give the prompts, then drafts; samples that ended leave the batch."""
        prompts = [sample.prompt.tolist() for sample in self._samples]
        ids = right_padded(prompts)
        places = [
            [(n, at) if at < len(prompts[n]) else (-1, -1) for at in range(len(ids[0]))]
            for n in range(len(ids))
        ]
        self._call(ids, [[*range(len(ids[0]))]] * len(ids), places)
        have = [len(prompt) for prompt in prompts]
        while live := [n for n, s in enumerate(self._samples) if have[n] < len(s.tokens) - 1]:
            rows, positions, places = [], [], []
            for n in live:
                row, place = self._with_drafts(n, have[n])
                rows.append(row)
                places.append(place)
                positions.append([have[n] + self._wrong + at for at in range(len(row))])
                have[n] = max(at for _, at in place) + 1
            self._call(rows, positions, places)
        return self

    def _with_drafts(self, number, at):
        tokens = self._samples[number].tokens.tolist()
        row, place, good = [tokens[at]], [(number, at)], True
        for draft in range(at + 1, at + 1 + DRAFTS):
            right = draft < len(tokens) and self._draw.random() < 0.5 and good
            row.append(tokens[draft] if right else 99 + self._draw.randrange(3))
            place.append((number, draft) if right else (-1, -1))
            over = draft >= len(tokens) or (good and tokens[-1:] == row[-1:])
            self.rejected += not right and not over
            good = right
        return row, place

    def _call(self, ids, positions, places):
        self.phase.call(ids, values([1] * len(ids)), position_ids=positions)
        self.expected.append([place for row in places for place in row])


@pytest.mark.parametrize("wrong", [0, 1, -1])
@pytest.mark.parametrize("seed", range(20))
def test_rows_of_drafts_that_were_accepted_are_found(tmp_path, seed, wrong):
    """Whatever the positions say and the places in the batch: as decoded by hand."""
    draw = random.Random(seed)
    samples = drawn(draw, draw.randrange(1, 6))
    decoding = Decoding(tmp_path, draw, samples, wrong).run()
    found = read_tokens(decoding.phase.entries, samples=samples, pad=PAD)
    assert not [note for note in found.notes if note.code != "tokens.drafts"]
    for nth, (call, expected) in enumerate(zip(found.calls, decoding.expected)):
        for row, (sample, position) in enumerate(expected):
            number = int(call.sequence[row])
            if sample < 0:
                assert nth == 0 or number < 0
                continue
            tokens = samples[sample].tokens[: position + 1]
            assert np.array_equal(found.sequences[number][: position + 1], tokens)
            assert call.position[row] == position
    assert found.lost == 0


def chunks(tmp_path, wrong, saved):
    """Return the tokens of a prompt in chunks of three, whose later positions are wrong."""
    phase = CausalPhase(tmp_path / "phase")
    prompt, response = [*range(1, 9)], [3, 4, 5]
    tokens = prompt + response
    for at in range(0, 8, 3):
        part = tokens[at : min(at + 3, 8)]
        positions = np.arange(len(part)) + at + (wrong if at else 0)
        phase.call([part], values(part), position_ids=[positions])
    for at in (8, 9):
        phase.call([[tokens[at]]], values([1]), position_ids=[[at]])
    samples = [saved_sample(prompt, response)] if saved else []
    return read_tokens(phase.entries, samples=samples), tokens


@pytest.mark.parametrize(
    ("wrong", "saved"), [(0, True), (1, True), (-1, True), (2, True), (0, False), (1, False)]
)
def test_chunks_of_a_prompt_go_on_whatever_their_positions(tmp_path, wrong, saved):
    """One sequence; that a position is wrong shows in what was given."""
    found, tokens = chunks(tmp_path, wrong, saved)
    (sequence,) = found.sequences
    assert sequence.tolist() == tokens[:-1]
    assert not found.notes
    shifts = [call.given - call.position for call in found.calls]
    assert [int(shift[0]) for shift in shifts] == [0, wrong, wrong, 0, 0]
    assert all((shift == shift[0]).all() for shift in shifts)


def test_rejected_drafts_and_caches_filled_again_are_said(tmp_path):
    """Each in one line, with how many."""
    phase = CausalPhase(tmp_path / "phase")
    phase.call([[1, 2, 3]], values([1]), position_ids=[[0, 1, 2]])
    phase.call([[4, 7, 8]], values([1]), position_ids=[[3, 4, 5]])
    phase.call([[5, 6, 8]], values([1]), position_ids=[[4, 5, 6]])
    sample = saved_sample([1, 2, 3], [4, 5, 6, 7, 8])
    found = read_tokens(phase.entries, samples=[sample])
    assert (found.drafts, found.count) == (3, 6)
    assert [(note.code, note.params["count"]) for note in found.notes] == [("tokens.drafts", 3)]
    phase = CausalPhase(tmp_path / "again")
    phase.call([[1, 2, 3]], values([1]), position_ids=[[0, 1, 2]])
    phase.call([[4]], values([1]), position_ids=[[3]])
    phase.call([[1, 2, 3, 4, 5]], values([1]), position_ids=[[0, 1, 2, 3, 4]])
    found = read_tokens(phase.entries)
    assert [(note.code, note.params["count"]) for note in found.notes] == [("tokens.refilled", 1)]


def shrinking(tmp_path, saved):
    """Return the tokens of four samples of which one leaves the batch before each further call."""
    phase = CausalPhase(tmp_path / "phase")
    prompts = [[1, 2], [3, 4], [5, 6], [7, 8]]
    responses = [[11, 12, 13, 14], [21], [31, 32], [41, 42, 43]]
    phase.call(prompts, values([1] * 4), position_ids=[[0, 1]] * 4)
    for at in range(3):
        live = [row for row in responses if len(row) > at + 1]
        ids, positions = [[row[at]] for row in live], [[at + 2]] * len(live)
        phase.call(ids, values([1] * len(live)), position_ids=positions)
    samples = [saved_sample(p, r) for p, r in zip(prompts, responses)]
    whole = [p + r[:-1] for p, r in zip(prompts, responses)]
    return read_tokens(phase.entries, samples=samples if saved else []), whole


def test_samples_that_leave_the_batch_are_known_by_what_was_saved(tmp_path):
    """Each row is behind the tokens of its own sample."""
    found, whole = shrinking(tmp_path, saved=True)
    assert sorted(sequence.tolist() for sequence in found.sequences) == sorted(whole)
    assert (found.lost, found.notes) == (0, ())


def test_samples_that_are_alike_may_leave_the_batch_in_any_order(tmp_path):
    """Their rows are the same, whichever of them has ended."""
    phase = CausalPhase(tmp_path / "phase")
    responses = [[7, 8, 9], [7, 8], [7, 8, 9, 10]]
    phase.call([[1, 2]] * 3, values([1] * 3), position_ids=[[0, 1]] * 3)
    phase.call([[7]] * 3, values([1] * 3), position_ids=[[2]] * 3)
    phase.call([[8]] * 2, values([1] * 2), position_ids=[[3]] * 2)
    phase.call([[9]], values([1]), position_ids=[[4]])
    samples = [saved_sample([1, 2], response) for response in responses]
    found = read_tokens(phase.entries, samples=samples)
    assert (found.lost, found.notes) == (0, ())
    for call in found.calls[2:]:
        for sequence, position in zip(call.sequence.tolist(), call.position.tolist()):
            tokens = found.sequences[sequence][: position + 1].tolist()
            assert tokens == [1, 2, 7, 8, 9][: position + 1]


def test_without_it_no_row_of_them_is_put_anywhere(tmp_path):
    """Not in the calls behind either, which have as many samples as the one that is not known."""
    found, _ = shrinking(tmp_path, saved=False)
    assert [sequence.tolist() for sequence in found.sequences] == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert found.lost == 6
    assert {note.code for note in found.notes} == {"tokens.unknown_samples"}


def test_padding_behind_a_generation_without_a_cache_is_no_token(tmp_path):
    """Each call is given all tokens so far, and padding up to the limit."""
    phase = CausalPhase(tmp_path / "phase")
    sample = saved_sample([1, 2], [3, 4, 5])
    for size in (2, 3, 4):
        phase.call([[*sample.tokens[:size], *[PAD] * (6 - size)]], values([1]))
    found = read_tokens(phase.entries, samples=[sample], pad=PAD)
    assert found.ends == (2, 3, 4)
    assert found.count == 2 + 3 + 4
    phase = CausalPhase(tmp_path / "unpadded")
    for size in (2, 3, 4):
        phase.call([sample.tokens[:size]], values([1]))
    assert not read_tokens(phase.entries, samples=[sample], pad=PAD).notes  # no cache, no refill
