"""Where in a run something is, as one value."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

from mindrlhf_msprobe.common.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a run something is.

    Attributes:
        step, rank: rank is None where it concerns all ranks.
        phase: the phase of an entry; of key data the one whose result they are, or None.
        entry, record: of layer data; None for key data.
        key, micro_step: of key data.
        seq: its place in the time of its rank's process, or None; it orders findings of a step.
    """

    step: int
    rank: int | None = None
    phase: str | None = None
    entry: str | None = None
    record: str | None = None
    key: str | None = None
    micro_step: int | None = None
    seq: float | None = None

    @property
    def name(self) -> str:
        """The most exact name: of the record, the entry, the key or the phase; else ""."""
        return self.record or self.entry or self.key or self.phase or ""

    @property
    def order(self) -> tuple[float, ...]:
        """What sorts places by time: the step, the time in it, the rank."""
        seq = math.inf if self.seq is None else self.seq
        return self.step, seq, -1 if self.rank is None else self.rank

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values, without what is None."""
        names = ("step", "rank", "phase", "entry", "record", "key", "micro_step")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


class StepPlace(NamedTuple):
    """One step of one rank."""

    step: int
    rank: int


class LayerPlace(NamedTuple):
    """Where layer data lie: what one rank recorded of one phase in one step."""

    phase: str
    step: int
    rank: int


class KeyPlace(NamedTuple):
    """Where one save of key data lies."""

    key: str
    step: int
    rank: int
    micro_step: int


#: What says of which step of which rank it is.
AnyPlace: TypeAlias = "StepPlace | LayerPlace | KeyPlace"
