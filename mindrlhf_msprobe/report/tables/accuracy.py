"""The second opinion on a run → accuracy_check.xlsx; operators computed again → replay.xlsx."""

from __future__ import annotations

from pathlib import Path

from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.common.message import in_words
from mindrlhf_msprobe.findings.accuracy import (
    Accuracy,
    AccuracyResult,
    RankedTensor,
    ReplayedOperators,
)
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.report.sheets import (
    CLOSE,
    DIFFERS,
    PLAIN,
    SUSPICIOUS,
    Row,
    Sheet,
)
from mindrlhf_msprobe.report.staging import VERDICT_FILE
from mindrlhf_msprobe.report.xlsx import AnswerFiles, workbook_of, write_xlsx
from mindrlhf_msprobe.storage.outputs import Output, refuse_directory, written

_RANKED = (
    *(("opinion", 10), ("origin", 7), ("phase", 26), ("call", 60), ("cell", 40), ("tensor", 24)),
    *(("ratio", 12), ("relative error", 14), ("rounding explains", 16), ("precision", 10)),
    *(("calls", 8), ("wrong", 8), ("undecided", 10), ("step", 7), ("rank", 7), ("record", 60)),
    *(("index", 14), ("actual", 16), ("exact", 16), ("reason", 30)),
)
_NOT = (("call", 60), ("cell", 40), ("calls", 8), ("entry", 60), ("why", 90))
FILES = AnswerFiles(
    *("accuracy_check.xlsx", _RANKED, VERDICT_FILE),
    keys=("run", "ranked", "not_computed", "gaps"),
)
_COLOURS = {Accuracy.WRONG: DIFFERS, Accuracy.UNDECIDED: CLOSE, Accuracy.ORDINARY: PLAIN}


def write_accuracy(
    found: AccuracyResult, output: str | Path, lang: str | None = None
) -> list[Path]:
    """Write the workbook and verdict.json into a directory and return their paths.

    Args:
        lang: `en` or `zh`, of the workbook; None: the locale's.

    Raises:
        RunError: they cannot be written there.
    """
    with speaking(lang):
        ranked = [_row(one) for one in found.ranked]
        rest: list[Row] = [
            (SUSPICIOUS, (one.call, one.cell, one.calls, one.entry, in_words(one.why)))
            for one in found.not_computed
        ]
        sheets = [
            Sheet.ours("ranked", _RANKED, ranked),
            Sheet.ours("not computed", _NOT, rest),
        ]
        return FILES.write(output, sheets, found.to_json(), [found.path])


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


FILE = "replay.xlsx"

_COLUMNS = (
    ("entry", 50),
    ("phase", 26),
    ("step", 7),
    ("rank", 8),
    ("verdict", 12),
    ("of what rounding explains", 14),
    ("value", 24),
    ("dtype", 10),
    ("ulp", 12),
    ("max abs", 12),
    ("relative", 12),
    ("inputs", 16),
    ("notes", 80),
)
_REPLAYED_COLOURS = {"wrong": DIFFERS, "undecided": SUSPICIOUS}


def write_replayed(table: ReplayedOperators, output: Path) -> Path:
    """Write the workbook and return its path.

    Args:
        output: the file where it ends in .xlsx; else the directory, in which it is replay.xlsx.

    Raises:
        RunError: it cannot be written there.
    """
    rows = [
        (
            _REPLAYED_COLOURS.get(one.verdict, PLAIN),
            (
                *(one.entry, one.phase, one.step, one.rank, one.verdict, one.share, one.value),
                *(one.dtype, one.ulp, one.max_abs, one.relative),
                say("replay.drawn" if one.drawn else "replay.recorded"),
                "\n".join(one.notes),
            ),
        )
        for one in table.operators
    ]
    file = replayed_of(output)
    with written(file, runs=[table.run]) as (part,):
        write_xlsx(part, [Sheet.ours("operators", _COLUMNS, rows)])
    return file.path


def replayed_of(output: Path) -> Output:
    """Return the workbook: the file where its name ends in .xlsx, else one in the directory.

    Raises:
        OutputError: it is no directory.
    """
    path = refuse_directory(output, ".xlsx")
    is_file = path.suffix.lower() == ".xlsx" and not path.is_dir()
    return Output(path if is_file else path / FILE, workbook_of(_COLUMNS))
