"""Gradients by update: with elements, as signs, and as msprobe's grad_probe keeps them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from helpers.gradients import BOUNDS, probed_by_msprobe, record_gradients
from helpers.runs import record_training

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.arrays.signs import equal_signs, packed_signs, shares_within
from mindrlhf_msprobe.storage.reading.gradients import open_gradients

GRADIENT = np.array([[0.5, -2.0, 0.0], [3.0, np.nan, -0.1], [1.0, 1e-9, 7.0]], np.float32)


def test_signs_are_a_bit_an_element_and_count_like_the_elements():
    """For any size, with and without something behind the last element."""
    random = np.random.default_rng(0)
    for size in (0, 1, 7, 8, 9, 1000):
        a, b = (random.normal(size=size).astype(np.float32) for _ in range(2))
        packed = packed_signs(a)
        assert packed.dtype == np.uint8
        assert len(packed) == -(-size // 8)
        assert equal_signs(packed, packed_signs(b), size) == int(((a > 0) == (b > 0)).sum())
    noise = packed_signs(a)
    noise[-1] ^= 0x0F >> 4  # nothing: 1000 is a multiple of 8
    assert equal_signs(noise, packed_signs(a), size) == size
    assert equal_signs(np.array([0xFF], np.uint8), np.array([0xE0], np.uint8), 3) == 3


def test_shares_are_those_of_msprobe():
    """(-inf, b0], (b0, b1], …, (bn, inf), zeros: msprobe's own example, and NaN in none."""
    example = np.array([9.3, 5.4, -1.0, -12.3], np.float32)
    assert shares_within(example, [-10, 0, 10]) == [0.25, 0.25, 0.5, 0, 0]
    assert shares_within(GRADIENT, BOUNDS) == [n / 9 for n in (1, 2, 3, 2, 1)]
    assert shares_within(np.array([0.1], np.float32), [0.1]) == [1, 0, 0]
    assert shares_within(np.empty(0, np.float32), BOUNDS) == [0] * 5
    assert shares_within(np.array([-3, 0, 4]), BOUNDS) == [1 / 3, 1 / 3, 0, 1 / 3, 1 / 3]


def test_signs_and_shares_come_back(tmp_path):
    """What grad_probe records is read by step, update and parameter."""
    root = record_gradients(
        tmp_path / "run", {3: [{"a": GRADIENT, "b": -GRADIENT}, {"a": GRADIENT}]}
    )
    source = open_gradients(root)
    assert source.places() == [(3, 0)]
    found = source.at(3, 0)
    assert [(g.parameter, g.update) for g in found] == [
        ("a.weight", 0),
        ("b.weight", 0),
        ("a.weight", 1),
    ]
    assert not found[0].has_elements
    np.testing.assert_array_equal(found[1].packed(), packed_signs(-GRADIENT))
    assert found[0].record.leaf.shares == pytest.approx([n / 9 for n in (1, 2, 3, 2, 1)])
    assert (root / "actor_update/step3/rank0/dump_tensor_data").is_dir()
    assert open_run(root).problems == []
    assert repr(pickle.loads(pickle.dumps(found))) == repr(found)  # NaN is not itself


def test_elements_tell_the_signs(tmp_path):
    """A run with full tensors needs no signs of its own."""
    root = record_gradients(tmp_path / "run", {0: {"a": GRADIENT}}, signs=False, task="tensor")
    (gradient,) = open_gradients(root).at(0, 0)
    np.testing.assert_array_equal(gradient.packed(), packed_signs(GRADIENT))
    np.testing.assert_array_equal(gradient.elements(), GRADIENT.reshape(-1))


def test_a_file_of_signs_that_is_not_theirs_is_not_used(tmp_path):
    """Cut short, of another size, or one that leaves the run."""
    root = record_gradients(tmp_path / "run", {0: {"a": GRADIENT, "b": GRADIENT}})
    files = sorted((root / "actor_update/step0/rank0/dump_tensor_data").iterdir())
    np.save(files[0], np.zeros(1, np.uint8))
    outside = tmp_path / "outside.npy"
    np.save(outside, packed_signs(GRADIENT))
    files[1].unlink()
    files[1].symlink_to(outside)
    for gradient in open_gradients(root).at(0, 0):
        with pytest.raises(ArrayFileError, match=r"one bit for each of 9|lies outside"):
            gradient.packed()


def test_msprobes_grad_probe_is_read(tmp_path):
    """Its ranks, steps and parameters; the directory of one rank is a run of its own."""
    gradients = {"w.weight": GRADIENT, "b": GRADIENT[0]}
    root = probed_by_msprobe(tmp_path / "dump", {0: gradients, 4: gradients}, rank=2)
    (root / "rank2/step4/b.npy").write_bytes(b"no array")
    (root / "rank2/step4/c.pt").write_bytes(b"a pickle")
    for path in (root, root / "rank2"):
        source = open_gradients(path)
        assert source.places() == [(0, 2), (4, 2)]
        found = {g.parameter: g for g in source.at(0, 2)}
        np.testing.assert_array_equal(found["w.weight"].packed(), packed_signs(GRADIENT))
        assert found["w.weight"].shape == (3, 3)
        broken = {g.parameter: g.why for g in source.at(4, 2)}
        assert broken.pop("w.weight") is None
        assert "PyTorch" in str(broken.pop("c"))
        assert broken.pop("b") is not None


def test_a_run_without_gradients_has_none(tmp_path):
    """It is no error to open one; a directory that is no run is."""
    source = open_gradients(record_training(tmp_path / "run", steps=1, tokens=1))
    assert source.at(0, 0) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError):
        open_gradients(tmp_path / "empty")
