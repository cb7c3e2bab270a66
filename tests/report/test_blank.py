"""Blank workbooks: the same whoever makes them, and nobody waits for a process that does not."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from conftest import run_python
from openpyxl import load_workbook
from openpyxl.utils import get_column_letter

from mindrlhf_msprobe.report.formats import blank_process
from mindrlhf_msprobe.report.formats.blank import Outline
from mindrlhf_msprobe.report.formats.sheets import Sheet
from mindrlhf_msprobe.report.formats.xlsx import _letters, write_xlsx

needs_two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="the process is started where there is a core for it"
)

#: Makes blank workbooks beside; `process` is the process and `outlines` what is to be made.
BESIDE = """
import json, os, signal, sys
from mindrlhf_msprobe.report.formats import blank
from mindrlhf_msprobe.report.formats import blank_process

def sheet(name, columns):
    header = tuple(f"column {number}" for number in range(columns))
    return blank.Outline(name, header, (11.0,) * columns, True, 1)

def same(one, other):
    # openpyxl notes in this one when it was made; what is written has no times.
    files = [{n: t for n, t in made.files.items() if n != "docProps/core.xml"}
             for made in (one, other)]
    return files[0] == files[1] and one.styles == other.styles

outlines = (sheet("one", 3), sheet("two", 2))
with blank.made_beside():
    process = blank._process.get()
"""


def lines(result):
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def write_run(path: Path, keys: int, seed: int) -> None:
    """Write a run as msprobe's SingleSave does: one key data a key."""
    for key in range(keys):
        place = path / f"data/key{key}/step0/rank0/micro_step0"
        place.mkdir(parents=True)
        np.save(place / f"key{key}.npy", np.random.default_rng(seed).standard_normal(8))
        (place / f"key{key}.json").write_text(json.dumps({"data": {"shape": [8]}}))


def test_where_cores_cannot_be_asked_for_it_still_starts_or_not(monkeypatch):
    """macOS has no `sched_getaffinity`, and a sandbox may refuse it: all cores count then."""
    asked = []
    monkeypatch.setattr(blank_process, "may_fork", lambda: asked.append(1))
    monkeypatch.delitem(sys.modules, "openpyxl")

    def refused(pid):
        raise PermissionError("sched_getaffinity")

    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", refused)
    assert blank_process.start() is None
    monkeypatch.delattr(os, "sched_getaffinity")
    assert blank_process.start() is None
    assert len(asked) == 2
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert blank_process.start() is None
    assert len(asked) == 2


@needs_two_cores
def test_the_command_writes_the_same_with_it_and_without(tmp_path):
    """Byte for byte; with it, the process that compares never imports openpyxl."""
    for name, seed in (("a", 1), ("b", 2)):
        write_run(tmp_path / name, 6, seed)  # more tables than workbooks are asked for ahead
    program = """
import os, sys
from mindrlhf_msprobe.cli import main
if sys.argv[1] == "alone":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
code = main(["compare", "a", "b", "-o", "out", "--json"])
os.rename("out", sys.argv[1])
print(code, "openpyxl" in sys.modules, file=sys.stderr)
"""
    said = [run_python(program, tmp_path, how).stderr.strip() for how in ("beside", "alone")]
    assert said == ["1 False", "1 True"]
    files = [
        {path.name: path.read_bytes() for path in (tmp_path / how).iterdir()}
        for how in ("beside", "alone")
    ]
    assert len(files[0]) == 6 + 2
    assert files[0] == files[1]


@needs_two_cores
@pytest.mark.parametrize("fate", ["", "SIGKILL", "SIGSTOP"])
def test_one_that_does_not_answer_is_done_without(tmp_path, fate):
    """Killed or stopped at any moment: the workbook is made here, and is the same."""
    program = f"""
{BESIDE}
    blank_process._PATIENCE = 10.0 if sys.argv[1] != "SIGSTOP" else 0.2
    first = blank.blank((sheet("first", 4),))
    if sys.argv[1]:
        os.kill(process._pid, signal.Signals[sys.argv[1]])
    made = blank.blank(outlines)
    print("openpyxl" in sys.modules)
print(same(made, blank._made_here(outlines)))
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no process is left")
"""
    here = str(bool(fate))
    assert lines(run_python(program, tmp_path, fate)) == [here, "True", "no process is left"]


@needs_two_cores
def test_many_large_ones_block_nobody(tmp_path):
    """More answers than a pipe holds, and more wishes than are asked for ahead."""
    program = f"""
{BESIDE}
    wanted = [(sheet(f"sheet {{number}}", 300),) for number in range(9)]
    blank.expect(wanted, no_others=True)
    made = [blank.blank(outlines) for outlines in wanted]
    print("openpyxl" in sys.modules, len(set(len(m.files) for m in made)))
names = [b'name="sheet %d"' % number for number in range(9)]
print(all(name in m.files["xl/workbook.xml"] for name, m in zip(names, made)))
"""
    assert lines(run_python(program, tmp_path)) == ["False 1", "True"]


