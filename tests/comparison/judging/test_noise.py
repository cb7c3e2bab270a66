"""Further runs of A's configuration: noise is no divergence, and a fault in it still is."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from helpers.runs import Recording

from mindrlhf_msprobe import compare_runs
from mindrlhf_msprobe.comparison.judging.noise import LEAST_MARGIN, MARGINS, within_noise
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.findings import Cause, Outcome, Status
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.records import Record

PHASE = "actor_update"
NOISE = 1e-4
SIZES = (1, 2, 8, 1000)


def record(path, seed, *, change=None, keys=None, extra=(), **settings):
    """Record cells of several sizes whose outputs stray by noise, one exact cell, and key data.

    Args:
        change: cell → what becomes of its output.
        keys: further key data.
        extra: cells that are called beside the others.
    """
    random = np.random.default_rng(seed)
    base = np.random.default_rng(7)
    change = change or {}
    recording = Recording(path, **settings)
    with recording.phase(PHASE):
        for size in SIZES:
            for number in range(3):
                cell = f"cell{number}.of{size}"
                value = base.normal(size=size)
                value = value + NOISE * random.normal(size=size)
                value = change.get(cell, lambda x: x)(value)
                recording.call(cell, "Dense", lambda x, value=value: value, np.float32(1))
        exact = change.get("exact", lambda x: x)(np.arange(5.0))
        recording.call("exact", "Dense", lambda x: exact, np.float32(1))
        for cell in extra:
            recording.call(cell, "Dense", lambda x: x, np.float32(1))
    recording.data("loss", float(base.normal() + NOISE * random.normal()))
    for key, value in (keys or {}).items():
        recording.data(key, value)
    recording.end_step()
    return recording.close()


@pytest.fixture
def compared(tmp_path):
    """Return a function that records A, B and repetitions, and compares them."""

    def compare(*, count=3, seed=0, a=None, b=None, repetitions=None, where="", **settings):
        root = tmp_path / where
        runs = [record(root / "a", 1000 * seed, **{**settings, **(a or {})})]
        runs.append(record(root / "b", 1000 * seed + 1, **{**settings, **(b or {})}))
        each = repetitions or [{}] * count
        noise = [
            record(root / f"n{i}", 1000 * seed + 2 + i, **{**settings, **more})
            for i, more in enumerate(each)
        ]
        return compare_runs(*runs, noise=noise)

    return compare


def differing(result):
    return [f.record for f in result.findings if not f.status.agrees]


def statuses(result, name):
    return [f.status for f in result.findings if f.record.startswith(name)]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("count", "seed", "fingerprint"),
    [(1, 1, True), (2, 2, False), (3, 3, True), (3, 4, False), (5, 5, True)],
)
def test_noise_alone_is_no_divergence(compared, task, fingerprint, count, seed):
    """Whatever strays as the repetitions do is within tolerance, and says how far it strays."""
    result = compared(count=count, seed=seed, task=task, fingerprint=fingerprint)
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE
    strays = [f for f in result.findings if f.record.endswith("of8.Dense.forward.0.output.0")]
    assert {f.status for f in strays} == {Status.WITHIN_TOLERANCE}
    runs = f"{count} repetition{'s' * (count > 1)}"
    assert all(f"times the noise of {runs}" in f.note for f in strays)
    assert {f.tolerance for f in strays} == {f"noise ({runs})"}
    assert any(rule.rule == f"noise ({runs})" for rule in result.rules)
    exact = "identical" if fingerprint or task == "tensor" else "within_tolerance"
    assert set(statuses(result, "Cell.exact.Dense.forward.0.output")) == {Status(exact)}


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("size", "factor"), [(1, 100), (1, 1000), (8, 20), (8, 100), (1000, 20), (1000, 1000)]
)
def test_a_fault_many_times_the_noise_is_named(compared, task, factor, size):
    """The one cell that is off by more than noise is the first divergence."""
    cell = f"cell1.of{size}"
    count = 5 if size == 1 else 2  # the spread of a single number takes more runs to be known
    change = {cell: lambda x: x + factor * NOISE}
    result = compared(b={"change": change}, task=task, count=count)
    place = result.verdict.first_divergence
    assert place.entry == f"Cell.{cell}.Dense.forward.0"
    assert place.cause is Cause.COMPUTATION
    assert differing(result) == [f"{place.entry}.output.0"]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_what_never_strays_must_agree(compared, task):
    """The smallest change counts where A and its repetitions agree bit for bit."""
    result = compared(b={"change": {"exact": lambda x: x + 1e-12}}, task=task)
    (record,) = differing(result)
    assert record == "Cell.exact.Dense.forward.0.output.0"
    finding = next(f for f in result.findings if f.record == record)
    assert "agree bit for bit here" in finding.note


def changed_to(*numbers, factor=1.0):
    """Return what puts numbers in the place of the first elements of a cell's output."""

    def change(value):
        value[: len(numbers)] = numbers
        value[len(numbers)] *= factor
        return value

    return {"change": {"cell2.of8": change}}


