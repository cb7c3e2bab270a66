"""Two arrays → numbers: exact in every dtype, and the same as a plain computation."""

from __future__ import annotations

import math
import tracemalloc
import warnings
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest

from mindrlhf_msprobe.comparison.judging.metrics import block_sums
from mindrlhf_msprobe.comparison.judging.metrics.arrays import compare_arrays
from mindrlhf_msprobe.comparison.judging.metrics.blocks import BLOCK, Tolerance, dots, same_bytes
from mindrlhf_msprobe.storage.arrays.npy import bfloat16_bits_to_float32

INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
FLOATS = [np.float16, np.float32, np.float64]
COMPLEX = [np.complex64, np.complex128]
NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True, params=["numpy", "compiled"])
def arithmetic(request, monkeypatch):
    """Run every test with numpy alone, and with the compiled library where it was built."""
    if request.param == "numpy":
        monkeypatch.setattr(block_sums, "FUNCTION", None)
    elif block_sums.FUNCTION is None:
        pytest.skip("there was no C compiler when the package was installed")


def compare(a, b, tolerance=None):
    return compare_arrays(np.asarray(a), np.asarray(b), tolerance or Tolerance())


def floats(*values, dtype=np.float32):
    return np.array(values, dtype)


def random_pair(dtype, size=3000):
    """Return two arrays that agree in most places."""
    random = np.random.default_rng(np.dtype(dtype).num)
    if np.dtype(dtype).kind in "iu":
        limits = np.iinfo(dtype)
        a = random.integers(limits.min, limits.max, size, dtype=dtype, endpoint=True)
        other = random.integers(limits.min, limits.max, size, dtype=dtype, endpoint=True)
    elif np.dtype(dtype).kind == "b":
        a, other = random.random(size) < 0.5, random.random(size) < 0.5
    else:
        a = random.normal(size=size).astype(dtype)
        if np.dtype(dtype).kind == "c":
            a += 1j * random.normal(size=size)
        other = a * random.choice([1.0, 1.0005, 1.003, 1.008, 1.5, -1], size).astype(dtype)
    return a, np.where(random.random(size) < 0.3, other, a).astype(dtype)


def plainly(a, b):
    """Return the metrics of two finite arrays, each element a Python number of its own."""
    kind = complex if a.dtype.kind == "c" else float if a.dtype.kind == "f" else int
    pairs = [(kind(x), kind(y)) for x, y in zip(a.tolist(), b.tolist())]
    absolute = [abs(x - y) for x, y in pairs]
    relative = [
        0.0 if x == y else float(Fraction(d) / Fraction(max(abs(x), abs(y))))
        for d, (x, y) in zip(absolute, pairs)
    ]
    size = len(pairs)
    different = [i for i, (x, y) in enumerate(pairs) if x != y]
    dot = sum((complex(x).conjugate() * complex(y)).real for x, y in pairs)
    norms = [math.sqrt(sum(float(abs(v)) ** 2 for v in side)) for side in zip(*pairs)]
    return {
        "equal_percent": 100 * (size - len(different)) / size,
        "first_mismatch": different[0] if different else None,
        "max_abs_err": max(absolute),
        "max_rel_err": max(relative),
        "within_1e3_percent": 100 * sum(r < 1e-3 for r in relative) / size,
        "within_5e3_percent": 100 * sum(r < 5e-3 for r in relative) / size,
        "within_1e2_percent": 100 * sum(r < 1e-2 for r in relative) / size,
        "cosine": dot / (norms[0] * norms[1]),
        "euclidean": math.sqrt(sum(float(d) ** 2 for d in absolute)),
    }


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, *COMPLEX, np.bool_])
def test_metrics_are_those_of_a_plain_computation(dtype):
    """In every dtype the metrics equal those computed one Python number at a time."""
    a, b = random_pair(dtype)
    metrics = compare(a, b).metrics
    for name, expected in plainly(a, b).items():
        assert getattr(metrics, name) == pytest.approx(expected, rel=1e-9), name


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, *COMPLEX, np.bool_])
def test_an_array_equals_its_copy(dtype):
    """In every dtype a copy is equal, with every share at exactly 100 % and no error."""
    a, _ = random_pair(dtype, size=49)  # 49 · (100 / 49) is not 100 in floating point
    compared = compare(a, a.copy())
    metrics = compared.metrics
    assert compared.equal
    assert not compared.one_sided
    assert metrics.equal_percent == metrics.within_1e3_percent == 100
    assert metrics.within_5e3_percent == metrics.within_1e2_percent == 100
    assert (metrics.first_mismatch, metrics.max_abs_err, metrics.max_rel_err) == (None, 0, 0)
    assert (metrics.cosine, metrics.euclidean) == (1, 0)


