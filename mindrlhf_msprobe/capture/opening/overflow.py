"""task: overflow_check: the elements of entries in which something non-finite arose, and no others.

The rule is that of `check` (checks/rules/non_finite): an entry whose inputs and parameters are
finite and whose output is not, unless that came from an entry inside it. -inf alone in a forward
pass is what masks are made of: a cell that makes it is an origin only once NaN has come of it, and
not where -inf is what it makes beside nothing but 0, or made in an earlier step. What is non-finite
already when it enters the network, or comes out of an optimizer, belongs to the first entry that
has it.

An entry's tensors are held until it ends. Gradients end in no fixed order, and -inf shows only
later what becomes of it: such entries wait, and all that come after them, so that entries are
written in the order in which they ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mindrlhf_msprobe.capture.tensors.summary import HostTensor, fingerprint_of, local_of, to_host
from mindrlhf_msprobe.capture.tensors.tree import described_leaves
from mindrlhf_msprobe.common.message import SpokenError, message
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.operators import parse_operator
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, cell_name, direction_of
from mindrlhf_msprobe.storage.writing.background import ArrayCopy, BufferPool
from mindrlhf_msprobe.storage.writing.ledger import FaultSink

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.opening.opening import StepCounters
    from mindrlhf_msprobe.storage.writing.writer import Sink

_SMALL = 1 << 16  # bytes; what is smaller is copied in any case, and not counted


class NotHeldError(SpokenError):
    """The elements of a tensor that are to be written are not held any more; counted by why."""


class Held:
    """A tensor that is held for one record or several.

    Attributes:
        tensor: None once it has been given up.
        size: bytes that are held for it.
        fingerprint: of the elements; None where nobody else can write into `tensor`.
        copy: what the pool takes back, of a copy.
        users: records whose entries have not ended.
    """

    __slots__ = ("copy", "fingerprint", "size", "tensor", "users")

    def __init__(self, tensor: Any, size: int, fingerprint: str | None = None) -> None:
        self.tensor, self.size, self.fingerprint = tensor, size, fingerprint
        self.copy: ArrayCopy | None = None
        self.users = 1

    def elements(self) -> HostTensor:
        """Return the tensor as it was when it was described.

        Raises:
            NotHeldError: it was given up, or has been written in place since.
        """
        if self.tensor is None:
            raise NotHeldError.saying("lost.not_held")
        host = to_host(self.tensor)
        may_differ = self.copy is None and self.fingerprint is not None
        if may_differ and fingerprint_of(host) != self.fingerprint:
            raise NotHeldError.saying("lost.overwritten")
        return host


class Holder:
    """Holds tensors within a budget until it is known whether their elements are to be written.

    They are to be written as they were when they were described. What may be written in place
    before its entry ends is copied, into buffers that are used again; the rest is held where it is,
    and its fingerprint is computed once more before it is written. Where the budget is used up,
    what came first is given up: what the outermost cells were given. May be used by several
    threads.

    Args:
        budget: bytes.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._pool = BufferPool(budget)
        self._held: dict[Held, None] = {}  # in the order in which they are given up
        self._copies: dict[str, Held] = {}  # by fingerprint
        self._size = 0
        self._lock = threading.RLock()

    def has_room(self, size: int) -> bool:
        """Return whether so many bytes fit in without anything being given up."""
        return self._size + size <= self._budget

    def hold(
        self, host: HostTensor, fingerprint: str, *, changes: bool, lives: bool
    ) -> Held | HostTensor:
        """Hold a tensor in host memory; what is small is returned as it is to be written.

        Args:
            changes: whether it may be written in place before its entry ends.
            lives: whether it would be there as long without being held, and so is not counted.
        """
        array = host.array
        if array.nbytes < _SMALL:
            if type(array.base) is bytes:  # a copy already
                return host
            return replace(host, array=np.array(array, order="C"))
        with self._lock:
            if lives:
                return Held(host, 0, fingerprint)
            if not changes:
                return self._add(Held(host, array.nbytes, fingerprint))
            known = self._copies.get(fingerprint)
            if known is not None:
                known.users += 1
                return known
            held = self._add(Held(host, self._pool.size_for(array), fingerprint))
            if held.tensor is not None:
                held.copy = self._pool.copy(array)
                held.tensor = replace(host, array=held.copy.array)
                self._copies[fingerprint] = held
            return held

    def hold_on_device(self, tensor: Any, copy: Callable[[Any], Any]) -> Held:
        """Hold a copy of a tensor that stays where the tensor is.

        What is on a device is looked at much later, and may have been written in place by then.
        """
        held = Held(None, local_of(tensor).nbytes)
        with self._lock:
            self._add(held)
            if held in self._held:
                held.tensor = copy(tensor)
        return held

    def keep(self, held: Held) -> None:
        """Give up all others before this one."""
        with self._lock:
            if held in self._held:
                del self._held[held]
                self._held[held] = None

    def release(self, held: Held) -> None:
        """Note that one record more does not need a tensor any longer."""
        with self._lock:
            held.users -= 1
            if not held.users:
                self._drop(held)

    def _add(self, held: Held) -> Held:
        while held.size <= self._budget and not self.has_room(held.size):
            self._drop(next(iter(self._held)))
        if self.has_room(held.size):
            self._held[held] = None
            self._size += held.size
        else:
            held.tensor = None
        return held

    def _drop(self, held: Held) -> None:
        if held not in self._held:
            return
        del self._held[held]
        self._size -= held.size
        held.tensor = None
        if held.copy is not None:
            del self._copies[held.fingerprint or ""]
            self._pool.release(held.copy)
            held.copy = None


