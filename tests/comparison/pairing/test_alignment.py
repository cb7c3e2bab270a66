"""Which call of which cell meets which: loops, missing calls, moved cells, hostile dumps."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
from helpers.runs import MSPROBE_DATA, Fault, Recording, record_training

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.comparison.pairing.alignment import align
from mindrlhf_msprobe.findings import Cause, Outcome, Status
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.records import Entry, entry_name

GENERATE = "actor_generate_sequences"
UPDATE = "actor_update"


def looping(path, *, loops, containers=2, openings=1, passes=1, phase=UPDATE, **settings):
    """Record a network whose containers each run a cell `loops` times, then another one once.

    Every value tells its place, so that a call against another one's is `different`.
    """
    recording = Recording(path, **settings)

    def container(at):
        for index in range(loops):
            recording.call("body.inner", "Dense", lambda x: -x, np.full(2, at + index, np.float32))
        recording.call("body.after", "Dense", lambda x: x * 2, np.full(2, at, np.float32))
        return np.full(2, -at, np.float32)

    def network(at):
        for index in range(containers):
            start = np.full(2, at + 10 * index, np.float32)
            recording.call("body", "Block", lambda x, at=at + 10 * index: container(at), start)
        recording.call("tail", "Dense", np.cos, np.full(2, at, np.float32))
        return np.full(2, at, np.float32)

    for opening in range(openings):
        with recording.phase(phase):
            for number in range(passes):
                at = 1000 * opening + 100 * number
                recording.call("root", "Net", lambda x, at=at: network(at), np.full(2, at))
    recording.end_step()
    return recording.close()


def spread_of(result):
    """Return how many findings have each status that occurs."""
    return {status: n for status, n in result.verdict.counts.items() if n}


def only(result, status):
    return [f for f in result.findings if f.status is status]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        {"containers": 3},
        {"containers": 1, "openings": 3},
        {"containers": 2, "openings": 2, "passes": 2},
        {"containers": 1, "passes": 4, "phase": GENERATE},
        {"containers": 2, "openings": 2, "passes": 2, "phase": GENERATE},
    ],
)
def test_a_longer_loop_shifts_nothing(tmp_path, shape, swapped):
    """The surplus calls of each container are in one run only; whatever follows still agrees."""
    a = looping(tmp_path / "a", loops=3 if swapped else 2, **shape)
    b = looping(tmp_path / "b", loops=2 if swapped else 3, **shape)
    result = compare_runs(a, b)
    alone = Status.ONLY_IN_A if swapped else Status.ONLY_IN_B
    surplus = only(result, alone)
    blocks = shape["containers"] * shape.get("openings", 1) * shape.get("passes", 1)
    assert len({f.entry for f in surplus}) == blocks
    assert all(".inner." in f.record for f in surplus)
    assert set(spread_of(result)) == {"identical", alone.value}
    assert result.verdict.first_divergence.cause is Cause.MISSING


@pytest.mark.parametrize("settings", [{"include": ["inner"]}, {"exclude": ["root", "^body$"]}])
def test_a_longer_loop_of_bare_cells_shifts_nothing(tmp_path, settings):
    """Without any container recorded, the generated tokens and the openings still tell."""
    for shape in ({"phase": GENERATE, "passes": 3, "containers": 1}, {"openings": 3}):
        runs = [tmp_path / f"{name}{len(shape)}" for name in "ab"]
        if "openings" in shape:
            shape["containers"] = 1
        result = compare_runs(
            looping(runs[0], loops=2, **shape, **settings),
            looping(runs[1], loops=3, **shape, **settings),
        )
        assert set(spread_of(result)) == {"identical", "only_in_b"}
        assert len({f.entry for f in only(result, Status.ONLY_IN_B)}) == 3


def test_a_loop_and_a_fault_after_it(tmp_path):
    """The cell that differs behind loops of unlike length is found at its own call."""
    a = looping(tmp_path / "a", loops=2)
    fault = Fault("body.after", UPDATE, call=1)
    b = looping(tmp_path / "b", loops=5, faults=[fault])
    (finding,) = only(compare_runs(a, b), Status.DIFFERENT)
    assert finding.record == "Cell.body.after.Dense.forward.1.output.0"


def test_containers_that_run_unlike_often(tmp_path):
    """One container more is a surplus with all that is inside it; those after it line up."""
    a = looping(tmp_path / "a", loops=2, containers=2, passes=2)
    b = looping(tmp_path / "b", loops=3, containers=3, passes=2)
    result = compare_runs(a, b)
    assert set(spread_of(result)) == {"identical", "only_in_b"}
    entries = {f.entry for f in only(result, Status.ONLY_IN_B)}
    assert len([e for e in entries if "Block" in e]) == 2
    assert len([e for e in entries if ".inner." in e]) == 2 * (3 + 2)


@pytest.mark.parametrize(("first", "second"), [(1, 3), (2, 3), (3, 2), (4, 1)])
def test_phases_opened_unlike_often(tmp_path, first, second):
    """What ran in openings that one run does not have is in the other only."""
    for name, openings in (("a", first), ("b", second)):
        looping(tmp_path / name, loops=2, openings=openings)
    result = compare_runs(tmp_path / "a", tmp_path / "b")
    alone = "only_in_b" if first < second else "only_in_a"
    assert set(spread_of(result)) == {"identical", alone}


def test_the_same_passes_in_other_openings(tmp_path):
    """Six passes are the same six, whether a phase was opened twice or three times for them."""
    for name, openings in (("a", 2), ("b", 3)):
        recording = Recording(tmp_path / name)
        number = 0
        for _ in range(openings):
            with recording.phase(UPDATE):
                for _ in range(6 // openings):
                    recording.call("root", "Net", np.cos, np.full(2, number, np.float32))
                    number += 1
        recording.end_step()
        recording.close()
    assert compare_runs(tmp_path / "a", tmp_path / "b").verdict.status is Outcome.IDENTICAL


@pytest.mark.parametrize(
    "settings",
    [
        {"include": ["inner"]},
        {"include": ["inner", "^body$"]},
        {"exclude": ["root"]},
        {"exclude": ["^body$"]},
        {"exclude": ["after", "root"]},
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_containers_that_one_run_left_out(tmp_path, settings, swapped):
    """Cells meet each other whether or not what is around them was recorded."""
    runs = [
        looping(tmp_path / "a", loops=3, openings=2, passes=2),
        looping(tmp_path / "b", loops=3, openings=2, passes=2, **settings),
    ]
    result = compare_runs(*reversed(runs) if swapped else runs)
    assert result.verdict.status is Outcome.IDENTICAL
    assert {gap.reason for gap in result.verdict.coverage} == {"cells left out by include/exclude"}
    (whole,) = [f for f in result.findings if "inner.Dense.forward.11.output" in f.record]
    assert whole.status is Status.IDENTICAL


@pytest.mark.parametrize(("loops_a", "loops_b"), [(2, 2), (2, 3), (3, 2)])
def test_token_ranges_that_overlap(tmp_path, loops_a, loops_b):
    """Tokens that one run was not to record are coverage; the others meet their own."""
    shape = {"phase": GENERATE, "passes": 3, "containers": 1}
    a = looping(tmp_path / "a", loops=loops_a, token_range_end=2, **shape)
    b = looping(tmp_path / "b", loops=loops_b, token_range_start=1, token_range_end=2, **shape)
    result = compare_runs(a, b)
    assert all(gap.only_in == "A" for gap in result.verdict.coverage)
    assert "token 0 lies outside" in result.verdict.coverage[0].reason
    alone = {"only_in_a"} if loops_a > loops_b else {"only_in_b"} if loops_a < loops_b else set()
    assert set(spread_of(result)) == {"identical", *alone}


def test_a_dump_without_construct_json_against_our_run(tmp_path):
    """Entries without parents meet those with parents by cell and call."""
    a = record_training(tmp_path / "a", steps=1, rounds=2)
    b = shutil.copytree(a, tmp_path / "b")
    for name in ("run.json", "data"):
        target = b / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    for journal in b.rglob("records.jsonl"):
        journal.unlink()
        (journal.parent / "construct.json").unlink()
    result = compare_runs(a, b)
    entries = [f for f in result.findings if f.entry is not None]
    assert len(entries) > 200
    assert {f.status for f in entries} == {Status.IDENTICAL}


def test_construct_json_that_goes_in_circles(tmp_path):
    """A dump whose containers contain each other still meets its like."""
    runs = []
    for name in "ab":
        run = shutil.copytree(MSPROBE_DATA / "md5_a", tmp_path / name)
        for construct in run.rglob("construct.json"):
            names = list(json.loads(construct.read_text()))
            circle = dict(zip(names, [*names[1:], names[0]]))
            circle[names[-1]] = names[-1]  # and one that contains itself
            construct.write_text(json.dumps(circle))
        runs.append(run)
    result = compare_runs(*runs)
    assert result.verdict.status is Outcome.IDENTICAL
    assert len(result.findings) > 20


def test_a_journal_whose_parents_go_in_circles(of_both):
    """Lines that name each other, themselves or nobody as their container are still paired."""
    cells = {"x": "Cell.y.Net.forward.0", "y": "Cell.x.Net.forward.0"}
    cells |= {"z": "Cell.z.Net.forward.0", "w": "Cell.nobody.Net.forward.0", "v": "nonsense"}

    def record(recording, run):
        for seq, (cell, parent) in enumerate(cells.items()):
            line = JournalLine(entry_name(cell, "Net", "forward", 0), 2 * seq, 2 * seq + 1, parent)
            line.values["output"] = [{"type": "int", "value": seq}]
            recording.writer.sink(UPDATE, 0).append(line)

    result = of_both(record)
    assert result.verdict.status is Outcome.IDENTICAL
    assert len(result.findings) == 5


@pytest.mark.parametrize(
    "lost", [(4,), (4, 5), (2, 3, 4, 5), (0,), (7, 8, 9), (12,), (10, 11, 12, 13)]
)
def test_lines_lost_in_the_middle_of_a_journal(tmp_path, lost):
    """A damaged line makes its phase unreadable; what is left meets its own and agrees."""
    a = looping(tmp_path / "a", loops=3, passes=2)
    b = shutil.copytree(a, tmp_path / "b")
    (journal,) = b.rglob("records.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    for index in lost:
        lines[index] = b"\0" * (len(lines[index]) - 1) + b"\n"
    journal.write_bytes(b"".join(lines))
    for result in (compare_runs(a, b), compare_runs(b, a)):
        assert set(spread_of(result)) == {"identical", "unreadable"}
        assert result.verdict.first_divergence.cause is Cause.UNREADABLE
        missing = {f.entry for f in only(result, Status.UNREADABLE)} - {None, UPDATE}
        assert len(missing) == len(lost)
        assert any(re.search(r"\d damaged lines? in", problem) for problem in result.problems)


def moved(path, around, class_name="Dense", change=1.0):
    """Record a cell inside a container of that name."""
    recording = Recording(path)
    with recording.phase(UPDATE):

        def network(x):
            return recording.call(around, "Block", inside, x)

        def inside(x):
            for _ in range(2):
                x = recording.call("shared", class_name, lambda x: x * change, x)
            return x

        recording.call("root", "Net", network, np.ones(2))
        recording.call("last", "Dense", np.cos, np.ones(2))
    recording.end_step()
    return recording.close()


def test_a_cell_moved_under_another_container(tmp_path):
    """It stands against itself; only the containers are in one run alone."""
    result = compare_runs(moved(tmp_path / "a", "left"), moved(tmp_path / "b", "right"))
    alone = {f.entry: f.status for f in result.findings if not f.status.agrees}
    assert alone == {
        "Cell.left.Block.forward.0": Status.ONLY_IN_A,
        "Cell.right.Block.forward.0": Status.ONLY_IN_B,
    }
    assert len([f for f in result.findings if "shared" in f.record]) == 4


def test_a_cell_of_another_class(tmp_path):
    """Pairs go by cell, direction and call; the table has both names, a fault that of A."""
    a = moved(tmp_path / "a", "left")
    result = compare_runs(a, moved(tmp_path / "b", "left", class_name="Linear"))
    assert result.verdict.status is Outcome.IDENTICAL
    finding = next(f for f in result.findings if "shared" in f.record)
    assert finding.a.name == "Cell.shared.Dense.forward.0.input.0"
    assert finding.b.name == "Cell.shared.Linear.forward.0.input.0"
    faulty = moved(tmp_path / "c", "left", class_name="Linear", change=1.5)
    place = compare_runs(a, faulty).verdict.first_divergence
    assert (place.entry, place.cause) == ("Cell.shared.Dense.forward.0", Cause.COMPUTATION)


def test_two_classes_under_one_name(of_both):
    """A cell that was replaced while the run went on meets the one of its own class."""

    def record(recording, run):
        for seq, kind in enumerate(("Dense", "LoRA") if run == "a" else ("LoRA", "Dense")):
            line = JournalLine(entry_name("x", kind, "forward", 0), seq * 2, seq * 2 + 1)
            line.values["output"] = [{"type": "str", "value": kind}]
            recording.writer.sink(UPDATE, 0).append(line)

    assert of_both(record).verdict.status is Outcome.IDENTICAL


@pytest.mark.parametrize(("more_a", "more_b"), [(1, 2), (3, 1)])
def test_a_cell_shared_by_two_containers(of_both, more_a, more_b):
    """Its calls are counted inside the container that called it."""

    def record(recording, run):
        def block(x, times):
            for index in range(times):
                recording.call("shared", "Dense", np.cos, x + index)
            return x

        more = more_a if run == "a" else more_b
        with recording.phase(UPDATE):
            for cell, times, start in (("first", more, 10.0), ("second", 2, 50.0)):
                value = np.full(2, start)
                recording.call(cell, "Block", lambda x, times=times: block(x, times), value)

    result = of_both(record)
    alone = "only_in_b" if more_a < more_b else "only_in_a"
    assert spread_of(result) == {"identical": 2 * 2 + 2 * (1 + 2), alone: 2 * abs(more_a - more_b)}


def test_backward_entries_are_paired_by_their_direction(tmp_path):
    """Forward, backward and gradients of one cell never meet each other."""
    for name, more in (("a", 0), ("b", 1)):
        recording = Recording(tmp_path / name)
        seq = iter(range(1000))
        for direction, calls in (("forward", 2), ("backward", 2 + more), ("parameters_grad", 1)):
            for call in range(calls):
                line = JournalLine(entry_name("x", "Dense", direction, call), next(seq), next(seq))
                value = [{"type": "str", "value": f"{direction} {call}"}]
                if direction == "parameters_grad":
                    line.values["parameters_grad"] = {"weight": value}
                else:
                    line.values |= {"input": value, "output": value}
                recording.writer.sink(UPDATE, 0).append(line)
        recording.end_step()
        recording.close()
        (tmp_path / name / "run.json").unlink()  # it says that backward is not recorded yet
    result = compare_runs(tmp_path / "a", tmp_path / "b")
    assert spread_of(result) == {"identical": 9, "only_in_b": 2}
    assert {f.entry for f in only(result, Status.ONLY_IN_B)} == {"Cell.x.Dense.backward.2"}
    assert "parameters_grad" in {f.io for f in result.findings}


def test_ranks_without_one_in_common_are_paired_in_order(tmp_path):
    """Ranks 2 and 5 stand against 0 and 1; a fault is named at A's rank."""
    a = record_training(tmp_path / "a", steps=1, ranks=(2, 5))
    b = record_training(tmp_path / "b", steps=1, ranks=(0, 1))
    result = compare_runs(a, b)
    assert "no rank in common: ranks [2, 5] of A are compared with [0, 1] of B" in result.notes
    assert {f.rank for f in result.findings} == {2, 5}
    assert not result.verdict.counts["only_in_a"] + result.verdict.counts["only_in_b"]