def test_unsigned_integers_do_not_wrap():
    """97 and 98 as uint8 are 1 apart, in either order, not 255."""
    for a, b in ((97, 98), (98, 97)):
        metrics = compare(np.uint8([a]), np.uint8([b])).metrics
        assert metrics.max_abs_err == 1
        assert metrics.max_rel_err == pytest.approx(1 / 98)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_extremes_of_integers_are_exact(dtype):
    """The distance of a dtype's smallest and largest value is exact."""
    limits = np.iinfo(dtype)
    metrics = compare(np.array([limits.min], dtype), np.array([limits.max], dtype)).metrics
    assert metrics.max_abs_err == int(limits.max) - int(limits.min)


def test_large_int64_values_that_float64_cannot_tell_apart_differ():
    """2**53 and 2**53 + 1 differ by exactly 1, although both are the same float64."""
    compared = compare(np.int64([2**53]), np.int64([2**53 + 1]))
    assert not compared.equal
    assert compared.metrics.max_abs_err == 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.int64([-1]), np.uint64([2**64 - 1])),
        (np.int64([-1]), np.array([2**64 - 1], ">u8")),
        (np.uint8([255]), np.int8([-1])),
        (np.int64([2**53 + 1]), np.float64([2**53])),
        (np.uint64([2**64 - 1]), np.float64([2**64])),
        (np.int32([2**24 + 1]), np.float32([2**24])),
    ],
)
def test_unlike_dtypes_are_compared_by_their_values(a, b):
    """Values that are equal only after a lossy conversion are not equal, in either order."""
    for compared in (compare(a, b), compare(b, a)):
        assert not compared.equal
        assert not compared.within
        assert compared.metrics.max_abs_err >= 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.int64([-1, 3]), np.float32([-1, 3])),
        (np.uint64([2**63]), np.float64([2**63])),
        (np.bool_([True, False]), np.int8([1, 0])),
        (np.array([1, 2], ">i4"), np.array([1, 2], "<i8")),
        (np.array([1.5], ">f4"), np.array([1.5], "<f8")),
    ],
)
def test_equal_values_of_unlike_dtypes_are_equal(a, b):
    """The same values are equal whatever dtype and byte order hold them."""
    assert compare(a, b).equal


def test_bfloat16_is_compared_as_the_float32_it_stands_for():
    """bfloat16 bits, brought to float32, keep their values exactly."""
    one, next_up = bfloat16_bits_to_float32(np.uint16([0x3F80, 0x3F81]))
    assert (one, next_up) == (1.0, 1.0078125)
    assert compare([one], [next_up]).metrics.max_abs_err == 0.0078125


def test_nan_equals_nan_in_the_same_place():
    """Two NaNs in one place are equal and count as within every bound."""
    compared = compare(floats(1, NAN), floats(1, NAN))
    assert compared.equal
    assert compared.metrics.within_1e3_percent == 100
    assert (compared.metrics.nan_a, compared.metrics.nan_b) == (1, 1)


def test_negative_zero_equals_zero():
    """−0.0 and 0.0 are the same value."""
    assert compare(floats(-0.0), floats(0.0)).equal


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_one_sided_non_finite_elements_are_seen(bad):
    """A NaN or infinity on one side only is one-sided and never within a tolerance."""
    a, b = floats(1, bad, 3), floats(1, 2, 3)
    for x, y in ((a, b), (b, a)):
        compared = compare(x, y, Tolerance(rtol=1, atol=1e9))
        assert compared.one_sided
        assert not compared.within
        assert not compared.equal
        assert compared.metrics.first_mismatch == 1
        assert compared.metrics.max_abs_err == 0


