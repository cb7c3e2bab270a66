"""Kurtosis of activations: a few elements that grow far beyond the others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.elements import elements_of
from mindrlhf_msprobe.checks.reading.views import EntryView, Step
from mindrlhf_msprobe.checks.registry.rule import LAYERS, Need, rule
from mindrlhf_msprobe.checks.rules.history.past import LEAST_PAST, Past
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Evidence, Place, Severity
from mindrlhf_msprobe.storage.reading.leaf_json import LeafJson, is_float, non_finite, statistic
from mindrlhf_msprobe.storage.records import is_optimizer_state

_FEWEST_ELEMENTS = 256  # of an output whose kurtosis is computed
_IN_A_ROW = 3  # steps: of one step alone a rare token may be the cause
_BLOCK = 1 << 14  # elements that are read together: some rows of hidden states
_BLOCKS = 64  # of an output that are read, evenly spread


@dataclass(frozen=True)
class Tail:
    """How far some elements of an array are beyond the others.

    Attributes:
        kurtosis: m4 / m2², see `Kurtosis`.
        index, element: which element is the furthest from the mean, and its value.
    """

    kurtosis: float
    index: tuple[int, ...]
    element: float

    def shown(self, **more: float) -> dict[str, Any]:
        """Return what evidence shows."""
        found = {"kurtosis": self.kurtosis, "index": list(self.index), "element": self.element}
        return found | more


#: The place of an output, its tail, and whether it has elements of both signs.
_Output = tuple[Place, Tail, bool]
#: What a finding shows of one: its kurtosis, its furthest element, the kurtosis before.
_Shown = tuple[Place, dict[str, Any]]


@rule(
    "history.kurtosis",
    needs=(LAYERS,),
    severity=Severity.WARNING,
    thresholds={"deviations": 5.0, "factor": 4.0, "least": 10.0, "high": 1000.0},
    causes=("check_history.cause_outlier", "check_history.cause_batch"),
    follows=("non_finite.*", "history.*", "weights.*"),
    marks=(b'"data_name"',),
)
class Kurtosis:
    """No activation's kurtosis rises, and stays, far above what it was in the steps before.

    Kurtosis is the fourth standardised moment (Pearson 1905, "Das Fehlergesetz und seine
    Verallgemeinerungen"): m4 / m2², m the mean power of x − mean(x); dimensionless, 3 for a normal
    distribution, at most the number of elements. Channels and tokens that grow beyond the others
    raise it (Bondarenko et al. 2023, "Quantizable Transformers"). Trained models have such ones
    from the beginning, so a high value alone is a note, in steps that have no past to compare with.
    Of forward outputs whose full tensors were recorded at most 2^20 elements are read, evenly
    spread; too many to be read while training.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._past: dict[tuple[int, str], Past] = {}
        self._outputs: dict[tuple[int, str], list[_Output]] = {}
        self._rising: dict[tuple[int, str], dict[str | None, list[_Shown]]] = {}
        self._steps = 0

    def entry(self, entry: EntryView) -> None:
        """Take the outputs of a forward call."""
        if entry.direction != "forward" or entry.is_operator or is_optimizer_state(entry.cell):
            return
        for io, path, leaf in entry.records:
            tail = self._tail(entry, path, leaf) if io == "output" else None
            if tail is not None:
                signed = (statistic(leaf, "Min") or 0) < 0 < (statistic(leaf, "Max") or 0)
                outputs = self._outputs.setdefault((entry.rank, entry.phase), [])
                outputs.append((entry.place(io, path), tail, signed))

    def _tail(self, entry: EntryView, path: str, leaf: LeafJson) -> Tail | None:
        shape = leaf.get("shape")
        if not is_float(leaf) or not isinstance(shape, list) or non_finite(leaf):
            return None
        if len(shape) < 2 or math.prod(shape) < _FEWEST_ELEMENTS:
            return None
        array = elements_of(self._check.run, entry, "output", path, leaf)
        if array is None:
            return None
        self._check.checked()
        return tail_of(array)

    def step(self, step: Step) -> Iterator[Found]:
        """Yield of each rank the first output that has risen, or, without a past, is high."""
        outputs, self._outputs = self._outputs, {}
        self._steps += 1
        in_time = sorted(outputs.items(), key=lambda item: item[1][0][0].order)
        for rank in step.ranks:
            own = [(at, of) for at, of in in_time if at[0] == rank]
            risen = [one for at, of in own for one in self._risen(at, of)]
            high = [one for _, of in own for one in self._high(of)]
            if risen:
                yield self._finding("kurtosis", risen)
            if high:
                yield self._finding("kurtosis_high", high, Severity.NOTE)

    def _high(self, outputs: list[_Output]) -> list[_Shown]:
        if self._steps > LEAST_PAST:
            return []
        limit = self._check.threshold("high")
        return [
            (at, tail.shown()) for at, tail, signed in outputs if signed and tail.kurtosis > limit
        ]

    def _risen(self, at: tuple[int, str], outputs: list[_Output]) -> list[_Shown]:
        """Return those that are high against their past, if one is for the third step in a row.

        What enters the first of them made the others rise, some of which may show it a step before.
        """
        threshold, past = self._check.threshold, self._past.setdefault(at, Past())
        values = np.array([tail.kurtosis for _, tail, _ in outputs])
        names = [place.record for place, *_ in outputs]
        numbers = past.take(names, values, threshold("factor"))
        found = past.compared(values[numbers], threshold("deviations"), threshold("factor"))
        before, now = self._rising.get(at, {}), dict[str | None, list[_Shown]]()
        for number, jumped in zip(numbers.tolist(), found):
            place, tail, _ = outputs[number]
            if jumped and tail.kurtosis > max(jumped["median"], threshold("least")):
                shown = place, tail.shown(median=jumped["median"])
                now[place.record] = [*before.get(place.record, ()), shown]
        self._rising[at] = now
        again = any(len(row) == _IN_A_ROW for row in now.values())
        return [row[0] for row in now.values()] if again else []

    def _finding(self, code: str, found: list[_Shown], severity: Severity | None = None) -> Found:
        place, shown = found[0]
        said = {name: shown[name] for name in ("kurtosis", "median") if name in shown}
        return self._check.finding(
            message(f"check_history.{code}", **said, others=len(found) - 1),
            place,
            evidence=[Evidence(*one) for one in found[:5]],
            severity=severity,
            same=(code, place.rank),
        )

    def end(self) -> None:
        """Say so where nothing could be looked at."""
        if not self._check.looked:
            self._check.not_checked(Need("elements").said)


def tail_of(array: np.ndarray) -> Tail | None:
    """Return the kurtosis of an array, and its element that is the furthest from the mean.

    Of more than 2^20 elements 64 blocks are read, evenly spread.

    Args:
        array: of real numbers, of one dimension or more.

    Returns:
        None where the kurtosis is no number (NaN, infinities, elements that are all equal), and
        where elements have no more than two values, as those of a mask.
    """
    order: Literal["C", "F"] = "C" if array.flags.c_contiguous else "F"
    flat, starts = array.reshape(-1, order=order), [0]
    if flat.size > _BLOCKS * _BLOCK:
        starts = np.linspace(0, flat.size - _BLOCK, _BLOCKS).astype(int).tolist()
        flat = np.concatenate([flat[start : start + _BLOCK] for start in starts])
    values = flat.astype(np.float64)
    low, high = values.min(), values.max()
    with np.errstate(all="ignore"):
        values = (values - values.mean()) / (high - low)
        squares = np.square(values)
        kurtosis = float(np.mean(np.square(squares)) / np.mean(squares) ** 2)
    if not math.isfinite(kurtosis) or ((flat == low) | (flat == high)).all():
        return None
    block, offset = divmod(int(squares.argmax()), flat.size // len(starts))
    index = np.unravel_index(starts[block] + offset, array.shape, order=order)
    return Tail(kurtosis, tuple(map(int, index)), float(array[index]))
