"""Two real ranks, data-parallel: what each writes, what a comparison says, what a merge makes."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest
from divided_training import train_divided
from helpers.programs import read_json
from jobs import CRASHED_AT_EXIT, MSRUN, _code, run_job, weights
from split_training import train_split

from mindrlhf_msprobe import Tolerance, compare_runs, open_run
from mindrlhf_msprobe.findings import Outcome

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MSRUN.exists(), reason=f"MindSpore's {MSRUN} is not there"),
]

#: What ranks divide → a weight of rank 1, as that rank calls it.
DIVIDED = {
    "stages": "layers.1.up.weight",
    "contexts": "layers.1.k.weight",
    "experts": "layers.1.experts.1.up.weight",
}
PHASES = ["reference_compute_log_prob", "actor_update"]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Return what each training said, by name, and the directory that holds their runs.

    Those that end well share one job of two nodes.
    """
    root = tmp_path_factory.mktemp("jobs")
    plans = {
        "whole": {
            "shared": {},
            "faulty": {"fault": [1, 1, "reference"]},
            "by tensors": {"split": "tensors"},
            "by samples": {"split": "samples"},
            "one rank off": {"split": "tensors", "fault": [1, 1]},
            **{
                f"by {by}{' off' if fault else ''}": {"divided": by, "fault": fault}
                for by, weight in DIVIDED.items()
                for fault in (None, weight)
            },
            "apart": {"msprobe": {"dump_path": str(root / "node{rank}")}},
            "selected": {"msprobe": {"ranks": [1]}},
        },
        "killed": {"killed": {"kill": [1, 2]}},
        "crashed": {"crashed": {"steps": 1, "crash_at_exit": 1}},
        "stopped": {
            "stopped": {"steps": 60, "nan": [0, 1], "msprobe": {"ranks": [0], "on_finding": "stop"}}
        },
        "parted": {
            "followed": {},
            "parted": {
                "steps": 9,
                "fault": [1, 1, "reference"],
                "msprobe": {"compare_to": str(root / "followed/run"), "on_divergence": "stop"},
            },
        },
    }

    def run(job):
        trainings = {}
        for name, options in plans[job].items():
            settings = {"dump_path": str(root / name / "run"), **options.get("msprobe", {})}
            trainings[name] = {"steps": 3, **options, "msprobe": settings}
        done = run_job(root / f"{job} job", trainings, nodes=2 if job == "whole" else 1)
        return [(name, done.training(name)) for name in trainings]

    with ThreadPoolExecutor(max_workers=3) as pool:
        return root, dict(chain.from_iterable(pool.map(run, plans)))


@pytest.fixture
def root(jobs):
    return jobs[0]


def test_every_rank_writes_its_own_directories(jobs, root):
    """Both nodes write into one directory: a manifest and the same entries for each rank."""
    assert jobs[1]["shared"].code == 0
    run = open_run(root / "shared/run")
    assert (run.steps, run.phases, run.ranks) == ([0, 1, 2], PHASES, [0, 1])
    assert (run.finished, run.problems, run.missing_ranks) == (True, [], [])
    worlds = [manifest["world"] for manifest in run.manifests]
    assert [world["rank"] for world in worlds] == [0, 1]
    assert {(world["size"], bool(world["host"])) for world in worlds} == {(2, True)}
    directions = {entry.direction for entry in run.entries("actor_update")}
    assert directions == {"forward", "backward", "parameters_grad"}
    for step in run.steps:
        names = [[entry.name for entry in run.entries(step=step, rank=rank)] for rank in (0, 1)]
        assert names[0] == names[1] != []
        assert all(run.completed(step, rank) for rank in (0, 1))
    for path in (root / "shared/run").rglob("*.json"):
        read_json(path)
    assert not [p for p in (root / "shared/run").rglob("*") if p.name.startswith(".")]


