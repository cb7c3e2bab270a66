"""One pair of records → one status; where several would fit, the first of the design's order."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mindrlhf_msprobe.capture.tensors.summary import summarise, to_host
from mindrlhf_msprobe.common.message import as_message
from mindrlhf_msprobe.comparison.judging.status import compare_records, text_difference
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance
from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.report.messages import text_of, texts_of
from mindrlhf_msprobe.storage.arrays.npy import save_npy
from mindrlhf_msprobe.storage.leaves import Leaf, leaf_from_json
from mindrlhf_msprobe.storage.records import Record

NAN, INF = math.nan, math.inf
LOOSE = Tolerance(rtol=0.1)


@pytest.fixture
def stored(tmp_path):
    """Return a function that makes a record whose elements lie in a file."""
    numbers = iter(range(1000))

    def make(values, dtype=np.float32, *, dtype_name=None, **changes):
        array = np.asarray(values, dtype)
        path = Path(tmp_path / f"{next(numbers)}.npy")
        save_npy(path, array)
        leaf = replace(summarise(to_host(array)), **changes)
        leaf = replace(leaf, dtype=dtype_name or leaf.dtype)
        return Record("x", "output", "0", leaf, path)

    return make


def summary(values, dtype=np.float32, **changes):
    """Return a record of which only statistics and, unless taken away, a fingerprint are known."""
    leaf = replace(summarise(to_host(np.asarray(values, dtype))), **changes)
    return Record("x", "output", "0", leaf)


def bare(values, dtype=np.float32, **changes):
    """Return a record of which only statistics are known."""
    return summary(values, dtype, fingerprint=None, **changes)


def scalar(value, kind=None):
    return Record("x", "input", "0", Leaf(kind or type(value).__name__, value=value))


def test_no_gradient_is_a_gradient_of_zeros_and_of_nothing_else():
    """Where one run has none and the other some, that is missing, not of another dtype."""
    for name, zeros, ones in (
        ("Cell.a.Dense.backward.0.input.0", (Status.WITHIN_TOLERANCE,) * 2, None),
        ("Cell.a.Dense.parameters_grad.0.weight", (Status.WITHIN_TOLERANCE,) * 2, None),
        ("Cell.a.Dense.forward.0.input.0", *[(Status.DTYPE_MISMATCH,) * 2] * 2),
    ):
        none = Record(name, "input", "0", Leaf("NoneType"))
        given = [replace(summary(values), name=name) for values in ([0, 0], [0, 1])]
        assert (status(none, given[0]), status(given[0], none)) == zeros
        wanted = ones or (Status.ONLY_IN_B, Status.ONLY_IN_A)
        assert (status(none, given[1]), status(given[1], none)) == wanted


def test_a_gradient_of_zeros_beside_nan_is_not_none():
    """msprobe's extremes on CPU skip NaN; its mean tells."""
    name = "Cell.a.Dense.backward.0.input.0"
    none = Record(name, "input", "0", Leaf("NoneType"))
    hidden = replace(bare([0, NAN], max=0.0, min=0.0, nan_count=None, inf_count=None), name=name)
    assert not status(none, hidden).agrees


@pytest.mark.parametrize("kind", ["Mask", "NoneType", "int"])
def test_a_value_of_which_only_the_type_is_known_is_never_the_same(kind):
    """Beside a value that is known, and beside another one of the type."""
    unknown = Record("loss", "data", "", Leaf(kind, opaque=True))
    known = Record("loss", "data", "", Leaf(kind))
    assert (status(unknown, known), status(known, unknown)) == (Status.DTYPE_MISMATCH,) * 2
    assert status(unknown, unknown) is Status.UNREADABLE


def status(a, b, tolerance=None):
    return compare_records(a, b, tolerance or Tolerance())[0]


def note(a, b, tolerance=None):
    return in_words(a, b, tolerance)[2]


def in_words(a, b, tolerance=None):
    """Return status, metrics and what the notes say."""
    status, metrics, notes = compare_records(a, b, tolerance or Tolerance())
    return status, metrics, texts_of(notes, "en")


def of(values, dtype=np.float32, **changes):
    """Return what makes a record of these values."""
    return lambda make: make(values, dtype, **changes)


ANY = "stored", "summary", "bare"
NONE, WIDE = Tolerance(), Tolerance(5, 1e9)
SAME, WITHIN, DIFFERENT = Status.IDENTICAL, Status.WITHIN_TOLERANCE, Status.DIFFERENT
DTYPE, SHAPE, UNREADABLE = Status.DTYPE_MISMATCH, Status.SHAPE_MISMATCH, Status.UNREADABLE
NON_FINITE = Status.NON_FINITE
NOTHING = {"max": None, "min": None, "mean": None, "norm": None}
WORDS = dict.fromkeys(NOTHING, "N/A")
UNCOUNTED = {"nan_count": None, "inf_count": None, "mean": NAN, "norm": None}
PAYLOAD = np.uint32([0x7FC00001]).view(np.float32)
TINY = np.int32([1]).view(np.float32)
EMPTY = np.empty((0, 3))
NO_NUMBERS = [[NAN, 1, 2, 3], [NAN, 1, 2, 300]], [[INF, -INF, 1, 2], [INF, -INF, 1, 9]]


