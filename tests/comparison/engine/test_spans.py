"""A pair that is cut into spans gives what it gives in one go, whoever compares them."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.runs import Recording

from mindrlhf_msprobe.comparison.engine import executor
from mindrlhf_msprobe.comparison.engine.local_workers import LocalWorkers
from mindrlhf_msprobe.comparison.judging.metrics import block_sums
from mindrlhf_msprobe.comparison.judging.metrics.arrays import (
    SPAN_BYTES,
    Elements,
    Gathering,
    Unanswered,
    answer_span,
    compare_arrays,
)
from mindrlhf_msprobe.comparison.judging.metrics.blocks import BLOCK, Tolerance, same_bytes
from mindrlhf_msprobe.comparison.judging.status import token_difference
from mindrlhf_msprobe.comparison.judging.tolerance import tolerances
from mindrlhf_msprobe.comparison.pairing.view import views
from mindrlhf_msprobe.comparison.steps.step_of_rank import Job
from mindrlhf_msprobe.comparison.verdict.inside import of_elements
from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError, dtype_name, open_npy
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.reading.reader import open_run
from mindrlhf_msprobe.storage.records import Record

PHASE = "actor_update"
SIZE = 3 * BLOCK + 2049  # four blocks, the last of which has a chunk and a bit
ONE_BLOCK = 1  # bytes of a span, which is never shorter than a block
LOOSE = Tolerance(rtol=1e-2)


def stored(path, array):
    """Store an array and return its record."""
    np.save(path, array)
    leaf = Leaf("numpy.ndarray", dtype_name(array.dtype), array.shape)
    return Record(path.stem, "data", "", leaf, str(path))


def cut_of(records, tolerance):
    """Return what a pair is cut into, in spans of one block."""
    arrays = tuple(record.array() for record in records)
    elements = Elements(ONE_BLOCK)
    rest = (records, arrays) if tolerance is None else (records, arrays, tolerance)
    with pytest.raises(Unanswered) as raised:
        (elements.same_bytes if tolerance is None else elements.compare)(*rest)
    return raised.value.cut


def in_spans(records, tolerance, blocks=1):
    """Compare a pair in spans that come in any order; return the answer and how many they were."""
    cut = replace(cut_of(records, tolerance), span=blocks * BLOCK)
    gathering = Gathering(cut)
    numbers = list(range(len(cut)))
    random.Random(len(cut)).shuffle(numbers)
    answers = [gathering.add(number, answer_span(cut, number)) for number in numbers]
    assert answers[:-1] == [None] * (len(cut) - 1)
    known = ((cut.question.key, answers[-1]),)
    arrays = tuple(record.array() for record in records)
    return Elements(ONE_BLOCK, known).compare(records, arrays, tolerance), len(cut)


def changed(array, how, seed):
    """Return an array with some of its elements changed."""
    numbers = np.random.default_rng(seed)
    b = array.copy()
    if how == "all":
        b = b[::-1].copy()
    elif how == "some":
        b[numbers.integers(0, b.size, 1000)] += b.dtype.type(1)
    elif how == "last":
        b[-1] += b.dtype.type(1)
    elif how == "close":
        b = (b * numbers.normal(1, 4e-3, b.size)).astype(b.dtype)
    elif how == "not finite":
        b[BLOCK + 5], b[-7:] = np.nan, np.inf
        array[BLOCK + 5 : BLOCK + 9], array[-7:-3] = np.nan, -np.inf
    elif how == "huge":  # one block needs a wider range than the others
        b[2 * BLOCK + 3] = np.finfo(b.dtype).max
        array[2 * BLOCK + 3] = -np.finfo(b.dtype).max
    return b


FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "uint16", "int64", "uint64")
KINDS = [
    *((dtype, how) for dtype in FLOATS for how in ("all", "close", "not finite", "huge")),
    *((dtype, how) for dtype in INTEGERS for how in ("all", "some", "last")),
    *(("complex64", how) for how in ("some", "not finite")),
    ("float32", "same"),
    ("float32", "last"),
    ("bool", "all"),
]


@pytest.mark.parametrize(
    ("dtype", "how", "compiled"),
    [
        *((dtype, how, True) for dtype, how in KINDS),
        *((dtype, how, False) for dtype, how in KINDS if dtype == "float32"),
    ],
)
def test_spans_give_the_numbers_of_the_whole(monkeypatch, tmp_path, dtype, how, compiled):
    """Every digit is the same, in whatever order the spans come and however long they are."""
    if not compiled:
        monkeypatch.setattr(block_sums, "FUNCTION", None)
    numbers = np.random.default_rng(len(dtype) + len(how))
    scale = 1e18 if dtype.endswith("int64") else 100  # 64-bit integers beyond what floats hold
    a = numbers.normal(size=SIZE) * (scale if dtype in INTEGERS else 1)
    a = (a > 0) if dtype == "bool" else np.abs(a).astype(dtype)
    b = changed(a, how, SIZE)
    records = stored(tmp_path / "a.npy", a), stored(tmp_path / "b.npy", b)
    for tolerance in (Tolerance(), LOOSE):
        whole = repr(compare_arrays(a, b, tolerance))
        one_block, four = in_spans(records, tolerance)
        two_blocks, two = in_spans(records, tolerance, 2)
        assert (four, two) == (4, 2)
        assert repr(one_block) == repr(two_blocks) == whole


@pytest.mark.parametrize(
    ("dtypes", "orders"),
    [(("float16", "float64"), "CC"), (("int64", "float32"), "CC"), (("float32", "float32"), "FF")],
)
def test_dtypes_and_orders_that_are_cut(tmp_path, dtypes, orders):
    """Unlike dtypes are cut like any other, column-major arrays as they lie in memory."""
    values = np.random.default_rng(3).normal(size=(801, 500)) * 50
    arrays = [np.asarray(values.astype(t), order=o) for t, o in zip(dtypes, orders)]
    arrays[1][3, 77] += 1
    arrays[1][2, 401:] += 1  # before it in row-major order alone
    records = tuple(stored(tmp_path / f"{n}.npy", x) for n, x in enumerate(arrays))
    found, spans = in_spans(records, LOOSE)
    assert spans == 4
    assert repr(found) == repr(compare_arrays(*arrays, LOOSE))
    if orders == "FF":
        assert found.metrics.first_mismatch == 2 * 500 + 401


def test_what_is_not_cut(tmp_path):
    """Small pairs, and one array against another of another order, are compared at once."""
    values = np.ones((801, 500), np.float32)
    for number, arrays in enumerate([(values, np.asfortranarray(values)), (values[:40],) * 2]):
        records = tuple(stored(tmp_path / f"{number}{n}.npy", x) for n, x in enumerate(arrays))
        opened = tuple(record.array() for record in records)
        assert Elements(ONE_BLOCK).compare(records, opened, Tolerance()).equal
    records = stored(tmp_path / "x.npy", values), stored(tmp_path / "y.npy", values)
    opened = tuple(record.array() for record in records)
    assert Elements(SPAN_BYTES).same_bytes(records, opened)
    copies = tuple(array.copy() for array in opened)  # put together from several files
    assert Elements(ONE_BLOCK).same_bytes(records, copies)


@pytest.mark.parametrize("index", [None, 0, BLOCK, SIZE - 1])
def test_the_same_bytes(tmp_path, index):
    """One span that differs is enough; the others need not be known then."""
    a = np.zeros(SIZE, np.int16)
    b = a.copy()
    if index is not None:
        b[index] = 1
    cut = cut_of((stored(tmp_path / "a.npy", a), stored(tmp_path / "b.npy", b)), None)
    parts = [answer_span(cut, number) for number in range(len(cut))]
    assert parts == [index is None or index // BLOCK != n for n in range(4)]
    gathering = Gathering(cut)
    answers = [gathering.add(number, part) for number, part in enumerate(parts)]
    known = 3 if index is None else index // BLOCK
    assert answers[known] is (index is None)
    assert answers[:known] == [None] * known


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: os.truncate(path, 1000), "cut short"),
        (lambda path: np.save(path, np.zeros((4, SIZE), np.float32).T), "another file"),
        (lambda path: path.unlink(), "missing"),
    ],
)
def test_a_file_that_changes_between_two_spans(tmp_path, change, message):
    """It is not compared on as if nothing had been."""
    a = np.zeros((SIZE, 4), np.float32)
    records = stored(tmp_path / "a.npy", a), stored(tmp_path / "b.npy", a)
    cut = cut_of(records, Tolerance())
    assert answer_span(cut, 0).equal == BLOCK
    change(tmp_path / "b.npy")
    with pytest.raises(ArrayFileError, match=message):
        answer_span(cut, 1)


# Runs


def record(path, values):
    """Record one cell for each value, with its elements, and a key."""
    recording = Recording(path, task="tensor")
    with recording.phase(PHASE):
        for number, value in enumerate(values):
            recording.call(f"cell{number}", "Dense", lambda x, v=value: v, np.float32(1))
    recording.data("rewards", values[0][::-1])
    recording.end_step()
    return recording.close()


def file_of(run, cell):
    (path,) = run.rglob(f"Cell.cell{cell}.*.output.0.npy")
    return path


def rewrite(path, array):
    """Put other elements into a file that other records may share."""
    path.unlink()
    np.save(path, array)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Return two runs, and a repetition of the first, whose records meet every status."""
    root = tmp_path_factory.mktemp("spans")
    numbers = np.random.default_rng(11)
    same, noisy, strayed, wrong, lost = numbers.normal(size=(5, SIZE)).astype(np.float32)
    tokens = numbers.integers(0, 30_000, (3, BLOCK + 9), dtype=np.int64)
    half = numbers.normal(size=SIZE).astype(np.float16)
    matrix = numbers.normal(size=(700, 800)).astype(np.float32)
    others = [x.copy() for x in (noisy, strayed, wrong, tokens, lost)]
    others[0] += np.float32(1e-6) * numbers.normal(size=SIZE).astype(np.float32)
    others[1][BLOCK:] *= np.float32(1.5)
    others[2][-1] = np.nan
    others[3][2, -3] += 1
    values = [same, noisy, strayed, wrong, tokens, half, matrix, same + 1, lost]
    a = record(root / "a", values)
    others = [*others[:4], half.astype(np.float32), matrix, same + 1, others[4]]
    b = record(root / "b", [same, *others])
    again = [noisy + np.float32(1e-6) * numbers.normal(size=SIZE).astype(np.float32)]
    c = record(root / "c", [same, *again, *values[2:]])
    for run, factor in ((a, 1), (b, 2)):  # column-major, and changed since it was recorded
        rewrite(file_of(run, 6), np.asfortranarray(matrix * factor))
    rewrite(file_of(b, 7), np.where(np.arange(SIZE) == SIZE - 3, 0, same + 1).astype(np.float32))
    os.truncate(file_of(b, 8), 4 * SIZE)
    return a, b, c


