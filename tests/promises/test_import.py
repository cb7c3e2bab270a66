"""What importing the package loads, and what works where MindSpore cannot be imported."""

from pathlib import Path

import pytest
from helpers.programs import HEAVY, run_python

import mindrlhf_msprobe

WITHOUT_MINDSPORE = """
import sys


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("mindspore", "mindformers"):
            raise ImportError(name + " is blocked")


sys.meta_path.insert(0, Refuse())
"""


def test_import_loads_nothing_heavy(tmp_path: Path) -> None:
    """A fresh import loads neither a framework nor numpy nor what writes tables."""
    program = f"import sys, mindrlhf_msprobe\nprint([m for m in {HEAVY} if m in sys.modules])"
    result = run_python(program, tmp_path)
    assert result.stdout.strip() == "[]", result.stderr


@pytest.mark.parametrize("name", mindrlhf_msprobe.__all__)
def test_every_public_name_resolves(name: str) -> None:
    """Every public name is there, and dir() shows it."""
    assert getattr(mindrlhf_msprobe, name) is not None
    assert name in dir(mindrlhf_msprobe)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A name the package does not have is refused as any module refuses it."""
    with pytest.raises(AttributeError, match="no attribute 'Prob'"):
        mindrlhf_msprobe.Prob  # noqa: B018


def test_a_switched_off_probe_imports_nothing(tmp_path: Path) -> None:
    """A switched-off probe accepts every call without loading a framework or numpy."""
    program = f"""
import sys
from mindrlhf_msprobe import Probe

with Probe.from_config({{"msprobe": False, "key_data_dump": True, "actor_train_dump": True}}) as p:
    p.watch(actor=object(), nobody=3)
    with p.phase("actor_update", model="no cell"), p.phase("no phase at all"):
        p.save_data("loss", 1.0)
        p.step()

    @p.phase("actor_update")
    def update():
        return "updated"

    assert update() == "updated"
    p.save_configs(3)
    p.save_data("../../evil", 1)
    assert (p.enabled, p.current_step) == (False, 0)
p.close()
p.step()
print([m for m in {HEAVY} if m in sys.modules])
"""
    result = run_python(program, tmp_path)
    assert result.stdout.strip() == "[]", result.stderr
    assert list(tmp_path.iterdir()) == []


def test_key_data_work_where_mindspore_cannot_be_imported(tmp_path: Path) -> None:
    """Recording numpy key data, opening runs and comparing them need no MindSpore."""
    program = f"""{WITHOUT_MINDSPORE}
import numpy as np
from mindrlhf_msprobe import Probe, compare_runs, open_run

for name in ("a", "b"):
    settings = {{"msprobe": True, "dump_path": name, "key_data_dump": True,
                 "configurations_dump": True}}
    with Probe.from_config(settings) as probe:
        probe.save_configs({{"dtype": np.float32}})
        probe.save_data(values=np.arange(6, dtype=np.float16), prompts=["一", "two"])
        probe.step()
run = open_run("a")
print(run.keys, run.steps, run.finished, run.key_data("prompts")[0].value)
print(bool(compare_runs("a", "b", output_path="out")))
"""
    result = run_python(program, tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["['prompts', 'values'] [0] True ['一', 'two']", "True"]


def test_a_phase_where_mindspore_cannot_be_imported_is_refused_as_misuse(tmp_path: Path) -> None:
    """Watching anything without MindSpore says what is missing, in one sentence."""
    program = f"""{WITHOUT_MINDSPORE}
from mindrlhf_msprobe import Probe, UsageError

probe = Probe.from_config({{"msprobe": True, "actor_train_dump": True}})
try:
    probe.watch(actor=object())
except UsageError as error:
    print(error)
"""
    result = run_python(program, tmp_path)
    assert "not a cell" in result.stdout
    assert "MindSpore cannot be imported" in result.stdout


def test_comparing_compiles_little_before_it_begins(tmp_path: Path) -> None:
    """Of few classes of fields anything is compiled at import: of no frozen one."""
    program = """
import dataclasses, sys, numpy
events = []
def count(event, arguments):
    if event == "compile" and arguments[1] == "<string>":  # no module, where none is kept compiled
        events.append(event)
