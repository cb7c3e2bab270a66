"""A comparison of checkpoints → checkpoint.xlsx, ckpt_similarity.json and verdict.json."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from mindrlhf_msprobe.common.language import in_its_language
from mindrlhf_msprobe.common.printable import printable_json
from mindrlhf_msprobe.findings import Finding
from mindrlhf_msprobe.findings.checkpoints import CheckpointComparison
from mindrlhf_msprobe.report.messages import text_of
from mindrlhf_msprobe.report.sheets import (
    OUTCOMES,
    PLAIN,
    Row,
    Sheet,
    Table,
    colour_of,
)
from mindrlhf_msprobe.report.staging import SIMILARITY_FILE, VERDICT_FILE, fingerprint, staged
from mindrlhf_msprobe.report.tables.workbook import BITWISE
from mindrlhf_msprobe.storage.arrays.atomic import dump_lines, write_atomic

STEM = "checkpoint"

_VERDICT = (("section", 14), ("item", 44), ("value", 100))
_PARAMETERS = (
    *(("record", 60), ("rank", 7), ("status", 18), ("suspicion", 30), ("name in B", 40)),
    *(("dtype A", 11), ("dtype B", 11), ("shape A", 20), ("shape B", 20), ("elements", 14)),
    *(
        ("cosine", 14),
        ("l2", 14),
        ("l2_relative", 14),
        ("max abs error", 14),
        ("max rel error", 14),
    ),
    *(("different_percent", 18), ("first_mismatch", 15), ("norm A", 14), ("norm B", 14)),
    *(("NaN A", 9), ("NaN B", 9), ("Inf A", 9), ("Inf B", 9), ("tolerance", 40), ("note", 80)),
)
_FROZEN = 3


@in_its_language
def write_checkpoints(
    comparison: CheckpointComparison, output: Path, csv: bool = False, lang: str | None = None
) -> CheckpointComparison:
    """Write the tables and both JSON files into `output`; return the comparison that names them.

    They take the place of an earlier comparison's all together.

    Args:
        csv: write each sheet as a CSV file as well.
        lang: `en` or `zh`, of sentences and headers; None: the locale's.

    Raises:
        OutputError: the directory cannot be written, or holds a file of one of these names that no
            comparison wrote.
    """
    from mindrlhf_msprobe.report.tables.workbook import write_workbooks

    table = Table(STEM, tuple(_sheets(comparison)))
    with staged(output) as directory:
        names = write_workbooks([table], directory)
        if csv:
            from mindrlhf_msprobe.report.sheets import write_csv_files

            names += write_csv_files([table], directory)
        text = json.dumps(comparison.similarity(), ensure_ascii=False, indent=4)
        (directory / SIMILARITY_FILE).write_text(printable_json(text), encoding="utf-8")
        files = (*names, SIMILARITY_FILE)
        written = replace(
            comparison,
            output_path=str(output),
            tables=files,
            fingerprints=tuple((name, fingerprint(directory / name)) for name in files),
        )
        write_atomic(directory / VERDICT_FILE, [dump_lines(written.to_json())])
    return written


def _sheets(found: CheckpointComparison) -> list[Sheet]:
    sheets = [_verdict(found), _parameters("parameters", found.weights)]
    if found.optimizer:
        sheets.append(_parameters("optimizer", found.optimizer))
    if found.texts:
        sheets.append(_parameters("texts", found.texts))
    return sheets


def _verdict(found: CheckpointComparison) -> Sheet:
    status = found.status
    rows: list[Row] = [
        (OUTCOMES[status], ("verdict", "status", status.value)),
        (PLAIN, ("verdict", "A (baseline)", f"{found.a} ({found.kinds[0]})")),
        (PLAIN, ("verdict", "B (under test)", f"{found.b} ({found.kinds[1]})")),
    ]
    rows += [(PLAIN, ("counts", name, n)) for name, n in found.counts.items()]
    rows.append((PLAIN, ("counts", "of those that agree, suspicious", found.suspicious)))
    rows.append((PLAIN, ("counts", "elements", found.elements)))
    rows += [(PLAIN, ("not compared", None, text_of(said))) for said in found.coverage]
    rows += [(PLAIN, ("note", None, text_of(said))) for said in found.remarks]
    rows += [(PLAIN, ("tolerance", rule.rule, rule.records)) for rule in found.rules]
    return Sheet.ours("verdict", _VERDICT, rows)


def _parameters(name: str, findings: Iterable[Finding]) -> Sheet:
    sheet = Sheet.ours(name, _PARAMETERS, [*map(_row, findings)])
    return replace(sheet, frozen=_FROZEN)


def _row(finding: Finding) -> Row:
    a, b, metrics = finding.a, finding.b, finding.metrics
    colour = colour_of(finding.status, bool(finding.suspicions))
    renamed = b.name if b.name != finding.record else None
    of_both = [a.shape, b.shape]
    size = math.prod(a.shape) if a.shape is not None else None
    measured: list[object] = [None] * 13
    if metrics is not None:
        measured = [
            *(metrics.cosine, metrics.euclidean, finding.distance),
            *(metrics.max_abs_err, metrics.max_rel_err, 100 - metrics.equal_percent),
            *(metrics.first_mismatch, a.norm, b.norm),
            *(metrics.nan_a, metrics.nan_b, metrics.inf_a, metrics.inf_b),
        ]
    shapes = [None if shape is None else str(list(shape)) for shape in of_both]
    values = (
        *(finding.record, finding.rank, finding.status.value, finding.suspicion, renamed),
        *(a.dtype, b.dtype, *shapes, size, *measured),
        *(finding.tolerance or BITWISE, finding.note),
    )
    return colour, values
