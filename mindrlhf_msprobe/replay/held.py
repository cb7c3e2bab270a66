"""A call is held while it runs, so that it can run again, and the training cannot tell.

What a call may depend on and change is noted before its first run: its arguments (`HeldArguments`),
and the process's random generators, the Python attributes of cells, and parameters that are written
(`State`); and while it runs, what its operators drew (`Drawn`). The second run begins with that,
and afterwards everything is as the first run left it (`HeldCall.second_run`). No gradient is
computed through the second run, unless it is handed on. What computes in it is its user's: kernels
on disturbed inputs or in a higher precision (`free_benchmark`), or formulas of float64
(`second_opinion`).
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindrlhf_msprobe.capture.cells import named_cells
from mindrlhf_msprobe.capture.framework import private
from mindrlhf_msprobe.capture.framework.hooks import unseen
from mindrlhf_msprobe.capture.opening.observer import (
    CallObserver,
    CellCall,
    ObservedCall,
    OperatorCall,
)
from mindrlhf_msprobe.capture.operators.interception import Handle, intercepted
from mindrlhf_msprobe.capture.operators.inventory import Operator
from mindrlhf_msprobe.capture.tensors.summary import to_host
from mindrlhf_msprobe.capture.tensors.tree import fields_of
from mindrlhf_msprobe.common.message import SpokenError
from mindrlhf_msprobe.replay.disturb import FORMATS, bits_of, values_of
from mindrlhf_msprobe.replay.precise.values import replaced
from mindrlhf_msprobe.storage.leaves import child_path

_ABSENT = object()
_CONTAINERS = (list, dict, set)


class _Attributes:
    """The Python attributes of one cell, and what its lists, dicts and sets hold, as they are now.

    What MindSpore keeps on every cell is left out.
    """

    def __init__(self, cell: nn.Cell) -> None:
        self._cell = cell
        self._values = {
            name: value for name, value in vars(cell).items() if not _is_of_every_cell(name)
        }
        self._held = {
            name: type(value)(value)
            for name, value in self._values.items()
            if type(value) in _CONTAINERS
        }

    def values(self) -> Iterator[Any]:
        """Yield the attributes, and what lists, dicts and sets among them hold."""
        yield from self._values.values()
        for held in self._held.values():
            yield from held.values() if isinstance(held, dict) else held

    def put_back(self) -> None:
        attributes = vars(self._cell)
        for name, value in self._values.items():
            if attributes.get(name, _ABSENT) is not value:
                attributes[name] = value
        for name in [*attributes]:
            if name not in self._values and not _is_of_every_cell(name):
                del attributes[name]
        for name, held in self._held.items():
            container = self._values[name]
            if isinstance(held, dict):
                same = all(container.get(key, _ABSENT) is value for key, value in held.items())
            elif isinstance(held, set):
                same = container == held
            else:
                same = all(a is b for a, b in zip(container, held))
            if not same or len(container) != len(held):
                container.clear()
                with suppress(AttributeError):
                    container.extend(held) if isinstance(held, list) else container.update(held)


def _is_of_every_cell(name: str) -> bool:
    return name in private.OF_EVERY_CELL or name.startswith(private.HOOK_PREFIX) or name[:2] == "__"


class State:
    """What a call may depend on and change beside its arguments, as it is now.

    Args:
        cell: what is called; None for an operator, which has the generators alone.
        by_formula: whether formulas answer operators in the second run: MindSpore draws nothing.
    """

    def __init__(self, cell: nn.Cell | None, *, by_formula: bool) -> None:
        self._cell, self._by_formula = cell, by_formula
        self._cells = [] if cell is None else [*named_cells(cell).values()]
        self._python: Any = random.getstate()
        self._numpy: Any = np.random.get_state()
        # MindSpore's generator takes as long as a small cell.
        self._mindspore: Any = None if by_formula else mindspore.get_rng_state().asnumpy().copy()
        self._attributes = [_Attributes(one) for one in self._cells]
        self._parameters: dict[int, tuple[Parameter, np.ndarray]] = {}

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor that is no parameter is an attribute of the cells."""
        return any(tensor is value for one in self._attributes for value in one.values())

    @property
    def trained(self) -> str:
        """The name of a parameter that was noted and is trained; "" if there is none."""
        kept = (parameter for parameter, _ in self._parameters.values())
        return next((str(p.name) for p in kept if p.requires_grad), "")

    def keep(self, parameter: Parameter) -> None:
        """Note the elements of a parameter that is about to be written."""
        if id(parameter) not in self._parameters and not getattr(parameter, "has_init", False):
            self._parameters[id(parameter)] = parameter, np.array(to_host(parameter).array)

    @contextmanager
    def again(self, *, differentiated: bool = False) -> Iterator[None]:
        """Let what runs inside begin as the first run did, and leave all as that one left it.

        Args:
            differentiated: whether gradients flow through the second run, because the training
                goes on with its result.
        """
        after = State(self._cell, by_formula=self._by_formula)
        for parameter, _ in self._parameters.values():
            after.keep(parameter)
        self._put_back()
        try:
            with ExitStack() as contexts:
                for cell in self._cells:  # one that takes itself for what is differentiated ends it
                    contexts.enter_context(private.not_on_top(cell))
                if not differentiated:
                    contexts.enter_context(private.no_gradients())
                yield
        except Exception as error:
            # MindSpore leaves the casts of cells with `to_float` on that an exception passes.
            trace = error.__traceback__
            while trace is not None:
                if trace.tb_frame.f_code is private.CASTING:
                    cell = trace.tb_frame.f_locals.get("self")
                    if getattr(cell, "mixed_precision_type", None) is not None:
                        private.close_cast()
                trace = trace.tb_next
            raise
        finally:
            after._put_back()

    def _put_back(self) -> None:
        """Let everything be as it was when this was made; what has not changed is not touched."""
        if random.getstate() != self._python:
            random.setstate(self._python)
        now: Any = np.random.get_state()
        if any(not np.array_equal(a, b) for a, b in zip(now, self._numpy)):
            np.random.set_state(self._numpy)
        drawn_of = None if self._mindspore is None else mindspore.get_rng_state().asnumpy()
        if drawn_of is not None and not np.array_equal(drawn_of, self._mindspore):
            mindspore.set_rng_state(Tensor(self._mindspore))
        for one in self._attributes:
            one.put_back()
        for parameter, elements in self._parameters.values():
            now = np.asarray(to_host(parameter).array)
            if now.shape != elements.shape or now.tobytes() != elements.tobytes():
                with private.no_gradients():  # in place: others may share its memory
                    ops.assign(parameter, tensor_of(elements, str(parameter.dtype)))


