"""Elements read without asnumpy: the same numbers as it gives, and nothing said about it."""

import gc
import weakref

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

from helpers import small_networks
from helpers.programs import run_python
from mindspore import Tensor, ops

from mindrlhf_msprobe.capture.framework import private
from mindrlhf_msprobe.capture.tensors import summary
from mindrlhf_msprobe.capture.tensors.summary import summarise, to_host

KINDS = ("float16", "float32", "float64", "bfloat16", "int8", "int64", "uint8", "bool_")


@pytest.fixture
def faster_than_asnumpy() -> None:
    if not summary._is_possible():
        pytest.skip("this MindSpore's asnumpy copies nothing itself")


@pytest.mark.usefixtures("faster_than_asnumpy")
@pytest.mark.parametrize("rows", [4, 1 << 14])
@pytest.mark.parametrize("kind", KINDS)
def test_every_dtype_is_read_as_asnumpy_reads_it(kind, rows):
    """Small tensors, whose bytes are copied, and large ones, which are read in place."""
    numbers = Tensor(np.arange(6 * rows).reshape(rows, 6) % 7, ms.int32)
    computed = numbers.astype(getattr(ms, kind))
    found = summary.elements_of(computed, str(computed.dtype), computed=False)
    expected = computed.asnumpy()
    assert found is not None
    assert found.shape == expected.shape
    assert np.array_equal(found.view(np.uint8), np.ascontiguousarray(expected).view(np.uint8))


@pytest.mark.usefixtures("faster_than_asnumpy")
def test_a_large_tensor_without_an_address_is_left_to_asnumpy() -> None:
    given = Tensor(np.ones((1 << 14, 6), np.float32))
    assert summary.elements_of(given, "Float32", computed=False) is None
    assert (given + 1).asnumpy().max() == 2  # an operator has taken it: it has an address by now
    found = summary.elements_of(given, "Float32", computed=False)
    assert found is not None
    assert (found == 1).all()


def test_a_value_that_is_written_in_place_is_summarised_as_it_was() -> None:
    """The look at it comes before the write, and waits for what was to be computed before it."""
    for rows in (4, 1 << 14):
        tensor = ops.ones((rows, 6), ms.float32) * 2
        before = summarise(to_host(tensor))
        tensor[1:] = 5.0
        after = summarise(to_host(tensor))
        assert (before.max, before.min, after.max, after.min) == (2, 2, 5, 2)


@pytest.mark.usefixtures("faster_than_asnumpy")
def test_recording_a_generation_copies_no_large_tensor(watched, monkeypatch):
    """Where no gradients flow, too: of a cache of keys every copy would cost as much as a layer."""
    copied = []
    own = Tensor.asnumpy
    monkeypatch.setattr(Tensor, "asnumpy", lambda self: copied.append(self.nbytes) or own(self))
    probe, network = watched(small_networks.Scale(), actor_infer_dump=True, token_range_end=9)
    cache = ops.ones((1 << 14, 6), ms.float32)
    with probe.phase("actor_generate_sequences"):
        for _ in range(3):
            cache = network(cache)
    probe.close()
    assert [size for size in copied if size >= 1 << 16] == []


def test_parts_of_a_tensor_are_left_to_asnumpy_or_right() -> None:
    whole = ops.arange(0, 24).astype(ms.float32).reshape(4, 6)
    for part in (whole[1:3], whole.T, whole[:, 2], whole[3]):
        found = summary.elements_of(part, "Float32", computed=True)
        assert found is None or np.array_equal(found, part.asnumpy())


@pytest.mark.usefixtures("faster_than_asnumpy")
def test_the_array_keeps_its_tensor_alive() -> None:
    """It lies where the tensor does: without the tensor that memory is given to others."""
    tensor = ops.ones((1000, 100), ms.float32) * 3
    found, held = summary.elements_of(tensor, "Float32", computed=True), weakref.ref(tensor)
    assert found is not None
    assert found.ctypes.data == private.address_of(tensor)
    del tensor
    gc.collect()
    assert held() is not None
    part = found[1:]
    del found
    gc.collect()
    assert held() is not None
    assert (part == 3).all()
    del part
    gc.collect()
    assert held() is None


def test_recording_makes_mindspore_say_nothing(tmp_path):
    """Neither of addresses, which tensors made from numpy have not yet, nor of its settings.

    It would log an error of the ones, and a warning of others whose address is wanted.
    """
    code = f"""
import os
os.environ.pop("GLOG_v", None)  # warnings are shown
import mindspore as ms, numpy as np
from mindspore import nn
from mindrlhf_msprobe import Probe
ms.set_context(mode=ms.PYNATIVE_MODE)
network = nn.SequentialCell([nn.Dense(4, 4), nn.Tanh(), nn.Dense(4, 2)])
probe = Probe.from_config(
    dict(msprobe=True, actor_train_dump=True, strict=True, dump_path={str(tmp_path / "run")!r})
)
probe.watch(actor=network)
step = ms.value_and_grad(lambda x: network(x).sum(), 0, network.trainable_params())
with probe.phase("actor_update"):
    step(ms.Tensor(np.ones((3, 4), np.float32)))
    network(ms.Tensor(np.ones((3, 4), np.float32)))
    network(ms.Tensor(np.ones((1 << 13, 4), np.float32)))
probe.step()
"""
    done = run_python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
