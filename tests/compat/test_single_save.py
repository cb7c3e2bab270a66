"""SingleSave, SingleComparator, compare_distributed: scripts written for msprobe keep running."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import openpyxl
import pytest
from helpers.programs import read_json, run_python
from helpers.runs import MSPROBE_DATA, Fault, record_training

from mindrlhf_msprobe import (
    RunError,
    SingleComparator,
    SingleSave,
    UsageError,
    compare_distributed,
    open_run,
)
from mindrlhf_msprobe.probe import recording_probes

pytestmark = pytest.mark.usefixtures("older_tools")

MSPROBES_HEADER = (
    *("step", "rank", "micro_step", "id", "shape1", "shape2", "相同元素百分比(%)"),
    *("首个不匹配元素索引", "最大绝对误差", "最大相对误差"),
    *("误差在千分之一内元素占比(%)", "误差在百分之一内元素占比(%)"),
)


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def save(path: Path, scale: float = 1.0, steps: int = 2) -> Path:
    """Save as a script of msprobe's does."""
    SingleSave(dump_path=str(path), fmk="pytorch")
    for _ in range(steps):
        SingleSave(str(path))  # its guide makes it anew wherever it is used
        SingleSave.save(data={"response": np.arange(6.0) * scale, "pair": [np.ones(2), np.ones(3)]})
        SingleSave.save({"response": np.arange(4.0)})
        SingleSave.step()
    return path


def test_files_lie_where_msprobe_puts_them(tmp_path):
    """Steps, micro-steps and list elements have msprobe's names."""
    SingleSave(tmp_path / "run")
    save(tmp_path / "run")
    SingleSave.save_config(data={"lr": 0.1})
    expected = ["configurations.json", "run.json", "timeline.rank0.jsonl"]
    for step in (0, 1):
        expected += [
            f"data/{key}/step{step}/rank0/micro_step{micro_step}/{file}"
            for key, micro_step, file in [
                *(("pair", 0, name) for name in ("pair.0.npy", "pair.1.npy", "pair.json")),
                *(("response", n, f"response.{s}") for n in (0, 1) for s in ("json", "npy")),
            ]
        ]
    assert [name for name in files(tmp_path / "run") if not name.startswith(".")] == sorted(
        expected
    )
    described = read_json(tmp_path / "run/data/pair/step0/rank0/micro_step0/pair.json")["data"]
    assert [leaf["shape"] for leaf in described] == [[2], [3]]
    assert {"max", "min", "mean", "norm"} <= set(described[0])
    assert read_json(tmp_path / "run/configurations.json") == {"lr": 0.1}


def test_the_last_one_made_is_the_current_one(tmp_path):
    """A new path becomes the current one; an earlier one that is made again counts on."""
    SingleSave(tmp_path / "a")
    SingleSave.save({"x": 1.0})
    SingleSave.step()
    second = SingleSave(tmp_path / "b")
    SingleSave.save({"x": 2.0})
    SingleSave(tmp_path / "a")
    second.save({"x": 3.0})  # always through the class
    SingleSave.step()
    second._shared.probe._recorder.writer.wait()  # its step is still open
    saved = {
        name: [(d.step, float(d.value)) for d in open_run(tmp_path / name).key_data()]
        for name in ("a", "b")
    }
    assert saved == {"a": [(0, 1.0), (1, 3.0)], "b": [(0, 2.0)]}


def test_an_existing_directory_is_continued_with_a_warning(tmp_path):
    """A second program goes on behind the last whole step and says so."""
    program = f"""
from mindrlhf_msprobe import SingleSave
SingleSave({str(tmp_path / "run")!r}, fmk="mindspore")
for value in (1.0, 2.0):
    SingleSave.save({{"loss": value}})
    SingleSave.step()
"""
    first, second = (run_python(program, tmp_path) for _ in range(2))
    assert first.returncode == second.returncode == 0
    assert "WARNING" not in first.stderr
    assert "holds a run already; it is continued with step 2" in second.stderr
    assert [d.step for d in open_run(tmp_path / "run").key_data("loss")] == [0, 1, 2, 3]


