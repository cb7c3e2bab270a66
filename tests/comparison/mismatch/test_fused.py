"""Fused weights are found by their rows, whatever the order, and by names where rows differ."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mindrlhf_msprobe.comparison.mismatch.weights import compare_weights
from mindrlhf_msprobe.comparison.pairing.fused import find_fused
from mindrlhf_msprobe.comparison.pairing.mapping import (
    FusedRule,
    FusedRules,
    interleaved,
    load_cells,
)
from mindrlhf_msprobe.comparison.pairing.names import Names, name_rule
from mindrlhf_msprobe.errors import ConfigError
from mindrlhf_msprobe.storage.arrays.npy import dtype_name, save_npy
from mindrlhf_msprobe.storage.arrays.sketches import ALGORITHM, COLUMNS, HEAD, SketchPlace, bytes_of
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Record

INPUTS = 10


@pytest.fixture
def records(tmp_path):
    """Return what makes records of arrays, by their names in the network, each in a new file."""

    def made(write, leaf_of, arrays):
        found = {}
        for name, array in arrays.items():
            name = name.replace("__", ".")
            file = tmp_path / str(len([*tmp_path.iterdir()]))
            leaf, where = leaf_of(array), write(file, array)
            found[name] = Record(name, "parameters", "weight", leaf, **where)
        return found

    return made


@pytest.fixture
def stored(records):
    """Return what makes records of whole arrays."""

    def write(file, array):
        save_npy(file.with_suffix(".npy"), array)
        return {"location": f"{file}.npy"}

    def leaf(array):
        return Leaf("mindspore.Tensor", dtype_name(array.dtype), array.shape)

    return lambda **arrays: records(write, leaf, arrays)


@pytest.fixture
def sketched(records):
    """Return what makes records of sketches alone."""

    def write(file, array):
        file.write_bytes(HEAD + bytes_of(array).tobytes())
        return {"sketches": str(file)}

    def leaf(array):
        extremes = {"max": float(array.max()), "min": float(array.min())}
        sketch = SketchPlace(ALGORITHM, COLUMNS, len(HEAD))
        return Leaf("mindspore.Tensor", "Float32", array.shape, **extremes, sketch=sketch)

    return lambda **arrays: records(write, leaf, arrays)


def parts(draw, count, groups):
    random = np.random.default_rng(draw.randrange(1 << 30))
    sizes = [groups * draw.randrange(1, 4) for _ in range(count)]
    return [random.standard_normal((size, INPUTS)).astype(np.float32) for size in sizes]


@pytest.mark.parametrize("seed", range(20))
def test_rows_say_which_parts_a_fused_weight_has_and_in_which_order(stored, seed):
    """One behind the other, in groups, shuffled; as [outputs, inputs] or transposed."""
    draw = random.Random(seed)
    groups = draw.choice([1, 2, 4])
    made = parts(draw, draw.choice([2, 3]), groups)
    names = [f"layers__0__w{n}__weight" for n in range(len(made))]
    whole = np.concatenate(made)
    order = interleaved([len(part) for part in made], groups)
    if draw.random() < 0.3:
        order = np.array(draw.sample(range(len(whole)), len(whole)))
    transposed = draw.random() < 0.5
    fused = np.ascontiguousarray(whole[order].T if transposed else whole[order])
    fused = fused.astype(draw.choice([np.float32, np.float16]))
    rollout = stored(layers__0__fused__weight=fused)
    training = stored(**dict(zip(names, made)))
    training |= stored(layers__0__other__weight=made[0] + 1)
    (found,) = find_fused(rollout, training).values()
    assert found.transposed == transposed
    beside = {f"layers.0.w{n}": part for n, part in enumerate(made)}
    told = np.concatenate([beside[part] for part in found.parts])[found.order]
    assert np.array_equal(told, whole[order])
    (pair,) = compare_weights(rollout, training, Names()).pairs
    assert pair.equal
    assert pair.relative == 0 if fused.dtype == np.float32 else pair.relative < 2**-11


def test_a_layer_that_was_not_synchronised_has_the_order_of_the_others(stored):
    """Its rows are nowhere; what holds for layer 0 holds for it, and it differs."""
    draw = random.Random(1)
    first, second = parts(draw, 2, 2), parts(draw, 2, 2)
    second = [np.resize(part, like.shape) + 1 for part, like in zip(second, first)]
    order = interleaved([len(part) for part in first], 2)
    training = stored(
        layers__0__a__weight=first[0],
        layers__0__b__weight=first[1],
        layers__1__a__weight=second[0],
        layers__1__b__weight=second[1],
    )
    rollout = stored(
        layers__0__ab__weight=np.concatenate(first)[order],
        layers__1__ab__weight=np.concatenate(second)[order] + np.float32(0.001),
    )
    weights = compare_weights(rollout, training, Names())
    assert [pair.equal for pair in weights.pairs] == [True, False]
    (differs,) = weights.unequal
    assert differs.training == ("layers.1.a.weight", "layers.1.b.weight")
    assert differs.relative == pytest.approx(
        0.001 / np.sqrt(np.mean(np.concatenate(second) ** 2)), 1e-4
    )


@pytest.mark.parametrize(
    "names",
    [
        ("qkv_proj", "wq", "wk", "wv"),
        ("gate_up_proj", "w1", "w3"),
        ("w_qkv", "q_proj", "k_proj", "v_proj"),
    ],
)
def test_presets_know_usual_names_where_no_layer_agrees(stored, names):
    """Then the parts stand one behind the other."""
    own, *others = names
    made = parts(random.Random(2), len(others), 1)
    training = stored(**{f"attention__{n}__weight": part for n, part in zip(others, made)})
    rollout = stored(**{f"attention__{own}__weight": np.concatenate(made) * np.float32(1.5)})
    (pair,) = compare_weights(rollout, training, Names()).pairs
    assert (pair.equal, pair.relative) == (False, pytest.approx(0.5, rel=1e-6))


def test_a_mapping_says_how_rows_are_interleaved_where_nothing_else_does(stored, tmp_path):
    """Groups of two parts whose weights differ in all layers."""
    made = parts(random.Random(3), 2, 4)
    order = interleaved([len(part) for part in made], 4)
    training = stored(net__left__weight=made[0], net__right__weight=made[1])
    rollout = stored(net__both__weight=np.concatenate(made)[order] * np.float32(1.25))
    file = tmp_path / "cells.yaml"
    file.write_text("net.both: {parts: [net.left, net.right], groups: 4}\nold.*: new.*\n")
    mapping = load_cells(file)
    (pair,) = compare_weights(rollout, training, Names(), mapping.fused).pairs
    assert (pair.equal, pair.relative) == (False, pytest.approx(0.25, rel=1e-6))
    assert mapping.names[0].rename("old.x") == "new.x"


@pytest.mark.parametrize(
    "target",
    [
        "[a]",
        "3",
        "{parts: [a, b], groups: 0}",
        "{parts: [a, b], heads: 2}",
        "{groups: 2}",
        "[a, 3]",
    ],
)
def test_a_mapping_of_another_form_is_refused(tmp_path, target):
    """The message names the file and the line."""
    file = tmp_path / "cells.yaml"
    file.write_text(f"qkv: {target}\n")
    with pytest.raises(ConfigError, match="qkv"):
        load_cells(file)


def test_a_weight_that_is_transposed_is_the_same(stored):
    """[inputs, outputs] against [outputs, inputs], square or not; and one that is not, differs."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    square = np.arange(9, dtype=np.float32).reshape(3, 3)
    rollout = stored(
        a__weight=np.ascontiguousarray(array.T), b__weight=np.ascontiguousarray(square.T)
    )
    training = stored(a__weight=array, b__weight=square)
    assert [p.equal for p in compare_weights(rollout, training, Names()).pairs] == [True, True]
    rollout |= stored(a__weight=np.ascontiguousarray(array.T) + 1)
    weights = compare_weights(rollout, training, Names())
    assert {p.rollout: p.equal for p in weights.pairs} == {"a.weight": False, "b.weight": True}


