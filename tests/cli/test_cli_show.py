"""`mindrlhf-msprobe show`: what a run holds, on one screen."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.runs import Recording, record_data, record_training

from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.common.printable import size, spans
from mindrlhf_msprobe.report.listing import render_left_out
from mindrlhf_msprobe.storage.reading import inventory
from mindrlhf_msprobe.storage.reading.reader import open_run


@pytest.fixture
def run(tmp_path):
    return record_training(tmp_path / "run")


def test_a_misspelt_phase_or_key_is_suggested(run, cli):
    """A name the run does not hold gives exit code 2 and the nearest names."""
    for name, meant in (("actor_updat", "actor_update"), ("advantage", "advantages")):
        said = cli("show", run, name, code=2)
        assert said.out == ""
        assert f"Nearest: {meant}" in said.err


def test_show_lists_phases_and_keys_with_their_steps_and_sizes(run, cli):
    """Every phase and key stands on a line of its own, which is no longer than a screen."""
    lines = cli("show", run).out.splitlines()
    assert max(map(len, lines[1:])) <= 100
    assert not any(" 0.0 MiB" in line for line in lines)
    names = {line.split()[0] for line in lines[2:]}
    assert {"reference_compute_log_prob", "actor_update", "ref_log_prob"} <= names
    assert "finished" in lines[0]


def held(said):
    """Return by name what `show --json` says of a run."""
    return {item["name"]: item for item in json.loads(said.out)}


def test_show_counts_what_is_there(run, cli):
    """The JSON form counts entries, records and bytes; linked files count once."""
    holdings = held(cli("show", run, "--json"))
    phase = holdings["reference_compute_log_prob"]
    files = [p for p in (run / "reference_compute_log_prob").rglob("*") if p.is_file()]
    assert phase["size"] == sum({p.stat().st_ino: p.stat().st_size for p in files}.values())
    assert phase["steps"] == [0, 1]
    assert phase["count"] > 0
    assert phase["records"] >= phase["count"]


def test_show_tells_a_records_statistics_and_first_values(run, cli):
    """With a step, a key shows its records with dtype, shape, statistics and first values."""
    text = cli("show", run, "ref_log_prob", "--step", "0").out
    assert "step 0, micro_step 0, rank 0" in text
    assert "Float32" in text
    assert "max " in text
    assert "first values [" in text


def test_a_key_is_shown_as_one_row_a_save(run, cli):
    """Without a step, a key is a table over all steps: place, shape, statistics."""
    header, *rows, hint = cli("show", run, "ref_log_prob").out.splitlines()
    assert header.split()[:4] == ["step", "rank", "micro-step", "what"]
    assert [row.split()[0] for row in rows] == ["0", "1"]
    assert all("Float32" in row for row in rows)
    assert "--step" in hint


def test_a_phase_is_shown_as_its_entries(run, cli):
    """Over all steps a line an entry with the steps that have it; of one step, in time."""
    phase = "reference_compute_log_prob"
    header, *rows, _ = cli("show", run, phase).out.splitlines()
    assert header.split() == ["entry", "steps", "ranks", "records"]
    assert rows
    assert all(row.split()[1] == "0-1" for row in rows)
    head, _, *rows = cli("show", run, phase, "--step", "1").out.splitlines()
    assert head == "step 1, rank 0, in the order of time:"
    names = [entry.name for entry in open_run(run).entries(phase, step=1)]
    assert [row.split()[0] for row in rows] == names


def test_what_is_held_can_be_listed_of_one_step(run, cli):
    """--step leaves out what the other steps hold, in the counts and sizes too."""
    both = held(cli("show", run, "--json"))
    one = held(cli("show", run, "--step", "1", "--json"))
    assert all(item["steps"] == [1] for item in one.values())
    assert all(item["size"] < both[name]["size"] for name, item in one.items())


@pytest.mark.parametrize(
    ("steps", "held"),
    [
        ([0], "it holds step 0."),
        ([0, 1], "it holds steps 0 and 1."),
        ([0, 1, 2], "it holds steps 0 to 2."),
        ([0, 1, 2, 5, 7, 8], "it holds steps 0 to 2, 5, 7 and 8."),
    ],
)
def test_the_steps_there_are_stand_in_a_sentence(tmp_path, steps, held, cli):
    """A step that is not there is answered by those that are."""
    recording = Recording(tmp_path / "run")
    for step in steps:
        recording.writer.save_key_data("loss", step, 0, lambda: {"seq": 0, "data": []}, {})
        recording.writer.end_step(step, {})
    recording.close()
    assert cli("show", tmp_path / "run", "--step", "9", code=2).err.strip().endswith(held)


@pytest.mark.parametrize("wrong", [["--step", "9"], ["--rank", "5"]])
def test_a_step_or_rank_that_the_run_does_not_hold_is_refused(run, wrong, cli):
    """Exit code 2, and a message that names what it does hold."""
    assert f"holds no {wrong[0][2:]} {wrong[1]}; it holds" in cli("show", run, *wrong, code=2).err


def test_an_array_that_cannot_be_read_is_said(run, cli):
    """A cut file is named, and the statistics are still shown."""
    next((run / "data" / "ref_log_prob" / "step0").rglob("*.npy")).write_bytes(b"cut")
    assert "cannot be read" in cli("show", run, "ref_log_prob", "--step", "0", code=2).out
    cli("show", run, "ref_log_prob", "--step", "1")


PHASE = "reference_compute_log_prob"
DAMAGE = {
    "run.json": lambda run: (run / "run.json").write_text("{"),
    "no run.json": lambda run: (run / "run.json").unlink(),
    "configurations.json": lambda run: (run / "configurations.json").write_text("["),
    "a journal's line": lambda run: _append(run / PHASE / "step1/rank0/records.jsonl", b"{}\n"),
    "no journal": lambda run: (run / PHASE / "step1/rank0/records.jsonl").unlink(),
    "a phase's directory": lambda run: shutil.rmtree(run / PHASE),
    "a cut tensor": lambda run: _cut(next((run / PHASE / "step1").rglob("*.npy"))),
    "a missing tensor": lambda run: next((run / PHASE / "step1").rglob("*.npy")).unlink(),
    "a cut save": lambda run: _cut(next((run / "data/loss/step1").rglob("*.npy"))),
    "a missing save": lambda run: next((run / "data/loss/step1").rglob("*.npy")).unlink(),
    "a save's JSON": lambda run: _cut(next((run / "data/loss/step1").rglob("*.json"))),
    "no save": lambda run: shutil.rmtree(run / "data/loss/step1/rank0"),
}


def _append(file, text):
    with open(file, "ab") as out:
        out.write(text)


def _cut(file):
    os.truncate(file, file.stat().st_size - 1)


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    less = {"actor_infer_dump": False, "actor_train_dump": False, "critic_train_dump": False}
    return record_training(tmp_path_factory.mktemp("run") / "run", task="tensor", **less)


@pytest.mark.parametrize("what", DAMAGE)
def test_what_cannot_be_read_is_exit_code_2_and_the_rest_is_shown(tensors, tmp_path, what, cli):
    """Whatever it is: named in the list, on stderr beside JSON; the rest is listed as ever."""
    run = shutil.copytree(tensors, tmp_path / "run")
    DAMAGE[what](run)
    shown = cli("show", run, code=2)
    assert "Incomplete: " in shown.out
    assert "\nadvantages" in shown.out
    assert shown.err == ""
    shown = cli("show", run, "--json", code=2)
    assert "advantages" in [holding["name"] for holding in json.loads(shown.out)]
    assert shown.err.startswith("mindrlhf-msprobe show: ")
    cli("show", run, "advantages")
    if what in ("a journal's line", "no journal"):
        assert "Cell.embed.Dense.forward.0" in cli("show", run, PHASE, code=2).out
    if what in ("a cut tensor", "a missing tensor"):
        assert main(["show", str(run), PHASE, "--step", "1"]) == 0  # its elements are not shown
        assert {main(["show", str(run), e.name]) for e in open_run(run).entries(PHASE)} == {0, 2}
    if what.endswith("save") or what.startswith("a save"):
        cli("show", run, "loss", code=2)
    cli("show", run, "advantages", "--step", "0")


def test_the_list_opens_no_whole_file(tensors, monkeypatch):
    """Sizes tell that a file is whole, so a run of many tensors is listed as quickly as before."""
    monkeypatch.setattr(inventory, "_first_values", lambda record: pytest.fail(record.name))
    assert all(not held.unreadable for held in inventory.inventory(open_run(tensors)))


def test_what_was_lost_while_recording_is_said_and_no_fault_of_the_files(run, cli):
    """Exit code 0: all that there is was read."""
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**manifest, "lost": {"a tensor: OSError": 3}}))
    assert "Incomplete: rank 0 lost 3 records" in cli("show", run).out


def test_what_is_not_a_run_is_refused(tmp_path, cli):
    """An empty directory gives exit code 2 and one clear message."""
    assert "is not a run" in cli("show", tmp_path, code=2).err


def test_spans_and_sizes_read_well():
    """Numbers are put together to spans, bytes into the unit that reads best."""
    assert spans([0, 1, 2, 5]) == "0-2, 5"
    assert size(512) == "512 B"
    assert size(1536) == "1.5 KiB"


def test_first_values_are_valid_json_whatever_they_are(tmp_path, cli):
    """NaN, infinities, complex numbers and long doubles come out as JSON takes them."""
    odd = [
        np.array([np.nan, np.inf, 1.5], np.float32),
        np.array([1 + 2j], np.complex64),
        np.array([0.25], np.longdouble),
    ]
    run = record_data(tmp_path / "odd", [("odd", value) for value in odd])
    said = cli("show", run, "odd", "--json").out
    shown = json.loads(said, parse_constant=pytest.fail)
    values = [record["first_values"] for record in shown]
    assert values == [["NaN", "Infinity", 1.5], ["(1+2j)"], [0.25]]


def test_options_of_show_may_stand_anywhere(run, cli):
    """`show RUN --json NAME` is `show RUN NAME --json`."""
    shown = cli("show", run, "ref_log_prob", "--json").out
    for arguments in (["--json", run, "ref_log_prob"], [run, "--json", "ref_log_prob"]):
        assert cli("show", *arguments).out == shown


@pytest.mark.parametrize("bad", [["--what"], ["a", "b"], ["--json=1"]])
def test_what_show_does_not_know_is_refused(run, bad, cli):
    """An unknown option and one name too many are named."""
    assert bad[-1].split("=")[0] in cli("show", run, *bad, code=2).err


def test_show_needs_a_run(cli):
    """Without one, and with an empty path, which is not the current directory."""
    assert "RUN" in cli("show", code=2).err
    assert "empty" in cli("show", "", code=2).err


def test_show_says_what_generation_ran_with(tmp_path, cli):
    """A line a setting that changed; ranks that agree together; what is not as we write it, not."""
    path = record_training(tmp_path / "run", ranks=(0, 1), steps=3)
    phase = "actor_generate_sequences"
    long = [151643, 151644, 151645] * 9
    settings = {"temperature": 1.0, "top_k": 3, "do_sample": True, "seed": None, "stop_ids": long}
    settings |= {f"setting_{number}": number for number in range(20)}
    schedule = [{"step": s, "name": "top_p", "value": s / 10} for s in range(9)]
    changes = [{"step": 1, "name": "temperature", "value": 0.05}, *schedule]
    states = {"numpy_state": [[0, "aaaaaaaa" * 3]], "mindspore_state": [[0, "--------aaaaaaaa"]]}

    def write(*generation, states=states):
        for file, value in zip(("run.json", "run.rank1.json"), generation):
            content = json.loads((path / file).read_text())
            content |= {"generation": {phase: value}, "random_states": states}
            (path / file).write_text(json.dumps(content))

    same = {"step": 0, "settings": settings, "changes": changes}
    write(same, same)
    text = cli("show", path).out
    lines = text.splitlines()
    at = lines.index(f"Generation in {phase}, from step 0 on:")
    assert lines[at + 1].startswith("  top_k=3, do_sample=true, stop_ids=[151643, 151644")
    assert "seed" not in text
    assert "setting_19=19" in text
    assert "  temperature: 1.0, from step 1 on 0.05" in lines
    schedule = "… 6 more changes …, from step 8 on 0.8"
    assert f"  top_p: from step 0 on 0.0, from step 1 on 0.1, {schedule}" in lines
    assert "Random states noted: numpy in steps 0-2; MindSpore in step 1" in lines
    assert max(map(len, lines[1:])) <= 100
    assert text.count("Generation in") == 1

    write({"step": 0, "settings": {"top_k": 1}}, {"step": 0, "settings": {"top_k": 2}})
    text = cli("show", path).out
    assert f"{phase}, from step 0 on, rank 1:\n  top_k=2\n" in text
    text = cli("show", path, "--rank", "1").out
    assert "top_k=1" not in text
    assert f"{phase}, from step 0 on:\n  top_k=2\n" in text

    write({"step": "x"}, {"step": 0, "settings": 3, "changes": [1, {"step": 2}]}, states=[7])
    text = cli("show", path).out
    assert "Random states" not in text


def test_show_says_what_recording_cost(run, cli):
    """Time of the training, by phase and a step, and bytes; not for runs that lack it."""
    text = cli("show", run).out
    cost = text[text.index("Cost of recording, rank 0, 2 steps:") :]
    assert re.search(r"^  actor_update: \d\.\d{3} s a step$", cost, re.MULTILINE)
    content = json.loads((run / "run.json").read_bytes())
    for recording in ({"seconds": "much"}, None, {"seconds": 1.0, "phases": {"x": 3}}):
        (run / "run.json").write_text(json.dumps({**content, "recording": recording}))
        assert "Cost" not in cli("show", run).out


@pytest.mark.parametrize("count", [0, 1, 20, 21, 1234])
def test_how_many_directories_are_left_out_is_always_known(count):
    """Of very many the first are named."""
    lines = render_left_out([Path(f"run/actor_update/step{i}/rank0") for i in range(count)])
    shown = [line for line in lines if "step" in line]
    assert len(shown) == min(count, 20)
    rest = ["… " + str(count - 20) + " more"]
    assert lines[len(shown) :] == (rest if count > 20 else [])
