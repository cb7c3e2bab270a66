"""A run against its own past: jumps, gradients by layer, activations, routing of experts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from mindrlhf_msprobe.checks.check import Check
from mindrlhf_msprobe.checks.rule import GRADIENTS, LAYERS, Found, Named, Need, rule, steps
from mindrlhf_msprobe.checks.views import Step, numbers_in, place_of
from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Evidence, Severity
from mindrlhf_msprobe.phases import LOG_PROB
from mindrlhf_msprobe.sequences.routers import MOST_EXPERTS, are_integers, holds_scores, is_router
from mindrlhf_msprobe.storage.arrays.npy import ArrayFileError
from mindrlhf_msprobe.storage.columns.columns import Columns, elements_of
from mindrlhf_msprobe.storage.columns.leaf_json import LeafJson, is_float, non_finite, statistic
from mindrlhf_msprobe.storage.columns.rows import Rows
from mindrlhf_msprobe.storage.operators import is_operator
from mindrlhf_msprobe.storage.place import Place
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD, Entry, cell_name, is_optimizer_state

LEAST_PAST = 8  # values of a record's past with which another is compared
_PAST = 32  # that are kept
_DEVIATION = 1.4826  # of a normal distribution: standard deviation / median absolute deviation
_FLOOR = 0.02  # decades by which any norm may differ from its past


class Past:
    """The last norms of the records of one phase and rank, and between which all of them lie."""

    def __init__(self) -> None:
        self._named = Named()

    def jumps(
        self, names: Sequence[Hashable], norms: np.ndarray, deviations: float, factor: float
    ) -> list[tuple[int, Jumped]]:
        """Add norms; return which jump, and how they stand to the ones before them.

        Args:
            names: of the records, each once.
            norms: (len(names),) float64; what is not a positive number is passed over.
            deviations, factor: how far a norm that jumps lies from most of those before it.
        """
        at, column = self._named.places(names), self._named.column
        are = (norms > 0) & (norms < np.inf)
        if not are.all():
            at, norms = at[are], norms[are]
        past, seen = column("past", np.full(_PAST, np.nan)), column("seen", 0)
        low, high, count = column("low", np.inf), column("high", 0.0), seen[at]
        may = ((norms > factor * low[at]) | (norms * factor < high[at])) & (count >= LEAST_PAST)
        before = past[at[may]]
        past[at, count % _PAST], seen[at] = norms, count + 1
        low[at], high[at] = np.minimum(low[at], norms), np.maximum(high[at], norms)
        if not may.any():
            return []
        norms, logs = norms[may], np.log10(before)
        middle = _medians(logs)[:, None]
        spread = _DEVIATION * _medians(np.abs(logs - middle)) + _FLOOR
        away = np.abs(np.log10(norms) - middle[:, 0])
        jump = (away > deviations * spread) & (away > math.log10(factor))
        numbers, medians = np.flatnonzero(are)[may][jump], 10 ** middle[jump, 0]
        return [
            (number, {"norm": norm, "median": m, "factor": max(norm, m) / min(norm, m)})
            for number, norm, m in zip(numbers.tolist(), norms[jump].tolist(), medians.tolist())
        ]


def _medians(rows: np.ndarray) -> np.ndarray:
    """Return the median of what each row has but NaN, one at least."""
    ordered, count = np.sort(rows, axis=1), np.count_nonzero(~np.isnan(rows), axis=1)
    each = np.arange(len(rows))
    return (ordered[each, (count - 1) // 2] + ordered[each, count // 2]) / 2


#: How a norm that jumps stands to its past.
Jumped = dict[str, float]


_ACTIVATION = re.compile(r"(?i)relu|gelu|silu|swish|activation|tanh|sigmoid")


def _is_activation(name: str) -> bool:
    kind = name.rpartition(".")[0]
    return kind.endswith(".forward") and bool(_ACTIVATION.search(kind.split(".")[-2]))


@rule(
    "history.dead",
    needs=(LAYERS, steps(2)),
    causes=("check_history.cause_dead",),
    follows=("non_finite.*", "history.*", "weights.*"),
    names=_is_activation,
    live=True,
)
class Dead:
    """No activation is zero everywhere in two steps in a row while its input is not."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._dead: dict[tuple[int, str, str], Place] = {}
        self._alive: set[tuple[int, str, str]] = set()
        self._before: dict[tuple[int, str, str], Place] = {}

    def entry(self, entry: Entry) -> None:
        """Take the output of an activation."""
        norms = {io: statistic(leaf, "Norm") for io, _, leaf in entry.values if is_float(leaf)}
        at = entry.rank, entry.phase, entry.cell
        if norms.get("output") == 0 and norms.get("input"):
            self._dead.setdefault(at, entry.place("output", "0"))
        else:
            self._alive.add(at)

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the activations that were dead in every call of this step and the one before."""
        dead = {at: place for at, place in self._dead.items() if at not in self._alive}
        again = [self._before[at] for at in dead if at in self._before]
        self._before, self._dead, self._alive = dead, {}, set()
        if again:
            place = min(again, key=lambda one: one.order)
            yield self._check.finding(
                message("check_history.dead", count=len(again)),
                place,
                last_step=step.number,
                same=("dead", place.rank),
            )


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

    def entry(self, entry: Entry) -> None:
        """Take the outputs of a forward call."""
        of_cell = not (is_operator(entry.name) or is_optimizer_state(entry.cell))
        if entry.direction != "forward" or not of_cell:
            return
        for io, path, leaf in entry.values:
            shape = leaf.get("shape")
            if io != "output" or not is_float(leaf) or non_finite(leaf):
                continue
            if not isinstance(shape, list) or len(shape) < 2 or math.prod(shape) < _FEWEST_ELEMENTS:
                continue
            array = _elements_of(self._check.run, entry, leaf)
            if array is None:
                continue
            self._check.checked()
            if (tail := tail_of(array)) is not None:
                signed = (statistic(leaf, "Min") or 0) < 0 < (statistic(leaf, "Max") or 0)
                outputs = self._outputs.setdefault((entry.rank, entry.phase), [])
                outputs.append((entry.place(io, path), tail, signed))

    def step(self, step: Step) -> Iterator[Found]:
        """Yield of each rank the first output that has risen, or, without a past, is high."""
        outputs, self._outputs = self._outputs, {}
        self._steps += 1
        in_time = sorted(outputs.items(), key=lambda item: item[1][0][0].order)
        for rank in step.ranks:
            own = [(at, of) for at, of in in_time if at[0] == rank]
            risen = [one for at, of in own for one in self._risen(at, of)]
            limit = self._check.threshold("high") if self._steps <= LEAST_PAST else math.inf
            high = [
                (place, tail.shown())
                for _, of in own
                for place, tail, signed in of
                if signed and tail.kurtosis > limit
            ]
            if risen:
                yield self._finding("kurtosis", risen)
            if high:
                yield self._finding("kurtosis_high", high, Severity.NOTE)

    def _risen(self, at: tuple[int, str], outputs: list[_Output]) -> list[_Shown]:
        """Return those that are high against their past, if one is for the third step in a row.

        What enters the first of them made the others rise, some of which may show it a step before.
        """
        threshold, past = self._check.threshold, self._past.setdefault(at, Past())
        values = np.array([tail.kurtosis for _, tail, _ in outputs])
        names = [place.record for place, *_ in outputs]
        found = past.jumps(names, values, threshold("deviations"), threshold("factor"))
        before, now = self._rising.get(at, {}), dict[str | None, list[_Shown]]()
        for number, jumped in found:
            place, tail, _ = outputs[number]
            if tail.kurtosis > max(jumped["median"], threshold("least")):
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


def _elements_of(run: Run, entry: Entry, leaf: LeafJson) -> np.ndarray | None:
    """Map the elements of an output into memory, read-only; None where the run lacks them."""
    if "data_name" not in leaf:
        return None
    try:
        return elements_of(run, entry.at, leaf)
    except ArrayFileError:
        return None


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


_KEYS = ("loss", "kl", "kl_loss", "entropy", "grad_norm", "value_loss", "ratio", *LOG_PROB)
_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


@rule(
    "history.jump",
    needs=(steps(LEAST_PAST + 1),),
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

    def journal(self, journal: Columns) -> None:
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
        past, threshold = self._past.setdefault(at, Past()), self._check.threshold
        self._jumps += [
            (place(n), one)
            for n, one in past.jumps(names, norms, threshold("deviations"), threshold("factor"))
            if falls[n] or one["norm"] > one["median"]
        ]

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the jumps of a step as one finding a rank: the first in time."""
        for rank in step.ranks:
            sizes, places = {}, []
            for name in _KEYS:
                for datum in step.key_data(name, rank=rank)[:1]:
                    array = step.counted_in(datum)
                    size = 0.0  # the root mean square of what counts
                    if array is not None and array.size:
                        size = float(np.sqrt(np.mean(np.square(array))))
                    if size:
                        sizes[name] = size
                        places.append(place_of(datum))
            norms = np.array([*sizes.values()])
            falls = np.zeros(len(norms), bool)
            self._take((rank, ""), [*sizes], norms, places.__getitem__, falls)
        jumps, self._jumps = self._jumps, []
        for rank in step.ranks:
            own = [one for one in jumps if one[0].rank == rank]
            if own:
                own.sort(key=lambda one: one[0].order)
                # A loss is computed before its gradients, and saved after them.
                if any(part in own[0][0].name for part in (".backward.", PARAMETERS_GRAD)):
                    own.sort(key=lambda one: one[0].key in (None, "grad_norm"))
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


