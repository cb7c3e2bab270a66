"""A comparison by processes that know nothing of each other is the one that one process makes."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.runs import Fault, a_nan, record_training
from helpers.snapshots import rewrite
from openpyxl import load_workbook

from mindrlhf_msprobe import compare_runs, compare_shard, reduce_shards
from mindrlhf_msprobe.cli import main
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.findings import Comparison
from mindrlhf_msprobe.storage.outputs import OutputError

STEPS, RANKS = 2, 4
#: What B's training does otherwise, by what the difference is.
FAULTS: dict[str, Sequence[Fault]] = {
    "none": (),
    "a late rank": (Fault("layers.1.mlp", "reference_compute_log_prob", step=1, rank=3),),
    "two ranks": (
        Fault("layers.0.mlp", "actor_update", step=1, rank=1),
        Fault("layers.1.mlp", "actor_update", rank=2),
    ),
    "not a number": (Fault("rewards", change=a_nan, rank=1),),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with A, and a B for each kind of fault."""
    root = tmp_path_factory.mktemp("shards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK_SIZE", str(RANKS))
        record_training(root / "a", steps=STEPS, ranks=range(RANKS))
        for name, faults in FAULTS.items():
            record_training(root / name, steps=STEPS, ranks=range(RANKS), faults=faults)
    return root


@pytest.fixture
def shards(recorded: Path, tmp_path: Path) -> Callable[..., list[Path]]:
    """Return what compares all shards of a pair, in a random order; it returns their parts."""

    def compare(name: str, of: int, **options: Any) -> list[Path]:
        target = tmp_path / f"parts_{of}"
        target.mkdir()
        numbers = list(range(1, of + 1))
        random.shuffle(numbers)
        runs = recorded / "a", recorded / name
        for number in numbers:
            compare_shard(*runs, shard=(number, of), output_path=target, **options)
        return sorted(target.iterdir())

    return compare


