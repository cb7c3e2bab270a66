"""Which record of a cell on MindSpore is which of its module on PyTorch.

Both are given the same in other forms (by position, by keyword), and return it so: values are
paired by their order, as far as shapes fit. Parameters are paired by their names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.judging.tolerance import is_finite, is_of_torch
from mindrlhf_msprobe.comparison.pairing.composed import Composed, composed, reshaped, transposed
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.operators import is_operator, parse_operator
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, Record


def beside_of(record: Record) -> float:
    """Return the largest element of what a record stands beside; 0 where that is unknown."""
    return record.beside if isinstance(record, Composed) else 0.0


#: What one parameter of a cell is called in one class or another.
SAME_PARAMETERS = (
    ("weight", "embedding_weight", "embedding_table", "gamma"),
    ("bias", "beta"),
    ("running_mean", "moving_mean"),
    ("running_var", "moving_variance"),
)


def parameter_names_of(name: str) -> tuple[str, ...]:
    """Return all that a parameter of this name in its cell may be called; nothing if only that."""
    return next((names for names in SAME_PARAMETERS if name in names), ())


#: Parameters on MindSpore that are buffers on PyTorch, of which dumps hold nothing.
_BUFFERS = ("moving_mean", "moving_variance", "running_mean", "running_var")
_WEIGHTS = ("parameters", PARAMETERS_GRAD)

#: What PyTorch does in one step, whose gradients are therefore those of the operator's arguments,
#: in their order. Of all else a hook has the gradients of the last step inside.
_ONE_STEP = frozenset(
    {
        *("__add__", "__mul__", "__neg__", "__pow__", "__sub__", "__truediv__", "abs", "add"),
        *("bmm", "cat", "clamp", "cos", "div", "erf", "exp", "gelu", "log", "log_softmax"),
        *("masked_fill", "mean", "mm", "mul", "neg", "permute", "pow", "reciprocal", "relu"),
        *("reshape", "rsqrt", "sigmoid", "silu", "sin", "softmax", "sqrt", "square", "squeeze"),
        *("sub", "sum", "tanh", "transpose", "unsqueeze", "view", "where"),
    }
)

#: Records by what they are of, and their place in it.
Records = dict[tuple[str, str], Record]


@dataclass(frozen=True)
class Across:
    """What one of two frameworks has in a network and the other has not.

    Attributes:
        only_here: of A and of B, cells that the other framework does in no cell of its own.
    """

    only_here: tuple[frozenset[str], frozenset[str]]

    def why_no_partner(self, side: int, entry: Entry) -> Message | None:
        """Return why only one side has an entry; None where the other ought to have it, too."""
        if is_operator(entry.name):
            return message("coverage.other_framework_operator")
        if entry.cell in self.only_here[side]:
            return message("coverage.other_framework_cell")
        return None


def of_pytorch(entries: Iterable[Entry]) -> bool | None:
    """Return whether entries are of a program on PyTorch; None without any that says so."""
    for entry in entries:
        for record in entry.records:
            if record.leaf.is_tensor:
                return is_of_torch(record.leaf)
    return None


def bring_together(
    entry: Entry, a: Records, b: Records
) -> tuple[Records, Records, Mapping[tuple[str, str], Message]]:
    """Pair the records of one cell or operator in both runs, under the names of A's.

    What a hook on PyTorch says of the gradient of an operator's inputs is that of the last step
    inside the operator: it is compared where there is one step, argument by argument.

    Returns:
        What is compared of A and of B; one that the other lacks has no partner. And by place, why
        the record that one side has there is not compared.
    """
    inside = entry.direction == "backward" and is_operator(entry.name)
    found: tuple[Records, Records] = ({}, {})
    gaps: dict[tuple[str, str], Message] = {}
    for io in dict.fromkeys(io for io, _ in (*a, *b)):
        mine = {place: record for place, record in a.items() if place[0] == io}
        theirs = {place: record for place, record in b.items() if place[0] == io}
        if io in _WEIGHTS:
            pairs = _parameters(mine, theirs)
        elif not (inside and io == "output"):
            pairs = _values(mine, theirs)
        elif (of_step := _arguments(mine, theirs)) is not None:
            pairs = of_step
        else:
            pairs = _values(mine, theirs)
            gaps |= dict.fromkeys(pairs, message("coverage.other_framework_gradient"))
        leaves = [record.leaf for record in (*mine.values(), *theirs.values())]
        known = (value for leaf in leaves for value in (leaf.max, leaf.min))
        largest = max((abs(value) for value in known if is_finite(value)), default=0.0)
        for place, partner in pairs.items():  # each under its place in A, and in A's form
            both = _as_one_value(io, mine[place], theirs[partner])
            if io == PARAMETERS_GRAD:
                both = composed(both[0], beside=largest), composed(both[1], beside=largest)
            found[0][place], found[1][place] = both
        for side, own, record, why in _without_partner(mine, theirs, pairs):
            found[side][own] = record
            if why is not None:
                gaps[own] = why
    return (*found, gaps)


def _without_partner(
    a: Records, b: Records, pairs: Mapping[tuple[str, str], tuple[str, str]]
) -> Iterator[tuple[int, tuple[str, str], Record, Message | None]]:
    """Yield the records in no pair: the side, a place where no other stands, and why it is so."""
    used = {*pairs}
    for side, records, taken in ((0, a, {*pairs}), (1, b, {*pairs.values()})):
        for place, record in records.items():
            if place in taken:
                continue
            own = place
            while own in used:
                own = (own[0], f"{own[1]} ")
            used.add(own)
            why = None  # it ought to have one
            if place[0] not in _WEIGHTS:
                why = message("coverage.other_framework_value")
            elif place[1] in _BUFFERS:
                why = message("coverage.other_framework_buffer")
            yield side, own, record, why


def _parameters(a: Records, b: Records) -> dict[tuple[str, str], tuple[str, str]]:
    """Return place in A → place in B of the parameters of one cell, or of their gradients."""
    pairs = {place: place for place in a if place in b}
    for place in a:
        if place in pairs:
            continue
        io, path = place
        own, dot, rest = path.partition(".")
        others = [(io, f"{name}{dot}{rest}") for name in parameter_names_of(own)]
        other = next((o for o in others if o in b and o not in pairs.values()), None)
        if other is not None:
            pairs[place] = other
    return pairs


def _arguments(a: Records, b: Records) -> dict[tuple[str, str], tuple[str, str]] | None:
    """Return place in A → place in B of the gradients of one argument each.

    None where it is not known that PyTorch's are those of the arguments.
    """
    of_torch = [r for r in (*a.values(), *b.values()) if is_of_torch(r.leaf)]
    entries = (r.name.removesuffix(f".{r.io}.{r.path}") for r in of_torch if r.leaf.is_tensor)
    operators = [parse_operator(name) for name in entries]
    if not operators or not all(of and of.name in _ONE_STEP for of in operators):
        return None  # PyTorch does it in several steps
    pairs = {}
    if {*a} <= {*b} or {*b} <= {*a}:
        pairs = {place: place for place in a if place in b}
    elif len(a) == len(b):
        pairs = dict(zip(a, b))
    tensors = {
        one: other
        for one, other in pairs.items()
        if a[one].leaf.is_tensor and b[other].leaf.is_tensor
    }
    same = (
        a[x].leaf.dtype == b[y].leaf.dtype and a[x].leaf.shape == b[y].leaf.shape
        for x, y in tensors.items()
    )
    return tensors if tensors and all(same) else None


def _values(a: Records, b: Records) -> dict[tuple[str, str], tuple[str, str]]:
    """Return place in A → place in B of inputs, or of outputs."""
    mine, theirs = (
        [p for p, r in side.items() if r.leaf.is_tensor and made_in_forms(r) is None]
        for side in (a, b)
    )
    pairs = {}
    left = list(theirs)
    for place in mine:
        own = a[place].leaf
        fitting = (
            o
            for o in left
            if own.is_discrete == b[o].leaf.is_discrete
            and math.prod(own.shape or ()) == math.prod(b[o].leaf.shape or ())
        )
        other = next(fitting, None)
        if other is not None:
            pairs[place] = other
            del left[: left.index(other) + 1]
    if not pairs and len(mine) == len(theirs) == 1:  # another shape is no other value
        pairs = {mine[0]: theirs[0]}
    for kind in _OF_MANY_FORMS:
        both = ([p for p, r in side.items() if made_in_forms(r) == kind] for side in (a, b))
        pairs |= {x: y for x, y in zip(*both) if _in_one_form(kind, a[x], b[y])}
    return pairs


#: What is made in many forms, by its name.
_OF_MANY_FORMS = ("mask", "position_ids")


def made_in_forms(record: Record) -> str | None:
    """Return whether a tensor is a mask or has positions; None if it means the same in any form."""
    called = f"{record.path}.{record.argument}".lower()
    return next((k for k in _OF_MANY_FORMS if record.leaf.is_tensor and k in called), None)


def _in_one_form(kind: str, a: Record, b: Record) -> bool:
    """Return whether masks, or positions, say the same by the same values.

    Of masks both must hide and let in by the same two values: more of one's are the other's than
    are the opposite. Without elements only equal statistics say so.
    """
    shapes = [[n for n in record.leaf.shape or () if n != 1] for record in (a, b)]
    bools = [str(record.leaf.dtype).lower().startswith("bool") for record in (a, b)]
    discrete = [record.leaf.is_discrete for record in (a, b)]
    if shapes[0] != shapes[1] or discrete[0] is not discrete[1] or bools[0] is not bools[1]:
        return False
    if kind != "mask":
        return discrete[0]
    extremes = [(record.leaf.max, record.leaf.min) for record in (a, b)]
    if not bools[0] and (extremes[0] != extremes[1] or None in extremes[0]):
        return False
    if a.location is None or b.location is None:
        mean = a.leaf.mean
        return mean is not None and mean == b.leaf.mean
    try:
        mine, theirs = (np.asarray(r.array(), np.float64).reshape(-1) for r in (a, b))
    except (ArrayFileError, TypeError, ValueError):
        return False
    opposite = 1 - theirs if bools[0] else float(theirs.max() + theirs.min()) - theirs
    return bool((mine == theirs).sum() >= (mine == opposite).sum())


def _as_one_value(io: str, a: Record, b: Record) -> tuple[Record, Record]:
    """Return two records that are one value, B's in the shape of A's and at its place."""
    shapes = a.leaf.shape, b.leaf.shape
    if shapes[0] is not None and shapes[1] is not None and shapes[0] != shapes[1]:
        if io in _WEIGHTS:
            if len(shapes[0]) == 2 and shapes[0] == shapes[1][::-1]:
                b = transposed(b)
        elif math.prod(shapes[0]) == math.prod(shapes[1]):
            b = reshaped(b, shapes[0])
    # Of integers, newer dumps of PyTorch have no mean and norm, older ones have them as float32.
    a, b = (
        replace(r, leaf=replace(r.leaf, mean=None, norm=None)) if r.leaf.is_discrete else r
        for r in (a, b)
    )
    return a, replace(b, io=a.io, path=a.path)