@pytest.mark.parametrize("swapped", [False, True])
def test_whatever_one_run_lacks_is_listed(tmp_path, swapped):
    """A rank, a step, a phase, a key and an entry that are gone all become findings."""
    a = record_training(tmp_path / "a", steps=2, ranks=(0, 1))
    b = shutil.copytree(a, tmp_path / "b")
    shutil.rmtree(b / "critic_update/step0")  # a phase, of step 0
    shutil.rmtree(b / "data/rewards/step0/rank0")  # a key
    for directory in list(b.rglob("step1/rank1")):  # a rank, of step 1
        shutil.rmtree(directory)
    journal = b / "actor_update/step0/rank0/records.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    gone = [line for line in lines if ".embed." in line]
    journal.write_text("".join(line for line in lines if line not in gone))
    result = compare_runs(b, a) if swapped else compare_runs(a, b)
    status = Status.ONLY_IN_B if swapped else Status.ONLY_IN_A
    alone = only(result, status)
    assert set(spread_of(result)) == {"identical", status.value}
    assert {f.phase for f in alone if f.step == 0 and f.entry} == {"critic_update", "actor_update"}
    assert {f.key for f in alone if f.step == 0 and f.rank == 0 and f.key} == {"rewards"}
    assert {f.entry for f in alone if f.phase == "actor_update" and f.step == 0 and f.entry} == {
        "Cell.embed.Dense.forward.0"
    }
    whole = [f for f in result.findings if (f.step, f.rank) == (1, 1)]
    assert whole
    assert {f.status for f in whole} == {status}


