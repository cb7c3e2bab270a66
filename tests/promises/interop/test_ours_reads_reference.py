"""Dumps that the real msprobe has just made, opened, shown and compared here."""

from __future__ import annotations

import csv
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers.runs import MSPROBE_DATA
from reference_tool import compare, interpreter, record

from mindrlhf_msprobe import compare_runs, open_run
from mindrlhf_msprobe.comparison import Tolerance
from mindrlhf_msprobe.findings import Cause, Outcome, Status

pytestmark = pytest.mark.slow

VERSIONS = {"26": "MSPROBE_REFERENCE_PYTHON", "8": "MSPROBE_REFERENCE_8_PYTHON"}
TASKS = {"statistics": "L0", "md5": "L0", "tensor": "L0", "mix": "mix"}
FAULTY = "Cell.layers.1.q.Dense.forward.0"


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    """Return a function that returns where a version's dumps lie: <task>-<0 or 1: faulty>."""
    made = {}

    def dump(version):
        python = interpreter(VERSIONS[version])
        if version not in made:
            root = made[version] = tmp_path_factory.mktemp(f"msprobe{version}")
            plans = [
                {"tool": "msprobe", "level": level, "fault": fault}
                | {"task": "statistics" if task == "mix" else task}
                | {"dump_path": str(root / f"{task}-{int(fault)}")}
                for task, level in TASKS.items()
                for fault in (False, True)
            ]
            with ThreadPoolExecutor(max_workers=2) as pool:  # a process each: one debugger in it
                list(pool.map(lambda plan: record(python, root, plan), plans))
        return made[version]

    return dump


@pytest.fixture(params=VERSIONS)
def dumps(request, dumped):
    return dumped(request.param)


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """Return our recording of the same training."""
    root = tmp_path_factory.mktemp("ours")
    plan = {"tool": "ours", "task": "tensor", "fault": False, "dump_path": str(root / "run")}
    record(sys.executable, root, plan)
    return root / "run"


@pytest.mark.parametrize("task", TASKS)
def test_the_changed_weight_is_named(dumps, task):
    """Whatever the task, the first divergence is the weight that was changed."""
    result = compare_runs(dumps / f"{task}-1", dumps / f"{task}-0")
    place = result.verdict.first_divergence
    assert (place.step, place.rank, place.cause) == (0, 0, Cause.PARAMETER)
    assert place.record == f"{FAULTY}.parameters.weight"
    assert result.problems == ()
    differing = [f for f in result.findings if f.step == 0 and not f.status.agrees]
    assert differing[0].record == place.record
    assert any(f.io == "parameters_grad" for f in differing)
    assert any(f.key == "loss" for f in differing)
    agreeing = {f.status for f in result.findings if f.status.agrees and f.a.shape and f.entry}
    proof = Status.IDENTICAL if task in ("md5", "tensor") else Status.WITHIN_TOLERANCE
    assert agreeing == {proof}


def test_steps_phases_and_keys_are_known(dumps):
    """A dump with key data beside it is one run of one rank."""
    run = open_run(dumps / "tensor-0")
    assert (run.steps, run.ranks, run.phases) == ([0, 1], [0], ["dump"])
    assert run.keys == ["lists", "loss"]
    assert (run.foreign, run.problems, run.missing_ranks) == (True, [], [])
    (loss,) = run.key_data("loss", step=0)
    lists = run.key_data("lists", step=0)[0].value
    np.testing.assert_array_equal(lists[0], loss.value)
    np.testing.assert_array_equal(lists[1], np.arange(3))


def test_show_lists_and_shows(dumps, cli):
    """`show` says what lies in it, and what a cell's tensors were."""
    assert "dump" in cli("show", dumps / "tensor-0").out
    name = "Cell.head.Dense.parameters_grad.0"
    said = cli("show", dumps / "tensor-0", name).out
    assert f"{name}.weight" in said
    assert "Float32 [7, 4]" in said


