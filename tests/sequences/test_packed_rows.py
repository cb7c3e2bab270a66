"""Samples that stand one behind the other in a row, without where they end: against an oracle."""

from __future__ import annotations

import random

import numpy as np
import pytest
from helpers.causal_phase import PAD, CausalPhase, saved_sample, values

from mindrlhf_msprobe.sequences.calls import read_tokens


def lets_in(row_of, kind, leak=False):
    """Return the mask [batch, 1, width, width] of rows of which it is known which sample each is.

    Args:
        row_of: int64 [batch, width], the sample of each column; -1 of padding.
        leak: whether samples see each other.
    """
    width = row_of.shape[1]
    causal = np.tril(np.ones((width, width), bool))
    same = (row_of[:, :, None] == row_of[:, None, :]) & (row_of[:, None, :] >= 0)
    seen = (causal & (same | leak))[:, None]
    return {
        "float": np.where(seen, 0, -1e4).astype(np.float32),
        "infinite": np.where(seen, 0, -np.inf).astype(np.float32),
        "bool": seen,
        "hides": (~seen).astype(np.uint8),
    }[kind]


def packed(draw, directory, told, rows=1, base=0, flat=False, leak=False):
    """Record one call of samples that are packed in rows; return it and the rows' samples."""
    phase = CausalPhase(directory)
    samples = [
        [[draw.randrange(2, 90) for _ in range(draw.randrange(2, 7))] for _ in range(3)]
        for _ in range(rows)
    ]
    width = max(sum(map(len, row)) for row in samples) + (0 if flat else draw.randrange(3))
    ids = np.full((rows, width), PAD)
    positions, of = np.full((rows, width), base), np.full((rows, width), -1)
    out = np.zeros((rows, width, 6))
    for number, row in enumerate(samples):
        at = 0
        for nth, sample in enumerate(row):
            span = slice(at, at + len(sample))
            ids[number, span], of[number, span] = sample, nth
            positions[number, span] = base + np.arange(len(sample))
            out[number, span] = values(sample)
            at += len(sample)
    given = {}
    if "positions" in told:
        given["position_ids"] = positions.astype(np.int32)
    kind = told.partition("mask ")[2]
    if kind:
        given["attention_mask"] = lets_in(of, kind, leak)
    if flat:
        given = {k: v.reshape(-1) if k == "position_ids" else v for k, v in given.items()}
        ids, out = ids.reshape(-1), out.reshape(-1, 6)
    phase.call(ids, out, **given)
    return phase, samples, of


TOLD = ["positions", "positions, mask float", "mask float", "mask infinite", "mask bool"]


@pytest.mark.parametrize("base", [0, 1, 2])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("told", [*TOLD, "mask hides"])
@pytest.mark.parametrize("pad", [PAD, None])
def test_samples_are_told_apart(tmp_path, told, rows, base, pad):
    """By positions that begin again, from whatever number, or by what the mask lets them see."""
    draw = random.Random(f"{told} {rows} {base}")
    phase, samples, of = packed(draw, tmp_path, told, rows, base)
    found = read_tokens(phase.entries, pad=pad)
    made = [sequence.tolist() for sequence in found.sequences]
    (call,) = found.calls
    known = of.reshape(-1) >= 0
    wanted = [sample for row in samples for sample in row]
    assert [one for one in made if set(one) != {PAD}] == wanted
    assert (call.sequence[known] >= 0).all()
    assert call.leaks is None


def test_flat_ids_are_told_apart(tmp_path):
    """As before: [tokens], whose positions begin again."""
    phase, samples, _ = packed(random.Random(3), tmp_path, "positions", flat=True)
    assert [one.tolist() for one in read_tokens(phase.entries).sequences] == samples[0]


def test_rows_that_see_other_samples_are_known(tmp_path):
    """All but those of the first sample of each row."""
    phase, _, of = packed(random.Random(4), tmp_path, "positions, mask float", rows=2, leak=True)
    (call,) = read_tokens(phase.entries, pad=PAD).calls
    assert call.leaks.tolist() == (of > 0).reshape(-1).tolist()


@pytest.mark.parametrize("seed", range(40))
def test_any_positions_are_read(tmp_path, seed):
    """Jumps, one number throughout, numbers below 0: no error, and no row twice."""
    draw = random.Random(seed)
    shape = draw.choice([(1, 9), (2, 7), (1, 2), (3, 4)])
    positions = np.array(
        [[draw.randrange(-1, 4) for _ in range(shape[1])] for _ in range(shape[0])]
    )
    if draw.random() < 0.5:
        positions = np.sort(positions, axis=1)
    phase = CausalPhase(tmp_path)
    ids = np.array([[draw.randrange(0, 5) for _ in range(shape[1])] for _ in range(shape[0])])
    for _ in range(2):
        phase.call(ids, np.zeros((*shape, 2)), position_ids=positions)
    found = read_tokens(phase.entries, pad=draw.choice([0, None]))
    for call in found.calls:
        assert (call.position[call.sequence >= 0] >= 0).all()


def test_a_saved_sample_whose_position_falls_back_is_not_several(tmp_path):
    """Its positions are what is wrong."""
    phase = CausalPhase(tmp_path)
    tokens = [5, 6, 7, 8, 9, 4]
    phase.call([tokens], [values(tokens)], position_ids=[[0, 1, 2, 0, 1, 2]])
    sample = saved_sample(tokens[:4], tokens[4:])
    assert [s.tolist() for s in read_tokens(phase.entries, samples=[sample]).sequences] == [tokens]
    assert [s.tolist() for s in read_tokens(phase.entries).sequences] == [tokens[:3], tokens[3:]]
