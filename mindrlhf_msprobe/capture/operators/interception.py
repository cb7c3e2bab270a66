"""Calls of operators go to a handler while an interception is entered; nothing stays behind.

What a program reaches an operator by is replaced for that time: attributes of MindSpore's modules
and of Tensor, `__call__` of primitives' classes, names that modules have imported, and functions
that cells hold. Everything is put back when the last interception ends, and while MindSpore
compiles: a graph is made of the originals.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import mindspore
from mindspore import Tensor, nn

from mindrlhf_msprobe.capture.framework.copies import left_out_of_copies
from mindrlhf_msprobe.capture.framework.private import (
    BYTECODE_CONTEXT,
    CELL_COMPILER,
    FUNCTION_COMPILER,
    GRAPH_EXECUTORS,
)
from mindrlhf_msprobe.capture.networks.cells import named_cells
from mindrlhf_msprobe.capture.operators.held import HeldOperators
from mindrlhf_msprobe.capture.operators.inventory import (
    Operator,
    installed_operators,
    operator_of,
    primitive_classes,
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
        handle: of the innermost interception of this thread alone, or None.
    """

    busy = False
    nested = False
    handle: Handle | None = None


_HERE = _Here()
#: The handlers of interceptions of every thread, the innermost last.
_SHARED: list[Handle] = []


class Interception:
    """While entered, calls of operators go to `handle(operator, original, args, kwargs)`.

    What it returns is what the caller gets; what it raises, the caller gets, too. Asked are calls
    by programs, by the layers of MindSpore and by other libraries. What MindSpore's own Python
    calls inside an operator, and what the handler calls, goes straight to the originals. Of a
    primitive `original` is bound to it (`original.__self__`), and `args` are its inputs; of a
    method of tensors the first of `args` is the tensor. Of several interceptions that are entered
    the innermost is asked.

    Args:
        handle: takes the calls.
        network: a network whose cells hold functions of MindSpore as attributes; or None.
        every_thread: whether the calls of all threads are taken, not those of this one alone.
        nested: of this thread, whether what MindSpore's own Python calls is asked for as well.
    """

    def __init__(
        self,
        handle: Handle,
        *,
        network: nn.Cell | None = None,
        every_thread: bool = False,
        nested: bool = False,
    ) -> None:
        self._handle = handle
        self._network = network
        self._every_thread = every_thread
        self._nested = nested
        self._before: list[tuple[bool, bool, Handle | None]] = []

    def __enter__(self) -> Interception:
        _PATCHES.begin(self._network)
        if self._every_thread:
            _SHARED.append(self._handle)
        else:
            self._before.append((_HERE.busy, _HERE.nested, _HERE.handle))
            _HERE.busy, _HERE.nested, _HERE.handle = False, self._nested, self._handle
        return self

    def __exit__(self, *_: object) -> None:
        if self._every_thread:
            _SHARED.remove(self._handle)
        else:
            _HERE.busy, _HERE.nested, _HERE.handle = self._before.pop()
        _PATCHES.end(self._network)


@contextmanager
def not_intercepted() -> Iterator[None]:
    """Let the operators that are called in this thread go straight to the originals."""
    before, _HERE.busy = _HERE.busy, True
    try:
        yield
    finally:
        _HERE.busy = before


def installed() -> bool:
    """Return whether anything of MindSpore is replaced now."""
    return _PATCHES.are_on


def held_operators(network: nn.Cell) -> list[tuple[str, str]]:
    """Return where operators are held by which no call of theirs is intercepted, and their names.

    Args:
        network: its cells are looked at, beside all modules that use MindSpore.
    """
    return _HELD.of(network)


def replaced_operators() -> list[tuple[str, str]]:
    """Return the operators in whose place something stands that is not MindSpore's, and what.

    As it was when interceptions were entered last, and since.
    """
    return [(place.operator, place.by) for place in _PATCHES.places if place.operator and place.by]


_MINDSPORE = str(Path(mindspore.__file__).parent)


