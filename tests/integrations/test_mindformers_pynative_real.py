"""MindFormers' own Trainer in PyNative mode, unmodified, on the CPU: a Qwen3 of two layers."""

import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drivers.launching import RUN, python
from helpers.mindformers_trainer import why_not
from helpers.programs import read_json

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

from mindrlhf_msprobe import RunError, compare_checkpoints, compare_runs, open_run
from mindrlhf_msprobe.findings.proof import Conclusion
from mindrlhf_msprobe.proof.prove import Experiment, prove

DRIVER = Path(__file__).parent / "drivers" / "mindformers_pynative.py"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where every training of the driver left its run and its weights."""
    root = tmp_path_factory.mktemp("trained")
    result = python(*RUN, DRIVER, cwd=root, timeout=900, LOG_MF_PATH=str(root / "log"))
    assert result.returncode == 0, result.stderr[-5000:]
    return root


@pytest.fixture(scope="module")
def results(trained: Path) -> Any:
    """Return what is to be known beside."""
    return read_json(trained / "results.json")


def values(root: Path, key: str) -> list[float]:
    return [datum.records[0].leaf.max for datum in open_run(root).key_data(key)]


@pytest.mark.parametrize("name", ["by_section", "resumed", "recomputed"])
def test_the_weights_are_those_of_a_training_without_it(trained: Path, name: str) -> None:
    plain, probed = (np.load(trained / f"{each}.npz") for each in ("plain", name))
    assert set(plain) == set(probed)
    assert all(plain[key].tobytes() == probed[key].tobytes() for key in plain)


def test_the_section_alone_adds_the_callback(trained: Path, results: Any) -> None:
    assert "ProbeCallback" not in results["plain"]["callbacks"]
    assert results["by_section"]["callbacks"].count("ProbeCallback") == 1
    run = open_run(trained / "by_section")
    assert (run.state, run.steps, run.phases) == ("finished", [0, 1], ["actor_update"])
    assert set(run.keys) == {"loss", "grad_norm", "lr", "loss_inputs"}


def test_every_cell_and_gradient_is_recorded(trained: Path) -> None:
    entries = open_run(trained / "by_section").entries("actor_update", 0, 0)
    for layer in range(2):
        assert f"model.decoder.layers.{layer}.self_attention.core_attention" in {
            entry.cell for entry in entries
        }
    gradients = [entry for entry in entries if entry.direction == "parameters_grad"]
    assert len(gradients) == 2 * 19  # of each micro-batch


def test_each_gradient_is_its_micro_batchs_own(trained: Path) -> None:
    """Their sum is what the Trainer takes the norm of."""
    sums: dict[str, Any] = defaultdict(float)
    for entry in open_run(trained / "by_section").entries("actor_update", 0, 0):
        if entry.direction == "parameters_grad":
            for record in entry.records:
                sums[f"{entry.cell}.{record.path}"] += record.array().astype(np.float64)
    norm = np.sqrt(sum((total**2).sum() for total in sums.values()))
    assert np.isclose(norm, values(trained / "by_section", "grad_norm")[0], rtol=1e-4)


def test_what_mindformers_itself_logs_is_read_and_agrees(trained: Path, tmp_path: Path) -> None:
    """By the names of its parameters: in records the cells' stand before.

    The driver's first training is the one that is monitored; its others follow in the same log, of
    which the last one counts.
    """
    log = tmp_path / "log" / "rank_0" / "info.log"
    log.parent.mkdir(parents=True)
    whole = (trained / "log" / "rank_0" / "info.log").read_text(encoding="utf-8")
    head, ended, rest = whole.partition("{ step:[    2/    2]")
    log.write_text(head + ended + rest.partition("\n")[0] + "\n", encoding="utf-8")
    logged = open_run(tmp_path / "log")
    (losses,) = logged.key_data("local_loss", step=1)
    assert [record.path for record in losses.records] == ["0", "1"]
    norms = {
        record.path: record.leaf.value
        for datum in logged.key_data("local_norm", step=1)
        for record in datum.records
    }
    assert len(norms) == 2 * 19
    for entry in open_run(trained / "by_section").entries("actor_update", 0, 0):
        if entry.direction == "parameters_grad":
            for record in entry.records:
                name = f"{entry.cell}.{record.path}".removeprefix("model.")
                array = record.array().astype(np.float64)
                logged_norm = norms.pop(f"{name}.{entry.call}")
                assert np.isclose(np.sqrt((array**2).sum()), logged_norm, rtol=1e-4, atol=1e-6)
    assert not norms


def test_the_learning_rate_is_that_of_the_step(trained: Path, results: Any) -> None:
    assert np.allclose(values(trained / "by_section", "lr"), results["by_section"]["rates"])


def test_saved_checkpoints_are_noted_and_hold_what_was_recorded(trained: Path) -> None:
    saved = read_json(trained / "by_section" / "run.json")["saved_checkpoints"]["actor"]
    assert list(saved) == ["1", "2"]
    assert compare_checkpoints(trained / "by_section", saved["1"])
    with pytest.raises(RunError, match="before its step 2, in which it recorded no parameters"):
        compare_checkpoints(trained / "by_section", saved["2"])
    assert not compare_checkpoints(trained / "by_section", saved["2"], step=1)


def test_a_fault_is_named_by_its_cell(trained: Path) -> None:
    result = compare_runs(trained / "by_section", trained / "by_yaml")
    first = result.verdict.first_divergence
    assert first is not None
    assert first.entry == "Cell.model.decoder.layers.1.mlp.MLP.forward.0"
    assert (first.step, first.cause.value) == (0, "computation")


def test_a_fault_is_proven(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `loss.backward()` computes the gradients of can have another's output put in."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("LOG_MF_PATH", str(tmp_path / "log"))
    monkeypatch.chdir(tmp_path)
    command = (sys.executable, *RUN, str(DRIVER), "faulty")
    runs = (trained / "by_section", trained / "by_yaml")
    found = prove(Experiment(*runs, tmp_path / "out", command, again=0))
    assert found.conclusion is Conclusion.PROVEN, found
    assert "Cell.model.decoder.layers.1.mlp.MLP" in found.causes[0].entries


def test_a_recomputed_training_agrees_with_one_that_is_not(trained: Path) -> None:
    result = compare_runs(trained / "by_section", trained / "recomputed")
    assert result
    assert {finding.status.value for finding in result.findings} <= {
        "identical",
        "within_tolerance",
    }


def test_a_resumed_training_agrees_with_the_whole_one(trained: Path, results: Any) -> None:
    assert results["resumed"]["callbacks"].count("ProbeCallback") == 1
    assert not (trained / "not_recorded").exists()
    assert open_run(trained / "resumed").steps == [1]
    assert compare_runs(trained / "by_section", trained / "resumed")


def test_a_training_that_raises_leaves_a_failed_run(trained: Path, results: Any) -> None:
    assert "the loss broke" in results["failed"]["raised"]
    assert open_run(trained / "failed").state == "failed"
