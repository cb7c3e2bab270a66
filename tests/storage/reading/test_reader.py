"""A run as an object: our runs, also damaged ones, and msprobe's dumps in every layout."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers.runs import MSPROBE_DATA, PHASES, record_training

from mindrlhf_msprobe.common.message import as_message
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.reading.reader import Problem, open_run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return the directory of a whole run with full tensors, which no test changes."""
    root = tmp_path_factory.mktemp("run")
    return record_training(root, ranks=(0, 1), tokens=1, task="tensor")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return the directory of a run of one rank and fewer phases."""
    return record_training(
        tmp_path_factory.mktemp("small"),
        task="tensor",
        actor_infer_dump=False,
        actor_train_dump=True,
        reference_dump=False,
    )


@pytest.fixture
def damaged(small, tmp_path):
    """Return a copy of the run that a test may damage."""
    return shutil.copytree(small, tmp_path / "run", copy_function=shutil.copyfile)


JOURNAL = "actor_update/step0/rank0/records.jsonl"


def test_a_part_of_a_run_and_a_directory_of_runs_are_said_to_be_that(tmp_path):
    """Both are given by mistake: the answer names what to give."""
    run = record_training(tmp_path / "runs" / "a", steps=1)
    for part in ("run.json", "data", "data/advantages", "actor_update/step0/rank0/records.jsonl"):
        with pytest.raises(RunError, match=rf"is a part of the run {run}\. Give that one"):
            open_run(run / part)
    with pytest.raises(RunError, match=r"is not a run, but holds runs: a\. Give one of them"):
        open_run(tmp_path / "runs")


def test_a_run_says_what_it_holds(recorded):
    """Steps, phases in the order of a step, ranks and keys are known without reading them."""
    run = open_run(recorded)
    assert (run.steps, run.phases, run.ranks) == ([0, 1], PHASES, [0, 1])
    assert {"prompts", "rewards", "loss"} <= set(run.keys)
    assert run.finished
    assert run.config().task == "tensor"
    assert run.problems == []


def test_entries_can_be_chosen_and_come_as_they_began(recorded):
    """Phase, step and rank choose entries; containers come before their children."""
    run = open_run(recorded)
    entries = run.entries(phase="reference_compute_log_prob", step=1, rank=1)
    assert [e.cell for e in entries][:4] == ["root", "embed", "layers.0", "layers.0.attention"]
    assert {(e.phase, e.step, e.rank) for e in entries} == {("reference_compute_log_prob", 1, 1)}
    assert len(run.entries()) == len({(e.name, e.phase, e.step, e.rank) for e in run.entries()})
    container = entries[2]
    child = entries[3]
    assert child.parent == container.name
    assert container.seq < child.seq < child.end < container.end


def test_one_phase_or_one_step_can_be_opened_alone(recorded):
    """A phase's directory and a step's directory open like a run of their own."""
    phase = open_run(recorded / "actor_update")
    assert (phase.phases, phase.steps, phase.ranks) == (["actor_update"], [0, 1], [0, 1])
    step = open_run(recorded / "actor_update/step1")
    assert (step.phases, step.steps, step.ranks) == (["actor_update"], [1], [0, 1])
    assert len(step.entries(rank=0)) == len(phase.entries(step=1, rank=0))


# Damaged runs.


def changed(path, **fields):
    """Change fields of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_the_torn_last_line_of_a_killed_run_is_left_out_silently(damaged):
    """An open step is readable up to the line that was cut short."""
    (attempt,) = open_run(damaged).manifests[0]["attempts"]
    open_step = [{**attempt, "last_completed_step": None}]
    changed(damaged / "run.json", attempts=open_step, recorded={})  # it is listed when it ends
    journal = damaged / JOURNAL
    os.truncate(journal, journal.stat().st_size - 30)
    run = open_run(damaged)
    assert len(run.entries("actor_update", step=0, rank=0)) == 8
    assert run.problems == []


