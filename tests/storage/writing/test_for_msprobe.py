"""What is written as msprobe's tools want it: they refuse a whole dump for one text or path.

Whether they take it is tried with the real msprobe in tests/promises/interop.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.runs import EVERYTHING

from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.reading.reader import open_run
from mindrlhf_msprobe.storage.writing.writer import RunWriter

RANK = "actor_update/step0/rank0"


def recorded(root, *lines):
    """Record entries of one phase and return what its files hold, by name."""
    config = {**EVERYTHING, "task": "tensor"}
    writer = RunWriter(Path(root), rank=0, config=config, existing="refuse", task="tensor")
    for number, (name, values) in enumerate(lines):
        line = JournalLine(name, 2 * number, 2 * number + 1, values=values)
        writer.sink("actor_update", 0).append(line)
    writer.sink("actor_update", 0).save("Cell.a.A.forward.0.output.x y", np.ones(2), None)
    writer.end_step(0, {})
    writer.close()
    return {
        name: json.loads((Path(root) / RANK / f"{name}.json").read_text())
        for name in ("dump", "construct")
    }


def tensor(**values):
    return {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [2], **values}


def test_infinities_are_numbers(tmp_path):
    """The text -Infinity is refused; a number beyond the largest float is infinite to anyone."""
    values = {"output": [tensor(Max="Infinity", Min="-Infinity", Mean="NaN", Norm="Infinity")]}
    values["input_kwargs"] = {"cap": {"type": "float", "value": "-Infinity"}}
    files = recorded(tmp_path / "run", ("Cell.a.A.forward.0", values))
    (found,) = files["dump"]["data"]["Cell.a.A.forward.0"]["output"]
    assert [found[name] for name in ("Max", "Min", "Norm")] == [math.inf, -math.inf, math.inf]
    assert found["Mean"] == "NaN"
    kwargs = files["dump"]["data"]["Cell.a.A.forward.0"]["input_kwargs"]
    assert kwargs["cap"]["value"] == -math.inf
    (tmp_path / "run" / RANK / layout.JOURNAL_FILE).unlink()  # what is left is what msprobe reads
    leaves = {r.path: r.leaf for r in open_run(tmp_path / "run").entries()[0].records}
    assert (leaves["0"].max, leaves["0"].min) == (math.inf, -math.inf)
    assert math.isnan(leaves["0"].mean)


@pytest.mark.parametrize("text", ["-x", "+1", "=1+1", "%d", "@x"])
def test_texts_that_look_like_formulas_get_a_space(tmp_path, text):
    """Our journal keeps the text as it was."""
    values = {"input_args": [{"type": "str", "value": text}, {"type": "str", "value": "a -x"}]}
    files = recorded(tmp_path / "run", ("Cell.a.A.forward.0", values))
    first, second = files["dump"]["data"]["Cell.a.A.forward.0"]["input_args"]
    assert (first["value"], second["value"]) == (f" {text}", "a -x")
    (entry,) = open_run(tmp_path / "run").entries()
    assert [record.leaf.value for record in entry.records] == [text, "a -x"]


def test_a_text_that_quotes_json_is_left_alone(tmp_path):
    """Only values are touched, not what looks like one inside a text."""
    text = 'say "Max": "-Infinity" and "value": "-x"'
    values = {"input_args": [{"type": "str", "value": text}]}
    files = recorded(tmp_path / "run", ("Cell.a.A.forward.0", values))
    assert files["dump"]["data"]["Cell.a.A.forward.0"]["input_args"][0]["value"] == text


def test_gradients_of_parameters_are_left_to_the_graph_builder(tmp_path):
    """It puts those into a cell's last backward entry that construct.json does not name."""
    grad = {"parameters_grad": {"weight": [tensor(Max=1.0, Min=0.0, Mean=0.5, Norm=1.0)]}}
    files = recorded(
        tmp_path / "run",
        ("Cell.a.A.forward.0", {"output": []}),
        ("Cell.a.A.backward.0", {"output": []}),
        ("Cell.a.A.parameters_grad.0", grad),
        ("Cell.b.B.parameters_grad.0", grad),
    )
    assert {*files["dump"]["data"]} - {*files["construct"]} == {"Cell.a.A.parameters_grad.0"}
    assert [e.name for e in open_run(tmp_path / "run").entries()][2:] == [
        "Cell.a.A.parameters_grad.0",
        "Cell.b.B.parameters_grad.0",
    ]


@pytest.mark.parametrize("name", ["x y", "a~b", "梯度", "50%", "a/b", "x" * 300, "=1", "", "."])
def test_files_of_records_have_names_msprobe_takes(name):
    """It reads no file whose path has other characters than these."""
    file = layout.record_file_name(f"Cell.a.A.forward.0.output.{name}")
    assert re.fullmatch(r"[a-zA-Z0-9_.:-]+\.npy", file)
    assert len(file) <= layout.MAX_NAME_BYTES


def test_names_that_had_to_be_changed_stay_apart():
    """Records whose names become alike still have files of their own."""
    names = ["a b", "a~b", "a_b", "梯度", "答案", "x" * 300, "x" * 301]
    assert len({layout.record_file_name(name) for name in names}) == len(names)
    assert layout.record_file_name("Cell.a.A.forward.0.output.0") == (
        "Cell.a.A.forward.0.output.0.npy"
    )
