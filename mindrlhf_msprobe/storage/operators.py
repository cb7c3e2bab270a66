"""Entries of operators: what they are called, as msprobe calls them."""

from __future__ import annotations

import re
from functools import lru_cache

from mindrlhf_msprobe.common.frozen import dataclass

#: Kinds of operators on MindSpore, and where the operators of a kind are found.
KINDS = {
    "Mint": "mindspore.mint",
    "MintFunctional": "mindspore.mint.nn.functional",
    "Functional": "mindspore.ops",
    "Tensor": "mindspore.Tensor",
    "Distributed": "mindspore.communication.comm_func",
    "MintDistributed": "mindspore.mint.distributed",
    "Primitive": "mindspore.ops.Primitive",
}
#: Kinds of other frameworks, in dumps of msprobe.
_OTHERS = ("Torch", "VF", "NPU", "Aten", "MindSpeed")

_OPERATOR = re.compile(
    rf"(?P<kind>{'|'.join((*KINDS, *_OTHERS))})\.(?P<name>[^\s.]+(?:\.[^\s.]+)*?)\."
    r"(?P<call>0|[1-9][0-9]{0,17})\.(?P<direction>forward|backward)"
)


@dataclass(frozen=True, slots=True)
class OperatorName:
    """The name of an operator's entry, in its parts.

    Attributes:
        kind: where it is called from, e.g. `Mint`, `Tensor`, `Primitive`.
        name: what it is called there; of a primitive `<attribute>.<Class>`.
        call: the n-th time it was called in its phase and step, from 0.
        direction: forward or backward.
    """

    kind: str
    name: str
    call: int
    direction: str

    @property
    def operator(self) -> str:
        """The operator itself, without count and direction, e.g. `Mint.add`."""
        return f"{self.kind}.{self.name}"

    @property
    def entry(self) -> str:
        """The entry's name, e.g. `Mint.add.0.forward`."""
        return operator_entry(self.kind, self.name, self.call, self.direction)

    @property
    def is_of_tensors(self) -> bool:
        """Whether it is a method of tensors, whose first argument is the tensor itself."""
        return self.kind == "Tensor"

    @property
    def communicates(self) -> bool:
        """Whether it exchanges data with other ranks."""
        return self.kind in ("Distributed", "MintDistributed")


@lru_cache(maxsize=1 << 16)
def parse_operator(entry: str) -> OperatorName | None:
    """Return the parts of an operator's entry; None where it is the entry of a cell."""
    match = _OPERATOR.fullmatch(entry)
    if match is None:
        return None
    return OperatorName(match["kind"], match["name"], int(match["call"]), match["direction"])


def is_operator(entry: str) -> bool:
    """Return whether an entry, by its name, is that of an operator."""
    return parse_operator(entry) is not None


def operator_entry(kind: str, name: str, call: int, direction: str = "forward") -> str:
    """Return an entry's name, e.g. `Mint.add.0.forward`."""
    return f"{kind}.{name}.{call}.{direction}"
