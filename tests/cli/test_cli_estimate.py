"""`mindrlhf-msprobe estimate`: the room that full tensors take, said before a disk is full."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import runs
from helpers.gradients import record_gradients
from helpers.runs import Recording, record_training

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.config import NO_END, ProbeConfig
from mindrlhf_msprobe.report.messages import text_of
from mindrlhf_msprobe.storage.reading.estimate import estimate
from mindrlhf_msprobe.storage.reading.reader import open_run


def on_disk(root: Path) -> int:
    """Return what `du` says: the blocks of every file and directory, linked ones once."""
    found = {}
    for path in [root, *root.rglob("*")]:
        status = os.lstat(path)
        found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


@pytest.mark.parametrize("width", [6, 100])
@pytest.mark.parametrize("ranks", [(0,), (0, 1)], ids=len)
def test_the_estimate_is_what_the_disk_then_holds(tmp_path, monkeypatch, width, ranks):
    """From one step of statistics: the bytes of three steps with tensors, within some percent."""
    monkeypatch.setattr(runs, "WIDTH", width)
    record_training(tmp_path / "cheap", steps=1, ranks=ranks)
    record_training(tmp_path / "full", steps=3, ranks=ranks, task="tensor")
    everything = ProbeConfig(task="tensor", token_range_end=NO_END)
    found = estimate(open_run(tmp_path / "cheap"), everything, steps=3)
    assert found.ranks == len(ranks)
    assert found.total == pytest.approx(on_disk(tmp_path / "full"), rel=0.05)
    assert found.fits
    again = estimate(open_run(tmp_path / "full"), everything, steps=3)
    assert again.total == pytest.approx(found.total, rel=0.02)


def test_the_estimate_of_statistics_is_what_the_disk_then_holds(tmp_path):
    """Whichever task was recorded; equal tensors are counted as they are, though none is stored."""
    record_training(tmp_path / "cheap", steps=3)
    record_training(tmp_path / "full", steps=1, task="tensor")
    expected = on_disk(tmp_path / "cheap") - on_disk(tmp_path / "cheap/run.json")
    whole = {"token_range_end": NO_END}
    tensors = estimate(open_run(tmp_path / "full"), ProbeConfig(task="tensor", **whole))
    for name in ("cheap", "full"):
        found = estimate(open_run(tmp_path / name), ProbeConfig(**whole), steps=3)
        assert found.total == pytest.approx(expected, rel=0.1)
        assert [p.distinct for p in found.phases] == [p.distinct for p in tensors.phases]


@pytest.mark.parametrize("signs", [True, False])
def test_the_estimate_of_signs_is_what_the_disk_then_holds(tmp_path, signs):
    """Of the gradients of parameters alone, from a run with them or without."""
    rng = np.random.default_rng(0)
    layers = {f"layers.{n}": rng.normal(size=(300, 900)).astype(np.float32) for n in range(20)}
    for name, recorded in (("with", True), ("without", False)):
        record_gradients(tmp_path / name, {0: layers}, signs=recorded)
    wanted = ProbeConfig(task="grad_probe")
    found = estimate(open_run(tmp_path / ("with" if signs else "without")), wanted)
    expected = on_disk(tmp_path / "with") - on_disk(tmp_path / "with/run.json")
    assert found.total == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("task", ["statistics", "tensor", "md5"])
@pytest.mark.parametrize("directory", ["rank", "rank3", "proc14402"])
def test_dumps_of_msprobe_are_estimated_from(tmp_path, task, directory):
    """Wherever their rank directories lie; without hashes, equal tensors are not recognised."""
    shutil.copytree(runs.MSPROBE_DATA / f"{task}_a", tmp_path / "run")
    shutil.rmtree(tmp_path / "run/step1", ignore_errors=True)
    (rank,) = (tmp_path / "run/step0").iterdir()
    rank = rank.rename(rank.with_name(directory))
    for opened in (tmp_path / "run", tmp_path / "run/step0", rank, rank / "dump.json"):
        found = estimate(open_run(opened), ProbeConfig(task="tensor"))
        (phase,) = found.phases
        elements = sum(
            math.prod(record.leaf.shape) * 4
            for entry in open_run(opened).entries(step=0)
            for record in entry.records
        )
        assert 0 < phase.distinct <= phase.tensors
        assert (phase.distinct == phase.tensors) == (task != "md5")
        assert (message("estimate.no_fingerprints") in found.remarks) == (task != "md5")
        if task != "md5":
            assert elements < found.total < 2 * elements + 8192 * phase.tensors


def test_the_estimate_follows_the_choice_of_cells(tmp_path):
    """include and exclude leave out what the same recording would leave out."""
    record_training(tmp_path / "cheap", steps=1)
    chosen = {"include": ["layers"], "exclude": ["attention"]}
    record_training(tmp_path / "full", steps=1, task="tensor", **chosen)
    wanted = ProbeConfig(task="tensor", **chosen)
    found = estimate(open_run(tmp_path / "cheap"), wanted)
    files = list((tmp_path / "full/actor_update").rglob("*.npy"))
    phase = next(p for p in found.phases if p.phase == "actor_update")
    assert phase.tensors == len(files)
    assert phase.distinct == len({file.stat().st_ino for file in files})
    nothing = estimate(open_run(tmp_path / "cheap"), ProbeConfig(directions=["backward"]))
    assert [phase.phase for phase in nothing.phases] == ["key data"]


@pytest.mark.parametrize(
    "chosen",
    [
        {"parts": ["output"]},
        {"parts": ["input"], "parameters": False},
        {"entries": ["attention", "layers.1."]},
        {"token_range_start": 1, "token_range_end": 1},
        {
            "scope": [
                "Cell.layers.0.attention.Attention.forward.0",
                "Cell.layers.1.attention.Attention.forward.0",
            ]
        },
        {"reference_dump": False, "actor_infer_dump": False, "step_end": 2},
        {"key_data_dump": False, "parameters": False},
        {"task": "statistics"},
    ],
    ids=lambda chosen: ",".join(chosen),
)
def test_a_file_says_which_recording_is_meant(tmp_path, monkeypatch, chosen, cli):
    """--config takes the section of the recording that is planned: all of its keys count."""
    monkeypatch.setattr(runs, "WIDTH", 40)
    record_training(tmp_path / "cheap", steps=1)
    settings = {**runs.EVERYTHING, "task": "tensor", "step_end": 0, **chosen}
    planned = {**settings, "dump_path": str(tmp_path / "full")}
    plan = tmp_path / "plan.yaml"
    plan.write_text(json.dumps({"msprobe_config": planned}))
    found = json.loads(cli("estimate", tmp_path / "cheap", "--config", plan, "--json").out)
    record_training(tmp_path / "full", steps=3, **settings)
    assert found["steps"] == (3 if "step_end" in chosen else 1)
    files = [p for p in (tmp_path / "full").rglob("*.npy") if "data" not in p.parts]
    tensors = sum(p["tensors"] for p in found["phases"] if p["phase"] != "key data")
    steps = {p.relative_to(tmp_path / "full").parts[1] for p in files}
    if settings["task"] == "tensor":
        assert tensors * len(steps) == len(files)
    in_full = {p.name for p in (tmp_path / "full").iterdir() if p.is_dir()}
    named = {"data" if p["phase"] == "key data" else p["phase"] for p in found["phases"]}
    assert named == in_full


def test_what_a_planned_recording_asks_for_and_was_never_recorded_is_said(tmp_path, cli):
    record_training(tmp_path / "cheap", steps=1, tokens=2, token_range_end=1, reference_dump=False)
    plan = tmp_path / "plan.yaml"
    plan.write_text(json.dumps({"msprobe_config": {**runs.EVERYTHING, "token_range_end": 7}}))
    text = cli("estimate", tmp_path / "cheap", "--config", plan).out
    assert "reference_compute_log_prob was not recorded, so it is not in the estimate" in text
    assert "only tokens 0 to 1 of generation can be in it" in text
    for content, said in (
        ({"msprobe": False}, "switches nothing on"),
        ({"msprobe": True}, "switches nothing on"),
        ({"msprob": True}, "unknown key 'msprob'"),
    ):
        plan.write_text(json.dumps({"msprobe_config": content}))
        assert said in cli("estimate", tmp_path / "cheap", "--config", plan, code=2).err
    with_both = ["estimate", str(tmp_path / "cheap"), "--config", str(plan), "--include", "x"]
    assert "--include cannot be given with --config" in cli(*with_both, code=2).err


def test_what_was_left_out_is_said_in_words(tmp_path):
    recording = Recording(tmp_path / "run")
    recording.writer.manifest.note_left_out("key_data", "log_prob", "it never leaves the loss")
    recording.writer.manifest.note_graph_gaps("actor", {"head": "a dynamic shape"})
    recording.data("loss", 1.5)
    recording.end_step()
    recording.close()
    found = estimate(open_run(tmp_path / "run"), ProbeConfig(), phases=["key data"])
    said = [text_of(remark, "en") for remark in found.remarks]
    assert "log_prob: it never leaves the loss" in said
    assert "actor head: a dynamic shape" in said
    (key_data,) = found.phases
    assert f"{key_data.size} bytes more for each of them" in said[-1]
    assert f"另需 {key_data.size} 字节" in text_of(found.remarks[-1], "zh")


def test_every_dtype_has_its_size(tmp_path):
    """bfloat16 is stored as float32; bool, integers, 0-d and empty tensors as they are."""
    recording = Recording(tmp_path / "run")
    values = [
        np.zeros((3, 1000), dtype) for dtype in ("float16", "bool", "int64", "uint8", "complex64")
    ]
    with recording.phase("actor_update"):
        recording.call("a", "Dense", lambda *x: x[0], *values, np.float32(1), np.zeros((0, 4)))
    recording.end_step()
    recording.close()
    found = estimate(open_run(tmp_path / "run"), ProbeConfig(task="tensor"))
    assert found.phases[0].distinct == 7
    assert found.remarks == ()
    assert open_run(tmp_path / "run").coverage() == {}


def test_the_command_says_what_fits(tmp_path, cli):
    """A table a phase, one line for all; exit code 1 and advice where it does not fit."""
    record_training(tmp_path / "run", steps=1)
    text = cli("estimate", tmp_path / "run", "--steps", "2", "--ranks", "4").out
    assert "actor_update" in text
    assert "key data" in text
    assert "2 steps of 4 ranks" in text
    found = json.loads(
        cli("estimate", tmp_path / "run", "--steps", "1000000000", "--json", code=1).out
    )
    assert found["fits"] is False
    assert found["total_bytes"] == found["bytes_per_step_and_rank"] * 10**9
    assert "does not fit" in cli("estimate", tmp_path / "run", "--steps", "1000000000", code=1).out
    cheap = json.loads(cli("estimate", tmp_path / "run", "--task", "statistics", "--json").out)
    assert cheap["total_bytes"] == pytest.approx(on_disk(tmp_path / "run"), rel=0.2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--steps", "0"], "--steps is 0; expected a whole number, 1 or larger"),
        (["--ranks", "-1"], "--ranks is -1"),
        (["--include", "("], "include"),
        (["--directions", "sideways"], "directions"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, arguments, said, cli):
    """Wrong options are named, with exit code 2."""
    record_training(tmp_path / "run", steps=1)
    assert said in cli("estimate", tmp_path / "run", *arguments, code=2).err


def test_a_run_that_holds_nothing_cannot_be_estimated_from(tmp_path, cli):
    """A manifest alone is no ground for figures."""
    Recording(tmp_path / "run").close()
    assert "nothing to estimate from" in cli("estimate", tmp_path / "run", code=2).err


@pytest.mark.parametrize("option", [["--include", "no_such_cell"], ["--exclude", "."]])
def test_a_choice_that_leaves_no_cell_is_said_to_be_one(tmp_path, option, cli):
    """Key data alone would be an answer to another question."""
    record_training(tmp_path / "run", steps=1)
    said = cli("estimate", tmp_path / "run", *option, code=2).err
    assert f"{option[0][2:]} leaves no cell of the " in said
    assert "such as " in said


def test_records_without_fingerprints_are_an_upper_bound(tmp_path):
    """Equal tensors cannot be told then, which is said."""
    record_training(tmp_path / "with", steps=1)
    record_training(tmp_path / "without", steps=1, fingerprint=False)
    wanted = ProbeConfig(task="tensor")
    less, more = (estimate(open_run(tmp_path / name), wanted) for name in ("with", "without"))
    assert more.total > less.total
    assert message("estimate.no_fingerprints") in more.remarks
