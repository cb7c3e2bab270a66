"""Numbers that know how far rounding carries them, and what their gradients are.

A `Value` holds one array several times: computed exactly (in float64), and in further draws in
which every operation is disturbed as the rounding of a lower precision disturbs it. Each operation
knows its rounding and its gradient; shapes, axes and broadcasting are numpy's. Gradients are
computed by the same operations, so that rounding carries them, too.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mindrlhf_msprobe.replay.precise.tape import Tape

#: Takes the gradient of an output, the output and the operands; returns a gradient of each operand,
#: or None for one that has none.
Pull = Callable[..., Sequence["Value | None"]]
#: A number, an array, or a value.
Operand = Any
#: One axis, several, or None: all of them.
Axes = Any


class NoGradientError(Exception):
    """The gradient of an operator is not known."""


@dataclass(eq=False, slots=True)
class Value:
    """An array in several draws, the exact one first.

    Attributes:
        tape: the computation it is part of.
        draws: the arrays; one object several times where they do not differ.
        parents: what it was computed of, where gradients are wanted.
        pull: takes a gradient back to them.
    """

    tape: Tape = field(repr=False)
    draws: list[np.ndarray]
    parents: tuple[Value, ...] = field(default=(), repr=False)
    pull: Pull | None = field(default=None, repr=False)
    __array_ufunc__ = None

    @property
    def exact(self) -> np.ndarray:
        """The array without rounding."""
        return self.draws[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.exact.shape

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return self.exact.ndim

    @property
    def floating(self) -> bool:
        """Whether it may have a gradient."""
        return self.exact.dtype.kind in "fc"

    def floats(self) -> Value:
        """Return it as floating numbers."""
        if self.floating:
            return self
        return self.tape.apply(lambda a: a.astype(self.tape.dtype), [self], rounds=False)

    # --- arithmetic ----------------------------------------------------------------------------

    def __add__(self, other: Operand) -> Value:
        return self.tape.apply(np.add, _both(self, other), lambda g, out, a, b: _to(g, a, b, g))

    def __radd__(self, other: Operand) -> Value:
        return self.tape.of(other) + self

    def __sub__(self, other: Operand) -> Value:
        return self.tape.apply(
            np.subtract, _both(self, other), lambda g, out, a, b: _to(g, a, b, -g)
        )

    def __rsub__(self, other: Operand) -> Value:
        return self.tape.of(other) - self

    def __mul__(self, other: Operand) -> Value:
        def pull(g: Value, out: Value, a: Value, b: Value) -> Sequence[Value | None]:
            return _to(g * b if a.floating else None, a, b, g * a if b.floating else None)

        return self.tape.apply(np.multiply, _both(self, other), pull)

    def __rmul__(self, other: Operand) -> Value:
        return self.tape.of(other) * self

    def __truediv__(self, other: Operand) -> Value:
        def pull(g: Value, out: Value, a: Value, b: Value) -> Sequence[Value | None]:
            over = g / b
            return _to(over, a, b, -(over * out))

        return self.tape.apply(np.divide, (self.floats(), self.tape.of(other).floats()), pull)

    def __rtruediv__(self, other: Operand) -> Value:
        return self.tape.of(other) / self

    def __neg__(self) -> Value:
        return self.tape.apply(np.negative, [self], lambda g, out, a: (-g,), rounds=False)

    def __pow__(self, other: Operand) -> Value:
        a, b = _both(self, other)
        if not a.floating:
            return self.tape.apply(np.power, (a, b))

        def pull(g: Value, out: Value, a: Value, b: Value) -> Sequence[Value | None]:
            left = g * (b * a ** (b - 1))
            right = None
            if b.parents or b.ndim:
                right = g * (out * where(a.plain(np.greater, 0), a.maximum(1e-300).log(), 0.0))
            return _to(left, a, b, right)

        def scale(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
            exponent = np.abs(b * np.log(np.maximum(np.abs(a), 1e-300)))
            whole = np.all(b == np.round(b)) and np.all(np.abs(b) <= 8)
            return np.abs(out) * (np.abs(b) + 1 if whole else 1 + exponent)

        return self.tape.apply(np.power, (a, b), pull, scale=scale)

    def __rpow__(self, other: Operand) -> Value:
        return self.tape.of(other) ** self

    def __matmul__(self, other: Operand) -> Value:
        a, b = _both(self, other)
        if a.ndim == 1 and b.ndim == 1:
            return (a * b).sum()
        if a.ndim == 1:
            return (a.reshape((1, *a.shape)) @ b).squeeze((-2,))
        if b.ndim == 1:
            return (a @ b.reshape((*b.shape, 1))).squeeze((-1,))

        def pull(g: Value, out: Value, a: Value, b: Value) -> Sequence[Value | None]:
            left = g @ b.swap() if a.floating else None
            return _to(left, a, b, a.swap() @ g if b.floating else None)

        squares: list[np.ndarray] = []  # of the first draw: those of the others are as large

        def scale(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
            if not squares:
                squares.append(np.matmul(np.square(a), np.square(b)))
            return self.tape.summed_scale(out, squares[0], a.shape[-1])

        return self.tape.apply(np.matmul, (a, b), pull, scale=scale)

    def __rmatmul__(self, other: Operand) -> Value:
        return self.tape.of(other) @ self

    def maximum(self, other: Operand) -> Value:
        """Return the larger of each pair; equal ones share the gradient."""
        return self._choice(np.maximum, np.greater, other)

    def minimum(self, other: Operand) -> Value:
        """Return the smaller of each pair; equal ones share the gradient."""
        return self._choice(np.minimum, np.less, other)

    def _choice(self, function: Any, wins: Any, other: Operand) -> Value:
        name, dtype = self.tape.name, self.tape.dtype

        def always(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return (wins(x, y) | (x == y)).astype(dtype)

        def never(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return wins(x, y).astype(dtype)

        def pull(g: Value, out: Value, a: Value, b: Value) -> Sequence[Value | None]:
            of_a = share(name, [always, never], (a, b))
            return _to(g * of_a, a, b, g * (1.0 - of_a))

        return self.tape.apply(function, _both(self, other), pull, rounds=False)

    def plain(self, function: Callable[..., Any], *others: Operand) -> Value:
        """Return what a function without gradient gives: comparisons, indices."""
        operands = [self, *map(self.tape.of, others)]
        return self.tape.apply(function, operands, rounds=False)

    # --- functions of one operand --------------------------------------------------------------

    def elementwise(
        self,
        function: Callable[[np.ndarray], np.ndarray],
        slope: Callable[[Value, Value], Any],
        *,
        scale: Callable[..., np.ndarray] | None = None,
        rounds: bool = True,
    ) -> Value:
        """Return a function of each element.

        Args:
            slope: takes the operand and the result, returns the derivative.
        """
        return self.tape.apply(
            function,
            [self.floats()],
            lambda g, out, a: (g * slope(a, out),),
            scale=scale,
            rounds=rounds,
        )

    def exp(self) -> Value:
        """Return e to the power of each element: kernels err by up to 55 + 4·|a| roundings."""
        return self.elementwise(
            np.exp, lambda a, out: out, scale=lambda out, a: out * (8 + 0.5 * np.abs(a))
        )

    def expm1(self) -> Value:
        """Return e to the power of each element, less 1."""
        return self.elementwise(
            np.expm1,
            lambda a, out: out + 1.0,
            scale=lambda out, a: np.abs(out) * (1 + 0.25 * np.abs(a)),
        )

    def log(self) -> Value:
        """Return the natural logarithm of each element."""
        return self.elementwise(
            np.log, lambda a, out: 1.0 / a, scale=lambda out, a: np.abs(out) + 0.25
        )

    def sqrt(self) -> Value:
        """Return the square root of each element."""
        return self.elementwise(np.sqrt, lambda a, out: 0.5 / out)

    def square(self) -> Value:
        """Return the square of each element."""
        return self * self

    def tanh(self) -> Value:
        """Return the hyperbolic tangent of each element.

        Rational approximations of it err by up to 18 units of rounding at 3, and end at 5.
        """
        return self.elementwise(
            np.tanh,
            lambda a, out: 1.0 - out * out,
            scale=lambda out, a: np.abs(out) * np.where(np.abs(a) < 2.5, 2, 32),
        )

    def sigmoid(self) -> Value:
        """Return the logistic function of each element: it is made of an exponential."""

        def function(a: np.ndarray) -> np.ndarray:
            small = np.exp(-np.abs(a))
            return np.where(a >= 0, 1 / (1 + small), small / (1 + small))

        return self.elementwise(
            function,
            lambda a, out: out * (1.0 - out),
            scale=lambda out, a: out * (1 + (1 - out) * (3 + 0.25 * np.abs(a))),
        )

    def softplus(self) -> Value:
        """Return the logarithm of 1 + e to the power of each element."""
        sharp, rest = self.parts_of_softplus()
        return sharp + rest

    def parts_of_softplus(self) -> tuple[Value, Value]:
        """Return its sharp part, max(a, 0), and what rounds that off; both even out at 0."""
        sharp = self.elementwise(
            lambda a: np.maximum(a, 0),
            lambda a, out: a.plain(lambda a: np.heaviside(a, 0.5)),
            rounds=False,
        )

        def slope(a: Value, out: Value) -> Value:
            tail = a.plain(lambda a: -np.abs(a)).sigmoid()
            return a.plain(lambda a: -np.sign(a)) * tail

        rest = self.elementwise(
            lambda a: np.log1p(np.exp(-np.abs(a))),
            slope,
            scale=lambda out, a: out * (4 + 0.25 * np.abs(a)),
        )
        return sharp, rest

    def erf(self) -> Value:
        """Return the error function of each element."""
        slope = 2 / math.sqrt(math.pi)
        return self.elementwise(_erf, lambda a, out: slope * (-a.square()).exp())

    def absolute(self) -> Value:
        """Return the magnitude of each element; at 0 its slope may be anything between -1 and 1."""
        return self.bent(
            np.abs, lambda a: np.where(a > 0, 1.0, -1.0), lambda a: np.where(a < 0, -1.0, 1.0)
        )

    def bent(
        self,
        function: Callable[[np.ndarray], np.ndarray],
        *slopes: Callable[[np.ndarray], np.ndarray],
        rounds: bool = False,
    ) -> Value:
        """Return a function with bends, made of straight lines.

        Args:
            slopes: the derivative, which may be any between these at a bend.
        """
        name = self.tape.name
        return self.elementwise(function, lambda a, out: share(name, slopes, (a,)), rounds=rounds)

    # --- sums and extremes ---------------------------------------------------------------------

    def sum(self, axes: Axes = None, keepdims: bool = False) -> Value:
        """Return sums over axes; None: all."""
        over = self.axes(axes)

        def pull(g: Value, out: Value, a: Value) -> Sequence[Value | None]:
            whole = g if keepdims else g.reshape(_kept(a.shape, over))
            return (whole.broadcast(a.shape),)

        def scale(out: np.ndarray, a: np.ndarray) -> np.ndarray:
            return self.tape.added_up_scale(out, a, over) if over else np.zeros(out.shape)

        def total(a: np.ndarray) -> np.ndarray:
            return np.sum(a, axis=over, keepdims=keepdims) if over else a

        return self.tape.apply(total, [self], pull, scale=scale)

    def mean(self, axes: Axes = None, keepdims: bool = False) -> Value:
        """Return means over axes; None: all."""
        value = self.floats()
        count = math.prod(value.shape[axis] for axis in value.axes(axes))
        return value.sum(axes, keepdims) / float(count)

    def extreme(self, function: Any, axes: Axes = None, keepdims: bool = False) -> Value:
        """Return the largest (np.max) or smallest (np.min) over axes; equal ones share."""
        over, name = self.axes(axes), self.tape.name

        def pull(g: Value, out: Value, a: Value) -> Sequence[Value | None]:
            whole = g.reshape(_kept(a.shape, over))
            ways = [_evenly(over), _to_one(over, first=True), _to_one(over, first=False)]
            return (whole * share(name, ways, (a, out)),)

        return self.tape.apply(
            lambda a: function(a, axis=over, keepdims=keepdims), [self], pull, rounds=False
        )

    def cumsum(self, axis: int) -> Value:
        """Return running sums along an axis."""
        return self.tape.apply(
            lambda a: np.cumsum(a, axis=axis),
            [self],
            lambda g, out, a: (g.flip((axis,)).cumsum(axis).flip((axis,)),),
            scale=lambda out, a: np.sqrt(np.cumsum(np.square(out), axis=axis)),
        )

    # --- what only moves numbers ---------------------------------------------------------------

    def move(
        self, function: Callable[[np.ndarray], np.ndarray], back: Callable[[Value, Value], Value]
    ) -> Value:
        """Return what a function that moves elements gives; `back` moves a gradient back."""
        return self.tape.apply(function, [self], lambda g, out, a: (back(g, a),), rounds=False)

    def reshape(self, shape: Sequence[int]) -> Value:
        """Return the elements in another shape."""
        shape = tuple(shape)
        return self.move(lambda x: np.reshape(x, shape), lambda g, a: g.reshape(a.shape))

    def transpose(self, order: Sequence[int]) -> Value:
        """Return the axes in another order."""
        order = tuple(axis % self.ndim for axis in order)
        back = tuple(int(i) for i in np.argsort(order))
        return self.move(lambda x: np.transpose(x, order), lambda g, a: g.transpose(back))

    def swap(self, one: int = -1, other: int = -2) -> Value:
        """Return the array with two axes swapped."""
        return self.move(lambda x: np.swapaxes(x, one, other), lambda g, a: g.swap(one, other))

    def squeeze(self, axes: tuple[int, ...]) -> Value:
        """Return the array without axes of length 1."""
        gone = {axis % self.ndim for axis in axes}
        return self.reshape([n for i, n in enumerate(self.shape) if i not in gone])

    def broadcast(self, shape: Sequence[int]) -> Value:
        """Return the array repeated to a shape, as numpy broadcasts."""
        shape = tuple(shape)
        return self.move(lambda x: np.broadcast_to(x, shape), lambda g, a: g.summed_to(a.shape))

    def summed_to(self, shape: tuple[int, ...]) -> Value:
        """Return the array summed over the axes by which `shape` was broadcast to its own."""
        if self.shape == shape:
            return self
        more = self.ndim - len(shape)
        axes = [*range(more)]
        axes += [more + i for i, n in enumerate(shape) if n == 1 and self.shape[more + i] != 1]
        return self.sum(tuple(axes)).reshape(shape)

    def flip(self, axes: tuple[int, ...]) -> Value:
        """Return the array reversed along axes."""
        return self.move(lambda x: np.flip(x, axes), lambda g, a: g.flip(axes))

    def index(self, key: Any) -> Value:
        """Return self[key]; the key may hold values, slices, None and numbers."""
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

            def scale(out: np.ndarray, g: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
                squares = put(np.square(g), *arrays)
                times = np.max(put(np.ones(g.shape), *arrays), initial=1)
                return self.tape.summed_scale(out, squares, int(times))

            # Elements that were taken several times, by keys, are added up.
            summed = self.tape.apply(put, (g, *keys), scale=scale, rounds=bool(keys))
            return [summed, *[None] * len(keys)]

        return self.tape.apply(
            lambda x, *arrays: x[keyed(arrays)], (self, *operands), pull, rounds=False
        )

    def part(self, axis: int, of_axis: Any) -> Value:
        """Return the elements at an index, a slice or indices along one axis."""
        return self.index((slice(None),) * (axis % self.ndim) + (of_axis,))

    def along(self, indices: Operand, axis: int) -> Value:
        """Return the elements at indices along an axis, as numpy's take_along_axis."""
        indices, axis = self.tape.of(indices), axis % self.ndim
        grids = np.indices(indices.shape, sparse=True)
        return self.index(tuple(indices if i == axis else grids[i] for i in range(self.ndim)))

    def pad(self, widths: Sequence[tuple[int, int]], value: float = 0.0) -> Value:
        """Return the array with constant elements around it."""

        def back(g: Value, a: Value) -> Value:
            key = tuple(slice(before, before + n) for (before, _), n in zip(widths, a.shape))
            return g.index(key)

        return self.move(lambda x: np.pad(x, widths, constant_values=value), back)

    def repeat(self, times: int, axis: int) -> Value:
        """Return each element several times along an axis."""
        return self.take(np.repeat(np.arange(self.shape[axis]), times), axis)

    def take(self, indices: Operand, axis: int) -> Value:
        """Return slices at indices along an axis."""
        return self.part(axis, self.tape.of(indices))

    def detached(self) -> Value:
        """Return the value; no gradient flows through it."""
        return Value(self.tape, self.draws)

    def cast(self, dtype: np.dtype) -> Value:
        """Return the value in a dtype that is not floating, or as floating numbers of the tape."""
        if dtype.kind == "f":
            return self.floats()
        return self.tape.apply(lambda x: x.astype(dtype), [self], rounds=False)

    def rounded_to(self, dtype: Any) -> Value:
        """Return a cast: not followed to a lower floating dtype, but disturbed as if it were."""
        name = dtype_name(dtype)
        if "float" not in name:
            return self.cast(np.dtype(name))
        value = self.floats()
        if not self.tape.rounds_to(name):
            return value
        return self.tape.apply(lambda x: x, [value], lambda g, out, a: (g,))

    def axes(self, axes: Axes) -> tuple[int, ...]:
        """Return axes as non-negative numbers; None and () are all."""
        if axes is None or (isinstance(axes, (tuple, list)) and not axes):
            return tuple(range(self.ndim))
        if isinstance(axes, Value):
            axes = tuple(int(a) for a in np.atleast_1d(axes.exact))
        if not isinstance(axes, (tuple, list)):
            axes = (axes,)
        return tuple(int(axis) % max(1, self.ndim) for axis in axes)


