"""Over ranks the first NaN is where it arose, and how the others got it is what ranks exchange.

Each rank counts time for itself: some recorded far more before than others.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.health_runs import NAN, a_nan, steps_of, tensor

from mindrlhf_msprobe import check_run

RULE = "non_finite.first"
LAYERS = ("layers.0", "layers.1", "layers.2")


def found(root):
    return [one for one in check_run(root).findings if one.rule == RULE]


def places(findings):
    return [(one.place.rank, one.place.entry or one.place.key, one.ranks) for one in findings]


def carried(finding):
    return [one for one in finding.followed_by if one.said.code == "check_non_finite.carried"]


def data_parallel(root, births, ranks=4, *, busy=(), key_data_only=(), loss=True):
    """Record a step in which gradients, and the loss, are reduced over ranks.

    Args:
        births: rank → the layer whose output is not finite, in the forward pass.
        busy: ranks that recorded much before.
        key_data_only: ranks that record no layers.
    """
    for run, _, rank in steps_of(root, ranks=range(ranks)):
        if rank in busy:
            with run.phase("actor_compute_log_prob"):
                for number in range(200):
                    run.call(f"cell{number}")
        if rank not in key_data_only:
            with run.phase("actor_update"):
                given = tensor()
                for name in LAYERS:
                    out = a_nan() if given.nan_count or births.get(rank) == name else tensor()
                    run.call(name, given, out)
                    given = out
                for name in reversed(LAYERS):
                    out = a_nan() if rank in births else tensor()
                    run.call(name, out, out, direction="backward")
                for name in reversed(LAYERS):
                    run.gradients(name, weight=a_nan())
        if loss:
            run.data("loss", np.array(NAN, np.float32))
    return root


@pytest.mark.parametrize("busy", [(), (0,), (2,), (0, 1, 3)])
@pytest.mark.parametrize("key_data_only", [(), (0,), (0, 1, 3)])
def test_a_nan_of_a_forward_pass_reaches_others_by_reduced_gradients(tmp_path, busy, key_data_only):
    """Its rank is named, also where others saved a reduced loss early in their own time."""
    births = {2: "layers.1"}
    root = data_parallel(tmp_path / "run", births, busy=busy, key_data_only=key_data_only)
    findings = found(root)
    assert places(findings) == [(2, "Cell.layers.1.Dense.forward.0", (2,))]
    came = carried(findings[0])
    assert sorted(rank for one in came for rank in one.ranks) == [0, 1, 3]
    assert {one.said.params["origin"] for one in came} == {2}
    kinds = {rank: one.said.params["kind"] for one in came for rank in one.ranks}
    for rank in (0, 1, 3):
        assert kinds[rank] == ("data" if rank in key_data_only else "gradient")


@pytest.mark.parametrize("busy", [(), (1,), (3,)])
def test_nans_that_arise_on_several_ranks_are_told_apart(tmp_path, busy):
    births = {1: "layers.2", 3: "layers.0"}
    findings = found(data_parallel(tmp_path / "run", births, busy=busy))
    assert {one[:2] for one in places(findings)} == {
        (3, "Cell.layers.0.Dense.forward.0"),
        (1, "Cell.layers.2.Dense.forward.0"),
    }
    assert {one.said.code for one in findings} == {"check_non_finite.born"}
    came = [one for finding in findings for one in carried(finding)]
    assert [one.ranks for one in came] == [(0, 2)]


def test_the_same_cell_on_several_ranks_is_one_finding(tmp_path):
    births = dict.fromkeys(range(4), "layers.1")
    (finding,) = found(data_parallel(tmp_path / "run", births))
    assert finding.ranks == (0, 1, 2, 3)
    assert "check_non_finite.cause_collective" not in [cause.code for cause in finding.causes]
    assert not carried(finding)


def test_data_that_were_bad_on_a_rank_before_are_a_finding_of_their_own(tmp_path):
    """Log-probabilities of one rank do not come from what another one computes later."""
    for run, _, rank in steps_of(tmp_path / "run", ranks=(0, 1)):
        with run.phase("actor_compute_log_prob"):
            run.call("head")
        values = [[-1.0, NAN if rank == 0 else -2.0]]
        run.data("old_log_prob", np.array(values, np.float32))
        with run.phase("actor_update"):
            run.call("head", output=a_nan() if rank else tensor())
    findings = found(tmp_path / "run")
    assert [(one.place.rank, one.said.code) for one in findings] == [
        (0, "check_non_finite.data"),
        (1, "check_non_finite.born"),
    ]


def tensor_parallel(root, *, kind, born, fingerprints=True):
    """Two ranks with a shard each; what `wo` returns is reduced over them, inside of it."""
    for run, step, rank in steps_of(root, 2, (0, 1)):
        same = f"xxh3_128:{step:032x}" if fingerprints else None
        own = f"xxh3_128:{step:016x}{rank + 1:016x}" if fingerprints else None
        size = {"norm": 3.0 + step} if fingerprints else {"norm": 3.0 + step + rank / 7}
        bad = step == 1
        with run.phase("actor_compute_log_prob"):
            run.call("norm", tensor(fingerprint=same), tensor(fingerprint=same))
            shard = tensor(fingerprint=own, **size)
            if bad and born == "attention" and rank == 1:
                shard = a_nan(fingerprint=own)
            run.call("attention", tensor(fingerprint=same), shard)
            whole = a_nan(fingerprint=same) if bad else tensor(fingerprint=same)
            run.call("wo", shard, whole, kind=kind)
            run.call("mlp", whole, whole)
    return root


@pytest.mark.parametrize("fingerprints", [True, False])
@pytest.mark.parametrize("kind", ["RowParallelLinear", "Dense"])
def test_a_shard_that_is_not_finite_reaches_its_group_by_a_collective(tmp_path, kind, fingerprints):
    """By its class's name; or whatever it is called, as ranks hold the same behind it alone."""
    root = tensor_parallel(tmp_path / "run", kind=kind, born="attention", fingerprints=fingerprints)
    (finding,) = found(root)
    assert places([finding]) == [(1, "Cell.attention.Dense.forward.0", (1,))]
    (came,) = carried(finding)
    assert came.ranks == (0,)
    assert came.place.entry == f"Cell.wo.{kind}.forward.0"
    assert came.said.params["collective"] == ("" if kind == "Dense" else kind)
    assert came.said.params["kind"] == "output"
    assert "collective" in came.text


