"""A user's mapping: what cells of one network are called in the other, and which are several.

model.layers.*.self_attn: model.layers.*.attention          # another name
model.layers.*.attention.qkv_proj: [                        # several cells in one, one behind
  model.layers.*.attention.wq, model.layers.*.attention.wk, #   the other
  model.layers.*.attention.wv]
model.layers.*.mlp.gate_up:                                 # or interleaved, in groups
  {parts: [model.layers.*.mlp.w1, model.layers.*.mlp.w3], groups: 8}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.common.yaml_file import read_rules
from mindrlhf_msprobe.comparison.pairing.names import (
    NO_RULES,
    NameRule,
    NameRules,
    check_no_circle,
    name_rule,
)
from mindrlhf_msprobe.errors import ConfigError

_MOST_GROUPS = 1 << 16


@dataclass(frozen=True)
class FusedRule:
    """One line of a mapping: cells of the rollout that do what several of the training do.

    Attributes:
        parts: what each part is called, as a `NameRule` of the fused cell.
        groups: how many times parts alternate in the rows of the weight, e.g. the key-value heads;
            1: the parts stand one behind the other.
    """

    parts: tuple[NameRule, ...]
    groups: int = 1

    def parts_of(self, cell: str) -> tuple[str, ...] | None:
        """Return the cells of the training that a cell of the rollout is; None: it is not meant."""
        found = [part.rename(cell) for part in self.parts]
        return None if None in found else tuple(name for name in found if name)

    def order(self, sizes: Sequence[int]) -> np.ndarray | None:
        """Return which row of the parts each row of the fused weight is, int64; None: no groups.

        Args:
            sizes: the rows of each part.
        """
        return interleaved(sizes, self.groups)


class FusedRules(tuple[FusedRule, ...]):
    """The lines of a mapping about cells that are several, in their order.

    Attributes:
        own: what the caller calls a cell → the name by which it is looked up; others keep theirs.
        common: returns the name of a part by what the caller calls it; None: it is left out.
    """

    own: Mapping[str, str] = MappingProxyType({})
    common: Callable[[str], str | None] = staticmethod(str)

    def __reduce__(self) -> tuple[Any, ...]:
        return FusedRules, (tuple(self),)

    @cached_property
    def _first_parts(self) -> NameRules:
        return NameRules(rule.parts[0] for rule in self)

    def by_names(self, own: Mapping[str, str], common: Callable[[str], str | None]) -> FusedRules:
        """Return the same lines for cells by other names; see the attributes."""
        found = FusedRules(self)
        found.own, found.common = own, common
        return found

    def meaning(self, cell: str) -> Iterator[tuple[FusedRule, tuple[str, ...]]]:
        """Yield the lines that mean a cell of the rollout, and the cells of the training it is."""
        own = self.own.get(cell, cell)
        for number in self._first_parts.numbers(own):
            named = [self.common(part) for part in self[number].parts_of(own) or ()]
            parts = tuple(part for part in named if part)
            if parts and len(parts) == len(named):
                yield self[number], parts

    def unused(self, cells: Iterable[str]) -> list[FusedRule]:
        """Return the lines that mean none of these cells."""
        used = {id(rule) for cell in cells for rule, _ in self.meaning(cell)}
        return [rule for rule in self if id(rule) not in used]

    def parts_of(self, cell: str) -> tuple[str, ...] | None:
        """Return the cells that a cell is, by the first line that means it; None: none does."""
        return next((parts for _, parts in self.meaning(cell)), None)


NONE_FUSED = FusedRules()


@dataclass(frozen=True)
class CellMapping:
    """A mapping: other names, and cells that are several."""

    names: NameRules = NO_RULES
    fused: FusedRules = NONE_FUSED


NO_MAPPING = CellMapping()


def interleaved(sizes: Sequence[int], groups: int) -> np.ndarray | None:
    """Return the order of rows where parts alternate; None if they have no such groups."""
    if any(size % groups for size in sizes):
        return None
    starts = np.cumsum([0, *sizes])
    parts = [
        np.arange(start, start + size).reshape(groups, -1) for start, size in zip(starts, sizes)
    ]
    return np.concatenate(parts, axis=1).reshape(-1).astype(np.int64)


def load_cells(path: str | Path) -> CellMapping:
    """Read a mapping.

    Raises:
        ConfigError: the file cannot be read, or has another form.
    """
    example = "model.layers.*.attention.qkv_proj: [model.layers.*.attention.wq, …]"
    rules = read_rules(path, message("error.name_pattern"), example)
    names: list[NameRule] = []
    fused: list[FusedRule] = []
    for source, target in rules.items():
        if isinstance(target, str):
            names.append(name_rule(path, source, target))
        else:
            fused.append(_fused(path, source, target))
    check_no_circle(path, names)
    return CellMapping(NameRules(names), FusedRules(fused))


def _fused(path: str | Path, source: object, target: Any) -> FusedRule:
    content: Any = {"parts": target} if isinstance(target, list) else target
    known = isinstance(content, dict) and content.keys() <= {"parts", "groups"}
    parts = content.get("parts") if known else None
    groups: Any = content.get("groups", 1) if known else 0
    is_number = type(groups) is int and 1 <= groups <= _MOST_GROUPS
    if not (isinstance(parts, list) and len(parts) > 1 and is_number):
        shown = str(target)[:200]
        raise ConfigError.saying("mismatch.fused_form", path=path, source=source, target=shown)
    return FusedRule(tuple(name_rule(path, source, part) for part in parts), groups)
