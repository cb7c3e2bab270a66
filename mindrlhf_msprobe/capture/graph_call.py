"""One call of a compiled cell, and what its backward entry is made of."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from mindrlhf_msprobe.capture.graph_outline import Path
from mindrlhf_msprobe.storage.leaves import Leaf, child_path
from mindrlhf_msprobe.storage.records import entry_name

_RECORD_PARTS = {"input_args": "input", "input_kwargs": "input", "output_kwargs": "output"}
_NOTHING = Leaf("NoneType").to_json()


@dataclass(frozen=True)
class CellSlot:
    """A cell of the phase's network: name, class, whether it is recorded, its arguments' names."""

    name: str
    class_name: str
    recorded: bool
    arguments: tuple[str, ...] = ()

    def call_name(self, direction: str) -> str:
        """Return the entry's name without its call number."""
        return entry_name(self.name, self.class_name, direction, 0)[:-2]


@dataclass(eq=False)
class Call:
    """One run of a cell; tensors and gradients by part and path.

    Attributes:
        recorded: whether its forward entry is recorded.
        traced: whether its backward entry may be recorded.
        selected: whether it is, once that is known.
        differentiated: whether any gradient of it has come.
        group: the calls among which it ran, up to the gradients of all of them.
    """

    number: int
    cell: int
    slot: CellSlot
    count: int
    parent: Call | None
    recorded: bool
    traced: bool
    values: dict[str, Any]
    inputs: Any
    output: Any = None
    tensors: dict[tuple[str, Path], Any] = field(default_factory=dict)
    gradients: dict[tuple[str, Path], Any] = field(default_factory=dict)
    outer: str | None = None
    backward_seq: int | None = None
    backward_end: int | None = None
    selected: bool | None = None
    differentiated: bool = False
    group: list[Call] = field(default_factory=list)

    def entry(self, direction: str) -> str:
        """Return the name of one of its entries."""
        return f"{self.slot.call_name(direction)}.{self.count}"


def reversed_calls(calls: list[Call]) -> list[tuple[str, Call]]:
    """Return when the backward entries of calls begin and end: the reverse of forward."""
    moments = [(call.values["seq"], "end", call) for call in calls]
    moments += [(call.values["end"], "begin", call) for call in calls if call.values["end"]]
    moments.sort(key=lambda moment: moment[0], reverse=True)
    return [(moment, call) for _, moment, call in moments]


def backward_of(call: Call | None) -> str | None:
    """Return the backward entry of the cell that ran in PyNative around a call."""
    while call is not None and call.outer is None:
        call = call.parent
    if call is None or call.outer is None:
        return None
    call_name, _, count = call.outer.rpartition(".")
    return f"{call_name.removesuffix('.forward')}.backward.{count}"


def gradients_of(call: Call, part: str, tree: Any, path: Path = ()) -> Any:
    """Return the gradients of one part, nested as the part is; None stands where there is none."""
    if isinstance(tree, dict):
        return {str(k): gradients_of(call, part, item, (*path, k)) for k, item in tree.items()}
    if isinstance(tree, (tuple, list)):
        return [gradients_of(call, part, item, (*path, i)) for i, item in enumerate(tree)]
    return call.gradients.get((part, path), _NOTHING)


def record_name(entry: str, part: str, path: Path) -> str:
    """Return the name of a record of an entry."""
    return functools.reduce(child_path, path, f"{entry}.{_RECORD_PARTS.get(part, part)}")
