"""Where recording all cells takes too much room: the outputs of some layers first."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.comparison.pairing.networks import cells_of, role_of
from mindrlhf_msprobe.comparison.pairing.planner import Pair
from mindrlhf_msprobe.comparison.pairing.timeline import DATA
from mindrlhf_msprobe.comparison.verdict.compared_place import JudgedStep, is_filtered
from mindrlhf_msprobe.phases import UNNAMED_PHASE
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Entry

#: Bytes of one step and rank that a recording may take without being cut into rounds.
BUDGET = 1 << 30

#: Settings → bytes, None where that is not known.
Size = Callable[[Mapping[str, Any]], "int | None"]


def bisected(
    settings: dict[str, Any],
    step: JudgedStep,
    index: int,
    runs: tuple[Run, Run],
    size: Size,
) -> dict[str, Any]:
    """Return settings that take no more than `BUDGET`, as far as layers can be left out.

    First the range of layers that may be to blame: behind the last one that is known to agree, up
    to the one that differs. If all cells of these are too much, the outputs of every n-th layer.
    Settings that take less, choose cells already or ask for elements are returned as they are.
    """
    chosen = settings.get("include") or settings.get("task", "statistics") != "statistics"
    if chosen or _is_within_budget(size(settings)):
        return settings
    pair, finding = step.judged[index]
    if finding is None or finding.phase in (None, UNNAMED_PHASE):
        return settings
    cells = cells_of(runs[0], role_of(runs[0], finding.rank, finding.phase or ""))
    layers = _Layers.of(cells)
    if layers is None:
        return settings
    last, first = (None, None) if not is_filtered(runs) else layers.between(step, index)
    narrow = settings | layers.only(last, first)
    if _is_within_budget(size(narrow)):
        return narrow
    backward = pair.entry is not None and pair.entry.direction != "forward"
    outputs = {"directions": ["backward" if backward else "forward"], "parts": ["output"]}
    numbers = layers.behind(last, first)
    one = size(settings | outputs | layers.include(numbers[:1])) or BUDGET
    count = max(1, min(len(numbers), BUDGET // max(one, 1)))
    spread = [numbers[(i + 1) * len(numbers) // count - 1] for i in range(count)]
    return settings | layers.include(spread) | outputs


def _is_within_budget(taken: int | None) -> bool:
    """Tell whether no more than the budget is known to be taken."""
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
    def of(cls, cells: Sequence[str]) -> _Layers | None:
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

    def of_cell(self, cell: str) -> int | None:
        """Return the number of the layer that a cell is, or lies in."""
        match = self._inside.match(cell)
        return int(match[1]) if match else None

    def _of_output(self, pair: Pair) -> int | None:
        """Return the number of the layer whose own output a pair is; None of anything else."""
        if pair.entry is None or pair.record.io != "output":
            return None
        number = self.of_cell(pair.entry.cell)
        return number if pair.entry.cell == f"{self.prefix}.{number}" else None

    def behind(self, last: int | None, first: int | None) -> list[int]:
        """Return the layers behind the `last` that agrees, up to the `first` that differs."""
        behind = [n for n in self.numbers if last is None or n > last]
        return [n for n in behind if first is None or n <= first]

    def between(self, step: JudgedStep, index: int) -> tuple[int | None, int | None]:
        """Return the last layer that agrees before the `index`-th pair, and the one it lies in."""
        pair = step.judged[index][0]
        phase = pair.event.phase
        first = None
        if pair.event.kind != DATA and pair.entry is not None:
            first = self.of_cell(pair.entry.cell)
        agreeing: list[int] = []
        for other, finding in step.judged[:index]:
            if finding is None or other.entry is None or other.event.phase != phase:
                continue
            # Of the same pass: an earlier one went through all layers.
            if pair.entry is not None and _pass_of(other.entry) != _pass_of(pair.entry):
                continue
            number = self._of_output(other)
            if number is not None and number != first:
                agreeing.append(number)
        last = max(agreeing, default=None)
        if last is not None and first is not None and last > first:
            return None, first  # of a backward pass, or of layers that run in another order
        return last, first

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