@dataclass(frozen=True)
class Drawn:
    """What an operator that draws random numbers was given and returned in the first run.

    Attributes:
        output: of a call that formulas answer, on the host.
    """

    operator: Operator
    args: tuple[Any, ...]
    output: Any


class DrawnAgain:
    """What a call drew, operator by operator, for its second run."""

    def __init__(self, drawn: Iterable[Drawn]) -> None:
        self._left = deque(drawn)

    def take(self, operator: Operator) -> Drawn | None:
        """Return what an operator drew the first time; None if another one drew then."""
        if not self._left or self._left[0].operator.full_name != operator.full_name:
            return None
        return self._left.popleft()


class HeldCall:
    """A call as it began, from which it can run again.

    Attributes:
        entry: its forward entry.
        call: what is called, with what.
        cell: None of an operator.
        drawn: what the operators drew that ran inside it.
        state: what it depends on beside its arguments; None of an operator that formulas answer,
            and of what has run again.
    """

    def __init__(self, entry: str, call: CellCall | OperatorCall, *, by_formula: bool) -> None:
        self.entry, self.call = entry, call
        self.cell = call.cell if isinstance(call, CellCall) else None
        self.drawn: list[Drawn] = []
        none = by_formula and self.cell is None
        self.state: State | None = None if none else State(self.cell, by_formula=by_formula)

    @contextmanager
    def second_run(self, answer: Handle, *, differentiated: bool = False) -> Iterator[None]:
        """Let a second run begin as the first one did, its operators answered by `answer`.

        Args:
            differentiated: as in `State.again`.
        """
        assert self.state is not None
        with (
            unseen(),
            self.state.again(differentiated=differentiated),
            intercepted(answer, network=self.cell),
        ):
            yield


