"""A comparison → summary.xlsx: the verdict, what may explain it, and how to read the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from mindrlhf_msprobe.common.language import language
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings import Agreement, Cause, Comparison, Preflight, Spread, Status
from mindrlhf_msprobe.report.answer import Fact
from mindrlhf_msprobe.report.comparison import facts_of, rounded
from mindrlhf_msprobe.report.messages import say, text_of, texts_of
from mindrlhf_msprobe.report.preflight import INITIAL_WEIGHTS, values_of
from mindrlhf_msprobe.report.sheets import (
    CLOSE,
    DIFFERS,
    MISSING,
    PLAIN,
    SUSPICIOUS,
    Cell,
    Column,
    Row,
    Sheet,
    colour_of,
    colour_of_finding,
    rows_of_facts,
)
from mindrlhf_msprobe.report.workbook import BITWISE
from mindrlhf_msprobe.report.xlsx import AnswerFiles

#: What the tables of a comparison are called: ("key", name) or ("phase", name) → a file's name.
Links = Mapping[tuple[str, str], str]
_WORST_FIRST = (MISSING, DIFFERS, SUSPICIOUS, CLOSE, PLAIN)
_AGREE = (SUSPICIOUS, CLOSE, PLAIN)
_MOST_STEPS = 256  # columns; of more steps, those in which something does not agree
#: The Chinese meaning stands beside the term: the tables' readers read Chinese first.
_LEGEND_COLUMNS = (
    Column("kind", 12, words=True),
    Column("name", 48),
    Column("含义", 60),
    Column("meaning", 80),
)
_LEGEND_IN_CHINESE = _LEGEND_COLUMNS[:3]  # who reads Chinese needs no other
_LEGEND_COLOURS = (DIFFERS, MISSING, SUSPICIOUS, CLOSE, PLAIN)
#: What the column says why, in words: its texts are in the reader's language, too.
_SUSPICIONS = ("non_finite", "grows", "arises")
#: What stands in the tables, and which text explains it.
_MAIN_COLUMNS = {
    "Bench …, …1": "column_side_a",
    "NPU …, …2": "column_side_b",
    "id": "column_id",
    "相同元素百分比(%)": "column_equal",
    "首个不匹配元素索引": "column_first_mismatch",
    "最大绝对误差, MaxAbsErr": "column_max_abs",
    "最大相对误差, MaxRelativeErr": "column_max_rel",
    "…内元素占比(%), … Err Ratio": "column_err_ratio",
    "Cosine": "column_cosine",
    "EucDist": "column_euclidean",
    "… diff": "column_diff",
    "Result": "column_result",
    "status": "column_status",
    "note": "column_note",
    "Err_message": "column_err_message",
    "MinRelativeErr, MeanRelativeErr, NormRelativeErr": "column_relative_of_statistics",
    "NPU_Stack_Info": "column_stack",
    "text1, text2": "column_texts",
    "tolerance": "column_tolerance",
    "suspicion": "column_suspicion",
    "factor": "column_factor",
}
#: Those of them that have a name in each language.
_NAMED_IN_BOTH = ("factor", "preflight")
_LEGEND_FILES = {"preflight": "table_preflight", "CSV": "table_csv"}
_LEGEND_TERMS = (("column", _MAIN_COLUMNS), ("table", _LEGEND_FILES))


def summary_of(comparison: Comparison, links: Links | None = None) -> tuple[Sheet, ...]:
    """Return the sheets that stand first among a comparison's tables, in the language spoken.

    Args:
        links: what the other tables are called.
    """
    return (
        _verdict_sheet(comparison),
        overview_sheet(comparison, links or {}),
        preflight_sheet(comparison.preflight),
        _coverage_sheet(comparison),
        _tolerance_sheet(comparison),
        legend_sheet(),
    )


_VERDICT_COLUMNS = (
    Column("section", 12, words=True),
    Column("item", 34),
    Column("value", 90),
    Column("different", 11),
    Column("compared", 11),
    Column("max abs error", 14),
    Column("max rel error", 14),
    Column("factor", 12),
)


#: Rows of a comparison stand in this order: by their sections, or what they are called.
_ROWS = (
    *("status", "A (baseline)", "B (under test)", "earlier", "chosen", "where", "record"),
    *("argument", "origin", "operator", "source", "cause", "explanation", "inside"),
    *("max abs error", "max rel error", "check first", "agreed before", "last that agreed"),
    *("next step", "size of the next step, of one rank", "ranks", "counts"),
)


def _verdict_sheet(comparison: Comparison) -> Sheet:
    def order(fact: Fact) -> int:
        section, item, _ = fact.row or ("", None, None)
        name = item if section == "verdict" else section
        return _ROWS.index(name) if name in _ROWS else len(_ROWS)

    found = sorted((f for f in facts_of(comparison, table=True) if f.row is not None), key=order)
    spread = [row for place in comparison.verdict.spread for row in _spread_rows(place)]
    return Sheet("verdict", _VERDICT_COLUMNS, [*rows_of_facts(found), *spread])


def _spread_rows(place: Spread, phase: str = "") -> Iterator[Row]:
    said = [message("tables.layer_of", phase=phase)] if phase else []
    if place.non_finite is not None:
        said.append(message("console.not_finite", **vars(place.non_finite)))
    factor = rounded(place.factor) if place.zero is None else say("console.zero", place)
    counts = (place.different, place.compared)
    apart = (rounded(place.max_abs_err), rounded(place.max_rel_err), factor)
    yield Row(("spread", place.place, texts_of(said) or None, *counts, *apart))
    for layer in place.layers:
        yield from _spread_rows(layer, place.place)


_PREFLIGHT_COLUMNS = (
    Column("section", 18, words=True),
    Column("name", 50),
    Column("A", 40),
    Column("B", 40),
    Column("note", 60),
)
PREFLIGHT_FILES = AnswerFiles(
    *("preflight.xlsx", _PREFLIGHT_COLUMNS, "preflight.json"),
    keys=("kind", "status", "differences"),
)


def preflight_sheet(preflight: Preflight) -> Sheet:
    """Return the sheet of what differs before any tensor."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for weights in preflight.weights:
            section, role = INITIAL_WEIGHTS, weights.role
            yield section, role, None, None, say("console.weights", weights)
            for names, what in (
                (weights.different, say("tables.differs")),
                (weights.only_in_a, say("tables.only_in_a")),
                (weights.only_in_b, say("tables.only_in_b")),
            ):
                for name in names:
                    yield section, f"{role}: {name}", None, None, what
        for found in preflight.differences:
            section = say("preflight.section", name=found.section)
            yield section, text_of(found.label), *values_of(found)
        for reason in preflight.unknown:
            yield "unknown", None, None, None, reason

    nothing = [(None, None, None, None, say("tables.nothing_differs"))]
    return Sheet("preflight", _PREFLIGHT_COLUMNS, [*map(Row, [*rows()] or nothing)])