def test_gradients_of_the_ranks_are_their_own(root):
    """What a rank records of a parameter's gradient is before AllReduce: every rank has another."""
    run = open_run(root / "shared/run")
    gradients = [
        {r.name: r.leaf.fingerprint for r in entry.records}
        for rank in (0, 1)
        for entry in run.entries("actor_update", step=0, rank=rank)
        if entry.name == "Cell.head.Dense.parameters_grad.0"
    ]
    assert gradients[0].keys() == gradients[1].keys() != set()
    assert not set(gradients[0].values()) & set(gradients[1].values())


def test_training_is_the_same_whoever_records(jobs):
    """Recorded by both ranks, by one, into one directory or into two: the same weights."""
    found = [weights(jobs[1][name]) for name in ("shared", "apart", "selected")]
    assert len(found[0]) == 1
    assert found[0] == found[1] == found[2]


def test_a_rank_that_is_not_selected_records_nothing(jobs, root):
    """`ranks: [1]`: rank 0 leaves no trace, and nothing is said to be missing."""
    run = open_run(root / "selected/run")
    assert (run.ranks, run.missing_ranks, len(run.manifests)) == ([1], [], 1)
    assert not (root / "selected/run/run.json").exists()
    assert "have not begun to write" not in "".join(jobs[1]["selected"].said.values())


def test_a_finding_ends_every_rank_after_the_same_step(jobs, root):
    """`on_finding: stop`: the rank that is not recorded, too; none is left in a collective."""
    said = jobs[1]["stopped"].said
    ended = [
        line for rank in (0, 1) for line in said[rank].splitlines() if line.startswith("ENDED")
    ]
    steps = {line.partition(": ")[2] for line in ended}
    assert len(ended) == 2
    assert len(steps) == 1
    step = int(steps.pop().removeprefix("step ").removesuffix(", code 1"))
    assert 2 <= step < 59
    assert jobs[1]["stopped"].code != 0
    run = open_run(root / "stopped/run")
    assert (run.ranks, run.steps, run.state) == ([0], [*range(step + 1)], "failed")
    assert all(run.completed(one, 0) for one in run.steps)
    assert not list((root / "stopped/run").glob(".*"))


def test_a_divergence_of_one_rank_ends_every_rank_in_the_same_step(jobs, root):
    """`on_divergence: stop`: rank 0 has not diverged yet, and ends with rank 1."""
    job = jobs[1]["parted"]
    for rank in (0, 1):
        assert f"ENDED {rank}: step 1, code 1" in job.said[rank]
    assert job.code != 0
    run = open_run(root / "parted/run")
    assert (run.ranks, run.steps, run.state) == ([0, 1], [0, 1], "failed")
    assert all(run.completed(1, rank) for rank in (0, 1))
    assert not list((root / "parted/run").glob(".*"))


def test_the_rank_that_parts_first_is_named(root, cli):
    """A fault in rank 1 alone: rank 1 diverges first, rank 0 through the gradients a step later."""
    paths = [str(root / "shared/run"), str(root / "faulty/run")]
    said = cli("compare", *paths, "-o", root / "compared", code=1).out.splitlines()
    assert "DIVERGED at step 1, reference_compute_log_prob, rank 1" in said
    ranks = [line for line in said if line.startswith("Ranks: ")]
    assert [line.partition(":")[2].split(",")[0] for line in ranks] == [
        " rank 1 diverges first",
        " rank 0 diverges later",
    ]
    verdict = read_json(root / "compared/verdict.json")
    assert [(r["rank"], r["step"]) for r in verdict["ranks"]["parted"]] == [(1, 1), (0, 2)]


