"""How similar the gradients of two runs are: by parameter and update, and where that falls.

What msprobe's GradComparator computes from signs, and the cosine where both runs have the elements.
Its rule: a precision problem is suspected where the first similarity of a parameter is below 0.97,
or where one is more than 0.03 below the one before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from typing import Any

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage.arrays.atomic import number_to_json
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.arrays.signs import equal_signs
from mindrlhf_msprobe.storage.reading.gradients import Gradient, Gradients
from mindrlhf_msprobe.trends.formulas import cosine

#: msprobe's thresholds: of the first similarity, and of a fall from one update to the next.
FIRST, FALL = 0.97, 0.03


class Measure(str, Enum):
    """How a similarity is computed."""

    COSINE = "cosine"
    SIGNS = "signs"


class Suspicion(str, Enum):
    """Why a similarity is suspicious."""

    FIRST_LOW = "first_low"
    FALL = "fall"
    NOT_FINITE = "not_finite"
    NOT_COMPARED = "not_compared"


@dataclass(frozen=True)
class Similarity:
    """The similarity of one parameter's gradients in one update.

    Attributes:
        step, rank, phase, update: where; `rank` is that of the first run.
        parameter: its name in the network.
        size: the number of its elements.
        measure: how it was computed; None where it was not.
        value: −1 to 1 of cosines, 0 to 1 of signs; NaN where there is none.
        before: the similarity of the parameter's update before, or None.
        non_finite: whether a gradient holds NaN or infinities on either side.
        suspicion: why it is suspicious, or None.
        why: why it could not be computed, or None.
    """

    step: int
    rank: int
    phase: str
    update: int
    parameter: str
    size: int
    measure: Measure | None
    value: float
    non_finite: bool = False
    before: float | None = None
    suspicion: Suspicion | None = None
    why: Message | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values; NaN by its name."""
        why = None if self.why is None else {**self.why.as_json(), "text": str(self.why)}
        content = {**vars(self), "value": number_to_json(self.value), "why": why}
        return {name: v.value if isinstance(v, Enum) else v for name, v in content.items()}


@dataclass(frozen=True)
class OfUpdate:
    """All parameters of one update together.

    Attributes:
        value: the similarities weighted by their numbers of elements; NaN where there is none.
        size: elements compared; `parameters` of them in so many parameters.
    """

    step: int
    rank: int
    phase: str
    update: int
    value: float
    size: int
    parameters: int


@dataclass(frozen=True)
class GradientTrend:
    """What two runs' gradients say.

    Attributes:
        similarities: in causal order: step, rank, update, as the first run recorded them.
        updates: the same by update.
        alone: places (step, rank) that one run alone has, with that run's side: "A" or "B".
    """

    similarities: list[Similarity]
    updates: list[OfUpdate]
    alone: list[tuple[str, int, int]]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        updates = [{**vars(u), "value": number_to_json(u.value)} for u in self.updates]
        alone = [{"run": side, "step": step, "rank": rank} for side, step, rank in self.alone]
        first = self.suspicious[0].to_json() if self.suspicious else None
        similarities = [found.to_json() for found in self.similarities]
        head = {"first_suspicious": first, "suspicious": len(self.suspicious), "alone": alone}
        return {**head, "updates": updates, "similarities": similarities}

    @property
    def compared(self) -> list[Similarity]:
        """Those that were computed."""
        return [found for found in self.similarities if found.measure is not None]

    @property
    def suspicious(self) -> list[Similarity]:
        """Those that are suspicious, in causal order."""
        return [found for found in self.similarities if found.suspicion is not None]


