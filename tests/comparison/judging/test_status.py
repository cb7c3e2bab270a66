"""One pair of records → one status; where several would fit, the first of the design's order."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mindrlhf_msprobe.capture.tensors.summary import summarise, to_host
from mindrlhf_msprobe.common.message import as_message
from mindrlhf_msprobe.comparison.judging.metrics.blocks import Tolerance
from mindrlhf_msprobe.comparison.judging.status import compare_records, text_difference
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

    def make(values, dtype=np.float32, **changes):
        array = np.asarray(values, dtype)
        path = Path(tmp_path / f"{next(numbers)}.npy")
        save_npy(path, array)
        leaf = replace(summarise(to_host(array)), **changes)
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


def test_equal_tensors_are_identical(stored):
    """Tensors with the same bytes are identical."""
    assert status(stored([1, 2]), stored([1, 2])) is Status.IDENTICAL


def test_equal_values_with_other_bytes_are_identical_with_the_tensors_at_hand(stored):
    """−0.0 against 0.0 and NaNs of other payloads are the same values, so identical."""
    payload = np.uint32([0x7FC00001]).view(np.float32)
    assert status(stored([-0.0]), stored([0.0])) is Status.IDENTICAL
    assert status(stored([NAN]), stored(payload)) is Status.IDENTICAL


def test_other_values_are_different(stored):
    """One element that differs makes the pair different, with its metrics."""
    result, metrics, _ = compare_records(stored([1, 2]), stored([1, 2.5]), Tolerance())
    assert result is Status.DIFFERENT
    assert metrics is not None
    assert metrics.max_abs_err == 0.5


def test_values_within_the_tolerance_are_within_it_and_not_identical(stored):
    """With a tolerance, close values are within it; equal ones stay identical."""
    assert status(stored([1.0]), stored([1.05]), LOOSE) is Status.WITHIN_TOLERANCE
    assert status(stored([1.0]), stored([1.5]), LOOSE) is Status.DIFFERENT
    assert status(stored([1.0]), stored([1.0]), LOOSE) is Status.IDENTICAL


def test_a_one_sided_nan_is_non_finite_even_within_a_tolerance(stored):
    """NaN or infinity on one side only is non_finite, with tensors and with statistics."""
    for make in (stored, summary, bare):
        for bad in (NAN, INF, -INF):
            a, b = make([1, bad]), make([1, 2])
            assert status(a, b) is Status.NON_FINITE
            assert status(b, a, Tolerance(atol=1e9)) is Status.NON_FINITE


@pytest.mark.parametrize("tolerance", [Tolerance(1e-9), LOOSE, Tolerance(0, 1e9), Tolerance(5, 5)])
@pytest.mark.parametrize(
    ("a", "b"), [([INF, 1], [-INF, 1]), ([INF, 1], [NAN, 1]), ([INF, -INF], [NAN, INF])]
)
def test_no_tolerance_takes_one_infinity_for_another(stored, a, b, tolerance):
    """abs(inf − −inf) <= rtol · inf holds in floats; with statistics and numbers as well."""
    for make in (stored, summary, bare):
        assert status(make(a), make(b), tolerance) is Status.DIFFERENT
    assert status(scalar(a[0]), scalar(b[0]), tolerance) is Status.DIFFERENT


@pytest.mark.parametrize("tolerance", [Tolerance(), LOOSE, Tolerance(9, 9)])
def test_beside_nan_and_infinity_statistics_never_pass_by_a_tolerance(tolerance):
    """Equal fingerprints prove all, unlike ones a difference; without them nothing is known."""
    for bad in ([NAN], [INF, -INF], [NAN, INF]):
        a, b = [*bad, 1, 2, 3], [*bad, 1, 2, 300]
        assert status(summary(a), summary(a), tolerance) is Status.IDENTICAL
        assert status(summary(a), summary(b), tolerance) is Status.DIFFERENT
        assert status(bare(a), bare(b), tolerance) is Status.UNREADABLE
        assert "not known" in note(bare(a), bare(b), tolerance)
    assert status(summary([INF, 5]), summary([3, INF]), tolerance) is Status.DIFFERENT
    assert status(bare([INF, 5]), bare([INF, 5.001]), tolerance) is Status.DIFFERENT
    assert status(bare([NAN, NAN]), bare([NAN, NAN]), tolerance) is Status.WITHIN_TOLERANCE
    assert status(bare([INF, 3]), bare([INF, 3]), tolerance) is Status.WITHIN_TOLERANCE


def test_a_rounding_excuses_no_infinity(stored):
    """What a gradient may be off by says nothing about NaN and infinity."""
    for make in (stored, summary, bare):
        for a, b in (([INF, 1], [-INF, 1]), ([NAN, 1], [NAN, 2]), ([INF, 1], [INF, 2])):
            found = status(make(a, rounding=0.5), make(b))
            assert not found.agrees


def test_statistics_that_are_no_numbers_prove_nothing():
    """Texts in the place of statistics, and a value that a dump lacks, are not equal ones."""
    words = {"max": "N/A", "min": "N/A", "mean": "N/A", "norm": "N/A"}
    assert status(bare([1.0], **words), bare([1.0], **words)) is Status.UNREADABLE
    unknown = Record("x", "input", "0", leaf_from_json({"type": "float", "value": None}))
    assert not status(unknown, unknown).agrees


def test_a_non_finite_pair_says_which_side(stored):
    """The note names the side, and how many elements, where that is known."""
    assert note(stored([1, 2, 3]), stored([1, NAN, INF])) == "in B only: 1 NaN and 1 Inf"
    assert note(bare([1, NAN, NAN]), bare([1, 2, 3])) == "in A only: 2 NaN"
    assert note(stored([1, NAN]), stored([NAN, 1])) == "in A: 1 NaN; in B: 1 NaN"
    assert note(scalar(1.0), scalar(INF)) == "in B only: 1.0 against inf"


def test_infinities_of_both_signs_are_no_nan_where_nothing_was_counted():
    """Their mean is NaN all the same; and of other extremes it tells of a NaN."""
    uncounted = {"nan_count": None, "inf_count": None, "mean": NAN, "norm": None}
    finite = bare([1.0, 2.0])
    assert note(bare([INF, -INF], **uncounted), finite) == "in A only: 1 Inf"
    assert note(bare([1.0, 2.0], **uncounted), finite) == "in A only: 1 NaN"


def test_infinity_against_nan_is_different(stored):
    """Where both sides are not finite but not the same, they are different."""
    for make in (stored, summary, bare):
        assert status(make([INF]), make([NAN])) is Status.DIFFERENT


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


def test_another_dtype_comes_before_another_shape(stored):
    """Where dtype and shape differ, the dtype is named."""
    a, b = stored([1, NAN], np.float16), stored([1.0])
    assert status(a, b) is Status.DTYPE_MISMATCH
    assert note(a, b) == "Float16 against Float32"


def test_another_shape_comes_before_non_finite_elements(stored):
    """Where the shapes differ nothing is cut to fit, and the shape is named."""
    for make in (stored, summary, bare):
        assert status(make([1, NAN]), make([1.0])) is Status.SHAPE_MISMATCH
        assert status(make([[1, 2]]), make([1, 2])) is Status.SHAPE_MISMATCH
        assert status(make([1, 2]), make([1.0]), LOOSE) is Status.SHAPE_MISMATCH
    assert note(stored([[1, 2]]), stored([1, 2])) == "[1, 2] against [2]"


def test_non_finite_comes_before_different(stored):
    """A pair that also differs elsewhere is non_finite."""
    assert status(stored([NAN, 1]), stored([3, 2])) is Status.NON_FINITE


def test_unlike_dtypes_mismatch_without_and_count_by_value_with_a_tolerance(stored):
    """float16 and float32 of one value: another dtype, unless a tolerance is given."""
    a, b = stored([1.5], np.float16), stored([1.5], np.float32)
    assert status(a, b) is Status.DTYPE_MISMATCH
    assert status(a, b, LOOSE) is Status.IDENTICAL
    assert note(a, b, LOOSE) == "same values, as Float16 and as Float32"
    assert status(stored([2], np.int64), stored([2.1], np.float64), LOOSE) is (
        Status.WITHIN_TOLERANCE
    )


def test_bfloat16_is_another_dtype_than_float32(stored):
    """bfloat16 is stored as float32, but its dtype stays known."""
    a, b = stored([1.5], dtype=np.float32), stored([1.5])
    a = replace(a, leaf=replace(a.leaf, dtype="BFloat16"))
    assert status(a, b) is Status.DTYPE_MISMATCH


def test_the_same_bytes_in_another_dtype_are_not_the_same_value(stored):
    """Equal hashes over the bytes alone do not make 1 (int32) equal 1.4e-45 (float32)."""
    one = stored([1], np.int32, fingerprint="crc32:00000001")
    tiny = stored(np.int32([1]).view(np.float32), fingerprint="crc32:00000001")
    assert status(one, tiny, Tolerance(rtol=1e-3)) is Status.DIFFERENT


# Statistics only.


def test_statistics_alone_never_prove_identity():
    """Equal statistics without a fingerprint are within tolerance, and the note says why."""
    a, b = bare([1, 2, 3]), bare([3, 2, 1])
    assert status(a, b) is Status.WITHIN_TOLERANCE
    assert "statistics" in note(a, b)
    assert status(bare([1, 2, 3]), bare([1, 2, 4])) is Status.DIFFERENT


def test_equal_fingerprints_prove_identity():
    """The same fingerprint is the same bytes, dtype and shape."""
    assert status(summary([1, 2, 3]), summary([1, 2, 3])) is Status.IDENTICAL


def test_a_fingerprint_sees_what_statistics_cannot():
    """A permuted tensor has equal statistics and another fingerprint: it is different."""
    assert status(summary([1, 2, 3]), summary([3, 2, 1])) is Status.DIFFERENT
    assert "statistics are equal" in note(summary([1, 2, 3]), summary([3, 2, 1]))


def test_fingerprints_of_unlike_algorithms_are_never_compared():
    """Another algorithm's fingerprint says nothing: only the statistics count."""
    a, b = summary([1, 2, 3]), summary([1, 2, 3], fingerprint="crc32:01234567")
    assert status(a, b) is Status.WITHIN_TOLERANCE
    assert status(summary([1, 2, 3]), bare([1, 2, 3])) is Status.WITHIN_TOLERANCE
    assert status(a, summary([1, 2, 4], fingerprint="crc32:01234567")) is Status.DIFFERENT


