"""Free benchmark while training: each call of a chosen cell runs again, on disturbed inputs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Parameter, Tensor, ops

from mindrlhf_msprobe.capture.cells import is_jitted, named_cells
from mindrlhf_msprobe.capture.framework.hooks import has_hooks_of_others
from mindrlhf_msprobe.capture.framework.private import EXECUTOR, gradients_flow, no_gradients
from mindrlhf_msprobe.capture.graph.probes import SITES
from mindrlhf_msprobe.capture.graph.watched import number_of
from mindrlhf_msprobe.capture.opening.observer import CellCall, OperatorCall
from mindrlhf_msprobe.capture.operators.interception import not_intercepted
from mindrlhf_msprobe.capture.operators.inventory import Operator
from mindrlhf_msprobe.capture.tensors.summary import to_host
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.phases import Phase
from mindrlhf_msprobe.replay import disturb
from mindrlhf_msprobe.replay.held import (
    PLAIN,
    CannotRepeatError,
    Drawn,
    DrawnAgain,
    HeldArguments,
    HeldCall,
    Repeating,
    Running,
    State,
    said_where_it_raises,
    tensors_in,
)
from mindrlhf_msprobe.replay.kinds import communicates, draws, is_norm, writes
from mindrlhf_msprobe.replay.own_kernels import Higher, OwnKernels, can_be_higher
from mindrlhf_msprobe.replay.precise.values import replaced
from mindrlhf_msprobe.storage.manifest.manifest import Replaced
from mindrlhf_msprobe.storage.step_lines import benchmark_lines

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.recording.recorder import Recorder

FORWARD, BACKWARD = "forward", "backward"
CHECK, FIX = "check", "fix"

Row = dict[str, Any]
#: Path → dtype and elements of what a run gave; None of what is no number.
Results = dict[str, tuple[str, np.ndarray | None]]


class BenchmarkedPhase(Repeating):
    """Has the calls of one opening of a phase run again.

    Args:
        config: how to disturb, and from when on a change is too large.
        place: what every row begins with: `step`, `phase`, `rank`.
        take: is given the rows when the phase ends.
    """

    lost = "lost.second_run"

    def __init__(
        self, config: ProbeConfig, place: Mapping[str, Any], take: Callable[[Sequence[Row]], object]
    ) -> None:
        super().__init__()
        self.config = config
        self._place = dict(place)
        self._take = take
        self._computing = threading.local()  # `depth`: computations of gradients, nested
        self._rows: list[Row] = []
        self._lock = threading.Lock()
        #: Calls that run again when the phase ends, and when gradients have been computed.
        self.until_closed: list[_Repeated] = []
        self.until_computed: list[_Repeated] = []
        self._held = 0
        self._open = False

    def open(self) -> None:
        """Begin to see parameters written, and gradients computed."""
        self._set_data = vars(Parameter)["set_data"]

        @functools.wraps(self._set_data)
        def written(parameter: Parameter, *args: Any, **kwargs: Any) -> Any:
            for call in self.running:  # a cell may write by it, too
                call.state.keep(parameter)
            return self._set_data(parameter, *args, **kwargs)

        Parameter.set_data = self._instead = written
        self._stood_there = vars(EXECUTOR).get("grad")
        self._own_grad = EXECUTOR.grad
        vars(EXECUTOR)["grad"] = self._grad
        self._open = True

    def cell_begins(self, call: CellCall) -> Running | None:
        """Hold what a call begins with; None where it cannot run again, which is said."""
        held = self._hold(call)
        if held is None:
            return None
        self.running.append(held)
        return Running(self, call, held)

    def operator_begins(self, call: OperatorCall) -> Running | None:
        """Take note of what an operator is about to do; hold what a recorded one begins with."""
        for one in self.running:
            one.operator_begins(call)
        held = None if call.entry is None else self._hold(call)
        return Running(self, call, held) if self.running or held is not None else None

    def _hold(self, call: CellCall | OperatorCall) -> _Repeated | None:
        try:
            return _Repeated(self, call)
        except CannotRepeatError as error:
            self.say(str(call.entry), error.said)
            return None

    def ended(self, call: CellCall | OperatorCall, held: _Repeated | None, output: Any) -> Any:
        """Take note of what an operator drew in cells; run again what is held."""
        if isinstance(call, OperatorCall):
            for one in self.running:
                one.operator_ended(call, output)
        else:
            self.end(held)
        return None if held is None else held.again(output)

    def close(self) -> None:
        """End to see them, compute the gradients that wait, and hand the rows over."""
        if self._open:
            if vars(Parameter)["set_data"] is self._instead:
                Parameter.set_data = self._set_data
            if vars(EXECUTOR).get("grad") == self._grad:
                del vars(EXECUTOR)["grad"]
                if self._stood_there is not None:
                    vars(EXECUTOR)["grad"] = self._stood_there
            self._open = False
        for call in self._taken(self.until_computed):
            call.compare()
        for call in self._taken(self.until_closed):
            self.add(call.gradients())
        rows, self._rows = self._rows, []
        if rows:
            self._take(rows)

    def wait(self, call: _Repeated, waiting: list[_Repeated]) -> None:
        """Keep a call until it can run again.

        Args:
            waiting: `until_closed`, or `until_computed`.
        """
        with self._lock:
            if self._held + call.nbytes <= self.config.buffer_mb << 20:
                self._held += call.nbytes
                waiting.append(call)
                return
        self.say(call.entry, message("benchmark.too_many"))

    def _taken(self, waiting: list[_Repeated]) -> list[_Repeated]:
        """Return the calls that waited, which wait no longer."""
        with self._lock:
            taken = [*waiting]
            waiting.clear()
            self._held -= sum(call.nbytes for call in taken)
        return taken

    def _grad(self, *args: Any, **kwargs: Any) -> Any:
        """Stand in for what computes gradients: behind the outermost one calls can run again."""
        depth = getattr(self._computing, "depth", 0)
        self._computing.depth = depth + 1
        try:
            computed = self._own_grad(*args, **kwargs)
        finally:
            self._computing.depth = depth
        if not depth and not gradients_flow():
            for call in self._taken(self.until_computed):
                call.compare()
        return computed

    def say(self, entry: str, why: Message) -> None:
        """Note that a call did not run again, and why."""
        self.add([self.row(entry, why=[why.as_json()])])

    def add(self, rows: Sequence[Row]) -> None:
        """Take rows."""
        with self._lock:
            self._rows += rows

    def row(self, entry: str, **more: Any) -> Row:
        """Return a row of an entry."""
        head = {"entry": entry, "pert_mode": self.config.pert_mode, "stage": self.config.fuzz_stage}
        return {**self._place, **head, "handler_type": self.config.handler_type, **more}


class _Repeated(HeldCall):
    """One call that is to run again.

    Raises:
        CannotRepeatError: it cannot.
    """

    state: State

    def __init__(self, phase: BenchmarkedPhase, call: CellCall | OperatorCall) -> None:
        config = self._config = phase.config
        self._phase, self._mode = phase, config.pert_mode
        self._fixes, self._backward = config.handler_type == FIX, config.fuzz_stage == BACKWARD
        # What it runs with, through which gradients flow.
        if isinstance(call, CellCall):
            given, parameters = call.given, [*call.cell.get_parameters()]
            for name, one in named_cells(call.cell).items():
                if is_jitted(one) or number_of(one) in SITES.compiled:
                    raise CannotRepeatError.saying("benchmark.compiled", cell=name)
                if has_hooks_of_others(one):
                    raise CannotRepeatError.saying("benchmark.hooks", cell=name)
            self.held = HeldArguments(*given)
        else:
            given = call.args, call.kwargs
            operator = call.operator
            if communicates(operator.kind, operator.name):
                raise _cannot("communicates", operator)
            if draws(operator.name):
                raise _cannot("draws", operator)
            self.held = HeldArguments(*given)
            parameters = self.held.parameters
            if writes(operator.name) and (parameters or self._backward or self._fixes):
                raise _cannot("in_place", operator)
        super().__init__(str(call.entry), call, by_formula=False)
        self._own = given if self._fixes else None
        self._dtypes = {tensor.dtype for tensor in self.held.tensors}
        self._dtypes |= {str(parameter.dtype) for parameter in parameters}
        self._order_free = (
            isinstance(call, OperatorCall)
            and self._mode == disturb.CHANGE_VALUE
            and not self._backward
            and disturb.is_order_free(call.operator.full_name)
        )
        self._refused: CannotRepeatError | None = None
        self._kernels = OwnKernels(
            settled=self._mode == disturb.NO_CHANGE, differentiated=self._backward
        )
        self._first: Results = {}

    def operator_begins(self, call: OperatorCall) -> None:
        """Take note of what an operator that runs inside is about to do."""
        operator = call.operator
        if communicates(operator.kind, operator.name):
            self._refused = self._refused or _cannot("communicates", operator)
        if not writes(operator.name):
            return
        for value in (*call.args, *call.kwargs.values()):
            if isinstance(value, Parameter):
                if not (value.requires_grad and is_norm(operator.name)):
                    self.state.keep(value)
            elif isinstance(value, Tensor) and self.state.holds(value):
                self._refused = self._refused or _cannot("own_state", operator)

    def operator_ended(self, call: OperatorCall, output: Any) -> None:
        """Take note of what an operator that ran inside returned."""
        for _, tensor in tensors_in(output):
            self._dtypes.add(str(tensor.dtype))
        if draws(call.operator.name):
            self.drawn.append(Drawn(call.operator, call.args, output))

    @property
    def nbytes(self) -> int:
        """How many bytes it holds."""
        held = sum(tensor.elements.nbytes for tensor in self.held.tensors)
        return held + sum(0 if one is None else one.nbytes for _, one in self._first.values())

    def again(self, output: Any) -> Any:
        """Run it again, and return what the training goes on with, if that is another output."""
        if self._refused is not None:
            self._phase.say(self.entry, self._refused.said)
            return None
        if self._backward:
            self._phase.wait(self, self._phase.until_closed)
            return None
        first = dict(tensors_in(output))
        self._dtypes |= {str(tensor.dtype) for tensor in first.values()}
        exact = self._mode == disturb.NO_CHANGE  # then whole numbers count, too
        judged = {p: t for p, t in first.items() if exact or str(t.dtype) in disturb.FORMATS}
        found = _results(judged.items())
        self._first = {path: one for path, one in found.items() if one[1] is not None}
        # A kernel that is not there ends what MindSpore is differentiating.
        improves = self._mode == disturb.IMPROVE_PRECISION and can_be_higher(self._coarsest)
        if improves and not self._fixes and gradients_flow():
            self._phase.wait(self, self._phase.until_computed)
            return None
        return self.compare(output if self._fixes else None)

    def compare(self, output: Any = None) -> Any:
        """Run it again and hand over what became of its outputs.

        Args:
            output: where the training is to go on with the result of the second run, that of the
                first one.

        Returns:
            what the training goes on with; None: with what it has.
        """
        try:
            return self._compared(output, self._disturbed())
        except CannotRepeatError as error:
            self._phase.say(self.entry, error.said)
            return None

    # --- the second run --------------------------------------------------------------------------

    def _run(self, tensors: Mapping[int, Tensor]) -> Any:
        """Return what it computes of its inputs, with some tensors in the place of others."""
        higher = self._higher()
        second = self.second_run(self._answers(higher), differentiated=self._fixes)
        with said_where_it_raises(_raised), second:
            with not_intercepted():
                if self._own is None:
                    args, kwargs = self.held.rebuilt(tensors)
                elif self.held.holds(*self._own):
                    args, kwargs = self._own
                else:
                    raise CannotRepeatError.saying("benchmark.changed")
                if higher is not None:
                    args, kwargs = higher.raised(args), higher.raised(kwargs)
            return self._computed(args, kwargs, higher)

    def _computed(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], higher: Higher | None
    ) -> Any:
        """Return what it computes, where its operators are answered by those of a second run."""
        if isinstance(self.call, CellCall):
            return self.call.cell(*args, **kwargs)
        with not_intercepted():
            return self._by_kernel(replace(self.call, args=args, kwargs=kwargs), higher)

    def _answers(self, higher: Higher | None) -> Callable[..., Any]:
        """Return what computes the operators of a second run: those that draw do so once."""
        drawn = DrawnAgain(self.drawn)

        def answer(*given: Any) -> Any:
            call = OperatorCall(*given)
            if not draws(call.operator.name):
                return self._by_kernel(call, higher)
            if (first := drawn.take(call.operator)) is None:
                raise _cannot("draws", call.operator)
            return _drawn_again(first, call.args)

        return answer

    def _by_kernel(self, call: OperatorCall, higher: Higher | None) -> Any:
        """Return what an operator computes, in a higher precision where there is one."""
        if higher is None:
            return self._kernels.compute(call)

        def compute(*args: Any, **kwargs: Any) -> Any:
            return self._kernels.compute(replace(call, args=args, kwargs=kwargs))

        return higher.compute(replace(call, compute=compute))

    @property
    def _runs(self) -> int:
        return self._config.fuzz_runs if self._mode == disturb.NO_CHANGE else 1

    @property
    def _coarsest(self) -> str:
        return disturb.coarsest_of(sorted(self._dtypes))

    def _higher(self) -> Higher | None:
        """Return what computes in a higher precision, where that is what disturbs."""
        if self._mode != disturb.IMPROVE_PRECISION:
            return None
        if not can_be_higher(self._coarsest):
            raise CannotRepeatError.saying("benchmark.nothing_to_improve")
        return Higher(self._coarsest)

    @property
    def _floating(self) -> list[int]:
        """The floating tensors among the inputs, by their numbers."""
        return [n for n, tensor in enumerate(self.held.tensors) if tensor.floating]

    def _disturbed(self) -> dict[int, np.ndarray]:
        """Return the tensors among the inputs that are disturbed, with their new bits."""
        if self._mode not in disturb.DISTURBANCES:
            return {}
        tensors, floating = self.held.tensors, self._floating
        axis = None  # over which an operator reduces; None: all of them
        if self._order_free:
            args, kwargs = self.call.args, self.call.kwargs
            axis = kwargs.get("axis", kwargs.get("dim", args[1] if len(args) > 1 else None))
            axis = axis[0] if isinstance(axis, (tuple, list)) and axis else axis
            axis = None if isinstance(axis, bool) or not isinstance(axis, int) else axis
        found = {}
        for n in [n for n in floating if not disturb.is_mask(tensors[n].values())] or floating:
            bits = tensors[n].elements
            if axis is not None and -bits.ndim <= axis < bits.ndim:
                other = disturb.ends_exchanged(bits, axis)
            else:
                other = disturb.DISTURBANCES[self._mode](bits, tensors[n].dtype)
            if not np.array_equal(other, bits):
                found[n] = other
        if not found:
            raise CannotRepeatError.saying("benchmark.nothing_to_disturb")
        return found

    # --- outputs ---------------------------------------------------------------------------------

    def _compared(self, output: Any, disturbed: Mapping[int, np.ndarray]) -> Any:
        """Hand over a row of each output; return what the training is to go on with, or None."""
        if not self._first:
            raise CannotRepeatError.saying("benchmark.no_output")
        worst: dict[str, Row] = {}
        instead = None
        for _ in range(self._runs):
            again = self._run({n: self.held.tensors[n].tensor(b) for n, b in disturbed.items()})
            if output is not None:
                instead = _like(output, again)
            after = self._outputs(again)
            rows = self._rows(self._first, after, disturbed, self._mode)
            if self._mode == disturb.NO_CHANGE and self._kernels.used:
                # The training's own objects may cut differently: that is no more than rounding.
                rounded = self._rows(self._first, after, disturbed, disturb.ADD_NOISE)
                exact = self._outputs(self._run({}))
                rows = self._rows(after, exact, disturbed, disturb.NO_CHANGE)
                rows += [
                    r for r in rounded if r["dtype"] in disturb.FORMATS and not r["consistent"]
                ]
            _keep_worst(worst, rows)
        self._phase.add([*worst.values()])
        return instead

    def _outputs(self, again: Any) -> Results:
        """Return what a second run returned.

        Raises:
            CannotRepeatError: it is not of the shapes of the first.
        """
        after = _results(tensors_in(again))
        found: Results = {}
        for path, (dtype, first) in self._first.items():
            _, second = after.get(path, ("", None))
            if first is None or second is None or second.shape != first.shape:
                raise CannotRepeatError.saying("benchmark.shapes", path=path or "0")
            found[path] = dtype, second
        return found

    def _rows(
        self, before: Results, after: Results, disturbed: Mapping[int, np.ndarray], mode: str
    ) -> list[Row]:
        """Return a row of each pair of results of one shape, as it is judged by a mode."""
        coarsest, tensors = self._coarsest, self.held.tensors
        by = 0.0
        for n, bits in disturbed.items():
            after_it = disturb.values_of(bits, tensors[n].dtype)
            by = max(by, disturb.relative_change(tensors[n].values(), after_it))
        rows = []
        for index, (path, (dtype, first)) in enumerate(before.items()):
            second = after[path][1]
            if first is None or second is None or first.shape != second.shape:
                continue
            found = disturb.judge(
                first,
                second,
                dtype=dtype,
                mode=mode,
                disturbed_by=by,
                coarsest=coarsest,
                thresholds=self._config.fuzz_limits,
                most_times=self._config.fuzz_ratio,
                order_free=self._order_free,
            )
            row = self._phase.row(
                self.entry,
                output_index=index,
                path=path,
                dtype=dtype,
                shape=[*first.shape],
                change=_finite(found.change),
                disturbed_by=_finite(by),
                coarsest=coarsest,
                ratio=None if found.ratio is None else _finite(found.ratio),
                differing=found.differing,
                threshold=found.threshold,
                consistent=found.consistent,
            )
            rows.append(row)
        return rows

    # --- gradients -------------------------------------------------------------------------------

    def gradients(self) -> list[Row]:
        """Return rows of the gradients of its inputs and parameters, without and with disturbance.

        Both are computed here, of the parameters as they are when the phase ends, for one gradient
        of the output that is drawn once and the same for both.
        """
        try:
            with said_where_it_raises(_raised):
                return self._gradient_rows()
        except CannotRepeatError as error:
            return [self._phase.row(self.entry, why=[error.said.as_json()])]

    def _gradient_rows(self) -> list[Row]:
        if gradients_flow():
            raise CannotRepeatError.saying("benchmark.differentiated")
        if self.drawn:
            raise _cannot("draws", self.drawn[0].operator)
        if name := self.state.trained:
            raise CannotRepeatError.saying("benchmark.writes", parameter=name)
        disturbed = self._disturbed()
        trained = () if self.cell is None else self.cell.trainable_params()
        weights = [parameter for parameter in trained if not parameter.hooks()]
        if not self._floating and not weights:
            raise CannotRepeatError.saying("benchmark.nothing_to_disturb")
        first = self._differentiated(weights, {}, None)
        self._dtypes |= {dtype for dtype, _ in first.values()}
        worst: dict[str, Row] = {}
        for _ in range(self._runs):
            second = self._differentiated(weights, disturbed, self._higher())
            _keep_worst(worst, self._rows(first, second, disturbed, self._mode))
        return [*worst.values()]

    def _differentiated(
        self, weights: Sequence[Parameter], bits: Mapping[int, np.ndarray], higher: Higher | None
    ) -> Results:
        """Return the gradients, by the paths of inputs and the names of parameters."""
        floating = self._floating

        def computed(*tensors: Tensor) -> Any:
            args, kwargs = self.held.rebuilt(dict(zip(floating, tensors)))
            output = self._computed(args, kwargs, higher)
            outputs = [t for _, t in tensors_in(output) if str(t.dtype) in disturb.FORMATS]
            if not outputs:
                raise CannotRepeatError.saying("benchmark.no_output")
            return tuple(outputs) if len(outputs) > 1 else outputs[0]

        with self.second_run(self._answers(higher), differentiated=True):
            with not_intercepted():
                tensors = [self.held.tensors[n].tensor(bits.get(n)) for n in floating]
                if higher is not None:
                    tensors = higher.raised(tensors)
            with no_gradients():
                shapes = computed(*tensors)
            several = shapes if isinstance(shapes, tuple) else (shapes,)
            drawn = np.random.default_rng(0)
            sens = tuple(
                Tensor(drawn.standard_normal(t.shape).astype(np.float32)).astype(t.dtype)
                for t in several
            )
            operation = ops.GradOperation(get_all=True, get_by_list=bool(weights), sens_param=True)
            of = (computed, weights) if weights else (computed,)
            gradients = operation(*of)(*tensors, sens if len(sens) > 1 else sens[0])
        of_inputs, of_weights = gradients if weights else (gradients, ())
        found = [(self.held.tensors[n].path, g) for n, g in zip(floating, of_inputs)]
        found += [(f"parameters_grad.{p.name}", g) for p, g in zip(weights, of_weights)]
        return _results((name, g) for name, g in found if isinstance(g, Tensor))


def _cannot(why: str, operator: Operator) -> CannotRepeatError:
    return CannotRepeatError.saying(f"benchmark.{why}", operator=operator.full_name)


def _raised(error: str) -> CannotRepeatError:
    return CannotRepeatError.saying("benchmark.raised", why=error.splitlines()[0][:200])


def _drawn_again(drawn: Drawn, args: tuple[Any, ...]) -> Any:
    """Return the same draw of other operands.

    A dropout leaves out the same elements again; of any other operator it is the same output.
    """
    output = drawn.output
    first = output[0] if isinstance(output, tuple) else output
    given = next((a for a in drawn.args if isinstance(a, Tensor)), None)
    new = next((a for a in args if isinstance(a, Tensor)), None)
    if "ropout" not in drawn.operator.name or given is None or new is None:
        return output
    if given.shape != first.shape or new.shape != first.shape:
        return output
    before, after = _values(given), _values(first)
    if before is None or after is None:
        return output
    # By what each element was multiplied.
    kept = after != 0
    factors = np.abs(after[kept].astype(np.float64) / before[kept].astype(np.float64))
    scale = float(np.median(factors)) if factors.size else 1.0
    mask = np.where(kept, scale, 0.0).astype(np.float32)
    dropped = new * Tensor(mask).astype(new.dtype)
    return (dropped, *output[1:]) if isinstance(output, tuple) else dropped


def _like(output: Any, again: Any) -> Any:
    """Return the result of the second run in the structure and the dtypes of the first.

    Raises:
        CannotRepeatError: there is a structure in it that cannot be made anew.
    """
    after = iter([tensor for _, tensor in tensors_in(again)])

    def cast(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, PLAIN):
            return leaf
        if not isinstance(leaf, Tensor):
            kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
            raise CannotRepeatError.saying("benchmark.output_object", kind=kind)
        second = next(after, None)
        if second is None or second.shape != leaf.shape or str(leaf.dtype) not in disturb.FORMATS:
            return leaf
        return second if second.dtype == leaf.dtype else second.astype(leaf.dtype)

    return replaced(output, cast)


def _results(tensors: Iterable[tuple[str, Tensor]]) -> Results:
    return {path: (str(tensor.dtype), _values(tensor)) for path, tensor in tensors}


def _values(tensor: Tensor) -> np.ndarray | None:
    """Return the elements of a tensor of numbers; None of others."""
    host = to_host(tensor)
    if host.dtype in disturb.FORMATS:
        return disturb.values_of(disturb.bits_of(np.array(host.array), host.dtype), host.dtype)
    return np.array(host.array) if host.array.dtype.kind in "biu" else None


def _keep_worst(worst: dict[str, Row], rows: Iterable[Row]) -> None:
    """Keep of each output the row that is worst."""

    def badness(row: Row) -> tuple[bool, float]:
        return not row["consistent"], float("inf") if row["change"] is None else row["change"]

    for row in rows:
        path = row["path"]
        if path not in worst or badness(row) > badness(worst[path]):
            worst[path] = row


def _finite(number: float) -> float | None:
    return number if np.isfinite(number) else None


def benchmark(recorder: Recorder, config: ProbeConfig) -> None:
    """Have what a recorder records run again on disturbed inputs, and the changes written down."""

    file = benchmark_lines(recorder.root, recorder.rank)

    def observer_of(phase: Phase, _: int) -> BenchmarkedPhase:
        place = {"step": recorder.step, "phase": phase.name, "rank": recorder.rank}
        return BenchmarkedPhase(config, place, file.append)

    if config.changes_training:
        changed_by = {"task": config.task, "pert_mode": config.pert_mode}
        recorder.note(Replaced("changed_training", changed_by))
        warn("log.changes_training", **changed_by)
    recorder.phases.observer_of = observer_of
