"""What calls that were computed again found: `task: accuracy_check` and `task: free_benchmark`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from mindrlhf_msprobe.checks.accuracy import conclude
from mindrlhf_msprobe.checks.check import Check
from mindrlhf_msprobe.checks.rule import Found, Need, rule
from mindrlhf_msprobe.checks.views import Step
from mindrlhf_msprobe.common.message import message, read_message
from mindrlhf_msprobe.findings.health import Severity
from mindrlhf_msprobe.storage.place import Place
from mindrlhf_msprobe.storage.records import cell_name
from mindrlhf_msprobe.storage.step_lines import RowsOfSteps, benchmark_lines, opinion_lines


@rule("accuracy.wrong", needs=(Need("opinions"),), severity=Severity.ERROR)
class Wrong:
    """Cells and operators that rounding does not explain, where nothing inside them is wrong."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._ranks: set[int] = set()

    def step(self, step: Step) -> Iterator[Found]:
        """Note which ranks there are."""
        self._ranks.update(step.ranks)
        yield from ()

    def end(self) -> Iterator[Found]:
        """Yield what is wrong, once for each tensor of a call; say what has no opinion."""
        path = self._check.run.path
        files = ((rank, opinion_lines(path, rank)) for rank in sorted(self._ranks))
        run = self._check.run
        opinions = (one for rank, lines in files for one in run.side_lines(lines, rank))
        found = conclude(str(path), opinions)
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

    def end(self) -> Iterator[Found]:
        """Say that nothing of the kind was recorded, where that is so."""
        if not self._seen:
            self._check.not_checked(message("check_benchmark.not_recorded"))
        return iter(())

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
