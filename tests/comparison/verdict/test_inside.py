"""What differs inside a record: planted patterns are named, near misses are not.

Nor is one of two explanations that fit.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from helpers.health_runs import HealthRun
from helpers.runs import Fault, record_data, record_training
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.capture.tensors.summary import summarise, to_host
from mindrlhf_msprobe.comparison.judging import moves
from mindrlhf_msprobe.comparison.verdict import inside as inside_module
from mindrlhf_msprobe.comparison.verdict.inside import named, of_elements, of_statistics
from mindrlhf_msprobe.report.comparison import render

SEEDS = st.integers(0, 2**32 - 1)
DTYPES = st.sampled_from([np.float32, np.float64])
NAMES = {"float16": "Float16", "float32": "Float32", "float64": "Float64", "int64": "Int64"}
NAMES |= {"int32": "Int32", "int8": "Int8", "uint8": "UInt8", "bool": "Bool"}
quick = settings(max_examples=60, deadline=None)


def values(seed, shape=(4, 6, 5), dtype=np.float32):
    """Return normally distributed values."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def look(a, b):
    """Return what differs inside two arrays."""
    return of_elements(a, b, NAMES[str(a.dtype)])


def kind(a, b):
    """Return the kind of what is said to have been done to A, None if nothing is."""
    found = look(a, b)
    return None if found is None or found.change is None else found.change.kind


@pytest.mark.parametrize("turned", [True, False])
def test_a_matrix_of_another_shape_that_is_the_same_transposed(tmp_path, turned):
    """As a comparison of checkpoints says it."""
    a = values(0, (3, 5))
    b = a.T.copy() if turned else values(1, (5, 3))
    for name, value in (("a", a), ("b", b)):
        record_data(tmp_path / name, [("rewards", value)])
    first = compare_runs(tmp_path / "a", tmp_path / "b").verdict.first_divergence
    assert first.cause.value == "shape"
    assert (first.inside is not None) == turned
    if turned:
        assert first.inside.change.kind == "transposed"


@quick
@given(SEEDS, DTYPES, st.floats(-1e3, 1e3))
def test_one_factor_in_every_element(seed, dtype, factor):
    """It is found to the rounding of the dtype, and stands for every element."""
    assume(abs(factor) > 1e-3)
    assume(abs(factor - 1) > 1e-4)
    a = values(seed, dtype=dtype)
    b = (a.astype(np.longdouble) * factor).astype(dtype)
    change = look(a, b).change
    assert change.kind == "factor"
    assert change.parameters["every"] is True
    assert change.parameters["factor"] == pytest.approx(factor, rel=change.parameters["within"])


@quick
@given(SEEDS, DTYPES, st.floats(1.01, 50), st.data())
def test_one_element_otherwise_is_no_factor(seed, dtype, factor, data):
    """A near miss: one of the elements has another ratio, by a few roundings."""
    a = values(seed, dtype=dtype)
    b = (a * dtype(factor)).astype(dtype)
    index = data.draw(st.integers(0, a.size - 1))
    b.reshape(-1)[index] *= dtype(1 + 64 * np.finfo(dtype).eps)
    assert kind(a, b) is None


@quick
@given(SEEDS, DTYPES, st.floats(-1e3, 1e3))
def test_one_offset_in_every_element(seed, dtype, offset):
    """It is found to the rounding of the dtype; a near miss is not."""
    assume(abs(offset) > 1e-2)
    a = values(seed, dtype=dtype)
    b = (a.astype(np.longdouble) + offset).astype(dtype)
    change = look(a, b).change
    assert change.kind == "offset"
    assert change.parameters["offset"] == pytest.approx(offset, abs=change.parameters["within"])
    b.reshape(-1)[7] += max(abs(offset), 1) * dtype(0.01)
    assert kind(a, b) is None


@pytest.mark.parametrize("seed", range(5))
def test_noise_has_no_pattern(seed):
    """Errors that are unlike each other are neither a factor nor an offset, nor moved."""
    a = values(seed)
    assert look(a, a + values(seed + 100) * np.float32(0.1)) is None
    assert look(a, (a * (1 + 1e-3 * values(seed + 100))).astype(np.float32)) is None


