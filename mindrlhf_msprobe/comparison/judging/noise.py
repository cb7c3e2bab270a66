"""Further runs of A's configuration → how far a record varies by itself.

A record of B that differs from A is compared with the distances between A and its repetitions. B
counts as different where its distance to the nearest of them exceeds their largest distance from
each other by more than a margin. Independent, normally distributed noise exceeds the margin by
chance less than once in 1000; it is larger than that asks for where there are few repetitions,
because the elements of a tensor, and the tensors of a network, vary together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.judging.by_statistics import same_fingerprint
from mindrlhf_msprobe.comparison.judging.metrics.arrays import AT_ONCE, Elements
from mindrlhf_msprobe.comparison.judging.metrics.blocks import Tolerance, is_finite
from mindrlhf_msprobe.findings import Status
from mindrlhf_msprobe.storage.records import Record

LEAST_MARGIN = 4.0
#: For 1, 2 and more values in a record; each for 1, 2, … repetitions, then the least margin.
MARGINS = ((574.0, 40.0, 13.0, 6.0), (27.0, 8.0, 5.0), (20.0, 8.0, 5.0))


@dataclass(frozen=True)
class Distance:
    """How far two records are apart.

    Attributes:
        by: one or several measures, of the elements that are finite on both sides; None where
            nothing can be measured beside NaN or infinity.
        unlike: an element is NaN or infinite on one side only, or otherwise than on the other one.
    """

    by: tuple[float, ...] | None
    unlike: bool = False


@dataclass(frozen=True)
class Noise:
    """How a difference compares with the noise.

    Attributes:
        natural: whether the repetitions of A differ as much among themselves.
        note: by how much.
    """

    natural: bool
    note: Message


def within_noise(
    a: Record, b: Record, repetitions: Sequence[Record | None], elements: Elements = AT_ONCE
) -> Noise | None:
    """Compare the difference of `a` and `b` with that of `a` and its repetitions.

    Args:
        repetitions: what each repetition recorded there, None where it has none.
        elements: compares tensors.

    Returns:
        None if no repetition recorded it.

    Raises:
        ArrayFileError, OSError, TypeError, ValueError: a file cannot be read.
        Unanswered: the tensors are large, and what `elements` does not know yet.
    """
    known = [record for record in repetitions if record is not None and not record.leaf.why]
    if not known:
        return None
    members = [a, *known]
    measure, values = _measure(a, b, members, elements)
    if measure is None:
        return _by_kind(b, members, len(known))
    return _by_distance(b, members, measure, values)


def _by_distance(
    b: Record,
    members: Sequence[Record],
    measure: Callable[[Record, Record], Distance],
    values: Sequence[int],
) -> Noise:
    """Compare the distance of B from A and its repetitions with theirs from each other.

    Args:
        values: of how many values each measure is.
    """
    runs = len(members) - 1
    prints = {record.leaf.fingerprint for record in members}
    if len(prints) == 1 and None not in prints:
        return Noise(False, message("note.repetitions_identical", repetitions=runs))
    spreads = [measure(x, y) for x, y in itertools.combinations(members, 2)]
    return by_distances(spreads, [measure(x, b) for x in members], values, runs)


def by_distances(
    spreads: Sequence[Distance], apart: Sequence[Distance], values: Sequence[int], runs: int
) -> Noise:
    """Compare how far B is from A and its repetitions with how far these are from each other.

    Args:
        spreads: of each two of A and its repetitions.
        apart: of B from A and from each repetition.
        values: of how many values each measure is.
        runs: how many repetitions there are.
    """
    # Beside an unlike NaN or infinity a distance is that of the other elements alone: B is compared
    # with those only that have the same ones in the same places.
    nearest = [found for found in apart if not found.unlike]
    if not nearest:
        return Noise(False, message("note.repetitions_unlike_non_finite", repetitions=runs))
    spread, distance = _of_each(spreads, max), _of_each(nearest, min)
    if spread is None or distance is None:
        return Noise(False, message("note.noise_non_finite"))
    if not all(map(math.isfinite, (*spread, *distance))):
        return Noise(False, message("note.noise_too_large"))
    return _noise(distance, spread, values, runs, not any(found.unlike for found in spreads))


def _of_each(found: Sequence[Distance], pick: Callable[..., float]) -> list[float] | None:
    """Return the largest, or least, of each measure; None where one cannot be measured."""
    known = [distance.by for distance in found if distance.by is not None]
    return None if len(known) < len(found) else [pick(column) for column in zip(*known)]


def _noise(
    distances: Sequence[float],
    spreads: Sequence[float],
    values: Sequence[int],
    runs: int,
    alike: bool,
) -> Noise:
    worst, margin, spread = 0.0, LEAST_MARGIN, spreads[0]
    for distance, own, number in zip(distances, spreads, values):
        if not own and any(spreads):  # too coarse a measure to tell
            continue
        quantiles = MARGINS[min(max(number, 1), len(MARGINS)) - 1]
        limit = quantiles[runs - 1] if runs <= len(quantiles) else LEAST_MARGIN
        ratio = distance / own if own else math.inf if distance else 0.0
        if ratio / limit >= worst / margin:
            worst, margin, spread = ratio, limit, own
    if math.isinf(worst):
        code = "note.repetitions_identical" if alike else "note.repetitions_identical_but"
        return Noise(False, message(code, repetitions=runs))
    how = {"ratio": worst, "spread": spread, "margin": margin}
    return Noise(worst <= margin, message("note.noise", repetitions=runs, **how))


def _by_kind(b: Record, members: Sequence[Record], runs: int) -> Noise:
    """Compare what has no distance (texts, shapes, dtypes): what comes and goes is noise."""
    leaves = [record.leaf for record in (b, *members)]
    non_finite = zip(*((leaf.nan_count or 0, leaf.inf_count or 0) for leaf in leaves))
    if any(count and not any(counts) for count, *counts in non_finite):
        return Noise(False, message("note.repetitions_finite", repetitions=runs))
    own, *kinds = (_kind(record) for record in (b, *members))
    if all(kind == kinds[0] for kind in kinds):
        return Noise(False, message("note.repetitions_alike", repetitions=runs))
    new = len(own) not in map(len, kinds) or any(
        len(set(column)) == 1 and value != column[0] for value, column in zip(own, zip(*kinds))
    )
    if new:
        return Noise(False, message("note.repetitions_differ_otherwise", repetitions=runs))
    return Noise(True, message("note.repetitions_differ", repetitions=runs))


def _kind(record: Record) -> tuple[object, ...]:
    leaf = record.leaf
    value = (leaf.fingerprint or leaf.value) if leaf.type == "str" else None
    return leaf.type, leaf.dtype, value, *(leaf.shape or ())


def _measure(
    a: Record, b: Record, members: Sequence[Record], elements: Elements
) -> tuple[Callable[[Record, Record], Distance] | None, Sequence[int]]:
    """Return how to measure the distance of two of these records, and of how many values it is."""
    all_records = [*members, b]
    leaf = a.leaf
    if any(r.leaf.type == "str" for r in all_records):
        return None, ()
    if len({(r.leaf.is_tensor, r.leaf.dtype, r.leaf.shape) for r in all_records}) > 1:
        return None, ()
    if not leaf.is_tensor:
        numbers = all(isinstance(r.leaf.value, (int, float)) for r in all_records)
        return (_of_scalars, (1,)) if numbers else (None, ())
    size = math.prod(leaf.shape or ())
    if all(r.location is not None for r in all_records):
        return partial(_of_elements, elements), (size,) if leaf.is_discrete else (size, size)
    return _of_statistics, (size,)


def _of_scalars(a: Record, b: Record) -> Distance:
    x, y = a.leaf.value, b.leaf.value
    if is_finite(x) and is_finite(y):
        return Distance((float(abs(x - y)),))
    same = x == y or (x != x and y != y)
    return Distance((0.0,), unlike=not same)


def _of_elements(elements: Elements, a: Record, b: Record) -> Distance:
    """Return the largest and the L2 distance of the elements.

    Of discrete ones the share that differs: the distance of two tokens means nothing.
    """
    compared = elements.compare((a, b), (a.array(), b.array()), Tolerance())
    metrics = compared.metrics
    if a.leaf.is_discrete:
        return Distance((1.0 - metrics.equal_percent / 100,))
    unlike = compared.one_sided or compared.unlike
    return Distance((metrics.max_abs_err or 0.0, metrics.euclidean or 0.0), unlike)


def _of_statistics(a: Record, b: Record) -> Distance:
    """Return the distance of max, min, norm and mean together.

    The mean of n elements varies √n times less than they do, so it counts √n times.
    """
    x, y = a.leaf, b.leaf
    unlike = (x.nan_count, x.inf_count) != (y.nan_count, y.inf_count)
    pairs = [(getattr(x, name), getattr(y, name)) for name in ("max", "min", "norm", "mean")]
    if same_fingerprint(x, y):
        return Distance((0.0,))
    known = [pair for pair in pairs if pair != (None, None)]
    if not known or not all(is_finite(value) for pair in known for value in pair):
        return Distance(None, unlike)
    parts = [float(abs(p - q)) for p, q in known]
    if x.mean is not None:
        parts[-1] *= math.sqrt(math.prod(x.shape or ()))
    return Distance((math.hypot(*parts),), unlike)


#: Statuses that noise can explain.
EXPLAINABLE = (
    Status.DTYPE_MISMATCH,
    Status.SHAPE_MISMATCH,
    Status.NON_FINITE,
    Status.DIFFERENT,
)
