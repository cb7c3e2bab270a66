"""Which operators there are: a list made from the installed MindSpore.

An operator is what a program calls by name: a function of `mindspore.mint`, `mint.nn.functional`,
`mindspore.ops` or the communication modules, a method of tensors, or a primitive. What only looks
at a tensor, differentiates, compiles, prints or manages process groups is none.

Modules and networks hold operators, and cells were made with some: a function may have been put in
the place of one before anything was recorded. What had stood there, the class says:
`self.softmax = ops.Softmax(axis=-1)`.
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
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any

from mindspore import Tensor, mint, nn, ops
from mindspore.communication import comm_func
from mindspore.mint import distributed
from mindspore.mint.nn import functional
from mindspore.ops import auto_generate
from mindspore.ops import functional as functional_namespace

from mindrlhf_msprobe.capture.cells import named_cells
from mindrlhf_msprobe.capture.framework.private import INTERNAL_PRIMITIVES, NO_OPERATORS

#: Functions that compute nothing, or nothing of tensors.
_NO_COMPUTATION = frozenset(
    [
        *("dyn_shape", "is_available", "is_complex", "is_floating_point", "is_initialized"),
        *("is_nonzero", "is_signed", "is_tensor", "move_to", "numel", "rank", "shape", "size"),
        *("destroy_process_group", "get_backend", "get_global_rank", "get_group_rank"),
        *("get_process_group_ranks", "get_rank", "get_world_size", "init_process_group"),
        "new_group",
    ]
)
_STOPS_GRADIENTS = "stop_gradient"  # stands among what differentiates
#: Methods of tensors that no function is called like.
_METHODS = frozenset(
    [
        *("argmax_with_value", "argmin_with_value", "astype", "bfloat16", "bool", "byte"),
        *("cauchy", "choose", "contiguous", "copy", "copy_", "double", "fill_diagonal"),
        *("fill_diagonal_", "float", "half", "index_put", "index_put_", "int", "log_normal"),
        *("long", "masked_scatter", "masked_scatter_", "new_empty", "new_full", "new_ones"),
        *("new_zeros", "ptp", "repeat", "reshape_as", "resize", "scatter_sub", "scatter_sub_"),
        *("short", "sum_to_size", "to", "view"),
    ]
)
#: Methods of tensors that Python calls where a program writes `x + y`, `-x`, `x[0]`, `x[0] = y`.
_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_BITS = ("and", "or", "xor", "lshift", "rshift")
_SIGNS = frozenset(
    f"__{name}__"
    for name in (
        *("eq", "ne", "lt", "le", "gt", "ge", "abs", "neg", "pos", "invert", "round"),
        *("getitem", "setitem", *_ARITHMETIC, *_BITS),
        *(f"{side}{name}" for side in "ri" for name in (*_ARITHMETIC, *_BITS)),
    )
)
#: Primitives that serve MindSpore itself.
_INTERNAL_CLASSES = frozenset(
    ["Depend", "Load", "UpdateState", "Partial", "MakeTuple", "MixedPrecisionCast", "Shape"]
)


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator of the installed MindSpore.

    Attributes:
        kind, name: what it is called in entries, e.g. `Mint` and `add`; of a primitive `Primitive`
            and its class.
        owner: the module or class whose attribute it is.
        attribute: the attribute's name.
        original: MindSpore's own callable; of a method and of a primitive, the function that takes
            the tensor or the primitive itself first.
        replaces: the primitive in whose place a function stands; None of all else.
        held: what the cell around calls that.
    """

    kind: str
    name: str
    owner: Any
    attribute: str
    original: Callable[..., Any]
    replaces: Any = None
    held: str = ""

    @property
    def full_name(self) -> str:
        """Its kind and name, e.g. `Mint.add`."""
        return f"{self.kind}.{self.name}"


@functools.cache
def installed_operators() -> tuple[Operator, ...]:
    """Return all operators that are called as functions or methods.

    Primitives are looked up by their class: `operator_of`.
    """
    found: dict[str, Operator] = {}
    for operator in _all():
        found.setdefault(operator.full_name, operator)
    return tuple(found.values())


