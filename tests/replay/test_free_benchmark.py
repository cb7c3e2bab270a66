"""What a change of an output is taken for."""

import numpy as np
import pytest

from mindrlhf_msprobe.replay.disturb import (
    coarsest_of,
    is_order_free,
    judge,
    relative_change,
)


def judged(first, second, **more):
    given = {"dtype": "Float32", "mode": "add_noise", "disturbed_by": 1e-7, "coarsest": "Float32"}
    return judge(np.float32(first), np.float32(second), **{**given, **more})


def test_small_elements_are_measured_by_the_others():
    """What is left of a cancellation carries the rounding of its terms."""
    first, second = np.float32([1.0, 1e-7]), np.float32([1.0, 2e-7])
    assert relative_change(first, second) < 1e-6
    assert relative_change(np.float32([2.0]), np.float32([3.0])) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("first", "second", "change"),
    [
        ([], [], 0.0),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([np.inf], [-np.inf], np.inf),
        ([1.0, 1.0], [1.0, np.nan], np.inf),
        ([np.nan], [np.nan], 0.0),
        ([0.0, 0.0], [0.0, 1e-9], np.inf),
        ([3e38, 1.0], [3e38, 1.0], 0.0),
    ],
)
def test_what_is_not_finite(first, second, change):
    """Inf and NaN that are in both say nothing; one that comes or goes is the largest change."""
    with np.errstate(all="raise"):
        assert relative_change(np.float32(first), np.float32(second)) == change


def test_threshold_is_that_of_the_dtype():
    """0.002 of float16, 0.0002 of all others, unless another one is given."""
    values = np.float32([1.0]), np.float32([1.001])
    alike = {"mode": "add_noise", "disturbed_by": 1e-9, "coarsest": ""}
    assert judge(*values, dtype="Float16", **alike).consistent
    assert not judge(*values, dtype="Float32", **alike).consistent
    assert judge(*values, dtype="Float32", thresholds={"Float32": 0.01}, **alike).consistent
    assert not judge(*values, dtype="Float16", thresholds={"Float16": 1e-4}, **alike).consistent


def test_what_rounding_to_16_bits_does_is_no_fault():
    """A change counts where it is also many times what went in, or what its dtype rounds."""
    assert judged([1.0], [1.01], coarsest="Float16").consistent
    assert judged([1.0], [1.01], coarsest="BFloat16").consistent
    assert not judged([1.0], [1.01]).consistent
    assert judged([1.0], [1.01]).ratio == pytest.approx(0.01 / 2**-23, rel=1e-3)
    assert not judged([1.0], [1.01], coarsest="Float16", most_times=2).consistent


def test_no_change_means_not_a_bit():
    """The same inputs give the same bits; NaN is NaN."""
    same = judged([1.0, np.nan], [1.0, np.nan], mode="no_change")
    assert same.consistent
    assert same.ratio is None
    one_ulp = judged([1.0], [np.nextafter(np.float32(1), np.float32(2))], mode="no_change")
    assert (one_ulp.consistent, one_ulp.differing) == (False, 1)


def test_order_does_not_count_where_it_cannot():
    """A sum of the same numbers in another order is held to the threshold alone."""
    exchanged = {"mode": "change_value", "disturbed_by": 1e-6}
    assert judged([1.0], [1.9], **exchanged).consistent
    assert not judged([1.0], [1.01], **exchanged, order_free=True).consistent
    one_rounding = {"dtype": "BFloat16", **exchanged, "order_free": True}
    assert judged([1.0], [1.0 + 2**-7], **one_rounding).consistent
    assert is_order_free("Mint.sum")
    assert not is_order_free("Mint.cumsum")


def test_the_coarsest_dtype_of_any_tensor():
    """That which has the fewest bits of mantissa; whole numbers have none."""
    assert coarsest_of(["Float32", "Int32", "BFloat16", "Float16"]) == "BFloat16"
    assert coarsest_of(["Int64"]) == ""