class Watched:
    """An engine that notes what it is given.

    Attributes:
        tasks: how many of each kind there were.
        most_spans: how many spans were begun at once.
    """

    ready = True

    def __init__(self, engine, instead=lambda task: task):
        self.capacity, self._engine, self._instead = engine.capacity, engine, instead
        self.tasks = Counter()
        self.most_spans = self._spans = 0

    def expect(self, tasks):
        self._engine.expect(tasks)

    def submit(self, task):
        self.tasks[type(task)] += 1
        self._spans += isinstance(task, executor.SpanTask)
        self.most_spans = max(self.most_spans, self._spans)
        self._engine.submit(self._instead(task))

    def next_result(self):
        task, result = self._engine.next_result()
        task = task.task if isinstance(task, Deadly) else task
        self._spans -= isinstance(task, executor.SpanTask)
        return task, result

    def close(self):
        self._engine.close()


def job_of(runs, span_bytes, **settings):
    sides = views(*map(open_run, runs[:2]), None, None)[:2]
    noise = tuple(views(open_run(runs[0]), open_run(run), None, None)[1] for run in runs[2:])
    return Job(sides, noise, span_bytes=span_bytes, **settings)


def judged(job, start=executor.ThisProcess, **settings):
    """Compare the one place of two runs; return its findings, what they add up to, the engine."""
    engine = Watched(start(job), **settings)
    (place,) = executor.run(job, [StepPlace(0, 0)], lambda: engine, at_once=True)
    return repr((list(place.findings), place.gaps, place.tally)), place, engine


