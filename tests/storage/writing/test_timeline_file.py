"""timeline.rank<N>.jsonl: whole lines, of its own run, whatever else stands there."""

from __future__ import annotations

import os
from errno import ENOSPC

import numpy as np
import pytest
from helpers.runs import Recording

from mindrlhf_msprobe.storage import layout, step_lines
from mindrlhf_msprobe.storage.layout import FINDINGS, TIMELINE, lines_name
from mindrlhf_msprobe.storage.manifest.merge import merge_runs
from mindrlhf_msprobe.storage.reading.reader import open_run
from mindrlhf_msprobe.storage.step_lines import finding_lines, time_lines


def times_of(step, rank=0, seconds=1.5):
    return {
        **{"step": step, "rank": rank, "ended": 1.7e9, "seconds": seconds},
        **{"phases": [], "key_data": []},
    }


def a_run(root, rank=0, steps=(0,), **settings):
    recording = Recording(root, rank=rank, step=steps[0], **settings)
    for step in steps:
        recording.step = step
        with recording.phase("actor_update"):
            recording.call("c", "Dense", lambda x: x, np.ones(3))
        recording.writer.end_step(step, {}, times=lambda step=step: times_of(step, rank))
    recording.close()
    return root


def steps_in(root, rank=0):
    return open_run(root).timed_steps(rank)


def a_finding(step, rank=0):
    known = {"rule": "rl.ratio", "severity": "error", "code": "check_rl.ratio"}
    return {"step": step, "rank": rank, **known, "params": {"text": "\ud800 \u202e<b>"}}


@pytest.mark.parametrize("begins", [0, 2, 3, 9])
@pytest.mark.parametrize(
    ("kind", "lines", "line"),
    [(TIMELINE, time_lines, times_of), (FINDINGS, finding_lines, a_finding)],
    ids=["times", "findings"],
)
def test_a_further_attempt_keeps_the_lines_before_its_first_step(
    tmp_path, kind, lines, line, begins
):
    """What is no whole line goes, too: half a line of a killed process would spoil the next."""
    file = lines(tmp_path, 1)
    assert list(file.read()) == []
    file.append([line(0, 1), line(1, 1)])
    for step in (2, 4):
        file.append([line(step, 1)])
    path = tmp_path / lines_name(kind, 1)
    with open(path, "ab") as half:
        half.write(b'{"step": 5, "ra')
    assert file.steps() == [0, 1, 2, 4]
    lines(tmp_path, 1).forget(begins)
    kept = [step for step in (0, 1, 2, 4) if step < begins]
    assert path.exists() == bool(kept)
    lines(tmp_path, 1).append([line(begins, 1)])
    assert len(path.read_bytes().splitlines()) == len(kept) + 1
    assert lines(tmp_path, 1).steps() == [*kept, begins]
    assert list(lines(tmp_path, 0).read()) == []


def put_link(path, outside):
    path.symlink_to(outside)


def put_pipe(path, outside):
    os.mkfifo(path)


def put_directory(path, outside):
    path.mkdir()
    (path / "theirs").touch()


@pytest.mark.parametrize("put", [put_link, put_pipe, put_directory])
@pytest.mark.parametrize("existing", ["refuse", "overwrite", "resume"])
def test_what_is_no_plain_file_is_left_alone_and_counted(tmp_path, put, existing):
    """Nothing is written through a link, a pipe is not waited for; the step itself is whole."""
    root, outside = tmp_path / "run", tmp_path / "precious"
    outside.write_text("precious")
    lost = []
    if existing == "resume":
        a_run(root)
        (root / lines_name(TIMELINE, 0)).unlink()
    root.mkdir(exist_ok=True)
    put(root / lines_name(TIMELINE, 0), outside)
    recording = Recording(root, existing=existing, step=7)
    recording.writer.background._fault = lambda what, error, count: lost.append(what.code)
    time_lines(root, 0).forget(0)
    for step in (7, 8):
        recording.step = step
        with recording.phase("actor_update"):
            recording.call("c", "Dense", lambda x: x, np.ones(3))
        recording.writer.end_step(step, {}, times=lambda step=step: times_of(step))
    recording.close()
    assert lost == ["lost.times"] * 2
    assert outside.read_text() == "precious"
    run = open_run(root)
    assert run.completed(8)
    assert run.timeline(8) is None
    assert [problem.path.name for problem in run.problems] == [lines_name(TIMELINE, 0)]


def test_a_line_that_does_not_fit_on_the_disk_leaves_no_half(tmp_path, monkeypatch):
    """The next one stays readable."""
    time_lines(tmp_path, 0).append([times_of(0)])

    def half(file, content):
        os.write(file, content[: len(content) // 2])
        raise OSError(ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(step_lines, "write_all", half)
        with pytest.raises(OSError, match="No space"):
            time_lines(tmp_path, 0).append([times_of(1)])
    time_lines(tmp_path, 0).append([times_of(2)])
    a_run(tmp_path, rank=1)
    assert steps_in(tmp_path) == [0, 2]
    assert not open_run(tmp_path).problems


def test_overwriting_removes_lines_beside_the_journals_and_merging_keeps_them(tmp_path):
    """Of every kind: each file belongs to the run of its rank."""
    roots = [a_run(tmp_path / f"node{rank}", rank) for rank in (0, 1)]
    lines = {
        layout.lines_name(kind, rank): f'{{"step": 0, "rank": {rank}}}\n'
        for kind in layout.LINES
        for rank in (0, 1)
    }
    for name, line in lines.items():
        (roots["rank1" in name] / name).write_text(line)
    merged = merge_runs(roots, tmp_path / "merged")
    assert not merged.left_out
    assert {name: (merged.path / name).read_text() for name in lines} == lines
    Recording(roots[1], rank=1, existing="overwrite").close()
    assert [path.name for path in roots[1].glob("*.jsonl")] == []


def test_merging_attempts_of_a_rank_keeps_the_last_times_of_each_step(tmp_path):
    """In the order in which they ran; a merged run that is resumed leaves its inputs alone."""
    before, after = (a_run(tmp_path / name, steps=(step,)) for name, step in (("a", 0), ("b", 2)))
    time_lines(before, 0).append([times_of(2, seconds=9.0)])  # not recorded, but ended
    with open(before / lines_name(TIMELINE, 0), "ab") as file:
        file.write(b'{"step": 3')  # it was killed
    inputs = [(root / lines_name(TIMELINE, 0)).read_bytes() for root in (before, after)]
    merge_runs([after, before], tmp_path / "merged")
    run = open_run(tmp_path / "merged")
    assert run.timed_steps() == [0, 2]
    assert run.timeline(2).seconds == 1.5
    time_lines(tmp_path / "merged", 0).append([times_of(3)])
    assert [(root / lines_name(TIMELINE, 0)).read_bytes() for root in (before, after)] == inputs


def test_lines_that_are_none_are_left_out(tmp_path):
    """A killed process leaves half a line; a file may hold anything."""
    finding_lines(tmp_path, 0).append([a_finding(3)])
    path = tmp_path / lines_name(FINDINGS, 0)
    path.write_bytes(b'[1]\n{"step": "x"}\n\xff\n' + path.read_bytes() + b'{"step": 4, "ra')
    assert [one["step"] for one in finding_lines(tmp_path, 0).read()] == [3]
