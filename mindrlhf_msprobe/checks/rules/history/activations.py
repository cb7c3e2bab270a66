"""Activations that are dead."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.views import EntryView, Step
from mindrlhf_msprobe.checks.registry.rule import LAYERS, rule, steps
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Place, Severity
from mindrlhf_msprobe.storage.reading.leaf_json import is_float, statistic

_ACTIVATION = re.compile(r"(?i)relu|gelu|silu|swish|activation|tanh|sigmoid")


def _is_activation(name: str) -> bool:
    kind = name.rpartition(".")[0]
    return kind.endswith(".forward") and bool(_ACTIVATION.search(kind.split(".")[-2]))


@rule(
    "history.dead",
    needs=(LAYERS, steps(2)),
    severity=Severity.WARNING,
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

    def entry(self, entry: EntryView) -> None:
        """Take the output of an activation."""
        norms = {io: statistic(leaf, "Norm") for io, _, leaf in entry.records if is_float(leaf)}
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
