"""Sketches: how near their distances are, that they add up, and what of a file is believed."""

from __future__ import annotations

import itertools
import math
import mmap
import random
from dataclasses import replace

import numpy as np
import pytest
import xxhash

from mindrlhf_msprobe.capture.tensors.summary import HostTensor, bytes_of_sketch
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, float32_to_bfloat16_bits
from mindrlhf_msprobe.storage.arrays.sketches import (
    HEAD,
    MOST_OF_A_MASK_ROW,
    SIGNS,
    MaskRoom,
    SketchPlace,
    bytes_of,
    kept_of,
    parts_of,
    read_sketch,
    size_of,
    sketch_of,
)
from mindrlhf_msprobe.storage.leaves import leaf_from_json
from mindrlhf_msprobe.storage.records import Record

DTYPES = ("Float32", "BFloat16", "Float16", "Float64", "Int32", "Bool")
SHAPES = ((5,), (1, 16), (3, 64), (40, 80), (7, 200), (2, 3, 513), (2, 4096), (3, 8205))


@pytest.fixture
def generator():
    """Return what draws numbers."""
    return np.random.default_rng(np.random.randint(1 << 30))


def host(generator, dtype, shape):
    values = generator.standard_normal(shape).astype(np.float32) * 100
    if dtype == "BFloat16":
        return HostTensor("mindspore.Tensor", dtype, float32_to_bfloat16_bits(values))
    return HostTensor("mindspore.Tensor", dtype, values.astype(np.dtype(dtype.lower())))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_compiled_sketch_is_numpys(generator, dtype):
    """The extension and numpy find the same bits, for rows of any length."""
    for shape in SHAPES:
        tensor = host(generator, dtype, shape)
        expected = bytes_of(tensor.array, bfloat16=dtype == "BFloat16")
        assert bytes_of_sketch(tensor).tobytes() == expected.tobytes(), shape


def test_row_fingerprints_are_xxh3_64(generator):
    """A row's fingerprint is xxh3_64 of its bytes, whatever its length."""
    for length in (*range(1, 300), 1023, 1024, 1025, 2113):
        rows = generator.integers(0, 256, (3, length), np.uint8)
        made = bytes_of_sketch(HostTensor("numpy.ndarray", "UInt8", rows))
        found = parts_of(made, rows.shape, 0).fingerprints
        assert found.tolist() == [xxhash.xxh3_64_intdigest(row) for row in rows]


def test_numbers_that_are_not_finite_stay_in_their_block(generator):
    """A NaN or an infinity makes its block's sum not finite, and no other; subnormals count."""
    for dtype in ("Float32", "Float16", "BFloat16"):
        tensor = host(generator, dtype, (2, 192))
        bits = tensor.array.view(np.uint16 if dtype != "Float32" else np.uint32)
        bits[0, 70] = {"Float32": 0x7FC00000, "Float16": 0x7E00, "BFloat16": 0x7FC0}[dtype]
        bits[1, 130] = {"Float32": 0xFF800000, "Float16": 0xFC00, "BFloat16": 0xFF80}[dtype]
        sums = parts_of(bytes_of_sketch(tensor), (2, 192), 64).sums
        assert np.isnan(sums[0, 1])
        assert np.isinf(sums[1, 2])
        assert np.isfinite(sums).sum() == 4
    tiny = np.full((1, 16), 2.0**-24, np.float16)
    sums = parts_of(bytes_of_sketch(HostTensor("numpy.ndarray", "Float16", tiny)), (1, 16), 64).sums
    assert sums[0, 0] == SIGNS[:16].sum() * 2.0**-24


def test_sketches_are_linear(generator):
    """Of integers, differences and partial sums are exact."""
    a, b = (generator.integers(-99, 99, (6, 1000)).astype(np.float32) for _ in range(2))
    difference = sketch_of(a).sums - sketch_of(b).sums
    assert np.array_equal(difference, sketch_of(a - b).sums)
    assert np.array_equal(sketch_of(a).sums + sketch_of(b).sums, sketch_of(a + b).sums)


def test_columns_side_by_side_have_their_sketches_side_by_side(generator):
    """A fused weight that is cut at the borders of blocks is sketched as its parts are."""
    parts = [generator.standard_normal((4, n)).astype(np.float32) for n in (256, 128, 64)]
    together = sketch_of(np.concatenate(parts, axis=1)).sums
    assert np.array_equal(together, np.concatenate([sketch_of(p).sums for p in parts], axis=1))


