"""What nodes without shared storage recorded, put together: the whole, or nothing and why."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.programs import read_json
from helpers.runs import MSPROBE_DATA, record_training

from mindrlhf_msprobe import compare_runs, open_run
from mindrlhf_msprobe.errors import MsprobeError, RunError, UsageError
from mindrlhf_msprobe.findings import Outcome
from mindrlhf_msprobe.storage.manifest.merge import merge_runs

pytestmark = pytest.mark.slow

WORLD = {"RANK_SIZE": "4", "MS_SCHED_HOST": "10.0.0.1", "MS_SCHED_PORT": "8118"}


@pytest.fixture(autouse=True)
def _one_job(monkeypatch):
    for name, value in WORLD.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a directory with `shared` (ranks 0 to 3), `node0` (0, 1) and `node1` (2, 3)."""
    root = tmp_path_factory.mktemp("nodes")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in WORLD.items():
            patch.setenv(name, value)
        for name, ranks in (("shared", range(4)), ("node0", (0, 1)), ("node1", (2, 3))):
            record_training(root / name, ranks=ranks, tokens=1, task="tensor")
            (root / name / "configurations.json").write_text('{"actor": {"layers": 2}}')
    return root


@pytest.fixture
def nodes(recorded, tmp_path):
    """Return copies of the two nodes' directories, and where they may be merged."""
    copies = [shutil.copytree(recorded / name, tmp_path / name) for name in ("node0", "node1")]
    return [*copies, tmp_path / "merged"]


def files(directory):
    return {str(p.relative_to(directory)) for p in directory.rglob("*")}


def nothing_left(nodes):
    """Tell whether a refused merge left neither its output nor a part of it."""
    return {p.name for p in nodes[0].parent.iterdir()} <= {"node0", "node1"}


def test_the_result_is_one_shared_directory(recorded, nodes):
    """The same files with the same content, read and compared as one run."""
    merged = merge_runs(nodes[:2], nodes[2])
    assert (merged.ranks, merged.steps, merged.missing) == ((0, 1, 2, 3), (0, 1), ())
    assert (merged.copied, merged.left_out, merged.remarks) == (0, (), ())
    assert files(nodes[2]) == files(recorded / "shared")
    for path in (recorded / "shared").rglob("*"):
        if path.is_file() and path.suffix in (".npy", ".jsonl"):
            assert (nodes[2] / path.relative_to(recorded / "shared")).read_bytes() == (
                path.read_bytes()
            )
    run = open_run(nodes[2])
    assert (run.ranks, run.finished, run.problems, run.missing_ranks) == (
        [0, 1, 2, 3],
        True,
        [],
        [],
    )
    assert run.configurations() == {"actor": {"layers": 2}}
    result = compare_runs(recorded / "shared", nodes[2])
    assert result.verdict.status is Outcome.IDENTICAL
    assert (result.problems, result.notes, result.preflight.differences) == ((), (), ())


def test_any_number_in_any_order(recorded, tmp_path):
    """Four nodes of one rank each, the last one first."""
    roots = [
        record_training(tmp_path / f"node{rank}", ranks=(rank,), tokens=1, task="tensor")
        for rank in range(4)
    ]
    merge_runs(roots[::-1], tmp_path / "merged")
    assert compare_runs(recorded / "shared", tmp_path / "merged")


def test_files_are_linked_and_the_inputs_stay(nodes):
    """No room is taken on the same disk; removing an input leaves the merged run whole."""
    before = {path: files(path) for path in nodes[:2]}
    merge_runs(nodes[:2], nodes[2])
    name = "actor_update/step0/rank2/records.jsonl"
    assert (nodes[1] / name).stat().st_ino == (nodes[2] / name).stat().st_ino
    assert {path: files(path) for path in nodes[:2]} == before
    shutil.rmtree(nodes[1])
    assert open_run(nodes[2]).entries(rank=2)


def test_files_are_copied_where_they_cannot_be_linked(nodes, monkeypatch):
    """On another file system, or one without links, they are copied."""

    def link(*args, **options):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    merged = merge_runs(nodes[:2], nodes[2])
    assert merged.copied > 100
    assert open_run(nodes[2]).entries(rank=3)
    assert compare_runs(nodes[0], nodes[2]).problems == ()


def test_nodes_that_are_missing_are_told(nodes, cli):
    """Two of three nodes: what is there is merged, what is not is named."""
    shutil.rmtree(nodes[1])
    record_training(nodes[1], ranks=(3,), tokens=1, task="tensor")
    said = cli("merge", *nodes[:2], "-o", nodes[2]).out
    assert "ranks 0-1, 3, steps 0-1" in said
    assert "ranks 2 of the job are in none of them" in said


