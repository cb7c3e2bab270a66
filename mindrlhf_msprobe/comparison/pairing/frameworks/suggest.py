"""A mapping proposed: which cell of A may be which of B, by structure, shapes and equal statistics.

One cell may be several of the other run: by shapes that sum up, and by statistics. What is written
is for a user to check: each line says how sure it is, and why.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.comparison.judging.tolerance import is_finite
from mindrlhf_msprobe.comparison.pairing.composed import together
from mindrlhf_msprobe.comparison.pairing.frameworks.presets import FUSED, preset_names
from mindrlhf_msprobe.comparison.pairing.frameworks.records import parameter_names_of
from mindrlhf_msprobe.comparison.pairing.fused import find_fused
from mindrlhf_msprobe.comparison.pairing.mapping import interleaved
from mindrlhf_msprobe.comparison.pairing.names import NUMBER, ROOT, literal, of_any_layer
from mindrlhf_msprobe.comparison.pairing.operators import NEAR, may_be_one
from mindrlhf_msprobe.comparison.pairing.view import views
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.outputs import refuse_directory, refuse_inside, replaced
from mindrlhf_msprobe.storage.reading.reader import open_run
from mindrlhf_msprobe.storage.records import Entry, Record, cell_of_parameter, network_name

_MOST_PARTS = 4
_MOST_CANDIDATES = 16  # of one layer
_MOST_OF_SIZE = 256  # cells of one size that are looked at for each one


@dataclass(frozen=True)
class Match:
    """A cell of one run and what may be it in the other one.

    Attributes:
        cell: of A; one that is several in the other run is of either.
        parts: one cell, or several.
        confidence: between 0 and 1.
        values, compared: of the parameters and outputs that were compared, how many agree.
        groups: how many times several parts alternate in the rows of the weight; 0 where only the
            elements, which were not recorded, would tell it.
    """

    cell: Cell
    parts: tuple[Cell, ...]
    confidence: float
    values: int
    compared: int
    groups: int = 1


def fused_cells(fused: Sequence[Cell], parts: Sequence[Cell]) -> Iterator[Match]:
    """Yield the cells of one run that are several of the other one.

    Only cells are looked at whose weights the other run has in no cell of its own.
    """
    by_layer: dict[tuple[str, ...], list[Cell]] = defaultdict(list)
    for part in _alone(parts, fused):
        by_layer[tuple(NUMBER.findall(part.name))].append(part)
    taken: set[str] = set()
    for cell in _alone(fused, parts):
        near = [p for p in by_layer[tuple(NUMBER.findall(cell.name))] if p.name not in taken]
        if len(near) > _MOST_CANDIDATES:
            continue
        found = next(_made_of(cell, near), None)
        if found is not None:
            taken |= {part.name for part in found.parts}
            yield found


def _alone(cells: Sequence[Cell], others: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the cells with a matrix that no cell of the other run has."""
    theirs = [leaf for other in others if (leaf := _matrix(other)) is not None]
    known = sorted((x for x in theirs if is_finite(x.norm)), key=lambda leaf: leaf.norm)
    norms = [leaf.norm for leaf in known]
    for cell in cells:
        if (own := _matrix(cell)) is None:
            continue
        near = theirs
        if is_finite(own.norm) and len(known) == len(theirs):  # of very many only like ones
            low, high = own.norm * (1 - 2 * NEAR), own.norm * (1 + 2 * NEAR)
            near = known[bisect_left(norms, low) : bisect_right(norms, high)]
        if not any(may_be_one(own, leaf) for leaf in near):
            yield cell


def _matrix(cell: Cell) -> Leaf | None:
    """Return the weight of a cell that has one matrix, and no table of an embedding."""
    found = [leaf for leaf in cell.parameters.values() if len(leaf.shape or ()) == 2]
    return found[0] if len(found) == 1 and not found[0].is_discrete else None


def _made_of(cell: Cell, near: Sequence[Cell]) -> Iterator[Match]:
    own = _matrix(cell)
    assert own is not None
    for count in range(2, _MOST_PARTS + 1):
        for parts in itertools.combinations(near, count):
            leaves = [leaf for part in parts if (leaf := _matrix(part)) is not None]
            if len({part.name.rpartition(".")[0] for part in parts}) > 1:
                continue
            fits = False  # whether the rows sum up, either of them transposed
            for turned, others_turned in itertools.product((1, -1), repeat=2):
                rows, inputs = (own.shape or ())[::turned]
                shapes = [(leaf.shape or ())[::others_turned] for leaf in leaves]
                summed = sum(shape[0] for shape in shapes)
                fits |= summed == rows and {shape[1] for shape in shapes} == {inputs}
            if not fits or not may_be_one(own, _whole(own, leaves)):
                continue
            outputs = [part.outputs[0] for part in parts if part.outputs]
            compared = values = 1
            if cell.outputs and len(outputs) == len(parts):
                compared += 1
                values += may_be_one(cell.outputs[0], _whole(cell.outputs[0], outputs))
            ordered, groups = _order(cell, parts)
            names = {part.name.rpartition(".")[2] for part in ordered}
            last = cell.name.rpartition(".")[2]
            usual = any(last in of and any({*one} == names for one in each) for of, each in FUSED)
            confidence = _VALUES * values / compared + _SHAPES + _NAMES * usual
            confidence += _STRUCTURE * (1 - abs(cell.place - ordered[0].place))
            yield Match(cell, ordered, confidence, values, compared, groups)


