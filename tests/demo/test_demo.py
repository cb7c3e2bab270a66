"""The demo as a newcomer runs it: a real process, real trainings."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.command_line import CommandLine
from helpers.runs import PHASES

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement
from mindrlhf_msprobe.storage.records import cell_name


@pytest.fixture(scope="module")
def run_demo(command_line: CommandLine) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs the demo into a directory, with these options."""

    def run(output: Path, *options: str) -> subprocess.CompletedProcess[str]:
        return command_line.run(output.parent, "demo", "--output", str(output), *options)

    return run


def verdict_of(output: Path) -> dict:
    return json.loads((output / "comparison" / "verdict.json").read_text())


def config_file(directory: Path, section: str) -> Path:
    path = directory / "trainer.yaml"
    path.write_text("msprobe_config:\n" + section)
    return path


def test_the_planted_cell_is_named(demo):
    """The default demo exits with 0 and its verdict names the cell that was planted."""
    output, done = demo
    assert done.returncode == 0, done.stderr
    first = verdict_of(output)["first_divergence"]
    assert first["entry"] == "Cell.model.layers.1.feed_forward.w2.Linear.forward.0"
    assert (first["phase"], first["step"]) == ("reference_compute_log_prob", 1)
    assert first["cause"] == "computation"
    assert "The verdict is what was planted" in done.stdout
    assert first["entry"] in done.stdout


def test_the_demo_says_only_what_it_has_to(demo):
    """Neither the frameworks nor the probe chatter on stderr, and nothing lands beside DIR."""
    output, done = demo
    assert done.stderr == ""
    assert [path.name for path in output.parent.iterdir()] == ["demo_out"]


def test_the_runs_hold_every_phase_and_key(demo):
    """Both runs hold all six phases, the configurations and the key data of every step."""
    output, _ = demo
    for name in ("run_a", "run_b"):
        run = open_run(output / name)
        assert run.phases == PHASES
        assert run.steps == [0, 1, 2]
        assert run.finished
        assert not run.problems
        assert {"prompts", "responses", "rewards", "old_log_prob", "ref_log_prob", "values"} <= {
            *run.keys
        }
        assert {"advantages", "returns", "log_prob", "kl_loss", "loss"} <= {*run.keys}
        assert set(run.configurations()) == {"actor", "critic", "rl", "seed"}


def test_the_tables_are_written(demo):
    """Every phase and every key has its table, and verdict.json lists them all."""
    output, _ = demo
    tables = set(verdict_of(output)["tables"])
    assert {f"compare_result_{phase}.xlsx" for phase in PHASES} <= tables
    assert {path.name for path in (output / "comparison").glob("*.xlsx")} == tables


def test_a_second_demo_does_not_mix_with_the_first(demo, run_demo):
    """An output that already holds runs is refused with exit code 2 and nothing is changed."""
    output, _ = demo
    before = (output / "run_a" / "run.json").read_bytes()
    done = run_demo(output)
    assert done.returncode == 2
    assert "already holds a run" in done.stderr
    assert (output / "run_a" / "run.json").read_bytes() == before


def test_without_a_fault_both_runs_agree(tmp_path, run_demo):
    """With --no-fault the demo says that both runs agree bit for bit and exits with 0."""
    done = run_demo(tmp_path / "out", "--no-fault", "--steps", "2")
    assert done.returncode == 0, done.stderr
    assert verdict_of(tmp_path / "out")["status"] == "identical"
    assert "agree bit for bit" in done.stdout
    assert "mindrlhf-msprobe mismatch " in done.stdout
    found = find_mismatch(tmp_path / "out" / "run_b").found
    assert {one.status for one in found} == {Agreement.WITHIN_ROUNDING}


@pytest.mark.parametrize(
    ("phase", "cell", "step", "seed"),
    [
        ("actor_update", "model.layers.0", 0, 7),
        ("critic_compute_values", "value_head", 1, 1),
        ("actor_generate_sequences", "model.freqs_mgr", 0, 3),
        ("actor_compute_log_prob", "root", 1, 1234),
    ],
)
def test_other_faults_are_named_too(tmp_path, phase, cell, step, seed, run_demo):
    """Whatever cell of whatever phase is planted, it is named: no neighbour, no container."""
    options = ["--fault", f"{phase}:{cell}", "--fault-step", str(step), "--seed", str(seed)]
    done = run_demo(tmp_path / "out", *options, "--steps", str(step + 1))
    assert done.returncode == 0, done.stdout + done.stderr
    first = verdict_of(tmp_path / "out")["first_divergence"]
    assert (first["phase"], cell_name(first["entry"]), first["step"]) == (phase, cell, step)