def test_a_rank_that_is_killed_leaves_the_others_whole(jobs, root):
    """SIGKILL in the middle of step 2: what was ended is whole in both ranks, and agrees.

    Rank 0 may still have been waiting for the gradients of step 1.
    """
    assert jobs[1]["killed"].code != 0
    run, whole = open_run(root / "killed/run"), open_run(root / "shared/run")
    assert [run.completed(step, 1) for step in (0, 1, 2)] == [True, True, False]
    assert run.completed(0, 0)
    ended = [(0, 0), (0, 1), (1, 1)]
    for step, rank in ended:
        names = [entry.name for entry in run.entries(step=step, rank=rank)]
        assert names == [entry.name for entry in whole.entries(step=step, rank=rank)]
        for phase in PHASES:
            dump = read_json(root / f"killed/run/{phase}/step{step}/rank{rank}/dump.json")
            assert set(dump["data"]) <= set(names)
    assert run.problems == []
    assert not run.finished
    result = compare_runs(root / "shared/run", root / "killed/run")
    found = [f for f in result.findings if (f.step, f.rank) in ended]
    assert {f.status.value for f in found} == {"identical"}
    # Where rank 0 could say of what it stopped, what it did not reach is coverage.
    assert {f.status.value for f in result.findings} <= {"identical", "only_in_a"}


def test_ranks_that_see_different_directories_are_told(jobs, root, cli):
    """Each rank warns that the other writes elsewhere; `show` and `compare` say it too."""
    for rank in (0, 1):
        (line,) = [
            line for line in jobs[1]["apart"].said[rank].splitlines() if "have not begun" in line
        ]
        assert f"1 of the 2 ranks have not begun to write into {root / f'node{rank}'}" in line
        assert "mindrlhf-msprobe merge" in line
        assert open_run(root / f"node{rank}").missing_ranks == [1 - rank]
    assert "have not begun" not in "".join(jobs[1]["shared"].said.values())
    assert "recorded nothing here: rank 1 of the job" in cli("show", root / "node0").out
    result = compare_runs(root / "node0", root / "shared/run")
    assert any("1 rank of the job (1) recorded nothing" in note for note in result.notes)


def test_what_two_nodes_recorded_apart_is_merged(root, tmp_path, cli):
    """The merged run is what one shared directory would have been."""
    merged = tmp_path / "merged"
    nodes = [str(root / "node0"), str(root / "node1")]
    assert "ranks 0-1, steps 0-2" in cli("merge", *nodes, "-o", merged).out
    result = compare_runs(root / "shared/run", merged)
    assert result.verdict.status is Outcome.IDENTICAL
    assert (result.verdict.ranks, result.problems) == (2, ())

    def files(directory):
        return {str(p.relative_to(directory)) for p in directory.rglob("*")}

    assert files(merged) == files(root / "shared/run")
    assert open_run(merged).missing_ranks == []
    shutil.rmtree(merged)
    assert open_run(root / "node0").entries()


SIGSEGV, SIGKILL = -11, -9


@pytest.mark.parametrize(
    ("codes", "done", "expected"),
    [
        ([0], (0, 1), 0),
        ([SIGSEGV], (0, 1), 0),
        ([0, SIGSEGV], (0, 1), 0),
        ([SIGSEGV], (0,), SIGSEGV),
        ([SIGKILL], (0, 1), SIGKILL),
        ([1], (0, 1), 1),
        ([SIGSEGV, 1], (0, 1), SIGSEGV),
    ],
    ids=str,
)
def test_only_a_crash_behind_the_report_of_all_ranks_is_no_failure(
    monkeypatch, codes, done, expected
):
    """It is counted; what crashes, fails or is killed before a rank is done fails the job."""
    monkeypatch.setattr("jobs.CRASHED_AT_EXIT", counted := [])
    assert _code("job", codes, {rank: f"DONE {rank}\n" for rank in done}) == expected
    assert counted == (["job"] if expected == 0 and any(codes) else [])


def test_a_job_that_crashes_at_exit_has_succeeded(jobs, root):
    """Rank 1 kills itself with SIGSEGV where MindSpore may: when all is done."""
    assert jobs[1]["crashed"].code == 0
    CRASHED_AT_EXIT.remove("crashed job")  # this one was planned
    run = open_run(root / "crashed/run")
    assert (run.finished, run.ranks, run.problems) == (True, [0, 1], [])