@pytest.mark.parametrize(("a", "b"), [(INF, -INF), (NAN, INF), (INF, NAN)])
def test_unlike_non_finite_elements_differ(a, b):
    """Infinity is neither minus infinity nor NaN, whatever the tolerance."""
    compared = compare(floats(a), floats(b), Tolerance(atol=1e9, rtol=1))
    assert not compared.equal
    assert not compared.within
    assert compared.metrics.max_abs_err is None
    assert compared.metrics.within_1e2_percent == 0


def test_equal_infinities_are_equal():
    """The same infinity on both sides is equal and no error."""
    compared = compare(floats(INF, 1), floats(INF, 2))
    assert not compared.one_sided
    assert compared.metrics.equal_percent == 50
    assert (compared.metrics.inf_a, compared.metrics.inf_b) == (1, 1)
    assert compared.metrics.max_abs_err == 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (complex(NAN, 1), complex(NAN, 2)),
        (complex(1, NAN), complex(2, NAN)),
        (complex(NAN, 1), complex(1, NAN)),
        (complex(INF, NAN), complex(NAN, INF)),
    ],
)
def test_complex_numbers_differ_if_either_part_does(a, b):
    """A NaN in one part of a complex number does not hide the other part."""
    assert not compare(np.array([a]), np.array([b])).equal


def test_complex_numbers_with_equal_parts_are_equal():
    """A complex number whose parts agree, NaN beside NaN, is equal."""
    assert compare(np.array([complex(NAN, 1)]), np.array([complex(NAN, 1)])).equal


def test_empty_arrays_agree_without_any_error():
    """Two arrays without elements are equal: all shares 100 %, errors 0."""
    compared = compare(np.empty((0, 3)), np.empty((0, 3)))
    assert compared.equal
    assert compared.metrics.equal_percent == compared.metrics.within_1e2_percent == 100
    assert compared.metrics.max_abs_err == compared.metrics.max_rel_err == 0


def test_a_0d_array_is_one_element():
    """A 0-d array is compared as one element with index 0."""
    metrics = compare(np.float32(2), np.float32(3)).metrics
    assert (metrics.first_mismatch, metrics.equal_percent, metrics.max_abs_err) == (0, 0, 1)


def test_unlike_shapes_are_refused():
    """Arrays of unlike shapes are never cut to fit."""
    with pytest.raises(ValueError, match=r"\(3,\) and \(2,\)"):
        compare([1, 2, 3], [1, 2])


