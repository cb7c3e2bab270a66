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

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.comparison.judging.arrays import ALONE, Threads, compare_tensors
from mindrlhf_msprobe.comparison.judging.by_statistics import same_fingerprint
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance, is_finite
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
        unlike: an element is NaN or infinite on one side only, or another one than there.
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
    a: Record, b: Record, repetitions: Sequence[Record | None], threads: Threads = ALONE
) -> Noise | None:
    """Compare the difference of `a` and `b` with that of `a` and its repetitions.

    Args:
        repetitions: what each repetition recorded there, None where it has none.
        threads: share what is large.

    Returns:
        None if no repetition recorded it.

    Raises:
        ArrayFileError, OSError, TypeError, ValueError: a file cannot be read.
    """
    known = [record for record in repetitions if record is not None and not record.leaf.why]
    if not known:
        return None
    members = [a, *known]
    every, leaf = [*members, b], a.leaf
    kinds = {(r.leaf.is_tensor, r.leaf.dtype, r.leaf.shape) for r in every}
    texts = any(r.leaf.type == "str" for r in every)
    numbers = leaf.is_tensor or all(isinstance(r.leaf.value, (int, float)) for r in every)
    if texts or len(kinds) > 1 or not numbers:
        return _by_kind(b, members, len(known))

    def of_numbers(x: Record, y: Record) -> Distance:
        p, q = x.leaf.value, y.leaf.value
        if is_finite(p) and is_finite(q):
            return Distance((float(abs(p - q)),))
        return Distance((0.0,), unlike=not (p == q or (p != p and q != q)))

    if not leaf.is_tensor:
        return _by_distance(b, members, of_numbers, (1,))
    size = math.prod(leaf.shape or ())
    if any(r.location is None for r in every):
        return _by_distance(b, members, _of_statistics, (size,))

    def of_elements(x: Record, y: Record) -> Distance:
        compared = compare_tensors(x.opened(), y.opened(), Tolerance(), threads)
        metrics = compared.metrics
        if leaf.is_discrete:  # the share that differs: the distance of two tokens means nothing
            return Distance((1.0 - metrics.equal_percent / 100,))
        unlike = compared.one_sided or compared.unlike
        return Distance((metrics.max_abs_err or 0.0, metrics.euclidean or 0.0), unlike)

    return _by_distance(b, members, of_elements, (size,) if leaf.is_discrete else (size, size))


def _by_distance(
    b: Record,
    members: Sequence[Record],
    measure: Callable[[Record, Record], Distance],
    values: Sequence[int],
) -> Noise:
    """Compare how far B is from A and its repetitions with how far these are from each other.

    Args:
        values: of how many values each measure is.
    """
    runs = len(members) - 1
    prints = {record.leaf.fingerprint for record in members}
    if len(prints) == 1 and None not in prints:
        return Noise(False, message("note.repetitions_identical", repetitions=runs))
    between = [measure(x, y) for x, y in itertools.combinations(members, 2)]
    # Beside an unlike NaN or infinity a distance is that of the other elements alone: B is compared
    # with those only that have the same ones in the same places.
    nearest = [found for found in (measure(x, b) for x in members) if not found.unlike]
    if not nearest:
        return Noise(False, message("note.repetitions_unlike_non_finite", repetitions=runs))
    measured = [[found.by for found in side if found.by is not None] for side in (between, nearest)]
    if [*map(len, measured)] != [len(between), len(nearest)]:
        return Noise(False, message("note.noise_non_finite"))
    spreads = [max(column) for column in zip(*measured[0])]
    distances = [min(column) for column in zip(*measured[1])]
    if not all(map(math.isfinite, (*spreads, *distances))):
        return Noise(False, message("note.noise_too_large"))
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
        unlike = any(found.unlike for found in between)
        code = "note.repetitions_identical_but" if unlike else "note.repetitions_identical"
        return Noise(False, message(code, repetitions=runs))
    how = {"ratio": worst, "spread": spread, "margin": margin}
    return Noise(worst <= margin, message("note.noise", repetitions=runs, **how))


def _by_kind(b: Record, members: Sequence[Record], runs: int) -> Noise:
    """Compare what has no distance (texts, shapes, dtypes): what comes and goes is noise."""
    leaves = [record.leaf for record in (b, *members)]
    non_finite = zip(*((leaf.nan_count or 0, leaf.inf_count or 0) for leaf in leaves))
    if any(count and not any(counts) for count, *counts in non_finite):
        return Noise(False, message("note.repetitions_finite", repetitions=runs))
    texts = ((leaf.fingerprint or leaf.value) if leaf.type == "str" else None for leaf in leaves)
    own, *kinds = (
        (leaf.type, leaf.dtype, text, *(leaf.shape or ())) for leaf, text in zip(leaves, texts)
    )
    if all(kind == kinds[0] for kind in kinds):
        return Noise(False, message("note.repetitions_alike", repetitions=runs))
    new = len(own) not in map(len, kinds) or any(
        len(set(column)) == 1 and value != column[0] for value, column in zip(own, zip(*kinds))
    )
    if new:
        return Noise(False, message("note.repetitions_differ_otherwise", repetitions=runs))
    return Noise(True, message("note.repetitions_differ", repetitions=runs))


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
EXPLAINABLE = (Status.DTYPE_MISMATCH, Status.SHAPE_MISMATCH, Status.NON_FINITE, Status.DIFFERENT)