def find_operator(name: str) -> Operator | None:
    """Return the operator of a name, from the installed list alone; None where there is none.

    Args:
        name: kind and name, e.g. `Mint.add`, `Tensor.__add__`, `Primitive.softmax.Softmax`.
    """
    kind, _, rest = name.partition(".")
    if kind == "Primitive":
        return _primitives().get(rest.rpartition(".")[2])
    return _by_name().get(name)


def operator_of(kind: type) -> Operator | None:
    """Return the operator that a class of primitives is; None where it is none."""
    if kind not in _of_classes:
        call: Any = kind.__call__
        made = Operator("Primitive", kind.__name__, kind, "__call__", call)
        # Whether it computes nothing that a program calls for.
        is_internal = kind.__module__.startswith(INTERNAL_PRIMITIVES)
        is_internal = is_internal or kind.__name__ in _INTERNAL_CLASSES
        _of_classes[kind] = None if is_internal else made
    return _of_classes[kind]


@functools.cache
def primitive_named(name: str) -> Operator | None:
    """Return the operator of a primitive that MindSpore has under a name, e.g. `ops.reduce_sum`.

    None where a function has that name, or nothing.
    """
    for module in (ops, functional_namespace):
        value = vars(module).get(name)
        if (operator := of_primitive(value)) is not None:
            return operator
    return None


def of_primitive(value: Any) -> Operator | None:
    """Return the operator that a primitive of MindSpore is, with itself; None of all else."""
    if isinstance(value, ops.Primitive) and type(value).__module__.startswith("mindspore."):
        operator = operator_of(type(value))
        return None if operator is None else replace(operator, replaces=value)
    return None


def primitive_classes() -> Iterator[type]:
    """Yield every class of primitives that decides itself what happens when it is called."""
    for kind in (ops.Primitive, *_subclasses(ops.Primitive)):
        if "__call__" in vars(kind):
            yield kind


#: Class of primitives → its operator, None where it is none.
_of_classes: dict[type, Operator | None] = {}


@functools.cache
def _by_name() -> dict[str, Operator]:
    return {operator.full_name: operator for operator in installed_operators()}


@functools.cache
def _primitives() -> dict[str, Operator]:
    return {
        kind.__name__: operator
        for kind in _subclasses(ops.Primitive)
        if kind.__module__.startswith("mindspore.") and (operator := operator_of(kind))
    }


def _subclasses(kind: type) -> Iterator[type]:
    seen: set[type] = set()
    pending: list[type] = type.__subclasses__(kind)
    while pending:
        found = pending.pop()
        if found not in seen:
            seen.add(found)
            yield found
            pending += type.__subclasses__(found)


def _all() -> Iterator[Operator]:
    for kind, module in (
        *(("Mint", mint), ("Mint", mint.linalg), ("Mint", mint.special)),
        *(("MintFunctional", functional), ("MintDistributed", distributed)),
        *(("Distributed", comm_func), ("Functional", ops)),
    ):
        yield from _of_module(kind, module, _listed(module))
    generated = [
        name
        for name, value in vars(auto_generate).items()
        if isinstance(value, FunctionType) and value.__module__.endswith(".gen_ops_def")
    ]
    yield from _of_module("Functional", auto_generate, generated)
    yield from _of_tensors()


def _listed(module: ModuleType) -> list[str]:
    return [*dict.fromkeys(getattr(module, "__all__", ()))]


def _of_module(kind: str, module: Any, names: list[str]) -> Iterator[Operator]:
    for name in names:
        function = vars(module).get(name)
        if not isinstance(function, (FunctionType, BuiltinFunctionType)):
            continue
        if name.startswith("_") or name in _NO_COMPUTATION:
            continue
        function = _own(name, function)
        if function is not vars(module)[name] and isinstance(function, ops.Primitive):
            continue  # it is called by its class
        if function.__module__ in NO_OPERATORS and name != _STOPS_GRADIENTS:
            continue
        yield Operator(kind, name, module, name, function)


