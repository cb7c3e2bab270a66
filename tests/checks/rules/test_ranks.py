"""Ranks that must do and hold the same: what differs is named, and what may differ is silent."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.health_runs import HealthRun, steps_of, tensor
from helpers.snapshots import rewrite

from mindrlhf_msprobe import check_run


def found(root, rule):
    result = check_run(root)
    assert rule in result.checked
    return [finding for finding in result.all_findings if finding.rule == rule]


def record(root, ranks=2, steps=2, cells=("embed", "head"), **of_rank):
    """Record ranks that run two cells a step; `of_rank` says what a rank does otherwise."""
    for rank in range(ranks):
        run = HealthRun(root, rank)
        own = of_rank.get(f"rank{rank}", {})
        for step in range(steps):
            with run.phase("actor_compute_log_prob"):
                for cell in own.get("cells", cells):
                    weight = own.get("weights", {}).get((step, cell), f"w{step}{cell}")
                    run.call(
                        cell,
                        tensor(fingerprint=own.get("data", f"data{rank}")),
                        tensor(shape=own.get("shape", (2, 4))),
                        parameters={"weight": tensor(fingerprint=weight)},
                    )
            run.end_step()
        run.close()
    return root


def test_ranks_that_do_the_same_are_silent(tmp_path):
    result = check_run(record(tmp_path / "run", ranks=4))
    assert {"ranks.entries", "ranks.replicas", "ranks.settings"} <= {*result.checked}
    assert not [one for one in result.all_findings if one.rule.startswith("ranks.")]


def test_a_rank_that_recorded_less(tmp_path):
    root = record(tmp_path / "run", ranks=3, rank2={"cells": ("embed",)})
    (finding,) = found(root, "ranks.entries")
    assert finding.said.params["lacking"]
    assert (finding.place.rank, finding.times) == (2, 2)
    assert finding.place.entry == "Cell.head.Dense.forward.0"


def test_another_number_of_calls(tmp_path):
    root = record(tmp_path / "run", rank1={"cells": ("embed", "head", "head")})
    findings = found(root, "ranks.entries")
    assert {one.said.code for one in findings} == {"check_ranks.calls"}


@pytest.mark.parametrize("name", ["experts", "branches"])
@pytest.mark.parametrize("seed", range(3))
def test_experts_run_as_often_as_they_have_tokens(tmp_path, name, seed):
    """Of data that each rank has for itself: an expert without tokens is not called."""
    for rank in (0, 1):
        run, random = HealthRun(tmp_path / "run", rank), np.random.default_rng([seed, rank])
        for _ in range(6):
            with run.phase("actor_update"):
                run.call("router")
                for n, rows in enumerate(np.bincount(random.integers(0, 4, 5), minlength=4)):
                    if rows:
                        run.call(f"{name}.{n}.up", output=tensor(shape=(int(rows), 4)))
            run.end_step()
        run.close()
    assert found(tmp_path / "run", "ranks.entries") == []


def test_a_layer_that_one_rank_lacks_from_some_step_on(tmp_path):
    """It is the same one in every step, whatever other layers do."""
    for run, step, rank in steps_of(tmp_path / "run", 5, (0, 1)):
        with run.phase("actor_update"):
            for n in range(3):
                if not (rank == 1 and n == 2 and step in (2, 3)):
                    run.call(f"layers.{n}.up")
    (finding,) = found(tmp_path / "run", "ranks.entries")
    assert (finding.place.step, finding.place.rank, finding.times) == (2, 1, 2)
    assert finding.place.entry == "Cell.layers.2.up.Dense.forward.0"


def test_stages_of_a_pipeline_run_other_cells(tmp_path):
    root = record(
        tmp_path / "run",
        rank0={"cells": ("embed", "layers.0")},
        rank1={"cells": ("layers.1", "head")},
    )
    assert found(root, "ranks.entries") == []


def test_a_phase_that_one_rank_lacks(tmp_path):
    root = record(tmp_path / "run", ranks=3)
    for step in range(2):
        directory = root / "actor_compute_log_prob" / f"step{step}" / "rank1"
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()
    result = check_run(root)
    assert result.problems
    assert "rank1" in str(result.problems[0])


def test_other_shapes(tmp_path):
    (finding,) = found(record(tmp_path / "run", rank1={"shape": (3, 4)}), "ranks.entries")
    assert finding.said.code == "check_ranks.shapes"
    shapes = finding.evidence[0].values["shapes"]
    assert shapes == {"0": "Float32[2, 4]", "1": "Float32[3, 4]"}


def test_shapes_that_change_with_the_data_are_silent(tmp_path):
    """Batches that are padded to their longest response."""
    for run, step, rank in steps_of(tmp_path / "run", 3, (0, 1)):
        with run.phase("actor_compute_log_prob"):
            run.call("head", output=tensor(shape=(2, 8 + step * (rank + 1))))
    assert found(tmp_path / "run", "ranks.entries") == []


def test_replicas_that_part(tmp_path):
    """From the step in which they differ, by the parameter."""
    root = record(tmp_path / "run", steps=3, rank1={"weights": {(2, "head"): "another"}})
    (finding,) = found(root, "ranks.replicas")
    assert finding.said.code == "check_ranks.parted"
    at = finding.place
    assert (at.step, at.rank, at.record) == (2, 1, "Cell.head.Dense.forward.0.parameters.weight")
    fingerprints = [one.values["fingerprint"] for one in finding.evidence]
    assert fingerprints == ["another", "w2head"]


def test_without_fingerprints_statistics_tell_replicas_apart(tmp_path):
    for run, step, rank in steps_of(tmp_path / "run", 2, (0, 1)):
        with run.phase("actor_compute_log_prob"):
            own = tensor(2.0 if rank and step else 1.0)
            run.call("head", parameters={"weight": own})
    (finding,) = found(tmp_path / "run", "ranks.replicas")
    assert finding.place.step == 1


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("ranks", [2, 4])
def test_one_rank_with_another_seed(tmp_path, seed, ranks):
    """It agrees with none from the first step on, and has data of its own."""
    random = np.random.default_rng(seed)
    odd = int(random.integers(1, ranks))
    own = {(step, cell): f"odd{step}{cell}" for step in range(2) for cell in ("embed", "head")}
    root = record(tmp_path / "run", ranks=ranks, **{f"rank{odd}": {"weights": own}})
    (finding,) = found(root, "ranks.replicas")
    assert finding.said.code == "check_ranks.other_weights"
    assert finding.causes[0].code == "check_ranks.cause_seed"
    assert finding.place.rank == (odd if ranks > 2 else 1)


def test_shards_are_no_replicas(tmp_path):
    """Tensor parallel ranks hold other parameters and are given the same data."""
    others = {(step, cell): f"shard{step}{cell}" for step in range(2) for cell in ("embed", "head")}
    root = record(
        tmp_path / "run", rank0={"data": "same"}, rank1={"data": "same", "weights": others}
    )
    result = check_run(root)
    assert not [one for one in result.all_findings if one.rule == "ranks.replicas"]
    (why,) = [one.why.code for one in result.not_checked if one.rule == "ranks.replicas"]
    assert why == "check_ranks.shards"


@pytest.mark.parametrize(
    ("unlike", "shape", "named"),
    [
        (("up", "down"), (6, 4), True),
        (("up", "down"), (3, 4), False),  # a half of each, of a parallel optimizer
        (("up",), (6, 4), False),  # experts that are not called so, say
    ],
)
def test_another_seed_where_a_table_is_the_same(tmp_path, unlike, shape, named):
    """No seed draws a table of positions: whole matrices tell replicas from slices."""
    for run, _, rank in steps_of(tmp_path / "run", ranks=range(2)):
        with run.phase("actor_compute_log_prob"):
            for cell in ("positions", "scale", "up", "down"):
                own = rank if cell in unlike else 0
                matrix = cell in ("up", "down")
                run.call(
                    cell,
                    tensor(shape=(2, 4), fingerprint=f"data{rank}"),
                    tensor(shape=(2, 6)),
                    parameters={
                        "weight": tensor(
                            shape=shape if matrix else (9,), fingerprint=f"{cell}{own}"
                        )
                    },
                )
    findings = found(tmp_path / "run", "ranks.replicas")
    assert [one.said.code for one in findings] == ["check_ranks.other_weights"] * named


def test_another_seed_where_the_network_holds_the_table_itself(tmp_path):
    """Whatever sizes its inputs and outputs happen to have: it is no matrix of theirs."""
    for run, _, rank in steps_of(tmp_path / "run", ranks=range(2)):
        table = {"positions": tensor(shape=(6, 4), fingerprint="positions")}
        given = tensor(shape=(2, 6), fingerprint=f"data{rank}")
        root = run.cell("root", given, tensor(shape=(2, 4)), parameters=table)
        with run.phase("actor_compute_log_prob"), root:
            for cell, (n, m) in {"up": (6, 4), "down": (4, 6)}.items():
                weight = {"weight": tensor(shape=(n, m), fingerprint=f"{cell}{rank}")}
                of = tensor(shape=(2, m), fingerprint=f"{cell} of data{rank}")
                run.call(cell, of, tensor(shape=(2, n)), parameters=weight)
    (finding,) = found(tmp_path / "run", "ranks.replicas")
    assert finding.said.code == "check_ranks.other_weights"


@pytest.mark.parametrize(
    ("seeds", "size", "expected"),
    [
        ((1, 7, 1), 3, [("check_ranks.setting", "warning", (1,))]),
        ((0, 1, 2), 3, []),  # one for each rank is meant so
        ((1, 1, 1), 4, [("check_ranks.missing", "warning", (3,))]),
    ],
)
def test_what_manifests_say_of_ranks(tmp_path, seeds, size, expected):
    """Another seed, and a rank whose manifest is missing."""
    root = record(tmp_path / "run", ranks=3)
    for rank, seed in enumerate(seeds):
        path = root / ("run.json" if not rank else f"run.rank{rank}.json")
        rewrite(path, {"seeds": {"mindspore": seed}, "world.size": size})
    findings = found(root, "ranks.settings")
    assert [(one.said.code, one.severity, one.ranks) for one in findings] == expected