@pytest.mark.parametrize("index", [0, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
def test_the_first_mismatch_is_found_across_blocks(index):
    """The flat index of the first different element is right wherever a block ends."""
    a = np.zeros(2 * BLOCK + 6, np.float32)
    b = a.copy()
    b[index:] = 1
    metrics = compare(a, b).metrics
    assert metrics.first_mismatch == index
    assert metrics.equal_percent == pytest.approx(100 * index / a.size)


def test_elements_are_counted_in_row_major_order_whatever_the_layout():
    """The index of the first mismatch is the row-major one also for column-major arrays."""
    a = np.zeros((3, 4), np.float32)
    b = a.copy()
    b[1, 2] = 1
    assert compare(np.asfortranarray(a), np.asfortranarray(b)).metrics.first_mismatch == 6
    assert compare(np.asfortranarray(a), b).metrics.first_mismatch == 6


def test_the_relative_error_is_that_of_the_larger_one():
    """The relative error is |a−b| / max(|a|, |b|), and 0 where both are 0."""
    metrics = compare(floats(0, 2, -4), floats(0, 1, -5)).metrics
    assert metrics.max_rel_err == pytest.approx(0.5)
    assert compare(floats(0, 1), floats(1, 1)).metrics.max_rel_err == 1


def test_the_shares_count_elements_below_each_bound():
    """The shares within 1‰, 5‰ and 1 % count the elements with a smaller relative error."""
    a = floats(1000, 1000, 1000, 1000, dtype=np.float64)
    b = floats(1000, 1000.5, 1004, 1009, dtype=np.float64)
    metrics = compare(a, b).metrics
    assert metrics.within_1e3_percent == 50
    assert metrics.within_5e3_percent == 75
    assert metrics.within_1e2_percent == 100


def test_cosine_and_euclidean_distance():
    """Perpendicular arrays have cosine 0, opposite ones −1; the distance is that of the points."""
    assert compare(floats(3, 0), floats(0, 4)).metrics.cosine == 0
    assert compare(floats(3, 0), floats(0, 4)).metrics.euclidean == 5
    assert compare(floats(1, 2), floats(-1, -2)).metrics.cosine == pytest.approx(-1)
    assert compare(floats(0, 0), floats(1, 2)).metrics.cosine is None


def test_huge_values_give_no_false_numbers_and_no_warning():
    """At the edge of float64 the relative error stays at most 2, and nothing warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compared = compare(np.array([1.7e308, 1]), np.array([-1.7e308, 1]))
    assert compared.metrics.max_rel_err == 2
    assert compared.metrics.equal_percent == 50
    assert not compared.within


@pytest.mark.parametrize(
    ("rtol", "atol", "within"),
    [(0, 0, False), (0.02, 0, True), (0.005, 0, False), (0, 1, True), (0, 0.9, False)],
)
def test_the_tolerance_is_absolute_plus_relative_to_the_larger_one(rtol, atol, within):
    """100 and 101 are within atol + rtol · 101, and not otherwise."""
    assert compare(floats(100), floats(101), Tolerance(rtol, atol)).within is within


def test_one_element_outside_the_tolerance_is_enough():
    """A single element outside the tolerance, in any block, is not hidden by all others."""
    a = np.ones(BLOCK + 10, np.float32)
    b = a.copy()
    b[-1] = 1.5
    assert not compare(a, b, Tolerance(rtol=0.1)).within


@pytest.mark.parametrize("value", [-1, NAN, INF, "1", None])
def test_a_tolerance_is_a_number_from_0_on(value):
    """A tolerance that is negative, not finite or no number is refused by name and value."""
    with pytest.raises(ValueError, match="rtol is"):
        Tolerance(rtol=value)


def slowly(a, b, tolerance):
    """Return what compare_arrays finds, from whole arrays in longdouble or Python integers."""
    exact = a.dtype.kind in "biu" and b.dtype.kind in "biu"
    beyond_float64 = not exact and any(
        x.dtype == np.longdouble or x.dtype.str[1:] in ("i8", "u8") for x in (a, b)
    )
    wide = object if exact else np.longdouble
    a, b = (np.ascontiguousarray(x).ravel().astype(wide) for x in (a, b))
    nan_a, nan_b = (np.zeros(a.size, bool) if exact else np.isnan(x) for x in (a, b))
    inf_a, inf_b = (np.zeros(a.size, bool) if exact else np.isinf(x) for x in (a, b))
    equal = (a == b).astype(bool) | (nan_a & nan_b)
    both = ~(nan_a | nan_b | inf_a | inf_b)
    x, y = a[both], b[both]
    distance, larger = np.abs(x - y), np.maximum(np.abs(x), np.abs(y))
    numbers = [d.astype(np.longdouble) for d in (x, y, distance, larger)]
    x, y, difference, scale = numbers
    fits = not difference.size or difference.max() <= np.finfo(np.float64).max
    if fits and not beyond_float64:
        difference, scale = difference.astype(np.float64), scale.astype(np.float64)
    relative = np.divide(difference, scale, out=np.zeros_like(scale), where=scale > 0)
    relative = relative.astype(np.float64)
    norms = np.sqrt(np.sum(x * x)) * np.sqrt(np.sum(y * y))
    allowed = tolerance.atol + tolerance.rtol * scale
    shares = [
        100 * (np.count_nonzero(relative < bound) + np.count_nonzero(equal & ~both)) / a.size
        for bound in (1e-3, 5e-3, 1e-2)
    ]
    number = int if exact else float
    return {
        "equal_percent": 100 * np.count_nonzero(equal) / a.size,
        "first_mismatch": None if equal.all() else int(np.argmin(equal)),
        "max_abs_err": number(distance.max()) if distance.size else None,
        "max_rel_err": float(relative.max()) if distance.size else None,
        "within_1e3_percent": shares[0],
        "within_5e3_percent": shares[1],
        "within_1e2_percent": shares[2],
        "cosine": 1.0 if equal.all() else float(np.sum(x * y) / norms) if norms else None,
        "euclidean": float(np.sqrt(np.sum(numbers[2] * numbers[2]))) if distance.size else None,
        "nan_a": nan_a.sum(),
        "nan_b": nan_b.sum(),
        "inf_a": inf_a.sum(),
        "inf_b": inf_b.sum(),
        "equal": equal.all(),
        "one_sided": ((nan_a | inf_a) != (nan_b | inf_b)).any(),
        "within": (difference <= allowed).all() and (equal | both).all(),
    }


def assert_right(a, b, tolerance=None):
    """Every number of compare_arrays is the slow one; sums of float32 to 1e-6."""
    tolerance = tolerance or Tolerance()
    compared = compare_arrays(a, b, tolerance)
    expected = slowly(a, b, tolerance)
    for name in ("equal", "one_sided", "within"):
        assert getattr(compared, name) == expected.pop(name), name
    for name, value in expected.items():
        found = getattr(compared.metrics, name)
        if name in ("max_abs_err", "max_rel_err") and not isinstance(value, int):
            value = value if value is None else pytest.approx(value, rel=4e-16, abs=0)
        elif name in ("cosine", "euclidean") and value is not None:
            value = pytest.approx(value, rel=1e-6, abs=1e-6 if name == "cosine" else 0)
        assert found == value, name


#: longer than two blocks, so that the work on float32 itself is reached as well
SIZES = [1, 2, 511, 513, 9000, BLOCK - 1, BLOCK, 2 * BLOCK + 777]
SCALES = [1, 1e-44, 1e-30, 1e-20, 1e-12, 1e10, 1e19, 1.5e38]


def hard_values(random, size, scale):
    """Return float64 values of many magnitudes and signs, with zeros of both signs."""
    values = random.normal(size=size) * scale * 10.0 ** random.integers(-8, 1, size)
    values[random.random(size) < 0.1] = 0.0
    values[random.random(size) < 0.05] = -0.0
    return values


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<f2", ">f4", np.longdouble])
def test_random_floats_give_the_numbers_of_a_slow_computation(dtype, seed):
    """Whatever the size, magnitudes, errors, NaN and infinities, all numbers are right."""
    random = np.random.default_rng(seed)
    size, scale = SIZES[seed % len(SIZES)], SCALES[seed // 2 % len(SCALES)]
    a = hard_values(random, size, scale)
    error = 10.0 ** random.integers(-9, 1, size) if seed % 3 else random.choice([1e-3, 5e-3], size)
    b = a * (1 + error * random.choice([-1, 0, 1], size))
    b[random.random(size) < 0.02] *= -1
    with np.errstate(over="ignore"):
        a, b = a.astype(dtype), b.astype(dtype)
    if seed % 4 == 3:
        for side in (a, b):
            side[random.random(size) < 0.01] = random.choice([NAN, INF, -INF])
        both = random.random(size) < 0.01
        a[both] = b[both] = random.choice([NAN, INF])
    tolerance = [Tolerance(), Tolerance(1e-3), Tolerance(0.5, scale), Tolerance(3, 0)][seed % 4]
    assert_right(a, b, tolerance)
    assert_right(a, a.copy(), tolerance)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("other", [*INTEGERS, np.bool_, np.float16, np.float32, np.float64, ">i8"])
@pytest.mark.parametrize("dtype", [*INTEGERS, np.bool_, ">u8"])
def test_random_integers_give_the_numbers_of_python_integers(dtype, other, seed):
    """Integers of any two dtypes, or beside floats, are compared by value without loss."""
    random = np.random.default_rng(seed)
    size = [1, 600, 9000, 17, 2000, 513][seed]

    def values(dtype):
        if np.dtype(dtype).kind in "bf":
            return random.integers(-3, 300, size).astype(dtype)
        native = np.dtype(dtype).newbyteorder("=")
        limits = np.iinfo(native)
        low, high = (limits.min, limits.max) if seed % 2 else (max(limits.min, -9), 99)
        return random.integers(low, high, size, dtype=native, endpoint=True).astype(dtype)

    a, b = values(dtype), values(other)
    assert_right(a, b, Tolerance(0.01, 2))
    if np.dtype(dtype) == np.dtype(other):
        assert_right(a, np.where(random.random(size) < 0.9, a, b).astype(dtype))


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
@pytest.mark.parametrize(
    "pair",
    [
        lambda top: ([top, 1], [-top, 1]),
        lambda top: ([top, 0], [top, -0.0]),
        lambda top: ([top, 3], [0, 3]),
        lambda top: ([0, 0], [top, 1]),
        lambda top: ([top, -top], [top / 2, -top / 2]),
    ],
)
@pytest.mark.parametrize("repeat", [1, BLOCK])
def test_the_edges_of_a_dtype(dtype, pair, repeat):
    """The largest, the smallest and denormal numbers give no false numbers."""
    limits = np.finfo(dtype)
    for edge in (limits.max, limits.tiny, limits.smallest_subnormal):
        a, b = (np.tile(np.array(side, dtype), repeat) for side in pair(edge))
        assert_right(a, b)


@pytest.mark.parametrize("index", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, -1])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8", "u1", "?", ">i4", "c8"])
def test_one_different_element_is_found_anywhere(dtype, index):
    """One element of an otherwise equal pair is seen in numbers and in bytes."""
    a = np.ones(2 * BLOCK + 3, dtype)
    b = a.copy()
    b[index] = 0
    metrics = compare(a, b).metrics
    assert metrics.first_mismatch == index % a.size
    assert (metrics.max_abs_err, metrics.max_rel_err, metrics.euclidean) == (1, 1, 1)
    assert metrics.equal_percent == metrics.within_1e2_percent == 100 * (a.size - 1) / a.size
    assert not same_bytes(a, b)
    assert same_bytes(a, a.copy())


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


@pytest.mark.parametrize("shape", [(3, 5), (7, BLOCK + 5), (BLOCK + 5, 7), (4, 1, 300, 130)])
@pytest.mark.parametrize("orders", ["FF", "FC", "CF", "SS", "SC"])
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
    plain = compare(a, b)
    x, y = laid_out(a, orders[0]), laid_out(b, orders[1])
    compared = compare(x, y)
    assert compared.metrics.first_mismatch == plain.metrics.first_mismatch
    assert compared.metrics.max_abs_err == plain.metrics.max_abs_err
    assert compared.metrics.equal_percent == plain.metrics.equal_percent
    assert compared.metrics.cosine == pytest.approx(plain.metrics.cosine, rel=1e-9)
    assert not same_bytes(x, y)
    assert same_bytes(x, laid_out(a, orders[1]))


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
    alone = [compare(a, b).metrics for a, b in pairs]
    with ThreadPoolExecutor(4) as pool:
        assert [c.metrics for c in pool.map(lambda pair: compare(*pair), pairs)] == alone


@pytest.mark.parametrize("dtype", ["S4", "U2", "V3", "M8[s]"])
def test_what_is_no_number_is_refused(dtype):
    """Texts, raw bytes and dates are not compared as numbers."""
    with pytest.raises(TypeError, match="cannot be compared"):
        compare(np.zeros(2, dtype), np.zeros(2, dtype))


@pytest.mark.parametrize("size", [8193, 10_000, BLOCK, BLOCK + 1, 2 * BLOCK + 2049, 400_001])
@pytest.mark.parametrize("change", ["noise", "near a bound", "some", "all", "none", "nan", "huge"])
def test_both_arithmetics_agree(monkeypatch, size, change):
    """With and without the compiled library, every number is the same to its last bit."""
    if block_sums.FUNCTION is None:
        pytest.skip("there is nothing to compare with")
    random = np.random.default_rng(size)
    a = random.normal(size=size).astype(np.float32)
    changed = {
        "noise": a * random.normal(1, 0.01, size),
        "near a bound": a * (1 - 5e-3),
        "some": np.where(random.random(size) < 0.7, a, a * random.normal(1, 0.01, size)),
        "all": random.normal(size=size),
        "none": a,
        "nan": np.where(random.random(size) < 1e-4, np.nan, a + 1),
        "huge": np.where(np.arange(size) == size // 2, 3e38, a),
    }
    b = changed[change].astype(np.float32)
    if change == "huge":
        a[size // 2] = -3e38
    found = compare(a, b, Tolerance(rtol=0.01))
    monkeypatch.setattr(block_sums, "FUNCTION", None)
    assert repr(compare(a, b, Tolerance(rtol=0.01))) == repr(found)


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
            sums = [float(lane) for lane in lanes]
            while len(sums) > 1:
                half = len(sums) // 2
                sums = [p + q for p, q in zip(sums[:half], sums[half:])]
            expected += sums[0]
        assert dots((x, x)) == [expected]
