"""Calls of operators go to a handler while an interception is entered; nothing stays behind.

What a program reaches an operator by is replaced for that time: attributes of MindSpore's modules
and of Tensor, `__call__` of primitives' classes, names that modules have imported, functions that
cells hold, and functions that a program put in the place of a primitive. Everything is put back
when the last interception ends, and while MindSpore compiles: a graph is made of the originals.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, ModuleType
from typing import Any

import mindspore
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe.capture.cells import named_cells
from mindrlhf_msprobe.capture.framework.hooks import left_out_of_copies
from mindrlhf_msprobe.capture.framework.private import (
    BYTECODE_CONTEXT,
    CELL_COMPILER,
    FUNCTION_COMPILER,
    GRAPH_EXECUTORS,
)
from mindrlhf_msprobe.capture.operators.inventory import (
    HeldOperators,
    LibraryFunctions,
    Operator,
    ReplacedFunction,
    declared_operator,
    installed_operators,
    of_primitive,
    operator_of,
    primitive_classes,
    primitive_named,
)

#: Takes an operator, what computes it, and its arguments; returns what its caller gets.
Handle = Callable[[Operator, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

#: MindSpore's own modules whose calls of operators count: layers and losses, and its numpy.
_LAYERS = (
    *("mindspore.nn.layer.", "mindspore.nn.loss.", "mindspore.nn.transformer."),
    *("mindspore.mint.nn.layer.", "mindspore.numpy.", "mindspore.scipy."),
    "mindspore.nn.probability.",
)
_DEMO = "mindrlhf_msprobe.demo."
_ABSENT: Any = object()
_STANDS_IN = "stands in for"  # in the attributes of a function of ours


class _Here(threading.local):
    """What happens to the calls of this thread.

    Attributes:
        busy: whether an operator, or what handles one, is running.
        nested: whether what MindSpore's own Python calls is handled as well.
        handle: of the innermost interception of this thread alone, or None.
    """

    busy = False
    nested = False
    handle: Handle | None = None


_HERE = _Here()
#: The handlers of interceptions of every thread, the innermost last.
_SHARED: list[Handle] = []


@contextmanager
def _calls_here(*, busy: bool, nested: bool, handle: Handle | None) -> Iterator[None]:
    """Let something else happen to the calls of this thread: see `_Here`."""
    before = (_HERE.busy, _HERE.nested, _HERE.handle)
    _HERE.busy, _HERE.nested, _HERE.handle = busy, nested, handle
    try:
        yield
    finally:
        _HERE.busy, _HERE.nested, _HERE.handle = before


@contextmanager
def intercepted(
    handle: Handle,
    *,
    network: nn.Cell | None = None,
    every_thread: bool = False,
    nested: bool = False,
) -> Iterator[None]:
    """Have calls of operators go to `handle(operator, original, args, kwargs)`.

    What it returns is what the caller gets; what it raises, the caller gets, too. Probed are calls
    by programs, by the layers of MindSpore and by other libraries. What MindSpore's own Python
    calls inside an operator, and what the handler calls, goes straight to the originals. Of a
    primitive `original` is bound to it (`original.__self__`), and `args` are its inputs; of a
    method of tensors the first of `args` is the tensor. Of several interceptions that are entered
    the innermost is called.

    Args:
        network: a network whose cells hold functions of MindSpore as attributes; or None.
        every_thread: whether the calls of all threads are taken, not those of this one alone.
        nested: of this thread, whether what MindSpore's own Python calls goes to it as well.
    """
    _PATCHES.begin(network)
    try:
        if not every_thread:
            with _calls_here(busy=False, nested=nested, handle=handle):
                yield
            return
        _SHARED.append(handle)
        try:
            yield
        finally:
            _SHARED.remove(handle)
    finally:
        _PATCHES.end(network)


def not_intercepted() -> AbstractContextManager[None]:
    """Let the operators that are called in this thread go straight to the originals."""
    return _calls_here(busy=True, nested=_HERE.nested, handle=_HERE.handle)


def handled_inside(handle: Handle) -> AbstractContextManager[None]:
    """Let a handler be called for what an operator calls that is called inside, in this thread.

    It is meant for handlers: an interception is entered. What MindSpore's own Python calls goes
    to it as well.
    """
    return _calls_here(busy=False, nested=True, handle=handle)


def is_mindspores(function: Callable[..., Any]) -> bool:
    """Return whether a callable is MindSpore's own: nothing that was put in its place."""
    return _not_mindspores(getattr(function, "__func__", function)) == ""


