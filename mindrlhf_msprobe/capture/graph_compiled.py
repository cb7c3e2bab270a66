"""What the wrappers of graph_source.py call: MindSpore compiles it into them.

The nodes that hand something over are the device's: `opened`, `closed`, `handed_over` and
`watched` of graph_cpu.py or graph_ascend.py.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False
# ruff: noqa: RUF005, SIM118

import mindspore
from mindspore.ops import functional as F

from mindrlhf_msprobe.capture.graph_probes import KIND

if mindspore.get_context("device_target") == "Ascend":
    from mindrlhf_msprobe.capture.graph_ascend import closed, handed_over, opened, watched
else:
    from mindrlhf_msprobe.capture.graph_cpu import closed, handed_over, opened, watched

__all__ = ["closed", "opened", "own_parameter", "visited"]


def own_parameter(cell, name, parameter, call):
    """Hand over a parameter of a cell and return the call."""
    if KIND(cell, parameter) == "leave":
        return call
    return handed_over(cell, "parameters", (name,), parameter, call)


def visited(cell, part, path, value, call, gradients):
    """Hand over every tensor in a value; return the value, its gradients watched if asked for."""
    kind = KIND(cell, value)
    if kind == "differentiable" and gradients:
        return watched(cell, part, path, value, call)
    if kind == "differentiable" or kind == "tensor" or kind == "parameter":
        # The value itself passes: a node behind it would group the sums of its gradient anew.
        handed_over(cell, part, path, value, call)
        return value
    if kind == "tuple":
        items = ()
        for i in range(len(value)):
            items = items + (visited(cell, part, path + (i,), value[i], call, gradients),)
        return items
    if kind == "list":
        items = []
        for i in range(len(value)):
            items.append(visited(cell, part, path + (i,), value[i], call, gradients))
        return items
    if kind == "dict":
        keys = ()
        items = ()
        for key in value.keys():
            keys = keys + (key,)
            items = items + (visited(cell, part, path + (key,), value[key], call, gradients),)
        return F.make_dict(keys, items)
    return value