def said(comparison: Comparison, output: Path) -> tuple[Any, ...]:
    """Return all that a comparison says, in memory and in its files."""
    verdict = (output / "verdict.json").read_bytes().replace(os.fsencode(output), b"OUT")
    tables = {
        (path.name, sheet.title): [*sheet.iter_rows(values_only=True)]
        for path in sorted(output.glob("*.xlsx"))
        for sheet in load_workbook(path)
    }
    found = comparison.verdict, [*comparison.findings], comparison.agreements, comparison.remarks
    return verdict, tables, repr(found).replace(str(output), "OUT")  # NaN is not NaN


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("above", [0, 1500, 50_000], ids=["folded", "in_part", "listed"])
def test_all_shards_make_the_comparison_of_one_process(
    recorded: Path,
    shards: Callable[..., list[Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    above: int,
) -> None:
    for module in ("compare", "shards"):
        monkeypatch.setattr(f"mindrlhf_msprobe.comparison.{module}.FOLD_ABOVE", above)
    whole = tmp_path / "whole"
    expected = compare_runs(recorded / "a", recorded / name, output_path=whole, workers=1)
    for of in (3, 11):  # also more than there are steps of ranks
        joined = tmp_path / f"joined_{of}"
        found = reduce_shards(shards(name, of, workers=1), output_path=joined)
        assert said(found, joined) == said(expected, whole)


def test_options_are_those_of_the_shards(
    recorded: Path, shards: Callable[..., list[Path]], tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("mlp: {rtol: 1.0}\n")
    options = {"tolerance": rules, "steps": "1", "exclude": ["values"], "noise": []}
    whole = tmp_path / "whole"
    runs = recorded / "a", recorded / "two ranks"
    expected = compare_runs(*runs, output_path=whole, workers=1, **options)
    parts = shards("two ranks", 2, workers=1, **options)
    rules.unlink()  # what it says is in the parts
    joined = tmp_path / "joined"
    assert said(reduce_shards(parts, output_path=joined), joined) == said(expected, whole)


@pytest.fixture
def hosts(recorded: Path, tmp_path: Path) -> list[tuple[Path, Path]]:
    """Return A and B as two hosts hold them, each with two of the four ranks."""
    found = []
    for host in (0, 1):
        both = tmp_path / f"host{host}" / "a", tmp_path / f"host{host}" / "b"
        for run, name in zip(both, ("a", "two ranks")):
            shutil.copytree(recorded / name, run)
            for rank in {*range(RANKS)} - {2 * host, 2 * host + 1}:
                (run / ("run.json" if rank == 0 else f"run.rank{rank}.json")).unlink()
                for directory in run.glob(f"**/rank{rank}"):
                    shutil.rmtree(directory)
        found.append(both)
    return found


def test_each_host_compares_its_own_ranks(
    recorded: Path, hosts: list[tuple[Path, Path]], tmp_path: Path
) -> None:
    parts = [tmp_path / f"{n}.gz" for n in (1, 2)]
    for n, runs in enumerate(hosts):
        became = compare_shard(*runs, shard=(n + 1, 2), output_path=parts[n])
        assert (became.ranks, became.steps) == (2, STEPS)
    expected = compare_runs(recorded / "a", recorded / "two ranks")
    # The first difference is on rank 2, which the second host has.
    with pytest.raises(RunError, match=f"rank 2.*{os.uname().nodename}"):
        reduce_shards(parts, *hosts[0])
    found = reduce_shards(parts)
    assert found.run_a == str(hosts[1][0])
    assert not any(remark.code == "pairing.missing_ranks" for remark in found.remarks)
    assert found.verdict.first_divergence == expected.verdict.first_divergence
    assert found.verdict.counts == expected.verdict.counts
    assert "ranks 0, 1 were compared on other machines" in str(
        [str(remark) for remark in found.remarks]
    )


def test_what_no_shard_compared_is_refused(hosts: list[tuple[Path, Path]], tmp_path: Path) -> None:
    parts = [tmp_path / f"{n}.gz" for n in (1, 2)]
    for n, runs in enumerate(reversed(hosts)):  # each the shard of the other's ranks
        compare_shard(*runs, shard=(n + 1, 2), output_path=parts[n])
    with pytest.raises(RunError, match="compared by no shard"):
        reduce_shards(parts)


def test_parts_that_are_not_of_one_comparison_are_refused(
    recorded: Path, shards: Callable[..., list[Path]], tmp_path: Path
) -> None:
    first, second = shards("none", 2, workers=1)
    with pytest.raises(RunError, match="missing: 2"):
        reduce_shards([first])
    copy = shutil.copy(first, tmp_path / "copy")
    with pytest.raises(RunError, match="both are shard 1 of 2"):
        reduce_shards([first, copy, second])
    runs = recorded / "a", recorded / "none"
    other = tmp_path / "other"
    compare_shard(*runs, shard=(2, 2), output_path=other, steps="1")
    with pytest.raises(RunError, match="another steps"):
        reduce_shards([first, other])
    compare_shard(*runs, shard=(2, 3), output_path=other)
    with pytest.raises(RunError, match="of 2 shards, the other of 3"):
        reduce_shards([first, other])
    again = tmp_path / "again"
    shutil.copytree(recorded / "none", again)
    rewrite(again / "run.json", {("attempts", -1, "started"): "2001-01-01T00:00:00"})
    compare_shard(recorded / "a", again, shard=(2, 2), output_path=other)
    with pytest.raises(RunError, match="different recordings of rank 0 of B"):
        reduce_shards([first, other])


def test_runs_that_are_not_those_of_the_parts_are_refused(
    recorded: Path, shards: Callable[..., list[Path]], tmp_path: Path
) -> None:
    """The start in seconds tells nothing apart: both runs began in the same one."""
    parts = shards("a late rank", 2, workers=1)
    a, late, other = (recorded / name for name in ("a", "a late rank", "two ranks"))
    for runs in ((a, other), (late, a), (a, a.parent / "none")):
        with pytest.raises(RunError, match="not those that were compared"):
            reduce_shards(parts, *runs)
    with pytest.raises(UsageError, match="as many runs"):
        reduce_shards(parts, a)
    swapped = tmp_path / "swapped"
    compare_shard(late, a, shard=(2, 2), output_path=swapped)
    with pytest.raises(RunError, match="different recordings of rank 0 of A"):
        reduce_shards([parts[0], swapped])


def test_dumps_of_other_tools_are_told_apart_by_their_paths(recorded: Path, tmp_path: Path) -> None:
    runs = [shutil.copytree(recorded / n, tmp_path / n) for n in ("a", "none", "two ranks")]
    for run in runs:
        for manifest in run.glob("run*.json"):
            manifest.unlink()
    compare_shard(*runs[:2], shard=(1, 2), output_path=tmp_path)
    compare_shard(runs[0], runs[2], shard=(2, 2), output_path=tmp_path)
    with pytest.raises(RunError, match="the runs are"):
        reduce_shards([tmp_path])


def _changed(part: Path, change: Callable[[list[Any]], Any]) -> bytes:
    lines = [json.loads(line) for line in gzip.decompress(part.read_bytes()).splitlines()]
    lines = change(lines) or lines
    return gzip.compress(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def _set(line: int, *keys: Any, value: Any) -> Callable[[list[Any]], None]:
    def change(lines: list[Any]) -> None:
        inside = lines[line]
        for key in keys[:-1]:
            inside = inside[key]
        inside[keys[-1]] = value

    return change


def _nested(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


HOSTILE: dict[str, Callable[[list[Any]], Any]] = {
    "no header": lambda lines: lines[1:],
    "no object": lambda lines: [[], *lines[1:]],
    "another schema": _set(0, "schema", value=2),
    "another version": _set(0, "version", value="9.9"),
    "a number out of range": _set(0, "part", "number", value=7),
    "a path that is a number": _set(0, "part", "runs", value=[1, 2]),
    "an unknown option": _set(0, "part", "options", "engine", value="ray"),
    "no end": lambda lines: lines[:-1],
    "a step left out": lambda lines: [*lines[:1], *lines[2:]],
    "a step twice": lambda lines: [*lines[:2], lines[1], *lines[2:-1], {"end": len(lines) - 1}],
    "more behind the end": lambda lines: [*lines, lines[1]],
    "a step that was not held": _set(1, "step", value=77),
    "a step that is a text": _set(1, "step", value="0"),
    "a finding that is a number": _set(1, "findings", value=[1]),
    "an unknown status": _set(1, "findings", 0, "status", value="fine"),
    "more positions than findings": _set(1, "positions", value=[[0, 0]] * 3),
    "an unknown field": _set(1, "code", value="import os"),
    "too deep": _set(1, "notes", value=[{"code": "x", "params": [["a", _nested(60)]]}]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_part_is_refused(
    shards: Callable[..., list[Path]], tmp_path: Path, name: str
) -> None:
    part, other = shards("none", 2, workers=1)
    part.write_bytes(_changed(part, HOSTILE[name]))
    with pytest.raises(RunError, match=part.name):
        reduce_shards([part, other])


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9, 0.999])
def test_a_part_that_is_cut_is_refused(shards: Callable[..., list[Path]], share: float) -> None:
    part, other = shards("a late rank", 2, workers=1)
    raw = part.read_bytes()
    part.write_bytes(raw[: int(len(raw) * share)])
    with pytest.raises(RunError, match=part.name):
        reduce_shards([part, other])


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").mkdir()
    for name, error in (("fifo", RunError), ("gone", RunError), ("empty", UsageError)):
        with pytest.raises(error, match=name):
            reduce_shards([tmp_path / name])


def test_nothing_of_others_is_replaced(recorded: Path, tmp_path: Path) -> None:
    runs = recorded / "a", recorded / "none"
    mine = tmp_path / "notes.txt"
    mine.write_text("mine")
    with pytest.raises(OutputError):
        compare_shard(*runs, shard=(1, 2), output_path=mine)
    assert mine.read_text() == "mine"
    with pytest.raises(RunError, match="lies inside"):
        compare_shard(*runs, shard=(1, 2), output_path=runs[0] / "part.gz")
    part = compare_shard(*runs, shard=(1, 2), output_path=tmp_path).path
    before = part.stat().st_mtime_ns
    assert compare_shard(*runs, shard=(1, 2), output_path=tmp_path).path == part
    assert part.stat().st_mtime_ns > before


@pytest.mark.parametrize("shard", [(0, 2), (3, 2), (-1, -1), (True, 2), (1.0, 2), ("1", "2")])
def test_a_shard_that_is_not_there_is_refused(
    recorded: Path, tmp_path: Path, shard: tuple[Any, Any]
) -> None:
    with pytest.raises(UsageError, match="2/8"):
        compare_shard(recorded / "a", recorded / "none", shard=shard, output_path=tmp_path)


def test_on_the_command_line(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(recorded / "a"), str(recorded / "a late rank")]
    parts = [str(tmp_path / f"p{n}") for n in (1, 2)]
    assert main(["compare", *runs, "--shard", "1/2", "-o", parts[0]]) == 0
    assert "Shard 1 of 2" in capsys.readouterr().out
    assert main(["compare", *runs, "--shard", "2/2", "-o", parts[1], "--json"]) == 0
    became = json.loads(capsys.readouterr().out)
    assert became["first"]["rank"] == 3
    assert became["different"] > 0
    out = str(tmp_path / "out")
    assert main(["compare", "--reduce", *parts, "-o", out]) == 1
    reduced = capsys.readouterr().out
    assert main(["compare", *runs, "-o", out]) == 1
    whole = capsys.readouterr().out

    def without_time(text: str) -> list[str]:
        return [line.split(" records in ")[0] for line in text.splitlines()]

    assert without_time(reduced) == without_time(whole)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["A", "B", "--shard", "2"], "I/N"),
        (["A", "B", "--shard", "1/2", "--html", "x.html"], "--html"),
        (["A", "B", "--shard", "1/2", "--first-only"], "--first-only"),
        (["A", "B", "--shard", "1/2", "--mapping", "suggest"], "--mapping suggest"),
        (["--reduce", "x", "--steps", "1"], "--steps"),
        (["--reduce", "x", "--rtol", "0.1"], "--rtol"),
        (["--reduce", "x", "--shard", "1/2"], "--shard"),
    ],
)
def test_options_that_say_nothing_are_refused(
    recorded: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {"A": str(recorded / "a"), "B": str(recorded / "none")}
    assert main(["compare", *(runs.get(each, each) for each in options)]) == 2
    assert said in capsys.readouterr().err
