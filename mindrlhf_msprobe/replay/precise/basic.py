"""The operations that formulas are made of, each with its rounding and its gradient."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.precise.values import PRECISIONS, Tape, Value

Axes = Any


class Basic:
    """Operations on values of one tape; shapes, axes and broadcasting are numpy's."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        #: Of the operator that is answered: its kind, its name, and the names of its keyword
        #: arguments.
        self.kind = self.name = ""
        self.given: frozenset[str] = frozenset()

    # --- operands ------------------------------------------------------------------------------

    def of(self, operand: Any) -> Value:
        """Return an operand as a value: a number, an array, or one already."""
        if isinstance(operand, Value):
            return operand
        if isinstance(operand, (bool, int, float)):
            return self.tape.constant(operand)
        return self.tape.value(operand)

    def floating(self, operand: Any) -> Value:
        """Return an operand as a value of floating numbers."""
        value = self.of(operand)
        if value.floating:
            return value
        return self.tape.apply(lambda a: a.astype(self.tape.dtype), [value], rounds=False)

    def _both(self, a: Any, b: Any) -> tuple[Value, Value]:
        a, b = self.of(a), self.of(b)
        if a.floating != b.floating:
            return self.floating(a), self.floating(b)
        return a, b

    # --- arithmetic ----------------------------------------------------------------------------

    def add(self, a: Any, b: Any) -> Value:
        """Return a + b."""
        return self.tape.apply(np.add, self._both(a, b), lambda g, out, a, b: self._to(g, a, b, g))

    def subtract(self, a: Any, b: Any) -> Value:
        """Return a - b."""
        return self.tape.apply(
            np.subtract, self._both(a, b), lambda g, out, a, b: self._to(g, a, b, self.negative(g))
        )

    def multiply(self, a: Any, b: Any) -> Value:
        """Return a * b."""
        return self.tape.apply(
            np.multiply,
            self._both(a, b),
            lambda g, out, a, b: self._to(
                self.multiply(g, b) if a.floating else None,
                a,
                b,
                self.multiply(g, a) if b.floating else None,
            ),
        )

    def divide(self, a: Any, b: Any) -> Value:
        """Return a / b, of floating numbers."""

        def pull(g: Value, out: Value, a: Value, b: Value) -> Sequence[Value | None]:
            over = self.divide(g, b)
            return self._to(over, a, b, self.negative(self.multiply(over, out)))

        return self.tape.apply(np.divide, (self.floating(a), self.floating(b)), pull)

    def negative(self, a: Any) -> Value:
        """Return -a."""
        return self.tape.apply(
            np.negative, [self.of(a)], lambda g, out, a: (self.negative(g),), rounds=False
        )

    def power(self, a: Any, b: Any) -> Value:
        """Return a ** b."""
        a, b = self._both(a, b)

        def pull(g: Value, out: Value, a: Value, b: Value) -> Sequence[Value | None]:
            left = self.multiply(g, self.multiply(b, self.power(a, self.subtract(b, 1))))
            right = None
            if b.parents or b.ndim:
                logarithm = self.where(
                    self.compare(np.greater, a, 0), self.log(self.maximum(a, 1e-300)), 0.0
                )
                right = self.multiply(g, self.multiply(out, logarithm))
            return self._to(left, a, b, right)

        def scale(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
            exponent = np.abs(b * np.log(np.maximum(np.abs(a), 1e-300)))
            whole = np.all(b == np.round(b)) and np.all(np.abs(b) <= 8)
            return np.abs(out) * (np.abs(b) + 1 if whole else 1 + exponent)

        if not a.floating:
            return self.tape.apply(np.power, (a, b))
        return self.tape.apply(np.power, (a, b), pull, scale=scale)

    def maximum(self, a: Any, b: Any) -> Value:
        """Return the larger of each pair; equal ones share the gradient."""
        return self._choice(np.maximum, np.greater, a, b)

    def minimum(self, a: Any, b: Any) -> Value:
        """Return the smaller of each pair; equal ones share the gradient."""
        return self._choice(np.minimum, np.less, a, b)

    def _choice(self, function: Any, wins: Any, a: Any, b: Any) -> Value:
        name = self.name

        def always(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return (wins(x, y) | (x == y)).astype(self.tape.dtype)

        def never(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return wins(x, y).astype(self.tape.dtype)

        def pull(g: Value, out: Value, a: Value, b: Value) -> Sequence[Value | None]:
            of_a = self.share(name, [always, never], (a, b))
            return self._to(
                self.multiply(g, of_a), a, b, self.multiply(g, self.subtract(1.0, of_a))
            )

        return self.tape.apply(function, self._both(a, b), pull, rounds=False)

    def share(
        self, name: str, ways: Sequence[Callable[..., np.ndarray]], operands: Sequence[Value]
    ) -> Value:
        """Return the factor of a gradient, where it is a matter of choice for equal operands.

        Args:
            name: of the operator.
            ways: of the operands, each a factor that may be chosen, as any mean of them may.
        """
        tape = self.tape
        first = [way(*(operand.exact for operand in operands)) for way in ways]
        free = np.min(first, axis=0) != np.max(first, axis=0)
        if not np.any(free):
            return tape.apply(ways[0], operands, rounds=False)
        if tape.sharing is None:

            def scale(out: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
                return np.ptp([way(*arrays) for way in ways], axis=0) / 2 / tape.precision.unit

            return tape.apply(
                lambda *arrays: np.mean([way(*arrays) for way in ways], axis=0),
                *(operands, None),
                scale=scale,
            )
        tape.sharing.met[name] = len(ways)
        tape.sharing.broken |= any(d is not o.exact for o in operands for d in o.draws)
        weights = tape.sharing.weights.get(name, [1 / len(ways)] * len(ways))
        chosen = sum(weight * one for weight, one in zip(weights, first))
        return tape.apply(
            lambda *arrays: np.where(free, chosen, ways[0](*arrays)), operands, rounds=False
        )

    def compare(self, function: Any, *operands: Any) -> Value:
        """Return what a function without gradient gives of operands: comparisons, indices."""
        return self.tape.apply(function, [self.of(o) for o in operands], rounds=False)

    def where(self, condition: Any, a: Any, b: Any) -> Value:
        """Return a where the condition holds, else b."""
        a, b = self._both(a, b)

        def pull(g: Value, out: Value, c: Value, a: Value, b: Value) -> Sequence[Value | None]:
            zero = 0.0
            left, right = self.where(c, g, zero), self.where(c, zero, g)
            return [None, *self._to(left, a, b, right)]

        def pick(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return np.where(c != 0, a, b)

        return self.tape.apply(pick, (self.of(condition), a, b), pull, rounds=False)

    # --- functions of one operand --------------------------------------------------------------

    def elementwise(
        self,
        function: Callable[[np.ndarray], np.ndarray],
        a: Any,
        slope: Callable[[Value, Value], Any] | None,
        *,
        scale: Callable[..., np.ndarray] | None = None,
        rounds: bool = True,
    ) -> Value:
        """Return a function of each element.

        Args:
            slope: takes the operand and the result, returns the derivative; None: it is 0.
        """

        def pull(g: Value, out: Value, a: Value) -> Sequence[Value | None]:
            assert slope is not None
            return (self.multiply(g, slope(a, out)),)

        value = self.floating(a)
        return self.tape.apply(
            function, [value], pull if slope else None, scale=scale, rounds=rounds
        )

    def exp(self, a: Any) -> Value:
        """Return e to the power of each element: kernels err by up to 55 + 4·|a| roundings."""
        return self.elementwise(
            np.exp, a, lambda a, out: out, scale=lambda out, a: out * (8 + 0.5 * np.abs(a))
        )

    def expm1(self, a: Any) -> Value:
        """Return e to the power of each element, less 1."""
        return self.elementwise(
            np.expm1,
            a,
            lambda a, out: self.add(out, 1.0),
            scale=lambda out, a: np.abs(out) * (1 + 0.25 * np.abs(a)),
        )

    def log(self, a: Any) -> Value:
        """Return the natural logarithm of each element."""
        return self.elementwise(
            np.log, a, lambda a, out: self.divide(1.0, a), scale=lambda out, a: np.abs(out) + 0.25
        )

    def sqrt(self, a: Any) -> Value:
        """Return the square root of each element."""
        return self.elementwise(np.sqrt, a, lambda a, out: self.divide(0.5, out))

    def square(self, a: Any) -> Value:
        """Return the square of each element."""
        return self.multiply(a, a)

    def tanh(self, a: Any) -> Value:
        """Return the hyperbolic tangent of each element.

        Rational approximations of it err by up to 18 units of rounding at 3, and end at 5.
        """
        return self.elementwise(
            np.tanh,
            a,
            lambda a, out: self.subtract(1.0, self.multiply(out, out)),
            scale=lambda out, a: np.abs(out) * np.where(np.abs(a) < 2.5, 2, 32),
        )

    def sigmoid(self, a: Any) -> Value:
        """Return the logistic function of each element: it is made of an exponential."""
        return self.elementwise(
            _sigmoid,
            a,
            lambda a, out: self.multiply(out, self.subtract(1.0, out)),
            scale=lambda out, a: out * (1 + (1 - out) * (3 + 0.25 * np.abs(a))),
        )

    def softplus(self, a: Any) -> Value:
        """Return the logarithm of 1 + e to the power of each element."""
        return self.add(*self.parts_of_softplus(a))

    def parts_of_softplus(self, a: Any) -> tuple[Value, Value]:
        """Return its sharp part, max(a, 0), and what rounds that off; both even out at 0."""
        sharp = self.elementwise(
            lambda a: np.maximum(a, 0),
            a,
            lambda a, out: self.compare(lambda a: np.heaviside(a, 0.5), a),
            rounds=False,
        )

        def slope(a: Value, out: Value) -> Value:
            tail = self.sigmoid(self.compare(lambda a: -np.abs(a), a))
            return self.multiply(self.compare(lambda a: -np.sign(a), a), tail)

        rest = self.elementwise(
            lambda a: np.log1p(np.exp(-np.abs(a))),
            a,
            slope,
            scale=lambda out, a: out * (4 + 0.25 * np.abs(a)),
        )
        return sharp, rest

    def erf(self, a: Any) -> Value:
        """Return the error function of each element."""
        slope = 2 / math.sqrt(math.pi)
        return self.elementwise(
            erf, a, lambda a, out: self.multiply(slope, self.exp(self.negative(self.square(a))))
        )

    def absolute(self, a: Any) -> Value:
        """Return the magnitude of each element; at 0 its slope may be anything between -1 and 1."""
        below = lambda a: np.where(a > 0, 1.0, -1.0)  # noqa: E731
        above = lambda a: np.where(a < 0, -1.0, 1.0)  # noqa: E731
        return self.bent(np.abs, a, below, above)

    def bent(
        self,
        function: Callable[[np.ndarray], np.ndarray],
        a: Any,
        *slopes: Callable[[np.ndarray], np.ndarray],
    ) -> Value:
        """Return a function with bends, made of straight lines.

        Args:
            slopes: the derivative, which may be any between these at a bend.
        """
        name = self.name
        return self.elementwise(
            function, a, lambda a, out: self.share(name, slopes, (a,)), rounds=False
        )

    # --- sums and extremes ---------------------------------------------------------------------

    def sum(self, a: Any, axes: Axes = None, keepdims: bool = False) -> Value:
        """Return sums over axes; None: all."""
        value = self.of(a)
        over = self.axes(value, axes)

        def pull(g: Value, out: Value, a: Value) -> Sequence[Value | None]:
            whole = g if keepdims else self.reshape(g, _kept(a.shape, over))
            return (self.broadcast(whole, a.shape),)

        def scale(out: np.ndarray, a: np.ndarray) -> np.ndarray:
            return self.tape.added_up_scale(out, a, over) if over else np.zeros(out.shape)

        def total(a: np.ndarray) -> np.ndarray:
            return np.sum(a, axis=over, keepdims=keepdims) if over else a

        return self.tape.apply(total, [value], pull, scale=scale)

    def mean(self, a: Any, axes: Axes = None, keepdims: bool = False) -> Value:
        """Return means over axes; None: all."""
        value = self.floating(a)
        count = math.prod(value.shape[axis] for axis in self.axes(value, axes))
        return self.divide(self.sum(value, axes, keepdims), float(count))

    def extreme(self, function: Any, a: Any, axes: Axes = None, keepdims: bool = False) -> Value:
        """Return the largest (np.max) or smallest (np.min) over axes; equal ones share."""
        value = self.of(a)
        over = self.axes(value, axes)
        name = self.name

        def pull(g: Value, out: Value, a: Value) -> Sequence[Value | None]:
            whole = self.reshape(g, _kept(a.shape, over))
            ways = [_evenly(over), _to_one(over, first=True), _to_one(over, first=False)]
            return (self.multiply(whole, self.share(name, ways, (a, out))),)

        return self.tape.apply(
            lambda a: function(a, axis=over, keepdims=keepdims), [value], pull, rounds=False
        )

    def cumsum(self, a: Any, axis: int) -> Value:
        """Return running sums along an axis."""
        value = self.of(a)

        def pull(g: Value, out: Value, a: Value) -> Sequence[Value | None]:
            return (self.flip(self.cumsum(self.flip(g, (axis,)), axis), (axis,)),)

        def scale(out: np.ndarray, a: np.ndarray) -> np.ndarray:
            return np.sqrt(np.cumsum(np.square(out), axis=axis))

        return self.tape.apply(lambda a: np.cumsum(a, axis=axis), [value], pull, scale=scale)

    def matmul(self, a: Any, b: Any) -> Value:
        """Return the matrix product, as numpy's matmul."""
        a, b = self._both(a, b)
        if a.ndim == 1 and b.ndim == 1:
            return self.sum(self.multiply(a, b))
        if a.ndim == 1:
            return self.squeeze(self.matmul(self.reshape(a, (1, *a.shape)), b), (-2,))
        if b.ndim == 1:
            return self.squeeze(self.matmul(a, self.reshape(b, (*b.shape, 1))), (-1,))

        def pull(g: Value, out: Value, a: Value, b: Value) -> Sequence[Value | None]:
            left = self.matmul(g, self.swap(b)) if a.floating else None
            right = self.matmul(self.swap(a), g) if b.floating else None
            return self._to(left, a, b, right)

        squares: list[np.ndarray] = []  # of the first draw: those of the others are as large

        def scale(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
            if not squares:
                squares.append(np.matmul(np.square(a), np.square(b)))
            return self.tape.summed_scale(out, squares[0], a.shape[-1])

        return self.tape.apply(np.matmul, (a, b), pull, scale=scale)

    # --- what only moves numbers ---------------------------------------------------------------

    def move(
        self,
        a: Any,
        function: Callable[[np.ndarray], np.ndarray],
        back: Callable[[Value, Value], Value] | None,
    ) -> Value:
        """Return what a function that moves elements gives; `back` moves a gradient back."""
        pull = None if back is None else (lambda g, out, a: (back(g, a),))
        return self.tape.apply(function, [self.of(a)], pull, rounds=False)

    def reshape(self, a: Any, shape: Sequence[int]) -> Value:
        """Return the elements in another shape."""
        shape = tuple(shape)
        return self.move(a, lambda x: np.reshape(x, shape), lambda g, a: self.reshape(g, a.shape))

    def transpose(self, a: Any, order: Sequence[int]) -> Value:
        """Return the axes in another order."""
        value = self.of(a)
        order = tuple(axis % value.ndim for axis in order)
        back = tuple(int(i) for i in np.argsort(order))
        return self.move(
            value, lambda x: np.transpose(x, order), lambda g, a: self.transpose(g, back)
        )

    def swap(self, a: Any, one: int = -1, other: int = -2) -> Value:
        """Return the array with two axes swapped."""
        return self.move(
            a, lambda x: np.swapaxes(x, one, other), lambda g, a: self.swap(g, one, other)
        )

    def squeeze(self, a: Any, axes: tuple[int, ...]) -> Value:
        """Return the array without axes of length 1."""
        value = self.of(a)
        gone = {axis % value.ndim for axis in axes}
        return self.reshape(value, [n for i, n in enumerate(value.shape) if i not in gone])

    def broadcast(self, a: Any, shape: Sequence[int]) -> Value:
        """Return the array repeated to a shape, as numpy broadcasts."""
        shape = tuple(shape)
        return self.move(
            a, lambda x: np.broadcast_to(x, shape), lambda g, a: self.summed_to(g, a.shape)
        )

    def summed_to(self, a: Value, shape: tuple[int, ...]) -> Value:
        """Return the array summed over the axes by which `shape` was broadcast to its own."""
        if a.shape == shape:
            return a
        more = a.ndim - len(shape)
        axes = [*range(more)]
        axes += [more + i for i, n in enumerate(shape) if n == 1 and a.shape[more + i] != 1]
        return self.reshape(self.sum(a, tuple(axes)), shape)

    def flip(self, a: Any, axes: tuple[int, ...]) -> Value:
        """Return the array reversed along axes."""
        return self.move(a, lambda x: np.flip(x, axes), lambda g, a: self.flip(g, axes))

    def roll(self, a: Any, shifts: Any, axes: Any) -> Value:
        """Return the array rolled along axes."""
        opposite = tuple(-s for s in shifts) if isinstance(shifts, tuple) else -shifts
        return self.move(
            a, lambda x: np.roll(x, shifts, axes), lambda g, a: self.roll(g, opposite, axes)
        )

    def index(self, a: Any, key: Any) -> Value:
        """Return a[key]; the key may hold values, slices, None and numbers."""
        parts = key if isinstance(key, tuple) else (key,)
        operands = [part for part in parts if isinstance(part, Value)]

        def keyed(arrays: Sequence[np.ndarray]) -> Any:
            left = iter(arrays)
            return tuple(next(left) if isinstance(part, Value) else part for part in parts)

        def pull(g: Value, out: Value, a: Value, *keys: Value) -> Sequence[Value | None]:
            def put(g: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
                into = np.zeros(a.shape, g.dtype)
                if arrays:
                    np.add.at(into, keyed(arrays), g)
                else:
                    into[keyed(arrays)] = g
                return into

            rounds = bool(keys)
            scale = None
            if keys:  # elements that were taken several times are added up

                def scale(out: np.ndarray, g: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
                    squares = put(np.square(g), *arrays)
                    times = np.max(put(np.ones(g.shape), *arrays), initial=1)
                    return self.tape.summed_scale(out, squares, int(times))

            summed = self.tape.apply(put, (g, *keys), scale=scale, rounds=rounds)
            return [summed, *[None] * len(keys)]

        return self.tape.apply(
            lambda x, *arrays: x[keyed(arrays)], (self.of(a), *operands), pull, rounds=False
        )

    def along(self, a: Any, indices: Any, axis: int) -> Value:
        """Return the elements at indices along an axis, as numpy's take_along_axis."""
        a, indices = self.of(a), self.of(indices)
        axis %= a.ndim
        grids = np.indices(indices.shape, sparse=True)
        key = tuple(indices if i == axis else grids[i] for i in range(a.ndim))
        return self.index(a, key)

    def concatenate(self, values: Sequence[Any], axis: int) -> Value:
        """Return arrays one behind the other along an axis."""
        operands = [self.of(value) for value in values]
        if any(o.floating for o in operands):
            operands = [self.floating(o) for o in operands]

        def pull(g: Value, out: Value, *parts: Value) -> Sequence[Value | None]:
            at, along = 0, axis % g.ndim
            gradients = []
            for part in parts:
                key = (slice(None),) * along + (slice(at, at + part.shape[along]),)
                gradients.append(self.index(g, key))
                at += part.shape[along]
            return gradients

        return self.tape.apply(
            lambda *arrays: np.concatenate(arrays, axis), operands, pull, rounds=False
        )

    def pad(self, a: Any, widths: Sequence[tuple[int, int]], value: float = 0.0) -> Value:
        """Return the array with constant elements around it."""

        def back(g: Value, a: Value) -> Value:
            key = tuple(slice(before, before + n) for (before, _), n in zip(widths, a.shape))
            return self.index(g, key)

        return self.move(a, lambda x: np.pad(x, widths, constant_values=value), back)

    def repeat(self, a: Any, times: int, axis: int) -> Value:
        """Return each element several times along an axis."""
        value = self.of(a)
        at = np.repeat(np.arange(value.shape[axis]), times)
        return self.take(value, at, axis)

    def take(self, a: Any, indices: Any, axis: int) -> Value:
        """Return slices at indices along an axis."""
        value = self.of(a)
        key = (slice(None),) * (axis % value.ndim) + (self.of(indices),)
        return self.index(value, key)

    def detached(self, a: Any) -> Value:
        """Return a value through which no gradient flows."""
        return Value(self.of(a).draws)

    def cast(self, a: Any, dtype: np.dtype) -> Value:
        """Return the value in a dtype that is not floating, or as floating numbers of the tape."""
        value = self.of(a)
        if dtype.kind == "f":
            return self.floating(value)
        return self.tape.apply(lambda x: x.astype(dtype), [value], rounds=False)

    def rounded_to(self, a: Any, dtype: Any) -> Value:
        """Return a cast: not followed to a lower floating dtype, but disturbed as if it were."""
        name = dtype_name(dtype)
        if "float" not in name:
            return self.cast(a, np.dtype(name))
        value = self.floating(a)
        precision = PRECISIONS.get(name)
        rounds = precision is not None and precision.unit >= self.tape.precision.unit
        if not rounds:
            return value
        return self.tape.apply(lambda x: x, [value], lambda g, out, a: (g,))

    # --- helpers -------------------------------------------------------------------------------

    def axes(self, value: Value, axes: Axes) -> tuple[int, ...]:
        """Return axes as non-negative numbers; None and () are all."""
        if axes is None or (isinstance(axes, (tuple, list)) and not axes):
            return tuple(range(value.ndim))
        if isinstance(axes, Value):
            axes = tuple(int(a) for a in np.atleast_1d(axes.exact))
        if not isinstance(axes, (tuple, list)):
            axes = (axes,)
        return tuple(int(axis) % max(1, value.ndim) for axis in axes)

    def _to(self, left: Value | None, a: Value, b: Value, right: Value | None) -> Any:
        """Return the gradients of two operands that were broadcast."""
        return (
            self.summed_to(left, a.shape) if left is not None and a.floating else None,
            self.summed_to(right, b.shape) if right is not None and b.floating else None,
        )


def dtype_name(dtype: Any) -> str:
    """Return numpy's name for a dtype of numpy or MindSpore."""
    name = str(dtype).lower().rpartition(".")[2].strip("'<> ")
    return {"bool_": "bool", "int": "int64", "float": "float32"}.get(name, name)


def _kept(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _evenly(axes: tuple[int, ...]) -> Callable[..., np.ndarray]:
    """Return by which elements that equal an extreme share alike."""

    def shares(a: np.ndarray, out: np.ndarray) -> np.ndarray:
        same = (a == out.reshape(_kept(a.shape, axes))).astype(a.dtype)
        return same / np.maximum(np.sum(same, axis=axes, keepdims=True), 1)

    return shares


def _to_one(axes: tuple[int, ...], *, first: bool) -> Callable[..., np.ndarray]:
    """Return by which the first or last of those elements has all."""

    def shares(a: np.ndarray, out: np.ndarray) -> np.ndarray:
        same = a == out.reshape(_kept(a.shape, axes))
        others = [i for i in range(a.ndim) if i not in axes]
        order = [*others, *axes]
        rows = np.transpose(same, order).reshape(*(a.shape[i] for i in others), -1)
        counted = np.cumsum(rows if first else rows[..., ::-1], axis=-1)
        one = (counted == 1) & (rows if first else rows[..., ::-1])
        one = (one if first else one[..., ::-1]).reshape([a.shape[i] for i in order])
        return np.transpose(one, np.argsort(order)).astype(a.dtype)

    return shares


def _sigmoid(a: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(a))
    return np.where(a >= 0, 1 / (1 + small), small / (1 + small))


def erf(a: np.ndarray) -> np.ndarray:
    """Return the error function of each element."""
    try:
        # MindSpore depends on scipy.
        of_array: Any = importlib.import_module("scipy.special").erf
    except ImportError:
        of_array = np.vectorize(math.erf, otypes=[np.float64])
    return np.asarray(of_array(a), a.dtype) if a.size else a
