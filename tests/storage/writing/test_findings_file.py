"""findings.rank<N>.jsonl: what was found while training stays readable, and of its own run."""

from __future__ import annotations

import pytest

from mindrlhf_msprobe.storage.layout import findings_name
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
