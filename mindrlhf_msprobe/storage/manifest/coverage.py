"""`coverage` of a manifest: what is switched on and was not recorded, and why.

A reason is a message; what a trainer says itself is a text. `graph_mode` holds role → cell → a list
of reasons; `phases`, `key_data`, `optimizers` and `mindspore` hold name → reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mindrlhf_msprobe.common.message import Message, as_json_or_text, read_messages

GRAPH_MODE = "graph_mode"
PHASES = "phases"
#: A private name that this MindSpore lacks → what is lost.
MINDSPORE = "mindspore"
KEY_DATA = "key_data"
#: What was not looked at while training.
LIVE = "live"
#: Where a program holds an operator, beyond reach → why its calls are not recorded.
OPERATORS = "operators"
#: Role → why the state of its optimizer is not recorded.
OPTIMIZERS = "optimizers"

#: A Parameter is an argument or an output of a cell: its gradients are left out.
PASSES_PARAMETER = "coverage.gradients_passes_parameter"
#: The inputs that are recorded of a cell have the dtype they were cast to.
CASTS_INPUTS = "coverage.gradients_casts_inputs"


#: The kinds under which reasons stand, each behind one name; under `graph_mode` behind two.
_KINDS = (GRAPH_MODE, PHASES, KEY_DATA, OPTIMIZERS, MINDSPORE, LIVE, OPERATORS)


def read_coverage(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return `coverage` as a manifest holds it, with a tuple of messages for each reason or list.

    What is neither a reason nor leads to one is left out.
    """
    return {
        kind: _read(names, 2 if kind == GRAPH_MODE else 1)
        for kind, names in found.items()
        if kind in _KINDS and isinstance(names, Mapping)
    }


def reasons_of(coverage: Mapping[str, Any], *names: str) -> tuple[Message, ...]:
    """Return the reasons that the names lead to, in what `read_coverage` returned."""
    found: Any = coverage
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, tuple) else ()


def note_reasons(
    known: Mapping[str, Any], new: Mapping[str, Iterable[Message]], *, alone: bool = False
) -> tuple[dict[str, Any], dict[str, tuple[Message, ...]]]:
    """Add the reasons of cells to those that a manifest holds.

    Args:
        known: cell → reasons, as JSON; it stays as it is.
        alone: whether one reason stands for itself, and only several in a list.

    Returns:
        cell → reasons of both, as JSON; and those of `new` that were not known.
    """
    both, added = dict(known), {}
    for cell, reasons in new.items():
        before = read_messages(known.get(cell, []))
        more = tuple(reason for reason in dict.fromkeys(reasons) if reason not in before)
        more = more[: max(0, 32 - len(before))]  # reasons of one thing
        if more:
            said = [as_json_or_text(reason) for reason in (*before, *more)]
            both[cell] = said[0] if alone and len(said) == 1 else said
            added[cell] = more
    return both, added


def joined(first: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two attempts at a run say, as JSON: every reason of each."""
    both = {**first, **later}
    for kind in _KINDS:
        sides = [side[kind] for side in (first, later) if isinstance(side.get(kind), Mapping)]
        if len(sides) < 2:
            continue
        if kind != GRAPH_MODE:
            new = {name: read_messages(why) for name, why in sides[1].items()}
            both[kind] = note_reasons(sides[0], new, alone=True)[0]
            continue
        both[kind] = {**sides[0], **sides[1]}
        for role in sides[0].keys() & sides[1].keys():
            cells = [side[role] if isinstance(side[role], Mapping) else {} for side in sides]
            new = {cell: read_messages(why) for cell, why in cells[1].items()}
            both[kind][role] = note_reasons(cells[0], new)[0]
    return both


def _read(found: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Return name → reasons, to each of which `depth` names lead."""
    read: dict[str, Any] = {}
    for name, why in found.items():
        if depth > 1 and isinstance(why, Mapping):
            read[str(name)] = _read(why, depth - 1)
        elif depth == 1 and (reasons := read_messages(why)):
            read[str(name)] = reasons
    return read
