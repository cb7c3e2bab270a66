"""Two arrays → numbers: exact in every dtype, and the same as a plain computation."""

from __future__ import annotations

import math
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrlhf_msprobe.comparison.judging import sums
from mindrlhf_msprobe.comparison.judging.arrays import SMALL, compare_arrays, same_bytes
from mindrlhf_msprobe.comparison.judging.sums import BLOCK, dots
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance
from mindrlhf_msprobe.storage.arrays.npy import bfloat16_bits_to_float32

NAN, INF = math.nan, math.inf


def compare(a, b, tolerance=None):
    """Compare with numpy alone and, where it was built, the compiled library: to the last bit."""
    a, b, tolerance = np.asarray(a), np.asarray(b), tolerance or Tolerance()
    found = compare_arrays(a, b, tolerance)
    with mock.patch.object(sums, "FUNCTION", None):
        assert repr(compare_arrays(a, b, tolerance)) == repr(found)
    return found


def assert_found(compared, expected):
    """Look the expected values up, in the pair or in its metrics."""
    for name, value in expected.items():
        found = getattr(compared if hasattr(compared, name) else compared.metrics, name)
        assert found == (value if value is None else pytest.approx(value, rel=1e-6)), name


def floats(*values, dtype=np.float32):
    return np.array(values, dtype)