def test_a_damaged_line_before_the_last_is_a_problem_even_in_an_open_step(damaged):
    """A kill tears only the last line: other damage is reported in any step."""
    (attempt,) = open_run(damaged).manifests[0]["attempts"]
    changed(damaged / "run.json", attempts=[{**attempt, "last_completed_step": None}])
    lines = (damaged / JOURNAL).read_bytes().split(b"\n")
    lines[2] = lines[2][:20]
    (damaged / JOURNAL).write_bytes(b"\n".join(lines))
    run = open_run(damaged)
    assert len(run.entries("actor_update", step=0, rank=0)) == 8
    assert "1 damaged line" in str(run.problems[0])


HEAD = b'{"entry": "Cell.x.Y.forward.0", "seq": 1, "end": 2, "parent": null, "opening": 0, '


@pytest.mark.parametrize(
    "line",
    [
        b"\x00\xff",
        b"[]",
        b"3",
        b'{"entry": 3, "seq": 0}',
        b'{"entry": "Cell.x.Y.forward.0"}',
        b'{"entry": "Cell.x.Y.forward.0", "seq": 1, "end": 2, "parent": null}',
        b'{"entry": "Cell.x.Y.forward.0", "seq": "0"}',
        HEAD + b'"frames": ["f"]}',
        HEAD + b'"stack": []}',
        HEAD + b'"stack": 99999, "frames": 3}',
        b'{"entry": "Cell.x.Y.forward.0", "seq": 1, "end": 2, "opening": 0, "parent": []}',
        HEAD + b'"token": "x"}',
        b'{"entry": "Cell.x.Y.forward.0", "seq": 1, "end": 2, "parent": null, "opening": {}}',
        b'{"entry": "Cell.x.Y.forward.0", "seq": 1, "parent": null, "opening": 0, "end": "x"}',
        HEAD + b'"output": 3}',
        HEAD + b'"output": [{"type": "T", "shape": "x"}]}',
        HEAD.replace(b"forward", b"parameters_grad") + b'"weight": [[3]]}',
        HEAD + b'"output": ' + b"[" * 900 + b"]" * 900 + b"}",
        HEAD + b'"output": ' + b"[" * 10**5 + b"}",
        HEAD.replace(b"x.Y", b"embed.Dense")[:-2] + b"}",
    ],
    ids=lambda line: line[-40:].decode("latin1"),
)
def test_a_damaged_line_of_a_finished_step_is_a_problem_at_its_place(damaged, line):
    """Damage is reported with phase, step and rank; the other lines stay readable."""
    with open(damaged / JOURNAL, "ab") as file:
        file.write(line + b"\n")
    run = open_run(damaged)
    assert len(run.entries("actor_update", step=0, rank=0)) >= 9
    if b"[[[" in line and line.endswith(b"]}"):
        return  # 900 nested lists without a value may as well be read
    (problem,) = run.problems
    assert (problem.phase, problem.step, problem.rank) == ("actor_update", 0, 0)


def test_a_broken_dump_json_is_a_problem_at_its_place(tmp_path):
    """An empty or cut dump.json, as SIGKILL leaves msprobe's, is reported with its place."""
    for number, keep in enumerate((0, 100)):
        root = shutil.copytree(MSPROBE_DATA / "statistics_a", tmp_path / str(number))
        os.truncate(root / "step1/proc14513/dump.json", keep)
        run = open_run(root)
        assert run.steps == [0, 1]
        assert run.entries(step=1) == []
        (problem,) = run.problems
        assert (problem.phase, problem.step, problem.rank) == ("dump", 1, 0)
        assert "dump.json is not valid JSON" in str(problem)
        assert len(run.entries(step=0)) > 30


@pytest.mark.parametrize("content", ["[]", "{}", '{"data": []}', '{"data": {"x": 3}}', "\udc80"])
def test_a_dump_json_of_another_form_is_a_problem(tmp_path, content):
    """JSON that is no dump is reported, never taken for an empty one."""
    directory = tmp_path / "step0/rank0"
    directory.mkdir(parents=True)
    (directory / "dump.json").write_text(content, errors="surrogateescape")
    run = open_run(tmp_path)
    assert run.entries() == []
    assert len(run.problems) == 1