def test_the_gradients_of_parameters_come_after_the_cells(dumps):
    """8.x lists them behind the forward entry, where nothing of them was known yet."""
    names = [entry.name for entry in open_run(dumps / "statistics-0").entries(step=0)]
    last_forward = max(i for i, name in enumerate(names) if ".forward." in name)
    grads = [i for i, name in enumerate(names) if ".parameters_grad." in name]
    assert min(grads) > last_forward
    assert len(grads) == 6


def test_paths_are_given_as_to_msprobe(dumps, tmp_path, cli):
    """`-tp` and `-gp` with a step's directory, a rank's or its dump.json."""
    (a,), (b,) = ((dumps / f"tensor-{i}").glob("step0/*") for i in (1, 0))
    for tail in ("", "dump.json"):
        command = ["compare", "-tp", str(a / tail), "-gp", str(b / tail), "-o", str(tmp_path / "o")]
        assert f"  {FAULTY}\n  cause: parameter" in cli(*command, code=1).out
    steps = ["-tp", str(a.parent), "-gp", str(b.parent)]
    assert f"  {FAULTY}\n" in cli("compare", *steps, "-o", tmp_path / "o", code=1).out


def test_both_tools_recorded_the_same(dumps, ours):
    """One training recorded by both: what msprobe has is what we have.

    A gradient behind which a residual goes on is a difference here: equal to rounding.
    """
    result = compare_runs(
        ours / "actor_update", dumps / "tensor-0", tolerance=Tolerance(rtol=1e-5, atol=1e-6)
    )
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE
    rounded = [f for f in result.findings if f.status is not Status.IDENTICAL]
    assert {f.entry.split(".")[-2] for f in rounded} == {"backward"}
    reasons = {gap.reason for gap in result.verdict.coverage}
    assert reasons == {
        "msprobe records no outermost cell",
        "msprobe records no gradient that is None",
    }
    assert len(result.findings) > 110


@pytest.mark.parametrize("task", ["md5", "tensor"])
def test_versions_of_msprobe_line_up(dumped, task):
    """A dump of 8.x and one of 26.x of the same training are identical."""
    result = compare_runs(dumped("8") / f"{task}-0", dumped("26") / f"{task}-0")
    assert result.verdict.status is Outcome.IDENTICAL
    assert not result.verdict.coverage


def test_the_columns_say_what_msprobes_say(tmp_path, cli):
    """NPU and Bench, what lies between them and relative to which: cell by cell, with its options.

    What its Result and Err_message mean is its own.
    """
    python = interpreter("MSPROBE_REFERENCE_PYTHON")
    golden, test = (
        next((MSPROBE_DATA / f"statistics_{side}" / "step0").glob("*/dump.json")) for side in "ab"
    )
    theirs = {row["NPU Name"]: row for row in compare(python, test, golden, tmp_path / "theirs")}
    options = ["-tp", str(test), "-gp", str(golden), "-o", str(tmp_path), "--csv"]
    cli("compare", *options, code=1)
    (path,) = tmp_path.glob("compare_result_*.csv")
    with open(path, encoding="utf-8-sig", newline="") as file:
        ours = {row["NPU Name"]: row for row in csv.DictReader(file)}
    assert ours.keys() == theirs.keys()
    columns = [
        f"{side} {what}"
        for side in ("NPU", "Bench")
        for what in ("Name", "Dtype", "Tensor Shape", "max", "min", "mean", "l2norm")
    ]
    columns += [f"{what} diff" for what in ("Max", "Min", "Mean", "L2norm")]
    columns += [f"{what}RelativeErr" for what in ("Max", "Min", "Mean", "Norm")]
    for name, row in theirs.items():
        for column in columns:
            expected = _number(row[column])
            if isinstance(expected, float):
                expected = pytest.approx(expected, rel=1e-6, abs=1e-12)
            assert _number(ours[name][column]) == expected, (name, column)


def _number(text):
    """Return what a cell holds: a number, or its text."""
    try:
        return float(text.rstrip("%"))
    except ValueError:
        return text