def test_what_belongs_to_no_run_is_left_out(nodes, cli):
    """Notes beside the phases are not taken along, and are named."""
    (nodes[0] / "notes.txt").write_text("x")
    (nodes[0] / "old").mkdir()
    (nodes[0] / ".run.json.reserve").write_bytes(b"0")
    (nodes[0] / "actor_update/step0/rank0/.dump.json.1.tmp").write_bytes(b"0")
    said = cli("merge", *nodes[:2], "-o", nodes[2], "--json")
    assert "2 files or directories belong to no run and were left out" in said.err
    assert len(json.loads(said.out)["left_out"]) == 2
    assert not [p for p in nodes[2].rglob("*") if p.name.startswith((".", "notes"))]
    assert not (nodes[2] / "old").exists()


def test_other_configurations_are_told(nodes):
    """configurations.json of the lowest rank is taken; that another differs is said."""
    (nodes[1] / "configurations.json").write_text('{"actor": {"layers": 3}}')
    (remark,) = merge_runs([nodes[1], nodes[0]], nodes[2]).remarks
    assert str(nodes[1] / "configurations.json") in str(remark)
    assert open_run(nodes[2]).configurations() == {"actor": {"layers": 2}}


def test_a_killed_job_can_be_merged(nodes):
    """What was never closed stays what it is: running."""
    for rank in (2, 3):
        path = nodes[1] / f"run.rank{rank}.json"
        content = read_json(path)
        content["state"] = content["attempts"][0]["state"] = "running"
        path.write_text(json.dumps(content))
    merge_runs(nodes[:2], nodes[2])
    assert not open_run(nodes[2]).finished


def test_a_rank_that_went_on_elsewhere(tmp_path):
    """Ranks that recorded steps 0 and 1 on one node and, after a restart, 2 and 3 on another."""
    for name in ("before", "after"):
        record_training(tmp_path / name, ranks=(0, 1), tokens=1)
    for path in sorted((tmp_path / "after").rglob("step*"), reverse=True):
        path.rename(path.with_name(f"step{int(path.name[4:]) + 2}"))
    for name in ("run.json", "run.rank1.json"):
        attempt = read_json(tmp_path / "after" / name)["attempts"][0]
        later = {"first_step": 2, "last_completed_step": 3, "started": "2999-01-01"}
        rewritten(tmp_path / "after" / name, attempts=[{**attempt, **later}], seeds={"numpy": 1})
    merge_runs([tmp_path / "after", tmp_path / "before"], tmp_path / "merged")
    run = open_run(tmp_path / "merged")
    assert (run.steps, run.ranks) == ([0, 1, 2, 3], [0, 1])
    assert all(run.completed(step, rank) for step in range(4) for rank in (0, 1))
    for manifest in run.manifests:
        assert [a.get("first_step") for a in manifest["attempts"]] == [0, 2]
        assert manifest["attempts"][1]["seeds"] == {"numpy": 1}
        assert manifest.get("seeds") != {"numpy": 1}


def test_attempts_keep_what_either_could_not_record(tmp_path):
    """Of every kind of coverage: what the first attempt lacked stays beside what the later did."""
    kinds = {"phases": ("a", "b"), "key_data": ("c", "d"), "mindspore": ("e", "f")}
    for attempt, name in enumerate(("before", "after")):
        record_training(tmp_path / name, tokens=1, steps=1)
        if attempt:
            for path in sorted((tmp_path / name).rglob("step0"), reverse=True):
                path.rename(path.with_name("step1"))
        path = tmp_path / name / "run.json"
        begun = {**read_json(path)["attempts"][0], "started": f"202{attempt}-01-01"}
        coverage = {kind: {names[attempt]: "why"} for kind, names in kinds.items()}
        coverage["graph_mode"] = {"actor": {"cell": name}}
        rewritten(path, coverage=coverage, attempts=[begun])
    merge_runs([tmp_path / "after", tmp_path / "before"], tmp_path / "merged")
    coverage = open_run(tmp_path / "merged").coverage()
    assert {kind: tuple(coverage[kind]) for kind in kinds} == kinds
    assert len(coverage["graph_mode"]["actor"]["cell"]) == 2


def rewritten(path, **changes):
    """Change what a manifest says, by dotted names."""
    content = read_json(path)
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            content[section][key] = value
        else:
            content[section] = value
    path.write_text(json.dumps(content))


def elsewhere(nodes):
    """Move what a rank recorded away, and leave a link to it."""
    path = nodes[1] / "actor_update/step0/rank2"
    path.rename(nodes[0] / "elsewhere")
    path.symlink_to(nodes[0] / "elsewhere")


def in_place_of(path, target):
    """Put a link in the place of a file, or where there is none."""
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def another(run):
    """Put a dump of msprobe in the place of a run."""
    shutil.rmtree(run)
    shutil.copytree(MSPROBE_DATA / "statistics_a", run)


