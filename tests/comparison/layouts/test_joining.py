"""A value that is cut by any layout, and put together again."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from helpers.checkpoint_files import write_strategy

from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance
from mindrlhf_msprobe.comparison.layouts.joining import Held, join_both
from mindrlhf_msprobe.comparison.layouts.judging import compare_joined
from mindrlhf_msprobe.comparison.layouts.layout import Layout, load_layouts
from mindrlhf_msprobe.comparison.pairing.composed import cut_out
from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.storage.arrays.npy import save_npy
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Record

NAME = "Cell.up.Dense.forward.0.output.0"


class Cut:
    """A random value and how a random grid cuts it: over an axis of it, by copies or as a sum."""

    def __init__(self, seed, directory):
        self.random = random.Random(seed)
        self.directory = directory
        axes = self.random.sample(["dp", "tp", "cp", "ep", "x"], self.random.randint(1, 3))
        self.sizes = {axis: self.random.randint(2, 3) for axis in axes}
        self.shape = [self.random.randint(1, 3) for _ in range(self.random.randint(1, 3))]
        self.how = {}
        for axis, size in self.sizes.items():
            how = self.random.choice([*range(len(self.shape)), "copy", "partial"])
            self.how[axis] = how
            if isinstance(how, int):
                self.shape[how] *= size
        self.dtype = self.random.choice([np.float32, np.int64, np.float16])
        values = np.random.default_rng(seed).integers(-60, 60, size=self.shape)
        self.whole = values.astype(self.dtype)
        named = self.random.sample(sorted(self.how), len(self.how))
        self.rule = {axis: self.how[axis] for axis in named}
        self.layout = Layout.from_sizes(self.sizes)
        self.layout = Layout(self.layout.axes, self.layout.places, ((r"up", self.rule),))

    def parts(self):
        """Return what each rank holds: cut over the axes in the order of the rule."""
        grid = [*self.sizes]
        for rank, place in self.layout.places.items():
            value = self.whole
            for axis, how in self.rule.items():
                size, at = self.sizes[axis], place[grid.index(axis)]
                if how == "partial":
                    value = value * (at == 0)
                elif how != "copy":
                    value = np.split(value, size, axis=how)[at]
            yield rank, np.ascontiguousarray(value.astype(self.dtype))

    def record(self, name, value):
        save_npy(self.directory / name, value)
        leaf = Leaf("mindspore.Tensor", np.dtype(self.dtype).name.capitalize(), value.shape)
        return Record(NAME, "output", "0", leaf, str(self.directory / name))

    def held(self, parts):
        ranks = {rank: self.record(f"{rank}.npy", value) for rank, value in parts}
        return Held(NAME, ranks, self.layout, frozenset(ranks))

    def alone(self):
        record = self.record("whole.npy", self.whole)
        return Held(NAME, {0: record}, Layout.of_one(0), frozenset({0}))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_cut_and_put_together_is_the_same_and_an_error_names_its_rank(seed, tmp_path):
    cut = Cut(seed, tmp_path)
    parts = dict(cut.parts())

    a, b = join_both((cut.alone(), cut.held(parts.items())))

    assert np.array_equal(b.array(), cut.whole)
    pieces = np.concatenate([*b.opened().blocks(3)])
    assert np.array_equal(pieces, cut.whole.reshape(-1))
    assert compare_joined(a, b, Tolerance())[0] is Status.IDENTICAL

    rows = [cut.random.randrange(cut.shape[0]) for _ in range(5)]
    piece = cut_out(b, [(b, rows[:2]), (b, rows[2:])], 0)
    assert np.array_equal(piece.array(), cut.whole[rows])
    own = cut_out(a, [(a, rows)], 0)
    assert compare_joined(own, piece, Tolerance())[0] is Status.IDENTICAL

    rank = cut.random.choice([*parts])
    wrong = parts[rank].copy()
    wrong.reshape(-1)[cut.random.randrange(wrong.size)] += 1
    a, b = join_both((cut.alone(), cut.held({**parts, rank: wrong}.items())))
    status, _, notes = compare_joined(a, b, Tolerance())

    assert status is Status.DIFFERENT
    named = {n.code: n.params["ranks"] for n in notes if n.params.get("side") == "B"}
    if "partial" in cut.rule.values():
        assert rank in named["note.sum_differs"]
    else:
        assert named["note.parts_differ"] == [rank]
    every = [*range(cut.shape[0])]  # rows that are cut out name it, too
    notes = compare_joined(cut_out(a, [(a, every)], 0), cut_out(b, [(b, every)], 0), Tolerance())[2]
    codes = ("note.parts_differ", "note.sum_differs")
    assert any(rank in n.params["ranks"] for n in notes if n.code in codes)


def test_a_part_that_is_missing_is_never_filled(tmp_path):
    cut = next(
        c
        for c in (Cut(seed, tmp_path) for seed in itertools.count())
        if set(map(type, c.how.values())) == {int}
    )
    parts = dict(cut.parts())
    del parts[1]

    lacking = cut.held(parts.items())
    unrecorded = join_both((cut.alone(), lacking))[1]
    recorded = Held(NAME, lacking.records, cut.layout, frozenset(cut.layout.places))

    assert "rank 1 is missing" in str(unrecorded.gap)
    assert "rank 1 is missing" in str(join_both((cut.alone(), recorded))[1].leaf.why)


def cut_by_strategy(value, devices, tensor_map, shards, device):
    """Return the part of a device, as MindSpore's documentation says it."""
    place = np.unravel_index(device, devices)
    used = {len(devices) - 1 - n for n in tensor_map if n >= 0}
    for dim, n in enumerate(tensor_map):
        if n >= 0:
            axis = len(devices) - 1 - n
            value = np.split(value, devices[axis], axis=dim)[place[axis]]
    free = [axis for axis in range(len(devices)) if axis not in used]
    if shards > 1:
        number = 0
        for axis in free:
            number = number * devices[axis] + place[axis]
        value = np.split(value, shards)[number % shards]
    return np.ascontiguousarray(value)