def _own(name: str, function: Any) -> Any:
    """Return MindSpore's own function where somebody has put another one in its place."""
    if f"{function.__module__}".startswith("mindspore"):
        return function
    for module in [*sys.modules.values()]:
        if f"{getattr(module, '__name__', '')}".startswith(("mindspore.ops.", "mindspore.mint")):
            own = vars(module).get(name)
            if isinstance(own, FunctionType) and own.__module__ == module.__name__:
                return own
    own = vars(functional_namespace).get(name)
    return own if isinstance(own, ops.Primitive) else function


def _of_tensors() -> Iterator[Operator]:
    called_so = {
        name
        for module in (mint, functional, ops)
        for name in _listed(module)
        if isinstance(getattr(module, name, None), (FunctionType, BuiltinFunctionType))
    } - _NO_COMPUTATION
    known = called_so | _METHODS | _SIGNS
    for kind in Tensor.__mro__[:-1]:
        for name, method in vars(kind).items():
            if not isinstance(method, (FunctionType, MethodDescriptorType)):
                continue
            if name in known or (name.rstrip("_") in known and name[:1] != "_"):
                yield Operator("Tensor", name, Tensor, name, method)


#: The modules in which layers and operators are written in Python.
_MODULES = (
    *("mindspore.ops.function.", "mindspore.ops.composite.", "mindspore.nn.layer."),
    *("mindspore.nn.loss.", "mindspore.mint.nn.layer."),
)


@dataclass(frozen=True)
class ReplacedFunction:
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
    """Finds functions of MindSpore's own modules in whose place a program put others.

    MindSpore's layers call functions that are no operators, such as `linear` of
    `mindspore.ops.function.nn_func`: what replaces them is no entry. A module is looked through
    again when a name in it has changed.

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
        self._found: dict[str, list[ReplacedFunction]] = {}

    def replaced(self) -> Iterator[ReplacedFunction]:
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

    def _in(self, module: ModuleType) -> Iterator[ReplacedFunction]:
        for name, value in [*vars(module).items()]:
            function = value
            while (inside := self._original_of(function)) is not function:
                function = inside
            if type(function) is not FunctionType:
                continue
            if f"{function.__module__}".partition(".")[0] in sys.stdlib_module_names:
                continue  # of Python's own library, such as `functools.wraps`
            if by := self._not_mindspores(function):
                yield ReplacedFunction(module, name, function, by)


#: Returns the operator that a value is, or None.
OperatorOf = Callable[[Any], "Operator | None"]
#: Where an operator is held, as Python writes it, and its name.
HeldOperator = tuple[str, str]


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
        self._networks: weakref.WeakKeyDictionary[nn.Cell, list[HeldOperator]] = (
            weakref.WeakKeyDictionary()
        )
        self._found: list[HeldOperator] = []
        self._seen = 0, ""  # modules, and the last, when they were looked through

    def of(self, network: nn.Cell) -> list[HeldOperator]:
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

    def _of_module(self, name: str, module: ModuleType) -> Iterator[HeldOperator]:
        for attribute, value in [*vars(module).items()]:
            if isinstance(value, (FunctionType, type)) and value.__module__ != name:
                continue  # imported: it is looked at where it was made
            if isinstance(value, type):
                for inner, of_class in [*vars(value).items()]:
                    yield from self._in(of_class, f"{name}.{attribute}.{inner}", 0)
            elif self._operator_of(value) is None:  # else it is recorded
                yield from self._in(value, f"{name}.{attribute}", 0)

    def _in(self, value: Any, where: str, depth: int) -> Iterator[HeldOperator]:
        """Yield the operators that a value is or holds."""
        operator = self._operator_of(value)
        if operator is not None:
            yield where, operator.full_name
        elif depth < 3:  # containers in each other
            for place, inside in itertools.islice(_held_by(value), 256):
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
