"""MindRLHF's own GRPO example, unmodified, with the section in its YAML, on a CPU in both modes."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from drivers.launching import EVERYTHING, OF_GENERATION, ROLLOUT, RUN, python

from mindrlhf_msprobe import Probe, compare_runs, open_run
from mindrlhf_msprobe.trends.reading import Choice, read_trends

MINDRLHF = os.environ.get("MINDRLHF_PATH", "")
EXAMPLE = Path(MINDRLHF, "examples", "grpo", "qwen_grpo_tutorial", "main.py")
pytestmark = pytest.mark.skipif(
    not (MINDRLHF and EXAMPLE.is_file()),
    reason="MINDRLHF_PATH does not name a checkout of mindspore-ai/mindrlhf (MindRLHF is not on "
    "the package index; it also needs jsonlines and latex2sympy2_extended)",
)
DRIVER = Path(__file__).parent / "drivers" / "mindrlhf_on_cpu.py"
#: This version calls msprobe itself; where that is not installed, it compiles only with our names.
SHIPS_MSPROBE = Path(MINDRLHF, "docs", "features", "msprobe.md").is_file()
PYNATIVE, GRAPH = 1, 0
PHASES = {
    "actor_generate_sequences",
    "actor_compute_log_prob",
    "reference_compute_log_prob",
    "actor_update",
}
KEYS = {
    *(*ROLLOUT, *OF_GENERATION),
    *("prompts", "responses", "rewards", "advantages"),
    *("ref_log_prob", "old_log_prob", "loss", "overflow", "loss_scale", "lr", "loss_inputs"),
    *("rewards.qwen_accuracy_reward", "rewards.format_reward"),
    *("log_prob", "ratio", "kl", "kl_loss", "actor_loss"),
}
#: The versions that call msprobe return None for the norm of the gradients.
KEYS |= set() if SHIPS_MSPROBE else {"grad_norm"}
BY_HAND = {
    *("prompts", "responses", "rewards", "advantages", "ref_log_prob", "old_log_prob", "loss")
}


def start(config, *arguments, launched):
    result = python(
        *(RUN if launched else ()),
        *(DRIVER, "--config", config, *arguments),
        cwd=config.parent,
        timeout=900,
        LOG_MF_PATH=str(config.parent / "logs"),
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    said = [line for line in result.stderr.splitlines() if "rank 0" in line or "msprobe" in line]
    losses = [
        line.partition("loss: ")[2].partition(" |")[0]
        for line in result.stdout.splitlines()
        if " loss: " in line and "| lr:" in line
    ]
    return losses, said


def weights(root):
    from safetensors.numpy import load_file

    found = {}
    for path in sorted((root / "trained").rglob("*.safetensors")):
        for name, array in load_file(path).items():
            found[f"{path.name}/{name}"] = array.tobytes()
    assert len(found) > 20
    return found


@pytest.fixture(scope="module", params=[GRAPH, PYNATIVE], ids=["graph", "pynative"])
def trained(request, tmp_path_factory):
    """Return two directories of the same training, without and with the section; its losses."""
    from drivers.mindrlhf_on_cpu import write_files

    root = tmp_path_factory.mktemp("grpo")
    section = {**EVERYTHING, "dump_path": str(root / "run")}
    off = {"msprobe": False} if SHIPS_MSPROBE else None
    plain = write_files(root / "plain", MINDRLHF, mode=request.param, section=off)
    probed = write_files(root / "probed", MINDRLHF, mode=request.param, section=section)
    return {
        "mode": request.param,
        "root": root,
        "plain": start(plain, launched=SHIPS_MSPROBE)[0],
        "probed": start(probed, launched=True),
    }


def test_training_stays_as_it_is_and_everything_is_recorded(trained):
    root = trained["root"]
    losses, said = trained["probed"]
    assert len(losses) == 8
    assert losses == trained["plain"]
    assert weights(root / "probed") == weights(root / "plain")
    assert not [line for line in said if "missing" in line or "not recorded:" in line]
    run = open_run(root / "run")
    assert run.finished
    assert run.steps == [0, 1, 2, 3]
    assert set(run.phases) == PHASES
    assert set(run.keys) == KEYS
    assert not run.lost
    recorded = [np.asarray(d.value).item() for d in run.key_data("loss")]
    # The log shows eight digits, and brackets where the loss is a matrix of one element.
    assert recorded == [pytest.approx(float(loss.strip("[]")), rel=1e-6) for loss in losses]
    configurations = run.configurations()
    assert configurations["rl_config"]["beta"] == 0.01
    assert configurations["TrainWorker.sft_model_config_train"]["hidden_size"] == 16


def test_a_played_rollout_gives_the_same_training(trained):
    """Though what generates would draw other responses."""
    root = trained["root"]
    from drivers.mindrlhf_on_cpu import write_files

    section = {**EVERYTHING, "dump_path": str(root / "replayed"), "rollout_from": str(root / "run")}
    played = write_files(root / "played", MINDRLHF, mode=trained["mode"], section=section)
    losses, said = start(played, launched=True)
    assert losses == trained["plain"]
    assert weights(root / "played") == weights(root / "plain")
    assert any("it is given probe_rollout of" in line for line in said)
    run = open_run(root / "replayed")
    assert set(run.phases) == PHASES - {"actor_generate_sequences"}
    result = compare_runs(root / "run", root / "replayed", output_path=root / "replayed out")
    assert result.verdict.status.value == "identical"


def test_log_probabilities_of_a_rollout_are_found_in_the_packed_rows(trained):
    """MindRLHF's generation gives none: those of an engine are saved beside what it recorded."""
    run = open_run(trained["root"] / "run")
    (missing,) = read_trends(run, Choice(derived=("rollout_corr",))).missing
    assert missing.why.params == {"names": ["rollout_log_prob"]}
    prompts, responses = (run.key_data(key, step=0)[0].value for key in ("prompts", "responses"))
    losses = [data.value for data in run.key_data("loss_inputs", step=0)]
    old = [values[mask != 0] for loss in losses for mask, values in zip(
        loss["responses_mask"], loss["old_per_token_logps"])]  # fmt: skip
    assert [len(row) for row in old] == [responses.shape[1]] * len(responses)  # none ends early
    rollout = np.stack(old) + np.float32(0.25)
    settings = {"msprobe": True, "key_data_dump": True, "step_end": 9}
    with Probe.from_config({**settings, "dump_path": str(trained["root"] / "beside")}) as probe:
        probe.save_data(prompts=prompts, responses=responses, rollout_log_prob=rollout)
        for loss in losses:
            probe.save_data(loss_inputs=loss)
        probe.step()
    beside = open_run(trained["root"] / "beside")
    for name, expected in (("log_prob_diff_max", 0.25), ("kl", 0.25), ("ppl_ratio", np.exp(0.25))):
        (series,) = beside.trend(derived=f"rollout_corr/{name}")
        assert series.values.tolist() == [pytest.approx(expected, rel=1e-5)]
        assert [note.code for note in series.notes] == ["trend.rows_by_tokens"]


