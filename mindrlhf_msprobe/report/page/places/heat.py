"""What each call of a cell shows, over all places: the columns of the page's heat maps."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from mindrlhf_msprobe.report.page.blocks import Blocks, as_little_endian
from mindrlhf_msprobe.storage.operators import parse_operator
from mindrlhf_msprobe.storage.records import cell_name, direction_of

#: Values that are kept, of all measures and places; beyond, places are left out.
MOST_VALUES = 6_000_000
_CALL = re.compile(r"\.([^.]+)\.(?:forward|backward|parameters_grad)\.([0-9]{1,9})$")

#: A step and rank.
Place = tuple[int, int]
#: The rows of one phase and direction, e.g. ("actor_update", "backward").
Map = tuple[str, str]


class Measure(NamedTuple):
    """A quantity of a call.

    Attributes:
        scale: `log`, `count` or `status`; see `blocks.logarithmic`.
        empty: the code of no value.
    """

    name: str
    scale: str

    @property
    def empty(self) -> int:
        """The code that stands for no value."""
        return 0 if self.scale == "log" else -1


class Heat:
    """The values of all measures, a column a place; so few of them that memory is bounded.

    Beyond `MOST_VALUES` every second step is left out again, but for the places of interest.

    Args:
        measures: what a call has, in the order of its codes.
        interest: the places that stay.
    """

    def __init__(
        self, measures: Sequence[Measure], interest: Iterable[Place], most: int = MOST_VALUES
    ) -> None:
        self.measures, self._interest, self._most = measures, {*interest}, most
        self.rows: dict[Map, dict[str, int]] = {}
        self._columns: dict[Place, dict[Map, tuple[array[int], array[int]]]] = {}
        self._around: dict[tuple[str, str], str] = {}
        self._values = 0
        self._stride = 1
        self._steps: dict[int, int] = {}

    @property
    def left_out(self) -> bool:
        """Whether places were left out."""
        return self._stride > 1

    def put(
        self,
        place: Place,
        phase: str,
        entry: str,
        codes: Sequence[int],
        around: str | None = None,
    ) -> None:
        """Take the codes of one call, as many as there are measures.

        Args:
            around: of an operator, the cell around it.
        """
        if around and around != "root":
            self._around.setdefault((phase, entry), around)
        step, _ = place
        if self._steps.setdefault(step, len(self._steps)) % self._stride and (
            place not in self._interest
        ):
            return
        at = phase, direction_of(entry) or "forward"
        rows = self.rows.setdefault(at, {})
        row = rows.setdefault(entry, len(rows))
        column = self._columns.setdefault(place, {}).setdefault(at, (array("i"), array("h")))
        column[0].append(row)
        column[1].extend(codes)
        self._values += len(codes)
        if self._values > self._most:
            self._thin()

    def _path(self, phase: str, entry: str) -> str:
        """Return where a row stands in the tree: an operator inside its cell."""
        around = self._around.get((phase, entry))
        name = cell_name(entry)
        return name if around is None else f"{around}.{name}"

    def _thin(self) -> None:
        while self._values > self._most and self._stride < len(self._steps):
            self._stride *= 2
            for place in [*self._columns]:
                if self._steps[place[0]] % self._stride and place not in self._interest:
                    for _, codes in self._columns.pop(place).values():
                        self._values -= len(codes)
        self._most = max(self._most, self._values)

    def write(self, blocks: Blocks, places: Sequence[Place], phases: Sequence[str]) -> list[dict]:
        """Add the blocks `cells` and `heat-…`; return what the page's head says of them.

        Args:
            places: the order of the columns.
        """
        maps, found = {}, []
        order = sorted(self.rows, key=lambda at: (phases.index(at[0]), _ORDER.get(at[1], 9)))
        for at in order:
            entries = [*self.rows[at]]
            name = f"{phases.index(at[0])}-{at[1]}"
            calls = [_CALL.search(entry) for entry in entries]
            operators = [parse_operator(entry) for entry in entries]
            maps[name] = {
                "entries": entries,
                "cells": [self._path(at[0], entry) for entry in entries],
                "classes": [call[1] if call else "" for call in calls],
                "calls": [
                    op.call if op else int(call[2]) if call else 0
                    for op, call in zip(operators, calls)
                ],
            }
            found.append({"phase": phases.index(at[0]), "direction": at[1], "rows": len(entries)})
            self._write_map(blocks, name, at, places, len(entries))
        blocks.json("cells", maps)
        return found

    def _write_map(
        self, blocks: Blocks, name: str, at: Map, places: Sequence[Place], rows: int
    ) -> None:
        count = len(self.measures)
        empty = np.array([measure.empty for measure in self.measures], np.int16)
        whole = np.empty((count, rows, len(places)), np.int16)
        whole[:] = empty[:, None, None]
        for number, place in enumerate(places):
            column = self._columns.get(place, {}).get(at)
            if column is not None:
                index = np.frombuffer(column[0], np.int32)
                codes = np.frombuffer(column[1], np.int16).reshape(-1, count)
                whole[:, index, number] = codes.T
        for measure, codes in zip(self.measures, whole):
            blocks.binary(f"heat-{name}-{measure.name}", as_little_endian(codes))


_ORDER = {"forward": 0, "backward": 1, "parameters_grad": 2}
