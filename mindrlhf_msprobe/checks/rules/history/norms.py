"""Norms against their own past, and gradients from layer to layer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

import numpy as np

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.journals import Journal
from mindrlhf_msprobe.checks.reading.records import Rows
from mindrlhf_msprobe.checks.reading.views import Step, numbers_in, place_of
from mindrlhf_msprobe.checks.registry.rule import GRADIENTS, rule, steps
from mindrlhf_msprobe.checks.rules.history.past import LEAST_PAST, Jumped, Past
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Evidence, Place, Severity
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, cell_name

_KEYS = ("loss", "kl", "kl_loss", "entropy", "grad_norm", "value_loss", "ratio", "log_prob")
_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


@rule(
    "history.jump",
    needs=(steps(LEAST_PAST + 1),),
    severity=Severity.WARNING,
    thresholds={"deviations": 10.0, "factor": 4.0},
    causes=("check_history.cause_batch", "check_history.cause_learning_rate"),
    follows=("non_finite.*", "history.*", "rl.*", "weights.*"),
    live=True,
)
class Jump:
    """No norm jumps against what it was in the steps before.

    A robust z-score of its logarithm: distance from the median, over the median absolute deviation
    times 1.4826 (Iglewicz and Hoaglin 1993, "How to Detect and Handle Outliers"). Outputs,
    gradients of parameters and the trainer's key data are looked at; what jumps in one step is one
    finding. Of gradients and key data a rise alone is a jump: a loss may cross zero, and gradients
    of a batch whose advantages are small are small as well.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._past: dict[tuple[int, str], Past] = {}
        self._jumps: list[tuple[Place, Jumped]] = []

    def journal(self, journal: Journal) -> None:
        """Take the norms of outputs and gradients."""
        records = journal.records("output", PARAMETERS_GRAD)
        norms = np.where(records.kinds.are_floats, records.numbers("Norm"), np.nan)
        at = journal.rank, journal.phase
        falls = records.rows.once(_are_forward)
        self._take(at, records.rows.names, norms, records.place, falls)

    def _take(
        self,
        at: tuple[int, str],
        names: Sequence[Hashable],
        norms: np.ndarray,
        place: Callable[[int], Place],
        falls: np.ndarray,
    ) -> None:
        past = self._past.setdefault(at, Past())
        factor = self._check.threshold("factor")
        numbers = past.take(names, norms, factor)
        if not numbers.size:
            return
        found = past.compared(norms[numbers], self._check.threshold("deviations"), factor)
        self._jumps += [
            (place(n), one)
            for n, one in zip(numbers.tolist(), found)
            if one and (falls[n] or one["norm"] > one["median"])
        ]

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the jumps of a step as one finding a rank: the first in time."""
        for rank in step.ranks:
            data = {name: step.key_data(name, rank=rank)[:1] for name in _KEYS}
            sizes = {
                name: size for name, of in data.items() for datum in of if (size := _size(datum))
            }
            places = [place_of(data[name][0]) for name in sizes]
            norms = np.array([*sizes.values()])
            falls = np.zeros(len(norms), bool)
            self._take((rank, ""), [*sizes], norms, places.__getitem__, falls)
        jumps, self._jumps = self._jumps, []
        for rank in step.ranks:
            own = _in_time(one for one in jumps if one[0].rank == rank)
            if own:
                place, first = own[0]
                yield self._check.finding(
                    message("check_history.jump", factor=first["factor"], others=len(own) - 1),
                    place,
                    evidence=[Evidence(at, numbers) for at, numbers in own[:5]],
                    next_step=self._check.next_recording(place),
                    same=("jump", rank),
                )


def _are_forward(rows: Rows) -> np.ndarray:
    """Return, (rows,) bool, which are of forward entries."""
    return np.array([".forward." in entry for entry, _ in rows.names], bool)


def _in_time(jumps: Iterable[tuple[Place, Jumped]]) -> list[tuple[Place, Jumped]]:
    """Return jumps in order of time: a loss is computed before its gradients, and saved after."""
    ordered = sorted(jumps, key=lambda one: one[0].order)
    name = ordered[0][0].name if ordered else ""
    if ".backward." in name or PARAMETERS_GRAD in name:
        ordered.sort(key=lambda one: one[0].key in (None, "grad_norm"))
    return ordered


def _size(datum: KeyDatum) -> float | None:
    """Return the root mean square of what was saved, or None where it holds no numbers."""
    array = numbers_in(datum)
    return float(np.sqrt(np.mean(np.square(array)))) if array is not None and array.size else None


@rule(
    "history.gradients",
    needs=(GRADIENTS,),
    severity=Severity.WARNING,
    thresholds={"ratio": 1e4},
    causes=("check_history.cause_initialisation", "check_history.cause_normalisation"),
    follows=("non_finite.*", "history.*", "weights.*"),
    live=True,
)
def gradients(step: Step, check: Check) -> Iterator[Found]:
    """Gradients neither explode nor vanish from layer to layer."""
    for (_, phase), records in step.gradients.items():
        squares = np.square(records.numbers("Norm"))
        of_stacks: dict[str, dict[int, float]] = {}
        places: dict[str, Place] = {}
        for number, stack, layer in records.rows.once(_layers):
            if math.isfinite(squares[number]):
                layers = of_stacks.setdefault(stack, {})
                layers[layer] = layers.get(layer, 0.0) + float(squares[number])
                if stack not in places:
                    places[stack] = records.place(number)
        for stack, layers in of_stacks.items():
            norms = {layer: math.sqrt(square) for layer, square in layers.items() if square > 0}
            if len(norms) < 3:
                continue
            first, last = norms[min(norms)], norms[max(norms)]
            ratio = max(first, last) / min(first, last)
            if ratio > check.threshold("ratio"):
                shown = {f"layer {n}": norms[n] for n in sorted(norms)}
                yield check.finding(
                    message("check_history.gradients", ratio=ratio, explode=first > last),
                    places[stack],
                    evidence=[Evidence(places[stack], shown)],
                    same=("gradients", phase, stack),
                )


def _layers(rows: Rows) -> list[tuple[int, str, int]]:
    """Return of rows in numbered layers which they are, their stack of layers and the number."""
    found = [
        (number, _LAYER.search(cell_name(name))) for number, (name, _) in enumerate(rows.names)
    ]
    return [(n, m.string[: m.start()], int(m[1])) for n, m in found if m is not None]