@pytest.mark.parametrize("seed", range(10))
def test_rows_of_another_layer_are_weights_that_were_mixed_up(stored, seed):
    """Swapped layers, or one that is in two places, differ from what their own layers train."""
    draw = random.Random(seed)
    order = interleaved([4, 4], draw.choice([1, 2]))
    made = [np.random.default_rng([seed, n]).standard_normal((8, INPUTS)) for n in range(4)]
    layers = [array.astype(np.float32) for array in made]
    training, rollout = {}, {}
    brought = draw.choice([[1, 0, 2, 3], [0, 1, 1, 3], [0, 0, 2, 3], [0, 3, 2, 1]])
    for number, array in enumerate(layers):
        training |= {f"model__layers__{number}__q__weight": array[:4]}
        training |= {f"model__layers__{number}__k__weight": array[4:]}
        rollout |= {f"blocks__{number}__qk__weight": layers[brought[number]][order]}
    weights = compare_weights(stored(**rollout), stored(**training), Names())
    assert {pair.rollout: pair.training for pair in weights.pairs} == {
        f"blocks.{n}.qk.weight": (f"model.layers.{n}.q.weight", f"model.layers.{n}.k.weight")
        for n in range(4)
    }
    assert [pair.equal for pair in weights.pairs] == [n == of for n, of in enumerate(brought)]


