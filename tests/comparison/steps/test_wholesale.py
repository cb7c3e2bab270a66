"""What agrees may be counted by the line: nothing else may come out of it than by pairs."""

import json
import random
import shutil
from collections import Counter

import pytest
from helpers.runs import Fault, record_training

from mindrlhf_msprobe import Tolerance, compare_runs, open_run
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.comparison import compare as compare_module
from mindrlhf_msprobe.comparison.engine.executor import Folding
from mindrlhf_msprobe.comparison.judging.tolerance import Rule, Tolerances
from mindrlhf_msprobe.comparison.steps import wholesale
from mindrlhf_msprobe.comparison.steps.tally import is_folded
from mindrlhf_msprobe.findings import Agreement, Status
from mindrlhf_msprobe.storage.columns.export import export_run

CASES = 38
LIKELY = property(lambda self: self._above is not None and not self._all_rows)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """One training of two steps on two ranks, twice; the second with a fault late in it."""
    root = tmp_path_factory.mktemp("recorded")
    settings = {"steps": 2, "ranks": (0, 1), "rounds": 2, "tokens": 2}
    a = record_training(root / "A", **settings)
    fault = Fault("layers.1.mlp", "actor_update", step=1)
    return a, record_training(root / "B", faults=[fault], **settings)


@pytest.fixture
def folded(monkeypatch):
    """Fold however few records there are, and count whatever can be counted."""
    monkeypatch.setattr(compare_module, "FOLD_ABOVE", 0)
    monkeypatch.setattr(Folding, "is_likely", LIKELY)


@pytest.fixture
def ways(monkeypatch):
    """Count the places that were counted wholesale (True) and those that had to be paired."""
    ways = Counter()
    whole = wholesale.count_wholesale

    def count(*args):
        found = whole(*args)
        ways[found is not None] += 1
        return found

    monkeypatch.setattr(wholesale, "count_wholesale", count)
    return ways


def assert_same(a, b, **options):
    """Compare both ways, hold one against the other, and return what was found."""
    options = {"workers": 1, **options}
    fast = compare_runs(a, b, **options)
    slow = compare_runs(a, b, all_rows=True, **options)
    assert not slow.agreements
    assert fast.to_json() == slow.to_json()
    assert repr(fast.verdict) == repr(slow.verdict)
    kept = [f for f in slow.findings if not is_folded(f)]
    assert list(map(repr, fast.findings)) == list(map(repr, kept))
    assert Counter(map(repr, fast.agreements)) == Counter(map(repr, agreements_of(slow.findings)))
    return fast


def agreements_of(findings):
    """Return what the findings of cells that agree come to."""
    places = {}
    for finding in filter(is_folded, findings):
        places.setdefault((finding.step, finding.rank, finding.phase or ""), []).append(finding)
    for place, found in places.items():
        close = sum(f.status is Status.WITHIN_TOLERANCE for f in found)
        odd = [f for f in found if f.suspicions]
        first = None
        if odd:
            what = {"count": len(odd), "record": odd[0].record}
            first = message("suspicion.of_many", **what, why=list(odd[0].suspicions))
        yield Agreement(*place, len(found) - close, close, len(odd), first)


def journals(run):
    return sorted(run.rglob("records.jsonl"))


def edit(journal, change):
    """Change the lines of a journal."""
    lines = [json.loads(line) for line in journal.read_bytes().splitlines()]
    lines = change(lines) or lines
    journal.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def leaves(content):
    if isinstance(content, dict):
        if isinstance(content.get("type"), str):
            yield content
            return
        content = list(content.values())
    for item in content if isinstance(content, list) else []:
        yield from leaves(item)


def a_leaf(rng, change):
    """Change some leaves of some lines of one or of both runs."""

    def apply(runs):
        journal = rng.choice(journals(runs[0])).relative_to(runs[0])
        number = rng.random()
        sides = [runs[1]] if rng.random() < 0.5 else runs
        for side in sides:

            def edit_lines(lines):
                found = [leaf for line in lines for leaf in leaves(line) if leaf.get("shape")]
                for leaf in random.Random(number).sample(found, min(3, len(found))):
                    change(leaf)

            edit(side / journal, edit_lines)

    return apply


def lines_of_b(rng, change):
    def apply(runs):
        edit(rng.choice(journals(runs[1])), change)

    return apply


def all_lines_of_b(change):
    def apply(runs):
        for journal in journals(runs[1]):
            edit(journal, lambda lines: [change(line) or line for line in lines])

    return apply