_COVERAGE_COLUMNS = (
    Column("kind", 14, words=True),
    Column("what", 100),
    Column("only in", 10),
    Column("records", 12),
)


def _coverage_sheet(comparison: Comparison) -> Sheet:
    rows: list[Row] = []
    for gap in comparison.verdict.coverage:
        only_in = say("tables.both") if gap.only_in == "both" else gap.only_in
        rows.append(Row(("not compared", gap.reason, only_in, gap.records)))
    rows += [Row(("note", note)) for note in comparison.notes]
    rows += [Row(("problem", problem)) for problem in comparison.problems]
    if not rows:
        rows = [Row((None, say("tables.all_compared")))]
    return Sheet("coverage", _COVERAGE_COLUMNS, rows)


_TOLERANCE_COLUMNS = (Column("rule", 80), Column("records", 12), Column("passed only by it", 20))


def _tolerance_sheet(comparison: Comparison) -> Sheet:
    used = [(rule.rule, rule.records, rule.passed) for rule in comparison.rules]
    bitwise = sum(1 for finding in comparison.findings if not finding.compared_by)
    if comparison.agreements:  # which say nothing of it
        bitwise = comparison.verdict.compared - sum(rule.records for rule in comparison.rules)
    rows = [*map(Row, (*used, (BITWISE, bitwise)))]
    return Sheet("tolerance", _TOLERANCE_COLUMNS, rows)