@needs_two_cores
def test_what_comes_after_the_last_that_was_expected_is_made_here(tmp_path):
    """The process has ended by then."""
    program = f"""
{BESIDE}
    blank.expect([outlines], no_others=True)
    made = blank.blank(outlines)
    other = blank.blank((sheet("other", 1),))
print(same(made, blank._made_here(outlines)), len(other.files) > 5)
"""
    assert lines(run_python(program, tmp_path)) == ["True True"]


@needs_two_cores
def test_threads_that_load_what_writes_tables_leave_openpyxl_to_it(tmp_path):
    """Several at once, as a comparison step by step starts them."""
    program = """
import sys, threading
from mindrlhf_msprobe.report.formats.blank import made_beside
from mindrlhf_msprobe.report.files import loading

with made_beside():
    threads = [threading.Thread(target=loading()) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print("openpyxl" in sys.modules, "mindrlhf_msprobe.report.tables.workbook" in sys.modules)
loading()()
print("openpyxl" in sys.modules)
"""
    result = run_python(program, tmp_path)
    assert lines(result) == ["False True", "True"]
    assert result.stderr == ""


@needs_two_cores
def test_it_ends_with_the_process_that_started_it(tmp_path):
    """Even if that is killed."""
    program = f"""
{BESIDE}
    print(process._pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    result = run_python(program, tmp_path)
    assert result.returncode == -signal.SIGKILL
    state = Path(f"/proc/{int(result.stdout)}/stat")
    until = time.monotonic() + 30
    while state.exists() and ") Z " not in state.read_text() and time.monotonic() < until:
        time.sleep(0.01)
    assert not state.exists() or ") Z " in state.read_text()


@needs_two_cores
def test_an_error_inside_ends_it(tmp_path):
    """Nothing is left open: no process, no file."""
    program = f"""
{BESIDE.replace("with blank.made_beside():", "files = os.listdir('/proc/self/fd')")}
try:
    with blank.made_beside():
        print(blank._process.get() is not None)
        raise ArithmeticError
except ArithmeticError:
    print(os.listdir("/proc/self/fd") == files, blank._process.get())
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no process is left")
"""
    program = program.replace("    process = blank._process.get()\n\n", "\n")
    assert lines(run_python(program, tmp_path)) == ["True", "True None", "no process is left"]


@pytest.mark.parametrize("why", ["threads", "openpyxl", "mindspore", "one core", "no processes"])
def test_there_is_none_where_it_is_unsafe_or_of_no_use(tmp_path, why):
    """In a process with threads a fork is unsafe; with openpyxl at hand, or one core, useless."""
    program = """
import os, resource, sys, threading, types
from mindrlhf_msprobe.report.formats import blank
why = sys.argv[1]
if why == "threads":
    threading.Thread(target=threading.Event().wait, daemon=True).start()
if why in ("openpyxl", "mindspore"):
    sys.modules[why] = types.ModuleType(why)
if why == "one core":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if why == "no processes":
    def fork():
        raise BlockingIOError(11, "Resource temporarily unavailable")
    os.fork = fork
files = os.listdir("/proc/self/fd")
with blank.made_beside():
    print(blank._process.get(), os.listdir("/proc/self/fd") == files)
"""
    assert lines(run_python(program, tmp_path, why)) == ["None True"]


def test_filters_are_as_long_as_their_sheets(tmp_path):
    """Whatever the blank workbook said: in the sheet, and in the names of the workbook."""
    counts = (0, 1, 300, 7)
    sheets = [
        Sheet(
            name=f"a $B$1048576 {number}",
            header=("one", "two"),
            rows=lambda count=count: [("", (row, "x")) for row in range(count)],
            count=count,
            widths=(10, 10),
            filtered=number != 3,
        )
        for number, count in enumerate(counts)
    ]
    write_xlsx(tmp_path / "book.xlsx", sheets)
    book = load_workbook(tmp_path / "book.xlsx")
    for number, (sheet, count) in enumerate(zip(book.worksheets, counts)):
        assert sheet.auto_filter.ref == (f"A1:B{count + 1}" if number != 3 else None)
        assert sheet.max_row == count + 1
    with ZipFile(tmp_path / "book.xlsx") as files:
        names = re.findall(r"![$]A[$]1:[$]B[$](\d+)<", files.read("xl/workbook.xml").decode())
    assert names == [str(count + 1) for count in counts[:3]]


def test_columns_are_called_as_openpyxl_calls_them():
    """A to ZZZ."""
    assert [_letters(number) for number in range(1, 18_279)] == [
        get_column_letter(number) for number in range(1, 18_279)
    ]


def test_an_outline_says_nothing_of_the_rows():
    """Tables that differ by their number of rows share one blank workbook."""
    assert Outline._fields == ("name", "header", "widths", "filtered", "frozen")
