"""Calls of operators in open phases → entries, forward and backward.

An operator is known by the cell that is running around it in its thread. Its arguments are
described before it runs, what it returns afterwards: an operator may change what it is given.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from mindspore import Tensor, Type, ops

from mindrlhf_msprobe.capture.framework.private import FIRST_RUN, uncast
from mindrlhf_msprobe.capture.opening.observer import ObservedCall, OperatorCall
from mindrlhf_msprobe.capture.opening.opening import Guarded
from mindrlhf_msprobe.capture.operators.interception import Interception
from mindrlhf_msprobe.capture.operators.inventory import Operator
from mindrlhf_msprobe.capture.pynative.gradients import CallGradients, backward_name, with_taps
from mindrlhf_msprobe.capture.pynative.phase import Around, EagerCapture
from mindrlhf_msprobe.capture.recompute import Call, given_again
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.operators import (
    MOST_ATTRIBUTES,
    Attributes,
    is_attribute,
    operator_entry,
    parse_operator,
)

#: Methods that change the tensor they are called on, and return nothing.
_RETURN_NOTHING = frozenset(["__setitem__"])
#: Operators that may write into a parameter, which they take as nothing else.
_WRITES = re.compile(
    r"(?:assign|scatter|sparse|apply|fused|inplace|index_put|push|accumulate|\w*cache)",
    re.IGNORECASE,
)
_SIMPLE = (bool, int, float, str)


@dataclass(eq=False, slots=True)
class _Open:
    """A call of an operator that is running, in one network's phase.

    Attributes:
        repeats: whether a recomputed cell calls it once more, for its gradients.
    """

    capture: EagerCapture
    entry: str = ""
    line: JournalLine | None = None
    gradients: CallGradients | None = None
    repeats: bool = False


class OperatorCalls:
    """Records the operators that are called while phases are open.

    Args:
        captures: what records each of the phases that are open together. An operator belongs to
            the networks whose cells are running around it; outside every cell to all of them.
    """

    def __init__(self, captures: Sequence[EagerCapture]) -> None:
        self._captures = captures
        self._ends = ExitStack()
        self._begin = uncast(self._begun)
        self._end = uncast(self._ended)
        self._observed = any(one.opening.observer is not None for one in captures)

    def open(self) -> None:
        """Begin to record; where that fails, nothing of MindSpore stays replaced.

        The cells of the phase are recorded all the same.
        """
        with self._captures[0].opening.guard("lost.operators"), ExitStack() as ends:
            for capture in self._captures:
                ends.enter_context(
                    Interception(self._handle, network=capture.network, every_thread=True)
                )
            self._ends = ends.pop_all()

    def close(self) -> None:
        """End to record."""
        self._ends.close()

    def _handle(
        self,
        operator: Operator,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        around = self._around()
        if not around:
            return original(*args, **kwargs)
        called = OperatorCall(operator, original, args, kwargs)
        calls = [
            call
            for capture, place in around
            if place.chosen and (call := self._begin(capture, place, called))
        ]
        observed = self._observe(dict(around), calls, called) if self._observed else []
        tapped = self._tap_parameters(calls)
        try:
            if tapped:
                args, kwargs = with_taps(args, kwargs, tapped)
            output = original(*args, **kwargs)
        except BaseException:
            self._all_raised(observed, calls)
            raise
        for guard, one in reversed(observed):
            with guard:
                instead = one.ended(output)
                output = output if instead is None else instead
        shown = args[:1] if operator.name in _RETURN_NOTHING else output
        for call in reversed(calls):
            self._end(call, shown)
        return output

    @staticmethod
    def _tap_parameters(calls: Sequence[_Open]) -> dict[int, Tensor]:
        """Return what an operator is given in the place of parameters, by their ids."""
        tapped: dict[int, Tensor] = {}
        for call in calls:
            if call.gradients is not None:
                with call.capture.opening.guard("lost.gradients"):
                    call.gradients.tap_parameters(tapped)
        return tapped

    def _around(self) -> list[tuple[EagerCapture, Around]]:
        """Return the captures to which a call belongs, and where it is in each; [] for none."""
        around = [(capture, capture.around()) for capture in self._captures]
        if not (self._observed or any(place.chosen for _, place in around)):
            return []
        if len(around) > 1:
            return [one for one in around if one[1].inside] or around
        return around

    def _all_raised(
        self, observed: Sequence[tuple[Guarded, ObservedCall]], calls: Sequence[_Open]
    ) -> None:
        """Tell observers, and note, that an operator raised."""
        for guard, one in reversed(observed):
            with guard:
                one.raised()
        for call in calls:
            self._raised(call)

    def _observe(
        self,
        around: Mapping[EagerCapture, Around],
        calls: Sequence[_Open],
        called: OperatorCall,
    ) -> list[tuple[Guarded, ObservedCall]]:
        """Tell every phase's observer of a call; return those that want to know its end."""
        entries = {call.capture: call.entry for call in calls if call.line is not None}
        repeated = {call.capture: call.entry for call in calls if call.repeats}
        found = []
        for capture in self._captures:
            if (observer := capture.opening.observer) is None:
                continue
            cell = around[capture].cell if capture in around else ""
            call = replace(
                called, entry=entries.get(capture), around=cell, repeats=repeated.get(capture)
            )
            with (guard := capture.opening.guard(observer.lost)):
                if (one := observer.operator_begins(call)) is not None:
                    found.append((guard, one))
        return found

    def _begun(self, capture: EagerCapture, place: Around, called: OperatorCall) -> _Open | None:
        """Count a call and note what it is given; None where nothing of it is recorded."""
        call = _Open(capture)
        operator, args, kwargs = called.operator, called.args, called.kwargs
        with capture.opening.guard("lost.operator_inputs"):
            full_name = f"{operator.kind}.{_name_in_entries(operator, called.compute)}"
            stack, runs = capture.stacks.here()
            if runs is not None and runs.f_code is not FIRST_RUN:  # it is computed once more
                self._repeat(call, place, called, full_name, runs)
            else:
                self._count(call, place, called, full_name, runs, stack)
            if call.line is not None and capture.opening.selection.inputs:
                describe, inputs = capture.opening.describe, f"{call.entry}.input"
                values = call.line.values
                values["input_args"] = [describe(a, f"{inputs}.{i}") for i, a in enumerate(args)]
                values["input_kwargs"] = describe(kwargs, inputs)
        if call.gradients is not None:
            with capture.opening.guard("lost.gradients"):
                call.gradients.enter(args, kwargs)
        return call if call.line is not None or call.gradients is not None else None

    def _repeat(
        self, call: _Open, place: Around, called: OperatorCall, full_name: str, runs: FrameType
    ) -> None:
        """Find out whose gradients an operator shows that a recomputed cell calls once more."""
        known = call.capture.repetitions.again(runs, full_name)
        if known is not None:
            call.entry = known.entry
            again = given_again(known, called.args, called.kwargs)
            call.gradients = self._gradients(call, place, called.operator, known.parent, again)
            call.repeats = call.gradients is not None

    def _count(
        self,
        call: _Open,
        place: Around,
        called: OperatorCall,
        full_name: str,
        runs: FrameType | None,
        stack: tuple[str, ...],
    ) -> None:
        """Count a call, and begin what is recorded of it."""
        opening = call.capture.opening
        number = call.capture.count(full_name)
        kind, _, name = full_name.partition(".")
        call.entry = entry = operator_entry(kind, name, number)
        if not place.in_range:
            return
        first = Call(entry, place.traced_parent)
        if opening.backward and opening.selection.may_begin(backward_name(entry)):
            call.capture.repetitions.first(runs, full_name, first)
            call.gradients = self._gradients(call, place, called.operator, place.traced_parent)
        if opening.selection.begin(entry) and opening.forward:
            call.line = opening.line(
                entry,
                opening.now(),
                None,
                place.parent,
                token=place.token,
                frames=stack,
                around=place.cell,
                attributes=attributes_of(called.operator.replaces or called.compute),
            )
            first.values = call.line.values

    def _gradients(
        self, call: _Open, place: Around, operator: Operator, parent: str | None, again: str = ""
    ) -> CallGradients | None:
        in_place = _is_in_place(operator)
        return call.capture.call_gradients(
            call.entry,
            parent,
            around=place.cell,
            in_place=in_place,
            taps_parameters=not (in_place or _may_write(operator)),
            recomputed=again,
        )

    def _ended(self, call: _Open, output: Any) -> None:
        """Note what an operator returned."""
        opening = call.capture.opening
        with opening.guard("lost.operator_output"):
            several = isinstance(output, tuple) and not hasattr(output, "_fields")
            results = list(output) if several else [output]
            if (line := call.line) is not None:
                if opening.selection.outputs:
                    line.values["output"] = opening.describe(results, f"{line.entry}.output")
                line.end = opening.now()
                call.capture.append(line)
            opening.selection.end(call.entry)
            if call.gradients is not None:
                call.gradients.leave(results)

    def _raised(self, call: _Open) -> None:
        """Hand over what is known of an operator that raised: it has no end and no output."""
        opening = call.capture.opening
        with opening.guard("lost.operator_output"):
            if call.gradients is not None:
                call.gradients.abandon()
            opening.selection.end(call.entry)
            if (line := call.line) is not None:
                if opening.selection.outputs:
                    line.values["output"] = []
                call.capture.append(line)