def two_workers(job):
    """Return two workers that have both begun: how many tasks run at once depends on it."""
    workers = LocalWorkers(job, 2)
    workers.expect(2)
    while not all(worker.ready for worker in workers._workers):
        for key, _ in workers._selector.select():
            workers._take(key.data)
    return workers


@pytest.mark.parametrize("kind", ["bitwise", "tolerance", "noise"])
def test_spans_change_nothing_about_a_place(pair, kind):
    """Statuses, numbers and notes are the same, with one worker and with two, cut and whole."""
    runs = pair if kind == "noise" else pair[:2]
    allowed = tolerances(LOOSE if kind == "tolerance" else None)
    job = job_of(runs, SPAN_BYTES, tolerances=allowed)
    whole, place, engine = judged(job)
    statuses = Counter(finding.status for finding in place.findings)
    assert executor.SpanTask not in engine.tasks
    small = replace(job, span_bytes=ONE_BLOCK)
    for start in (executor.ThisProcess, two_workers):
        found, _, engine = judged(small, start)
        assert found == whole
        assert engine.tasks[executor.SpanTask] >= 4 * 8
        assert engine.most_spans == engine.capacity
    notes = [finding.note for finding in place.findings]
    assert statuses[Status.UNREADABLE] == statuses[Status.NON_FINITE] == 1
    assert any("cut short" in note for note in notes)
    assert any("a file was changed after it was recorded" in note for note in notes)
    tokens = any(f"from token {BLOCK + 6} of row 2 on" in note for note in notes)
    assert tokens is (kind != "tolerance")
    if kind == "noise":
        assert any("times the noise of 1 repetition" in note for note in notes)