@quick
@given(SEEDS, st.integers(0, 2), st.data())
def test_only_some_places_along_an_axis(seed, axis, data):
    """The places along the axis are named, all of them and no others."""
    a = values(seed)
    places = data.draw(st.sets(st.integers(0, a.shape[axis] - 1), min_size=1))
    assume(len(places) < a.shape[axis])
    b = a.copy()
    at = [slice(None)] * 3
    at[axis] = sorted(places)
    b[tuple(at)] = values(seed + 1)[tuple(at)]
    (some,) = look(a, b).where
    assert (some.axis, some.size, some.count) == (axis, a.shape[axis], len(places))
    assert {i for first, last in some.spans for i in range(first, last + 1)} == places


def test_a_factor_in_one_channel():
    """Where and by what are said together, and that it does not hold for all elements."""
    a = values(1, (4, 8, 32))
    b = a.copy()
    b[..., 0] *= np.float32(1.001)
    found = look(a, b)
    assert (found.where[0].axis, found.where[0].spans) == (2, ((0, 0),))
    assert found.change.kind == "factor"
    assert found.change.parameters["factor"] == pytest.approx(1.001, rel=1e-6)
    assert found.change.parameters["every"] is False
    assert (found.elements, found.size) == (32, 1024)


@pytest.mark.parametrize(
    ("factor", "name"),
    [
        (math.sqrt(4 / 3), {"root": [4, 3], "ddof": 4}),
        (math.sqrt(7 / 8), {"root": [7, 8], "ddof": 8}),
        (0.5, {"fraction": [1, 2]}),
        (1 / 8**0.5, {"root": [1, 8]}),
        (1.001, {}),
        (1.1547, {}),  # √(4/3) is 1.1547005
        (1.2345678, {}),
    ],
)
def test_factors_that_have_a_name(factor, name):
    """Only where the factor is one to the rounding of float32."""
    assert named(factor, 2.0**-22) == name


def test_another_ddof_is_named(of_both):
    """Advantages that were divided by the standard deviation of 3 instead of 4 values."""
    rewards = np.array([[1.0, 2.0, 4.0, 8.0], [0.5, 0.25, 3.0, 2.0]], np.float32)

    def record(recording, run):
        spread = rewards.std(axis=1, ddof=run == "a", keepdims=True)
        recording.data("advantages", (rewards - rewards.mean(axis=1, keepdims=True)) / spread)

    result = of_both(record)
    inside = result.to_json()["first_divergence"]["inside"]
    assert (inside["basis"], inside["kind"]) == ("elements", "factor")
    assert inside["parameters"]["factor"] == pytest.approx(1.154700538)
    assert "B = A × 1.154701 = √(4/3)" in render(result)


@quick
@given(SEEDS, st.integers(0, 1), st.permutations(range(6)))
def test_places_in_another_order(seed, axis, order):
    """The order is found along the axis, and nothing is said to have changed."""
    a = values(seed, (6, 6))
    assume(order != sorted(order))
    b = np.take(a, order, axis)
    change = look(a, b).change
    assert (change.kind, change.parameters["axis"]) in (("order", axis), ("shifted", axis))
    if change.kind == "order":
        assert [pair for pair in enumerate(order) if pair[0] != pair[1]] == [
            tuple(pair) for pair in change.parameters["from"]
        ]


def test_moved_in_other_ways():
    """A turn, a shift by one token, an order within each row, and any other."""
    a = np.random.default_rng(3).permutation(48).reshape(6, 8).astype(np.int64)
    turned = look(a, np.roll(a, 3, 1)).change
    assert (turned.kind, turned.parameters["turned"]) == ("order", 3)
    shifted = np.concatenate([np.zeros((6, 1), np.int64), a[:, :-1]], 1)
    change = look(a, shifted).change
    assert (change.kind, change.parameters) == (
        "shifted",
        {"axis": 1, "size": 8, "by": 1, "filled": 0, "whole": True},
    )
    inside = a.copy()
    for i, row in enumerate(inside):
        inside[i] = np.roll(row, i)
    assert look(a, inside).change.kind == "order_inside"
    mixed = np.random.default_rng(4).permutation(a.reshape(-1)).reshape(6, 8)
    assert look(a, mixed).change.kind == "moved"
    mixed[0, 0] += 1
    assert look(a, mixed) is None