def _is_in_place(operator: Operator) -> bool:
    """Return whether an operator changes its first argument, by its name."""
    name = operator.name
    if name.startswith("__"):
        return name in _RETURN_NOTHING or (name[2] == "i" and name != "__invert__")
    return name.endswith("_") or name in ("assign", "assign_add", "assign_sub")


def _may_write(operator: Operator) -> bool:
    """Return whether an operator may write into parameters that it is given, by its name."""
    name = operator_entry(operator.kind, operator.name, 0)
    parsed = parse_operator(name)
    return _WRITES.match(operator.name) is not None or bool(parsed and parsed.communicates)


def _name_in_entries(operator: Operator, original: Callable[..., Any]) -> str:
    """Return what an operator is called: a primitive by its cell's attribute and its class."""
    if operator.kind != "Primitive":
        return operator.name
    primitive = getattr(original, "__self__", None)
    if not isinstance(primitive, ops.Primitive):  # a function that stands in the place of one
        return f"{operator.held or operator.name}.{operator.name}"
    held = vars(primitive).get("instance_name")
    return f"{held if held and isinstance(held, str) else operator.name}.{operator.name}"


def attributes_of(original: Callable[..., Any]) -> Attributes | None:
    """Return what a primitive was made with, by the names of its class's arguments.

    An attribute that was set to another value of the same type since counts as it is now. What is
    neither a bool, a number, a text, a dtype, None nor a list of these is left out.

    Args:
        original: what is called, or the primitive itself.

    Returns:
        None where that is no primitive.
    """
    primitive = getattr(original, "__self__", original)
    if not isinstance(primitive, ops.Primitive):
        return None
    held = vars(primitive)
    given = held.get("init_attrs")
    if not isinstance(given, dict):
        return None
    found = {}
    for name, value in itertools.islice(given.items(), MOST_ATTRIBUTES):
        now = held.get(name, value)
        plain = _plain(now if type(now) is type(value) and type(value) in _SIMPLE else value)
        if is_attribute(plain):
            found[name] = plain
    return found


def _plain(value: Any) -> Any:
    """Return the value of an attribute as JSON has it; an object that JSON has not stays."""
    if isinstance(value, Type):
        return {"dtype": str(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value