@pytest.mark.parametrize("stale", [False, True])
def test_two_layers_that_were_exchanged_are_compared_with_their_own(stored, stale):
    """Both numbers are there: they are no other numbering, whatever the rows say."""
    draw = random.Random(4)
    layers = [parts(draw, 2, 1)]
    layers.append([part[::-1] * np.float32(0.5) for part in layers[0]])
    held = {
        f"layers__{number}__w{n}__weight": part
        for number, made in enumerate(layers)
        for n, part in enumerate(made)
    }
    fused = [np.concatenate(made) for made in layers[::-1]]
    if stale:  # of one layer the rows are nowhere
        fused[1] = fused[1] * np.float32(1.1)
    rollout = stored(**{f"layers__{n}__ab__weight": one for n, one in enumerate(fused)})
    weights = compare_weights(rollout, stored(**held), Names())
    assert {pair.rollout: (pair.equal, pair.training) for pair in weights.pairs} == {
        f"layers.{n}.ab.weight": (False, (f"layers.{n}.w0.weight", f"layers.{n}.w1.weight"))
        for n in range(2)
    }


def test_layers_that_are_numbered_otherwise_are_those_of_their_rows(stored):
    """Where all of them say the same, as in a stage of a pipeline, so they are called."""
    layers = np.random.default_rng(0).standard_normal((3, 8, INPUTS)).astype(np.float32)
    training, rollout = {}, {}
    for number, array in enumerate(layers):
        training |= {f"layers__{number + 4}__q__weight": array[:4]}
        training |= {f"layers__{number + 4}__k__weight": array[4:]}
        rollout |= {f"blocks__{number}__qk__weight": array}
    weights = compare_weights(stored(**rollout), stored(**training), Names())
    assert all(pair.equal for pair in weights.pairs)
    assert not any(weights.alone)


def test_a_mapping_says_which_layer_it_is(stored, tmp_path):
    """Its parts count, whatever rows the values are those of."""
    first, second = np.random.default_rng(0).standard_normal((2, 8, INPUTS)).astype(np.float32)
    training = stored(
        h__0__a__weight=first[:4],
        h__0__b__weight=first[4:],
        h__1__a__weight=second[:4],
        h__1__b__weight=second[4:],
    )
    rollout = stored(h__0__ab__weight=second, h__1__ab__weight=first)
    file = tmp_path / "names.yaml"
    file.write_text("h.*.ab: [h.*.a, h.*.b]\n", encoding="utf-8")
    rules = load_cells(file).fused
    weights = compare_weights(rollout, training, Names(), rules)
    assert [(pair.training[0], pair.equal) for pair in weights.pairs] == [
        ("h.0.a.weight", False),
        ("h.1.a.weight", False),
    ]


@pytest.mark.parametrize("seed", range(5))
def test_weights_of_a_lower_dtype_are_equal_where_only_the_cast_is_between(stored, seed):
    """A rollout network in float16 has what its cast leaves; one value beside it is another."""
    made = np.random.default_rng(seed).standard_normal((8, INPUTS)).astype(np.float32)
    training = stored(a__weight=made[:4], b__weight=made[4:], head__weight=made)
    cast = made.astype(np.float16)
    rollout = stored(ab__weight=cast, head__weight=cast)
    rules = FusedRules([FusedRule((name_rule("f", "ab", "a"), name_rule("f", "ab", "b")))])
    weights = compare_weights(rollout, training, Names(), rules)
    assert [pair.equal for pair in weights.pairs] == [True, True]
    assert all(0 < pair.relative < 2**-11 for pair in weights.pairs)
    changed = cast.copy()
    changed[seed, 3] = np.nextafter(changed[seed, 3], np.float16(9))
    rollout = stored(ab__weight=changed, head__weight=changed)
    weights = compare_weights(rollout, training, Names(), rules)
    assert [pair.equal for pair in weights.pairs] == [False, False]


@pytest.mark.parametrize("seed", range(6))
def test_a_fused_weight_of_the_training_alone_is_compared_with_each_part(stored, seed):
    """In any order and layout; the part that is another one is told from the others."""
    draw = random.Random(seed)
    groups = draw.choice([1, 2])
    first = parts(draw, 3, groups)
    held = [*first, *(part[::-1] * np.float32(0.5) for part in first)]
    order = interleaved([len(part) for part in first], groups)
    whole = [np.concatenate(of)[order] for of in (held[:3], held[3:])]
    if draw.random() < 0.5:
        whole = [np.ascontiguousarray(one.T) for one in whole]
    training = stored(**{f"layers__{n}__fused__weight": one for n, one in enumerate(whole)})
    names = [f"layers__{layer}__w{n}__weight" for layer in range(2) for n in range(3)]
    wrong = held[-1] * np.float32(1.1)
    pairs = compare_weights(stored(**dict(zip(names, [*held[:-1], wrong]))), training, Names())
    found = {pair.rollout: pair for pair in pairs.pairs}
    assert [*found] == [name.replace("__", ".") for name in names]
    differs = found.pop("layers.1.w2.weight")
    assert all(pair.equal for pair in found.values())
    assert differs.equal is False
    assert differs.relative == pytest.approx(0.1, 1e-3)
    assert differs.training == ("layers.1.fused.weight",)


