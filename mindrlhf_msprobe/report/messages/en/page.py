"""The labels that the script of the report page shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.en.words import counted, some


def _left_out(one: str, several: str, how: str) -> Text:
    def said(count: int) -> str:
        return f"{count:,} {one if count == 1 else several} {how}"

    return said


def _written(file: str, bytes: int, seconds: float) -> str:
    return f"Page: {file} ({bytes / 1e6:.1f} MB, {seconds:.1f} s)"


#: What the report page says of itself.
REPORT: Mapping[str, Any] = {
    "mismatch_values_left": lambda names, why: (
        f"training against inference: {counted(len(names), 'value')} not compared "
        f"({some(names[:4], len(names) - 4)}): {why}"
    ),
    "mismatch_weights_left": lambda names: (
        f"training against inference: {counted(len(names), 'weight')} not compared "
        f"({some(names[:4], len(names) - 4)})"
    ),
    "written": _written,
    "curves_left_out": _left_out("curve is", "curves are", "not shown: there are too many"),
    "findings_left_out": _left_out("finding is", "findings are", "not shown: there are too many"),
    "places_left_out": _left_out(
        "step of a rank is",
        "steps of ranks are",
        "aggregated: their records are not listed one by one",
    ),
    "tensors_left_out": _left_out(
        "stored tensor that differs was",
        "stored tensors that differ were",
        "not read: too large, or too many",
    ),
    "texts_left_out": _left_out(
        "step of a rank has",
        "steps of ranks have",
        "prompts and responses that are not shown, for size",
    ),
}
