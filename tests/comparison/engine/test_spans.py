"""A large pair that threads share span by span gives what it gives in one go."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.runs import Recording

from mindrlhf_msprobe.comparison.engine import executor
from mindrlhf_msprobe.comparison.engine.local_workers import LocalWorkers
from mindrlhf_msprobe.comparison.judging import arrays as metrics
from mindrlhf_msprobe.comparison.judging import sums
from mindrlhf_msprobe.comparison.judging.arrays import (
    Threads,
    compare_arrays,
    compare_tensors,
    same_bytes,
    same_elements,
)
from mindrlhf_msprobe.comparison.judging.status import token_difference
from mindrlhf_msprobe.comparison.judging.sums import BLOCK
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance, tolerances
from mindrlhf_msprobe.comparison.pairing.view import views
from mindrlhf_msprobe.comparison.steps import step_of_rank
from mindrlhf_msprobe.comparison.steps.step_of_rank import Job
from mindrlhf_msprobe.comparison.verdict.inside import of_elements
from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.storage.arrays.expression import InMemory, Permuted
from mindrlhf_msprobe.storage.arrays.npy import open_npy
from mindrlhf_msprobe.storage.place import StepPlace
from mindrlhf_msprobe.storage.reading.reader import open_run

PHASE = "actor_update"
SIZE = 3 * BLOCK + 2049  # four blocks, the last of which has a chunk and a bit
LOOSE = Tolerance(rtol=1e-2)


@pytest.fixture
def spans(monkeypatch):
    """Make spans of one block, and return where those stand that were gone through."""
    monkeypatch.setattr(metrics, "SPAN", BLOCK)
    monkeypatch.setattr(metrics, "MAPPED_SPAN", BLOCK)
    seen, in_order = [], Threads.in_order

    def noted(self, work, size, **how):
        def span(start, stop):
            seen.append((start, stop))
            return work(start, stop)

        return in_order(self, span, size, **how)

    monkeypatch.setattr(Threads, "in_order", noted)
    return seen


def shared(a, b, tolerance, count=3):
    """Compare two arrays by several threads."""
    with Threads(count) as threads:
        return compare_tensors(InMemory(a), InMemory(b), tolerance, threads)


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
def test_spans_give_the_numbers_of_the_whole(monkeypatch, spans, dtype, how, compiled):
    """Every digit is the same, however many threads there are and however long spans are."""
    if not compiled:
        monkeypatch.setattr(sums, "FUNCTION", None)
    numbers = np.random.default_rng(len(dtype) + len(how))
    scale = 1e18 if dtype.endswith("int64") else 100  # 64-bit integers beyond what floats hold
    a = numbers.normal(size=SIZE) * (scale if dtype in INTEGERS else 1)
    a = (a > 0) if dtype == "bool" else np.abs(a).astype(dtype)
    b = changed(a, how, SIZE)
    for tolerance in (Tolerance(), LOOSE):
        whole = repr(compare_arrays(a, b, tolerance))
        assert repr(shared(a, b, tolerance)) == repr(shared(a, b, tolerance, 1)) == whole
        monkeypatch.setattr(metrics, "MAPPED_SPAN", 2 * BLOCK)
        assert repr(shared(a, b, tolerance)) == whole
        monkeypatch.setattr(metrics, "MAPPED_SPAN", BLOCK)
    assert len(spans) == 2 * (4 + 4 + 2)


@pytest.mark.parametrize(
    ("dtypes", "orders"),
    [(("float16", "float64"), "CC"), (("int64", "float32"), "CC"), (("float32", "float32"), "FF")],
)
def test_dtypes_and_orders_that_are_cut(spans, dtypes, orders):
    """Unlike dtypes are cut like any other, column-major arrays as they lie in memory."""
    values = np.random.default_rng(3).normal(size=(801, 500)) * 50
    arrays = [np.asarray(values.astype(t), order=o) for t, o in zip(dtypes, orders)]
    arrays[1][3, 77] += 1
    arrays[1][2, 401] += 1
    found = shared(*arrays, LOOSE)
    assert len(spans) == 4
    assert repr(found) == repr(compare_arrays(*arrays, LOOSE))
    if orders == "FF":
        assert found.metrics.first_mismatch == 2 * 500 + 401


def test_what_is_not_cut(spans):
    """Small pairs, and one array against another of another order, are compared at once."""
    values = np.ones((801, 500), np.float32)
    for a, b in ((values, np.asfortranarray(values)), (values[:40], values[:40])):
        assert shared(a, b, Tolerance()).equal
        assert same_elements(a, b)
    turned = Permuted(InMemory(values.T.copy()), (1, 0))
    assert compare_tensors(InMemory(values), turned, Tolerance()).equal
    assert spans == []


@pytest.mark.parametrize("index", [None, 0, BLOCK, SIZE - 1])
def test_the_same_bytes(spans, index):
    """One span that differs is enough; the others are not looked at then."""
    a = np.zeros(SIZE, np.int16)
    b = a.copy()
    if index is not None:
        b[index] = 1
    assert same_elements(a, b) is (index is None)
    assert len(spans) == (4 if index is None else index // BLOCK + 1)
    with Threads(2) as threads:
        assert same_elements(a, b, threads) is (index is None)


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


def judged(job, start=executor.ThisProcess):
    """Compare the one place of two runs; return its findings, and what they add up to."""
    (place,) = executor.run(job, [StepPlace(0, 0)], lambda: start(job), at_once=True)
    return repr((list(place.findings), place.gaps, place.tally)), place


def two_workers(job):
    """Return two workers that have both begun."""
    workers = LocalWorkers(job, 2)
    workers.expect(2)
    return workers


@pytest.mark.parametrize("kind", ["bitwise", "tolerance", "noise"])
def test_threads_change_nothing_about_a_place(monkeypatch, spans, pair, kind):
    """Statuses, numbers and notes are the same, with one worker and with two, shared and whole."""
    runs = pair if kind == "noise" else pair[:2]
    allowed = tolerances(LOOSE if kind == "tolerance" else None)
    sides = views(*map(open_run, runs[:2]), None, None)[:2]
    noise = tuple(views(open_run(runs[0]), open_run(run), None, None)[1] for run in runs[2:])
    job = Job(sides, noise, tolerances=allowed)
    whole, place = judged(job)
    statuses = Counter(finding.status for finding in place.findings)
    monkeypatch.setattr(step_of_rank, "LARGE", 0)
    monkeypatch.setattr(step_of_rank, "available_cores", lambda: 3)
    for start in (executor.ThisProcess, two_workers):
        spans.clear()
        assert judged(replace(job, chunk_bytes=1, threads=3), start)[0] == whole
        assert start is two_workers or len(spans) >= 4 * 7
    notes = [finding.note for finding in place.findings]
    assert statuses[Status.UNREADABLE] == statuses[Status.NON_FINITE] == 1
    assert any("cut short" in note for note in notes)
    assert any("a file was changed after it was recorded" in note for note in notes)
    tokens = any(f"from token {BLOCK + 6} of row 2 on" in note for note in notes)
    assert tokens is (kind != "tolerance")
    if kind == "noise":
        assert any("times the noise of 1 repetition" in note for note in notes)


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
    assert same_elements(a, b)
    assert shared(a, b, Tolerance()).equal
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
