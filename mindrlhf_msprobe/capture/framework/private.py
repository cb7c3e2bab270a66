"""MindSpore's inside: every name of it that is not public and that this package uses, each once.

`NAMES` lists them with what is lost where a version lacks one. They are looked for when this module
is imported; `missing()` tells which are not there. Nothing here raises for it: what needs the name
goes without, and a run says so under `coverage.mindspore`.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from types import CodeType, SimpleNamespace
from typing import Any

from mindspore import Tensor, nn

from mindrlhf_msprobe.common.message import Message, message


def _module(*names: str) -> Any:
    """Return the first of these modules that can be imported, else None."""
    for name in names:
        with suppress(ImportError):
            return importlib.import_module(name)
    return None


# A new MindSpore has the old name, too, and logs a warning where it is used.
_NEW_API = ("mindspore.graph.api",) if find_spec("mindspore.graph") else ()
_API = _module(*_NEW_API, "mindspore.common.api")
_C_EXPRESSION = _module("mindspore._c_expression")
_HOOK_HANDLE = _module("mindspore.common.hook_handle")
_PRIMITIVE = _module("mindspore.ops.primitive")
_RNNS = _module("mindspore.nn.layer.rnns")
_VMAP = _module("mindspore.ops.composite.base")
_GRADIENTS = _module("mindspore.ops.function.grad.grad_func")
_RECOMPUTE = _module("mindspore.common.recompute")  # `mindspore` has a function of this name
_SEED = _module("mindspore.common.seed")
_GENERATOR = _module("mindspore.common.generator")
_BYTECODE = _module("mindspore.graph._utils.pijit_context", "mindspore.common._pijit_context")
_SETS_CAST = "_executor.set_mixed_precision_type"
_EXECUTOR = getattr(_API, "_pynative_executor", None)


@dataclass(frozen=True)
class PrivateName:
    """A name of MindSpore that is not public.

    Attributes:
        where: the module, class or object that has it.
        name: the name itself, dotted where it lies deeper.
        lost: the code of what cannot be recorded without it (report/messages: `mindspore.…`); ""
            where nothing is lost but time.
        owner: what has it, or not.
        versions: which MindSpore has it; "" all that are supported.
    """

    where: str
    name: str
    lost: str
    owner: Any
    versions: str = ""

    @property
    def found(self) -> bool:
        """Whether this MindSpore has it."""
        if isinstance(self.owner, type) and self.name in _set_by(self.owner):
            return True
        found = self.owner
        for part in self.name.split("."):
            if part == "<locals>":
                inside = (c for c in found.__code__.co_consts if isinstance(c, CodeType))
                found = SimpleNamespace(**{code.co_name: code for code in inside})
            elif hasattr(found, part):
                found = getattr(found, part)
            else:
                return False
        return True


@functools.cache
def _set_by(kind: type) -> frozenset[str]:
    """Return the attributes that instances of a class get when they are made.

    They are read off the code of its methods: an instance of ours would count among the trainer's.
    """
    names: set[str] = set()
    for method in vars(kind).values():
        code = getattr(method, "__code__", None)
        if code is not None and code.co_name.startswith(("__init__", "_init", "_Cell__")):
            names.update(code.co_names, (c for c in code.co_consts if isinstance(c, str)))
    return frozenset(names)


def _names(where: str, owner: Any, lost: str, *names: str) -> list[PrivateName]:
    return [PrivateName(where, name, lost, owner) for name in names]


_COMPILED = ("mindspore._c_expression", _C_EXPRESSION)
_RECOMPUTING = ("mindspore.common.recompute", _RECOMPUTE)
_RUNNING = ("mindspore.common.api", _API)
_RECURRENT = ("mindspore.nn.layer.rnns", _RNNS, "mindspore.recurrent")
_VECTORISED = "mindspore.vectorised"

#: Every private name that is used.
NAMES: tuple[PrivateName, ...] = (
    # Cells.
    *_names("nn.Cell", nn.Cell, "mindspore.layers", "_cells"),
    *_names("nn.Cell", nn.Cell, "mindspore.parameters", "_params"),
    *_names("nn.Cell", nn.Cell, "mindspore.own_bprop", "_run_construct", "_lazy_forward_hook"),
    *_names("nn.Cell", nn.Cell, "mindspore.recomputed", "_recompute_cell"),
    *_names("nn.Cell", nn.Cell, "mindspore.graphs", "_predict", "compile_and_run"),
    *_names("nn.Cell", nn.Cell, "", "_complex_call"),
    *_names("nn.Cell", nn.Cell, "", "_init_flag", "_is_check_and_refresh", "_compile_cache"),
    *_names("nn.Cell", nn.Cell, "", "_has_config_recompute", "_lazy_forward_hook_with_kwargs"),
    *_names("nn.Cell", nn.Cell, "", "_lazy_forward_pre_hook", "_lazy_forward_pre_hook_with_kwargs"),
    *_names(*_RECOMPUTING, "mindspore.recomputed", "_RecomputeCell.construct"),
    *_names(*_RECOMPUTING, "mindspore.recomputed", "_RecomputeCell.bprop"),
    PrivateName(*_RECOMPUTING[:1], "_RecomputeHandle.recompute", "", _RECOMPUTE, "2.10"),
    *_names("mindspore.common.hook_handle", _HOOK_HANDLE, "", "_HOOK_VERSION"),
    *_names(*_RECURRENT, "_DynamicRNNBase", "_DynamicGRUCPUGPU", "_DynamicGRUAscend"),
    *_names(*_RECURRENT, "_DynamicLSTMCPUGPU", "_DynamicLSTMAscend"),
    *_names("nn.WithLossCell", nn.WithLossCell, "", "_backbone"),
    # Tensors.
    *_names("Tensor", Tensor, "mindspore.gradients", "_has_auto_grad"),
    *_names("Tensor", Tensor, "", "_data_ptr"),
    # PyNative's executor, and operators.
    *_names(*_RUNNING, "mindspore.gradients", "_pynative_executor.requires_grad"),
    *_names(*_RUNNING, "mindspore.graphs", "_pynative_executor.sync"),
    *_names(*_RUNNING, "mindspore.casts", f"_pynative_executor.{_SETS_CAST}"),
    *_names(*_COMPILED, "mindspore.casts", "MixedPrecisionType.NOTSET"),
    *_names(*_RUNNING, "", "_no_grad", "cells_compile_cache"),
    *_names("mindspore.ops.primitive", _PRIMITIVE, "", "_run_op"),
    *_names("mindspore.common.seed", _SEED, "", "_KERNEL_SEED", "_GLOBAL_SEED"),
    *_names("mindspore.common.generator", _GENERATOR, "", "default_generator._generator"),
    # What compiles graphs.
    *_names(*_COMPILED, "mindspore.graphs", "GraphExecutor_.compile"),
    *_names(*_COMPILED, "mindspore.graphs", "GraphExecutor_.generate_arguments_key"),
    *_names(*_COMPILED, "", "JitExecutor_.compile", "JitExecutor_.generate_arguments_key"),
    *_names(*_RUNNING, "mindspore.graphs", "_CellGraphExecutor.compile", "_JitExecutor.compile"),
    *_names(*_RUNNING, "mindspore.graphs", "_JitExecutor._predict"),
    *_names("mindspore.graph", _BYTECODE, "", "PIJitCaptureContext"),
    *_names("mindspore.ops", _VMAP, _VECTORISED, "_Vmap.__call__.<locals>.after_vmap"),
    *_names("mindspore.ops", _GRADIENTS, _VECTORISED, "jacrev.<locals>.wrapped"),
    *_names("mindspore.ops", _GRADIENTS, _VECTORISED, "jacfwd.<locals>.wrapped"),
)


@functools.cache
def has_all(lost: str) -> bool:
    """Return whether this MindSpore has every name without which something is lost.

    Args:
        lost: its code, e.g. `mindspore.graphs`.
    """
    return all(name.found for name in NAMES if name.lost == lost)


def missing() -> dict[str, Message]:
    """Return what this MindSpore lacks and what is lost for it: `where.name` → what is lost."""
    return {
        f"{name.where}.{name.name}": message(name.lost)
        for name in NAMES
        if name.lost and not name.versions and not name.found
    }


# Cells.

#: Stands on a function that `ms.jit` compiles.
JITTED = "__wrapped_by_jit__"

#: The attributes in which a cell keeps its forward hooks, and which of them take keyword arguments.
HOOKS = (
    *("_lazy_forward_pre_hook", "_lazy_forward_pre_hook_with_kwargs"),
    *("_lazy_forward_hook", "_lazy_forward_hook_with_kwargs"),
)
#: The attribute among them that decides whether `RUN` runs a cell, and the method that does.
FORWARD_HOOKS, RUN = "_lazy_forward_hook", "_run_construct"
#: The attributes in which MindSpore's cells around a network keep it.
INNER = ("network", "_backbone")
#: How attributes that hold hooks begin.
HOOK_PREFIX = "_lazy_"


@contextmanager
def not_on_top(cell: nn.Cell) -> Iterator[None]:
    """Let a cell run again inside its own hook.

    A cell that is differentiated itself ends that when it returns, also from such a run.
    """
    attributes = vars(cell)
    if not attributes.get("is_top_cell"):
        yield
        return
    attributes["is_top_cell"] = False
    try:
        yield
    finally:
        attributes["is_top_cell"] = True


#: What every cell holds, and no trainer sets; MindSpore 2.7. Later versions add some.
OF_EVERY_CELL = frozenset(
    [
        *("training", "requires_grad", "is_top_cell", "arguments_key", "cell_type"),
        *("grad_ops_label", "has_bprop", "mixed_precision_type", "cls_name", "_param_prefix"),
        *("_auto_prefix", "_phase", "_create_time", "_id", "_jit_graph_name", "_compiled"),
        *("_bprop_debug", "_amp_level", "_is_recursion_hook", "_has_config_recompute"),
        *("_is_check_and_refresh", "_init_flag", "_has_mutable_args_list"),
        *("_parallel_parameter_merge_net_dict", "_compile_cache", "_dynamic_shape_inputs"),
        *("_in_strategy", "_out_strategy", "_shard_fn", "_recompute_cell"),
        *("_parameter_layout_dict", "_phase_cache", "_scope", "_jit_config_dict"),
        *("jit_config_dict", "_parallel_inputs_run", "_construct_inputs_num"),
        *("_construct_inputs_names", "instance_key", "_buffers", "_cells", "_params"),
        *("_params_list", "_primitives", "current_phase"),
    ]
)


def children_of(cell: nn.Cell) -> Mapping[str, nn.Cell | None]:
    """Return the children of a cell by their names, live: what comes later is seen."""
    children: Mapping[str, nn.Cell | None] | None = getattr(cell, "_cells", None)
    return {} if children is None else children


def parameters_of(cell: nn.Cell) -> Mapping[str, Any]:
    """Return the parameters that a cell holds itself, by their names."""
    parameters: Mapping[str, Any] | None = getattr(cell, "_params", None)
    return {} if parameters is None else parameters


def buffers_of(cell: nn.Cell) -> Mapping[str, Any]:
    """Return the tensors that a cell registered as buffers, by their names."""
    buffers: Mapping[str, Any] | None = getattr(cell, "_buffers", None)
    return {} if buffers is None else buffers


def put_child(cell: nn.Cell, name: str, child: nn.Cell) -> None:
    """Let a cell hold another under any name, also one that is no identifier."""
    cell._cells[name] = child


def put_parameter(cell: nn.Cell, parameter: Any) -> None:
    """Let a cell hold a parameter by its own name, which is no identifier."""
    cell._params[parameter.name] = parameter


def has_run(cell: nn.Cell) -> bool:
    """Return whether a cell has ever been called in PyNative mode."""
    return bool(getattr(cell, "_init_flag", False) or getattr(cell, "_is_check_and_refresh", False))


def is_recomputed(cell: nn.Cell) -> bool:
    """Return whether MindSpore computes a cell again, by itself or as a part of another one."""
    return bool(vars(cell).get("_has_config_recompute"))


def is_compiled(cell: nn.Cell) -> bool:
    """Return whether a cell has been compiled; asks nothing of it but its attributes."""
    return bool(vars(cell).get("_compile_cache"))


def any_compiled() -> bool:
    """Return whether any cell of this process may have been compiled."""
    return any(getattr(_API, "cells_compile_cache", {}).values())


def recomputing_cell(cell: nn.Cell) -> nn.Cell | None:
    """Return the cell inside MindSpore that runs `cell` again, if it is recomputed."""
    wrapper: Any = getattr(cell, "_recompute_cell", None)
    if is_recompute_helper(wrapper) and wrapper.net is wrapper.wrap_cell:
        inside: nn.Cell = wrapper.wrap_cell
        return inside
    return None


_RECOMPUTE_CELL: Any = getattr(_RECOMPUTE, "_RecomputeCell", None)


def is_recompute_helper(cell: Any) -> bool:
    """Return whether a cell is one by which MindSpore recomputes another."""
    return _RECOMPUTE_CELL is not None and isinstance(cell, _RECOMPUTE_CELL)


_INNER_RECURRENT = tuple(
    found for name in NAMES if name.owner is _RNNS and (found := getattr(_RNNS, name.name, None))
)


def is_inner_recurrent(cell: nn.Cell) -> bool:
    """Return whether a cell is one inside nn.LSTM, nn.GRU or nn.RNN.

    They are handed Parameters, and MindSpore cannot compile them with a probe beside. Where they
    are not known, it is any cell of MindSpore's own.
    """
    kind = type(cell)
    if has_all("mindspore.recurrent"):
        return issubclass(kind, _INNER_RECURRENT)
    return kind.__module__.startswith("mindspore.nn.") and kind.__name__.startswith("_")


def _code(owner: Any, *path: str) -> CodeType | None:
    for name in path:
        owner = getattr(owner, name, None)
    found: CodeType | None = getattr(owner, "__code__", None)
    return found


#: The functions that run a recomputed cell: for the first time, and once more for its gradients.
FIRST_RUN = _code(_RECOMPUTE, "_RecomputeCell", "construct")
RUN_AGAIN = _code(_RECOMPUTE, "_RecomputeCell", "bprop")
#: MindSpore 2.10 has a second way, in which the gradients flow through the first run.
ONLY_VALUES = _code(_RECOMPUTE, "_RecomputeHandle", "recompute")


@contextmanager
def without_recompiling() -> Iterator[None]:
    """Keep what `ms.jit` has compiled (MindSpore's optimizers, for instance).

    MindSpore counts every hook that comes or goes, and compiles all jitted functions again when
    the count has changed. Ours change nothing in them.
    """
    version = getattr(_HOOK_HANDLE, "_HOOK_VERSION", None)
    try:
        yield
    finally:
        if version is not None:
            _HOOK_HANDLE._HOOK_VERSION = version


# Tensors.


def has_gradient_graph(tensor: Any) -> bool:
    """Return whether a tensor was computed from what is differentiated; False where unknown."""
    try:
        return bool(tensor._has_auto_grad())
    except AttributeError:
        return False


def address_of(tensor: Any) -> int:
    """Return where a tensor's elements lie in memory; 0 where it cannot be known."""
    return int(tensor._data_ptr())


# PyNative's executor, and operators.


class _NoExecutor:
    """Stands for an executor that this MindSpore does not have: nothing is differentiated."""

    def __getattr__(self, name: str) -> Callable[..., bool]:
        return lambda *_: False


#: What differentiates functions in PyNative mode.
EXECUTOR: Any = _EXECUTOR if _EXECUTOR is not None else _NoExecutor()
#: The same without MindSpore's wrapper in Python around it, for what is called for each entry.
INNER_EXECUTOR: Any = getattr(EXECUTOR, "_executor", EXECUTOR)


def gradients_flow() -> bool:
    """Return whether MindSpore builds the graph of gradients at this moment."""
    return bool(EXECUTOR.requires_grad())


_NOT_CAST: Any = getattr(getattr(_C_EXPRESSION, "MixedPrecisionType", None), "NOTSET", None)
_SET_CAST: Callable[[Any, bool], None] | None = getattr(
    INNER_EXECUTOR, "set_mixed_precision_type", None
)
#: Runs an operator as PyNative does, whatever its own `__call__` would do in Python.
RUN_OP: Any = getattr(_PRIMITIVE, "_run_op", None)
#: The modules of MindSpore's functions that are no operators, though mindspore.ops has them:
#: what differentiates, compiles, registers and prints.
NO_OPERATORS = frozenset(
    f"mindspore.ops.{name}"
    for name in (
        *("composite.base", "primitive", "op_info_register", "vm_impl_registry"),
        *("function._add_attr_func", "function.debug_func", "function.grad.grad_func"),
        *("function.vmap_func", "function.reshard_func", "operations._ms_kernel"),
    )
)
#: How the modules of primitives begin that serve MindSpore itself: order, sequences, hooks.
INTERNAL_PRIMITIVES = tuple(
    f"mindspore.{name}"
    for name in (
        *("ops.operations.debug_ops", "ops.operations.control_ops", "ops.operations._scalar_ops"),
        *("ops.operations._sequence_ops", "ops.operations._tensor_array", "rewrite."),
        *("ops.operations._embedding_cache_ops", "ops.operations._map_tensor_ops"),
    )
)
#: The counters from which operators without a seed of their own get one when they are compiled.
OP_SEEDS: dict[Any, Any] | None = getattr(_SEED, "_KERNEL_SEED", None)


def put_operator_seeds(seed: int | None, counters: Mapping[Any, Any]) -> None:
    """Let functions that draw by the global seed and a counter (`ops.rand`) go on from there.

    Args:
        seed: None leaves the seed that there is: without one they draw anything.
    """
    if OP_SEEDS is not None and hasattr(_SEED, "_GLOBAL_SEED"):
        if seed is not None:
            _SEED._GLOBAL_SEED = seed
        OP_SEEDS.clear()
        OP_SEEDS.update(counters)


def uncast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function in which operators run as they are called.

    A hook runs inside its cell. Under `to_float`, MindSpore casts the inputs of every operator that
    runs there, also those of ours.
    """
    if _SET_CAST is None or _NOT_CAST is None:
        return function
    set_cast, not_cast = _SET_CAST, _NOT_CAST

    def inside(*args: Any) -> Any:
        set_cast(not_cast, True)
        try:
            return function(*args)
        finally:
            set_cast(not_cast, False)

    return inside


#: The function of a cell that puts its cast on and takes it off.
CASTING = _code(nn.Cell, "_complex_call")


def close_cast() -> None:
    """End the cast of the cell with `to_float` that was entered last, where it did not itself."""
    if _SET_CAST is not None and _NOT_CAST is not None:
        _SET_CAST(_NOT_CAST, False)


def no_gradients() -> AbstractContextManager[Any]:
    """Return a context in which what is computed is not differentiated."""
    no_grad = getattr(_API, "_no_grad", None)
    return nullcontext() if no_grad is None else no_grad()


def default_generator_was_seeded() -> bool:
    """Return whether MindSpore's default generator was given a seed; True where it does not say."""
    operator = getattr(getattr(_GENERATOR, "default_generator", None), "_generator", None)
    return bool(getattr(operator, "manual_seed", True))


# What compiles graphs.

#: The classes of what compiles graphs: of cells, and where MindSpore has one of its own, of jit.
GRAPH_EXECUTORS: list[Any] = [
    found
    for name in ("GraphExecutor_", "JitExecutor_")
    if (found := getattr(_C_EXPRESSION, name, None)) is not None
]
#: The classes that ask them to, in Python: for cells, and for functions under `ms.jit`.
CELL_COMPILER: Any = getattr(_API, "_CellGraphExecutor", None)
FUNCTION_COMPILER: Any = getattr(_API, "_JitExecutor", None)
#: Their methods that look for a graph by the phase alone, and the one that runs a cell's graph.
BY_PHASE, RUN_GRAPH = "_predict", "compile_and_run"
#: The class of the context in which `ms.jit(capture_mode="bytecode")` runs a function; or None.
BYTECODE_CONTEXT: Any = getattr(_BYTECODE, "PIJitCaptureContext", None)
#: The functions that it compiles where it vectorises another one.
_VECTORISING = frozenset(name.name for name in NAMES if name.lost == _VECTORISED)


def is_vectorised() -> bool:
    """Return whether what MindSpore compiles at this moment is one of its vectorising functions.

    Where they are not known, it is any function of MindSpore's own.
    """
    known = has_all(_VECTORISED)
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__", "").startswith("mindspore."):
            compiled = getattr(frame.f_locals.get("self"), "fn", None)
            name, module = (getattr(compiled, n, "") for n in ("__qualname__", "__module__"))
            if name in _VECTORISING if known else f"{module}".startswith("mindspore."):
                return True
    return False