LAYOUTS = {
    "stages": "{axes: {pp: 2}, shift: {pp: {layers: [0, 2]}}}",
    "contexts": r"{axes: {cp: 2}, shards: {'gather.*backward.*input': {cp: mean}}}",
    "experts": r"""{axes: {dp: 1, ep: 2}, shift: {ep: {experts: [0, 2]}},
        shards: {'back.*forward.*input': {ep: partial}, 'rows.*backward.*input': {ep: mean}},
        scale: {'back.*backward.*output': 0.5}}""",
    "tensors": (
        r"{axes: {tp: 2}, shards: {'down.*forward.*output|reduce.*forward.*input': {tp: partial}}}"
    ),
    "samples": "{axes: {dp: 2}}",
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the run of one rank that does all the work."""
    path = tmp_path_factory.mktemp("alone") / "run"
    train_split({"dump_path": str(path)}, "tensors")
    return path


@pytest.mark.parametrize("by", ["tensors", "samples"])
def test_two_ranks_that_divide_the_work_agree_with_one(jobs, root, alone, tmp_path, by):
    """By a sum of two parts, or by two halves of a batch: but for the rounding of sums."""
    (tmp_path / "layout.yaml").write_text(LAYOUTS[by])

    result = compare_runs(
        alone,
        root / f"by {by}/run",
        layout=tmp_path / "layout.yaml",
        tolerance=Tolerance(rtol=1e-4, atol=1e-6),
    )

    assert result.verdict.status is Outcome.WITHIN_TOLERANCE, result.verdict
    directions = {f.record.split(".forward")[0] != f.record for f in result.findings}
    assert directions == {True, False}
    assert not result.verdict.coverage


def test_the_rank_whose_part_is_wrong_is_named(jobs, root, alone, tmp_path):
    (tmp_path / "layout.yaml").write_text(LAYOUTS["tensors"])

    result = compare_runs(
        alone,
        root / "one rank off/run",
        layout=tmp_path / "layout.yaml",
        tolerance=Tolerance(rtol=1e-4, atol=1e-6),
    )

    first = result.verdict.first_divergence
    assert (first.step, first.record) == (1, "Cell.up.Linear.forward.0.parameters.weight")
    assert "the part of rank 1 differs, not that of rank 0" in " ".join(map(str, first.reasons))


@pytest.mark.parametrize(
    ("by", "weight"),
    [
        ("stages", "layers.3.up.Linear"),
        ("contexts", "layers.1.k.Linear"),
        ("experts", "layers.1.experts.3.up.Linear"),
    ],
)
def test_stages_contexts_and_experts_that_two_ranks_divide(jobs, root, tmp_path, by, weight):
    """Forward, backward and gradients of weights; a weight of rank 1 that is wrong is named."""
    alone = tmp_path / "alone"
    train_divided({"dump_path": str(alone)}, by)
    layout = tmp_path / "layout.yaml"
    layout.write_text(LAYOUTS[by])
    how = {"layout": layout, "tolerance": Tolerance(rtol=1e-4, atol=1e-6), "workers": 1}

    same = compare_runs(alone, root / f"by {by}/run", **how)
    off = compare_runs(alone, root / f"by {by} off/run", **how)

    assert same.verdict.status in (Outcome.IDENTICAL, Outcome.WITHIN_TOLERANCE), same.verdict
    assert not same.verdict.coverage
    kinds = {f.entry.split(".")[-2] for f in same.findings}
    assert kinds == {"forward", "backward", "parameters_grad"}
    first = off.verdict.first_divergence
    assert first.record == f"Cell.{weight}.forward.0.parameters.weight"
    assert "in B the part of rank 1 differs" in " ".join(map(str, first.reasons))
