"""What calls that were computed again found: `task: accuracy_check` and `task: free_benchmark`.

Opinions on calls become a ranked table: what is wrong, and where that begins.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.checks.check import Check
from mindrlhf_msprobe.checks.rule import Found, Need, rule
from mindrlhf_msprobe.checks.views import Step
from mindrlhf_msprobe.common.message import message, read_message
from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings.accuracy import Accuracy, AccuracyResult, NotComputed, RankedTensor
from mindrlhf_msprobe.findings.health import Severity
from mindrlhf_msprobe.storage.layout import OPINIONS, lines_name
from mindrlhf_msprobe.storage.operators import parse_operator
from mindrlhf_msprobe.storage.place import Place
from mindrlhf_msprobe.storage.reading.reader import open_run
from mindrlhf_msprobe.storage.records import cell_name
from mindrlhf_msprobe.storage.step_lines import (
    CallOpinion,
    RowsOfSteps,
    TensorOpinion,
    benchmark_lines,
    opinion_lines,
)

_GRAVITY = {Accuracy.WRONG: 2, Accuracy.UNDECIDED: 1, Accuracy.ORDINARY: 0}
_TASK = "accuracy_check"
_Key = tuple[str, str, str, str]


def accuracy_of(path: str | Path) -> AccuracyResult:
    """Return what is thought of the calls of a run that was recorded with `accuracy_check`.

    Raises:
        RunError: there is no such run, or it has no opinions.
    """
    run = open_run(path)
    ranks = sorted({rank for _, rank in run.places} | {0})
    files = [(rank, opinion_lines(run.path, rank)) for rank in ranks]
    found = [opinion for rank, lines in files for opinion in run.side_lines(lines, rank)]
    if not found:
        settings = [manifest.get("config") for manifest in run.manifests]
        if any(isinstance(one, dict) and one.get("task") == _TASK for one in settings):
            raise RunError.saying("accuracy.nothing", path=run.path, task=_TASK)
        raise RunError.saying("accuracy.none", path=run.path, file=lines_name(OPINIONS, ranks[0]))
    problems = tuple(problem.said for problem in run.problems)
    damaged = sum(lines.damaged for _, lines in files)
    result = conclude(str(run.path), found)
    return replace(result, gaps=result.gaps + damaged, problems=problems)


def conclude(path: str, opinions: Iterable[CallOpinion]) -> AccuracyResult:
    """Put together what is thought of single calls.

    Args:
        opinions: in the order in which they were given, which is the order in which calls ended.
    """
    kept: dict[_Key, _Kept] = {}
    none: dict[tuple[str, str, str], NotComputed] = {}
    wrong: dict[tuple[int, int, str], set[str]] = {}
    calls, seconds, gaps = 0, 0.0, 0
    for number, one in enumerate(opinions):
        calls += 1
        seconds += one.seconds
        operator = parse_operator(one.entry)
        call = one.entry.rpartition(".")[0]  # without the number of the call
        if operator is not None:
            call = f"{operator.operator}.{operator.direction}"
        gaps += one.needed and one.opinion == Accuracy.UNDECIDED.value
        if one.why is not None:
            key = call, one.cell, str(one.why)
            before = none.get(key)
            count, entry = (1, one.entry) if before is None else (before.calls + 1, before.entry)
            needed = one.needed or (before is not None and before.needed)
            none[key] = NotComputed(call, one.cell, one.why, count, entry, needed)
        origin = one.opinion == Accuracy.WRONG.value and _begins(one, wrong)
        for tensor in one.tensors:
            name = tensor.record.removeprefix(f"{one.entry}.")
            kept.setdefault((one.phase, call, one.cell, name), _Kept()).add(
                number, one, tensor, origin
            )
    ranked = [one.ranked(*key) for key, one in kept.items()]
    ranked.sort(key=lambda one: (-_GRAVITY[one.opinion], not one.origin, -one.worst.ratio))
    return AccuracyResult(path, tuple(ranked), tuple(none.values()), calls, seconds, gaps)


def _begins(one: CallOpinion, wrong: dict[tuple[int, int, str], set[str]]) -> bool:
    """Return whether nothing inside a wrong call was wrong before it ended.

    Args:
        wrong: of each place, the cells around what was wrong before; this call's are added.
    """
    around = wrong.setdefault((one.step, one.rank, one.phase), set())
    is_operator = parse_operator(one.entry) is not None
    begins = is_operator or one.cell not in around
    parts = one.cell.split(".")
    around.update(".".join(parts[:n]) for n in range(1, len(parts)))
    around.update([one.cell] * is_operator + ["root"] * (one.cell not in ("", "root")))
    return begins


class _Kept:
    """What is kept of one tensor over all calls."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._worst: tuple[CallOpinion, TensorOpinion] | None = None
        self._origin = False
        self._gaps = 0
        self._first: tuple[int, CallOpinion, TensorOpinion] | None = None

    def add(self, number: int, call: CallOpinion, tensor: TensorOpinion, origin: bool) -> None:
        """Take one more call."""
        self._counts[tensor.opinion] += 1
        is_wrong = tensor.opinion == Accuracy.WRONG.value
        if is_wrong and self._first is None:
            self._first = number, call, tensor
        self._origin |= origin and is_wrong
        self._gaps += call.needed and tensor.opinion == Accuracy.UNDECIDED.value
        if self._worst is None or self._rank(tensor) > self._rank(self._worst[1]):
            self._worst = call, tensor

    @staticmethod
    def _rank(tensor: TensorOpinion) -> tuple[int, float]:
        return _GRAVITY[Accuracy(tensor.opinion)], tensor.ratio

    def ranked(self, phase: str, call: str, cell: str, name: str) -> RankedTensor:
        """Return the row of the table."""
        assert self._worst is not None
        of, tensor = self._worst
        opinion, first = Accuracy(tensor.opinion), self._first or (None, None, None)
        fields: tuple[Any, ...] = (phase, call, cell, name, opinion, dict(self._counts))
        fields += (of.precision, tensor, of.step, of.rank, of.entry, self._origin, self._gaps)
        return RankedTensor(*fields, *first)