def where(condition: Value, input: Operand, other: Operand) -> Value:
    """Return `input` where the condition holds, else `other`."""

    def pull(g: Value, out: Value, c: Value, a: Value, b: Value) -> Sequence[Value | None]:
        left, right = where(c, g, 0.0), where(c, 0.0, g)
        return [None, *_to(left, a, b, right)]

    def pick(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(c != 0, a, b)

    both = _both(condition.tape.of(input), other)
    return condition.tape.apply(pick, (condition, *both), pull, rounds=False)


def concatenate(values: Sequence[Value], axis: int) -> Value:
    """Return arrays one behind the other along an axis."""
    if any(value.floating for value in values):
        values = [value.floats() for value in values]

    def pull(g: Value, out: Value, *parts: Value) -> Sequence[Value | None]:
        ends = np.cumsum([part.shape[axis % g.ndim] for part in parts])
        pairs = zip((0, *ends[:-1]), ends)
        return [g.part(axis, slice(int(begin), int(end))) for begin, end in pairs]

    return values[0].tape.apply(
        lambda *arrays: np.concatenate(arrays, axis), values, pull, rounds=False
    )


def share(name: str, ways: Sequence[Callable[..., np.ndarray]], operands: Sequence[Value]) -> Value:
    """Return the factor of a gradient, where it is a matter of choice for equal operands.

    Args:
        name: of the operator.
        ways: of the operands, each a factor that may be chosen, as any mean of them may.
    """
    tape = operands[0].tape
    first = [way(*(operand.exact for operand in operands)) for way in ways]
    free = np.min(first, axis=0) != np.max(first, axis=0)
    if not np.any(free):
        return tape.apply(ways[0], operands, rounds=False)
    if tape.sharing is None:

        def scale(out: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
            return np.ptp([way(*arrays) for way in ways], axis=0) / 2 / tape.precision.unit

        return tape.apply(
            lambda *arrays: np.mean([way(*arrays) for way in ways], axis=0), operands, scale=scale
        )
    tape.sharing.met[name] = len(ways)
    tape.sharing.broken |= any(d is not o.exact for o in operands for d in o.draws)
    weights = tape.sharing.weights.get(name, [1 / len(ways)] * len(ways))
    chosen = sum(weight * one for weight, one in zip(weights, first))
    return tape.apply(
        lambda *arrays: np.where(free, chosen, ways[0](*arrays)), operands, rounds=False
    )


def dtype_name(dtype: Any) -> str:
    """Return numpy's name for a dtype of numpy or MindSpore."""
    name = str(dtype).lower().rpartition(".")[2].strip("'<> ")
    return {"bool_": "bool", "int": "int64", "float": "float32"}.get(name, name)


def _both(a: Value, b: Operand) -> tuple[Value, Value]:
    """Return two operands as values: both of floating numbers, or neither."""
    b = a.tape.of(b)
    return (a, b) if a.floating == b.floating else (a.floats(), b.floats())


def _to(left: Value | None, a: Value, b: Value, right: Value | None) -> list[Value | None]:
    """Return the gradients of two operands that were broadcast."""
    return [
        left.summed_to(a.shape) if left is not None and a.floating else None,
        right.summed_to(b.shape) if right is not None and b.floating else None,
    ]


def _kept(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def _evenly(axes: tuple[int, ...]) -> Callable[..., np.ndarray]:
    """Return by which elements that equal an extreme share it evenly."""

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


def _erf(a: np.ndarray) -> np.ndarray:
    try:
        # MindSpore depends on scipy.
        of_array: Any = importlib.import_module("scipy.special").erf
    except ImportError:
        of_array = np.vectorize(math.erf, otypes=[np.float64])
    return np.asarray(of_array(a), a.dtype) if a.size else a


# --- what calls are given and return -------------------------------------------------------------


def leaves_of(value: Any) -> list[Any]:
    """Return what stands in tuples, lists and dicts, in order; one value where it is one."""
    if isinstance(value, Mapping):
        return [leaf for item in value.values() for leaf in leaves_of(item)]
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in leaves_of(item)]
    return [value]


def replaced(value: Any, of_leaf: Callable[[Any], Any]) -> Any:
    """Return a structure with each leaf in its tuples, lists and dicts replaced, in order."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(replaced(item, of_leaf) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(replaced(item, of_leaf) for item in value)
    if type(value) is dict:
        return {key: replaced(item, of_leaf) for key, item in value.items()}
    return of_leaf(value)
