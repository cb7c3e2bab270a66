"""Each fault of the demo's rollout, as the command plants it and names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("mindformers")
from helpers.command_line import CommandLine

from mindrlhf_msprobe.demo.command import ROLLOUT_FAULTS
from mindrlhf_msprobe.demo.fault import PLANTERS
from mindrlhf_msprobe.storage.records import cell_name

GENERATE = "actor_generate_sequences"


def test_the_command_line_knows_every_fault():
    """And no other one."""
    assert set(ROLLOUT_FAULTS) == set(PLANTERS)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a trainer's YAML: few updates, and of the layers generation alone is recorded."""
    path = tmp_path_factory.mktemp("config") / "trainer.yaml"
    path.write_text(
        "msprobe_config: {msprobe: true, key_data_dump: true, actor_infer_dump: true, "
        "token_range_end: 3, step_end: 9}\nrl_config: {minibatches: 1}\n"
    )
    return path


@pytest.mark.parametrize(
    ("name", "cell", "cause"),
    [
        ("not-synchronised", "model.layers.1.attention_norm", "parameter"),
        ("rotary-off-by-one", "model.freqs_mgr", "computation"),
        ("lm-head-dtype", "lm_head", "computation"),
        ("mask-padding", "model.casual_mask", "computation"),
        ("temperature", "root", "input"),
    ],
)
def test_the_demo_names_what_was_planted(tmp_path, command_line, config, name, cell, cause):
    """Two real trainings, and a verdict with the cell, the step and the cause."""
    options = ["--fault", name, "--steps", "2", "--config", str(config)]
    done = command_line.run(tmp_path, "demo", "--output", "out", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads((tmp_path / "out" / "comparison" / "verdict.json").read_text())
    first = verdict["first_divergence"]
    assert (first["phase"], first["step"], first["cause"]) == (GENERATE, 1, cause)
    assert cell_name(first["entry"]) == cell
    assert f"Planted: {name} from step 1 on" in done.stdout
    assert "not what was planted" not in done.stdout


def test_with_full_tensors_the_demo_leads_to_the_mismatch(tmp_path, command_line):
    """The command that it shows finds in run B what was planted, and nothing in run A."""
    path = tmp_path / "trainer.yaml"
    path.write_text(
        "msprobe_config: {msprobe: true, key_data_dump: true, actor_infer_dump: true, "
        "actor_train_dump: true, directions: [forward], token_range_end: 3, task: tensor}\n"
        "rl_config: {minibatches: 1}\n"
    )
    options = ["--fault", "lm-head-dtype", "--steps", "1", "--config", str(path)]
    done = command_line.run(tmp_path, "demo", "--output", "out", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mindrlhf-msprobe mismatch out/run_b" in done.stdout
    found = command_line.run(tmp_path, "mismatch", "out/run_b")
    assert found.returncode == 1
    assert "lm_head" in found.stdout.splitlines()[1]
    assert command_line.run(tmp_path, "mismatch", "out/run_a").returncode == 0


def test_with_key_data_only_the_verdict_points_to_generation(tmp_path, command_line):
    """The demo says that the cell was not recorded."""
    path = tmp_path / "trainer.yaml"
    path.write_text("msprobe_config: {msprobe: true, key_data_dump: true}\n")
    options = ["--fault", "mask-padding", "--steps", "1", "--config", str(path)]
    done = command_line.run(tmp_path, "demo", "--output", "out", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does not record the planted cell" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--fault", "not-synchronized"], "Did you mean 'not-synchronised'?"),
        (["--fault", "not-synchronised", "--steps", "1"], "no update precedes it"),
        (["--fault", "rotary-off-by-one", "--config", "one.yaml"], "response_length: 1"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(
    tmp_path: Path, command_line: CommandLine, options: list[str], said: str
):
    """In one message, before anything is trained."""
    (tmp_path / "one.yaml").write_text("rl_config: {response_length: 1}\n")
    done = command_line.run(tmp_path, "demo", "--output", "out", *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "out").exists()
