"""Scripts that import msprobe run unchanged where it is not installed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from helpers.gradients import probed_by_msprobe
from helpers.programs import read_json
from helpers.runs import MSPROBE_DATA

from mindrlhf_msprobe import UsageError, compare, open_run

#: Every import and every call of msprobe's guides on reinforcement learning and on comparing, as
#: they stand there; what stands around them is the trainer's.
GUIDES = """
    import numpy as np

    response, prompt, configurations_json = np.arange(4.0), np.arange(3.0), {"lr": 0.1}
    for path in ("./dump_path1", "./dump_path2"):
        from msprobe.core import SingleSave
        SingleSave(dump_path=path, fmk="pytorch")
        SingleSave.save(data={"response": response})
        SingleSave.save({
            "prompt": prompt,
            "response": response
            })
        SingleSave.save_config(data=configurations_json)
        SingleSave.save_ex({"score": response}, micro_batch=0)
        SingleSave.step()
        response = response + 1

    from msprobe.core import SingleComparator
    SingleComparator.compare(
        dir1="dump_path1",
        dir2="dump_path2",
        output_path="output_path")
    from msprobe.core import SingleComparator, SingleSave
    SingleComparator.compare(
        "dump_path1",
        "dump_path2",
        "output_path")

    from msprobe.pytorch import *
    compare_distributed(
        './a/step0',
        './b/step0',
        './output_path2')

    from msprobe.pytorch import compare
    input_param={
    "npu_json_path": "./a/step0/rank0/dump.json",
    "bench_json_path": "./b/step0/rank0/dump.json",
    "stack_json_path": "./a/step0/rank0/stack.json",
    "is_print_compare_log": True
    }
    compare(input_param, output_path="./output", stack_mode=True)

    from msprobe import *
    GradComparator.compare_distributed("grad_a",
                                       "grad_b",
                                       "grad_output")

    import mindspore
    from msprobe.mindspore import PrecisionDebugger, seed_all
    seed_all()
    seed_all(seed=1234, mode=True, rm_dropout=False)
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(config_path='./config.json')
    net = mindspore.nn.Dense(3, 2)
    debugger.start(net)
    net(mindspore.Tensor(np.ones((2, 3), np.float32)))
    debugger.stop()
    debugger.step()

    from msprobe.mindspore import save
    save("./somewhere/data/name", "name", mindspore.Tensor([1.0]))
    from msprobe.mindspore import step
    step()
    from msprobe.mindspore import save_grad
    import importlib.util
    assert importlib.util.find_spec("msprobe").origin == "mindrlhf_msprobe"
"""


@pytest.mark.skipif(importlib.util.find_spec("msprobe") is not None, reason="msprobe is installed")
def test_the_guides_run_as_they_stand(tmp_path):
    """Under `mindrlhf-msprobe run`: every import line, every call, their files."""
    (tmp_path / "main.py").write_text(dedent(GUIDES))
    (tmp_path / "config.json").write_text(
        '{"task": "statistics", "dump_path": "./dump", "rank": [], "step": [], "level": "L0"}'
    )
    for side in "ab":
        (own,) = (MSPROBE_DATA / f"statistics_{side}" / "step0").iterdir()
        shutil.copytree(own, tmp_path / side / "step0/rank0")
    for side in ("grad_a", "grad_b"):
        probed_by_msprobe(tmp_path / side, {0: {"w": np.ones(3)}})
    command = [sys.executable, "-m", "mindrlhf_msprobe", "run", "main.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    tables = {p.name for p in (tmp_path / "output_path").iterdir()}
    assert {"response.xlsx", "prompt.xlsx", "score.xlsx"} <= tables
    for out in ("output_path2", "output"):
        (table,) = (tmp_path / out).glob("compare_result_*.xlsx")
        assert re.fullmatch(r"compare_result_[0-9]{14}\.xlsx", table.name)
        assert read_json(tmp_path / out / "verdict.json")["status"] == "diverged"
    assert (tmp_path / "grad_output/rank0/similarities.csv").is_file()
    entries = {entry.class_name for entry in open_run(tmp_path / "dump").entries(step=0)}
    assert entries == {"Dense"}


def test_what_compare_takes_is_checked(tmp_path: Path):
    """A dump that is not given, an option that is unknown."""
    with pytest.raises(UsageError, match="expected a dict with npu_json_path"):
        compare("a.json", tmp_path)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="bench_json_path None; expected the path of a dump"):
        compare({"npu_path": "a.json"}, tmp_path)
    both = {"npu_path": "a.json", "bench_path": "b.json"}
    with pytest.raises(
        UsageError, match=r"compare\(\) got the unknown option fuzzy=True.*fuzzy_match"
    ):
        compare(both, tmp_path, fuzzy=True)
