"""What values tell: where two explanations of a difference fit, none is claimed."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mindrlhf_msprobe.capture.tensors.summary import summarise, to_host
from mindrlhf_msprobe.comparison.verdict.inside import of_elements, of_statistics

NAMES = {"float16": "Float16", "float32": "Float32", "float64": "Float64", "int64": "Int64"}
NAMES |= {"int32": "Int32", "int8": "Int8", "uint8": "UInt8", "bool": "Bool"}
SEEDS = st.integers(0, 2**32 - 1)
quick = settings(max_examples=80, deadline=None)


def claimed(a, b):
    """Return what is said to have been done to A, None if nothing is."""
    a, b = np.asarray(a), np.asarray(b)
    found = of_elements(a, b, NAMES[str(a.dtype)])
    return None if found is None else found.change


def kind(a, b):
    """Return the kind of what is said to have been done."""
    change = claimed(a, b)
    return None if change is None else change.kind


def masks(lengths, width, dtype):
    """Return masks of so many tokens, [samples, width]."""
    return (np.arange(width) < np.asarray(lengths)[:, None]).astype(dtype)


@quick
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=9),
    st.sampled_from([1, 2, -1, -2]),
    st.sampled_from(list(NAMES)),
    st.booleans(),
)
def test_a_cut_mask_is_not_shifted(lengths, by, dtype, left):
    """One token more or less of each sample is also a shift along the tokens, in either layout."""
    a, b = (masks(of, 13, dtype) for of in (lengths, np.clip(np.add(lengths, by), 0, 13)))
    if left:
        a, b = a[:, ::-1].copy(), b[:, ::-1].copy()
    assert kind(a, b) is None
    assert kind(a[0], b[0]) is None


@quick
@given(SEEDS, st.sampled_from(["int8", "int64", "uint8", "float32"]), st.integers(2, 3))
def test_few_values_tell_nothing(seed, dtype, count):
    """Of any two arrays of two or three values, whatever made one of the other."""
    random = np.random.default_rng(seed)
    a = random.integers(0, count, (4, 8)).astype(dtype)
    made = (a[::-1], a[:, ::-1], np.roll(a, 1, 1), np.roll(a, 1, 0), a * 2, a + 1)
    made = (*made, random.permutation(a.reshape(-1)).reshape(4, 8), a.max() - a)
    for b in made:
        assert kind(a, b.astype(dtype)) is None


def test_no_two_small_masks():
    """Of all pairs of masks of six columns none is said to be the other one moved."""
    rows = np.array([*product([0, 1], repeat=6)])
    for a in rows:
        for b in rows:
            assert kind(a, b) is None


@quick
@given(st.integers(4, 40), st.integers(1, 5), st.sampled_from([1, -1, 2]), st.booleans())
def test_counting_numbers(size, samples, by, whole):
    """Positions that count on from another number are also shifted."""
    a = np.tile(np.arange(size), (samples, 1))
    a = a if whole else a.astype(np.float32)
    assert kind(a, a + by) is None if size >= 2 * abs(by) + 2 else True


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_what_repeats_itself(dtype):
    """Periodic values may be shifted by one place, or back by the rest of the period."""
    period = np.random.default_rng(1).permutation(1000)[:8]
    a = np.tile(period, 4).astype(dtype)
    fallen_off = np.concatenate([[999], a[:-1]]).astype(dtype)
    assert kind(a, fallen_off) is None
    assert kind(a[:8], fallen_off[:8]) == "shifted"


def test_a_turned_sign_may_be_a_turned_order():
    """Times -1 and turned round are one for what is symmetric about zero."""
    a = np.array([-2.3, -1.7, -0.1, 0.1, 1.7, 2.3], np.float32)
    assert kind(a, -a) is None
    assert kind(a + np.float32(0.3), -a - np.float32(0.3)) == "factor"


def test_shifts_along_two_axes():
    """What is the same along all diagonals may be shifted along either axis."""
    values = np.random.default_rng(2).normal(size=12).astype(np.float32)
    a = np.array([values[i : i + 6] for i in range(1, 7)])
    b = np.array([values[i : i + 6] for i in range(6)])
    assert kind(a, b) is None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([[1, 1, 0, 0], [1, 0, 0, 0]], [[1, 0, 0, 0], [1, 1, 0, 0]]),  # two masks exchanged
        ([[5, 7, 9, 4], [5, 8, 9, 4]], [[5, 8, 9, 4], [5, 7, 9, 4]]),  # two ids each other's
        ([5, 5, 5, 5, 1, 0, 0, 0], [5, 5, 5, 1, 0, 0, 0, 0]),  # ended a token earlier
        ([0.5] * 4 + [0.7] * 4, [0.5] * 3 + [0.7] * 5),
        ([1, 2], [2, 4]),
        ([1.0, 0.0, 1.0], [0.0, 1.0, 1.0]),
        ([0.25, 0.75], [0.75, 0.25]),
        ([0.1, 0.2, 0.3], [2.0, 2.0, 2.0]),  # filled with one value
        ([0.1, 0.1, 0.1], [0.10009765625] * 3),  # rounded to bfloat16, or a factor
        ([1e-9, 2e-9, 3e-9], [0.0, 0.0, 0.0]),  # rounded to float16, or set to 0
    ],
)
def test_values_that_are_too_few(a, b):
    """Nothing is claimed."""
    dtype = np.float32 if isinstance(np.ravel(a)[0].item(), float) else np.int64
    assert kind(np.array(a, dtype), np.array(b, dtype)) is None


#: What was done to an array, and what is said of it.
MOVES = {
    "shifted": lambda a, new: np.concatenate([new[:, :1], a[:, :-1]], 1),
    "order": lambda a, new: a[[1, 0, *range(2, len(a))]],
    "order_inside": lambda a, new: np.array([np.roll(row, i) for i, row in enumerate(a)]),
}


@quick
@given(
    SEEDS,
    st.sampled_from(list(MOVES)),
    st.sampled_from(["int64", "int32", "float32", "float16"]),
    st.tuples(st.integers(3, 9), st.integers(6, 30)),
    st.integers(0, 4),
)
def test_what_has_one_explanation_is_named(seed, move, dtype, shape, padding):
    """Ids below 32000 and floats, padding behind them; as it was made."""
    random = np.random.default_rng(seed)
    a, new = random.integers(1, 32000, (2, *shape))
    if dtype.startswith("f"):
        a, new = random.normal(size=(2, *shape))
    a[0, shape[1] - padding :] = 0
    a, new = a.astype(dtype), new.astype(dtype)
    b = MOVES[move](a, new)
    assume(not np.array_equal(a, b))
    change = claimed(a, b)
    assert change.kind == move
    if move == "order":
        assert change.parameters["from"] == [[0, 1], [1, 0]]
    if move == "shifted":
        assert (change.parameters["axis"], change.parameters["by"]) == (1, 1)


@quick
@given(SEEDS, st.sampled_from(["factor", "offset", "transposed", "rounded"]))
def test_floats_of_one_change_are_named(seed, change):
    """A few different ones suffice."""
    a = np.random.default_rng(seed).normal(size=(3, 3)).astype(np.float32)
    made = {"factor": a * np.float32(1.25), "offset": a + np.float32(2.5), "transposed": a.T}
    made["rounded"] = a.astype(np.float16).astype(np.float32)
    assert kind(a, np.ascontiguousarray(made[change])) == change


def test_statistics_of_two_values():
    """A mask of 0 and 1 that is 0 and 2 may be another one with as many; floats are told."""
    random = np.random.default_rng(3)
    mask = random.integers(0, 2, 200)
    counts = np.array([0, 1, 2, 1], np.int64)
    normal = random.normal(size=200).astype(np.float32)
    for a, found in ((mask, False), (mask.astype(np.float32), False), (counts, False)):
        assert (of_statistics(*map(leaf, (a, a * 2))) is not None) is found
        assert (of_statistics(*map(leaf, (a, a + 1))) is not None) is found
    for values in (normal, np.maximum(normal, 0), normal.astype(np.float16)):
        assert of_statistics(leaf(values), leaf(values * 2)).change.kind == "factor"
    huge = np.array([1e200, -3e200, 2e200])
    of_statistics(leaf(huge), leaf(huge * 2))


def leaf(array):
    """Return the statistics of an array as they are recorded."""
    return summarise(to_host(array))
