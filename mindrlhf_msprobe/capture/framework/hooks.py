"""Hooks on cells, in PyNative mode, that change nothing: no output, no gradient, no compilation.

And Python's frames around a hook: the call stack of an entry, of which the user's and the model's
frames count, not the framework's; and what a recomputed cell runs again. MindSpore runs such a cell
twice: in the forward pass without gradients, and once more while the gradients are computed. The
second run repeats calls that were recorded already, and the gradients flow through it.
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar

import mindspore
from mindspore import nn

import mindrlhf_msprobe
from mindrlhf_msprobe.capture.framework.private import (
    FIRST_RUN,
    FORWARD_HOOKS,
    HOOKS,
    ONLY_VALUES,
    RUN,
    RUN_AGAIN,
    has_all,
    uncast,
    without_recompiling,
)
from mindrlhf_msprobe.capture.tensors.summary import fingerprint_of, is_tensor, to_host
from mindrlhf_msprobe.capture.tensors.tree import TreeDescriber, described_leaves
from mindrlhf_msprobe.storage.leaves import Leaf

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.opening.opening import Call

#: Takes ours out of the attributes of a copy that is about to be made.
Clean = Callable[[dict[str, Any]], None]

# `copy` and `pickle` ask an object for it before they ask its class.
_REDUCE = "__reduce_ex__"


def left_out_of_copies(cell: nn.Cell, clean: Clean) -> Callable[[], None]:
    """Have `clean` called with the attributes of each copy of a cell; return what ends that.

    A trainer may copy a network (`copy.deepcopy`, `pickle`) while a phase is open. What lies on the
    cells then must neither go with the copy, where nobody would take it off, nor make copying fail.
    """
    reduce = vars(cell).get(_REDUCE)
    if not isinstance(reduce, _Reduce):
        reduce = vars(cell)[_REDUCE] = _Reduce(cell)
    reduce.cleaners.append(clean)

    def end() -> None:
        reduce.cleaners.remove(clean)
        if not reduce.cleaners and vars(cell).get(_REDUCE) is reduce:
            del vars(cell)[_REDUCE]

    return end


class _Reduce:
    """Stands in for `__reduce_ex__` of a cell."""

    def __init__(self, cell: nn.Cell) -> None:
        self._cell = weakref.ref(cell)
        self.cleaners: list[Clean] = []

    def __call__(self, protocol: int) -> Any:
        cell = self._cell()
        assert cell is not None
        reduce: Any = type(cell).__reduce_ex__
        reduced = reduce(cell, protocol)
        if isinstance(reduced, str):
            return reduced
        return tuple(self._cleaned(part, vars(cell)) for part in reduced)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # A class may copy its attributes itself; then the copy is made by its class from now on.
        cell = self._cell()
        return MethodType(type(cell).__reduce_ex__, memo[id(cell)])

    def _cleaned(self, part: Any, attributes: dict[str, Any]) -> Any:
        """Return a part of what a copy is made from; the cell's attributes may stand in a tuple."""
        if type(part) is tuple:
            return tuple(self._cleaned(item, attributes) for item in part)
        if part is not attributes:
            return part
        cleaned = {name: value for name, value in attributes.items() if name != _REDUCE}
        for clean in self.cleaners:
            clean(cleaned)
        return cleaned


#: Arguments and keyword arguments of a cell, and both.
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Arguments = tuple[Args, Kwargs]
#: Takes a cell and what it is called with; returns what to call it with instead, or None.
Before = Callable[[nn.Cell, Args, Kwargs], "Arguments | None"]
#: Takes a cell and what it returned; returns what its caller gets instead, or None.
After = Callable[[nn.Cell, Any], Any]


class _Compiling(mindspore.constexpr(lambda: True, get_instance=False)):  # type: ignore[misc]
    """True where MindSpore compiles the function that asks, False where Python runs it."""

    def __call__(self) -> bool:
        return False


_COMPILING = _Compiling()


class _Unseen(threading.local):
    """Whether the cells that run in this thread run for us alone."""

    on = False


_UNSEEN = _Unseen()


@contextmanager
def unseen() -> Iterator[None]:
    """Let cells run in this thread without any hook of ours being called."""
    before, _UNSEEN.on = _UNSEEN.on, True
    try:
        yield
    finally:
        _UNSEEN.on = before


# MindSpore takes plain functions only, and passes what they return on to the training. It also
# compiles them into what `ms.jit` compiles while they are registered, where they are called without
# kwargs and must do nothing.


