"""Positional inputs carry the names that `construct` has for them; records keep their own."""

import json
from pathlib import Path

import pytest

ms = pytest.importorskip("mindspore")

from helpers.small_networks import Assembled, in_mode
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe import Probe, compare_runs, open_run
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.report.comparison import render


class Loss(nn.Cell):
    """Takes named arguments, one with a default, and any number more."""

    def construct(self, log_prob, responses_mask, scale=1.0, *others):
        return ops.sum(log_prob * responses_mask * scale)


class Model(Assembled, loss=Loss):
    def construct(self, x, mask):
        return self.loss(x, mask, 2.0)


def record(path: Path, mask: list[float], *, replaced: bool = False) -> Path:
    """Record one call; with `replaced`, a construct that names nothing hides the class's."""
    model = Model()
    if replaced:
        construct = model.loss.construct
        model.loss.construct = lambda *args: construct(*args)
    settings = {"msprobe": True, "actor_train_dump": True, "dump_path": str(path)}
    with Probe.from_config(settings) as probe:
        probe.watch(actor=model)
        with probe.phase("actor_update"):
            model(Tensor([1.0, 2.0], ms.float32), Tensor(mask, ms.float32))
        probe.step()
    return path


def names(path: Path) -> dict[str, str]:
    """Return record → argument of all inputs of a run."""
    return {
        record.name: record.argument
        for entry in open_run(path).entries("actor_update")
        for record in entry.records
        if record.io == "input"
    }


EXPECTED = {
    "Cell.root.Model.forward.0.input.0": "x",
    "Cell.root.Model.forward.0.input.1": "mask",
    "Cell.loss.Loss.forward.0.input.0": "log_prob",
    "Cell.loss.Loss.forward.0.input.1": "responses_mask",
    "Cell.loss.Loss.forward.0.input.2": "scale",
}


@pytest.mark.parametrize("replaced", [False, True])
def test_pynative(tmp_path, replaced):
    """They stand beside the inputs in the journal; msprobe's files do not have them."""
    run = record(tmp_path / "run", [1.0, 0.0], replaced=replaced)
    assert names(run) == EXPECTED
    directory = run / "actor_update/step0/rank0"
    assert "input_names" not in (directory / "dump.json").read_text()
    lines = [json.loads(line) for line in (directory / "records.jsonl").read_text().splitlines()]
    known = {line["entry"]: line.get("input_names") for line in lines}
    assert known["Cell.loss.Loss.forward.0"] == ["log_prob", "responses_mask", "scale"]


def test_graph_mode(tmp_path):
    """They are the same as in PyNative."""
    with in_mode(ms.GRAPH_MODE):
        run = record(tmp_path / "run", [1.0, 0.0])
    found = names(run)
    assert found.items() <= EXPECTED.items()
    assert found["Cell.loss.Loss.forward.0.input.1"] == "responses_mask"


def test_they_are_shown(tmp_path, capsys):
    """In the answer, in verdict.json, in the tables and by show."""
    a = record(tmp_path / "a", [1.0, 0.0])
    b = record(tmp_path / "b", [1.0, 1.0])
    result = compare_runs(a, b, output_path=tmp_path / "out", csv=True)
    first = json.loads((tmp_path / "out/verdict.json").read_text())["first_divergence"]
    assert (first["record"], first["argument"]) == ("Cell.root.Model.forward.0.input.1", "mask")
    assert "input.1 (mask) differs" in render(result)
    assert "responses_mask" in (tmp_path / "out/compare_result_actor_update.csv").read_text()
    assert main(["show", str(a), "Cell.loss.Loss.forward.0.input.1"]) == 0
    assert "forward.0.input.1 (responses_mask)" in capsys.readouterr().out


@pytest.mark.parametrize("damage", [3, [3], ["x" * 5000], {"0": "y"}, [None, "\x1b[2J"]])
def test_names_of_strangers_are_data(tmp_path, damage, capsys):
    """What is no list of names is passed over; what would move the cursor is escaped."""
    run = record(tmp_path / "run", [1.0, 0.0])
    journal = run / "actor_update/step0/rank0/records.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        line["input_names"] = damage
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert set(names(run)) == set(EXPECTED)
    assert not open_run(run).problems
    assert main(["show", str(run), "Cell.loss.Loss.forward.0.input.1"]) == 0
    assert "\x1b" not in capsys.readouterr().out
