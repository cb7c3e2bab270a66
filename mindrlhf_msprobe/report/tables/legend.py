"""How to read the tables: each status, colour, cause and column in words, in both languages."""

from __future__ import annotations

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.common.text.language import language
from mindrlhf_msprobe.findings import Cause, Status
from mindrlhf_msprobe.report.formats.colours import (
    CLOSE,
    DIFFERS,
    MISSING,
    PLAIN,
    SUSPICIOUS,
    colour_of,
)
from mindrlhf_msprobe.report.formats.sheets import Row, Sheet
from mindrlhf_msprobe.report.messages import say, text_of

#: The Chinese meaning stands beside the term: the tables' readers read Chinese first.
_COLUMNS = (("kind", 12), ("name", 48), ("含义", 60), ("meaning", 80))
_IN_CHINESE = _COLUMNS[:3]  # who reads Chinese needs no other

_COLOURS = (DIFFERS, MISSING, SUSPICIOUS, CLOSE, PLAIN)

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
_OURS = ("factor", "preflight")
_FILES = {"preflight": "table_preflight", "CSV": "table_csv"}

_OTHERS = (("column", _MAIN_COLUMNS), ("table", _FILES))


def legend_sheet() -> Sheet:
    """Return the sheet that explains all others; its colours are the ones it explains."""
    rows: list[Row] = []
    for colour in _COLOURS:
        code = f"colour_{colour or 'plain'}"
        name = say(f"legend.{code}_name")
        rows.append(_row("colour", name, code, colour))
    rows += [
        _row("status", status.value, f"status_{status.value}", colour_of(status))
        for status in Status
    ]
    rows += [
        _row("suspicion", say(f"legend.term_{name}"), f"suspicion_{name}") for name in _SUSPICIONS
    ]
    for kind, terms in _OTHERS:
        rows += [_row(kind, _called(name), code) for name, code in terms.items()]
    rows += [_row("cause", cause.value, f"cause_{cause.value}") for cause in Cause]
    if language() == "zh":
        short = [(colour, values[:3]) for colour, values in rows]
        return Sheet.from_rows("legend", _IN_CHINESE, short)
    return Sheet.from_rows("legend", _COLUMNS, rows)


def _called(name: str) -> str:
    """Return what a header or a sheet of ours is called; msprobe's headers stay as they are."""
    return say(f"tables.{name}") if name in _OURS else name


def _row(kind: str, name: str, code: str, colour: str = PLAIN) -> Row:
    meaning = message(f"legend.{code}")
    return colour, (kind, name, text_of(meaning, "zh"), text_of(meaning, "en"))
