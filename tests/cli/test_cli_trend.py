"""The command trend: plots, files, JSON, exit codes, in both languages."""

from __future__ import annotations

import csv
import json
import struct
import sys

import numpy as np
import pytest
from helpers.gradients import record_gradients
from helpers.runs import Fault, a_nan, record_training

from mindrlhf_msprobe import open_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return two runs; of the second a reward is NaN from step 1 on."""
    root = tmp_path_factory.mktemp("runs")
    record_training(root / "a", steps=2, ranks=(0, 1), tokens=1)
    faults = [Fault("rewards", step=1, change=a_nan)]
    return root / "a", record_training(root / "b", steps=3, tokens=1, faults=faults)


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_csv_has_a_row_a_value(runs, tmp_path, cli):
    """Numbers read back as they were; NaN by its name."""
    said = cli("trend", runs[1], "--key", "rewards", "--csv", tmp_path / "x.csv").out
    header, *rows = rows_of(tmp_path / "x.csv")
    assert header == ["series", "statistic", "phase", "rank", "step", "micro_step", "value"]
    (series,) = open_run(runs[1]).trend(key="rewards")
    np.testing.assert_array_equal([float(row[-1]) for row in rows], series.values)
    assert rows[1] == ["rewards", "mean", "", "0", "1", "0", "NaN"]
    assert "NaN or Inf at step 1, 2" in said


def test_two_runs_stand_side_by_side(runs, tmp_path, cli):
    """In one plot and in one row; what one lacks is empty."""
    out = cli("trend", *runs, "--key", "rewards", "--csv", tmp_path / "x.csv").out
    header, *rows = rows_of(tmp_path / "x.csv")
    assert header[-2:] == ["value_a", "value_b"]
    by_place = {(row[3], row[4]): row[-2:] for row in rows}
    assert by_place["0", "0"][0] == by_place["0", "0"][1] != ""
    assert by_place["0", "2"] == ["", "NaN"]
    assert by_place["1", "1"][1] == ""
    a, b = runs
    assert f"* A ({a}): 2 values" in out
    assert f"o B ({b}): 3 values" in out
    assert f"o B ({b}): nothing recorded" in out
    assert out.isascii()


@pytest.mark.parametrize("choice", ["--key=rewards", "--derived=kl_k1", "--record=head.*output"])
def test_any_number_of_runs_is_one_plot(runs, tmp_path, choice, cli):
    """One plot a quantity, one line a run, a legend that names each; a column of the table each."""
    four = [*map(str, runs), str(runs[0]), str(runs[1])]
    out = cli("trend", *four, choice, "--rank=0", "--csv", tmp_path / "x.csv").out
    for mark, side, path in zip("*o+x", "ABCD", four):
        legends = [row for row in out.splitlines() if row.startswith(f"  {mark} {side} ({path}): ")]
        assert len(legends) == out.count("  rank 0")
    header, *rows = rows_of(tmp_path / "x.csv")
    assert header[-4:] == ["value_a", "value_b", "value_c", "value_d"]
    assert rows
    for row in rows:
        assert row[-4:-2] == row[-2:]
    content = json.loads(cli("trend", *four, choice, "--json").out)
    assert content["runs"] == four
    assert {series["run"] for series in content["series"]} == {*"ABCD"}


def test_what_one_of_several_runs_lacks_moves_no_mark(runs, cli):
    """A run keeps its mark, whether the runs before it have the quantity or not."""
    a, b = map(str, runs)
    of_rank_1 = cli("trend", b, a, "--key", "rewards").out.partition("rank 1")[2]
    assert f"* A ({b}): nothing recorded" in of_rank_1
    plot = of_rank_1.partition("* A")[0]
    assert "o" in plot
    assert "*" not in plot


def test_more_runs_than_letters_are_refused(runs, cli):
    """In words, before any is read."""
    said = cli("trend", *[runs[0]] * 27, code=2).err
    assert "27 runs were given; trend takes 26 at most" in said
    said = cli("trend", "--gradients", *[runs[0]] * 3, code=2).err
    assert "--gradients compares two runs" in said


def test_json_says_the_same(runs, cli):
    """Series, and what is not available with its code."""
    content = json.loads(cli("trend", runs[1], "--json").out)
    rewards = next(s for s in content["series"] if s["series"] == "rewards")
    assert rewards["values"][1:] == ["NaN", "NaN"]
    assert rewards["steps"] == [0, 1, 2]
    missing = {m["series"]: m["code"] for m in content["missing"]}
    assert missing["adam_first_moment"] == "trend.no_moments"


def test_what_is_not_there_is_2_and_names_the_nearest(runs, cli):
    """On stderr, in the language that was asked for."""
    assert "rewards" in cli("trend", runs[0], "--key", "reward", code=2).err
    assert "没有记录" in cli("trend", runs[0], "--record", "nowhere", "--lang", "zh", code=2).err
    cli("trend", "--gradients", runs[0], code=2)
    cli("trend", "--gradients", runs[0], runs[0], code=2)
    assert "No gradients could be compared" in cli("trend", "--gradients", *runs, code=2).out


def scalars(path):
    """Yield (tag, step, value) of an event file: length, its checksum, the event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    content = path.read_bytes()
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        event = Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]
        for value in event.summary.value:
            yield value.tag, event.step, value.simple_value


