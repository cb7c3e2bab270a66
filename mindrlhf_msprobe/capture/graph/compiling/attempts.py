"""What MindSpore compiles in the place of a graph with probes that it cannot have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindrlhf_msprobe.capture.framework.private import EXECUTOR, OP_SEEDS
from mindrlhf_msprobe.capture.graph.compiling.inspection import (
    are_only_returned,
    changes_in_place,
    is_differentiated,
    may_change_in_place,
)
from mindrlhf_msprobe.capture.graph.probes import SITES
from mindrlhf_msprobe.common.message import Message, message


def compiled_with_probes(
    compile_graph: Callable[..., Any],
    executor: Any,
    phase: str,
    cells: set[int],
    with_inner: Callable[[set[int]], set[int]],
) -> Any:
    """Compile a graph with probes; without any where they would stop or change the training.

    Where a graph is differentiated, MindSpore loses a change in place of what a cell is given if
    anything stands around the cell, were it only a wrapper that calls it.

    Args:
        compile_graph: compiles it, `probes=True` with probes.
        executor: MindSpore's, which compiles.
        phase: its name of the graph.
        cells: collects the numbers of the cells whose probes it holds.
        with_inner: returns the numbers of cells and of all cells inside them.

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
    if OP_SEEDS is not None:
        OP_SEEDS.clear()
        OP_SEEDS.update(seeds)
    executor.del_net_res(None, {phase})  # or what was compiled first runs
    compiled = compile_graph(probes=False)
    for cell in with_inner(cells):
        SITES.note_gap(cell, why)
    cells.clear()
    return compiled


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