def test_the_operator_inside_the_planted_cell_is_what_was_planted(tmp_path, run_demo):
    """With level: mix the verdict names it; the cell around it is the planted one."""
    section = "  msprobe: true\n  reference_dump: true\n  level: mix\n  key_data_dump: false\n"
    config = config_file(tmp_path, section)
    done = run_demo(tmp_path / "out", "--config", str(config), "--steps", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    first = verdict_of(tmp_path / "out")["first_divergence"]
    assert first["operator"]
    assert first["cell"] == "model.layers.1.feed_forward.w2"


def test_with_key_data_only_no_phase_directory_exists(tmp_path, run_demo):
    """key_data_dump alone records no layer, and the verdict still points to the phase."""
    config = config_file(tmp_path, "  msprobe: true\n  key_data_dump: true\n")
    done = run_demo(tmp_path / "out", "--config", str(config), "--steps", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    names = {path.name for path in (tmp_path / "out" / "run_a").iterdir()}
    assert names == {"run.json", "timeline.rank0.jsonl", "data"}
    first = verdict_of(tmp_path / "out")["first_divergence"]
    assert (first["record"], first["step"]) == ("ref_log_prob", 1)
    assert first["next_step"] == {
        "msprobe": True,
        "reference_dump": True,
        "key_data_dump": True,
        "step_start": 1,
        "step_end": 1,
    }


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("rl_config: 7\n", "rl_config is 7"),
        ("rl_config: {batch_size: -3}\n", "rl_config.batch_size is -3"),
        ("rl_config: {batch_sizes: 3}\n", "Did you mean 'batch_size'?"),
        ("rl_config: {minibatches: 9}\n", "minibatches is larger"),
        ("actor_config: {model_config: {num_heads: 5}}\n", "the training cannot be built"),
        ("actor_config: {model_config: {hidden_size: 2}}\n", "the training cannot be built"),
        ("rl_config: []\n", "rl_config is []"),
        ("msprobe_config: {msprobe: true, ranks: [1]}\n", "nothing would be recorded"),
        ("msprobe_config: {msprobe: false}\n", "nothing would be recorded"),
        ("msprobe_config: {msprobe: true, key_data_dmp: true}\n", "Did you mean 'key_data_dump'?"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused_before_training(
    tmp_path, section, message, run_demo
):
    """Wrong trainer settings get one message and exit code 2, and claim no directory."""
    (tmp_path / "trainer.yaml").write_text(section)
    done = run_demo(tmp_path / "out", "--config", str(tmp_path / "trainer.yaml"))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "run_a").exists()


def test_an_output_that_cannot_be_made_is_refused(tmp_path, run_demo):
    """A file in the place of DIR gives one message and exit code 2."""
    (tmp_path / "out").write_text("")
    done = run_demo(tmp_path / "out")
    assert done.returncode == 2
    assert "cannot be used" in done.stderr
    assert "Traceback" not in done.stderr


def test_where_nothing_can_be_compared_the_demo_cannot_decide(tmp_path, run_demo):
    """With configurations alone nothing is compared: exit code 2, not 1."""
    config = config_file(tmp_path, "  msprobe: true\n  configurations_dump: true\n")
    done = run_demo(tmp_path / "out", "--config", str(config), "--steps", "1")
    assert done.returncode == 2
    assert "INCOMPARABLE" in done.stdout


def test_steps_may_begin_elsewhere(tmp_path, run_demo):
    """With initial_step the planted step is counted from there."""
    section = "  msprobe: true\n  reference_dump: true\n  initial_step: 5\n  step_end: 9\n"
    config = config_file(tmp_path, section)
    done = run_demo(tmp_path / "out", "--config", str(config), "--steps", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert verdict_of(tmp_path / "out")["first_divergence"]["step"] == 6
    assert "The verdict is what was planted" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fault", "actor_updat:lm_head"], "Did you mean 'actor_update'?"),
        (["--fault", "actor_update"], "expected PHASE:CELL"),
        (["--fault", "actor_update:model.layer.0"], "Did you mean 'model.layers.0'?"),
        (["--fault", "actor_update:model.layers", "--steps", "1"], "never runs in actor_update"),
        (["--steps", "0"], "--steps is 0"),
        (["--fault-step", "3"], "--fault-step is 3"),
        (["--config", "nowhere.yaml"], "there is no such file"),
    ],
)
def test_bad_arguments_get_one_clear_message(tmp_path, options, message, run_demo):
    """What cannot be used is named with exit code 2 and without a traceback."""
    done = run_demo(tmp_path / "out", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    if "never runs" not in message:  # which shows only when the training has run
        assert not (tmp_path / "out" / "run_a").exists()
