"""Which operators there are: a list made from the installed MindSpore.

An operator is what a program calls by name: a function of `mindspore.mint`, `mint.nn.functional`,
`mindspore.ops` or the communication modules, a method of tensors, or a primitive. What only looks
at a tensor, differentiates, compiles, prints or manages process groups is none.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any

from mindspore import Tensor, mint, ops
from mindspore.communication import comm_func
from mindspore.mint import distributed
from mindspore.mint.nn import functional
from mindspore.ops import auto_generate
from mindspore.ops import functional as functional_namespace

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
        _of_classes[kind] = made if is_operator(kind) else None
    return _of_classes[kind]


def is_operator(kind: type) -> bool:
    """Return whether a class of primitives computes something that a program asks for."""
    return not (
        kind.__module__.startswith(INTERNAL_PRIMITIVES) or kind.__name__ in _INTERNAL_CLASSES
    )


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
            if type(function) is not FunctionType:
                continue
            if f"{function.__module__}".partition(".")[0] in sys.stdlib_module_names:
                continue  # of Python's own library, such as `functools.wraps`
            if by := self._not_mindspores(function):
                yield Replaced(module, name, function, by)
