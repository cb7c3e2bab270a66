"""Dumps made by msprobe itself, one element of one weight apart: the verdict names that weight."""

from __future__ import annotations

import json
import shutil

import pytest
from helpers.runs import MSPROBE_DATA

from mindrlhf_msprobe import compare_runs, open_run
from mindrlhf_msprobe.findings import Cause, Outcome, Status


@pytest.mark.parametrize("kind", ["statistics", "md5", "tensor"])
@pytest.mark.parametrize(
    ("version", "weight"),
    [
        ("", "Cell.layers.1.mlp.fc1.Dense.forward.0.parameters.weight"),
        ("_8x", "Cell.layers.1.q.Dense.forward.0.parameters.weight"),
    ],
)
def test_the_changed_weight_is_named(kind, version, weight):
    """In each kind of dump the changed weight is the first divergence, and what agrees agrees.

    8.x lists gradients of parameters early; they still stand behind the backward pass. With tensors
    at hand the size of the change is known.
    """
    result = compare_runs(*(MSPROBE_DATA / f"{kind}{version}_{side}" for side in "ab"))
    place = result.verdict.first_divergence
    assert place is not None
    assert place.record == weight
    assert (place.step, place.rank, place.cause) == (0, 0, Cause.PARAMETER)
    before = [f for f in result.findings if f.step == 0][: place.agreed_before]
    agreeing = Status.WITHIN_TOLERANCE if kind == "statistics" else Status.IDENTICAL
    assert {f.status for f in before if f.a.shape or not version} == {agreeing}
    assert result.problems == ()
    if (kind, version) == ("tensor", ""):
        assert place.entry == weight.removesuffix(".parameters.weight")
        assert place.max_abs_err == pytest.approx(0.05, rel=1e-5)


def test_gradients_of_parameters_of_8x_have_their_number():
    """They are called as in later versions, so that dumps of both line up."""
    entries = open_run(MSPROBE_DATA / "statistics_8x_a").entries(step=0)
    by_name = {entry.name: entry for entry in entries}
    grad = by_name["Cell.layers.1.Attention.parameters_grad.0"]
    assert grad.seq == by_name["Cell.layers.1.Attention.backward.0"].end + 1
    assert (grad.direction, [r.path for r in grad.records]) == ("parameters_grad", ["bias"])
    assert not any(name.endswith("parameters_grad") for name in by_name)


@pytest.mark.parametrize("tail", ["step0/rank", "step0/rank/dump.json"])
def test_one_rank_of_a_dump_can_be_given(tail):
    """As to msprobe's compare: a rank's directory, or its dump.json, is compared alone."""
    result = compare_runs(MSPROBE_DATA / "md5_8x_a" / tail, MSPROBE_DATA / "md5_8x_b" / tail)
    place = result.verdict.first_divergence
    assert place is not None
    assert place.record == "Cell.layers.1.q.Dense.forward.0.parameters.weight"
    assert (result.verdict.steps, result.verdict.ranks) == (1, 1)


def test_two_ranks_or_steps_of_a_dump_can_be_held_against_each_other():
    """What is given stands against what is given, whatever its step is called."""
    steps = [MSPROBE_DATA / f"md5_8x_a/step{step}/rank" for step in (0, 1)]
    result = compare_runs(*steps)
    assert result.verdict.compared > 50
    assert "step 0 of A is compared with step 1 of B" in result.notes


@pytest.mark.parametrize("kind", ["statistics_a", "md5_a", "tensor_a", "key_data_a"])
def test_a_dump_agrees_with_its_copy_of_another_process(tmp_path, kind):
    """Copies whose directories carry other process ids line up and agree."""
    copy = shutil.copytree(MSPROBE_DATA / kind, tmp_path / "copy")
    for directory in list(copy.glob("step*/proc*")):
        directory.rename(directory.parent / "proc1")
    result = compare_runs(MSPROBE_DATA / kind, copy)
    assert result
    known = Outcome.WITHIN_TOLERANCE if kind == "statistics_a" else Outcome.IDENTICAL
    assert result.verdict.status is known


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


@pytest.mark.parametrize("between", ["", "_"])
def test_layouts_of_unlike_age_line_up(tmp_path, between):
    """`rank` meets `rank0`; `<key>0.npy` and `<key>_0.npy` meet `<key>.0.npy`."""
    old = tmp_path / "old/data/list/step1/rank"
    old.mkdir(parents=True)
    new = MSPROBE_DATA / "key_data_a/data/list/step1/rank0/micro_step0"
    for index in range(2):
        shutil.copyfile(new / f"list.{index}.npy", old / f"list{between}{index}.npy")
    result = compare_runs(tmp_path / "old", MSPROBE_DATA / "key_data_a")
    found = [f for f in result.findings if f.key == "list" and f.step == 1]
    assert [f.status for f in found] == [Status.IDENTICAL] * 2


def dump_of(root, values):
    """Write a dump of msprobe's with one entry, of these inputs."""
    directory = root / "step0/rank0"
    directory.mkdir(parents=True)
    entry = {"input_args": values, "input_kwargs": {}, "output": []}
    content = {"data": {"Cell.a.Dense.forward.0": entry}}
    (directory / "dump.json").write_text(json.dumps(content))
    return root


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ([None] * 100_000, [None] * 100_000, True),
        ([None] * 1_000_000, [None] * 1_000_000, True),
        ([None] * 1_000, [None] * 999, False),
        ([None] * 999 + [{"type": "int", "value": 1}], [None] * 1_000, False),
        ([None] * 200 + [{}] + [None] * 200, [None] * 401, False),
        ([None] * 50, [None] * 50, True),
        ([[None] * 300, 7 * [[None] * 300]], [[None] * 300, 7 * [[None] * 300]], True),
        ([dict.fromkeys("abc" * 1, None)], [dict.fromkeys("abd", None)], False),
        (
            [dict.fromkeys(map(str, range(300)), None)],
            [dict.fromkeys([*map(str, range(299)), "x"], None)],
            False,
        ),
        (
            [dict.fromkeys(["a", *map(str, range(300)), "z"], None)],
            [dict.fromkeys(["a", *map(str, range(1, 301)), "z"], None)],
            False,
        ),
    ],
    ids=lambda value: "" if isinstance(value, list) else str(value),
)
def test_many_nulls_are_one_record_and_as_many_of_them_count(tmp_path, a, b, same):
    """What they are is not lost: how many there are, where, and under which names."""
    runs = dump_of(tmp_path / "a", a), dump_of(tmp_path / "b", b)
    records = sum(len(entry.records) for entry in open_run(runs[0]).entries())
    assert records <= 500
    assert bool(compare_runs(*runs, workers=1)) is same