def test_nothing_is_deleted_of_a_step_that_was_not_ended(tmp_path):
    """Scripts that never call step(), one after the other: each saves into a step of its own.

    What one that was killed left of a step is recorded again, as a rank that saved nothing does.
    """
    program = """
import os, signal
from mindrlhf_msprobe import SingleSave
SingleSave("run")
SingleSave.save({{{key!r}: 1.0}})
{end}
"""
    step = "SingleSave.step(); SingleSave.save({'half': 2.0})"
    killed = "SingleSave._current._shared.probe._recorder.writer.wait(); "
    killed += "os.kill(os.getpid(), signal.SIGKILL)"
    for key, end in (("response", ""), ("reward", step), ("score", killed), ("loss", "")):
        run_python(program.format(key=key, end=end), tmp_path)
    saved = {(d.key, d.step) for d in open_run(tmp_path / "run").key_data()}
    assert saved == {("response", 0), ("reward", 1), ("half", 2), ("loss", 3)}


def test_what_msprobe_saved_is_continued_not_touched(tmp_path, warnings_of):
    """Behind msprobe's own files the next step is free; they stay readable."""
    run = shutil.copytree(MSPROBE_DATA / "key_data_a", tmp_path / "run")
    before = open_run(run).key_data("fp32")[0].value
    SingleSave(run)
    SingleSave.save({"fp32": np.ones(3)})
    SingleSave.step()
    assert "continued with step 2" in warnings_of()[-1]
    data = open_run(run).key_data("fp32")
    assert [d.step for d in data] == [0, 0, 1, 1, 2]
    assert np.array_equal(data[0].value, before)


def test_what_msprobe_leaves_out_is_left_out_with_a_warning(tmp_path, warnings_of):
    """No dict, and a name that is no text: a warning and no more; unlike values are saved."""
    SingleSave(tmp_path / "run")
    SingleSave.save([1])  # type: ignore[arg-type]
    SingleSave.save({5: 1.0, "text": ["一", "two"], "number": 3})  # type: ignore[dict-item]
    SingleSave.step()
    assert [text.split(";")[0] for text in warnings_of()] == [
        "SingleSave.save() got list",
        "SingleSave.save() left out the name 5: it is no text.",
    ]
    run = open_run(tmp_path / "run")
    assert run.keys == ["number", "text"]
    assert run.key_data("text")[0].value == ["一", "two"]


def test_a_name_that_leaves_the_directory_is_refused(tmp_path):
    """The others of the call are saved."""
    SingleSave(tmp_path / "run")
    with pytest.raises(UsageError, match="evil"):
        SingleSave.save({"../../evil": 1.0, "good": 2.0})
    SingleSave.step()
    assert open_run(tmp_path / "run").keys == ["good"]
    assert not list(tmp_path.glob("**/evil*"))


def test_misuse_is_refused(tmp_path):
    """Saving before a path is known, an unknown framework, no path."""
    for call in (lambda: SingleSave.save({}), SingleSave.step, lambda: SingleSave.save_config({})):
        with pytest.raises(UsageError, match=r"before SingleSave\(dump_path\)"):
            call()
    with pytest.raises(UsageError, match=r"fmk='tensorflow'.*pytorch, mindspore"):
        SingleSave(tmp_path, fmk="tensorflow")
    with pytest.raises(UsageError, match="dump_path=''"):
        SingleSave("")


def test_tables_are_msprobes(tmp_path, warnings_of):
    """One workbook a key, its sheet and its first twelve columns msprobe's; returns nothing."""
    a, b = save(tmp_path / "a"), save(tmp_path / "b", scale=2.0)
    out = tmp_path / "out"
    assert SingleComparator.compare(str(a), str(b / "data"), str(out), num_processes=1) is None
    assert files(out) == ["pair.xlsx", "response.xlsx", "summary.xlsx", "verdict.json"]
    book = openpyxl.load_workbook(out / "response.xlsx")
    rows = list(book["Sheet1"].iter_rows(values_only=True))
    assert rows[0][:12] == MSPROBES_HEADER
    assert rows[1][:10] == (0, 0, 0, 0, "[6]", "[6]", 100 / 6, 1, 5.0, 0.5)
    assert rows[2][:9] == (0, 0, 1, 0, "[4]", "[4]", 100.0, None, 0.0)
    assert "DIVERGED at step 0" in warnings_of()[-1]


