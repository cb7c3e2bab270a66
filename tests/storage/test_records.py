"""Leaves, the names of entries and operators, lines of the journal: read as they were made."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindrlhf_msprobe.capture.tensors.summary import summarise, to_host
from mindrlhf_msprobe.storage.arrays.atomic import dump_json
from mindrlhf_msprobe.storage.journal_line import JournalLine, read_lines
from mindrlhf_msprobe.storage.leaves import Leaf, leaf_from_json
from mindrlhf_msprobe.storage.operators import OperatorName, operator_entry, parse_operator
from mindrlhf_msprobe.storage.records import Entry, cell_name, direction_of, has_plain_call


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


def test_msprobes_md5_is_a_fingerprint_of_its_own_kind():
    """What msprobe calls md5 is a CRC-32, and is named so."""
    content = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [1], "md5": "0a1b2c3d"}
    assert leaf_from_json(content).fingerprint == "crc32:0a1b2c3d"


def test_a_statistic_beyond_64_bits_is_no_number():
    """A number no tensor can hold is shown as text and never computed with."""
    leaf = leaf_from_json({"type": "mindspore.Tensor", "shape": [1], "Max": 10**400})
    assert leaf.max == str(10**400)


@pytest.mark.parametrize(
    ("name", "cell", "cls", "direction", "call"),
    [
        ("Cell.root.Net.forward.0", "root", "Net", "forward", 0),
        ("Cell.layers.0.mlp.Mlp.backward.12", "layers.0.mlp", "Mlp", "backward", 12),
        ("Cell.a.Dense.parameters_grad.0", "a", "Dense", "parameters_grad", 0),
        ("Cell.forward.0.forward.Net.forward.3", "forward.0.forward", "Net", "forward", 3),
        ("Cell.Mint.add.0.Linear.forward.2", "Mint.add.0", "Linear", "forward", 2),
        ("Module.fc.Linear.forward.1", "fc", "Linear", "forward", 1),
        ("nonsense", "nonsense", "", "", 0),
    ],
)
def test_an_entrys_name_says_cell_class_direction_and_call(name, cell, cls, direction, call):
    """The parts of an entry's name are told apart, even where cells are called like parts."""
    found = Entry(name, "actor_update", 0, 0, 0, 1)
    assert (found.cell, found.class_name) == (cell, cls)
    assert (found.direction, found.call) == (direction, call)
    assert cell_name(name) == cell


@pytest.mark.parametrize(
    ("entry", "kind", "name", "call", "direction"),
    [
        ("Mint.add.0.forward", "Mint", "add", 0, "forward"),
        ("MintFunctional.silu.3.backward", "MintFunctional", "silu", 3, "backward"),
        ("Functional.softmax.12.forward", "Functional", "softmax", 12, "forward"),
        ("Tensor.__add__.0.backward", "Tensor", "__add__", 0, "backward"),
        ("Distributed.all_reduce.0.forward", "Distributed", "all_reduce", 0, "forward"),
        ("MintDistributed.all_gather.1.forward", "MintDistributed", "all_gather", 1, "forward"),
        ("Primitive.softmax.Softmax.7.forward", "Primitive", "softmax.Softmax", 7, "forward"),
        ("Torch.bmm.0.forward", "Torch", "bmm", 0, "forward"),
    ],
)
def test_an_operators_entry_is_read_in_its_parts(entry, kind, name, call, direction):
    """Its parts are known, make the same name again, and are what an entry answers."""
    found = parse_operator(entry)
    assert found == OperatorName(kind, name, call, direction)
    assert found.entry == operator_entry(kind, name, call, direction) == entry
    assert found.operator == cell_name(entry) == f"{kind}.{name}"
    assert direction_of(entry) == direction
    assert has_plain_call(entry)
    of_run = Entry(entry, "actor_update", 0, 0, 0, 1)
    assert (of_run.cell, of_run.class_name) == (f"{kind}.{name}", "")
    assert (of_run.call, of_run.direction) == (call, direction)
    assert of_run.call_name == f"{kind}.{name}.{direction}"


@pytest.mark.parametrize(
    "name",
    [
        "Cell.Mint.add.0.Linear.forward.0",
        "Cell.model.Tensor.Norm.backward.0",
        "Mint.add.forward.0",
        "Mint.add.00.forward",
        "Mint.add.-1.forward",
        "Mint..0.forward",
        "Mint.0.forward",
        "Mint.add.0.forward\n",
        "Mint.a b.0.forward",
        "Mine.add.0.forward",
        "optimizer_state",
        "",
    ],
)
def test_what_is_no_operators_entry_is_told_from_it(name):
    """Cells that are called like operators, and names that are nearly right, are none."""
    assert parse_operator(name) is None


LEAF = st.builds(lambda value: {"type": "int", "value": value}, st.integers(-9, 9))
VALUES = st.dictionaries(st.sampled_from(["input_args", "output"]), st.lists(LEAF, max_size=3))
GRADIENTS = st.dictionaries(
    st.sampled_from(["weight", "token", "input_names", "parameters_grad"]), st.lists(LEAF)
).map(lambda gradients: {"parameters_grad": gradients})
FRAMES = st.lists(st.text(max_size=9), max_size=2).map(tuple)
PLACE = st.integers(-(2**40), 2**40)


@given(
    st.sampled_from(["forward", "backward", "parameters_grad"]),
    PLACE,
    st.none() | PLACE,
    st.none() | st.text(max_size=9),
    st.integers(0, 9),
    st.none() | st.integers(0, 99),
    VALUES,
    GRADIENTS,
    FRAMES,
)
def test_a_line_is_read_as_it_was_written(
    direction, seq, end, parent, opening, token, values, gradients, frames
):
    """Whatever it holds; what dump.json takes of it are the values alone."""
    name = f"Cell.parameters_grad.Net.{direction}.0"
    if direction == "parameters_grad":
        values = gradients
    line = JournalLine(name, seq, end, parent, opening, token, values, frames=frames)
    line.stack = 0 if frames else None
    raw, in_dump = line.to_bytes(line.stack, first=bool(frames))
    assert raw.count(b"\n") == 1
    assert raw.endswith(b"\n")
    assert JournalLine.from_json(*read_lines([raw[:-1]]).lines, {}) == line
    assert json.loads(in_dump) == values.get("parameters_grad", values)
    kinds = {io for _, io, _, _ in line.records()}
    assert ("parameters_grad" in kinds) == (direction == "parameters_grad" and bool(kinds))