OUTPUT = "Cell.cell2.of8.Dense.forward.0.output"


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_nan_in_b_only(compared, task):
    """A NaN that no repetition has is never noise."""
    result = compared(b=changed_to(np.nan), task=task)
    assert statuses(result, OUTPUT) == [Status.NON_FINITE]
    assert result.verdict.first_divergence.cause is Cause.NON_FINITE


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_nan_that_comes_and_goes(compared, task):
    """A NaN that some repetition has as well is noise, if the other elements are known to be."""
    change = changed_to(np.nan)
    result = compared(b=change, repetitions=[{}, change, {}], task=task)
    if task == "tensor":
        assert result.verdict.status is Outcome.WITHIN_TOLERANCE
    else:  # beside a NaN, no statistic tells what the other elements are
        assert statuses(result, OUTPUT) == [Status.NON_FINITE]
    fault = changed_to(np.nan, factor=1.5)
    result = compared(b=fault, repetitions=[{}, change, {}], task=task, where="fault")
    assert statuses(result, OUTPUT) == [Status.NON_FINITE]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("other", [-np.inf, np.nan])
def test_infinities_are_no_noise(compared, task, other):
    """Infinity against its opposite, or against NaN, is apart by more than any noise."""
    a, b = changed_to(np.inf), changed_to(other)
    result = compared(a=a, b=b, repetitions=[a] * 3, task=task)
    assert statuses(result, OUTPUT) == [Status.DIFFERENT]
    keys = [{"keys": {"k": number}} for number in (np.inf, other)]
    result = compared(a=keys[0], b=keys[1], repetitions=keys[:1], task=task, where="numbers")
    assert statuses(result, "k") == [Status.DIFFERENT]


@pytest.mark.parametrize("shape", [(), (4,)])
def test_non_finite_elements_pass_where_a_repetition_has_the_same_ones(compared, shape):
    """Whatever comes and goes: B must have the NaN and infinities of A or of one repetition."""
    random = np.random.default_rng(11)
    numbers = [np.nan, np.inf, -np.inf, 1.0, 1.0, 1.0]
    size = int(np.prod(shape))
    keys = [
        {f"k{i}": random.choice(numbers, size).reshape(shape) for i in range(100)} for _ in range(4)
    ]
    result = compared(
        a={"keys": keys[0]}, b={"keys": keys[1]}, repetitions=[{"keys": k} for k in keys[2:]]
    )
    findings = {finding.key: finding for finding in result.findings if finding.key}
    passed = 0
    for key, value in keys[1].items():
        like = [np.array_equal(value, run[key], equal_nan=True) for run in (keys[0], *keys[2:])]
        assert findings[key].status.agrees == any(like), (key, value)
        passed += findings[key].status.agrees
    assert 0 < passed < len(keys[1])


@pytest.mark.parametrize(("changed", "agrees"), [(1, True), (2, True), (40, False)])
def test_tokens_stray_by_how_many_of_them_differ(compared, changed, agrees):
    """The share of elements that differ is the distance; B's may not be far above the noise."""

    def of(run, count):
        tokens = np.arange(1000)
        tokens[100 * run : 100 * run + count] += 5000
        return {"keys": {"tokens": tokens}}

    result = compared(a=of(0, 1), b=of(1, changed), repetitions=[of(n, 1) for n in (2, 3, 4)])
    (finding,) = [f for f in result.findings if f.key == "tokens"]
    assert finding.status.agrees == agrees


@pytest.mark.parametrize("places", [1, 5])
@pytest.mark.parametrize("where", ["a", "repetition"])
def test_infinity_in_one_run_excuses_no_other_number(compared, where, places):
    """A run that overflowed is at no distance from a B that did not: it says nothing of it."""

    def of(first):
        return {"keys": {"loss": np.array([first, 2.0, 3.0, 4.0, 5.0][:places])}}

    runs = {"a": of(1.0), "repetitions": [of(1.0), of(1.0)]}
    if where == "a":
        runs["a"] = of(np.inf)
    else:
        runs["repetitions"][0] = of(np.inf)
    result = compared(b=of(500.0), **runs)
    assert differing(result) == ["loss"]
    assert "agree here in all but NaN and infinity" in result.verdict.first_divergence.explanation
    assert differing(compared(b=of(np.inf), where="known", **runs)) == []