def test_msprobes_side_files_may_be_missing_or_broken(tmp_path):
    """Without construct.json and stack.json the entries are read in dump.json's order."""
    root = shutil.copytree(MSPROBE_DATA / "statistics_a", tmp_path / "a")
    (root / "step0/proc14513/construct.json").write_text('["x"]')
    (root / "step0/proc14513/stack.json").write_text('{"0": 3}')
    dump = json.loads((root / "step0/proc14513/dump.json").read_text())
    run = open_run(root)
    assert [e.name for e in run.entries(step=0)] == list(dump["data"])
    assert [problem.path.name for problem in run.problems] == ["construct.json", "stack.json"]
    for name in ("construct.json", "stack.json"):
        (root / "step0/proc14513" / name).unlink()
    run = open_run(root)
    assert [e.name for e in run.entries(step=0)] == list(dump["data"])
    assert run.problems == []


@pytest.mark.parametrize(
    "content",
    [
        {"world": 3, "attempts": 3, "config": 3},
        {"attempts": [3, {"first_step": "x"}]},
        {"config": {"msprobe": 3}},
        {"config": {"unknown": 3}},
    ],
)
def test_a_manifest_of_another_form_says_nothing(damaged, content):
    """A manifest with unknown content is read without an error, and nothing is taken from it."""
    (damaged / "run.json").write_text(json.dumps(content))
    run = open_run(damaged)
    assert run.config() is None
    assert not run.completed(0)
    assert run.entries(rank=0)


@pytest.mark.parametrize(
    "content", [None, "", "[]", "{}", '{"data": 3}', '{"data": {"shape": [1], "max": {}}}']
)
def test_a_broken_description_of_key_data_is_unreadable(damaged, content):
    """Key data whose JSON is damaged are there, marked unreadable.

    So are those without one: in a finished step no save can have been cut off.
    """
    described = damaged / "data/loss/step0/rank0/micro_step0/loss.json"
    described.unlink() if content is None else described.write_text(content)
    why = why_loss_is_unreadable(damaged)
    assert why
    assert content is not None or any("missing" in text for text in why)


def why_loss_is_unreadable(run):
    """Return why of the first loss records cannot be read."""
    (datum,) = open_run(run).key_data("loss", step=0, rank=0)
    return [str(record.leaf.why) for record in datum.records if record.leaf.why]


# Hostile runs: dumps from elsewhere are data.


def set_data_name(root, name):
    lines = [json.loads(line) for line in (root / JOURNAL).read_text().splitlines()]
    lines[0]["output"][0]["data_name"] = name
    (root / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in lines))
    entry = next(
        e
        for e in open_run(root).entries("actor_update", step=0, rank=0)
        if e.name == lines[0]["entry"]
    )
    return next(record for record in entry.records if record.io == "output")


@pytest.mark.parametrize(
    "name",
    [
        *("../../../../../secret.npy", "/etc/passwd", "..", ".", "", "a\0b", "\udc80", "x/y.npy"),
        *("missing.npy", "x" * 300),
    ],
)
def test_a_data_name_never_leaves_the_directory(damaged, name):
    """A file name that leads elsewhere, or nowhere, makes the record unreadable."""
    np.save(damaged.parent / "secret.npy", np.zeros(3))
    record = set_data_name(damaged, name)
    with pytest.raises(ArrayFileError):
        record.array()


def test_a_link_out_of_the_run_is_not_opened_and_one_inside_is(damaged):
    """An array elsewhere makes the record unreadable; one of the run is as good as the file."""
    np.save(damaged.parent / "secret.npy", np.zeros((2, 4, 6), np.float32))
    link = damaged / "actor_update/step0/rank0/dump_tensor_data/link.npy"
    link.symlink_to(damaged.parent / "secret.npy")
    with pytest.raises(ArrayFileError, match="outside the run"):
        set_data_name(damaged, "link.npy").array()
    link.unlink()
    link.symlink_to("Cell.embed.Dense.forward.0.output.0.npy")
    assert set_data_name(damaged, "link.npy").array().size


RANK, SAVE = "actor_update/step0/rank0", "data/loss/step0/rank0/micro_step0"


