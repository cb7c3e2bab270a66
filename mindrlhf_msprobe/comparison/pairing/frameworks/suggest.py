"""A mapping proposed: which cell of A may be which of B, by structure, shapes and equal statistics.

What is written is for a user to check: each line says how sure it is, and why.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.mismatch.names import NUMBER, of_any_layer
from mindrlhf_msprobe.comparison.pairing.frameworks.presets import preset_names
from mindrlhf_msprobe.comparison.pairing.frameworks.records import SAME_PARAMETERS
from mindrlhf_msprobe.comparison.pairing.names import ROOT, renamed
from mindrlhf_msprobe.comparison.pairing.operators import may_be_one
from mindrlhf_msprobe.comparison.pairing.view import views
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.storage.arrays.atomic import write_atomic
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.reading.reader import open_run
from mindrlhf_msprobe.storage.records import Entry

#: What each kind of evidence is worth; all together are 1.
_VALUES, _SHAPES, _STRUCTURE, _NAMES = 0.5, 0.2, 0.15, 0.15
_LEAST = 0.35  # of a line that is proposed
_FILE = "mapping.yaml"


@dataclass(frozen=True)
class Line:
    """One line of a proposal.

    Attributes:
        source, target: what cells of A, and of B, are called; `*` stands for the layers.
        confidence: between 0 and 1, the least of all layers.
        cells: how many cells it is of.
        values: of the parameters and outputs that were compared, how many agree.
        compared: how many these are.
    """

    source: str
    target: str
    confidence: float
    cells: int
    values: int
    compared: int


@dataclass(frozen=True)
class Suggestion:
    """A proposed mapping.

    Attributes:
        path: where it was written.
        lines: of cells that are called otherwise in B, those inside others first.
        alone: of A and of B, the cells without partner, in any layer.
    """

    path: Path
    lines: tuple[Line, ...]
    alone: tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class _Cell:
    """What is known of a cell by its first call."""

    name: str
    class_name: str
    place: float
    parameters: Mapping[str, Leaf]
    outputs: tuple[Leaf, ...]


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
    sides = _opened(a, b, phases, ranks)
    cells = [_cells(entries) for entries in sides]
    path = Path(directory) / _FILE
    if path.exists():
        raise UsageError.saying("error.suggestion_exists", path=str(path))
    pairs = _pairs(*cells)
    lines = _lines(pairs)
    known = {x.name for x, _, _ in pairs}, {y.name for _, y, _ in pairs}
    alone = tuple(
        tuple(dict.fromkeys(of_any_layer(c.name) for c in side if c.name not in paired))
        for side, paired in zip(cells, known)
    )
    found = Suggestion(path, lines, (alone[0], alone[1]))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, [_text(found).encode()])
    except OSError as error:
        why = error.strerror or str(error)
        raise RunError.saying("error.suggestion_unwritten", path=str(path), why=why) from None
    return found


def _opened(
    a: str | Path, b: str | Path, phases: tuple[str, str] | None, ranks: tuple[int, int] | None
) -> tuple[Sequence[Entry], Sequence[Entry]]:
    """Return the entries of the first step that both runs have."""
    runs = open_run(Path(a).absolute()), open_run(Path(b).absolute())
    left, right, _ = views(*runs, phases, ranks)
    for step, rank in sorted(left.rank_steps() & right.rank_steps()):
        both = left.load(step, rank).entries, right.load(step, rank).entries
        if all(both):
            return both
    raise RunError.saying("error.nothing_to_suggest", a=str(a), b=str(b))


def _cells(entries: Iterable[Entry]) -> list[_Cell]:
    """Return the cells that ran, in the order of their first calls."""
    first: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda e: e.seq):
        if entry.direction == "forward" and not is_operator(entry.name) and entry.cell != ROOT:
            first.setdefault(entry.cell, entry)
    found = []
    for number, entry in enumerate(first.values()):
        tensors = [(r.io, r.path, r.leaf) for r in entry.records if r.leaf.is_tensor]
        parameters = {path: leaf for io, path, leaf in tensors if io == "parameters"}
        outputs = tuple(leaf for io, _, leaf in tensors if io == "output")
        place = number / max(len(first) - 1, 1)
        found.append(_Cell(entry.cell, entry.class_name, place, parameters, outputs))
    return found


def _pairs(a: Sequence[_Cell], b: Sequence[_Cell]) -> list[tuple[_Cell, _Cell, _Evidence]]:
    """Return the best partners, each cell once."""
    preset = preset_names((c.name for c in a), (c.name for c in b))
    by_size: dict[int | None, list[_Cell]] = defaultdict(list)
    for cell in b:
        by_size[_size(cell)].append(cell)
    scored = []
    for i, x in enumerate(a):
        expected = renamed(preset, x.name)
        for y in by_size[_size(x)]:
            evidence = _evidence(x, y, expected)
            if evidence.confidence >= _LEAST:
                scored.append((-evidence.confidence, abs(x.place - y.place), i, x, y, evidence))
    taken: tuple[set[str], set[str]] = (set(), set())
    found = []
    for _, _, _, x, y, evidence in sorted(scored, key=lambda one: (*one[:3], one[4].name)):
        if x.name not in taken[0] and y.name not in taken[1]:
            taken[0].add(x.name)
            taken[1].add(y.name)
            found.append((x, y, evidence))
    return found


def _size(cell: _Cell) -> int | None:
    """Return how many elements its first output has; None without one."""
    sizes = [_elements(leaf) for leaf in cell.outputs[:1]]
    return sizes[0] if sizes else None


def _elements(leaf: Leaf) -> int:
    count = 1
    for size in leaf.shape or ():
        count *= size
    return count


@dataclass(frozen=True)
class _Evidence:
    confidence: float
    values: int
    compared: int


def _evidence(x: _Cell, y: _Cell, expected: str) -> _Evidence:
    """Return what speaks for two cells being one.

    Args:
        expected: what a preset calls the first one in B.
    """
    tensors = [(x.parameters[n], y.parameters.get(_partner(n, y))) for n in x.parameters]
    tensors += [(leaf, None) for leaf in list(y.parameters.values())[len(x.parameters) :]]
    if x.outputs and y.outputs:
        tensors.append((x.outputs[0], y.outputs[0]))
    equal = sum(other is not None and may_be_one(leaf, other) for leaf, other in tensors)
    fitting = sum(o is not None and _elements(leaf) == _elements(o) for leaf, o in tensors)
    count = max(len(tensors), 1)
    numbers = NUMBER.findall(x.name) == NUMBER.findall(y.name)
    near = 1 - abs(x.place - y.place)
    structure = (near + numbers) / 2
    ends = x.name.rpartition(".")[2] == y.name.rpartition(".")[2]
    names = 1.0 if expected == y.name else 0.5 if ends or x.class_name == y.class_name else 0.0
    confidence = _VALUES * equal / count + _SHAPES * fitting / count
    confidence += _STRUCTURE * structure + _NAMES * names
    return _Evidence(confidence, equal, len(tensors))


def _partner(name: str, other: _Cell) -> str:
    """Return what a parameter is called in another cell."""
    alike = next((names for names in SAME_PARAMETERS if name in names), (name,))
    return next((n for n in (name, *alike) if n in other.parameters), name)


def _lines(pairs: Sequence[tuple[_Cell, _Cell, _Evidence]]) -> tuple[Line, ...]:
    """Return a line for each pair of names, those of layers together."""
    groups: dict[tuple[str, str], list[tuple[_Cell, _Cell, _Evidence]]] = defaultdict(list)
    for x, y, evidence in pairs:
        numbers = NUMBER.findall(x.name), NUMBER.findall(y.name)
        alike = numbers[0] == numbers[1]
        key = (of_any_layer(x.name), of_any_layer(y.name)) if alike else (x.name, y.name)
        groups[key].append((x, y, evidence))
    lines = [
        Line(
            source,
            target,
            min(e.confidence for _, _, e in group),
            len(group),
            sum(e.values for _, _, e in group),
            sum(e.compared for _, _, e in group),
        )
        for (source, target), group in groups.items()
    ]
    # A rule holds for what lies inside, too: those inside come first, single names before layers.
    lines.sort(key=lambda line: (-line.source.count("."), "*" in line.source, line.source))
    return tuple(line for line in lines if _says_something(line, lines))


def _says_something(line: Line, lines: Iterable[Line]) -> bool:
    """Return whether a line renames a cell, or keeps its name where another one would not."""
    if line.source != line.target:
        return True
    around = [o for o in lines if o.source != o.target and line.source.startswith(f"{o.source}.")]
    return bool(around)


def _text(found: Suggestion) -> str:
    from mindrlhf_msprobe.report.messages import say

    head = [f"# {line}" for line in say("suggest.head").splitlines()]
    body = []
    for line in found.lines:
        source = line.source if "*" in line.target else _pattern(line.source)
        key = yaml.safe_dump({source: line.target}, allow_unicode=True, width=10_000).strip()
        body.append(f"{key}  # {say_line(line)}")
    left = [
        f"# {say('suggest.alone', side=side, names=', '.join(names))}"
        for side, names in zip("AB", found.alone)
        if names
    ]
    return "\n".join([*head, *(body or ["{}"]), *left]) + "\n"


def _pattern(name: str) -> str:
    """Return a name as a pattern: its dots stand for themselves anyway, all else is escaped."""
    return name if re.fullmatch(r"[\w.]+", name) else re.escape(name)


def say_line(line: Line) -> str:
    """Return how sure a line is, and why."""
    from mindrlhf_msprobe.report.messages import say

    return say(
        "suggest.line",
        confidence=f"{line.confidence:.2f}",
        values=line.values,
        compared=line.compared,
        cells=line.cells,
    )
