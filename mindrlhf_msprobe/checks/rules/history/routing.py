"""How tokens are shared among experts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.elements import elements_of
from mindrlhf_msprobe.checks.reading.views import EntryView, Step, numbers_in, place_of
from mindrlhf_msprobe.checks.registry.rule import LAYERS, rule
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Place, Severity
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.storage.reading.leaf_json import LeafJson, is_float, statistic

_ROUTER = re.compile(r"(?i)router|gate|gating|moe|topk|expert")
_EXPERT_KEYS = ("tokens_per_expert", "expert_load", "expert_tokens")
_MOST_EXPERTS = 4096
_FEWEST_TOKENS = 16  # of which a share is told
_MOST_ELEMENTS = 1 << 24  # of a router's output that are read


def _is_router(name: str) -> bool:
    kind = name.rpartition(".")[0]
    return kind.endswith(".forward") and bool(_ROUTER.search(kind))


@rule(
    "history.routing",
    needs=(LAYERS,),
    severity=Severity.WARNING,
    thresholds={"share": 0.95},
    causes=("check_history.cause_balance", "check_history.cause_router"),
    follows=("non_finite.*",),
    names=_is_router,
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

    def entry(self, entry: EntryView) -> None:
        """Look at what a router returned; of all its calls the one with the smallest share tells.

        The few tokens of one call may well be alike.
        """
        for io, path, leaf in entry.records:
            if io != "output":
                continue
            share = _share(leaf)
            if share is None:
                share = self._share_of_first(entry, path, leaf)
            if share is None and _are_several(leaf):
                share = 0.0  # of more than one expert
            if share is not None:
                at = entry.rank, entry.phase, entry.cell, path
                place, smallest = self._calls.get(at) or (entry.place(io, path), share)
                self._calls[at] = place, min(share, smallest)

    def _share_of_first(self, entry: EntryView, path: str, leaf: LeafJson) -> float | None:
        """Return the share of the expert that is first for most tokens, by the elements."""
        shape = leaf.get("shape")
        scores = is_float(leaf) and "router" in entry.cell.lower()
        indices = str(leaf.get("dtype")).startswith(("Int", "UInt"))
        if not isinstance(shape, list) or not (scores or indices):
            return None
        if len(shape) < 1 + scores or not 16 <= math.prod(shape) <= _MOST_ELEMENTS:
            return None
        array = elements_of(self._check.run, entry, "output", path, leaf)
        if array is None:
            return None
        rows = array.reshape(-1, shape[-1] if len(shape) > 1 else 1)
        if len(rows) < _FEWEST_TOKENS or (scores and not 1 < shape[-1] <= _MOST_EXPERTS):
            return None
        first = rows.argmax(axis=1) if scores else rows[:, 0]
        return float(np.unique(first, return_counts=True)[1].max()) / len(first)

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the routers of a step that use one expert."""
        found = [(cell, *calls) for (_, _, cell, _), calls in self._calls.items()]
        self._calls = {}
        for name in _EXPERT_KEYS:
            for datum in step.key_data(name):
                share = _largest_share(datum)
                if share is not None:
                    found.append((name, place_of(datum), share))
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
    if dtype.startswith(("Int", "UInt")) and count >= _FEWEST_TOKENS and high == low:
        return 1.0  # indices of experts: all one
    if len(shape) == 1 and 1 < count <= _MOST_EXPERTS and low >= 0 and mean > 0:
        return high / (mean * count)
    return None


def _are_several(leaf: LeafJson) -> bool:
    """Return whether indices are not all one."""
    high, low = statistic(leaf, "Max"), statistic(leaf, "Min")
    return str(leaf.get("dtype")).startswith(("Int", "UInt")) and high != low


def _largest_share(datum: KeyDatum) -> float | None:
    array = numbers_in(datum)
    if array is None or array.size < 2:
        return None
    whole = float(array.sum())
    return float(array.max()) / whole if whole > 0 and array.min() >= 0 else None
