"""How a computation rounds, and its gradients: one exact run, and draws that are disturbed.

The draws' distance from the exact array is what rounding explains: stochastic arithmetic (Parker's
Monte Carlo arithmetic). Sums are disturbed as long ones are: by the partial sums they run through,
each rounded once. Gradients of equal operands have the shares that fit a kernel (`fitted`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.values import NoGradientError, Pull, Value

#: How many draws there are beside the exact array.
DRAWS = 3

#: Sums are accumulated in float32, also where their terms are in a lower precision.
_ACCUMULATED_IN = 2.0**-24

#: What is taken of the error of a sum that adds one term after the other: kernels add in blocks.
_OF_NAIVE_SUM = 0.25

#: A dtype that holds less than this overflows in healthy trainings.
_LITTLE = 1e6

#: From this length on a sum is added up in float32, one term after the other, to see its bias.
_LONG_SUM = 2048


@dataclass(frozen=True)
class Precision:
    """A floating dtype as rounding sees it.

    Attributes:
        name: of the dtype, as numpy and MindSpore have it.
        unit: half the distance from 1 to the next number.
        tiny: half the distance of its smallest numbers; of float32 and bfloat16 the smallest
            normal one, since kernels may flush what is below.
        largest: the largest finite number.
    """

    name: str
    unit: float
    tiny: float
    largest: float


#: Floating dtypes, the highest first.
PRECISIONS = {
    "float64": Precision("float64", 2.0**-53, 2.0**-1022, float(np.finfo(np.float64).max)),
    "float32": Precision("float32", 2.0**-24, 2.0**-126, float(np.finfo(np.float32).max)),
    "float16": Precision("float16", 2.0**-11, 2.0**-25, 65504.0),
    "bfloat16": Precision("bfloat16", 2.0**-8, 2.0**-126, 255 / 128 * 2.0**127),
}


def lowest_precision(names: Sequence[str]) -> Precision:
    """Return the coarsest of floating dtypes given by name; float64 where none is given."""
    known = [PRECISIONS[name] for name in names if name in PRECISIONS]
    return max(known, key=lambda precision: precision.unit, default=PRECISIONS["float64"])


@dataclass
class Sharing:
    """How operators share the gradient of equal operands: a kernel may choose, and keeps to it.

    The gradient of `minimum` at equal operands is no single one: a kernel may give it to either, or
    half to each, and does the same everywhere.

    Attributes:
        weights: operator → one for each of the extreme ways, of sum 1; those that are not there
            are even.
        met: operator → number of ways, of those that had equal operands.
        broken: whether rounding made such operands unequal.
    """

    weights: dict[str, list[float]] = field(default_factory=dict)
    met: dict[str, int] = field(default_factory=dict)
    broken: bool = False


class Tape:
    """One computation: how its operations are disturbed, and whether gradients are wanted.

    Args:
        precision: that of the computation which is judged.
        seed: of the draws.
        draws: how many beside the exact one; 0 computes exactly only.
        dtype: what is computed in: float64, or float32 for float16 and bfloat16.
    """

    def __init__(
        self, precision: Precision, *, seed: int = 0, draws: int = DRAWS, dtype: Any = np.float64
    ) -> None:
        self.precision = precision
        self.draws = draws
        self.dtype = np.dtype(dtype)
        self.gradients = True
        #: Whether equal elements were put in an order that a kernel may choose differently.
        self.ties = False
        #: The largest magnitude on the way, where the precision cannot hold much, and that of
        #: derivatives, where `slopes` asks for them.
        self.reach = 0.0
        self.slopes = False
        #: How equal operands share a gradient; None: differently in each draw.
        self.sharing: Sharing | None = None
        #: Of the operator that is computed: its kind, name, and the names of keyword arguments.
        self.kind = self.name = ""
        self.keywords: frozenset[str] = frozenset()
        self._random = np.random.Generator(np.random.SFC64(seed))

    def value(self, array: Any) -> Value:
        """Return an operand: floating numbers go up, all draws are the same."""
        array = np.asarray(array)
        if array.dtype.kind == "f":
            array = array.astype(self.dtype, copy=False)
        return Value(self, [array] * (self.draws + 1))

    def of(self, operand: Any) -> Value:
        """Return an operand as a value: a number, an array, or one already."""
        if isinstance(operand, Value):
            return operand
        if isinstance(operand, (bool, int, float)):
            return self.constant(operand)
        return self.value(operand)

    def constant(self, number: float) -> Value:
        """Return a Python number; one that the lower precision has not is rounded in the draws."""
        exact = np.asarray(number, self.dtype if isinstance(number, float) else None)
        plain = exact.dtype.kind != "f" or not np.isfinite(exact)
        if plain or (math.frexp(number)[0] / self.precision.unit).is_integer():
            return Value(self, [exact] * (self.draws + 1))
        return Value(
            self, [exact, *self.disturbed([exact] * self.draws, [np.abs(exact)] * self.draws)]
        )

    def disturbed(
        self, arrays: Sequence[np.ndarray], scales: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Return arrays with each element moved by one rounding of its scale, up or down."""
        unit, tiny = self.precision.unit, self.precision.tiny
        return [self._moved(array, unit * scale + tiny) for array, scale in zip(arrays, scales)]

    def _moved(self, array: np.ndarray, by: np.ndarray) -> np.ndarray:
        # Not all of one size: two roundings would cancel exactly too often.
        steps = self._random.random(array.shape, np.float32)
        steps *= 2
        steps -= 1
        steps += np.copysign(np.float32(0.5), steps)
        with np.errstate(all="ignore"):
            return np.asarray(array + steps * by, array.dtype)

    def apply(
        self,
        function: Callable[..., np.ndarray],
        operands: Sequence[Value],
        pull: Pull | None = None,
        *,
        scale: Callable[..., np.ndarray] | None = None,
        rounds: bool = True,
    ) -> Value:
        """Return what a function of arrays gives of operands, in each draw.

        Args:
            function: takes arrays, returns one.
            pull: its gradient; None: it has none.
            scale: takes the result and the arrays; returns what one rounding is measured by, in
                units of the precision. None: the magnitude of the result.
            rounds: whether it rounds at all; what only moves numbers does not.
        """
        draws: list[np.ndarray] = []
        with np.errstate(all="ignore"):
            for i in range(self.draws + 1):
                if i and all(operand.draws[i] is operand.draws[0] for operand in operands):
                    draws.append(draws[0])
                else:
                    draws.append(np.asarray(function(*(o.draws[i] for o in operands))))
            if rounds and draws[0].dtype.kind == "f":
                self._round(draws, operands, scale)
        if self.precision.largest < _LITTLE:
            self.note_reach(draws[0])
        return self.made_of(Value(self, draws), operands, pull)

    def rounds_to(self, dtype: str) -> bool:
        """Return whether a cast to a floating dtype, by its name, is one to fewer bits."""
        precision = PRECISIONS.get(dtype)
        return precision is not None and precision.unit >= self.precision.unit

    def note_reach(self, array: np.ndarray, per: np.ndarray | None = None) -> None:
        """Note the largest magnitude of an array, per the largest of another."""
        if array.dtype.kind == "f" and array.size:
            with np.errstate(all="ignore"):
                most = np.nanmax(np.abs(array), initial=0)
                unit = 1.0 if per is None else np.nanmax(np.abs(per), initial=0)
            if unit and np.isfinite(unit):
                self.reach = max(self.reach, float(most / unit))

    def made_of(self, value: Value, operands: Sequence[Value], pull: Pull | None) -> Value:
        """Return a value that knows what it was computed of, where gradients are wanted."""
        if not self.gradients or pull is None or not value.floating:
            return value
        if not any(operand.floating for operand in operands):
            return value
        return Value(self, value.draws, tuple(operands), pull)

    def _round(
        self,
        draws: list[np.ndarray],
        operands: Sequence[Value],
        scale: Callable[..., np.ndarray] | None,
    ) -> None:
        """Disturb all results of an operation but the exact one, by one rounding."""
        inexact = None if scale is not None else ~is_held(draws[0], self.precision)
        for i in range(1, self.draws + 1):
            of_draw = [operand.draws[i] for operand in operands]
            by = np.abs(draws[i]) if scale is None else scale(draws[i], *of_draw)
            by = np.asarray(np.multiply(self.precision.unit, by))
            if not np.isfinite(np.sum(by)):
                by = np.where(np.isfinite(by), by, 0)
            by += self.precision.tiny
            draws[i] = self._moved(draws[i], by if inexact is None else by * inexact)

    def summed_scale(self, total: np.ndarray, squares: np.ndarray, length: int) -> np.ndarray:
        """Return by what a sum is disturbed: its own rounding, and that of its partial sums.

        Added one after the other, the partial sums of `length` terms with mean m and variance v are
        about k·m, give or take sqrt(k·v); the root of the sum of their squares is
        sqrt(length·total²/3 + length·squares/2).

        Args:
            total: the sums.
            squares: the sums of the squares of the terms.
            length: the number of terms.
        """
        with np.errstate(all="ignore"):
            partial = np.sqrt(length * np.square(total) / 3 + length * squares / 2)
        return np.abs(total) + self._accumulated(_OF_NAIVE_SUM * partial)

    def added_up_scale(self, total: np.ndarray, terms: np.ndarray, axes: tuple[int, ...]) -> Any:
        """Return by what a sum over axes is disturbed, from its terms."""
        length = math.prod(terms.shape[a] for a in axes)
        squares = np.sum(np.square(terms), axis=axes, keepdims=True)
        scale = self.summed_scale(np.sum(terms, axis=axes, keepdims=True), squares, length)
        if length >= _LONG_SUM:
            last = np.moveaxis(terms, axes, range(-len(axes), 0))
            flat = last.reshape(*last.shape[: last.ndim - len(axes)], length)
            running = np.add.accumulate(flat.astype(np.float32), axis=-1)
            bias = np.abs(running[..., -1] - flat.sum(-1))
            most = np.max(np.abs(running), axis=-1) * math.sqrt(length) * _OF_NAIVE_SUM
            extra = bias / _ACCUMULATED_IN + most
            scale = scale + self._accumulated(extra.reshape(scale.shape))
        return scale.reshape(total.shape)

    def _accumulated(self, scale: np.ndarray) -> np.ndarray:
        return scale * min(1.0, _ACCUMULATED_IN / self.precision.unit)

    @contextmanager
    def without_gradients(self) -> Iterator[None]:
        """Do not note what is computed of what."""
        before, self.gradients = self.gradients, False
        try:
            yield
        finally:
            self.gradients = before


