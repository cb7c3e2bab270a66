"""What a compiled graph does that probes would break: changes in place, values of Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindspore.train import anf_ir_pb2, mind_ir_pb2

#: How the names of operators begin that change their first input, any tensor, and return it. Those
#: that take Parameters alone (Assign, ScatterUpdate) reach them wherever a probe stands.
_CHANGES = "Inplace", "CopyWithSlice"
#: How the names of operators begin whose output may be the memory of their first input.
_PASSES = (
    *("Load", "Depend", "TensorMove", "TupleGetItem", "ListGetItem", "DictGetItem", "Identity"),
    *("Reshape", "View", "Flatten", "ExpandDims", "Squeeze", "Unsqueeze", "Transpose", "Permute"),
    *("Swap", "Broadcast", "Expand", "StridedSlice", "Slice", "Narrow", "Select", "Split"),
    *("Chunk", "Unstack", "Unbind", "AsStrided", "Diagonal", "Real", "Imag", "Unfold", *_CHANGES),
)
_HOLDS = "MakeTuple", "MakeList", "MakeDict"  # their output holds all their inputs
#: How the names of nodes begin that MindSpore adds where it differentiates; what they change in
#: place is their own.
_OF_GRADIENTS = "Gradients/"
#: The operator that has Python compute a value while the graph runs.
_PYTHON = "PyExecute"


def is_differentiated(graph: bytes) -> bool:
    """Return whether a graph computes gradients."""
    return _OF_GRADIENTS.encode() in graph


def changes_in_place(graph: bytes, *, weights_are_passed: bool) -> bool:
    """Return whether a graph may change a tensor in place that cells pass to each other.

    Args:
        graph: in MindSpore's `mind_ir` format.
        weights_are_passed: whether weights are among the arguments or outputs of cells.
    """
    if not any(change.encode() in graph for change in _CHANGES):
        return False  # most graphs, and reading one takes time
    nodes, operators, weights = _read(graph)
    kinds = {name: each.op_type for name, each in operators.items()}
    changed = [
        node
        for node in nodes.values()
        if kinds.get(node.op_type, "").startswith(_CHANGES)
        and not node.domain.startswith(_OF_GRADIENTS)
    ]
    if weights_are_passed:
        return bool(changed)
    roots = {root for node in changed for root in _roots_of(node.input[0], nodes, operators)}
    # A branch has an input for each weight that it uses, of the weight's name behind its own.
    return not {root.rpartition(":")[2] for root in roots} <= weights


def may_change_in_place(graph: bytes, *, weights_are_passed: bool) -> bool:
    """Tell the same of a graph that has no such format, as far as that can be known.

    Args:
        graph: in MindSpore's `anf_ir` format, which leaves out what stands in branches.
        weights_are_passed: as of `changes_in_place`.
    """
    model = anf_ir_pb2.ModelProto()
    model.ParseFromString(graph)
    weights = set() if weights_are_passed else {w.name for w in model.graph.parameters}
    return any(
        node.op_type.startswith(_CHANGES) and node.input[0].name not in weights
        for node in model.graph.node
        if not node.full_name.startswith(_OF_GRADIENTS)
    )


def _read(graph: bytes) -> tuple[dict[str, Any], dict[str, Any], set[str]]:
    """Return the nodes by what they return, the operators by name, and the names of weights."""
    model = mind_ir_pb2.ModelProto()
    model.ParseFromString(graph)
    nodes = (node for each in (model.graph, *model.functions) for node in each.node)
    return (
        {node.output[0]: node for node in nodes if node.output},
        {f"REF::{operator.name}": operator for operator in model.primitives},
        {weight.name for weight in model.graph.parameter},
    )


def _roots_of(name: str, nodes: Mapping[str, Any], operators: Mapping[str, Any]) -> set[str]:
    """Return the names of the nodes, weights and arguments that some memory comes from."""
    roots: set[str] = set()
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        node = nodes.get(name)
        kind = operators[node.op_type].op_type if node and node.op_type in operators else ""
        if kind in _HOLDS:
            waiting += node.input  # type: ignore[union-attr]
        elif kind.startswith(_PASSES) or "View" in kind:
            waiting.append(node.input[0])  # type: ignore[union-attr]
        else:
            roots.add(name)
    return roots


def are_only_returned(graph: bytes) -> bool:
    """Return whether a graph only returns what Python computes, as MindFormers' train step None.

    Where anything else waits for such a value or uses it, MindSpore infers shapes while the graph
    runs, which fails for host functions. The format leaves out what stands in branches: where
    Python computes there, this is not known, and counts as a use.

    Args:
        graph: in MindSpore's `anf_ir` format.
    """
    model = anf_ir_pb2.ModelProto()
    model.ParseFromString(graph)
    returned: set[str] = set()
    for node in model.graph.node:  # each comes after its inputs
        given = [each.name for each in node.input]
        if node.op_type == _PYTHON:
            returned.add(node.name)
        elif not returned.isdisjoint(given):
            passes = node.op_type == "MakeTuple" or (
                node.op_type == "Depend" and returned.isdisjoint(given[1:])
            )
            if not passes:
                return False
            returned.add(node.name)
        elif any(size.size < 0 for size in node.output_type.tensor_type.shape.dim):
            return False  # its shape is not known before the graph runs
    return bool(returned)
