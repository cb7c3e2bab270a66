"""Operators that have no formula, computed by kernels of float64 in a process of their own.

It (`kernel_process`) is started when it is needed first. What an operator gives, and its gradients,
are computed there.
"""

from __future__ import annotations

import atexit
import inspect
import os
import select
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from mindrlhf_msprobe.common.processes import receive, send, start_fresh
from mindrlhf_msprobe.replay.precise.tape import PRECISIONS, Tape
from mindrlhf_msprobe.replay.precise.values import NoGradientError, Value, dtype_name, replaced

if TYPE_CHECKING:
    import subprocess

    from mindrlhf_msprobe.capture.operators.inventory import Operator


_MODULE = "mindrlhf_msprobe.replay.kernel_process"
#: Seconds after which a process is given up: the first answer waits for MindSpore's import.
_PATIENCE = 120.0
_DTYPES = {*PRECISIONS, "bool", "int8", "int16", "int32", "int64", "uint8"}
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class NamedDtype:
    """A dtype among the arguments of an operator, by its name."""

    name: str


@dataclass(frozen=True)
class KernelCall:
    """One operator on several sets of the same arguments.

    Attributes:
        operator: its name in the installed list.
        attributes: of a primitive, what it is made with.
        args, kwargs: what it is called with, arrays in the place of tensors.
        draws: for each computation the arrays, in the order in which they stand in the arguments.
        arriving: for each computation the gradient that arrives at one output; none: the outputs
            are wanted.
        output: of which output.
    """

    operator: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    draws: tuple[tuple[np.ndarray, ...], ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    arriving: tuple[np.ndarray, ...] = ()
    output: int = 0


@dataclass(frozen=True)
class KernelResults:
    """What kernels gave.

    Attributes:
        results: for each computation an array for each output, or for each array that was given a
            gradient, None for one that has none.
        several: whether the operator returns a tuple.
    """

    results: tuple[tuple[np.ndarray | None, ...], ...] = ()
    several: bool = False


class NoAnswerError(Exception):
    """No kernel of float64 answers a call; why, for those who develop."""


class KernelProcess:
    """The process, with what it refused."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._to: BinaryIO | None = None
        self._from: BinaryIO | None = None
        self._starts_left = 4  # again where an operator has ended it
        self._fatal: set[str] = set()

    def compute(self, call: KernelCall) -> KernelResults:
        """Return what kernels give.

        Raises:
            NoAnswerError: there is none, or the process cannot be.
        """
        with self._lock:
            if call.operator in self._fatal:
                raise NoAnswerError(call.operator)
            try:
                said = self._answer_to(call)
            except (OSError, EOFError, ValueError) as error:  # it has ended: another one is next
                self._fatal.add(call.operator)
                self._end()
                raise NoAnswerError(call.operator) from error
        if isinstance(said, NoAnswerError):
            raise said
        return said

    def _answer_to(self, call: KernelCall) -> KernelResults | NoAnswerError:
        if self._process is None or self._pid != os.getpid():
            self._start()
        assert self._to is not None
        assert self._from is not None
        send(self._to, call)
        waiting = select.poll()
        waiting.register(self._from, select.POLLIN)
        if not waiting.poll(_PATIENCE * 1000):
            raise EOFError
        said: KernelResults | NoAnswerError = receive(self._from)
        return said

    def _start(self) -> None:
        if not self._starts_left:
            raise EOFError
        self._starts_left -= 1
        there, to = os.pipe()
        back, here = os.pipe()
        self._to, self._from = os.fdopen(to, "wb"), os.fdopen(back, "rb")
        try:
            self._process, self._pid = start_fresh(_MODULE, (there, here)), os.getpid()
        finally:
            os.close(there)
            os.close(here)
        atexit.register(self.end)

    def end(self) -> None:
        """End the process; another one is started when it is needed."""
        with self._lock:
            self._end()
        atexit.unregister(self.end)

    def _end(self) -> None:
        for pipe in (self._to, self._from):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        if self._process is not None and self._pid == os.getpid():
            self._process.kill()
            self._process.wait()
        self._process = self._to = self._from = None


#: The one of this process.
KERNELS = KernelProcess()


def attributes_of(primitive: Any) -> dict[str, Any]:
    """Return what a primitive was made with.

    Raises:
        NoAnswerError: that cannot be told: some are held as other values than they were given as.
    """
    parameters = [*inspect.signature(type(primitive).__init__).parameters.values()][1:]
    raw, held = primitive.init_attrs, primitive.attrs
    found = {}
    for one in parameters:
        value = raw.get(one.name, held.get(one.name, one.empty))
        known = one.name in raw or not isinstance(one.default, str)
        if not known or not _is_plain(value):
            raise NoAnswerError(one.name)
        found[one.name] = value
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def by_kernel(
    tape: Tape,
    operator: Operator,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    settings: Any = None,
) -> Any:
    """Return what an operator computes of values, by the installed kernel of float64.

    What rounding does on its way is not known: its inputs and its result are disturbed by one
    rounding each.

    Args:
        settings: of a primitive: the primitive.

    Raises:
        NoAnswerError: there is no such kernel.
    """
    operands: list[Value] = []

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, Value):
            operands.append(leaf)
            return leaf.exact
        if isinstance(leaf, _PLAIN):
            return leaf
        name = dtype_name(leaf)
        if name not in _DTYPES:
            raise NoAnswerError(type(leaf).__name__)
        return NamedDtype(name)

    given, named = replaced(tuple(args), plain), replaced(dict(kwargs), plain)
    attributes = {} if settings is None else attributes_of(settings)
    draws = _disturbed(tape, operands)
    call = KernelCall(operator.full_name, given, named, draws, attributes)
    answer = KERNELS.compute(call)
    values = [
        _output(tape, call, number, [result[number] for result in answer.results], operands)
        for number in range(len(answer.results[0]))
    ]
    return tuple(values) if answer.several else values[0]


def _output(
    tape: Tape, call: KernelCall, number: int, arrays: Sequence[Any], operands: Sequence[Value]
) -> Value:
    """Return one output, whose gradients are computed when they are needed."""

    def pull(g: Value, out: Value, *parents: Value) -> list[Value | None]:
        last = len(g.draws) - 1
        arriving = tuple(
            np.asarray(g.draws[min(i, last)], np.float64) for i in range(len(call.draws))
        )
        try:
            found = KERNELS.compute(replace(call, arriving=arriving, output=number))
        except NoAnswerError:
            raise NoGradientError(call.operator) from None
        known = [[one for one in of_draws if one is not None] for of_draws in zip(*found.results)]
        return [_rounded(tape, arrays) if arrays else None for arrays in known]

    return tape.made_of(_rounded(tape, [*map(np.asarray, arrays)]), operands, pull)


def _rounded(tape: Tape, arrays: Sequence[np.ndarray]) -> Value:
    """Return a value of its draws, each but the exact one disturbed by one rounding."""
    exact = arrays[0]
    if exact.dtype.kind != "f":
        return Value(tape, [*arrays])
    scales = [np.where(np.isfinite(a), np.abs(a), 0) for a in arrays[1:]]
    return Value(tape, [exact, *tape.disturbed(arrays[1:], scales)])


def _disturbed(tape: Tape, operands: Sequence[Value]) -> tuple[tuple[np.ndarray, ...], ...]:
    """Return the arrays of each draw, those but the exact ones disturbed by one rounding."""
    found = []
    for number in range(tape.draws + 1):
        arrays = [np.ascontiguousarray(operand.draws[number]) for operand in operands]
        arrays = [a.reshape(operand.shape) for a, operand in zip(arrays, operands)]
        if number:
            scales = [np.abs(a) * (a.dtype.kind == "f") for a in arrays]
            moved = tape.disturbed(arrays, scales)
            arrays = [m if a.dtype.kind == "f" else a for a, m in zip(arrays, moved)]
        else:
            arrays = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
        found.append(tuple(np.asarray(a) for a in arrays))
    return tuple(found)