def test_with_a_tolerance_close_statistics_are_within_it():
    """Statistics within the tolerance count as such even where the bytes are known to differ."""
    a, b = summary([1, 2, 3]), summary([1, 2, 3.001])
    assert status(a, b) is Status.DIFFERENT
    assert status(a, b, Tolerance(rtol=0.01)) is Status.WITHIN_TOLERANCE
    assert "bytes differ" in note(a, b, Tolerance(rtol=0.01))
    assert status(a, summary([1, 2, 4]), Tolerance(rtol=0.01)) is Status.DIFFERENT


@pytest.mark.parametrize(
    ("a", "b", "dtype"),
    [
        ([True, False, False], [False, True, True], np.bool_),
        ([11, 12, 13], [13, 12, 11], np.int32),
        ([11, 12, 13], [13, 12, 11], np.uint8),
    ],
)
def test_masks_and_tokens_with_other_bytes_are_different_under_a_small_tolerance(a, b, dtype):
    """Whole numbers whose bytes differ are at least 1 apart, whatever their statistics say."""
    assert status(summary(a, dtype), summary(b, dtype), Tolerance(1e-3, 1e-3)) is Status.DIFFERENT


def test_unlike_fingerprints_without_statistics_are_different():
    """Bytes that are known to differ are not within a tolerance that could not be checked."""
    nothing = {"max": None, "min": None, "mean": None, "norm": None}
    assert status(summary([1.0], **nothing), summary([2.0], **nothing), LOOSE) is Status.DIFFERENT


