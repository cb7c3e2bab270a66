"""Logging: the level by MSPROBE_LOG_LEVEL, every message once, with the rank, and no prints."""

import ast
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mindrlhf_msprobe
from mindrlhf_msprobe.log import VARIABLE, configure, logger

PACKAGE = Path(mindrlhf_msprobe.__file__).parent
MAY_PRINT = (
    *(PACKAGE / "cli", PACKAGE / "demo" / "command.py"),
    PACKAGE / "replay" / "offline" / "template.py",  # a script of its own
)

RECORD = """
import sys
from mindrlhf_msprobe import Probe

{before}
for name in sys.argv[1:]:
    with Probe.from_config({{"msprobe": True, "key_data_dump": True, "dump_path": name}}) as probe:
        {inside}
        for _ in range(3):
            probe.save_data({{"loss": 1.0, "odd": object()}})
            probe.step()
"""


def record(
    cwd: Path, *runs: str, before: str = "", inside: str = "", **environment: str
) -> list[str]:
    """Record in a process of its own, lose something in each step, and return what stderr says."""
    done = subprocess.run(
        [sys.executable, "-c", RECORD.format(before=before, inside=inside), *runs],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("level", "begins"),
    [
        (None, ["INFO recording to", "WARNING could not record", "WARNING records lost"]),
        ("1", ["INFO recording to", "WARNING could not record", "WARNING records lost"]),
        ("2", ["WARNING could not record", "WARNING records lost"]),
        ("3", []),
        ("4", []),
    ],
)
def test_the_level_decides_what_is_shown(level, begins, tmp_path):
    """What is lost in every step is said once, and what was lost in all at the end."""
    lines = record(tmp_path, "run", **({} if level is None else {VARIABLE: level}))
    prefixes = [f"msprobe {b.split()[0]} [rank 0] {b.partition(' ')[2]}" for b in begins]
    assert len(lines) == len(prefixes), lines
    for line, prefix in zip(lines, prefixes):
        assert line.startswith(prefix)


def test_at_debug_a_fault_comes_with_its_traceback(tmp_path):
    """Level 0 shows where it happened; once, as the message."""
    lines = record(tmp_path, "run", **{VARIABLE: "0"})
    assert len([line for line in lines if "could not record" in line]) == 1
    assert any(line.startswith("TypeError") for line in lines)


@pytest.mark.parametrize("level", ["debug", "5", "-1", "1.0"])
def test_a_level_that_is_none_is_named_once(level, tmp_path):
    """Two runs, one warning, which says what was expected; then as by default."""
    lines = record(tmp_path, "a", "b", **{VARIABLE: level})
    warnings = [line for line in lines if VARIABLE in line]
    assert len(warnings) == 1
    assert repr(level) in warnings[0]
    assert "0 (debug), 1 (info), 2 (warnings), 3 (errors) or 4 (nothing)" in warnings[0]
    assert len([line for line in lines if "INFO" in line]) == 2


def test_an_empty_level_is_the_default(tmp_path):
    """As a shell leaves it behind: VARIABLE= command."""
    assert not [line for line in record(tmp_path, "run", **{VARIABLE: ""}) if VARIABLE in line]


@pytest.mark.parametrize("when", ["before", "inside"])
def test_an_application_that_logs_shows_each_message_once_with_the_rank(when, tmp_path):
    """Whether it sets logging up before the probe is made or after."""
    set_up = "import logging; logging.basicConfig(format='APP %(message)s', level='INFO')"
    lines = record(tmp_path, "run", **{when: set_up, "RANK_ID": "3"})
    shown = [line for line in lines if "could not record" in line]
    assert len(shown) == 1
    assert shown[0].startswith("APP [rank 3] could not record key data odd (step 0)")


def test_a_level_that_the_application_set_stays(tmp_path):
    """Without the variable the application decides; with it, the variable."""
    quiet = "import logging; logging.getLogger('mindrlhf_msprobe').setLevel(logging.ERROR)"
    assert record(tmp_path, "a", before=quiet) == []
    assert len(record(tmp_path, "b", before=quiet, **{VARIABLE: "2"})) == 2


def test_a_run_that_is_continued_says_so(make_probe, caplog):
    """Once, with the step it goes on from."""
    for _ in range(2):
        probe = make_probe(existing="resume", key_data_dump=True)
        probe.save_data(loss=1.0)
        probe.step()
        probe.close()
    messages = [r.getMessage() for r in caplog.records if r.name == logger.name]
    path = probe.config.dump_path
    assert messages == [
        f"[rank 0] recording to {path} from step 0 on: key data",
        f"[rank 0] continuing the run in {path} from step 1 on: key data",
    ]


def test_a_disk_that_stays_broken_is_told_of_once_a_kind(make_probe, warnings_of):
    """Steps go on and losses are counted; no line names each of them."""
    probe = make_probe(key_data_dump=True)
    root = Path(probe.config.dump_path)
    shutil.rmtree(root)
    root.write_text("in the way")
    said = []
    for _ in range(5):
        probe.save_data(loss=1.0)
        probe.step()
        said.append(len(warnings_of()))
    assert said == [said[0]] * 5
    root.unlink()


def test_configurations_are_warned_of_once_a_place(make_probe, warnings_of):
    """Saved in every step, and with many odd values: one short message."""
    probe = make_probe(configurations_dump=True)
    for _ in range(3):
        probe.save_configs({"actor": {f"odd{n}": object() for n in range(30)}})
    assert len(warnings_of()) == 1
    assert "actor.odd0 is a object" in warnings_of()[0]
    assert warnings_of()[0].endswith("; and 20 more")


def test_the_level_is_read_anew_for_each_run(monkeypatch):
    """A notebook that sets it between two runs is heard."""
    before = logger.level
    try:
        monkeypatch.setenv(VARIABLE, "3")
        configure()
        assert logger.level == logging.ERROR
        monkeypatch.setenv(VARIABLE, "0")
        configure()
        assert logger.level == logging.DEBUG
    finally:
        logger.setLevel(before)


def test_only_the_command_line_prints() -> None:
    """No call of print, and no writing to stdout or stderr, anywhere else in the package."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        if any(path == allowed or allowed in path.parents for allowed in MAY_PRINT):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                *("print", "sys.stdout.write", "sys.stderr.write", "warnings.warn", "logging.info"),
                *("logging.warning", "logging.error", "logging.debug", "logging.basicConfig"),
            ):
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert found == []


def test_a_forgotten_step_is_said_at_the_end(make_probe, warnings_of):
    """Phases repeat and no step was ever ended: all of the training would stand in one step."""
    probe = make_probe()
    for _ in range(3):
        with probe.phase("actor_update"):
            pass
    probe.close()
    (said,) = warnings_of()
    assert "step() was never called, although phase actor_update was opened 3 times" in said


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_step_that_was_ended_is_not_said_to_be_forgotten(make_probe, warnings_of, repeats):
    """Several openings in a step are usual, and so is one step that close() ends."""
    probe = make_probe()
    for _ in range(repeats):
        with probe.phase("actor_update"):
            pass
    if repeats > 1:
        probe.step()
    probe.close()
    assert warnings_of() == []


def test_forgotten_configurations_are_said_at_the_end(make_probe, warnings_of):
    """configurations_dump is on and nothing came: the run has no configurations.json."""
    make_probe(configurations_dump=True).close()
    assert "save_configs() was never called" in warnings_of()[0]
