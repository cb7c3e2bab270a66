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
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Parameter, Tensor

from mindrlhf_msprobe.capture.framework.private import gradients_flow, uncast
from mindrlhf_msprobe.capture.opening.observer import CellCall, OperatorCall
from mindrlhf_msprobe.capture.opening.opening import backward_name
from mindrlhf_msprobe.capture.tensors.summary import is_tensor
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.phases import Phase
from mindrlhf_msprobe.replay import second_run
from mindrlhf_msprobe.replay.held import (
    CannotRepeatError,
    Drawn,
    Repeating,
    Running,
    State,
    said_where_it_raises,
)
from mindrlhf_msprobe.replay.judged_call import JudgedCall, ParameterOpinions, Share
from mindrlhf_msprobe.replay.kinds import draws, in_place
from mindrlhf_msprobe.replay.precise.allowance import Judgement, Opinion, by_reach, judge
from mindrlhf_msprobe.replay.precise.tape import Gradients, Precision, fitted
from mindrlhf_msprobe.replay.precise.values import Value, leaves_of, replaced
from mindrlhf_msprobe.storage.step_lines import TensorOpinion, opinion_lines

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.recording.recorder import Recorder


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


class SecondOpinion(Repeating):
    """Has the calls of one opening of a phase computed again, and judges them.

    Args:
        config: what is computed in, and what all of it is declared to compute in.
        place: `step`, `rank` and `phase`, which every line has.
        turns: decides what is computed again.
        write: takes the opinions.
    """

    lost = "lost.opinion"

    def __init__(
        self,
        config: ProbeConfig,
        place: Mapping[str, Any],
        turns: Turns,
        write: Callable[[Sequence[Mapping[str, Any]]], object],
    ) -> None:
        super().__init__()
        self._write = write
        self._place = dict(place)
        self._turns = turns
        self._dtype, self._declared = np.dtype(config.precision), config.compute_dtype
        self._lock = threading.RLock()
        self._waiting: dict[str, JudgedCall] = {}
        self._to_repeat: set[str] = set()  # forward entries
        self._parameters = ParameterOpinions(self._say_of_parameter)

    # --- what the recording tells --------------------------------------------------------------

    def cell_begins(self, call: CellCall) -> Running | None:
        """Hold what a cell that is computed again begins with."""
        if not self._turns.takes(self._place["step"], call.name):
            return None
        return self._hold(JudgedCall(call.entry, call))

    def cell_repeats(self, call: CellCall) -> Running | None:
        """Hold what a recomputed cell begins its second run with: gradients come through it."""
        if call.entry not in self._to_repeat:
            return None
        self._to_repeat.discard(call.entry)
        return self._hold(JudgedCall(call.entry, call, repeats=True))

    def operator_begins(self, call: OperatorCall) -> Running:
        """Hold what an operator that is computed again begins with."""
        entry = call.entry
        name = f"{call.around}/{call.operator.full_name}"
        if entry is not None and not self._turns.takes(self._place["step"], name):
            entry = None
        repeats = entry is None and call.repeats in self._to_repeat
        if repeats:
            entry = call.repeats
            self._to_repeat.discard(call.repeats)
        if entry is None:
            return Running(self, call, None)
        written = call.args[0] if call.args and in_place(call.operator.name) else None
        is_tensor = isinstance(written, Tensor) and not isinstance(written, Parameter)
        before = second_run.host_values(written) if is_tensor else None
        return self._hold(JudgedCall(entry, call, before=before, repeats=repeats))

    def _hold(self, held: JudgedCall) -> Running:
        self.running.append(held)
        return Running(self, held.call, held)

    def ended(self, call: CellCall | OperatorCall, held: JudgedCall | None, output: Any) -> None:
        """Take note of what an operator did; compute again what is held, and judge it."""

        def look() -> None:
            if isinstance(call, OperatorCall):
                self._operator_ran(call, output, held)
            if held is not None:
                self.end(held)
                self._judge_output(held, output)

        look() if isinstance(call, CellCall) else uncast(look)()

    def _operator_ran(self, call: OperatorCall, output: Any, held: JudgedCall | None) -> None:
        """Tell the calls around an operator what it did, and whether it is looked at alone."""
        computes, is_random = second_run.computes_floats(call, output), draws(call.operator.name)
        for one in self.running:
            one.met += computes
        if held is not None:
            held.alone = computes
        elif computes and not is_random:
            for one in self.running:
                one.alone = True
        if not second_run.only_looks(call.operator):
            # Uses of parameters, but of what returns one as it is given, as a cast may.
            flow, returned = gradients_flow(), {id(leaf) for leaf in leaves_of(output)}
            for leaf in leaves_of([call.args, call.kwargs]):
                if isinstance(leaf, Parameter) and id(leaf) not in returned:
                    if flow:
                        self._parameters.used(leaf)
                    for one in self.running:
                        one.uses[id(leaf)] += 1
        if is_random and self.running:
            drawn = replaced(
                output, lambda x: second_run.host_values(x) if isinstance(x, Tensor) else x
            )
            for one in self.running:
                one.drawn.append(Drawn(call.operator, (), drawn))

    def _judge_output(self, call: JudgedCall, output: Any) -> None:
        """Compute again what has returned, and judge what it returned."""
        began = time.perf_counter()
        call.output = output
        if output is None and call.before is not None:
            call.output = call.call.args[0]
        try:
            with said_where_it_raises(_raised):
                judged = self._computed_again(call)
        except CannotRepeatError as error:
            if not call.repeats:  # of a second run, it was said
                self._say(call.entry, call, began, [], error.said)
            return
        if call.repeats:  # what was judged the first time is judged only where it changed
            judged = [one for one in judged if one[1].opinion is Opinion.WRONG]
        unseen = call.run is not None and call.run.unseen and not call.repeats
        self._say(call.entry, call, began, judged, message("second.unseen") if unseen else None)
        if not gradients_flow():
            call.run = None
            if second_run.is_first_run():
                self._to_repeat.add(call.entry)
            return
        # Until its gradients have come.
        if call.run is not None and call.cell is not None:
            for key, (parameter, _) in call.run.parameters.items():
                inside = call.run.uses.get(key, 0) - call.uses[key]
                self._parameters.used_inside(parameter, call.by_cell, inside)
        with self._lock:
            self._waiting[backward_name(call.entry)] = call

    def gradient(
        self, entry: str, key: int, *, of_input: bool, gradient: Tensor, after: Any, whole: bool
    ) -> None:
        """Keep a gradient of a call that was computed again."""
        call = self._waiting.get(entry)
        if call is not None:
            call.keep(key, gradient, of_input=of_input, after=after, whole=whole)

    def gradients_ended(self, entry: str) -> None:
        """Judge the gradients of a call."""
        with self._lock:
            call = self._waiting.pop(entry, None)
        if call is None or call.run is None:
            return
        began = time.perf_counter()
        judged, why = [], None
        by_bprop = call.cell is not None and second_run.has_librarys_bprop(call.cell)
        try:
            judged = (self._judged_bprop if by_bprop else self._judged_gradients)(entry, call)
        except CannotRepeatError as error:
            why = error.said
        finally:
            call.run = None
        self._say(entry, call, began, judged, why)

    def parameter_gradient(self, parameter: Parameter, gradient: Tensor) -> None:
        """Keep the gradient of a parameter until all calls it comes from are known."""
        self._parameters.arrived(parameter, gradient)

    def close(self) -> None:
        """Judge what is left."""
        self._parameters.close()
        self._waiting.clear()
        self._to_repeat.clear()

    # --- forward -------------------------------------------------------------------------------

    def _computed_again(self, call: JudgedCall) -> list[tuple[str, Judgement]]:
        given = call.call
        precision = second_run.precision_of(
            call.cell, given.args, given.kwargs, call.output, declared=self._declared
        )
        call.precision = precision
        run = second_run.SecondRun(precision, call.drawn, seed=_seed(call.entry), dtype=self._dtype)
        if isinstance(given, CellCall):
            assert call.state is not None
            with call.state.again():
                outputs = run.run(
                    second_run.construct_of(given.cell), given.args, given.kwargs, given.cell
                )
        else:
            outputs = run.run_operator(given, call.before)
        call.run, call.state = run, None
        leaves = leaves_of(call.output)
        if len(leaves) != len(outputs):
            raise CannotRepeatError.saying(
                "second.other_outputs", first=len(leaves), again=len(outputs)
            )
        call.outputs = outputs
        paths = call.output_paths()
        judged = []
        for leaf, value in zip(leaves, outputs):
            if not isinstance(leaf, Tensor) or value is None:
                continue
            actual = second_run.host_values(leaf)
            found = judge(actual, value.draws, precision)
            found = _doubted(found, call)
            if value.floating and value.exact.size:
                most = np.max(np.abs(value.exact))
                call.overflowed |= not np.isfinite(most) or bool(most > precision.largest)
                call.overflowed |= not np.all(np.isfinite(actual))
            judged.append((paths.get(id(leaf), f"{call.entry}.output"), found))
        return judged

    # --- backward ------------------------------------------------------------------------------

    def _judged_gradients(self, entry: str, call: JudgedCall) -> list[tuple[str, Judgement]]:
        """Return a judgement of each gradient; none where none arrived.

        Raises:
            CannotRepeatError: they are not known.
        """
        run = call.run
        assert run is not None
        arriving, complete = call.arrived()
        if not arriving and not (call.arriving and call.leaving):
            return []
        if not arriving:
            raise CannotRepeatError.saying("second.gradients_unknown")
        inputs, parameters = call.inputs(), [*run.parameters.values()]
        wanted = [*inputs.values(), *(value for _, value in parameters)]
        left = call.left()
        found, freely, free = _fitted(call, arriving, wanted, left)
        known = complete and not found.stopped_at
        shares = zip((one[0] for one in parameters), free[len(inputs) :])
        self._parameters.share(entry, call, shares, known=known and not run.unseen)
        if found.stopped_at:
            operators = ", ".join(sorted(set(found.stopped_at))[:4])
            raise CannotRepeatError.saying("second.no_gradient", operators=operators)
        if not known:
            raise CannotRepeatError.saying("second.gradients_unknown")
        paths = call.input_paths(entry)
        return [
            (paths[key], _judged(call, gradient, value, other))
            for key, gradient, value, other in zip(inputs, left, found.of, freely)
            if gradient is not None
        ]

    def _judged_bprop(self, entry: str, call: JudgedCall) -> list[tuple[str, Judgement]]:
        """Judge the gradients of a cell by its own bprop, computed again.

        Raises:
            CannotRepeatError: it cannot be.
        """
        given, cell = call.call, call.cell
        assert cell is not None
        assert call.precision is not None
        if not call.arriving:
            return []
        if given.kwargs or not all(map(is_tensor, given.args)):
            raise CannotRepeatError.saying("second.own_bprop")
        arguments = *given.args, call.output, call.gradients_of_output()
        run = second_run.SecondRun(call.precision, seed=_seed(entry), dtype=self._dtype)
        with said_where_it_raises(_raised), State(cell, by_formula=True).again():
            values = run.run(cell.bprop, arguments, {}, cell)
        found = dict(zip(map(id, given.args), values)) if len(values) == len(given.args) else {}
        left = dict(zip(call.inputs(), call.left()))
        call.run, paths = run, call.input_paths(entry)
        judged = []
        for key, gradient in left.items():
            value = found.get(key)
            if gradient is not None and value is not None:
                judged.append((paths[key], _judged(call, gradient, value, value)))
        if not judged:
            raise CannotRepeatError.saying("second.own_bprop")
        return judged

    # --- what is written -----------------------------------------------------------------------

    def _say(
        self,
        entry: str,
        call: JudgedCall,
        began: float,
        judged: Sequence[tuple[str, Judgement]],
        why: Message | None,
    ) -> None:
        """Write what is thought of a call, or why there is no opinion, if there is a reason."""
        if not judged and why is None:
            return
        line = self._line(entry, call.cell_name, call.precision, began)
        met = 0 if call.run is None else call.run.met
        # MindSpore computes inside a cell without an operator that is looked at.
        hidden = call.cell is not None and call.met < max(1, met)
        compiled = not judged and why is not None and why.code == "second.compiled"
        unseen = any(one.reason == "unseen" for _, one in judged)
        if not (hidden or call.alone or unseen or compiled):
            line["needed"] = False  # no opinion is missed where there is none
        if judged:
            line["tensors"] = [_as_json(name, one) for name, one in judged]
        elif why is not None:
            line["why"] = why.as_json()
        self._write([line])

    def _say_of_parameter(self, share: Share, found: Judgement) -> None:
        began = time.perf_counter()
        if found.reason == "not_finite":
            found = by_reach(found, share.reach, share.precision)
        line = self._line(share.entry, share.cell_name, share.precision, began)
        self._write([line | {"tensors": [_as_json(share.record, found)]}])

    def _line(
        self, entry: str, cell_name: str, precision: Precision | None, began: float
    ) -> dict[str, Any]:
        seconds = time.perf_counter() - began
        self._turns.took(seconds)
        return {
            **self._place,
            "entry": entry,
            "cell": cell_name,
            "precision": "" if precision is None else precision.name,
            "seconds": round(seconds, 6),
        }


