"""Opinions on calls, as they are read: opinions.rank<N>.jsonl."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.arrays.atomic import number_from_json, number_to_json
from mindrlhf_msprobe.storage.step_lines import StepLines

ORDINARY, WRONG, UNDECIDED = "ordinary", "wrong", "undecided"


@dataclass(frozen=True, slots=True)
class TensorOpinion:
    """What is thought of one tensor of a call.

    Attributes:
        record: its record's name.
        opinion: ordinary, wrong or undecided.
        ratio: how many times what rounding explains it is away from the exact one, at worst.
        error, explained: relative to the norm of the exact tensor.
        at: the index of the element that is furthest beyond.
        actual, exact: that element.
        reason: a code of the area `opinion`; "" where there is nothing to say.
    """

    record: str
    opinion: str
    ratio: float = 0.0
    error: float = 0.0
    explained: float = 0.0
    at: tuple[int, ...] = ()
    actual: float = 0.0
    exact: float = 0.0
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as it stands in its line."""
        numbers = ("ratio", "error", "explained", "actual", "exact")
        return {
            **{"record": self.record, "opinion": self.opinion, "at": [*self.at]},
            **{name: number_to_json(getattr(self, name)) for name in numbers},
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class CallOpinion:
    """What is thought of one call, or of its gradients.

    Attributes:
        entry: its entry; of gradients the backward one.
        cell: the cell it is, or is in; "" outside every cell.
        precision: the floating dtype whose rounding counts.
        seconds: what the second computation took.
        why: why there is no opinion, or None.
        tensors: one for each tensor.
        needed: whether an opinion is missed where there is none: not of what computes no floating
            numbers, nor of a cell all of whose operators were looked at by themselves.
    """

    step: int
    rank: int
    phase: str
    entry: str
    cell: str = ""
    precision: str = ""
    seconds: float = 0.0
    why: Message | None = None
    tensors: tuple[TensorOpinion, ...] = field(default_factory=tuple)
    needed: bool = True

    @property
    def opinion(self) -> str:
        """The gravest of its tensors'."""
        found = {tensor.opinion for tensor in self.tensors}
        if self.why is not None or not found:
            return UNDECIDED
        return next(one for one in (WRONG, UNDECIDED, ORDINARY) if one in found)


def read_opinions(root: Path, rank: int) -> Iterator[CallOpinion]:
    """Yield the opinions on a rank's calls, in the order in which they were given.

    A line that is none, as the last one of a killed process may be, is left out.
    """
    for line in opinion_lines(root, rank).read():
        opinion = _opinion(line)
        if opinion is not None:
            yield opinion


def opinion_lines(root: Path, rank: int) -> StepLines:
    """Return the file of the opinions on a rank's calls, a line each.

    A line has at least `step`, `rank`, `phase`, `entry` and `tensors` or `why`.
    """
    name = layout.opinions_name(rank)
    return StepLines(root, name, most=bounds.OPINIONS, longest=bounds.TIMELINE_LINE)


def _opinion(line: Mapping[str, Any]) -> CallOpinion | None:
    try:
        why = line.get("why")
        said = None if why is None else message(str(why["code"]), **dict(why.get("params") or {}))
        tensors = tuple(map(_tensor, line.get("tensors", ())))
        return CallOpinion(
            int(line["step"]),
            int(line["rank"]),
            str(line["phase"]),
            str(line["entry"]),
            str(line.get("cell", "")),
            str(line.get("precision", "")),
            float(line.get("seconds", 0)),
            said,
            tensors,
            line.get("needed") is not False,
        )
    except (KeyError, TypeError, ValueError):
        return None


def _tensor(found: Mapping[str, Any]) -> TensorOpinion:
    opinion = str(found["opinion"])
    if opinion not in (ORDINARY, WRONG, UNDECIDED):
        raise ValueError(opinion)
    return TensorOpinion(
        str(found["record"]),
        opinion,
        _number(found.get("ratio", 0.0)),
        _number(found.get("error", 0.0)),
        _number(found.get("explained", 0.0)),
        tuple(int(i) for i in found.get("at", ())),
        _number(found.get("actual", 0.0)),
        _number(found.get("exact", 0.0)),
        str(found.get("reason", "")),
    )


def _number(value: Any) -> float:
    number = number_from_json(value)
    return float(number) if isinstance(number, (int, float)) else math.nan
