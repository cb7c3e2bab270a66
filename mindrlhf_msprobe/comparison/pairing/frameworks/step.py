"""One step of two runs of which one is MindSpore's and the other PyTorch's, brought together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.mismatch.names import of_any_layer
from mindrlhf_msprobe.comparison.mismatch.weights.fused import Fused, find_fused
from mindrlhf_msprobe.comparison.mismatch.weights.mapping import FusedRule
from mindrlhf_msprobe.comparison.pairing.frameworks.fused_entries import (
    joined_entry,
    reordered_entry,
)
from mindrlhf_msprobe.comparison.pairing.frameworks.joined import transposed
from mindrlhf_msprobe.comparison.pairing.frameworks.presets import preset_names
from mindrlhf_msprobe.comparison.pairing.frameworks.records import (
    SAME_PARAMETERS,
    Across,
    of_pytorch,
)
from mindrlhf_msprobe.comparison.pairing.frameworks.row_order import orders_of
from mindrlhf_msprobe.comparison.pairing.names import NameRule, match_names
from mindrlhf_msprobe.comparison.pairing.planner import StepData
from mindrlhf_msprobe.comparison.pairing.rows.pieces import piece_of
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

_ACTIVATION = "activation"
#: What activations beside a gate are called, where the other network has them inside of it.
_ACTIVATIONS = ("act_fn", "activation_func")


@dataclass(frozen=True)
class Translated:
    """Both sides of a step, under names that `rules` bring together.

    Attributes:
        rules: how cells of A are called in B: the caller's, then a preset's.
        notes: what was brought together, and how.
        across: what only one framework has; None where both runs are of one framework.
    """

    data: tuple[StepData, StepData]
    rules: tuple[NameRule, ...] = ()
    notes: tuple[Message, ...] = ()
    across: Across | None = None


def translate(
    a: StepData, b: StepData, rules: tuple[NameRule, ...], fused: Sequence[FusedRule] = ()
) -> Translated:
    """Bring both sides together as far as one network on two frameworks differs.

    Between two runs of one framework nothing is done.

    Args:
        rules, fused: what the caller says of names, and of cells that are several.
    """
    kinds = of_pytorch(a.entries), of_pytorch(b.entries)
    if None in kinds or kinds[0] == kinds[1]:
        return Translated((a, b), rules)
    cells = _cells(a.entries), _cells(b.entries)
    preset = preset_names(cells[0], cells[1])
    all_rules = (*rules, *preset)
    notes = [*_preset_note(preset, rules, cells[0]), *_floats_note(a.entries, b.entries)]
    names = match_names(*cells, all_rules)
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
    return Translated((sides[0].data, sides[1].data), all_rules, tuple(notes), across)


def _cells(entries: Iterable[Entry]) -> set[str]:
    return {entry.cell for entry in entries if not is_operator(entry.name)}


def _preset_note(
    preset: Sequence[NameRule], rules: Sequence[NameRule], cells: set[str]
) -> Iterator[Message]:
    """Say which rules of a preset name cells of A that the caller's rules do not name."""
    left = {cell for cell in cells if all(rule.rename(cell) is None for rule in rules)}
    used = [rule for rule in preset if any(rule.rename(cell) is not None for cell in left)]
    if used:
        shown = [f"{rule.source} → {rule.target}" for rule in used[:2]]
        yield message("pairing.preset", count=len(used), rules=", ".join(shown))


def _floats_note(a: Iterable[Entry], b: Iterable[Entry]) -> Iterator[Message]:
    """Say where both sides compute in other floating-point dtypes."""
    floats = sorted(_floats(a)), sorted(_floats(b))
    if floats[0] != floats[1]:
        yield message("pairing.other_floats", a=floats[0], b=floats[1])


def _floats(entries: Iterable[Entry]) -> set[str]:
    """Return the dtypes of floating-point tensors in forward passes."""
    leaves = (r.leaf for e in entries if e.direction == "forward" for r in e.records)
    return {str(leaf.dtype) for leaf in leaves if leaf.is_tensor and not leaf.is_discrete}


