"""Operators that were computed again → replay.xlsx, the most suspicious first."""

from __future__ import annotations

from pathlib import Path

from mindrlhf_msprobe.common.text.language import language
from mindrlhf_msprobe.findings.replayed import ReplayedOperators
from mindrlhf_msprobe.report.formats.colours import DIFFERS, PLAIN, SUSPICIOUS
from mindrlhf_msprobe.report.formats.sheets import Sheet
from mindrlhf_msprobe.report.formats.xlsx import write_xlsx
from mindrlhf_msprobe.report.messages import say
from mindrlhf_msprobe.report.staging import beside
from mindrlhf_msprobe.report.tables.language import in_language

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
_COLOURS = {"wrong": DIFFERS, "undecided": SUSPICIOUS}


def write_replayed(table: ReplayedOperators, output: Path) -> Path:
    """Write the workbook and return its path.

    Args:
        output: the file where it ends in .xlsx; else the directory, in which it is replay.xlsx.

    Raises:
        OutputError: it cannot be written.
    """
    path = output if output.suffix.lower() == ".xlsx" else output / FILE
    rows = [
        (
            _COLOURS.get(one.verdict, PLAIN),
            (
                *(one.entry, one.phase, one.step, one.rank, one.verdict, one.share, one.value),
                *(one.dtype, one.ulp, one.max_abs, one.relative),
                say("replay.drawn" if one.drawn else "replay.recorded"),
                "\n".join(one.notes),
            ),
        )
        for one in table.operators
    ]
    with beside(path) as (part,):
        sheet = Sheet.from_rows("operators", _COLUMNS, rows)
        write_xlsx(part, [in_language(sheet, language())])
    return path
