"""Names of cells and values, and which cell of A is which cell of B where their names differ."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.patterns import PatternError, Renaming, RenamingSet
from mindrlhf_msprobe.errors import ConfigError

ROOT = "root"
#: A part between dots that is a number, such as that of a layer.
NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")
#: A cell around it that trains it: its own code makes the loss.
OUTER = "outer"
_SAMPLED = 64  # names of which a common prefix is guessed

#: Says whether a run was configured to record a cell.
CellFilter = Callable[[str], bool]


class Name(NamedTuple):
    """Which value: of a cell, the n-th time it runs in one call of the network."""

    cell: str
    nth: int
    io: str
    path: str

    def __str__(self) -> str:
        again = f" (call {self.nth})" if self.nth else ""
        return f"{self.cell}{again} {self.io}.{self.path}"


def around(cell: str) -> list[str]:
    """Return the names of the cells around one, the innermost first; the network itself is root."""
    if cell == "root":
        return []
    parts = cell.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)] + ["root"]


def of_any_layer(cell: str) -> str:
    """Return what a cell is called in every layer, with `*` for the numbers."""
    return NUMBER.sub("*", cell)


def with_numbers(cell: str, numbers: Iterable[str]) -> str:
    """Return what a cell is called in a layer, given the numbers in its name."""
    left = iter(numbers)
    return NUMBER.sub(lambda _: next(left), cell)


@dataclass(frozen=True)
class NameRule:
    """One line of a mapping: cells of A whose names match have another name in B.

    A rule that matches a cell also holds for what lies inside it.

    Attributes:
        source: a regular expression over the whole name of a cell of A, or a name in which `*`
            stands for any one part between dots.
        target: the cell's name in B, with `\\1` (or the n-th `*`) for what the n-th group matched.
    """

    source: str
    target: str

    def rename(self, cell: str) -> str | None:
        """Return the name in B of a cell of A, or None if the rule says nothing about it."""
        return _renaming(self.source, self.target).rename(cell)


class NameRules(tuple[NameRule, ...]):
    """The lines of a mapping: of those that mean a cell, the first one counts.

    Those that mean a cell are found in one look at its name, however many lines there are, and
    what it is called then is kept.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return NameRules, (tuple(self),)

    @cached_property
    def _patterns(self) -> RenamingSet:
        return RenamingSet([_renaming(rule.source, rule.target) for rule in self])

    @cached_property
    def _known(self) -> dict[str, str | None]:
        return {}

    def numbers(self, cell: str) -> list[int]:
        """Return the numbers of the lines that mean a cell, in their order."""
        return self._patterns.matching(cell) if self else []

    def rename(self, cell: str) -> str | None:
        """Return the name in B of a cell of A, or None if no line says anything about it."""
        if cell not in self._known:
            first = next(iter(self.numbers(cell)), None)
            self._known[cell] = None if first is None else self[first].rename(cell)
        return self._known[cell]

    def renamed(self, cell: str) -> str:
        """Return the name in B of a cell of A; its own where no line says anything about it."""
        name = self.rename(cell)
        return cell if name is None else name

    def names_of(self, cell: str) -> set[str]:
        """Return all that the lines call a cell of A in B."""
        found = (self[number].rename(cell) for number in self.numbers(cell))
        return {name for name in found if name}

    def unused(self, cells: Iterable[str]) -> list[NameRule]:
        """Return the lines that mean none of these cells."""
        used = {number for cell in cells for number in self.numbers(cell)}
        return [rule for number, rule in enumerate(self) if number not in used]


NO_RULES = NameRules()


@lru_cache(maxsize=1 << 14)
def _renaming(source: str, target: str) -> Renaming:
    """Return what a rule does; with a `*` in its target it has wildcards, but for each `\\*`."""
    parts = re.findall(r"\\.|.", target, re.DOTALL)
    if "*" in parts:
        as_pattern = {"*": "([^.]+)", r"\*": r"\*"}
        of_source = re.findall(r"\\\*|.", source, re.DOTALL)
        source = "".join(as_pattern.get(part) or re.escape(part) for part in of_source)
    groups = (f"\\{number}" for number in itertools.count(1))
    of_target = (next(groups) if p == "*" else "*" if p == r"\*" else p for p in parts)
    return Renaming(source, "".join(of_target))


def literal(name: str) -> str:
    """Return the target of a rule that is a name as it is, whatever it holds."""
    return re.sub(r"[\\*]", r"\\\g<0>", name)


def check_no_circle(path: str | Path, rules: Sequence[NameRule]) -> None:
    """Refuse rules that lead from a name back to it: which run has which name is not to be told.

    Raises:
        ConfigError: the names of a circle are in it.
    """
    after = {rule.source: rule.target for rule in rules if rule.source != rule.target}
    walks: dict[str, str] = {}  # of each name, the one from which it was first met
    in_circles: set[str] = set()
    for start in after:
        name = start
        while name in after and name not in walks:
            walks[name] = start
            name = after[name]
        while walks.get(name) == start and name not in in_circles:
            in_circles.add(name)
            name = after[name]
    first = next((name for name in after if name in in_circles), None)
    if first is not None:
        names = [first, after[first]]
        while names[-1] != first:
            names.append(after[names[-1]])
        raise ConfigError.saying("error.names_circle", path=path, names=" → ".join(names))


