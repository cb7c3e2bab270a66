"""A second opinion on what is recorded, while it is computed (`task: accuracy_check`).

The chosen cells and operators are computed again in higher precision on the very inputs and
parameters, forward when they returned, backward when their gradients have come, and what was
computed is judged by it.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn

from mindrlhf_msprobe.capture.framework.private import uncast
from mindrlhf_msprobe.capture.networks.cells import named_cells
from mindrlhf_msprobe.capture.opening.observer import (
    CallObserver,
    CellCall,
    ObservedCall,
    OperatorCall,
)
from mindrlhf_msprobe.capture.operators.inventory import Operator
from mindrlhf_msprobe.capture.pynative.gradients import backward_name, gradients_flow
from mindrlhf_msprobe.capture.tensors.summary import is_tensor, to_host
from mindrlhf_msprobe.capture.tensors.tree import TreeDescriber
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.replay.precise.allowance import Judgement, Opinion, judge
from mindrlhf_msprobe.replay.precise.operators import leaves_of
from mindrlhf_msprobe.replay.precise.values import Precision, Value
from mindrlhf_msprobe.replay.python_state import PythonState
from mindrlhf_msprobe.replay.second_opinion.again import (
    CannotRunTwiceError,
    Drawn,
    SecondRun,
    construct_of,
    host_values,
    is_first_run,
    is_random,
    only_looks,
    precision_of,
)
from mindrlhf_msprobe.replay.second_opinion.constructs import has_librarys_bprop
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.operators import parse_operator

#: Takes what is thought of one call, as JSON.
Write = Callable[[Mapping[str, Any]], None]


@dataclass
class Turns:
    """Which calls are computed again, where the time of a step is bounded: the least seen first.

    Attributes:
        budget: seconds of each step; 0: no bound.
    """

    budget: float = 0.0
    _spent: float = 0.0
    _step: int = -1
    _seen: Counter[str] = field(default_factory=Counter)

    def takes(self, step: int, name: str) -> bool:
        """Return whether a call of a cell or operator is computed again."""
        if self.budget <= 0:
            return True
        if step != self._step:
            self._step, self._spent = step, 0.0
        known = name in self._seen
        if self._spent >= self.budget or (known and self._seen[name] > min(self._seen.values())):
            self._seen.setdefault(name, 0)
            return False
        self._seen[name] += 1
        return True

    def took(self, seconds: float) -> None:
        """Note what a computation took."""
        self._spent += seconds


@dataclass(eq=False)
class _Call:
    """A call that is computed again.

    Attributes:
        run: the second computation, kept until its gradients have come.
        arriving: gradients of outputs by the ids of those.
        leaving: of inputs: gradient, its part from after the call, whether it is more.
    """

    entry: str
    cell_name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    cell: nn.Cell | None = None
    state: PythonState | None = None
    operator: Operator | None = None
    original: Callable[..., Any] | None = None
    drawn: list[Drawn] = field(default_factory=list)
    output: Any = None
    outputs: list[Value | None] = field(default_factory=list)
    precision: Precision | None = None
    run: SecondRun | None = None
    overflowed: bool = False
    arriving: dict[int, Any] = field(default_factory=dict)
    leaving: dict[int, tuple[Any, Any, bool]] = field(default_factory=dict)


@dataclass
class _OfParameter:
    """What calls of one cell contribute to the gradient of a parameter."""

    entry: str
    cell_name: str
    record: str
    precision: Precision
    sums: list[np.ndarray]
    uses: int
    known: bool


class SecondOpinion(CallObserver):
    """Has the calls of one opening of a phase computed again, and judges them.

    Args:
        write: takes the opinions.
        place: `step`, `rank` and `phase`, which every line has.
        turns: decides what is computed again.
        dtype: what is computed in, `float64` or `float32`.
        declared: a floating dtype that all of it is declared to compute in; "": none.
    """

    lost = "lost.opinion"

    def __init__(
        self,
        write: Write,
        place: Mapping[str, Any],
        turns: Turns,
        *,
        dtype: str = "float64",
        declared: str = "",
    ) -> None:
        self._write = write
        self._place = dict(place)
        self._turns = turns
        self._dtype, self._declared = dtype, declared
        self._lock = threading.RLock()
        self._of_thread = threading.local()
        self._waiting: dict[str, _Call] = {}
        self._uses: Counter[int] = Counter()
        self._parameters: dict[int, Parameter] = {}
        self._shares: dict[int, dict[str, _OfParameter]] = {}
        self._arrived: dict[int, np.ndarray] = {}

    # --- what the recording tells --------------------------------------------------------------

    def cell_begins(self, call: CellCall) -> ObservedCall | None:
        """Hold what a cell that is computed again begins with."""
        if not self._turns.takes(self._place["step"], call.name):
            return None
        state = PythonState(named_cells(call.cell).values())
        held = _Call(
            call.entry, call.name, call.args, dict(call.kwargs), cell=call.cell, state=state
        )
        self._calls().append(held)
        return _RunningCell(self, held)

    def operator_begins(self, call: OperatorCall) -> ObservedCall:
        """Hold what an operator that is computed again begins with."""
        held = None
        if call.entry is not None and self._turns.takes(
            self._place["step"], f"{call.around}/{call.operator.full_name}"
        ):
            held = _Call(
                *(call.entry, call.around, call.args, dict(call.kwargs)),
                operator=call.operator,
                original=call.compute,
            )
            self._calls().append(held)
        return _RunningOperator(self, call, held)

    def _calls(self) -> list[_Call]:
        calls: list[_Call] | None = getattr(self._of_thread, "calls", None)
        if calls is None:
            calls = self._of_thread.calls = []
        return calls

    def operator_ran(self, call: OperatorCall, output: Any) -> None:
        """Keep what a random operator drew, and count the uses of parameters."""
        operator, args, kwargs = call.operator, call.args, call.kwargs
        if gradients_flow() and not only_looks(operator):
            returned = {id(leaf) for leaf in leaves_of(output)}  # a cast to the same dtype does so
            for leaf in leaves_of([args, kwargs]):
                if isinstance(leaf, Parameter) and id(leaf) not in returned:
                    self._used(leaf)
        calls = self._calls()
        if calls and is_random(operator):
            drawn = [host_values(x) if isinstance(x, Tensor) else x for x in leaves_of(output)]
            several = isinstance(output, (tuple, list))
            kept = operator.full_name, tuple(drawn) if several else drawn[0]
            for one in calls:
                one.drawn.append(kept)

    def _used(self, parameter: Parameter) -> None:
        if id(parameter) in self._arrived:  # of the backward pass before
            self._judge_parameter(id(parameter))
        self._uses[id(parameter)] += 1
        self._parameters[id(parameter)] = parameter

    def has_ended(self, call: _Call) -> None:
        """Take note that a call is running no longer."""
        calls = self._calls()
        while call in calls:
            calls.pop()

    def judge_output(self, call: _Call, output: Any) -> None:
        """Compute again what has returned, and judge what it returned."""
        self.has_ended(call)
        began = time.perf_counter()
        call.output = output
        try:
            judged = self._computed_again(call)
        except CannotRunTwiceError as error:
            self._say_none(call.entry, call, error.message, began)
            return
        except Exception as error:
            why = message("second.raised", error=f"{type(error).__name__}: {error}"[:300])
            self._say_none(call.entry, call, why, began)
            return
        if judged:
            self._say(call.entry, call, judged, began)
        if gradients_flow() or is_first_run():
            with self._lock:
                self._waiting[backward_name_of(call.entry)] = call
        else:
            call.run = None

    def gradient(
        self, entry: str, key: int, *, of_input: bool, gradient: Tensor, after: Any, whole: bool
    ) -> None:
        """Keep a gradient of a call that was computed again."""
        call = self._waiting.get(entry)
        if call is None:
            return
        if of_input:
            behind = None if after is None else np.array(to_host(after).values())
            call.leaving[key] = host_values(gradient), behind, whole
        else:
            call.arriving[key] = host_values(gradient)

    def gradients_ended(self, entry: str) -> None:
        """Judge the gradients of a call."""
        with self._lock:
            call = self._waiting.pop(entry, None)
        if call is None or call.run is None:
            return
        began = time.perf_counter()
        if call.cell is not None and has_librarys_bprop(call.cell):
            call.run = None
            self._say_none(entry, call, message("second.own_bprop"), began)
            return
        try:
            judged, stopped = self._judged_gradients(entry, call)
        finally:
            call.run = None
        if stopped and not judged:
            why = message("second.no_gradient", operators=", ".join(sorted(set(stopped))[:4]))
            self._say_none(entry, call, why, began)
        elif judged:
            self._say(entry, call, judged, began)

    def parameter_gradient(self, parameter: Parameter, gradient: Tensor) -> None:
        """Keep the gradient of a parameter until all calls it comes from are known."""
        if id(parameter) in self._arrived:
            self._judge_parameter(id(parameter))
        if id(parameter) in self._uses:
            self._arrived[id(parameter)] = host_values(gradient)

    def close(self) -> None:
        """Judge what is left."""
        for key in list(self._arrived):
            self._judge_parameter(key)
        self._waiting.clear()

    # --- forward -------------------------------------------------------------------------------

    def _computed_again(self, call: _Call) -> list[tuple[str, Judgement]]:
        precision = precision_of(
            call.cell, call.args, call.kwargs, call.output, declared=self._declared
        )
        call.precision = precision
        run = SecondRun(precision, call.drawn, seed=_seed(call.entry), dtype=np.dtype(self._dtype))
        if call.cell is not None:
            assert call.state is not None
            with call.state.as_they_were():
                outputs = run.run(construct_of(call.cell), call.args, call.kwargs, call.cell)
        else:
            assert call.operator is not None
            assert call.original is not None
            outputs = run.run_operator(call.operator, call.original, call.args, call.kwargs)
        call.run, call.state = run, None
        leaves = leaves_of(call.output)
        if len(leaves) != len(outputs):
            raise CannotRunTwiceError("second.other_outputs", first=len(leaves), again=len(outputs))
        call.outputs = outputs
        several = isinstance(call.output, tuple) and not hasattr(call.output, "_fields")
        results = list(call.output) if several else [call.output]
        paths = _paths(results, f"{call.entry}.output")
        judged = []
        for leaf, value in zip(leaves, outputs):
            if not isinstance(leaf, Tensor) or value is None:
                continue
            actual = host_values(leaf)
            found = judge(actual, value.exact, value.draws[1:], precision)
            found = _doubted(found, call)
            if value.floating and value.exact.size:
                most = np.max(np.abs(value.exact))
                call.overflowed |= not np.isfinite(most) or bool(most > precision.largest)
                call.overflowed |= not np.all(np.isfinite(actual))
            judged.append((paths.get(id(leaf), f"{call.entry}.output"), found))
        return judged

    # --- backward ------------------------------------------------------------------------------

    def _judged_gradients(
        self, entry: str, call: _Call
    ) -> tuple[list[tuple[str, Judgement]], list[str]]:
        run, precision = call.run, call.precision
        assert run is not None
        assert precision is not None
        arriving, complete = [], True
        for leaf, value in zip(leaves_of(call.output), call.outputs):
            gradient = call.arriving.get(id(leaf))
            if gradient is None:
                continue
            if value is None:
                complete = False
            elif value.floating:
                arriving.append((value, gradient))
        if not arriving:
            return [], []
        inputs = leaves_of([[*call.args], call.kwargs])
        wanted = {id(t): v for t, v in zip(inputs, run.inputs) if v is not None}
        parameters = dict(run.parameters)
        found = run.gradients(arriving, [*wanted.values(), *(v for _, v in parameters.values())])
        known = complete and not found.stopped_at
        paths = _paths([*call.args], f"{entry}.output") | _paths(call.kwargs, f"{entry}.output")
        returned = {id(leaf) for leaf in leaves_of(call.output)}
        judged = []
        for key, value in zip(wanted, found.of):
            if key not in call.leaving or key in returned or key in parameters:
                continue
            gradient, after, whole = call.leaving[key]
            if whole or not known:
                continue
            judged.append((paths[key], self._judged_gradient(call, gradient, after, value)))
        for (key, (parameter, _)), value in zip(parameters.items(), found.of[len(wanted) :]):
            self._share(entry, call, key, parameter, value, known and not run.unseen)
        return judged, found.stopped_at

    def _judged_gradient(
        self, call: _Call, gradient: np.ndarray, after: np.ndarray | None, value: Value | None
    ) -> Judgement:
        assert call.run is not None
        assert call.precision is not None
        precision = call.precision
        beside: np.ndarray | float = 0.0
        actual = np.asarray(gradient, np.float64)
        if after is not None:
            beside = precision.unit * np.maximum(np.abs(actual), np.abs(after))
            actual = actual - np.asarray(after, np.float64)
        if value is None:
            value = Value([np.zeros(actual.shape)] * 2)
        found = judge(actual, value.exact, value.draws[1:], precision, beside)
        return _doubted(found, call, call.arriving.values())

    def _share(
        self,
        entry: str,
        call: _Call,
        key: int,
        parameter: Parameter,
        value: Value | None,
        known: bool,
    ) -> None:
        """Add what a call contributes to the gradient of a parameter."""
        if not parameter.requires_grad:
            return
        assert call.run is not None
        assert call.precision is not None
        name = call.cell_name if call.cell is not None else entry
        shares = self._shares.setdefault(key, {})
        draws = [np.zeros(parameter.shape)] * 2 if value is None else value.draws
        uses = call.run.uses.get(key, 0)
        share = shares.get(name)
        if share is None:
            record = f"{entry}.parameters.{parameter.name}"
            shares[name] = _OfParameter(
                entry, call.cell_name, record, call.precision, [*draws], uses, known
            )
            return
        share.uses += uses
        share.known &= known and len(draws) == len(share.sums)
        if share.known:
            share.sums = [a + b for a, b in zip(share.sums, draws)]

    def _judge_parameter(self, key: int) -> None:
        """Judge a parameter's gradient by calls that make up all of its uses."""
        gradient = self._arrived.pop(key)
        uses, shares = self._uses.pop(key, 0), self._shares.pop(key, {})
        self._parameters.pop(key, None)
        for share in shares.values():
            if not share.known or share.uses != uses:
                continue
            began = time.perf_counter()
            found = judge(gradient, share.sums[0], share.sums[1:], share.precision)
            call = _Call(share.entry, share.cell_name, (), {}, precision=share.precision)
            self._say(share.entry, call, [(share.record, found)], began)

    # --- what is written -----------------------------------------------------------------------

    def _say(
        self, entry: str, call: _Call, judged: Sequence[tuple[str, Judgement]], began: float
    ) -> None:
        line = self._line(entry, call, began)
        self._write(line | {"tensors": [_as_json(name, one) for name, one in judged]})

    def _say_none(self, entry: str, call: _Call, why: Message, began: float) -> None:
        self._write(self._line(entry, call, began) | {"why": why.as_json()})

    def _line(self, entry: str, call: _Call, began: float) -> dict[str, Any]:
        seconds = time.perf_counter() - began
        self._turns.took(seconds)
        return {
            **self._place,
            "entry": entry,
            "cell": call.cell_name,
            "precision": "" if call.precision is None else call.precision.name,
            "seconds": round(seconds, 6),
        }


