"""One step of two runs of which one is MindSpore's and the other PyTorch's, brought together.

Entries of one cell are made of those of several, and rows of weights that are interleaved by head
are put in the order of the other framework.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.judging.moves import order_between
from mindrlhf_msprobe.comparison.pairing.composed import composed, joined, transposed
from mindrlhf_msprobe.comparison.pairing.frameworks.presets import (
    ROTATED,
    is_of_fused,
    last_name,
    preset_names,
    said_of_preset,
)
from mindrlhf_msprobe.comparison.pairing.frameworks.records import (
    Across,
    of_pytorch,
    parameter_names_of,
)
from mindrlhf_msprobe.comparison.pairing.fused import (
    Fused,
    as_most,
    find_fused,
    find_reordered,
    row_keys,
)
from mindrlhf_msprobe.comparison.pairing.mapping import NONE_FUSED, FusedRules
from mindrlhf_msprobe.comparison.pairing.names import NameRules, match_names, of_any_layer
from mindrlhf_msprobe.comparison.pairing.planner import CutStep, StepData
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.records import (
    PARAMETERS_GRAD,
    Entry,
    Record,
    cell_of_parameter,
    entry_name,
    network_name,
)

_WEIGHTS = ("parameters", PARAMETERS_GRAD)
_ACTIVATION = "activation"
#: What activations beside a gate are called, where the other network has them inside of it.
_ACTIVATIONS = ("act_fn", "activation_func")


def translate(
    a: StepData, b: StepData, rules: NameRules, fused: FusedRules = NONE_FUSED
) -> CutStep:
    """Bring both sides together as far as one network on two frameworks differs.

    Between two runs of one framework nothing is done.

    Args:
        rules, fused: what the caller says of names, and of cells that are several.
    """
    kinds = of_pytorch(a.entries), of_pytorch(b.entries)
    if None in kinds or kinds[0] == kinds[1]:
        return CutStep((a, b), rules=rules)
    cells, floats = [], []
    for side in (a, b):
        cells.append({entry.cell for entry in side.entries if not is_operator(entry.name)})
        forward = (entry for entry in side.entries if entry.direction == "forward")
        leaves = [record.leaf for entry in forward for record in entry.records]
        dtypes = {str(leaf.dtype) for leaf in leaves if leaf.is_tensor and not leaf.is_discrete}
        floats.append(sorted(dtypes))
    preset = preset_names(cells[0], cells[1])
    all_rules = NameRules((*rules, *preset))
    notes = [*said_of_preset("pairing.preset", preset, rules, cells[0])]
    if floats[0] != floats[1]:
        notes.append(message("pairing.other_floats", a=floats[0], b=floats[1]))
    names = match_names(cells[0], cells[1], all_rules)
    sides = _Side(a, names.common_a, names.prefix_a), _Side(b, names.common_b, names.prefix_b)
    for own, other in (sides, sides[::-1]):
        own.mark_shared(other)
    for own, other in (sides, sides[::-1]):
        notes += own.take_activations(other)
    for own, other in (sides, sides[::-1]):
        notes += own.join(other, fused)
    sides[1].turn(sides[0])
    notes += sides[1].reorder(sides[0])
    across = Across((sides[0].only_here(sides[1]), sides[1].only_here(sides[0])))
    data = sides[0].data, sides[1].data
    return CutStep(data, tuple(notes), rules=all_rules, across=across)


class _Side:
    """One run, whose entries may become others."""

    def __init__(self, data: StepData, common: Callable[[str], str | None], prefix: str) -> None:
        self.data = data
        self.common = common
        self._prefix = prefix

    def _named(self) -> Iterator[tuple[str, Entry]]:
        """Yield the entries of cells, and the common names of these."""
        for entry in self.data.entries:
            name = None if is_operator(entry.name) else self.common(entry.cell)
            if name is not None:
                yield name, entry

    def _called(self, entry: Entry, common: str) -> str:
        """Return the name of an entry as one of the cell with this common name."""
        own = f"{self._prefix}.{common}" if self._prefix else common
        plain = entry_name(own, entry.class_name, entry.direction, entry.call)
        return plain.replace("Cell.", f"{entry.name.partition('.')[0]}.", 1)

    def cells(self) -> set[str]:
        """Return the common names of its cells."""
        return {name for name, _ in self._named()}

    def parameters(self) -> dict[str, Record]:
        """Return the first record of each parameter, by common names."""
        found: dict[str, Record] = {}
        for cell, entry in self._named():
            for record in entry.records if entry.direction == "forward" else ():
                if record.io == "parameters" and record.leaf.is_tensor:
                    found.setdefault(network_name(cell, record.path), record)
        return found

    def own_names(self) -> dict[str, str]:
        """Return common name → its own name, of its cells."""
        return {name: entry.cell for name, entry in self._named()}

    def only_here(self, other: _Side) -> frozenset[str]:
        """Return its cells that the other framework does without a cell of its own, in any layer.

        One with parameters is none of them: the other network has to have these somewhere.
        """
        theirs = {of_any_layer(name) for name in other.cells()}
        weighty = set(map(cell_of_parameter, self.parameters()))
        own = ((name, entry) for name, entry in self._named() if name not in weighty)
        return frozenset(entry.cell for name, entry in own if of_any_layer(name) not in theirs)

    def by_cell(self) -> dict[str, dict[tuple[str, str, int], Entry]]:
        """Return common name → (phase, direction, call) → entry."""
        found: dict[str, dict[tuple[str, str, int], Entry]] = defaultdict(dict)
        for cell, entry in self._named():
            found[cell][entry.phase, entry.direction, entry.call] = entry
        return found

    def replace(self, changed: Mapping[int, Entry | None]) -> None:
        """Put entries in the place of others, by identity; None takes one away."""
        entries = [
            new for entry in self.data.entries if (new := changed.get(id(entry), entry)) is not None
        ]
        self.data = replace(self.data, entries=entries)

    def mark_shared(self, other: _Side) -> None:
        """Say of gradients of a weight that two cells share, that the other run has them once.

        A hook on PyTorch tells the gradient of tied embeddings of both cells that hold them, one on
        MindSpore of the first.
        """
        mine, theirs = self.tensors(PARAMETERS_GRAD), other.tensors(PARAMETERS_GRAD)
        weights, others = self.tensors("forward"), other.tensors("forward")
        changed: dict[int, Entry | None] = {}
        for name, (entry, record) in mine.items():
            if name in theirs or name not in others or name not in weights:
                continue
            if any(
                _is_one(weights[name][1].leaf, weights[twin][1].leaf)
                and _is_one(record.leaf, gradient.leaf)
                for twin, (_, gradient) in mine.items()
                if twin in theirs and twin in weights
            ):
                marked = composed(record, gap=message("coverage.shared_parameter"))
                left = changed.get(id(entry)) or entry
                records = tuple(marked if r is record else r for r in left.records)
                changed[id(entry)] = replace(left, records=records)
        self.replace(changed)

    def tensors(self, direction: str) -> dict[str, tuple[Entry, Record]]:
        """Return the first parameters, or gradients of them, with their entries.

        By common names of the cells, and of the parameters.
        """
        io = PARAMETERS_GRAD if direction == PARAMETERS_GRAD else "parameters"
        found: dict[str, tuple[Entry, Record]] = {}
        for cell, entry in self._named():
            for record in entry.records if entry.direction == direction else ():
                if record.io == io and record.leaf.is_tensor:
                    own, dot, rest = record.path.partition(".")
                    first = next(iter(parameter_names_of(own)), own)
                    found.setdefault(f"{cell} {first}{dot}{rest}", (entry, record))
        return found

    def take_activations(self, other: _Side) -> Iterator[Message]:
        """Put activations beside a gate into it, where the other network has them there."""
        mine = self.by_cell()
        changed: dict[int, Entry | None] = {}
        found = 0
        for name, own in sorted(other.own_names().items()):
            # An activation inside a gate of the other, and what is beside that gate here.
            around, _, last = own.rpartition(".")
            gate = other.common(around) if last == _ACTIVATION else None
            if gate is None or gate not in mine or (name.startswith(f"{gate}.") and name in mine):
                continue
            known = (name, *(f"{gate.rpartition('.')[0]}.{act}" for act in _ACTIVATIONS))
            beside = next((act for act in known if act in mine), None)
            if beside is None:
                continue
            found += 1
            for key, entry in mine[gate].items():
                activated = mine[beside].get(key)
                if activated is None or entry.direction == PARAMETERS_GRAD:
                    continue
                # What the gate returns is what the activation behind it does.
                result = "output" if entry.direction == "forward" else "input"
                before = (record for record in entry.records if record.io != result)
                after = (record for record in activated.records if record.io == result)
                changed[id(entry)] = replace(entry, records=(*before, *after))
                changed[id(activated)] = replace(activated, name=self._called(activated, name))
        self.replace(changed)
        if found:
            yield message("pairing.activations", count=found)

    def join(self, other: _Side, rules: FusedRules) -> Iterator[Message]:
        """Make one cell of several, where the other network has one."""
        by_cell = self.by_cell()
        # The cells of the other network that are several here, by weights of one alone.
        left, own = other.parameters_beside(self), self.parameters_beside(other)
        if not left or not own:
            return
        named = rules.by_names(other.own_names(), self.common)
        found = as_most(find_fused(left, own, named).values(), named)
        fitting = [fused for fused in found if all(part in by_cell for part in fused.parts)]
        for fused in fitting:
            changed: dict[int, Entry | None] = {}
            parts = [by_cell[part] for part in fused.parts]
            for key in parts[0]:
                each = [part[key] for part in parts if key in part]
                if len(each) == len(parts):
                    name = self._called(each[0], fused.cell)
                    changed |= dict.fromkeys(map(id, each))
                    changed[id(each[-1])] = joined_entry(fused, each, name)
            self.replace(changed)
        for code, some in (
            ("pairing.same_weight", [fused for fused in fitting if len(fused.parts) == 1]),
            ("pairing.fused", [fused for fused in fitting if len(fused.parts) > 1]),
        ):
            if some:
                shown = f"{some[0].cell} = {', '.join(some[0].parts)}"
                yield message(code, count=len(some), shown=shown)

    def parameters_beside(self, other: _Side) -> dict[str, Record]:
        """Return its parameters that are of cells which the other network has not."""
        theirs = other.cells()
        own = self.parameters().items()
        return {name: record for name, record in own if cell_of_parameter(name) not in theirs}

    def turn(self, other: _Side) -> None:
        """Transpose square weights that one network reads as [inputs, outputs], and the other not.

        Which of both a cell does is seen by what it was given and returned. Where that was not
        stored, the other weights of its class show it.
        """
        mine, theirs = self.parameters(), other.parameters()
        by_cell, others = self.by_cell(), other.by_cell()
        kinds: dict[str, set[bool]] = defaultdict(set)
        square: list[str] = []
        for name, record in mine.items():
            shapes = record.leaf.shape or (), theirs[name].leaf.shape if name in theirs else None
            cell = cell_of_parameter(name)
            if len(shapes[0]) != 2 or shapes[1] is None:
                continue
            if shapes[0][0] == shapes[0][1]:
                square.append(cell)
            else:
                kind = next(iter(by_cell[cell].values())).class_name
                kinds[kind].add(shapes[0] == shapes[1][::-1])
        changed: dict[int, Entry | None] = {}
        for cell in square:
            reads = [of_inputs(entries[cell].values()) for entries in (by_cell, others)]
            for entry in by_cell[cell].values():
                by_class = kinds.get(entry.class_name) == {True}
                if by_class if None in reads else reads[0] is not reads[1]:
                    records = tuple(
                        transposed(r) if r.io in _WEIGHTS and _is_matrix(r) else r
                        for r in entry.records
                    )
                    changed[id(entry)] = replace(entry, records=records)
        self.replace(changed)

    def reorder(self, other: _Side) -> Iterator[Message]:
        """Put the rows of weights that are interleaved by head in the order of the other's."""
        orders = orders_of(self.parameters(), other.parameters())
        by_cell = self.by_cell()
        changed: dict[int, Entry | None] = {}
        for cell, order in orders.items():
            changed |= {id(e): reordered_entry(e, order) for e in by_cell[cell].values()}
        self.replace(changed)
        if orders:
            yield message("pairing.interleaved", count=len(orders), shown=next(iter(orders)))


