"""findings.rank<N>.jsonl: what was found while training stays readable, and of its own run."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.runs import Recording, record_training

from mindrlhf_msprobe.storage.layout import findings_name
from mindrlhf_msprobe.storage.manifest.merge import merge_runs
from mindrlhf_msprobe.storage.step_lines import finding_lines


def a_finding(step, rank=0):
    known = {"rule": "rl.ratio", "severity": "error", "code": "check_rl.ratio"}
    return {"step": step, "rank": rank, **known, "params": {"text": "\ud800 \u202e<b>"}}


@pytest.mark.parametrize("begins", [0, 2, 3, 9])
def test_a_further_attempt_keeps_what_was_found_before_its_first_step(tmp_path, begins):
    """Later steps are recorded again; what was found in them goes."""
    file = finding_lines(tmp_path, 1)
    assert list(file.read()) == []
    file.append([a_finding(1, 1), a_finding(2, 1)])
    file.append([a_finding(4, 1)])
    assert [one["step"] for one in file.read()] == [1, 2, 4]
    file.forget(begins)
    kept = [step for step in (1, 2, 4) if step < begins]
    assert [one["step"] for one in file.read()] == kept
    file.append([a_finding(begins, 1)])
    assert [one["step"] for one in file.read()] == [*kept, begins]
    assert list(finding_lines(tmp_path, 0).read()) == []


def test_lines_that_are_none_are_left_out(tmp_path):
    """A killed process leaves half a line; a file may hold anything."""
    finding_lines(tmp_path, 0).append([a_finding(3)])
    path = tmp_path / findings_name(0)
    path.write_bytes(b'[1]\n{"step": "x"}\n\xff\n' + path.read_bytes() + b'{"step": 4, "ra')
    assert [one["step"] for one in finding_lines(tmp_path, 0).read()] == [3]


def test_overwriting_removes_them_and_merging_keeps_them(tmp_path):
    """They belong to the run of their rank."""
    roots = [record_training(tmp_path / f"node{rank}", steps=1, ranks=(rank,)) for rank in (0, 1)]
    for rank, root in enumerate(roots):
        finding_lines(root, rank).append([a_finding(0, rank)])
    merged = merge_runs(roots, tmp_path / "merged")
    assert not merged.left_out
    for rank in (0, 1):
        (found,) = finding_lines(merged.path, rank).read()
        assert found["rank"] == rank
    record_training(roots[1], steps=1, ranks=(1,), existing="overwrite")
    assert list(finding_lines(roots[1], 1).read()) == []


def test_merging_attempts_of_a_rank_keeps_what_each_found(tmp_path):
    """In the order of their steps; the inputs stay as they are."""
    roots = [tmp_path / name for name in ("after", "before")]
    for step, root in zip((1, 0), roots):
        recording = Recording(root, step=step)
        with recording.phase("actor_update"):
            recording.call("c", "Dense", lambda x: x, np.ones(3))
        recording.end_step()
        recording.close()
        finding_lines(root, 0).append([a_finding(step)])
    with open(roots[1] / findings_name(0), "ab") as file:
        file.write(b'{"step": 9')  # it was killed
    before = [(root / findings_name(0)).read_bytes() for root in roots]
    merge_runs(roots, tmp_path / "merged")
    assert [one["step"] for one in finding_lines(tmp_path / "merged", 0).read()] == [0, 1]
    assert [(root / findings_name(0)).read_bytes() for root in roots] == before