def _raised(error: str) -> CannotRepeatError:
    return CannotRepeatError.saying("second.raised", error=error[:300])


def _seed(entry: str) -> int:
    return zlib.crc32(entry.encode())


def _doubted(found: Judgement, call: JudgedCall, gradients: Iterable[np.ndarray] = ()) -> Judgement:
    """Return a judgement, undecided where it is wrong for what may be another reason."""
    assert call.run is not None
    finite = all(np.isfinite(array).all() for array in gradients)
    if found.reason == "exact_not_finite" and not finite:  # 0 · Inf, which kernels may leave out
        return replace(found, opinion=Opinion.ORDINARY, reason="given_not_finite")
    if found.opinion is not Opinion.WRONG or found.reason == "shape":
        return found
    given = [value.exact for value in call.run.inputs if value is not None]
    reason = ""  # what else than a fault may be the reason of a distance
    if call.run.unseen:
        reason = "unseen"
    elif call.run.tape.ties:
        reason = "ties"
    elif not finite or any(np.isnan(array).any() for array in given):
        reason = "given_not_finite"
    if reason:
        return replace(found, opinion=Opinion.UNDECIDED, reason=reason)
    if found.reason == "not_finite":
        reach = np.inf if call.overflowed else call.run.tape.reach
        return by_reach(found, reach, call.run.tape.precision)
    return found


