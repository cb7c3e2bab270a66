"""Runs of `task: sketch`: what is on disk, what is read back, and what a lost sketch costs."""

from __future__ import annotations

import errno
import json
import os

import numpy as np
import pytest
from helpers import runs
from helpers.runs import EVERYTHING, Fault, record_training

from mindrlhf_msprobe import check_run, compare_runs, open_run
from mindrlhf_msprobe.common.message import in_words
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.arrays.sketches import (
    HEAD,
    SketchPlace,
    bytes_of,
    read_sketch,
    sketch_of,
)
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.manifest.merge import merge_runs
from mindrlhf_msprobe.storage.reading.estimate import estimate
from mindrlhf_msprobe.storage.reading.inventory import inventory
from mindrlhf_msprobe.storage.writing.directory import Removal
from mindrlhf_msprobe.storage.writing.writer import RunWriter


@pytest.fixture(autouse=True)
def _wide_networks(monkeypatch):
    """Make rows long enough to be sketched: 70 columns are two sums."""
    monkeypatch.setattr(runs, "WIDTH", 70)


def records_of(path):
    return {
        (entry.phase, entry.step, record.name): record
        for entry in open_run(path).entries()
        for record in entry.records
    }


def sketching(path, **options):
    config = {**EVERYTHING, "task": "sketch"}
    return RunWriter(path, rank=0, config=config, existing="refuse", task="sketch", **options)


def why_unreadable(record):
    try:
        record.sketch()
    except ArrayFileError as error:
        return str(error)
    return ""


def test_a_sketch_is_that_of_the_tensor(tmp_path):
    """All else is as `task: statistics` records it."""
    sketched = records_of(record_training(tmp_path / "sketch", task="sketch"))
    tensors = records_of(record_training(tmp_path / "tensor", task="tensor"))
    plain = records_of(record_training(tmp_path / "statistics"))
    assert {*sketched} == {*tensors} == {*plain}
    assert len(sketched) > 200
    for at, record in sketched.items():
        sketch, whole = record.sketch(), sketch_of(tensors[at].array())
        assert np.array_equal(sketch.sums, whole.sums)
        assert np.array_equal(sketch.fingerprints, whole.fingerprints)
        assert (sketch.shape, sketch.block) == (record.leaf.shape, 64)
        described = record.leaf.to_json()
        del described["sketch"]
        assert described == plain[at].leaf.to_json()
    first = next(iter(plain.values()))
    with pytest.raises(ArrayFileError, match="no sketch of it was recorded"):
        first.sketch()


def test_equal_tensors_of_a_phase_have_one_sketch(tmp_path):
    """An output that is the next cell's input is stored once."""
    run = record_training(tmp_path, steps=1, task="sketch")
    records = [r for at, r in records_of(run).items() if at[0] == "actor_update"]
    fingerprints = {record.leaf.fingerprint for record in records}
    offsets = {record.leaf.sketch.offset for record in records}
    assert len(offsets) == len(fingerprints) < len(records)
    size = os.path.getsize(run / "actor_update/step0/rank0/sketches.bin")
    distinct = {record.leaf.fingerprint: record for record in records}.values()
    assert size == len(HEAD) + sum(r.sketch().rows * (8 + 2 * 4) for r in distinct)


def test_a_large_sketch_is_taken_over_from_another_phase(tmp_path):
    """A weight that did not change is sketched once; again only where that sketch is gone."""
    run = sketching(tmp_path)
    weight = np.random.default_rng(0).standard_normal((2000, 64)).astype(np.float32)
    made = []

    def make():
        made.append(bytes_of(weight))
        return made[-1]

    def save(phase, step):
        offset = run.sink(phase, step).save_sketch("weight", make)
        run.wait()
        path = tmp_path / f"{phase}/step{step}/rank0/sketches.bin"
        sketch = read_sketch(path, SketchPlace("signed_sums_64", 64, offset), weight.shape)
        assert np.array_equal(sketch.sums, sketch_of(weight).sums)
        return path

    save("actor_compute_log_prob", 0)
    path = save("actor_update", 0)
    assert len(made) == 1
    run.end_step(0, {})
    path.unlink()
    save("actor_update", 1)
    assert len(made) == 2
    run.close()


