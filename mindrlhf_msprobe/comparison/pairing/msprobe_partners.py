"""A mapping applied: Bench's entries under the names of those of NPU that they are compared with.

As in msprobe, names alone decide: what is not mapped is compared with what has the same name.

In a layer_mapping, an entry's scope is the path of layers that it lies in, with its own name at the
end. A file says how children of a class of layers are called in Bench; all else has one name in
both. The n-th entry of a scope in a direction is compared with the n-th of the other run's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.pairing.msprobe_mapping import (
    ApiRule,
    Kind,
    MsprobeMapping,
    in_pytorch,
)
from mindrlhf_msprobe.comparison.pairing.planner import StepData
from mindrlhf_msprobe.storage.arrays import bounds
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, Record

#: What msprobe calls what lies around the outermost layer, and what it called it at first.
TOP_LAYERS = _TOP, _OLD_TOP = "TopLayer", "Cell"
_OF_LAYERS = ("Cell", "Module")
_WITHOUT_STACK = ("Primitive", "Jit")
#: Where the code of a network begins and ends in a call stack, by the framework.
_MINDSPORE, _PYTORCH = ("Template", "construct"), ("Template", r"in (for|back)ward,")
_FRAMEWORKS = tuple(
    f"{where}/{name}" for where in ("site-packages", "package") for name in ("torch", "mindspore")
)
_NOT_A_FRAMEWORK = ("msprobe", "MindSpeed")
_NO_FUNCTION = ("construct", "__call__")
#: Its numbered children are numbered from 0 in each pipeline stage of PyTorch only.
_RENUMBERED, _CHILDREN = "ParallelTransformer", "layers"


@dataclass(frozen=True)
class _Item:
    """One entry in the layers.

    Attributes:
        scope: the path of layers, with the entry's own name at the end.
        kind: the class of the layer, or what API it is.
        state: the direction.
    """

    name: str
    scope: tuple[str, ...]
    kind: str
    state: str


class _Layer:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.children: dict[str, _Layer] = {}
        self.items: dict[str, list[str]] = defaultdict(list)


_Rules = dict[str, dict[str, list[tuple[tuple[str, ...], tuple[str, ...]]]]]


def _rules(layers: Mapping[str, Mapping[str, str]]) -> _Rules:
    """Return class → first part of a path → (path, path in Bench), the longest paths first."""
    rules: _Rules = {}
    for kind, inside in layers.items():
        by_first: dict[str, list[tuple[tuple[str, ...], tuple[str, ...]]]] = defaultdict(list)
        for source, target in inside.items():
            path = tuple(source.split("."))
            by_first[path[0]].append((path, tuple(target.partition("(")[0].split("."))))
        for known in by_first.values():
            known.sort(key=lambda rule: -len(rule[0]))
        rules[_TOP if kind == _OLD_TOP else kind] = dict(by_first)
    return rules


def _partner(item: _Item, own: _Layer, other: _Layer, rules: _Rules, number: int) -> str | None:
    layer, scope = own, item.scope
    target: list[str] = []
    at = 0
    while at < len(scope):
        path, replaced = scope[at : at + 1], scope[at : at + 1]
        for source, renamed in rules.get(layer.kind, {}).get(scope[at], ()):
            if scope[at : at + len(source)] == source:
                path, replaced = source, renamed
                break
        target += replaced
        for part in path:
            layer = layer.children[part]
        at += len(path)
    found = other
    for part in target:
        child = found.children.get(part)
        if child is None:
            return None
        found = child
    names = found.items.get(item.state, [])
    return names[number] if number < len(names) else None


def _tree(items: Sequence[_Item]) -> tuple[_Layer, dict[str, int]]:
    """Return the outermost layer, and each item's place among those of its layer and direction."""
    top = _Layer(_TOP)
    places: dict[str, int] = {}
    for item in items:
        layer = top
        for part in item.scope:
            layer = layer.children.setdefault(part, _Layer(part))
        places[item.name] = len(layer.items[item.state])
        layer.items[item.state].append(item.name)
        layer.kind = item.kind
    return top, places


