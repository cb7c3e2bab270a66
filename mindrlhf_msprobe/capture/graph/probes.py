"""The probes of compiled graphs: what they stand for, and what running graphs call.

What passes in a graph reaches the host by calls of host functions, on Ascend by files. The path for
Ascend can be tried on CPU: with `MSPROBE_GRAPH_FILES=1` in the environment, a thread of the host
does there what TensorDump does. By files only the statistics are handed over, unless the tensors
themselves are recorded. With `MSPROBE_GRAPH_REDUCE=0` tensors leave the graph whole, and the host
makes statistics of them.

A call of a cell is opened by the host function that takes what it is given, which returns a number
for this very run of it; another takes what it returns, with that number, and closes it. Every
tensor is an array of its own: none is copied for it. `side_effect_io` keeps the probes of a forward
pass in the program's order. Gradients carry the number of the call they belong to, so theirs does
not matter.
"""

from __future__ import annotations

import ast
import enum
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import mindspore
import numpy as np
from mindspore import Tensor, ops
from mindspore.ops import functional as F

from mindrlhf_msprobe.capture.framework.generated_modules import load
from mindrlhf_msprobe.capture.framework.private import is_vectorised
from mindrlhf_msprobe.capture.tensors.summary import DTYPES
from mindrlhf_msprobe.capture.tensors.tree import (
    Path,
    TensorOutline,
    UnknownOutline,
    outline,
    values_in,
)
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage.arrays.float8 import FLOAT8
from mindrlhf_msprobe.storage.manifest.coverage import PASSES_PARAMETER
from mindrlhf_msprobe.storage.writing.ledger import GraphCost

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.graph.calls import Receiver
    from mindrlhf_msprobe.capture.graph.compiled import Values

#: Takes what probes hand over; called from any thread.
Taker: TypeAlias = "Receiver | Values"
#: MindSpore's dtypes that are handed over.
_HANDED_OVER = DTYPES.keys() - FLOAT8.keys()

MOST_TOGETHER = 400  # tensors of one call of a host function
_FAULT = message("lost.graph_handed_over")
#: The number that stands for a cell's where a probe belongs to none, but to key data.
NO_CELL = -1
DATA = "data"  # the part in which these stand


@dataclass(frozen=True)
class Site:
    """What one probe hands over.

    Attributes:
        cell: the cell's number; NO_CELL of what is saved as key data.
        part: input_args, input_kwargs, output, parameters, gradients, or "" for a call as a whole.
        path: where the tensor stands in that part.
        outline: the tensor's outline; of a call as a whole, that of its arguments or its output.
    """

    cell: int
    part: str
    path: Path
    outline: Any


