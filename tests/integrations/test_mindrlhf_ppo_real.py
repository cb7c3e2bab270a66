"""MindRLHF's own older PPO, with the section in the actor's YAML, on a CPU in both modes."""

import os
from pathlib import Path
from typing import Any

import pytest
from drivers.launching import EVERYTHING, OF_PPO, RUN, python
from helpers.runs import PHASES

from mindrlhf_msprobe import open_run
from mindrlhf_msprobe.comparison.mismatch.find import find_mismatch
from mindrlhf_msprobe.findings.mismatch import Agreement

MINDRLHF = os.environ.get("MINDRLHF_PATH", "")
pytestmark = pytest.mark.skipif(
    not (MINDRLHF and Path(MINDRLHF, "mindrlhf", "trainer", "ppo_trainer.py").is_file()),
    reason="MINDRLHF_PATH does not name a checkout of mindspore-lab/mindrlhf (which is not on the "
    "package index)",
)
DRIVER = Path(__file__).parent / "drivers" / "mindrlhf_ppo_on_cpu.py"
PYNATIVE, GRAPH = 1, 0
SECTION = {**EVERYTHING, "critic_train_dump": True}
KEYS = OF_PPO | {"loss_inputs", "log_prob", "ratio", "kl_loss", "actor_loss", "value_loss"}


def start(config: Path, *arguments: object, launched: bool) -> list[str]:
    """Train in a process of its own; return the lines that tell of losses and weights."""
    done = python(
        *(RUN if launched else ()),
        *(DRIVER, config, *arguments),
        cwd=config.parent,
        timeout=600,
        LOG_MF_PATH=str(config.parent / "logs"),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "could not record" not in done.stderr
    assert "recording around" not in done.stderr
    lines = done.stdout.splitlines()
    return [line for line in lines if line.startswith(("weights:", "PPO Batch:"))]


def train(folder: Path, *arguments: object) -> tuple[list[str], list[str]]:
    """Train without the section and with it."""
    from drivers.mindrlhf_ppo_on_cpu import write_files

    section = {**SECTION, "dump_path": str(folder / "run")}
    plain = start(write_files(folder / "plain"), *arguments, launched=False)
    probed = start(write_files(folder / "probed", section), *arguments, launched=True)
    return plain, probed


def cells(run: Any, phase: str) -> set[str]:
    """Return the cells that ran forward in a phase."""
    return {e.cell for e in run.entries(phase=phase, step=0) if e.direction == "forward"}


@pytest.mark.parametrize("mode", [GRAPH, PYNATIVE], ids=["graph", "PyNative"])
def test_training_stays_as_it_is_and_everything_is_recorded(mode: int, tmp_path: Path) -> None:
    """Same losses and weights; six phases; the joint update under both roles."""
    plain, probed = train(tmp_path, mode)
    assert len(plain) == 3
    assert plain == probed
    run = open_run(tmp_path / "run")
    assert run.finished
    assert run.steps == [0]
    assert run.completed(0)
    assert not run.lost
    assert run.phases == PHASES
    assert set(run.keys) == KEYS
    assert len(list(run.key_data("loss"))) == 2
    actor, critic = cells(run, "actor_update"), cells(run, "critic_update")
    assert cells(run, "reference_compute_log_prob") == actor
    assert cells(run, "critic_compute_values") == critic
    assert "model.model.layers.0.attention.wo" in actor & critic
    assert "model.lm_head" in actor - critic
    for phase in PHASES[4:]:
        directions = {e.direction for e in run.entries(phase=phase, step=0)}
        assert directions == {"forward", "backward", "parameters_grad"}
    assert run.configurations()["ppo_config"]["chunk_size"] == 2


def test_without_a_critic(tmp_path: Path) -> None:
    """`is_shared_backbone`, MindRLHF's default: the actor's part of it all."""
    plain, probed = train(tmp_path, PYNATIVE, "shared")
    assert plain == probed
    run = open_run(tmp_path / "run")
    if "v_head0" not in cells(run, "actor_update"):
        pytest.skip("this MindRLHF has no shared backbone")
    assert run.phases == [phase for phase in PHASES if "critic" not in phase]
    assert len(list(run.key_data("values"))) == 2


def test_training_against_inference_gets_an_answer(tmp_path: Path) -> None:
    """Prompts are padded on the left in one phase, not in the other; the network sees ids alone."""
    from drivers.mindrlhf_ppo_on_cpu import write_files

    section = {**SECTION, "task": "tensor", "dump_path": str(tmp_path / "run")}
    start(write_files(tmp_path / "probed", section), PYNATIVE, launched=True)
    (found,) = find_mismatch(tmp_path / "run").found
    assert found.status in (Agreement.IDENTICAL, Agreement.WITHIN_ROUNDING)
    assert found.rows >= 40
    assert {"model.lm_head", "model.model.layers.0.attention.wo"} <= {
        stage.cell for stage in found.stages
    }