def _items(entries: Sequence[Entry]) -> list[_Item]:
    made = {entry.name: _item(entry) for entry in entries}
    for name, item in made.items():  # a backward pass lies where its forward pass does
        head, _, last = name.rpartition(".")
        if last == "backward":
            forward = made.get(f"{head}.forward")
        else:
            before, _, direction = head.rpartition(".")
            forward = made.get(f"{before}.forward.{last}") if direction == "backward" else None
        if forward is not None:
            made[name] = _Item(name, forward.scope, item.kind, item.state)
    return _renumbered(list(made.values()))


def _item(entry: Entry) -> _Item:
    parts = entry.name.split(".")
    if entry.direction == PARAMETERS_GRAD:
        return _Item(entry.name, tuple(parts[1:-3]), parts[-3], PARAMETERS_GRAD)
    if parts[0] in _OF_LAYERS and len(parts) >= 4:
        return _Item(entry.name, tuple(parts[1:-3]), parts[-3], parts[-2])
    around = tuple((entry.parent or "").split(".")[1:-3])
    name = parts[-3] if len(parts) >= 3 else entry.name
    function = () if parts[0] in _WITHOUT_STACK else _framework_function(entry.stack)
    return _Item(entry.name, (*around, *function, name), name, parts[-1])


def _framework_function(stack: Sequence[str]) -> tuple[str, ...]:
    """Return the framework's function through which an API was called, if it was."""
    of_pytorch = any("/torch/" in frame for frame in stack)
    begins, ends = _PYTORCH if of_pytorch else _MINDSPORE
    first, last = -1, len(stack)
    for number, frame in enumerate(stack):
        if re.search(begins, frame):
            first = number
        elif first >= 0 and re.search(ends, frame):
            last = number
            break
    found = ""
    for frame in stack[first + 1 : last]:
        if not any(name in frame.split(",")[0] for name in _FRAMEWORKS):
            break
        found = frame
    words = found.split(",")
    if len(words) < 3 or any(name in words[0] for name in _NOT_A_FRAMEWORK):
        return ()
    if any(name in words[2] for name in _NO_FUNCTION):
        return ()
    return tuple(words[2].split()[1:2])


def _renumbered(items: list[_Item]) -> list[_Item]:
    """Return items with the children of a pipeline stage's transformer numbered from 0."""
    above = {(*item.scope, _CHILDREN) for item in items if item.kind == _RENUMBERED}
    for depth in sorted({len(prefix) for prefix in above}):
        numbers: dict[tuple[str, ...], dict[str, int]] = defaultdict(dict)
        for item in items:
            if len(item.scope) > depth and item.scope[:depth] in above:
                child = item.scope[depth]
                if digits := re.findall("[0-9]{1,9}", child):
                    numbers[item.scope[:depth]][child] = int(digits[-1])
        least = {prefix: min(known.values()) for prefix, known in numbers.items()}
        for at, item in enumerate(items):
            prefix, rest = item.scope[:depth], item.scope[depth:]
            number = numbers[prefix].get(rest[0]) if rest and prefix in least else None
            if number is not None:
                scope = (*prefix, str(number - least[prefix]), *rest[1:])
                items[at] = _Item(item.name, scope, item.kind, item.state)
    return items


_CELL, _MODULE = "Cell.", "Module."


def under_names_of_npu(npu: StepData, bench: StepData, mapping: MsprobeMapping) -> StepData:
    """Return Bench's data with its entries under the names of NPU's.

    Records keep the names and files of Bench. What no entry of NPU is compared with keeps its name,
    or has another one where NPU uses that name for something else.
    """
    own: dict[tuple[str, str], str] = {}
    entries: list[Entry] = []
    for phase in dict.fromkeys(entry.phase for entry in (*npu.entries, *bench.entries)):
        sides = [
            sorted((e for e in side.entries if e.phase == phase), key=lambda e: e.seq)
            for side in (npu, bench)
        ]
        both = _Phase(mapping, *sides)
        entries += both.entries()
        own |= {(phase, e.name): t for e in sides[0] if (t := both.entry_partner(e)) is not None}
    return replace(bench, entries=entries, own=replace(bench.own, entries=own))


