"""A recorded operator by its formula in numpy, which no kernel is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mindrlhf_msprobe.replay.offline.dropout import Dropped, is_dropout
from mindrlhf_msprobe.replay.precise.allowance import MOST, Judgement, judge
from mindrlhf_msprobe.replay.precise.operators import compute_operator
from mindrlhf_msprobe.replay.precise.values import Precision, Value, lowest_precision
from mindrlhf_msprobe.storage.operators import OperatorName

if TYPE_CHECKING:
    from mindrlhf_msprobe.replay.offline.computing import Recomputed


def values_by_formula(side: Recomputed, operator: OperatorName, primitive: Any) -> dict[str, Any]:
    """Return name → distances and verdict, as `judging` has them, of what a formula gives.

    Args:
        side: what was recorded.
        primitive: what has the attributes of a primitive; None for all else.

    Returns:
        {} where there is no formula for the operator, or not for this call of it.
    """
    try:
        return dict(_values(side, operator, primitive))
    except Exception:  # no formula, or arguments that it does not know: the kernel is asked
        return {}


def _values(
    side: Recomputed, operator: OperatorName, primitive: Any
) -> Iterator[tuple[str, dict[str, Any]]]:
    from mindrlhf_msprobe.replay.offline.script.template import distance

    given: list[dict[str, Any]] = []  # the nodes of all arrays, in their order
    args = [_made(side, node, given) for node in side.entry["args"]]
    kwargs = {name: _made(side, node, given) for name, node in side.entry["kwargs"].items()}
    precision = lowest_precision([side.lowest.lower()])
    name = operator.name if primitive is None else type(primitive).__name__
    if is_dropout(name):
        yield from _of_dropout(side, name, (args, kwargs, primitive), given, precision)
        return
    found = compute_operator(operator.kind, name, args, kwargs, precision, settings=primitive)
    outputs = [*_leaves(side.entry["output"])]
    if len(outputs) != len(found.outputs):
        return
    pairs: list[tuple[str, dict[str, Any], Value | None]] = [
        (node["at"], node, value) for node, value in zip(outputs, found.outputs) if "file" in node
    ]
    pairs += _gradients(side, found, outputs, given)
    for record, node, value in pairs:
        recorded = side.array(node)
        if value is None or value.shape != recorded.shape:
            continue
        wide = recorded.astype(np.result_type(recorded, np.float64))
        beside = node.get("rounding", 0.0)
        opinion = judge(wide, value.exact, value.draws[1:], precision, beside)
        exact = value.exact.astype(wide.dtype)
        yield record, _as_value(node, opinion, distance(recorded, exact, node["dtype"]))


def _of_dropout(
    side: Recomputed,
    name: str,
    called: tuple[list[Any], dict[str, Any], Any],
    given: list[dict[str, Any]],
    precision: Precision,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name, distances and verdict of what a dropout with the recorded mask gives."""
    from mindrlhf_msprobe.replay.offline.script.template import distance

    first, *more = [node for node in _leaves(side.entry["output"]) if "file" in node]
    gradient = given[0].get("gradient")
    nodes = {first["at"]: first}
    if gradient is not None:
        nodes[f"gradient:{given[0]['at']}"] = gradient
    recorded = {at: side.array(node).astype(np.float64) for at, node in nodes.items()}
    names = first["at"], f"gradient:{given[0]['at']}"
    output, leaving = recorded[names[0]], recorded.get(names[1])
    repeated = side.entry.get("repeated", False)
    dropped = Dropped(name, *called, output, leaving, repeated=repeated)
    arriving = side.array(first["arriving"]) if "arriving" in first else None
    odd = dropped.odd_share()
    for at, opinion, exact in dropped.judged(recorded, names, arriving, precision):
        node = nodes[at]
        value = _as_value(node, opinion, distance(side.array(node), exact, node["dtype"]))
        value["by_mask"] = True
        if odd is not None and at == first["at"]:
            value |= {"verdict": "wrong", "dropped": odd, "probability": dropped.probability}
        yield at, value
    for node in more:
        mask = side.array(node)
        if (found := dropped.agrees(mask)) is not None:
            yield node["at"], _as_value(node, found, distance(mask, mask, node["dtype"]))


def _gradients(
    side: Recomputed, found: Any, outputs: list[dict[str, Any]], given: list[dict[str, Any]]
) -> list[tuple[str, dict[str, Any], Value | None]]:
    """Return name, node and what the formula gives of the gradients that were recorded."""
    if not any("gradient" in node for node in given):
        return []
    arriving = [side.array(n["arriving"]) if "arriving" in n else None for n in outputs]
    return [
        (f"gradient:{node['at']}", node["gradient"], value)
        for node, value in zip(given, found.gradients(arriving))
        if "gradient" in node
    ]


def _as_value(node: dict[str, Any], opinion: Judgement, apart: dict[str, float]) -> dict[str, Any]:
    return {
        **{"dtype": node["dtype"], "shape": node["shape"], "by": "formula", "formula": apart},
        **{"share": float(opinion.ratio) / MOST, "verdict": opinion.opinion.value},
    }


def _made(side: Recomputed, node: dict[str, Any], given: list[dict[str, Any]]) -> Any:
    """Return an argument with arrays in the place of tensors, and note their nodes."""
    if "file" in node:
        given.append(node)
        return side.array(node)
    if "list" in node:
        return tuple(_made(side, item, given) for item in node["list"])
    if "dict" in node:
        return {name: _made(side, item, given) for name, item in node["dict"].items()}
    if "dtype" in node:
        return node["dtype"].lower()
    return side.value(node, {}, None)


def _leaves(nodes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what stands in structures, in order."""
    for node in nodes:
        inside = [*node.get("list", ()), *node.get("dict", {}).values()]
        if "list" in node or "dict" in node:
            yield from _leaves(inside)
        else:
            yield node
