"""What the log-probabilities of actor, old policy and reference must satisfy."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import numpy as np

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.views import Step, place_of
from mindrlhf_msprobe.checks.registry.rule import key, rule, steps
from mindrlhf_msprobe.checks.rules.rl.rows import (
    actor_and_reference,
    begins_with_random_weights,
    floats_of,
    inputs_of,
    rounding,
)
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Evidence, Severity
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.trends.derived import Settings
from mindrlhf_msprobe.trends.formulas import CLIP_RANGE

_LEAST_CLIPPED = 5  # steps in a row
_LEAST_NEGATIVE = 3


@rule(
    "rl.reference",
    needs=(key("ref_log_prob"), key("old_log_prob")),
    severity=Severity.WARNING,
    causes=("check_rl.cause_reference_weights", "check_rl.cause_reference_settings"),
    follows=("non_finite.*", "weights.*"),
    live=True,
)
def reference(step: Step, check: Check) -> Iterator[Found]:
    """Before the first update the actor is the reference: log_prob = ref_log_prob, KL = 0."""
    if step.number:
        return
    for rank in step.ranks:
        references = {d.micro_step: d for d in step.key_data("ref_log_prob", rank=rank)}
        first_update = _first_update(step, rank)
        for own in step.key_data("old_log_prob", rank=rank):
            other = references.get(own.micro_step)
            if other is None or _after(own, first_update):
                continue
            ours, theirs = floats_of(own), floats_of(other)
            if ours is None or theirs is None or ours.shape != theirs.shape:
                check.not_checked(
                    message("check_rl.rows_unknown", keys="old_log_prob, ref_log_prob")
                )
                continue
            check.checked()
            off = _distance(ours, theirs)
            if off is None or off <= rounding(own, other):
                continue
            random = begins_with_random_weights(check.run)
            yield check.finding(
                message("check_rl.reference", mean=off, random=random),
                place_of(other),
                severity=Severity.NOTE if random else None,
                evidence=[
                    Evidence(place_of(own), {"mean": float(np.nanmean(ours))}),
                    Evidence(place_of(other), {"mean": float(np.nanmean(theirs))}),
                ],
                next_step=actor_and_reference(check, place_of(other)),
                same="reference",
            )
            break


@rule(
    "rl.ratio",
    needs=(key("ratio", "log_prob"), key("old_log_prob")),
    severity=Severity.WARNING,
    causes=("check_rl.cause_old_weights", "check_rl.cause_dropout", "check_rl.cause_temperature"),
    follows=("non_finite.*", "weights.*"),
    live=True,
)
def ratio(step: Step, check: Check) -> Iterator[Found]:
    """In the first micro-step of an update the policy is the old one: ratio = 1."""
    for rank in step.ranks:
        old = step.key_data("old_log_prob", rank=rank)
        new = step.key_data("log_prob", rank=rank)[:1]
        ratios = step.key_data("ratio", rank=rank)[:1]
        if not old or not (new or ratios):
            continue
        off: float | None = None
        shown: list[Evidence] = []
        allowed = rounding(*old, *new, *step.key_data("loss_inputs", rank=rank)[:1])
        if ratios and (values := floats_of(ratios[0])) is not None:
            if not np.isfinite(values).any():  # others name that
                continue
            off = float(np.nanmean(np.abs(values - 1)))
            shown = [Evidence(place_of(ratios[0]), _extremes(values))]
        elif new and (values := floats_of(new[0])) is not None:
            off = _against_old(step, rank, new[0], values, old, allowed)
            shown = [Evidence(place_of(one), {}) for one in (new[0], old[0])]
        if off is None:
            check.not_checked(message("check_rl.rows_unknown", keys="old_log_prob, log_prob"))
            continue
        check.checked()
        if off > allowed:
            at = place_of((ratios or new)[0])
            yield check.finding(
                message("check_rl.ratio", mean=off),
                at,
                evidence=shown,
                next_step=check.next_recording(
                    at, phases=("actor_compute_log_prob", "actor_update")
                ),
                same="ratio",
            )


def _against_old(
    step: Step,
    rank: int,
    new: KeyDatum,
    values: np.ndarray,
    old: list[KeyDatum],
    allowed: float,
) -> float | None:
    """Return the mean distance of log_prob from old_log_prob where rows are known to correspond.

    What the loss was given is known to; else rows do if most of them are rows of old_log_prob.
    """
    given = [
        array
        for datum, inputs in inputs_of(step, rank)
        if datum.micro_step == new.micro_step
        for name, array in inputs.items()
        if name.startswith("old") and array.shape == values.shape
    ]
    if given:
        return _distance(values, given[0].astype(np.float64))
    return _to_nearest_rows(values, old, allowed)


def _to_nearest_rows(values: np.ndarray, old: list[KeyDatum], allowed: float) -> float | None:
    known = [array for datum in old if (array := floats_of(datum)) is not None]
    shapes = {array.shape[1:] for array in known if array.ndim == 2}
    if values.ndim != 2 or shapes != {values.shape[1:]}:
        return None
    rows = np.concatenate([array for array in known if array.ndim == 2])
    rows, values = (of[np.isfinite(of).any(axis=1)] for of in (rows, values))
    if not len(rows):
        return None
    off = [float(np.nanmin(np.nanmean(np.abs(rows - row), axis=1))) for row in values]
    alike = sum(distance <= allowed for distance in off)
    return float(np.mean(off)) if alike * 2 > len(off) else None


@rule(
    "rl.kl_negative",
    needs=(key("kl", "kl_loss"),),
    severity=Severity.WARNING,
    causes=("check_rl.cause_kl_sign", "check_rl.cause_kl_rows"),
    follows=("non_finite.*",),
)
class KLNegative:
    """A KL divergence is not negative, nor are its estimators k2 and k3.

    k1 = log p - log q may be, of one sample (Schulman 2020, "Approximating KL Divergence"): so what
    is sometimes positive is not named.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._first: dict[str, list[Evidence]] = {}
        self._least: dict[str, float] = {}
        self._steps: dict[str, tuple[int, int]] = {}  # how many estimates, the last one's step
        self._positive: set[str] = set()

    def step(self, step: Step) -> None:
        """Count the signs of a step's estimates."""
        for name in ("kl", "kl_loss"):
            for datum in step.key_data(name):
                values = floats_of(datum)
                if values is None or not np.isfinite(values).any():
                    continue
                least = float(np.nanmin(values))
                if np.nanmax(values) > 0:
                    self._positive.add(name)
                elif least < -1e-6:
                    first = self._first.setdefault(name, [])
                    if len(first) < _LEAST_NEGATIVE:
                        first.append(Evidence(place_of(datum), {"min": least}))
                    self._least[name] = min(self._least.get(name, 0.0), least)
                    self._steps[name] = self._steps.get(name, (0, 0))[0] + 1, step.number

    def end(self) -> Iterator[Found]:
        """Yield an estimate that was negative again and again, and never positive."""
        for name, first in self._first.items():
            if name in self._positive or len(first) < _LEAST_NEGATIVE:
                continue
            times, last_step = self._steps[name]
            yield self._check.finding(
                message("check_rl.kl_negative", key=name, least=self._least[name]),
                first[0].place,
                evidence=first,
                times=times,
                last_step=last_step,
                same=name,
            )


