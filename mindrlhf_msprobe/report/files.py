"""A comparison → its tables and verdict.json, all together."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mindrlhf_msprobe.common.language import in_its_language
from mindrlhf_msprobe.findings import KEY_DATA_ONLY, Comparison, KeptFindings, table_of
from mindrlhf_msprobe.report.messages import paragraph, text_of
from mindrlhf_msprobe.report.sheets import Table
from mindrlhf_msprobe.report.staging import (
    KEPT_AS,
    SUMMARY_FILE,
    VERDICT_FILE,
    fingerprint,
    holds_only_a_copy,
    staged,
    stamped,
)
from mindrlhf_msprobe.storage.arrays.atomic import dump_lines, write_atomic


def load() -> None:
    """Import all that writes the tables, which takes its time."""
    import mindrlhf_msprobe.report.summary
    import mindrlhf_msprobe.report.workbook  # noqa: F401


@in_its_language
def write_comparison(
    comparison: Comparison, output: Path, csv: bool = False, lang: str | None = None
) -> Comparison:
    """Write all tables and verdict.json into `output`; return the comparison that names them.

    summary.xlsx is the first of them. They take the place of an earlier comparison's all
    together; until then, and whatever goes wrong, that one stays whole.

    Args:
        csv: write each table as a CSV file as well, and summary.xlsx as one for each sheet.
        lang: `en` or `zh`, of notes, summary.xlsx and verdict.json; None: the locale's.

    Raises:
        OutputError: the directory cannot be written, or holds a file of one of these names that
            no comparison wrote.
    """
    from mindrlhf_msprobe.report.workbook import tables_of

    comparison = with_texts(comparison)
    only = any(remark.code == KEY_DATA_ONLY for remark in comparison.remarks)
    of_records = tables_of(comparison.findings, comparison.agreements, key_data_only=only)
    with staged(output) as directory:
        written = replace(comparison, output_path=str(output))
        return _write(written, "summary", of_records, directory, csv)


@in_its_language
def write_beside(
    comparison: Comparison, output: Path, csv: bool = False, lang: str | None = None
) -> Comparison:
    """Write all tables and the verdict under names with the time in them, as msprobe names them.

    `compare_result_<time>.xlsx` is the table of a phase, `compare_result_rank<N>_<time>.xlsx` that
    of one of its ranks where there are several; of several phases, and of keys, the name comes
    first; `summary_<time>.xlsx` and `verdict_<time>.json` come with them. What is in `output` stays
    there. summary.xlsx and verdict.json are copies of the latest ones, unless they are those of a
    comparison that is nowhere else.

    Args:
        csv, lang: as for `write_comparison`.

    Raises:
        OutputError: the directory cannot be written.
    """
    from mindrlhf_msprobe.report.workbook import tables_of

    comparison = with_texts(comparison)
    findings = comparison.findings
    tables = findings.ranks if isinstance(findings, KeptFindings) else map(table_of, findings)
    phases = {phase for phase, is_key in tables if not is_key}
    phases |= {agreement.phase for agreement in comparison.agreements}
    with stamped(output) as (directory, stamp):

        def file_of_a_rank(phase: str, rank: int | None) -> str:
            of_phase = f"_{phase}" if len(phases) > 1 else ""
            of_rank = "" if rank is None else f"_rank{rank}"
            return f"compare_result{of_phase}{of_rank}_{stamp}"

        of_records = [
            replace(table, stem=f"{table.stem}_{stamp}") if table.of[0] == "key" else table
            for table in tables_of(findings, comparison.agreements, file_of_a_rank=file_of_a_rank)
        ]
        summary = f"summary_{stamp}"
        named = replace(comparison, output_path=str(output), verdict_file=f"verdict_{stamp}.json")
        written = _write(named, summary, of_records, directory, csv)
    if holds_only_a_copy(output):
        with staged(output) as directory:
            shutil.copyfile(output / f"{summary}.xlsx", directory / SUMMARY_FILE)
            copied = (SUMMARY_FILE, fingerprint(directory / SUMMARY_FILE))
            copy = replace(
                written, tables=(SUMMARY_FILE, *written.tables[1:]), fingerprints=(copied,)
            )
            content = {**copy.to_json(), KEPT_AS: written.verdict_file}
            write_atomic(directory / VERDICT_FILE, [dump_lines(content)])
    return written


def _write(
    comparison: Comparison, stem: str, of_records: Sequence[Table], directory: Path, csv: bool
) -> Comparison:
    """Write the tables, the summary that leads to them first, and the verdict into a directory.

    Args:
        stem: what the summary is called.

    Returns:
        The comparison that names them.
    """
    from mindrlhf_msprobe.report.summary import summary_of
    from mindrlhf_msprobe.report.workbook import file_names, write_tables

    _, *names_of_records = file_names([Table(stem, ()), *of_records])
    links: dict[tuple[str, str], str] = {}
    for table, own in zip(of_records, names_of_records):
        links.setdefault(table.of, own[0])
    tables = [Table(stem, summary_of(comparison, links)), *of_records]
    names = write_tables(tables, directory, csv=csv)
    files = tuple((name, fingerprint(directory / name)) for name in names)
    written = replace(comparison, tables=tuple(names), fingerprints=files)
    write_atomic(directory / comparison.verdict_file, [dump_lines(written.to_json())])
    return written


def with_texts(comparison: Comparison) -> Comparison:
    """Return a comparison that says in words what its messages are.

    That is why the runs first differ, and why something was not compared. What has no message
    keeps the text that it has.
    """
    verdict = comparison.verdict
    first = verdict.first_divergence
    if first is not None and first.reasons:
        first = replace(first, explanation=paragraph(first.reasons))
    coverage = tuple(
        gap if gap.message is None else replace(gap, reason=text_of(gap.message))
        for gap in verdict.coverage
    )
    verdict = replace(verdict, first_divergence=first, coverage=coverage)
    return replace(comparison, verdict=verdict)
