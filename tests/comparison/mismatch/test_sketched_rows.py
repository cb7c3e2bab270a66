"""What the sketches of rows say: of parts that are interleaved, and of single tokens."""

from __future__ import annotations

import numpy as np
import pytest

from mindrlhf_msprobe.comparison.mismatch.growth import ErrorGrowth
from mindrlhf_msprobe.comparison.mismatch.rows import (
    Aligned,
    Rows,
    explained,
    sketch_distances,
    sums_in_order,
)
from mindrlhf_msprobe.comparison.pairing.mapping import interleaved
from mindrlhf_msprobe.comparison.pairing.names import Name
from mindrlhf_msprobe.findings.mismatch import Agreement, Cause, Token
from mindrlhf_msprobe.sequences.calls import TokenRows
from mindrlhf_msprobe.storage.arrays.sketches import sketch_of


@pytest.mark.parametrize(
    ("sizes", "groups", "lines_up"),
    [
        ((512, 128, 128), 1, True),
        ((512, 128, 128), 2, True),
        ((256, 64, 64), 1, True),
        ((256, 64, 64), 2, False),  # heads of 32 columns
        ((128, 96), 1, True),
        ((96, 128), 1, False),
    ],
)
def test_sums_line_up_where_heads_are_whole_blocks(sizes, groups, lines_up):
    """Then those of the fused row are the parts' in its order; else there is no such order."""
    order = interleaved(sizes, groups)
    sums = sums_in_order(order)
    whole = all(size % 64 == 0 for size in sizes)
    if not (lines_up and whole):
        assert sums is None or not whole
        return
    parts = [np.random.default_rng(n).standard_normal((5, s)) for n, s in enumerate(sizes)]
    parts = [part.astype(np.float32) for part in parts]
    fused = np.ascontiguousarray(np.concatenate(parts, axis=1)[:, order])
    of_parts = np.concatenate([sketch_of(part).sums for part in parts], axis=1)
    assert np.array_equal(sketch_of(fused).sums, of_parts[:, sums])


@pytest.fixture
def recorded():
    """Record the demo's trainer, whose heads have 64 columns, with sketches."""
    pytest.importorskip("mindformers")
    from helpers.rollouts import recorded

    model = {"hidden_size": 512, "num_heads": 8}
    return lambda path, *of: recorded(
        path, *of, task="sketch", model=model, response_length=3, batch_size=16
    )


def test_interleaved_projections_are_compared(recorded, tmp_path):
    """Where they part they are named, and not what is made of them."""
    from helpers import wrong_rollouts

    from mindrlhf_msprobe.comparison.mismatch.find import PHASES, find_mismatch

    runs = [recorded(tmp_path / "healthy", 3)]
    runs.append(recorded(tmp_path / "wrong", 3, wrong_rollouts.projection(1)))
    healthy = find_mismatch(runs[0]).found[0]
    # Nothing says that fused rows are equal bit for bit.
    assert healthy.status is Agreement.WITHIN_ROUNDING
    assert not healthy.origins
    fused = "model.layers.1.attention.w_qkv output.0"
    assert fused in {stage.name for stage in healthy.stages}
    wrong = find_mismatch(runs[1]).found[0]
    assert (wrong.status, wrong.first.name) == (Agreement.PARTED, fused)
    # The other way round, where the training alone has the fused cell.
    turned = (PHASES[1], PHASES[0])
    one = find_mismatch(runs[0], phases=turned).found[0]
    assert one.status is Agreement.WITHIN_ROUNDING
    assert {stage.name for stage in one.stages} == {stage.name for stage in healthy.stages}
    one = find_mismatch(runs[1], phases=turned).found[0]
    assert (one.status, one.first.name) == (Agreement.PARTED, fused)


def test_a_single_wrong_token_is_seen(recorded, tmp_path):
    """One row of many, all others agreeing: from 8 sums a row on, a row counts by itself."""
    from helpers import wrong_rollouts

    from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch

    one = find_mismatch(recorded(tmp_path / "run", 3, wrong_rollouts.one_wrong_row(1))).found[0]
    assert (one.status, one.cause) == (Agreement.PARTED, Cause.COMPUTATION)
    assert one.first.name == "model.layers.1.feed_forward.w2 output.0"
    assert one.first.arising == 1


def measured(a, b, equal):
    """Return the distances of rows by their sketches; those of `equal` rows are not looked at."""
    sums = [sketch_of(x).sums for x in (a, b)]
    prints = np.arange(len(a), dtype=np.uint64)[:, None]
    rows = np.arange(len(a)), np.arange(len(a))
    typical = float(np.square(b, dtype=np.float64).sum(axis=1).mean())
    sides = Rows(sums[0], rows[0], prints), Rows(sums[1], rows[1], prints + ~equal[:, None])
    return sketch_distances(*sides, typical, rows)


def born(columns, entered, returned, rows=2000):
    """Return how many rows are born in a cell whose rows are so far apart, relative."""
    random = np.random.default_rng(columns)
    zeros = np.zeros(rows, np.int64)
    tokens = TokenRows(np.array([0, rows]), zeros, zeros, np.arange(rows))
    growth = ErrorGrowth(tokens, lambda row, apart: Token(0, row, 0, 0, "response", apart, ""))
    b = random.standard_normal((rows, columns), np.float32)
    b[0] *= 30  # the first token of a sequence often is longer
    for io, apart in (("input", entered), ("output", returned)):
        noise = random.standard_normal((rows, columns), np.float32)
        a = b + noise * np.abs(b).mean(axis=1, keepdims=True) * apart[:, None].astype(np.float32)
        found = measured(a, b, apart == 0)
        name = Name("cell", 0, io, "0")
        allowed = explained("float32", columns, found.sampled)
        growth.add(Aligned(name, np.arange(rows), found, ("Float32", "Float32"), columns), allowed)
    return growth.begins_at(Name("cell", 0, "output", "0")).tolist()


@pytest.mark.parametrize("columns", [128, 256, 512, 4096])
def test_rounding_and_what_is_passed_on_are_no_births(columns):
    """Of thousands of rows, however few sums they have, and however long some are."""
    same, small = np.zeros(2000), np.full(2000, 2e-7)
    assert born(columns, same, small) == []
    assert born(columns, np.full(2000, 1e-4), np.full(2000, 2e-4)) == []
    one = small.copy()
    one[5] = 1e-2
    if columns >= 512:  # with fewer, what entered may be near 0 by chance
        assert born(columns, one, one * 8) == []


@pytest.mark.parametrize("columns", [128, 256, 512, 4096])
def test_one_row_is_born_apart(columns):
    """By many sums; by few only where everything that entered is equal bit for bit."""
    same, returned = np.zeros(2000), np.full(2000, 2e-7)
    returned[7] = 1e-3  # all rows together are not apart
    assert born(columns, same, returned) == [7]
    if columns >= 512:
        assert born(columns, np.full(2000, 1e-7), returned) == [7]