def and_around(path, *inside):
    """Return a path with what is around it, and what is inside."""
    return [path, *map(str, [*Path(path).parents][:-1]), *(f"{path}/{name}" for name in inside)]


def linked_elsewhere(run, name):
    outside = run.parent / "outside"
    shutil.move(run / name, outside)
    (run / name).symlink_to(outside)


@pytest.mark.parametrize("name", and_around(RANK, "dump_tensor_data", "records.jsonl"))
def test_layer_data_behind_a_link_are_a_problem(damaged, name):
    """Layer data outside the run are not read, and that is reported, never passed over."""
    linked_elsewhere(damaged, name)
    run = open_run(damaged)
    assert run.entries("actor_update", step=0, rank=0) == []
    assert [(p.phase, p.step, p.rank) for p in run.problems] == [("actor_update", 0, 0)]
    assert "leaves the run" in run.problems[0].message


@pytest.mark.parametrize("name", and_around(SAVE, "loss.json", "loss.npy"))
def test_key_data_behind_a_link_are_unreadable(damaged, name):
    """Key data outside the run are listed as unreadable."""
    linked_elsewhere(damaged, name)
    assert why_loss_is_unreadable(damaged)


NAMED = ["run.json", "run.rank1.json", "configurations.json"]


LEAVES = "is a symbolic link that leaves the run's directory"


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "is not a regular file"),
        (os.mkdir, "is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), LEAVES),
        (lambda path: path.symlink_to(path.parents[1] / "outside.json"), LEAVES),
        (lambda path: path.symlink_to("gone"), "cannot be read: No such file or directory"),
    ],
    ids=["fifo", "directory", "zero", "outside", "dangling"],
)
def test_what_is_no_file_of_the_run_is_not_opened(damaged, name, make, message):
    """A pipe, a directory, a device or a link out of the run in a file's place is a problem.

    Nothing waits for it, nothing of it is read, and the rest of the run is.
    """
    (damaged.parent / "outside.json").write_text('{"outside": 1, "state": "finished"}')
    (damaged / name).unlink(missing_ok=True)
    make(damaged / name)
    run = open_run(damaged)
    if name == "configurations.json":
        assert run.problems == []
        assert run.configurations() is None
        assert run.configurations() is None
    assert len(run.entries(rank=0)) == 72
    (problem,) = run.problems
    assert (problem.path, problem.message) == (damaged / name, message)
    assert (problem.phase, problem.step, problem.rank) == (None, None, None)
    assert "outside" not in str(run.manifests)


@pytest.mark.parametrize("name", NAMED)
def test_a_manifest_behind_a_link_inside_the_run_is_read(damaged, name):
    """A link to another file of the run is as good as the file."""
    (damaged / "kept.json").write_text('{"world": {"rank": 1}}')
    (damaged / name).unlink(missing_ok=True)
    (damaged / name).symlink_to("kept.json")
    run = open_run(damaged)
    read = [*run.manifests, run.configurations()]
    assert {"world": {"rank": 1}} in read
    assert all("not a whole manifest" in problem.message for problem in run.problems)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(damaged):
    """Named pipes where JSON should be do not make the reader wait for ever."""
    names = [f"{RANK}/{name}" for name in ("construct.json", "stack.json", "records.jsonl")]
    for name in (*names, f"{SAVE}/loss.json"):
        (damaged / name).unlink()
        os.mkfifo(damaged / name)
    assert len(open_run(damaged).entries("actor_update", step=0, rank=0)) == 9
    assert why_loss_is_unreadable(damaged)