def _not_mindspores(function: Any) -> str:
    """Return the module and name of a function that is not MindSpore's own; "" of one that is.

    What it says of itself may be copied from what it replaces: the file of its code counts.
    """
    code = getattr(function, "__code__", None)
    if code is None or code.co_filename.startswith((_MINDSPORE, "<")):
        return ""
    return f"{function.__globals__.get('__name__', '?')}.{code.co_qualname}"


@functools.cache
def _counts(module: str) -> bool:
    """Return whether a call of an operator counts that is made in a module."""
    if module.startswith("mindspore."):
        return module.startswith(_LAYERS)
    return not module.startswith("mindrlhf_msprobe.") or module.startswith(_DEMO)


def _asked() -> Handle | None:
    """Return who is asked for a call by the caller's caller; None where nobody is."""
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


def _wrapped(operator: Operator, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for a function or method."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if _HERE.busy or (handle := _asked()) is None:
            return original(*args, **kwargs)
        _HERE.busy = True
        try:
            return handle(operator, original, args, kwargs)
        finally:
            _HERE.busy = False

    return _as(original, call)


def _wrapped_primitive(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands in for `__call__` of a class of primitives."""

    def call(primitive: Any, /, *args: Any, **kwargs: Any) -> Any:
        if _HERE.busy or (handle := _asked()) is None:
            return original(primitive, *args, **kwargs)
        operator = operator_of(type(primitive))
        if operator is None:
            return original(primitive, *args, **kwargs)
        _HERE.busy = True
        try:
            return handle(operator, MethodType(original, primitive), args, kwargs)
        finally:
            _HERE.busy = False

    return _as(original, call)


def _as(original: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Let what stands in for a callable look like it."""
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
        operator: the name of the operator that belongs there; "" of another name of one.

    Attributes:
        by: what stands there instead of MindSpore's own; "" where that is there.
    """

    __slots__ = ("_instead", "_make", "_name", "_owner_of", "_was", "by", "operator")

    def __init__(
        self,
        owner: Any,
        name: str,
        make: Callable[[Callable[..., Any]], Callable[..., Any]],
        operator: str = "",
    ) -> None:
        self.operator, self.by = operator, ""
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
        if self._instead is None or original_of(self._instead) is not found:
            self._instead = self._make(original_of(found))
            self.by = _not_mindspores(original_of(found)) if self.operator else ""
        self._was = own if own is _ABSENT else original_of(own)
        setattr(owner, self._name, self._instead)

    def take_off(self) -> None:
        """Put back what stood there, unless somebody has put something else there since."""
        owner = self._owner_of()
        if self._instead is None or owner is None:
            return
        if (found := vars(owner).get(self._name)) is not self._instead:
            self.by = _not_mindspores(found) if self.operator and callable(found) else ""
            return
        if self._was is _ABSENT:
            delattr(owner, self._name)
        else:
            setattr(owner, self._name, self._was)
        self._was = _ABSENT


class _HeldFunctions:
    """The functions of MindSpore that the cells of a network hold, e.g. `self.act = mint.relu`."""

    def __init__(self, network: nn.Cell, wrapper_of: Callable[[Any, str], Any]) -> None:
        self._ends: list[Callable[[], None]] = []
        for cell in named_cells(network).values():
            held = {
                name: wrapper
                for name, value in vars(cell).items()
                if (wrapper := wrapper_of(value, "")) is not None
            }
            if held:
                self._ends.append(left_out_of_copies(cell, _put_back))
                vars(cell).update(held)
                self._ends.append(functools.partial(_put_back, vars(cell)))

    def end(self) -> None:
        """Give the cells their own back."""
        while self._ends:
            self._ends.pop()()


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
        self._held: list[_HeldFunctions] = []
        self._modules: weakref.WeakSet[ModuleType] = weakref.WeakSet()  # that were looked through
        self._taken: set[tuple[int, str]] = set()
        self._by_id: dict[int, list[Operator]] = {}
        self._wrappers: dict[tuple[int, str], Any] = {}

    def begin(self, network: nn.Cell | None) -> None:
        """Put everything on for one more interception."""
        with self._lock:
            if not self.places:
                self._find_places()
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
            self._take_off()
        elif wanted and not self.are_on:
            self._put_on()

    def _put_on(self) -> None:
        self.are_on = True
        for place in self.places:
            place.put_on()
        self._held = [
            _HeldFunctions(network, self._wrapper_of) for network, _ in self._networks.values()
        ]

    def _take_off(self) -> None:
        for held in reversed(self._held):
            held.end()
        for place in reversed(self.places):
            place.take_off()
        self.are_on = False

    def _originals(self, compile_graph: Callable[..., Any]) -> Callable[..., Any]:
        """Return what compiles with nothing replaced."""

        def compiled(*args: Any, **kwargs: Any) -> Any:
            self.hold_off()
            try:
                return compile_graph(*args, **kwargs)
            finally:
                self.let_on()

        return _as(compile_graph, compiled)

    def hold_off(self) -> None:
        """Take everything off, for a while."""
        with self._lock:
            self._compiling += 1
            self._renew()

    def let_on(self) -> None:
        """End what `hold_off` began."""
        with self._lock:
            self._compiling -= 1
            self._renew()

    def _find_places(self) -> None:
        for operator in installed_operators():
            self._by_id.setdefault(id(operator.original), []).append(operator)
        for operator in installed_operators():
            make = functools.partial(_wrapped, operator)
            owner, attribute = operator.owner, operator.attribute
            self.places.append(_Place(owner, attribute, make, operator.full_name))
            self._taken.add((id(operator.owner), operator.attribute))
        for kind in primitive_classes():
            is_mindspores = kind.__module__.startswith("mindspore.")
            name = f"Primitive.{kind.__name__}" if is_mindspores else ""
            self.places.append(_Place(kind, "__call__", _wrapped_primitive, name))
        for executor in (*GRAPH_EXECUTORS, CELL_COMPILER, FUNCTION_COMPILER):
            if executor is not None:
                self._compilers.append(_Place(executor, "compile", self._originals))
        if BYTECODE_CONTEXT is not None:
            self._compilers += [
                _Place(BYTECODE_CONTEXT, "__enter__", self._before(self.hold_off)),
                _Place(BYTECODE_CONTEXT, "__exit__", self._after(self.let_on)),
            ]

    @staticmethod
    def _before(act: Callable[[], None]) -> Callable[[Any], Any]:
        def make(method: Any) -> Any:
            def entered(*args: Any) -> Any:
                act()
                return method(*args)

            return _as(method, entered)

        return make

    @staticmethod
    def _after(act: Callable[[], None]) -> Callable[[Any], Any]:
        def make(method: Any) -> Any:
            def left(*args: Any) -> Any:
                try:
                    return method(*args)
                finally:
                    act()

            return _as(method, left)

        return make

    def _look_through_modules(self) -> None:
        """Find the names under which modules have imported operators, in those that are new."""
        for name, module in [*sys.modules.items()]:
            if not isinstance(module, ModuleType) or module in self._modules:
                continue
            self._modules.add(module)
            if not (_counts(name) or name in _NAMESPACES):
                continue
            for attribute, value in [*vars(module).items()]:
                operator = self.operator_of(value, attribute)
                if operator is not None and (id(module), attribute) not in self._taken:
                    make = functools.partial(_wrapped, operator)
                    self.places.append(_Place(module, attribute, make))

    def operator_of(self, value: Any, name: str) -> Operator | None:
        """Return the operator that a value is; of several that are the same the one of a name."""
        if type(value) is not FunctionType and type(value) is not BuiltinFunctionType:
            return None
        found = [o for o in self._by_id.get(id(value), ()) if o.owner is not Tensor]
        return next((o for o in found if o.attribute == name), found[0] if found else None)

    def _wrapper_of(self, value: Any, name: str) -> Any:
        operator = self.operator_of(value, name)
        if operator is None:
            return None
        key = id(value), operator.full_name
        if key not in self._wrappers:
            self._wrappers[key] = _wrapped(operator, value)
        return self._wrappers[key]


#: Modules of MindSpore that only gather operators for its users.
_NAMESPACES = frozenset(
    ["mindspore.ops.functional", "mindspore.ops.function", "mindspore.ops.auto_generate"]
)
_PATCHES = _Patches()
_HELD = HeldOperators(lambda value: _PATCHES.operator_of(value, ""), _counts)