def test_what_names_rows_is_stored_whole(tmp_path):
    """Token ids and masks have their elements; what is no mask only fingerprints."""
    recording = runs.Recording(tmp_path, task="sketch")
    ids, many = np.arange(12).reshape(3, 4), np.arange(24).reshape(2, 4, 3)
    with recording.phase("actor_update"):
        recording.call("embed", "Embed", lambda ids, many: ids > 2, ids, many)
    recording.end_step()
    recording.close()
    found = {name[2].partition("forward.0.")[2]: r for name, r in records_of(tmp_path).items()}
    assert np.array_equal(found["input.0"].array(), ids)
    assert np.array_equal(found["output.0"].array(), ids > 2)
    sketch = found["input.1"].sketch()
    assert sketch.sums.shape == (8, 0)
    assert len(set(sketch.fingerprints.tolist())) == 8
    dump = json.loads((tmp_path / "actor_update/step0/rank0/dump.json").read_bytes())
    assert dump["task"] == "statistics"


def test_runs_of_sketches_compare_as_those_of_statistics(tmp_path):
    """Statuses, the first divergence and checks are the same as without sketches."""
    fault = Fault("layers.1.mlp", "actor_update", step=1)
    verdicts = {}
    for task in ("statistics", "sketch"):
        a = record_training(tmp_path / f"{task} a", task=task)
        b = record_training(tmp_path / f"{task} b", task=task, faults=[fault])
        verdicts[task] = compare_runs(a, b).verdict
    assert verdicts["sketch"].counts == verdicts["statistics"].counts
    assert verdicts["sketch"].first_divergence == verdicts["statistics"].first_divergence
    found = [check_run(tmp_path / f"{task} a") for task in verdicts]
    assert [f.message for f in found[0].findings] == [f.message for f in found[1].findings]


def test_a_sketch_that_cannot_be_written_costs_nothing_else(tmp_path, monkeypatch):
    """It is counted and said to be lost; the record, and every other sketch, is there."""
    lost: dict[str, int] = {}

    def fault(what, error, count):
        lost[in_words(what, "en")] = lost.get(in_words(what, "en"), 0) + count

    run = sketching(tmp_path, fault=fault)
    write, calls = os.pwrite, []

    def full(file, content, at):
        calls.append(at)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, content, at)

    monkeypatch.setattr(os, "pwrite", full)
    sink = run.sink("actor_update", 0)
    arrays = [np.full((3, 64), n, np.float32) for n in range(3)]
    for number, array in enumerate([*arrays, arrays[1]]):
        offset = sink.save_sketch(f"print {array[0, 0]}", lambda array=array: bytes_of(array))
        leaf = Leaf(
            *("numpy.ndarray", "Float32", array.shape, 1.0, 1.0, 1.0, 1.0),
            sketch=SketchPlace("signed_sums_64", 64, offset),
        )
        line = JournalLine(f"Cell.a.Dense.forward.{number}", 2 * number, 2 * number + 1)
        line.values = {"output": [leaf.to_json()]}
        sink.append(line)
        run.wait()
    run.end_step(0, {})
    run.close()
    assert lost == {"the sketch of a tensor": 1}
    first, second, third, again = records_of(tmp_path).values()
    assert np.array_equal(first.sketch().sums, sketch_of(arrays[0]).sums)
    assert np.array_equal(third.sketch().sums, sketch_of(arrays[2]).sums)
    assert np.array_equal(again.sketch().sums, sketch_of(arrays[1]).sums)
    with pytest.raises(ArrayFileError, match="could not be stored: No space left"):
        second.sketch()
    assert second.leaf.why is None