@pytest.mark.parametrize(
    ("made", "a", "b", "tolerance", "expected", "said"),
    [
        ("stored", of([NAN]), of(PAYLOAD), NONE, SAME, ""),
        # What is not finite; every pair of numbers is in test_oracle.py.
        *((ANY, of([1, bad]), of([1, 2]), NONE, NON_FINITE, "in A only") for bad in (NAN, INF)),
        *((ANY, of([1, bad]), of([1, 2]), WIDE, NON_FINITE, "") for bad in (NAN, INF, -INF)),
        *(
            ("bare", of(a), of(b), tolerance, UNREADABLE, "not known")
            for a, b in NO_NUMBERS
            for tolerance in (NONE, WIDE)
        ),
        (
            "stored",
            of([1, 2, 3]),
            of([1, NAN, INF]),
            NONE,
            NON_FINITE,
            "in B only: 1 NaN and 1 Inf",
        ),
        ("bare", of([1, NAN, NAN]), of([1, 2, 3]), NONE, NON_FINITE, "in A only: 2 NaN"),
        ("stored", of([1, NAN]), of([NAN, 1]), NONE, NON_FINITE, "in A: 1 NaN; in B: 1 NaN"),
        # Infinities of both signs have a mean that is NaN; of other extremes it tells of a NaN.
        ("bare", of([INF, -INF], **UNCOUNTED), of([1, 2]), NONE, NON_FINITE, "in A only: 1 Inf"),
        ("bare", of([1, 2], **UNCOUNTED), of([1, 2]), NONE, NON_FINITE, "in A only: 1 NaN"),
        # The order: each pair fits its own status and every later one.
        ("stored", of([1, NAN], np.float16), of([1.0]), NONE, DTYPE, "Float16 against Float32"),
        (ANY, of([1, NAN]), of([1.0]), NONE, SHAPE, ""),
        (ANY, of([[1, 2]]), of([1, 2]), NONE, SHAPE, "[1, 2] against [2]"),
        (ANY, of([1, 2]), of([1.0]), LOOSE, SHAPE, ""),
        ("stored", of([NAN, 1]), of([3, 2]), NONE, NON_FINITE, ""),
        # Unlike dtypes count by value with a tolerance alone.
        ("stored", of([1.5], np.float16), of([1.5]), NONE, DTYPE, ""),
        ("stored", of([1.5], np.float16), of([1.5]), LOOSE, SAME, "as Float16 and as Float32"),
        ("stored", of([2], np.int64), of([2.1], np.float64), LOOSE, WITHIN, ""),
        ("stored", of([1.5], dtype_name="BFloat16"), of([1.5]), NONE, DTYPE, ""),
        # Equal hashes over the bytes alone do not make 1 (int32) equal 1.4e-45 (float32).
        (
            *("stored", of([1], np.int32, fingerprint="crc32:1"), of(TINY, fingerprint="crc32:1")),
            *(Tolerance(rtol=1e-3), DIFFERENT, ""),
        ),
        # Statistics prove identity only beside a fingerprint of the same algorithm.
        ("bare", of([1, 2, 3]), of([3, 2, 1]), NONE, WITHIN, "statistics"),
        ("bare", of([1, 2, 3]), of([1, 2, 4]), NONE, DIFFERENT, ""),
        ("summary", of([1, 2, 3]), of([1, 2, 3]), NONE, SAME, ""),
        ("summary", of([1, 2, 3]), of([3, 2, 1]), NONE, DIFFERENT, "statistics are equal"),
        ("summary", of([1, 2, 3]), of([1, 2, 3], fingerprint="crc32:0"), NONE, WITHIN, ""),
        ("summary", of([1, 2, 3]), of([1, 2, 4], fingerprint="crc32:0"), NONE, DIFFERENT, ""),
        ("summary", of([1, 2, 3]), of([1, 2, 3], fingerprint=None), NONE, WITHIN, ""),
        ("summary", of([1, 2, 3]), of([1, 2, 3.001]), NONE, DIFFERENT, ""),
        ("summary", of([1, 2, 3]), of([1, 2, 3.001]), Tolerance(0.01), WITHIN, "bytes differ"),
        ("summary", of([1, 2, 3]), of([1, 2, 4]), Tolerance(0.01), DIFFERENT, ""),
        # Whole numbers whose bytes differ are at least 1 apart.
        *(
            ("summary", of(a, dtype), of(b, dtype), Tolerance(1e-3, 1e-3), DIFFERENT, "")
            for a, b, dtype in (
                ([True, False, False], [False, True, True], np.bool_),
                ([11, 12, 13], [13, 12, 11], np.int32),
                ([11, 12, 13], [13, 12, 11], np.uint8),
            )
        ),
        # What is not known cannot pass.
        ("summary", of([1.0], **NOTHING), of([2.0], **NOTHING), LOOSE, DIFFERENT, ""),
        ("bare", of([1.0], **NOTHING), of([1.0], **NOTHING), NONE, UNREADABLE, ""),
        ("bare", of([1.0], **WORDS), of([1.0], **WORDS), NONE, UNREADABLE, ""),
        ("bare", of([1.0]), of([1.0], norm=None), NONE, DIFFERENT, ""),
        # A fingerprint that was copied, or one that collides, hides no other values.
        ("summary", of([1, 2, 3]), of([1, 2, 3], max=5.0), NONE, DIFFERENT, ""),
        ("summary", of([1, 2, 3]), of([1, 2, 3], min=0.5), NONE, DIFFERENT, ""),
        # There is nothing in which two empty tensors could differ.
        (ANY, of(EMPTY), of(EMPTY), NONE, SAME, ""),
        (ANY, of(EMPTY), of(EMPTY), LOOSE, SAME, ""),
        ("bare", of(EMPTY, np.float16), of(EMPTY), NONE, DTYPE, ""),
        ("bare", of(EMPTY, np.float16), of(EMPTY), LOOSE, SAME, ""),
    ],
)
def test_the_status_of_two_tensors(stored, made, a, b, tolerance, expected, said):
    """With files, with fingerprints or with statistics alone; in either order."""
    makers = {"stored": stored, "summary": summary, "bare": bare}
    for name in (made,) if isinstance(made, str) else made:
        pair = a(makers[name]), b(makers[name])
        found, _, why = in_words(*pair, tolerance)
        assert (found, status(*reversed(pair), tolerance)) == (expected, expected), name
        assert said in why


