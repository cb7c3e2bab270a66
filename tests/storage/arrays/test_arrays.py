"""Arrays as .npy files: every dtype comes back, and no file is trusted."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from mindrlhf_msprobe.capture.tensors.summary import HostTensor, fingerprint_of
from mindrlhf_msprobe.storage.arrays.float8 import FLOAT8, float8_to_float32
from mindrlhf_msprobe.storage.arrays.npy import (
    ArrayFileError,
    bfloat16_bits_to_float32,
    fingerprint_of_file,
    float32_to_bfloat16_bits,
    open_npy,
    save_npy,
)


def test_every_bfloat16_has_its_float32():
    """All 65536 bfloat16 values become the float32 with the same upper bits."""
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    found = bfloat16_bits_to_float32(bits).view(np.uint32)
    np.testing.assert_array_equal(found, bits.astype(np.uint32) << 16)


def test_objects_are_never_written(tmp_path):
    """An array of Python objects is refused, and no file is left behind."""
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        save_npy(tmp_path / "x.npy", np.array([{}], dtype=object))
    assert list(tmp_path.iterdir()) == []


class _Trap:
    """Leaves a trace when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def test_pickled_objects_are_never_loaded(tmp_path, monkeypatch):
    """An .npy with a pickle inside is an error, and what it holds does not run."""
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "x.npy", np.array([_Trap()], dtype=object), allow_pickle=True)
    (tmp_path / "y.npy").write_bytes(pickle.dumps(_Trap()))
    for name in ("x.npy", "y.npy"):
        with pytest.raises(ArrayFileError):
            open_npy(tmp_path / name)
    assert not (tmp_path / "unpickled").exists()


def test_a_file_cut_short_says_how_much_is_missing(tmp_path):
    """A file with fewer bytes than its header promises is an error, not a shorter array."""
    save_npy(tmp_path / "x.npy", np.zeros(100, np.float32))
    os.truncate(tmp_path / "x.npy", 128 + 396)
    with pytest.raises(ArrayFileError, match=r"cut short: its header promises 400 bytes .* 396"):
        open_npy(tmp_path / "x.npy")


def header(text, version=(1, 0)):
    body = text.encode("latin1")
    return b"\x93NUMPY" + bytes(version) + len(body).to_bytes(2, "little") + body


LITTLE = "{'descr': '<f4', 'fortran_order': False, 'shape': "
DAMAGED = {
    "empty": b"",
    "magic only": b"\x93NUM",
    "text": b"not an array at all",
    "code": header("{'descr': __import__('os'), 'fortran_order': False, 'shape': ()}"),
    "incomplete header": header("{'descr': '<f4'}"),
    "deep nesting": header("(" * 5000),
    "unknown version": header(LITTLE + "(1,)}", (9, 0)) + b"1234",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_headers_are_errors_with_a_reason(tmp_path, content):
    """Whatever a file claims, it is refused with a reason and nothing large is allocated."""
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(ArrayFileError, match=r"."):
        open_npy(tmp_path / "x.npy")


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    """A named pipe in a dump does not make the reader wait for ever."""
    os.mkfifo(tmp_path / "x.npy")
    with pytest.raises(ArrayFileError, match="not a regular file"):
        open_npy(tmp_path / "x.npy")


def test_bfloat16_is_the_nearest_one_and_the_even_one_of_two():
    """Against the two neighbours in float64; NaN stays NaN, what is too large becomes infinite."""
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 1 << 32, 4000, dtype=np.uint64).astype(np.uint32)
    ties = (bits & np.uint32(0xFFFF0000)) | np.uint32(0x8000)
    values = np.concatenate([bits, ties, ties + np.uint32(1)]).view(np.float32)
    below = values.view(np.uint32) >> 16
    with np.errstate(invalid="ignore", over="ignore"):
        ends = [bfloat16_bits_to_float32((below + i).astype(np.uint16)) for i in (0, 1)]
        ends[1] = np.where(np.isinf(ends[1]), np.copysign(2.0**128, values), ends[1])
        apart = [np.abs(end.astype(np.float64) - values.astype(np.float64)) for end in ends]
    up = (apart[1] < apart[0]) | ((apart[1] == apart[0]) & (below % 2 == 1))
    found = float32_to_bfloat16_bits(values)
    finite = np.isfinite(values)
    assert np.array_equal(found[finite], (below + up)[finite].astype(np.uint16))
    assert np.array_equal(np.isnan(bfloat16_bits_to_float32(found)), np.isnan(values))


@pytest.mark.parametrize("shape", [(), (0, 3), (5, 7)])
def test_what_a_file_holds_has_the_fingerprint_of_what_was_recorded(shape):
    """bfloat16 is recorded by its bits and stored as float32."""
    bits = np.arange(16000, 16000 + np.prod(shape, dtype=int), dtype=np.uint16).reshape(shape)
    recorded = fingerprint_of(HostTensor("mindspore.Tensor", "BFloat16", bits))
    stored = bfloat16_bits_to_float32(bits.reshape(-1)).reshape(shape)
    assert fingerprint_of_file("BFloat16", stored) == recorded
    floats = bits.astype(np.float32)
    recorded = fingerprint_of(HostTensor("mindspore.Tensor", "Float32", floats))
    assert fingerprint_of_file("Float32", floats) == recorded
    assert fingerprint_of_file("Float32", floats + 1) != recorded or not floats.size


BITS = np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_different_bits_are_different_values(dtype):
    """Those of NaN and of zero, too: a fingerprint of the values is one of the bits."""
    values = float8_to_float32(dtype, BITS.reshape(16, 16))
    assert values.dtype == np.float32
    assert values.shape == (16, 16)
    assert len(np.unique(values.view(np.uint32))) == 256


def test_known_values():
    """Of each kind some that its definition names."""
    known = {
        "Float8E4M3FN": {0x38: 1, 0x7E: 448, 0x01: 2**-9, 0x08: 2**-6, 0xC0: -2},
        "Float8E5M2": {0x3C: 1, 0x7B: 57344, 0x01: 2**-16, 0x7C: np.inf, 0xFC: -np.inf},
        "HiFloat8": {0x08: 1, 0x6E: 2**15, 0x6F: np.inf, 0x01: 2**-22, 0x7E: 2**-15, 0x88: -1},
    }
    for dtype, expected in known.items():
        values = float8_to_float32(dtype, BITS)
        assert {bits: values[bits] for bits in expected} == expected
    assert np.isnan(float8_to_float32("Float8E4M3FN", BITS)).sum() == 2
    assert np.isnan(float8_to_float32("HiFloat8", BITS)).sum() == 1
