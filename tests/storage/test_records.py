"""Leaves, structures and entries: their JSON both ways."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from mindrlhf_msprobe.capture.tensors.summary import summarise, to_host
from mindrlhf_msprobe.common.message import as_message
from mindrlhf_msprobe.storage.arrays.atomic import dump_json
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.leaves import Leaf, child_path, is_leaf, leaf_from_json, leaves
from mindrlhf_msprobe.storage.records import Entry, cell_name


def through_json(leaf, form=Leaf.to_json):
    text = dump_json(form(leaf))
    return leaf_from_json(json.loads(text, parse_constant=pytest.fail))


@pytest.mark.parametrize("form", [Leaf.to_json, Leaf.to_key_data_json])
@pytest.mark.parametrize(
    "array",
    [
        np.float32([1, -2, 0.1]),
        np.float16([65504, 65504]),
        np.float64([math.nan, math.inf, -math.inf]),
        np.int64([-(2**63), 2**63 - 1]),
        np.uint64([2**64 - 1]),
        np.bool_([True, False]),
        np.complex64([1 + 2j]),
        np.float32(3.5),
        np.empty((0, 3), np.float32),
    ],
    ids=lambda a: str(a.dtype),
)
def test_a_tensors_description_survives_valid_json(form, array):
    """Dtype, shape, statistics (NaN and infinities too) and counts come back from valid JSON."""
    leaf = summarise(to_host(array))
    found = through_json(leaf, form)
    for name in ("type", "dtype", "shape", "nan_count", "inf_count", "fingerprint"):
        assert getattr(found, name) == getattr(leaf, name)
    for name in ("max", "min", "mean", "norm"):
        expected = getattr(leaf, name)
        value = getattr(found, name)
        assert value == expected or (math.isnan(value) and math.isnan(expected)), name


@pytest.mark.parametrize(
    "value", [None, True, 3, 1.5, math.inf, -math.inf, "text", "NaN", "", "答"]
)
def test_a_python_value_survives_json(value):
    """None, numbers and texts come back as they were."""
    assert through_json(Leaf(type(value).__name__, value=value)).value == value


def test_what_could_not_be_recorded_stays_marked():
    """An error and an opaque value keep their marks."""
    assert through_json(Leaf("Tensor", why=as_message("no memory"))).why == as_message("no memory")
    assert through_json(Leaf("Cache", opaque=True)).opaque


def test_msprobes_md5_is_a_fingerprint_of_its_own_kind():
    """What msprobe calls md5 is a CRC-32, and is named so."""
    content = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [1], "md5": "0a1b2c3d"}
    assert leaf_from_json(content).fingerprint == "crc32:0a1b2c3d"


@pytest.mark.parametrize(
    "content",
    [
        {"type": "mindspore.Tensor", "shape": [-1], "Max": 1},
        {"type": "mindspore.Tensor", "shape": "3", "Max": 1},
        {"type": "mindspore.Tensor", "shape": [1], "Max": [1]},
        {"type": "mindspore.Tensor", "shape": [1], "Max": {"a": 1}},
    ],
)
def test_a_damaged_description_is_refused(content):
    """A shape or a statistic that cannot be one is an error, not a value."""
    with pytest.raises(ValueError, match=r"shape is|a statistic is"):
        leaf_from_json(content)


def test_a_statistic_beyond_64_bits_is_no_number():
    """A number no tensor can hold is shown as text and never computed with."""
    leaf = leaf_from_json({"type": "mindspore.Tensor", "shape": [1], "Max": 10**400})
    assert leaf.max == str(10**400)


def test_structures_are_walked_in_order_with_unambiguous_paths():
    """Every value of nested lists and dicts has its own path, dots in keys included."""
    leaf = Leaf("int", value=1).to_json()
    content = [leaf, {"a.b": leaf, "a": {"b": leaf}, "": leaf, "c/d": [None, leaf]}]
    paths = [path for path, _ in leaves(content)]
    assert paths == ["0", "1.a%2Eb", "1.a.b", "1.%", "1.c%2Fd.0", "1.c%2Fd.1"]
    assert child_path("", "%2E") != child_path("", ".")


def test_a_mapping_that_looks_like_a_leaf_is_a_mapping():
    """A user's dict with the keys shape and max keeps its values."""
    leaf = Leaf("int", value=1).to_json()
    assert not is_leaf({"shape": [], "max": leaf})
    assert not is_leaf({"type": leaf})
    assert is_leaf({"shape": [2], "max": 1.0})


def test_something_else_in_a_structure_is_an_error():
    """A bare number where a description should be is refused."""
    with pytest.raises(ValueError, match="expected a description"):
        list(leaves([3]))


def entry(name):
    return Entry(name, "actor_update", 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("name", "cell", "cls", "direction", "call"),
    [
        ("Cell.root.Net.forward.0", "root", "Net", "forward", 0),
        ("Cell.layers.0.mlp.Mlp.backward.12", "layers.0.mlp", "Mlp", "backward", 12),
        ("Cell.a.Dense.parameters_grad.0", "a", "Dense", "parameters_grad", 0),
        ("Cell.forward.0.forward.Net.forward.3", "forward.0.forward", "Net", "forward", 3),
        ("Module.fc.Linear.forward.1", "fc", "Linear", "forward", 1),
        ("nonsense", "nonsense", "", "", 0),
    ],
)
def test_an_entrys_name_says_cell_class_direction_and_call(name, cell, cls, direction, call):
    """The parts of an entry's name are told apart, even where cells are called like parts."""
    found = entry(name)
    assert (found.cell, found.class_name) == (cell, cls)
    assert (found.direction, found.call) == (direction, call)
    assert cell_name(name) == cell


def test_records_are_named_as_msprobe_names_them():
    """Inputs, keyword inputs, outputs and parameters get msprobe's record names."""
    leaf = Leaf("int", value=1).to_json()
    content = {
        "input_args": [leaf],
        "input_kwargs": {"mask": leaf},
        "output": [leaf, leaf],
        "parameters": {"weight": leaf},
    }
    names = [name for name, *_ in JournalLine("E", 0, values=content).records()]
    assert names == ["E.input.0", "E.input.mask", "E.output.0", "E.output.1", "E.parameters.weight"]
    name = "Cell.a.B.parameters_grad.0"
    grads = list(
        JournalLine.from_json(
            {"entry": name, "seq": 3, "end": None, "parent": None, "opening": 0}
            | {"parameters_grad": {"weight": [leaf]}},
            {},
        ).records()
    )
    assert [name for name, *_ in grads] == ["Cell.a.B.parameters_grad.0.weight"]