def _pre_hook(before: Before) -> Callable[..., Any]:
    """Return `before` as MindSpore takes it."""

    def pre_hook(cell: nn.Cell, args: Any, kwargs: Any = None) -> Any:
        if not _COMPILING() and not _UNSEEN.on:
            return before(cell, args, kwargs)
        return None

    return pre_hook


class CellHooks:
    """Calls two functions around every run of the cells that were added.

    Args:
        before: called before a cell runs; may return other arguments to run it with.
        after: called when it returned; not when it raised.
    """

    def __init__(self, before: Before, after: After) -> None:
        self._before = uncast(before)
        self._after = uncast(after)
        self._handles: list[Any] = []

        def hook(cell: nn.Cell, args: Any, kwargs: Any, output: Any = None) -> Any:
            if not _COMPILING() and not _UNSEEN.on:
                return self._after(cell, output)
            return None

        self._pre_hook = _pre_hook(self._before)
        self._hook = hook

    def add(self, cell: nn.Cell) -> None:
        """Hook a cell."""
        with without_recompiling():
            if cell.has_bprop:
                if not has_all("mindspore.own_bprop"):
                    return
                self._handles.append(_Watch(cell, self._before, self._after))
                return
            handle = cell.register_forward_pre_hook(self._pre_hook, with_kwargs=True)
            self._handles.append(_Registered(cell, handle))
            handle = cell.register_forward_hook(self._hook, with_kwargs=True)
            self._handles.append(_Registered(cell, handle))

    def add_before(self, cell: nn.Cell, before: Before) -> None:
        """Have another function called before a cell runs."""
        with without_recompiling():
            handle = cell.register_forward_pre_hook(_pre_hook(uncast(before)), with_kwargs=True)
            self._handles.append(_Registered(cell, handle))

    def remove(self) -> None:
        """Remove every hook."""
        with without_recompiling():
            while self._handles:
                self._handles.pop().remove()


class ParameterHooks:
    """Hooks on parameters, one function a parameter, the same whenever it is hooked.

    MindSpore tells what it has compiled for a parameter (most optimizers) by the functions hooked
    on it: a new one each time would have it compile anew each time.
    """

    def __init__(self) -> None:
        self._functions: dict[int, tuple[weakref.ref[Any], Callable[[Any], Any]]] = {}
        self._takers: dict[int, Callable[[Any], Any]] = {}
        self._handles: list[Any] = []

    def add(self, parameter: Any, take: Callable[[Any], Any]) -> None:
        """Have `take` called with each gradient of a parameter.

        What it returns takes the gradient's place; None: nothing does.
        """
        key = id(parameter)
        known, function = self._functions.get(key, (None, None))
        if function is None or known is None or known() is not parameter:

            def function(gradient: Any) -> Any:
                take = self._takers.get(key)
                return None if take is None else take(gradient)

            self._functions[key] = weakref.ref(parameter), function
        self._takers[key] = take
        # After a backward pass that failed MindSpore no longer removes a hook: it is still there.
        if not any(hook is function for hook in parameter.hooks()):
            with without_recompiling():
                self._handles.append(parameter.register_hook(function))

    def remove(self) -> None:
        """Remove every hook."""
        with without_recompiling():
            while self._handles:
                self._handles.pop().remove()
        self._takers.clear()


class _Registered:
    """A hook of ours that MindSpore holds; a copy of the cell does not have it."""

    on_cells: ClassVar[set[_Registered]] = set()

    def __init__(self, cell: nn.Cell, handle: Any) -> None:
        self._cell = weakref.ref(cell)
        self._handle = handle
        self.number = int(handle.handle_id)  # what MindSpore calls it by
        self._end = left_out_of_copies(cell, self._leave_out)
        self.on_cells.add(self)

    def _leave_out(self, attributes: dict[str, Any]) -> None:
        for name in HOOKS:
            if self.number in (attributes.get(name) or ()):
                attributes[name] = OrderedDict(attributes[name])
                del attributes[name][self.number]

    def hold_off(self) -> Callable[[], None]:
        """Take it off and return what puts it back."""
        cell = self._cell()
        attributes = vars(cell) if cell is not None else {}
        before = {name: attributes[name] for name in HOOKS if name in attributes}
        self._leave_out(attributes)
        return lambda: attributes.update(before)

    def remove(self) -> None:
        """Remove it from the cell."""
        self.on_cells.discard(self)
        self._end()
        self._handle.remove()


