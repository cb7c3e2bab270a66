"""Operators that are held where no recording looks: in containers, closures, classes, defaults.

They cannot be replaced there without a program noticing, so that they are named instead.
"""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.capture.networks.cells import named_cells
from mindrlhf_msprobe.capture.operators.inventory import Operator

_MOST_ITEMS = 256  # of a container that are looked at
_MOST_NESTED = 3

#: Returns the operator that a value is, or None.
OperatorOf = Callable[[Any], "Operator | None"]
#: Where an operator is held, as Python writes it, and its name.
Held = tuple[str, str]


class HeldOperators:
    """Finds what modules and networks hold; each is looked through once.

    Args:
        operator_of: tells which values are operators.
        counts: tells by a module's name whether its calls are recorded.
    """

    def __init__(self, operator_of: OperatorOf, counts: Callable[[str], bool]) -> None:
        self._operator_of, self._counts = operator_of, counts
        self._modules: weakref.WeakSet[ModuleType] = weakref.WeakSet()
        self._networks: weakref.WeakKeyDictionary[nn.Cell, list[Held]] = weakref.WeakKeyDictionary()
        self._found: list[Held] = []
        self._seen = 0, ""  # modules, and the last, when they were looked through

    def of(self, network: nn.Cell) -> list[Held]:
        """Return what modules that use MindSpore hold, and what the cells of a network do."""
        seen, self._seen = self._seen, (len(sys.modules), next(reversed(sys.modules)))
        known = sys.modules if seen != self._seen else {}
        for name, module in [*known.items()]:
            if isinstance(module, ModuleType) and module not in self._modules:
                self._modules.add(module)
                if self._counts(name) and _uses_mindspore(module):
                    self._found += self._of_module(name, module)
        if network not in self._networks:
            self._networks[network] = [*self._of_network(network)]
        return [*self._found, *self._networks[network]]

    def _of_module(self, name: str, module: ModuleType) -> Iterator[Held]:
        for attribute, value in [*vars(module).items()]:
            if isinstance(value, (FunctionType, type)) and value.__module__ != name:
                continue  # imported: it is looked at where it was made
            if isinstance(value, type):
                yield from self._of_class(f"{name}.{attribute}", value)
            elif self._operator_of(value) is None:  # else it is recorded
                yield from self._in(value, f"{name}.{attribute}", 0)

    def _of_class(self, where: str, kind: type) -> Iterator[Held]:
        for attribute, value in [*vars(kind).items()]:
            yield from self._in(value, f"{where}.{attribute}", 0)

    def _of_network(self, network: nn.Cell) -> Iterator[Held]:
        for name, cell in named_cells(network).items():
            for attribute, value in [*vars(cell).items()]:
                if self._operator_of(value) is None:  # else it is recorded
                    yield from self._in(value, f"{name}.{attribute}", 0)

    def _in(self, value: Any, where: str, depth: int) -> Iterator[Held]:
        """Yield the operators that a value is or holds."""
        operator = self._operator_of(value)
        if operator is not None:
            yield where, operator.full_name
        elif depth < _MOST_NESTED:
            for place, inside in itertools.islice(_held_by(value), _MOST_ITEMS):
                yield from self._in(inside, f"{where}{place}", depth + 1)


def _held_by(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value holds, and where."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in value.items() if isinstance(key, str))
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, functools.partial):
        yield "", value.func
    elif isinstance(value, (staticmethod, classmethod)):
        yield "", value.__func__
    elif type(value) is FunctionType:
        yield from _held_by_function(value)


def _held_by_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the defaults of a function, and what it took from the functions around it."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    for name, value in zip(names[len(names) - len(defaults) :], defaults):
        yield f"({name}=…)", value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f"({name}=…)", value
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            yield f": {name}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue


def _uses_mindspore(module: ModuleType) -> bool:
    """Return whether a module refers to anything of MindSpore."""
    for value in [*vars(module).values()]:
        home = value.__name__ if isinstance(value, ModuleType) else _home(value)
        if isinstance(home, str) and home.partition(".")[0] == "mindspore":
            return True
    return False


def _home(value: Any) -> Any:
    is_code = isinstance(value, (type, FunctionType)) or callable(value)
    return getattr(value, "__module__", None) if is_code else type(value).__module__
