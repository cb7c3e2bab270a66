"""What a call is given and what it returns → the lines of a function that hands over its tensors.

While MindSpore compiles the wrapper of a cell, it asks for such a function (compiled.py) and
gets one of straight lines, written for the structure of the values at hand. Going through them in
the graph itself, with branches, loops and questions for each tensor, takes MindSpore several times
as long to compile.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mindrlhf_msprobe.capture.graph.outline import Path
from mindrlhf_msprobe.capture.graph.probes import SITES, Site, kind_of
from mindrlhf_msprobe.common.message import message


@dataclass(frozen=True)
class Found:
    """A tensor that is handed over.

    Attributes:
        site: its probe's.
        source: the expression that is the tensor, where the function begins.
        name: the variable that holds it then.
        watched: whether its gradient is handed over, too.
    """

    site: Site
    source: str
    name: str
    watched: bool

    @property
    def passed(self) -> str:
        """The variable that holds what is passed on in the place of a watched tensor."""
        return f"passed_{self.name}"


#: A function that hands over: what its module begins with, its body, and its constants, which it is
#: called with as its last argument. All that is not the same for all cells whose values have the
#: same structure stands there.
Lines = tuple[Sequence[str], Sequence[str], tuple[Any, ...]]


class Visit:
    """Finds the tensors in the values of a cell's call, in the order in which they are handed over.

    Args:
        cell: the cell's number.
        gradients: whether the gradients of tensors are handed over, too.

    Attributes:
        source, outline: what the call is given, or returns, as a whole: the expression, and its
            outline.
        found: the tensors.
    """

    def __init__(self, cell: int, source: str, outline: Any, *, gradients: bool) -> None:
        self.cell, self.source, self.outline = cell, source, outline
        self.found: list[Found] = []
        self._gradients = gradients

    def passed_on(self, part: str, path: Path, value: Any, source: str) -> str:
        """Find the tensors in a value and return the expression of what is passed on for it.

        Args:
            value: its outline.
            source: the expression that is the value.
        """
        kind = kind_of(self.cell, value)
        if kind == "leave":
            return source
        if kind in ("tuple", "list", "dict"):
            items = [*(value.items() if kind == "dict" else enumerate(value))]
            return self._items_passed_on(kind, part, path, items, source)
        watched = kind == "differentiable" and self._gradients
        site = Site(self.cell, part, path, value)
        found = Found(site, source, f"tensor{len(self.found)}", watched)
        self.found.append(found)
        return found.passed if watched else source

    def _items_passed_on(
        self, kind: str, part: str, path: Path, items: Sequence[tuple[Any, Any]], source: str
    ) -> str:
        if not all(_can_be_written(key) for key, _ in items):
            SITES.note_gap(self.cell, message("coverage.dict_keys"))
            return source
        sources = [f"{source}[{key!r}]" for key, _ in items]
        passed = [
            self.passed_on(part, (*path, key), item, item_source)
            for (key, item), item_source in zip(items, sources)
        ]
        # The value itself passes: a node behind it would group the sums of its gradient anew.
        if passed == sources:
            return source
        if kind == "dict":
            return "{" + ", ".join(f"{key!r}: {x}" for (key, _), x in zip(items, passed)) + "}"
        listed = ", ".join(passed)
        return f"[{listed}]" if kind == "list" else f"({listed},)"


def _can_be_written(key: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(key)) == key)
    except (SyntaxError, ValueError):
        return False