class _RunningCell(ObservedCall):
    """A call of a cell that is computed again."""

    def __init__(self, opinion: SecondOpinion, call: _Call) -> None:
        self._opinion, self._call = opinion, call

    def ended(self, output: Any) -> None:
        """Compute it again, and judge what it returned."""
        self._opinion.judge_output(self._call, output)

    def raised(self) -> None:
        """Forget it: there is nothing to judge."""
        self._opinion.has_ended(self._call)


class _RunningOperator(ObservedCall):
    """A call of an operator.

    Args:
        held: what it began with, where it is computed again.
    """

    def __init__(self, opinion: SecondOpinion, call: OperatorCall, held: _Call | None) -> None:
        self._opinion, self._call, self._held = opinion, call, held

    def ended(self, output: Any) -> None:
        """Take note of what it drew; compute it again, and judge what it returned."""
        uncast(self._look)(output)

    def _look(self, output: Any) -> None:
        self._opinion.operator_ran(self._call, output)
        if self._held is not None:
            self._opinion.judge_output(self._held, output)

    def raised(self) -> None:
        """Forget it: there is nothing to judge."""
        if self._held is not None:
            self._opinion.has_ended(self._held)


def backward_name_of(entry: str) -> str:
    """Return the backward entry of a forward entry of a cell or an operator."""
    operator = parse_operator(entry)
    if operator is None:
        return backward_name(entry)
    return f"{entry.removesuffix('.forward')}.backward"


