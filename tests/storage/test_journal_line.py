"""A line of the journal is the same when it is read as when it was made."""

import json

from hypothesis import given
from hypothesis import strategies as st

from mindrlhf_msprobe.storage.journal_line import JournalLine, read_lines

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
