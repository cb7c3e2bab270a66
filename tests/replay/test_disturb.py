"""Inputs are disturbed by as little as their dtype can hold, and by nothing else."""

import numpy as np
import pytest

from mindrlhf_msprobe.replay.benchmark.disturb import (
    FORMATS,
    bits_of,
    ends_exchanged,
    is_mask,
    last_bit_flipped,
    noise_added,
    values_of,
)

DTYPES = [*FORMATS]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(np.random.randint(2**31))


def drawn(dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Return the bits of elements of all sizes, among them what must stay as it is."""
    kind = FORMATS[dtype]
    bits = rng.integers(0, np.iinfo(kind.bits).max, 4000, dtype=kind.bits, endpoint=True)
    infinity = bits_of(np.array([np.inf], kind.values), dtype) if dtype != "BFloat16" else None
    special = [0, 1, 1 << (kind.bits(0).itemsize * 8 - 1)]
    if infinity is not None:
        special += [int(infinity[0]), int(infinity[0]) - 1, int(infinity[0]) + 1]
    bits[: len(special)] = special
    return bits.reshape(40, 100)


def numbers(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Return what bits stand for, as float64."""
    with np.errstate(invalid="ignore"):
        return values_of(bits, dtype).astype(np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("disturb", [noise_added, last_bit_flipped])
def test_elements_move_to_the_next_number_and_no_further(dtype, disturb, rng):
    """One unit in the last place, also over the limits of powers of two; never to Inf or zero."""
    bits = drawn(dtype, rng)
    values = numbers(bits, dtype)
    after = numbers(disturb(bits, dtype), dtype)
    finite = np.isfinite(values)
    assert np.array_equal(np.isfinite(after), finite)
    assert np.array_equal(after[values == 0], values[values == 0])
    steps = disturb(bits, dtype).astype(np.int64) - bits.astype(np.int64)
    assert set(np.unique(steps[finite])) <= {-1, 0, 1}
    smallest = 2.0 ** (-14 if dtype == "Float16" else -1022 if dtype == "Float64" else -126)
    normal = finite & (np.abs(values) > smallest)
    assert np.all(steps[normal & (values < np.max(values[finite]))] != 0)
    assert np.all(steps[~normal & (np.abs(values) < smallest)] == 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_noise_goes_upwards(dtype, rng):
    """`add_noise` adds, of positive and of negative numbers."""
    bits = drawn(dtype, rng)
    values = numbers(bits, dtype)
    after = numbers(noise_added(bits, dtype), dtype)
    finite = np.isfinite(values)
    assert np.all(after[finite] >= values[finite])


@pytest.mark.parametrize("dtype", DTYPES)
def test_last_bit_flipped_twice_is_nothing(dtype, rng):
    """`bit_noise` is its own inverse."""
    bits = drawn(dtype, rng)
    assert np.array_equal(last_bit_flipped(last_bit_flipped(bits, dtype), dtype), bits)


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