def test_a_cell_that_holds_the_same_on_all_ranks_may_be_no_collective(tmp_path):
    """Positions are the same whatever the tokens are: NaN in them on one rank arose there."""
    for run, step, rank in steps_of(tmp_path / "run", 2, (0, 1)):
        own, same = f"xxh3_128:{step:016x}{rank:016x}", f"xxh3_128:{7:032x}"
        with run.phase("actor_compute_log_prob"):
            bad = step and rank
            run.call("embed", tensor(fingerprint=own), a_nan() if bad else tensor())
            bad = step and not rank
            positions = a_nan(fingerprint="xxh3_128:99") if bad else tensor(fingerprint=same)
            run.call("positions", tensor(fingerprint=own), positions)
    assert {one[1] for one in places(found(tmp_path / "run"))} == {
        "Cell.embed.Dense.forward.0",
        "Cell.positions.Dense.forward.0",
    }


def test_a_collective_that_all_of_a_group_meet_says_that_the_rank_is_not_known(tmp_path):
    (finding,) = found(tensor_parallel(tmp_path / "run", kind="RowParallelLinear", born="wo"))
    assert finding.ranks == (0, 1)
    assert finding.causes[0].code == "check_non_finite.cause_collective"


def test_stages_of_a_pipeline_follow_each_other(tmp_path):
    for run, _, rank in steps_of(tmp_path / "run", ranks=(0, 1)):
        with run.phase("actor_update"):
            if rank:
                run.call("layers.1", a_nan(), a_nan())
            else:
                run.call("embed")
                run.call("layers.0", output=a_nan())
    (finding,) = found(tmp_path / "run")
    assert places([finding]) == [(0, "Cell.layers.0.Dense.forward.0", (0,))]
    (came,) = carried(finding)
    assert came.ranks == (1,)


def test_a_birth_in_the_step_after_stands_for_itself_where_everything_was_finite_between(tmp_path):
    for run, step, rank in steps_of(tmp_path / "run", 3, (0, 1)):
        with run.phase("actor_compute_log_prob"):
            run.call("head", output=a_nan() if (step, rank) in ((0, 1), (2, 0)) else tensor())
    (finding,) = found(tmp_path / "run")  # one cell: the same finding, of both steps
    assert (finding.place.step, finding.place.rank, finding.times, finding.ranks) == (
        0,
        1,
        2,
        (0, 1),
    )
