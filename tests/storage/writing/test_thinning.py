"""`keep_mb`: a bounded disk. What goes, in which order, and what a reader says of it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.runs import Recording, record_training
from hypothesis import given
from hypothesis import strategies as st

from mindrlhf_msprobe import check_run, compare_runs, open_run
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.storage.manifest.merge import merge_runs
from mindrlhf_msprobe.storage.manifest.step_spans import KEY_DATA, LAYERS, TENSORS
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.reading.inventory import inventory
from mindrlhf_msprobe.storage.writing.directory import Removal
from mindrlhf_msprobe.storage.writing.thinning import LAST, what_goes

MB = 1 << 20


def manifest(root, rank=0):
    return json.loads((root / ("run.json" if not rank else f"run.rank{rank}.json")).read_text())


def on_disk(root):
    """Return the bytes of the files below a directory; those that are linked count once."""
    paths = [path for path in root.rglob("*") if path.is_file()]
    return sum({path.stat().st_ino: path.stat().st_size for path in paths}.values())


def record(root, steps=40, *, rank=0, width=4000, first=0, cells=3, **settings):
    """Record steps of cells with outputs of `width` numbers, and of a key."""
    recording = Recording(
        root, rank=rank, step=first, **{"keep_mb": 1, "step_end": 10**6, **settings}
    )
    random_ = np.random.default_rng(rank)
    for _ in range(steps):
        with recording.phase("actor_update"):
            for cell in range(cells):
                x = random_.normal(size=width).astype(np.float32)
                recording.call(f"c{cell}", "Dense", lambda x: x, x)
        recording.data("loss", float(recording.step))
        recording.data("responses", [f"answer {recording.step}"])
        recording.end_step()
    return recording.close()


SIZES = st.dictionaries(st.integers(0, 60), st.integers(1, 9), max_size=30)


@given(SIZES, SIZES, SIZES, st.sets(st.integers(0, 60), max_size=4), st.integers(1, 200))
def test_what_goes_is_enough_no_more_and_never_what_is_kept(
    tensors, layers, keys, findings, excess
):
    """Tensors first, then layers, then key data; first, last and those around findings stay."""
    tensors = {step: size for step, size in tensors.items() if step in layers}
    held = {TENSORS: tensors, LAYERS: layers, KEY_DATA: keys}
    chosen = what_goes(held, excess, findings)
    every = sorted({*layers, *keys})
    kept = {*every[:1], *every[-LAST:]}
    kept |= {step + n for step in findings for n in (-1, 0, 1)}
    gone = {(kind, step) for kind, steps in chosen.items() for step in steps}
    assert len(gone) == sum(map(len, chosen.values()))
    assert not {step for _, step in gone} & kept
    assert all(step in held[kind] for kind, step in gone)
    gone |= {(TENSORS, s) for s in chosen.get(LAYERS, ()) if s in tensors}
    freed = sum(held[kind][step] for kind, step in gone)
    left = {
        kind: [s for s in sorted(held[kind])[1:-LAST] if s not in kept and (kind, s) not in gone]
        for kind in held
    }
    for before, after in ((TENSORS, LAYERS), (LAYERS, KEY_DATA)):
        if after in chosen and not findings:  # nothing that goes before it is left
            assert not left[before]
    assert freed >= excess or findings or not any(left.values())


def test_every_other_old_step_goes_and_then_every_other_again():
    """What is left lies evenly apart, whether steps were recorded each or with an interval."""
    for apart in (1, 10):
        held = {LAYERS: dict.fromkeys(range(0, 33 * apart, apart), 1)}
        left = [s // apart for s in held[LAYERS] if s not in what_goes(held, 15, [])[LAYERS]]
        assert left == [*range(0, 31, 2), 31, 32]
        left = [s // apart for s in held[LAYERS] if s not in what_goes(held, 22, [])[LAYERS]]
        assert left == [*range(0, 29, 4), 30, 31, 32]


def test_a_finding_keeps_the_recorded_steps_around_it():
    """The nearest ones where an interval leaves out the step itself."""
    held = {LAYERS: dict.fromkeys(range(0, 200, 10), 1)}
    assert not {40, 50, 60} & {*what_goes(held, 999, [50])[LAYERS]}
    assert not {40, 50} & {*what_goes(held, 999, [45])[LAYERS]}


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_run_of_many_steps_stays_within_its_bound(tmp_path, task):
    """Bytes at the end; what is left is whole, and nothing is missing."""
    root = record(tmp_path / "run", 40, task=task, cells=2)
    assert on_disk(root) <= MB
    run = open_run(root)
    assert run.problems == []
    assert run.lost == []
    assert {0, 38, 39} <= {*run.steps}
    listed = manifest(root)["thinned"]
    assert listed["layers"]
    for step in range(40):
        there = run.phases_at(StepPlace(step, 0)) == ["actor_update"]
        assert there != run.is_thinned(LAYERS, StepPlace(step, 0))
        assert (root / "actor_update" / f"step{step}").exists() == there
        for entry in run.entries(step=step):
            for one in entry.records:
                if task == "tensor" and not run.is_thinned(TENSORS, StepPlace(step, 0)):
                    assert one.array().size
                else:
                    assert (one.location, one.leaf.why) == (None, None)
    assert not [held.unreadable for held in inventory(run) if held.unreadable]


def test_tensors_go_before_layers_and_links_count_once(tmp_path):
    """A cell that returns what it was given: two names, one file; the statistics stay."""
    root = record(tmp_path / "run", 20, task="tensor", width=30_000, keep_mb=4)
    listed = manifest(root)["thinned"]
    assert listed["tensors"]
    assert (listed["layers"], listed["key_data"]) == ([], [])
    dump = json.loads((root / "actor_update/step1/rank0/dump.json").read_text())
    assert dump["data"]
    kept = open_run(root).entries(step=0)[0].records
    assert kept[0].file.stat().st_ino == kept[1].file.stat().st_ino


def test_steps_around_findings_stay(tmp_path):
    """Findings of any rank, as live checks write them; notes and other lines keep nothing."""
    root = tmp_path / "run"
    root.mkdir()
    lines = [
        {"step": 20, "rank": 3, "rule": "history.jump", "severity": "warning", "code": "x"},
        {"step": 5, "rank": 3, "rule": "rl.length_limit", "severity": "note", "code": "x"},
    ]
    text = "\n".join(map(json.dumps, lines)) + '\nnonsense\n[1]\n{"step": "4"}\n{"step": 7, "ra'
    (root / "findings.rank3.jsonl").write_text(text)
    run = open_run(record(root, 40, width=10))
    assert {0, 19, 20, 21, 38, 39} <= {*run.steps}
    assert not {5, 7} & {*run.steps}


def test_what_must_stay_is_said_with_figures(tmp_path, caplog):
    """Once, as soon as it shows: no bound is kept that cannot be."""
    record(tmp_path / "run", 6, task="tensor", width=300_000)
    said = [r.getMessage() for r in caplog.records if "keep_mb is 1.0 MiB, but" in r.getMessage()]
    assert len(said) == 1
    assert "MiB in 1 step" in said[0]
    assert "the last 2" in said[0]


def test_files_of_others_stay(tmp_path):
    """In a directory whose step goes; and in one that was put in the place of a phase's."""
    root = tmp_path / "run"
    recording = Recording(root, keep_mb=1)
    for step in range(30):
        with recording.phase("actor_update"):
            recording.call("c", "Dense", lambda x: x, np.ones(3))
        if step == 3:
            (root / "notes").mkdir()
            recording.writer.wait()
            (root / "actor_update" / "step3" / "rank0" / "mine.txt").write_text("x")
        for key in range(6):
            recording.data(f"key{key}", step)
        recording.end_step()
    recording.close()
    assert [*(root / "actor_update" / "step3").rglob("*.*")] == [
        root / "actor_update" / "step3" / "rank0" / "mine.txt"
    ]
    assert (root / "notes").is_dir()
    assert open_run(root).problems == []


