"""Tensors reduced on the device: as on the host to rounding, and read back together."""

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import small_networks  # noqa: E402, F401
from mindspore import Tensor  # noqa: E402

from mindrlhf_msprobe.capture import device  # noqa: E402
from mindrlhf_msprobe.capture.device import (  # noqa: E402
    DeviceSummaries,
    can_fingerprint,
    fingerprint_on_host,
)
from mindrlhf_msprobe.capture.summary import summarise, to_host  # noqa: E402

RNG = np.random.default_rng(7)
ARRAYS = {
    "float32": RNG.normal(size=(7, 33)).astype(np.float32),
    "float16": RNG.normal(size=(4, 4)).astype(np.float16),
    "float64": RNG.normal(size=5),
    "float16 whose sum overflows": np.full(5000, 60_000, np.float16),
    "float32 whose squares overflow": np.full(1000, 1e30, np.float32),
    "int64 beyond float64": np.array([2**62 + 1, 5]),
    "int32": RNG.integers(-9, 9, (3, 3)).astype(np.int32),
    "uint8": np.arange(256, dtype=np.uint8),
    "bool": np.array([[True, False], [False, False]]),
    "nan": np.array([np.nan, 1], np.float32),
    "infinities": np.array([np.inf, -np.inf, 1], np.float32),
    "complex64": np.array([1 + 2j, 3], np.complex64),
    "0-d": np.array(2.5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
}


def tensors() -> dict[str, Tensor]:
    bfloat16 = Tensor(np.linspace(-3, 3, 50), ms.float32).astype(ms.bfloat16)
    return {**{name: Tensor(array) for name, array in ARRAYS.items()}, "bfloat16": bfloat16}


def test_statistics_are_those_of_the_host_to_rounding() -> None:
    summaries = DeviceSummaries(fingerprint=False)
    for tensor in tensors().values():
        summaries.add(tensor)
    leaves = summaries.read()
    for (name, tensor), leaf in zip(tensors().items(), leaves):
        host = summarise(to_host(tensor), fingerprint=False)
        assert (leaf.dtype, leaf.shape) == (host.dtype, host.shape), name
        assert (leaf.nan_count, leaf.inf_count) == (host.nan_count, host.inf_count), name
        for found, expected in zip(
            (leaf.max, leaf.min, leaf.mean, leaf.norm), (host.max, host.min, host.mean, host.norm)
        ):
            assert (found is None) == (expected is None), name
            if found is not None:
                np.testing.assert_allclose(found, expected, 1e-6, 1e-6, err_msg=name)
        if "int64" in name:
            assert (leaf.max, leaf.min) == (host.max, host.min)


def test_all_results_come_in_two_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []
    original = device._fetched
    monkeypatch.setattr(
        device, "_fetched", lambda parts: fetched.append(len(parts)) or original(parts)
    )
    summaries = DeviceSummaries(fingerprint=False)
    for _ in range(50):
        summaries.add(Tensor(ARRAYS["float32"]))
    assert not fetched
    assert len(summaries.read()) == 50
    assert len(fetched) == 2
    assert len(summaries) == 0


def test_values_are_those_of_the_moment() -> None:
    parameter = ms.Parameter(Tensor(np.ones(3, np.float32)))
    summaries = DeviceSummaries(fingerprint=False)
    summaries.add(parameter)
    parameter.set_data(Tensor(np.zeros(3, np.float32)))
    summaries.add(parameter)
    assert [leaf.max for leaf in summaries.read()] == [1.0, 0.0]


@pytest.mark.skipif(
    not can_fingerprint(), reason="this MindSpore cannot read a tensor's bits on the device"
)
def test_fingerprints_are_those_of_the_same_bits_on_the_host() -> None:
    summaries = DeviceSummaries(fingerprint=True)
    chosen = {name: tensor for name, tensor in tensors().items() if tensor.size}
    for tensor in chosen.values():
        summaries.add(tensor)
    for (name, tensor), leaf in zip(chosen.items(), summaries.read()):
        host = to_host(tensor)
        assert leaf.fingerprint == fingerprint_on_host(host.dtype, host.array), name


def test_fingerprints_tell_order_shape_dtype_and_single_bits_apart() -> None:
    base = np.arange(12, dtype=np.float32)
    swapped = base[::-1].copy()
    second_differences = base.copy()  # a weighted sum would not see +1, -2, +1
    second_differences.view(np.int32)[3:6] += np.int32([1, -2, 1])
    bit = base.copy()
    bit.view(np.int32)[7] ^= 1
    variants = [
        ("Float32", base),
        ("Float32", swapped),
        ("Float32", second_differences),
        ("Float32", bit),
        ("Float32", base.reshape(3, 4)),
        ("Int32", base.view(np.int32)),
        ("Float32", -base),
        ("Float32", np.append(base, np.float32(0))),
    ]
    assert len({fingerprint_on_host(*variant) for variant in variants}) == len(variants)
