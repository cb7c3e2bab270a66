"""The first non-finite value is told where it was born, and nothing is told of healthy runs."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
from helpers.health_runs import NAN, HealthRun, a_nan, an_inf, masking, steps_of, tensor
from helpers.runs import Fault, record_training
from helpers.runs import a_nan as make_nan

from mindrlhf_msprobe import check_run, check_runs
from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.report.answer import as_text
from mindrlhf_msprobe.report.checks import lines_of

RULE = "non_finite.first"


def found(root):
    result = check_run(root)
    assert RULE in result.checked
    return [finding for finding in result.findings if finding.rule == RULE]


def the_one(root):
    """Return the only finding that follows from no other."""
    (finding,) = found(root)
    return finding


def network(run, layers=2, *, forward=None, backward=None):
    """Run a network of two layers forward and backward; what is given replaces an output."""
    forward, backward = forward or {}, backward or {}
    reached, out = tensor(), tensor()
    with run.phase("actor_update"):
        with run.cell("root", kind="Network", output=a_nan() if forward else None):
            for number in range(layers):
                given, name = reached, f"layers.{number}"
                reached = forward.get(name, a_nan() if reached.nan_count else tensor())
                run.call(name, given, reached, frames=(f"File net.py, line {number}",))
        for number in reversed(range(layers)):
            given, name = out, f"layers.{number}"
            out = backward.get(name, a_nan() if out.nan_count else tensor())
            run.call(name, given, out, direction="backward")
        run.gradients("root", kind="Network", weight=out)


@pytest.mark.parametrize("seed", range(10))
def test_a_planted_nan_is_named_in_ten_of_ten_seeds(tmp_path, seed):
    """Whatever cell, phase, step and rank: its place, and nothing else at the top."""
    random = np.random.default_rng(seed)
    cells = ("embed", "layers.0.attention", "layers.0.mlp", "layers.1.attention", "head")
    phases = ("actor_compute_log_prob", "reference_compute_log_prob", "actor_update")
    cell, phase = str(random.choice(cells)), str(random.choice(phases))
    step, rank = int(random.integers(3)), int(random.integers(2))
    fault = Fault(cell, phase, step=step, rank=rank, change=make_nan)
    run = record_training(tmp_path / "run", steps=3, ranks=(0, 1), faults=[fault])
    at = the_one(run).place
    assert (at.entry, at.phase, at.step, at.rank) == (
        f"Cell.{cell}.Dense.forward.0",
        phase,
        step,
        rank,
    )


def test_a_healthy_run_is_silent(tmp_path):
    assert found(record_training(tmp_path / "run", steps=3, ranks=(0, 1))) == []


@pytest.mark.parametrize("bad", [a_nan, an_inf])
def test_a_nan_of_the_backward_pass_of_one_rank(tmp_path, bad):
    """The other rank gets it by the reduction of gradients, and both by their parameters."""
    for run, step, rank in steps_of(tmp_path / "run", 3, (0, 1)):
        with run.phase("actor_compute_log_prob"):
            weight = bad() if step == 2 else tensor()
            run.call("layers.0", parameters={"weight": weight})
        if step == 1:
            network(run, backward={"layers.1": bad()} if rank else {})
            if not rank:
                run.gradients("root", kind="Network", weight=bad())
        else:
            network(run)
    finding = the_one(tmp_path / "run")
    at = finding.place
    assert (at.step, at.rank, at.entry) == (1, 1, "Cell.layers.1.Dense.backward.0")
    assert finding.said.code == "check_non_finite.born"
    assert finding.said.params["backward"]
    (carried,) = (one for one in finding.followed_by if one.rule == RULE)
    assert carried.said.code == "check_non_finite.carried"
    assert carried.said.params["kind"] == "gradient"
    assert carried.ranks == (0,)
    assert finding.last_step == 2


def test_the_call_stack_and_what_to_record_next_come_with_it(tmp_path):
    run = HealthRun(tmp_path / "run")
    network(run, forward={"layers.1": a_nan()})
    run.end_step()
    finding = the_one(run.close())
    assert finding.stack == ("File net.py, line 1",)
    assert finding.next_step["task"] == "tensor"
    assert finding.next_step["include"] == [r"^layers\.1($|\.)"]
    given = [one for one in finding.evidence if one.place.record.endswith(".input.0")]
    assert given[0].values["max"] == 1.0


def test_what_it_reached_is_said_in_chinese(tmp_path):
    """Names of phases and of statistics stay; what stands around them does not."""
    run = HealthRun(tmp_path / "run")
    network(run, forward={"layers.0": a_nan()})
    run.end_step()
    with speaking("zh"):
        said = as_text(lines_of(check_runs([run.close()])))
    assert re.search("按阶段或关键数据）：Cell.*  记录数 {actor_update ", said)


def test_an_inf_that_is_born_in_an_optimizer(tmp_path):
    """Gradients are finite, the parameter is not in the next step."""
    run = HealthRun(tmp_path / "run")
    network(run)
    run.end_step()
    with run.phase("actor_compute_log_prob"):
        run.call("layers.1", output=a_nan(), parameters={"weight": an_inf()})
    run.end_step()
    finding = the_one(run.close())
    assert finding.said.code == "check_non_finite.parameter"
    assert finding.said.params["gradients_finite"]
    assert finding.causes[0].code == "check_non_finite.cause_optimizer"
    assert finding.place.record == "Cell.layers.1.Dense.forward.0.parameters.weight"


def test_a_parameter_behind_steps_that_are_gone_is_not_said_to_come_from_the_optimizer(tmp_path):
    """As keep_mb leaves a run: the first step and the last ones."""
    for run, step, _ in steps_of(tmp_path / "run", 5):
        with run.phase("actor_compute_log_prob"):
            run.call("layers.1", parameters={"weight": a_nan() if step > 2 else tensor()})
        network(run)
    root = tmp_path / "run"
    for phase in ("actor_compute_log_prob", "actor_update"):
        for step in (1, 2, 3):
            shutil.rmtree(root / phase / f"step{step}")
    finding = the_one(root)
    assert finding.said.code == "check_non_finite.parameter_after_gap"
    assert (finding.place.step, finding.said.params["before"]) == (4, 0)
    assert finding.causes[0].code == "check_non_finite.cause_gradient_not_recorded"


def test_a_collective_that_carried_it_is_named(tmp_path):
    """Inside a layer the other rank gets it from an all-reduce of finite values of its own."""
    for run, _, rank in steps_of(tmp_path / "run", ranks=(0, 1)):
        with run.phase("actor_compute_log_prob"):
            run.call("w1", output=a_nan() if rank else tensor())
            run.call("reduce", a_nan() if rank else tensor(), a_nan(), kind="AllReduce")
    finding = the_one(tmp_path / "run")
    assert (finding.place.rank, finding.place.entry) == (1, "Cell.w1.Dense.forward.0")
    assert [one.said.params["collective"] for one in finding.followed_by if one.rule == RULE] == [
        "AllReduce"
    ]


def test_a_container_whose_own_code_made_it(tmp_path):
    run = HealthRun(tmp_path / "run")
    with run.phase("actor_update"), run.cell("block", output=a_nan(), kind="Block"):
        run.call("mlp", a_nan(), a_nan())
    run.end_step()
    finding = the_one(run.close())
    assert finding.said.code == "check_non_finite.in_container"
    assert finding.said.params["container"] == "Cell.block.Block.forward.0"


def test_masks_are_no_finding_and_a_softmax_over_nothing_is(tmp_path):
    """-inf in a mask is normal; where it becomes NaN is to blame, not the mask."""
    for run, step, _ in steps_of(tmp_path / "run", 2):
        with run.phase("actor_compute_log_prob"):
            run.call("mask", output=masking())
            run.call("scores", masking(), masking(3.0))
            run.call("softmax", masking(3.0), a_nan() if step else tensor(1.0, 0.0))
    finding = the_one(tmp_path / "run")
    assert (finding.place.step, finding.place.entry) == (1, "Cell.softmax.Dense.forward.0")
    assert "check_non_finite.cause_masked_row" in [cause.code for cause in finding.causes]


def test_minus_inf_of_a_cell_that_never_made_it_is_where_a_nan_was_born(tmp_path):
    for run, step, _ in steps_of(tmp_path / "run", 2):
        with run.phase("actor_compute_log_prob"):
            run.call("log", output=masking(2.0) if step else tensor())
            run.call("mul", masking(2.0) if step else tensor(), a_nan() if step else tensor())
    assert the_one(tmp_path / "run").place.entry == "Cell.log.Dense.forward.0"


def test_values_close_to_the_limit_stand_before_an_overflow(tmp_path):
    run = HealthRun(tmp_path / "run")
    with run.phase("actor_update"):
        run.call("scores", output=tensor(60000.0, dtype="Float16"))
        run.call("square", tensor(60000.0, dtype="Float16"), an_inf(dtype="Float16"))
    run.end_step()
    finding = the_one(run.close())
    assert finding.causes[0].code == "check_non_finite.cause_overflow"
    near = [one for one in finding.evidence if one.note and one.note.code.endswith(".near")]
    assert near[0].place.entry == "Cell.scores.Dense.forward.0"
    assert near[0].values["max"] == 60000.0


@pytest.mark.parametrize("keys", [True, False])
def test_overflow_under_a_loss_scale_that_is_retried_is_a_note(tmp_path, keys):
    """By the trainer's own flag; without it, where float16 overflowed and nothing came of it."""
    for run, step, _ in steps_of(tmp_path / "run", 3):
        bad = an_inf(dtype="Float16")
        network(run, backward={"layers.1": bad} if step == 1 else {})
        if keys:
            run.data("overflow", np.array(step == 1))
            run.data("loss_scale", np.array(1024.0 if step < 2 else 512.0, np.float32))
            run.data("loss", np.array(0.1, np.float32))
    result = check_run(tmp_path / "run")
    (finding,) = (one for one in result.findings if one.rule == RULE)
    assert (finding.severity, finding.said.code) == ("note", "check_non_finite.retried")
    assert not [one for one in result.all_findings if one.severity.counts and one.rule == RULE]