#: Where a leaf's JSON has the name of its record and what is held of it, until its entry is handed
#: on.
HELD = "msprobe held"
_GIVEN = ("input_args", "input_kwargs", "input")
_MADE = ("output", "output_kwargs")
_PARAMETERS = "parameters"
_HARD, _SOFT = "hard", "soft"

#: A leaf's JSON, the name of its record, and what is held of it.
_HeldLeaf = tuple[dict[str, Any], str, "Held | HostTensor"]


class Overflows:
    """What one process knows of its run: how many origins are to be written, and what is held.

    Args:
        most: origins of which elements are written; below 0: all.
        buffer_bytes: for what is held.
    """

    def __init__(self, most: int, buffer_bytes: int) -> None:
        self._left: float = most if most >= 0 else float("inf")
        self._logged = False
        self._last: int | None = None  # the last step that had something non-finite
        self._began = 0  # the moment in which that began which has been in all steps since
        self.holder = Holder(buffer_bytes)
        self.masks: dict[str, int] = {}  # cell → the step in which it made -inf first

    @property
    def wanted(self) -> bool:
        """Whether elements of further origins are written, so that tensors are to be held."""
        return self._left > 0

    def count(self, entry: str, step: int) -> None:
        """Count an origin; the first one is logged."""
        self._left -= 1
        if not self._logged:
            self._logged = True
            warn("log.overflow", entry=entry, step=step)

    def note(self, moment: int, step: int) -> None:
        """Note something non-finite; a step without any in between ends what had begun."""
        if self._last is None or step - self._last > 1:
            self._began = moment
        self._began = min(self._began, moment)
        self._last = step

    def is_first(self, moment: int, step: int) -> bool:
        """Return whether nothing non-finite precedes a moment, in its step or the one before."""
        return self._last is None or step - self._last > 1 or moment <= self._began

    def makes_mask(self, cell: str, step: int) -> bool:
        """Return whether a cell made -inf in an earlier step; note that it does in this one."""
        if cell not in self.masks and len(self.masks) < 10_000:
            self.masks[cell] = step
        return self.masks.get(cell, step) < step


@dataclass(eq=False, slots=True)
class _Ended:
    """An entry that ended.

    Attributes:
        held: its tensors.
        head, direction, call: what its name consists of.
        hard: the parts of it with NaN or an infinity, other than the -inf of masks.
        soft: those with nothing but such a -inf.
        zeros: whether its outputs with -inf hold nothing else but 0.
    """

    line: JournalLine
    held: list[_HeldLeaf]
    head: str = ""
    direction: str = ""
    call: str = ""
    hard: set[str] = field(default_factory=set)
    soft: set[str] = field(default_factory=set)
    zeros: bool = True

    def __post_init__(self) -> None:
        if operator := parse_operator(self.line.entry):
            self.head, self.direction = operator.operator, operator.direction
            self.call = str(operator.call)
        else:
            self.head, self.direction, self.call = self.line.entry.rsplit(".", 2)

    @property
    def end(self) -> int:
        """When it ended; of a cell that did not return, when it began."""
        return self.line.seq if self.line.end is None else self.line.end

    @property
    def given(self) -> bool:
        """Whether it was given something hard."""
        return not self.hard.isdisjoint(_GIVEN)

    @property
    def made(self) -> bool:
        """Whether something hard came out of it, and nothing that is recorded went in."""
        return not (self.hard.isdisjoint(_MADE) or self.given)

    @property
    def knows_inputs(self) -> bool:
        """Whether what it was given is recorded."""
        return any(part in self.line.values for part in _GIVEN)


