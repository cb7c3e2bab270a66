"""Findings → tables: one a key, one a phase, in causal order; tables → Excel files.

Columns are those that msprobe's users know, then our own. msprobe's NPU is the run under test, B;
its Bench, or golden, is the baseline, A.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings import (
    Agreement,
    Finding,
    FindingsByTable,
    KeptFindings,
    Side,
    Status,
    TableName,
)
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.report.sheets import (
    Column,
    Percent,
    Sheet,
    Table,
    clean,
    colour_of_finding,
    take_name,
    write_csv_files,
)
from mindrlhf_msprobe.report.xlsx import write_xlsx

_INDEX = re.compile(r"0|[1-9][0-9]{0,9}")
BITWISE = "bitwise"

_Cell = Callable[[Finding], Any]
_NAME = 60  # characters of a name or a text


def _metric(name: str) -> _Cell:
    def show(finding: Finding) -> Any:
        if finding.metrics is not None:
            return getattr(finding.metrics, name)
        return _IDENTICAL.get(name) if finding.status is Status.IDENTICAL else None

    return show


#: What identical records show without being read element by element.
_IDENTICAL = {
    "equal_percent": 100.0,
    "max_abs_err": 0.0,
    "max_rel_err": 0.0,
    "within_1e3_percent": 100.0,
    "within_5e3_percent": 100.0,
    "within_1e2_percent": 100.0,
    "cosine": 1.0,
    "euclidean": 0.0,
}


def _share(name: str) -> _Cell:
    percent = _metric(name)
    return lambda finding: None if percent(finding) is None else percent(finding) / 100


def shape_of(side: str) -> _Cell:
    """Show the shape of a side as a list."""
    shape = attrgetter(f"{side}.shape")
    return lambda finding: None if shape(finding) is None else str(list(shape(finding)))


def _largest(side: str) -> _Cell:
    """Show the max of a side; of a scalar argument that is its value."""

    def show(finding: Finding) -> Any:
        record: Side = getattr(finding, side)
        return record.max if record.shape is not None else record.value

    return show


def _difference(name: str) -> _Cell:
    """Return b−a, which is NPU less Bench."""

    def show(finding: Finding) -> Any:
        a, b = getattr(finding.a, name), getattr(finding.b, name)
        return b - a if _is_number(a) and _is_number(b) else None

    return show


def _relative_difference(name: str) -> _Cell:
    """Return |b−a| / |a|, relative to Bench and shown in percent, as msprobe does: 50.0%."""

    def show(finding: Finding) -> Any:
        a, b = getattr(finding.a, name), getattr(finding.b, name)
        if not (_is_number(a) and _is_number(b) and math.isfinite(a) and math.isfinite(b)):
            return None
        if a == b:
            return Percent(0.0)
        return Percent(abs((b - a) / a)) if a else None

    return show


def _is_number(value: Any) -> bool:
    """Return whether `value` is a number that can be computed with."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 1 << 64
    return isinstance(value, float)


def _both(name: str, show: Callable[[str], str | _Cell]) -> tuple[Column, ...]:
    """Return a column for each side: of A with a 1 behind its name, of B with a 2."""
    return Column(f"{name}1", cell=show("a")), Column(f"{name}2", cell=show("b"))


#: Texts that were saved, e.g. prompts and responses.
TEXT_COLUMNS = (
    Column("text1", _NAME, lambda f: f.a.value if isinstance(f.a.value, str) else None),
    Column("text2", _NAME, lambda f: f.b.value if isinstance(f.b.value, str) else None),
)


def _message(finding: Finding) -> str:
    if finding.status is Status.IDENTICAL:
        return ""
    return f"{finding.status}: {finding.note}" if finding.notes else str(finding.status)


#: How a record compares: beside what it is called, where it stays in sight.
_OUTCOME: tuple[Column, ...] = (Column("status", 17, "status.value"), Column("suspicion", 26))
#: By what it was compared; last in every table.
_COMPARED_BY: tuple[Column, ...] = (Column("tolerance", cell=lambda f: f.tolerance or BITWISE),)

_SAVE: tuple[Column, ...] = (
    Column("step"),
    Column("rank"),
    Column("micro_step"),
    Column("id", cell=lambda f: int(f.path) if _INDEX.fullmatch(f.path) else f.path or 0),
)
_COMPARED_KEYS: tuple[Column, ...] = (
    *_both("shape", shape_of),
    Column("相同元素百分比(%)", cell=_metric("equal_percent")),
    Column("首个不匹配元素索引", cell=_metric("first_mismatch")),
    Column("最大绝对误差", cell=_metric("max_abs_err")),
    Column("最大相对误差", cell=_metric("max_rel_err")),
    Column("误差在千分之一内元素占比(%)", cell=_metric("within_1e3_percent")),
    Column("误差在百分之一内元素占比(%)", cell=_metric("within_1e2_percent")),
)
_OF_KEYS: tuple[Column, ...] = (
    Column("note", _NAME),
    *_both("dtype", "{}.dtype".format),
    *_both("max", _largest),
    *_both("min", "{}.min".format),
    *_both("mean", "{}.mean".format),
    *_both("norm", "{}.norm".format),
    *_COMPARED_BY,
)
KEY_DATA_COLUMNS = _SAVE + _OUTCOME + _COMPARED_KEYS + _OF_KEYS
#: The same with the twelve of msprobe's SingleComparator first: its scripts may count columns.
SINGLE_COMPARATOR_COLUMNS = _SAVE + _COMPARED_KEYS + _OUTCOME + _OF_KEYS

