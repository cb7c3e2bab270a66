"""What the descriptions of shards say of the whole: exact where it can be, else nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mindrlhf_msprobe.comparison.judging.metrics.blocks import is_finite, is_nan, is_number
from mindrlhf_msprobe.storage.leaves import Leaf


def same_value(leaves: Sequence[Leaf]) -> bool:
    """Return whether ranks say the same of a value, as far as they say anything."""
    return all(known_of(leaf) == known_of(leaves[0]) for leaf in leaves[1:])


def known_of(leaf: Leaf) -> tuple[Any, ...]:
    """Return what a description says of a value, as far as it can be compared."""
    of = (leaf.type, leaf.dtype, leaf.shape, leaf.fingerprint, leaf.value, leaf.opaque)
    return (*of, leaf.why, *(repr(v) for v in (leaf.max, leaf.min, leaf.mean, leaf.norm)))


def whole_of(leaves: Sequence[Leaf], shape: tuple[int, ...]) -> Leaf:
    """Return the description of a tensor by those of its parts, each once.

    Largest, smallest and counts are exact; mean and norm are rounded once more. The fingerprint of
    the whole does not follow from those of parts.
    """
    if len(leaves) == 1:
        return leaves[0]
    some = [leaf for leaf in leaves if math.prod(leaf.shape or ())]
    return Leaf(
        leaves[0].type,
        leaves[0].dtype,
        shape,
        max=_extreme([leaf.max for leaf in some], max),
        min=_extreme([leaf.min for leaf in some], min),
        mean=_mean(some),
        norm=_norm([leaf.norm for leaf in some]),
        nan_count=_sum([leaf.nan_count for leaf in leaves]),
        inf_count=_sum([leaf.inf_count for leaf in leaves]),
        data_name=leaves[0].data_name,
        dialect=leaves[0].dialect,
    )


def scaled(leaf: Leaf, times: float) -> Leaf:
    """Return the description of a tensor whose elements are multiplied by a number above zero."""
    if times == 1.0:
        return leaf
    known = {name: getattr(leaf, name) for name in ("max", "min", "mean", "norm")}
    changed = {name: v * times if is_number(v) else v for name, v in known.items()}
    return replace(leaf, fingerprint=None, md5=None, **changed)


def _known(values: Sequence[Any]) -> bool:
    return bool(values) and all(map(is_number, values))


def _finite(values: Sequence[Any]) -> bool:
    return all(map(is_finite, values))


def _nan(values: Sequence[Any]) -> bool:
    return any(map(is_nan, values))


def _mean(leaves: Sequence[Leaf]) -> Any:
    """Return the mean of all elements of parts that have some; None where one is unknown."""
    means: list[Any] = [leaf.mean for leaf in leaves]
    if not _known(means):
        return None
    sizes = [math.prod(leaf.shape or ()) for leaf in leaves]
    total = math.fsum(m * n for m, n in zip(means, sizes)) if _finite(means) else sum(means)
    return total / sum(sizes)


def _norm(norms: Sequence[Any]) -> float | None:
    if not _known(norms):
        return None
    if _finite(norms):
        return math.hypot(*norms)
    return math.nan if _nan(norms) else math.inf


def _extreme(values: Sequence[Any], most: Callable[[Sequence[Any]], Any]) -> Any:
    if not _known(values):
        return None
    return math.nan if _nan(values) else most(values)


def _sum(values: Sequence[int | None]) -> int | None:
    return None if None in values else sum(n for n in values if n is not None)
