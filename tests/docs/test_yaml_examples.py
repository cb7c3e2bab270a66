"""The files of yaml_examples: the commands in them are run, and they record what they promise."""

import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import CommandLine

from mindrlhf_msprobe import load_config, open_run
from mindrlhf_msprobe.storage.reading.gradients import open_gradients
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import cell_name
from mindrlhf_msprobe.storage.step_lines import finding_lines

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "yaml_examples"
COMMAND = "#   mindrlhf-msprobe "
SAME, DIVERGED = 0, 1


def commands_of(path: Path) -> list[list[str]]:
    """Return the arguments of each command in a file's comments."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [shlex.split(x.removeprefix(COMMAND)) for x in lines if x.startswith(COMMAND)]


def check_determinism(run: Run, answer: str) -> None:
    assert answer.startswith("IDENTICAL")
    assert run.steps == [0, 1, 2]
    assert len(run.phases) == 6
    assert {entry.step for entry in run.entries()} == {0, 1}
    assert {entry.direction for entry in run.entries(phase="critic_update")} == {
        *("forward", "backward", "parameters_grad")
    }
    assert [datum.step for datum in run.key_data("prompts")] == [0, 1, 2]
    leaves = [record.leaf for entry in run.entries(step=0) for record in entry.records]
    assert all(leaf.fingerprint for leaf in leaves if leaf.type.endswith("Tensor"))


def check_layer(run: Run, answer: str) -> None:
    assert "Cell.model.layers.1.feed_forward.w2.Linear.forward.0" in answer
    assert "max abs 0.002" in answer
    assert {(entry.phase, entry.step) for entry in run.entries()} == {
        ("reference_compute_log_prob", 1)
    }
    names = {cell_name(entry.name) for entry in run.entries()}
    assert {"model.layers.1", "model.layers.1.attention.wo"} < names
    assert all(name.split(".")[:3] == ["model", "layers", "1"] for name in names)
    assert list(run.path.rglob("dump_tensor_data/*.npy"))


def check_tokens(run: Run, answer: str) -> None:
    assert "Cell.lm_head.Linear.forward.1" in answer.splitlines()[1]
    entries = list(run.entries())
    assert {entry.phase for entry in entries} == {"actor_generate_sequences"}
    assert {entry.token for entry in entries} == {1, 2}
    heads = [entry.name for entry in entries if cell_name(entry.name) == "lm_head"]
    assert heads == ["Cell.lm_head.Linear.forward.1", "Cell.lm_head.Linear.forward.2"]
    assert {datum.key for datum in run.key_data()} >= {"prompts", "responses"}


def check_critic(run: Run, answer: str) -> None:
    assert "Cell.value_head.Dense.forward.0" in answer.splitlines()[1]
    assert {entry.phase for entry in run.entries()} == {"critic_compute_values", "critic_update"}
    assert {entry.step for entry in run.entries()} == {0, 1}
    update = {entry.name for entry in run.entries(phase="critic_update")}
    assert "Cell.value_head.Dense.backward.0" in update
    keys = {datum.key for datum in run.key_data()}
    assert {"values", "rewards", "returns", "advantages", "critic_loss"} < keys


def check_tensors(run: Run, answer: str) -> None:
    assert "first values" in answer
    assert {entry.phase for entry in run.entries()} == {"actor_compute_log_prob", "actor_update"}
    names = {cell_name(entry.name) for entry in run.entries()}
    assert names == {"lm_head", "model.layers.0.attention"}
    files = list((run.path / "actor_update" / "step0").rglob("dump_tensor_data/*.npy"))
    parts = {".input.", ".output.", ".parameters.", ".backward.", ".parameters_grad."}
    assert all(any(part in file.name for file in files) for part in parts)
    logits = next(f for f in files if f.name == "Cell.lm_head.Linear.forward.0.output.0.npy")
    assert np.load(logits, allow_pickle=False).shape == (4, 8, 13)


def check_monitoring(run: Run, answer: str) -> None:
    assert answer.startswith("HEALTHY")
    assert {entry.step for entry in run.entries()} == {0, 10}
    assert [datum.step for datum in run.key_data("rewards")] == [*range(11)]
    assert {one["severity"] for one in finding_lines(run.path, 0).read()} <= {"note"}
    assert not run.run_files[0].lost


def check_overflows(run: Run, answer: str) -> None:
    assert "HEALTHY" in answer
    assert {entry.phase for entry in run.entries()} == {"actor_compute_log_prob", "actor_update"}
    assert not list(run.path.rglob("dump_tensor_data"))


def check_signs(run: Run, answer: str) -> None:
    assert "Suspicious from step 2, rank 0, actor_update, update 0" in answer
    gradients = open_gradients(run.path).at(0, 0)
    assert {gradient.update for gradient in gradients} == {0, 1}
    assert all(gradient.has_signs for gradient in gradients)


def check_demo(run: Run, answer: str) -> None:
    assert "Cell.model.layers.1.feed_forward.w2.Linear.forward.0" in answer.splitlines()[1]
    assert len(run.phases) == 6


#: What the second command of a file answers with, and what holds of the first run it makes.
PROMISES: dict[str, tuple[int, Callable[[Run, str], None]]] = {
    "ppo_demo": (DIVERGED, check_demo),
    "determinism_check": (SAME, check_determinism),
    "layer_localisation": (DIVERGED, check_layer),
    "generation_tokens": (DIVERGED, check_tokens),
    "critic": (DIVERGED, check_critic),
    "overflow_check": (SAME, check_overflows),
    "full_tensors_of_a_few_cells": (SAME, check_tensors),
    "monitoring": (SAME, check_monitoring),
    "gradient_signs": (DIVERGED, check_signs),
}


@pytest.mark.parametrize("name", PROMISES)
def test_the_commands_of_an_example_work_and_record_what_it_promises(
    name: str, tmp_path: Path, command_line: CommandLine
) -> None:
    """On a machine that has just been set up: both commands, in the directory of a checkout."""
    pytest.importorskip("mindformers")
    (tmp_path / "yaml_examples").symlink_to(EXAMPLES)
    record, look = commands_of(EXAMPLES / f"{name}.yaml")
    code, check = PROMISES[name]
    answers = []
    for arguments, expected in ((record, SAME), (look, code)):
        done = command_line.run(tmp_path, *arguments)
        assert done.returncode == expected, done.stdout + done.stderr
        answers.append(done.stdout)
    check(open_run(tmp_path / "out" / name / "run_a"), answers[1])


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_says_which_commands_to_run(path: Path) -> None:
    """Every file can be loaded, is switched on, and names a command to try it with."""
    assert load_config(path).msprobe
    assert commands_of(path) or "mindrlhf-msprobe run" in path.read_text(encoding="utf-8")
