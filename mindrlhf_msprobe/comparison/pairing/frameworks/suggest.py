"""A mapping proposed: which cell of A may be which of B, by structure, shapes and equal statistics.

What is written is for a user to check: each line says how sure it is, and why.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import yaml

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.comparison.mismatch.names import NUMBER, of_any_layer
from mindrlhf_msprobe.comparison.pairing.frameworks.cells import Cell, cells_of, elements
from mindrlhf_msprobe.comparison.pairing.frameworks.fused_cells import FusedCell, fused_cells
from mindrlhf_msprobe.comparison.pairing.frameworks.presets import preset_names
from mindrlhf_msprobe.comparison.pairing.frameworks.records import SAME_PARAMETERS
from mindrlhf_msprobe.comparison.pairing.names import renamed
from mindrlhf_msprobe.comparison.pairing.operators import may_be_one
from mindrlhf_msprobe.comparison.pairing.view import views
from mindrlhf_msprobe.errors import RunError, UsageError
from mindrlhf_msprobe.storage.arrays.atomic import write_atomic
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
        source, target: what cells of A, and of B, are called; `*` stands for the layers. Of a
            cell that several are: it, in either run, and its parts in the other one.
        confidence: between 0 and 1, the least of all layers.
        cells: how many cells it is of.
        values: of the parameters and outputs that were compared, how many agree.
        compared: how many these are.
        groups: how many times the parts alternate in the rows of a fused weight; 0: unknown.
    """

    source: str
    target: str | tuple[str, ...]
    confidence: float
    cells: int
    values: int
    compared: int
    groups: int = 1


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
    cells = [cells_of(entries) for entries in sides]
    path = Path(directory) / _FILE
    if path.exists():
        raise UsageError.saying("error.suggestion_exists", path=str(path))
    found = Suggestion(path, *_proposed((cells[0], cells[1])))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, [_text(found).encode()])
    except OSError as error:
        why = error.strerror or str(error)
        raise RunError.saying("error.suggestion_unwritten", path=str(path), why=why) from None
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
    known[0] |= {x.name for x, _, _ in pairs}
    known[1] |= {y.name for _, y, _ in pairs}
    lines = (*_lines(pairs), *(line for side in fused for line in _fused_lines(side)))
    return lines, (_of_no_pair(cells[0], known[0]), _of_no_pair(cells[1], known[1]))


def _of_no_pair(cells: Sequence[Cell], paired: set[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(of_any_layer(c.name) for c in cells if c.name not in paired))


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


def _pairs(a: Sequence[Cell], b: Sequence[Cell]) -> list[tuple[Cell, Cell, _Evidence]]:
    """Return the best partners, each cell once."""
    preset = preset_names((c.name for c in a), (c.name for c in b))
    by_size: dict[int | None, list[Cell]] = defaultdict(list)
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


def _size(cell: Cell) -> int | None:
    """Return how many elements its first output has; None without one."""
    sizes = [elements(leaf) for leaf in cell.outputs[:1]]
    return sizes[0] if sizes else None


@dataclass(frozen=True)
class _Evidence:
    confidence: float
    values: int
    compared: int


def _evidence(x: Cell, y: Cell, expected: str) -> _Evidence:
    """Return what speaks for two cells being one.

    Args:
        expected: what a preset calls the first one in B.
    """
    tensors = [(x.parameters[n], y.parameters.get(_partner(n, y))) for n in x.parameters]
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
    names = 1.0 if expected == y.name else 0.5 if ends or x.class_name == y.class_name else 0.0
    confidence = _VALUES * equal / count + _SHAPES * fitting / count
    confidence += _STRUCTURE * structure + _NAMES * names
    return _Evidence(confidence, equal, len(tensors))


def _partner(name: str, other: Cell) -> str:
    """Return what a parameter is called in another cell."""
    alike = next((names for names in SAME_PARAMETERS if name in names), (name,))
    return next((n for n in (name, *alike) if n in other.parameters), name)


def _lines(pairs: Sequence[tuple[Cell, Cell, _Evidence]]) -> tuple[Line, ...]:
    """Return a line for each pair of names, those of layers together."""
    groups: dict[tuple[str, str], list[tuple[Cell, Cell, _Evidence]]] = defaultdict(list)
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


def _fused_lines(cells: Iterable[FusedCell]) -> Iterator[Line]:
    """Yield a line for each cell that is several, those of layers together."""
    found: dict[tuple[str, tuple[str, ...]], list[FusedCell]] = defaultdict(list)
    for one in cells:
        parts = tuple(of_any_layer(part.name) for part in one.parts)
        found[of_any_layer(one.cell.name), parts].append(one)
    for (source, parts), group in found.items():
        confidence = min(
            _VALUES * one.values / one.compared
            + _SHAPES
            + _STRUCTURE * (1 - abs(one.cell.place - one.parts[0].place))
            + _NAMES * one.usual
            for one in group
        )
        known = {one.groups for one in group if one.groups}
        groups = known.pop() if len(known) == 1 else 0
        values, compared = (sum(getattr(o, n) for o in group) for n in ("values", "compared"))
        yield Line(source, parts, confidence, len(group), values, compared, groups)


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
        numbered = any("*" in name for name in (line.source, *line.target))
        source = line.source if numbered else _pattern(line.source)
        key = yaml.safe_dump(source, allow_unicode=True, width=10_000).partition("\n")[0]
        body.append(f"{key}: {_target(line)}  # {say_line(line)}")
    left = [
        f"# {say('suggest.alone', side=side, names=', '.join(names))}"
        for side, names in zip("AB", found.alone)
        if names
    ]
    return "\n".join([*head, *(body or ["{}"]), *left]) + "\n"


def _target(line: Line) -> str:
    """Return what a mapping says of a cell, in YAML."""
    if isinstance(line.target, str):
        return line.target
    parts = f"[{', '.join(line.target)}]"
    return f"{{parts: {parts}, groups: {line.groups}}}" if line.groups > 1 else parts


def _pattern(name: str) -> str:
    """Return a name as a pattern: its dots stand for themselves anyway, all else is escaped."""
    return name if re.fullmatch(r"[\w.]+", name) else re.escape(name)


def say_line(line: Line) -> str:
    """Return how sure a line is, and why."""
    from mindrlhf_msprobe.report.messages import say

    text = say(
        "suggest.line",
        confidence=f"{line.confidence:.2f}",
        values=line.values,
        compared=line.compared,
        cells=line.cells,
    )
    return text if line.groups else f"{text}; {say('suggest.order')}"
