"""Inputs are disturbed by as little as their dtype can hold, and by nothing else."""

import numpy as np
import pytest

from mindrlhf_msprobe.replay.disturb import (
    FORMATS,
    bits_of,
    ends_exchanged,
    is_mask,
    last_bit_flipped,
    noise_added,
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
