"""`prove` with a command that starts two ranks, each with cells of its own."""

from __future__ import annotations

import os
import sys

import pytest
from jobs import CRASHED_AT_EXIT, launched, run_job

from mindrlhf_msprobe.findings.proof import Conclusion
from mindrlhf_msprobe.proof.prove import Experiment, prove

pytestmark = pytest.mark.slow


def test_a_cause_on_the_second_rank_is_proven(tmp_path, monkeypatch):
    """Rank 1 alone has the wrong cell; rank 0, whose records stand first, differs behind it.

    Rank 1 also crashes at exit, as MindSpore's processes do at times: its run is whole by then.
    """

    def of(path, **fault):
        return {
            path: {"divided": "stages", "msprobe": {"dump_path": str(tmp_path / path)}, **fault}
        }

    faulty = of("b", fault="head.weight", crash_at_exit=1)
    assert run_job(tmp_path / "job", of("a") | faulty).code == 0
    CRASHED_AT_EXIT.remove("job")  # this one was planned
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.chdir(tmp_path)  # msrun logs here
    runs = Experiment(tmp_path / "a", tmp_path / "b", tmp_path / "out", launched(faulty), again=0)
    found = prove(runs)
    assert found.conclusion is Conclusion.PROVEN, found
    assert "proof.failed_behind" in {said.code for said in found.evidence}
    (cause,) = found.causes
    record = "Cell.head.Linear.forward.0.parameters.weight"
    assert (cause.where.rank, cause.where.record) == (1, record)