def test_overflow_that_reaches_the_parameters_is_no_retry(tmp_path):
    for run, step, _ in steps_of(tmp_path / "run", 3):
        with run.phase("actor_compute_log_prob"):
            run.call("layers.0", parameters={"weight": a_nan() if step == 2 else tensor()})
        network(run, backward={"layers.1": an_inf(dtype="Float16")} if step == 1 else {})
    finding = the_one(tmp_path / "run")
    assert (finding.severity, finding.place.step) == ("error", 1)
    assert finding.place.entry == "Cell.layers.1.Dense.backward.0"


def test_a_loss_scale_that_falls_for_ever_is_a_warning(tmp_path):
    for run, step, _ in steps_of(tmp_path / "run", 12):
        network(run, backward={"layers.1": an_inf(dtype="Float16")})
        run.data("overflow", np.array(True))
        run.data("loss_scale", np.array(2.0 ** (16 - step), np.float32))
    codes = {one.said.code: one.severity for one in found(tmp_path / "run")}
    assert codes["check_non_finite.stuck"] == "warning"


def test_key_data_advantages_of_a_zero_deviation(tmp_path):
    """The group whose rewards are equal is the cause."""
    run = HealthRun(tmp_path / "run")
    run.data("rewards", np.array([1, 1, 0, 1], np.float32))
    run.data("advantages", np.array([NAN, NAN, -1, 1], np.float32))
    run.end_step()
    finding = the_one(run.close())
    assert finding.said.code == "check_non_finite.zero_deviation"
    assert finding.said.params["rewards"] == 1.0
    assert finding.place.key == "advantages"


