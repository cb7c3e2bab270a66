"""Operators that modules and networks hold, and those that cells were made with.

A function may have been put in the place of an operator that a cell holds before anything was
recorded. What had stood there, the class says: `self.softmax = ops.Softmax(axis=-1)`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
import textwrap
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType, MethodType, ModuleType
from typing import Any

from mindspore import nn, ops

from mindrlhf_msprobe.capture.cells import named_cells
from mindrlhf_msprobe.capture.operators.inventory import (
    Operator,
    installed_operators,
    operator_of,
)

_MOST_ITEMS = 256  # of a container that are looked at
_MOST_NESTED = 3

#: Returns the operator that a value is, or None.
OperatorOf = Callable[[Any], "Operator | None"]
#: Where an operator is held, as Python writes it, and its name.
Held = tuple[str, str]


class HeldOperators:
    """Finds operators where no recording looks: in containers, closures, classes, defaults.

    They cannot be replaced there without a program noticing, so that they are named instead. A
    module or network is looked through once.

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
            self._networks[network] = [
                held
                for name, cell in named_cells(network).items()
                for attribute, value in [*vars(cell).items()]
                if self._operator_of(value) is None  # else it is recorded
                for held in self._in(value, f"{name}.{attribute}", 0)
            ]
        return [*self._found, *self._networks[network]]

    def _of_module(self, name: str, module: ModuleType) -> Iterator[Held]:
        for attribute, value in [*vars(module).items()]:
            if isinstance(value, (FunctionType, type)) and value.__module__ != name:
                continue  # imported: it is looked at where it was made
            if isinstance(value, type):
                for inner, of_class in [*vars(value).items()]:
                    yield from self._in(of_class, f"{name}.{attribute}.{inner}", 0)
            elif self._operator_of(value) is None:  # else it is recorded
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
    elif type(value) is FunctionType:  # defaults, and what it took from the functions around it
        code, defaults = value.__code__, value.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount]
        for name, default in zip(names[len(names) - len(defaults) :], defaults):
            yield f"({name}=…)", default
        for name, default in (value.__kwdefaults__ or {}).items():
            yield f"({name}=…)", default
        yield from ((f": {name}", inside) for name, inside in _closure(value))


def _uses_mindspore(module: ModuleType) -> bool:
    """Return whether a module refers to anything of MindSpore."""
    for value in [*vars(module).values()]:
        if isinstance(value, ModuleType):
            home: Any = value.__name__
        elif isinstance(value, (type, FunctionType)) or callable(value):
            home = getattr(value, "__module__", None)
        else:
            home = type(value).__module__
        if isinstance(home, str) and home.partition(".")[0] == "mindspore":
            return True
    return False


#: Methods of primitives that return the primitive.
_RETURN_THEMSELVES = frozenset(
    ["shard", "add_prim_attr", "set_device", "set_stage", "recompute", "set_prim_instance_name"]
)
#: Arguments of primitives that have a state, or speak to others: one more would change something.
_NOT_TO_BE_MADE = frozenset(["seed", "seed0", "seed1", "seed2", "group"])
_UNKNOWN: Any = object()


def declared_operator(cell: nn.Cell, attribute: str, value: Any) -> Operator | None:
    """Return the operator in whose place a cell holds something else, by the cell's class.

    Args:
        value: what it holds, which is not MindSpore's.

    Returns:
        Of a primitive with that itself (`replaces`), as it is held by `value` or as the class makes
        it; without, where its arguments are not known. None where the class does not say it, says
        several, or where `value` is the cell's own method.
    """
    if isinstance(value, MethodType) and value.__self__ is cell:
        return None
    kinds = itertools.takewhile(lambda kind: kind is not nn.Cell, type(cell).__mro__)
    found = [
        (module, node)
        for kind in kinds
        if (module := sys.modules.get(kind.__module__)) is not None
        for node in _assignments(kind).get(attribute, [])
    ]
    operators = [_named_by(module, node) for module, node in found]
    known = {o.full_name: o for o in operators if o is not None}
    for primitive in _primitives_in(value):
        operator = operator_of(type(primitive))
        if operator is not None and operator.full_name in known:
            return replace(operator, replaces=primitive)
    if len(known) != 1 or None in operators:
        return None
    (operator,) = known.values()
    if operator.kind != "Primitive":
        return operator
    made = [_made(operator.owner, node, cell) for _, node in found]
    attributes = {repr(vars(one).get("init_attrs")) if one is not None else "" for one in made}
    return replace(operator, replaces=made[0]) if len(attributes) == 1 else operator