@rule(
    "history.gradients",
    needs=(GRADIENTS,),
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
                    shown=shown,
                    same=("gradients", phase, stack),
                )


def _layers(rows: Rows) -> list[tuple[int, str, int]]:
    """Return of rows in numbered layers which they are, their stack of layers and the number."""
    found = [
        (number, _LAYER.search(cell_name(name))) for number, (name, _) in enumerate(rows.names)
    ]
    return [(n, m.string[: m.start()], int(m[1])) for n, m in found if m is not None]


_EXPERT_KEYS = ("tokens_per_expert", "expert_load", "expert_tokens")
_FEWEST_TOKENS = 16  # of which a share is told
_MOST_ELEMENTS = 1 << 24  # of a router's output that are read


@rule(
    "history.routing",
    needs=(LAYERS,),
    thresholds={"share": 0.95},
    causes=("check_history.cause_balance", "check_history.cause_router"),
    follows=("non_finite.*",),
    names=is_router,
    live=True,
)
class Routing:
    """No expert takes all tokens.

    What is recorded tells it: indices of experts that are all the same, or numbers of tokens by
    expert of which one holds nearly all. Of a router's full tensors: the expert that is first for
    most tokens, by indices of experts or by scores of all experts.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._calls: dict[tuple[int, str, str, str], tuple[Place, float]] = {}

    def entry(self, entry: Entry) -> None:
        """Look at what a router returned; of all its calls the one with the smallest share tells.

        The few tokens of one call may well go to one expert.
        """
        for io, path, leaf in entry.values:
            if io != "output":
                continue
            share = _share(leaf)
            # Weights of chosen experts, whose indices stand beside them, may be sorted, so that the
            # largest one stands first for every token.
            are_weights = is_float(leaf) and any(
                other_io == "output"
                and are_integers(other.get("dtype"))
                and other.get("shape") == leaf.get("shape")
                for other_io, _, other in entry.values
            )
            if share is None and not are_weights:
                share = self._share_of_first(entry, leaf)
            high, low = statistic(leaf, "Max"), statistic(leaf, "Min")
            if share is None and are_integers(leaf.get("dtype")) and high != low:
                share = 0.0  # of more than one expert
            if share is not None:
                at = entry.rank, entry.phase, entry.cell, path
                place, smallest = self._calls.get(at) or (entry.place(io, path), share)
                self._calls[at] = place, min(share, smallest)

    def _share_of_first(self, entry: Entry, leaf: LeafJson) -> float | None:
        """Return the share of the expert that is first for most tokens, by the elements."""
        shape = leaf.get("shape")
        scores = is_float(leaf) and holds_scores(entry.cell)
        indices = are_integers(leaf.get("dtype"))
        if not isinstance(shape, list) or not (scores or indices):
            return None
        if len(shape) < 1 + scores or not 16 <= math.prod(shape) <= _MOST_ELEMENTS:
            return None
        array = _elements_of(self._check.run, entry, leaf)
        if array is None:
            return None
        rows = array.reshape(-1, shape[-1] if len(shape) > 1 else 1)
        if len(rows) < _FEWEST_TOKENS or (scores and not 1 < shape[-1] <= MOST_EXPERTS):
            return None
        first = rows.argmax(axis=1) if scores else rows[:, 0]
        return float(np.unique(first, return_counts=True)[1].max()) / len(first)

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the routers of a step that use one expert."""
        found = [(cell, *calls) for (_, _, cell, _), calls in self._calls.items()]
        self._calls = {}
        for name in _EXPERT_KEYS:
            for datum in step.key_data(name):
                array = numbers_in(datum)
                if array is None or array.size < 2 or not (array.min() >= 0 and array.sum() > 0):
                    continue
                found.append((name, place_of(datum), float(array.max() / array.sum())))
        for router, place, share in found:
            if share < self._check.threshold("share"):
                continue
            yield self._check.finding(
                message("check_history.routing", share=share),
                place,
                next_step=self._check.next_recording(place, elements=True),
                same=(place.rank, router),
            )


def _share(leaf: LeafJson) -> float | None:
    """Return the share of the expert that has most tokens, where statistics tell it."""
    shape, dtype = leaf.get("shape"), leaf.get("dtype")
    high, low, mean = (statistic(leaf, name) for name in ("Max", "Min", "Mean"))
    if not isinstance(shape, list) or not isinstance(dtype, str):
        return None
    if high is None or low is None or mean is None:
        return None
    count = math.prod(shape)
    if are_integers(dtype) and count >= _FEWEST_TOKENS and high == low:
        return 1.0  # indices of experts: all one
    if len(shape) == 1 and 1 < count <= MOST_EXPERTS and low >= 0 and mean > 0:
        return high / (mean * count)
    return None