def _is_one(a: Leaf, b: Leaf) -> bool:
    """Return whether two descriptions of one run are of one tensor, for all that they say."""
    known = ("dtype", "shape", "max", "min", "mean", "norm", "fingerprint", "md5")
    return a.norm is not None and all(getattr(a, name) == getattr(b, name) for name in known)


_BIAS = ("parameters", "bias")
_LOOKED_AT = 64  # rows by which it is seen how a cell reads its weight
_COMPUTED = 0.05  # relative: as near is what a product with the weight gives, whatever its dtype


def of_inputs(entries: Iterable[Entry]) -> bool | None:
    """Return whether a cell reads its square weight as [inputs, outputs].

    None where neither product is what it returned, or elements were not stored.
    """
    for entry in entries:
        held = {(r.io, r.path): r for r in entry.records if entry.direction == "forward"}
        weight = next(
            (r for (io, _), r in held.items() if io == "parameters" and _is_matrix(r)), None
        )
        given = next((r for (io, _), r in held.items() if io == "input"), None)
        returned = held.get(("output", "0"))
        if weight is None or given is None or returned is None:
            continue
        try:
            x, w, y = (np.asarray(r.array(), np.float64) for r in (given, weight, returned))
            bias = [r.array() for (io, path), r in held.items() if (io, path) == _BIAS]
        except (ArrayFileError, TypeError, ValueError):
            return None
        if x.shape != y.shape or x.shape[-1:] != w.shape[:1]:
            return None
        x, y = (rows.reshape(-1, len(w))[:_LOOKED_AT] for rows in (x, y))
        y = y - sum(bias)
        near = [np.linalg.norm(x @ of - y) <= _COMPUTED * np.linalg.norm(y) for of in (w.T, w)]
        return bool(near[1]) if near[0] != near[1] else None
    return None