def test_a_file_that_is_cut_costs_the_sketches_behind_it(tmp_path):
    """They are said to be unreadable; all else of the run is as it was."""
    run = record_training(tmp_path / "a", steps=1, task="sketch")
    other = record_training(tmp_path / "b", steps=1, task="sketch")
    path = run / "actor_update/step0/rank0/sketches.bin"
    os.truncate(path, path.stat().st_size // 2)
    records = [r for at, r in records_of(run).items() if at[0] == "actor_update"]
    why = [*map(why_unreadable, records)]
    cut = [one for one in why if "is cut short: the sketch ends at byte" in one]
    assert 0 < len(cut) < len(records)
    assert len(cut) == sum(map(bool, why))
    (held,) = [h for h in inventory(open_run(run)) if h.name == "actor_update"]
    assert len(held.unreadable) == len(cut)
    assert compare_runs(run, other).verdict.status == "identical"
    path.unlink()
    with pytest.raises(ArrayFileError, match="the file is missing"):
        records[0].sketch()


def test_a_link_that_leaves_the_run_is_not_followed(tmp_path):
    """Whatever lies behind it, no sketch is read there."""
    run = record_training(tmp_path / "run", steps=1, task="sketch")
    path = run / "actor_update/step0/rank0/sketches.bin"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    record = next(r for at, r in records_of(run).items() if at[0] == "actor_update")
    with pytest.raises(ArrayFileError, match="no sketch"):
        record.sketch()


def test_sketches_go_with_the_elements(tmp_path):
    """A run that is overwritten leaves none; files of others by that name stay."""
    run = record_training(tmp_path / "run", steps=1, task="sketch")
    directory = run / "actor_update/step0/rank0"
    Removal().remove_tensors(directory)
    assert not (directory / "sketches.bin").exists()
    assert (directory / "records.jsonl").exists()
    record_training(run, steps=1, task="sketch", existing="overwrite")
    assert all(r.sketch() is not None for r in records_of(run).values())
    Removal().remove(run, directory)
    assert not directory.exists()
    directory.mkdir()
    (directory / "sketches.bin").write_bytes(b"somebody's own")
    Removal().remove(run, directory)
    assert (directory / "sketches.bin").exists()


def test_merged_runs_keep_their_sketches(tmp_path):
    """The file is linked with the rest of a rank's directory."""
    nodes = [
        record_training(tmp_path / str(rank), steps=1, ranks=(rank,), task="sketch")
        for rank in (0, 1)
    ]
    for node in nodes:
        for path in node.glob("run*.json"):
            content = json.loads(path.read_bytes())
            content["world"]["size"] = 2
            path.write_text(json.dumps(content))
    merge_runs(nodes, tmp_path / "merged")
    found = [r for e in open_run(tmp_path / "merged").entries() for r in e.records]
    assert found
    assert all(record.sketch().rows for record in found)


def on_disk(path):
    return sum(p.stat().st_blocks * 512 for p in (path / "actor_update").rglob("*"))


@pytest.mark.parametrize(("before", "wanted"), [("statistics", "sketch"), ("sketch", "tensor")])
def test_the_size_of_another_task_is_estimated(tmp_path, monkeypatch, before, wanted):
    """From a step of the one, the bytes of the other within some percent."""
    monkeypatch.setattr(runs, "WIDTH", 400)
    run = record_training(tmp_path / "before", steps=1, task=before)
    other = record_training(tmp_path / "wanted", steps=1, task=wanted)
    config = ProbeConfig(**{**EVERYTHING, "task": wanted})
    found = estimate(open_run(run), config, phases=["actor_update"])
    assert found.total == pytest.approx(on_disk(other), rel=0.1)


def test_old_steps_lose_their_sketches_first(tmp_path, monkeypatch):
    """With `keep_mb` they go as elements do; what is left of the step is as it was."""
    monkeypatch.setattr(runs, "WIDTH", 600)
    run = record_training(tmp_path, steps=8, task="sketch", keep_mb=8)
    files = [*run.rglob("sketches.bin")]
    steps = {path.parent.parent.name for path in files}
    assert {"step0", "step7"} <= steps
    assert len(steps) < 8
    assert open_run(run).problems == []
    gone = next(n for n in range(8) if f"step{n}" not in steps)
    records = [r for e in open_run(run).entries(step=gone) for r in e.records]
    assert records
    with pytest.raises(ArrayFileError, match="no sketch"):
        records[0].sketch()
