"""Where the error begins, if what differs first is no more than rounding.

A kernel may add in another order each time. Such a difference comes first and explains nothing:
the operator to look at is the first whose outputs are much further apart than its inputs and
rounding can make them. Both have to say so: relative distances, as an operator may multiply, and
absolute ones, as a difference of two numbers that are nearly equal leaves little beside the error.
"""

from __future__ import annotations

import math
import numbers
import re
from collections import defaultdict
from collections.abc import Iterable

from mindrlhf_msprobe.common.message import Messages, message
from mindrlhf_msprobe.comparison.pairing.operators import forward_of
from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference, of_entries
from mindrlhf_msprobe.comparison.verdict.occasion import beside_operator, place_of
from mindrlhf_msprobe.findings import ErrorOrigin, Finding, Status
from mindrlhf_msprobe.storage.arrays.npy import roundoff
from mindrlhf_msprobe.storage.operators import is_operator, parse_operator
from mindrlhf_msprobe.storage.records import Entry

#: Times what entered, and times a rounding: what one operator may make of it.
_GROWTH = 64.0
#: What has a step or a kink: neighbouring inputs may give other values, or other gradients.
_STEPS = frozenset(
    [
        *("sign", "floor", "ceil", "round", "trunc", "frac", "fmod", "remainder", "mod"),
        *("floordiv", "floordivide", "sort", "topk", "argsort", "argmax", "argmin", "where"),
        *("select", "masked", "dropout", "median", "mode", "multinomial", "unique", "heaviside"),
        *("searchsorted", "histc", "bincount", "bucketize", "logical", "greater", "less"),
        "equal",
    ]
)
_KINKS = frozenset(
    [
        *("max", "min", "maximum", "minimum", "amax", "amin", "clamp", "clip", "relu", "relu6"),
        *("abs", "absolute", "hardtanh", "hardshrink", "softshrink", "hardswish", "hardsigmoid"),
        *("threshold", "prelu", "leaky", "rrelu", "cummax", "cummin", "norm", "l1", "smooth"),
    ]
)
#: What no sum inside can make small beside what it is made of; no input makes them much larger.
_DIRECT = frozenset(
    [
        *("softmax", "sigmoid", "silu", "gelu", "ge", "tanh", "exp", "sqrt", "rsqrt", "relu"),
        *("mul", "div", "truediv", "real", "reciprocal", "gather", "stack", "cat", "concat"),
        *("embedding", "reshape", "view", "transpose", "permute", "squeeze", "unsqueeze"),
        *("expand", "broadcast", "cast", "clone", "getitem", "split", "chunk", "swish"),
        *("softplus", "flatten", "tile"),
    ]
)
_FLIPPED = 0.4  # of an element: what lies beyond a kink has half its gradient, or none, or twice it
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


class _Apart:
    """How far some values of an entry are apart, and how large they are: L2 norms.

    Attributes:
        relative: the largest relative distance; inf where one is not known.
    """

    def __init__(self) -> None:
        self.relative = self.absolute = self.size = self.unit = 0.0

    def add(self, finding: Finding) -> None:
        """Take one more value."""
        if not _is_floating(finding):
            if not finding.status.agrees:
                self.relative = self.absolute = math.inf
            return
        far, size = _distance(finding), _size(finding)
        self.unit = max(self.unit, _unit(finding))
        self.size += size
        self.absolute += far
        if far:
            self.relative = max(self.relative, far / size if size else math.inf)


def error_begins(first: FirstDifference) -> ErrorOrigin | None:
    """Return where the error begins; None where that is where it is first seen, or not known."""
    entry, finding = first.entry, first.finding
    if entry is None or first.left_out or finding.status is not Status.DIFFERENT:
        return None
    apart = _Apart()
    apart.add(finding)
    if not 0 < apart.relative <= _GROWTH * apart.unit:
        return None
    values: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for _, found, other in of_entries(first.pairs):
        if found is not None:
            values[other.phase, other.name].append(found)
    differing = {  # the operators behind it, each once
        (other.phase, other.name): other
        for _, found, other in of_entries(first.pairs[first.index + 1 :])
        if found is not None and not found.status.agrees and found.io == "output"
        if is_operator(other.name) and other.name != entry.name
    }
    beginnings = (_begins_in(first, other, values) for other in differing.values())
    return next((one for one in beginnings if one is not None), None)


