"""Findings → tables, verdict.json and the console. Knows findings only; opens no dump.

The names load what they need when they are first used: without tables nothing is loaded for them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOMES = {
    "VERDICT_FILE": "mindrlhf_msprobe.report.staging",
    "OutputError": "mindrlhf_msprobe.report.staging",
    "check_output": "mindrlhf_msprobe.report.staging",
    "write_beside": "mindrlhf_msprobe.report.files",
    "write_comparison": "mindrlhf_msprobe.report.files",
    "write_report": "mindrlhf_msprobe.report.files",
}

__all__ = [
    "VERDICT_FILE",
    "OutputError",
    "check_output",
    "write_beside",
    "write_comparison",
    "write_report",
]

if TYPE_CHECKING:
    from mindrlhf_msprobe.report.files import write_beside, write_comparison, write_report
    from mindrlhf_msprobe.report.staging import VERDICT_FILE, OutputError, check_output


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
