"""No text from a file steers a terminal, wherever it is shown; faults of ours are no divergence."""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import zipfile

import pytest
from helpers.runs import Fault, Recording, record_training

from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.common.message import Message, quoted
from mindrlhf_msprobe.common.printable import printable, printable_json
from mindrlhf_msprobe.log import logger

EVIL = "\x1b[2J\x9b31m\u202eIDENTICAL\u2028\n\x00\ud800\u200b\x7f\r"
ALLOWED = {"\n"}


def steers(text):
    return [char for char in text if not char.isprintable() and char not in ALLOWED]


def test_one_line_is_one_line():
    """Everything that could end it, turn it or clear it is an escape; the rest stays."""
    assert printable("模型 层　é 😀 a b") == "模型 层　é 😀 a b"
    assert printable(EVIL).isprintable()
    assert len(printable("x" * 10**6)) < 30_000
    assert json.loads(printable_json(json.dumps([EVIL, "模型"], ensure_ascii=False))) == [
        EVIL,
        "模型",
    ]


@pytest.fixture
def evil(tmp_path):
    """Return two runs in which every text is hostile."""
    runs = []
    for name in ("a", "b"):
        root = record_training(tmp_path / name, steps=1)
        manifest = json.loads((root / "run.json").read_text())
        manifest["state"] = EVIL
        manifest["versions"] = {EVIL: EVIL + name}
        manifest["lost"] = {EVIL: 3}
        manifest["coverage"] = {EVIL: EVIL}
        manifest["recording"] = {"seconds": 1, "phases": {EVIL: {"steps": 1}}}
        (root / "run.json").write_text(json.dumps(manifest))
        journal = root / "actor_update/step0/rank0/records.jsonl"
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        for line in lines:
            line["frames"], line["stack"] = [EVIL], 1
        lines[1]["entry"] = f"Cell.{EVIL}.{EVIL}.forward.0"
        lines[1]["output"] = [{"type": EVIL, "value": EVIL + name}, {**lines[1]["output"][0]}]
        lines[1]["output"][1] |= {"dtype": EVIL, "fingerprint": EVIL + name}
        journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
        shutil.copytree(root / "critic_update", root / "evil\x1b[2J\u202e\n")
        shutil.copytree(root / "data/loss", root / "data/k\x1b[2J\u202e\n")
        runs.append(str(root))
    return runs


@pytest.mark.parametrize("json_", [False, True])
def test_no_command_shows_a_text_as_it_is(evil, tmp_path, capsys, json_):
    """compare, show of a run and of every record, estimate, and what they complain of."""
    option = ["--json"] if json_ else []
    name = f"Cell.{EVIL}.{EVIL}.forward.0"
    for command in (
        ["compare", *evil, "-o", str(tmp_path / "out")],
        ["show", evil[0]],
        ["show", evil[0], name],
        ["show", evil[0], "root"],
        ["show", evil[0], EVIL],
        ["estimate", evil[0]],
        ["show", str(tmp_path / EVIL.replace("\x00", ""))],
    ):
        main([*command, *option])
        shown = capsys.readouterr()
        assert not steers(shown.out)
        assert not steers(shown.err)
        assert shown.err.count("\n") <= 1
        assert "\nIDENTICAL" not in shown.out + shown.err


def test_tables_hold_escapes_as_the_console_shows_them(evil, tmp_path):
    """Also names that differ in a control character alone are told apart, and can be searched."""
    out = tmp_path / "out"
    main(["compare", *evil, "-o", str(out), "--csv"])
    tables = [*out.glob("*.csv")]
    assert len(tables) > 3
    text = "".join(table.read_text(encoding="utf-8-sig") for table in tables)
    assert {*steers(text)} <= {"\r"}  # of the lines' ends
    assert printable(EVIL.split("\n")[0]) in text
    main(["compare", *evil, "-o", str(out)])
    sheets = [
        content.read(name).decode()
        for table in out.glob("*.xlsx")
        for content in [zipfile.ZipFile(table)]
        for name in content.namelist()
    ]
    assert {*steers("".join(sheets))} <= {"\r"}
    assert "\\u202eIDENTICAL" in "".join(sheets)


def test_an_option_that_there_is_not_is_named_with_escapes(capsys):
    with pytest.raises(SystemExit):
        main(["show", "run", f"--{EVIL}"])
    assert not steers(capsys.readouterr().err)


def test_a_list_of_a_file_is_quoted_as_far_as_a_sentence_goes():
    said = quoted(Message("x", {"a": [1] * 10_000, **{f"k{n}": n for n in range(10_000)}}))
    assert len(said.params["a"]) < 1000
    assert len(said.params) < 1000


def test_the_command_that_is_proposed_can_be_copied(tmp_path, capsys):
    fault = Fault("layers.1.mlp", "reference_compute_log_prob")
    runs = [
        record_training(tmp_path / name, steps=1, faults=[fault] * (name == "b")) for name in "ab"
    ]
    out = tmp_path / "o'u t"
    main(["compare", *map(str, runs), "-o", str(out)])
    assert f"--after {shlex.quote(str(out))}" in capsys.readouterr().out


def test_messages_are_shown_through_the_door(caplog):
    """Whatever a log message tells of."""
    with caplog.at_level(logging.WARNING, logger="mindrlhf_msprobe"):
        logger.warning("lost: %s", EVIL)
    assert not steers(caplog.records[-1].getMessage())


def test_a_fault_of_ours_is_no_divergence(tmp_path, monkeypatch, capsys):
    """Exit code 2, one line, how to report it; with MSPROBE_LOG_LEVEL=0 the traceback."""
    recording = Recording(tmp_path / "a")
    recording.data("loss", 1.0)
    recording.end_step()
    run = str(recording.close())

    def fails(*_, **__):
        raise ZeroDivisionError("a thing\n\x1b[2J")

    monkeypatch.setattr("mindrlhf_msprobe.storage.reading.reader.open_run", fails)
    assert main(["show", run]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "ZeroDivisionError: a thing\\n\\x1b[2J" in said.err
    assert "report it" in said.err
    monkeypatch.setenv("MSPROBE_LOG_LEVEL", "0")
    assert main(["show", run]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err
