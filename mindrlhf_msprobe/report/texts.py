"""The texts of a comparison's messages, in the language that is spoken."""

from __future__ import annotations

from dataclasses import replace

from mindrlhf_msprobe.findings import Comparison
from mindrlhf_msprobe.report.messages import paragraph, text_of


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
