"""Elements read where they lie: the same numbers as asnumpy gives, and nothing said about it."""

from pathlib import Path

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")

import small_networks  # noqa: E402, F401
from conftest import run_python  # noqa: E402
from mindspore import Tensor, ops  # noqa: E402

from mindrlhf_msprobe.capture import memory  # noqa: E402

KINDS = ("float16", "float32", "float64", "bfloat16", "int8", "int64", "uint8", "bool_")


@pytest.mark.parametrize("kind", KINDS)
def test_every_dtype_is_read_as_asnumpy_reads_it(kind: str) -> None:
    computed = Tensor(np.arange(24).reshape(4, 6) % 7, ms.int32).astype(getattr(ms, kind))
    found = memory._read(computed, str(computed.dtype))
    expected = computed.asnumpy()
    assert found is not None
    assert found.shape == expected.shape
    assert np.array_equal(found.view(np.uint8), np.ascontiguousarray(expected).view(np.uint8))


def test_parts_of_a_tensor_are_left_to_asnumpy_or_right() -> None:
    whole = ops.arange(0, 24).astype(ms.float32).reshape(4, 6)
    for part in (whole[1:3], whole.T, whole[:, 2], whole[3]):
        found = memory._read(part, "Float32")
        assert found is None or np.array_equal(found, part.asnumpy())


def test_the_array_keeps_its_tensor_alive() -> None:
    found = memory._read(ops.ones((1000, 100), ms.float32) * 3, "Float32")
    others = [ops.ones((1000, 100), ms.float32) * i for i in range(20)]
    assert others
    assert found is not None
    assert (found == 3).all()


def test_recording_says_nothing_of_addresses(tmp_path: Path) -> None:
    """Tensors made from numpy have none yet, about which MindSpore would log an error."""
    code = f"""
import os
os.environ.pop("GLOG_v", None)
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
probe.step()
"""
    done = run_python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stdout + done.stderr