@pytest.mark.parametrize(
    ("a", "b", "tolerance", "expected"),
    [
        *((value, value, NONE, SAME) for value in (None, "text", "NaN")),
        ("a", "b", NONE, DIFFERENT),
        ("a", "b", LOOSE, DIFFERENT),
        (None, 0, NONE, DTYPE),
        (None, 0, LOOSE, DIFFERENT),
        (None, "", NONE, DTYPE),
    ],
)
def test_the_status_of_two_python_values(a, b, tolerance, expected):
    """They are told apart by their type, unless a tolerance is given, then by their value.

    Of numbers test_oracle.py has every pair.
    """
    assert status(scalar(a), scalar(b), tolerance) is expected
    assert status(scalar(b), scalar(a), tolerance) is expected


@pytest.mark.parametrize("tolerance", [NONE, LOOSE])
@pytest.mark.parametrize("value", [1.0, None])
def test_a_scalar_against_a_tensor_is_another_dtype(stored, value, tolerance):
    """A Python number, or None, where the other run has a tensor is never the same."""
    assert status(scalar(value), stored(1.0), tolerance) is DTYPE
    assert status(stored(1.0), scalar(value), tolerance) is DTYPE


def test_a_number_that_became_infinite_is_shown():
    """The note of a Python number has both."""
    assert note(scalar(1.0), scalar(INF)) == "in B only: 1.0 against inf"


def test_a_value_that_a_dump_lacks_is_not_an_equal_one():
    """A number of which a file holds none proves nothing."""
    unknown = Record("x", "input", "0", leaf_from_json({"type": "float", "value": None}))
    assert not status(unknown, unknown).agrees


def test_a_rounding_excuses_no_infinity(stored):
    """What a gradient may be off by says nothing about NaN and infinity."""
    for make in (stored, summary, bare):
        for a, b in (([INF, 1], [-INF, 1]), ([NAN, 1], [NAN, 2]), ([INF, 1], [INF, 2])):
            found = status(make(a, rounding=0.5), make(b))
            assert not found.agrees


# The order: each pair fits its own status and every later one.


def test_unreadable_comes_before_all_others(stored):
    """A record with an error is unreadable, whatever else is wrong with the pair."""
    broken = stored([1, 2, NAN], np.float16, why=as_message("the disk was full"))
    assert status(broken, stored([1.0])) is Status.UNREADABLE
    assert status(stored([1.0]), broken) is Status.UNREADABLE
    assert "B: the disk was full" in note(stored([1.0]), broken)