@pytest.mark.parametrize("shape", [(64, 64), (100, 40), (200, 130)])
def test_sketches_of_a_transposed_weight_are_compared(stored, sketched, shape):
    """By sums of 64 rows and columns; how far another one is apart is estimated from them."""
    values = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    turned = sketched(a=np.ascontiguousarray(values.T))
    for made in (sketched, stored):  # a sketch is made of elements where the other side has one
        assert compare_weights(turned, made(a=values), Names()).pairs[0].equal
        (pair,) = compare_weights(turned, made(a=values * np.float32(1.1)), Names()).pairs
        assert pair.equal is False
        assert 0.01 < pair.relative < 0.3


def test_of_two_layouts_the_nearer_one_is_measured(stored):
    """A square weight that is transposed on one side, and another one by a tenth."""
    values = np.random.default_rng(5).standard_normal((20, 20)).astype(np.float32)
    rollout = stored(wo__weight=np.ascontiguousarray(values.T) * np.float32(1.1))
    (pair,) = compare_weights(rollout, stored(wo__weight=values), Names()).pairs
    assert (pair.equal, pair.relative) == (False, pytest.approx(0.1, 1e-3))


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_a_fused_weight_that_both_have_in_another_order_are_the_same(stored, seed):
    """By head in one, queries, keys and values one behind the other in the other."""
    draw = random.Random(seed)
    groups, size = draw.choice([2, 4]), draw.choice([2, 3])
    sizes = [groups * size * draw.choice([1, 2]), groups * size, groups * size]
    whole = np.random.default_rng(seed).normal(size=(sum(sizes), 6)).astype(np.float32)
    order = interleaved(sizes, groups)
    names = [f"self_attention__linear_{own}__weight" for own in ("qkv", "proj")]
    weights = compare_weights(
        *(stored(**dict.fromkeys(names, rows)) for rows in (whole[order], whole)), Names()
    )
    # Of a weight that is not fused, rows in another order are an error.
    assert {pair.rollout: pair.equal for pair in weights.pairs} == {
        "self_attention.linear_qkv.weight": True,
        "self_attention.linear_proj.weight": False,
    }
    fused = weights.fused["self_attention.linear_qkv"]
    assert np.array_equal(whole[fused.order], whole[order])


@pytest.mark.parametrize(
    ("sizes", "groups", "equal", "unlike"),
    [
        ((512, 128, 128), 1, True, False),
        ((512, 128, 128), 2, True, False),  # heads of 64 columns, by key-value head
        ((96, 32, 32), 1, None, False),  # no whole blocks: only the extremes tell
    ],
)
def test_sketches_of_the_bias_of_a_fused_projection_are_compared(
    sketched, sizes, groups, equal, unlike
):
    """A bias is one row: its sums line up with those of its parts, or nothing is said."""
    rng = np.random.default_rng(7)
    held = {f"q{n}__weight": rng.standard_normal((s, 64)) for n, s in enumerate(sizes)}
    held |= {f"q{n}__bias": rng.standard_normal(s) for n, s in enumerate(sizes)}
    held = {name: array.astype(np.float32) for name, array in held.items()}
    training = sketched(**held)
    order = interleaved(sizes, groups)
    weight, bias = (
        np.concatenate([held[f"q{n}__{own}"] for n in range(len(sizes))])[order]
        for own in ("weight", "bias")
    )
    same = compare_weights(sketched(fused__weight=weight, fused__bias=bias), training, Names())
    assert {pair.rollout: pair.equal for pair in same.pairs} == {
        "fused.weight": True,
        "fused.bias": equal,
    }
    stale = compare_weights(
        sketched(fused__weight=weight, fused__bias=bias * np.float32(1.1)), training, Names()
    )
    pair = next(pair for pair in stale.pairs if pair.rollout == "fused.bias")
    assert pair.equal is unlike
    assert pair.relative is None or pair.relative == pytest.approx(0.1, rel=1e-3)
    turned = compare_weights(training, sketched(fused__weight=weight, fused__bias=bias), Names())
    of_biases = {pair.equal for pair in turned.pairs if pair.rollout.endswith("bias")}
    assert of_biases == {equal}
