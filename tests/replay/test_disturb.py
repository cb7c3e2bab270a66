"""Inputs are disturbed by as little as their dtype can hold; what a change of an output means."""

import numpy as np
import pytest

from mindrlhf_msprobe.replay.disturb import (
    FORMATS,
    bits_of,
    coarsest_of,
    ends_exchanged,
    is_mask,
    is_order_free,
    judge,
    last_bit_flipped,
    noise_added,
    relative_change,
    values_of,
)

SMALLEST = {"Float16": 2.0**-14, "BFloat16": 2.0**-126, "Float32": 2.0**-126, "Float64": 2.0**-1022}


def elements(dtype: str) -> np.ndarray:
    """Return the bits of all numbers of 16 bits; of more, of numbers of all sizes and the ends."""
    kind = FORMATS[dtype]
    if kind.bits is np.uint16:
        return np.arange(1 << 16, dtype=np.uint16)
    rng, ends = np.random.default_rng(), np.finfo(kind.values)
    drawn = rng.integers(0, np.iinfo(kind.bits).max, 4000, dtype=kind.bits, endpoint=True)
    known = np.array([0, ends.tiny, ends.max, np.inf, np.nan, 1, 2, ends.smallest_subnormal])
    return np.concatenate([drawn, bits_of(np.array([*known, *-known], kind.values), dtype)])


@pytest.mark.parametrize("dtype", FORMATS)
def test_elements_move_to_the_next_number_and_no_further(dtype):
    """`add_noise` upwards, `bit_noise` in the last bit; never to Inf, zero, or what is not normal.

    The number of units in the last place is known exactly in float64.
    """
    bits = elements(dtype)
    with np.errstate(all="ignore"):
        values = values_of(bits, dtype).astype(np.float64)
        fraction, exponent = np.frexp(values)
        unit = np.ldexp(1.0, exponent - 1 - FORMATS[dtype].mantissa)
        up = np.where(fraction == -0.5, unit / 2, unit)  # a power of two, seen from below
        sizes, largest = np.abs(values), np.max(values[np.isfinite(values)])
        normal = (sizes >= SMALLEST[dtype]) & (sizes <= largest)
        moves = normal & (values < largest) & (values != -SMALLEST[dtype])
        last = np.where(normal, sizes / unit % 2 * -2 + 1, 0.0)  # odd ones go down
        noisy = np.where(moves, values + up, values)
        flipped = np.where(normal, values + np.copysign(unit, values) * last, values)
        for disturb, expected in ((noise_added, noisy), (last_bit_flipped, flipped)):
            found = values_of(disturb(bits, dtype), dtype).astype(np.float64)
            np.testing.assert_array_equal(found, expected)


def test_ends_are_exchanged_of_the_whole_and_along_an_axis():
    """`change_value` reorders, and makes no new number."""
    bits = np.arange(6, dtype=np.uint32).reshape(2, 3)
    assert ends_exchanged(bits).tolist() == [[5, 1, 2], [3, 4, 0]]
    assert ends_exchanged(bits, axis=1).tolist() == [[2, 1, 0], [5, 4, 3]]
    assert ends_exchanged(bits[:0]).shape == (0, 3)
    assert ends_exchanged(np.uint32([7])).tolist() == [7]


@pytest.mark.parametrize(
    ("values", "mask"),
    [([0, 1, 1], True), ([0, -1e4], True), ([1, 1], True), ([0.5, 1], False), ([], False)],
)
def test_masks_are_known(values, mask):
    """Zeros and one other number: what an input is multiplied by or chosen with."""
    assert is_mask(np.array(values, np.float32)) is mask


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
