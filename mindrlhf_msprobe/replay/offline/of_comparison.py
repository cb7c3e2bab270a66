"""The replay of what a comparison found: the entry at which two runs first diverge."""

from __future__ import annotations

import shlex

from mindrlhf_msprobe.errors import MsprobeError, UsageError
from mindrlhf_msprobe.findings import Cause, Comparison
from mindrlhf_msprobe.replay.offline.replaying import Asked
from mindrlhf_msprobe.replay.offline.script.recorded import find_call, has_elements
from mindrlhf_msprobe.storage.operators import parse_operator
from mindrlhf_msprobe.storage.reading.reader import open_run

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
    first = comparison.verdict.first_divergence
    runs = (comparison.run_a, comparison.run_b)
    if first is None or first.entry is None or first.cause not in _COMPUTED or runs[0] == runs[1]:
        cause = "" if first is None else first.cause.value
        raise UsageError.saying("replay.nothing_computed", cause=cause)
    at = (first.phase, first.step, first.rank)
    return Asked(runs, first.entry, output, *at, network=network)


def command_for(comparison: Comparison, output: str) -> str:
    """Return the command that replays the entry that is to blame; "" where it cannot be.

    That is where the elements of both sides are at hand.
    """
    try:
        asked = asked_by(comparison, output, None)
        assert asked.entry is not None
        calls = [find_call(open_run(run), asked.entry, asked.place) for run in asked.runs]
    except MsprobeError:
        return ""
    if not all(has_elements(call.forward) for call in calls):
        return ""
    words = ["mindrlhf-msprobe", "replay", *asked.runs, asked.entry, "-o", output]
    words += ["--phase", str(asked.phase), "--step", str(asked.step)]
    words += ["--rank", str(asked.rank)] if asked.rank else []
    words += [] if parse_operator(asked.entry) else ["--network", "MODULE:FUNCTION"]
    return shlex.join(words)
