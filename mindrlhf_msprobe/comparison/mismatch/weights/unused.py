"""Lines of a mapping that fit nothing in two networks, and why."""

from __future__ import annotations

from mindrlhf_msprobe.common.message import Message, Messages, message
from mindrlhf_msprobe.comparison.mismatch.sides import Side
from mindrlhf_msprobe.comparison.pairing.fused import by_rule
from mindrlhf_msprobe.comparison.pairing.mapping import CellMapping, FusedRule
from mindrlhf_msprobe.comparison.pairing.names import NameRule
from mindrlhf_msprobe.errors import nearest_of
from mindrlhf_msprobe.storage.records import cell_of_parameter


def unused_rules(mapping: CellMapping, rollout: Side, training: Side) -> Messages:
    """Say of each line of a mapping that fits nothing why it does not."""
    names = (_unused_name(rule, rollout, training) for rule in mapping.names)
    fused = (_unused_fused(rule, rollout, training) for rule in mapping.fused)
    return tuple(why for why in (*names, *fused) if why is not None)


def _unused_name(rule: NameRule, rollout: Side, training: Side) -> Message | None:
    targets = [name for cell in rollout.cells if (name := rule.rename(cell)) is not None]
    if not targets:
        return _no_cell(rule.source, rollout)
    if any(name in training.cells for name in targets):
        return None
    return _no_part(rule.source, "cell", targets[0], training)


def _unused_fused(rule: FusedRule, rollout: Side, training: Side) -> Message | None:
    source = rule.parts[0].source
    meant = {cell: parts for cell in rollout.cells if (parts := rule.parts_of(cell)) is not None}
    if not meant:
        return _no_cell(source, rollout)
    own, theirs = _matrices(rollout), _matrices(training)
    if any(cell in own and by_rule(cell, own[cell], (rule,), theirs) is not None for cell in meant):
        return None
    cell, parts = next(iter(meant.items()))
    for part in parts:
        if part not in training.cells:
            return _no_part(source, "cell", part, training)
    if cell not in own:
        return None  # it has no weight: its values are what the mapping is about
    for part in parts:
        if part not in theirs:
            return _no_part(source, "weight of", part, training)
    shapes = [f"{part} {[*theirs[part]]}" for part in parts]
    said = {"source": source, "cell": cell, "shape": [*own[cell]], "parts": shapes}
    return message("mismatch.mapping_shapes", **said)


def _no_cell(source: str, rollout: Side) -> Message:
    inside = [cell for cell in rollout.cells if cell != "root"]
    example = next((cell for cell in inside if "." in cell), inside[0] if inside else "root")
    hint = nearest_of(source, inside)
    return message("mismatch.mapping_no_cell", source=source, example=example, hint=hint)


def _no_part(source: str, what: str, part: str, training: Side) -> Message:
    hint = nearest_of(part, training.cells)
    return message("mismatch.mapping_no_part", source=source, what=what, part=part, hint=hint)


def _matrices(side: Side) -> dict[str, tuple[int, int]]:
    """Return the shape of the first matrix of weights of each cell that has one."""
    found: dict[str, tuple[int, int]] = {}
    for name, record in side.parameters.items():
        shape = record.leaf.shape or ()
        if len(shape) == 2:
            found.setdefault(cell_of_parameter(name), (shape[0], shape[1]))
    return found
