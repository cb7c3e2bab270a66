"""The answer on the console: one screen that names the place, the cause and the next step."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from runs import Fault, Recording, record_training

from mindrlhf_msprobe.comparison import Tolerance, compare_runs
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.report.console import render


def compare(tmp_path, *faults, tolerance=None, **settings):
    a = record_training(tmp_path / "a", **settings)
    b = record_training(tmp_path / "b", faults=faults, **settings)
    return compare_runs(a, b, tolerance=tolerance)


def test_a_divergence_is_named_with_place_cause_and_next_step(tmp_path):
    """Step, phase, rank, cell, cause and what agreed before it stand in the first lines."""
    fault = Fault("layers.1.mlp", "reference_compute_log_prob", step=1)
    lines = render(compare(tmp_path, fault)).splitlines()
    assert lines[0] == "DIVERGED at step 1, reference_compute_log_prob, rank 0"
    assert lines[1].strip() == "Cell.layers.1.mlp.Dense.forward.0"
    assert "cause: computation" in lines[2]
    assert any(line.startswith("Before it: ") for line in lines)
    assert len(lines) < 20


def test_the_next_step_can_be_pasted_into_a_yaml_file(tmp_path):
    """The section it prints is YAML that the configuration accepts."""
    fault = Fault("layers.1.mlp", "reference_compute_log_prob", step=1)
    text = render(compare(tmp_path, fault))
    (line,) = [line for line in text.splitlines() if "msprobe_config:" in line]
    section = yaml.safe_load(line)["msprobe_config"]
    assert ProbeConfig(**section).records_cell("layers.1.mlp")


def test_the_size_of_the_difference_is_shown_with_tensors(tmp_path):
    """With elements at hand the errors are shown."""
    text = render(compare(tmp_path, Fault("rewards")))
    assert "max abs 0.01" in text
    assert "cause: data" in text


def test_equal_runs_are_said_to_agree_bit_for_bit(tmp_path):
    """Identical runs: one sentence with how much was compared."""
    text = render(compare(tmp_path), seconds=1.25)
    assert text.startswith("IDENTICAL: 378 records of 2 steps, 1 rank, 6 phases agree bit for bit.")
    assert "in 1.2 s" in text


def test_runs_that_agree_only_within_a_tolerance_are_not_called_identical(tmp_path):
    """The first word says that agreement is not bit for bit."""
    fault = Fault("head", "critic_update", change=lambda v: v * np.float32(1 + 1e-6))
    result = compare(tmp_path, fault, tolerance=Tolerance(rtol=0.01), task="tensor")
    text = render(result)
    assert text.startswith("WITHIN TOLERANCE")
    assert "IDENTICAL" not in text


def test_what_was_not_compared_is_listed(tmp_path):
    """Coverage gaps and what cannot be read each have a line."""
    a = record_training(tmp_path / "a")
    b = record_training(tmp_path / "b", reference_dump=False)
    (b / "actor_update/step0/rank0/records.jsonl").write_text("damaged\n")
    text = render(compare_runs(a, b))
    assert "Not compared: 48 records only in A — reference_compute_log_prob not recorded" in text
    assert "Incomplete: B: " in text


def test_nothing_in_common_is_incomparable(tmp_path):
    """Nothing compared is never called the same."""
    for name in ("a", "b"):
        recording = Recording(tmp_path / name)
        recording.data(name, 1.0)
        recording.end_step()
        recording.close()
    text = render(compare_runs(tmp_path / "a", tmp_path / "b"))
    assert text.startswith("INCOMPARABLE: the two runs have nothing in common")


@pytest.mark.parametrize("harmful", ["\x1b[2J", "\r", "\x00", "\udc80", "\u202e"])
def test_names_from_a_dump_cannot_take_over_the_terminal(tmp_path, harmful):
    """Control characters in names are shown as escapes, and all of it can be encoded."""
    for name in ("a", "b"):
        recording = Recording(tmp_path / name)
        with recording.phase("actor_update"):
            recording.call(f"x{harmful}", "Net", lambda x, n=name: x + (n == "b"), np.ones(2))
        recording.end_step()
        recording.close()
    text = render(compare_runs(tmp_path / "a", tmp_path / "b", output_path=tmp_path / "out"))
    assert harmful not in text
    assert "DIVERGED" in text
    text.encode("utf-8")
