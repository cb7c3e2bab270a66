"""Healthy runs of the policy trainer, and the command that trains with faults."""

import json
import os
import sys

import pytest
from helpers.policy_trainer import CONFIG, train
from helpers.programs import TESTS


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """Runs: `a` without a fault, `tensors` of it with elements, and `loss` with that fault."""
    root = tmp_path_factory.mktemp("prove")
    train({**CONFIG, "dump_path": str(root / "a")})
    train({**CONFIG, "dump_path": str(root / "tensors"), "task": "tensor"})
    train({**CONFIG, "dump_path": str(root / "loss")}, ["loss"])
    return root


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return the command that trains with faults; `{side}` in it, if wanted, runs A without."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), *filter(None, sys.path)]))
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({**CONFIG, "dump_path": str(tmp_path / "unused")}))
    program = (
        "import sys; from helpers.policy_trainer import train; import json;"
        "train(json.load(open(sys.argv[1])), [] if sys.argv[2] == 'a' else sys.argv[3:])"
    )

    def of(faults, side="b"):
        return [sys.executable, "-c", program, str(settings), side, *faults]

    return of