def test_the_signs_measure_plain_patterns_exactly():
    """Their sum with every Walsh function of 64 columns is 8 or -8."""
    for pattern in range(64):
        walsh = [(-1) ** (pattern & i).bit_count() for i in range(64)]
        assert abs(int(SIGNS @ walsh)) == 8


def squared(sums):
    return (sums.astype(np.float64) ** 2).sum(axis=-1)


def differences(generator, rows, columns):
    """Return differences of two tensors by what they look like."""
    one_column = np.zeros((rows, columns))
    one_column[:, generator.integers(columns)] = generator.standard_normal(rows)
    factors = generator.standard_normal((rows, 2)), generator.standard_normal((2, columns))
    return {
        "random": generator.standard_normal((rows, columns)),
        "one column": one_column,
        "constant": np.full((rows, columns), generator.standard_normal()),
        "alternating": np.tile([1.0, -1.0], (rows, columns // 2)),
        "low rank": factors[0] @ factors[1],
        "sparse": generator.standard_normal((rows, columns))
        * (generator.random((rows, columns)) < 0.02),
    }


def relative_error(difference):
    """Return the relative standard error that the documentation states, over random signs."""
    blocks = difference.reshape(-1, 64)
    gram = blocks.T @ blocks
    return math.sqrt(2 * ((gram**2).sum() - (np.diag(gram) ** 2).sum())) / np.trace(gram)


@pytest.mark.parametrize("rows", [1, 64])
def test_distances_are_as_near_as_is_stated(generator, rows):
    """The square of the sketches' distance is the exact one's within the stated error.

    By Chebyshev's inequality five times the standard error is exceeded in fewer than 4 of 100
    draws of the signs; the error there is of these cases is far less often so large.
    """
    for name, difference in differences(generator, rows, 2048).items():
        found = squared(sketch_of(difference).sums).sum()
        exact = (difference**2).sum()
        error = relative_error(difference)
        assert abs(found / exact - 1) <= 5 * error + 1e-6, name
        if name in ("one column", "constant", "alternating"):
            assert found == pytest.approx(exact, rel=1e-5), name
        if name == "random":
            assert error == pytest.approx(math.sqrt(2 * 63 / 64 / (32 * rows)), rel=0.3)


def test_over_all_signs_the_expected_square_is_exact(generator):
    """The mean over draws of signs is the distance; their spread is what is stated."""
    difference = generator.standard_normal((1, 640))
    blocks = difference.reshape(-1, 64)
    signs = generator.choice([-1.0, 1.0], (20_000, 64))
    found = ((signs @ blocks.T) ** 2).sum(axis=1) / (difference**2).sum()
    error = relative_error(difference)
    assert found.mean() == pytest.approx(1, abs=5 * error / math.sqrt(len(found)))
    assert found.std() == pytest.approx(error, rel=0.1)


def test_what_is_kept_of_which_tensor():
    """Names of rows and short rows are stored whole; other rows as sketches."""
    kept = {
        ("Float32", (4, 8, 64)): "sketch",
        ("BFloat16", (4096,)): "sketch",
        ("Float32", (4, 8)): "whole",
        ("Float32", (8,)): "statistics",
        ("Float32", ()): "statistics",
        ("Float32", (0, 64)): "statistics",
        ("Float16", (1 << 20, 8)): "sketch",
        ("Int32", (4, 512)): "whole",
        ("Bool", (7,)): "whole",
        ("Int64", (1024, 1024)): "sketch",
        ("Bool", (4, 1, 8, 8)): "mask",
        ("UInt8", (4, 1, 300)): "mask",
        ("Int32", (1, 1, 512, 512)): "mask",
        ("Int32", (1, 1, 1, 513)): "sketch",
        ("Bool", (1, 1, 1, 2049)): "sketch",
        ("Bool", (2, 2, 1024, 1025)): "sketch",
        ("Bool", (4, 8, 7)): "sketch",
        ("Bool", (1, 1, 1, 8, 8)): "sketch",
        ("Complex64", (4, 64)): "statistics",
        (None, None): "statistics",
    }
    assert {at: kept_of(*at) for at in kept} == kept


@pytest.mark.parametrize("seed", range(20))
def test_masks_take_no_more_than_their_share(seed):
    """Whatever they are and come in turn with: one mask, or a 4096th of what is sketched."""
    draw, room = random.Random(seed), MaskRoom()
    tensors, sizes, refused = 0, {}, 0
    for _ in range(400):
        if draw.random() < 0.5:
            size = draw.randrange(1 << draw.randrange(12, 31))
            tensors += size
            room.sketched(size)
            continue
        name = draw.randrange(60)
        size = sizes.get(name) or draw.randrange(1, 1 << draw.randrange(8, 23))
        stored = room.has(size, str(name))
        assert stored or name not in sizes
        refused += not stored
        if stored:
            sizes[name] = size
        assert sum(sizes.values()) <= max(next(iter(sizes.values())), (256 << 10) + tensors / 4096)
    assert refused
    assert len(sizes) > 1


def file_of(path, arrays):
    """Write sketches into a file and return where they lie."""
    content, places = HEAD, []
    for array in arrays:
        places.append(SketchPlace("signed_sums_64", sketch_of(array).block, len(content)))
        content += bytes_of(array).tobytes()
    path.write_bytes(content)
    return places


def test_a_file_gives_back_what_was_written(tmp_path, generator):
    """Small sketches are read, large ones mapped; both are read-only."""
    arrays = [generator.standard_normal((n, 300)).astype(np.float32) for n in (3, 7, 2000)]
    arrays.append(generator.integers(0, 9, (5, 2, 3)))
    places = file_of(tmp_path / "s", arrays)
    for array, place in zip(arrays, places):
        read, made = read_sketch(tmp_path / "s", place, array.shape), sketch_of(array)
        assert np.array_equal(read.sums, made.sums)
        assert np.array_equal(read.fingerprints, made.fingerprints)
        assert (read.rows, read.columns) == (math.prod(array.shape[:-1]), array.shape[-1])
        assert not read.sums.flags.writeable
        held = read.fingerprints
        while isinstance(held, np.ndarray):
            held = held.base
        assert isinstance(getattr(held, "obj", held), mmap.mmap) == (len(array) == 2000)


def test_what_a_file_or_a_record_says_is_checked(tmp_path, generator):
    """A sketch that lies nowhere, is cut, or is of no known kind is refused, unread."""
    array = generator.standard_normal((4, 100)).astype(np.float32)
    path = tmp_path / "s"
    (place,) = file_of(path, [array])
    wrong = {
        "which cannot be": {"offset": 8},
        "at byte 13,": {"offset": 13},
        "at byte -8": {"offset": -8},
        "is cut short: the sketch ends at byte 1": {"offset": 1 << 40},
        "signed_sums_65": {"algorithm": "signed_sums_65"},
        "blocks of 96 columns": {"block": 96},
        "blocks of 32": {"block": 32},
        "blocks of -64": {"block": -64},
        "blocks of 128": {"block": 128},
    }
    for said, changed in wrong.items():
        with pytest.raises(ArrayFileError, match=said):
            read_sketch(path, replace(place, **changed), array.shape)
    with pytest.raises(ArrayFileError, match="more than the"):
        read_sketch(path, place, (1 << 60, 1 << 60))
    with pytest.raises(ArrayFileError, match="cut short"):
        read_sketch(path, place, (400, 100))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ArrayFileError, match="cut short"):
        read_sketch(path, place, array.shape)
    path.write_bytes(b"x" * 200)
    with pytest.raises(ArrayFileError, match="does not begin"):
        read_sketch(path, place, array.shape)
    path.unlink()
    with pytest.raises(ArrayFileError, match="missing"):
        read_sketch(path, place, array.shape)
    path.mkdir()
    with pytest.raises(ArrayFileError, match=r"regular|cannot be read"):
        read_sketch(path, place, array.shape)


def test_sizes():
    """At hidden size 4096 a sketch takes less than a thirtieth of the bytes of bfloat16."""
    assert size_of((512, 4096), 64) == 512 * (8 + 4 * 64)
    assert 512 * 4096 * 2 / size_of((512, 4096), 64) > 31
    # A token of 32 layers, 12 tensors each, whose row of the mask is as long as may be.
    assert 32 * 12 * 8192 / (32 * 12 * size_of((1, 4096), 64) + MOST_OF_A_MASK_ROW) > 30
    for rows, columns in itertools.product((1, 3), (1, 64, 65)):
        assert size_of((rows, columns), 64) % 8 == 0


@pytest.mark.parametrize(
    "said", [None, 7, [], {}, {"algorithm": "x"}, {"algorithm": "x", "block": 1e99, "offset": True}]
)
def test_a_record_that_does_not_say_where_its_sketch_lies_is_read(said):
    """Its statistics are there; of the sketch alone it is known that it cannot be read."""
    content = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [2, 64], "Max": 3.0}
    leaf = leaf_from_json({**content, "sketch": said})
    assert (leaf.max, leaf.why) == (3.0, None)
    record = Record("r", "input", "0", leaf, sketches="nowhere")
    with pytest.raises(ArrayFileError, match="expected its algorithm, block and offset"):
        record.sketch()