def _whole(whole: Leaf, parts: Sequence[Leaf]) -> Leaf:
    """Return what the statistics of parts say of the whole."""
    fits = sum(map(elements, parts)) == elements(whole)
    return together(parts, whole.shape or () if fits else (0,))


def _order(cell: Cell, parts: Sequence[Cell]) -> tuple[tuple[Cell, ...], int]:
    """Return the parts in the order in which they stand in the fused weight, and the groups."""
    mine = {network_name(cell.name, path): r for path, r in cell.weights.items()}
    theirs = {network_name(p.name, path): r for p in parts for path, r in p.weights.items()}
    stored = all(record.location is not None for record in (*mine.values(), *theirs.values()))
    fused = find_fused(mine, theirs).get(cell.name) if stored else None
    by_name = {part.name: part for part in parts}
    if fused is None or {*fused.parts} != {*by_name}:
        return tuple(parts), 0
    ordered = tuple(by_name[name] for name in fused.parts)
    axis = int(fused.parts_transposed)
    sizes = [(leaf.shape or ())[axis] for part in ordered if (leaf := _matrix(part)) is not None]
    for groups in range(1, math.gcd(*sizes) + 1):
        rows = interleaved(sizes, groups)
        if rows is not None and np.array_equal(rows, fused.order):
            return ordered, groups
    return ordered, 0  # they do not alternate evenly


@dataclass(frozen=True)
class Cell:
    """What is known of a cell by its first call.

    Attributes:
        place: when it ran first: 0 for the first cell, 1 for the last one.
        weights: its parameters by name, as they were recorded.
    """

    name: str
    class_name: str
    place: float
    weights: Mapping[str, Record]
    outputs: tuple[Leaf, ...]

    @cached_property
    def parameters(self) -> dict[str, Leaf]:
        """The descriptions of its parameters, by name."""
        return {name: record.leaf for name, record in self.weights.items()}


def cells_of(entries: Iterable[Entry]) -> list[Cell]:
    """Return the cells that ran, in the order of their first calls."""
    first: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda e: e.seq):
        if entry.direction == "forward" and not is_operator(entry.name) and entry.cell != ROOT:
            first.setdefault(entry.cell, entry)
    found = []
    for number, entry in enumerate(first.values()):
        tensors = [record for record in entry.records if record.leaf.is_tensor]
        weights = {record.path: record for record in tensors if record.io == "parameters"}
        outputs = tuple(record.leaf for record in tensors if record.io == "output")
        place = number / max(len(first) - 1, 1)
        found.append(Cell(entry.cell, entry.class_name, place, weights, outputs))
    return found


def cells_of_parameters(parameters: Mapping[str, Record]) -> list[Cell]:
    """Return the cells of a network of which parameters alone are known, in their order."""
    weights: dict[str, dict[str, Record]] = defaultdict(dict)
    for name, record in parameters.items():
        weights[cell_of_parameter(name)][name.rpartition(".")[2]] = record
    last = max(len(weights) - 1, 1)
    return [Cell(cell, "", n / last, own, ()) for n, (cell, own) in enumerate(weights.items())]


def elements(leaf: Leaf) -> int:
    """Return how many elements a tensor has."""
    return math.prod(leaf.shape or ())


#: What each kind of evidence is worth; all together are 1.
_VALUES, _SHAPES, _STRUCTURE, _NAMES = 0.5, 0.2, 0.15, 0.15
_LEAST = 0.35  # of a line that is proposed
_FILE = "mapping.yaml"


@dataclass(frozen=True)
class Line:
    """One line of a proposal.

    Attributes:
        source, target: what cells of A, and of B, are called. Of a cell that several are: it, in
            either run, and its parts in the other one.
        confidence: between 0 and 1, the least of all layers.
        cells: how many cells it is of.
        values: of the parameters and outputs that were compared, how many agree.
        compared: how many these are.
        groups: how many times the parts alternate in the rows of a fused weight; 0: unknown.
        of_layers: whether `*` stands for their numbers; one that a name has is then `\\*`.
    """

    source: str
    target: str | tuple[str, ...]
    confidence: float
    cells: int
    values: int
    compared: int
    groups: int = 1
    of_layers: bool = False


