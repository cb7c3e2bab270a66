"""Entries of operators: what they are called, as msprobe calls them, and their attributes.

The attributes of a primitive, e.g. `transpose_b`, are small plain JSON in a journal: a value is a
bool, a number, a text, None, `{"dtype": "Float32"}`, or a list of such.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

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


#: How many attributes there are, how many items a list has, how many characters a text.
MOST_ATTRIBUTES = 64

Attributes = Mapping[str, Any]


def is_attribute(value: Any) -> bool:
    """Return whether a value of JSON is one that an attribute may have."""
    if isinstance(value, list):
        return len(value) <= 64 and all(map(_is_one, value))
    return _is_one(value)


def _is_one(value: Any) -> bool:
    if isinstance(value, dict):
        return list(value) == ["dtype"] and _is_text(value["dtype"])
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, (bool, int)) or _is_text(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 100


def attributes_from_json(content: Any) -> Attributes | None:
    """Return the attributes that a line of a journal has; None where it has none that are good."""
    if not isinstance(content, dict) or len(content) > MOST_ATTRIBUTES:
        return None
    good = all(_is_text(name) and is_attribute(value) for name, value in content.items())
    return content if good else None


def in_words(value: Any) -> str:
    """Return the value of an attribute as text, as Python writes it; a dtype by its name."""
    if isinstance(value, dict):
        return str(value.get("dtype"))
    if isinstance(value, list):
        return f"[{', '.join(map(in_words, value))}]"
    return repr(value)


def other_attributes(
    a: Attributes | None, b: Attributes | None
) -> tuple[tuple[str, str, str], ...]:
    """Return (name, value in A, value in B) of the attributes that differ.

    One that is not known on one side is none of them.
    """
    if a is None or b is None or a == b:
        return ()
    both = [name for name in a if name in b]
    pairs = [(name, in_words(a[name]), in_words(b[name])) for name in both]
    return tuple((name, one, other) for name, one, other in pairs if one != other)
