"""How a run ended that did not end well: where it stopped, and what of."""

from __future__ import annotations

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.storage.manifest.run_file import RunFile, Stopped

RUNNING = "running"
FINISHED = "finished"
FAILED = "failed"
#: The process ended inside a step, without close() and without an exception that was seen.
INTERRUPTED = "interrupted"
#: What a run that says `running` is when nobody holds its lock.
KILLED = "killed"

_MOST_NAME = 200  # characters of a name that a file gives
_MOST_TEXT = 1000


@dataclass(frozen=True)
class Stop:
    """Where one rank of a run stopped.

    Attributes:
        rank: which.
        state: failed, interrupted, killed, or running: it has not stopped yet.
        step: the step that was open.
        phase: the phase that was open, or through which the exception passed; None if none was, or
            it is not known.
        error: the exception's type, None without one or where it is not known.
        text: its text, shortened.
    """

    state: str
    step: int
    phase: str | None = None
    error: str | None = None
    text: str = ""
    rank: int = 0

    def noted(self) -> Stopped:
        """Return it as it stands in run.json, under `stopped`."""
        return Stopped.make(step=self.step, phase=self.phase, error=self.error, text=self.text)


def stop_of(file: RunFile, *, held: bool) -> Stop | None:
    """Return where the rank of a manifest stopped; None if it finished, or says nothing of it.

    Args:
        held: whether a process still records it.
    """
    state = KILLED if file.state == RUNNING and not held else file.state
    attempt, stopped = file.attempt, file.attempt.stopped
    if state not in (RUNNING, KILLED, FAILED, INTERRUPTED) or not attempt.json:
        return None  # or nothing tells where
    steps = (stopped.step, attempt.unfinished_step, attempt.open_step)
    return Stop(
        state=state,
        step=next(step for step in steps if step is not None),
        phase=(stopped.phase or "")[:_MOST_NAME] or None,
        error=(stopped.error or "")[:_MOST_NAME] or None,
        text=(stopped.text or "")[:_MOST_TEXT],
        rank=file.rank or 0,
    )
