"""findings.rank<N>.jsonl: what was found in the steps of one rank while it trained, a line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.step_lines import StepLines, step_line


class FindingsFile:
    """Appends findings to the file of one rank, each as a whole line.

    What an earlier attempt found in the steps from `first_step` on goes: they are recorded again.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, root: Path, rank: int, first_step: int) -> None:
        self._lines = finding_lines(root, rank)
        self._lines.forget(first_step)

    def append(self, *findings: Mapping[str, Any]) -> None:
        """Append findings; the file is made with the first.

        Args:
            findings: each has at least `step`, `rank`, `rule`, `severity`, `code` and `params`.

        Raises:
            OSError: the file cannot be written.
        """
        self._lines.append(findings)


def read_findings(root: Path, rank: int) -> Iterator[dict[str, Any]]:
    """Yield what was found in a rank's steps while it trained; nothing where nothing was."""
    return finding_lines(root, rank).read()


def findings_in(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the findings that whole lines of such a file hold."""
    return (found for raw in content.splitlines() if (found := step_line(raw)) is not None)


def finding_lines(root: Path, rank: int) -> StepLines:
    """Return the file of what was found in a rank's steps."""
    name = layout.findings_name(rank)
    return StepLines(root, name, most=bounds.METADATA, longest=bounds.METADATA)