def test_entries_one_at_a_time_are_those_that_can_be_read(damaged):
    """In the order of time; of damaged lines, however many, it is said once which they are."""
    journal = damaged / JOURNAL
    whole = open_run(damaged).entries("actor_update", 0, 0)
    assert [*open_run(damaged).each_entry("actor_update", 0, 0)] == whole
    lines = journal.read_bytes().split(b"\n")
    lines[1:4] = [line[: len(line) // 2] for line in lines[1:4]]
    journal.write_bytes(b"\n".join(lines))
    run = open_run(damaged)
    left = [*run.each_entry("actor_update", 0, 0)]
    assert len(left) == len(whole) - 3
    assert sum("line" in str(problem) for problem in run.problems) == 1


def test_two_directories_of_one_step_are_a_problem(damaged):
    """`step1` beside `step01`: one is read, the other is reported."""
    shutil.copytree(damaged / "actor_update/step1", damaged / "actor_update/step01")
    run = open_run(damaged)
    assert any("the same step" in str(problem) for problem in run.problems)


def _open_to_all():
    """Return a directory for temporary files that every user may enter."""
    for directory in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp")):
        entered = (directory, *directory.resolve().parents)
        if all(path.is_dir() and path.stat().st_mode & 0o001 for path in entered):
            return directory
    pytest.skip("no directory for temporary files that every user may enter: set TMPDIR to one")


@pytest.fixture
def unprivileged(small):
    """Yield a copy of the run, read as a user to whom permissions apply."""
    directory = Path(tempfile.mkdtemp(dir=_open_to_all()))
    directory.chmod(0o755)
    run = shutil.copytree(small, directory / "run", copy_function=shutil.copyfile)
    user = os.geteuid()
    try:
        if user == 0:
            for path in run.rglob("*"):
                path.chmod(0o755 if path.is_dir() else 0o644)
            run.chmod(0o755)

        def forbid(name):
            (run / name).chmod(0)
            if user == 0:
                os.seteuid(65534)
            return run

        yield forbid
    finally:
        os.seteuid(user)
        for path in [run, *run.rglob("*")]:
            path.chmod(0o755)
        shutil.rmtree(directory)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("actor_update", ("actor_update", None, None, False, None)),
        ("actor_update/step0", ("actor_update", 0, None, False, None)),
        ("actor_update/step0/rank0", ("actor_update", 0, 0, False, None)),
        ("actor_update/step0/rank0/records.jsonl", ("actor_update", 0, 0, False, None)),
        ("data", (None, None, None, True, None)),
        ("data/loss", (None, None, None, True, "loss")),
        ("data/loss/step0", (None, 0, None, True, "loss")),
        ("data/loss/step0/rank0", (None, 0, 0, True, "loss")),
    ],
)
def test_what_may_not_be_read_is_a_problem_and_the_rest_is_read(unprivileged, name, place):
    """A directory or file without permission is reported with all that may lie in it."""
    run = open_run(unprivileged(name))
    run.entries()
    run.key_data()
    (problem,) = run.problems
    found = (problem.phase, problem.step, problem.rank, problem.key_data, problem.key)
    assert found == place
    assert problem.concerns(StepPlace(0, 0))
    assert problem.concerns(StepPlace(1, 0)) == (place[1] is None)
    assert run.places == {(0, 0), (1, 0)}
    assert run.entries("critic_update")
    assert str(problem).count(str(problem.path)) == 1


@pytest.mark.parametrize(
    ("forbidden", "opened", "place"),
    [
        ("actor_update/step0", "actor_update", ("actor_update", 0, None)),
        ("actor_update/step1/rank0", "actor_update/step1", ("actor_update", 1, 0)),
    ],
)
def test_a_place_in_a_part_of_a_run_is_told_right(unprivileged, forbidden, opened, place):
    """What cannot be listed, of a part that was opened alone, keeps the names of all around it."""
    problems = open_run(unprivileged(forbidden) / opened).problems
    assert {(p.phase, p.step, p.rank) for p in problems} == {place}


def test_a_run_of_which_nothing_can_be_listed_has_a_place(tmp_path):
    """Where nothing tells the steps, the loss stands at step 0: a comparison shows it there."""
    (tmp_path / "run.json").write_text("{}")
    run = open_run(tmp_path)
    assert run.places == set()
    run.problems.append(Problem(tmp_path, as_message("lost"), "actor_update"))
    assert run.places == {(0, 0)}


@pytest.mark.parametrize("name", [SAVE, f"{SAVE}/loss.json"])
def test_key_data_that_may_not_be_read_are_unreadable(unprivileged, name):
    """Key data without permission are there, marked unreadable."""
    assert why_loss_is_unreadable(unprivileged(name))


