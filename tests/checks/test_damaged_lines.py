"""A line that is not what it should be costs itself: no rule, no command, and not the answer."""

from __future__ import annotations

import json
import random
from functools import partial

import pytest
from helpers.health_runs import HealthRun, tensor
from helpers.runs import Recording
from helpers.side_files import OPINION, ROW, changed, hostile, raw, small_run, write_lines

from mindrlhf_msprobe import check_run, check_runs
from mindrlhf_msprobe.checks import rule
from mindrlhf_msprobe.checks.rules.computed_again import accuracy_of
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.findings.accuracy import Accuracy
from mindrlhf_msprobe.findings.health import Health, Severity
from mindrlhf_msprobe.report import accuracy
from mindrlhf_msprobe.report.answer import Answer, as_text
from mindrlhf_msprobe.report.checks import lines_of
from mindrlhf_msprobe.storage.place import Place

OPINIONS, ROWS = "opinions.rank0.jsonl", "free_benchmark.rank0.jsonl"
FOUND_IN = {OPINIONS: (OPINION, "accuracy.wrong"), ROWS: (ROW, "free_benchmark.changes")}
LEAVES = [
    ("actor_update", 0, ("input_args", 0)),
    ("actor_update", 0, ("parameters", "weight")),
    ("actor_update", 2, ("output", 0)),
    ("actor_update", 3, ("parameters_grad", "weight", 0)),
]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("healthy") / "run", nan=False)


@pytest.fixture(scope="module")
def unhealthy(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("unhealthy") / "run")


def failed(result):
    return [(one.rule, str(one.why)) for one in result.not_checked if "failed" in one.why.code]


@pytest.mark.parametrize("name", [OPINIONS, ROWS])
def test_one_bad_line_silences_no_rule(healthy, tmp_path, name):
    """Whatever stands in a line, the good one beside it is found; nothing is a fault of ours."""
    good, finds = FOUND_IN[name]
    for number, (at, value) in enumerate(hostile(good)):
        write_lines(healthy, name, raw(changed(good, at, value)), good)
        out = tmp_path / f"out{number % 50}" if number % 50 == 0 else None
        results = check_runs([healthy], output_path=out)
        (result,) = results.runs
        assert result.status is Health.UNHEALTHY, (at, value)
        assert finds in {one.rule for one in result.all_findings}, (at, value)
        assert not failed(result), (at, value)
        json.dumps(results.to_json())
    (healthy / name).unlink()


@pytest.mark.parametrize("name", [OPINIONS, ROWS])
@pytest.mark.parametrize(
    "bad", [{"rank": float("inf")}, {"step": -1}, {"entry": "\ud800"}, {"phase": 3}, {"step": True}]
)
def test_lines_that_are_left_out_are_counted(healthy, name, bad):
    good, _ = FOUND_IN[name]
    if bad == {"rank": float("inf")} and name == ROWS:
        bad = {"change": int("9" * 400)}
    write_lines(healthy, name, good, {**good, **bad}, b"no JSON", {**good, **bad}, good)
    result = check_run(healthy)
    (problem,) = result.problems
    assert name in str(problem)
    assert "3" in str(problem)
    assert problem.code == "unread.at"
    (healthy / name).unlink()


@pytest.mark.parametrize("name", [OPINIONS, ROWS])
def test_half_a_line_at_the_end_is_no_damage(healthy, name):
    """A process that was killed leaves one."""
    good, finds = FOUND_IN[name]
    write_lines(healthy, name, good)
    with open(healthy / name, "ab") as file:
        file.write(raw(good)[:-20])
    result = check_run(healthy)
    assert not result.problems
    assert finds in {one.rule for one in result.all_findings}
    (healthy / name).unlink()


@pytest.mark.parametrize(("phase", "line", "of"), LEAVES)
def test_a_leaf_that_is_none_silences_no_rule(unhealthy, phase, line, of):
    """The record that is wrong is found, whatever another one says."""
    journal = unhealthy / phase / "step0" / "rank0" / "records.jsonl"
    before = journal.read_bytes()
    lines = before.splitlines()
    content = json.loads(lines[line])
    leaf = content
    for name in of:
        leaf = leaf[name]
    for at, value in random.sample([*hostile(leaf)], 60):
        lines[line] = raw(changed(content, (*of, *at), value))
        journal.write_bytes(b"\n".join(lines) + b"\n")
        result = check_run(unhealthy)
        assert not failed(result), (at, value)
        assert "non_finite.first" in {one.rule for one in result.all_findings}, (at, value)
    journal.write_bytes(before)


@pytest.mark.parametrize("shape", [[[], 1], [{"a": 1}, 2], [-1], "2, 3", 7, [2.0, 3], [True]])
def test_a_record_whose_shape_is_none_is_said(unhealthy, shape):
    journal = unhealthy / "actor_update" / "step0" / "rank0" / "records.jsonl"
    before = journal.read_bytes()
    lines = before.splitlines()
    content = json.loads(lines[0])
    content["output"][0]["shape"] = shape
    journal.write_bytes(b"\n".join([raw(content), *lines[1:]]) + b"\n")
    result = check_run(unhealthy)
    journal.write_bytes(before)
    assert content["entry"] in " ".join(map(str, result.problems))
    assert result.status is Health.UNHEALTHY


