"""What a record was compared by, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages.en.words import counted


def _noise(repetitions: int) -> str:
    return f"noise ({counted(repetitions, 'repetition')})"


TEXTS = {
    "default": "rtol {rtol:g}, atol {atol:g}",
    "rule": "rtol {rtol:g}, atol {atol:g} (rule {pattern!r})",
    "bitwise_rule": "bitwise (rule {pattern!r})",
    "number": "{name} is {value}; expected a number, 0 or larger",
    "across": "{allowed:g} of the largest element (another framework, {dtype})",
    "across_whole": "whole numbers, by value (another framework)",
    "noise": _noise,
}
