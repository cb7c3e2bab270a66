"""Tensors reduced on the device: as on the host to rounding, and read back together."""

from collections.abc import Callable

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers.small_networks import Does, Mixed, Scale, Twice, tensor
from mindspore import Tensor, nn

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.capture.opening import device
from mindrlhf_msprobe.capture.opening.device import DeviceSummaries, can_fingerprint
from mindrlhf_msprobe.capture.recording import phases
from mindrlhf_msprobe.capture.tensors.summary import summarise, to_host
from mindrlhf_msprobe.findings import Outcome
from mindrlhf_msprobe.storage.reading.reader import Run

RNG = np.random.default_rng(7)
ARRAYS = {
    "float32": RNG.normal(size=(7, 33)).astype(np.float32),
    "float16": RNG.normal(size=(4, 4)).astype(np.float16),
    "float64": RNG.normal(size=5),
    "float64 whose squares overflow": np.array([3e200, -4e200, 1.0]),
    "float64 whose squares vanish": np.array([3e-200, -4e-200, 0.0]),
    "float64 whose sum overflows": np.array([1.5e308, 1.6e308, 1e307]),
    "complex128": np.array([3e200 + 4e200j, 1]),
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


def fingerprint_on_host(dtype: str, array: np.ndarray) -> str:
    """Return what the device computes, from the same bits on the host.

    Args:
        dtype: MindSpore's name; bfloat16 comes as its uint16 bits.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype == np.bool_:
        words = flat.astype(np.int32)
    else:
        words = flat.view(f"{'u' if flat.itemsize == 1 else 'i'}{min(flat.itemsize, 4)}")
        words = words.astype(np.int32)
    found = []
    with np.errstate(over="ignore"):
        for position in device._POSITION:
            index = np.arange(1, words.size + 1, dtype=np.int64).astype(np.int32)
            mixed = (words ^ (index * np.int32(position))).view(np.uint32)
            for shift, factor in zip(device._SHIFTS, (*device._FACTORS, None)):
                mixed = mixed ^ (mixed >> np.uint32(shift))
                mixed = mixed if factor is None else mixed * np.uint32(factor & device._MASK)
            found.append(int(mixed.sum(dtype=np.uint64)))
    return device._named(dtype, tuple(array.shape), found)


def tensors() -> dict[str, Tensor]:
    bfloat16 = Tensor(np.linspace(-3, 3, 50), ms.float32).astype(ms.bfloat16)
    return {**{name: Tensor(array) for name, array in ARRAYS.items()}, "bfloat16": bfloat16}


def test_statistics_are_those_of_the_host_to_rounding() -> None:
    summaries = DeviceSummaries(fingerprint=False)
    for value in tensors().values():
        summaries.add(value)
    leaves = summaries.read()
    for (name, value), leaf in zip(tensors().items(), leaves):
        host = summarise(to_host(value), fingerprint=False)
        assert (leaf.dtype, leaf.shape) == (host.dtype, host.shape), name
        assert (leaf.nan_count, leaf.inf_count) == (host.nan_count, host.inf_count), name
        for found, expected in zip(
            (leaf.max, leaf.min, leaf.mean, leaf.norm), (host.max, host.min, host.mean, host.norm)
        ):
            assert (found is None) == (expected is None), name
            if found is not None:
                absolute = 0 if "float64 whose" in name else 1e-6
                np.testing.assert_allclose(found, expected, 1e-6, absolute, err_msg=name)
        if "int64" in name:
            assert (leaf.max, leaf.min) == (host.max, host.min)


def test_all_results_come_in_two_transfers(monkeypatch):
    fetched = []
    cat = device.ops.cat
    monkeypatch.setattr(device.ops, "cat", lambda parts: fetched.append(len(parts)) or cat(parts))
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
    chosen = {name: value for name, value in tensors().items() if value.size}
    for value in chosen.values():
        summaries.add(value)
    for (name, value), leaf in zip(chosen.items(), summaries.read()):
        host = to_host(value)
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


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Return what lets tensors be reduced on the device, or not."""
    return lambda on: monkeypatch.setattr(phases, "reduces_on_device", lambda *_: on)


@pytest.mark.parametrize("fingerprint", [False, True])
def test_a_run_reduced_on_the_device_holds_the_same_entries(run_phase, on_device, fingerprint):
    """Names, structure and numbers are those of a run summarised on the host."""
    if fingerprint and not can_fingerprint():
        pytest.skip("this MindSpore cannot read a tensor's bits on the device")

    def record(on: bool) -> Run:
        on_device(on)
        network = Mixed()
        optimizer = nn.SGD(network.trainable_params(), 0.1)
        step = ms.value_and_grad(
            lambda x: (network(x * 1, scale=1.25) ** 2).mean(), 0, optimizer.parameters
        )
        body = lambda: optimizer(step(tensor(3, 4, start=-0.5))[1][1])  # noqa: E731
        return run_phase(network, body, steps=2, strict=True, fingerprint=fingerprint)

    host, reduced = record(False), record(True)
    for step in (0, 1):
        ours, theirs = (
            {r.name: r.leaf for e in run.entries(step=step) for r in e.records}
            for run in (host, reduced)
        )
        assert list(ours) == list(theirs)
        for name, leaf in ours.items():
            other = theirs[name]
            assert (leaf.type, leaf.dtype, leaf.shape) == (other.type, other.dtype, other.shape)
            if leaf.norm is not None:
                np.testing.assert_allclose(other.norm, leaf.norm, 1e-5, 1e-6, err_msg=name)
                assert (other.max, other.min) == pytest.approx((leaf.max, leaf.min), rel=1e-5)
            assert (other.fingerprint is not None) == (leaf.fingerprint is not None)
    assert compare_runs(host.path, reduced.path).verdict.counts


def test_parameters_that_did_not_change_are_recorded_once(run_phase, on_device):
    on_device(True)
    network = Twice()
    body = lambda: [network(tensor(3)) for _ in range(2)]  # noqa: E731
    run = run_phase(network, body, strict=True, fingerprint=can_fingerprint())
    recorded = [r.name for e in run.entries() for r in e.records if r.io == "parameters"]
    assert recorded == [
        f"Cell.{cell}.Scale.forward.0.parameters.factor" for cell in ("first", "second")
    ]


def test_a_gradient_beside_an_overflow_is_not_known(run_phase, on_device):
    """inf - inf is no gradient of the cell, and no NaN of its own; the next call's is known."""
    on_device(True)

    def forward(net: nn.Cell, x: Tensor, beside: float) -> Tensor:
        x = net.scale(x)
        return net.inner(x) + x * beside * beside

    def record() -> Run:
        network = Does(forward, inner=Scale(2.0), scale=Scale(1.0))

        def body() -> None:
            for beside in (3e38, 1.0):
                ms.grad(lambda x: network(x, beside).sum())(tensor(3, start=1.0))  # noqa: B023

        return run_phase(network, body, strict=True, fingerprint=False)

    runs = [record() for _ in range(2)]
    left = [
        (record.leaf.type, record.leaf.opaque, record.leaf.max)
        for entry in runs[0].entries()
        for record in entry.records
        if entry.cell == "inner" and entry.direction == "backward" and record.io == "output"
    ]
    assert left == [("NoneType", True, None), ("mindspore.Tensor", False, 2.0)]
    result = compare_runs(*(run.path for run in runs))
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE
    assert any("unknown beside NaN" in gap.reason for gap in result.verdict.coverage)


def test_sketches_are_computed_on_the_host(run_phase, monkeypatch, caplog):
    """Where statistics would be reduced on the device, a run of sketches says so once."""
    monkeypatch.setattr(phases, "device_target", lambda: "Ascend")
    caplog.set_level("INFO")
    network, x = Scale(2.0), Tensor(np.ones((3, 64), np.float32))
    run = run_phase(network, lambda: network(x), openings=2, task="sketch", strict=True)
    said = [r.getMessage() for r in caplog.records if "no operators for Ascend" in r.getMessage()]
    assert len(said) == 1
    records = [r for e in run.entries() for r in e.records if r.io != "parameters"]
    assert [record.sketch().rows for record in records] == [3] * 4