@rule("accuracy.wrong", needs=(Need("opinions"),), severity=Severity.ERROR)
class Wrong:
    """Cells and operators that rounding does not explain, where nothing inside them is wrong."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._ranks: set[int] = set()

    def step(self, step: Step) -> None:
        """Note which ranks there are."""
        self._ranks.update(step.ranks)

    def end(self) -> Iterator[Found]:
        """Yield what is wrong, once for each tensor of a call; say what has no opinion."""
        run = self._check.run
        files = ((rank, opinion_lines(run.path, rank)) for rank in sorted(self._ranks))
        opinions = (one for rank, lines in files for one in run.side_lines(lines, rank))
        found = conclude(str(run.path), opinions)
        self._check.checked(found.calls - found.gaps)
        for name in found.without_opinion:
            self._check.not_checked(message("check_accuracy.no_opinion", name=name))
        for one in found.origins:
            call, first = one.first_call, one.first_tensor
            if call is None or first is None:
                continue
            place = Place(call.step, call.rank, one.phase, call.entry, first.record)
            said = message(
                "check_accuracy.wrong",
                call=one.call,
                cell=one.cell,
                tensor=one.tensor,
                precision=one.precision,
                error=first.error,
                explained=first.explained,
                reason=first.reason,
            )
            shown = {"index": [*first.at], "actual": first.actual, "exact": first.exact}
            same = one.phase, one.call, one.cell, one.tensor
            times = one.counts.get("wrong", 1)
            yield self._check.finding(said, place, shown=shown, times=times, same=same)


_SHOWN = ("change", "disturbed_by", "ratio", "threshold", "differing", "dtype", "coarsest")
_NOT_DETERMINISTIC = "check_benchmark.not_deterministic"


@rule(
    "free_benchmark.changes",
    causes=("check_benchmark.cause_ill_conditioned", "check_benchmark.cause_kernel"),
)
class Changes:
    """A call that runs again on disturbed inputs, or on the same, gives a result like the first.

    What is too much was decided while training, by the configuration's thresholds.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._rows: dict[int, RowsOfSteps] = {}
        self._seen = False

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the largest change of each output that changed too much in a step."""
        for rank in step.ranks:
            if rank not in self._rows:
                run = self._check.run
                rows = run.side_lines(benchmark_lines(run.path, rank), rank)
                self._rows[rank] = RowsOfSteps(rows, run.steps)
            worst: dict[tuple[Any, ...], dict[str, Any]] = {}
            for row in self._rows[rank].take(step.number):
                self._seen = True
                for said in map(read_message, row.get("why", ())):
                    if said is not None:
                        known = {"cell": cell_name(row["entry"]), "why": said}
                        self._check.not_checked(message("check_benchmark.not_run", **known))
                if "why" in row:
                    continue
                self._check.checked()
                if row["consistent"]:
                    continue
                key = (row["phase"], cell_name(row["entry"]), str(row.get("path")), row["stage"])
                if key not in worst or _size(row) > _size(worst[key]):
                    worst[key] = row
            for key, row in worst.items():
                yield self._finding(rank, key, row)

    def end(self) -> None:
        """Say that nothing of the kind was recorded, where that is so."""
        if not self._seen:
            self._check.not_checked(message("check_benchmark.not_recorded"))

    def _finding(self, rank: int, key: tuple[Any, ...], row: dict[str, Any]) -> Found:
        at = Place(row["step"], rank, row["phase"], row["entry"])
        shown = {name: row[name] for name in _SHOWN if row.get(name) is not None}
        params = {"path": str(row.get("path") or "0"), "stage": row["stage"]}
        if row["pert_mode"] == "no_change":
            size = math.prod(n for n in row.get("shape") or () if isinstance(n, int))
            counts = {"differing": row.get("differing") or 0, "size": size}
            said = message(_NOT_DETERMINISTIC, **params, **counts)
            causes = ["check_benchmark.cause_order", "check_benchmark.cause_state"]
        else:
            params |= {"change": row["change"], "by": row["disturbed_by"], "mode": row["pert_mode"]}
            said, causes = message("check_benchmark.changes", **params), None
        return self._check.finding(
            said, at, shown=shown, causes=causes, same=(said.code, *key, rank)
        )


def _size(row: dict[str, Any]) -> float:
    change = row["change"]
    return float("inf") if change is None else float(change)