def is_held(array: np.ndarray, precision: Precision) -> np.ndarray:
    """Return which elements a precision holds as they are: a result like that is not rounded."""
    if precision.name == "bfloat16":
        held = np.ascontiguousarray(array, np.float32)
        bits = held.reshape(-1).view(np.uint32).reshape(held.shape)
        return (held == array) & (bits & 0xFFFF == 0)
    return np.asarray(array.astype(precision.name) == array)


@dataclass
class Gradients:
    """What a backward pass found.

    Attributes:
        of: the gradient of each wanted value; None where nothing flows.
        stopped_at: names of operators whose gradient is not known, where one was needed.
    """

    of: list[Value | None]
    stopped_at: list[str] = field(default_factory=list)


def backward(
    tape: Tape, outputs: Sequence[tuple[Value, Value]], wanted: Sequence[Value]
) -> Gradients:
    """Take gradients of outputs back to values.

    Args:
        tape: of the computation.
        outputs: outputs with the gradients that arrive at them.
        wanted: the values whose gradients are returned.
    """
    order = _ordered([output for output, _ in outputs])
    kept = {id(value) for value in wanted}
    needed = {*kept}  # what leads to those
    for value in order:
        if any(id(parent) in needed for parent in value.parents):
            needed.add(id(value))
    sums: dict[int, Value] = {}  # what has arrived at values
    stopped_at: list[str] = []

    def give(value: Value, gradient: Value) -> None:
        if id(value) in needed:
            known = sums.get(id(value))
            sums[id(value)] = gradient if known is None else known + gradient

    with tape.without_gradients():
        for output, gradient in outputs:
            give(output, gradient)
        for value in reversed(order):
            take = sums.get if id(value) in kept else sums.pop
            arrived = take(id(value), None)
            if arrived is None or value.pull is None:
                continue
            try:
                pulled = value.pull(arrived, value, *value.parents)
            except NoGradientError as error:
                stopped_at.append(str(error))
                continue
            for parent, of_parent in zip(value.parents, pulled):
                if of_parent is None:
                    continue
                if tape.slopes:
                    tape.note_reach(of_parent.exact, arrived.exact)
                give(parent, of_parent)
    return Gradients([sums.get(id(value)) for value in wanted], stopped_at)


