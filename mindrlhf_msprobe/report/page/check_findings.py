"""The findings of checks, grouped by story, as the page's script reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mindrlhf_msprobe.findings.health import CheckFinding, CheckResult, Evidence, json_values
from mindrlhf_msprobe.report.console.analysis.checks import again, place_in_words
from mindrlhf_msprobe.report.console.analysis.comparison import settings_in_one_line
from mindrlhf_msprobe.report.page.answer import link_of_place
from mindrlhf_msprobe.report.page.words import both, known, said

_MOST_EVIDENCE = 20  # of a finding
_MOST_FRAMES = 50


class CheckFindings:
    """The findings of one or two runs.

    Attributes:
        left_out: how many are not shown, as there are too many.
    """

    def __init__(self, most: int = 1000) -> None:
        self.left_out = 0
        self._most, self._count = most, 0

    def of_run(self, side: str, check: CheckResult) -> list[dict[str, Any]]:
        """Return the findings of a run, what follows from one under it."""
        return [*self._shown(side, check.findings)]

    def _shown(self, side: str, findings: tuple[CheckFinding, ...]) -> Iterator[dict[str, Any]]:
        for finding in findings:
            if self._count >= self._most:
                self.left_out += 1
                continue
            number, self._count = self._count, self._count + 1
            yield self._finding(number, side, finding)

    def _finding(self, number: int, side: str, finding: CheckFinding) -> dict[str, Any]:
        settings = finding.next_step
        return {
            **{"id": number, "side": side, "rule": finding.rule},
            "severity": finding.severity.value,
            "text": said(finding.said),
            "link": link_of_place(finding.place),
            "where": both(lambda: place_in_words(finding.place)),
            "name": finding.place.name,
            "again": both(lambda: again(finding)) or None,
            **{"times": finding.times, "last_step": finding.last_step},
            "ranks": [*finding.ranks],
            "causes": [said(cause) for cause in finding.causes],
            "evidence": [_evidence(one) for one in finding.evidence[:_MOST_EVIDENCE]],
            "next_step": settings and f"msprobe_config: {settings_in_one_line(settings)}",
            "stack": [*finding.stack[:_MOST_FRAMES]],
            "follows": [*self._shown(side, finding.followed_by)],
        }


def _evidence(one: Evidence) -> dict[str, Any]:
    note = None if one.note is None else said(one.note)
    return {
        "link": link_of_place(one.place),
        "name": one.place.name,
        "where": both(lambda: place_in_words(one.place)),
        "values": [[name, value] for name, value in json_values(one.values).items()],
        **known(note=note),
    }
