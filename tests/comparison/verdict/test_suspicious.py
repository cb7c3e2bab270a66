"""Two runs that agree on NaN or infinity: said aloud, in verdict.json, and by the exit code."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.runs import Fault, a_nan, record_data, record_training

from mindrlhf_msprobe import Tolerance, compare_runs
from mindrlhf_msprobe.cli import main

PHASE = "actor_update"
MLP = "Cell.layers.1.mlp.Dense.forward.0.output.0"


def minus_inf(value):
    return np.where(np.arange(value.size).reshape(value.shape) % 2, -np.inf, value).astype(
        np.float32
    )


def twice(tmp_path, **settings):
    """Record one training twice."""
    settings = {"steps": 1, **settings}
    return [str(record_training(tmp_path / name, **settings)) for name in "ab"]


def of_keys(tmp_path, *steps):
    """Record two runs that hold the same key data, those of each step in their order."""
    return [str(record_data(tmp_path / name, *steps)) for name in "ab"]


def compare(tmp_path, capsys, runs, *options):
    """Return the exit code, the lines on stdout and what verdict.json says of it."""
    code = main(["compare", *runs, "-o", str(tmp_path / "out"), *options])
    lines = capsys.readouterr().out.splitlines()
    return code, lines, json.loads((tmp_path / "out/verdict.json").read_text("utf-8"))["suspicious"]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_the_same_nan_in_both_runs_is_said_and_can_fail(tmp_path, capsys, task):
    """The line stands under the verdict, the object in verdict.json; --fail-on decides the code."""
    runs = twice(tmp_path, task=task, steps=2, faults=[Fault("layers.1.mlp", PHASE, 1, 0, a_nan)])
    code, lines, found = compare(tmp_path, capsys, runs)
    assert code == 0
    assert lines[0].startswith("IDENTICAL: ")
    non_finite = json.loads((tmp_path / "out/verdict.json").read_text("utf-8"))[
        "non_finite_on_both_sides"
    ]
    place = {"step": 1, "rank": 0, "phase": PHASE, "record": MLP}
    assert (non_finite["records"] > 1, non_finite["first"]) == (True, place)
    held = f"agree bit for bit; {non_finite['records']} of them hold NaN or Inf on both sides"
    assert held in lines[0]
    assert lines[0].endswith(f"first at step 1, {PHASE}, rank 0: {MLP}.")
    assert lines[1].startswith(f"SUSPICIOUS: {found['count']} records agree but should not hold")
    assert f"first at step 1, {PHASE}, rank 0: {MLP} (1 NaN on both sides)" in lines[1]
    assert found["first"] == {
        **{**place, "micro_step": None},
        **{"code": "suspicion.non_finite", "params": {"nan": 1, "inf": 0}},
    }
    assert found["text"] == lines[1]
    assert compare(tmp_path, capsys, runs, "--fail-on", "suspicious", "--first-only")[0] == 1
    code = main(
        ["compare", *runs, "-o", str(tmp_path / "out"), "--json", "--fail-on", "suspicious"]
    )
    assert (code, json.loads(capsys.readouterr().out)["suspicious"]) == (1, found)
    code, lines, found = compare(tmp_path, capsys, runs, "--lang", "zh")
    assert f"{found['count']} 条记录两侧一致，但不应含 NaN 或 Inf" in lines[1]
    assert found["text"] == lines[1]
    result = compare_runs(*runs, lang="zh")
    verdict = result.verdict
    assert verdict.non_finite.records == non_finite["records"]
    suspicious = [one for one in result.findings if one.suspicions]
    assert len(suspicious) == non_finite["records"]
    assert (verdict.suspicious.records, verdict.suspicious.record) == (found["count"], MLP)
    assert verdict.suspicious.what.params["nan"] == 1


def test_equal_runs_that_are_finite_do_not_fail(tmp_path, capsys):
    """Nothing is said, nothing counted."""
    code, lines, found = compare(tmp_path, capsys, twice(tmp_path), "--fail-on", "suspicious")
    assert (code, found) == (0, {"count": 0, "first": None, "text": ""})
    assert "SUSPICIOUS" not in "\n".join(lines)
    assert "agree bit for bit." in "\n".join(lines)
    verdict = json.loads((tmp_path / "out/verdict.json").read_text("utf-8"))
    assert verdict["non_finite_on_both_sides"] == {"records": 0, "first": None}


@pytest.mark.parametrize("healthy", [True, False])
def test_a_mask_of_minus_infinity_is_healthy(of_both, tmp_path, capsys, healthy):
    """-inf alone in a forward pass, and in key data of masks, is meant; +inf is not."""
    value = minus_inf(np.zeros(2)) if healthy else np.float32([0, np.inf])

    def record(recording, run):
        with recording.phase(PHASE):
            recording.call("mask", "Mask", lambda x: value, np.float32([0, 1]))
        recording.data("attention_mask", np.float32([0, -np.inf]))

    assert of_both(record).verdict.non_finite.records == 2
    runs = [str(tmp_path / name) for name in "ab"]
    code, _, found = compare(tmp_path, capsys, runs, "--fail-on", "suspicious")
    assert code == (0 if healthy else 1)
    if not healthy:
        assert (found["count"], found["first"]["params"]) == (1, {"nan": 0, "inf": 1})


def test_a_parameter_of_minus_infinity_is_not_a_mask(tmp_path):
    """Only what a forward pass computes may be made of -inf."""
    found = compare_runs(*twice(tmp_path, weights={"head": minus_inf})).verdict.suspicious
    assert found.record is not None
    assert ".parameters." in found.record


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("log_prob", np.float32([-1, -np.inf]), {"nan": 0, "inf": 1}),
        ("loss", float("nan"), {"nan": 0, "inf": 0}),
        ("advantages", [np.float32([0.5]), np.float32([np.nan])], {"nan": 1, "inf": 0}),
        ("rewards", np.float16([np.inf, np.inf]), {"nan": 0, "inf": 2}),
    ],
)
def test_key_data(tmp_path, capsys, key, value, what):
    """-inf log_prob, a loss that is NaN: the key, the step, and the micro-step after the first."""
    finite = np.float32([1, 2])
    runs = of_keys(tmp_path, [(key, finite)], [(key, finite), (key, value)])
    code, lines, found = compare(tmp_path, capsys, runs, "--fail-on", "suspicious")
    first = found["first"]
    assert (code, found["count"], first["phase"], first["micro_step"]) == (1, 1, None, 1)
    assert first["record"].startswith(key)
    assert first["params"] == what or key == "loss"
    assert "first at step 1, rank 0, micro-step 1: " in lines[1]


def test_gradients_of_a_step_that_overflowed_are_healthy(tmp_path, capsys):
    """Both runs retry the step with a smaller loss scale; without that it is suspicious."""
    for overflowed, expected in ((True, 0), (False, 1), (np.float32(1), 0)):
        root = tmp_path / str(overflowed)
        runs = of_keys(root, [("grad_norm", float("inf")), ("overflow", overflowed)])
        assert compare(tmp_path, capsys, runs, "--fail-on", "suspicious")[0] == expected
        runs = of_keys(root / "loss", [("loss", float("inf")), ("overflow", overflowed)])
        assert compare(tmp_path, capsys, runs, "--fail-on", "suspicious")[0] == 1


def test_the_first_over_ranks_is_the_first_in_causal_order(tmp_path):
    """An earlier phase on rank 1 comes before a later one on rank 0, as in a divergence."""
    faults = [
        Fault("layers.0.mlp", PHASE, change=a_nan),
        Fault("layers.1.mlp", "reference_compute_log_prob", rank=1, change=a_nan),
    ]
    verdict = compare_runs(*twice(tmp_path, ranks=(0, 1), faults=faults)).verdict
    for found in (verdict.suspicious, verdict.non_finite):
        assert (found.rank, found.phase) == (1, "reference_compute_log_prob")


def test_with_too_many_records_for_a_row_each(tmp_path, monkeypatch):
    """What agrees is counted by the line then; what holds NaN is still looked at."""
    runs = twice(tmp_path, steps=3, faults=[Fault("layers.1.mlp", PHASE, 1, 0, a_nan)])
    expected = compare_runs(*runs).verdict.suspicious
    monkeypatch.setattr("mindrlhf_msprobe.comparison.compare.FOLD_ABOVE", 10)
    result = compare_runs(*runs)
    assert result.agreements
    assert result.verdict.suspicious == expected


def test_beside_a_divergence(tmp_path, capsys):
    """It is said there, too; within a tolerance as well, and exit code 2 stays 2."""
    nan = Fault("layers.1.mlp", "reference_compute_log_prob", change=a_nan)
    a = record_training(tmp_path / "a", steps=1, faults=[nan])
    b = record_training(tmp_path / "b", steps=1, faults=[nan, Fault("layers.1.mlp", PHASE)])
    code, lines, found = compare(tmp_path, capsys, [str(a), str(b)])
    said = [line for line in lines if line.startswith("SUSPICIOUS")]
    assert (code, said) == (1, [found["text"]])
    assert not any("hold NaN or Inf on both sides" in line for line in lines)
    close = compare_runs(a, b, tolerance=Tolerance(1, 1)).verdict
    assert str(close.status) == "within_tolerance"
    assert close.suspicious.records >= found["count"]
    with pytest.raises(SystemExit) as refused:
        main(["compare", str(a), str(b), "--fail-on", "nan"])
    assert refused.value.code == 2
    assert main(["compare", str(a), str(a), "--fail-on", "suspicious"]) == 2
