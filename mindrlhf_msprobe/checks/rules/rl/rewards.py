"""Rewards and advantages: centred, and different enough to learn from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mindrlhf_msprobe.checks.checking import Check
from mindrlhf_msprobe.checks.reading.views import Step
from mindrlhf_msprobe.checks.registry.rule import key, rule
from mindrlhf_msprobe.checks.rules.rl.rows import configured, floats_of, groups_of, texts_or_rows
from mindrlhf_msprobe.checks.story import Found
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.findings.health import Severity

_GROUP_SIZE = ("num_generations", "num_return_sequences", "group_size", "n_samples_per_prompt")
_WHITE = 1e-4  # how far from 1 the standard deviation of whitened float32 numbers may be
_CENTRED = 2e-3  # how far from 0 the mean may be, as a share of the largest


@rule(
    "rl.advantages",
    needs=(key("advantages"),),
    severity=Severity.WARNING,
    causes=("check_rl.cause_centring", "check_rl.cause_groups"),
    follows=("non_finite.*",),
    live=True,
)
def advantages(step: Step, check: Check) -> Iterator[Found]:
    """Advantages are centred: per prompt in GRPO, over the batch where they are whitened.

    GRPO's are one number a sample, rewards minus the mean of their group (Shao et al. 2024,
    "DeepSeekMath", section 4.1.2); a trainer may centre them over the batch instead. Numbers a
    token whose standard deviation is 1 were whitened, so that their mean is 0.
    """
    for datum in step.saved("advantages"):
        values = floats_of(datum)
        if values is None or not np.isfinite(values).all():
            continue
        samples = _one_a_sample(values)
        if samples is not None:
            groups = _groups(step, datum.rank, len(samples), check)
            kinds, unknown = [samples[group] for group in groups], "groups_unknown"
        else:
            whole = _whitened(values)
            kinds, unknown = [] if whole is None else [whole], "advantages_unknown"
        if not kinds:
            check.not_checked(message(f"check_rl.{unknown}"))
            continue
        check.checked()
        off = _off_centre(kinds)
        if off is not None:
            yield check.finding(
                message("check_rl.advantages", mean=off, grouped=samples is not None),
                datum,
                shown={"mean": float(values.mean()), "std": float(values.std())},
                same="centred",
            )


def _one_a_sample(values: np.ndarray) -> np.ndarray | None:
    """Return advantages as one number a sample; None where a sample has several."""
    if values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1):
        return values.reshape(-1)
    if values.ndim != 2:
        return None
    largest = values[np.arange(len(values)), np.abs(values).argmax(axis=1)]
    same = (values == 0) | (values == largest[:, None])  # the mask makes zeros
    return largest if same.all() else None


def _groups(step: Step, rank: int, count: int, check: Check) -> list[list[int]]:
    """Return the positions of the samples of each prompt, where every prompt has equally many."""
    for datum in step.key_data("prompts", "prompt", rank=rank):
        samples = texts_or_rows(datum)
        if len(samples) == count:
            found = [*groups_of(samples).values()]
            if len({len(group) for group in found}) == 1 and len(found[0]) > 1:
                return found
    sizes = [n for n in configured(check.run, *_GROUP_SIZE) if isinstance(n, int) and n > 1]
    if sizes and count == sizes[0]:
        return [[*range(count)]]
    return []


def _off_centre(groups: list[np.ndarray]) -> float | None:
    """Return the mean that is farthest from 0, if neither the groups nor the whole are centred."""
    largest = max(float(np.abs(group).max()) for group in groups)
    means = [float(group.mean()) for group in groups]
    allowed = _CENTRED * largest + 1e-6
    if all(abs(mean) <= allowed for mean in means):
        return None
    if abs(float(np.concatenate(groups).mean())) <= allowed:
        return None
    return max(means, key=abs)


def _whitened(values: np.ndarray) -> np.ndarray | None:
    """Return the numbers that were scaled to a standard deviation of 1; None if none were.

    Padding holds one number at the end of rows: 0, or what was added to all of them.
    """
    ends = values[:, -1] if values.ndim == 2 else values[-1:]
    repeated = [fill for fill in np.unique(ends) if (ends == fill).sum() > 1]
    kinds = [values.reshape(-1), *(values[values != fill] for fill in {0.0, *repeated})]
    for kind in kinds:
        if kind.size >= 8 and any(abs(kind.std(ddof=d) - 1) < _WHITE for d in (0, 1)):
            return kind
    return None


@rule("rl.equal_rewards", needs=(key("rewards", "reward"),), severity=Severity.NOTE, live=True)
def equal_rewards(step: Step, check: Check) -> Iterator[Found]:
    """A group whose rewards are all equal gives no signal."""
    for rank in step.ranks:
        for datum in step.key_data("rewards", "reward", rank=rank)[:1]:
            values = floats_of(datum)
            if values is None or values.ndim != 1 or len(values) < 2:
                continue
            groups = _groups(step, rank, len(values), check) or [[*range(len(values))]]
            equal = sum(bool((values[group] == values[group[0]]).all()) for group in groups)
            if equal:
                yield check.finding(
                    message("check_rl.equal_rewards", equal=equal, count=len(groups)),
                    datum,
                    shown={"rewards": values[:16].tolist()},
                    same=("equal", rank),
                )