@contextmanager
def no_hooks() -> Iterator[None]:
    """Hold off every hook of ours on cells: MindSpore would compile them into a graph."""
    with ExitStack() as ends:
        for hook in [*_Registered.on_cells]:
            ends.callback(hook.hold_off())
        yield


def has_hooks_of_others(cell: nn.Cell) -> bool:
    """Return whether somebody else's forward hooks are on a cell."""
    ours = {hook.number for hook in _Registered.on_cells}
    attributes = vars(cell)
    return any(number not in ours for name in HOOKS for number in attributes.get(name) or ())


class _NoHooks(OrderedDict):
    """A cell's forward hooks, none, which nevertheless make it run by `RUN`."""

    def __bool__(self) -> bool:
        return True


_ABSENT = object()


class _Runs:
    """Stands in for the method that runs a cell with its own bprop in PyNative mode.

    `Cell.register_forward_hook` silently ignores such a cell, and any hook put on it makes `ms.jit`
    fail to compile its gradient. Standing in for that method does neither, and its gradient stays
    what its bprop says. One serves all who watch the cell; with the last of them what stood there
    before comes back, as it was.
    """

    def __init__(self, cell: nn.Cell) -> None:
        self.watches: list[_Watch] = []
        self._cell = cell
        self._run = getattr(cell, RUN)
        self._hooks = _NoHooks()
        attributes = vars(cell)
        self._before = {name: attributes.get(name, _ABSENT) for name in (RUN, FORWARD_HOOKS)}
        attributes[RUN] = self
        if not getattr(cell, FORWARD_HOOKS, None):
            attributes[FORWARD_HOOKS] = self._hooks
        self._end = left_out_of_copies(cell, self._restore)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        watches = [] if _UNSEEN.on else [*self.watches]
        for watch in watches:
            args, kwargs = watch.before(self._cell, args, kwargs) or (args, kwargs)
        output = self._run(*args, **kwargs)
        for watch in reversed(watches):
            instead = watch.after(self._cell, output)
            output = output if instead is None else instead
        return output

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # A copy of the cell runs itself, unwatched.
        return MethodType(getattr(type(self._cell), RUN), memo[id(self._cell)])

    def end(self) -> None:
        """Give the cell back what stood there."""
        self._end()
        self._restore(vars(self._cell))

    def _restore(self, attributes: dict[str, Any]) -> None:
        if attributes.get(RUN) is self:
            _put(attributes, RUN, self._before[RUN])
        if attributes.get(FORWARD_HOOKS) is self._hooks and not len(self._hooks):
            _put(attributes, FORWARD_HOOKS, self._before[FORWARD_HOOKS])  # others' hooks stay


def _put(attributes: dict[str, Any], name: str, value: Any) -> None:
    if value is _ABSENT:
        attributes.pop(name, None)
    else:
        attributes[name] = value


class _Watch:
    """What a forward pre-hook and a forward hook are, on a cell with its own bprop."""

    def __init__(self, cell: nn.Cell, before: Before, after: After) -> None:
        self.before, self.after = before, after
        stands = vars(cell).get(RUN)
        self._runs = stands if isinstance(stands, _Runs) else _Runs(cell)
        self._runs.watches.append(self)

    def remove(self) -> None:
        """End to watch the cell."""
        self._runs.watches.remove(self)
        if not self._runs.watches:
            self._runs.end()


_PACKAGE = os.path.dirname(os.path.abspath(mindrlhf_msprobe.__file__)) + os.sep
_DEMO = os.path.join(_PACKAGE, "demo") + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INTERNAL_LIBRARY = ("contextlib.py", "runpy.py", "threading.py")


class CallStacks:
    """Formats the caller's stack, without MindSpore's frames; equal places are formatted once."""

    def __init__(self) -> None:
        self._marks = {id(code) for code in MARKS}  # a code's own hash takes long
        self._framework = os.path.join(os.path.dirname(os.path.abspath(mindspore.__file__)), "")
        self._shown: dict[str, bool] = {}
        self._texts: dict[tuple[str, int, str], str] = {}

    def here(self) -> tuple[tuple[str, ...], FrameType | None]:
        """Return the frames around the hook that asks, and the innermost that runs one of `MARKS`.

        Frames are texts as msprobe writes them, innermost first.
        """
        frames = []
        marked = None
        known = self._shown.get
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            shown = known(code.co_filename)
            if shown is None:
                shown = self._shown[code.co_filename] = not self._is_internal(code.co_filename)
            if shown:
                place = (code.co_filename, frame.f_lineno, code.co_name)
                text = self._texts.get(place)
                if text is None:
                    file, line, function = place
                    source = linecache.getline(file, line).strip()
                    text = f"File {file}, line {line}, in {function}, \n {source}"
                    self._texts[place] = text
                frames.append(text)
            elif marked is None and id(code) in self._marks:
                marked = frame
            frame = frame.f_back
        return tuple(frames), marked

    def _is_internal(self, file: str) -> bool:
        if file.startswith("<frozen"):
            return True
        path = os.path.abspath(file)
        if path.startswith(self._framework):
            return True
        if path.startswith(_PACKAGE):
            return not path.startswith(_DEMO)
        return path.startswith(_LIBRARY) and os.path.basename(path) in _INTERNAL_LIBRARY


