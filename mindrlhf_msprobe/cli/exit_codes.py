"""How a command answers: exit codes, and results on stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mindrlhf_msprobe.common.printable import printable, printable_json, printable_lines
from mindrlhf_msprobe.report.console.terminal import fitted

if TYPE_CHECKING:
    from mindrlhf_msprobe.findings import Comparison
    from mindrlhf_msprobe.findings.checkpoints import CheckpointComparison
    from mindrlhf_msprobe.findings.health import CheckResults
    from mindrlhf_msprobe.findings.mismatch import Mismatches

SAME = 0
DIVERGED = 1
UNDECIDED = 2


def of_comparison(comparison: Comparison) -> int:
    """Return the exit code that says what two runs are to each other."""
    from mindrlhf_msprobe.findings import Outcome

    if comparison.verdict.status is Outcome.INCOMPARABLE:
        return UNDECIDED
    return SAME if comparison else DIVERGED


def of_checkpoints(found: CheckpointComparison) -> int:
    """Return the exit code that says what two checkpoints are to each other."""
    from mindrlhf_msprobe.findings import Outcome

    if found.status is Outcome.INCOMPARABLE:
        return UNDECIDED
    return SAME if found else DIVERGED


def of_checks(checks: CheckResults) -> int:
    """Return the exit code that says how healthy the checked runs are."""
    from mindrlhf_msprobe.findings.health import Health

    codes = {Health.HEALTHY: SAME, Health.UNHEALTHY: DIVERGED, Health.NOT_CHECKED: UNDECIDED}
    return codes[checks.status]


def of_mismatches(found: Mismatches) -> int:
    """Return the exit code that says whether rollout and training agree, or are proved so."""
    from mindrlhf_msprobe.findings.mismatch import Agreement

    if found.certificate is not None:
        return SAME if found.certificate else DIVERGED
    if found.status is Agreement.UNDECIDED:
        return UNDECIDED
    return SAME if found else DIVERGED


def of_replay(verdicts: Iterable[str]) -> int:
    """Return the exit code that says whether what was recorded is right.

    What computes nothing in floating point, and has no opinion, does not count beside what does.
    """
    found = {*verdicts} - {"unjudged"}
    if "wrong" in found:
        return DIVERGED
    return SAME if found == {"ordinary"} else UNDECIDED


def complain(command: str, message: object, *, lines: bool = False) -> None:
    """Print a message on stderr, on one line unless it is meant to have several."""
    shown = printable_lines(str(message)) if lines else printable(str(message))
    print(f"mindrlhf-msprobe {command}: {shown}", file=sys.stderr)


def answer(found: Any, code: int) -> int:
    """Print what was found and return the exit code, also where nobody reads to the end.

    Args:
        found: a text; all else is printed as JSON, a path as its text.
    """
    if isinstance(found, str):
        shown = fitted(printable_lines(found), sys.stdout)
    else:
        import json  # no text needs it

        shown = printable_json(json.dumps(found, ensure_ascii=False, indent=1, default=str))
    try:
        print(shown, flush=True)
    except BrokenPipeError:
        close_stdout()
    return code


def close_stdout() -> None:
    """Let go what stdout still holds: it would raise once more when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
