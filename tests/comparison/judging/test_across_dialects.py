"""This package's statistics against msprobe's: equal tensors agree, others do not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mindrlhf_msprobe.capture.tensors.summary import summarise, to_host
from mindrlhf_msprobe.comparison.judging.status import compare_records
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance
from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.storage.foreign.dialect import MSPROBE
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Record

VALUES = np.random.default_rng(3).normal(size=(40, 25))


def ours(array: np.ndarray) -> Leaf:
    return summarise(to_host(array))


def msprobe_s(array: np.ndarray, computed_in: type = np.float32) -> Leaf:
    """Return the statistics that MindSpore's operators give, computed in a dtype."""
    low = array.astype(computed_in)
    with np.errstate(over="ignore"):
        mean = low.sum(dtype=computed_in) / computed_in(low.size)
        norm = np.sqrt((low * low).sum(dtype=computed_in))
    return Leaf(
        type="mindspore.Tensor",
        dtype=ours(array).dtype,
        shape=array.shape,
        max=float(np.nanmax(low)),
        min=float(np.nanmin(low)),
        mean=float(mean),
        norm=float(norm),
        dialect=MSPROBE.name,
    )


def status(a: Leaf, b: Leaf) -> Status:
    records = [Record("x", "output", "0", leaf) for leaf in (a, b)]
    found = compare_records(*records, Tolerance())[0]
    assert compare_records(*reversed(records), Tolerance())[0] is found
    return found


@pytest.mark.parametrize(
    ("dtype", "computed_in"),
    [
        (np.float32, np.float32),
        (np.float16, np.float16),
        (np.float32, np.float16),  # a parameter of a network under to_float(float16)
        (np.int32, np.float16),
    ],
)
def test_equal_tensors_agree(dtype, computed_in):
    array = (VALUES * 9).astype(dtype)
    found = ours(array)
    assert status(found, msprobe_s(array, computed_in)) is Status.WITHIN_TOLERANCE
    other = array.copy()
    other[3, 4] = array.max() + 1
    assert status(found, msprobe_s(other, computed_in)) is Status.DIFFERENT
    shifted = array + np.asarray(1, dtype)
    assert status(found, msprobe_s(shifted, computed_in)) is Status.DIFFERENT


def test_a_sum_in_which_a_number_was_too_large_says_nothing():
    """The norm of float16 overflows from 256 on, that of float32 from 1.8e19 on."""
    for array in (np.full(9, 300, np.float16), np.array([3e38, 3e38], np.float32)):
        theirs = msprobe_s(array, array.dtype.type)
        assert math.isinf(theirs.norm)
        assert status(ours(array), theirs) is Status.WITHIN_TOLERANCE
        assert status(ours(array), replace(theirs, max=1.0)) is Status.DIFFERENT


def test_an_overflow_that_cannot_be_one_is_a_difference():
    """Squares that fit the dtype leave no norm infinite, and elements that fit no mean."""
    for array in (np.full(9, 3, np.float16), np.array([3.0, 3.0], np.float32)):
        theirs = msprobe_s(array, array.dtype.type)
        for wrong in ({"norm": math.inf}, {"mean": math.inf}, {"mean": -math.inf}):
            assert status(ours(array), replace(theirs, **wrong)) is Status.DIFFERENT


def test_beside_nan_nothing_is_known_and_nothing_passes():
    """Their extremes pass over NaN, ours do not: no statistic is left that both have."""
    array = np.array([1, math.nan, 2], np.float32)
    assert status(ours(array), msprobe_s(array)) is Status.UNREADABLE
    other = np.array([1, math.nan, 200], np.float32)
    assert status(ours(array), msprobe_s(other)) is Status.UNREADABLE
    whole = np.array([1, 0, 2], np.float32)
    assert status(ours(whole), msprobe_s(array)) is Status.NON_FINITE
    assert status(ours(array), msprobe_s(whole)) is Status.NON_FINITE


def test_infinity_is_none_of_these():
    array = np.array([1, math.inf, 2], np.float32)
    assert status(ours(array), msprobe_s(array)) is Status.WITHIN_TOLERANCE
    largest = np.array([1, 3e38, 2], np.float32)
    assert status(ours(largest), msprobe_s(array)) is Status.NON_FINITE


def test_a_shape_of_more_elements_than_a_float_counts_is_compared():
    """What a damaged or hostile dump claims raises nothing."""
    huge = replace(ours(VALUES.astype(np.float32)), shape=(2**62,) * 40)
    theirs = replace(msprobe_s(VALUES.astype(np.float32)), shape=huge.shape, max=99.0)
    assert status(huge, theirs) is Status.DIFFERENT


def test_subnormal_numbers_may_be_zeros():
    array = np.array([1e-40, 1e-45], np.float32)
    flushed = replace(msprobe_s(array), max=0.0, min=0.0, mean=0.0, norm=0.0)
    assert status(ours(array), flushed) is Status.WITHIN_TOLERANCE


def test_two_dumps_of_one_tool_have_no_such_excuse():
    array = VALUES.astype(np.float32)
    low, exact = msprobe_s(array, np.float16), msprobe_s(array)
    assert status(low, exact) is Status.DIFFERENT