@pytest.mark.parametrize("seed", range(12))
def test_parameters_that_a_strategy_cuts_are_put_together(seed, tmp_path):
    """Over any device matrix, by the optimizer, too; one that is wrong names its rank."""
    of = random.Random(seed)
    devices = [of.choice([1, 2, 3]) for _ in range(of.randint(1, 3))]
    tensor_map = of.sample([*range(len(devices)), *[-1] * 2], of.randint(1, 2))
    used = {len(devices) - 1 - n for n in tensor_map if n >= 0}
    free = [size for axis, size in enumerate(devices) if axis not in used]
    shards = of.choice([0, free[-1]]) if free else 0
    size = int(np.prod(devices))
    shape = (36, 6)[: len(tensor_map)]
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    write_strategy(tmp_path / "s.ckpt", {"up.w": (devices, tensor_map)}, shards=shards)
    (tmp_path / "l.yaml").write_text(f"b: {{axes: {{dp: {size}}}, strategy: s.ckpt}}")
    layout = load_layouts(tmp_path / "l.yaml", (1, size))[1]
    name = "Cell.up.Dense.forward.0.parameters.w"

    def record(file, value):
        save_npy(tmp_path / file, value)
        leaf = Leaf("mindspore.Tensor", "Float32", value.shape)
        return Record(name, "parameters", "w", leaf, str(tmp_path / file))

    def both(changed=None):
        parts = {r: cut_by_strategy(whole, devices, tensor_map, shards, r) for r in range(size)}
        ranks = {r: record(f"{r}.npy", x + np.float32(r == changed)) for r, x in parts.items()}
        alone = {0: record("whole.npy", whole)}
        held = Held(name, ranks, layout, frozenset(ranks))
        return join_both((Held(name, alone, Layout.of_one(0), frozenset({0})), held))

    a, b = both()
    assert np.array_equal(b.array(), whole)
    assert compare_joined(a, b, Tolerance())[0] is Status.IDENTICAL
    rank = of.randrange(size)
    status, _, notes = compare_joined(*both(rank), Tolerance())
    assert status is Status.DIFFERENT
    if size > 1:
        assert [n.params["ranks"] for n in notes if n.code == "note.parts_differ"] == [[rank]]
