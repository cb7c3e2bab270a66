"""Which part of a tensor that is spread over ranks one rank holds, as the tensor itself says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.storage.arrays import bounds

#: What is at each place of an axis, beside a number: the dimension that is cut. As in layout.yaml.
COPY, SUM, MEAN = "copy", "partial", "mean"
_MOST_AXES = 16
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class ShardAxis:
    """An axis of the device mesh.

    Attributes:
        size: how many places it has.
        place: that of the rank; None where it is not known.
        how: the dimension that is cut over it, COPY, SUM, MEAN, or another placement's own name.
    """

    size: int
    place: int | None
    how: int | str


@dataclass(frozen=True, slots=True)
class Shard:
    """The part that a rank holds.

    Attributes:
        shape: of the whole tensor.
        axes: by their names, the outermost first.
    """

    shape: tuple[int, ...]
    axes: Mapping[str, ShardAxis]

    @property
    def ranks(self) -> int:
        """Over how many ranks the tensor is spread."""
        return math.prod(axis.size for axis in self.axes.values())

    def to_json(self) -> dict[str, Any]:
        """Return it as a leaf's JSON holds it."""
        axes = {
            name: {"size": axis.size, "place": axis.place, "how": axis.how}
            for name, axis in self.axes.items()
        }
        return {"shape": list(self.shape), "axes": axes}

    @classmethod
    def from_json(cls, content: Any) -> Shard | None:
        """Read it; None where the content is none."""
        shape = content.get("shape") if isinstance(content, dict) else None
        axes = content.get("axes") if isinstance(content, dict) else None
        if not (
            isinstance(shape, list)
            and len(shape) <= bounds.DIMENSIONS
            and all(_is_number(size, bounds.SIZE) for size in shape)
            and isinstance(axes, dict)
            and len(axes) <= _MOST_AXES
            and all(len(name) <= _LONGEST_NAME and _is_axis(axis) for name, axis in axes.items())
        ):
            return None
        found = {
            name: ShardAxis(axis["size"], axis.get("place"), axis["how"])
            for name, axis in axes.items()
        }
        return cls(tuple(shape), found)


def _is_axis(content: Any) -> bool:
    if not isinstance(content, dict):
        return False
    size, place, how = (content.get(name) for name in ("size", "place", "how"))
    dimension = _is_number(how, bounds.DIMENSIONS - 1)
    named = isinstance(how, str) and len(how) <= _LONGEST_NAME
    at = place is None or _is_number(place, bounds.SIZE)
    return _is_number(size, bounds.SIZE) and at and (dimension or named)


def _is_number(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most
