"""A run against its own past: jumps, gradients by layer, dead activations, routing of experts."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from statistics import median

import numpy as np

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.values import LeafJson, is_float, statistic
from mindrlhf_msprobe.checks.reading.views import EntryView, Step, numbers_in, place_of
from mindrlhf_msprobe.checks.registry.rule import GRADIENTS, LAYERS, rule, steps
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.health import Evidence, Place, Severity
from mindrlhf_msprobe.storage.journal_line import holds_gradients
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.records import PARAMETERS_GRAD

_PAST = 32  # values of a record's past that are kept
_LEAST_PAST = 8
_DEVIATION = 1.4826  # of a normal distribution: standard deviation / median absolute deviation
_FLOOR = 0.02  # decades by which any norm may differ from its past
_KEYS = ("loss", "kl", "kl_loss", "entropy", "grad_norm", "value_loss", "ratio", "log_prob")
_LAYER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
_ACTIVATION = re.compile(r"(?i)relu|gelu|silu|swish|activation|tanh|sigmoid")
_ROUTER = re.compile(r"(?i)router|gate|gating|moe|topk|expert")
_EXPERT_KEYS = ("tokens_per_expert", "expert_load", "expert_tokens")
_MOST_EXPERTS = 4096


class _Past:
    """The last norms of one record, and between which all of them lie."""

    __slots__ = ("high", "low", "norms")

    def __init__(self) -> None:
        self.norms: deque[float] = deque(maxlen=_PAST)
        self.low, self.high = math.inf, 0.0

    def may_jump(self, norm: float, factor: float) -> bool:
        """Return whether a norm may lie further than a factor from most of those before it."""
        return (norm > factor * self.low or norm * factor < self.high) and (
            len(self.norms) >= _LEAST_PAST
        )

    def take(self, norm: float) -> None:
        """Add a norm."""
        self.norms.append(norm)
        if norm < self.low:
            self.low = norm
        if norm > self.high:
            self.high = norm


@rule(
    "history.jump",
    needs=(steps(_LEAST_PAST + 1),),
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
    finding.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._factor = check.threshold("factor")
        self._past: dict[tuple[int, str, str, str], _Past] = {}
        self._jumps: list[tuple[float, Place, dict[str, float]]] = []

    def entry(self, entry: EntryView) -> None:
        """Take the norms of an entry's outputs and gradients."""
        gradients = holds_gradients(entry.name)
        found = entry.records if gradients else entry.part("output")
        for *_, path, leaf in found:
            norm = leaf.get("Norm")
            if type(norm) is float and norm > 0 and "loat" in str(leaf.get("dtype")):
                at = entry.rank, entry.phase, entry.name, path
                past = self._past.get(at)
                if past is None:
                    past = self._past[at] = _Past()
                if past.may_jump(norm, self._factor):
                    shown = self._compared(past, norm)
                    if shown:
                        io = PARAMETERS_GRAD if gradients else "output"
                        self._jumps.append((shown["factor"], entry.place(io, path), shown))
                past.take(norm)

    def _compared(self, past: _Past, norm: float) -> dict[str, float] | None:
        """Return how a norm stands to its past if it jumps."""
        logs = [math.log10(one) for one in past.norms]
        middle = median(logs)
        spread = _DEVIATION * median(abs(value - middle) for value in logs) + _FLOOR
        away = abs(math.log10(norm) - middle)
        if away <= self._check.threshold("deviations") * spread or away <= math.log10(self._factor):
            return None
        before = 10**middle
        return {"norm": norm, "median": before, "factor": max(norm, before) / min(norm, before)}

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the jumps of a step as one finding a rank: the first in time."""
        for rank in step.ranks:
            for name in _KEYS:
                for datum in step.key_data(name, rank=rank)[:1]:
                    norm = _size(datum)
                    if norm is None or not 0 < norm < math.inf:
                        continue
                    past = self._past.setdefault((rank, "", name, ""), _Past())
                    found = len(past.norms) >= _LEAST_PAST and self._compared(past, norm)
                    if found:
                        self._jumps.append((found["factor"], place_of(datum), found))
                    past.take(norm)
        jumps, self._jumps = self._jumps, []
        for rank in step.ranks:
            own = sorted(
                (one for one in jumps if one[1].rank == rank), key=lambda one: one[1].order
            )
            if own:
                factor, place, _ = own[0]
                yield self._check.finding(
                    message("check_history.jump", factor=factor, others=len(own) - 1),
                    place,
                    evidence=[Evidence(at, numbers) for _, at, numbers in own[:5]],
                    next_step=self._check.next_recording(place),
                    same=("jump", rank),
                )


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
    marks=(b".parameters_grad.",),
    live=True,
)
class Gradients:
    """Gradients neither explode nor vanish from layer to layer."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._squares: dict[tuple[int, str, str], dict[int, float]] = {}
        self._places: dict[tuple[int, str, str], Place] = {}

    def entry(self, entry: EntryView) -> None:
        """Add the squared norms of a layer's gradients."""
        number = _LAYER.search(entry.cell)
        if number is None:
            return
        at = entry.rank, entry.phase, entry.cell[: number.start()]
        layers = self._squares.setdefault(at, {})
        for io, path, leaf in entry.records:
            norm = statistic(leaf, "Norm") if io == PARAMETERS_GRAD else None
            if norm is not None and math.isfinite(norm):
                layer = int(number[1])
                layers[layer] = layers.get(layer, 0.0) + norm * norm
                self._places.setdefault(at, entry.place(io, path))

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the stacks of layers whose first and last differ by too much."""
        squares, places = self._squares, self._places
        self._squares, self._places = {}, {}
        for at, layers in squares.items():
            norms = {layer: math.sqrt(square) for layer, square in layers.items() if square > 0}
            if len(norms) < 3:
                continue
            first, last = norms[min(norms)], norms[max(norms)]
            ratio = max(first, last) / min(first, last)
            if ratio > self._check.threshold("ratio"):
                yield self._check.finding(
                    message("check_history.gradients", ratio=ratio, explode=first > last),
                    places[at],
                    evidence=[
                        Evidence(places[at], {f"layer {n}": norms[n] for n in sorted(norms)})
                    ],
                    same=("gradients", at[1:]),
                )


@rule(
    "history.dead",
    needs=(LAYERS, steps(2)),
    severity=Severity.WARNING,
    causes=("check_history.cause_dead",),
    follows=("non_finite.*", "history.*", "weights.*"),
    marks=(b"elu", b"eLU", b"ELU", b"ilu", b"iLU", b"ctivation", b"anh", b"igmoid"),
    live=True,
)
class Dead:
    """No activation is zero everywhere in two steps in a row while its input is not."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._dead: dict[tuple[int, str, str], Place] = {}
        self._alive: set[tuple[int, str, str]] = set()
        self._before: set[tuple[int, str, str]] = set()

    def entry(self, entry: EntryView) -> None:
        """Take the output of an activation."""
        if not _is_activation(_kind(entry.name)):
            return
        norms = {io: statistic(leaf, "Norm") for io, _, leaf in entry.records if is_float(leaf)}
        at = entry.rank, entry.phase, entry.cell
        if norms.get("output") == 0 and norms.get("input"):
            self._dead.setdefault(at, entry.place("output", "0"))
        else:
            self._alive.add(at)

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the activations that were dead in every call of this step and the one before."""
        dead = {at: place for at, place in self._dead.items() if at not in self._alive}
        again = [place for at, place in dead.items() if at in self._before]
        self._before, self._dead, self._alive = {*dead}, {}, set()
        if again:
            place = min(again, key=lambda one: one.order)
            yield self._check.finding(
                message("check_history.dead", count=len(again)), place, same=("dead", place.rank)
            )


@rule(
    "history.routing",
    needs=(LAYERS,),
    severity=Severity.WARNING,
    thresholds={"share": 0.95},
    causes=("check_history.cause_balance", "check_history.cause_router"),
    follows=("non_finite.*",),
    marks=(b"outer", b"gat", b"Gat", b"moe", b"oE", b"opk", b"opK", b"xpert"),
    live=True,
)
class Routing:
    """No expert takes all tokens.

    What is recorded tells it: indices of experts that are all the same, or numbers of tokens by
    expert of which one holds nearly all.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._found: list[tuple[Place, float]] = []

    def entry(self, entry: EntryView) -> None:
        """Look at what a router returned."""
        if not _is_router(_kind(entry.name)):
            return
        for io, path, leaf in entry.records:
            share = _share(leaf) if io == "output" else None
            if share is not None and share >= self._check.threshold("share"):
                self._found.append((entry.place(io, path), share))

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the routers of a step that use one expert."""
        for name in _EXPERT_KEYS:
            for datum in step.key_data(name):
                share = _largest_share(datum)
                if share is not None and share >= self._check.threshold("share"):
                    self._found.append((place_of(datum), share))
        found, self._found = self._found, []
        for place, share in found:
            yield self._check.finding(
                message("check_history.routing", share=share),
                place,
                next_step=self._check.next_recording(place, elements=True),
            )


def _kind(entry: str) -> str:
    """Return the name of an entry without its call."""
    return entry.rpartition(".")[0]


@lru_cache(maxsize=1 << 16)
def _is_activation(kind: str) -> bool:
    return kind.endswith(".forward") and bool(_ACTIVATION.search(kind.split(".")[-2]))


@lru_cache(maxsize=1 << 16)
def _is_router(kind: str) -> bool:
    return kind.endswith(".forward") and bool(_ROUTER.search(kind))


def _share(leaf: LeafJson) -> float | None:
    """Return the share of the expert that has most tokens, where statistics tell it."""
    shape, dtype = leaf.get("shape"), leaf.get("dtype")
    high, low, mean = (statistic(leaf, name) for name in ("Max", "Min", "Mean"))
    if not isinstance(shape, list) or not isinstance(dtype, str):
        return None
    if high is None or low is None or mean is None:
        return None
    count = math.prod(shape)
    if dtype.startswith(("Int", "UInt")) and count >= 16 and high == low:
        return 1.0  # indices of experts: all one
    if len(shape) == 1 and 1 < count <= _MOST_EXPERTS and low >= 0 and mean > 0:
        return high / (mean * count)
    return None


def _largest_share(datum: KeyDatum) -> float | None:
    array = numbers_in(datum)
    if array is None or array.size < 2:
        return None
    whole = float(array.sum())
    return float(array.max()) / whole if whole > 0 and array.min() >= 0 else None
