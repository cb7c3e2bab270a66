"""Operators that both tools recorded: msprobe's compare reads ours, and finds what we find."""

from __future__ import annotations

import json
import sys

import pytest
from reference_tool import compare, interpreter, record

from mindrlhf_msprobe.storage.operators import parse_operator

pytestmark = pytest.mark.slow

LEVELS = ["L1", "mix"]
RANK = "actor_update/step0/rank0"
#: What msprobe records and this tool does not: it looks at a tensor's shape.
LOOKS = "shape"
#: `Tensor.astype` calls `Tensor.to`, which msprobe records in its place.
CALLED_INSIDE = {"Tensor.to"}


@pytest.fixture(scope="module")
def reference():
    return interpreter("MSPROBE_REFERENCE_PYTHON")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory, reference):
    """Return where the dumps of each level lie: ours without and with a fault, and msprobe's."""
    root = tmp_path_factory.mktemp("operators")
    plan = {"task": "statistics", "network": "plain"}
    mine = [
        {**plan, "tool": "ours", "level": level, "fault": fault}
        | {"dump_path": str(root / f"ours-{level}-{int(fault)}")}
        for level in LEVELS
        for fault in (False, True)
    ]
    record(sys.executable, root, *mine)
    for level in LEVELS:
        path = str(root / f"msprobe-{level}")
        theirs = {"tool": "msprobe", "level": level, "fault": False, "dump_path": path}
        record(reference, root, {**plan, **theirs})
    return root


def of_msprobe(dumps, level):
    (found,) = (dumps / f"msprobe-{level}" / "step0").glob("proc*/dump.json")
    return found


def operators(path):
    content = json.loads(path.read_text())
    return content["level"], {n: v for n, v in content["data"].items() if parse_operator(n)}


@pytest.mark.parametrize("level", LEVELS)
def test_both_name_the_same_calls(dumps, level):
    """The same operators, as often, in the same order of their calls."""
    our_level, ours = operators(dumps / f"ours-{level}-0" / RANK / "dump.json")
    their_level, theirs = operators(of_msprobe(dumps, level))
    assert our_level == their_level == level
    missing = {
        name
        for name in theirs.keys() - ours.keys()
        if LOOKS not in name.lower() and parse_operator(name).operator not in CALLED_INSIDE
    }
    assert missing == set()
    of_both = [name for name in ours if name.endswith(".forward") and name in theirs]
    assert of_both == [name for name in theirs if name in of_both]
    assert len(of_both) > 25


@pytest.mark.parametrize("level", LEVELS)
def test_msprobes_compare_finds_the_operator_of_a_changed_weight(dumps, reference, tmp_path, level):
    """It takes our dumps without complaint; what is first different is what uses the weight."""
    a, b = (dumps / f"ours-{level}-{fault}" / RANK / "dump.json" for fault in (1, 0))
    rows = compare(reference, a, b, tmp_path / "table")
    assert all(row["Bench Name"] == row["NPU Name"] for row in rows)
    names = [row["NPU Name"] for row in rows]
    assert "Primitive.matmul.MatMul.0.forward.output.0" in names
    assert "Tensor.__mul__.0.backward.input.0" in names
    differing = [
        row["NPU Name"]
        for row in rows
        if row["L2norm diff"] not in ("0.0", "0", "", "unsupported", "N/A")
        and float(row["L2norm diff"]) != 0
    ]
    first = [name for name in differing if parse_operator(name.split(".forward")[0] + ".forward")]
    assert first[0] == "Primitive.matmul.MatMul.1.forward.input.1"


@pytest.mark.parametrize("level", LEVELS)
def test_msprobes_compare_finds_our_numbers_equal_to_its_own(dumps, reference, tmp_path, level):
    """Of every forward value that both recorded: the same statistics, to their rounding."""
    a = dumps / f"ours-{level}-0" / RANK / "dump.json"
    rows = compare(reference, a, of_msprobe(dumps, level), tmp_path / "table")
    both = [
        row
        for row in rows
        if "N/A" not in (row["NPU Name"], row["Bench Name"])
        and ".forward." in row["NPU Name"]
        and parse_operator(row["NPU Name"].split(".forward")[0] + ".forward")
        and row["NPU Tensor Shape"] not in ("[]", "()")  # msprobe's norm of a scalar has a sign
    ]
    assert len(both) > 60
    unlike = [
        (row["NPU Name"], row["NPU max"], row["Bench max"])
        for row in both
        if row["NPU max"] not in ("N/A", "", "None")
        and float(row["NPU max"]) != pytest.approx(float(row["Bench max"]), rel=1e-5, abs=1e-7)
    ]
    assert unlike == []