def unseen_operators(network: nn.Cell) -> dict[str, list[tuple[str, str]]]:
    """Return the operators whose calls are not intercepted where they are made.

    `held`: where one is held, and its name; `replaced`: which, and what stands in its place that is
    not MindSpore's, as it was when interceptions were entered last, and since.

    Args:
        network: its cells are looked at, beside all modules that use MindSpore.
    """
    replaced = [(one.operator, one.by) for one in _PATCHES.places if one.operator and one.by]
    replaced += _PATCHES.replaced_in_cells.items()
    replaced += [(one.full_name, one.by) for one in replaced_in_library()]
    return {"held": _HELD.of(network), "replaced": replaced}


def replaced_in_library() -> list[ReplacedFunction]:
    """Return the functions of MindSpore's layers in whose place a program put others."""
    return [*_LIBRARY.replaced()]


_MINDSPORE = str(Path(mindspore.__file__).parent)


def _not_mindspores(function: Any) -> str:
    """Return the module and name of a callable that is not MindSpore's own; "" of one that is.

    What it says of itself may be copied from what it replaces: the file of its code counts. Of an
    object that is called, its class does.
    """
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:
        kind = type(function)
        is_other = kind.__module__.partition(".")[0] not in ("mindspore", "builtins")
        return f"{kind.__module__}.{kind.__qualname__}" if is_other else ""
    if code.co_filename.startswith((_MINDSPORE, "<")):
        return ""
    return f"{function.__globals__.get('__name__', '?')}.{code.co_qualname}"


@functools.cache
def _counts(module: str) -> bool:
    """Return whether a call of an operator counts that is made in a module."""
    if module.startswith("mindspore."):
        return module.startswith(_LAYERS)
    return not module.startswith("mindrlhf_msprobe.") or module.startswith(_DEMO)


def _handler() -> Handle | None:
    """Return what handles a call by the caller's caller; None where nothing does."""
    handle = _HERE.handle
    if handle is None:
        shared = _SHARED[-1:]  # another thread may end the last one at this moment
        if not shared:
            return None
        handle = shared[0]
    caller = sys._getframe(2).f_globals.get("__name__")
    if caller is None or _counts(caller):
        return handle
    return handle if _HERE.nested and caller.startswith("mindspore.") else None


