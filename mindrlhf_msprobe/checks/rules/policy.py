"""What the log-probabilities of actor, old policy and reference must satisfy.

And what the policy that generates and the one that trains must have in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import numpy as np

from mindrlhf_msprobe.checks.check import Check
from mindrlhf_msprobe.checks.next_config import PARAMETERS
from mindrlhf_msprobe.checks.rule import Found, key, rule, steps
from mindrlhf_msprobe.checks.rules.rows import (
    actor_and_reference,
    begins_with_random_weights,
    counted_floats,
    finite_floats,
    floats_of,
    rounding,
)
from mindrlhf_msprobe.checks.views import Step, place_of
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Evidence, Severity
from mindrlhf_msprobe.phases import (
    GENERATE,
    LOG_PROB,
    LOSS_INPUTS,
    OLD_LOG_PROB,
    POLICY_VERSION,
    REF_LOG_PROB,
    ROLLOUT_LOG_PROB,
    WORKER_VERSION,
)
from mindrlhf_msprobe.sequences.log_probs import RolloutRows
from mindrlhf_msprobe.sequences.losses import before_zeros
from mindrlhf_msprobe.sequences.step_data import Unavailable, array_of
from mindrlhf_msprobe.storage.columns.columns import Columns
from mindrlhf_msprobe.storage.reading.keydata import KeyDatum
from mindrlhf_msprobe.trends.formulas import CLIP_RANGE
from mindrlhf_msprobe.trends.rollout_correction import (
    DIFF_MAX,
    DIFF_MEAN,
    DIFF_P99,
    KL,
    PROBS_MEAN,
    RolloutGap,
    rollout_gaps,
)

_LEAST_CLIPPED = 5  # steps in a row
_LEAST_NEGATIVE = 3


@rule(
    "rl.reference",
    needs=(key(*REF_LOG_PROB), key(*OLD_LOG_PROB)),
    causes=("check_rl.cause_reference_weights", "check_rl.cause_reference_settings"),
    follows=("non_finite.*", "weights.*"),
    live=True,
)
def reference(step: Step, check: Check) -> Iterator[Found]:
    """Before the first update the actor is the reference: log_prob = ref_log_prob, KL = 0."""
    if step.number:
        return
    for rank in step.ranks:
        references = {d.micro_step: d for d in step.key_data(*REF_LOG_PROB, rank=rank)}
        made = step.key_data(*LOG_PROB, "loss", rank=rank)
        seqs = [datum.seq for datum in made if datum.seq is not None]
        first_update = min(seqs, default=None)
        for own in step.key_data(*OLD_LOG_PROB, rank=rank):
            other = references.get(own.micro_step)
            is_later = first_update is not None and (own.seq or 0) > first_update
            if other is None or is_later:
                continue
            ours, theirs = (counted_floats(step, datum) for datum in (own, other))
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
    needs=(key("ratio", *LOG_PROB), key(*OLD_LOG_PROB)),
    causes=("check_rl.cause_old_weights", "check_rl.cause_dropout", "check_rl.cause_temperature"),
    follows=("non_finite.*", "weights.*"),
    live=True,
)
def ratio(step: Step, check: Check) -> Iterator[Found]:
    """In the first micro-step of an update the policy is the old one: ratio = 1."""
    for rank in step.ranks:
        old = step.key_data(*OLD_LOG_PROB, rank=rank)
        new = step.key_data(*LOG_PROB, rank=rank)[:1]
        ratios = step.key_data("ratio", rank=rank)[:1]
        if not old or not (new or ratios):
            continue
        off: float | None = None
        shown: list[Evidence] = []
        allowed = rounding(*old, *new, *step.key_data("loss_inputs", rank=rank)[:1])
        if ratios and (values := counted_floats(step, ratios[0])) is not None:
            if not np.isfinite(values).any():  # others name that
                continue
            # The largest, as many as may be masked, are left out.
            known = np.sort(np.abs(values - 1)[np.isfinite(values)])
            known = known[: max(0, len(known) - _most_masked(step, ratios[0]))]
            off = float(known.mean()) if len(known) else None
            extremes = {"max": float(np.nanmax(values)), "min": float(np.nanmin(values))}
            shown = [Evidence(place_of(ratios[0]), extremes)]
        elif new:
            off = _against_old(step, new[0], allowed)
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


def _most_masked(step: Step, datum: KeyDatum) -> int:
    """Return how many elements of a save at most do not count, where nothing says which do."""
    values = floats_of(datum)
    if values is None or step.mask_of(datum, values) is not None:
        return 0
    return step.sequences(datum.rank).most_masked(values)


def _against_old(step: Step, new: KeyDatum, allowed: float) -> float | None:
    """Return the mean distance of log_prob from old_log_prob where rows are known to correspond.

    What the loss was given is known to, and what is saved in the same rows, or found by its values;
    else rows do if most of them are rows of old_log_prob.
    """
    sequences = step.sequences(new.rank)
    try:
        saves = sequences.data.saved((new.key,))
        pair = sequences.old_rows.of(new, saves)
        if pair is None:
            return sequences.old_rows.distance(array_of(new), allowed)
        counted = pair.counted or sequences.counted(new, pair.own, saves)
    except Unavailable:
        return None
    if counted is None and sequences.most_masked(pair.own):
        return None
    mask = before_zeros(pair.own) & before_zeros(pair.other) if counted is None else counted.mask
    own, other = (np.where(mask, of.astype(np.float64), np.nan) for of in (pair.own, pair.other))
    return _distance(own, other)


@rule(
    "rl.kl_negative",
    needs=(key("kl", "kl_loss"),),
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
                values = counted_floats(step, datum)
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
    thresholds={"fraction": 0.5},
    causes=("check_rl.cause_learning_rate", "check_rl.cause_old_weights"),
    follows=("non_finite.*", "rl.ratio", "history.*"),
    live=True,
)
def clip_fraction(step: Step, check: Check) -> Iterator[Found]:
    """Most of the ratios stay within the clip range."""
    for rank in step.ranks:
        low, high = step.sequences(rank).data.settings.clip_range or CLIP_RANGE
        saves = step.key_data("ratio", rank=rank)
        values = finite_floats(step, saves)
        moved = values[values != 1]  # masked positions are 1
        beyond = int(((moved < 1 - low) | (moved > 1 + high)).sum())
        masked = min(beyond, sum(_most_masked(step, datum) for datum in saves))
        fraction = (beyond - masked) / max(1, len(moved) - masked)
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
    needs=(key("entropy", *LOG_PROB), steps(6)),
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
        found = named or step.key_data(*LOG_PROB, rank=rank)
        values = finite_floats(step, found)
        values = values[values != 0]
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


@rule(
    "rl.policy_version",
    needs=(key(POLICY_VERSION), key(WORKER_VERSION)),
    causes=("check_rl.cause_not_synchronised",),
    live=True,
)
def policy_version(step: Step, check: Check) -> Iterator[Found]:
    """The network that generates has had as many updates as the trainer's policy.

    An asynchronous trainer lets it lag behind on purpose.
    """
    for rank in step.ranks:
        workers = {d.micro_step: d for d in step.key_data(WORKER_VERSION, rank=rank)}
        for own in step.key_data(POLICY_VERSION, rank=rank):
            if (other := workers.get(own.micro_step)) is None:
                continue
            versions = [one.leaf.value for datum in (own, other) for one in datum.records]
            if [type(version) for version in versions] != [int, int]:
                continue
            check.checked()
            if versions[0] != versions[1]:
                yield check.finding(
                    message("check_rl.policy_version", own=versions[0], worker=versions[1]),
                    place_of(other),
                    same=("policy_version", rank),
                )


@rule(
    "rl.oracle",
    needs=(key("oracle_mismatches"),),
    severity=Severity.ERROR,
    causes=("check_rl.cause_handed_over", "check_rl.cause_cache"),
)
def oracle(step: Step, check: Check) -> Iterator[Found]:
    """The trainer found its rollout to be that of its oracle, which was given whole weights."""
    for datum in step.key_data("oracle_mismatches"):
        fields = datum.records[0].leaf.value if datum.records else None
        check.checked()
        if isinstance(fields, str) and fields:
            said = message("check_rl.oracle", fields=fields)
            yield check.finding(said, place_of(datum), same=("oracle", datum.rank))


_TRAINING = "actor_compute_log_prob"
_16_BITS = {"Float16", "BFloat16"}
_SHOWN = {"mean": DIFF_MEAN, "p99": DIFF_P99, "max": DIFF_MAX, "kl": KL}


@rule(
    "rl.rollout_gap",
    needs=(key(*ROLLOUT_LOG_PROB), key(*OLD_LOG_PROB, LOSS_INPUTS)),
    thresholds={"probability": 0.01, "float32": 1e-4},
    causes=(
        *("check_rl.cause_not_synchronised", "check_rl.cause_temperature"),
        *("check_rl.cause_rollout_dtype", "check_rl.cause_cache"),
    ),
    follows=("non_finite.*", "weights.*"),
    live=True,
)
class RolloutGaps:
    """The network that generates gives the sampled tokens the training network's probabilities.

    `probability` limits the mean difference of probabilities: above 0.01 verl's FAQ sees a fault of
    the engine that generates, whatever the dtype; matched engines stay far below. Where all that
    was recorded of the training network is float32, `float32` limits the mean difference of
    log-probabilities in nats: float32 rounds them by 1e-6 to 1e-5, and bfloat16 already costs
    matched engines 2e-5.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._float32: dict[int, bool] = {}

    def journal(self, journal: Columns) -> None:
        """Take note of the dtypes of the training network, once a rank."""
        if journal.phase != _TRAINING or journal.rank in self._float32:
            return
        kinds = journal.records("parameters", "output").kinds
        floats = {str(d) for d, is_float in zip(kinds.dtypes, kinds.are_floats) if is_float}
        if floats:
            self._float32[journal.rank] = floats == {"Float32"}

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the first save of a step and rank in which both are too far apart."""
        for rank in step.ranks:
            if not step.key_data(*ROLLOUT_LOG_PROB, rank=rank):
                continue
            try:
                gaps = rollout_gaps(step.sequences(rank))
            except Unavailable as error:
                self._check.not_checked(error.said)
                continue
            self._check.checked()
            if other := [rows for rows, _, _ in gaps if rows.other_tokens]:
                # Tokens were trained that are not the sampled ones.
                counts = {"count": sum(rows.other_tokens for rows in other)}
                counts["of"] = sum(len(rows.rollout) for rows in other)
                yield self._check.finding(
                    message("check_rl.other_tokens", **counts),
                    other[0].datum,
                    severity=Severity.NOTE,
                    causes=("check_rl.cause_tokenized_again",),
                    same=("other_tokens", rank),
                )
            for rows, gap, _ in gaps:
                if (found := self._finding(rows, gap)) is not None:
                    yield found
                    break

    def _finding(self, rows: RolloutRows, gap: RolloutGap) -> Found | None:
        """Return the finding where a limit is exceeded."""
        if not gap.tokens:
            return None
        at = place_of(rows.datum)
        coarse = {record.leaf.dtype for record in rows.datum.records} & _16_BITS
        float32 = self._float32.get(rows.datum.rank, False) and not coarse
        limit = self._check.threshold("float32" if float32 else "probability")
        if gap.metrics[DIFF_MEAN if float32 else PROBS_MEAN] <= limit:
            return None
        # Record both networks: their parameters; where those are there, elements.
        phases = GENERATE, _TRAINING
        next_step = self._check.next_recording(at, phases=phases, also=PARAMETERS)
        if not next_step:
            next_step = self._check.next_recording(at, phases=phases, elements=True)
        return self._check.finding(
            message(
                "check_rl.rollout_gap",
                mean=gap.metrics[DIFF_MEAN],
                p99=gap.metrics[DIFF_P99],
                probability=gap.metrics[PROBS_MEAN],
                limit=limit,
                float32=float32,
            ),
            at,
            shown={name: gap.metrics[of] for name, of in _SHOWN.items()},
            next_step=next_step,
            same=("rollout_gap", at.rank),
        )
