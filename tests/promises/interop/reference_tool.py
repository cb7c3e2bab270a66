"""The real msprobe, in an environment of its own: what it records and what it makes of files.

Its interpreter is named by MSPROBE_REFERENCE_PYTHON (26.x) and MSPROBE_REFERENCE_8_PYTHON (8.x).
"""

from __future__ import annotations

import csv
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from openpyxl import load_workbook

TRAINING = Path(__file__).with_name("recorded_training.py")
_COMPLAINTS = ("[ERROR]", "[WARNING]", "Traceback")
#: What it says at every start where there is no Ascend.
_ALWAYS = ("CANN environment", "may be security risks", "will be deleted")

_KEY_DATA = """
import sys
from msprobe.core.single_save.single_comparator import SingleComparator
if __name__ == "__main__":
    SingleComparator.compare(*sys.argv[1:4])
"""


def interpreter(variable: str) -> str:
    """Return the interpreter that a variable names; skip the test where it is not set."""
    named = os.environ.get(variable)
    if not named:
        pytest.skip(f"{variable} is not set: it names the Python that has mindstudio-probe")
    return named


def record(python: str, cwd: Path, *trainings: dict[str, Any]) -> None:
    """Run trainings of recorded_training.py in one process of `python`."""
    _run([python, str(TRAINING), json.dumps(trainings)], cwd, own=python == sys.executable)


def record_operators(python: str, cwd: Path, training: dict[str, Any]) -> None:
    """Run the training of recorded_operators.py in a process of `python`."""
    _run([python, str(TRAINING.with_name("recorded_operators.py")), json.dumps(training)], cwd)


def compare(python: str, a: Path, b: Path, output: Path, *options: str) -> list[dict[str, str]]:
    """Return the rows of `msprobe compare`; anything it complains of fails the test."""
    arguments = ["-tp", str(a), "-gp", str(b), "-o", str(output), *options]
    said = _msprobe(python, "compare", arguments, output.parent)
    assert "msprobe compare ends successfully" in said
    (table,) = output.glob("*.csv")
    with open(table, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def compare_8(
    python: str, a: Path, b: Path, output: Path, *options: str
) -> list[dict[str, str | None]]:
    """Return the rows of 8.x's `msprobe compare`, of two dump.json of MindSpore and another."""
    listed = output.with_suffix(".json")
    dumps = {"npu_path": str(a), "bench_path": str(b), "is_print_compare_log": False}
    listed.write_text(json.dumps(dumps))
    arguments = ["-f", "mindspore", "compare", "-i", str(listed), "-o", str(output), *options]
    _run([python, "-m", "msprobe.msprobe", *arguments], output.parent)
    (table,) = output.glob("compare_result_*.xlsx")
    header, *rows = load_workbook(table).worksheets[0].iter_rows(values_only=True)
    return [dict(zip(header, row)) for row in rows]


def graph(
    python: str, a: Path, output: Path, b: Path | None = None
) -> dict[tuple[str, int, str], dict[str, Any]]:
    """Return the nodes that `msprobe graph_visualize` builds, by (run, step, name)."""
    golden = [] if b is None else ["-gp", str(b)]
    arguments = ["-tp", str(a), *golden, "-o", str(output), "-oc"]
    _msprobe(python, "graph_visualize", arguments, output.parent)
    (database,) = output.glob("*.db")
    with sqlite3.connect(database) as connection:
        connection.row_factory = sqlite3.Row
        rows: Iterable[Any] = connection.execute("select * from tb_nodes")
        return {(r["data_source"], r["step"], r["node_name"]): dict(r) for r in rows}


def compare_key_data(python: str, a: Path, b: Path, output: Path) -> set[str]:
    """Return the keys of which msprobe's SingleComparator made a table."""
    script = output.parent / "compare_key_data.py"
    script.write_text(_KEY_DATA)
    _run([python, str(script), str(a), str(b), str(output)], output.parent)
    return {path.stem for path in output.glob("*.xlsx")}


def _msprobe(python: str, command: str, arguments: list[str], cwd: Path) -> str:
    said = _run([python, "-m", "msprobe.msprobe", command, *arguments], cwd)
    lines = [line for line in said.replace("\r", "\n").splitlines() if line.strip()]
    complaints = [
        line
        for line in lines
        if any(c in line for c in _COMPLAINTS) and not any(a in line for a in _ALWAYS)
    ]
    assert not complaints
    return said


def _run(command: list[str], cwd: Path, *, own: bool = False) -> str:
    """Run a program; the reference's sees nothing of this package's environment."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if own:
        environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        command,
        cwd=cwd,
        # MindSpore's descriptors are too old for the C++ protobuf that msprobe imports first.
        env={**environment, "GLOG_v": "3", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout
