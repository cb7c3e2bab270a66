"""The whole way: rules from everywhere, rule files, exit codes, and runs that are not whole."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap

import openpyxl
import pytest
from helpers.health_runs import HealthRun, a_nan, steps_of, tensor
from helpers.runs import MSPROBE_DATA, Fault, record_training
from helpers.runs import a_nan as make_nan
from helpers.snapshots import rewrite

from mindrlhf_msprobe import ConfigError, RunError, UsageError, check_run, check_runs
from mindrlhf_msprobe.checks import rule
from mindrlhf_msprobe.checks.rule import key, phase
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.findings.health import Evidence, Severity
from mindrlhf_msprobe.storage.place import Place


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return record_training(tmp_path_factory.mktemp("healthy") / "run", steps=2, tokens=1)


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    fault = Fault("layers.0.mlp", "actor_update", step=1, change=make_nan)
    root = tmp_path_factory.mktemp("broken") / "run"
    return record_training(root, steps=3, tokens=1, faults=[fault])


@rule("test.places", thresholds={"least": 1.0})
def places(step, check):
    for number in range(2):
        value = step.number + number
        if value >= check.threshold("least"):
            at = Place(step.number, 0, key=f"key{number}")
            yield check.finding("too large", at, evidence=[Evidence(at, {"value": value})])


def only(rule):
    """Switch off all rules but those of one name."""
    names = ("non_finite", "ranks", "rl", "weights", "history", "healthy")
    from mindrlhf_msprobe.checks.loading import own_rules

    areas = {one.area for one in own_rules()}
    return {**{name: False for name in names if name in areas}, **rule}


def test_where_a_training_stopped_is_said(tmp_path, capsys):
    """It is no finding, but whoever reads HEALTHY is to know that the training did not end."""
    program = """
import sys
import numpy as np
from mindrlhf_msprobe import Probe
probe = Probe.from_config({"msprobe": True, "key_data_dump": True, "dump_path": sys.argv[1]})
with probe:
    for step in range(3):
        with probe.phase("actor_update"):
            probe.save_data(loss=1.0)
            if step == 2:
                raise FloatingPointError("loss is nan")
        probe.step()
