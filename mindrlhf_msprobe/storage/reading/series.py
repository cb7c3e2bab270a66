"""Series: what one quantity was at each step, and how they are gathered."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import field
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.leaves import FURTHER, Leaf
from mindrlhf_msprobe.storage.records import Record

#: What of a tensor can be followed over the steps.
STATISTICS = ("mean", "max", "min", "norm", "nan_count", "inf_count", *FURTHER)


@dataclass(frozen=True)
class Series:
    """One quantity over the steps of one rank.

    Attributes:
        name: of a record, key or derived quantity.
        kind: record, key or derived.
        statistic: which one of the record or key, "" of a derived quantity.
        phase: of a record, and of what is derived from records; else None.
        steps: int64 [n], ascending.
        micro_steps: int64 [n], the n-th save of a key, or the n-th update, in its step.
        values: float64 [n].
        notes: what the values rest on, where that is not plain.
    """

    name: str
    kind: str
    statistic: str
    rank: int
    phase: str | None
    steps: np.ndarray = field(repr=False)
    micro_steps: np.ndarray = field(repr=False)
    values: np.ndarray = field(repr=False)
    notes: tuple[Message, ...] = ()

    @property
    def identity(self) -> tuple[str, str, str, int, str]:
        """What the same quantity has in another run, too."""
        return self.kind, self.name, self.statistic, self.rank, self.phase or ""

    def __len__(self) -> int:
        return len(self.steps)

    def to_json(self) -> dict[str, Any]:
        """Return the series as plain JSON values; NaN and infinities by these names."""
        head = {"series": self.name, "kind": self.kind, "statistic": self.statistic or None}
        return {
            **head,
            "phase": self.phase,
            "rank": self.rank,
            "steps": self.steps.tolist(),
            "micro_steps": self.micro_steps.tolist(),
            "values": [*map(number_to_json, self.values.tolist())],
            "notes": [note.as_json() for note in self.notes],
            "note": [str(note) for note in self.notes],
        }


@dataclass(frozen=True)
class Missing:
    """A quantity that was requested and is not there.

    Attributes:
        why: what was not recorded, and what records it.
    """

    name: str
    why: Message

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values, with the reason as a code and in words."""
        return {"series": self.name, **self.why.as_json(), "text": str(self.why)}


_Identity = tuple[str, str, str, int, str]


class Gathered:
    """Series as they grow: three numbers a point."""

    def __init__(self) -> None:
        self._points: dict[_Identity, tuple[array[int], array[int], array[float]]] = {}
        self._notes: dict[_Identity, dict[Message, None]] = {}

    def __len__(self) -> int:
        return len(self._points)

    def add(
        self,
        kind: str,
        name: str,
        value: float,
        at: tuple[int, int, int],
        *,
        statistic: str = "",
        phase: str | None = None,
        notes: tuple[Message, ...] = (),
    ) -> None:
        """Take the value of a quantity at a (step, rank, micro-step)."""
        step, rank, micro_step = at
        identity = (kind, name, statistic, rank, phase or "")
        points = self._points.get(identity)
        if points is None:
            points = self._points[identity] = (array("q"), array("q"), array("d"))
        points[0].append(step)
        points[1].append(micro_step)
        points[2].append(value)
        if notes:
            self._notes.setdefault(identity, {}).update(dict.fromkeys(notes))

    def series(self) -> list[Series]:
        """Return them, each sorted by step, in the order in which they began."""
        found = []
        for identity, points in self._points.items():
            steps, micro_steps, values = map(np.array, points)
            order = np.lexsort((micro_steps, steps))
            kind, name, statistic, rank, phase = identity
            found.append(
                Series(
                    name,
                    kind,
                    statistic,
                    rank,
                    phase or None,
                    steps[order],
                    micro_steps[order],
                    values[order],
                    tuple(self._notes.get(identity, ())),
                )
            )
        return found


def statistic_of(record: Record, statistic: str) -> float | None:
    """Return a statistic of a record, of its elements where it was not recorded (msprobe's keys).

    None where there is none: a text, an empty tensor, statistics alone, an unreadable file.
    """
    if record.leaf.type == "str":  # its bytes have statistics, which say nothing
        return None
    value = number_of(record.leaf, statistic)
    if value is not None or record.location is None or not record.leaf.is_tensor:
        return value
    try:
        elements = record.array()
        with np.errstate(all="ignore"):
            return float(_OF_ELEMENTS[statistic](elements)) if elements.size else None
    except (ArrayFileError, TypeError):  # complex numbers have no order
        return None


_OF_ELEMENTS: dict[str, Callable[[np.ndarray], Any]] = {
    "mean": lambda a: a.mean(dtype=np.float64),
    "max": np.max,
    "min": np.min,
    "norm": lambda a: np.linalg.norm(a.astype(np.float64).reshape(-1)),
    "nan_count": lambda a: np.count_nonzero(np.isnan(a)),
    "inf_count": lambda a: np.count_nonzero(np.isinf(a)),
    **FURTHER,
}


def number_of(leaf: Leaf, statistic: str) -> float | None:
    """Return a statistic of a tensor, or the value of a Python number; None where there is none."""
    value: Any = leaf.value
    if leaf.is_tensor and statistic in FURTHER:
        value = (leaf.further or {}).get(statistic)
    elif leaf.is_tensor:
        value = getattr(leaf, statistic)
    if not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond every float
        return float("inf") if value > 0 else float("-inf")