def test_nothing_known_about_the_elements_is_unreadable():
    """A pair without fingerprints and statistics was not compared, so it cannot pass."""
    nothing = {"max": None, "min": None, "mean": None, "norm": None}
    assert status(bare([1.0], **nothing), bare([1.0], **nothing)) is Status.UNREADABLE


def test_a_statistic_that_only_one_side_has_is_not_equal():
    """Equal statistics mean all of them."""
    assert status(bare([1.0]), bare([1.0], norm=None)) is Status.DIFFERENT


@pytest.mark.parametrize("tolerance", [Tolerance(), LOOSE])
def test_empty_tensors_are_identical(stored, tolerance):
    """There is nothing in which two empty tensors of one shape and dtype could differ."""
    for make in (stored, summary, bare):
        a, b = make(np.empty((0, 3))), make(np.empty((0, 3)))
        assert status(a, b, tolerance) is Status.IDENTICAL


def test_empty_tensors_of_unlike_dtypes_agree_under_a_tolerance():
    """By value, two empty tensors agree."""
    a, b = bare(np.empty(0), np.float16), bare(np.empty(0), np.float32)
    assert status(a, b) is Status.DTYPE_MISMATCH
    assert status(a, b, LOOSE).agrees


def test_equal_fingerprints_with_unlike_extremes_are_not_the_same():
    """A fingerprint that was copied, or a 32-bit one that collides, does not hide other values."""
    for bad in ({"max": 5.0}, {"min": 0.5}):
        assert status(summary([1, 2, 3]), summary([1, 2, 3], **bad)) is Status.DIFFERENT


