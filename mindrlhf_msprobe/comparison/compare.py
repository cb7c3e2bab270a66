"""compare_runs: open, pair, judge, conclude, write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from mindrlhf_msprobe.comparison.metrics import Tolerance
from mindrlhf_msprobe.comparison.pairing import Pair, StepData, StepPlan, plan_step
from mindrlhf_msprobe.comparison.status import judge, side_of
from mindrlhf_msprobe.comparison.timeline import BEGIN
from mindrlhf_msprobe.comparison.verdict import JudgedStep, conclude
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.findings import Comparison, Finding, Metrics, Status
from mindrlhf_msprobe.storage.reader import Run, open_run

#: Called with (steps done, steps in all) as the comparison proceeds.
Progress = Callable[[int, int], None]


def compare_runs(
    a: str | Path,
    b: str | Path,
    *,
    output_path: str | Path | None = None,
    tolerance: Tolerance | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two runs and say where they first part, and why.

    Args:
        a, b: the runs' directories, or one phase's or step's directory of each.
        output_path: where tables and verdict.json are written; None writes nothing.
        tolerance: what counts as the same; the default is bitwise.
        progress: told how many of the (step, rank) places are done.

    Returns:
        The comparison; `bool(result)` is true only if something was compared and nothing
        diverged.

    Raises:
        RunError: a directory is not a run, both are the same, or the output cannot be written.
        UsageError: the tolerance is not a Tolerance.
    """
    _refuse_same(Path(a), Path(b))
    if tolerance is not None and not isinstance(tolerance, Tolerance):
        raise UsageError(f"tolerance is {tolerance!r}; expected Tolerance(rtol=…, atol=…).")
    runs = open_run(a), open_run(b)
    judged = []
    places = _places(*runs)
    for done, (step, rank) in enumerate(places):
        plan = plan_step(step, rank, _load(runs[0], step, rank), _load(runs[1], step, rank))
        judged.append(_judge_step(plan, tolerance or Tolerance()))
        if progress is not None:
            progress(done + 1, len(places))
    comparison = Comparison(
        run_a=str(a),
        run_b=str(b),
        verdict=conclude(judged, runs),
        findings=tuple(f for step in judged for _, f in step.judged if f is not None),
        problems=tuple(
            f"{side}: {problem}"
            for side, run in zip("AB", runs)
            for problem in (*run.problems, *run.lost)
        ),
    )
    if output_path is None:
        return comparison
    from mindrlhf_msprobe.report import write_report

    tables = write_report(comparison, Path(output_path))
    return replace(comparison, output_path=str(output_path), tables=tuple(tables))


def _refuse_same(a: Path, b: Path) -> None:
    places = Path(os.path.realpath(a)), Path(os.path.realpath(b))
    if places[0] == places[1]:
        raise RunError(
            f"{a} and {b} are the same directory: comparing a run with itself proves nothing. "
            f"Give the dump_path of two runs."
        )
    if places[0].is_relative_to(places[1]) or places[1].is_relative_to(places[0]):
        raise RunError(
            f"one of {a} and {b} lies inside the other. Give the dump_path of two runs in "
            f"directories of their own, or the same phase's directory of two runs."
        )


def _places(a: Run, b: Run) -> list[tuple[int, int]]:
    """Return every (step, rank) of which either run recorded something."""
    return sorted(a.places | b.places)


def _load(run: Run, step: int, rank: int) -> StepData:
    entries = run.entries(step=step, rank=rank)
    data = run.key_data(step=step, rank=rank)
    unreadable = {
        problem.phase: str(problem)
        for problem in run.problems
        if problem.phase is not None and (problem.step, problem.rank) == (step, rank)
    }
    return StepData(entries, data, run.config(rank), unreadable, run.coverage(rank))


def _judge_step(plan: StepPlan, tolerance: Tolerance) -> JudgedStep:
    return JudgedStep(plan, tuple(_judged_pairs(plan, tolerance)))


def _judged_pairs(plan: StepPlan, tolerance: Tolerance) -> Iterator[tuple[Pair, Finding | None]]:
    for pair in plan.pairs:
        if pair.gap is not None or _is_unknown(pair):
            yield pair, None
            continue
        status, metrics, note = _judge_pair(pair, tolerance)
        yield pair, _finding(plan, pair, status, metrics, note)


def _is_unknown(pair: Pair) -> bool:
    """Tell whether both sides are objects of one type, of which nothing else is known."""
    if pair.a is None or pair.b is None or not (pair.a.leaf.opaque and pair.b.leaf.opaque):
        return False
    return pair.a.leaf.type == pair.b.leaf.type


def _judge_pair(pair: Pair, tolerance: Tolerance) -> tuple[Status, Metrics | None, str]:
    if pair.a is not None and pair.b is not None:
        return judge(pair.a, pair.b, tolerance)
    if pair.unreadable is not None:
        return Status.UNREADABLE, None, pair.unreadable
    if pair.record.leaf.error is not None:
        return Status.UNREADABLE, None, pair.record.leaf.error
    return (Status.ONLY_IN_A if pair.b is None else Status.ONLY_IN_B), None, ""


def _finding(
    plan: StepPlan, pair: Pair, status: Status, metrics: Metrics | None, note: str
) -> Finding:
    is_data = pair.record.io == "data"
    return Finding(
        record=pair.record.name,
        status=status,
        step=plan.step,
        rank=plan.rank,
        phase=pair.event.phase,
        io=pair.record.io,
        path=pair.record.path,
        a=side_of(pair.a),
        b=side_of(pair.b),
        entry=pair.entry.name if pair.entry else None,
        key=pair.event.name if is_data else None,
        micro_step=pair.event.micro_step if is_data else None,
        metrics=metrics,
        note=note,
        stack=pair.entry.stack if pair.entry and pair.event.kind == BEGIN else (),
    )