def test_sizes_that_are_equal_to_whole_numbers_are_none(tmp_path):
    """Also where the step before had these sizes."""
    run = HealthRun(tmp_path / "run", 0)
    for _ in range(3):
        with run.phase("actor_update"):
            run.call("head", output=tensor())
        run.end_step()
    journal = run.close() / "actor_update" / "step1" / "rank0" / "records.jsonl"
    lines = journal.read_bytes().splitlines()
    content = json.loads(lines[0])
    leaf = content["output"][0]
    leaf["shape"] = [float(size) for size in leaf["shape"]]
    journal.write_bytes(b"\n".join([raw(content), *lines[1:]]) + b"\n")
    assert content["entry"] in " ".join(map(str, check_run(tmp_path / "run").problems))


@rule("test.fails")
def fails(step, check):
    raise OverflowError("cannot convert float infinity to integer")


@rule("test.fails_at_once")
class FailsAtOnce:
    def __init__(self, check):
        raise LookupError("no such thing")


@rule("test.fails_at_the_end")
class FailsAtTheEnd:
    def __init__(self, check):
        self._check = check

    def step(self, step):
        yield self._check.finding("noted", Place(0), severity=Severity.NOTE)

    def end(self):
        raise ValueError("at the end")


@pytest.mark.parametrize("failing", [fails, FailsAtOnce, FailsAtTheEnd])
def test_where_a_rule_failed_nothing_is_healthy(healthy, unhealthy, failing):
    """Not known is not healthy; what other rules find counts all the same."""
    result = check_run(healthy, extra=[failing])
    assert result.status is Health.NOT_CHECKED
    assert not result
    assert result.checked
    said = as_text(lines_of(check_runs([healthy], extra=[failing])))
    assert said.startswith("NOT CHECKED")
    assert "test.fails" in said
    with speaking("zh"):
        said_in_chinese = as_text(lines_of(check_runs([healthy], extra=[failing])))
    assert said_in_chinese.startswith("未检查")
    assert check_run(unhealthy, extra=[failing]).status is Health.UNHEALTHY


def test_the_exit_code_of_a_rule_that_failed(healthy, unhealthy, tmp_path, monkeypatch, capsys):
    (tmp_path / "own.py").write_text("def fails(step, check):\n    raise RuntimeError('broken')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["check", str(healthy), "--rule", "own:fails"]) == 2
    assert "broken" in capsys.readouterr().out
    assert main(["check", str(unhealthy), "--rule", "own:fails"]) == 1


def test_accuracy_reads_on_behind_a_bad_line(healthy, tmp_path, capsys):
    """The wrong call beside it is said; a run whose lines are lost is not ordinary."""
    for number, (at, value) in enumerate(hostile(OPINION)):
        write_lines(healthy, OPINIONS, raw(changed(OPINION, at, value)), OPINION)
        found = accuracy_of(healthy)
        assert found.status is Accuracy.WRONG, (at, value)
        json.dumps(found.to_json(), allow_nan=False)
        if number % 20 == 0:
            lines, sheets = partial(accuracy.lines_of, found), partial(accuracy.sheets_of, found)
            find = partial(Answer, 0, lines, found.to_json, sheets)
            as_text(accuracy.FILES.answer(str(tmp_path / f"out{number}"), [], find).lines())
    ordinary = changed(OPINION, ("tensors", 0, "opinion"), "ordinary")
    write_lines(healthy, OPINIONS, ordinary)
    assert main(["accuracy", str(healthy)]) == 0
    write_lines(healthy, OPINIONS, ordinary, {**ordinary, "rank": float("inf")})
    assert main(["accuracy", str(healthy)]) == 2
    said = capsys.readouterr()
    assert OPINIONS in said.out
    assert "fault of this tool" not in said.err
    assert main(["accuracy", str(healthy), "--json"]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert OPINIONS in problem
    (healthy / OPINIONS).unlink()


def test_the_tables_of_the_free_benchmark_take_what_a_line_may_say(healthy, tmp_path):
    """Numbers and texts at the bounds of what is read: `check -o` writes them."""
    names = ("\u202e=1+1", "\x1b[2J\n", "x" * 4096, '"' * 100)
    rows = [{**ROW, "path": name, "change": number} for name in names for number in (0, 1e308)]
    write_lines(healthy, ROWS, *rows, {**ROW, "change": None, "threshold": 0})
    for number in range(2):  # the second time over its own files
        assert main(["check", str(healthy), "-o", str(tmp_path / "out")]) == 1, number
    assert len(json.loads((tmp_path / "out/free_benchmark.json").read_text())) == 5
    (healthy / ROWS).unlink()


def test_a_run_without_a_step_is_not_healthy(tmp_path, cli):
    run = Recording(tmp_path / "run").close()
    assert check_run(run).status is Health.NOT_CHECKED
    assert "it holds no step" in cli("check", run, code=2).out
    assert "holds no data of layers" in cli("mismatch", run, code=2).err
