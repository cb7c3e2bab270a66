"""A layer_mapping: entries of NPU and of Bench by where they stand in the networks' layers.

An entry's scope is the path of layers that it lies in, with its own name at the end. A file says
how children of a class of layers are called in Bench; all else has one name in both. The n-th entry
of a scope in a direction is compared with the n-th of the other run's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry

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


def entries_by_layer(
    npu: Sequence[Entry], bench: Sequence[Entry], layers: Mapping[str, Mapping[str, str]]
) -> dict[str, str | None]:
    """Return NPU's entry → Bench's, None for those without a partner.

    Args:
        a, b: the entries of one phase, in the order in which they ran.
        layers: class of a layer of NPU → path inside it → path in Bench.
    """
    rules = _rules(layers)
    items, others = _items(npu), _items(bench)
    (own, places), (other, _) = _tree(items), _tree(others)
    return {item.name: _partner(item, own, other, rules, places[item.name]) for item in items}


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