def test_a_whole_run_and_a_thinned_one_compare_as_coverage(tmp_path, capsys):
    """What is left is compared; what was removed is neither a divergence nor a success."""
    whole = record_training(tmp_path / "whole", steps=8)
    thin = record_training(tmp_path / "thin", steps=8, keep_mb=2)
    for a, b in ((whole, thin), (thin, whole)):
        result = compare_runs(a, b)
        assert bool(result)
        assert result.verdict.status == "identical"
        assert {str(gap.message) for gap in result.verdict.coverage if gap.message} == {
            "layer data of old steps, which keep_mb has removed",
            "key data of old steps, which keep_mb has removed",
        }
        assert any("layer data of steps 1-" in str(note) for note in result.notes)
    assert main(["show", str(thin)]) == 0
    assert "Not held: layer data of steps 1-" in capsys.readouterr().out
    plan = tmp_path / "plan.yaml"
    plan.write_text("msprobe: true\nactor_train_dump: true\nstep_end: 999\nkeep_mb: 3\n")
    main(["estimate", str(whole), "--config", str(plan), "--json"])
    estimated = json.loads(capsys.readouterr().out)
    assert (estimated["total_bytes"], estimated["keep_bytes_per_rank"]) == (3 * MB, 3 * MB)
    assert estimated["remark_codes"][0]["code"] == "estimate.thinned"
    checked = check_run(thin)
    assert not [one for one in checked.findings if one.severity.value != "note"]
    assert any("removed (keep_mb)" in str(one.why) for one in checked.not_checked)