def test_a_run_that_may_not_be_read_at_all_is_an_error(unprivileged):
    """A directory without permission is a clear error."""
    with pytest.raises(RunError, match="cannot be read"):
        open_run(unprivileged("."))


# msprobe's dumps.


@pytest.mark.parametrize("name", ["statistics_a", "md5_a"])
def test_msprobes_layer_dumps_are_read(name):
    """Entries of every direction, their statistics and call stacks are read."""
    run = open_run(MSPROBE_DATA / name)
    assert (run.phases, run.steps, run.ranks, run.keys) == (["dump"], [0, 1], [0], [])
    entries = run.entries(step=0)
    assert {e.direction for e in entries} == {"forward", "backward", "parameters_grad"}
    assert all(r.leaf.is_tensor or r.leaf.value is None for e in entries for r in e.records)
    assert any("File" in frame for e in entries for frame in e.stack)
    assert run.problems == []
    assert run.completed(0)


def test_msprobes_order_is_that_of_the_computation():
    """Containers begin before and end after their children; backward follows forward."""
    entries = {e.name: e for e in open_run(MSPROBE_DATA / "statistics_a").entries(step=0)}
    block = entries["Cell.layers.0.Block.forward.0"]
    child = entries["Cell.layers.0.mlp.fc1.Dense.forward.0"]
    later = entries["Cell.layers.1.mlp.fc1.Dense.forward.0"]
    backward = entries["Cell.layers.1.mlp.fc1.Dense.backward.0"]
    assert block.seq < child.seq < child.end < block.end < later.seq < later.end < backward.seq
    assert child.parent == "Cell.layers.0.mlp.Mlp.forward.0"


def test_msprobes_tensor_dumps_are_read():
    """The arrays of a tensor dump are those its statistics describe."""
    for entry in open_run(MSPROBE_DATA / "tensor_a").entries():
        for record in entry.records:
            assert record.array().max() == pytest.approx(record.leaf.max)


def test_msprobes_key_data_are_read():
    """Single tensors, lists and dicts, with micro-steps and without, are read with their dtype."""
    run = open_run(MSPROBE_DATA / "key_data_a")
    assert run.keys == ["dict", "ex", "ex3", "fp32", "list", "naninf", "uint8"]
    paths = {d.key: [r.path for r in d.records] for d in run.key_data(step=1)}
    assert (paths["dict"], paths["list"], paths["ex"]) == (["a", "b"], ["0", "1"], [""])
    micro_steps = {k: [d.micro_step for d in run.key_data(k, step=0)] for k in run.keys}
    assert micro_steps["fp32"] == [0, 1]
    assert micro_steps["ex"] == [0]
    assert micro_steps["ex3"] == [3]
    (datum,) = run.key_data("uint8", step=0)
    assert datum.records[0].leaf.dtype == "UInt8"
    (datum,) = run.key_data("naninf", step=0)
    assert math.isinf(datum.records[0].leaf.max)
    assert np.isnan(datum.value).any()
    assert run.problems == []


def test_the_older_layout_of_key_data_is_read(tmp_path):
    """`rank` without a number, no micro-step, and list elements as `<key>0.npy`."""
    directory = tmp_path / "data/responses/step0/rank"
    directory.mkdir(parents=True)
    for index in range(11):
        np.save(directory / f"responses{index}.npy", np.full(2, index))
    np.save(directory / "unrelated.npy", np.zeros(1))
    (datum,) = open_run(tmp_path).key_data()
    assert (datum.key, datum.step, datum.rank, datum.micro_step) == ("responses", 0, 0, 0)
    assert [r.path for r in datum.records] == [str(i) for i in range(11)]
    assert [int(value[0]) for value in datum.value] == list(range(11))


def test_phases_of_the_older_layout_are_read(tmp_path):
    """A phase's msprobe dump in a directory of its own is that phase."""
    shutil.copytree(MSPROBE_DATA / "statistics_a", tmp_path / "run/actor_update")
    run = open_run(tmp_path / "run")
    assert run.phases == ["actor_update"]
    assert run.entries("actor_update", step=1)