def _seed(entry: str) -> int:
    return zlib.crc32(entry.encode())


def _doubted(found: Judgement, call: _Call, gradients: Iterable[np.ndarray] = ()) -> Judgement:
    """Return a judgement, undecided where it is wrong for what may be another reason."""
    assert call.run is not None
    if found.opinion is not Opinion.WRONG or found.reason == "shape":
        return found
    if call.run.unseen:
        return _undecided(found, "unseen")
    if call.run.tape.ties:
        return _undecided(found, "ties")
    given = [value.exact for value in call.run.inputs if value is not None]
    if any(np.isnan(array).any() for array in given):
        return _undecided(found, "given_not_finite")
    if not all(np.isfinite(array).all() for array in gradients):
        return _undecided(found, "given_not_finite")
    if found.reason == "not_finite" and call.overflowed:
        return _undecided(found, "overflowed")
    return found


def _undecided(found: Judgement, reason: str) -> Judgement:
    return replace(found, opinion=Opinion.UNDECIDED, reason=reason)


def _paths(value: Any, path: str) -> dict[int, str]:
    """Return the record's path of each tensor in a value, by the tensor's id: the first of it."""
    found: dict[int, str] = {}

    def note(tensor: Any, name: str) -> Any:
        found.setdefault(id(tensor), name)
        return {}

    describer = TreeDescriber(is_tensor, note, to_json=lambda leaf: {})
    describer.describe(value, path)
    return found


def _as_json(record: str, found: Judgement) -> dict[str, Any]:
    return {
        "record": record,
        "opinion": found.opinion.value,
        "ratio": number_to_json(found.ratio),
        "error": number_to_json(found.error),
        "explained": number_to_json(found.explained),
        "at": list(found.worst),
        "actual": number_to_json(found.actual),
        "exact": number_to_json(found.exact),
        "reason": found.reason,
    }