def test_infinity_where_shapes_vary_excuses_no_nan(compared):
    """Masks of -inf whose shapes vary are no reason for NaN."""
    each = [{"keys": {"mask": np.full((2, size), -np.inf)}} for size in (5, 6, 7)]
    for value, passes in ((-np.inf, True), (np.nan, False)):
        b = {"keys": {"mask": np.full((2, 8), value)}}
        result = compared(a=each[0], b=b, repetitions=each[1:], where=str(value))
        assert differing(result) == ([] if passes else ["mask"])


@pytest.mark.parametrize("lacks", range(4))
def test_a_statistic_that_one_record_lacks_is_no_noise(lacks):
    """B's other statistics lie within the noise; what is not known of one may be anything."""

    def of(max, **values):
        leaf = Leaf("Tensor", dtype="Float32", shape=(4,), max=max, min=0.0, norm=1.0, mean=0.5)
        return Record("x", "output", "0", replace(leaf, nan_count=0, inf_count=0, **values))

    records = [of(1.0), of(1.001), of(1.002), of(1.0015)]  # B, A and two repetitions
    assert within_noise(records[1], records[0], records[2:], None).natural
    records[lacks] = replace(records[lacks], leaf=replace(records[lacks].leaf, mean=None))
    assert not within_noise(records[1], records[0], records[2:], None).natural


def test_nan_on_all_sides_hides_nothing_from_the_statistics(compared):
    """Where A, B and the repetitions hold NaN, their statistics are all the same: no pass."""
    a, b = changed_to(np.nan), changed_to(np.nan, factor=1000)
    result = compared(a=a, b=b, repetitions=[a] * 3, task="statistics")
    assert statuses(result, OUTPUT) == [Status.DIFFERENT]