class Sites:
    """Every probe that was compiled, by number, and who takes what they hand over.

    Attributes:
        receiver: the open phase, or None.
        values: takes what is saved as key data.
        gaps: cell number → every reason why something of the cell cannot be recorded, once.
        differentiated_outside: whether Python differentiates, in PyNative mode, what is compiled at
            this moment. MindSpore computes wrong gradients of the parameters of a cell that runs
            twice in it, where a cell with a bprop of its own, as a probe of gradients is, lies
            between: so it gets none.
        without_gradients: the numbers of the cells that were compiled so.
        compiled: the numbers of the cells that were compiled with their probes.
        cost: takes what host functions cost, of the run that was begun last.
        groups: the probes of each group, by number, in the order in which it was made.
        whole: the numbers of the cells of which elements are recorded, not only statistics.
        only_backward: whether what runs can only be the backward pass of jitted code that Python
            differentiates. MindSpore runs parts of the forward pass again in it, branches of an
            `if` for instance, and with them their probes.
    """

    def __init__(self) -> None:
        self.receiver: Receiver | None = None
        self.values: Values
        self.gaps: dict[int, dict[Message, None]] = {}
        self.differentiated_outside = False
        self.without_gradients: set[int] = set()
        self.compiled: set[int] = set()
        self.cost: GraphCost | None = None
        self.whole: set[int] = set()
        self.only_backward = False
        # Number 0 stands for a probe of nothing: what answers where nothing is compiled.
        self._sites: list[Site] = [Site(0, "", (), None)]
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.groups: list[list[Site]] = []
        self._group_numbers: dict[tuple[int, ...], int] = {}
        self._collecting: list[set[int]] = []
        self._lock = threading.Lock()

    def note_gap(self, cell: int, why: Message) -> None:
        """Note why something of a cell cannot be recorded; each reason is kept."""
        with self._lock:
            self.gaps.setdefault(cell, {})[why] = None

    def passes_parameter(self, cell: int) -> bool:
        """Return whether a cell takes or returns a Parameter: what came as its gradients is not."""
        return PASSES_PARAMETER in (why.code for why in self.gaps_of(cell))

    def gaps_of(self, cell: int) -> tuple[Message, ...]:
        """Return why something of a cell cannot be recorded, in the order in which it showed."""
        with self._lock:
            return tuple(self.gaps.get(cell, ()))

    @contextmanager
    def collecting(self) -> Iterator[set[int]]:
        """Collect the numbers of the cells whose probes are compiled meanwhile."""
        cells: set[int] = set()
        with self._lock:
            self._collecting.append(cells)
        try:
            yield cells
        finally:
            with self._lock:
                self._collecting = [known for known in self._collecting if known is not cells]

    def number(self, site: Site) -> int:
        """Return the number of a probe; equal ones share it."""
        if isinstance(site.outline, TensorOutline) and site.outline.dtype == "BFloat16":
            _numpy_bfloat16()  # not for the first time where a graph runs: MindSpore 2.10 hangs
        key = (site.cell, site.part, repr(site.path), repr(site.outline))
        with self._lock:
            number = self._numbers.setdefault(key, len(self._sites))
            if number == len(self._sites):
                self._sites.append(site)
                self.compiled.add(site.cell)
            if site.cell > 0:
                for known in self._collecting:
                    known.add(site.cell)
            return number

    def group(self, sites: Sequence[Site]) -> int:
        """Return the number of probes that hand over together."""
        numbers = tuple(map(self.number, sites))
        with self._lock:
            number = self._group_numbers.setdefault(numbers, len(self.groups))
            if number == len(self.groups):
                self.groups.append([self[n] for n in numbers])
            return number

    def __getitem__(self, number: int) -> Site:
        return self._sites[number]

    def taker_of(self, site: Site) -> Taker | None:
        """Return who takes what a probe hands over now; None where nobody does."""
        return self.values if site.cell == NO_CELL else self.receiver


SITES = Sites()


def array_of(number: int) -> np.ndarray:
    """Return a number as what a graph takes and hands over: shape (1,), int32."""
    return np.array([number], np.int32)


def number_in(array: np.ndarray) -> int:
    """Return the number that an array stands for."""
    return int(array[0])


_NOTHING = Tensor([0], mindspore.int32)
_cast, _reshape = ops.Cast(), ops.Reshape()


def as_array(tensor: Any) -> Any:
    """Return a tensor as one that reaches the host as an array: one without axes would not.

    MindSpore compiles it.
    """
    tensor = F.stop_gradient(tensor)
    if F.size(tensor) == 0:  # MindSpore cannot copy nothing
        return _NOTHING
    if F.rank(tensor) > 0:
        return tensor
    if F.dtype(tensor) == mindspore.bfloat16:  # not reshaped on CPU
        tensor = _cast(tensor, mindspore.float32)
    return _reshape(tensor, (1,))


# What the compiler asks.


