"""Where recording all cells takes too much room: the outputs of some layers first."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from mindrlhf_msprobe.comparison.pairing.networks import cells_of, role_of
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.comparison.pairing.timeline import DATA
from mindrlhf_msprobe.comparison.verdict.first_difference import FirstDifference
from mindrlhf_msprobe.comparison.verdict.next_recording.size import size_of_next
from mindrlhf_msprobe.phases import UNNAMED_PHASE
from mindrlhf_msprobe.storage.records import Entry

#: Bytes of one step and rank that a recording may take without being cut into rounds.
BUDGET = 1 << 30


def bisected(settings: dict[str, Any], first: FirstDifference) -> dict[str, Any]:
    """Return settings that take no more than `BUDGET`, as far as layers can be left out.

    First the range of layers that may be to blame: behind the last one that is known to agree, up
    to the one that differs. If all cells of these are too much, the outputs of every n-th layer.
    Settings that take less, choose cells already or ask for elements are returned as they are.
    """
    chosen = settings.get("include") or settings.get("task", "statistics") != "statistics"
    if chosen or _is_within_budget(settings, first):
        return settings
    finding, run = first.finding, first.runs[0]
    if finding.phase in (None, UNNAMED_PHASE):
        return settings
    cells = cells_of(run, role_of(run, finding.rank, finding.phase or ""))
    layers = _Layers.from_cells(cells)
    if layers is None:
        return settings
    last, differing = layers.between(first) if first.filtered else (None, None)
    narrow = settings | layers.only(last, differing)
    if _is_within_budget(narrow, first):
        return narrow
    backward = first.entry is not None and first.entry.direction != "forward"
    outputs = {"directions": ["backward" if backward else "forward"], "parts": ["output"]}
    numbers = layers.behind(last, differing)
    one, _ = size_of_next(settings | outputs | layers.include(numbers[:1]), first)
    count = max(1, min(len(numbers), BUDGET // (one or BUDGET)))
    spread = [numbers[(i + 1) * len(numbers) // count - 1] for i in range(count)]
    return settings | layers.include(spread) | outputs


def _is_within_budget(settings: dict[str, Any], first: FirstDifference) -> bool:
    """Return whether a recording is not known to take more than the budget."""
    taken, _ = size_of_next(settings, first)
    return taken is None or taken <= BUDGET


def _pass_of(entry: Entry) -> tuple[str, int, int | None, int]:
    return entry.direction, entry.opening, entry.token, entry.call


class _Layers:
    """The layers of a network: the cells that are alike but for a number.

    Attributes:
        prefix: of their names, before the number.
        numbers: in their order.
    """

    def __init__(self, prefix: str, numbers: Iterable[int]) -> None:
        self.prefix, self.numbers = prefix, sorted(numbers)
        self._inside = re.compile(rf"{re.escape(prefix)}\.(\d{{1,9}})(\.|$)")

    @classmethod
    def from_cells(cls, cells: Sequence[str]) -> _Layers | None:
        """Return those under which most cells lie; None of a network without layers."""
        numbers: dict[str, set[int]] = defaultdict(set)
        below: dict[str, int] = defaultdict(int)
        for cell in cells:
            parts = cell.split(".")
            for i, part in enumerate(parts):
                if i and part.isascii() and part.isdigit() and len(part) < 10:
                    prefix = ".".join(parts[:i])
                    numbers[prefix].add(int(part))
                    below[prefix] += 1
        known = [prefix for prefix in numbers if len(numbers[prefix]) > 1]
        if not known:
            return None
        prefix = max(known, key=lambda p: (below[p], -len(p)))
        return cls(prefix, numbers[prefix])

    def number_of_cell(self, cell: str) -> int | None:
        """Return the number of the layer that a cell is, or lies in."""
        match = self._inside.match(cell)
        return int(match[1]) if match else None

    def _of_output(self, pair: Pair) -> int | None:
        """Return the number of the layer whose own output a pair is; None of anything else."""
        if pair.entry is None or pair.record.io != "output":
            return None
        number = self.number_of_cell(pair.entry.cell)
        return number if pair.entry.cell == f"{self.prefix}.{number}" else None

    def behind(self, last: int | None, first: int | None) -> list[int]:
        """Return the layers behind the `last` that agrees, up to the `first` that differs."""
        behind = [n for n in self.numbers if last is None or n > last]
        return [n for n in behind if first is None or n <= first]

    def between(self, first: FirstDifference) -> tuple[int | None, int | None]:
        """Return the last layer that agrees before the first difference, and the layer of it."""
        entry, phase = first.entry, first.event.phase
        differing = None
        if first.event.kind != DATA and entry is not None:
            differing = self.number_of_cell(entry.cell)
        agreeing: list[int] = []
        for other, finding in first.before:
            if finding is None or other.entry is None or other.event.phase != phase:
                continue
            # Of the same pass: an earlier one went through all layers.
            if entry is not None and _pass_of(other.entry) != _pass_of(entry):
                continue
            number = self._of_output(other)
            if number is not None and number != differing:
                agreeing.append(number)
        last = max(agreeing, default=None)
        if last is not None and differing is not None and last > differing:
            return None, differing  # of a backward pass, or of layers that run in another order
        return last, differing

    def include(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return what selects layers themselves, not what lies inside them."""
        return {"include": [self._pattern(numbers, "$")]}

    def only(self, last: int | None, first: int | None) -> dict[str, Any]:
        """Return what selects all cells that may be to blame between two layers."""
        if last is not None and first is not None:
            return {"include": [self._pattern(self.behind(last, first), r"(\.|$)")]}
        outside = [n for n in self.numbers if last is not None and n <= last]
        outside += [n for n in self.numbers if first is not None and n > first]
        return {"exclude": [self._pattern(outside, r"(\.|$)")]} if outside else {}

    def _pattern(self, numbers: Sequence[int], end: str) -> str:
        return rf"^{re.escape(self.prefix)}\.({'|'.join(map(str, numbers))}){end}"
