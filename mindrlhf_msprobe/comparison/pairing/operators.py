"""Which operator's entry of A is which of B: numbers in their names do not tell.

The calls of an operator are counted over a whole phase, so one call more in one run would shift all
that follow. The operators inside one call of a cell that both runs have are aligned in the
order in which they ran, between the cells that ran there; so are those outside every cell. What is
left over is in one run alone. A backward entry belongs to its forward entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from mindrlhf_msprobe.comparison.judging.metrics.blocks import is_finite
from mindrlhf_msprobe.comparison.pairing.sequences import align_sequences
from mindrlhf_msprobe.storage.code_lines import users_line
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.operators import parse_operator
from mindrlhf_msprobe.storage.records import Entry

#: Where operators ran: the nearest cell around that both runs have, by the name of its entry in A;
#: outside every cell the opening of the phase, and the token.
Context = tuple[object, ...]

_CELL = 16  # what a pair of cells is worth beside one of operators
_SAME_LINE, _SAME_FORM, _SAME_OPERATOR, _EDITED_LINE = 4, 3, 2, 1
_ALIKE = 1e-3
_EQUAL_FORM, _EQUAL_VALUES = 1, 1  # tell equal ones apart


class Operator:
    """One entry of an operator, as far as it has to be compared with others.

    Args:
        cell: the cell around it, under the name both runs have for it; None if not known.
        called: what it is called in both runs; None: as in its entry's name. With it the runs are
            of two frameworks, and only operators that were given the same are a pair: one of a
            framework often does what several of the other do.
    """

    def __init__(
        self, entry: Entry, cell: str | None, called: Callable[[str], str] | None = None
    ) -> None:
        self.entry = entry
        parts = parse_operator(entry.name)
        name = "" if parts is None else parts.operator
        self.what = (name if called is None else called(name), cell)
        self.across = called is not None
        line = users_line(entry.stack)
        self.line = None if line is None else line.key

    @cached_property
    def form(self) -> tuple[object, ...]:
        """The dtypes and shapes of what it was given."""
        given = [record for record in self.entry.records if record.io == "input"]
        return tuple((r.path, r.leaf.dtype or r.leaf.type, r.leaf.shape) for r in given)

    @cached_property
    def values(self) -> tuple[object, ...]:
        """What it was given, as far as it was recorded."""
        given = [record for record in self.entry.records if record.io == "input"]
        return tuple((record.path, *_value_of(record.leaf)) for record in given)

    @property
    def kind(self) -> tuple[object, ...]:
        """What two of them have in common that are worth the most as a pair."""
        return (*self.what, self.line) if self.line is not None else (*self.what, None, self.form)


#: A cell that both runs have, by the name of its entry in A, or an operator.
Item = str | Operator


def _value_of(leaf: Leaf) -> tuple[object, ...]:
    if leaf.fingerprint is not None:
        return (leaf.fingerprint,)
    if leaf.is_tensor:
        return tuple(map(repr, (leaf.max, leaf.min, leaf.mean, leaf.norm)))
    return (leaf.type, repr(leaf.value))


def pair_operators(
    a: Mapping[Context, Sequence[Item]], b: Mapping[Context, Sequence[Item]]
) -> dict[str, str]:
    """Return name of B's entry → name of A's, for operators that are compared with each other.

    Args:
        a, b: what ran inside each call of a cell, or outside every cell, in the order of time.
    """
    paired: dict[str, str] = {}
    for context, items in a.items():
        others = b.get(context, ())
        for x, y in _aligned(items, others):
            paired[y.entry.name] = x.entry.name
    return paired


def _aligned(a: Sequence[Item], b: Sequence[Item]) -> list[tuple[Operator, Operator]]:
    lines = _lines(a), _lines(b)
    scale = 2 * (len(a) + len(b)) + 1  # more than all that tells equal ones apart

    def worth(i: int, j: int) -> int:
        x, y = a[i], b[j]
        if isinstance(x, str) or isinstance(y, str):
            return _CELL * scale if x == y else 0
        if x.what != y.what and not _cell_unknown(x, y):
            return 0
        if x.across and not _given_the_same(x, y):
            return 0
        most = _worth(x, y, lines)
        if not most:
            return 0
        form = _EQUAL_FORM if x.form == y.form else 0
        return most * scale + form + (_EQUAL_VALUES if form and x.values == y.values else 0)

    def same(i: int, j: int) -> int:
        x, y = a[i], b[j]
        if isinstance(x, str) or isinstance(y, str):
            return int(x == y)
        return int(x.kind == y.kind and x.values == y.values)

    pairs = align_sequences([*map(_kind, a)], [*map(_kind, b)], worth, same)
    found = [(a[i], b[j]) for i, j in pairs]
    return [(x, y) for x, y in found if isinstance(x, Operator) and isinstance(y, Operator)]


def _given_the_same(x: Operator, y: Operator) -> bool:
    """Return whether all tensors that two operators were given may be the same ones."""
    given = [
        [r.leaf for r in operator.entry.records if r.io == "input" and r.leaf.is_tensor]
        for operator in (x, y)
    ]
    if not given[0] or len(given[0]) != len(given[1]):
        return False
    return all(may_be_one(a, b) for a, b in zip(*given))


def may_be_one(a: Leaf, b: Leaf) -> bool:
    """Return whether two tensors have the same extremes and norm, as far as kernels round alike."""
    if math.prod(a.shape or ()) != math.prod(b.shape or ()) or a.is_discrete != b.is_discrete:
        return False
    known = [(v, w) for v, w in ((a.max, b.max), (a.min, b.min), (a.norm, b.norm)) if is_finite(v)]
    known = [(v, w) for v, w in known if is_finite(w)]
    largest = max((abs(v) for pair in known for v in pair), default=0.0)
    return len(known) > 1 and all(abs(v - w) <= _ALIKE * largest for v, w in known)


def _kind(item: Item) -> tuple[object, ...]:
    return (item,) if isinstance(item, str) else item.kind


def _cell_unknown(x: Operator, y: Operator) -> bool:
    """Return whether it is one operator, of which one run does not tell where it ran."""
    return x.what[0] == y.what[0] and None in (x.what[1], y.what[1])


def _lines(items: Sequence[Item]) -> set[tuple[object, object]]:
    return {(item.what[0], item.line) for item in items if isinstance(item, Operator)}


def _worth(
    x: Operator,
    y: Operator,
    lines: tuple[set[tuple[object, object]], set[tuple[object, object]]],
) -> int:
    """Return what a pair of one operator is worth, by the lines of code it was called from.

    Two lines that are not the same may be one that was edited, unless the other run has it, too.
    """
    if x.line is None or y.line is None:
        return _SAME_FORM if x.form == y.form else _SAME_OPERATOR
    if x.line == y.line:
        return _SAME_LINE
    elsewhere = (x.what[0], x.line) in lines[1] or (y.what[0], y.line) in lines[0]
    return 0 if elsewhere else _EDITED_LINE


def pair_backward(paired: Mapping[str, str], a: Sequence[str], b: Sequence[str]) -> dict[str, str]:
    """Return name of B's backward entry → name of A's, for those of paired forward entries.

    Args:
        paired: name of B's forward entry → name of A's.
        a, b: the names of all backward entries of operators.
    """
    there = set(a)
    found: dict[str, str] = {}
    for name in b:
        other = paired.get(forward_of(name))
        if other is not None and (backward := _backward_of(other)) in there:
            found[name] = backward
    return found


def forward_of(backward: str) -> str:
    """Return the name of an operator's forward entry, by that of its backward entry."""
    return f"{backward.removesuffix('.backward')}.forward"


def _backward_of(forward: str) -> str:
    return f"{forward.removesuffix('.forward')}.backward"