def test_key_data_are_compared_and_layers_are_not(tmp_path):
    """SingleComparator is of key data: layer data of the same runs are left to the other one."""
    a = record_training(tmp_path / "a", steps=1)
    fault = Fault("layers.0.mlp", "critic_update")
    b = record_training(tmp_path / "b", steps=1, faults=[fault])
    out = tmp_path / "out"
    SingleComparator.compare(a, b, output_path=out)
    tables = files(out)
    assert "prompts.xlsx" in tables
    assert not [name for name in tables if name.startswith("compare_result")]
    verdict = read_json(out / "verdict.json")
    assert (verdict["status"], verdict["first_divergence"]["record"]) == ("diverged", "value_loss")
    compare_distributed(a / "critic_update/step0", b / "critic_update/step0", tmp_path / "layers")
    verdict = read_json(tmp_path / "layers/verdict.json")
    assert verdict["first_divergence"]["entry"] == "Cell.layers.0.mlp.Dense.forward.0"
    assert any(
        re.fullmatch(r"compare_result_\d{14}\.xlsx", name) for name in files(tmp_path / "layers")
    )


def test_msprobes_own_files_are_compared(tmp_path):
    """Both read what msprobe wrote; a missing step is no pass."""
    SingleComparator.compare(
        MSPROBE_DATA / "key_data_a", MSPROBE_DATA / "key_data_b", tmp_path / "out"
    )
    assert read_json(tmp_path / "out/verdict.json")["counts"]["only_in_a"] > 0
    steps = [MSPROBE_DATA / f"tensor_{side}" / "step0" for side in "ab"]
    names = {"npu_dump_dir": steps[0], "bench_dump_dir": steps[1]}
    compare_distributed(**names, output_path=str(tmp_path / "layers"), is_print_compare_log=True)
    record = read_json(tmp_path / "layers/verdict.json")["first_divergence"]["record"]
    assert record == "Cell.layers.1.mlp.fc1.Dense.forward.0.parameters.weight"


def test_a_comparison_of_nothing_is_an_error(tmp_path):
    """No directory, no key data, nothing in common, the same twice: never a pass."""
    a = save(tmp_path / "a", steps=1)
    SingleSave(tmp_path / "b")
    SingleSave.save({"other": 1.0})
    SingleSave.step()
    out = tmp_path / "out"
    for other, said in [("c", "no key data"), ("a", "same directory")]:
        with pytest.raises(RunError, match=said):
            SingleComparator.compare(a, tmp_path / other, out)
    with pytest.raises(RunError, match=r"not a run|no key data"):
        SingleComparator.compare(a, a / "data/response", out)
    for number in (0, 129, True, 2.0):
        with pytest.raises(UsageError, match=f"num_processes is {number!r}"):
            SingleComparator.compare(a, tmp_path / "b", out, num_processes=number)
    with pytest.raises(UsageError, match="dir2=None"):
        compare_distributed(a, output_path=out)
    with pytest.raises(UsageError, match=r"fuzzy.*fuzzy_match"):
        compare_distributed(a, tmp_path / "b", out, fuzzy=True)


def test_nothing_is_said_of_configurations_that_nobody_asked_for(tmp_path, caplog):
    """Its scripts switch nothing on; configurations are written where save_config is called."""
    caplog.set_level("WARNING", logger="mindrlhf_msprobe")
    save(tmp_path / "run")
    for probe in recording_probes():
        probe.close()
    assert not caplog.records
    assert open_run(tmp_path / "run").config(0).configurations_dump


def test_a_script_that_compares_what_it_saved_is_told_of_the_difference_alone(tmp_path, caplog):
    """Both savers are still open, but every step is ended: nothing has stopped, nothing lacks."""
    caplog.set_level("WARNING", logger="mindrlhf_msprobe")
    save(tmp_path / "a")
    save(tmp_path / "b", scale=1.5)
    SingleComparator.compare(tmp_path / "a", tmp_path / "b", output_path=tmp_path / "out")
    (answer,) = (r.getMessage() for r in caplog.records if "DIVERGED" in r.getMessage())
    assert answer.startswith("[rank 0] DIVERGED at step 0")