def _wrapped(operator: Operator | None, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for a function or method.

    Args:
        operator: None of `__call__` of a class of primitives: the primitive says which.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        if _HERE.busy or (handle := _handler()) is None:
            return original(*args, **kwargs)
        known, called, given = operator, original, args
        if operator is None:
            primitive, given = args[0], args[1:]
            known, called = operator_of(type(primitive)), MethodType(original, primitive)
        if known is None:
            return original(*args, **kwargs)
        _HERE.busy = True
        try:
            return handle(known, called, given, kwargs)
        finally:
            _HERE.busy = False

    return stand_in(original, call)


def stand_in(original: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Let what stands in for a callable look like it, and be known to `original_of`."""
    functools.update_wrapper(call, original, updated=())
    vars(call)[_STANDS_IN] = original
    return call


def original_of(function: Any) -> Any:
    """Return what a function stands in for, itself where it is none of ours."""
    return vars(function).get(_STANDS_IN, function) if type(function) is FunctionType else function


class _Place:
    """An attribute by which an operator is reached.

    Args:
        owner: the module or class; of a module that is kept here, MindSpore would miss the end.
        make: returns what stands in for what is found there.
        operator: the name of the operator that belongs there; "" where none does.
        of_primitive: whether a primitive belongs there: the calls of one come by its class.

    Attributes:
        by: what stands there instead of MindSpore's own; "" where that is there.
    """

    def __init__(
        self,
        owner: Any,
        name: str,
        make: Callable[[Callable[..., Any]], Callable[..., Any]],
        operator: str = "",
        *,
        of_primitive: bool = False,
    ) -> None:
        self.operator, self.by, self._of_primitive = operator, "", of_primitive
        self._owner_of, self._name, self._make = weakref.ref(owner), name, make
        self._was: Any = _ABSENT  # what stands there without us
        self._instead: Any = None

    def put_on(self) -> None:
        """Put ours in the place of what stands there now, whoever put that there."""
        owner = self._owner_of()
        own = _ABSENT if owner is None else vars(owner).get(self._name, _ABSENT)
        found = getattr(owner, self._name, None) if own is _ABSENT else own
        if not callable(found):
            return
        if self._of_primitive and not isinstance(original_of(found), _FUNCTIONS):
            self._instead, self.by = None, _not_mindspores(found)
            return
        if self._instead is None or original_of(self._instead) is not found:
            self._instead = self._make(original_of(found))
            self.by = _not_mindspores(original_of(found)) if self.operator else ""
        self._was = own if own is _ABSENT else original_of(own)
        setattr(owner, self._name, self._instead)

    def take_off(self) -> None:
        """Put back what stood there, unless somebody has put something else there since."""
        owner = self._owner_of()
        if owner is None:
            return
        found = vars(owner).get(self._name)
        if self._instead is None or found is not self._instead:
            self.by = _not_mindspores(found) if self.operator and callable(found) else ""
            return
        if self._was is _ABSENT:
            delattr(owner, self._name)
        else:
            setattr(owner, self._name, self._was)
        self._was = _ABSENT


def _put_back(attributes: dict[str, Any]) -> None:
    for name, value in [*attributes.items()]:
        if (original := original_of(value)) is not value:
            attributes[name] = original


class _Patches:
    """What is replaced while interceptions are entered, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entered = 0
        self._compiling = 0
        self.are_on = False
        self.places: list[_Place] = []
        self._compilers: list[_Place] = []
        self._networks: dict[int, tuple[nn.Cell, int]] = {}
        self._ends: list[Callable[[], None]] = []  # give cells back the functions that they held
        self._modules: weakref.WeakSet[ModuleType] = weakref.WeakSet()  # that were looked through
        self._taken: set[tuple[int, str]] = set()
        self._primitives: weakref.WeakSet[type] = weakref.WeakSet()  # that have a place
        self._by_id: dict[int, list[Operator]] = {}
        self._wrappers: dict[tuple[object, ...], Any] = {}
        self._of_cells: weakref.WeakKeyDictionary[nn.Cell, dict[str, Operator]]
        self._of_cells = weakref.WeakKeyDictionary()  # the operators that their attributes held
        self.replaced_in_cells: dict[str, str] = {}  # operators, and what stands in their place

    def begin(self, network: nn.Cell | None) -> None:
        """Put everything on for one more interception."""
        with self._lock:
            if not self.places:
                self._find_places()
            self._find_primitives()
            self._look_through_modules()
            if network is not None:
                _, count = self._networks.get(id(network), (network, 0))
                self._networks[id(network)] = network, count + 1
            self._entered += 1
            try:
                if self._entered == 1:
                    for place in self._compilers:
                        place.put_on()
                self._renew()
            except BaseException:
                self.end(network)
                raise

    def end(self, network: nn.Cell | None) -> None:
        """Take everything off with the last one."""
        with self._lock:
            self._entered -= 1
            if network is not None:
                _, count = self._networks.pop(id(network))
                if count > 1:
                    self._networks[id(network)] = network, count - 1
            self._renew()
            if not self._entered:
                for place in reversed(self._compilers):
                    place.take_off()

    def _renew(self) -> None:
        """Let what is on be what is wanted now."""
        wanted = self._entered > 0 and not self._compiling
        if self.are_on and not wanted:
            while self._ends:
                self._ends.pop()()
            for place in reversed(self.places):
                place.take_off()
            self.are_on = False
        elif wanted and not self.are_on:
            self.are_on = True
            for place in self.places:
                place.put_on()
            self.replaced_in_cells.clear()
            cells = [c for n, _ in self._networks.values() for c in named_cells(n).values()]
            for cell in cells:  # which hold functions, e.g. `self.act = mint.relu`
                if held := self._wrappers_of(cell):
                    self._ends.append(left_out_of_copies(cell, _put_back))
                    vars(cell).update(held)
                    self._ends.append(functools.partial(_put_back, vars(cell)))

    def _held_off(self, method: Any, *, begins: bool = True, ends: bool = True) -> Any:
        """Return what calls a method that compiles with nothing replaced.

        Args:
            begins, ends: whether everything is taken off before it, and put on again behind it.
        """

        def compiled(*args: Any, **kwargs: Any) -> Any:
            if begins:
                self._hold_off(1)
            try:
                return method(*args, **kwargs)
            finally:
                if ends:
                    self._hold_off(-1)

        return stand_in(method, compiled)

    def _hold_off(self, count: int) -> None:
        with self._lock:
            self._compiling += count
            self._renew()

    def _find_places(self) -> None:
        for operator in installed_operators():
            self._by_id.setdefault(id(operator.original), []).append(operator)
        for operator in installed_operators():
            make = functools.partial(_wrapped, operator)
            owner, attribute = operator.owner, operator.attribute
            self.places.append(_Place(owner, attribute, make, operator.full_name))
            self._taken.add((id(operator.owner), operator.attribute))
        for executor in (*GRAPH_EXECUTORS, CELL_COMPILER, FUNCTION_COMPILER):
            if executor is not None:
                self._compilers.append(_Place(executor, "compile", self._held_off))
        if BYTECODE_CONTEXT is not None:
            self._compilers += [
                _Place(BYTECODE_CONTEXT, name, functools.partial(self._held_off, **when))
                for name, when in (("__enter__", {"ends": False}), ("__exit__", {"begins": False}))
            ]

    def _find_primitives(self) -> None:
        """Find the classes of primitives that are called in their own way, those that are new."""
        for kind in primitive_classes():
            if kind not in self._primitives:
                self._primitives.add(kind)
                is_mindspores = kind.__module__.startswith("mindspore.")
                name = f"Primitive.{kind.__name__}" if is_mindspores else ""
                self._add(_Place(kind, "__call__", functools.partial(_wrapped, None), name))

    def _add(self, place: _Place) -> None:
        """Take one more place, at once where the others are on."""
        self.places.append(place)
        if self.are_on:
            place.put_on()

    def _look_through_modules(self) -> None:
        """Find the names under which modules have imported operators, in those that are new."""
        for name, module in [*sys.modules.items()]:
            if not isinstance(module, ModuleType) or module in self._modules:
                continue
            self._modules.add(module)
            for attribute, operator in [*self._imported_by(name, module)]:
                if (id(module), attribute) not in self._taken:
                    make = functools.partial(self._wrapped_import, operator, attribute)
                    held = operator.kind == "Primitive"
                    place = _Place(module, attribute, make, operator.full_name, of_primitive=held)
                    self._add(place)

    def _imported_by(self, name: str, module: ModuleType) -> Iterator[tuple[str, Operator]]:
        """Yield the names of a module that are operators: functions, and primitives."""
        if _counts(name) or name in _NAMESPACES:
            for attribute, value in [*vars(module).items()]:
                if (operator := self.operator_of(value, attribute)) is not None:
                    yield attribute, operator
        if name in _OF_PRIMITIVES:
            for attribute in module.__all__:
                if (operator := primitive_named(attribute)) is not None:
                    yield attribute, operator
        elif _counts(name):
            for attribute, value in [*vars(module).items()]:
                if (operator := of_primitive(value)) is not None:
                    yield attribute, operator

    def _wrapped_import(self, operator: Operator, name: str, value: Any) -> Callable[..., Any]:
        """Return what stands in for what a module has under the name that an operator had."""
        return _wrapped(self.operator_of(value, name) or operator, value)

    def operator_of(self, value: Any, name: str) -> Operator | None:
        """Return the operator that a value is; of several that are the same the one of a name.

        A method of tensors is one that nothing else is.
        """
        if type(value) not in _OF_OPERATORS:
            return None
        same = self._by_id.get(id(value), [])
        found = [one for one in same if one.owner is not Tensor] or same
        return next((o for o in found if o.attribute == name), found[0] if found else None)

    def _wrappers_of(self, cell: nn.Cell) -> dict[str, Any]:
        """Return what stands in for the functions that a cell holds, by its attributes.

        Those are MindSpore's, and others in the place of an operator that it held before.
        """
        found = {}
        before = self._of_cells.get(cell, {})
        held: dict[str, Operator] = {}
        for name, value in vars(cell).items():
            if original_of(value) is not value:  # of another network that has this cell
                held |= {name: before[name]} if name in before else {}
            elif (operator := of_primitive(value)) is not None:
                held[name] = operator
            elif callable(value) and not isinstance(value, (nn.Cell, type)):
                operator = self.operator_of(value, "") or before.get(name)
                if (by := _not_mindspores(value)) and operator is None:
                    operator = declared_operator(cell, name, value)
                if operator is None or not (by or type(value) in _FUNCTIONS):
                    continue
                if operator.kind == "Primitive":
                    operator = replace(operator, held=name)
                found[name], held[name] = self._wrapper_of(operator, value), operator
                if by:
                    self.replaced_in_cells[operator.full_name] = by
        if held:
            self._of_cells[cell] = held
        return found

    def _wrapper_of(self, operator: Operator, value: Any) -> Any:
        key = id(value), operator.full_name, operator.held, id(operator.replaces)
        wrapper = self._wrappers.get(key)
        if wrapper is None or original_of(wrapper) is not value:
            wrapper = self._wrappers[key] = _wrapped(operator, value)
        return wrapper


def _of_held(value: Any) -> Operator | None:
    """Return the operator that a value is, or calls as the method of a primitive."""
    if type(value) is MethodType and isinstance(value.__self__, ops.Primitive):
        return operator_of(type(value.__self__)) if value.__name__ == "__call__" else None
    return _PATCHES.operator_of(value, "")


#: What may be an operator, and what may stand in the place of one.
_OF_OPERATORS = frozenset([FunctionType, BuiltinFunctionType, MethodDescriptorType])
_FUNCTIONS = (*_OF_OPERATORS, MethodType, functools.partial)
#: Modules of MindSpore that have primitives among their operators.
_OF_PRIMITIVES = frozenset(["mindspore.ops", "mindspore.ops.functional"])
#: Modules of MindSpore that only gather operators for its users.
_NAMESPACES = frozenset(
    ["mindspore.ops.functional", "mindspore.ops.function", "mindspore.ops.auto_generate"]
)
_PATCHES = _Patches()
_HELD = HeldOperators(_of_held, _counts)
_LIBRARY = LibraryFunctions(_not_mindspores, original_of)
