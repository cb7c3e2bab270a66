"""Findings → tables, verdict.json and the console. Knows findings only; opens no dump."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

from mindrlhf_msprobe.errors import RunError
from mindrlhf_msprobe.findings import Comparison
from mindrlhf_msprobe.storage.atomic import write_json

VERDICT_FILE = "verdict.json"


def write_report(comparison: Comparison, output: Path) -> list[str]:
    """Write all tables and verdict.json into `output`; return the tables' names.

    Raises:
        RunError: the directory cannot be written.
    """
    from mindrlhf_msprobe.report.workbook import write_tables

    try:
        output.mkdir(parents=True, exist_ok=True)
        _remove_earlier(output)
        tables = write_tables(comparison.findings, output)
        write_json(output / VERDICT_FILE, replace(comparison, tables=tuple(tables)).to_json())
    except OSError as error:
        raise RunError(
            f"the output directory {output} cannot be written: {error.strerror or error}. Give "
            f"another one with -o."
        ) from None
    return tables


def _remove_earlier(output: Path) -> None:
    """Remove the tables an earlier comparison wrote here: they would pass for this one's."""
    try:
        tables = json.loads((output / VERDICT_FILE).read_bytes())["tables"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    for name in tables if isinstance(tables, list) else []:
        if isinstance(name, str) and Path(name).name == name and name.endswith(".xlsx"):
            with contextlib.suppress(OSError, ValueError):
                (output / name).unlink(missing_ok=True)
