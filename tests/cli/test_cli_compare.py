"""`mindrlhf-msprobe compare`: exit codes, streams, and messages without a traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.runs import MSPROBE_DATA, Fault, Recording, record_data, record_training

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.errors import RunError, UsageError

SAME, DIVERGED, UNDECIDED = 0, 1, 2


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the directories of a run, an equal one and one with a fault."""
    root = tmp_path_factory.mktemp("runs")
    fault = Fault("layers.1.mlp", "reference_compute_log_prob")
    return (
        record_training(root / "a", steps=1),
        record_training(root / "same", steps=1),
        record_training(root / "other", steps=1, faults=[fault]),
    )


def losses(root, a, b):
    """Return two runs, of which each saved a loss."""
    return [record_data(root / name, [("loss", of)]) for name, of in (("a", a), ("b", b))]


@pytest.fixture
def compare(tmp_path, monkeypatch, capsys):
    """Return a function that runs `compare` and returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        try:
            code = main(["compare", *map(str, arguments)])
        except SystemExit as exit_:
            code = exit_.code
        streams = capsys.readouterr()
        assert "Traceback" not in streams.err
        return code, streams.out, streams.err

    return run


def test_equal_runs_exit_with_0(compare, runs, tmp_path):
    """The same: exit code 0, the answer on stdout, nothing on stderr, tables in the output."""
    code, out, err = compare(runs[0], runs[1], "-o", tmp_path / "out")
    assert (code, err) == (SAME, "")
    assert out.startswith("IDENTICAL")
    assert (tmp_path / "out/verdict.json").is_file()
    assert (tmp_path / "out/compare_result_actor_update.xlsx").is_file()


def test_different_runs_exit_with_1(compare, runs, tmp_path):
    """Diverged: exit code 1, and stdout names the cell and where the tables are."""
    code, out, err = compare(runs[0], runs[2], "-o", tmp_path / "out")
    assert (code, err) == (DIVERGED, "")
    assert "Cell.layers.1.mlp.Dense.forward.0" in out
    assert str(tmp_path / "out") in out


def test_runs_within_the_tolerance_exit_with_0(compare, tmp_path):
    """--rtol and --atol say what counts as the same."""
    pair = losses(tmp_path, 1.0, 1.001)
    assert compare(*pair)[0] == DIVERGED
    for tolerance in (("--rtol", "0.01"), ("--atol", "0.01")):
        code, out, _ = compare(*pair, *tolerance)
        assert code == SAME
        assert out.startswith("WITHIN TOLERANCE")


def test_msprobes_options_are_taken(compare, runs):
    """-tp and -gp, --target_path and --golden_path name the two runs as in msprobe."""
    assert compare("-tp", runs[0], "-gp", runs[1])[0] == SAME
    assert compare("--target_path", runs[0], "--golden_path", runs[2])[0] == DIVERGED


def test_json_on_stdout_is_the_verdict(compare, runs, tmp_path):
    """--json prints what stands in verdict.json, and nothing else."""
    code, out, err = compare(runs[0], runs[2], "--json", "-o", tmp_path / "out")
    assert (code, err) == (DIVERGED, "")
    content = json.loads(out, parse_constant=pytest.fail)
    assert content == json.loads((tmp_path / "out/verdict.json").read_text(encoding="utf-8"))
    assert content["first_divergence"]["cause"] == "computation"


def test_json_is_valid_for_any_values(compare, tmp_path):
    """Errors beyond every float are valid JSON too."""
    code, out, _ = compare(*losses(tmp_path, 1.7e308, -1.7e308), "--json")
    assert code == DIVERGED
    json.loads(out, parse_constant=pytest.fail)


def test_the_output_has_a_default(compare, runs, tmp_path):
    """Without -o the tables lie in ./msprobe_compare_output."""
    assert compare(runs[0], runs[1])[0] == SAME
    assert (tmp_path / "msprobe_compare_output/verdict.json").is_file()


def test_what_cannot_be_decided_exits_with_2(compare, runs, tmp_path):
    """A missing directory, a file, an empty directory and something else: one clear message."""
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other/src").mkdir(parents=True)
    for name, expected in (
        ("nowhere", "does not exist"),
        ("file", "is not a directory"),
        ("empty", "It is empty"),
        ("other", "neither run.json nor layer data"),
    ):
        for pair in ((runs[0], tmp_path / name), (tmp_path / name, runs[0])):
            code, out, err = compare(*pair, "-o", tmp_path / "out")
            assert (code, out) == (UNDECIDED, ""), name
            assert expected in err
            assert name in err
            assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_the_same_directory_twice_exits_with_2(compare, runs):
    """A run compared with itself is refused."""
    code, out, err = compare(runs[0], f"{runs[0]}/../{runs[0].name}")
    assert (code, out) == (UNDECIDED, "")
    assert "the same directory" in err


def test_nothing_in_common_exits_with_2(compare, tmp_path):
    """Runs of other phases and keys cannot be decided, with and without --json."""
    for name in ("a", "b"):
        recording = Recording(tmp_path / name)
        with recording.phase("actor_update" if name == "a" else "critic_update"):
            recording.call("x", "Net", np.sin, np.ones(2))
        recording.data(f"key_{name}", 1.0)
        recording.end_step()
        recording.close()
    code, out, _ = compare(tmp_path / "a", tmp_path / "b")
    assert code == UNDECIDED
    assert "nothing in common" in out
    code, out, _ = compare(tmp_path / "a", tmp_path / "b", "--json")
    assert code == UNDECIDED
    assert json.loads(out)["status"] == "incomparable"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_runs_is_bad_usage(compare, runs, count):
    """Exactly two runs can be compared."""
    code, out, err = compare(*runs[:count])
    assert (code, out) == (UNDECIDED, "")
    assert f"got {count}" in err


@pytest.mark.parametrize(
    "bad", [["--rtol", "-1"], ["--atol", "nan"], ["--rtol", "x"], ["--what"], ["-x", "1"]]
)
def test_bad_options_are_bad_usage(compare, runs, bad):
    """A tolerance that is none and an unknown option are named."""
    code, out, err = compare(runs[0], runs[1], *bad)
    assert (code, out) == (UNDECIDED, "")
    assert bad[0].strip("-") in err


def test_an_output_that_cannot_be_written_exits_with_2(compare, runs, tmp_path):
    """An output path below a file is named, with what to do."""
    (tmp_path / "file").write_text("")
    code, out, err = compare(runs[0], runs[1], "-o", tmp_path / "file" / "out")
    assert code == UNDECIDED
    assert out.startswith("IDENTICAL")  # the comparison itself is not lost
    assert "cannot be written" in err
    assert "-o" in err
    err = compare(runs[0], runs[1], "-o", tmp_path / "file" / "out", "--lang", "zh")[2]
    assert "无法写入" in err
    assert "cannot be written" not in err


def test_an_unreadable_record_exits_with_1(compare, tmp_path):
    """A record that cannot be read counts as diverged."""
    pair = losses(tmp_path, np.arange(10.0), np.arange(10.0))
    path = pair[1] / "data/loss/step0/rank0/micro_step0/loss.npy"
    os.truncate(path, path.stat().st_size - 8)
    code, out, _ = compare(*pair)
    assert code == DIVERGED
    assert "cause: unreadable" in out
    assert "cut short" in out


def test_msprobes_own_dumps_can_be_compared(compare):
    """Two dumps made by msprobe itself are compared like runs."""
    code, out, _ = compare(MSPROBE_DATA / "md5_a", MSPROBE_DATA / "md5_b")
    assert code == DIVERGED
    assert "cause: parameter" in out


COMMAND = [sys.executable, "-m", "mindrlhf_msprobe", "compare"]


def in_a_shell(*arguments, cwd, command=COMMAND):
    """Compare in a process of its own, which must not end with a traceback."""
    done = subprocess.run(
        [*command, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        timeout=60,
    )
    assert b"Traceback" not in done.stderr
    return done


def test_the_command_works_in_a_process_of_its_own(runs, tmp_path):
    """`python -m mindrlhf_msprobe compare` answers, writes and exits as in this process."""
    done = in_a_shell(runs[0], runs[2], "-o", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == DIVERGED
    assert done.stdout.decode().startswith("DIVERGED at step 0")
    assert done.stderr == b""
    done = in_a_shell(runs[0], tmp_path / "nowhere", cwd=tmp_path)
    assert done.returncode == UNDECIDED
    assert done.stdout == b""
    assert b"does not exist" in done.stderr


def test_comparing_needs_no_framework(runs, tmp_path):
    """compare never imports MindSpore."""
    program = (
        "import sys; sys.modules['mindspore'] = None; from mindrlhf_msprobe.cli import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "compare"]
    done = in_a_shell(runs[0], runs[1], cwd=tmp_path, command=command)
    assert (done.returncode, done.stderr) == (SAME, b"")


def test_a_table_that_cannot_be_written_loses_no_answer(compare, runs, tmp_path):
    """A directory in the place of summary.xlsx: the answer, the reason and exit code 2."""
    (tmp_path / "out/summary.xlsx").mkdir(parents=True)
    for other, said in ((runs[1], "IDENTICAL"), (runs[2], "DIVERGED")):
        code, out, err = compare(runs[0], other, "-o", tmp_path / "out")
        assert code == UNDECIDED
        assert out.startswith(said)
        assert "Tables:" not in out
        assert "no tables were written" in err
        assert "summary.xlsx is a directory" in err
        assert "The answer is printed here." in err
    code, out, _ = compare(runs[0], runs[2], "--json", "-o", tmp_path / "out")
    assert code == UNDECIDED
    assert json.loads(out)["status"] == "diverged"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ZeroDivisionError("x")])
def test_whatever_fails_while_tables_are_written_loses_no_answer(
    compare, runs, tmp_path, monkeypatch, error
):
    """The error that compare_runs raises holds the comparison; nothing is compared twice."""

    def fails(*_):
        raise error

    monkeypatch.setattr("mindrlhf_msprobe.report.workbook.write_xlsx", fails)
    with pytest.raises(RunError, match="cannot be written") as raised:
        compare_runs(runs[0], runs[2], output_path=tmp_path / "out")
    assert raised.value.comparison.verdict.status == "diverged"
    code, out, err = compare(runs[0], runs[2], "-o", tmp_path / "out")
    assert (code, out.split()[0]) == (UNDECIDED, "DIVERGED")
    assert str(error.args[-1]) in err


def test_a_limit_of_file_sizes_loses_no_answer(runs, tmp_path):
    """`ulimit -f` stops the tables, not the answer."""
    limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", sys.executable, "-B", *COMMAND[1:]]
    done = in_a_shell(runs[0], runs[2], "-o", "out", cwd=tmp_path, command=limited)
    assert done.returncode == UNDECIDED
    assert done.stdout.startswith(b"DIVERGED")
    assert b"no tables were written" in done.stderr


def test_options_may_stand_anywhere(compare, runs):
    """Between the two runs, before and behind them."""
    for arguments in (
        (runs[0], "--csv", runs[1]),
        (runs[0], "-o", "out", runs[1]),
        ("--rtol", "0.1", runs[0], runs[1]),
        (runs[0], "--noise", runs[2], runs[1], "--csv"),
        ("--csv", "--", runs[0], runs[1]),
    ):
        code, out, err = compare(*arguments)
        assert (code, err) == (SAME, ""), arguments
        assert out


@pytest.mark.parametrize("ranks", ["-1,0", "0,-1", "0", "0,x", "0,1,2", "9" * 5000 + ",1"])
def test_ranks_are_two_numbers(compare, runs, ranks):
    """Whatever else is given for --ranks: two rank numbers are expected."""
    code, out, err = compare(runs[0], "--ranks", ranks)
    assert (code, out) == (UNDECIDED, "")
    assert "expected two rank numbers" in err


def test_an_empty_path_means_nothing(compare, runs):
    """It is not the current directory, for a run, a file or the output."""
    for arguments in (
        ("",),
        ("", runs[0]),
        (runs[0], ""),
        (runs[0], runs[1], "-o", ""),
        (runs[0], runs[1], "--noise", ""),
        (runs[0], runs[1], "--mapping", ""),
    ):
        code, out, err = compare(*arguments)
        assert (code, out) == (UNDECIDED, ""), arguments
        assert "empty" in err
        assert len(err.splitlines()) == 1
    for options in ({"output_path": ""}, {"noise": [""]}, {"tokenizer": ""}):
        with pytest.raises(UsageError, match="empty path"):
            compare_runs(runs[0], runs[1], **options)


def test_tables_are_not_written_among_the_evidence(compare, runs, tmp_path, monkeypatch):
    """OUT that is a run, lies inside one, or in the run of a phase that is compared."""
    (tmp_path / "link").symlink_to(runs[1])
    before = sorted(runs[0].rglob("*"))
    for output in (runs[0], runs[1] / "new" / "out", tmp_path / "link", runs[2] / "x"):
        code, out, err = compare(runs[0], runs[1], "--noise", runs[2], "-o", output)
        assert (code, out) == (UNDECIDED, "")
        assert "the run" in err
        assert "Give another path" in err
        with pytest.raises(RunError, match="among what was recorded"):
            compare_runs(runs[0], runs[1], noise=[runs[2]], output_path=output)
    phase = runs[0] / "actor_update"
    assert compare(phase, runs[1] / "actor_update", "-o", runs[0] / "out")[0] == UNDECIDED
    monkeypatch.chdir(runs[0])
    assert compare(".", runs[1])[0] == UNDECIDED
    assert sorted(runs[0].rglob("*")) == before


def test_runs_may_lie_inside_the_output(compare, runs):
    """What is refused is tables inside a run, not a run beside tables."""
    assert compare(runs[0], runs[1], "-o", runs[0].parent)[0] == SAME


@pytest.mark.parametrize("json_", [[], ["--json"]])
def test_a_reader_that_stops_changes_no_exit_code(runs, tmp_path, json_):
    """`compare … | head -1`: what was decided stays decided."""
    for other, code in ((runs[1], SAME), (runs[2], DIVERGED)):
        command = [sys.executable, "-m", "mindrlhf_msprobe", "compare", str(runs[0]), str(other)]
        reading, writing = os.pipe()
        os.close(reading)
        try:
            done = subprocess.run(
                [*command, *json_],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
                stdout=writing,
                stderr=subprocess.PIPE,
                timeout=60,
            )
        finally:
            os.close(writing)
        assert (done.returncode, done.stderr) == (code, b"")


def test_the_help_shows_what_people_use_and_all_of_it_on_demand(capsys):
    """Eleven options; the others in groups with `--help-all`, msprobe's names among them."""

    def shown(option):
        with pytest.raises(SystemExit, match="0"):
            main(["compare", option])
        return capsys.readouterr().out

    few, every = shown("--help"), shown("--help-all")
    options = [
        {*re.findall(r"^  (?:-\w+, |-\w+ .*, )?(--[\w-]+)", text, re.M)} for text in (few, every)
    ]
    used = {"--output_path", "--rtol", "--atol", "--mapping", "--steps", "--phases", "--common"}
    used |= {"--after", "--html", "--json", "--markdown"}
    assert options[0] == used | {"--help", "--help-all", "--lang"}
    assert options[0] < options[1]
    for line in ("tolerance:", "what is compared:", "output:", "msprobe's own names of options:"):
        assert f"\n{line}\n" in every
        assert line not in few
    assert {"--target_path", "--noise", "--layout", "--cell_mapping", "--engine"} <= options[1]
    assert "--engine" not in few