def test_event_files_hold_every_value(runs, tmp_path, cli):
    """A folder a run and rank; tags by phase, series and statistic."""
    pytest.importorskip("tensorboardX")
    command = ["trend", *map(str, runs), "--key", "rewards", "--derived", "kl_k1"]
    cli(*command, "--tensorboard", tmp_path / "events")
    folders = {path.relative_to(tmp_path / "events").parent: path
               for path in (tmp_path / "events").rglob("events.out*")}  # fmt: skip
    assert sorted(map(str, folders)) == ["A/rank0", "A/rank1", "B/rank0"]
    found = list(scalars(next(p for f, p in folders.items() if str(f) == "B/rank0")))
    (series,) = open_run(runs[1]).trend(key="rewards")
    values = {step: value for tag, step, value in found if tag == "key_data/rewards/mean"}
    assert list(values) == [0, 1, 2]
    assert values[0] == pytest.approx(series.values[0], rel=1e-6)
    assert np.isnan(values[2])


def test_tensorboard_is_asked_for_or_never_imported(runs, tmp_path, monkeypatch, cli):
    """Without tensorboardX everything else works, and the error says what to install."""
    loaded = [name for name in sys.modules if name.startswith("tensorboardX.")]
    for name in ("tensorboardX", *loaded):  # another test may have imported it
        monkeypatch.setitem(sys.modules, name, None)
    cli("trend", runs[0], "--key", "rewards")
    command = ["trend", str(runs[0]), "--key", "rewards", "--tensorboard", str(tmp_path / "e")]
    assert "pip install tensorboardX" in cli(*command, code=2).err


def test_gradients_that_part_are_1_and_named(tmp_path, cli):
    """The step and parameter where the similarity falls, in the answer, the CSV and the JSON."""
    same = {"head": np.ones(8, np.float32), "layers.1.wo": -np.ones((2, 2), np.float32)}
    parted = {**same, "layers.1.wo": np.array([[1, -1], [-1, -1]], np.float32)}
    a = record_gradients(tmp_path / "a", {0: same, 1: same})
    b = record_gradients(tmp_path / "b", {0: same, 1: parted})
    command = ["trend", "--gradients", str(a), str(b)]
    out = cli(*command, "--csv", tmp_path / "x.csv", code=1).out
    assert "Suspicious from step 1, rank 0, actor_update, update 0, layers.1.wo.weight on" in out
    assert "similarity fell from 1.0000 to 0.7500" in out
    rows = rows_of(tmp_path / "x.csv")
    assert rows[-1] == [
        "1",
        "0",
        "actor_update",
        "0",
        "layers.1.wo.weight",
        "4",
        "signs",
        "0.75",
        "1.0",
        "fall",
    ]
    cli(*command, "--fall", "0.3")
    content = json.loads(cli(*command, "--json", code=1).out.partition("{")[2].join(["{", ""]))
    assert content["first_suspicious"]["parameter"] == "layers.1.wo.weight"
    assert content["updates"][1]["value"] == pytest.approx((8 + 3) / 12)
    cli("trend", a, "--derived", "gradient_norm", "--json")
