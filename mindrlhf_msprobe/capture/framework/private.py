"""Names of MindSpore that are not public: its executors, and its module that has moved in 2.9."""

from __future__ import annotations

import importlib
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from mindspore import _c_expression
from mindspore.ops import primitive

_NEW, _OLD = "mindspore.graph.api", "mindspore.common.api"

#: The module; the old name of a new MindSpore would log a warning.
API: Any = importlib.import_module(_NEW if find_spec("mindspore.graph") else _OLD)
#: What differentiates functions in PyNative mode.
EXECUTOR: Any = API._pynative_executor
#: The same without MindSpore's wrapper in Python around it, for what is called for each entry.
INNER_EXECUTOR: Any = getattr(EXECUTOR, "_executor", EXECUTOR)
#: To what operators cast their inputs.
MIXED_PRECISION: Any = _c_expression.MixedPrecisionType
#: Runs an operator as PyNative does, whatever its own `__call__` would do in Python.
RUN_OP: Any = getattr(primitive, "_run_op", None)
#: The classes of what compiles graphs: of cells, and where MindSpore has one of its own, of jit.
GRAPH_EXECUTORS: list[Any] = [
    found
    for name in ("GraphExecutor_", "JitExecutor_")
    if (found := getattr(_c_expression, name, None)) is not None
]
#: The counters from which operators without a seed of their own get one when they are compiled.
OP_SEEDS: dict[Any, Any] | None = getattr(
    importlib.import_module("mindspore.common.seed"), "_KERNEL_SEED", None
)


def _bytecode_context() -> Any:
    for name in ("mindspore.graph._utils.pijit_context", "mindspore.common._pijit_context"):
        with suppress(ImportError):
            return importlib.import_module(name).PIJitCaptureContext
    return None


#: The class of the context in which `ms.jit(capture_mode="bytecode")` runs a function; or None.
BYTECODE_CONTEXT: Any = _bytecode_context()