@dataclass(frozen=True)
class _OwnRule(FusedRule):
    """What a caller says of a fused cell by each run's own names, asked by common ones."""

    own: Mapping[str, str] = field(default_factory=dict)
    common: Callable[[str], str | None] = str

    def parts_of(self, cell: str) -> tuple[str, ...] | None:
        """Return the common names of the parts of a cell; None: it is not meant."""
        found = FusedRule.parts_of(self, self.own.get(cell, cell))
        names = [self.common(part) for part in found or ()]
        return tuple(name for name in names if name) if found and all(names) else None


class _Side:
    """One run, whose entries may become others."""

    def __init__(self, data: StepData, common: Callable[[str], str | None], prefix: str) -> None:
        self.data = data
        self.common = common
        self._prefix = prefix

    def _name(self, entry: Entry) -> str | None:
        return self.common(entry.cell) if not is_operator(entry.name) else None

    def _own(self, common: str) -> str:
        return f"{self._prefix}.{common}" if self._prefix else common

    def _called(self, entry: Entry, common: str) -> str:
        """Return the name of an entry as one of the cell with this common name."""
        plain = entry_name(self._own(common), entry.class_name, entry.direction, entry.call)
        return plain.replace("Cell.", f"{entry.name.partition('.')[0]}.", 1)

    def cells(self) -> set[str]:
        """Return the common names of its cells."""
        return {name for entry in self.data.entries if (name := self._name(entry)) is not None}

    def parameters(self) -> dict[str, Record]:
        """Return the first record of each parameter, by common names."""
        found: dict[str, Record] = {}
        for entry in self.data.entries:
            if entry.direction == "forward" and (cell := self._name(entry)) is not None:
                for record in entry.records:
                    if record.io == "parameters" and record.leaf.is_tensor:
                        found.setdefault(network_name(cell, record.path), record)
        return found

    def own_names(self) -> dict[str, str]:
        """Return common name → its own name, of its cells."""
        return {
            name: entry.cell
            for entry in self.data.entries
            if (name := self._name(entry)) is not None
        }

    def only_here(self, other: _Side) -> frozenset[str]:
        """Return its cells that the other framework does otherwise, in no cell, in any layer.

        One with parameters is none of them: the other network has to have these somewhere.
        """
        theirs = {of_any_layer(name) for name in other.cells()}
        weighty = {cell_of_parameter(name) for name in self.parameters()}
        found = set()
        for entry in self.data.entries:
            name = self._name(entry)
            if name is not None and name not in weighty and of_any_layer(name) not in theirs:
                found.add(entry.cell)
        return frozenset(found)

    def by_cell(self) -> dict[str, dict[tuple[str, str, int], Entry]]:
        """Return common name → (phase, direction, call) → entry."""
        found: dict[str, dict[tuple[str, str, int], Entry]] = defaultdict(dict)
        for entry in self.data.entries:
            if (cell := self._name(entry)) is not None:
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
                marked = piece_of(record, gap=message("coverage.shared_parameter"))
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
        for entry in self.data.entries:
            if entry.direction == direction and (cell := self._name(entry)) is not None:
                for record in entry.records:
                    if record.io == io and record.leaf.is_tensor:
                        own, dot, rest = record.path.partition(".")
                        alike = next((names[0] for names in SAME_PARAMETERS if own in names), own)
                        found.setdefault(f"{cell} {alike}{dot}{rest}", (entry, record))
        return found

    def take_activations(self, other: _Side) -> Iterator[Message]:
        """Put activations beside a gate into it, where the other network has them there."""
        mine = self.by_cell()
        changed: dict[int, Entry | None] = {}
        found = [*self._activations(other, mine)]
        for name, gate, beside in found:
            for key, entry in mine[gate].items():
                activated = mine[beside].get(key)
                if activated is None or entry.direction == PARAMETERS_GRAD:
                    continue
                changed[id(entry)] = _with_activation(entry, activated)
                changed[id(activated)] = replace(activated, name=self._called(activated, name))
        self.replace(changed)
        if found:
            yield message("pairing.activations", count=len(found))

    def _activations(self, other: _Side, mine: Container[str]) -> Iterator[tuple[str, str, str]]:
        """Yield an activation inside a gate of the other, the gate, and what is beside it here.

        All by common names.
        """
        for name, own in sorted(other.own_names().items()):
            around, _, last = own.rpartition(".")
            gate = other.common(around) if last == _ACTIVATION else None
            if gate is None or gate not in mine or (name.startswith(f"{gate}.") and name in mine):
                continue
            beside = (name, *(f"{gate.rpartition('.')[0]}.{act}" for act in _ACTIVATIONS))
            activation = next((act for act in beside if act in mine), None)
            if activation is not None:
                yield name, gate, activation

    def join(self, other: _Side, rules: Sequence[FusedRule]) -> Iterator[Message]:
        """Make one cell of several, where the other network has one."""
        by_cell = self.by_cell()
        found = self._fused_in(other, rules)
        fitting = [fused for fused in found if all(part in by_cell for part in fused.parts)]
        for fused in fitting:
            self._join(fused, by_cell)
        for code, some in (
            ("pairing.same_weight", [fused for fused in fitting if len(fused.parts) == 1]),
            ("pairing.fused", [fused for fused in fitting if len(fused.parts) > 1]),
        ):
            if some:
                shown = f"{some[0].cell} = {', '.join(some[0].parts)}"
                yield message(code, count=len(some), shown=shown)

    def _fused_in(self, other: _Side, rules: Sequence[FusedRule]) -> list[Fused]:
        """Return the cells of the other network that are several here, by weights of one alone."""
        own_cells, their_cells = self.cells(), other.cells()
        parts = {
            name: record
            for name, record in self.parameters().items()
            if cell_of_parameter(name) not in their_cells
        }
        left = {
            name: record
            for name, record in other.parameters().items()
            if cell_of_parameter(name) not in own_cells
        }
        if not left or not parts:
            return []
        own_names = other.own_names()
        named = [_OwnRule(rule.parts, rule.groups, own_names, self.common) for rule in rules]
        return [*find_fused(left, parts, named).values()]

    def _join(
        self, fused: Fused, by_cell: Mapping[str, Mapping[tuple[str, str, int], Entry]]
    ) -> None:
        parts = [by_cell[part] for part in fused.parts]
        changed: dict[int, Entry | None] = {}
        for key in parts[0]:
            each = [part[key] for part in parts if key in part]
            if len(each) < len(parts):
                continue
            changed |= dict.fromkeys(map(id, each))
            changed[id(each[-1])] = joined_entry(fused, each, self._called(each[0], fused.cell))
        self.replace(changed)

    def turn(self, other: _Side) -> None:
        """Transpose square weights of classes whose other weights show that they are transposed.

        Of a square one alone the shape does not tell it, and it may be an error.
        """
        mine, theirs, by_cell = self.parameters(), other.parameters(), self.by_cell()
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
            for entry in by_cell[cell].values():
                if kinds.get(entry.class_name) == {True}:
                    records = tuple(_turned(record) for record in entry.records)
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


def _with_activation(gate: Entry, activated: Entry) -> Entry:
    """Return an entry of a gate whose result is that of the activation behind it."""
    result = "output" if gate.direction == "forward" else "input"
    before = [record for record in gate.records if record.io != result]
    after = [record for record in activated.records if record.io == result]
    return replace(gate, records=(*before, *after))


def _turned(record: Record) -> Record:
    matrix = len(record.leaf.shape or ()) == 2
    weights = record.io in ("parameters", PARAMETERS_GRAD)
    return transposed(record) if matrix and weights else record