@pytest.mark.parametrize("damage", ["cut", "missing", "other shape", "no header"])
@pytest.mark.parametrize(
    "other",
    [
        lambda make: make([1, 2, 3]),
        lambda make: make([1, 2], np.float16),
        lambda make: make([NAN, 2]),
        lambda make: summary([1, 2]),
        lambda make: scalar(1.0),
        lambda make: replace(make([1, 2], np.uint8), leaf=Leaf("str", "UInt8", (2,), value="ab")),
    ],
)
def test_a_file_that_cannot_be_read_comes_before_another_dtype_or_shape(stored, other, damage):
    """Whatever else is wrong with the pair, the file is looked at first: both sides, any kind."""
    for swapped in (False, True):
        pair = [stored([1, 2]), other(stored)]
        file = Path(pair[0].location)
        if damage == "missing":
            file.unlink()
        elif damage == "other shape":
            save_npy(file, np.float32([1, 2, 3, 4]))
        else:
            content = file.read_bytes()
            file.write_bytes(content[:-3] if damage == "cut" else b"x" * len(content))
        result, _, why = in_words(*(pair[::-1] if swapped else pair))
        assert result is Status.UNREADABLE
        assert why.startswith("B: " if swapped else "A: ")
        assert file.name in why


# Files that do not hold what was recorded.


def test_a_file_changed_after_it_was_recorded_is_different(stored):
    """The elements count, not the fingerprint that was taken of others."""
    a, b = stored([1, 2]), stored([1, 2])
    save_npy(b.file, np.float32([1, 3]))
    assert status(a, b) is Status.DIFFERENT
    assert "changed after it was recorded" in note(a, b)


def test_a_file_of_another_shape_or_dtype_is_unreadable(stored):
    """A file that does not hold what was recorded is not compared in its place."""
    a = stored([1, 2])
    for array in (np.float32([1, 2, 3]), np.float64([1, 2]), np.int32([1, 2])):
        b = stored([1, 2])
        save_npy(b.file, array)
        assert status(a, b) is Status.UNREADABLE, array.dtype


def test_a_file_of_strings_is_unreadable(stored):
    """Arrays of no numbers have no metrics."""
    a, b = (stored([1], dtype=None) for _ in range(2))
    for record in (a, b):
        save_npy(record.file, np.array(["x"]))
    b = replace(b, leaf=replace(b.leaf, fingerprint=None, dtype="Str"))
    a = replace(a, leaf=replace(a.leaf, dtype="Str"))
    assert status(a, b) is Status.UNREADABLE


# Scalars, None and texts.


def test_a_text_called_nan_is_a_text():
    """The text 'NaN' in a file is not the number."""
    content = Leaf("str", value="NaN").to_json()
    assert leaf_from_json(content).value == "NaN"
    assert math.isnan(leaf_from_json(Leaf("float", value=NAN).to_json()).value)


def text(stored, value):
    record = stored(np.frombuffer(value.encode(), np.uint8), np.uint8)
    return replace(record, leaf=replace(record.leaf, type="str", value=value))


def test_texts_are_compared_with_the_place_of_the_first_difference(stored):
    """Texts differ with both sides shown around the first differing character."""
    a, b = text(stored, "What is 2 + 3? It is 5."), text(stored, "What is 2 + 3? It is 6.")
    assert status(a, text(stored, a.leaf.value)) is Status.IDENTICAL
    result, metrics, why = in_words(a, b)
    assert result is Status.DIFFERENT
    assert metrics is not None
    assert "(character 21) on" in why
    assert "It is 5." in why
    assert "It is 6." in why


def test_texts_of_unlike_length_are_different_and_not_of_another_shape(stored):
    """One text that goes on where the other ends differs from its end on."""
    a, b = text(stored, "答案是五"), text(stored, "答案是五。")
    assert status(a, b) is Status.DIFFERENT
    assert "(character 4) on" in note(a, b)


def test_texts_whose_words_are_lost_are_not_the_same(stored):
    """Two texts of unlike length whose JSON lacks the words are not taken for equal."""
    a, b = text(stored, "one"), text(stored, "three")
    a, b = (replace(r, leaf=replace(r.leaf, value=None)) for r in (a, b))
    assert not status(a, b).agrees
    without_files = [replace(r, location=None) for r in (a, b)]
    assert not status(*without_files).agrees


def test_the_words_shown_are_cut_to_a_line():
    """Of long texts only the surroundings of the first difference are shown."""
    a, b = ("x" * 500 + middle + "y" * 500 for middle in "ab")
    shown = text_of(text_difference(a, b), "en")
    assert "(character 500) on" in shown
    assert len(shown) < 200


@pytest.mark.parametrize("other", [-INF, NAN])
def test_infinities_that_differ_are_not_apart_by_nothing(stored, other):
    """Where only infinite elements differ, the largest error is not said to be 0."""
    found, metrics, why = in_words(stored([1.0, INF]), stored([1.0, other]))
    assert found is DIFFERENT
    assert metrics.max_abs_err == INF
    assert "infinit" in why