def mutations(rng):
    """Return everything that may happen to a pair of runs."""

    def damage(runs):
        journal = rng.choice(journals(runs[0])).relative_to(runs[0])
        for side in runs if rng.random() < 0.5 else runs[1:]:
            lines = (side / journal).read_bytes().splitlines(keepends=True)
            lines[len(lines) // 2] = rng.choice([b"{}\n", b"nonsense\n", lines[0], b"[1]\n"])
            (side / journal).write_bytes(b"".join(lines))

    def cut(runs):
        journal = rng.choice(journals(runs[1]))
        journal.write_bytes(journal.read_bytes()[: -rng.randint(1, 60)])

    def stop(runs):
        manifest = rng.choice(runs) / rng.choice(["run.json", "run.rank1.json"])
        content = json.loads(manifest.read_bytes())
        step = rng.choice([0, 1])
        content["state"] = content["attempts"][-1]["state"] = "failed"
        content["attempts"][-1]["last_completed_step"] = step - 1 if step else None
        manifest.write_text(json.dumps(content))
        rank = 1 if "rank1" in manifest.name else 0
        for phase in ("actor_update", "critic_update"):
            shutil.rmtree(manifest.parent / phase / f"step{step}" / f"rank{rank}")

    def drop_phase(runs):
        shutil.rmtree(rng.choice(journals(rng.choice(runs))).parent)

    def drop_key(runs):
        shutil.rmtree(rng.choice(sorted(rng.choice(runs).glob("data/*/step*/rank*"))))

    def drop_lines(lines):
        for _ in range(min(len(lines) - 1, rng.randint(1, 3))):
            lines.remove(rng.choice(lines))

    def without_parameters(lines):
        for line in lines:
            if rng.random() < 0.4:
                line.pop("parameters", None)

    def reorder(lines):
        x, y = rng.choice(lines), rng.choice(lines)
        x["seq"], y["seq"] = y["seq"], x["seq"]

    def shift(line):
        line["seq"] = 3 * line["seq"] + 5
        line["end"] = None if line["end"] is None else 3 * line["end"] + 5

    def other_stack(line):
        line.update(stack=0, frames=["File elsewhere.py, line 1, in step"])

    def shape(leaf):
        leaf["shape"] = [*leaf["shape"], 1]

    def add_scalar(value):
        def change(lines):
            rng.choice(lines)["input_kwargs"] = {"flag": value, "shape": {"max": value}}

        return change

    unknown = {"type": "Mask", "value": None, "opaque": True}
    return [
        a_leaf(rng, lambda leaf: leaf.update(fingerprint="xxh3_128:0", Max=77.0)),
        a_leaf(rng, lambda leaf: leaf.update(fingerprint="xxh3_128:1")),
        a_leaf(rng, lambda leaf: leaf.update(Max=leaf["Max"] + 1e-9, fingerprint="xxh3_128:2")),
        a_leaf(rng, lambda leaf: leaf.update(Max="NaN", Mean="NaN", nan_count=1)),
        a_leaf(rng, lambda leaf: leaf.update(inf_count=1, Norm="Infinity")),
        a_leaf(rng, lambda leaf: leaf.pop("fingerprint", None)),
        a_leaf(rng, lambda leaf: leaf.update(fingerprint="other:1")),
        a_leaf(rng, lambda leaf: leaf.update(error="it was deleted")),
        a_leaf(rng, lambda leaf: leaf.update(dtype="Float16")),
        a_leaf(rng, lambda leaf: leaf.update(whole=True)),
        a_leaf(rng, lambda leaf: leaf.update(shape=[True])),
        a_leaf(rng, lambda leaf: leaf.pop("Mean", None)),
        a_leaf(rng, lambda leaf: leaf.update(Mean=rng.choice([None, "NaN", 0.5]))),
        a_leaf(rng, lambda leaf: leaf.update(Max=str(leaf["Max"]))),
        a_leaf(rng, lambda leaf: leaf.update(nan_count=-1)),
        a_leaf(rng, shape),
        lines_of_b(rng, drop_lines),
        lines_of_b(rng, without_parameters),
        lines_of_b(rng, reorder),
        lines_of_b(rng, add_scalar({"type": "int", "value": 3})),
        lines_of_b(rng, add_scalar(unknown)),
        lines_of_b(rng, add_scalar(None)),
        lambda runs: [edit(journals(run)[0], add_scalar(unknown)) for run in runs],
        lambda runs: [edit(journals(run)[1], add_scalar({"type": "bool"})) for run in runs],
        all_lines_of_b(shift),
        all_lines_of_b(other_stack),
        all_lines_of_b(lambda line: line.update(token=None)),
        lambda runs: [
            edit(journals(run)[2], lambda lines, number=number: lines[3].update(token=number))
            for run, number in zip(runs, rng.choice([(-1, None), (None, -1), (-1, -1)]))
        ],
        damage,
        cut,
        drop_phase,
        drop_key,
        stop,
    ]


@pytest.mark.parametrize("case", range(CASES))
def test_both_ways_say_the_same(recorded, tmp_path, folded, ways, case):
    """Whatever happened to the runs: verdict, findings that differ, and what agrees."""
    rng = random.Random(case)
    runs = [tmp_path / "A", tmp_path / "B"]
    for source, target in zip(recorded, runs):
        shutil.copytree(source if rng.random() < 0.6 else recorded[0], target)
    possible = mutations(rng)
    for mutate in [possible[case % len(possible)], *rng.sample(possible, rng.randint(0, 2))]:
        try:
            mutate(runs)
        except (ValueError, IndexError, FileNotFoundError):  # another one removed or damaged it
            continue
    if rng.random() < 0.5:
        for run in runs[rng.randint(0, 1) :]:
            export_run(open_run(run), run)
    tolerance = rng.choice(
        [
            None,
            Tolerance(rtol=1e-3),
            Tolerances(Tolerance(1e-2), (Rule(r"\.output\.", Tolerance(1e-6)),)),
        ]
    )
    assert_same(*runs, tolerance=tolerance, common=rng.random() < 0.2)
    assert ways  # the folded comparison tried


def test_most_places_are_counted(recorded, folded, ways):
    """Also those that hold a difference."""
    found = assert_same(*recorded)
    assert ways == {True: 4}
    assert found.verdict.first_divergence.record.startswith("Cell.layers.1.mlp.")
    assert {f.status for f in found.findings if f.entry} == {Status.DIFFERENT}


def test_places_with_lines_in_another_order_are_counted(recorded, tmp_path, folded, ways):
    """Gradients are written as they arrive."""
    other = shutil.copytree(recorded[1], tmp_path / "b")
    for journal in other.glob("*/step*/rank*/records.jsonl"):
        lines = journal.read_text().splitlines(keepends=True)
        journal.write_text("".join(sorted(lines, key=lambda line: "grad" in line[:80])[::-1]))
    assert_same(recorded[0], other)
    assert ways == {True: 4}


def test_whole_numbers_that_differ_below_what_a_float_tells(recorded, tmp_path, folded, ways):
    """A number of more than 64 bits is what its digits say."""
    runs = [shutil.copytree(recorded[0], tmp_path / name) for name in "ab"]
    for more, run in enumerate(runs):
        kwargs = {"seed": {"type": "int", "value": 2**70 + more}}
        edit(journals(run)[0], lambda lines, kwargs=kwargs: lines[0].update(input_kwargs=kwargs))
    found = assert_same(*runs)
    assert ways == {True: 4}
    assert found.verdict.first_divergence.record.endswith(".input.seed")


def test_a_statistic_that_is_a_text_is_no_number(recorded, tmp_path, folded):
    runs = [shutil.copytree(recorded[0], tmp_path / name) for name in "ab"]

    def as_text(lines):
        leaf = next(leaf for line in lines for leaf in leaves(line) if leaf.get("shape"))
        leaf["Max"] = str(leaf["Max"])

    edit(journals(runs[1])[0], as_text)
    assert assert_same(*runs).verdict.first_divergence is not None


@pytest.mark.parametrize("options", [{"first_only": True}, {"steps": "1"}, {"include": "mlp"}])
def test_parts_of_two_runs(recorded, folded, options):
    """What the caller left out is not counted."""
    assert_same(*recorded, **options)


def test_few_records_are_listed_whatever_it_looked_like(recorded, monkeypatch, ways):
    """Where many were expected and few came, each has its finding in the end."""
    monkeypatch.setattr(Folding, "is_likely", LIKELY)
    found = compare_runs(*recorded, workers=1)
    assert ways == {True: 4}
    assert not found.agreements
    assert len(found.findings) == sum(found.verdict.counts.values())
    assert repr(found.findings) == repr(compare_runs(*recorded, all_rows=True).findings)


def test_only_above_the_bound(recorded, monkeypatch):
    """As many records as are listed are listed; with one more, what agrees is not."""
    total = compare_runs(*recorded, workers=1).verdict.compared
    monkeypatch.setattr(compare_module, "FOLD_ABOVE", total)
    assert not compare_runs(*recorded).agreements
    monkeypatch.setattr(compare_module, "FOLD_ABOVE", total - 1)
    assert compare_runs(*recorded).agreements
