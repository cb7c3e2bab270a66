"""`mindrlhf-msprobe show RUN ENTRY --code`: the user's code behind cells and operators."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.operators import LAYERS, record_operators
from helpers.runs import MSPROBE_DATA, Recording

SOURCE = """\
def construct(self, x):
    q = self.q(x)
    scores = mint.matmul(q, x)
    return scores
"""


@pytest.fixture
def recorded(tmp_path):
    """Return a function that records one cell that was called from a line of a file."""

    def record(file, line=3, text="scores = mint.matmul(q, x)"):
        recording = Recording(tmp_path / "run")
        frames = (
            "File /opt/site-packages/mindspore/nn/cell.py, line 9, in __call__, \n f()",
            f"File {file}, line {line}, in construct, \n {text}",
            "File /home/u/train.py, line 7, in step, \n loss = network(x)",
        )
        with recording.phase("actor_update"):
            recording.call("head", "Dense", np.tanh, np.ones(2, np.float32), frames=frames)
        recording.end_step()
        return recording.close()

    return record


ENTRY = "Cell.head.Dense.forward.0"


def test_the_code_around_the_line_is_shown(tmp_path, recorded, cli):
    """The user's line, marked, with those around it, and who called that."""
    file = tmp_path / "net.py"
    file.write_text(SOURCE)
    lines = cli("show", recorded(file), ENTRY, "--code").out.splitlines()
    assert lines[0].startswith(f"{ENTRY}  step 0, actor_update, rank 0")
    assert f"{file}:3 in construct" in lines[1]
    assert "  > 3      scores = mint.matmul(q, x)" in lines
    assert "    2      q = self.q(x)" in lines
    assert lines[-1] == "  called from /home/u/train.py:7 in step: loss = network(x)"


def test_gradients_of_parameters_have_the_line_of_their_cell(tmp_path, recorded, cli):
    """They have no call of their own in the user's code."""
    file = tmp_path / "net.py"
    file.write_text(SOURCE)
    run = recorded(file)
    journal = next(run.rglob("records.jsonl"))
    leaf = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [1]}
    entry = "Cell.head.Dense.parameters_grad.1"
    line = {"entry": entry, "seq": 90, "end": 91, "parent": None, "opening": 0}
    line["parameters_grad"] = {"weight": [leaf]}
    with journal.open("a") as lines:
        lines.write(json.dumps(line) + "\n")
    assert (
        "  > 3      scores = mint.matmul(q, x)"
        in cli("show", run, entry, "--code").out.splitlines()
    )


def test_an_entry_says_where_it_was_called(tmp_path, recorded, cli):
    """Without --code: one line, the framework's own frames left out."""
    last = cli("show", recorded(tmp_path / "net.py"), ENTRY).out.splitlines()[-1]
    assert last == f"called from {tmp_path}/net.py:3 in construct: scores = mint.matmul(q, x)"


def test_a_file_that_is_not_at_hand_leaves_what_was_recorded(tmp_path, recorded, cli):
    shown = cli("show", recorded(tmp_path / "net.py"), ENTRY, "--code").out
    assert "  > 3  scores = mint.matmul(q, x)" in shown
    assert "net.py is not on this machine: this is what was recorded" in shown


@pytest.mark.parametrize("content", ["other = 1\n" * 5, "x = 1\n", ""])
def test_a_file_that_was_edited_since_is_not_shown(tmp_path, recorded, content, cli):
    """The line is another one by now: no wrong code is shown."""
    file = tmp_path / "net.py"
    file.write_text(content)
    shown = cli("show", recorded(file), ENTRY, "--code").out
    assert f"line 3 of {file} has changed since" in shown
    assert "other = 1" not in shown
    assert "> 3  scores = mint.matmul(q, x)" in shown


@pytest.mark.parametrize("name", ["secret.txt", "net.py"])
def test_a_dump_does_not_decide_which_file_is_shown(tmp_path, recorded, name, cli):
    """A file of Python with that very line, or nothing: neither others nor what is no file."""
    file = tmp_path / name
    if name == "net.py":
        file.mkdir()
    else:
        file.write_text("token = 1\nsecret = 2\nscores = mint.matmul(q, x)\n")
    assert "secret =" not in cli("show", recorded(file), ENTRY, "--code").out


def test_operators_say_their_cell_and_line_backward_entries_too(tmp_path, cli):
    """A backward entry has the line of its forward entry."""
    record_operators(tmp_path / "run")
    for name in ("Mint.matmul.2.forward", "Mint.matmul.2.backward"):
        last = cli("show", tmp_path / "run", name).out.splitlines()[-1]
        assert last.startswith(f"called inside {LAYERS[1]} from /home/u/net.py:")
        (found,) = json.loads(cli("show", tmp_path / "run", name, "--code", "--json").out)
        assert found["entry"] == name
        assert found["cell"] == LAYERS[1]
        assert found["callers"][0]["text"] == "q = mint.matmul(x, self.weight)"
        assert found["source"] == {}
    assert (
        "called outside every cell from" in cli("show", tmp_path / "run", "Mint.mean.0.forward").out
    )


def test_msprobes_stacks_are_read_the_same(cli):
    """Its frames begin with MindSpore's own; the user's line is the first that is not."""
    run = str(MSPROBE_DATA / "operators_mix_plain")
    last = cli("show", run, "Functional.softmax.0.forward", "--lang", "en").out.splitlines()[-1]
    assert last.startswith("called inside layers.0 from recorded_operators.py:")
    assert last.endswith("shares = ops.softmax(scores * 0.5, -1)")


@pytest.mark.parametrize(("name", "said"), [([], "give the name"), (["actor_update"], "actor_upd")])
def test_code_is_that_of_an_entry(tmp_path, recorded, name, said, cli):
    assert said in cli("show", recorded(tmp_path / "net.py"), *name, "--code", code=2).err
    assert ENTRY in cli("show", tmp_path / "run", "Cell.hed.Dense.forward.0", "--code", code=2).err