def compare_gradients(
    a: Gradients,
    b: Gradients,
    *,
    first: float = FIRST,
    fall: float = FALL,
    measure: Measure | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> GradientTrend:
    """Return how similar the gradients of two runs are.

    Ranks meet by number; a run of one rank meets another of one rank whatever they are called
    (msprobe numbers a single process by its process id).

    Args:
        first: below it, the first similarity of a parameter is suspicious.
        fall: a fall by more than this, from one update to the next, is suspicious.
        measure: how all are computed; None: by cosine where both have the elements, else by signs.
        progress: called with (done, all) after each step of a rank.
    """
    places_a, places_b = a.places(), b.places()
    ranks_a, ranks_b = ({rank for _, rank in places} for places in (places_a, places_b))
    alone_on_both = len(ranks_a) == len(ranks_b) == 1
    of_b = dict(zip(ranks_a, ranks_b)) if alone_on_both else {}
    meeting = {(step, rank): (step, of_b.get(rank, rank)) for step, rank in places_a}
    there = set(places_b)
    both = [place for place in places_a if meeting[place] in there]
    alone = [("A", *place) for place in places_a if meeting[place] not in there]
    alone += [("B", *place) for place in places_b if place not in meeting.values()]
    before: dict[tuple[int, str, str], float] = {}  # of each parameter, the update before
    similarities: list[Similarity] = []
    for number, place in enumerate(both):
        for found in _at(place, a.at(*place), b.at(*meeting[place]), measure):
            at = found.rank, found.phase, found.parameter
            similarities.append(_rated(found, before.get(at), first, fall))
            if found.measure is not None and not math.isnan(found.value):
                before[at] = found.value
        if progress is not None:
            progress(number + 1, len(both))
    return GradientTrend(similarities, list(_by_update(similarities)), alone)


def _rated(found: Similarity, before: float | None, first: float, fall: float) -> Similarity:
    """Return a similarity with the parameter's one before, and whether it is suspicious."""
    suspicion = None
    if found.measure is None:
        suspicion = Suspicion.NOT_COMPARED
    elif found.non_finite or math.isnan(found.value):
        suspicion = Suspicion.NOT_FINITE
    elif before is None and found.value < first:
        suspicion = Suspicion.FIRST_LOW
    elif before is not None and before - found.value > fall:
        suspicion = Suspicion.FALL
    return replace(found, before=before, suspicion=suspicion)


def _at(
    place: tuple[int, int], of_a: list[Gradient], of_b: list[Gradient], measure: Measure | None
) -> Iterator[Similarity]:
    """Yield the similarities of one place; a parameter that one side alone has is not compared."""
    others = {(g.phase, g.update, g.parameter): g for g in of_b}
    own = {(g.phase, g.update, g.parameter): g for g in of_a}
    order = {key: number for number, key in enumerate(dict.fromkeys([*own, *others]))}
    for key in sorted(order, key=lambda key: (key[0], key[1], order[key])):
        one, other = own.get(key), others.get(key)
        how, value, why = _similarity(one, other, measure)
        phase, update, parameter = key
        size = max(g.size for g in (one, other) if g is not None)
        leaves = [g.record.leaf for g in (one, other) if g is not None and g.record is not None]
        bad = any(leaf.nan_count or leaf.inf_count for leaf in leaves)
        at = *place, phase, update, parameter, size
        yield Similarity(*at, how, value, bad, why=why)


def _similarity(
    a: Gradient | None, b: Gradient | None, measure: Measure | None
) -> tuple[Measure | None, float, Message | None]:
    none = None, float("nan")
    if a is None or b is None:
        return *none, message("trend.gradient_alone", side="A" if b is None else "B")
    if (why := a.why or b.why) is not None:
        return *none, why
    if a.shape != b.shape:
        shapes = {"a": str(list(a.shape or ())), "b": str(list(b.shape or ()))}
        return *none, message("trend.gradient_shapes", **shapes)
    try:
        if a.has_elements and b.has_elements and measure is not Measure.SIGNS:
            return Measure.COSINE, cosine(a.elements(), b.elements()), None
        if a.has_signs and b.has_signs and measure is not Measure.COSINE:
            same = equal_signs(a.packed(), b.packed(), a.size) / a.size if a.size else 1.0
            return Measure.SIGNS, same, None
        return *none, message("trend.gradient_statistics")
    except ArrayFileError as error:
        return *none, error.said


def _by_update(similarities: list[Similarity]) -> Iterator[OfUpdate]:
    groups: dict[tuple[int, int, str, int], list[Similarity]] = {}
    for found in similarities:
        if found.measure is not None:
            place = found.step, found.rank, found.phase, found.update
            groups.setdefault(place, []).append(found)
    for place, members in groups.items():
        size = sum(member.size for member in members)
        weighted = math.fsum(member.value * member.size for member in members)
        yield OfUpdate(*place, weighted / size if size else 1.0, size, len(members))