"""
    run = tmp_path / "run"
    subprocess.run([sys.executable, "-c", program, str(run)], capture_output=True)
    assert main(["check", str(run), "--lang", "en"]) == 0
    said = "the training stopped in step 2, actor_update: FloatingPointError: loss is nan"
    assert said in capsys.readouterr().out
    assert main(["check", str(run), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"][0]["stopped"]
    assert (found["state"], found["step"], found["ranks"]) == ("failed", 2, [0])
    assert "stopped" not in check_run(MSPROBE_DATA / "statistics_a").to_json()


def test_exit_codes(healthy, broken, tmp_path, capsys):
    assert main(["check", str(healthy)]) == 0
    assert main(["check", str(broken), "--lang", "zh"]) == 1
    assert "Cell.layers.0.mlp.Dense.forward.0" in capsys.readouterr().out
    assert main(["check", str(healthy), str(broken)]) == 1
    assert main(["check", str(tmp_path / "nothing")]) == 2
    off = tmp_path / "off.yaml"
    off.write_text("\n".join(f"{name}: off" for name in only({})))
    assert main(["check", str(broken), "--rules", str(off)]) == 2


def test_json_holds_codes_and_words(broken, capsys):
    assert main(["check", str(broken), "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    (run,) = content["runs"]
    found = next(one for one in run["findings"] if one["rule"] == "non_finite.first")
    assert found["place"]["step"] == 1
    assert found["code"]["code"] == "check_non_finite.born"
    assert found["causes"]
    assert found["next_step"]["task"] == "tensor"
    assert {one["rule"] for one in run["not_checked"]} >= {"ranks.entries"}


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_workbook_has_a_row_a_finding(broken, tmp_path, lang):
    results = check_runs([broken], output_path=tmp_path / "out", lang=lang)
    book = openpyxl.load_workbook(tmp_path / "out" / "checks.xlsx")
    rows = [*book.worksheets[0].iter_rows(values_only=True)]
    assert len(rows) == 1 + sum(len(run.all_findings) for run in results.runs)
    assert any("Cell.layers.0.mlp.Dense.forward.0.output.0" in row for row in rows)


def test_a_function_and_a_rule_file_with_thresholds(healthy):
    """The same at one place is one finding, with how often and until when."""
    result = check_run(healthy, extra=[places], rules=only({"test.places": {"least": 1.0}}))
    told = [(one.place.key, one.place.step, one.times, one.last_step) for one in result.findings]
    assert told == [("key1", 0, 2, 1), ("key0", 1, 1, 1)]
    more = only({"test.places": {"least": 2, "severity": "note"}})
    result = check_run(healthy, extra=[places], rules=more)
    assert [one.place.key for one in result.findings] == ["key1"]
    assert result
    none = only({"test.places": {"exclude": "key"}})
    assert check_run(healthy, extra=[places], rules=none).findings == ()


def test_a_rule_on_the_command_line(healthy, tmp_path, monkeypatch, capsys):
    (tmp_path / "own_checks.py").write_text(
        textwrap.dedent(
            """
            from mindrlhf_msprobe.findings.health import Place

            def odd(step, check):
                yield check.finding("<b>\\u202eodd", Place(step.number))

            def fails(step, check):
                raise RuntimeError("no such luck")
            """
        )
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert main(["check", str(healthy), "--rule", "own_checks:odd"]) == 1
    assert "\u202e" not in capsys.readouterr().out
    assert main(["check", str(healthy), "--rule", "own_checks:fails"]) == 2
    assert "no such luck" in capsys.readouterr().out
    for wrong in ("own_checks", "own_checks:none", "no_such_module:odd"):
        assert main(["check", str(healthy), "--rule", wrong]) == 2


def test_an_entry_point_that_cannot_be_loaded_costs_nothing(healthy, monkeypatch):
    from importlib import metadata

    point = metadata.EntryPoint("theirs", "no_such_module:rule", "mindrlhf_msprobe.checks")
    good = metadata.EntryPoint("places", f"{__name__}:places", "mindrlhf_msprobe.checks")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point, good])
    result = check_run(healthy)
    assert "test.places" in result.checked
    assert "theirs" in [one.rule for one in result.not_checked]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("non_finit: off", ["non_finit", "non_finite", "line 1"]),
        ("non_finite.first:\n  retrys: 3", ["retrys", "'retries'", "line 2"]),
        ("non_finite.first: {retries: many}", ["retries", "'many'", "a number"]),
        ("non_finite.first: {retries: .nan}", ["retries", "nan", "a number"]),
        ("non_finite.first: {severity: fatal}", ["fatal", "error, warning, note"]),
        ("non_finite.first: 3", ["non_finite.first", "3", "on, off"]),
        ("non_finite.first: {include: ['(a)\\1']}", ["include", "linear"]),
        ("- off", ["mapping"]),
    ],
)
def test_a_wrong_rule_file_is_said_to_be_one(healthy, tmp_path, content, named):
    file = tmp_path / "rules.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError) as error:
        check_run(healthy, rules=file)
    assert [text for text in named if text not in str(error.value)] == []


def test_a_pattern_that_never_ends_does(broken):
    rules = {"non_finite.first": {"exclude": "(x+x+)+y|(.*)*mlp"}}
    assert not [
        one for one in check_run(broken, rules=rules).findings if one.rule == "non_finite.first"
    ]


def test_two_rules_of_one_name_are_refused(healthy):
    with pytest.raises(UsageError, match=r"test\.places"):
        check_run(healthy, extra=[places, places])


def test_what_a_rule_needs_and_is_not_there_is_said(healthy):
    @rule("test.needs", needs=(key("no_key", "neither"), phase("no_phase")))
    def needs(step, check):
        yield check.finding("never", Place(0))

    result = check_run(healthy, extra=[needs])
    whys = [str(one.why) for one in result.not_checked if one.rule == "test.needs"]
    assert any("no_key, neither" in why for why in whys)
    assert any("no_phase" in why for why in whys)
    assert "test.needs" not in result.checked


def test_later_findings_stand_under_what_they_follow_from(tmp_path):
    """On the same rank at once, on others from the next step on."""
    for run, step, rank in steps_of(tmp_path / "run", 3, (0, 1)):
        with run.phase("actor_update"):
            run.call("head", output=a_nan() if step == 1 and not rank else tensor())

    @rule("test.later", follows=("non_finite.*",))
    def later(step, check):
        for rank in step.ranks:
            at = Place(step.number, rank, seq=10**9)
            yield check.finding("later", at, same=(step.number, rank))

    rules = only({"non_finite": True})
    result = check_run(tmp_path / "run", extra=[later], rules=rules)
    first = next(one for one in result.findings if one.rule == "non_finite.first")
    under = [(one.place.step, one.place.rank) for one in first.followed_by]
    assert under == [(1, 0), (2, 0), (2, 1)]
    assert [(one.place.step, one.place.rank) for one in result.findings if one is not first] == [
        (0, 0),
        (0, 1),
        (1, 1),
    ]


def test_a_run_cut_off_in_the_middle(broken, tmp_path):
    """The damaged line is said; what is left of the journal is checked."""
    root = tmp_path / "run"
    shutil.copytree(broken, root)
    journal = root / "actor_update" / "step1" / "rank0" / "records.jsonl"
    journal.write_bytes(journal.read_bytes()[:-50])
    result = check_run(root)
    assert result.problems
    assert "non_finite.first" in [one.rule for one in result.findings]


def test_a_step_that_was_not_ended_is_said(tmp_path):
    run = HealthRun(tmp_path / "run")
    for _ in range(2):
        with run.phase("actor_update"):
            run.call("head", output=tensor())
        run.end_step()
    run.close()
    last = ("attempts", -1, "last_completed_step")
    rewrite(tmp_path / "run" / "run.json", {"state": "running", last: 0})
    codes = [one.why for one in check_run(tmp_path / "run").not_checked]
    assert [why.params for why in codes if why.code == "checks.cut_off"] == [{"step": 1}]


def test_a_note_is_no_reason_for_a_warning(tmp_path):
    for run, *_ in steps_of(tmp_path / "run", 2):
        with run.phase("actor_update"):
            run.call("head", output=tensor())

    @rule("mine.noted", severity="note")
    def noted(step, check):
        yield check.finding("noted", Place(step.number, 0, seq=1.0), same="noted")

    @rule("mine.later", follows=("mine.noted",))
    def later(step, check):
        for severity in ("warning", "note"):
            at = Place(step.number, 0, seq=2.0)
            yield check.finding(severity, at, severity=Severity(severity), same=severity)

    result = check_run(tmp_path / "run", extra=[noted, later], rules=only({}))
    assert [one.rule for one in result.findings] == ["mine.noted", "mine.later"]
    assert [str(one.said) for one in result.findings[0].followed_by] == ["note"]


@pytest.mark.parametrize("name", ["statistics_a", "statistics_8x_a", "tensor_8x_a", "key_data_a"])
def test_dumps_of_msprobe(name):
    result = check_run(MSPROBE_DATA / name)
    assert "non_finite.first" in result.checked
    found = [one.place.key for one in result.findings if one.rule == "non_finite.first"]
    assert found == (["naninf"] if name == "key_data_a" else [])


def test_no_run_is_an_error(tmp_path):
    with pytest.raises(RunError):
        check_run(tmp_path / "none")
    with pytest.raises(UsageError):
        check_runs([])


def test_what_was_not_checked_is_one_line_and_a_list_on_demand(healthy, capsys):
    """By reason; a rule that failed is named in any case, and the page folds the list."""
    from mindrlhf_msprobe.report.checks import not_checked_shown
    from mindrlhf_msprobe.report.page.data import in_both

    assert main(["check", str(healthy), "--lang", "en"]) == 0
    short = capsys.readouterr().out.splitlines()
    (line,) = [text for text in short if "Not checked" in text]
    assert main(["check", str(healthy), "--lang", "en", "--not-checked"]) == 0
    whole = capsys.readouterr().out.splitlines()
    assert len(whole) - len(short) == int(line.partition("(")[2].partition(")")[0])
    counts = [
        int(part.split()[-1]) for part in line.partition(";")[0].partition(": ")[2].split(",")
    ]
    assert sum(counts) == len(whole) - len(short)
    assert "--not-checked" in line
    result = check_run(healthy)
    shown = in_both(lambda: not_checked_shown([result]))
    assert shown["line"][0] == line.partition(";")[0]
    assert len(shown["items"]) == sum(counts)