class Question(mindspore.constexpr(lambda: None, get_instance=False)):  # type: ignore[misc]
    """A question that `answer` answers while MindSpore compiles, the answer being a constant.

    Attributes:
        in_python: the answer where Python runs the function that asks (`capture_mode="bytecode"`
            does, in part), and nothing is compiled: one that makes probes do nothing.
    """

    in_python: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Return what is answered where nothing is compiled."""
        return self.in_python

    def __infer__(self, *arguments: dict[str, Any]) -> dict[str, Any]:
        known = (outline(a["shape"], a["dtype"], a["value"]) for a in arguments)
        return {"shape": None, "dtype": None, "value": self.answer(*known)}

    def answer(self, *arguments: Any) -> Any:
        """Return the constant that stands in the graph."""


class _LeftAlone(Question):
    """Whether no probes can be compiled into the function that asks.

    Where Python runs the function, nothing is compiled; and MindSpore cannot vectorise probes.
    """

    in_python = True

    def answer(self, cell: int) -> bool:
        """Return whether none can; a cell that is left without probes has a gap."""
        if not cell:  # a copy of a watched one
            return True
        vectorised = is_vectorised()
        if vectorised:
            SITES.note_gap(cell, message("coverage.vectorised"))
        return vectorised


def kind_of(cell: int, value: Any) -> str:
    """Return how a value is visited; what cannot be handed over is noted as a gap of its cell.

    Args:
        value: its outline.

    Returns:
        tuple, list or dict; of a tensor parameter, tensor or differentiable; of all else leave.
    """
    if isinstance(value, TensorOutline) and value.dtype not in _HANDED_OVER:
        SITES.note_gap(cell, message("coverage.dtype", dtype=value.dtype))
        return "leave"
    if isinstance(value, TensorOutline):
        if value.is_parameter:
            return "parameter"
        if not value.has_gradient:
            return "tensor"
        if SITES.differentiated_outside:
            SITES.without_gradients.add(cell)
            return "tensor"
        return "differentiable"
    for inside in values_in(value):
        if isinstance(inside, UnknownOutline):
            SITES.note_gap(cell, inside.reason)
    kinds: dict[type, str] = {tuple: "tuple", list: "list", dict: "dict"}
    return kinds.get(type(value), "leave")


class _HoldsParameter(Question):
    """Whether a value is, or holds, a Parameter: it must not pass through a function.

    A function with side effects returns a copy, as far as MindSpore's gradient is concerned, and a
    Parameter that is changed in place would then have another gradient.
    """

    in_python = True

    def answer(self, cell: int, value: Any) -> bool:
        """Return whether it does."""
        holds = any(isinstance(v, TensorOutline) and v.is_parameter for v in values_in(value))
        if holds:
            SITES.note_gap(cell, Message(PASSES_PARAMETER))
        return holds


class _SiteNumber(Question):
    """The number of a probe, as an array."""

    in_python = Tensor(array_of(0))  # the probe of nothing

    def answer(self, cell: int, part: str, path: Path, value: Any) -> Tensor:
        return Tensor(array_of(SITES.number(Site(cell, part, path, value))))


LEFT_ALONE = _LeftAlone()
HOLDS_PARAMETER = _HoldsParameter()
SITE = _SiteNumber()


class Hands(enum.Enum):
    """What a host function takes beside tensors of one call.

    Members: ENTERED, a call that begins; MORE, nothing; LEFT, a call that ends.
    """

    ENTERED = "entered"
    MORE = "more"
    LEFT = "left"


# What the running graph calls. Nothing of it may raise: that would poison the executor for good.


def _received(take: Callable[..., int | None], site_of: Callable[..., Site]) -> Any:
    """Return a host function.

    Args:
        take: is given who takes what is handed over, and the arrays.
        site_of: returns the probe, or the first of them, by the arrays.
    """

    def called(*arrays: Any) -> np.ndarray:
        began, number = perf_counter(), 0
        site = site_of(*arrays)
        taker, cost = SITES.taker_of(site), SITES.cost
        if taker is not None:
            try:
                number = take(taker, *arrays) or 0
            except Exception as error:
                taker.fault(_FAULT, error)
        if cost is not None and site.cell != NO_CELL:
            size = sum(getattr(array, "nbytes", 0) for array in arrays)
            cost.called(perf_counter() - began, size)
        return array_of(number)

    return called


def _take_gradient(taker: Taker, call: np.ndarray, site: np.ndarray, elements: np.ndarray) -> None:
    number, of = number_in(call), SITES[number_in(site)]
    if number:
        taker.gradient(number, of, as_recorded(elements, of.outline))


def nothing_of(tensor: TensorOutline) -> np.ndarray:
    """Return the elements of an empty tensor."""
    return as_recorded(np.zeros(0, np.uint8), tensor)


def _group_in(arrays: Sequence[np.ndarray], hands: Hands) -> list[Site]:
    """Return the probes that hand over arrays together; the first may be that of the call."""
    return SITES.groups[number_in(arrays[0 if hands is Hands.ENTERED else 1])]


def _taking_call(hands: Hands) -> Callable[..., int]:
    """Return what takes tensors of one call, and that it begins or ends."""

    def take(taker: Taker, *given: np.ndarray) -> int:
        of_call, *tensors = sites = _group_in(given, hands)
        if hands is Hands.ENTERED:
            runs_again = SITES.only_backward and of_call.cell != NO_CELL
            call, arrays = 0 if runs_again else taker.opened(of_call), iter(given[1:])
        else:
            call, arrays = number_in(given[0]), iter(given[2:])
        for site in (sites if hands is Hands.MORE else tensors) if call else ():
            try:  # one that cannot be handed over does not keep back the others
                empty = 0 in site.outline.shape  # nothing was given to the host for it
                elements = nothing_of(site.outline) if empty else next(arrays)
                taker.tensor(call, site, as_recorded(elements, site.outline))
            except Exception as error:
                taker.fault(_FAULT, error)
        if hands is Hands.LEFT:
            taker.closed(call, of_call)
        return call if hands is Hands.ENTERED else 0

    return take


@functools.cache
def _numpy_bfloat16() -> np.dtype:
    """Return the dtype of bfloat16 arrays, which numpy itself does not have."""
    found: np.dtype = Tensor([0], mindspore.bfloat16).asnumpy().dtype
    return found


def as_recorded(elements: np.ndarray, tensor: TensorOutline) -> np.ndarray:
    """Return elements in the tensor's own shape and dtype, without a copy where they are held so.

    Args:
        elements: of any shape; bool also as bytes, bfloat16 also as float32.
    """
    if 0 in tensor.shape:  # no array of nothing is handed over, but a mark in its place
        elements = elements[:0].astype(tensor.dtype.lower() if tensor.dtype != "BFloat16" else "f")
    elements = elements.reshape(tensor.shape)
    if tensor.dtype == "Bool":
        return elements.view(np.bool_)
    if tensor.dtype == "BFloat16":
        return elements.astype(_numpy_bfloat16(), copy=False)
    return elements


def host_function(
    name: str,
    called: Callable[..., np.ndarray],
    arrays: int,
    *,
    in_order: bool = True,
    of_parameters: bool = False,
) -> ops.Custom:
    """Return what a graph calls: it takes arrays on the host and returns a number.

    Args:
        called: takes that many arrays; they are valid until it returns.
        in_order: whether its calls keep the program's order.
        of_parameters: whether what changes a parameter behind such a call in the program waits for
            it. MindSpore orders these by itself only where it sees that the parameter is read, and
            does not in the forward pass of what it differentiates.
    """
    taking = _taking(arrays)(called)
    taking.__name__ = taking.__qualname__ = name
    function = ops.Custom(taking, (1,), mindspore.int32, "pyfunc")
    if in_order:
        function.add_prim_attr("side_effect_io", True)
    if of_parameters:
        function.add_prim_attr("side_effect_mem", True)
    function.recompute(False)  # a recomputed cell hands over what it computed first
    return function


@functools.cache
def _taking(arrays: int) -> Callable[[Callable[..., np.ndarray]], Callable[..., np.ndarray]]:
    """Return what makes a function of so many arguments of one of any number.

    MindSpore 2.10 asks a function how many arrays it takes, and refuses `*arrays`; it wants its
    source, too.
    """
    names = ", ".join(f"array{i}" for i in range(arrays))
    source = f"def made(called):\n    def taking({names}):\n        return called({names})\n"
    made: Callable[[Callable[..., np.ndarray]], Callable[..., np.ndarray]]
    made = load(source + "\n    return taking\n").made
    return made


@functools.cache
def host_function_of(hands: Hands, tensors: int, *, of_parameters: bool = False) -> ops.Custom:
    """Return the host function that takes so many arrays of one call.

    Before them it takes the number of the call, unless that begins, and that of the group of its
    probes. The first site of the group stands for the call itself where it begins or ends.
    """
    take, numbers = _taking_call(hands), 1 if hands is Hands.ENTERED else 2
    name = f"msprobe_{hands.value}_{tensors}" + ("_parameters" if of_parameters else "")
    taking = _received(take, lambda *arrays: _group_in(arrays, hands)[0])
    return host_function(name, taking, tensors + numbers, of_parameters=of_parameters)


GRADIENT = host_function(
    "msprobe_gradient",
    _received(_take_gradient, lambda call, site, elements: SITES[number_in(site)]),
    3,
    in_order=False,
)


@dataclass(frozen=True)
class HandedOver:
    """A tensor that is handed over.

    Attributes:
        site: its probe's.
        source: the expression that is the tensor, where the function begins.
        name: the variable that holds it then.
        watched: whether its gradient is handed over, too.
    """

    site: Site
    source: str
    name: str
    watched: bool

    @property
    def passed(self) -> str:
        """The variable that holds what is passed on in the place of a watched tensor."""
        return f"passed_{self.name}"


#: A function that hands over: what its module begins with, its body, and its constants, which it is
#: called with as its last argument. All that is not the same for all cells whose values have the
#: same structure stands there.
Lines = tuple[Sequence[str], Sequence[str], tuple[Any, ...]]


class Visit:
    """Finds the tensors in the values of a cell's call, in the order in which they are handed over.

    Args:
        cell: the cell's number.
        gradients: whether the gradients of tensors are handed over, too.
        path: of what is saved as key data its name.

    Attributes:
        source, outline: what the call is given, or returns, as a whole: the expression, and its
            outline.
        path: see above.
        found: the tensors.
    """

    def __init__(
        self, cell: int, source: str, outline: Any, *, gradients: bool, path: Path = ()
    ) -> None:
        self.cell, self.source, self.outline, self.path = cell, source, outline, path
        self.found: list[HandedOver] = []
        self._gradients = gradients

    def passed_on(self, part: str, path: Path, value: Any, source: str) -> str:
        """Find the tensors in a value and return the expression of what is passed on for it.

        Args:
            value: its outline.
            source: the expression that is the value.
        """
        kind = kind_of(self.cell, value)
        if kind == "leave":
            return source
        if kind in ("tuple", "list", "dict"):
            items = [*(value.items() if kind == "dict" else enumerate(value))]
            if not all(_can_be_written(key) for key, _ in items):
                SITES.note_gap(self.cell, message("coverage.dict_keys"))
                return source
            sources = [f"{source}[{key!r}]" for key, _ in items]
            passed = [
                self.passed_on(part, (*path, key), item, item_source)
                for (key, item), item_source in zip(items, sources)
            ]
            # The value itself passes: a node behind it would group the sums of its gradient anew.
            if passed == sources:
                return source
            if kind == "dict":
                return "{" + ", ".join(f"{key!r}: {x}" for (key, _), x in zip(items, passed)) + "}"
            listed = ", ".join(passed)
            return f"[{listed}]" if kind == "list" else f"({listed},)"
        watched = kind == "differentiable" and self._gradients
        site = Site(self.cell, part, path, value)
        found = HandedOver(site, source, f"tensor{len(self.found)}", watched)
        self.found.append(found)
        return found.passed if watched else source


def _can_be_written(key: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(key)) == key)
    except (SyntaxError, ValueError):
        return False


FILES = "MSPROBE_GRAPH_FILES"
REDUCE = "MSPROBE_GRAPH_REDUCE"


@functools.cache
def stands_in() -> bool:
    """Return whether TensorDump is stood in for on a device that does not have it."""
    return os.environ.get(FILES) == "1" and not _on_ascend()


def writes_files() -> bool:
    """Return whether compiled graphs hand over by files."""
    return _on_ascend() or stands_in()


@functools.cache
def reduces() -> bool:
    """Return whether statistics are reduced in the graph where nothing else is recorded."""
    return writes_files() and os.environ.get(REDUCE) != "0"


def _on_ascend() -> bool:
    return bool(mindspore.get_context("device_target") == "Ascend")
