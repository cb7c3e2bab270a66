"""A comparison → its tables and verdict.json, all together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mindrlhf_msprobe.findings import Comparison
from mindrlhf_msprobe.report import blank
from mindrlhf_msprobe.report.sheets import Table
from mindrlhf_msprobe.report.staging import VERDICT_FILE, fingerprint, staged
from mindrlhf_msprobe.storage.atomic import dump_lines, write_atomic


def loading() -> Callable[[], None]:
    """Return what imports all that writes the tables, which takes its time: also in a thread."""
    beside = blank.is_made_beside()  # which a thread, with a context of its own, would not know

    def load() -> None:
        import mindrlhf_msprobe.report.summary
        import mindrlhf_msprobe.report.workbook

        if not beside:
            import mindrlhf_msprobe.report.blank_openpyxl  # noqa: F401

    return load


def write_report(
    comparison: Comparison, output: Path, csv: bool = False, lang: str | None = None
) -> list[str]:
    """Write all tables and verdict.json into `output`; return the tables' names.

    As `write_comparison` does.
    """
    return list(write_comparison(comparison, output, csv, lang).tables)


def write_comparison(
    comparison: Comparison, output: Path, csv: bool = False, lang: str | None = None
) -> Comparison:
    """Write all tables and verdict.json into `output`; return the comparison that names them.

    summary.xlsx is the first of them. They take the place of an earlier comparison's all
    together; until then, and whatever goes wrong, that one stays whole.

    Args:
        csv: write each table as a CSV file as well, and summary.xlsx as one for each sheet.
        lang: `en` or `zh`, for the headers and labels of summary.xlsx; None: the locale's.

    Raises:
        OutputError: the directory cannot be written, or holds a file of one of these names that
            no comparison wrote.
    """
    from mindrlhf_msprobe.language import language
    from mindrlhf_msprobe.report.summary import STEM, summary_of
    from mindrlhf_msprobe.report.workbook import file_names, tables_of, write_workbooks

    of_records = tables_of(comparison.findings, comparison.agreements)
    _, *names_of_records = file_names([Table(STEM, ()), *of_records])
    links = {table.of: own[0] for table, own in zip(of_records, names_of_records)}
    tables = [summary_of(comparison, links, lang or language()), *of_records]
    with staged(output) as directory:
        names = write_workbooks(tables, directory)
        if csv:
            from mindrlhf_msprobe.report.csv_tables import write_csv_files

            names += write_csv_files(tables, directory)
        files = tuple((name, fingerprint(directory / name)) for name in names)
        written = replace(
            comparison, output_path=str(output), tables=tuple(names), fingerprints=files
        )
        write_atomic(directory / VERDICT_FILE, [dump_lines(written.to_json())])
    return written