def said_of_beginning(beginning: ErrorOrigin) -> Messages:
    """Say where the error begins, and what may be to blame beside the operator."""
    names = ("record", "operator", "cell", "line", "distance", "entered")
    said = message("explanation.born", **{name: getattr(beginning, name) for name in names})
    return (said, *beginning.beside)


def _begins_in(
    first: FirstDifference, entry: Entry, values: dict[tuple[str, str], list[Finding]]
) -> ErrorOrigin | None:
    """Return that the error begins in an operator, if it does."""
    operator, backward = parse_operator(entry.name), entry.direction == "backward"
    words = {word.lower() for word in _WORD.findall(operator.name)} if operator else set()
    if words & _STEPS:
        return None
    own = values[entry.phase, entry.name]
    given = [found for found in own if found.io == "input"]
    arrived = _together(given)
    call = values.get((entry.phase, forward_of(entry.name)), []) if backward else []
    called = _together(call)
    relative = max(arrived.relative, called.relative)
    if not given or math.isinf(relative):
        return None
    unit = max(arrived.unit, called.unit)
    amount = arrived.absolute
    if backward:
        amount += arrived.size * (called.relative + unit)
        amount *= 1.0 if words & _DIRECT else max(1.0, called.size)
    elif not words & _DIRECT:
        amount += arrived.size * unit
    for found in own:
        if found.io != "output" or not _is_floating(found):
            continue
        if not backward and found.path != "0" and entry.name.lower().count("norm"):
            continue  # statistics for its gradient, of which kernels leave some unset
        error = None if found.metrics is None else found.metrics.max_rel_err
        if backward and words & _KINKS and (error is None or error >= _FLIPPED):
            continue  # elements may have come to lie on the other side of a kink
        share = (relative + max(unit, _unit(found))) * _size(found)
        # Further apart than inputs and rounding can make it.
        jumps = _GROWTH * max(share, amount) < _distance(found) < math.inf
        if found.status is Status.NON_FINITE or (found.status is Status.DIFFERENT and jumps):
            return ErrorOrigin(
                phase=entry.phase,
                record=found.record,
                entry=entry.name,
                distance=_distance(found) / _size(found) if _size(found) else math.inf,
                entered=relative,
                beside=beside_operator(entry),
                **place_of(first, entry.name),
            )
    return None


def _together(findings: Iterable[Finding]) -> _Apart:
    apart = _Apart()
    for finding in findings:
        if finding.status in (Status.DIFFERENT, Status.WITHIN_TOLERANCE, Status.IDENTICAL):
            apart.add(finding)
        else:
            apart.relative = math.inf
    return apart


def _is_floating(finding: Finding) -> bool:
    return bool(roundoff(finding.a.dtype) and roundoff(finding.b.dtype))


def _unit(finding: Finding) -> float:
    return 2 * max(roundoff(finding.a.dtype), roundoff(finding.b.dtype))


def _size(finding: Finding) -> float:
    """Return the larger L2 norm of both sides."""
    norms = [side.norm for side in (finding.a, finding.b)]
    known = [float(norm) for norm in norms if isinstance(norm, numbers.Real) and norm == norm]
    return max(map(abs, known), default=0.0)


def _distance(finding: Finding) -> float:
    """Return ‖a−b‖; without elements, the most that the statistics show of it.

    That is infinite where they show nothing of a difference that there is.
    """
    if finding.status is Status.IDENTICAL:
        return 0.0
    if finding.metrics is not None and finding.metrics.euclidean is not None:
        return finding.metrics.euclidean
    a, b = finding.a, finding.b
    pairs = ((a.norm, b.norm), (a.max, b.max), (a.min, b.min))
    far = [
        abs(float(one) - float(other))
        for one, other in pairs
        if isinstance(one, numbers.Real) and isinstance(other, numbers.Real)
    ]
    shown = max((value for value in far if math.isfinite(value)), default=0.0)
    return shown or math.inf