def _fitted(
    call: JudgedCall,
    arriving: Sequence[tuple[Value, np.ndarray]],
    wanted: Sequence[Value],
    left: Sequence[tuple[np.ndarray, np.ndarray | float] | None],
) -> tuple[Gradients, Sequence[Value | None], Sequence[Value | None]]:
    """Return gradients as equal operands share them, those a cell may have, and any there may be.

    Args:
        left: the gradients of the first of `wanted`, as they were computed.
    """
    run = call.run
    assert run is not None

    def compute() -> Gradients:
        return run.gradients(arriving, wanted)

    alone = [None if one is None else one[0] for one in left]
    if not all(np.isfinite(one).all() for one in alone if one is not None):
        call.note_slopes(arriving, wanted)
    found, sharing = fitted(run.tape, compute, [*alone, *[None] * (len(wanted) - len(alone))])
    free = compute().of if sharing.met else found.of
    return found, free if sharing.broken else found.of, free


def _judged(
    call: JudgedCall,
    gradient: tuple[np.ndarray, np.ndarray | float],
    value: Value | None,
    freely: Value | None,
) -> Judgement:
    """Judge a gradient.

    Args:
        freely: where rounding made equal operands of a cell unequal, and each may have any share:
            what it then may be.
    """
    precision, (actual, beside) = call.precision, gradient
    assert precision is not None

    def by(value: Value | None) -> Judgement:
        computed = [np.zeros(actual.shape)] * 2 if value is None else value.draws
        return judge(actual, computed, precision, beside)

    found = by(value)
    if found.opinion is Opinion.WRONG and freely is not value:
        other = by(freely)
        if other.opinion is not Opinion.WRONG:
            return replace(found, opinion=Opinion.UNDECIDED, reason="ties")
    return _doubted(found, call, call.arriving.values())


def _as_json(record: str, found: Judgement) -> dict[str, Any]:
    numbers = found.ratio, found.error, found.explained, found.worst, found.actual, found.exact
    return TensorOpinion(record, found.opinion.value, *numbers, found.reason).to_json()


def check_accuracy(recorder: Recorder, config: ProbeConfig) -> None:
    """Have what a recorder records computed again, and what is thought of it written down."""
    file = opinion_lines(recorder.root, recorder.rank)
    turns = Turns(config.budget)

    def observer_of(phase: Phase, opening: int) -> SecondOpinion:
        place = {"step": recorder.step, "rank": recorder.rank, "phase": phase.name}
        return SecondOpinion(config, place | {"opening": opening}, turns, file.append)

    recorder.phases.observer_of = observer_of
