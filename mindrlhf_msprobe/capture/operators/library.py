"""Functions of MindSpore's own modules in whose place a program put others.

MindSpore's layers call functions that are no operators, such as `linear` of
`mindspore.ops.function.nn_func`: what replaces them is no entry.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

#: The modules in which layers and operators are written in Python.
_MODULES = (
    *("mindspore.ops.function.", "mindspore.ops.composite.", "mindspore.nn.layer."),
    *("mindspore.nn.loss.", "mindspore.mint.nn.layer."),
)


@dataclass(frozen=True)
class Replaced:
    """A function of MindSpore that a program replaced.

    Attributes:
        module, name: where it is.
        function: what stands there now.
        by: the module and name of that.
    """

    module: ModuleType
    name: str
    function: FunctionType
    by: str

    @property
    def full_name(self) -> str:
        """The name of its module, and its own."""
        return f"{self.module.__name__}.{self.name}"


class LibraryFunctions:
    """Finds what is replaced; a module is looked through again when a name in it has changed.

    Args:
        not_mindspores: returns the module and name of a function that is not MindSpore's, or "".
        original_of: returns what a function of ours stands in for.
    """

    def __init__(
        self, not_mindspores: Callable[[Any], str], original_of: Callable[[Any], Any]
    ) -> None:
        self._not_mindspores, self._original_of = not_mindspores, original_of
        self._loaded, self._modules = 0, list[tuple[str, ModuleType]]()
        self._seen: dict[str, tuple[int, ...]] = {}
        self._found: dict[str, list[Replaced]] = {}

    def replaced(self) -> Iterator[Replaced]:
        """Yield what is replaced now."""
        if len(sys.modules) != self._loaded:
            self._loaded, loaded = len(sys.modules), [*sys.modules.items()]
            self._modules = [(n, m) for n, m in loaded if n.startswith(_MODULES)]
        for name, module in self._modules:
            ids = tuple(map(id, vars(module).values()))
            if self._seen.get(name) != ids:
                self._seen[name] = ids
                self._found[name] = [*self._in(module)]
            yield from self._found[name]

    def _in(self, module: ModuleType) -> Iterator[Replaced]:
        for name, value in [*vars(module).items()]:
            function = value
            while (inside := self._original_of(function)) is not function:
                function = inside
            if type(function) is not FunctionType or _is_of_python(function):
                continue
            if by := self._not_mindspores(function):
                yield Replaced(module, name, function, by)


def _is_of_python(function: FunctionType) -> bool:
    """Return whether a function is of Python's own library, such as `functools.wraps`."""
    return f"{function.__module__}".partition(".")[0] in sys.stdlib_module_names
