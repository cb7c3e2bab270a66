"""Comparisons made by hand → their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mindrlhf_msprobe.findings import Comparison
from mindrlhf_msprobe.report.files import write_comparison


def write_report(comparison: Comparison, output: Path, **options: Any) -> list[str]:
    """Write all tables and verdict.json into `output`; return the tables' names."""
    return list(write_comparison(comparison, output, **options).tables)