def running_frame() -> FrameType | None:
    """Return the Python frame of MindSpore that runs the cell whose hook asks, if it is known."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name not in (RUN, "__call__"):
        frame = frame.f_back
    return frame


def encloses(outer: FrameType | None, inner: FrameType | None) -> bool:
    """Return whether `outer` is still running around `inner`; where that is not known, it is."""
    if outer is None or inner is None:
        return True
    frame: FrameType | None = inner
    while frame is not None and frame is not outer:
        frame = frame.f_back
    return frame is not None


_CALL: CodeType = nn.Cell.__call__.__code__

#: The functions of MindSpore that run a cell for the first time or once more.
MARKS = frozenset(code for code in (FIRST_RUN, RUN_AGAIN, ONLY_VALUES) if code is not None)


@dataclass
class _Region:
    """The calls inside one run of a recomputed cell, by what ran, in the order they began."""

    calls: dict[Hashable, deque[Call]] = field(default_factory=dict)
    repeated: bool = False


class Repetitions:
    """Remembers what ran inside recomputed cells, to know it again when it is repeated."""

    def __init__(self) -> None:
        self._regions: dict[tuple[int, int], _Region] = {}

    def first(self, frame: FrameType, of: Hashable, call: Call) -> None:
        """Note a call inside the first run.

        Args:
            frame: the innermost of `MARKS`.
            of: the id of the cell, or the name of the operator.
        """
        key = _key(frame, 0)
        region = self._regions.get(key)
        if region is None or region.repeated:
            region = self._regions[key] = _Region()
        region.calls.setdefault(of, deque()).append(call)

    def again(self, frame: FrameType, of: Hashable) -> Call | None:
        """Return the call that is being repeated, or None where no gradients flow through it."""
        if frame.f_code is not RUN_AGAIN:
            return None
        region = self._regions.get(_key(frame, 1))
        if region is None:
            return None
        region.repeated = True
        calls = region.calls.get(of)
        return calls.popleft() if calls else None


def given_again(call: Call, args: Any, kwargs: Any) -> str:
    """Return whether a call that is repeated is given what it was given in the first run.

    Random numbers are drawn again in between, so that it need not be. Elements tell: where those of
    the first call are not recorded, they are not brought to the host either.

    Returns:
        same, other or unknown.
    """
    values = call.line.values if call.line is not None else {}
    given = [values.get("input_args"), values.get("input_kwargs")]
    before = [leaf for _, leaf in described_leaves(given) if "shape" in leaf]
    if not before or not all("data_name" in leaf and leaf.get("fingerprint") for leaf in before):
        return "unknown"
    now: list[str] = []

    def note(tensor: Any, path: str) -> Leaf:
        now.append(fingerprint_of(to_host(tensor)))
        return Leaf("mindspore.Tensor")

    TreeDescriber(is_tensor, note).describe([args, kwargs], "")
    return "same" if now == [leaf["fingerprint"] for leaf in before] else "other"


def runs_again() -> bool:
    """Return whether the caller is called by a cell that MindSpore runs once more.

    What is called while the gradients of such a cell are computed, a hook, runs for the first time.
    """
    in_a_cell = False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code is _CALL:
            in_a_cell = True
        elif code is ONLY_VALUES or (in_a_cell and code is RUN_AGAIN):
            return True
        frame = frame.f_back
    return False


def _key(frame: FrameType, popped: int) -> tuple[int, int]:
    """Return which recomputed cell a frame runs, and which of its runs that are still due.

    Such a cell keeps the arguments of its runs on a stack, pushed before the first run and popped
    before the repetition.
    """
    cell = frame.f_locals["self"]
    return id(cell), len(cell.args) + popped
