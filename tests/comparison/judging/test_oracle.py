"""Every metric and every status against exact fractions, of generated pairs (exactly.py).

The examples are the same in every run. For other and more ones, say how many of each property:

    MSPROBE_EXAMPLES=20000 python -m pytest tests/comparison/judging/test_oracle.py
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from helpers import exactly
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindrlhf_msprobe.capture.tensors.summary import summarise, to_host
from mindrlhf_msprobe.comparison.judging import arrays as metrics
from mindrlhf_msprobe.comparison.judging import sums
from mindrlhf_msprobe.comparison.judging.arrays import compare_arrays
from mindrlhf_msprobe.comparison.judging.status import compare_records
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance
from mindrlhf_msprobe.storage.arrays.npy import bfloat16_bits_to_float32, save_npy
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Record

MORE = int(os.environ.get("MSPROBE_EXAMPLES", "0"))
settings.register_profile(
    "oracle",
    derandomize=not MORE,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
ORACLE = settings.get_profile("oracle")
NAN, INF = math.nan, math.inf

INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i8"]
DTYPES = ["f4", "f4", "f4", "f8", "f8", "f2", "bf16", "?", ">f4", *INTEGERS]
#: what the elements of b are made from those of a by
FACTORS = [1.0, -1.0, 0.0, 0.5, 2.0, 0.999, 1.001, 0.995, 1.005, 0.99, 1.01, 1 + 1e-6, 3.0]


def examples(number):
    return settings(ORACLE, max_examples=MORE or number)


def is_integer(dtype):
    return dtype in ("?", *INTEGERS)


def extremes(dtype):
    """The values at which arithmetic goes wrong, as Python numbers."""
    if dtype == "?":
        return [0, 1]
    if is_integer(dtype):
        limits = np.iinfo(dtype)
        close = [0, 1, 2, 99, 100, 2**31 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63]
        near = [limits.min, limits.min + 1, limits.max, limits.max - 1, *close, -1, -100]
        return [v for v in near if limits.min <= v <= limits.max]
    limits = np.finfo("f4" if dtype == "bf16" else dtype)
    tops = [float(limits.max), float(limits.tiny), float(limits.smallest_subnormal)]
    return [0.0, -0.0, 1.0, 1e-3, 1000.0, NAN, INF, -INF, *tops, *(-v for v in tops), 1e19, 1e-20]


def numbers(dtype):
    """Python numbers of a dtype: ordinary ones, round ones and extremes."""
    special = st.sampled_from(extremes(dtype))
    if dtype == "?":
        return special
    if is_integer(dtype):
        limits = np.iinfo(dtype)
        small = st.integers(max(-3, limits.min), 120)
        return small | special | st.integers(limits.min, limits.max)
    ordinary = st.floats(-10, 10, width=32)
    whole = st.integers(-1000, 1000).map(float)
    return ordinary | whole | special | st.floats(width=64)


def cast(values, dtype):
    """An array of a dtype; bfloat16 as the float32 that stands for it."""
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "bf16":
            bits = np.asarray(values, np.float32).view(np.uint32) >> 16
            return bfloat16_bits_to_float32(bits.astype(np.uint16))
        return np.array(values, np.float64 if np.dtype(dtype).kind == "f" else object).astype(dtype)


@st.composite
def pairs(draw, dtypes=DTYPES, least=0):
    """Two arrays of one dtype and shape whose elements are equal, close, far or unlike."""
    dtype = draw(st.sampled_from(dtypes))
    a = draw(st.lists(numbers(dtype), min_size=least, max_size=12))
    b = [draw(st.just(x) | partner(dtype, x)) for x in a]
    x, y = cast(a, dtype), cast(b, dtype)
    if draw(st.booleans()) and x.dtype.kind == "f" and dtype != "bf16":
        up = np.array([draw(st.sampled_from([-1, 0, 1])) for _ in a], x.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            y = np.where(up == 0, y, np.nextafter(y, up * x.dtype.type(INF))).astype(x.dtype)
    return x, y


def partner(dtype, x):
    """What may stand against x in the other run."""
    if is_integer(dtype):
        limits = (0, 1) if dtype == "?" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        close = st.integers(-2, 2).map(lambda d: min(max(x + d, limits[0]), limits[1]))
        return close | numbers(dtype)
    return st.sampled_from(FACTORS).map(lambda f: x * f) | numbers(dtype)


def tolerances():
    number = st.sampled_from([0.0, 1e-3, 1e-6, 0.01, 0.5, 1.0, 2.0, 1e-300, 1e30, 1e308])
    number = number | st.floats(0, 1e3)
    return st.just(Tolerance()) | st.builds(Tolerance, rtol=number, atol=st.just(0.0) | number)


@pytest.fixture(params=["numpy", "compiled", "float64"])
def arithmetic(request, monkeypatch):
    """Run a property in each way by which float32 is computed, whatever the size."""
    if request.param == "compiled" and sums.FUNCTION is None:
        pytest.skip("there was no C compiler when the package was installed")
    if request.param != "compiled":
        monkeypatch.setattr(sums, "FUNCTION", None)
    if request.param != "float64":
        monkeypatch.setattr(metrics, "SMALL", -1)
    return request.param


def close_to(found, exact, error):
    """Tell whether a float is right to a relative error, or has overflowed as it must."""
    if math.isinf(found):
        return exact > Fraction(2) ** 1023
    return abs(Fraction(found) - exact) <= error * exact + Fraction(2) ** -1074


def in_dtype(array, other):
    """Return an array in another dtype, where that has the same values."""
    if other in (None, "bf16"):
        return array
    with np.errstate(all="ignore"):
        converted = array.astype(other)
    alike = map(exactly.same, exactly.elements(converted), exactly.elements(array))
    return converted if all(alike) else array


OTHERS = st.sampled_from([None, *DTYPES])


@examples(300)
@given(
    pair=pairs(), tolerance=tolerances(), repeat=st.sampled_from([1, 1, 1, 2, 400]), other=OTHERS
)
def test_metrics_are_exact(arithmetic, pair, tolerance, repeat, other):
    """Counts, places, shares and the tolerance are exact; errors and sums to a last few digits.

    Integers of any two dtypes, or beside floats, are compared by value without loss.
    """
    a, b = pair[0], in_dtype(pair[1], other)
    want = exactly.truth(a, b, tolerance)
    found = compare_arrays(np.tile(a, repeat), np.tile(b, repeat), tolerance)
    got, size = found.metrics, want.size * repeat
    assert (found.one_sided, found.unlike) == (want.one_sided, want.unlike)
    assert found.equal == (want.equal == want.size)
    assert found.within == want.within
    assert got.first_mismatch == want.first
    assert (got.nan_a, got.nan_b) == tuple(n * repeat for n in want.nan)
    assert (got.inf_a, got.inf_b) == tuple(n * repeat for n in want.inf)
    counts = (want.equal, *want.shares)
    shares = (got.equal_percent, got.within_1e3_percent, got.within_5e3_percent)
    for count, share in zip(counts, (*shares, got.within_1e2_percent)):
        assert share == (100.0 * (count * repeat) / size if size else 100.0)
    if want.max_abs is None:
        assert got.max_abs_err == (None if size else 0)
        assert got.euclidean == (None if size else 0)
        return
    if isinstance(got.max_abs_err, int):
        assert got.max_abs_err == want.max_abs
    float32 = arithmetic != "float64" and a.dtype.itemsize <= 4
    assert close_to(got.max_abs_err, want.max_abs, Fraction(3, 10**7 if float32 else 10**15))
    assert close_to(got.max_rel_err, want.max_rel, Fraction(3, 10**7 if float32 else 10**14))
    aa, bb, ab, dd = (square * repeat for square in want.squares)
    assert close_to(got.euclidean, exactly.root(dd), Fraction(1, 10**6))
    if found.equal:
        assert got.cosine == 1
    elif aa * bb == 0:
        assert got.cosine is None
    elif got.cosine is None:  # of norms that no float holds
        assert not 1e-300 < exactly.root(aa * bb) < 1e300
    else:
        assert abs(Fraction(got.cosine) - ab / exactly.root(aa * bb)) <= Fraction(1, 10**6)


def described(array, dtype=None, **changes):
    leaf = summarise(to_host(array))
    return replace(leaf, dtype=dtype or leaf.dtype, **changes)


@examples(150)
@given(pair=pairs(least=1), tolerance=tolerances(), other=OTHERS)
def test_the_status_of_tensors_is_exact(tmp_path_factory, pair, tolerance, other):
    """Of stored tensors, of one dtype or of two."""
    a, b = pair[0], in_dtype(pair[1], other)
    directory = tmp_path_factory.getbasetemp()
    records = []
    for name, array in (("a", a), ("b", b)):
        file = directory / f"oracle_{name}.npy"
        save_npy(file, array)
        records.append(Record("x", "output", "0", described(array), str(file)))
    want = exactly.status_of_arrays(a, b, tolerance)
    assert compare_records(*records, tolerance)[0] is want
    assert compare_records(*reversed(records), tolerance)[0] is want


def statistics_of(leaf):
    whole = (leaf.dtype or "").startswith(("Int", "UInt", "Bool"))
    values = (leaf.max, leaf.min, leaf.mean, leaf.norm)
    return exactly.Statistics(values, leaf.nan_count or 0, leaf.inf_count or 0, whole)


def check_statistics(leaves, tolerance, same_bytes):
    size = math.prod(leaves[0].shape)
    want = exactly.status_of_statistics(*map(statistics_of, leaves), size, same_bytes, tolerance)
    records = [Record("x", "output", "0", leaf) for leaf in leaves]
    assert compare_records(*records, tolerance)[0] is want
    assert compare_records(*reversed(records), tolerance)[0] is want


@examples(300)
@given(pair=pairs(), tolerance=tolerances(), fingerprint=st.booleans())
def test_the_status_of_statistics_is_exact(pair, tolerance, fingerprint):
    """Of tensors of which only statistics, with or without a fingerprint, were recorded."""
    changes = {} if fingerprint else {"fingerprint": None}
    leaves = [described(array, **changes) for array in pair]
    same = pair[0].tobytes() == pair[1].tobytes() if fingerprint else None
    check_statistics(leaves, tolerance, same)


@st.composite
def made_up(draw):
    """Two descriptions whose statistics are any numbers at all, or not there."""
    number = st.sampled_from([NAN, INF, -INF, 0.0, 1.0, 1.0005, -1.0, 1e308, -1e308, 1e-320, None])
    values = [draw(number | st.floats()) for _ in range(4)]
    others = [draw(st.just(v) | st.just(v) | number) for v in values]
    counts = [draw(st.sampled_from([0, 0, 1, 2, 6])) for _ in range(2)]
    more = [draw(st.just(n) | st.integers(0, 2)) for n in counts]
    made = [
        Leaf("mindspore.Tensor", "Float32", (6,), *numbers, *found)
        for numbers, found in ((values, counts), (others, more))
    ]
    prints = draw(st.sampled_from([None, False]))
    if prints is not None:
        made = [replace(leaf, fingerprint=f"xxh3_128:{i}") for i, leaf in enumerate(made)]
    return made, prints


@examples(400)
@given(pair=made_up(), tolerance=tolerances())
def test_no_statistics_make_a_pass_of_what_is_not_known(pair, tolerance):
    """Whatever stands in a dump, of whoever made it."""
    leaves, same_bytes = pair
    check_statistics(leaves, tolerance, same_bytes)


python_numbers = (
    st.sampled_from([NAN, INF, -INF, 0, 0.0, -0.0, 1, 1.0, True, 10**400, -(10**400), 2**53 + 1])
    | st.floats()
    | st.integers()
)


@examples(300)
@given(x=python_numbers, y=python_numbers, tolerance=tolerances(), alike=st.booleans())
def test_the_status_of_numbers_is_exact(x, y, tolerance, alike):
    """Of Python's own numbers."""
    y = x if alike else y
    records = [Record("x", "input", "0", Leaf(type(v).__name__, value=v)) for v in (x, y)]
    want = exactly.status_of_numbers(x, y, tolerance)
    assert compare_records(*records, tolerance)[0] is want
    assert compare_records(*reversed(records), tolerance)[0] is want