#: How rows are ordered: of a fused weight their places, of a rotated one the rows of a head and
#: which network turns halves; empty: both networks have them in one order.
_Kind = tuple[int, ...]
_AS_THEY_ARE: _Kind = ()


def orders_of(mine: Mapping[str, Record], theirs: Mapping[str, Record]) -> dict[str, np.ndarray]:
    """Return cell → which row of its weight each row of the other network's is.

    A network reads the rows of all its layers in one order. So the one that most of them have
    counts for all: of a layer that has another one, as where it was not converted, they differ.
    Where no order has more of them than the order of both being the same, that counts.

    Args:
        mine, theirs: parameters by common names.

    Returns:
        orders: of the cells whose rows are in another order, int64 [rows]; without those of which
            no elements were recorded.
    """
    fitting = {
        n: r
        for n, r in mine.items()
        if n in theirs and _is_matrix(r) and r.leaf.shape == theirs[n].leaf.shape
    }
    rows_of = {cell_of_parameter(n): (r.leaf.shape or (0,))[0] for n, r in fitting.items()}
    orders: dict[str, np.ndarray] = {}
    for kinds in _fused_kinds(fitting, theirs).values():
        kind = _of_most(kinds)
        orders |= dict.fromkeys(kinds if kind else (), np.array(kind))
    rotated = {
        cell_of_parameter(n): _rotary_kind(r, theirs[n])
        for n, r in fitting.items()
        if last_name(n) in ROTATED
    }
    kind = _of_most(rotated)
    for cell in rotated if kind else ():
        order = _rotary_order(kind, rows_of[cell])
        if order is not None:
            orders[cell] = order
    return orders