UNEQUAL = {"equal": False, "within": False}
NO_ERROR = {"equal": True, "equal_percent": 100, "within_1e2_percent": 100, "max_abs_err": 0}


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (np.int64([-1]), np.array([2**64 - 1], ">u8"), UNEQUAL | {"max_abs_err": 2**64}),
        (np.int64([2**53 + 1]), np.float64([2**53]), UNEQUAL | {"max_abs_err": 1}),
        (np.bool_([True, False]), np.int8([1, 0]), NO_ERROR),
        (np.array([1.5], ">f4"), np.array([1.5], "<f8"), NO_ERROR),
        (
            bfloat16_bits_to_float32(np.uint16([0x3F80])),
            bfloat16_bits_to_float32(np.uint16([0x3F81])),
            {"max_abs_err": 0.0078125, "max_rel_err": 0.0078125 / 1.0078125},
        ),
        (floats(1, NAN), floats(1, NAN), NO_ERROR | {"nan_a": 1, "nan_b": 1, "one_sided": False}),
        (np.array([complex(NAN, 1)]), np.array([complex(NAN, 2)]), {"equal": False}),
        (np.array([complex(1, NAN)]), np.array([complex(2, NAN)]), {"equal": False}),
        (np.array([complex(NAN, 1)]), np.array([complex(1, NAN)]), {"equal": False}),
        (np.array([complex(INF, NAN)]), np.array([complex(NAN, INF)]), {"equal": False}),
        (np.array([complex(NAN, 1)]), np.array([complex(NAN, 1)]), {"equal": True}),
        (np.empty((0, 3)), np.empty((0, 3)), NO_ERROR | {"max_rel_err": 0}),
        (
            np.float64([1000, 1000, 1000, 1000]),
            np.float64([1000, 1000.5, 1004, 1009]),
            {"within_1e3_percent": 50, "within_5e3_percent": 75, "within_1e2_percent": 100},
        ),
        (floats(3, 0), floats(0, 4), {"cosine": 0, "euclidean": 5}),
        (
            np.float64([1.7e308, 1]),
            np.float64([-1.7e308, 1]),
            {"max_rel_err": 2, "equal_percent": 50, "within": False},
        ),
    ],
)
def test_small_pairs_have_the_numbers_that_one_can_see(a, b, expected):
    """Nothing wraps, rounds away, overflows or warns, in either order of the two arrays.

    Of real numbers test_oracle.py has every pair.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compared, turned = compare(a, b), compare(b, a)
    assert_found(compared, expected)
    assert_found(turned, {n: v for n, v in expected.items() if not n.endswith(("_a", "_b"))})


@pytest.mark.parametrize(
    ("rtol", "atol", "within"),
    [(0, 0, False), (0.02, 0, True), (0.005, 0, False), (0, 1, True), (0, 0.9, False)],
)
def test_the_tolerance_is_absolute_plus_relative_to_the_larger_one(rtol, atol, within):
    """100 and 101 are within atol + rtol · 101, wherever among equal elements they stand."""
    assert compare(floats(100), floats(101), Tolerance(rtol, atol)).within is within
    a = np.full(BLOCK + 10, 100, np.float32)
    b = a.copy()
    b[-1] = 101
    assert compare(a, b, Tolerance(rtol, atol)).within is within


@pytest.mark.parametrize("value", [-1, NAN, INF, "1", None])
def test_a_tolerance_is_a_number_from_0_on(value):
    """A tolerance that is negative, not finite or no number is refused by name and value."""
    with pytest.raises(ValueError, match="rtol is"):
        Tolerance(rtol=value)


def slowly(a, b, tolerance):
    """Return what compare_arrays finds, from whole arrays in longdouble."""
    beyond_float64 = any(x.dtype == np.longdouble for x in (a, b))
    wide = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    a, b = (np.ascontiguousarray(x).ravel().astype(wide) for x in (a, b))
    (nan_a, nan_b), (inf_a, inf_b) = map(np.isnan, (a, b)), map(np.isinf, (a, b))
    equal = (a == b) | (nan_a & nan_b)
    both = ~(nan_a | nan_b | inf_a | inf_b)
    x, y = a[both], b[both]
    difference, scale = np.abs(x - y), np.maximum(np.abs(x), np.abs(y))
    distance = wide_difference = difference
    fits = not difference.size or difference.max() <= np.finfo(np.float64).max
    if fits and not beyond_float64:
        difference, scale = difference.astype(np.float64), scale.astype(np.float64)
    relative = np.divide(difference, scale, out=np.zeros_like(scale), where=scale > 0)
    relative = relative.astype(np.float64)
    norms = np.sqrt(np.sum(np.abs(x) ** 2)) * np.sqrt(np.sum(np.abs(y) ** 2))
    allowed = tolerance.atol + tolerance.rtol * scale
    shares = [
        100 * (np.count_nonzero(relative < bound) + np.count_nonzero(equal & ~both)) / a.size
        for bound in (1e-3, 5e-3, 1e-2)
    ]
    dot = np.sum(np.conj(x) * y).real
    return {
        "equal_percent": 100 * np.count_nonzero(equal) / a.size,
        "first_mismatch": None if equal.all() else int(np.argmin(equal)),
        "max_abs_err": float(distance.max()) if distance.size else None,
        "max_rel_err": float(relative.max()) if distance.size else None,
        "within_1e3_percent": shares[0],
        "within_5e3_percent": shares[1],
        "within_1e2_percent": shares[2],
        "cosine": 1.0 if equal.all() else float(dot / norms) if norms else None,
        "euclidean": float(np.sqrt(np.sum(wide_difference**2))) if distance.size else None,
        "nan_a": nan_a.sum(),
        "nan_b": nan_b.sum(),
        "inf_a": inf_a.sum(),
        "inf_b": inf_b.sum(),
        "equal": equal.all(),
        "one_sided": ((nan_a | inf_a) != (nan_b | inf_b)).any(),
        "within": (difference <= allowed).all() and (equal | both).all(),
    }


def assert_right(a, b, tolerance=None):
    """Every number is the slow one, in both arithmetics; sums of float32 to 1e-6."""
    tolerance = tolerance or Tolerance()
    compared = compare(a, b, tolerance)
    expected = slowly(a, b, tolerance)
    for name in ("equal", "one_sided", "within"):
        assert getattr(compared, name) == expected.pop(name), name
    for name, value in expected.items():
        found = getattr(compared.metrics, name)
        if name in ("max_abs_err", "max_rel_err"):
            quick = a.size > SMALL and a.dtype.kind + str(a.itemsize) == "f4"
            last = 3e-7 if quick or a.dtype.kind == "c" else 4e-16
            value = value if value is None else pytest.approx(value, rel=last, abs=0)
        elif name in ("cosine", "euclidean") and value is not None:
            value = pytest.approx(value, rel=1e-6, abs=1e-6 if name == "cosine" else 0)
        assert found == value, name


#: longer than two blocks, so that the work on float32 itself is reached as well
SIZES = [1, 2, 511, 513, 8193, BLOCK - 1, BLOCK + 1, 2 * BLOCK + 777]
SCALES = [1, 1e-44, 1e-30, 1e-20, 1e-12, 1e10, 1e19, 1.5e38]
ERRORS = ["noise", "magnitudes", "near a bound", "signs", "all", "none"]


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(["<f4", "<f4", "<f4", "<f8", "<f2", ">f4", "c8", "c16", np.longdouble]),
    size=st.sampled_from(SIZES),
    scale=st.sampled_from(SCALES),
    error=st.sampled_from(ERRORS),
    special=st.booleans(),
    tolerance=st.sampled_from(
        [Tolerance(), Tolerance(1e-3), Tolerance(0.5, 1), Tolerance(1e-6, 1e3)]
    ),
)
def test_floats_give_the_numbers_of_a_slow_computation(
    seed, dtype, size, scale, error, special, tolerance
):
    """Whatever the size, magnitudes, errors, NaN and infinities, all numbers are right."""
    random = np.random.default_rng(seed)
    complex_numbers = np.dtype(dtype).kind == "c"
    if complex_numbers:
        scale, special, error = 1, False, "all"  # shares at a bound hang on how abs() rounds
    a = random.normal(size=size) * scale * 10.0 ** random.integers(-8, 1, size)
    a[random.random(size) < 0.1] = 0.0
    a[random.random(size) < 0.05] = -0.0
    if complex_numbers:
        a = a + 1j * random.normal(size=size)
    off = {
        "noise": random.normal(1, 0.01, size),
        "magnitudes": 1 + random.choice([-1, 0, 1], size) * 10.0 ** random.integers(-9, 1, size),
        "near a bound": 1 - random.choice([0, 1e-3, 5e-3, 1e-2], size),
        "signs": random.choice([1, 1, 1, -1], size),
        "all": random.normal(size=size),
        "none": 1,
    }
    with np.errstate(over="ignore"):
        a, b = a.astype(dtype), (a * off[error]).astype(dtype)
    if special:
        for side in (a, b):
            side[random.random(size) < 0.01] = random.choice([NAN, INF, -INF])
        both = random.random(size) < 0.01
        a[both] = b[both] = random.choice([NAN, INF])
    assert_right(a, b, tolerance)


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(["f2", "f4", "f8", "i8", "u1", "?", ">i4", "c8"]),
    size=st.sampled_from([1, 49, BLOCK, 2 * BLOCK + 3]),  # 49 · (100 / 49) is not 100 in floats
    place=st.sampled_from([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, -1]),
)
def test_one_different_element_is_found_anywhere(dtype, size, place):
    """One element of an otherwise equal pair is seen in numbers and in bytes; none in a copy."""
    a = np.ones(size, dtype)
    b = a.copy()
    index = place % size
    b[index] = 0
    metrics = compare(a, b).metrics
    assert metrics.first_mismatch == index
    assert (metrics.max_abs_err, metrics.max_rel_err, metrics.euclidean) == (1, 1, 1)
    assert metrics.equal_percent == metrics.within_1e2_percent == 100 * (size - 1) / size
    assert not same_bytes(a, b)
    assert same_bytes(a, a.copy())
    assert_right(a, a.copy())


@settings(max_examples=30, deadline=None)
@given(
    shape=st.sampled_from([(3, 5), (7, BLOCK + 5), (BLOCK + 5, 7), (4, 1, 300, 130)]),
    orders=st.sampled_from(["FF", "FC", "CF", "SS", "SC"]),
)
def test_no_layout_changes_a_number(shape, orders):
    """Column-major and strided arrays give the numbers of row-major ones."""
    random = np.random.default_rng(1)

    def laid_out(array, order):
        if order == "S":
            spaced = np.zeros((*shape[:-1], 2 * shape[-1]), array.dtype)
            spaced[..., ::2] = array
            return spaced[..., ::2]
        return np.asarray(array, order=order)

    a = random.normal(size=shape).astype(np.float32)
    b = a.copy()
    b.reshape(-1)[a.size // 3 :: 101] += 0.5
    x, y = laid_out(a, orders[0]), laid_out(b, orders[1])
    plain, compared = compare(a, b).metrics, compare(x, y).metrics
    assert compared.first_mismatch == plain.first_mismatch == a.size // 3
    assert compared.max_abs_err == plain.max_abs_err
    assert compared.equal_percent == plain.equal_percent
    assert compared.cosine == pytest.approx(plain.cosine, rel=1e-9)
    assert not same_bytes(x, y)
    assert same_bytes(x, laid_out(a, orders[1]))


def test_shares_are_decided_in_float64_at_their_bounds():
    """Arrays whose errors are all about the bound itself are counted as float64 counts them."""
    random = np.random.default_rng(5)
    for bound in (1e-3, 5e-3, 1e-2):
        a = random.uniform(1, 2, 1 << 17).astype(np.float32)
        b = (a * (1 - bound)).astype(np.float32)
        b = np.where(random.random(a.size) < 0.5, b, np.nextafter(b, np.float32(9)))
        assert_right(a, b)


@pytest.mark.parametrize("exponent", [-1, -3, -5, -7])
def test_cosine_of_close_arrays_keeps_its_digits(exponent):
    """1 − cosine is right to 1e-5 of itself even where float32 products could not tell."""
    random = np.random.default_rng(0)
    a = random.normal(size=300_000).astype(np.float32)
    b = (a + 10.0**exponent * random.normal(size=a.size)).astype(np.float32)
    x, y = a.astype(np.longdouble), b.astype(np.longdouble)
    expected = np.sum(x * y) / np.sqrt(np.sum(x * x) * np.sum(y * y))
    assert 1 - compare(a, b).metrics.cosine == pytest.approx(
        float(1 - expected), rel=1e-5, abs=4e-16
    )


@pytest.mark.parametrize("order", ["C", "F"])
def test_memory_does_not_grow_with_a_mapped_file(tmp_path, order):
    """Neither a row-major nor a column-major file is copied as a whole."""
    for name in "ab":
        array = np.lib.format.open_memmap(
            tmp_path / name, "w+", np.float32, (2048, 2048), fortran_order=order == "F"
        )
        array[:] = np.float32(name == "a")
    a, b = (np.load(tmp_path / name, mmap_mode="r") for name in "ab")
    compare(a[:40], b[:40])
    tracemalloc.start()
    try:
        compare_arrays(a, b, Tolerance())
        same_bytes(a, a)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20


def test_threads_do_not_disturb_each_other():
    """Pairs compared in threads at once give the numbers they give alone."""
    random = np.random.default_rng(2)
    pairs = [
        (random.normal(size=size).astype(dtype), random.normal(size=size).astype(dtype))
        for size in (10, 9000, 3 * BLOCK)
        for dtype in (np.float32, np.float64, np.float16)
    ] * 8
    alone = [compare_arrays(a, b, Tolerance()).metrics for a, b in pairs]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda pair: compare_arrays(*pair, Tolerance()).metrics, pairs)
        assert list(found) == alone


def test_the_order_in_which_products_are_summed_is_fixed():
    """Lane by lane, half by half, chunk by chunk: whatever numpy, and whatever the machine."""
    values = np.random.default_rng(4).normal(size=5000)
    for dtype in (np.float32, np.float64):
        x = values.astype(dtype)
        expected = 0.0
        for start in range(0, x.size, 2048):
            chunk = np.zeros(2048, dtype)
            part = x[start : start + 2048]
            chunk[: part.size] = part * part
            lanes = [dtype(0)] * 128
            for place, product in enumerate(chunk):
                lanes[place % 128] += product
            folded = [float(lane) for lane in lanes]
            while len(folded) > 1:
                half = len(folded) // 2
                folded = [p + q for p, q in zip(folded[:half], folded[half:])]
            expected += folded[0]
        assert dots((x, x)) == [expected]
