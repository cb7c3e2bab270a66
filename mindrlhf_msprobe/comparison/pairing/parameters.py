"""Which parameter of one checkpoint is which of another one; no element is read but of fused ones.

Names are brought together by a user's mapping, by presets of known networks, and by a prefix that
all of one network has. A weight of one side may be several of the other one: as the mapping says,
or where it and they are called as fused ones usually are, by their rows.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.printable import shortened
from mindrlhf_msprobe.comparison.pairing.composed import Composed, OfRecord, joined, reshaped
from mindrlhf_msprobe.comparison.pairing.frameworks.presets import (
    is_of_fused,
    is_of_part,
    last_name,
    own_names,
    preset_names,
    said_of_preset,
)
from mindrlhf_msprobe.comparison.pairing.frameworks.records import parameter_names_of
from mindrlhf_msprobe.comparison.pairing.fused import find_usual, parts_of
from mindrlhf_msprobe.comparison.pairing.mapping import CellMapping, FusedRules
from mindrlhf_msprobe.comparison.pairing.names import NameRules, Names, around, match_names
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.comparison.pairing.timeline import BEGIN, EventKey
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.storage.records import Record, cell_of_parameter

#: What optimizers of MindSpore put in front of a parameter's name; `linear.`, which FTRL does, may
#: be a cell as well, and what is no optimizer's is never left out.
_STATE = re.compile(
    r"(?:optimizer|adam_[mv]|moments?[12]?|accum|accumulation|exp_avg|exp_avg_sq|max_exp_avg_sq"
    r"|mean_squares?|mean_gradients?)\.(?=.)"
)
#: What a checkpoint holds of training beside parameters.
_OF_TRAINING = re.compile(
    r"(?:learning_rate|lr|global_step|beta[12]|beta[12]_power|epoch_num|step_num|loss_scale|scale_sense"
    r"|current_iterator_step|last_overflow_iterator_step|momentum|weight_decay|state_step)(?:_\d+)?"
)

#: The parameters of one side, by name.
Parameters = Mapping[str, Record]


def stored_names(pair: Pair) -> list[str]:
    """Return the names of all parameters that a pair is of: of one that is several, its parts'."""
    return [name for record in pair.records for name in _stored_names(record)]


def _stored_names(record: Record) -> Iterator[str]:
    made_of = record.expression if isinstance(record, Composed) else None
    parts = [] if made_of is None else [p for p in made_of.stored() if isinstance(p, OfRecord)]
    for part in parts:
        yield from _stored_names(part.record)
    if not parts:
        yield record.name


def _pair(a: Record | None, b: Record | None) -> Pair:
    """Return a parameter of A and what it is in B; None where that side has none."""
    named = a or b
    return Pair(EventKey(BEGIN, None, named.name if named is not None else ""), a, b)


def split_state(name: str) -> tuple[str, str]:
    """Return what an optimizer put in front of a parameter's name ("" for none), and the rest."""
    match = _STATE.match(name)
    return (match.group(), name[match.end() :]) if match else ("", name)


def is_of_optimizer(name: str) -> bool:
    """Return whether a tensor belongs to the training and not to the network."""
    return bool(_STATE.match(name) or _OF_TRAINING.fullmatch(name))


def pair_parameters(
    a: Parameters, b: Parameters, mapping: CellMapping
) -> tuple[list[Pair], list[Message]]:
    """Bring the parameters of two checkpoints together; return them and what was done for it.

    Those that are several of the other side stand first, then those of A in its order, then those
    that B has alone. Rules and prefixes hold for an optimizer's state as well.

    Raises:
        UsageError: two parameters of one side come to one name; or a part of a fused one is
            missing, or the shapes do not sum up.
    """
    pairs = [*_by_rules(a, b, mapping.fused)]
    used = {name for pair in pairs for name in stored_names(pair)}
    a, b = ({n: r for n, r in side.items() if n not in used} for side in (a, b))
    networks = _network(a), _network(b)
    cells = _cells_of(networks[0]), _cells_of(networks[1])
    preset = preset_names(*cells)
    names = match_names(*networks, rules=NameRules((*mapping.names, *preset)))
    notes = [*said_of_preset("checkpoint.preset", preset, mapping.names, cells[0])]
    if names.prefix_a or names.prefix_b:
        notes.append(message("checkpoint.below", a=names.prefix_a, b=names.prefix_b))
    mine, theirs = _under_common_names(a, names, "A"), _under_common_names(b, names, "B")
    partners: dict[str, str | None] = {key: key for key in mine if key in theirs}
    taken = {*partners}
    for key in mine:  # what the classes of both call by two names in one cell
        if key not in partners:
            cell, dot, own = key.rpartition(".")
            names_of_it = (f"{cell}{dot}{name}" for name in parameter_names_of(own))
            other = next((n for n in names_of_it if n in theirs and n not in taken), None)
            partners[key] = other
            taken |= {other} if other is not None else set()
    left = {key: record for key, record in theirs.items() if key not in taken}
    at = len(notes)
    fused = _by_presets({k: r for k, r in mine.items() if partners[k] is None}, left)
    if fused:
        shown = {said.params["name"]: said for _, said in reversed(fused)}
        known = {"count": len(fused), "shown": [*reversed(shown.values())]}
        notes.append(message("checkpoint.fused", **known))
    pairs += [pair for pair, _ in fused]
    used = {name for pair, _ in fused for name in stored_names(pair)}
    for key, record in mine.items():
        other = partners[key]
        if record.name not in used:
            pairs.append(_pair(record, None if other is None else theirs[other]))
    pairs += [_pair(None, record) for record in left.values() if record.name not in used]
    if names.unlike and any(len(pair.records) == 1 for pair in pairs):
        notes.insert(at, message("checkpoint.unlike_names"))
    return pairs, notes