@rule(
    "rl.clip_fraction",
    needs=(key("ratio"), steps(_LEAST_CLIPPED)),
    severity=Severity.WARNING,
    thresholds={"fraction": 0.5},
    causes=("check_rl.cause_learning_rate", "check_rl.cause_old_weights"),
    follows=("non_finite.*", "rl.ratio", "history.*"),
    live=True,
)
def clip_fraction(step: Step, check: Check) -> Iterator[Found]:
    """Most of the ratios stay within the clip range."""
    low, high = Settings.read(check.run.configurations()).clip_range or CLIP_RANGE
    for rank in step.ranks:
        arrays = [floats_of(datum) for datum in step.key_data("ratio", rank=rank)]
        values = np.concatenate([a.reshape(-1) for a in arrays if a is not None] or [np.empty(0)])
        moved = values[np.isfinite(values) & (values != 1)]  # masked positions are 1
        fraction = float(np.mean((moved < 1 - low) | (moved > 1 + high))) if moved.size else 0.0
        clipped = fraction > check.threshold("fraction")
        row = check.memory[str(rank)] = check.memory.get(str(rank), 0) + 1 if clipped else 0
        if row >= _LEAST_CLIPPED:
            yield check.finding(
                message(
                    "check_rl.clip_fraction",
                    fraction=fraction,
                    low=1 - low,
                    high=1 + high,
                    steps=row,
                ),
                place_of(step.key_data("ratio", rank=rank)[0]),
                same=("clip", rank),
            )


@rule(
    "rl.entropy_collapse",
    needs=(key("entropy", "log_prob"), steps(6)),
    severity=Severity.WARNING,
    thresholds={"share": 0.1},
    causes=("check_rl.cause_learning_rate", "check_rl.cause_entropy_bonus"),
    follows=("non_finite.*", "rl.*"),
    live=True,
)
def entropy_collapse(step: Step, check: Check) -> Iterator[Found]:
    """The policy's entropy does not fall to nothing.

    Where no entropy was saved, the mean of -log_prob over the tokens of the step estimates it.
    """
    for rank in step.ranks:
        named = step.key_data("entropy", rank=rank)
        found = named or step.key_data("log_prob", rank=rank)
        parts = [a.reshape(-1) for datum in found if (a := floats_of(datum)) is not None]
        values = np.concatenate(parts) if parts else np.empty(0)
        values = values[np.isfinite(values) & (values != 0)]
        if not values.size:
            continue
        now = float(np.mean(values)) * (1 if named else -1)
        history = check.memory.setdefault(str(rank), [])
        history.append(now)
        del history[3:-6]  # the first and the last decide
        before = median(history[:3])
        low = before > 0 and all(
            value < check.threshold("share") * before for value in history[-3:]
        )
        if len(history) >= 6 and low:
            yield check.finding(
                message("check_rl.entropy_collapse", now=now, before=before),
                found[0],
                shown={"entropy": history[-6:]},
                same=("entropy", rank),
            )


def _distance(one: np.ndarray, other: np.ndarray) -> float | None:
    """Return the mean distance of two arrays of one shape, over elements that both hold."""
    both = np.isfinite(one) & np.isfinite(other)
    return float(np.abs(one - other)[both].mean()) if both.any() else None


def _extremes(values: np.ndarray) -> dict[str, float]:
    return {"max": float(np.nanmax(values)), "min": float(np.nanmin(values))}


def _first_update(step: Step, rank: int) -> int | None:
    found = [d.seq for d in step.key_data("log_prob", "loss", rank=rank) if d.seq is not None]
    return min(found, default=None)


def _after(datum: KeyDatum, seq: int | None) -> bool:
    return seq is not None and datum.seq is not None and datum.seq > seq