def test_a_cell_of_the_actor_has_one_name_in_all_phases(trained):
    run = open_run(trained["root"] / "run")
    cells = {
        phase: {e.cell for e in run.entries(phase=phase, step=1) if e.direction == "forward"}
        for phase in PHASES
    }
    inside = {name for name in cells["actor_update"] if name.startswith("model.")}
    assert "model.model.layers.0.attention.wo" in inside
    assert cells["actor_generate_sequences"] == inside | {"model"} | (
        cells["actor_generate_sequences"] - cells["actor_update"]
    )
    assert cells["actor_compute_log_prob"] == cells["reference_compute_log_prob"]
    assert cells["actor_update"] - cells["actor_compute_log_prob"] == {"outer"}
    gradients = {e.direction for e in run.entries(phase="actor_update", step=1)}
    assert {"forward", "parameters_grad"} <= gradients


def test_the_patch_by_hand_records_the_same(trained, tmp_path, monkeypatch):
    """The four `with` lines that the documents show, in a copy of MindRLHF."""
    from drivers.mindrlhf_on_cpu import write_files

    if trained["mode"] == PYNATIVE:
        pytest.skip("the patch is the same in both modes; MindRLHF's default is tried")
    for part in ("mindrlhf", "examples"):
        shutil.copytree(Path(MINDRLHF, part), tmp_path / part)
    patch = ["patch", "-p1", "-i", str(DRIVER.parents[3] / "docs" / "mindrlhf_grpo.patch")]
    applied = subprocess.run(patch, cwd=tmp_path, capture_output=True, text=True)
    if applied.returncode:
        pytest.skip(f"the patch was made for another version of MindRLHF: {applied.stdout}")
    monkeypatch.setenv("MINDRLHF_PATH", str(tmp_path))
    root = trained["root"]
    section = {**EVERYTHING, "dump_path": str(root / "by_hand")}
    config = write_files(root / "hand", MINDRLHF, mode=GRAPH, section=section)
    assert start(config, launched=False)[0] == trained["plain"]
    assert weights(root / "hand") == weights(root / "plain")
    runs = [open_run(root / name) for name in ("by_hand", "run")]
    entries = [{(e.phase, e.step, e.name) for e in run.entries()} for run in runs]
    assert entries[0] == {entry for entry in entries[1] if ".outer." not in entry[2]}
    assert set(runs[0].keys) == BY_HAND


def test_a_resumed_training_counts_on(trained):
    """Resumed from the checkpoint at the end of epoch 0, which MindRLHF numbers epoch 1, step 2:
    it goes on with epoch 2, and the steps go on with it."""
    from drivers.mindrlhf_on_cpu import write_files

    if trained["mode"] == GRAPH:
        pytest.skip("resuming is the same in both modes; once is enough")
    root = trained["root"]
    as_ckpt = {"mode": PYNATIVE, "save_ckpt_format": "ckpt", "save_ckpt_interval": 1}
    off = {"msprobe": False} if SHIPS_MSPROBE else None
    first = write_files(root / "first", MINDRLHF, section=off, epochs=1, **as_ckpt)
    start(first, launched=SHIPS_MSPROBE)
    section = {**EVERYTHING, "actor_infer_dump": False, "dump_path": str(root / "resumed")}
    second = write_files(root / "second", MINDRLHF, section=section, epochs=3, **as_ckpt)
    saved = root / "first" / "trained"
    frozen = not any((saved / "ref").iterdir())  # then some versions save no reference
    of_reference = () if frozen else ("--ref_checkpoint_path", str(saved / "ref"))
    start(
        second,
        "--resume_training",
        *("--actor_checkpoint_path", str(saved / "train"), *of_reference),
        launched=True,
    )
    run = open_run(root / "resumed")
    assert run.steps == [4, 5]
    assert run.config().initial_step == 4
