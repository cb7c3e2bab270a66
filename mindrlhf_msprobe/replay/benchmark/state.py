"""A cell or an operator runs a second time, and the training cannot tell.

What a computation may depend on and change is noted before its first run (`State`). The second run
begins with that, and afterwards everything is as the first run left it: the process's random
generators, parameters that it writes (moving averages, counters, caches), and the Python attributes
of cells (`PythonState`). No gradient is computed through the second run, unless it is handed on.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, TracebackType
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindrlhf_msprobe.capture.cells import named_cells
from mindrlhf_msprobe.capture.framework.private import (
    CASTING,
    HOOK_PREFIX,
    OF_EVERY_CELL,
    close_cast,
    no_gradients,
    not_on_top,
)
from mindrlhf_msprobe.capture.tensors.summary import to_host
from mindrlhf_msprobe.capture.tensors.tree import fields_of
from mindrlhf_msprobe.common.message import SpokenError, message
from mindrlhf_msprobe.replay.benchmark.disturb import FORMATS, bits_of, values_of
from mindrlhf_msprobe.storage.leaves import child_path

_ABSENT = object()
_CONTAINERS = (list, dict, set)


class PythonState:
    """The attributes of cells, and what lists, dicts and sets among them hold, as they are now.

    What MindSpore keeps on every cell is left out.
    """

    def __init__(self, cells: Iterable[nn.Cell]) -> None:
        self._cells = [*cells]
        self._kept = [_OfCell(cell) for cell in self._cells]

    def values(self) -> Iterator[Any]:
        """Yield the attributes, and what lists, dicts and sets among them hold."""
        for kept in self._kept:
            yield from kept.values()

    def now(self) -> PythonState:
        """Return those of the same cells at this moment."""
        return PythonState(self._cells)

    def put_back(self) -> None:
        """Let them be as they were when this was made; what has not changed is not touched."""
        for kept in self._kept:
            kept.put_back()

    @contextmanager
    def as_they_were(self) -> Iterator[None]:
        """Let them be as they were for a while, and then as they are now."""
        after = self.now()
        self.put_back()
        try:
            yield
        finally:
            after.put_back()


class _OfCell:
    """The Python attributes of one cell, and what its lists, dicts and sets hold."""

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
            if not _same_items(container, held):
                container.clear()
                with suppress(AttributeError):
                    container.extend(held) if isinstance(held, list) else container.update(held)


def _is_of_every_cell(name: str) -> bool:
    return name in OF_EVERY_CELL or name.startswith(HOOK_PREFIX) or name[:2] == "__"


def _same_items(container: Any, held: Any) -> bool:
    """Return whether a container holds the very same objects."""
    if len(container) != len(held):
        return False
    if isinstance(held, dict):
        return all(container.get(name, _ABSENT) is value for name, value in held.items())
    if isinstance(held, set):
        return bool(container == held)
    return all(a is b for a, b in zip(container, held))


class State:
    """What a cell's computation may depend on and change, as it is now.

    Args:
        cell: None for an operator, which has the generators alone.
    """

    def __init__(self, cell: nn.Cell | None) -> None:
        self._generators = _Generators()
        self._cells = [*named_cells(cell).values()] if cell is not None else []
        self._attributes = PythonState(self._cells)
        self._parameters: dict[int, tuple[Parameter, np.ndarray]] = {}

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor that is no parameter is an attribute of the cells."""
        return any(tensor is value for value in self._attributes.values())

    @property
    def trained(self) -> str:
        """The name of a parameter among those that were noted that is trained; "" of none."""
        kept = (parameter for parameter, _ in self._parameters.values())
        return next((str(p.name) for p in kept if p.requires_grad), "")

    def keep(self, parameter: Parameter) -> None:
        """Note the elements of a parameter that is about to be written."""
        if id(parameter) not in self._parameters and not getattr(parameter, "has_init", False):
            self._parameters[id(parameter)] = parameter, np.array(to_host(parameter).array)

    def now(self) -> State:
        """Return the same of this moment."""
        state = State(None)
        state._cells = self._cells
        state._attributes = self._attributes.now()
        for parameter, _ in self._parameters.values():
            state.keep(parameter)
        return state

    @contextmanager
    def none_on_top(self) -> Iterator[None]:
        """Let no cell take itself for the one that is differentiated: it would end that."""
        with ExitStack() as ends:
            for cell in self._cells:
                ends.enter_context(not_on_top(cell))
            yield

    def put_back(self) -> None:
        """Let everything be as it was when this was made; what has not changed is not touched."""
        self._generators.put_back()
        self._attributes.put_back()
        for parameter, elements in self._parameters.values():
            now = np.asarray(to_host(parameter).array)
            if now.shape != elements.shape or now.tobytes() != elements.tobytes():
                with no_gradients():  # in place: others may share its memory
                    ops.assign(parameter, tensor_of(elements, str(parameter.dtype)))