def name_rule(path: str | Path, source: object, target: object) -> NameRule:
    """Return the rule of one line of a mapping.

    Raises:
        ConfigError: it is none.
    """
    if not (isinstance(source, str) and isinstance(target, str) and source and target):
        raise ConfigError.saying("error.names_form", path=path, source=source, target=target)
    rule = NameRule(source, target)
    try:
        _renaming(source, target)
    except PatternError as error:
        raise ConfigError.saying(
            "error.names_pattern", path=path, source=source, target=target, error=error
        ) from None
    return rule


@dataclass(frozen=True)
class Names:
    """How the cells of one phase of two runs are brought under one name.

    Attributes:
        rules: renames A's cells into B's names.
        prefix_a, prefix_b: what is taken off the names of each run; cells outside of it are
            outside of the network that both have.
        shared: names outside of it that both runs have as they are; the networks themselves then
            are compared with each other, too.
        unlike: most names have no partner, and no prefix explains it.
    """

    rules: NameRules = NO_RULES
    prefix_a: str = ""
    prefix_b: str = ""
    shared: frozenset[str] = frozenset()
    unlike: bool = False

    def common_a(self, cell: str) -> str | None:
        """Return the common name of a cell of A, None if it lies outside the common network."""
        return self._common(self.rules.renamed(cell), self.prefix_a)

    def common_b(self, cell: str) -> str | None:
        """Return the common name of a cell of B, None if it lies outside the common network."""
        return self._common(cell, self.prefix_b)

    def _common(self, cell: str, prefix: str) -> str | None:
        if not self.shared:
            return _without(cell, prefix)
        if cell == ROOT or cell in self.shared:
            return cell
        return None if cell == prefix else _without(cell, prefix)

    def note(self, phase: str) -> Message | None:
        """Say which prefixes were taken off, or that names are unlike; None if all is plain."""
        if self.unlike:
            return message("pairing.unlike_names", phase=phase)
        if not (self.prefix_a or self.prefix_b):
            return None
        return message("pairing.below", phase=phase, a=self.prefix_a, b=self.prefix_b)


def _without(cell: str, prefix: str) -> str | None:
    if not prefix:
        return cell
    if cell == prefix:
        return ROOT
    return cell[len(prefix) + 1 :] if cell.startswith(prefix + ".") else None


def match_names(
    a: Iterable[str],
    b: Iterable[str],
    rules: Iterable[NameRule] = NO_RULES,
    chosen: tuple[CellFilter | None, CellFilter | None] = (None, None),
) -> Names:
    """Find out how the cells of A and B are to be matched.

    A prefix is taken off only where most names have no partner as they are, and have one without
    it; not where several fit as well, and not where each run was configured (`chosen`) to leave
    out all the other one recorded.
    """
    rules = rules if isinstance(rules, NameRules) else NameRules(rules)
    names_a = frozenset(map(rules.renamed, a)) - {ROOT}
    names_b = frozenset(b) - {ROOT}
    if 2 * len(names_a & names_b) >= min(len(names_a), len(names_b)):
        return Names(rules)
    others = (chosen[0], names_b), (chosen[1], names_a)
    if not any(of is None or of(cell) for of, cells in others for cell in cells):
        return Names(rules)
    prefixes = _prefixes(names_a, names_b)
    shared: frozenset[str] = frozenset()
    if any(prefixes):
        below = _below(names_a, prefixes[0]) & _below(names_b, prefixes[1])
        shared = (names_a & names_b) - below - {*prefixes}
    return Names(rules, *prefixes, shared=shared, unlike=not any(prefixes))


@lru_cache(maxsize=256)
def _prefixes(a: frozenset[str], b: frozenset[str]) -> tuple[str, str]:
    votes: Counter[tuple[str, str]] = Counter()
    sampled, others = (a, b) if len(a) <= len(b) else (b, a)
    for name in sorted(sampled, key=lambda n: (-n.count("."), n))[:_SAMPLED]:
        for other in others:
            pair = _ends(name, other) if sampled is a else _ends(other, name)
            if pair is not None:
                votes[pair] += 1
    wrappers = [  # prefixes with numbers are of unlike layers
        pair
        for pair in votes
        if not all(pair) or not any(part.isdecimal() for of in pair for part in of.split("."))
    ]
    ranked = sorted(wrappers, key=lambda pair: (-votes[pair], _parts(pair), pair))
    found = [(-len(_below(a, p[0]) & _below(b, p[1])), _parts(p), p) for p in ranked[:_SAMPLED]]
    (most, parts, best), *rest = sorted(found) or [(0, 0, ("", ""))]
    ambiguous = bool(rest) and rest[0][:2] == (most, parts)
    enough = -most > len(a & b) and -2 * most >= min(len(a), len(b))
    return best if enough and not ambiguous else ("", "")


def _parts(prefixes: tuple[str, str]) -> int:
    return sum(len(prefix.split(".")) for prefix in prefixes if prefix)


def _ends(a: str, b: str) -> tuple[str, str] | None:
    """Return what stands before the longest common end of two names, None if they have none."""
    parts_a, parts_b = a.split("."), b.split(".")
    ends = zip(reversed(parts_a), reversed(parts_b))
    common = sum(1 for _ in itertools.takewhile(lambda both: both[0] == both[1], ends))
    if not common:
        return None
    return ".".join(parts_a[:-common]), ".".join(parts_b[:-common])


def _below(names: frozenset[str], prefix: str) -> set[str]:
    below = (_without(name, prefix) for name in names)
    return {name for name in below if name is not None and name != ROOT}