_PLACE: tuple[Column, ...] = (
    Column("NPU Name", _NAME, "b.name"),
    *_OUTCOME,
    Column("Bench Name", 30, "a.name"),
    Column("NPU Dtype", cell="b.dtype"),
    Column("Bench Dtype", cell="a.dtype"),
    Column("NPU Tensor Shape", cell=shape_of("b")),
    Column("Bench Tensor Shape", cell=shape_of("a")),
)
_ELEMENTS: tuple[Column, ...] = (
    Column("Cosine", cell=_metric("cosine")),
    Column("EucDist", cell=_metric("euclidean")),
    Column("MaxAbsErr", cell=_metric("max_abs_err")),
    Column("MaxRelativeErr", cell=_metric("max_rel_err")),
    Column("One Thousandth Err Ratio", cell=_share("within_1e3_percent")),
    Column("Five Thousandths Err Ratio", cell=_share("within_5e3_percent")),
)
_DIFFERENCES: tuple[Column, ...] = (
    Column("Max diff", cell=_difference("max")),
    Column("Min diff", cell=_difference("min")),
    Column("Mean diff", cell=_difference("mean")),
    Column("L2norm diff", cell=_difference("norm")),
    Column("MaxRelativeErr", cell=_relative_difference("max")),
    Column("MinRelativeErr", cell=_relative_difference("min")),
    Column("MeanRelativeErr", cell=_relative_difference("mean")),
    Column("NormRelativeErr", cell=_relative_difference("norm")),
)
_STATISTICS: tuple[Column, ...] = (
    Column("NPU max", cell=_largest("b")),
    Column("NPU min", cell="b.min"),
    Column("NPU mean", cell="b.mean"),
    Column("NPU l2norm", cell="b.norm"),
    Column("Bench max", cell=_largest("a")),
    Column("Bench min", cell="a.min"),
    Column("Bench mean", cell="a.mean"),
    Column("Bench l2norm", cell="a.norm"),
)
_RESULT: tuple[Column, ...] = (
    Column("Result", cell=lambda f: "pass" if f.status.agrees else "error"),
    Column("Err_message", _NAME, _message),
    Column("NPU_Stack_Info", _NAME, lambda f: "\n".join(_stack(f))),
    Column("step"),
    Column("rank"),
    Column("NPU fingerprint", cell="b.fingerprint"),
    Column("Bench fingerprint", cell="a.fingerprint"),
    Column("argument"),
    *_COMPARED_BY,
)


def _stack(finding: Finding) -> tuple[str, ...]:
    """Return where the cell was called: in whole beside what went into it, as msprobe, and red.

    Beside an output that agrees stands the line alone; where B has no record, nothing of A's.
    """
    if finding.b.name is None:
        return ()
    goes_in = finding.io in ("input", "parameters")
    return finding.stack if goes_in or not finding.status.agrees else finding.stack[:1]


def cell_columns(by_elements: bool) -> tuple[Column, ...]:
    """Return msprobe's columns for tensor dumps if any record was compared by its elements."""
    return _PLACE + (_ELEMENTS if by_elements else _DIFFERENCES) + _STATISTICS + _RESULT


MAX_ROWS = 1_048_576 - 1  # what a sheet can hold, less the header
_KEY_SHEET = "Sheet1"  # as SingleComparator's, which scripts ask for by this name
_LONGEST_SHEET_NAME = 31
_NOT_IN_SHEET_NAMES = re.compile(r"[\[\]:*?/\\\x00-\x1f]")