RANK2, RANK3, UPDATE = "run.rank2.json", "run.rank3.json", "actor_update"
LOSS = "data/loss/step0/rank0"
#: What is wrong of two nodes and their output → how it comes about, and what is said.
REFUSED = {
    "other scheduler": (
        lambda a, b, _: rewritten(b / RANK2, world__scheduler="10.0.0.2:8118"),
        r"not of one job: world.scheduler is '10.0.0.1:8118' .* '10.0.0.2:8118'",
    ),
    "other size": (
        lambda a, b, _: rewritten(b / RANK3, world__size=8),
        "not of one job: world.size is 4 .* 8 in the other",
    ),
    "other config": (
        lambda a, b, _: rewritten(b / RANK2, config__step_end=3),
        "not of one job: msprobe_config.step_end is 99 .* 3 in the other",
    ),
    "other schema": (
        lambda a, b, _: rewritten(b / RANK2, schema=2),
        "has the schema 2, this version reads 1",
    ),
    "other rank": (
        lambda a, b, _: rewritten(b / RANK2, world__rank=1),
        "does not say that it is of rank 2",
    ),
    "same step": (
        lambda a, b, _: shutil.copytree(a / UPDATE / "step1/rank1", b / UPDATE / "step1/rank1"),
        "step 1 of rank 1 lies in two of the directories",
    ),
    "same key data": (
        lambda a, b, _: shutil.copytree(a / LOSS, b / LOSS),
        "step 0 of rank 0 lies in two of the directories",
    ),
    "same rank": (
        lambda a, b, _: shutil.copy(a / "run.json", b / "run.json"),
        "are both of rank 0",
    ),
    "broken manifest": (
        lambda a, b, _: (b / RANK2).write_text("{"),
        "run.rank2.json is not valid JSON",
    ),
    "no run": (
        lambda a, b, _: (shutil.rmtree(b), b.mkdir()),
        "is not a run of this package: it holds no run.json",
    ),
    "not there": (lambda a, b, _: shutil.rmtree(b), "node1 does not exist"),
    "msprobe's": (lambda a, b, _: another(b), "is not a run of this package"),
    "output exists": (lambda a, b, merged: merged.mkdir(), "merged exists already"),
    "link to a file": (
        lambda a, b, _: (b / UPDATE / "step0/rank2/extra.npy").symlink_to("/etc/hostname"),
        "extra.npy is a symbolic link",
    ),
    "link to a rank": (lambda *nodes: elsewhere(nodes), "rank2 is a symbolic link"),
    "link to a phase": (
        lambda a, b, _: (b / "reward_compute").symlink_to(a / UPDATE),
        "reward_compute is a symbolic link",
    ),
    "link to a manifest": (
        lambda a, b, _: in_place_of(b / RANK2, a / "run.json"),
        "symbolic link that leaves the run",
    ),
    "link to configurations": (
        lambda a, b, _: in_place_of(a / "configurations.json", "/etc/hostname"),
        "configurations.json is a symbolic link",
    ),
    "pipe": (
        lambda a, b, _: os.mkfifo(b / UPDATE / "step0/rank2/pipe"),
        "pipe is neither a file nor a directory",
    ),
}


@pytest.mark.parametrize(("spoil", "why"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(nodes, spoil, why, cli):
    """Nothing is made, the message says which file or setting is to blame, the exit code is 2."""
    spoil(*nodes)
    made = nodes[2].exists()
    with pytest.raises(MsprobeError, match=why):
        merge_runs(nodes[:2], nodes[2])
    assert cli("merge", *nodes[:2], "-o", nodes[2], code=2).err.startswith(
        "mindrlhf-msprobe merge: "
    )
    assert made or nothing_left(nodes)


def test_inputs_and_output_stand_apart(nodes):
    """One input, an input given twice, nested inputs, an output inside an input: refused."""
    node0, node1, merged = nodes
    for inputs in ([], [node0]):
        with pytest.raises(UsageError, match="expected two or more"):
            merge_runs(inputs, merged)
    for inputs in ([node0, node1, node0], [node0, node0 / "data"]):
        with pytest.raises(UsageError, match="the same directory, or one lies inside"):
            merge_runs(inputs, merged)
    with pytest.raises(RunError, match="lies inside"):
        merge_runs([node0, node1], node1 / "merged")
    assert nothing_left(nodes)


def test_nothing_is_left_of_a_merge_that_fails_midway(nodes, monkeypatch):
    """A full disk in the middle: no output, no part of it, and the reason."""
    done = []

    def link(*args, **options):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    def copy(source, target, **options):
        done.append(target)
        if len(done) > 50:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        Path(target).write_bytes(Path(source).read_bytes())

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(shutil, "copy2", copy)
    with pytest.raises(RunError, match="cannot be made: No space left on device"):
        merge_runs(nodes[:2], nodes[2])
    assert nothing_left(nodes)


def test_a_run_that_is_being_written_is_not_merged(nodes):
    """A job that still runs would go on without the merged run."""
    hold = (
        "import sys; from pathlib import Path;"
        "from mindrlhf_msprobe.storage.writing.directory import RankLock;"
        "lock = RankLock(Path(sys.argv[1]), 2); assert lock.acquire(); print('held', flush=True);"
        "sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", hold, str(nodes[1])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    with pytest.raises(RunError, match=rf"still runs \(process {process.pid} on .*, as rank 2\)"):
        merge_runs(nodes[:2], nodes[2])
    process.communicate()
    merge_runs(nodes[:2], nodes[2])