def test_ranks_that_were_thinned_otherwise_are_no_finding(tmp_path):
    """Each rank keeps its own share: of a step one may have layers and the other not."""
    root = tmp_path / "run"
    for rank in range(3):
        record(root, 30, rank=rank, width=40, keep_mb=1 + rank)
    run = open_run(root)
    assert len({tuple(s for s, r in run.places if r == rank) for rank in range(3)}) == 3
    result = check_run(root)
    assert not [one for one in result.findings if one.rule.startswith("ranks.")]
    assert result.problems == ()


def test_a_thinned_run_is_resumed_and_merged(tmp_path):
    """The bound goes on counting; nodes that were thinned otherwise are put together."""
    root = tmp_path / "node0"
    record(root, 20, width=40)
    before = {*open_run(root).steps}
    record(root, 10, width=40, first=20, existing="resume")
    run = open_run(root)
    assert run.problems == []
    assert on_disk(root) <= MB
    assert {*run.steps} & set(range(20)) < before
    assert {0, 28, 29} <= {*run.steps}
    record(tmp_path / "node1", 20, rank=1, width=40, keep_mb=2)
    merged = merge_runs([root, tmp_path / "node1"], tmp_path / "merged")
    assert open_run(merged.path).problems == []
    assert merged.left_out == ()


def test_steps_that_are_recorded_again_are_no_longer_thinned(tmp_path):
    """An attempt that begins earlier records anew what the one before had thinned."""
    root = record(tmp_path / "run", 30, width=40)
    gone = min(set(range(30)) - {*open_run(root).steps})
    recording = Recording(root, step=gone, existing="resume", keep_mb=50, initial_step=gone)
    recording.writer.manifest.begin(gone)
    with recording.phase("actor_update"):
        recording.call("c0", "Dense", lambda x: x, np.ones(3, np.float32))
    recording.end_step()
    recording.close()
    run = open_run(root)
    assert run.problems == []
    assert run.steps[-1] == gone
    assert run.entries(step=gone)


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("cut", [0, 2, 5])
def test_a_removal_that_was_cut_short_is_coverage_and_is_ended_later(
    tmp_path, monkeypatch, cut, task
):
    """The process dies in the middle: after so many files nothing more goes."""
    root = tmp_path / "run"
    unlink, count = Path.unlink, [0]

    def dying(path, **options):
        removes = any(recording.writer.manifest.content.thinned.values())
        if removes and ("/actor_update/" in str(path) or "/data/" in str(path)):
            count[0] += 1
            if count[0] > cut:
                raise KeyboardInterrupt("the process dies")
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", dying)
    recording = Recording(root, keep_mb=1, task=task)
    died = False
    while not died and recording.step < 60:
        step = recording.step
        try:
            with recording.phase("actor_update"):
                recording.call("c", "Dense", lambda x: x, np.full(9000, step, np.float32))
            recording.data("loss", step)
            recording.end_step()
            recording.writer.wait()
        except KeyboardInterrupt:  # by the next call, as there is no fault sink
            died = True
    assert died
    recording.writer.close()
    monkeypatch.undo()
    run = open_run(root)
    assert run.problems == []
    for entry in run.entries():
        for one in entry.records:
            assert one.location is None or one.array().size
    record(root, 3, first=60, existing="resume", task=task, width=9000)
    run = open_run(root)
    assert run.problems == []
    assert on_disk(root) <= MB
    for step in range(60):
        directory = root / f"actor_update/step{step}/rank0"
        if run.is_thinned(TENSORS, StepPlace(step, 0)):
            assert not (directory / "dump_tensor_data").exists()
        if run.is_thinned(LAYERS, StepPlace(step, 0)):
            assert not directory.exists()


