"""Which entry of A is which entry of B, in one step of one rank.

A cell that runs in loops is called more often in one run than in the other: its calls are counted
inside the call of the cell around them, so that a longer loop shifts nothing that comes after it.
Entries of operators, whose numbers are those of the whole phase, are paired inside the calls of
cells that are paired: see operators.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.comparison.pairing.msprobe_mapping import in_both
from mindrlhf_msprobe.comparison.pairing.names import NO_RULES, CellFilter, NameRules, match_names
from mindrlhf_msprobe.comparison.pairing.operators import (
    Context,
    Item,
    Operator,
    forward_of,
    pair_backward,
    pair_operators,
)
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.records import Entry

#: A cell in one direction under the name both runs have for it.
_Cell = tuple[str, str]
#: Calls that are counted together: those of one cell inside one call of the cell around it.
_Loop = tuple[object, ...]


@dataclass
class Alignment:
    """The entries of two runs under common names.

    Attributes:
        a, b: (phase, entry name) → the entry's id: the same on both sides for entries that are
            compared with each other, else unique. It is the name of A's entry where there is one.
        outside: (phase, id) of entries that lie outside the network both runs have.
        notes: how the names were brought together.
    """

    a: dict[tuple[str, str], str] = field(default_factory=dict)
    b: dict[tuple[str, str], str] = field(default_factory=dict)
    outside: set[tuple[str, str]] = field(default_factory=set)
    notes: list[Message] = field(default_factory=list)


def align(
    a: Sequence[Entry],
    b: Sequence[Entry],
    rules: NameRules = NO_RULES,
    *,
    damaged: Collection[str] = (),
    chosen: tuple[CellFilter | None, CellFilter | None] = (None, None),
    across: bool = False,
) -> Alignment:
    """Pair the entries of both runs, phase by phase.

    Args:
        rules: how cells of A are called in B.
        damaged: phases of which entries may be lost, so that a loop's calls may lack the first.
        chosen: which cells each run was configured to record.
        across: they are of two frameworks, which name operators differently.
    """
    alignment = Alignment()
    called: tuple[Callable[[str], str] | None, ...] = (None, None)
    if across:
        called = (lambda api: in_both(rules.renamed(api)), in_both)
    phases = dict.fromkeys(entry.phase for entry in (*a, *b))
    for phase in phases:
        sides = [[entry for entry in side if entry.phase == phase] for side in (a, b)]
        cells_a, cells_b = (
            {entry.cell for entry in side if not is_operator(entry.name)} for side in sides
        )
        names = match_names(cells_a, cells_b, rules, chosen)
        note = names.note(phase)
        if note is not None and all(sides):
            alignment.notes.append(note)
        named = (
            _Side(sides[0], names.common_a, called[0]),
            _Side(sides[1], names.common_b, called[1]),
        )
        _align_phase(alignment, *named, phase in damaged)
    return alignment


def nearest_around(
    entry: Entry, by_name: Mapping[str, Entry], wanted: Collection[str]
) -> str | None:
    """Return the name of the nearest entry around this one that is wanted; None if there is none.

    What lies around an entry began before it, or the dump goes in circles: that ends the search.

    Args:
        by_name: the entries of its phase.
        wanted: names of them.
    """
    while True:
        around = by_name.get(entry.parent or "")
        if around is None or around.seq >= entry.seq:
            return None
        if around.name in wanted:
            return around.name
        entry = around


class _Side:
    """The entries of one phase of one run."""

    def __init__(
        self,
        entries: Sequence[Entry],
        common_name: Callable[[str], str | None],
        called: Callable[[str], str] | None = None,
    ) -> None:
        self._called = called
        in_time = sorted(entries, key=lambda entry: entry.seq)
        self.by_name = {entry.name: entry for entry in in_time}
        self.operators = [entry for entry in in_time if is_operator(entry.name)]
        operators = {entry.name for entry in self.operators}
        self.entries = [entry for entry in in_time if entry.name not in operators]
        self.cells: dict[str, _Cell | None] = {}
        for entry in self.entries:
            name = common_name(entry.cell)
            self.cells[entry.name] = None if name is None else (name, entry.direction)
        #: Of each operator: the common name of the cell around it, "" outside every cell.
        self.around = {
            entry.name: common_name(entry.around) if entry.around else entry.around
            for entry in self.operators
        }
        self.openings = len({entry.opening for entry in in_time})
        #: Of each entry: the nearest one around it whose cell both runs recorded; and its loop.
        self.parents: dict[str, str | None] = {}
        self.loops: dict[str, _Loop] = {}
        #: The loops inside each entry, None for the outermost, with the entries of common cells.
        self.members: dict[str | None, dict[_Loop, list[Entry]]] = defaultdict(dict)
        #: The call number each loop ought to begin with: the one after the last before.
        self.bases: dict[_Loop, int] = {}

    def find_loops(self, common: set[_Cell], openings: bool, tokens: bool) -> None:
        """Find out which calls are counted together.

        Args:
            common: the cells that both runs recorded.
            openings, tokens: whether the outermost calls are counted by opening, and by token.
        """
        wanted = {name for name, cell in self.cells.items() if cell in common}
        for entry in self.entries:
            parent, cell = nearest_around(entry, self.by_name, wanted), self.cells[entry.name]
            around = entry.opening if openings else 0, entry.token if tokens else None
            loop = (None, *around, cell) if parent is None else (parent, cell)
            self.parents[entry.name], self.loops[entry.name] = parent, loop
            if cell in common:
                self.members[parent].setdefault(loop, []).append(entry)
        self._openings, self._tokens = openings, tokens
        last: dict[_Cell | None, int] = {}
        for entry in sorted(self.entries, key=lambda e: e.call):
            cell = self.cells[entry.name]
            self.bases.setdefault(self.loops[entry.name], last.get(cell, -1) + 1)
            last[cell] = entry.call

    def is_outside(self, entry: Entry) -> bool:
        """Return whether an entry lies outside the network that both runs have."""
        if entry.name in self.around:
            return bool(entry.around) and self.around[entry.name] is None
        return self.cells[entry.name] is None

    def ran_inside(
        self, names: Mapping[str, str], wanted: Collection[str]
    ) -> dict[Context, list[Item]]:
        """Return what ran inside the calls of cells and outside of all, in the order of time.

        Args:
            names: of its entries that both runs have → name of A's.
            wanted: the entries of operators that count.
        """
        found: dict[Context, list[Item]] = defaultdict(list)
        for entry in self.by_name.values():
            if entry.name not in wanted and entry.name not in names:
                continue
            around = nearest_around(entry, self.by_name, names)
            context: Context = (names[around],) if around is not None else (None,)
            if around is None:
                context += (entry.opening if self._openings else 0,)
                context += (entry.token if self._tokens else None,)
            item: Item = names.get(entry.name, "")
            if entry.name in wanted:
                item = Operator(entry, self.around[entry.name], self._called)
            found[context].append(item)
        return found


def _align_phase(alignment: Alignment, a: _Side, b: _Side, damaged: bool) -> None:
    common = {cell for cell in a.cells.values() if cell is not None} & {*b.cells.values()}
    paired = _Pairing(a, b, common, damaged).paired
    if a.operators and b.operators:
        paired |= _paired_operators(a, b, paired)
    own = {name: name for name in a.by_name}
    taken = set(own)
    for side, found, ids in ((a, alignment.a, own), (b, alignment.b, paired)):
        for entry in side.by_name.values():
            entry_id = ids.get(entry.name, entry.name)
            while entry.name not in ids and entry_id in taken:
                entry_id += " in B"
            taken.add(entry_id)
            found[entry.phase, entry.name] = entry_id
            if side.is_outside(entry):
                alignment.outside.add((entry.phase, entry_id))


def _paired_operators(a: _Side, b: _Side, cells: Mapping[str, str]) -> dict[str, str]:
    """Return name of B's entry of an operator → name of A's.

    Args:
        cells: the same of the entries of cells.
    """
    names = {name: name for name in cells.values()}, cells
    sides = a.operators, b.operators
    forward = [{x.name for x in of_side if x.direction == "forward"} for of_side in sides]
    backward = [[x.name for x in of_side if x.direction == "backward"] for of_side in sides]
    paired = pair_operators(a.ran_inside(names[0], forward[0]), b.ran_inside(names[1], forward[1]))
    # Without forward entries on both sides, their order is all there is.
    known = all(forward)
    paired |= pair_backward(paired, *backward)
    alone = [
        {name for name in of_side if not (known and forward_of(name) in there)}
        for of_side, there in zip(backward, forward)
    ]
    if all(alone):
        paired |= pair_operators(a.ran_inside(names[0], alone[0]), b.ran_inside(names[1], alone[1]))
    return paired


class _Pairing:
    """Pairs two sides from the outermost entries inwards.

    Attributes:
        paired: name of B's entry → name of A's.
    """

    def __init__(self, a: _Side, b: _Side, common: set[_Cell], damaged: bool) -> None:
        self._damaged = damaged
        self.paired: dict[str, str] = {}
        self._sides = (a, b)
        self._common = common
        self._used: set[str] = set()
        openings = a.openings == b.openings or (
            min(a.openings, b.openings) > 1 and len(a.entries) != len(b.entries)
        )
        tokens = all(any(e.token is not None for e in s.by_name.values()) for s in (a, b))
        for side in (a, b):
            side.find_loops(common, openings, tokens)
        self._pair_inside(None, None)
        self._pair_moved()

    def _pair_inside(self, around_a: str | None, around_b: str | None) -> None:
        waiting = [(around_a, around_b)]
        while waiting:
            outer = waiting.pop()
            inside = [side.members.get(name, {}) for side, name in zip(self._sides, outer)]
            theirs = {loop[1:]: loop for loop in inside[1]}
            for loop, entries in inside[0].items():
                other = theirs.get(loop[1:])
                if other is None:
                    continue
                for x, y in self._calls(loop, entries, other, inside[1][other]):
                    if x.name not in self._used and y.name not in self.paired:
                        self.paired[y.name] = x.name
                        self._used.add(x.name)
                        waiting.append((x.name, y.name))

    def _calls(
        self, loop_a: _Loop, a: Sequence[Entry], loop_b: _Loop, b: Sequence[Entry]
    ) -> Iterable[tuple[Entry, Entry]]:
        """Yield the calls of two loops that are compared with each other."""
        bases = self._sides[0].bases[loop_a], self._sides[1].bases[loop_b]
        firsts = min(entry.call for entry in a), min(entry.call for entry in b)
        if bases[0] == bases[1] or (self._damaged and max(bases) <= min(firsts)):
            firsts = 0, 0
        # Else something before ran unlike often: count from this loop's first.
        calls = {entry.call - firsts[1]: entry for entry in reversed(b)}
        exact = {(entry.call - firsts[1], entry.class_name): entry for entry in b}
        for entry in a:
            call = entry.call - firsts[0]
            other = exact.get((call, entry.class_name)) or calls.get(call)
            if other is not None:
                yield entry, other

    def _pair_moved(self) -> None:
        """Pair the same call of a cell that another cell is around in the other run."""
        a, b = self._sides
        left = {
            (a.cells[entry.name], entry.call): entry
            for entry in a.entries
            if entry.name not in self._used and a.cells[entry.name] in self._common
        }
        for entry in b.entries:
            other = left.get((b.cells[entry.name], entry.call))
            if other is None or entry.name in self.paired or other.name in self._used:
                continue
            around = a.cells.get(a.parents[other.name] or "")
            if around != b.cells.get(b.parents[entry.name] or ""):
                self.paired[entry.name] = other.name
                self._used.add(other.name)
                self._pair_inside(other.name, entry.name)
