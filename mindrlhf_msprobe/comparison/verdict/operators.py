"""Where an operator that differs first was called, and what may be to blame beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from mindrlhf_msprobe.common.message import Messages, message
from mindrlhf_msprobe.comparison.pairing.operators import forward_of
from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference
from mindrlhf_msprobe.storage.code_lines import code_line, users_frame
from mindrlhf_msprobe.storage.manifest.coverage import OPERATORS, reasons_of
from mindrlhf_msprobe.storage.operators import parse_operator
from mindrlhf_msprobe.storage.records import Entry, cell_name, is_optimizer_state

_RANDOM = re.compile(
    r"(?:^|[._])(?:\w*dropout\w*|rand\w*|(?:log_?|standard_?)?normal_?|uniform\w*|bernoulli\w*"
    r"|multinomial\w*|gumbel_softmax|poisson|exponential_|cauchy_|geometric_|laplace|gamma|rrelu"
    r"|\w*candidate_sampler|random\w*)(?:\.|$)",
    re.IGNORECASE,
)


def cell_of(first: FirstDifference, origin: str | None) -> str | None:
    """Return the cell of an entry, or the one around an operator.

    "" outside every cell; None where it is not known.
    """
    if origin is None:
        return None
    if parse_operator(origin) is None:
        return cell_name(origin)
    for entry in _called(first, [origin, forward_of(origin)]):
        if entry.around is not None:
            return entry.around
    return None


def place_of(first: FirstDifference, origin: str | None) -> dict[str, Any]:
    """Return the operator, the cell and the line of code of an origin, as `Divergence` has them."""
    operator = None if origin is None else parse_operator(origin)
    cell = cell_of(first, origin)
    frame = frame_of(first, origin)
    line = None if frame is None else code_line(frame)
    return {
        "operator": "" if operator is None else operator.operator,
        "cell": None if cell is not None and is_optimizer_state(cell) else cell,
        "line": "" if line is None else line.place,
    }


def frame_of(first: FirstDifference, origin: str | None) -> str | None:
    """Return the frame of the user's code that called an origin; None if that is not known.

    A backward entry has no call of its own in the user's code: that of its forward entry counts.
    """
    name = origin or (first.entry.name if first.entry else None)
    if name is None:
        return None
    forward = forward_of(name) if parse_operator(name) else _forward_of_cell(name)
    frames = (users_frame(entry.stack) for entry in _called(first, [name, forward]))
    return next((frame for frame in frames if frame is not None), None)


def _forward_of_cell(name: str) -> str:
    return ".forward.".join(name.rsplit(".backward.", 1))


def _called(first: FirstDifference, names: Iterable[str]) -> list[Entry]:
    """Return the entries of the first difference's phase, in the order of their names.

    An entry that B alone has may be called as another one of A: what belongs to it is of B alone.
    """
    phase, only_in_b = first.event.phase, _is_only_in_b(first)
    wanted = dict.fromkeys(names)
    found: dict[str, Entry] = {}
    for pair, _ in first.pairs:
        entry = pair.entry
        if entry is None or entry.name not in wanted or pair.event.phase != phase:
            continue
        if entry.name not in found or (pair.a is None) == only_in_b:
            found[entry.name] = entry
    if first.entry is not None and first.entry.name in wanted:
        found[first.entry.name] = first.entry
    return [found[name] for name in wanted if name in found]


def _is_only_in_b(first: FirstDifference) -> bool:
    """Return whether all of the entry that differs first is in B alone."""
    return all(pair.a is None for pair, _ in first.pairs if pair.event == first.event)


def other_attributes(first: FirstDifference, entry: Entry) -> Messages:
    """Return which attributes of an operator differ; () if none do, or that is not known.

    They stand in its forward entry.
    """
    names = (entry.name, forward_of(entry.name))
    for pair, _ in first.pairs:
        if pair.attributes and pair.event.phase == first.event.phase and pair.event.name in names:
            changes = [
                message("explanation.one_attribute", name=name, a=a, b=b)
                for name, a, b in pair.attributes
            ]
            return (message("explanation.other_attributes", changes=changes),)
    return ()


def not_mindspores(first: FirstDifference, entry: Entry) -> Messages:
    """Say in which runs something else stands in the place of an operator, as run.json tells."""
    operator = parse_operator(entry.name)
    if operator is None:
        return ()
    name = operator.operator
    if operator.kind == "Primitive":
        name = f"Primitive.{operator.name.rpartition('.')[2]}"
    found: dict[str, list[str]] = {}
    for side, run in zip("AB", first.runs):
        held = run.coverage(first.finding.rank).get(OPERATORS) or {}
        for why in reasons_of(run.coverage(first.finding.rank), OPERATORS, name) if held else ():
            if why.code == "coverage.operator_replaced":
                found.setdefault(str(why.params["by"]), []).append(side)
    return tuple(
        message("explanation.not_mindspores", runs=", ".join(sides), by=by)
        for by, sides in found.items()
    )


def beside_operator(entry: Entry) -> Messages:
    """Return what but its own computation can make an operator's output differ."""
    operator = parse_operator(entry.name)
    if operator is None:
        return ()
    if operator.communicates:
        return (message("explanation.but_other_ranks"),)
    if _RANDOM.search(operator.name):
        return (message("explanation.but_random"),)
    return ()
