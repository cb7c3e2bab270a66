"""The second opinion on a run, and operators computed again → their answers and workbooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.message import in_words
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.findings import VERDICT_FILE
from mindrlhf_msprobe.findings.accuracy import (
    Accuracy,
    AccuracyResult,
    RankedTensor,
    ReplayedOperator,
    ReplayedOperators,
)
from mindrlhf_msprobe.report.answer import Lines, capped
from mindrlhf_msprobe.report.checks import not_read
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.report.sheets import CLOSE, DIFFERS, PLAIN, SUSPICIOUS, Column, Sheet
from mindrlhf_msprobe.report.terminal import padded
from mindrlhf_msprobe.report.xlsx import AnswerFiles, workbook, workbook_path
from mindrlhf_msprobe.storage.outputs import Output

_MOST_ROWS = 12
_MOST_REASONS = 6
_MOST_NAMES = 3
_LONGEST = 160


def lines_of(found: AccuracyResult) -> Lines:
    """Return what is thought of a run."""
    of_opinion = Counter(one.opinion for one in found.ranked)
    counts = {one.value: of_opinion[one] for one in Accuracy}
    gaps = {
        "judged": found.calls - found.gaps,
        "names": ", ".join(capped(found.without_opinion, _MOST_NAMES)),
    }
    kind = found.status.value
    if found.status is Accuracy.UNDECIDED and of_opinion[Accuracy.ORDINARY]:
        kind = "gaps"
    origin = [
        line
        for one in found.origins[:1]
        for line in (shortened(_named(one), _LONGEST), say("accuracy.apart", one, one.worst))
    ]
    lines: list[Any] = [say(f"accuracy.headline_{kind}", found, **gaps), origin]
    lines.append(say("accuracy.counts", found, **counts))
    if found.gaps and found.status is Accuracy.WRONG:
        lines.append(say("accuracy.unchecked", found, **gaps))
    ranked = (
        f"{padded(say(f'accuracy.is_{one.opinion.value}'), 10)}"
        f"{one.worst.ratio:>10.3g} {one.worst.error:>10.2g}  {one.precision:<9}"
        f"{shortened(_named(one), _LONGEST)}"
        for one in found.ranked
    )
    lines += [say("accuracy.ranked"), capped(ranked, _MOST_ROWS)]
    missing = sorted(found.not_computed, key=lambda one: not one.needed)
    lines += capped(missing, _MOST_REASONS, show=partial(say, "accuracy.not_computed"))
    return [*lines, *not_read(found.problems, _MOST_REASONS)]


def _named(one: RankedTensor) -> str:
    """Return the name of a tensor, with the cell around an operator."""
    if one.call.startswith("Cell.") or not one.cell:
        return f"{one.call} {one.tensor}"
    return say("accuracy.in_cell", one)


_RANKED = (
    Column("opinion", 10, "opinion.value"),
    Column("origin", 7),
    Column("phase", 26),
    Column("call", 60),
    Column("cell", 40),
    Column("tensor", 24),
    Column("ratio", 12, "worst.ratio"),
    Column("relative error", 14, "worst.error"),
    Column("rounding explains", 16, "worst.explained"),
    Column("precision", 10),
    Column("calls", 8, lambda one: sum(one.counts.values())),
    Column("wrong", 8, lambda one: one.counts.get("wrong", 0)),
    Column("undecided", 10, lambda one: one.counts.get("undecided", 0)),
    Column("step", 7),
    Column("rank", 7),
    Column("record", 60, "worst.record"),
    Column("index", 14, lambda one: ", ".join(map(str, one.worst.at))),
    Column("actual", 16, "worst.actual"),
    Column("exact", 16, "worst.exact"),
    Column(
        *("reason", 30), lambda one: one.worst.reason and say(f"accuracy.reason_{one.worst.reason}")
    ),
)
_NOT = (
    Column("call", 60),
    Column("cell", 40),
    Column("calls", 8),
    Column("entry", 60),
    Column("why", 90, lambda one: in_words(one.why)),
)
_COLOURS = {Accuracy.WRONG: DIFFERS, Accuracy.UNDECIDED: CLOSE, Accuracy.ORDINARY: PLAIN}


def sheets_of(found: AccuracyResult) -> list[Sheet]:
    """Return the sheets of accuracy_check.xlsx, in the language spoken."""
    return [
        Sheet("ranked", _RANKED, found.ranked, lambda one: _COLOURS[one.opinion]),
        Sheet("not computed", _NOT, found.not_computed, lambda one: SUSPICIOUS),
    ]


FILES = AnswerFiles(
    *("accuracy_check.xlsx", _RANKED, VERDICT_FILE), keys=("run", "ranked", "not_computed", "gaps")
)


_MOST_SHOWN = 20
_LONGEST_NOTE = 110


def replayed_lines(table: ReplayedOperators) -> Lines:
    """Return the most suspicious operators, a line each, and how many there are of each verdict."""
    verdicts = table.verdicts
    lines: list[Any] = [say("replay.table_title", table, calls=len(verdicts))]
    shown: list[Any] = []
    for one in table.operators[:_MOST_SHOWN]:
        notes = [shortened(note, _LONGEST_NOTE) for note in one.notes[:2]]
        apart = [] if one.share is None else [say("replay.apart", one)]
        shown += [say("replay.row", one, verdict=say(f"replay.{one.verdict}")), [*apart, *notes]]
    if (left := len(table.operators) - _MOST_SHOWN) > 0:
        shown.append(say("replay.more", count=left))
    lines.append(shown)
    counts = {name: verdicts.count(name) for name in ("wrong", "ordinary", "undecided")}
    lines.append(say("replay.table_summary", **counts))
    if unjudged := verdicts.count("unjudged"):
        lines.append(say("replay.table_unjudged", count=unjudged))
    if drawn := sum(one.drawn for one in table.operators):
        lines.append(say("replay.table_drawn", drawn=drawn))
    return [*lines, say("console.tables", table)]


FILE = "replay.xlsx"

_COLUMNS = (
    Column("entry", 50),
    Column("phase", 26),
    Column("step", 7),
    Column("rank", 8),
    Column("verdict", 12),
    Column("of what rounding explains", 14, "share"),
    Column("value", 24),
    Column("dtype", 10),
    Column("ulp", 12),
    Column("max abs", 12, "max_abs"),
    Column("relative", 12),
    Column("inputs", 16, lambda one: say("replay.drawn" if one.drawn else "replay.recorded")),
    Column("notes", 80, lambda one: "\n".join(one.notes)),
)
_REPLAYED_COLOURS = {"wrong": DIFFERS, "undecided": SUSPICIOUS}


def replayed_at(output: Path, operators: Sequence[ReplayedOperator] = ()) -> Output:
    """Return the workbook: the file where its name ends in .xlsx, else one in the directory.

    Raises:
        OutputError: it is no directory.
    """
    sheet = Sheet(
        "operators", _COLUMNS, operators, lambda one: _REPLAYED_COLOURS.get(one.verdict, PLAIN)
    )
    return workbook(workbook_path(output, FILE), _COLUMNS, lambda: [sheet])