class Repeating(CallObserver):
    """Holds calls while they run, and lets them run again when they have returned."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    @property
    def running(self) -> list[Any]:
        """The held calls that run in this thread, the outermost first."""
        calls: list[Any] = vars(self._of_thread).setdefault("calls", [])
        return calls

    def end(self, held: Any) -> None:
        """Take note that a call is running no longer, nor what it called."""
        while held in self.running:
            self.running.pop()

    def ended(self, call: CellCall | OperatorCall, held: Any, output: Any) -> Any:
        """Take what a call returned; return what its caller is given instead, or None: the same.

        Args:
            held: as which it was held; None: it was not.
        """
        raise NotImplementedError


class Running(ObservedCall):
    """A call that is running, whether it is held or not."""

    def __init__(self, repeating: Repeating, call: CellCall | OperatorCall, held: Any) -> None:
        self._repeating, self._call, self._held = repeating, call, held

    def ended(self, output: Any) -> Any:
        """Hand on what it returned."""
        return self._repeating.ended(self._call, self._held, output)

    def raised(self) -> None:
        """Forget it: there is nothing to compare with."""
        self._repeating.end(self._held)


def tensor_of(elements: np.ndarray, dtype: str) -> Tensor:
    """Return a new tensor of elements.

    Args:
        elements: of bfloat16 its uint16 bits.
        dtype: MindSpore's name, e.g. `Float32`.
    """
    if dtype == "BFloat16":
        return Tensor(values_of(elements, dtype), mindspore.bfloat16)
    return Tensor(np.array(elements))


#: What a call may be given and return that no second run changes.
PLAIN = (bool, int, float, complex, str, bytes, slice, type, Enum, np.generic, np.dtype)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)


class CannotRepeatError(SpokenError):
    """A call cannot run a second time; `said` says why."""


@contextmanager
def said_where_it_raises(said: Callable[[str], CannotRepeatError]) -> Iterator[None]:
    """Let what a second run raises be the reason why there was none.

    Args:
        said: makes the error of the type and text of what was raised.
    """
    try:
        yield
    except CannotRepeatError:
        raise
    except Exception as error:
        raise said(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class HeldTensor:
    """One tensor as it was when the call began.

    Attributes:
        number: which of the tensors among the arguments it is.
        path: where it lies, e.g. `input.0`.
        dtype, elements: MindSpore's name, and the elements; of floating ones their bits.
    """

    number: int
    path: str
    dtype: str
    elements: np.ndarray

    @property
    def floating(self) -> bool:
        """Whether it holds floating numbers."""
        return self.dtype in FORMATS

    def values(self) -> np.ndarray:
        """Return floating elements as numbers."""
        return values_of(self.elements, self.dtype)

    def tensor(self, bits: np.ndarray | None = None) -> Tensor:
        """Return a new tensor of it, or of other elements in its place."""
        elements = self.elements if bits is None else bits
        if self.floating and self.dtype != "BFloat16":
            elements = values_of(elements, self.dtype)
        return tensor_of(elements, self.dtype)


class HeldArguments:
    """What a call was given, on the host, where what it writes in place does not reach it.

    Raises:
        CannotRepeatError: there is an object among it that a second run could change.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.tensors: list[HeldTensor] = []
        self.parameters: list[Parameter] = []
        self._args = [self._hold(value, f"input.{i}") for i, value in enumerate(args)]
        self._kwargs = {name: self._hold(v, f"input.{name}") for name, v in kwargs.items()}

    def rebuilt(
        self, tensors: Mapping[int, Any] | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments of the same values, all tensors new.

        Args:
            tensors: number of a tensor → what stands in its place.
        """
        given = tensors or {}

        def made(leaf: Any) -> Any:
            if isinstance(leaf, HeldTensor):
                return given[leaf.number] if leaf.number in given else leaf.tensor()
            return np.array(leaf) if isinstance(leaf, np.ndarray) else leaf

        return tuple(replaced(self._args, made)), replaced(self._kwargs, made)

    def holds(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether arguments, which are those that are held, have not been written since."""
        now = HeldArguments(args, kwargs).tensors
        return len(now) == len(self.tensors) and all(
            a.elements.tobytes() == b.elements.tobytes() for a, b in zip(now, self.tensors)
        )

    def _hold(self, value: Any, path: str) -> Any:
        if isinstance(value, Parameter):
            self.parameters.append(value)
            return value
        if type(value) is Tensor:
            host = to_host(value)
            elements = np.array(host.array)
            if host.dtype in FORMATS:
                elements = bits_of(elements, host.dtype)
            self.tensors.append(HeldTensor(len(self.tensors), path, host.dtype, elements))
            return self.tensors[-1]
        if type(value) in (list, tuple):
            return type(value)(self._hold(v, child_path(path, i)) for i, v in enumerate(value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._hold(v, child_path(path, i)) for i, v in enumerate(value)))
        if type(value) is dict:
            return {key: self._hold(v, child_path(path, str(key))) for key, v in value.items()}
        if isinstance(value, np.ndarray):
            return np.array(value)
        if value is None or value is Ellipsis or isinstance(value, (*PLAIN, *_FUNCTIONS)):
            return value
        if type(value).__module__.startswith("mindspore._c_expression"):  # a dtype
            return value
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CannotRepeatError.saying("benchmark.object", path=path, kind=kind)


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) of what a call returned; what cannot be looked into has none."""
    if isinstance(value, Tensor):
        yield path, value
        return
    items = fields_of(value)
    if items is None:
        items = enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, item in items:
        yield from tensors_in(item, child_path(path, str(key)))
