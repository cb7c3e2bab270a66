"""All or nothing: a comparison's files take their places together, or none does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings import Comparison, Finding, Outcome, Side, Status, Verdict
from mindrlhf_msprobe.report import staging, workbook
from mindrlhf_msprobe.report.staging import OutputError, check_output, write_comparison
from mindrlhf_msprobe.storage import outputs

AS_ROOT = os.geteuid() == 0


def write_report(found: Comparison, output: Path, **options: bool) -> list[str]:
    return list(write_comparison(found, output, **options).tables)


def comparison(*keys: str) -> Comparison:
    found = tuple(
        Finding(
            record=key,
            status=Status.IDENTICAL,
            step=0,
            rank=0,
            phase=None,
            io="data",
            path="",
            a=Side(name=key),
            b=Side(name=key),
            key=key,
            micro_step=0,
        )
        for key in keys
    )
    counts = {str(status): 0 for status in Status}
    return Comparison("a", "b", Verdict(Outcome.IDENTICAL, counts, None), found)


def content(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.fixture
def earlier(tmp_path):
    """Return a directory with an earlier comparison and a file of the user's own."""
    out = tmp_path / "out"
    write_report(comparison("loss", "rewards"), out, csv=True)
    (out / "mine.xlsx").write_bytes(b"not a table of ours")
    (out / "values.csv").write_bytes(b"nor this one")
    return out


def test_the_earlier_comparisons_tables_go(earlier):
    """Only the new tables stay, and what is not ours."""
    names = write_report(comparison("kl_loss"), earlier)
    assert set(content(earlier)) == {*names, "verdict.json", "mine.xlsx", "values.csv"}


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, OSError(28, "No space left"), ZeroDivisionError]
)
@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupted_comparison_leaves_the_earlier_one_whole(earlier, monkeypatch, error, at):
    """While tables are written: nothing of the new one, all of the earlier one."""
    before, write, calls = content(earlier), workbook.write_xlsx, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == at:
            raise error
        write(*arguments)

    monkeypatch.setattr(workbook, "write_xlsx", interrupted)
    with pytest.raises((KeyboardInterrupt, RunError, ZeroDivisionError)):
        write_report(comparison("loss", "values"), earlier)
    assert content(earlier) == before


@pytest.mark.parametrize("csv", [False, True])
def test_an_interrupted_replacement_is_undone(earlier, monkeypatch, csv):
    """At whichever file it stops: the earlier comparison and the user's own files are back."""
    before, replace = content(earlier), os.replace
    monkeypatch.setattr(workbook, "write_xlsx", lambda path, _: path.write_bytes(b"new"))
    stops = 0
    for at in range(1, 100):
        calls = []

        def interrupted(source, target, at=at, calls=calls):
            calls.append(source)
            if len(calls) == at:
                raise KeyboardInterrupt
            replace(source, target)

        monkeypatch.setattr(staging.os, "replace", interrupted)
        try:
            names = write_report(comparison("loss", "kl_loss", "more"), earlier, csv=csv)
        except KeyboardInterrupt:
            stops += 1
            monkeypatch.setattr(staging.os, "replace", replace)
            assert content(earlier) == before, at
        else:
            break
    assert stops > 10
    assert {path.name for path in earlier.glob("*.csv")} == {
        *(name for name in names if name.endswith(".csv")),
        "values.csv",
    }


KILLED = """
    import os, signal, sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from test_staging import comparison
    from mindrlhf_msprobe.report import staging
    from mindrlhf_msprobe.report.staging import write_comparison
    replace, calls = os.replace, []
    def killed(source, target):
        calls.append(source)
        if len(calls) == {at}:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
    os.replace = killed
    write_comparison(comparison("loss", "kl_loss", "more"), Path({out!r}), csv=True)
"""


@pytest.mark.parametrize("at", [1, 3, 14, 19])
def test_what_a_killed_process_left_is_put_right(earlier, at):
    """After SIGKILL no half comparison passes for a whole one, and the next one cleans up."""
    before = content(earlier)
    code = textwrap.dedent(KILLED).format(tests=os.path.dirname(__file__), at=at, out=str(earlier))
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = earlier.glob(".msprobe_report.*")
    if at > 2:  # the first rename is of the new verdict.json, inside the staging directory
        assert not (earlier / "verdict.json").exists()
    staging._remove_stale(earlier)
    assert content(earlier) == before
    assert not left.exists()


def test_a_running_process_keeps_its_staging_directory(earlier):
    """Two comparisons into one directory do not take each other's files away."""
    prefix = f".msprobe_report.{outputs.host()}"
    running = earlier / f"{prefix}.{os.getppid()}.abc"
    dead = earlier / f"{prefix}.999999999.abc"
    other_host = earlier / ".msprobe_report.elsewhere.999999999.abc"
    for path in (running, dead, other_host):
        path.mkdir()
    write_report(comparison("loss"), earlier)
    assert (running.exists(), dead.exists(), other_host.exists()) == (True, False, True)
    os.utime(other_host, (0, 0))
    write_report(comparison("loss"), earlier)
    assert not other_host.exists()


