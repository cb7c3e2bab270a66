"""What the policy that generates and the one that trains must have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.next_config import PARAMETERS
from mindrlhf_msprobe.checks.reading.journals import Journal
from mindrlhf_msprobe.checks.reading.views import Step, place_of
from mindrlhf_msprobe.checks.registry.rule import key, rule
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Evidence, Place, Severity
from mindrlhf_msprobe.phases import GENERATE, LOSS_INPUTS
from mindrlhf_msprobe.trends.derived import (
    OLD_LOG_PROB,
    ROLLOUT_LOG_PROB,
    KeyPlace,
    Settings,
    Unavailable,
)
from mindrlhf_msprobe.trends.rollout_correction import (
    DIFF_MAX,
    DIFF_MEAN,
    DIFF_P99,
    KL,
    PROBS_MEAN,
    RolloutGap,
)
from mindrlhf_msprobe.trends.rollout_rows import KEYS_READ, RolloutRows, rollout_gaps

_TRAINING = "actor_compute_log_prob"
_16_BITS = {"Float16", "BFloat16"}
_SHOWN = {"mean": DIFF_MEAN, "p99": DIFF_P99, "max": DIFF_MAX, "kl": KL}


@rule(
    "rl.rollout_gap",
    needs=(key(*ROLLOUT_LOG_PROB), key(*OLD_LOG_PROB, LOSS_INPUTS)),
    severity=Severity.WARNING,
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
        self._settings: Settings | None = None
        self._float32: dict[int, bool] = {}

    def journal(self, journal: Journal) -> None:
        """Take note of the dtypes of the training network, once a rank."""
        if journal.phase != _TRAINING or journal.rank in self._float32:
            return
        kinds = journal.records("parameters", "output").kinds
        floats = {str(d) for d, is_float in zip(kinds.dtypes, kinds.are_floats) if is_float}
        if floats:
            self._float32[journal.rank] = floats == {"Float32"}

    def step(self, step: Step) -> Iterator[Found]:
        """Yield the first save of a step and rank in which both are too far apart."""
        if self._settings is None:
            self._settings = Settings.read(self._check.run.configurations())
        for rank in step.ranks:
            there = KEYS_READ.intersection(step.keys(rank))
            if not there.intersection(ROLLOUT_LOG_PROB):
                continue
            saves = {name: step.key_data(name, rank=rank) for name in there}
            try:
                gaps = rollout_gaps(KeyPlace(saves, self._settings))
            except Unavailable as error:
                self._check.not_checked(error.said)
                continue
            self._check.checked()
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
            evidence=[Evidence(at, {name: gap.metrics[of] for name, of in _SHOWN.items()})],
            next_step=self._next(at),
            same=("rollout_gap", at.rank),
        )

    def _next(self, at: Place) -> dict[str, Any] | None:
        """Return how to record both networks: their parameters; where those are there, elements."""
        phases = GENERATE, _TRAINING
        told = self._check.next_recording(at, phases=phases, also=PARAMETERS)
        return told or self._check.next_recording(at, phases=phases, elements=True)
