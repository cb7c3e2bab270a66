"""Findings and comparisons made by hand, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.language import speaking
from mindrlhf_msprobe.findings import Comparison, Finding, Side, Status
from mindrlhf_msprobe.report.staging import write_comparison


def finding(status: Status = Status.DIFFERENT, **values: Any) -> Finding:
    """Return a finding of a cell's output in actor_update, with other values as given."""
    place = {"step": 0, "rank": 0, "phase": "actor_update", "io": "output", "path": "0"}
    sides = {"a": Side(name="x"), "b": Side(name="x"), "entry": "x"}
    return Finding(**{"record": "x", "status": status, **place, **sides, **values})


def write_report(
    comparison: Comparison, output: Path, lang: str | None = None, **options: Any
) -> list[str]:
    """Write all tables and verdict.json into `output`; return the tables' names."""
    with speaking(lang):
        return list(write_comparison(comparison, output, **options).tables)
