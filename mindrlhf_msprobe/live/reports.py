"""What a training and the process that follows it say to each other."""

from __future__ import annotations

from pathlib import Path

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.findings.health import CheckFinding

#: Said to the follower instead of a step: there will be none.
NO_MORE = None


@dataclass(frozen=True)
class Task:
    """What a follower is to do.

    Attributes:
        root, rank: whose steps it follows.
        checks: whether it looks for findings.
        rules: the rule file; None: every rule is as it is.
        tensorboard: the directory of event files; None: none are written.
        compare_to: the run that each step is compared with; None: with none.
    """

    root: Path
    rank: int
    checks: bool
    tensorboard: Path | None
    rules: Path | None = None
    compare_to: Path | None = None


@dataclass(frozen=True)
class Ready:
    """It has begun to follow."""


@dataclass(frozen=True)
class Found:
    """What was found in a step, or at the end, and was not before.

    Attributes:
        findings: each with whether it follows from one before it.
    """

    findings: tuple[tuple[CheckFinding, bool], ...]


@dataclass(frozen=True)
class Diverged:
    """A step is not that of the run that is compared with; it is the first one.

    Attributes:
        step, phase, record: where it first diverges; of key data the phase may be None.
        cell: the name of the cell to blame; None for key data.
        said: why.
    """

    step: int
    phase: str | None
    record: str
    cell: str | None
    said: Message


@dataclass(frozen=True)
class Uncompared:
    """Steps from one on are not compared, as the other run does not have them.

    Attributes:
        step: the first of them.
        last: the last step that the other run has whole; None if it has none.
        gone, running: whether it was removed, is still recorded.
        nothing: whether it has this step, but nothing in it that could be compared; later ones are
            looked at.
        unread: what of it cannot be read, where that is all that differs first.
    """

    step: int
    last: int | None
    gone: bool = False
    running: bool = False
    nothing: bool = False
    unread: Message | None = None


@dataclass(frozen=True)
class Behind:
    """Steps that were not looked at: there were too many, or they were thinned before."""

    steps: tuple[int, ...]


@dataclass(frozen=True)
class Fault:
    """An observer failed and looks at no further step.

    Attributes:
        observer: its name.
        kind, text: what it raised.
    """

    observer: str
    kind: str
    text: str | Message


@dataclass(frozen=True)
class Looked:
    """A step was looked at."""

    step: int


@dataclass(frozen=True)
class Ended:
    """All steps that waited were looked at."""


Report = Ready | Found | Diverged | Uncompared | Behind | Fault | Looked | Ended
