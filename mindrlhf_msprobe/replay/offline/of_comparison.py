"""The replay of what a comparison found: the entry at which two runs first diverge."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from mindrlhf_msprobe.errors import MsprobeError, UsageError
from mindrlhf_msprobe.findings import Cause, Comparison
from mindrlhf_msprobe.replay.offline.script.recorded import Place, find_call, has_elements
from mindrlhf_msprobe.storage.operators import parse_operator
from mindrlhf_msprobe.storage.reading.reader import open_run

if TYPE_CHECKING:
    from mindrlhf_msprobe.replay.offline.replaying import Asked

#: Causes that lie in what the entry computes.
_COMPUTED = (Cause.COMPUTATION, Cause.NON_FINITE)


def asked_by(comparison: Comparison, output: str, network: str | None) -> Asked:
    """Return the replay, on both sides, of the entry that is to blame.

    Args:
        output: the folder.
        network: of a cell, as `replay` takes it.

    Raises:
        UsageError: the runs do not diverge at something that was computed, or are one run.
        RunError: it was recorded without its elements.
    """
    from mindrlhf_msprobe.replay.offline.replaying import Asked

    entry, at = _blamed(comparison)
    runs = (comparison.run_a, comparison.run_b)
    return Asked(runs, entry, output, at.phase, at.step, at.rank, network=network)


def _blamed(comparison: Comparison) -> tuple[str, Place]:
    """Return the entry that computed otherwise, and where.

    Raises:
        UsageError: the runs do not diverge at something that was computed, or are one run.
    """
    first = comparison.verdict.first_divergence
    one_run = comparison.run_a == comparison.run_b
    if first is None or first.entry is None or first.cause not in _COMPUTED or one_run:
        cause = "" if first is None else first.cause.value
        raise UsageError.saying("replay.nothing_computed", cause=cause)
    if first.born is not None:
        return first.born.entry, Place(first.born.phase, first.step, first.rank)
    return first.entry, Place(first.phase, first.step, first.rank)


def command_for(comparison: Comparison, output: str) -> str:
    """Return the command that replays the entry that is to blame; "" where it cannot be.

    That is where the elements of both sides are at hand.
    """
    runs = (comparison.run_a, comparison.run_b)
    try:
        entry, at = _blamed(comparison)
        calls = [find_call(open_run(run), entry, at) for run in runs]
    except MsprobeError:
        return ""
    if not all(has_elements(call.forward) for call in calls):
        return ""
    words = ["mindrlhf-msprobe", "replay", *runs, entry, "-o", output]
    words += ["--phase", str(at.phase), "--step", str(at.step)]
    words += ["--rank", str(at.rank)] if at.rank else []
    words += [] if parse_operator(entry) else ["--network", "MODULE:FUNCTION"]
    return shlex.join(words)
