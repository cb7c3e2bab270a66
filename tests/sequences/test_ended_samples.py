"""Rows of samples that ended, while longer ones of their batch go on, are padding: left out."""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers.causal_phase import PAD, CausalPhase, saved_sample

from mindrlhf_msprobe.sequences.calls import PhaseTokens, TokenCall, read_tokens
from mindrlhf_msprobe.sequences.matching import match, without_padding
from mindrlhf_msprobe.sequences.saved import of_saved

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
