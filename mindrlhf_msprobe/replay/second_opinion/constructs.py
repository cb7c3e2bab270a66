"""What a cell computes, as its library defined it: not what was put in its place since."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable
from os.path import dirname
from types import FunctionType, ModuleType
from typing import Any

from mindspore import nn

#: Libraries whose layers are asked for their definition.
_LIBRARIES = ("mindspore.", "mindformers.")
#: Those of which an object's own `construct`, beside its class, is no definition either.
_LAYERS = ("mindspore.",)


def defined_construct(cell: nn.Cell) -> Callable[..., Any]:
    """Return the construct of a cell.

    Of a layer of MindSpore or MindFormers it is the one that the source of its class has, also
    where the class has another one by now; of other cells what they have.
    """
    own = vars(cell).get("construct")
    kind = next((k for k in type(cell).__mro__ if "construct" in vars(k)), None)
    if kind is None or not kind.__module__.startswith(_LIBRARIES):
        return cell.construct
    if own is not None and not kind.__module__.startswith(_LAYERS):
        return cell.construct
    found: Callable[..., Any] = _as_defined(kind, vars(kind)["construct"]).__get__(cell)
    return found


@functools.lru_cache(maxsize=1024)
def defined_function(module: ModuleType, name: str) -> Callable[..., Any] | None:
    """Return the function that the source of a module of MindSpore has under a name.

    None where that cannot be told.
    """
    try:
        with open(f"{module.__file__}", encoding="utf-8") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return None
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    if len(found) == 1 and not found[0].decorator_list:
        made: dict[str, Any] = {}
        code = compile(ast.Module([*found], []), f"{module.__file__}", "exec")
        exec(code, vars(module), made)
        function: Callable[..., Any] = made[name]
        return function
    for node in (n for n in tree.body if isinstance(n, ast.ImportFrom) and not n.level):
        for alias in node.names:
            if (alias.asname or alias.name) == name:
                return _of_mindspore(sys.modules.get(f"{node.module}"), alias.name)
    return None


def _of_mindspore(module: ModuleType | None, name: str) -> Callable[..., Any] | None:
    """Return what a module has under a name, where that is MindSpore's own."""
    found = None if module is None else vars(module).get(name)
    code = getattr(found, "__code__", None)
    file = "" if module is None else f"{sys.modules['mindspore'].__file__}"
    return found if code is not None and code.co_filename.startswith(dirname(file)) else None


def has_librarys_bprop(cell: nn.Cell) -> bool:
    """Return whether a layer of a library says itself what its gradients are.

    They may be no gradients of its construct: what they leave out, the library puts elsewhere.
    """
    kind = next((k for k in type(cell).__mro__ if "bprop" in vars(k)), nn.Cell)
    return kind is not nn.Cell and kind.__module__.startswith(_LIBRARIES)


@functools.lru_cache(maxsize=1024)
def _as_defined(kind: type, found: Any) -> Any:
    """Return the construct in the source of a class; what is found where that cannot be told."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if module is None or file is None or _is_from(found, file, kind):
        return found
    try:
        with open(file, encoding="utf-8") as source:
            defined = _definition(ast.parse(source.read()), kind.__qualname__)
        if defined is None or defined.decorator_list:
            return found
        return _made(defined, kind, file, vars(module))
    except (OSError, SyntaxError, ValueError, NameError):
        return found


def _is_from(function: Any, file: str, kind: type) -> bool:
    if not isinstance(function, FunctionType):
        return False
    named = function.__qualname__ == f"{kind.__qualname__}.construct"
    return named and function.__code__.co_filename == file


def _definition(tree: ast.Module, qualname: str) -> ast.FunctionDef | None:
    body: list[ast.stmt] = tree.body
    for name in qualname.split("."):
        found = [n for n in body if isinstance(n, ast.ClassDef) and n.name == name]
        if len(found) != 1:
            return None
        body = found[0].body
    functions = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == "construct"]
    return functions[0] if len(functions) == 1 else None


def _made(defined: ast.FunctionDef, kind: type, file: str, names: dict[str, Any]) -> Any:
    """Return the function of a definition, in which `super()` is that of its class."""
    maker = ast.parse("def make(__class__):\n    return construct").body[0]
    assert isinstance(maker, ast.FunctionDef)
    maker.body.insert(0, defined)
    ast.fix_missing_locations(maker)
    made: dict[str, Any] = {}
    exec(compile(ast.Module([maker], []), file, "exec"), names, made)
    return made["make"](kind)
