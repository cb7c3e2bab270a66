"""Names of operators' entries are msprobe's, and are told from those of cells."""

from __future__ import annotations

import pytest

from mindrlhf_msprobe.storage.journal_line import JournalLine, read_lines
from mindrlhf_msprobe.storage.operators import OperatorName, operator_entry, parse_operator
from mindrlhf_msprobe.storage.records import Entry, cell_name, direction_of, has_plain_call


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


def test_a_cell_that_is_called_like_an_operator_is_a_cell():
    """What an entry answers does not change for it."""
    entry = Entry("Cell.Mint.add.0.Linear.forward.2", "actor_update", 0, 0, 0, 1)
    assert (entry.cell, entry.class_name, entry.call) == ("Mint.add.0", "Linear", 2)
    assert has_plain_call(entry.name)


@pytest.mark.parametrize("around", [None, "", "root", "model.layers.0"])
def test_an_operators_line_keeps_the_cell_around_it(around):
    """The cell's name is read as it was written, "" outside every cell."""
    line = JournalLine("Mint.add.0.forward", 3, 4, None, around=around)
    raw, in_dump = line.to_bytes(None, first=False)
    assert JournalLine.from_json(*read_lines([raw[:-1]]).lines, {}) == line
    assert in_dump == b"{}"