class Unused:
    """What of a mapping no entry of NPU was found for so far.

    Attributes:
        names: in the file's order: cells, records, APIs, or classes of layers.
    """

    def __init__(self, mapping: MsprobeMapping) -> None:
        self._kind = mapping.kind
        self._cells = CellNames(mapping.names) if mapping.kind is Kind.CELL else None
        known = [*mapping.names, *(rule.source for rule in mapping.apis), *mapping.layers]
        self.names = dict.fromkeys(name for name in known if name not in TOP_LAYERS)

    def note(self, entries: Iterable[Entry]) -> None:
        """Strike what these entries of NPU are."""
        seen: set[str] = set()
        for entry in entries if self.names else ():
            if self._kind is Kind.DATA:
                seen.update(name for r in entry.records for name in _names_of(entry, r))
            elif self._kind is Kind.LAYER:
                seen.update(entry.name.split("."))
            else:
                seen.add(_cell(entry) or "" if self._cells is not None else _api_of(entry))
        if self._cells is not None:
            seen |= {name for cell in seen for name in self._cells.inside(cell)}
        for name in seen:
            self.names.pop(name, None)


class CellNames:
    """What a cell_mapping calls cells in Bench, in time that does not grow with its lines."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._order = {name: number for number, name in enumerate(names)}
        self._lengths = sorted({len(name) for name in names})

    def inside(self, cell: str) -> list[str]:
        """Return the names of the mapping that are parts of a text, in the file's order."""
        found = {
            part
            for length in self._lengths
            for begin in range(len(cell) - length + 1)
            if (part := cell[begin : begin + length]) in self._names
        }
        return sorted(found, key=self._order.__getitem__)

    def renamed(self, cell: str) -> str:
        """Return a cell's name and class in Bench: of its whole name, else of each known part.

        As in msprobe, parts are replaced one after another, in the file's order, each once.
        """
        if cell in self._names:
            return self._names[cell]
        at = -1
        while len(cell) <= bounds.NAME:  # a longer one is nobody's
            later = (name for name in self.inside(cell) if self._order[name] > at)
            source = next(later, None)
            if source is None:
                break
            cell = cell.replace(source, self._names[source], 1)
            at = self._order[source]
        return cell


