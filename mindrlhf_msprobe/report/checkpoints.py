"""A comparison of checkpoints → its answer, checkpoint.xlsx, ckpt_similarity.json, verdict.json."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.printable import printable_json, shortened
from mindrlhf_msprobe.findings import VERDICT_FILE, Finding, Status
from mindrlhf_msprobe.findings.checkpoints import CheckpointComparison
from mindrlhf_msprobe.report.answer import Fact, Lines, capped, listed
from mindrlhf_msprobe.report.messages import say, text_of
from mindrlhf_msprobe.report.sheets import Column, Sheet, Table, colour_of_finding, rows_of_facts
from mindrlhf_msprobe.report.staging import SIMILARITY_FILE, fingerprint, staged
from mindrlhf_msprobe.report.workbook import BITWISE, shape_of, write_tables
from mindrlhf_msprobe.storage.arrays.atomic import dump_lines, write_atomic

_MOST_SHOWN = 8
_LONGEST = 120
_ALONE = (Status.ONLY_IN_A, Status.ONLY_IN_B)


def facts_of(found: CheckpointComparison) -> list[Fact]:
    """Return what both console and workbook show beside the parameters, once."""
    facts = [Fact("status", row=("verdict", "status", found.status))]
    sides = {"A (baseline)": "side_a", "B (under test)": "side_b"}.items()
    for (item, code), path, kind in zip(sides, (found.a, found.b), found.kinds):
        line = say(f"checkpoint.{code}", path=path, kind=kind)
        facts.append(Fact("side", line, ("verdict", item, f"{path} ({kind})")))
    agreeing = {"of those that agree, suspicious": found.suspicious, "elements": found.elements}
    facts += [Fact("count", row=("counts", *one)) for one in {**found.counts, **agreeing}.items()]
    for text in map(text_of, found.coverage):
        line = say("console.not_compared", line=text)
        facts.append(Fact("rest", line, ("not compared", None, text)))
    for text in map(text_of, found.remarks):
        facts.append(Fact("rest", say("console.note", line=text), ("note", None, text)))
    for rule in found.rules:
        row = ("tolerance", rule.rule, rule.records)
        facts.append(Fact("rest", say("checkpoint.rule", rule), row))
    return facts


def lines_of(found: CheckpointComparison, seconds: float) -> Lines:
    """Return the answer.

    Args:
        seconds: how long it took.
    """
    differing, facts = [*found.differing], facts_of(found)
    of_status = {"compared": len(found.findings), "different": len(differing)}
    lines: list[Any] = [
        say(f"checkpoint.headline_{found.status.value}", **of_status),
        *(fact.line for fact in facts if fact.about == "side"),
        *_group("differing", [f for f in differing if f.status not in _ALONE]),
    ]
    for side, status in zip("AB", _ALONE):
        lines += _group("alone", [f for f in differing if f.status is status], side=side)
    lines += _group("suspicious", [finding for finding in found.findings if finding.suspicions])
    if found.optimizer:
        agreeing = sum(1 for finding in found.optimizer if finding.status.agrees)
        lines.append(say("checkpoint.optimizer", count=len(found.optimizer), agreeing=agreeing))
    lines += [fact.line for fact in facts if fact.about == "rest"]
    if found.output_path is not None:
        lines.append(say("checkpoint.tables", found, output=found.output_path))
    counts = [f"{n} {status}" for status, n in found.counts.items()]
    return [*lines, say("checkpoint.summary", found, seconds=seconds, counts=counts)]


def _group(name: str, findings: Sequence[Finding], **params: str) -> Lines:
    """Return a heading; under it the findings furthest apart, or the first ones."""
    head = say(f"checkpoint.{name}", count=len(findings), **params)

    def nearness(finding: Finding) -> float:
        distance = finding.distance if finding.metrics is not None else None
        return -math.inf if distance is None or math.isnan(distance) else -distance

    return listed(head, capped(sorted(findings, key=nearness), _MOST_SHOWN, show=_finding))


def _finding(finding: Finding) -> str:
    name = shortened(finding.record, _LONGEST)
    if finding.b.name not in (None, finding.record) and finding.a.name is not None:
        name = f"{name} = {shortened(finding.b.name, _LONGEST)}"
    if finding.rank:
        name = say("checkpoint.of_rank", name=name, rank=finding.rank)
    parts = [name]
    if not finding.suspicions and finding.status not in (*_ALONE, Status.DIFFERENT):
        parts.append(finding.status.value)
    metrics = finding.metrics
    if metrics is not None and not finding.status.agrees:
        cosine = say("console.none") if metrics.cosine is None else f"{metrics.cosine:.6g}"
        parts.append(
            say(
                "checkpoint.apart",
                cosine=cosine,
                l2=metrics.euclidean or 0.0,
                relative=finding.distance or 0.0,
                largest=float(metrics.max_abs_err or 0),
                percent=100 - metrics.equal_percent,
                elements=math.prod(finding.a.shape or ()),
            )
        )
    said = finding.suspicion or finding.note
    return " · ".join([*parts, *([said] if said else [])])


def _measured(name: str) -> Callable[[Finding], Any]:
    """Show what is known where elements were compared."""
    show = attrgetter(name)
    return lambda finding: None if finding.metrics is None else show(finding)


_VERDICT = (Column("section", 14, words=True), Column("item", 44), Column("value", 100))
_PARAMETERS = (
    Column("record", 60),
    Column("rank", 7),
    Column("status", 18, "status.value"),
    Column("suspicion", 30),
    Column("name in B", 40, lambda f: None if f.b.name == f.record else f.b.name),
    Column("dtype A", 11, "a.dtype"),
    Column("dtype B", 11, "b.dtype"),
    Column("shape A", 20, shape_of("a")),
    Column("shape B", 20, shape_of("b")),
    Column("elements", 14, lambda f: None if f.a.shape is None else math.prod(f.a.shape)),
    Column("cosine", 14, _measured("metrics.cosine")),
    Column("l2", 14, _measured("metrics.euclidean")),
    Column("l2_relative", 14, _measured("distance")),
    Column("max abs error", 14, _measured("metrics.max_abs_err")),
    Column("max rel error", 14, _measured("metrics.max_rel_err")),
    Column(
        *("different_percent", 18),
        lambda f: None if f.metrics is None else 100 - f.metrics.equal_percent,
    ),
    Column("first_mismatch", 15, _measured("metrics.first_mismatch")),
    Column("norm A", 14, _measured("a.norm")),
    Column("norm B", 14, _measured("b.norm")),
    Column("NaN A", 9, _measured("metrics.nan_a")),
    Column("NaN B", 9, _measured("metrics.nan_b")),
    Column("Inf A", 9, _measured("metrics.inf_a")),
    Column("Inf B", 9, _measured("metrics.inf_b")),
    Column("tolerance", 40, lambda f: f.tolerance or BITWISE),
    Column("note", 80),
)
_FROZEN = 3


def write_checkpoints(
    comparison: CheckpointComparison, output: Path, csv: bool = False
) -> CheckpointComparison:
    """Write the tables and both JSON files into `output`; return the comparison that names them.

    They take the place of an earlier comparison's all together.

    Args:
        csv: write each sheet as a CSV file as well.

    Raises:
        OutputError: the directory cannot be written, or holds a file of one of these names that no
            comparison wrote.
    """
    verdict = Sheet("verdict", _VERDICT, rows_of_facts(facts_of(comparison)))
    sheets = [verdict, _parameters("parameters", comparison.weights)]
    for name, findings in (("optimizer", comparison.optimizer), ("texts", comparison.texts)):
        sheets += [_parameters(name, findings)] if findings else []
    with staged(output) as directory:
        names = write_tables([Table("checkpoint", tuple(sheets))], directory, csv=csv)
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


def _parameters(name: str, findings: Sequence[Finding]) -> Sheet:
    return Sheet(name, _PARAMETERS, findings, colour_of_finding, frozen=_FROZEN, ours=False)
