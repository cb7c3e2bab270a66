"""How a run ended that did not end well: where it stopped, and what of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass

RUNNING = "running"
FINISHED = "finished"
FAILED = "failed"
#: The process ended inside a step, without close() and without an exception that was seen.
INTERRUPTED = "interrupted"
#: What a run that says `running` is when nobody holds its lock.
KILLED = "killed"

_MOST_NAME = 200  # characters of a name that a file gives


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

    def to_json(self) -> dict[str, Any]:
        """Return it as it stands in run.json, under `stopped`."""
        return {"step": self.step, "phase": self.phase, "error": self.error, "text": self.text}


def stop_of(manifest: Mapping[str, Any], *, held: bool) -> Stop | None:
    """Return where the rank of a manifest stopped; None if it finished, or says nothing of it.

    Args:
        held: whether a process still records it.
    """
    state = manifest.get("state")
    if state == RUNNING and not held:
        state = KILLED
    if state not in (RUNNING, KILLED, FAILED, INTERRUPTED):
        return None
    attempts = manifest.get("attempts")
    last = attempts[-1] if isinstance(attempts, list) and attempts else None
    attempt: Mapping[str, Any] = last if isinstance(last, dict) else {}
    if not attempt:  # nothing tells where
        return None
    said = attempt.get("stopped")
    stopped: Mapping[str, Any] = said if isinstance(said, dict) else {}
    world = manifest.get("world")
    rank = world.get("rank") if isinstance(world, dict) else None
    return Stop(
        state=state,
        step=_step_of(stopped, attempt),
        phase=_text(stopped.get("phase")) or None,
        error=_text(stopped.get("error")) or None,
        text=_text(stopped.get("text"), 1000),
        rank=rank if isinstance(rank, int) else 0,
    )


def _step_of(stopped: Mapping[str, Any], attempt: Mapping[str, Any]) -> int:
    for step in (stopped.get("step"), attempt.get("unfinished_step")):
        if (known := _step(step)) is not None:
            return known
    done = _step(attempt.get("last_completed_step"))
    return (_step(attempt.get("begins_with")) or 0) if done is None else done + 1


def _step(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and value >= 0 else None


def _text(value: Any, most: int = _MOST_NAME) -> str:
    return value[:most] if isinstance(value, str) else ""