def test_from_which_token_on():
    """Ids that part at a token name it."""
    a = np.arange(32).reshape(4, 8)
    b = a.copy()
    b[1:3, 5:] += [[3, 1, 4], [1, 5, 9]]
    rows, tokens = look(a, b).where
    assert (rows.spans, tokens.spans, tokens.size) == (((1, 2),), ((5, 7),), 8)


def test_rounding():
    """One side in a narrower dtype, or a few roundings apart; a larger distance is neither."""
    a = values(5)
    half = a.astype(np.float16).astype(np.float32)
    assert look(a, half).change.parameters["dtype"] == "Float16"
    bits = (a.view(np.uint32) + 0x8000) & 0xFFFF0000
    brain = bits.astype(np.uint32).view(np.float32)
    found = look(brain, a).change
    assert (found.kind, found.parameters["dtype"], found.parameters["side"]) == (
        "rounded",
        "BFloat16",
        "A",
    )
    half[0, 0, 0] = a[0, 0, 0] * np.float32(1.0001)
    assert kind(a, half) is None
    near = a.copy()
    near[::2] = np.nextafter(near[::2], np.float32(9))
    assert look(a, near).change.parameters == {"ulps": 1}


def leaf(array):
    """Return the statistics of an array as they are recorded."""
    return summarise(to_host(array))


@quick
@given(SEEDS, st.sampled_from([np.float32, np.float64]), st.floats(-50, 50))
def test_statistics_with_one_factor(seed, dtype, factor):
    """All four are the same times larger; one that is not is a near miss."""
    assume(abs(factor) > 0.01)
    assume(abs(factor - 1) > 1e-3)
    a = values(seed, (16, 64), dtype)
    found = of_statistics(leaf(a), leaf((a * dtype(factor)).astype(dtype)))
    assert (found.basis, found.change.kind) == ("statistics", "factor")
    assert found.change.parameters["factor"] == pytest.approx(factor, rel=1e-6)
    b = (a * dtype(factor)).astype(dtype)
    b[0] *= dtype(1.01)
    assert of_statistics(leaf(a), leaf(b)) is None


@quick
@given(SEEDS, st.floats(-50, 50))
def test_statistics_with_one_offset(seed, offset):
    """Max, min and mean moved by the same, the norm as it must."""
    assume(abs(offset) > 0.01)
    a = values(seed, (16, 64))
    found = of_statistics(leaf(a), leaf(a + np.float32(offset)))
    assert found.change.kind == "offset"
    assert found.change.parameters["offset"] == pytest.approx(offset, abs=1e-4)


def test_equal_statistics_of_other_bytes(tmp_path):
    """Said as what it is: the same statistics, another fingerprint."""
    fault = Fault("head", "actor_update", change=lambda x: x[..., ::-1].copy())
    a = record_training(tmp_path / "a", steps=1)
    b = record_training(tmp_path / "b", steps=1, faults=[fault])
    result = compare_runs(a, b)
    assert result.verdict.first_divergence.inside.change.kind == "same_statistics"
    assert "min, mean and norm are equal" in render(result)
    a = values(1, (64, 64))
    b = a.copy()
    b[3, 3] += np.float32(0.5)
    assert of_statistics(leaf(a), leaf(b)) is None


def test_samples_of_one_prompt(tmp_path):
    """Elements of a list are numbered, and the prompt they share is named."""
    prompts = ["one", "two"] * 4
    for name, wrong in (("a", ()), ("b", (1, 3, 5)), ("c", (1, 2))):
        responses = [f"r{i}{'!' * (i in wrong)}" for i in range(8)]
        rewards = np.arange(8.0)
        rewards[list(wrong)] += [0.5, 0.25, 0.75][: len(wrong)]
        saves = {"prompts": prompts, "responses": responses, "rewards": rewards}
        record_data(tmp_path / name, saves.items())
    responses = compare_runs(tmp_path / "a", tmp_path / "b").verdict.first_divergence
    assert responses.record == "responses.1"
    assert "Only elements 1, 3, 5 of 8: all of prompt 1." in render(
        compare_runs(tmp_path / "a", tmp_path / "b")
    )
    rewards = compare_runs(tmp_path / "a", tmp_path / "b", keys="rewards,prompts")
    inside = rewards.verdict.first_divergence.inside
    assert inside.where[0].spans == ((1, 1), (3, 3), (5, 5))
    assert inside.prompts == (1,)
    both = compare_runs(tmp_path / "a", tmp_path / "c").verdict.first_divergence.inside
    assert both.prompts == ()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble", "int8", "uint64"])