def test_nan_in_b_only_where_shapes_vary(compared):
    """Shapes that vary excuse no NaN, and no other dtype or number of dimensions."""

    def of(shape, dtype=np.float32, value=1.0):
        return {"keys": {"values": np.full(shape, value, dtype)}}

    each = [of((2, 5)), of((2, 7))]
    numbers = itertools.count()
    for b, passes in (
        (of((2, 9)), True),
        (of((3, 9)), False),
        (of((2, 9, 1)), False),
        (of((2, 9), value=np.nan), False),
        (of((2, 5), value=np.nan), False),
        (of((2, 9), np.float16), False),
    ):
        where = str(next(numbers))
        result = compared(a=of((2, 6)), b=b, repetitions=each, where=where)
        assert differing(result) == ([] if passes else ["values"]), b


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_texts_tokens_and_masks_that_vary(compared, task):
    """Sampled texts, tokens and masks that change among the repetitions may change in B."""

    def sampled(seed):
        random = np.random.default_rng(seed)
        length = int(random.integers(5, 9))
        return {
            "keys": {
                "texts": [f"answer {seed}", "same"],
                "responses": random.integers(0, 1000, size=(4, 50)),
                "mask": random.random((4, 50)) < 0.5,
                "lengths": np.ones((2, length), np.float32),
            }
        }

    result = compared(
        a=sampled(1), b=sampled(9), repetitions=[sampled(2), sampled(3), sampled(4)], task=task
    )
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE
    assert statuses(result, "texts.0") == [Status.WITHIN_TOLERANCE]
    assert statuses(result, "texts.1") == [Status.IDENTICAL]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_texts_and_tokens_that_never_vary(compared, task):
    """Another text, another token, another shape in B alone are divergences."""
    keys = {"texts": ["x"], "responses": np.arange(8), "sizes": np.ones((2, 3))}
    changed = {"texts": ["y"], "responses": np.arange(8) // 7 * 7, "sizes": np.ones((2, 4))}
    result = compared(
        a={"keys": keys}, b={"keys": changed}, repetitions=[{"keys": keys}] * 3, task=task
    )
    assert sorted(differing(result)) == ["responses", "sizes", "texts.0"]


MORE = {"keys": {"extra": np.ones(3)}, "extra": ["sometimes"]}


@pytest.mark.parametrize("swapped", [False, True])
def test_a_record_that_comes_and_goes(compared, swapped):
    """What a repetition lacks, or has, like B is coverage."""
    a, b = (MORE, {}) if swapped else ({}, MORE)
    result = compared(a=a, b=b, repetitions=[{}, MORE, {}])
    assert result.verdict.status is Outcome.WITHIN_TOLERANCE
    (gap,) = result.verdict.coverage
    assert gap.reason == "calls and keys that not every repetition of A has"
    assert gap.only_in == ("A" if swapped else "B")
    assert gap.records == 3


@pytest.mark.parametrize("swapped", [False, True])
def test_a_record_that_only_b_lacks_or_has(compared, swapped):
    """What all repetitions agree on is missing where B does otherwise."""
    a, b = (MORE, {}) if swapped else ({}, MORE)
    result = compared(a=a, b=b, repetitions=[a] * 2)
    assert result.verdict.status is Outcome.DIVERGED
    alone = Status.ONLY_IN_A if swapped else Status.ONLY_IN_B
    assert result.verdict.counts[alone.value] == 3


def test_a_record_that_no_repetition_has(compared):
    """Without a repetition of it, a difference stays one, and the note says so."""
    result = compared(
        a={"keys": {"extra": np.ones(3)}},
        b={"keys": {"extra": np.full(3, 1 + 1e-6)}},
        repetitions=[{}, {}],
    )
    (finding,) = [f for f in result.findings if f.key == "extra"]
    assert finding.status is Status.DIFFERENT
    assert "no repetition of A recorded it" in finding.note


def test_a_repetition_that_cannot_be_read(compared, tmp_path):
    """A damaged file of a repetition explains nothing and hides nothing; it is named."""
    compared(task="tensor", count=2)
    (damaged,) = (tmp_path / "n0").rglob("*cell0.of8*output*.npy")
    damaged.write_bytes(damaged.read_bytes()[:-8])
    result = compare_runs(tmp_path / "a", tmp_path / "b", noise=[tmp_path / "n0", tmp_path / "n1"])
    (finding,) = [f for f in result.findings if not f.status.agrees]
    assert ".of8." in finding.record
    assert "its noise is not known" in finding.note
    assert "cut short" in finding.note


def test_numbers_beyond_every_float(compared):
    """Python integers of any size are no reason to give up the rest."""
    result = compared(
        a={"keys": {"n": 10**400}},
        b={"keys": {"n": 10**401}},
        repetitions=[{"keys": {"n": 10**400 + 5}}],
    )
    assert statuses(result, "n") == [Status.DIFFERENT]
    assert len(result.findings) > 20


def test_a_repetition_of_another_kind_is_refused(compared, tmp_path):
    """Run A, run B, one run twice, one that is none: each is one clear error."""
    compared(count=1)
    a, b, n = (tmp_path / name for name in ("a", "b", "n0"))
    link = tmp_path / "link"
    link.symlink_to(a)
    for noise, message in (
        ([a], "is run A itself"),
        ([link], "is run A itself"),
        ([n, b], "is run B itself"),
        ([n, n], "is given twice"),
        ([n, str(n) + "/"], "is given twice"),
    ):
        with pytest.raises(UsageError, match=message):
            compare_runs(a, b, noise=noise)
    with pytest.raises(RunError, match="does not exist"):
        compare_runs(a, b, noise=[tmp_path / "none"])
    assert compare_runs(a, b, noise=n)  # a path is a list of one


@pytest.mark.parametrize("values", [1, 2, 3])
@pytest.mark.parametrize("repetitions", [1, 2, 3, 4, 5])
def test_noise_exceeds_the_margin_less_than_once_in_a_thousand(values, repetitions):
    """Simulated: the nearest distance over the largest spread, of normally distributed values."""
    random = np.random.default_rng(0)
    draws = 200_000
    members = random.standard_normal((draws, repetitions + 1, values), np.float32)
    other = random.standard_normal((draws, 1, values), np.float32)
    nearest = np.linalg.norm(members - other, axis=2).min(axis=1)
    spread = np.zeros(draws, np.float32)
    for i, j in itertools.combinations(range(repetitions + 1), 2):
        apart = np.linalg.norm(members[:, i] - members[:, j], axis=1)
        spread = np.maximum(spread, apart)
    known = MARGINS[values - 1]
    margin = known[repetitions - 1] if repetitions <= len(known) else LEAST_MARGIN
    assert np.mean(nearest > margin * spread) < 0.0013