sys.addaudithook(count)
import mindrlhf_msprobe.comparison.compare, mindrlhf_msprobe.report.comparison
names = [name for name in sys.modules if name.startswith("mindrlhf_msprobe")]
made = {v for name in names for v in vars(sys.modules[name]).values()
        if isinstance(v, type) and v.__module__ == name and dataclasses.is_dataclass(v)}
print(len(made) > 60, len(events) / len(made))
"""
    many, share = run_python(program, tmp_path).stdout.split()
    assert many == "True"
    assert float(share) < 0.5


#: What a comparison of two runs of key data can do without, in its own process.
NOT_FOR_COMPARING = [
    *("openpyxl", "PIL", "rich", "re2", "ray", "tokenizers", "mindspore", "subprocess", "csv"),
    *("multiprocessing", "concurrent", "asyncio", "difflib", "mindrlhf_msprobe.demo"),
    *("mindrlhf_msprobe.cli.show", "mindrlhf_msprobe.probe", "mindrlhf_msprobe.capture"),
    *("mindrlhf_msprobe.sequences", "mindrlhf_msprobe.trends", "mindrlhf_msprobe.replay"),
    *("mindrlhf_msprobe.comparison.mismatch", "mindrlhf_msprobe.comparison.layouts"),
    *("mindrlhf_msprobe.findings.mismatch", "mindrlhf_msprobe.storage.foreign.checkpoints"),
]

RECORDED = """
import os, sys
import numpy as np
from mindrlhf_msprobe.cli import main
for name, value in (("a", 1.0), ("b", 2.0)):
    place = f"{name}/data/loss/step0/rank0/micro_step0"
    os.makedirs(place)
    np.save(f"{place}/loss.npy", np.float32([value]))
"""


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_loads_next_to_nothing(tmp_path: Path, option: str) -> None:
    """Neither what computes and writes, nor another command than the one that is asked about."""
    for arguments in ([option], ["compare", "--help"]):
        others = ["mindrlhf_msprobe.cli.show"] * (arguments[0] == "compare")
        program = f"""
import sys
from mindrlhf_msprobe.cli import main
try:
    main({arguments})
except SystemExit:
    wanted = {[*HEAVY, "re2", "logging", *others]}
    print([m for m in wanted if m in sys.modules], file=sys.stderr)
"""
        assert run_python(program, tmp_path).stderr.strip() == "[]"


def test_a_comparison_loads_what_it_uses(tmp_path: Path) -> None:
    """What draws bars, reads YAML and the like stays out; tables are written without a library."""
    program = f"""{RECORDED}
print(main(["compare", "a", "b", "-o", "out"]), file=sys.stderr)
print([m for m in {NOT_FOR_COMPARING} if m in sys.modules], file=sys.stderr)
"""
    code, loaded = run_python(program, tmp_path).stderr.splitlines()
    assert code == "1"
    assert loaded == "[]"


def test_without_tables_nothing_that_writes_them_is_loaded(tmp_path: Path) -> None:
    """compare_runs without an output directory, and `show`."""
    program = f"""{RECORDED}
from mindrlhf_msprobe import compare_runs
print(compare_runs("a", "b").verdict.status, file=sys.stderr)
main(["show", "a"])
report = "mindrlhf_msprobe.report"
wanted = ["zipfile", report + ".workbook", report + ".xlsx"]
print([m for m in wanted if m in sys.modules], file=sys.stderr)
"""
    assert run_python(program, tmp_path).stderr.splitlines() == ["diverged", "[]"]


def test_a_library_call_starts_no_process_for_its_tables(tmp_path: Path) -> None:
    """A program that compares is not forked for it: only the command is ours to fork."""
    program = f"""{RECORDED}
from mindrlhf_msprobe import compare_runs
def fork():
    raise AssertionError("forked")
os.fork = fork
compare_runs("a", "b", output_path="out", workers=1)
print(os.path.exists("out/summary.xlsx"))
"""
    assert run_python(program, tmp_path).stdout.strip() == "True"


@pytest.mark.parametrize("missing", ["numpy", "xxhash"])
def test_a_package_that_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    """It is no fault of this tool."""
    program = f"""
import sys
sys.modules[{missing!r}] = None
from mindrlhf_msprobe.cli import main
sys.exit(main("compare A B -o C --lang en".split()))
"""
    result = run_python(program, tmp_path)
    assert result.returncode == 2
    assert f"pip install {missing}" in result.stderr
    assert f"{missing} cannot be imported here" in result.stderr
    assert "fault" not in result.stderr
