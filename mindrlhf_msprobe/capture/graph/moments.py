"""The moments in which MindSpore compiles, for which alone cells get their wrappers.

Whatever compiles a graph (a cell in GRAPH_MODE, `ms.jit`, `value_and_grad` of them) ends in one
method of MindSpore's executors. While a run is recorded it is replaced by one that puts wrappers on
the cells of the watched networks, as they are at that moment, and takes them off again: what Python
runs, copies or shows in a traceback is the network's own. Where nothing is recorded now, it takes
off the wrappers that were there before, too: MindSpore compiles the trainer's own graph.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mindspore import nn

from mindrlhf_msprobe.capture.cells import number_of
from mindrlhf_msprobe.capture.framework.hooks import no_hooks
from mindrlhf_msprobe.capture.framework.private import (
    BY_PHASE,
    BYTECODE_CONTEXT,
    CELL_COMPILER,
    EXECUTOR,
    FUNCTION_COMPILER,
    GRAPH_EXECUTORS,
    OP_SEEDS,
    RUN_GRAPH,
    put_operator_seeds,
)
from mindrlhf_msprobe.capture.graph.compiled_graph import (
    MARK,
    Graph,
    TopCall,
    Variants,
    are_only_returned,
    changes_in_place,
    is_differentiated,
    may_change_in_place,
)
from mindrlhf_msprobe.capture.graph.probes import SITES
from mindrlhf_msprobe.common.message import Message, message

if TYPE_CHECKING:
    from mindrlhf_msprobe.capture.graph.watched import GraphProbes

#: Behind the mark of a graph that Python differentiates: its probes are others.
_FORWARD = "_forward"


class _Local(threading.local):
    """What this thread is about.

    Attributes:
        call: the call for which a graph is looked for, or compiled.
        running: how many calls of cells are compiled to be run.
    """

    call: TopCall | None = None
    running = 0


class Compilations:
    """Lets wrappings know when MindSpore compiles.

    Attributes:
        listeners: called after each, in the thread that compiled.
    """

    def __init__(self) -> None:
        self.listeners: list[Callable[[], None]] = []
        self._wrappings: list[GraphProbes] = []
        self._replaced: list[tuple[type, str, Callable[..., Any]]] = []
        self._lock = threading.RLock()
        # Held while MindSpore compiles: one graph has wrappers on its cells, another has none.
        self._compiling = threading.RLock()
        self._depth = 0
        self._forwards = 0  # graphs that run forward
        self._local = _Local()
        self._variants = Variants(self._wrappings)

    def add(self, wrapping: GraphProbes) -> None:
        """Put on and take off a wrapping around every compilation from now on.

        Called for each network and optimizer that is watched.

        Raises:
            Exception: whatever keeps MindSpore's executors from being replaced.
        """
        with self._lock:
            self._variants.watches += 1
            if wrapping in self._wrappings:
                return
            if not self._replaced:
                for executor in GRAPH_EXECUTORS:
                    self._replace(executor, "compile", self._around)
                    self._replace(executor, "generate_arguments_key", self._marked)
                self._replace(CELL_COMPILER, "compile", self._of_cell)
                self._replace(FUNCTION_COMPILER, "compile", self._of_function)
                self._replace(FUNCTION_COMPILER, BY_PHASE, self._function_by_phase)
                if "__call__" in vars(FUNCTION_COMPILER):
                    self._replace(FUNCTION_COMPILER, "__call__", self._running_function)
                self._replace(nn.Cell, BY_PHASE, self._cell_by_phase)
                self._replace(nn.Cell, RUN_GRAPH, self._running)
                if BYTECODE_CONTEXT is not None:
                    self._replace(BYTECODE_CONTEXT, "__enter__", self._before_bytecode)
                    self._replace(BYTECODE_CONTEXT, "__exit__", self._after_bytecode)
            self._wrappings.append(wrapping)

    def remove(self, wrapping: GraphProbes) -> None:
        """End what `add` began; without any wrapping MindSpore's executors are its own again.

        Not where a graph draws random numbers and holds probes: it has to run on.
        """
        with self._lock:
            if wrapping in self._wrappings:
                self._wrappings.remove(wrapping)
            if not self._wrappings and not self._variants.keep_probes():
                while self._replaced:
                    setattr(*self._replaced.pop())

    def _replace(self, owner: type, name: str, instead: Callable[..., Any]) -> None:
        """Have `instead` called in the place of a method, with that method before its arguments."""
        original = vars(owner)[name]

        @functools.wraps(original)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return instead(original, *args, **kwargs)

        setattr(owner, name, replaced)
        self._replaced.append((owner, name, original))

    # What calls a graph, and which of its graphs it takes.

    def _running(self, compile_and_run: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._local.running += 1
        try:
            with self._forward():
                return compile_and_run(*args, **kwargs)
        finally:
            self._local.running -= 1

    def _running_function(self, run: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        with self._forward():
            return run(*args, **kwargs)

    @contextmanager
    def _forward(self) -> Iterator[None]:
        """Know that a graph runs forward, until it has handed over everything.

        What Python differentiates, it may run backward from then on.
        """
        if SITES.only_backward:
            EXECUTOR.sync()
        with self._lock:
            self._forwards += 1
            SITES.only_backward = False
        differentiated = False
        try:
            yield
            if SITES.receiver is not None and EXECUTOR.requires_grad():
                EXECUTOR.sync()
                differentiated = True
        finally:
            with self._lock:
                self._forwards -= 1
                SITES.only_backward = differentiated and not self._forwards

    def _of_cell(
        self,
        compile_cell: Callable[..., Any],
        executor: Any,
        cell: nn.Cell,
        /,
        *args: Any,
        phase: str = "predict",
        **kwargs: Any,
    ) -> Any:
        local = self._local
        outer, running = local.call, local.running

        def compiled_for(call: TopCall) -> Any:
            local.call, local.running = call, 0
            return compile_cell(executor, cell, *args, phase=phase, **kwargs)

        try:
            return _chosen(compiled_for, lambda: TopCall(cell, phase, running > 0))
        finally:
            local.call, local.running = outer, running

    def _of_function(
        self, compile_function: Callable[..., Any], executor: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        local = self._local
        outer = local.call
        owner, function = executor.obj, executor.fn
        # A bound method is another object at every call.
        function = getattr(function, "__func__", function)
        target = owner if isinstance(owner, nn.Cell) else function
        phase = getattr(owner, "phase", None)
        name = phase, id(function), id(owner), EXECUTOR.requires_grad()

        def compiled_for(call: TopCall) -> Any:
            local.call = call
            return compile_function(executor, *args, **kwargs)

        try:
            compiled = _chosen(compiled_for, lambda: TopCall(target, name, True))
        finally:
            local.call = outer
        if isinstance(owner, nn.Cell):  # MindSpore looks there for what is compiled already
            owner.phase_cache.setdefault(phase, compiled)
        return compiled

    def _cell_by_phase(
        self, predict: Callable[..., Any], cell: nn.Cell, /, *args: Any, **kwargs: Any
    ) -> Any:
        self._find_by_phase(cell)
        with self._forward():
            return predict(cell, *args, **kwargs)

    def _function_by_phase(
        self, predict: Callable[..., Any], executor: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        if isinstance(executor.obj, nn.Cell):
            infers = (executor.jit_config_dict or {}).get("infer_boost") == "on"
            self._find_by_phase(executor.obj, any_phase=infers)
        return predict(executor, *args, **kwargs)

    def _find_by_phase(self, cell: nn.Cell, *, any_phase: bool = False) -> None:
        try:
            self._variants.by_phase(cell, any_phase=any_phase)
        except Exception as error:
            self._cannot_choose(error)

    def _cannot_choose(self, error: Exception) -> None:
        for wrapping in self._wrappings[:1]:  # the graph with probes is taken
            wrapping.fault(message("lost.choice_of_graph"), error)

    def _marked(self, key_of: Callable[..., Any], *args: Any) -> Any:
        key = key_of(*args)
        call = self._local.call
        if call is None or call.graph is not None:
            return key
        try:
            probed = self._variants.choose(call, str(key))
        except Exception as error:
            probed = True
            self._cannot_choose(error)
        if not probed:
            return key
        mark = MARK if call.graph is None else call.graph.mark
        return f"{key}{mark}{_FORWARD if EXECUTOR.requires_grad() else ''}"

    # Compiling.

    def _around(
        self, compile_graph: Callable[..., Any], executor: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        call, self._local.call = self._local.call, None  # what it calls itself is another
        graph = None if call is None else call.graph
        probed = graph is None or call is None or call.probed
        try:
            with self._compiling, no_hooks(), SITES.collecting() as cells:
                SITES.differentiated_outside = bool(EXECUTOR.requires_grad())
                began = perf_counter()

                def compiled_once(*, probes: bool) -> Any:
                    with self._wrappers(probes):
                        return compile_graph(executor, *args, **kwargs)

                with _same_seeds(graph, probed):
                    if probed:
                        compiled = self._with_probes(compiled_once, executor, args[3], cells)
                    else:
                        compiled = compiled_once(probes=False)
                seconds = perf_counter() - began
                if graph is not None:
                    graph.compiled(probed, args[3], cells, executor, seconds)
                    will_record = any(wrapping.will_record() for wrapping in self._wrappings)
                    graph.keep_to_one(probed, executor, will_record)
        finally:
            self._local.call = call
        if call is not None and isinstance(call.target, nn.Cell):
            # Its own hooks record the gradients at the borders of what Python calls.
            SITES.without_gradients.discard(number_of(call.target))
        for wrapping in self._wrappings[-1:]:
            if probed and cells:
                wrapping.compiled(seconds, graph.seconds.get(False) if graph is not None else None)
            elif graph is not None and graph.cells:
                wrapping.compiled(0.0, seconds)
        for listener in [*self.listeners]:
            listener()
        return compiled

    def _with_probes(
        self, compile_graph: Callable[..., Any], executor: Any, phase: str, cells: set[int]
    ) -> Any:
        """Compile a graph with probes; without any where they would stop or change the training.

        Where a graph is differentiated, MindSpore loses a change in place of what a cell is given
        if anything stands around the cell, were it only a wrapper that calls it.

        Args:
            compile_graph: compiles it, `probes=True` with probes.
            executor: MindSpore's, which compiles.
            phase: its name of the graph.
            cells: collects the numbers of the cells whose probes it holds.

        Returns:
            what was compiled.

        Raises:
            Exception: what MindSpore raises where it compiles the graph without probes.
        """
        seeds = dict(OP_SEEDS or {})
        try:
            compiled = compile_graph(probes=True)
            why = _why_not(executor, phase, cells) if cells else None
        except Exception as error:
            why = message("coverage.not_compiled", error=type(error).__name__)
        if why is None:
            return compiled
        put_operator_seeds(None, seeds)
        executor.del_net_res(None, {phase})  # or what was compiled first runs
        compiled = compile_graph(probes=False)
        for cell in cells.union(*(wrapping.inside(cells) for wrapping in self._wrappings)):
            SITES.note_gap(cell, why)
        cells.clear()
        return compiled

    # What `ms.jit(capture_mode="bytecode")` captures is compiled without any method of Python's.
    # Cells that hold wrappers are not captured: Python runs them, and its hooks record them.

    def _before_bytecode(self, enter: Callable[..., Any], *args: Any) -> Any:
        self._wrap()
        return enter(*args)

    def _after_bytecode(self, leave: Callable[..., Any], *args: Any) -> Any:
        try:
            return leave(*args)
        finally:
            self._unwrap()

    @contextmanager
    def _wrappers(self, on: bool) -> Iterator[None]:
        """Hold the wrappers on, or every one of them off."""
        with ExitStack() as ends:
            if on:
                ends.callback(self._unwrap)
                self._wrap()
            else:
                with self._lock:
                    for wrapping in self._wrappings:
                        ends.callback(wrapping.lift())
            yield

    def _wrap(self) -> None:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                for wrapping in self._wrappings:
                    wrapping.put_on()

    def _unwrap(self) -> None:
        with self._lock:
            self._depth = max(self._depth - 1, 0)  # what was entered before is left now
            if not self._depth:
                for wrapping in self._wrappings:
                    wrapping.take_off()


def _chosen(compiled_for: Callable[[TopCall], Any], new_call: Callable[[], TopCall]) -> Any:
    """Return what has been compiled for a call.

    What turns out to draw random numbers when it is compiled without probes, and will be recorded,
    is compiled with them at once, before it has run.
    """
    call = new_call()
    compiled = compiled_for(call)
    if call.graph is not None and call.graph.only and not call.probed:
        compiled = compiled_for(new_call())
    return compiled


@contextmanager
def _same_seeds(graph: Graph | None, probed: bool) -> Iterator[None]:
    """Let the second graph of two have the seeds of the first, and all others theirs."""
    if graph is None or OP_SEEDS is None:
        yield
        return
    now = dict(OP_SEEDS)
    if not graph.phases:
        graph.seeds = now
    if probed in graph.phases or not graph.phases or graph.seeds is None:
        yield
        return
    try:
        put_operator_seeds(None, graph.seeds)
        yield
    finally:
        put_operator_seeds(None, now)


COMPILATIONS = Compilations()


def _why_not(executor: Any, phase: str, cells: set[int]) -> Message | None:
    """Return why a graph cannot run with its probes, if it cannot."""
    try:
        graph = executor.get_func_graph_proto(phase, "mind_ir", False)
        changes = changes_in_place
    except Exception:  # there is no such format of what Python computes
        graph = executor.get_func_graph_proto(phase, "anf_ir", False)
        if not are_only_returned(graph):
            return message("coverage.python_in_graph")
        changes = may_change_in_place
    if not (is_differentiated(graph) or EXECUTOR.requires_grad()):
        return None
    passed = any(map(SITES.passes_parameter, cells))
    lost = changes(graph, weights_are_passed=passed)
    return message("coverage.changed_in_place") if lost else None
