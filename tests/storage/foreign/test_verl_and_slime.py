"""msprobe's dumps of verl and slime: the directories that these put around msprobe's own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers.msadapter import DUMPS

from mindrlhf_msprobe import check_run, compare_runs, open_run
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.storage.place import StepPlace

DUMP = DUMPS / "perceptron" / "step0" / "rank"
CHANGED = "Module.fc2.Conv1D.forward.0"
#: Directory → phase and step.
VERL = {
    "step_1/actor_compute_log_prob/step0/rank0": ("actor_compute_log_prob", 1),
    "step_1/ref_compute_log_prob/step0/rank0": ("reference_compute_log_prob", 1),
    "step_1/compute_values/step0/rank0": ("critic_compute_values", 1),
    "step_1/compute_rm_score/step0/rank0": ("compute_rm_score", 1),
    "step_1/actor_update/step0/rank0": ("actor_update", 1),
    "step_12/actor_update/step3/rank0": ("actor_update", 12),  # msprobe's own number of it
}
BY_HAND = {
    "generate_sequences/step0/rank0": ("actor_generate_sequences", 0),
    "update_actor/step0/rank0": ("actor_update", 0),
}
ASYNC = {
    "generate_sequence/4711/step2/rank0": ("actor_generate_sequences", 2),
    "update_actor/815/step2/rank0": ("actor_update", 2),
}
SLIME = {
    "ref_compute_log_prob/step0/rank0": ("reference_compute_log_prob", 0),
    "old_log_prob/step0/rank0": ("actor_compute_log_prob", 0),
    "actor_train/step0/rank0": ("actor_update", 0),
}
CONSISTENT = {
    "generate/step0/rank0": ("actor_generate_sequences", 0),
    "update_actor/old_log_prob/step0/rank0": ("actor_compute_log_prob", 0),
}
ALL = {"verl": VERL, "by hand": BY_HAND, "async": ASYNC, "slime": SLIME, "consistent": CONSISTENT}


def dump(root: Path, directories, changed: str = "") -> Path:
    """Write a dump of PyTorch into each directory; with another output in the one that changed."""
    for name in directories:
        shutil.copytree(DUMP, root / name)
        if name == changed:
            file = root / name / "dump.json"
            content = json.loads(file.read_text())
            content["data"][CHANGED]["output"][0]["Norm"] *= 1.5
            file.write_text(json.dumps(content))
    return root


@pytest.mark.parametrize("layout", ALL.values(), ids=ALL)
def test_phases_and_steps_are_read(tmp_path, layout):
    run = open_run(dump(tmp_path, layout))
    assert {(p, s) for s in run.steps for p in run.phases_at(StepPlace(s, 0))} == {*layout.values()}
    assert run.ranks == [0]
    assert run.problems == []
    assert all([*run.entries(phase, step, 0)] for phase, step in layout.values())


@pytest.mark.parametrize("layout", ALL.values(), ids=ALL)
def test_the_phase_that_differs_is_named(tmp_path, layout):
    a = dump(tmp_path / "a", layout)
    assert (
        compare_runs(a, dump(tmp_path / "same", layout), workers=1).verdict.first_divergence is None
    )
    for number, (name, (phase, step)) in enumerate(layout.items()):
        b = dump(tmp_path / f"b{number}", layout, name)
        found = compare_runs(a, b, workers=1).verdict.first_divergence
        assert found is not None
        assert (found.phase, found.step, found.entry) == (phase, step, CHANGED)


SERVERS = ["generate_sequence/815/step0/rank0", "generate_sequence/4711/step0/rank0"]


def test_two_processes_of_a_phase_are_two_ranks(tmp_path):
    """Each has its own rank 0; what one lacks in a step changes no other's number."""
    a = dump(tmp_path / "a", [*SERVERS, "generate_sequence/4711/step1/rank0"])
    run = open_run(a)
    assert (run.ranks, run.problems) == ([0, 1], [])
    assert sorted(run.places) == [(0, 0), (0, 1), (1, 1)]
    found = compare_runs(a, dump(tmp_path / "b", SERVERS, SERVERS[1]), workers=1)
    first = found.verdict.first_divergence
    assert first is not None
    assert (first.phase, first.rank, first.entry) == ("actor_generate_sequences", 1, CHANGED)


def test_no_section_of_ours_is_proposed(tmp_path):
    """It records no PyTorch."""
    a = dump(tmp_path / "a", VERL)
    found = compare_runs(a, dump(tmp_path / "b", VERL, [*VERL][1]), workers=1)
    first = found.verdict.first_divergence
    assert first is not None
    assert first.next_step is None


def test_a_reward_model_stands_before_the_update(tmp_path):
    a = dump(tmp_path / "a", VERL)
    b = dump(tmp_path / "b", VERL, "step_1/compute_rm_score/step0/rank0")
    later = b / "step_1/actor_update/step0/rank0/dump.json"
    later.write_text((b / "step_1/compute_rm_score/step0/rank0/dump.json").read_text())
    found = compare_runs(a, b, workers=1).verdict.first_divergence
    assert found is not None
    assert found.phase == "compute_rm_score"


def test_one_phase_of_a_step_is_a_run_too(tmp_path):
    root = dump(tmp_path, VERL)
    assert open_run(root / "step_1").phases_at(StepPlace(0, 0)) == open_run(root).phases_at(
        StepPlace(1, 0)
    )
    assert open_run(root / "step_1" / "ref_compute_log_prob").phases == [
        "reference_compute_log_prob"
    ]
    assert check_run(root / "step_1").findings == ()


def test_a_directory_of_runs_is_no_run(tmp_path):
    """What looks like a phase in a phase is none where the names say nothing."""
    dump(tmp_path / "monday", SLIME)
    dump(tmp_path / "tuesday", SLIME)
    with pytest.raises(RunError):
        open_run(tmp_path)
