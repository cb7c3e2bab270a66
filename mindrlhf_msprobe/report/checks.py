"""The checks of runs → their answer and checks.xlsx; disturbed computations → free_benchmark.*."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mindrlhf_msprobe.common.message import Message, in_words
from mindrlhf_msprobe.common.printable import shortened, spans
from mindrlhf_msprobe.findings.health import (
    CheckFinding,
    CheckResult,
    CheckResults,
    Evidence,
    Health,
    NotChecked,
    Severity,
    json_values,
)
from mindrlhf_msprobe.report.answer import Code, Fact, Head, Lines, capped, listed
from mindrlhf_msprobe.report.comparison import next_step_of, settings_in_one_line, stopped_at
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.report.sheets import (
    CLOSE,
    DIFFERS,
    PLAIN,
    SUSPICIOUS,
    Column,
    Row,
    Sheet,
    write_csv,
)
from mindrlhf_msprobe.report.xlsx import workbook, workbook_path
from mindrlhf_msprobe.storage.arrays.atomic import dump_json
from mindrlhf_msprobe.storage.layout import BENCHMARK, lines_name
from mindrlhf_msprobe.storage.outputs import Output, csv_of, json_of
from mindrlhf_msprobe.storage.place import Place
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import cell_name
from mindrlhf_msprobe.storage.step_lines import benchmark_lines

_MOST_FINDINGS = 20  # of one run, and of what follows from one finding
_MOST_EVIDENCE = 4
_MOST_FRAMES = 4
_MOST_CAUSES = 4
_MOST_STOPS = 4
_MOST_LINES = 12  # of what was not checked, and of problems
_LONGEST = 200  # characters of one value
_MOST_IN_PAGE, _MOST_EVIDENCE_IN_PAGE, _MOST_FRAMES_IN_PAGE = 1000, 20, 50  # of findings
_WHERE = ("step", "rank", "phase")  # of evidence, as far as it is not that of its finding
_TONES: dict[str, str] = {Severity.ERROR: "bad", Severity.WARNING: "warn", Severity.NOTE: "good"}


def lines_of(
    results: CheckResults, seconds: float | None = None, *, not_checked: bool = False
) -> Lines:
    """Return what checks say.

    Args:
        seconds: how long they took.
        not_checked: whether all that was not checked is listed, not only counted by reason.
    """
    lines: list[Any] = []
    for run in results.runs:
        lines += [""] if lines else []
        stops = [stopped_at(stop, stop.ranks) for stop in run.stopped[:_MOST_STOPS]]
        stopped = [say("checks.stopped", stopped=stop) for stop in stops]
        lines += [run_headline(run), stopped, *_findings(run.findings)]
        if (left := len(run.findings) - _MOST_FINDINGS) > 0:
            lines.append([say("console.more", count=left)])
        lines += not_read(run.problems, _MOST_LINES)
        if line := not_checked_in_one_line(run.not_checked):
            lines.append(line if not_checked else say("checks.lists_them", line=line))
        whys: dict[str, list[str]] = {}
        for one in run.not_checked:
            if not_checked or one.failed:
                whys.setdefault(in_words(one.why), []).append(one.rule)
        for why, rules in whys.items():
            named = ", ".join(filter(None, rules))  # without a name it is of all rules
            both = named and why
            lines.append([say("unread.at", path=named, why=why) if both else named or why])
        lines.append(say("checks.scope", run))
    if seconds is not None:
        lines.append(say("checks.took", runs=len(results.runs), seconds=seconds))
    return lines


def not_read(problems: Sequence[Message], most: int) -> Lines:
    """Return what of a run could not be read."""
    head = say("checks.not_read", count=len(problems))
    return listed(head, capped(map(in_words, problems), most))


def run_headline(run: CheckResult) -> str:
    """Return whether a run is healthy, in one line."""
    failed = run.status is Health.NOT_CHECKED and run.failed
    return say(f"checks.run_{'failed' if failed else run.status.value}", run, **run.counts)


def not_checked_in_one_line(not_checked: Iterable[NotChecked]) -> str:
    """Return how much was not checked, by reason; "" if all was."""
    whys = {in_words(one.why): one.why for one in not_checked}.values()
    kinds = [why.params.get("kind") if why.code == "checks.lacks" else None for why in whys]
    own = ("key", "phase", "ranks", "steps", "healthy")
    counts = Counter(
        "other" if kind is None else str(kind) if kind in own else "recorded" for kind in kinds
    )
    reasons = [
        say(f"checks.lacking_{'few' if of in ('ranks', 'steps') else of}", of=of, count=n)
        for of, n in counts.most_common()
    ]
    shown = say("checks.comma").join(reasons)
    return say("checks.not_checked", count=len(whys), reasons=shown) if reasons else ""


def head_of(run: CheckResult) -> Head:
    """Return what the check of a run says first."""
    worst = next((f for f in run.findings if f.severity.counts), None)
    counts = [(name, n, _TONES[name]) for name, n in run.counts.items() if n]
    head = Head(run.status.tone, run_headline(run), counts=counts)
    if worst is None:
        return head
    causes = "; ".join(map(in_words, worst.causes))
    lines = [say("checks.place", worst.place, name=""), say("checks.again", worst)]
    lines += [say("checks.causes", causes=causes)] if causes else []
    closer = worst.next_step
    return replace(
        head,
        sentence=in_words(worst.said),
        cause=worst.rule,
        place=link_of(worst.place),
        facts=[Fact("finding", line) for line in lines],
        next_step=None if closer is None else next_step_of(closer),
    )


def link_of(place: Place) -> dict[str, Any]:
    """Return where a page shows a place of a check."""
    view = "course" if place.entry is None and place.key is None else "where"
    return {"view": view, **place.to_json()}


def not_checked_shown(checks: Sequence[CheckResult]) -> dict[str, Any] | None:
    """Return how much was not checked, in one line, and what: the rules that lack the same at once.

    Args:
        checks: of one run, or of A and B; what both lack is said once.
    """
    lacking: dict[str, tuple[Message, list[str], list[str]]] = {}
    for side, check in zip("AB", checks):
        for one in check.not_checked:
            _, rules, sides = lacking.setdefault(repr(one.why), (one.why, [], []))
            rules += [one.rule] if one.rule not in rules else []
            sides += [side] if side not in sides else []
    if not lacking:
        return None
    items = []
    for why, rules, sides in lacking.values():
        name, text = ", ".join(filter(None, rules)), in_words(why)
        of = sides[0] if len(checks) > 1 and len(sides) == 1 else None
        items.append({"text": f"{name}: {text}" if name else text, "of": of})
    every = [one for check in checks for one in check.not_checked]
    return {"line": not_checked_in_one_line(every), "items": items}


def findings_shown(checks: Sequence[CheckResult]) -> dict[str, Any]:
    """Return the findings of one run, or of two, what follows from one under it.

    `left_out` says how many are not shown, as there are too many.
    """
    found: dict[str, Any] = {"shown": [], "left_out": 0}
    numbers = itertools.count()

    def shown(side: str, findings: Iterable[CheckFinding]) -> Iterator[dict[str, Any]]:
        for finding in findings:
            number = next(numbers)
            if number >= _MOST_IN_PAGE:
                found["left_out"] += 1
                continue
            closer = finding.next_step
            yield {
                **{"id": number, "side": side, "rule": finding.rule},
                "severity": finding.severity.value,
                "text": finding.text,
                "link": link_of(finding.place),
                "where": say("checks.place", finding.place, name=""),
                "name": finding.place.name,
                "again": say("checks.again", finding) or None,
                **{"times": finding.times, "last_step": finding.last_step},
                "ranks": finding.ranks,
                "causes": [*map(in_words, finding.causes)],
                "evidence": [*map(_evidence_shown, finding.evidence[:_MOST_EVIDENCE_IN_PAGE])],
                "next_step": closer and next_step_of(closer),
                "stack": finding.stack[:_MOST_FRAMES_IN_PAGE],
                "follows": [*shown(side, finding.followed_by)],
            }

    for side, check in zip("AB", checks):
        found["shown"] += shown(side, check.findings)
    return found


def _evidence_shown(one: Evidence) -> dict[str, Any]:
    return {
        **{"link": link_of(one.place), "name": one.place.name},
        "where": say("checks.place", one.place, name=""),
        "values": [[name, value] for name, value in json_values(one.values).items()],
        **({} if one.note is None else {"note": in_words(one.note)}),
    }


def _findings(findings: Sequence[CheckFinding]) -> Iterator[Any]:
    """Yield the lines of the first findings, and those of each under it."""
    for finding in findings[:_MOST_FINDINGS]:
        yield say("checks.finding", finding, place=say("checks.place", finding.place, name=""))
        yield _finding(finding)


def _finding(finding: CheckFinding) -> Lines:
    name = finding.place.record or finding.place.entry or finding.place.key
    lines: list[Any] = [shortened(name, _LONGEST)] if name else []
    lines.append(in_words(finding.said))
    if causes := _causes(finding)[:_MOST_CAUSES]:
        lines.append(say("checks.causes", causes=" ".join(causes)))
    if finding.next_step is not None:
        lines.append(Code(next_step_of(finding.next_step), words=say("checks.look_closer")))
    lines += filter(None, [say("checks.again", finding)])
    shown = (
        f"· {_noted(one)}{shortened(_named(one, finding), _LONGEST)}  {_values(one)}"
        for one in finding.evidence
    )
    lines += capped(shown, _MOST_EVIDENCE)
    for number, frame in enumerate(finding.stack[:_MOST_FRAMES]):
        lines.append(Code(frame.strip(), words=" " if number else say("checks.stack")))
    if followers := finding.followed_by:
        left = len(followers) - _MOST_FINDINGS
        more = [say("console.more", count=left)] if left > 0 else []
        lines.append(say("checks.followed_by", count=len(followers)))
        lines.append([*_findings(followers), *more])
    return lines


def _causes(finding: CheckFinding) -> list[str]:
    """Return what a finding usually comes from, numbered."""
    return [f"{n}) {in_words(cause)}" for n, cause in enumerate(finding.causes, start=1)]


def _noted(one: Evidence) -> str:
    return "" if one.note is None else say("unread.at", path=in_words(one.note), why="")


def _named(one: Evidence, finding: CheckFinding) -> str:
    """Return where a piece of evidence is, as far as it is not where its finding is."""
    both = {at: (getattr(finding.place, at), getattr(one.place, at)) for at in _WHERE}
    apart = {at: None if own == other else other for at, (own, other) in both.items()}
    return say("checks.place", **apart, micro_step=None, name=one.place.name)


def _values(evidence: Evidence) -> str:
    """Return what a record shows: `max 3.1, nan_count 2`."""
    words = {"records": say("tables.records")}  # others are names of statistics
    return ", ".join(f"{words.get(n, n)} {_value(value)}" for n, value in evidence.values.items())


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        if value and all(type(item) is int for item in value):
            ascends = sorted(set(value)) == list(value) and len(value) > 4
            return spans(value) if ascends else str(list(value))
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} {_value(item)}" for name, item in value.items()) + "}"
    return shortened(str(value), _LONGEST)


class _Found(NamedTuple):
    """A finding of a run; `level` counts the findings from which it follows."""

    run: str
    level: int
    finding: CheckFinding


def _ranks_of(one: _Found) -> str:
    rank = one.finding.place.rank
    return ", ".join(map(str, one.finding.ranks or (() if rank is None else (rank,))))


def _evidence(one: _Found) -> str:
    return "\n".join(f"{_noted(e)}{e.place.name}: {_values(e)}" for e in one.finding.evidence)


FILE = "checks.xlsx"

_COLUMNS = (
    Column("run", 24),
    Column("level", 6),
    Column("severity", 9, "finding.severity.value"),
    Column("step", 7, "finding.place.step"),
    Column("last_step", 9, "finding.last_step"),
    Column("times", 7, "finding.times"),
    Column("rank", 8, _ranks_of),
    Column("phase", 26, "finding.place.phase"),
    Column("record", 60, "finding.place.name"),
    Column("finding", 70, lambda one: in_words(one.finding.said)),
    Column("evidence", 70, _evidence),
    Column("causes", 70, lambda one: "\n".join(_causes(one.finding))),
    Column(
        *("look closer", 60),
        lambda one: one.finding.next_step and settings_in_one_line(one.finding.next_step),
    ),
    Column("stack", 60, lambda one: "\n".join(one.finding.stack[:20])),
    Column("rule", 24, "finding.rule"),
)
_REST = (Column("run", 24), Column("what", 14), Column("rule", 30), Column("why", 100))
_COLOURS = {Severity.ERROR: DIFFERS, Severity.WARNING: SUSPICIOUS, Severity.NOTE: CLOSE}


def check_files(
    output: str | Path, runs: Sequence[Run], results: CheckResults | None = None
) -> list[Output]:
    """Return the tables of checks as files to write: all take their places together.

    Args:
        output: the file where it ends in .xlsx; else the directory, in which it is checks.xlsx.
        runs: whose disturbed computations have tables of their own, if any has such.
        results: None: the runs are not checked yet.

    Raises:
        OutputError: it is no directory.
    """
    path = workbook_path(output, FILE)
    if results is None:
        files = (run.path / lines_name(BENCHMARK, rank) for run in runs for rank in run.ranks)
        results, ranked, found = CheckResults(()), [], any(file.exists() for file in files)
    else:
        ranked = ranking(runs)
        found = bool(ranked)
    table = workbook(path, _COLUMNS, partial(check_sheets, results))
    names, stem = [column.header for column in _BENCHMARK_COLUMNS], path.with_name(STEM)
    sheet, text = partial(_benchmark, ranked), partial(dump_json, ranked, indent=1)
    csv, book, data = map(stem.with_suffix, (".csv", ".xlsx", ".json"))
    of_benchmark = [
        Output(csv, csv_of(names), lambda part: write_csv(part, sheet())),
        workbook(book, _BENCHMARK_COLUMNS, lambda: [sheet()]),
        Output(data, json_of(*names, many=True), lambda part: part.write_bytes(text() + b"\n")),
    ]
    return [table, *(of_benchmark if found else ())]


def check_sheets(results: CheckResults) -> list[Sheet]:
    """Return the sheet of findings, and the one of what was not checked, in the language spoken."""

    def found(run: str, level: int, findings: Iterable[CheckFinding]) -> Iterator[_Found]:
        for finding in findings:
            yield _Found(run, level, finding)
            yield from found(run, level + 1, finding.followed_by)

    rows = [row for run in results.runs for row in found(run.path, 0, run.findings)]
    rest: list[Row] = []
    for run in results.runs:
        rest += [
            Row((run.path, "not checked", one.rule, in_words(one.why))) for one in run.not_checked
        ]
        rest += [Row((run.path, "not read", "", in_words(one))) for one in run.problems]
        rest += [Row((run.path, "checked", name, "")) for name in run.checked]
    return [
        Sheet("checks", _COLUMNS, rows, lambda one: _COLOURS[one.finding.severity]),
        Sheet("not checked", _REST, rest),
    ]


STEM = "free_benchmark"

#: Those of msprobe's free_benchmark.csv, in its order, and then our own: what each shows of a line
#: of the run, "" of what is counted over all lines of one cell or operator.
_BENCHMARK_COLUMNS = (
    Column("rank", 6, "rank"),
    Column("pert_mode", 18, "pert_mode"),
    Column("stage", 9, "stage"),
    Column("step", 6, "step"),
    Column("api_name", 60, "entry"),
    Column("max_rel", 12, "change"),
    Column("dtype", 10, "dtype"),
    Column("shape", 16, "shape"),
    Column("output_index", 12, "output_index"),
    Column("output", 24, "path"),
    Column("consistent", 10, "consistent"),
    Column("ratio", 12, "ratio"),
    Column("disturbed_by", 12, "disturbed_by"),
    Column("threshold", 10, "threshold"),
    Column("differing", 10, "differing"),
    Column("calls", 8),
    Column("inconsistent", 12),
    Column("phase", 26, "phase"),
    Column("first_step", 10),
    Column("run", 30),
)


def _benchmark(ranked: Sequence[dict[str, Any]]) -> Sheet:
    """Return a row of each call: of those of one cell or operator, of the one that changed most."""
    rows = []
    for row in ranked:
        values = [row[column.header] for column in _BENCHMARK_COLUMNS]
        shown = [str(tuple(value)) if isinstance(value, list) else value for value in values]
        rows.append(Row(shown, PLAIN if row["consistent"] else SUSPICIOUS))
    return Sheet(STEM, _BENCHMARK_COLUMNS, rows, ours=False)


def ranking(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return a row for each output of each cell or operator, the largest change first.

    What changed too much stands before what did not; then the change over its threshold decides.
    """
    worst: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in runs:
        for rank in sorted({rank for _, rank in run.places}):
            for found in benchmark_lines(run.path, rank).read():
                if "why" in found:
                    continue
                where = (str(run.path), rank, found["phase"], found["stage"], found["pert_mode"])
                key = (*where, cell_name(found["entry"]), str(found.get("path")))
                known = worst.get(key)
                counts = Counter(known and {n: known[n] for n in ("calls", "inconsistent")})
                counts.update(calls=1, inconsistent=int(not found["consistent"]))
                row = {c.header: found.get(str(c.cell)) for c in _BENCHMARK_COLUMNS if c.cell}
                row |= {"run": where[0], "rank": rank, **counts, "first_step": found["step"]}
                if known is not None:
                    row["first_step"] = known["first_step"]
                    row = {**known, **counts} if _order(known) <= _order(row) else row
                worst[key] = row
    return sorted(worst.values(), key=_order)


def _order(row: dict[str, Any]) -> tuple[bool, float]:
    change, threshold = row["max_rel"], row["threshold"]
    size = math.inf if change is None else change / threshold if threshold else change
    return row["consistent"], -size