@dataclass(frozen=True)
class Suggestion:
    """A proposed mapping.

    Attributes:
        path: where it was written.
        lines: of cells that are called by another name in B, those inside others first.
        alone: of A and of B, the cells without partner, in any layer.
    """

    path: Path
    lines: tuple[Line, ...]
    alone: tuple[tuple[str, ...], tuple[str, ...]]


def suggest_mapping(
    a: str | Path,
    b: str | Path,
    directory: str | Path,
    phases: tuple[str, str] | None = None,
    ranks: tuple[int, int] | None = None,
) -> Suggestion:
    """Propose which cells of A are which of B, and write it as a mapping to be checked.

    Args:
        directory: `mapping.yaml` is written into it.
        phases, ranks: which are compared, as `compare_runs` takes them.

    Raises:
        RunError: a run cannot be read, they have no step in common, or the file cannot be written.
        UsageError: the file is already there.
    """

    def cells() -> tuple[list[Cell], list[Cell]]:
        runs = open_run(Path(a).absolute()), open_run(Path(b).absolute())
        left, right, _ = views(*runs, phases, ranks)
        for at in sorted(left.rank_steps() & right.rank_steps()):
            mine, theirs = left.load(*at).entries, right.load(*at).entries
            if mine and theirs:  # of the first step that both have
                return cells_of(mine), cells_of(theirs)
        raise RunError.saying("error.nothing_to_suggest", a=str(a), b=str(b))

    return propose(a, b, directory, cells)


def propose(
    a: str | Path,
    b: str | Path,
    directory: str | Path,
    cells: Callable[[], tuple[Sequence[Cell], Sequence[Cell]]],
) -> Suggestion:
    """Write which cells of A may be which of B, as `suggest_mapping` does.

    Args:
        cells: called for those of both, when the mapping can be written.
    """
    path = refuse_directory(directory) / _FILE
    if os.path.lexists(path):
        raise UsageError.saying("error.suggestion_exists", path=str(path))
    refuse_inside(path, (a, b))
    found = Suggestion(path, *_proposed(cells()))
    with replaced(path) as (part,):
        part.write_bytes(_text(found).encode())
    return found