def test_files_of_findings_may_hold_anything(tmp_path):
    """A pipe, a link that leads elsewhere, JSON without an end: recording and thinning go on."""
    root = record(tmp_path / "run", 1, width=40)
    os.mkfifo(root / "findings.rank1.jsonl")
    (root / "findings.rank2.jsonl").symlink_to("/dev/zero")
    nested = b"[" * 100_000
    lines = [nested, b'{"step": true}', b'{"step": -1}', b'{"step": 12, "severity": [1]}', b"{}"]
    (root / "findings.rank3.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    job = threading.Thread(
        target=record, args=(root, 29), kwargs={"first": 1, "existing": "resume"}, daemon=True
    )
    job.start()
    job.join(30)
    assert not job.is_alive()
    content = manifest(root)
    assert not content.get("lost")
    gone = content["thinned"]["layers"]
    assert gone
    assert not any(first <= step <= last for first, last in gone for step in (11, 12, 13))


def test_a_reader_that_opened_the_run_before_sees_whole_steps_or_none(tmp_path):
    """What goes while it reads is not there, and not unreadable."""
    root = record(tmp_path / "run", 12, keep_mb=60, width=40)
    run = open_run(root)
    content = manifest(root)
    content["thinned"] = {"tensors": [], "layers": [[3, 5]], "key_data": [[4, 4]]}
    (root / "run.json").write_text(json.dumps(content))
    for directory in (
        *(root / f"actor_update/step{step}/rank0" for step in (3, 4, 5)),
        *(root / f"data/{key}/step4/rank0" for key in ("loss", "responses")),
    ):
        Removal().remove(root, directory)
    assert {entry.step for entry in run.entries()} == {*range(12)} - {3, 4, 5}
    assert {datum.step for datum in run.key_data()} == {*range(12)} - {4}
    assert run.problems == []


_JOB = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import numpy as np
from helpers.runs import Recording
more = {"existing": "resume", "task": "tensor", "keep_mb": 1, "step_end": 10**6}
job = Recording(Path(sys.argv[1]), step=int(sys.argv[3]), **more)
while True:
    with job.phase("actor_update"):
        for cell in "ab":
            job.call(cell, "Dense", lambda x: x, np.full(2000, job.step, np.float32))
    job.data("loss", float(job.step))
    job.data("responses", ["answer"])
    job.end_step()
"""


def test_a_kill_at_any_moment_leaves_a_run_that_reads(tmp_path):
    """Real processes, killed while they record and thin; each continues what the last one left."""
    root, chance = tmp_path / "run", random.Random(5)
    tests = Path(__file__).parents[2]
    first = 0
    for _ in range(3):
        arguments = [sys.executable, "-c", _JOB, str(root), str(tests), str(first)]
        job = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
        thinned_before = _thinned(root)
        while _thinned(root) == thinned_before and job.poll() is None:
            time.sleep(0.01)
        time.sleep(chance.random() * 0.15)
        job.send_signal(signal.SIGKILL)
        job.wait()
        run = open_run(root)
        assert run.problems == []
        assert 0 in run.steps
        for entry in run.entries():
            for one in entry.records:
                assert one.location is None or one.array().size
        assert all(d.value is not None for d in run.key_data())
        assert run.problems == []
        first = run.manifests[0]["attempts"][-1]["last_completed_step"] + 1
    assert on_disk(root) <= 1.2 * MB  # what was being written when it was killed


def _thinned(root):
    try:
        return manifest(root).get("thinned")
    except (OSError, ValueError):
        return None
