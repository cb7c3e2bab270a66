"""Dumps made by msprobe itself, one element of one weight apart: the verdict names that weight."""

from __future__ import annotations

import shutil

import pytest
from runs import MSPROBE_DATA

from mindrlhf_msprobe.comparison import compare_runs
from mindrlhf_msprobe.findings import Cause, Outcome, Status


@pytest.mark.parametrize(
    ("kind", "agreeing"),
    [
        ("statistics", Status.WITHIN_TOLERANCE),
        ("md5", Status.IDENTICAL),
        ("tensor", Status.IDENTICAL),
    ],
)
def test_the_changed_weight_is_named(kind, agreeing):
    """In each kind of dump the changed weight is the first divergence, and what agrees agrees."""
    result = compare_runs(MSPROBE_DATA / f"{kind}_a", MSPROBE_DATA / f"{kind}_b")
    place = result.verdict.first_divergence
    assert place is not None
    assert place.entry == "Cell.layers.1.mlp.fc1.Dense.forward.0"
    assert place.record == f"{place.entry}.parameters.weight"
    assert (place.step, place.rank, place.cause) == (0, 0, Cause.PARAMETER)
    before = [f for f in result.findings if f.step == 0][: place.agreed_before]
    assert {f.status for f in before} == {agreeing}
    assert result.problems == ()


def test_the_changed_element_is_measured():
    """With tensors at hand the size of the change is known."""
    place = compare_runs(
        MSPROBE_DATA / "tensor_a", MSPROBE_DATA / "tensor_b"
    ).verdict.first_divergence
    assert place is not None
    assert place.max_abs_err == pytest.approx(0.05, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("statistics_a", Outcome.WITHIN_TOLERANCE),
        ("md5_a", Outcome.IDENTICAL),
        ("tensor_a", Outcome.IDENTICAL),
        ("key_data_a", Outcome.IDENTICAL),
    ],
)
def test_a_dump_agrees_with_its_copy_of_another_process(tmp_path, kind, outcome):
    """Copies whose directories carry other process ids line up and agree."""
    copy = shutil.copytree(MSPROBE_DATA / kind, tmp_path / "copy")
    for directory in list(copy.glob("step*/proc*")):
        directory.rename(directory.parent / "proc1")
    result = compare_runs(MSPROBE_DATA / kind, copy)
    assert result
    assert result.verdict.status is outcome


def test_key_data_of_every_form_are_compared():
    """Lists, dicts, micro-steps and single tensors get findings; a missing step is missing."""
    result = compare_runs(MSPROBE_DATA / "key_data_a", MSPROBE_DATA / "key_data_b")
    keys = {finding.key for finding in result.findings}
    assert keys == {"dict", "ex", "ex3", "fp32", "list", "naninf", "uint8"}
    missing = [f for f in result.findings if f.status is Status.ONLY_IN_A]
    assert {(f.key, f.step) for f in missing} == {("list", 0)}
    uint8 = next(f for f in result.findings if f.key == "uint8")
    assert uint8.metrics is not None
    assert uint8.metrics.max_abs_err < 255


def test_layouts_of_unlike_age_line_up(tmp_path):
    """`rank` meets `rank0`, and `<key>0.npy` meets `<key>.0.npy`."""
    old = tmp_path / "old/data/list/step1/rank"
    old.mkdir(parents=True)
    new = MSPROBE_DATA / "key_data_a/data/list/step1/rank0/micro_step0"
    for index in range(2):
        shutil.copyfile(new / f"list.{index}.npy", old / f"list{index}.npy")
    result = compare_runs(tmp_path / "old", MSPROBE_DATA / "key_data_a")
    found = [f for f in result.findings if f.key == "list" and f.step == 1]
    assert [f.status for f in found] == [Status.IDENTICAL] * 2
