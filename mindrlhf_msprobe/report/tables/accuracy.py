"""The second opinion on a run → accuracy_check.xlsx and verdict.json."""

from __future__ import annotations

import json
from pathlib import Path

from mindrlhf_msprobe.common.message import in_words
from mindrlhf_msprobe.common.text.language import language, speaking
from mindrlhf_msprobe.common.text.printable import printable_json
from mindrlhf_msprobe.findings.accuracy import Accuracy, AccuracyResult, RankedTensor
from mindrlhf_msprobe.report.formats.colours import CLOSE, DIFFERS, PLAIN, SUSPICIOUS
from mindrlhf_msprobe.report.formats.sheets import Row, Sheet
from mindrlhf_msprobe.report.formats.xlsx import write_xlsx
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.report.staging import VERDICT_FILE, beside
from mindrlhf_msprobe.report.tables.language import in_language

TABLE = "accuracy_check.xlsx"

_RANKED = (
    *(("opinion", 10), ("origin", 7), ("phase", 26), ("call", 60), ("cell", 40), ("tensor", 24)),
    *(("ratio", 12), ("relative error", 14), ("rounding explains", 16), ("precision", 10)),
    *(("calls", 8), ("wrong", 8), ("undecided", 10), ("step", 7), ("rank", 7), ("record", 60)),
    *(("index", 14), ("actual", 16), ("exact", 16), ("reason", 30)),
)
_NOT = (("call", 60), ("cell", 40), ("calls", 8), ("entry", 60), ("why", 90))
_COLOURS = {Accuracy.WRONG: DIFFERS, Accuracy.UNDECIDED: CLOSE, Accuracy.ORDINARY: PLAIN}


def write_accuracy(
    found: AccuracyResult, output: str | Path, lang: str | None = None
) -> list[Path]:
    """Write the workbook and verdict.json into a directory and return their paths.

    Args:
        lang: `en` or `zh`, of the workbook; None: the locale's.

    Raises:
        OutputError: they cannot be written.
    """
    lang, directory = lang or language(), Path(output)
    with speaking(lang):
        ranked = [_row(one) for one in found.ranked]
        rest: list[Row] = [
            (SUSPICIOUS, (one.call, one.cell, one.calls, one.entry, in_words(one.why)))
            for one in found.not_computed
        ]
        sheets = [
            in_language(Sheet.from_rows("ranked", _RANKED, ranked), lang),
            in_language(Sheet.from_rows("not computed", _NOT, rest), lang),
        ]
    table, result = directory / TABLE, directory / VERDICT_FILE
    with beside(table, result) as (table_part, result_part):
        write_xlsx(table_part, sheets)
        text = json.dumps(found.to_json(), ensure_ascii=False, indent=1)
        result_part.write_text(printable_json(text), encoding="utf-8")
    return [table, result]


def _reason(code: str) -> str:
    return say(f"accuracy.reason_{code}") if code else ""


def _row(one: RankedTensor) -> Row:
    worst = one.worst
    return (
        _COLOURS[one.opinion],
        (
            *(one.opinion.value, one.origin, one.phase, one.call, one.cell, one.tensor),
            *(worst.ratio, worst.error, worst.explained, one.precision),
            *(sum(one.counts.values()), one.counts.get("wrong", 0)),
            *(one.counts.get("undecided", 0), one.step, one.rank, worst.record),
            *(", ".join(map(str, worst.at)), worst.actual, worst.exact, _reason(worst.reason)),
        ),
    )
