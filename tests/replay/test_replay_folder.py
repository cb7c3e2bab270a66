"""The folder: values are data whatever a dump holds; dtypes are kept."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import mint
from replay.operator_runs import BFloat16, Leaf, Operation, write_run

from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.errors import MsprobeError, UsageError
from mindrlhf_msprobe.replay.offline.computing import Recomputed, array_of, prepare
from mindrlhf_msprobe.replay.offline.replaying import replay_entry
from mindrlhf_msprobe.replay.offline.script import folder, template
from mindrlhf_msprobe.replay.offline.script.recorded import Probed

X = np.arange(6, dtype=np.float32).reshape(2, 3)
EVIL = '"""); import os; os.system("touch stolen"); ("""\n# subject: end\nimport os\r'


@pytest.fixture(scope="module", autouse=True)
def spoken() -> None:
    template.WORDS.update(folder.words_of("en"))
    prepare()


def added(path: Path, **where: Any) -> Path:
    """Write a run in which two tensors are added."""
    return write_run(path, [Operation("Mint.add", (X, X), {}, (X,))], **where)


def written(tmp_path: Path, *calls: Operation, entry: str | None = None) -> Path:
    """Write the folder of the first call, and return it."""
    run = write_run(tmp_path / "run", [*calls])
    name = entry or f"{calls[0].operator}.0.forward"
    replay_entry(Probed((str(run),), name, str(tmp_path / "out")), run=False)
    return tmp_path / "out"


def test_nothing_that_a_dump_names_becomes_code_or_a_path(tmp_path, monkeypatch):
    """Names of phases, arguments, texts of values: they stand in entry.json alone."""
    monkeypatch.chdir(tmp_path)
    evil = {"../../stolen": X, EVIL: X, "a/b\\c": X, "x" * 300: X}
    run = write_run(tmp_path / "run", [Operation("Mint.add", (X,), evil, (X,))])
    plain = Operation("Mint.add", (X, X), {}, (X,))
    asked = Probed((str(run),), "Mint.add.0.forward", str(tmp_path / "out"))
    replay_entry(asked, run=False)
    healthy = written(tmp_path / "healthy", plain)
    script = (tmp_path / "out" / "replay.py").read_bytes()
    assert script == (healthy / "replay.py").read_bytes()
    ast.parse(script)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    outside = [f for f in files if not f.is_relative_to(tmp_path / "out")]
    assert not any("stolen" in path.name for path in outside)
    held = {path.name for path in (tmp_path / "out" / "a").iterdir()}
    assert len(held) == 7  # entry.json, five inputs, one output
    assert all(len(name) < 120 and "/" not in name for name in held)


@pytest.mark.parametrize(
    "operator",
    [
        *("Functional.os", "Mint.nn", "Mint.__builtins__", "Functional.Custom", "Tensor.__class__"),
        *("Functional.tensordump", "Functional.print_", "Primitive.x.Custom", "Mint.Tensor"),
        *("Tensor.__reduce__", "Tensor.__init__", "Functional.sys.exit", "Distributed.all_reduce"),
        "Torch.matmul",
    ],
)
def test_only_operators_of_the_installed_list_are_replayed(tmp_path, operator):
    with pytest.raises(UsageError):
        written(tmp_path, Operation(operator, (X,), {}, (X,)))
    assert not (tmp_path / "out" / "replay.py").exists()


@pytest.mark.parametrize(
    "value",
    [
        {"type": "my.Cache", "value": None, "opaque": True},
        {"type": "str", "value": "../../etc/passwd"},
        {"type": "str", "value": EVIL},
        {"type": "mindspore.dtype", "value": "__import__('os')"},
        {"type": "slice", "value": ["a", 1, 2]},
        {"type": "mindspore.Tensor", "dtype": "Object", "shape": [1], "data_name": "x.npy"},
    ],
)
def test_arguments_that_cannot_be_made_are_refused(tmp_path, value):
    with pytest.raises(MsprobeError):
        written(tmp_path, Operation("Mint.add", (X, Leaf(value)), {}, (X,)))


@pytest.mark.parametrize("network", [True, False])
def test_a_script_holds_what_its_entry_needs(network):
    """Nothing of networks for an operator; nothing is missing; it stays short."""
    subject = folder.subject_of_operator("mindspore.mint", "exp")
    script = folder.script_of(subject, network=network)
    compile(script, folder.SCRIPT, "exec")
    assert ("cells_and_names" in script) == network
    assert not re.search("begin$|end$|\n{4}", script, re.MULTILINE)
    assert script.count("\n") <= (288 if network else 201)


def test_a_file_that_leaves_the_run_is_not_read(tmp_path):
    """Neither by its name nor by a link; a pickle is none."""
    for name in ("../../../../secret.npy", "pickled.npy"):
        leaf = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [2, 3], "data_name": name}
        root = tmp_path / name[-8:]
        run = write_run(root / "run", [Operation("Mint.add", (X, Leaf(leaf)), {}, (X,))])
        tensors = run / "actor_update" / "step0" / "rank0" / "dump_tensor_data"
        np.save(tensors / "pickled.npy", np.array([{}], object), allow_pickle=True)
        np.save(root / "secret.npy", X)
        with pytest.raises(MsprobeError):
            replay_entry(Probed((str(run),), "Mint.add.0.forward", str(root / "out")), run=False)


def test_bfloat16_is_kept_exactly_with_its_dtype(tmp_path):
    """As float32 in the file; the script makes bfloat16 of it, bit for bit."""
    values = BFloat16.of(np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32))
    out = written(tmp_path, Operation("Mint.add", (values, 1), {}, (values,)))
    content = json.loads((out / "a" / "entry.json").read_text(encoding="utf-8"))
    node = content["args"][0]
    assert (node["dtype"], node["shape"]) == ("BFloat16", [4, 5])
    array = np.load(out / "a" / node["file"])
    np.testing.assert_array_equal(array, values.array)
    made = template.tensor_of(array, "BFloat16")
    assert made.dtype == ms.bfloat16
    np.testing.assert_array_equal(array_of(made), values.array)


def test_arguments_of_every_kind_are_made_again(tmp_path):
    """Structures, None, numbers that JSON lacks, slices, dtypes, Ellipsis, words."""
    args: tuple[Any, ...] = (
        *((X, X), None, 3, 0.5, True, "mean", (1, 2)),
        Leaf({"type": "float", "value": "NaN"}),
        Leaf({"type": "slice", "value": [None, 2, None]}),
        Leaf({"type": "mindspore.dtype", "value": "Float16"}),
        Leaf({"type": "ellipsis", "value": None}),
    )
    out = written(tmp_path, Operation("Mint.add", args, {"alpha": 2}, (X,)))
    side = Recomputed(out / "a", mint.add)
    (pair, *rest) = [side.value(node, {}, None) for node in side.entry["args"]]
    assert [type(one) for one in pair] == [ms.Tensor, ms.Tensor]
    assert rest[:6] == [None, 3, 0.5, True, "mean", (1, 2)]
    assert np.isnan(rest[6])
    assert rest[7:] == [slice(None, 2, None), ms.float16, ...]
    assert side.value(side.entry["args"][9], {}, "Float64") == ms.float64
    assert side.value(side.entry["kwargs"]["alpha"], {}, None) == 2


def test_lists_are_tried_where_tuples_are_refused(tmp_path):
    """A record does not tell them apart."""
    out = written(tmp_path, Operation("Mint.add", ((1, 2),), {}, (X,)))

    def takes_lists(sizes: Any) -> Any:
        if not isinstance(sizes, list):
            raise TypeError(sizes)
        return ms.Tensor(X)

    side = Recomputed(out / "a", takes_lists)
    assert side.compute()["output.0"].shape == (2, 3)


def test_a_second_replay_into_a_folder_leaves_nothing_of_the_first(tmp_path):
    """Of two runs, then of one."""
    run = added(tmp_path / "run")
    other = added(tmp_path / "other")
    entry, output = "Mint.add.0.forward", str(tmp_path / "out")
    replay_entry(Probed((str(run), str(other)), entry, output), run=False)
    assert (tmp_path / "out" / "b" / "entry.json").exists()
    replay_entry(Probed((str(run),), entry, output), run=False)
    assert not (tmp_path / "out" / "b").exists()


def test_of_a_refused_replay_nothing_is_left_and_nothing_is_lost(tmp_path):
    """Neither where nothing was, nor beside an earlier replay and what a user put there."""
    healthy = added(tmp_path / "healthy")
    text = Leaf({"type": "str", "value": "/etc/passwd"})
    odd = write_run(tmp_path / "odd", [Operation("Mint.add", (X, text), {}, (X,))])
    command, entry = ["--no-run", "--lang", "en", "-o"], "Mint.add.0.forward"
    refused = [["replay", str(odd), entry], ["replay", str(healthy), str(odd), entry]]

    def state(root: Path) -> dict[str, bytes | None]:
        found = {str(p.relative_to(tmp_path)): p for p in [root, *root.rglob("*")] if p.exists()}
        return {name: p.read_bytes() if p.is_file() else None for name, p in found.items()}

    for what in refused:
        assert main([*what, *command, str(tmp_path / "new" / "out")]) == 2
        assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    assert main([*refused[0], *command, str(tmp_path / "empty")]) == 2
    assert not [*(tmp_path / "empty").iterdir()]
    out = tmp_path / "out"
    assert main(["replay", str(healthy), entry, *command, str(out)]) == 0
    (out / "a" / "mine.txt").write_text("mine", encoding="utf-8")
    before = state(out)
    for what in refused:
        assert main([*what, *command, str(out)]) == 2
        assert state(out) == before


def test_an_entry_of_several_phases_asks_for_one(tmp_path):
    run = added(tmp_path / "run")
    added(run, phase="critic_update")
    asked = Probed((str(run),), "Mint.add.0.forward", str(tmp_path / "out"))
    with pytest.raises(UsageError, match="critic_update"):
        replay_entry(asked, run=False)


@pytest.mark.parametrize("what", [["RUN", "no-entry", "more"], ["A", "B"], ["A", "B", "C", "D"]])
def test_what_is_no_run_and_no_entry_is_refused(tmp_path, capsys, what):
    assert main(["replay", *what, "-o", str(tmp_path), "--lang", "en"]) == 2
    assert "expected RUN, RUN ENTRY" in capsys.readouterr().err


@pytest.mark.parametrize("runs", [1, 2])
def test_a_name_that_is_no_entry_is_said_with_the_nearest(tmp_path, capsys, runs):
    run = str(added(tmp_path / "run"))
    command = ["replay", *[run] * runs, "Mint.ad", "-o", str(tmp_path / "out"), "--lang", "en"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "no entry Mint.ad." in said
    assert "Mint.add.0.forward" in said
    assert not (tmp_path / "out").exists()


def test_without_mindspore_it_is_said(tmp_path, monkeypatch, capsys):
    """For an operator and for the table, before anything is written."""
    run = added(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "mindspore", None)
    for entry in (["Mint.add.0.forward"], []):
        command = ["replay", str(run), *entry, "-o", str(tmp_path / "out"), "--lang", "en"]
        assert main(command) == 2
        assert "computes with MindSpore, which cannot be imported" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
