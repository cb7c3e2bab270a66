"""Calls of operators in open phases → entries, forward and backward.

An operator is known by the cell that is running around it in its thread. Its arguments are
described before it runs, what it returns afterwards: an operator may change what it is given.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from mindspore import Tensor, Type, ops

from mindrlhf_msprobe.capture.framework.hooks import Args, Kwargs
from mindrlhf_msprobe.capture.framework.private import FIRST_RUN, uncast
from mindrlhf_msprobe.capture.opening.observer import ObservedCall, OperatorCall
from mindrlhf_msprobe.capture.opening.opening import Call
from mindrlhf_msprobe.capture.operators.interception import intercepted
from mindrlhf_msprobe.capture.operators.inventory import Operator
from mindrlhf_msprobe.capture.pynative.gradients import Taps, with_taps
from mindrlhf_msprobe.capture.pynative.phase import CellRun, EagerCapture
from mindrlhf_msprobe.storage.operators import (
    MOST_ATTRIBUTES,
    Attributes,
    is_attribute,
    operator_entry,
    parse_operator,
)
from mindrlhf_msprobe.storage.writing.ledger import Counted

#: Methods that change the tensor they are called on, and return nothing.
_RETURN_NOTHING = frozenset(["__setitem__"])
#: Operators that may write into a parameter, which they take as nothing else.
_WRITES = re.compile(
    r"(?:assign|scatter|sparse|apply|fused|inplace|index_put|push|accumulate|\w*cache)",
    re.IGNORECASE,
)
_SIMPLE = (bool, int, float, str)


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
                network = capture.opening.root
                ends.enter_context(intercepted(self._handle, network=network, every_thread=True))
            self._ends = ends.pop_all()

    def close(self) -> None:
        """End to record."""
        self._ends.close()

    def _handle(
        self, operator: Operator, original: Callable[..., Any], args: Args, kwargs: Kwargs
    ) -> Any:
        around = [(capture, capture.around()) for capture in self._captures]
        if not (self._observed or any(run.operators for _, run in around)):
            return original(*args, **kwargs)
        if len(around) > 1:  # it belongs to the networks of which a cell is running
            around = [(c, run) for c, run in around if run is not c.outside] or around
        called = OperatorCall(operator, original, args, kwargs)
        calls = [
            call
            for capture, run in around
            if run.operators and (call := self._begin(capture, run, called))
        ]
        observed = self._observe(dict(around), calls, called) if self._observed else []
        tapped: dict[int, Tensor] = {}  # what it is given in the place of parameters, by their ids
        for call in calls:
            if call.gradients is not None:
                with call.opening.guard("lost.gradients"):
                    call.gradients.tap_parameters(tapped)
        try:
            if tapped:
                args, kwargs = with_taps(args, kwargs, tapped)
            output = original(*args, **kwargs)
        except BaseException:
            for guard, one in reversed(observed):
                with guard:
                    one.raised()
            for call in calls:
                with call.opening.guard("lost.operator_output"):
                    call.raised()
            raise
        for guard, one in reversed(observed):
            with guard:
                instead = one.ended(output)
                output = output if instead is None else instead
        shown = args[:1] if operator.name in _RETURN_NOTHING else output
        for call in reversed(calls):
            self._end(call, shown)
        return output

    def _observe(
        self, around: Mapping[EagerCapture, CellRun], calls: Sequence[Call], called: OperatorCall
    ) -> list[tuple[Counted, ObservedCall]]:
        """Tell every phase's observer of a call; return those that want to know its end."""
        known = {id(call.opening): call for call in calls}
        found = []
        for capture in self._captures:
            if (observer := capture.opening.observer) is None:
                continue
            call = known.get(id(capture.opening))
            shown = replace(
                called,
                entry=call.entry if call is not None and call.line is not None else None,
                around=around[capture].name if capture in around else "",
                repeats=call.entry if call is not None and call.repeats else None,
            )
            with (guard := capture.opening.guard(observer.lost)):
                if (one := observer.operator_begins(shown)) is not None:
                    found.append((guard, one))
        return found

    def _begun(self, capture: EagerCapture, run: CellRun, called: OperatorCall) -> Call | None:
        """Count a call and note what it is given; None where nothing of it is recorded."""
        opening, operator = capture.opening, called.operator
        args, kwargs = called.args, called.kwargs
        call = Call(opening, "", run.token, run.in_range, run.name)
        call.inside(run)
        with opening.guard("lost.operator_inputs"):
            name = _name_in_entries(operator, called.compute)
            full_name = f"{operator.kind}.{name}"
            stack, runs = capture.stacks.here()
            if runs is not None and runs.f_code is not FIRST_RUN:  # it is computed once more
                if (first := capture.repetitions.again(runs, full_name)) is not None:
                    capture.repeat(call, first, args, kwargs, _taps(operator))
            else:
                number = capture.count(full_name)
                call.begin(operator_entry(operator.kind, name, number))
                if call.traced and opening.backward:
                    if runs is not None:
                        capture.repetitions.first(runs, full_name, call)
                    capture.take_gradients(call, call.traced_parent, _taps(operator))
                if call.recorded:
                    attributes = attributes_of(operator.replaces or called.compute)
                    call.given(args, kwargs, frames=stack, attributes=attributes)
        if call.gradients is not None:
            with opening.guard("lost.gradients"):
                call.gradients.enter(args, kwargs)
        return call if call.line is not None or call.gradients is not None else None

    @staticmethod
    def _ended(call: Call, output: Any) -> None:
        """Note what an operator returned."""
        with call.opening.guard("lost.operator_output"):
            call.returned(output)


def _taps(operator: Operator) -> Taps:
    """Return how the tensors of an operator are tapped, by its name."""
    name = operator.name
    in_place = name.endswith("_") or name in ("assign", "assign_add", "assign_sub")
    if name.startswith("__"):
        in_place = name in _RETURN_NOTHING or (name[2] == "i" and name != "__invert__")
    parsed = parse_operator(operator_entry(operator.kind, name, 0))
    writes = _WRITES.match(name) is not None or bool(parsed and parsed.communicates)
    return Taps(in_place, parameters=not (in_place or writes))


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
