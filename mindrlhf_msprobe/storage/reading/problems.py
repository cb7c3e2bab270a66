"""What of a run could not be read."""

from __future__ import annotations

from pathlib import Path

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message


@dataclass(frozen=True)
class Problem:
    """Something of a run that could not be read.

    Attributes:
        path, why: the file or directory, and what is wrong with it.
        phase: the phase whose layer data it concerns, or None.
        key_data: whether it concerns key data: those under `key`, or all of them if that is None.
        step, rank: where; None where it concerns every step or every rank. What is neither of a
            phase nor of key data (a manifest, say) concerns the run and no place.
        last: the last step that it concerns, where there are several from `step` on.
        partial: whether all that is there was read: no record counts as unreadable for it.
        absent: whether it is that something which was recorded is not there any more.
    """

    path: Path
    why: Message
    phase: str | None = None
    step: int | None = None
    rank: int | None = None
    key_data: bool = False
    key: str | None = None
    last: int | None = None
    partial: bool = False
    absent: bool = False

    def concerns(self, step: int, rank: int) -> bool:
        """Return whether layer data or key data of this step and rank are concerned."""
        return (self.phase is not None or self.key_data) and self.is_at(step, rank)

    def is_at(self, step: int, rank: int) -> bool:
        """Return whether it is in this step and rank, or in all of them."""
        first = step if self.step is None else self.step
        if not first <= step <= (first if self.last is None else self.last):
            return False
        return self.rank in (None, rank)

    def covers(self, other: Problem) -> bool:
        """Return whether it says of everything another one concerns that it cannot be read."""
        if other.phase is None and not other.key_data:
            return False
        same = self.key_data and self.key in (None, other.key) and other.key_data
        if other.phase is not None:
            same = self.phase == other.phase
        return same and self.step in (None, other.step) and self.rank in (None, other.rank)

    @property
    def message(self) -> str:
        """What is wrong, in words of the language that was chosen, else the locale's."""
        return str(self.why)

    @property
    def said(self) -> Message:
        """What is wrong with which file."""
        return message("unread.at", path=str(self.path), why=self.why)

    def __str__(self) -> str:
        return str(self.said)
