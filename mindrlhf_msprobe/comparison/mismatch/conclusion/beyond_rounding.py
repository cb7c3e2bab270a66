"""What is wrong in one layer of a network that computes all of them in a lower dtype.

Rounding makes all values a little apart, and hides what is born in a layer. It makes no layer grow
further apart than the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.mismatch.conclusion.births import kind_of
from mindrlhf_msprobe.comparison.mismatch.names import Name, around
from mindrlhf_msprobe.comparison.mismatch.rows.distance import explained, roundoff
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.findings.mismatch import Stage, Weight

_UNUSUAL = 4.0  # times what the others of its kind make of what enters them
_PASSED_ON = 4.0  # times what entered: what a cell of any kind may make of it


def beyond_rounding(walk: Walk, dtype: str) -> Message | None:
    """Say of which value rounding to a dtype does not explain how far apart it is.

    It is further apart than one operation's rounding and what entered explain, and grew more than
    in all other layers, and so did the cell around it: what does not last is nobody's fault.

    Returns:
        None where there is none.
    """
    found = _Unusual(walk.stages, dtype)
    for name, stage in walk.stages.items():
        usual = found.usual(name, stage)
        if usual is None or not found.lasts(name):
            continue
        known = {other.cell for other in walk.stages}
        outer = next((cell for cell in around(name.cell) if cell in known), "root")
        values = {"name": str(name), "cell": name.cell, "io": name.io, "around": outer}
        times = {"growth": stage.growth, "usual": usual, "dtype": dtype.lower()}
        return message("mismatch.beyond_rounding", **values, **times)
    return None


def rounded_to(weights: Sequence[Weight]) -> str | None:
    """Return the lowest dtype to which weights are rounded; None where one differs otherwise."""
    dtypes = [weight.rounded for weight in weights]
    if not dtypes or None in dtypes:
        return None
    return max((str(dtype) for dtype in dtypes), key=roundoff)


class _Unusual:
    """Tells values that grew more than those of other layers."""

    def __init__(self, stages: Mapping[Name, Stage], dtype: str) -> None:
        self._stages = stages
        self._limit = explained(dtype, 1)
        self._alike: dict[tuple[str, ...], list[tuple[Name, float]]] = {}
        for name, stage in stages.items():
            self._alike.setdefault(kind_of(name), []).append((name, stage.growth))

    def usual(self, name: Name, stage: Stage) -> float | None:
        """Return how much others grow at most, of a value that grew unusually; None of others."""
        others = [growth for other, growth in self._alike[kind_of(name)] if other != name]
        if not others or stage.apart <= self._limit + _PASSED_ON * stage.entered:
            return None
        return max(others) if stage.growth > _UNUSUAL * max(others) else None

    def lasts(self, name: Name) -> bool:
        """Return whether the nearest cell around a value returns what grew unusually, too."""
        for cell in around(name.cell):
            returned = [n for n in self._stages if n.cell == cell and n.io == "output"]
            if returned and cell != "root":
                return any(self.usual(n, self._stages[n]) is not None for n in returned)
        return True
