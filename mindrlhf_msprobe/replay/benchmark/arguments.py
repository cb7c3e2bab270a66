"""The arguments of a call, held on the host, where what it writes in place does not reach them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor

from mindrlhf_msprobe.capture.tensors.summary import to_host
from mindrlhf_msprobe.capture.tensors.tree import fields_of
from mindrlhf_msprobe.common.message import SpokenError, message
from mindrlhf_msprobe.replay.benchmark.disturb import FORMATS, bits_of, values_of
from mindrlhf_msprobe.replay.benchmark.state import tensor_of
from mindrlhf_msprobe.storage.leaves import child_path

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
    """What a call was given.

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