def overview_sheet(comparison: Comparison, links: Links) -> Sheet:
    """Return one row a phase or key, in causal order, and one column a step.

    A cell says how many records of all ranks were compared, or `different / compared`.
    """
    counts = _counts_of_tables(comparison)
    steps = sorted({step for cells in counts.values() for step in cells})
    shown = steps
    if len(steps) > _MOST_STEPS:
        apart = {s for cells in counts.values() for s, found in cells.items() if _different(found)}
        shown = [step for step in steps if step in apart][:_MOST_STEPS] or steps[:_MOST_STEPS]
    rows: list[Row] = []
    for what, cells in counts.items():
        link = links.get(what, "")
        of_steps = (_cell(cells.get(step), link) for step in shown)
        rows.append(Row((Cell(what[1], link=link), *of_steps)))
    if len(shown) < len(steps):
        left = say("tables.further_steps", number=len(steps) - len(shown))
        rows.append(Row((left,)))
    columns = (Column("phase or key", 44), *(Column(f"step {step}", 11) for step in shown))
    return Sheet("overview", columns, rows, frozen=1)


def _counts_of_tables(comparison: Comparison) -> dict[tuple[str, str], dict[int, Counter[str]]]:
    """Return how many records have which colour, by phase or key and step."""
    found: dict[tuple[str, str], dict[int, Counter[str]]] = {}
    both: list[Any] = [*comparison.agreements, *comparison.findings]  # of a step, the whole first
    for one in sorted(both, key=lambda item: item.step):
        folded = isinstance(one, Agreement)
        what = ("phase", one.phase or "") if folded or one.key is None else ("key", one.key)
        cell = found.setdefault(what, {}).setdefault(one.step, Counter())
        if isinstance(one, Agreement):
            cell[SUSPICIOUS] += one.suspicious
            cell[CLOSE] += one.within_tolerance
            cell[PLAIN] += one.records - one.within_tolerance - one.suspicious
        else:
            cell[colour_of_finding(one)] += 1
    return found


def _different(found: Counter[str]) -> int:
    return sum(number for colour, number in found.items() if colour not in _AGREE)


def _cell(found: Counter[str] | None, link: str) -> Cell | None:
    if found is None:
        return None
    worst = next(colour for colour in _WORST_FIRST if found[colour] > 0 or colour == PLAIN)
    different, total = _different(found), found.total()
    return Cell(f"{different} / {total}" if different else total, worst, link if worst else "")


def legend_sheet() -> Sheet:
    """Return the sheet that explains all others; its colours are the ones it explains."""
    rows: list[Row] = []
    for colour in _LEGEND_COLOURS:
        code = f"colour_{colour or 'plain'}"
        name = say(f"legend.{code}_name")
        rows.append(_legend_row("colour", name, code, colour))
    rows += [
        _legend_row("status", status.value, f"status_{status.value}", colour_of(status))
        for status in Status
    ]
    for name in _SUSPICIONS:
        rows.append(_legend_row("suspicion", say(f"legend.term_{name}"), f"suspicion_{name}"))
    for kind, terms in _LEGEND_TERMS:
        for name, code in terms.items():  # msprobe's headers stay as they are
            called = say(f"tables.{name}") if name in _NAMED_IN_BOTH else name
            rows.append(_legend_row(kind, called, code))
    rows += [_legend_row("cause", cause.value, f"cause_{cause.value}") for cause in Cause]
    if language() == "zh":
        short = [row._replace(values=row.values[:3]) for row in rows]
        return Sheet("legend", _LEGEND_IN_CHINESE, short)
    return Sheet("legend", _LEGEND_COLUMNS, rows)


def _legend_row(kind: str, name: str, code: str, colour: str = PLAIN) -> Row:
    meaning = message(f"legend.{code}")
    return Row((kind, name, text_of(meaning, "zh"), text_of(meaning, "en")), colour)