@contextmanager
def once_more(before: State, *, differentiated: bool = False) -> Iterator[None]:
    """Let what runs inside begin as the first run did, and leave everything as that one left it.

    Args:
        before: as it was before the first run.
        differentiated: whether gradients flow through the second run, because the training goes on
            with its result.
    """
    after = before.now()
    before.put_back()
    try:
        with before.none_on_top(), nullcontext() if differentiated else no_gradients():
            yield
    except Exception as error:
        _end_casts(error.__traceback__)
        raise
    finally:
        after.put_back()


def tensor_of(elements: np.ndarray, dtype: str) -> Tensor:
    """Return a new tensor of elements.

    Args:
        elements: of bfloat16 its uint16 bits.
        dtype: MindSpore's name, e.g. `Float32`.
    """
    if dtype == "BFloat16":
        from mindrlhf_msprobe.replay.benchmark.disturb import values_of

        return Tensor(values_of(elements, dtype), mindspore.bfloat16)
    return Tensor(np.array(elements))


def _end_casts(trace: TracebackType | None) -> None:
    """End the casts of cells with `to_float` that an exception passed: MindSpore leaves them on."""
    while trace is not None:
        if trace.tb_frame.f_code is CASTING:
            cell = trace.tb_frame.f_locals.get("self")
            if getattr(cell, "mixed_precision_type", None) is not None:
                close_cast()
        trace = trace.tb_next


class _Generators:
    """The states of the process's random generators."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy: Any = np.random.get_state()
        self._mindspore = mindspore.get_rng_state().asnumpy().copy()

    def put_back(self) -> None:
        if random.getstate() != self._python:
            random.setstate(self._python)
        now: Any = np.random.get_state()
        if any(not np.array_equal(a, b) for a, b in zip(now, self._numpy)):
            np.random.set_state(self._numpy)
        if not np.array_equal(mindspore.get_rng_state().asnumpy(), self._mindspore):
            mindspore.set_rng_state(Tensor(self._mindspore))


_PLAIN = (bool, int, float, complex, str, bytes, slice, type, Enum, np.generic, np.dtype)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)


class CannotRepeatError(SpokenError):
    """A call cannot run a second time; `said` says why."""


@dataclasses.dataclass(frozen=True)
class HeldTensor:
    """One tensor as it was when the call began.

    Attributes:
        path: where it lies, e.g. `input.0`.
        dtype, elements: MindSpore's name, and the elements; of floating ones their bits.
    """

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

        def tensor(number: int) -> Any:
            return given[number] if number in given else self.tensors[number].tensor()

        args = tuple(_replaced(value, tensor) for value in self._args)
        return args, {name: _replaced(value, tensor) for name, value in self._kwargs.items()}

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
            return self._hold_tensor(value, path)
        if type(value) in (list, tuple):
            return type(value)(self._hold(v, child_path(path, i)) for i, v in enumerate(value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._hold(v, child_path(path, i)) for i, v in enumerate(value)))
        if type(value) is dict:
            return {key: self._hold(v, child_path(path, str(key))) for key, v in value.items()}
        if isinstance(value, np.ndarray):
            return np.array(value)
        if value is None or value is Ellipsis or isinstance(value, (*_PLAIN, *_FUNCTIONS)):
            return value
        if type(value).__module__.startswith("mindspore._c_expression"):  # a dtype
            return value
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CannotRepeatError(message("benchmark.object", path=path, kind=kind))

    def _hold_tensor(self, tensor: Tensor, path: str) -> _Slot:
        host = to_host(tensor)
        elements = np.array(host.array)
        if host.dtype in FORMATS:
            elements = bits_of(elements, host.dtype)
        self.tensors.append(HeldTensor(path, host.dtype, elements))
        return _Slot(len(self.tensors) - 1)


@dataclasses.dataclass(frozen=True)
class _Slot:
    """Stands in the place of a tensor."""

    number: int


def _replaced(value: Any, tensor: Callable[[int], Any]) -> Any:
    if isinstance(value, _Slot):
        return tensor(value.number)
    if type(value) in (list, tuple):
        return type(value)(_replaced(item, tensor) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_replaced(item, tensor) for item in value))
    if type(value) is dict:
        return {key: _replaced(item, tensor) for key, item in value.items()}
    return np.array(value) if isinstance(value, np.ndarray) else value


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


def with_tensors(value: Any, take: Callable[[Tensor], Any]) -> Any:
    """Return what a call returned with something else in the place of each tensor.

    Raises:
        CannotRepeatError: there is a structure in it that cannot be made anew.
    """
    if isinstance(value, Tensor):
        return take(value)
    if type(value) in (list, tuple):
        return type(value)(with_tensors(item, take) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(with_tensors(item, take) for item in value))
    if type(value) is dict:
        return {key: with_tensors(item, take) for key, item in value.items()}
    if value is None or isinstance(value, _PLAIN):
        return value
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise CannotRepeatError(message("benchmark.output_object", kind=kind))
