"""What is counted of one phase in one step, alike of what runs in Python and in graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mindrlhf_msprobe.config import Selection

if TYPE_CHECKING:
    from mindspore import nn


class CallCounter(dict[str, int]):
    """How often each of some names has come."""

    def count(self, name: str) -> int:
        """Count a name once more; return how often it had come before."""
        number = self.get(name, 0)
        self[name] = number + 1
        return number


class ParameterLog(dict[str, str]):
    """The state of each parameter when it was last recorded, e.g. its fingerprint."""

    def changes(self, name: str, state: str | None) -> bool:
        """Return whether a parameter is to be recorded, and note its state.

        Args:
            state: None where it is not known yet, so that it is to be recorded.
        """
        if state is None:
            return True
        changed = self.get(name) != state
        self[name] = state
        return changed


class TokenCounter:
    """The token that runs: a new one begins when the first of the outermost cells is called again.

    Args:
        records: tells by a token's number whether it is recorded; None where none is counted.
        around: returns the token that runs in PyNative around what is counted here, or None.
    """

    def __init__(
        self,
        records: Callable[[int], bool] | None,
        around: Callable[[], int | None] | None = None,
    ) -> None:
        self._records = records
        self._around = around
        self._token = -1
        self.first: int | None = None  # the first of the outermost cells

    @property
    def token(self) -> int | None:
        """The token that runs; None where none is counted."""
        return None if self._records is None else self._token

    def begin(self, cell: int, outermost: bool) -> tuple[int | None, bool]:
        """Return the token to which a call of a cell that begins belongs, and if it is recorded."""
        if self._records is None:
            return None, True
        token = None if self._around is None else self._around()
        if token is None:
            if outermost:
                if self.first is None:
                    self.first = cell
                if self.first == cell:
                    self._token += 1
            token = self._token
        return token, self._records(token)

    def any_recorded(self, calls: Sequence[tuple[int, bool]]) -> bool:
        """Return whether one of the calls that come next belongs to a token that is recorded.

        Args:
            calls: the number of each cell, and whether it is one of the outermost.
        """
        ahead = TokenCounter(self._records, self._around)
        ahead.first, ahead._token = self.first, self._token
        return any(ahead.begin(cell, outermost)[1] for cell, outermost in calls if outermost)


@dataclass
class StepCounters:
    """What is counted per phase and step, over all openings of the phase.

    Attributes:
        selection: which entries are recorded.
        calls: how often each entry's cell ran.
        parameters: the fingerprint of each cell's parameters when they were last recorded.
        gradients: how many gradients of each parameter were seen.
        openings: how often the phase was opened.
        optimizers: those that were called in Python, and whose gradients were taken there.
        hard_parameters: by cell, which of its parameters held NaN or an infinity when they were
            last recorded; filled for `task: overflow_check` alone.
    """

    selection: Selection
    calls: CallCounter = field(default_factory=CallCounter)
    parameters: ParameterLog = field(default_factory=ParameterLog)
    gradients: CallCounter = field(default_factory=CallCounter)
    openings: int = 0
    optimizers: list[nn.Cell] = field(default_factory=list)
    hard_parameters: dict[str, set[str]] = field(default_factory=dict)