def check_mapping(mapping: CellMapping, names: Iterable[str]) -> None:
    """Refuse a line of a mapping that no parameter matches.

    Raises:
        UsageError: there is one.
    """
    bare = {split_state(name)[1] for name in names}
    cells = {name.rpartition(".")[0] for name in bare}
    for line in mapping.fused.unused(cells):
        raise UsageError.saying("checkpoint.no_fused", pattern=line.parts[0].source)
    for rule in mapping.names.unused(bare):
        raise UsageError.saying("error.name_unused", pattern=rule.source, path="A")


def _network(names: Iterable[str]) -> list[str]:
    """Return the names of parameters, without what optimizers put in front of them."""
    own = [name for name in names if not is_of_optimizer(name)]
    return own or [split_state(name)[1] for name in names]


def _cells_of(parameters: Iterable[str]) -> set[str]:
    """Return the cells of parameters, and those around them."""
    cells = {cell_of_parameter(name) for name in parameters}
    return cells.union(*map(around, cells))


def _under_common_names(side: Parameters, names: Names, which: str) -> dict[str, Record]:
    """Return the parameters of A or of B (`which`) by the names that both have."""
    found: dict[str, Record] = {}
    for name, record in side.items():
        state, bare = split_state(name)
        common = names.common_a(bare) if which == "A" else names.common_b(bare)
        if common is None:  # what lies outside of the network that both have meets only its like
            common = names.rules.renamed(bare) if which == "A" else bare
        key = state + common
        if key in found:
            two = {"first": shortened(found[key].name), "second": shortened(name)}
            said = {"side": which, **two, "name": shortened(key)}
            raise UsageError.saying("checkpoint.two_to_one", **said)
        found[key] = record
    return found


def _by_rules(a: Parameters, b: Parameters, rules: FusedRules) -> Iterator[Pair]:
    """Yield the parameters of either side that are several of the other one, as a user says."""
    for own, others, turned in ((a, b, False), (b, a, True)) if rules else ():
        for name, record in own.items():
            state, bare = split_state(name)
            cell, _, path = bare.rpartition(".")
            rule, cells = next(rules.meaning(cell), (None, ()))
            parts = {f"{state}{part}.{path}": others.get(f"{state}{part}.{path}") for part in cells}
            known = [part for part in parts.values() if part is not None]
            if rule is None or not known:
                continue  # of a state, or a bias, that only one side has
            if len(known) < len(parts):
                lacking = next(part for part, found in parts.items() if found is None)
                lost = {"name": shortened(name), "part": shortened(lacking)}
                raise UsageError.saying("checkpoint.no_part", **lost)
            shapes = [part.leaf.shape or () for part in known]
            rows = [shape[0] if shape else 0 for shape in shapes]
            dtypes = {part.leaf.dtype for part in known}
            of_one_kind = len({shape[1:] for shape in shapes}) == len(dtypes) == 1 and all(rows)
            fits = of_one_kind and (sum(rows), *shapes[0][1:]) == record.leaf.shape
            order = rule.order(rows) if fits else None
            if order is None:
                said = {"name": shortened(name), "shape": str([*(record.leaf.shape or ())])}
                each = (f"{shortened(p.name)} {[*shape]}" for p, shape in zip(known, shapes))
                said["parts"] = ", ".join(each)
                raise UsageError.saying("checkpoint.parts_unlike", **said, groups=rule.groups)
            whole = joined(known, name, order=order.tolist() if rule.groups > 1 else None)
            yield _pair(whole, record) if turned else _pair(record, whole)