def _fused_kinds(
    fitting: Mapping[str, Record], theirs: Mapping[str, Record]
) -> dict[tuple[str, int], dict[str, _Kind | None]]:
    """Return how the rows of fused weights are ordered, by name and rows; None is not known."""
    fused = {n: r for n, r in fitting.items() if is_of_fused(n)}
    found = {cell: np.argsort(of.order) for cell, of in find_reordered(fused, theirs).items()}
    kinds: dict[tuple[str, int], dict[str, _Kind | None]] = defaultdict(dict)
    for name, record in fused.items():
        cell, rows = cell_of_parameter(name), (record.leaf.shape or (0,))[0]
        order = tuple(found[cell].tolist()) if cell in found else None
        kinds[last_name(name), rows][cell] = _AS_THEY_ARE if order == tuple(range(rows)) else order
    return kinds


def _of_most(kinds: Mapping[str, _Kind | None]) -> _Kind:
    counts = Counter(kind for kind in kinds.values() if kind is not None)
    return max(counts, key=lambda kind: (counts[kind], kind == _AS_THEY_ARE), default=_AS_THEY_ARE)


def _rotary_kind(mine: Record, theirs: Record) -> _Kind | None:
    """Return how the heads of a projection are interleaved; None where its elements do not tell.

    One rotary embedding turns the two halves of a head, the other every two neighbours: the rows
    of its projections are in another order. Any other order is an error in the weights.

    Returns:
        kind: the rows of a head, and which of the two networks turns halves; () for one order.
    """
    own, others = row_keys(mine), row_keys(theirs)
    if own is None or others is None:
        return None
    if np.array_equal(own, others):
        return _AS_THEY_ARE
    order = order_between(own, others)
    if order is None:
        return None
    for width in range(2, len(order) + 1, 2):
        for turned in (0, 1):
            usual = _rotary_order((width, turned), len(order))
            if usual is not None and np.array_equal(order, usual):
                return width, turned
    return None