def one_pair(root, *, same=False):
    """Return two runs of one large record."""
    values = np.random.default_rng(5).normal(size=SIZE).astype(np.float32)
    others = values if same else values * np.float32(1.001)
    return record(root / "a", [values]), record(root / "b", [others])


class Deadly:
    """A task that kills whoever receives it."""

    def __init__(self, task):
        self.task = task

    def __reduce__(self):
        return exec, ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)",)


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_that_is_killed_in_a_span(tmp_path, times):
    """Its span is compared again; if that fails, too, its record is unreadable, and alone."""
    job = job_of(one_pair(tmp_path), ONE_BLOCK)
    whole, _, _ = judged(replace(job, span_bytes=SPAN_BYTES))
    killed = []

    def kill(task):
        span = isinstance(task, executor.SpanTask) and task.number == 2
        if not span or "cell0" not in task.work.a.name or len(killed) == times:
            return task
        killed.append(task)
        return Deadly(task)

    found, place, _ = judged(job, two_workers, instead=kill)
    assert len(killed) == times
    if times == 1:
        assert found == whole
        return
    unreadable = [f for f in place.findings if f.status is Status.UNREADABLE]
    assert [f.record for f in unreadable] == ["Cell.cell0.Dense.forward.0.output.0"]
    assert "in two tries: each time the worker that compared it was killed" in unreadable[0].note
    assert [f.status for f in place.findings if f.key] == [Status.DIFFERENT]


def test_a_file_that_is_cut_while_its_spans_are_compared(tmp_path):
    """The record is unreadable and says why, as if it had been so before."""
    runs = one_pair(tmp_path)

    def cut(task):
        if isinstance(task, executor.SpanTask) and task.number == 1:
            os.truncate(file_of(runs[1], 0), 8192)
        return task

    _, place, _ = judged(job_of(runs, ONE_BLOCK), instead=cut)
    (finding,) = [f for f in place.findings if f.status is Status.UNREADABLE]
    assert "cut short" in finding.note


def test_spans_of_an_answer_that_is_known_are_dropped(tmp_path):
    """Where the bytes of one span differ, those of the others are not compared any more."""
    runs = one_pair(tmp_path, same=True)
    path = file_of(runs[1], 0)
    array = np.load(path)
    array[1] += 1
    rewrite(path, array)
    bytes_asked = []

    def note(task):
        if isinstance(task, executor.SpanTask) and "cell0" in task.work.a.name:
            bytes_asked.append((task.cut.question.tolerance is None, task.number))
        return task

    found, _, _ = judged(job_of(runs, ONE_BLOCK), instead=note)
    assert bytes_asked == [(True, 0), *((False, n) for n in range(4))]
    assert found == judged(job_of(runs, SPAN_BYTES))[0]