def test_key_data_log_prob_of_minus_inf(tmp_path):
    run = HealthRun(tmp_path / "run")
    run.data("prompts", ["NaN", "<b>inf</b>"])
    run.data("old_log_prob", np.array([[-1.0, -np.inf]], np.float32))
    run.data("ratio", np.array([[1.0, np.inf]], np.float32))
    run.end_step()
    finding = the_one(run.close())
    assert finding.place.key == "old_log_prob"
    assert finding.causes[0].code == "check_non_finite.cause_probability_zero"


def test_nan_everywhere_from_the_first_step(tmp_path):
    for run, *_ in steps_of(tmp_path / "run", 2):
        with run.phase("actor_update"):
            run.call("layers.0", a_nan(), a_nan(), parameters={"weight": a_nan()})
            run.call("layers.1", a_nan(), a_nan(), parameters={"weight": a_nan()})
            run.gradients("layers.0", weight=a_nan())
    finding = the_one(tmp_path / "run")
    assert finding.place.step == 0
    assert finding.said.code in ("check_non_finite.parameter_at_first", "check_non_finite.came_in")


def test_statistics_without_counts(tmp_path):
    """Another tool's statistics: NaN in the mean alone is one, a norm that overflowed is none."""
    from mindrlhf_msprobe.storage.columns.leaf_json import non_finite

    plain = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [2], "Max": 1.0, "Min": 0.0}
    assert non_finite({**plain, "Mean": "NaN", "Norm": "NaN"}) == (1, 0)
    assert non_finite({**plain, "Mean": 1e38, "Norm": "Infinity"}) is None
    assert non_finite({**plain, "Max": "Infinity", "Mean": "Infinity", "Norm": "NaN"}) == (0, 1)
    assert non_finite({**plain, "Mean": 0.5, "Norm": 1.0}) is None
