"""Kurtosis of activations, by their full tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.health_runs import HealthRun, tensor
from hypothesis import given
from hypothesis import strategies as st

from mindrlhf_msprobe import check_run
from mindrlhf_msprobe.capture.tensors.summary import summarise, to_host
from mindrlhf_msprobe.checks.rules.history import tail_of
from mindrlhf_msprobe.findings.health import Severity

RECORD = "Cell.layers.{}.Dense.forward.0.output.0"
CHANNELS = 64


def training(root, seed, *, steps=16, change=lambda step, layers: None, task="tensor"):
    """Record three layers of a residual stream that drift, in batches of other lengths.

    As in trained language models, one channel is larger than the others from the beginning, and the
    first token of each batch is.
    """
    random = np.random.default_rng(seed)
    run = HealthRun(root, task=task)
    for step in range(steps):
        tokens = int(random.integers(32, 96))
        layers = [random.normal(0, 1, (tokens, CHANNELS)) for _ in range(3)]
        for layer in layers:
            layer[:, 5] *= 3
            layer[0] *= random.uniform(2, 2.5)
            layer *= 1 + 0.05 * step
        change(step, layers)
        with run.phase("actor_update"):
            for number, layer in enumerate(layers):
                array, name = layer.astype(np.float32), RECORD.format(number)
                leaf = summarise(to_host(array))
                if task == "tensor":
                    file = run.recording.writer.sink("actor_update", step).save(name, array, None)
                    leaf = leaf.stored(file, fingerprint=True)
                run.call(f"layers.{number}", output=leaf)
            mask = np.where(random.random((tokens, 16)) < random.uniform(0.01, 0.5), -1e4, 0)
            file = run.recording.writer.sink("actor_update", step).save("mask", mask, None)
            leaf = summarise(to_host(mask)).stored(file, fingerprint=True)
            run.call("mask", output=leaf if task == "tensor" else tensor())
        run.end_step()
    return run.close()


def found_by(root, **how):
    return [one for one in check_run(root, **how).all_findings if one.rule == "history.kurtosis"]


@pytest.mark.parametrize("seed", range(10))
def test_a_channel_that_grows_is_found_where_it_begins(tmp_path, seed):
    """By 1.6 times a step from a step on, in layer 1 and the one behind it."""
    random = np.random.default_rng(1000 + seed)
    begin, channel = int(random.integers(9, 14)), int(random.integers(6, CHANNELS))

    def change(step, layers):
        if step >= begin:
            for layer in layers[1:]:
                layer[:, channel] *= 1.6 ** (step - begin + 1)

    (finding,) = found_by(training(tmp_path / "run", seed, steps=24, change=change))
    assert (finding.severity, finding.place.record) == (Severity.WARNING, RECORD.format(1))
    assert begin <= finding.place.step <= begin + 8
    shown = finding.evidence[0].values
    assert shown["index"][1] == channel
    assert shown["kurtosis"] > 4 * shown["median"]


@pytest.mark.parametrize("seed", range(10))
def test_healthy_outliers_are_silent(tmp_path, seed):
    result = check_run(training(tmp_path / "run", seed))
    assert "history.kurtosis" in result.checked
    assert not [one for one in result.all_findings if one.rule == "history.kurtosis"]


def test_a_value_that_was_always_high_is_a_note(tmp_path):
    def change(step, layers):
        layers[2][1, 7] = 1e4

    (finding,) = found_by(training(tmp_path / "run", 0, change=change, steps=3))
    assert (finding.severity, finding.said.code) == (Severity.NOTE, "check_history.kurtosis_high")
    assert (finding.place.record, finding.times) == (RECORD.format(2), 3)
    assert finding.evidence[0].values["index"] == [1, 7]


def test_a_rise_in_one_step_alone_is_silent(tmp_path):
    def change(step, layers):
        if step in (10, 13):
            layers[1][3, 7] = 100

    assert not found_by(training(tmp_path / "run", 0, change=change))


def test_a_note_is_no_reason_for_an_alarm(tmp_path):
    """A jump in step 12 does not stand under a note of step 0."""

    def change(step, layers):
        layers[2][1, 7] = 1e4
        if step == 12:
            layers[0] *= 100

    findings = check_run(training(tmp_path / "run", 0, change=change)).findings
    assert [one.rule for one in findings] == ["history.kurtosis", "history.jump"]
    assert [one.severity for one in findings] == [Severity.NOTE, Severity.WARNING]


def test_without_full_tensors_it_is_not_checked(tmp_path):
    result = check_run(training(tmp_path / "run", 0, steps=2, task="statistics"))
    assert "history.kurtosis" not in result.checked
    (one,) = [one for one in result.not_checked if one.rule == "history.kurtosis"]
    assert one.why.params["kind"] == "elements"


@given(st.lists(st.integers(-1000, 1000), min_size=3, max_size=40), st.sampled_from(["C", "F"]))
def test_the_formula(numbers, order):
    array = np.array([numbers, numbers[::-1]], np.float32, order=order)
    tail = tail_of(array)
    if len(set(numbers)) < 3:
        assert tail is None
        return
    away = array.astype(np.float64) - array.mean(dtype=np.float64)
    assert math.isclose(tail.kurtosis, (away**4).mean() / (away**2).mean() ** 2, rel_tol=1e-9)
    assert tail.element == array[tail.index]
    assert math.isclose(abs(away[tail.index]), np.abs(away).max())


def test_of_a_large_array_blocks_are_read(tmp_path):
    """A channel that is an outlier in all rows has the same share in what is read."""
    array = np.random.default_rng(0).normal(0, 1, (3000, 1000)).astype(np.float32)
    array[:, 123] *= 20
    whole = array.astype(np.float64) - array.mean(dtype=np.float64)
    expected = (whole**4).mean() / (whole**2).mean() ** 2
    tail = tail_of(array)
    assert abs(tail.kurtosis / expected - 1) < 0.1
    assert tail.index[1] == 123
    assert tail.element == array[tail.index]


@pytest.mark.parametrize("numbers", [[math.nan, 1, 2], [math.inf, 1, 2], [3, 3, 3], [0, -1, 0]])
def test_what_has_no_kurtosis(numbers):
    assert tail_of(np.array(numbers)) is None