def _by_presets(a: Parameters, b: Parameters) -> list[tuple[Pair, Message]]:
    """Return fused parameters and what they are made of, each with how it is made of them.

    Both are called as they usually are. Biases of the same cells, and an optimizer's state, follow
    the weights.

    Args:
        a, b: what has no partner, by common names.
    """
    found = []
    for own, others, turned in ((a, b, False), (b, a, True)):
        weights = {n: r for n, r in own.items() if is_of_fused(n) and not is_of_optimizer(n)}
        parts = {n: r for n, r in others.items() if is_of_part(n) and not is_of_optimizer(n)}
        fused = {of.cell: of for of in find_usual(weights, parts)}
        for name, record in own.items():
            state, bare = split_state(name)
            of = fused.get(cell_of_parameter(bare))
            if of is None:
                continue
            known = {n.removeprefix(state): r for n, r in others.items() if n.startswith(state)}
            made_of = parts_of(of, bare, known)
            if made_of is None or len({(part.leaf.shape or ())[1:] for part in made_of}) > 1:
                continue
            whole = joined(made_of, record.name, order=of.order.tolist())
            if whole.leaf.shape == record.leaf.shape:
                groups = 1 + int(np.count_nonzero(np.diff(of.order) < 0))
                names = [last_name(part.name) for part in made_of]
                said = message(
                    "checkpoint.made_of", name=last_name(name), parts=names, groups=groups
                )
                pair = _pair(*(whole, record)[:: 1 if turned else -1])
                found.append((pair, said))
        for stacked in stacked_experts(own, others):
            name = stacked.whole.name.rpartition("experts.")[2]
            holds = {"name": name, "parts": stacked.parts, "experts": stacked.experts}
            pair = _pair(*(stacked.made, stacked.whole)[:: 1 if turned else -1])
            found.append((pair, message("checkpoint.made_of", **holds)))
    return found


# Experts of a mixture that one network keeps one by one, and the other one in one weight.
#
# MindFormers' `GroupedMLP` has the first projections of all experts as `weight1`, [experts, hidden,
# 2 · intermediate], gate and up side by side, and the second ones as `weight2`, [experts,
# intermediate, hidden]; its parallel core of graph mode has both with the first two axes as one.
# Hugging Face has a matrix [outputs, inputs] for each. Source: `ExpertsConvertOp` of MindFormers'
# `checkpoint/converter/convert_op.py`.
_STACKED = re.compile(r"(.*\bexperts)\.(weight[12])")
_EXPERT = re.compile(r"(.*\bexperts)\.([0-9]+)\.([^.]+)\.weight")
#: Of each stacked weight, what networks call the projections of one expert that it holds.
_STACKED_PARTS = {"weight1": own_names("gate", "up"), "weight2": own_names("down")}


class Stacked(NamedTuple):
    """A weight of all experts, and the same of the weights of each.

    Attributes:
        parts: what the projections of one expert are called.
        experts: how many there are.
    """

    whole: Record
    made: Record
    parts: tuple[str, ...]
    experts: int


def stacked_experts(wholes: Mapping[str, Record], parts: Mapping[str, Record]) -> Iterator[Stacked]:
    """Yield the stacked weights of one network that the other one has by expert.

    Args:
        wholes, parts: parameters of either network, by the names that both have of the cells.
    """
    experts: dict[str, dict[int, dict[str, Record]]] = defaultdict(lambda: defaultdict(dict))
    for name, record in parts.items():
        if match := _EXPERT.fullmatch(name):
            experts[match[1]][int(match[2])][match[3]] = record
    for name, record in wholes.items():
        match = _STACKED.fullmatch(name)
        if match is None or match[1] not in experts:
            continue
        own = experts[match[1]]
        for names in _STACKED_PARTS[match[2]]:
            made = _stacked(record, own, names)
            if made is not None:
                yield Stacked(record, made, names, len(own))
                break


def _stacked(
    whole: Record, experts: Mapping[int, Mapping[str, Record]], names: tuple[str, ...]
) -> Record | None:
    """Return the projections of all experts as one weight; None where these are not its parts."""
    shape = whole.leaf.shape or ()
    numbers = range(len(experts))
    if any(number not in experts or not {*names} <= {*experts[number]} for number in numbers):
        return None
    each = [[experts[number][name] for name in names] for number in numbers]
    shapes = {record.leaf.shape or () for records in each for record in records}
    if len(shapes) != 1 or len(matrix := shapes.pop()) != 2:
        return None
    rows, columns = matrix[1], matrix[0] * len(names)
    if shape not in ((len(experts), rows, columns), (len(experts) * rows, columns)):
        return None
    turned = [joined(records, whole.name, turned_back=True) for records in each]
    return reshaped(joined(turned, whole.name), shape)
