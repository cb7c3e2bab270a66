"""The checks of runs → checks.xlsx: the findings in order of time, and what was not checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mindrlhf_msprobe.common.message import in_words
from mindrlhf_msprobe.common.text.language import language, speaking
from mindrlhf_msprobe.findings.health import CheckFinding, CheckResults, Severity
from mindrlhf_msprobe.report.console.analysis.checks import values_in_words
from mindrlhf_msprobe.report.console.analysis.comparison import settings_in_one_line
from mindrlhf_msprobe.report.formats.colours import CLOSE, DIFFERS, PLAIN, SUSPICIOUS
from mindrlhf_msprobe.report.formats.sheets import Row, Sheet
from mindrlhf_msprobe.report.formats.xlsx import write_xlsx
from mindrlhf_msprobe.report.staging import beside
from mindrlhf_msprobe.report.tables.language import in_language

FILE = "checks.xlsx"

_COLUMNS = (
    ("run", 24),
    ("level", 6),
    ("severity", 9),
    ("step", 7),
    ("last_step", 9),
    ("times", 7),
    ("rank", 8),
    ("phase", 26),
    ("record", 60),
    ("finding", 70),
    ("evidence", 70),
    ("causes", 70),
    ("look closer", 60),
    ("stack", 60),
    ("rule", 24),
)
_REST = (("run", 24), ("what", 14), ("rule", 30), ("why", 100))
_COLOURS = {Severity.ERROR: DIFFERS, Severity.WARNING: SUSPICIOUS, Severity.NOTE: CLOSE}


def write_checks(results: CheckResults, output: Path, lang: str | None = None) -> Path:
    """Write the workbook and return its path.

    Args:
        output: the file where it ends in .xlsx; else the directory, in which it is checks.xlsx.
        lang: `en` or `zh`; None: the locale's.

    Raises:
        OutputError: it cannot be written.
    """
    lang = lang or language()
    path = output if output.suffix.lower() == ".xlsx" else output / FILE
    with speaking(lang):
        sheets = [in_language(sheet, lang) for sheet in check_sheets(results)]
    with beside(path) as (part,):
        write_xlsx(part, sheets)
    return path


def check_sheets(results: CheckResults) -> list[Sheet]:
    """Return the sheet of findings, and the one of what was not checked, in the language spoken."""
    found = [
        row
        for run in results.runs
        for finding in run.findings
        for row in _rows(run.path, finding, 0)
    ]
    rest: list[Row] = []
    for run in results.runs:
        rest += [
            (PLAIN, (run.path, "not checked", one.rule, in_words(one.why)))
            for one in run.not_checked
        ]
        rest += [(PLAIN, (run.path, "not read", "", in_words(one))) for one in run.problems]
        rest += [(PLAIN, (run.path, "checked", name, "")) for name in run.checked]
    return [Sheet.from_rows("checks", _COLUMNS, found), Sheet.from_rows("not checked", _REST, rest)]


def _rows(run: str, finding: CheckFinding, level: int) -> Iterator[Row]:
    place = finding.place
    ranks = finding.ranks or (() if place.rank is None else (place.rank,))
    evidence = [
        f"{'' if one.note is None else in_words(one.note) + ': '}{one.place.name}: "
        f"{values_in_words(one)}"
        for one in finding.evidence
    ]
    causes = [f"{n}) {in_words(cause)}" for n, cause in enumerate(finding.causes, start=1)]
    settings = finding.next_step
    yield (
        _COLOURS[finding.severity],
        (
            *(run, level, finding.severity.value, place.step, finding.last_step, finding.times),
            *(", ".join(map(str, ranks)), place.phase, place.name, in_words(finding.said)),
            *("\n".join(evidence), "\n".join(causes)),
            None if settings is None else settings_in_one_line(settings),
            *("\n".join(finding.stack[:20]), finding.rule),
        ),
    )
    for follower in finding.followed_by:
        yield from _rows(run, follower, level + 1)