def _rotary_order(kind: _Kind, rows: int) -> np.ndarray | None:
    """Return the order of the rows where heads are interleaved so; None if they do not fit."""
    width, turned = kind
    if rows % width:
        return None
    half = np.arange(width).reshape(2, -1).T.reshape(-1)
    of_head = np.argsort(half) if turned else half
    return (np.arange(0, rows, width)[:, None] + of_head).reshape(-1)


def _is_matrix(record: Record) -> bool:
    return len(record.leaf.shape or ()) == 2


def joined_entry(fused: Fused, each: Sequence[Entry], name: str) -> Entry:
    """Return the entry of a fused cell, by the name that it is to have.

    Args:
        each: the entries of one call of its parts, in their order.
    """
    several, backward = len(each) > 1, each[0].direction == "backward"
    made: list[Record | None] = []
    for record in each[0].records:
        own = f"{name}.{record.io}.{record.path}"
        rows = several and _has_rows(record, each[0].direction)
        if record.io in _WEIGHTS or rows:
            made.append(_of_all_rows(fused, each, record, own))
        elif not (several and backward):  # else the gradient of what all were given is a sum
            made.append(replace(record, name=own))
    ends = [entry.end for entry in each if entry.end is not None]
    return replace(
        each[0],
        name=name,
        seq=min(entry.seq for entry in each),
        end=max(ends) if len(ends) == len(each) else None,
        records=tuple(record for record in made if record is not None),
    )


def reordered_entry(entry: Entry, order: np.ndarray) -> Entry:
    """Return an entry with its rows in another order.

    Args:
        order: which row each one is; what has another number of rows stays as it is.
    """
    records = []
    for record in entry.records:
        shape = record.leaf.shape or ()
        axis = 0 if record.io in _WEIGHTS else len(shape) - 1
        if _has_rows(record, entry.direction) and shape and shape[axis] == len(order):
            record = joined([record], record.name, axis=axis, order=order.tolist())
        records.append(record)
    return replace(entry, records=tuple(records))


def _has_rows(record: Record, direction: str) -> bool:
    """Return whether a record has the rows of the weight, along one of its axes."""
    computed = "input" if direction == "backward" else "output"
    return record.io in _WEIGHTS or record.io == computed


def _of_all_rows(fused: Fused, each: Sequence[Entry], first: Record, name: str) -> Record | None:
    """Return the rows of all parts as one record; None where they are not those of the whole."""
    at = first.io, first.path
    same = [record for entry in each for record in entry.records if (record.io, record.path) == at]
    if len(same) < len(each) or not all(record.leaf.shape for record in same):
        return None
    several = len(each) > 1
    shapes = [[*(record.leaf.shape or ())] for record in same]
    is_weight = first.io in _WEIGHTS
    matrix = is_weight and len(shapes[0]) == 2
    axis = (1 if matrix and fused.parts_transposed else 0) if is_weight else -1
    if any(len(shape) != len(shapes[0]) for shape in shapes):
        return None
    rows = sum(shape.pop(axis) for shape in shapes)
    if (several and rows != len(fused.order)) or any(shape != shapes[0] for shape in shapes):
        return None
    return joined(
        same,
        name,
        axis=0 if is_weight else -1,
        order=fused.order.tolist() if several else None,
        turned=matrix and fused.parts_transposed,
        turned_back=matrix and fused.transposed,
    )
