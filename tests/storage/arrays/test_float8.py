"""Floats of 8 bits as float32."""

import numpy as np
import pytest

from mindrlhf_msprobe.storage.arrays.float8 import FLOAT8, float8_to_float32

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


def test_no_axis_and_no_element():
    """They keep their shapes."""
    assert float8_to_float32("HiFloat8", np.array(8, np.uint8)).shape == ()
    assert float8_to_float32("HiFloat8", np.empty((0, 3), np.uint8)).shape == (0, 3)
