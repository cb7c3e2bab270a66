"""compare_distributed names its files as msprobe does, and replaces no earlier comparison."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openpyxl
import pytest
from helpers.programs import read_json
from helpers.runs import MSPROBE_DATA

from mindrlhf_msprobe import compare, compare_distributed, compare_runs
from mindrlhf_msprobe.report.staging import stamped

STAMP = r"[0-9]{14}"


@pytest.fixture
def steps(tmp_path):
    """Return a step of each of two runs, with two ranks in it."""
    found = []
    for side in "ab":
        step = tmp_path / side / "step0"
        (own,) = (MSPROBE_DATA / f"statistics_{side}" / "step0").iterdir()
        for rank in (0, 1):
            shutil.copytree(own, step / f"rank{rank}")
        found.append(step)
    return found


def kinds(directory: Path) -> list[str]:
    """Return what lies in a directory, with <time> for the time in a name."""
    return sorted(re.sub(STAMP, "<time>", path.name) for path in directory.iterdir())


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_two_calls_leave_both_results(steps, tmp_path):
    """Also within one second; the copies that have no time in their names are the latest."""
    out = tmp_path / "out"
    one = [step / "rank0" for step in steps]
    compare_distributed(*one, out)
    whole = ["compare_result_<time>.xlsx", "summary_<time>.xlsx", "verdict_<time>.json"]
    copies = ["summary.xlsx", "verdict.json"]
    assert kinds(out) == sorted(whole + copies)
    first = contents(out)
    compare_distributed(one[0], one[0].parent / "rank1", str(out))
    assert kinds(out) == sorted(2 * whole + copies)
    again = contents(out)
    assert {name: again[name] for name in first if re.search(STAMP, name)} == {
        name: content for name, content in first.items() if re.search(STAMP, name)
    }
    verdict = read_json(out / "verdict.json")
    assert verdict["status"] == "within_tolerance"
    assert read_json(out / verdict["kept_as"])["status"] == "within_tolerance"
    (earlier,) = [n for n in first if n.startswith("verdict_")]
    assert read_json(out / earlier)["status"] == "diverged"


def test_each_rank_has_a_table(steps, tmp_path):
    """As msprobe's: of several ranks one file each, with the rows of that rank."""
    out = tmp_path / "out"
    compare_distributed(*steps, out)
    names = [re.sub(STAMP, "<time>", n) for n in read_json(out / "verdict.json")["tables"]]
    ranks = [f"compare_result_rank{rank}_<time>.xlsx" for rank in (0, 1)]
    assert names == ["summary.xlsx", *ranks]
    rows = []
    for rank in (0, 1):
        (path,) = out.glob(f"compare_result_rank{rank}_*.xlsx")
        sheet = openpyxl.load_workbook(path).active
        header, *found = sheet.iter_rows(values_only=True)
        rows.append([row[:2] for row in found])
        assert {row[header.index("rank")] for row in found} == {rank}
    assert rows[0] == rows[1]
    counts = read_json(out / "verdict.json")["counts"]
    assert sum(counts.values()) == len(rows[0]) + len(rows[1])


def test_the_run_under_test_stands_under_npu(steps, tmp_path, cli):
    """As in msprobe, whose tables call the baseline Bench: however the two are given.

    What msprobe computes is NPU less Bench, and relative to Bench.
    """
    test, golden = (step / "rank0/dump.json" for step in steps)
    stacks = test.with_name("stack.json")
    stacks.write_text(stacks.read_text().replace("File ", "File new/"))
    compare({"npu_path": str(test), "bench_path": str(golden)}, tmp_path / "function")
    compare_distributed(test.parent, golden.parent, tmp_path / "distributed")
    sides = (["-tp", test, "-gp", golden], [golden, "-tp", test], [test, "-gp", golden])
    for number, given in enumerate((*sides, [golden, test])):
        cli("compare", *given, "-o", tmp_path / f"command{number}", code=1)
    maxima = [
        {record["Max"] for entry in read_json(dump)["data"].values() for record in maxima_of(entry)}
        for dump in (test, golden)
    ]
    paths = sorted(tmp_path.glob("*/compare_result_*.xlsx"))
    assert len(paths) == 6
    for path in paths:
        header, *found = openpyxl.load_workbook(path).active.iter_rows(values_only=True)
        rows = [dict(zip(header, row)) for row in found]
        stacks = {row["NPU_Stack_Info"] for row in rows} - {None}
        assert stacks
        assert all(stack.startswith("File new/") for stack in stacks)
        apart = [row for row in rows if row["Max diff"]]
        assert apart
        for row in apart:
            npu, bench = row["NPU max"], row["Bench max"]
            assert (npu in maxima[0], bench in maxima[1]) == (True, True)
            assert row["Max diff"] == pytest.approx(npu - bench)
            assert row["MaxRelativeErr"] == pytest.approx(abs((npu - bench) / bench))
        summary = openpyxl.load_workbook(path.with_name("summary.xlsx")).active
        said = {row[1]: row[2] for row in summary.iter_rows(values_only=True)}
        assert said["A (baseline)"].startswith(str(golden.parent))
        assert said["B (under test)"].startswith(str(test.parent))


def maxima_of(entry: dict) -> list[dict]:
    """Return the tensors of an entry of a dump.json."""
    found, waiting = [], [entry]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict) and "Max" in item:
            found.append(item)
        elif isinstance(item, (dict, list)):
            waiting += item.values() if isinstance(item, dict) else item
    return found


def test_the_command_and_the_function_share_a_directory(steps, tmp_path):
    """What `compare` wrote stays when the function comes after it, and the other way round."""
    out = tmp_path / "out"
    compare_runs(*steps, output_path=out)
    own = contents(out)
    compare_distributed(*steps, out)
    both = contents(out)
    assert {name: both[name] for name in own} == own
    timed = {name: content for name, content in both.items() if name not in own}
    assert timed
    assert all(re.search(STAMP, name) for name in timed)
    compare_runs(*steps, output_path=out)
    assert {name: contents(out)[name] for name in timed} == timed
    other = tmp_path / "other"
    compare_distributed(*steps, other)
    timed = {n: c for n, c in contents(other).items() if re.search(STAMP, n)}
    compare_runs(*steps, output_path=other)
    assert {name: contents(other)[name] for name in timed} == timed
    assert "kept_as" not in read_json(other / "verdict.json")


def test_a_file_of_somebody_else_is_left_alone(steps, tmp_path):
    """A summary.xlsx or verdict.json that no comparison wrote is no obstacle."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "verdict.json").write_text("mine")
    (out / "summary.xlsx").write_text("mine")
    compare_distributed(*steps, out)
    assert (out / "verdict.json").read_text() == (out / "summary.xlsx").read_text() == "mine"
    assert len(list(out.glob("verdict_*.json"))) == 1


def test_no_two_at_once_have_one_time(tmp_path):
    """Each takes a second of its own, and nothing hidden stays."""

    def write(number: int) -> str:
        with stamped(tmp_path) as (directory, stamp):
            (directory / f"a_{stamp}.xlsx").write_text(str(number))
        return stamp

    with ThreadPoolExecutor(max_workers=8) as pool:
        stamps = list(pool.map(write, range(24)))
    assert len(set(stamps)) == 24
    assert sorted(p.read_text() for p in tmp_path.iterdir()) == sorted(map(str, range(24)))


def test_nothing_is_added_where_writing_fails(tmp_path):
    """Neither a table nor a hidden directory."""

    def write() -> None:
        with stamped(tmp_path) as (directory, stamp):
            (directory / f"a_{stamp}.xlsx").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert list(tmp_path.iterdir()) == []