@functools.lru_cache(maxsize=1024)
def _assignments(kind: type) -> dict[str, list[ast.expr]]:
    """Return what the methods of a class assign to attributes of their first argument."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    found: dict[str, list[ast.expr]] = {}
    for method in ast.walk(tree):
        if not isinstance(method, ast.FunctionDef) or not method.args.args:
            continue
        own = method.args.args[0].arg
        for node in ast.walk(method):
            for target, value in _targets(node):
                if isinstance(target, ast.Attribute) and _is_name(target.value, own):
                    found.setdefault(target.attr, []).append(value)
    return found


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _targets(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets of an assignment, each with its value."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
    if not isinstance(node, ast.Assign):
        return
    for target in node.targets:
        if not isinstance(target, ast.Tuple):
            yield target, node.value
        elif isinstance(node.value, ast.Tuple) and len(node.value.elts) == len(target.elts):
            yield from zip(target.elts, node.value.elts)
        else:
            yield from ((one, node.value) for one in target.elts)


def _named_by(module: ModuleType, node: ast.expr) -> Operator | None:
    """Return the operator that an expression is: `ops.Softmax(…)`, `mint.relu`."""
    node = _primitive_of(node)
    if isinstance(node, ast.Call):
        kind = _looked_up(module, node.func)
        is_primitive = isinstance(kind, type) and issubclass(kind, ops.Primitive)
        return operator_of(kind) if is_primitive else None
    value = _looked_up(module, node)
    owner = _looked_up(module, node.value) if isinstance(node, ast.Attribute) else None
    place = (id(owner), node.attr) if isinstance(node, ast.Attribute) else None
    return _by_place().get(place) or _by_value().get(id(value))


def _primitive_of(node: ast.expr) -> ast.expr:
    """Return what makes a primitive, of an expression that goes on with methods of that."""
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _RETURN_THEMSELVES
    ):
        node = node.func.value
    return node


def _looked_up(module: ModuleType, node: ast.expr) -> Any:
    """Return the value of a name, or of names with dots, in a module."""
    if isinstance(node, ast.Name):
        return vars(module).get(node.id, _UNKNOWN)
    if not isinstance(node, ast.Attribute):
        return _UNKNOWN
    owner = _looked_up(module, node.value)
    if not isinstance(owner, ModuleType):
        return _UNKNOWN
    return vars(owner).get(node.attr, _UNKNOWN)


@functools.cache
def _by_place() -> dict[tuple[int, str] | None, Operator]:
    return {(id(o.owner), o.attribute): o for o in installed_operators()}


@functools.cache
def _by_value() -> dict[int, Operator]:
    return {id(o.original): o for o in installed_operators()}


def _made(kind: type, node: ast.expr, cell: nn.Cell) -> Any:
    """Return a primitive made as a class makes it; None where that is not known."""
    node = _primitive_of(node)
    assert isinstance(node, ast.Call)
    try:
        names = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
        if {name.lower() for name in names} & _NOT_TO_BE_MADE:
            return None
        args = [_value(one, cell) for one in node.args]
        kwargs = {str(one.arg): _value(one.value, cell) for one in node.keywords}
        return kind(*args, **kwargs)
    except (ValueError, TypeError, AttributeError, SyntaxError):
        return None


def _value(node: ast.expr, cell: nn.Cell) -> Any:
    """Return the value of a literal, or of an attribute of the cell that is a number or a text.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(node, ast.Attribute) and _is_name(node.value, "self"):
        value = vars(cell).get(node.attr)
        if isinstance(value, (bool, int, float, str)):
            return value
    return ast.literal_eval(node)


def _primitives_in(value: Any) -> Iterator[ops.Primitive]:
    """Yield the primitives that a function takes from the functions around it, or is made with."""
    while isinstance(value, functools.partial):
        yield from (one for one in value.args if isinstance(one, ops.Primitive))
        value = value.func
    inside: list[Any] = [value, getattr(value, "__self__", None)]
    attributes = [*vars(value).values()] if hasattr(value, "__dict__") else []
    inside += [one for one in attributes if not isinstance(one, nn.Cell)]
    if isinstance(value, FunctionType):
        inside += [*(value.__defaults__ or ()), *(one for _, one in _closure(value))]
    for one in inside:
        if isinstance(one, MethodType):
            one = one.__self__
        if isinstance(one, ops.Primitive):
            yield one


def _closure(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function takes from the functions around it, by name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