@pytest.mark.parametrize("name", ["summary.xlsx", "verdict.json", "loss.xlsx", "loss.csv"])
@pytest.mark.parametrize("how", ["a file", "a link", "ours, changed"])
def test_a_file_that_no_comparison_wrote_is_never_replaced(tmp_path, name, how):
    """It is refused with its name and what to do, and nothing is removed or written."""
    out, foreign = tmp_path / "out", tmp_path / "foreign"
    if how == "ours, changed":
        write_report(comparison("loss"), out, csv=True)
        text = (out / name).read_bytes()
        changed = text.replace(b'"mindrlhf_msprobe"', b'"somebody"')
        (out / name).write_bytes(changed if name == "verdict.json" else text + b" ")
    else:
        out.mkdir()
        foreign.write_bytes(b"a year's work")
        if how == "a link":
            (out / name).symlink_to(foreign)
        else:
            (out / name).write_bytes(b"a year's work")
    before = content(out)
    with pytest.raises(OutputError, match=rf"{re.escape(name)}.* is not what a comparison wrote"):
        write_report(comparison("loss"), out, csv=True)
    if name in ("summary.xlsx", "verdict.json"):  # known before anything is compared
        with pytest.raises(OutputError, match="Move it away"):
            check_output(out)
    assert content(out) == before
    assert how != "a link" or foreign.read_bytes() == b"a year's work"


@pytest.mark.parametrize("forged", [False, True])
def test_what_a_foreign_verdict_names_is_never_removed(tmp_path, forged):
    """Not even if it says that it is ours: it cannot know what is in the files it names."""
    theirs = {"tables": ["model.xlsx", "notes.csv", "../up.csv"], "status": "identical"}
    if forged:
        known = dict.fromkeys(theirs["tables"], "xxh3_128:" + "0" * 32)
        theirs |= {"tool": "mindrlhf_msprobe", "schema": 1, "fingerprints": known}
    out = tmp_path / "out"
    out.mkdir()
    for name in theirs["tables"]:
        (out / name).write_bytes(b"a year's work")
    (out / "verdict.json").write_text(json.dumps(theirs))
    before = content(out)
    if forged:
        write_report(comparison("loss"), out)
    else:
        with pytest.raises(OutputError, match="Move it away"):
            write_report(comparison("loss"), out)
    kept = {name: text for name, text in before.items() if name != "verdict.json"}
    assert kept.items() <= content(out).items()
    assert (tmp_path / "up.csv").read_bytes() == b"a year's work"


def test_a_foreign_staging_directory_takes_nothing_away(earlier):
    """One that claims to have been killed half way through a replacement by tables of a user."""
    before = content(earlier)
    left = earlier / f".msprobe_report.{outputs.host()}.999999999.abc"
    (left / "earlier").mkdir(parents=True)
    (left / "earlier" / "values.csv").write_bytes(b"bad")
    known = {"mine.xlsx": "xxh3_128:" + "0" * 32}
    lie = {"tool": "mindrlhf_msprobe", "tables": ["mine.xlsx"], "fingerprints": known}
    (left / "verdict.json").write_text(json.dumps(lie))
    check_output(earlier)
    assert content(earlier) == before


def test_a_directory_in_a_tables_place_is_a_clear_error(earlier):
    """It is named, and the earlier comparison stays."""
    before = content(earlier)
    (earlier / "kl_loss.xlsx").mkdir()
    with pytest.raises(RunError, match=r"kl_loss\.xlsx is a directory.*-o"):
        write_report(comparison("kl_loss"), earlier)
    (earlier / "kl_loss.xlsx").rmdir()
    assert content(earlier) == before


def test_a_usable_output_is_left_as_it_was(tmp_path):
    """What exists stays, what does not is not left behind."""
    (tmp_path / "here").mkdir()
    check_output(tmp_path / "here")
    check_output(tmp_path / "new" / "deep")
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("below", ["file", "file/out", "link", "x" * 300, "a\0b"])
def test_an_output_that_cannot_be_made_is_refused(tmp_path, below):
    """A file in its place or above it, a link to nothing, a name that is none."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at" / "all")
    for check in (check_output, lambda path: write_report(comparison("loss"), path)):
        with pytest.raises(RunError, match=r"cannot be written: .*-o"):
            check(tmp_path / below)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.skipif(AS_ROOT, reason="root may write everywhere")
def test_an_output_that_is_read_only_is_refused(tmp_path):
    """Neither into it nor below it can anything be written."""
    (tmp_path / "locked").mkdir(mode=0o500)
    for path in (tmp_path / "locked", tmp_path / "locked" / "out"):
        with pytest.raises(RunError, match="Permission denied"):
            check_output(path)


def test_a_refusal_of_the_system_is_told(tmp_path, monkeypatch):
    """Whatever the reason the system gives, it is in the message."""

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    with pytest.raises(RunError, match=r"cannot be written: Permission denied\. Give another"):
        check_output(tmp_path / "out")
    assert not (tmp_path / "out").exists()
