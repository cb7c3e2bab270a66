"""The errors this package raises on purpose. Each message says what was wrong, the value, what
was expected and what to do."""

from __future__ import annotations

from collections.abc import Iterable

from mindrlhf_msprobe.common.message import Message, SpokenError, message

#: Exit codes: what a command looked for is well, is not, or could not be decided.
SAME, DIVERGED, UNDECIDED = 0, 1, 2

#: What `git bisect run` takes for: this commit cannot be tested.
BISECT_SKIPS = 125


class MsprobeError(SpokenError):
    """Base of every error raised on purpose; the command line turns it into exit code 2."""


class ConfigError(MsprobeError, ValueError):
    """A configuration that cannot be used: unknown key, wrong type, inverted range, bad file."""


class UsageError(MsprobeError, RuntimeError):
    """A call that does not fit the interface: unknown phase, phase before watch, a bad key."""


class RunError(MsprobeError):
    """A directory that cannot be used as a run: not a run, another job's run, not writable."""


class InUseError(RunError):
    """A directory into which another process records now."""


class NotThere(SpokenError, LookupError):
    """Something of a trainer is not as it should be, so that data are not recorded."""


def nearest_of(name: str, known: Iterable[str]) -> Message | str:
    """Return the question whether the known name closest to `name` is meant; "" if none is."""
    import difflib  # slow to import, and only a mistake needs it

    matches = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return message("error.nearest", name=matches[0]) if matches else ""