# Memory


def resident(path):
    """Return how many bytes of a file are mapped into this process and resident."""
    found, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            here = line.endswith(f" {path}")
        elif here and line.startswith("Rss:"):
            found += int(line.split()[1]) << 10
    return found


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
@pytest.mark.parametrize("order", ["C", "F"])
def test_pages_are_given_back(tmp_path, order):
    """Of mapped files no more than a fraction is resident when they have been gone through."""
    size = 1 << 25  # elements of a file without blocks on the disk
    paths = [tmp_path / f"{name}.npy" for name in "ab"]
    for path in paths:
        with open(path, "wb") as file:
            shape = (size // 1024, 1024)
            header = {"descr": "<f4", "fortran_order": order == "F", "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + 4 * size)
    a, b = map(open_npy, paths)
    part = 4 * size // 3
    assert np.count_nonzero(a) == 0
    assert resident(paths[0]) > part
    assert same_bytes(a, b)
    assert max(map(resident, paths)) < part
    assert compare_arrays(a, b, Tolerance()).equal
    assert max(map(resident, paths)) < part
    if order == "C":
        assert token_difference(a[None].view(np.int32), b[None].view(np.int32)) is None
        assert of_elements(a, b, "") is None
        assert max(map(resident, paths)) < part


def test_only_files_that_were_opened_here_are_given_back(tmp_path):
    """A mapping that its owner changes keeps its changes."""
    size = 1 << 24
    for name in "ab":
        np.lib.format.open_memmap(tmp_path / name, "w+", np.uint8, (size,)).flush()
    a, b = (np.load(tmp_path / name, mmap_mode="c") for name in "ab")
    a[:] = b[:] = 7
    assert compare_arrays(a, b, Tolerance()).equal
    assert same_bytes(a, b)
    assert a[0] == b[-1] == 7


def test_long_rows_are_looked_into_piece_by_piece(monkeypatch):
    """What differs inside is the same, however long the rows are."""
    numbers = np.random.default_rng(2)
    a = numbers.normal(size=(2, 3, 700)).astype(np.float32)
    b = a.copy()
    b[1, 2, 100:200] *= 2
    whole = of_elements(a, b, "Float32")
    assert [(some.axis, some.spans) for some in whole.where] == [
        (0, ((1, 1),)),
        (1, ((2, 2),)),
        (2, ((100, 199),)),
    ]
    for chunk in (1, 64, 700, 1400):
        monkeypatch.setattr("mindrlhf_msprobe.comparison.verdict.inside.CHUNK", chunk)
        assert of_elements(a, b, "Float32") == whole


@pytest.mark.parametrize("chunk", [1, 3, 64, 1000])
def test_spans_of_places_are_those_of_the_whole(monkeypatch, chunk):
    """Where a span crosses what is looked at together, and where it ends, changes nothing."""
    monkeypatch.setattr("mindrlhf_msprobe.comparison.verdict.inside.CHUNK", chunk)
    numbers = np.random.default_rng(chunk)
    for share in (0.02, 0.5, 0.98):
        a = numbers.normal(size=150)
        b = np.where(numbers.random(a.size) < share, a + numbers.normal(size=a.size), a)
        text = "".join(map(str, (a != b).astype(int)))
        expected = [(m.start(), m.end() - 1) for m in re.finditer("1+", text)]
        (some,) = of_elements(a, b, "Float64").where
        assert some.spans == tuple(expected[:32])
        assert some.count == text.count("1")


def test_the_first_token_that_differs(tmp_path):
    """It is named alike whether it was known before or is searched."""
    a = np.arange(3 * (BLOCK + 9)).reshape(3, -1)
    for index in ((0, 0), (0, BLOCK + 8), (1, 0), (2, BLOCK + 3)):
        b = a.copy()
        b[index] += 1
        flat = int(np.ravel_multi_index(index, a.shape))
        assert token_difference(a, b, first=flat) == token_difference(a, b)
        flat_a, flat_b = a.reshape(-1), b.reshape(-1)
        found = token_difference(flat_a, flat_b)
        assert found == token_difference(flat_a, flat_b, first=flat)
        assert (found.code, found.params["token"]) == ("note.tokens", flat)
