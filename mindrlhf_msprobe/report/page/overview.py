"""One pass over what is shown: each place's state, its step as it ran, and its heat maps."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from mindrlhf_msprobe.findings import Agreement, Comparison, Finding, Status
from mindrlhf_msprobe.findings.health import CheckFinding, CheckResult, Severity
from mindrlhf_msprobe.phases import PROMPTS, phase_order, usual_place
from mindrlhf_msprobe.report.page.calls import Measured, larger, measured
from mindrlhf_msprobe.report.page.data import (
    NOT_FINITE,
    UNMEASURED,
    Blocks,
    as_little_endian,
    logarithmic,
)
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.columns.reading import columns_of
from mindrlhf_msprobe.storage.operators import is_operator, parse_operator
from mindrlhf_msprobe.storage.place import LayerPlace, StepPlace
from mindrlhf_msprobe.storage.reading.reader import Run
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
        scale: `log`, `count` or `status`; see `data.logarithmic`.
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
        self, place: Place, phase: str, entry: str, codes: Sequence[int], around: str | None = None
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
        while self._values > self._most and self._stride < len(self._steps):
            self._stride *= 2
            for kept in [*self._columns]:
                if self._steps[kept[0]] % self._stride and kept not in self._interest:
                    for _, of in self._columns.pop(kept).values():
                        self._values -= len(of)
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
            around = (self._around.get((at[0], entry)) for entry in entries)
            maps[name] = {
                "entries": entries,
                # In the tree an operator stands inside its cell.
                "cells": [
                    cell_name(entry) if of is None else f"{of}.{cell_name(entry)}"
                    for entry, of in zip(entries, around)
                ],
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


PAIR_MEASURES: tuple[Measure, ...] = (
    Measure("distance", "log"),
    Measure("max_abs_err", "log"),
    Measure("growth", "log"),
    Measure("norm", "log"),
    Measure("norm_b", "log"),
    Measure("non_finite", "count"),
    Measure("status", "status"),
)
RUN_MEASURES: tuple[Measure, ...] = (
    Measure("norm", "log"),
    Measure("max", "log"),
    Measure("non_finite", "count"),
    Measure("findings", "count"),
)

_STATUSES = {
    Status.IDENTICAL: 0,
    Status.WITHIN_TOLERANCE: 1,
    Status.DIFFERENT: 2,
    Status.NON_FINITE: 3,
    Status.SHAPE_MISMATCH: 4,
    Status.DTYPE_MISMATCH: 4,
    Status.ONLY_IN_A: 5,
    Status.ONLY_IN_B: 6,
    Status.UNREADABLE: 7,
}
#: Pairs of which nothing says whether they differ.
_NOT_COMPARED = {
    Status.ONLY_IN_A: "only_a",
    Status.ONLY_IN_B: "only_b",
    Status.UNREADABLE: "unreadable",
}
_MOST_COUNTED = 32767  # of an int16
_NOTHING = "NoneType"  # the dtype of what is no tensor: a gradient that leaves nowhere
_BEGIN = -1.0  # of a step: prompts enter it, whenever they are saved
_FEW_PLACES = 200  # of a run without a timeline, of which key data are read for their order

#: Of (place, phase): the wall time in A and in B, None where it is not known.
Seconds = dict[tuple[Place, str], list[float | None]]
_NO_TIMES: list[float | None] = [None, None]


@dataclass
class Item:
    """A phase, or a key, of one place: how much of it was compared, and how far it is apart.

    Attributes:
        compared: how many pairs there are, those that one run lacks or that cannot be read, too.
        different: how many of them are there and do not agree.
        missing: how many are not there or cannot be read, by why.
        gravest: the gravest severity of what checks found there.
    """

    compared: int = 0
    different: int = 0
    distance: float | None = None
    findings: int = 0
    gravest: Severity | None = None
    within: int = 0
    micro_steps: int = 1
    missing: Counter[str] = field(default_factory=Counter)
    flags: list[str] = field(default_factory=list)

    def take(self, finding: Finding) -> None:
        """Count a pair."""
        self.compared += 1
        self.within += finding.status is Status.WITHIN_TOLERANCE
        if finding.micro_step is not None:
            self.micro_steps = max(self.micro_steps, finding.micro_step + 1)
        if finding.status.agrees:
            return
        if finding.status in _NOT_COMPARED:
            self.missing[_NOT_COMPARED[finding.status]] += 1
            return
        self.different += 1
        self.distance = larger(self.distance, finding.distance)


@dataclass
class PlaceSeen:
    """What was seen of one place.

    Attributes:
        items: ("phase" or "key", name) → what was seen of it, in causal order.
        recorded_in: how many of two runs that are compared have it.
    """

    items: dict[tuple[str, str], Item] = field(default_factory=dict)
    recorded_in: int = 0

    def item(self, what: str, name: str) -> Item:
        """Return what is seen of a phase or key."""
        return self.items.setdefault((what, name), Item())

    def put_in_usual_order(self, what: str, name: str) -> Item:
        """Return a phase or key, which stands where such a one usually does if it is new."""
        if (what, name) not in self.items:
            own = _usual(what, name)
            behind = [at for at in self.items if _usual(*at) > own]
            later = {at: self.items.pop(at) for at in behind}
            self.items[what, name] = Item()
            self.items.update(later)
        return self.items[what, name]

    @property
    def compared(self) -> int:
        """How many pairs there are."""
        return sum(item.compared for item in self.items.values())

    @property
    def different(self) -> int:
        """How many of them do not agree."""
        return sum(item.different for item in self.items.values())

    @property
    def within(self) -> int:
        """How many of them agree within a tolerance only."""
        return sum(item.within for item in self.items.values())


def _usual(what: str, name: str) -> float:
    return phase_order(name) if what == "phase" else usual_place(name)


class Overview:
    """What the page shows of all places.

    Attributes:
        places: what was seen of each, in the order in which they are shown.
        heat: the maps.
        by_elements: whether any distance is of elements, and not of recorded norms alone.
    """

    by_elements = False

    def __init__(self, measures: Sequence[Measure], interest: Iterable[Place]) -> None:
        self.places: dict[Place, PlaceSeen] = {}
        self.heat = Heat(measures, interest)

    def place(self, step: int, rank: int) -> PlaceSeen:
        """Return what is seen of a place."""
        return self.places.setdefault((step, rank), PlaceSeen())


def of_pair(comparison: Comparison, runs: Sequence[Run], interest: Iterable[Place]) -> Overview:
    """Go through all pairs of a comparison, and through the journals of what agrees as a whole."""
    found = Overview(PAIR_MEASURES, interest)
    agreements: dict[Place, list[Agreement]] = {}
    for agreement in comparison.agreements:
        agreements.setdefault((agreement.step, agreement.rank), []).append(agreement)
    parted = comparison.verdict.first_divergence
    first = () if parted is None else (parted.step, parted.rank, parted.phase, parted.entry)
    for place, findings in comparison.by_place():
        _pairs_of_place(found, place, findings, agreements.pop(place, []), runs, first)
    for place, left in sorted(agreements.items()):
        _pairs_of_place(found, place, (), left, runs, first)
    for place in (place for run in runs for place in run.places):
        found.place(*place).recorded_in += 1
    _put_in_time(found, runs)
    if parted is not None:
        key = ("key", parted.key) if parted.key is not None else ("phase", parted.phase or "")
        item = found.place(parted.step, parted.rank).items.get(key)
        if item is not None:
            item.flags.append("first")
    found.places = dict(sorted(found.places.items()))
    return found


def _put_in_time(found: Overview, runs: Sequence[Run]) -> None:
    for place, seen in found.places.items():
        known = [*filter(None, (_times_of(run, place) for run in runs))]
        for what, name in (item for times in known for item in times):
            if what == "phase" and (what, name) not in seen.items:
                recorded = any(name in run.phases_at(StepPlace(*place)) for run in runs)
                flag = "not_compared" if recorded else "not_recorded"
                seen.item(what, name).flags.append(flag)
        at = known[0] if known else None
        if at is None:  # what was read stands as it was met; the rest, where such usually does
            read = [name for name, item in seen.items.items() if not item.missing]
            at = {item: float(number) for number, item in enumerate(read)}
        seen.items = {item: seen.items[item] for item in _ordered(seen.items, at)}


def _pairs_of_place(
    found: Overview,
    place: Place,
    findings: Iterable[Finding],
    agreements: Sequence[Agreement],
    runs: Sequence[Run],
    first: tuple[Any, ...],
) -> None:
    seen = found.place(*place)
    calls: dict[tuple[str, str], _PairOfCalls] = {}
    for finding in findings:
        if finding.key is not None:
            seen.item("key", finding.key).take(finding)
            continue
        phase = finding.phase or ""
        seen.item("phase", phase).take(finding)
        if finding.entry is not None:
            found.by_elements = found.by_elements or finding.metrics is not None
            at = phase, finding.entry
            if at not in calls:
                calls[at] = _PairOfCalls()
            calls[at].take(finding)
    for agreement in agreements:
        item = seen.put_in_usual_order("phase", agreement.phase)
        item.compared += agreement.records
        item.within += agreement.within_tolerance
        # The calls of which everything agrees but for what was listed.
        others: dict[str, Measured] = {}
        of_phase = LayerPlace(agreement.phase, *place)
        if agreement.within_tolerance and len(runs) > 1:
            others = {of.name: measured(of) for of in columns_of(runs[1], of_phase).entries()}
        for call in columns_of(runs[0], of_phase).entries():
            pair = _PairOfCalls()
            status = 1 if agreement.within_tolerance else 0
            pair.agree(measured(call), others.get(call.name), status)
            calls.setdefault((agreement.phase, call.name), pair)
    around = _around(calls, place, runs)
    for at, pair in calls.items():
        found.heat.put(place, *at, pair.codes(first=(*place, *at) == first), around.get(at))


def _around(
    calls: Iterable[tuple[str, str]], place: Place, runs: Sequence[Run]
) -> dict[tuple[str, str], str | None]:
    """Return the cells around the operators of a place; journals without any are not read."""
    phases = {phase for phase, entry in calls if is_operator(entry)}
    return {
        (phase, call.name): call.around
        for run in reversed(runs)
        for phase in phases & {*run.phases_at(StepPlace(*place))}
        for call in columns_of(run, LayerPlace(phase, *place)).entries()
        if is_operator(call.name)
    }


class _Apart:
    """How far some records of a call are apart at most."""

    __slots__ = ("differs", "distance", "error", "status")

    def __init__(self) -> None:
        self.distance: float | None = None
        self.error: float | None = None
        self.status = -1
        self.differs = False

    def take(self, finding: Finding) -> None:
        identical = finding.status is Status.IDENTICAL
        error = 0.0 if identical else finding.metrics.max_abs_err if finding.metrics else None
        self.distance = larger(self.distance, 0.0 if identical else finding.distance)
        self.error = larger(self.error, error)
        self.status = max(self.status, _STATUSES[finding.status])
        self.differs |= not finding.status.agrees and finding.status not in _NOT_COMPARED

    @property
    def code(self) -> int:
        """The code of the distance: what differs is never zero, nor without a value."""
        if self.distance or not self.differs:
            return logarithmic(self.distance)
        return NOT_FINITE if self.status == _STATUSES[Status.NON_FINITE] else UNMEASURED


class _PairOfCalls:
    """One call of both runs."""

    __slots__ = ("given", "non_finite", "norms", "returned")

    def __init__(self) -> None:
        self.returned, self.given = _Apart(), _Apart()
        self.norms: list[float | None] = [None, None]
        self.non_finite = 0

    def take(self, finding: Finding) -> None:
        nothing = finding.status is Status.IDENTICAL and finding.a.dtype == _NOTHING
        if finding.io in ("input", "parameters") or nothing:
            self.given.take(finding)
            return
        self.returned.take(finding)
        for side, of in enumerate((finding.a, finding.b)):
            if isinstance(of.norm, (int, float)) and not isinstance(of.norm, bool):
                self.norms[side] = larger(self.norms[side], float(of.norm))
        self.non_finite += max(
            (of.nan_count or 0) + (of.inf_count or 0) for of in (finding.a, finding.b)
        )

    def agree(self, a: Measured, b: Measured | None, status: int) -> None:
        """Take a call of which all records agree."""
        self.returned.status = status
        self.norms = [a.norm, a.norm if b is None else b.norm]
        self.non_finite = a.non_finite
        self.returned.distance = self.given.distance = 0.0
        x, y = self.norms
        if x is not None and y is not None and x != y and max(x, y) < math.inf:
            self.returned.distance = abs(x - y) / max(x, y)
        self.returned.error = 0.0 if status == 0 else None

    def codes(self, *, first: bool) -> list[int]:
        """Return the codes of the measures.

        Args:
            first: the runs part in this call, be it in what it was given.
        """
        returned, given = self.returned, self.given
        growth = None  # how much larger the distance became; infinite where it arose there
        if returned.distance and given.distance is not None and math.isfinite(given.distance):
            growth = returned.distance / given.distance if given.distance else math.inf
        enters = returned.status < 0 or (first and not returned.differs)
        shown = given if enters else returned
        logs = map(logarithmic, (shown.error, growth, *self.norms))
        return [shown.code, *logs, min(self.non_finite, _MOST_COUNTED), shown.status]


def of_run(run: Run, check: CheckResult | None, interest: Iterable[Place]) -> Overview:
    """Go through the journals of a run; its maps have the findings of its check."""
    found = Overview(RUN_MEASURES, interest)
    of_checks = _Found([] if check is None else check.all_findings)
    places = sorted(run.places)
    few = len(places) <= _FEW_PLACES
    for step, rank in places:
        seen = found.place(step, rank)
        at = (one.place for one in of_checks.at(step, rank))
        counted = Counter((one.phase, one.entry or one.key or "") for one in at)
        begun: dict[str, float] = {}
        codes: dict[str, list[tuple[str, list[int], str | None]]] = {}
        for phase in run.phases_at(StepPlace(step, rank)):
            of_phase = codes[phase] = []
            begun[phase] = math.inf
            for call in columns_of(run, LayerPlace(phase, step, rank)).entries():
                begun[phase] = min(begun[phase], call.seq)
                findings = counted[phase, call.name]
                seen_of_call = measured(call)
                logs = map(logarithmic, (seen_of_call.norm, seen_of_call.largest))
                counts = (seen_of_call.non_finite, findings)
                own = [*logs, *(min(number, _MOST_COUNTED) for number in counts)]
                of_phase.append((call.name, own, call.around))
        for what, name in _in_time(run, (step, rank), begun, few=few):
            item, calls = seen.item(what, name), codes.get(name) if what == "phase" else None
            item.compared = len(calls or ()) if what == "phase" else 1
            for entry, of_call, around in calls or ():
                found.heat.put((step, rank), name, entry, of_call, around)
            if what == "phase" and calls is None:
                item.flags.append("not_recorded")
    return found


def _times_of(run: Run, place: Place) -> dict[tuple[str, str], float]:
    """Return when phases and keys of a place came, as far as the run says; {} if it does not."""
    times = run.timeline(*place)
    at: dict[tuple[str, str], float] = {}
    for phase in times.phases if times else ():
        at.setdefault(("phase", phase.phase), phase.began)
    for save in times.key_data if times else ():
        at.setdefault(("key", save.key), _BEGIN if save.key in PROMPTS else save.at)
    return at


def _in_time(
    run: Run, place: Place, begun: Mapping[str, float], *, few: bool
) -> list[tuple[str, str]]:
    """Return the phases and keys of a place as they came, or where that is not known usually do.

    Args:
        begun: when the first call of each phase began, as the journals count time.
        few: whether the run has so few places that key data may be read for their order.
    """
    keys = run.keys_at(StepPlace(*place))
    at = _times_of(run, place)
    if not at and few and not run.times_are_lost(StepPlace(*place)):
        at = {("phase", phase): seq for phase, seq in begun.items() if seq < math.inf}
        for datum in run.key_data(None, *place):
            if datum.seq is not None:
                seq = _BEGIN if datum.key in PROMPTS else datum.seq
                at.setdefault(("key", datum.key), seq)
    phases = sorted(begun, key=lambda name: (begun[name], phase_order(name)))
    items = [("phase", phase) for phase in phases]
    items += [item for item in at if item[0] == "phase" and item[1] not in begun]
    items += [("key", key) for key in sorted(keys, key=usual_place)]
    return _ordered(items, at)


def _ordered(
    items: Iterable[tuple[str, str]], at: Mapping[tuple[str, str], float]
) -> list[tuple[str, str]]:
    """Return items by their times; those without one where such usually stand."""
    held = [*items]
    seen = PlaceSeen()
    for what, name in sorted((item for item in held if item in at), key=at.__getitem__):
        seen.item(what, name)
    for what, name in held:
        seen.put_in_usual_order(what, name)
    return [*seen.items]


class _Found:
    """What checks found, by place.

    That is the first place and the last, and those between if it was found as often as there are
    steps.
    """

    def __init__(self, findings: Iterable[CheckFinding]) -> None:
        self._by_place: dict[tuple[int, int | None], list[CheckFinding]] = {}
        for finding in findings:
            first, last = finding.place.step, max(finding.last_step, finding.place.step)
            ranks: Sequence[int | None] = finding.ranks if finding.times > 1 else ()
            every = finding.times >= (last - first + 1) * max(1, len(ranks))
            for step in range(first, last + 1) if every else sorted({first, last}):
                for rank in ranks or (finding.place.rank,):
                    self._by_place.setdefault((step, rank), []).append(finding)

    def at(self, step: int, rank: int) -> list[CheckFinding]:
        """Return what was found in a place, or in all ranks of its step."""
        return [*self._by_place.get((step, rank), ()), *self._by_place.get((step, None), ())]


_GRAVEST = [*Severity].index


def count_findings(overview: Overview, findings: Sequence[CheckFinding]) -> None:
    """Count the findings of each phase and key of each place, and keep the gravest severity."""
    found = _Found(findings)
    for place, seen in overview.places.items():
        for finding in found.at(*place):
            at = finding.place
            names = {"phase": at.phase, "key": at.entry or at.key or ""}
            for (what, name), item in seen.items.items():
                if name == names[what]:
                    item.findings += 1
                    severities = (item.gravest or finding.severity, finding.severity)
                    item.gravest = min(severities, key=_GRAVEST)


def cells_of(
    overview: Overview, comparison: Comparison | None, findings: Sequence[CheckFinding]
) -> dict[Place, tuple[str, int, int, int]]:
    """Return (state, different, compared, findings) of each place."""
    found, shown = _Found(findings), {}
    for place, seen in overview.places.items():
        own = [finding.severity for finding in found.at(*place)]
        state = min(own, key=_GRAVEST).value if own else "healthy"
        if comparison is not None:
            state = _state(seen)
        shown[place] = (state, seen.different, seen.compared, len(own))
    return shown


def _state(seen: PlaceSeen) -> str:
    if not seen.compared:  # one run lacks it, or it was not chosen
        return "missing" if seen.recorded_in == 1 else "plain"
    if seen.different:
        return "different"
    if any(item.missing for item in seen.items.values()):
        return "missing"
    return "close" if seen.within else "same"


def strip_of(
    overview: Overview, phases: Sequence[str], keys: Sequence[str], seconds: Seconds
) -> dict[str, Any]:
    """Return the block `strip`: the items of each place in causal order.

    Args:
        seconds: of (place, phase): wall time in A and in B.
    """
    found: dict[str, list[list[Any]]] = {}
    for place, seen in overview.places.items():
        items = found[f"{place[0]}-{place[1]}"] = []
        for (what, name), item in seen.items.items():
            times = seconds.get((place, name), _NO_TIMES) if what == "phase" else _NO_TIMES
            names, number = (phases, 0) if what == "phase" else (keys, item.micro_steps)
            flags = [*item.flags, *item.missing]
            counts = [item.compared, item.different, number_to_json(item.distance), item.findings]
            gravest = None if item.gravest is None else item.gravest.value
            items.append([what, names.index(name), number, *times, *counts, flags, gravest])
    return {"places": found}
