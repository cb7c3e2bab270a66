"""A file is known by its fingerprint, whatever it stores the elements as."""

import numpy as np
import pytest

from mindrlhf_msprobe.capture.tensors.summary import HostTensor, fingerprint_of
from mindrlhf_msprobe.storage.arrays.fingerprint import fingerprint_of_file
from mindrlhf_msprobe.storage.arrays.npy import bfloat16_bits_to_float32


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
