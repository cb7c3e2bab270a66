"""What a compiled graph does with values that Python computes while the graph runs."""

from __future__ import annotations

from typing import Any

from mindspore.train import anf_ir_pb2

_PYTHON = "PyExecute"


def are_only_returned(graph: bytes) -> bool:
    """Tell whether a graph only returns what Python computes, as MindFormers' train step None.

    Where anything else waits for such a value or uses it, MindSpore infers shapes while the graph
    runs, which fails for host functions. The format leaves out what stands in branches: where
    Python computes there, this is not known, and not told from a use.

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
        elif _has_unknown_shape(node.output_type):
            return False
    return bool(returned)


def _has_unknown_shape(kind: Any) -> bool:
    return any(size.size < 0 for size in kind.tensor_type.shape.dim)