def _proposed(
    cells: tuple[Sequence[Cell], Sequence[Cell]],
) -> tuple[tuple[Line, ...], tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the lines that both networks' cells lead to, and of each the cells without partner."""
    fused = [[*fused_cells(*both)] for both in (cells, cells[::-1])]
    known: list[set[str]] = [set(), set()]
    for side, found in enumerate(fused):
        known[side] |= {one.cell.name for one in found}
        known[1 - side] |= {part.name for one in found for part in one.parts}
    left = [[c for c in side if c.name not in names] for side, names in zip(cells, known)]
    pairs = _pairs(left[0], left[1])
    known[0] |= {pair.cell.name for pair in pairs}
    known[1] |= {pair.parts[0].name for pair in pairs}
    lines = _lines(pairs)
    # A rule holds for what lies inside, too: those inside come first, single names before layers.
    lines.sort(key=lambda line: (-line.source.count("."), line.of_layers, line.source))
    renaming = [line for line in lines if line.source != line.target]
    said = [  # one that keeps its name says something where another line would rename it
        line
        for line in lines
        if line in renaming or any(line.source.startswith(f"{of.source}.") for of in renaming)
    ]
    mine, theirs = (
        tuple(dict.fromkeys(of_any_layer(c.name) for c in side if c.name not in paired))
        for side, paired in zip(cells, known)
    )
    return (*said, *_lines(fused[0]), *_lines(fused[1])), (mine, theirs)


def _pairs(a: Sequence[Cell], b: Sequence[Cell]) -> list[Match]:
    """Return the best partners, each cell once."""
    preset = preset_names((c.name for c in a), (c.name for c in b))
    by_size: dict[tuple[int, ...], list[Cell]] = defaultdict(list)
    for cell in b:
        by_size[_size(cell)].append(cell)
    scored = []
    for i, x in enumerate(a):
        expected = preset.renamed(x.name)
        likely = by_size[_size(x)]
        if len(likely) > _MOST_OF_SIZE:  # of very many those at its place
            at = bisect_left(likely, x.place, key=lambda other: other.place)
            likely = likely[max(at - _MOST_OF_SIZE // 2, 0) :][:_MOST_OF_SIZE]
        for y in likely:
            match = _match(x, y, expected)
            if match.confidence >= _LEAST:
                scored.append((-match.confidence, abs(x.place - y.place), i, y.name, match))
    taken: tuple[set[str], set[str]] = (set(), set())
    found = []
    for *_, name, match in sorted(scored, key=lambda one: one[:4]):
        if match.cell.name not in taken[0] and name not in taken[1]:
            taken[0].add(match.cell.name)
            taken[1].add(name)
            found.append(match)
    return found


def _size(cell: Cell) -> tuple[int, ...]:
    """Return how many elements its first output has; without one, each of its parameters."""
    return tuple(map(elements, cell.outputs[:1] or cell.parameters.values()))


def _match(x: Cell, y: Cell, expected: str) -> Match:
    """Return what speaks for two cells being one.

    Args:
        expected: what a preset calls the first one in B.
    """
    tensors: list[tuple[Leaf, Leaf | None]] = []
    for name, leaf in x.parameters.items():
        names = (name, *parameter_names_of(name))
        tensors.append((leaf, next((y.parameters[n] for n in names if n in y.parameters), None)))
    tensors += [(leaf, None) for leaf in list(y.parameters.values())[len(x.parameters) :]]
    if x.outputs and y.outputs:
        tensors.append((x.outputs[0], y.outputs[0]))
    equal = sum(other is not None and may_be_one(leaf, other) for leaf, other in tensors)
    fitting = sum(o is not None and elements(leaf) == elements(o) for leaf, o in tensors)
    count = max(len(tensors), 1)
    numbers = NUMBER.findall(x.name) == NUMBER.findall(y.name)
    near = 1 - abs(x.place - y.place)
    structure = (near + numbers) / 2
    ends = x.name.rpartition(".")[2] == y.name.rpartition(".")[2]
    similar = ends or x.class_name == y.class_name != ""
    of_names = 1.0 if expected == y.name else 0.5 if similar else 0.0
    confidence = _VALUES * equal / count + _SHAPES * fitting / count
    confidence += _STRUCTURE * structure + _NAMES * of_names
    return Match(x, (y,), confidence, equal, len(tensors))


def _lines(matches: Iterable[Match]) -> list[Line]:
    """Return a line for each cell and what it is, those of layers together."""
    found: dict[tuple[bool, tuple[str, ...]], list[Match]] = defaultdict(list)
    for match in matches:
        names = [cell.name for cell in (match.cell, *match.parts)]
        numbers = {tuple(NUMBER.findall(name)) for name in names}
        of_layers = len(numbers) == 1 and numbers != {()}
        if of_layers:
            names = [names[0].replace("*", r"\*"), *map(literal, names[1:])]
            names = [*map(of_any_layer, names)]
        found[of_layers, tuple(names)].append(match)
    lines = []
    for (of_layers, (source, *parts)), group in found.items():
        known = {one.groups for one in group if one.groups}
        lines.append(
            Line(
                source,
                parts[0] if len(parts) == 1 else tuple(parts),
                min(one.confidence for one in group),
                len(group),
                sum(one.values for one in group),
                sum(one.compared for one in group),
                known.pop() if len(known) == 1 else 0,
                of_layers,
            )
        )
    return lines


def _text(found: Suggestion) -> str:
    head = [f"# {line}" for line in str(message("suggest.head")).splitlines()]
    body = []
    for line in found.lines:
        source = line.source
        parts = [line.target] if isinstance(line.target, str) else [*line.target]
        if not line.of_layers:
            parts = [*map(literal, parts)]
            if not re.fullmatch(r"[\w.]+", source):
                source = re.escape(source)  # a pattern; dots stand for themselves anyway
        target: Any = parts if len(parts) > 1 else parts[0]
        if line.groups > 1:
            target = {"parts": parts, "groups": line.groups}
        # How sure it is, and why.
        counts = {"values": line.values, "compared": line.compared, "cells": line.cells}
        said = f"{message('suggest.line', confidence=f'{line.confidence:.2f}', **counts)}"
        said += "" if line.groups else f"; {message('suggest.order')}"
        body.append(f"{_in_yaml(source)}: {_in_yaml(target)}  # {said}")
    left = [
        f"# {message('suggest.alone', side=side, names=', '.join(names))}"
        for side, names in zip("AB", found.alone)
        if names
    ]
    return "\n".join([*head, *(body or ["{}"]), *left]) + "\n"


def _in_yaml(value: Any) -> str:
    """Return a value as YAML on one line, with quotes where it needs them."""
    options: dict[str, Any] = {"allow_unicode": True, "sort_keys": False, "width": math.inf}
    text: str = yaml.safe_dump(value, default_flow_style=True, **options)
    text = text.removesuffix("...\n").rstrip("\n")
    return json.dumps(value) if "\n" in text else text
