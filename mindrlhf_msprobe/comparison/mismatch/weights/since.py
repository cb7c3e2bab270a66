"""Since when parameters of the rollout network differ, and of which step they still are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mindrlhf_msprobe.comparison.mismatch.sides import read_parameters
from mindrlhf_msprobe.comparison.mismatch.walk import Walk
from mindrlhf_msprobe.comparison.mismatch.weights.weights import WeightPair, compare_weights
from mindrlhf_msprobe.findings.mismatch import Weight
from mindrlhf_msprobe.storage.reading.reader import Run
from mindrlhf_msprobe.storage.records import Record


def unlike_weights(walk: Walk, runs: Sequence[Run], phases: tuple[str, str]) -> list[Weight]:
    """Return the parameters that differ: since when, and whose they still are.

    Args:
        runs, phases: of the rollout and of the training.
    """
    unlike = walk.weights.unequal
    since = {pair.rollout: walk.rollout.step for pair in unlike}
    stale: dict[str, int] = {}
    differing = {*since}
    for step in _steps_before(walk, runs, phases) if unlike else ():
        rollout, training = (
            read_parameters(run, phase, step, walk.rollout.rank) for run, phase in zip(runs, phases)
        )
        for pair in _pairs(walk, walk.rollout.parameters, training):
            if pair.is_brought_over and pair.rollout in since:
                stale.setdefault(pair.rollout, step)
        differing &= {p.rollout for p in _pairs(walk, rollout, training) if p.equal is False}
        since |= dict.fromkeys(differing, step)
        if not differing and len(stale) == len(unlike):
            break
    return [
        Weight(
            *(p.rollout, p.training, p.relative, p.dtypes),
            *(since[p.rollout], stale.get(p.rollout), p.rounded),
        )
        for p in unlike
    ]


def _steps_before(walk: Walk, runs: Sequence[Run], phases: tuple[str, str]) -> Iterator[int]:
    """Yield the steps before that of a walk, the last first, as long as both phases are there."""
    rank = walk.rollout.rank
    before = {step for run in runs for step in run.steps if step < walk.rollout.step}
    for step in sorted(before, reverse=True):
        if not all(phase in run.phases_at(step, rank) for run, phase in zip(runs, phases)):
            return
        yield step


def _pairs(
    walk: Walk, rollout: Mapping[str, Record], training: Mapping[str, Record]
) -> tuple[WeightPair, ...]:
    return compare_weights(rollout, training, walk.names, walk.mapping.fused).pairs