# Files that do not hold what was recorded.


def test_a_file_changed_after_it_was_recorded_is_different(stored):
    """The elements count, not the fingerprint that was taken of others."""
    a, b = stored([1, 2]), stored([1, 2])
    save_npy(b.file, np.float32([1, 3]))
    assert status(a, b) is Status.DIFFERENT
    assert "changed after it was recorded" in note(a, b)


def test_a_missing_file_is_unreadable_although_the_fingerprints_are_equal(stored):
    """What the journal promises must be there: equal fingerprints do not stand in for a file."""
    a, b = stored([1, 2]), stored([1, 2])
    b.file.unlink()
    assert status(a, b) is Status.UNREADABLE
    assert "missing" in note(a, b)


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


@pytest.mark.parametrize("value", [None, True, 0, 3, 1.5, NAN, INF, "text", "NaN", 10**400])
def test_equal_scalars_are_identical(value):
    """The same Python value is identical, NaN included."""
    assert status(scalar(value), scalar(value)) is Status.IDENTICAL


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (1, 2, Status.DIFFERENT),
        (1.0, 1.5, Status.DIFFERENT),
        ("a", "b", Status.DIFFERENT),
        (1.0, NAN, Status.NON_FINITE),
        (1.0, INF, Status.NON_FINITE),
        (NAN, INF, Status.DIFFERENT),
        (INF, -INF, Status.DIFFERENT),
        (1, True, Status.DTYPE_MISMATCH),
        (1, 1.0, Status.DTYPE_MISMATCH),
        (None, 0, Status.DTYPE_MISMATCH),
        (None, "", Status.DTYPE_MISMATCH),
        (10**400, 10**401, Status.DIFFERENT),
        (10**400, 1, Status.DIFFERENT),
    ],
)
def test_scalars_that_are_not_equal(a, b, expected):
    """Python values are told apart by their type, then by their value."""
    assert status(scalar(a), scalar(b)) is expected
    assert status(scalar(b), scalar(a)) is expected


def test_scalars_under_a_tolerance():
    """Numbers count by value under a tolerance; what is no number still has to be equal."""
    assert status(scalar(1.0), scalar(1.05), LOOSE) is Status.WITHIN_TOLERANCE
    assert status(scalar(1), scalar(1.0), LOOSE) is Status.IDENTICAL
    assert status(scalar(10**400), scalar(10**400 + 1), LOOSE) is not Status.IDENTICAL
    assert not status(scalar(None), scalar(0), LOOSE).agrees
    assert not status(scalar("a"), scalar("b"), LOOSE).agrees


def test_a_scalar_against_a_tensor_is_another_dtype(stored):
    """A Python number, or None, where the other run has a tensor is never the same."""
    for value in (1.0, None):
        for tolerance in (Tolerance(), LOOSE):
            assert status(scalar(value), stored(1.0), tolerance) is Status.DTYPE_MISMATCH
            assert status(stored(1.0), scalar(value), tolerance) is Status.DTYPE_MISMATCH


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


def test_a_tolerance_does_not_apply_to_texts(stored):
    """Texts are the same or not."""
    assert status(text(stored, "a"), text(stored, "b"), Tolerance(atol=5)) is Status.DIFFERENT


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
    status, metrics, why = in_words(stored([1.0, INF]), stored([1.0, other]))
    assert status is Status.DIFFERENT
    assert metrics.max_abs_err == INF
    assert "infinit" in why