class _Phase:
    """One phase: how entries and records of NPU are called in Bench, whose own get those names."""

    def __init__(
        self, mapping: MsprobeMapping, npu: Sequence[Entry], bench: Sequence[Entry]
    ) -> None:
        self._mapping, self._npu, self._bench = mapping, npu, bench
        self._by_name = {entry.name: entry for entry in bench}
        self._records = {
            name: (entry, record)
            for entry in reversed(bench)
            for record in reversed(entry.records)
            for name in reversed(_names_of(entry, record))
        }
        self._used: set[tuple[str, str]] = set()
        self._module = any(entry.name.startswith(_MODULE) for entry in bench)
        self._cells: dict[str, str] = {}
        self._of_cells = CellNames(mapping.names)
        apis = {_api_of(entry) for entry in bench}
        self._apis: dict[str, ApiRule] = {
            rule.source: rule for rule in mapping.apis if rule.target in apis
        }
        self._by_layer: dict[str, str | None] = {}
        if mapping.kind is Kind.LAYER:
            rules, items = _rules(mapping.layers), _items(npu)
            (own, places), (other, _) = _tree(items), _tree(_items(bench))
            for item in items:
                partner = _partner(item, own, other, rules, places[item.name])
                self._by_layer[item.name] = partner

    def entry_partner(self, entry: Entry) -> str | None:
        """Return what an entry is called in Bench; None if it has no partner there."""
        kind = self._mapping.kind
        if kind is Kind.LAYER:
            return self._by_layer[entry.name]
        if kind is Kind.CELL and (cell := _cell(entry)) is not None:
            if cell not in self._cells:
                self._cells[cell] = self._of_cells.renamed(cell)
            scope = _MODULE if self._module else _CELL
            return f"{scope}{self._cells[cell]}{entry.name[len(_CELL) + len(cell) :]}"
        if kind is Kind.API:
            api = _api_of(entry)
            rule = self._apis.get(api)
            return (in_pytorch(api) if rule is None else rule.target) + entry.name[len(api) :]
        return entry.name

    def record_partner(self, entry: Entry, record: Record, target: str | None) -> str | None:
        """Return what a record is called in Bench, given what its entry is called there."""
        if self._mapping.kind is Kind.DATA:
            for name in _names_of(entry, record):
                if name in self._mapping.names:
                    return self._mapping.names[name]
        if target is None:
            return None
        rule = self._apis.get(_api_of(entry))
        places = rule.places.get(record.io) if rule is not None else None
        if places is not None:
            place = places.get(record.path)
            return None if place is None else f"{target}.{record.io}.{place}"
        return target + record.name[len(entry.name) :]

    def entries(self) -> list[Entry]:
        """Return the entries of Bench; what has no partner comes behind what has one."""
        made = [found for found in map(self._against, self._npu) if found is not None]
        new_names: dict[str, str] = {}
        for own, source, _ in made:
            new_names.setdefault(source.name, own.name)
        partners = {own.name: own for own, _, _ in made}
        # What no record of NPU has taken: by the new name of its entry, and in entries.
        rests: dict[str, list[Record]] = {}
        left = []
        for entry in self._bench:
            apart = [r for r in entry.records if (entry.name, r.name) not in self._used]
            own_name = new_names.get(entry.name)
            if own_name is not None:  # what would be compared with a record without partner is not
                known = {(r.io, r.path) for r in partners[own_name].records}
                rests[own_name] = [r for r in apart if (r.io, r.path) not in known]
                apart = [r for r in apart if (r.io, r.path) in known]
            if apart or (own_name is None and not entry.records):
                left.append(replace(entry, records=tuple(apart)))
        found = [
            replace(source, name=own.name, records=(*records, *rests.pop(own.name, ())))
            for own, source, records in made
        ]
        taken = {entry.name for entry in self._npu}
        for entry in left:  # those without partner get names that no entry of NPU has
            name = entry.name
            while name in taken:
                name += " in A"
            taken.add(name)
            new_names.setdefault(entry.name, name)
            found.append(replace(entry, name=name))
        return [replace(e, parent=new_names.get(e.parent or "", e.parent)) for e in found]

    def _against(self, own: Entry) -> tuple[Entry, Entry, list[Record]] | None:
        """Return an entry of NPU, the one of Bench it is compared with, and the records of that."""
        target = self.entry_partner(own)
        source = None if target is None else self._by_name.get(target)
        records = []
        for record in own.records:
            name = self.record_partner(own, record, target)
            found = None if name is None else self._records.get(name)
            if found is None:
                continue
            source = source or found[0]
            self._used.add((found[0].name, found[1].name))
            records.append(replace(found[1], io=record.io, path=record.path))
        return None if source is None else (own, source, records)


def _cell(entry: Entry) -> str | None:
    """Return the name and class of an entry's cell, None if it is an API."""
    if not entry.name.startswith(_CELL) or not entry.direction:
        return None
    return f"{entry.cell}.{entry.class_name}"


def _api_of(entry: Entry) -> str:
    return ".".join(entry.name.split(".", 2)[:2])


def _names_of(entry: Entry, record: Record) -> list[str]:
    """Return the names that msprobe's files may have for a record, the most usual one last.

    Its file's; msprobe before 26 did not number the gradients of parameters.
    """
    names = [record.name]
    if record.leaf.data_name:
        names.append(record.leaf.data_name.rpartition(".")[0])
    if entry.direction == PARAMETERS_GRAD and entry.name.endswith(f".{PARAMETERS_GRAD}.0"):
        names.append(f"{entry.name[:-2]}{record.name[len(entry.name) :]}")
    return names
