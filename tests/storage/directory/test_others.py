"""What stood in a run's directory before it, as its manifest names it."""

from __future__ import annotations

import json
import random
from pathlib import Path

from helpers.runs import record_training

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.storage.directory import others
from mindrlhf_msprobe.storage.directory.others import MOST_NAMED, Others


def test_none_of_many_directories_of_another_tool_is_taken_for_the_runs(tmp_path):
    """However many stood there, and after a second run of the same kind, too."""
    phases = ("actor_update", "critic_update", "reward_compute")
    theirs = {
        f"{phase}/step{step}/rank0" for phase in phases for step in range(2, 360) if step != 200
    }
    for name in theirs:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "dump.json").write_text('{"data": {}}')
    for steps in (1, 2):
        run = open_run(record_training(tmp_path, steps=steps, existing="overwrite"))
        assert list(run.steps) == [*range(steps)]
        assert {p.relative_to(tmp_path).as_posix() for p in run.left_out} == theirs
    named = json.loads((tmp_path / "run.json").read_bytes())["others"]
    assert named[:2] == [f"{phases[0]}/step2-199/rank0", f"{phases[0]}/step201-359/rank0"]
    assert len(named) == 6


def test_folded_names_stand_for_the_directories_they_were_made_of():
    """All of them and no others, whatever keys are called, however often more are noted."""
    draw = random.Random(3)
    keys = ("data/step5/step{}/rank0", "data/step1-9/step{}", "step{}/rank", "x/step{}/proc17")
    every = [key.format(step) for key in keys for step in range(900)]
    known, named = set(), []
    for _ in range(6):
        more = draw.sample(every, 700)
        known |= {*more}
        named = others.listed([*named, *more])
    assert len(named) < len(known) > MOST_NAMED
    found = Others(Path("run"), named)
    assert {name for name in every if Path("run", name) in found} == known
    assert Path("elsewhere/step1/rank") not in found