def entry(cell, call, seq, end, parent=None, direction="forward", **kwargs):
    name = entry_name(cell, "Net", direction, call)
    return Entry(name, UPDATE, 0, 0, seq, end, parent=parent, **kwargs)


def test_every_entry_has_exactly_one_partner_at_most():
    """Whatever the parents claim, no entry is paired twice and none is dropped."""
    random = np.random.default_rng(3)
    for _ in range(200):
        sides = []
        for _ in "ab":
            names = [(c, n) for c in "xyz" for n in range(random.integers(0, 5))]
            known = [entry_name(c, "Net", "forward", n) for c, n in names]
            sides.append(
                [
                    entry(
                        c,
                        n,
                        int(random.integers(0, 20)),
                        None,
                        str(random.choice([*known, "nobody"])) if random.random() < 0.8 else None,
                        opening=int(random.integers(0, 3)),
                        token=None if random.random() < 0.5 else int(random.integers(0, 3)),
                    )
                    for c, n in names
                ]
            )
        found = align(*sides)
        for ids, side in ((found.a, sides[0]), (found.b, sides[1])):
            assert set(ids) == {(e.phase, e.name) for e in side}
            assert len(set(ids.values())) == len(side)
        cells = {e.name: e.cell for side in sides for e in side}
        for (_, name), entry_id in found.b.items():
            assert entry_id not in cells or cells[entry_id] == cells[name]