class OverflowEntries:
    """Takes the entries of one opening of a phase, and writes the elements of some.

    Args:
        sink: takes entries and elements.
        overflows: of the run.
        counters: of the phase and step.
        step: the step.
        fault: called with what could not be written.

    Attributes:
        run: what is known of the run.
    """

    def __init__(
        self, sink: Sink, overflows: Overflows, counters: StepCounters, step: int, fault: FaultSink
    ) -> None:
        self.run = overflows
        self._sink, self._step, self._fault = sink, step, fault
        self._bad = counters.hard_parameters
        self._explained: set[str] = set()  # origins, and the entries around them
        self._soft: set[str] = set()  # entries that made -inf, and those around them
        self._hard_calls: set[tuple[str, str]] = set()  # with something hard in their forward entry
        self._hard_cells: set[str] = set()  # the cells of those calls
        self._finite_backward: set[str] = set()  # entries
        self._given: set[str] = set()  # cells to which a hard gradient came
        self._gradients: list[_Ended] = []  # hard ones that wait
        self._mask: _Ended | None = None  # the first that made -inf and is no mask
        self._waiting: list[JournalLine] = []
        self._lock = threading.RLock()

    def hold(
        self, record: str, host: HostTensor, fingerprint: str | None
    ) -> Held | HostTensor | None:
        """Hold a tensor of the host that was described; None where that is of no use any more."""
        if not self.run.wanted or fingerprint is None:
            return None
        forward = ".forward." in record
        changes = forward and ".input." in record
        # Parameters stay, and outputs are handed on by the hook that described them.
        lives = forward and not changes
        return self.run.holder.hold(host, fingerprint, changes=changes, lives=lives)

    def append(self, line: JournalLine) -> None:
        """Take an entry that ended."""
        held: list[_HeldLeaf] = []
        finite = not _take_out(line.values, held)
        if finite and direction_of(line.entry) == "backward":
            self._finite_backward.add(line.entry)
        if finite and not (self._bad or self._gradients):
            self._release(held)
            if not self._waiting:
                self._sink.append(line)
                return
            held = []
        ended = _Ended(line, held)
        with self._lock:  # something in it, or before it, is not finite
            self._look_at(ended)
            if not (self.run.wanted and self._take(ended)):
                self._release(ended.held)
            self._waiting.append(line)
            self._hand_on(all_of_them=len(self._waiting) > 4096)

    def flush(self) -> None:
        """Decide what is still open, and hand on all entries."""
        with self._lock:
            self._hand_on(all_of_them=True)

    def _hand_on(self, *, all_of_them: bool = False) -> None:
        if all_of_them:
            self._resolve()
            self._settle_mask(origin=False)
        if not self._gradients and self._mask is None:
            waiting, self._waiting = self._waiting, []
            for line in waiting:
                self._sink.append(line)

    def _look_at(self, ended: _Ended) -> None:
        """Find out which parts of an entry are not finite."""
        forward = ended.direction == "forward"
        for part, structure in ended.line.values.items():
            for _, leaf in described_leaves(structure):
                kind = _kind(leaf)
                if kind == _SOFT and forward and part != _PARAMETERS:
                    ended.soft.add(part)
                    ended.zeros &= part not in _MADE or leaf.get("Max") == 0
                elif kind is not None:
                    ended.hard.add(part)
        if forward:
            for name, leaf in (ended.line.values.get(_PARAMETERS) or {}).items():
                if _kind(leaf) is not None:
                    self._bad.setdefault(ended.head, set()).add(name)
                elif ended.head in self._bad:
                    self._bad[ended.head].discard(name)

    def _take(self, ended: _Ended) -> bool:
        """Find out whether an entry is an origin; True where only later ones tell."""
        if ended.direction == "forward":
            if self._gradients:  # they came before it
                self._resolve()
                self._hand_on()
            return (ended.hard or ended.soft or self._is_bad(ended)) and self._forward(ended)
        if not ended.hard:
            return False
        if ended.direction == "backward" and ended.given:
            self._given.add(ended.head)
        self._keep(ended.held)
        self._gradients.append(ended)
        self.run.note(ended.line.seq if ended.given else ended.end, self._step)
        return True

    def _is_bad(self, ended: _Ended) -> bool:
        return bool(self._bad.get(ended.head))

    def _forward(self, ended: _Ended) -> bool:
        line, bad = ended.line, self._is_bad(ended)
        waits = False
        if ended.hard or bad:
            self._hard_calls.add((ended.head, ended.call))
            self._hard_cells.add(ended.head)
            if self._is_origin(ended):
                if not ended.soft.isdisjoint(_GIVEN):
                    self._settle_mask(origin=True)
                self._write(ended)
            elif bad:
                self._explained.add(line.entry)
            self.run.note(line.seq if ended.given or bad else ended.end, self._step)
            _mark_around(line, self._explained)
        elif not ended.soft.isdisjoint(_MADE):
            if ended.soft.isdisjoint(_GIVEN):
                # Of finite values: the first that may turn out to be an origin waits for it.
                known = self.run.makes_mask(cell_name(line.entry), self._step)
                other = ended.zeros or line.entry in self._soft or self._mask is not None
                waits = not (known or other)
            if waits:
                self._keep(ended.held)
                self._mask = ended
            self._soft.add(line.entry)
        _mark_around(line, self._soft)
        return waits

    def _is_origin(self, ended: _Ended) -> bool:
        """Return whether something non-finite was made in an entry, or enters with it."""
        line, bad = ended.line, self._is_bad(ended)
        if line.entry in self._explained:
            return False
        if ended.made and ended.knows_inputs and not bad:
            return ended.direction == "forward" or (ended.head, ended.call) not in self._hard_calls
        moment = line.seq if ended.given or bad else ended.end
        enters = bad or line.parent is None or not ended.knows_inputs
        return enters and self.run.is_first(moment, self._step)

    def _settle_mask(self, *, origin: bool) -> None:
        """Decide on the entry that made -inf and waits."""
        mask, self._mask = self._mask, None
        if mask is not None:
            if origin:
                self._write(mask)
            self._release(mask.held)

    def _resolve(self) -> None:
        """Decide which of the gradients that wait are origins, the first to end first."""
        gradients, self._gradients = self._gradients, []
        origins: set[str] = set()  # cells
        finite: set[str] = set()  # cells and operators with a finite backward entry
        for entry in self._finite_backward if gradients else ():
            operator = parse_operator(entry)
            finite.add(operator.operator if operator else entry.rsplit(".", 2)[0])
        for ended in sorted(gradients, key=lambda one: (one.end, -one.line.seq)):
            if ended.direction == PARAMETERS_GRAD:
                alone = ended.head in finite or self.run.is_first(ended.end, self._step)
                if alone and ended.head not in self._given | self._hard_cells | origins:
                    self._write(ended)
            elif self._is_origin(ended):
                origins.add(ended.head)
                self._write(ended)
            _mark_around(ended.line, self._explained)
            self._release(ended.held)

    def _write(self, ended: _Ended) -> None:
        """Write the elements of an origin."""
        self._explained.add(ended.line.entry)
        if not (ended.held and self.run.wanted):
            return
        self.run.count(ended.line.entry, self._step)
        for leaf, record, held in ended.held:
            try:
                host = held.elements() if isinstance(held, Held) else held
                array = host.values()
                leaf["data_name"] = self._sink.save(record, array, leaf.get("fingerprint"))
            except Exception as error:
                self._fault(message("lost.overflow"), error)

    def _keep(self, tensors: list[_HeldLeaf]) -> None:
        for _, _, held in tensors:
            if isinstance(held, Held):
                self.run.holder.keep(held)

    def _release(self, tensors: list[_HeldLeaf]) -> None:
        for _, _, held in tensors:
            if type(held) is Held:
                self.run.holder.release(held)
        tensors.clear()


def _mark_around(line: JournalLine, marked: set[str]) -> None:
    """Mark the entry around one that is marked."""
    if line.parent is not None and line.entry in marked:
        marked.add(line.parent)


def _take_out(content: Any, held: list[_HeldLeaf]) -> bool:
    """Take what is held out of a structure's leaves; return whether one of them is not finite."""
    if type(content) is dict:
        if type(content.get("type")) is str:
            tensor = content.pop(HELD, None)
            if tensor is not None:
                held.append((content, *tensor))
            return _kind(content) is not None
        content = content.values()
    elif type(content) is not list:
        return False
    found = False
    for item in content:
        if _take_out(item, held):
            found = True
    return found


def _kind(leaf: dict[str, Any]) -> str | None:
    """Return what of a leaf is not finite: nothing, -inf alone, or anything else."""
    if leaf.get("nan_count"):
        return _HARD
    if leaf.get("inf_count"):
        return _HARD if leaf.get("Max") == "Infinity" else _SOFT
    if leaf["type"] == "float" and isinstance(leaf.get("value"), str):  # a number of Python
        return _HARD
    return None