def tables_of(
    findings: Iterable[Finding],
    agreements: Iterable[Agreement] = (),
    *,
    file_of_a_rank: Callable[[str, int | None], str] | None = None,
    key_data_only: bool = False,
) -> list[Table]:
    """Return one table a key, then one a phase; their rows keep the findings' causal order.

    Notes are in the language spoken when rows are written; headers and statuses are msprobe's, and
    keywords.

    Args:
        agreements: what agrees and has no finding each; one row before those of its step and rank.
        file_of_a_rank: if each rank of a phase has a table of its own, what that is called: given
            the phase, and the rank, None where the phase has only one.
        key_data_only: whether the tables of keys have the columns of msprobe's SingleComparator
            first, for its scripts.
    """
    kept = findings if isinstance(findings, KeptFindings) else FindingsByTable(findings)
    folded: dict[TableName, list[Agreement]] = {}
    for agreement in agreements:
        folded.setdefault((agreement.phase, False), []).append(agreement)
    names = sorted(dict.fromkeys([*kept.ranks, *folded]), key=lambda name: not name[1])
    tables: list[Table] = []
    for name in names:
        agreeing = folded.get(name, [])
        if name[1]:
            columns = SINGLE_COMPARATOR_COLUMNS if key_data_only else KEY_DATA_COLUMNS
            columns += TEXT_COLUMNS if name in kept.texts else ()
            of_key = partial(kept.in_table, name)
            frozen = 4 if key_data_only else 6
            sheet = _sheet(_KEY_SHEET, columns, of_key, kept.ranks[name].total(), frozen)
            tables.append(Table(name[0], (sheet,), 2, ("key", name[0])))
            continue
        if file_of_a_rank is None:
            tables.append(_table_of_a_phase(kept, name, agreeing))
            continue
        ranks = sorted({*kept.ranks.get(name, ()), *(agreement.rank for agreement in agreeing)})
        for rank in ranks:
            own = [agreement for agreement in agreeing if agreement.rank == rank]
            stem = file_of_a_rank(name[0], rank if len(ranks) > 1 else None)
            tables.append(replace(_table_of_a_phase(kept, name, own, rank), stem=stem))
    return tables


_Kept = KeptFindings | FindingsByTable


def _table_of_a_phase(
    kept: _Kept, name: TableName, agreements: Sequence[Agreement], rank: int | None = None
) -> Table:
    def findings() -> Iterator[Finding]:
        """Yield the findings, before those of each step and rank what agrees there."""
        folded = deque(agreements)
        for finding in kept.in_table(name, rank):
            while folded and (folded[0].step, folded[0].rank) <= (finding.step, finding.rank):
                yield _as_finding(folded.popleft())
            yield finding
        yield from map(_as_finding, folded)

    ranks = kept.ranks.get(name, Counter())
    count = len(agreements) + (ranks.total() if rank is None else ranks[rank])
    phase, columns = name[0], cell_columns(name in kept.by_elements)
    sheet = _sheet(phase, columns, findings, count, frozen=4)
    return Table(f"compare_result_{phase}", (sheet,), 1, ("phase", phase))


def _as_finding(agreement: Agreement) -> Finding:
    """Return what agrees as one row: its names say how many records it stands for."""
    close = agreement.within_tolerance
    said = say("note.records_agree", records=agreement.records)
    counts = {"identical": agreement.identical, "within_tolerance": close}
    return Finding(
        record=said,
        status=Status.WITHIN_TOLERANCE if close else Status.IDENTICAL,
        step=agreement.step,
        rank=agreement.rank,
        phase=agreement.phase,
        io="",
        path="",
        a=Side(name=said),
        b=Side(name=said),
        notes=(message("note.agreeing", **counts),) if close else (),
        suspicions=() if agreement.suspicion is None else (agreement.suspicion,),
    )


def _sheet(
    name: str,
    columns: Sequence[Column],
    findings: Callable[[], Iterable[Finding]],
    count: int,
    frozen: int,
) -> Sheet:
    # Excel allows 31 characters in a sheet's name, and not all of them.
    allowed = _NOT_IN_SHEET_NAMES.sub("_", clean(name))[:_LONGEST_SHEET_NAME].strip("'")
    return Sheet(
        *(allowed or _KEY_SHEET, columns, findings, colour_of_finding),
        length=count,
        frozen=frozen,
        ours=False,
        wraps=False,
    )


def file_names(tables: Sequence[Table]) -> list[list[str]]:
    """Return what the files of each table are called; one whose rows fill several has several."""
    names: set[str] = set()
    taken: dict[int, list[str]] = {}
    for index, table in sorted(enumerate(tables), key=lambda item: item[1].precedence):
        parts = 1 if len(table.sheets) != 1 else -(-max(1, table.sheets[0].count) // MAX_ROWS)
        suffixes = [f"_part{n + 1}.xlsx" for n in range(parts)] if parts > 1 else [".xlsx"]
        taken[index] = [take_name(names, table.stem, suffix) for suffix in suffixes]
    return [taken[index] for index in range(len(tables))]


def write_tables(tables: Sequence[Table], output: Path, *, csv: bool = False) -> list[str]:
    """Write each table as a workbook; more rows than a sheet can hold are split over files.

    Args:
        csv: write each sheet as a CSV file as well.

    Returns:
        The files' names, in the tables' order.

    Raises:
        OSError: one cannot be written.
    """
    names = file_names(tables)
    for table, own in zip(tables, names):
        for part, name in enumerate(own):
            start = part * MAX_ROWS
            sheets = [sheet.part(start, start + MAX_ROWS) for sheet in table.sheets]
            write_xlsx(output / name, sheets)
    written = [name for own in names for name in own]
    return [*written, *(write_csv_files(tables, output) if csv else ())]
