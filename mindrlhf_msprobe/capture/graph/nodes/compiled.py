"""What the wrappers of graph_source.py call: MindSpore compiles it into them.

The nodes that hand something over are the device's: `opened`, `closed`, `handed_over`,
`all_handed_over` and `watched` of graph_cpu.py or graph_ascend.py.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False
# ruff: noqa: RUF005, SIM118

from mindspore.ops import functional as F

from mindrlhf_msprobe.capture.graph.files.switch import writes_files
from mindrlhf_msprobe.capture.graph.keydata import NO_CELL
from mindrlhf_msprobe.capture.graph.probes import KIND, TOGETHER

if writes_files():
    from mindrlhf_msprobe.capture.graph.nodes.ascend import (
        all_handed_over,
        closed,
        gradient_saved,
        handed_over,
        opened,
        value_closed,
        value_opened,
        value_tensor,
        watched,
    )
else:
    from mindrlhf_msprobe.capture.graph.nodes.cpu import (
        all_handed_over,
        closed,
        gradient_saved,
        handed_over,
        opened,
        value_closed,
        value_opened,
        value_tensor,
        watched,
    )

__all__ = ["closed", "gradient_saved", "opened", "own_parameters", "saved", "shown", "visited"]


def own_parameters(cell, names, parameters, call):
    """Hand over the parameters of a cell; return the call, which waits for it."""
    if TOGETHER(cell, parameters):
        values = ()
        for parameter in parameters:
            values = values + (F.stop_gradient(parameter),)
        return all_handed_over(cell, "parameters", names, values, call)
    for i in range(len(names)):
        if KIND(cell, parameters[i]) != "leave":
            call = handed_over(cell, "parameters", (names[i],), parameters[i], call)
    return call


def shown(cell, part, path, value, call):
    """Hand over every tensor in a value that nobody differentiates; return the call likewise."""
    kind = KIND(cell, value)
    if kind == "differentiable" or kind == "tensor" or kind == "parameter":
        return handed_over(cell, part, path, value, call)
    if kind == "tuple" or kind == "list":
        if TOGETHER(cell, value):
            return all_handed_over(cell, part, path, value, call)
        for i in range(len(value)):
            call = shown(cell, part, path + (i,), value[i], call)
    if kind == "dict":
        for key in value.keys():
            call = shown(cell, part, path + (key,), value[key], call)
    return call


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


def saved(name, data):
    """Hand over a value that is saved as key data."""
    value = value_opened(name, data)
    tensors_saved((name,), data, value)
    value_closed(name, data, value)


def tensors_saved(path, data, value):
    """Hand over every tensor of a value that is saved."""
    kind = KIND(NO_CELL, data)
    if kind == "differentiable" or kind == "tensor" or kind == "parameter":
        value_tensor(path, data, value)
    if kind == "tuple" or kind == "list":
        for i in range(len(data)):
            tensors_saved(path + (i,), data[i], value)
    if kind == "dict":
        for key in data.keys():
            tensors_saved(path + (key,), data[key], value)