def test_elements_of_every_dtype_are_seen_to_have_moved(dtype):
    """The same elements in other places, zeros of either sign among them; and not with another."""
    a = np.arange(60).reshape(6, 10).astype(dtype)
    if a.dtype.kind == "f":
        a[0, 0] = -0.0
    b = np.abs(a.reshape(-1)[np.random.default_rng(1).permutation(a.size)].reshape(a.shape))
    assert of_elements(a, b, "").change.kind == "moved"
    b[3, 3] += 1
    found = of_elements(a, b, "")
    assert found is None or found.change is None


CHANGES = {
    "factor": lambda a, seed: a * a.dtype.type(1.5),
    "offset": lambda a, seed: a + a.dtype.type(3),
    "rounded": lambda a, seed: a.astype(np.float16).astype(a.dtype),
    "next numbers": lambda a, seed: np.nextafter(a, a.dtype.type(np.inf)),
    "half of it": lambda a, seed: np.concatenate((a[: len(a) // 2], a[len(a) // 2 :] * 2)),
    "noise": lambda a, seed: a + values(seed, a.shape, a.dtype.type),
    "turned": lambda a, seed: np.roll(a, 1, axis=0),
    "one infinite": lambda a, seed: np.where(a == a.max(), np.inf, a * 2).astype(a.dtype),
}


@quick
@given(SEEDS, DTYPES, st.sampled_from(list(CHANGES)), st.sampled_from([(900,), (30, 40), (9, 8)]))
def test_few_elements_first_change_no_answer(seed, dtype, change, shape):
    """As if all had been looked at at once."""
    a = values(seed, shape, dtype)
    b = CHANGES[change](a, seed + 1)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for few, chunk in ((8, 1 << 8), (1 << 30, 1 << 30)):
            patch.setattr(inside_module, "_FEW", few)
            patch.setattr(inside_module, "CHUNK", chunk)
            patch.setattr(moves, "CHUNK", chunk)
            found.append(repr(look(a, b)))
    assert found[0] == found[1]


def test_padding_that_differs_is_called_padding(tmp_path):
    """No token of a response differs, nor any log-probability that counts."""
    ids = np.array([[10, 11, 1, 0, 0], [12, 1, 0, 0, 0]])
    old = np.random.default_rng(0).normal(-1, 0.2, ids.shape).astype(np.float32)

    def saved(name, **data):
        run = HealthRun(tmp_path / name)
        run.recording.writer.save_configurations(
            lambda: {"pad_token_id": int(data["responses"][1, -1]), "eos_token_id": 1}
        )
        for key, value in data.items():
            run.data(key, value)
        run.end_step()
        return run.close()

    a = saved("a", responses=ids, old_log_prob=old)
    others = {
        "ids": {"responses": np.where(ids == 0, 7, ids), "old_log_prob": old},
        "old": {"responses": ids, "old_log_prob": np.where(ids == 0, old - 3, old)},
        "real": {"responses": ids, "old_log_prob": np.where(ids == 11, old - 3, old)},
    }
    for name, data in others.items():
        first = compare_runs(a, saved(name, **data)).verdict.first_divergence
        kind = None if first.inside.change is None else first.inside.change.kind
        assert (kind == "padding") is (name != "real"), name


# Where two explanations fit, none is claimed.


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
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]),  # times 2 or plus 1
        ([1.0], [3.0]),
        ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0]),
        ([1.0, 2.0], [math.inf, 4.0]),
        ([1.0, 2.0, math.nan], [2.0, 5.0, math.nan]),
    ],
)
def test_values_that_are_too_few(a, b):
    """Nothing is claimed where it could be several things, or nothing finite is there to tell."""
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
    change = look(a, b).change
    assert change.kind == move
    if move == "order":
        assert change.parameters["from"] == [[0, 1], [1, 0]]
    if move == "shifted":
        assert (change.parameters["axis"], change.parameters["by"]) == (1, 1)


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