def _ordered(outputs: Sequence[Value]) -> list[Value]:
    """Return all values behind outputs, operands before what was computed of them."""
    order: list[Value] = []
    seen: set[int] = set()
    waiting: list[tuple[Value, bool]] = [(value, False) for value in outputs]
    while waiting:
        value, done = waiting.pop()
        if done:
            order.append(value)
        elif id(value) not in seen:
            seen.add(id(value))
            waiting.append((value, True))
            waiting.extend((parent, False) for parent in value.parents)
    return order


_ROUNDS = 2
_STEPS = 20


def fitted(
    tape: Tape, compute: Callable[[], Gradients], actual: Sequence[np.ndarray | None]
) -> tuple[Gradients, Sharing]:
    """Return gradients with the shares of equal operands that fit best to those of a kernel.

    Any mean of the legal ways may be: what was computed is fitted by such a choice for each
    operator, and judged by the gradients of that choice. Two gradients that do not sum up to the
    one that arrived fit none.

    Args:
        compute: computes gradients on the tape.
        actual: the kernel's, one for each of those; None: not known.
    """
    tape.sharing = sharing = Sharing()
    try:
        found = compute()
        if not sharing.met:
            return found, sharing
        wanted = _flat([one for one in actual if one is not None])
        for _ in range(_ROUNDS):
            for operator, count in sharing.met.items():
                ends = []
                for way in range(count):
                    sharing.weights[operator] = [float(i == way) for i in range(count)]
                    pairs = zip(compute().of, actual)
                    known = [(value, one) for value, one in pairs if one is not None]
                    ends.append(
                        _flat([np.zeros(a.shape) if v is None else v.exact for v, a in known])
                    )
                sharing.weights[operator] = _closest(ends, wanted)
        return compute(), sharing
    finally:
        tape.sharing = None


def _flat(arrays: Sequence[np.ndarray]) -> np.ndarray:
    flat = [np.asarray(array, np.float64).ravel() for array in arrays]
    return np.nan_to_num(np.concatenate(flat)) if flat else np.zeros(0)


def _closest(ends: Sequence[np.ndarray], wanted: np.ndarray) -> list[float]:
    """Return weights, none negative, of sum 1, of the mean of ends next to what is wanted."""
    weights = np.full(len(ends), 1 / len(ends))
    for _ in range(_STEPS):
        for i in range(len(ends)):
            for j in range(i):
                along = ends[i] - ends[j]
                length = float(along @ along)
                if not length:
                    continue
                mean = sum(weight * end for weight, end in zip(weights, ends))
                step = float((wanted - mean) @ along) / length
                step = float(np.clip(step, -weights[i], weights[j]))
                weights[i], weights[j] = weights[i] + step, weights[j] - step
    return [float(weight) for weight in weights]
