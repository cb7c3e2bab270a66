"""How much an output changed where an input was disturbed, and whether that is too much.

Pure functions of numpy. Changes are relative, and the largest of all elements counts:

    change = max |second - first| / max(|first|, rms(first))

An element that is small beside the others of its tensor is measured by them: it is the rest of
larger terms, and carries their rounding. `ratio` is the change of the output over that of the
inputs, or over the spacing of the coarsest dtype that computes, where that is larger: rounding to
it alone changes as much.

A change is too large where it exceeds both the threshold of the output's dtype and `MOST_TIMES`
times what went in. The first is msprobe's. The second leaves alone what a healthy network does to a
rounding in 16 bits, which by itself is about as large as the threshold. Of `no_change` any bit that
differs is too much. Of `change_value` the threshold decides, or some roundings of the output where
they are larger, on operators whose result does not depend on the order; of others nothing can be
said: softmax of exchanged scores is another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.replay.benchmark.disturb import CHANGE_VALUE, FORMATS, NO_CHANGE

#: Thresholds of the change of an output, by MindSpore's names of its dtype.
THRESHOLDS: Mapping[str, float] = {
    "Float16": 0.002,
    "BFloat16": 0.0002,
    "Float32": 0.0002,
    "Float64": 0.0002,
}
#: How many times what went in an output may change, whatever the threshold says.
MOST_TIMES = 100.0

_ROUNDINGS = 4  # of its own dtype, by which a sum in another order may differ
_ORDER_FREE = frozenset(
    [
        *("sum", "mean", "prod", "norm", "var", "std", "var_mean", "std_mean", "nansum"),
        *("logsumexp", "max", "min", "amax", "amin", "median", "any", "all"),
        *("ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceStd"),
        *("SumExt", "MeanExt", "ProdExt", "LogSumExp", "Norm", "LpNorm"),
    ]
)


def is_order_free(operator: str) -> bool:
    """Return whether an operator's result does not depend on the order of what it reduces.

    Args:
        operator: its name without count and direction, e.g. `Mint.sum`.
    """
    return operator.rpartition(".")[2] in _ORDER_FREE


@dataclass(frozen=True)
class Change:
    """What became of one output.

    Attributes:
        change: the largest relative change; Inf where an element became NaN or Inf, or ceased to
            be.
        differing: elements whose bits differ.
        ratio: the change over that of the inputs; None where nothing was disturbed.
        threshold: of the output's dtype.
        consistent: whether the change is small enough.
    """

    change: float
    differing: int
    ratio: float | None
    threshold: float
    consistent: bool


def relative_change(first: np.ndarray, second: np.ndarray) -> float:
    """Return the largest relative change of two arrays of floating numbers of one shape.

    What is NaN, or the same Inf, in both is left out. 0 of empty arrays.
    """
    if first.size == 0:
        return 0.0
    with np.errstate(invalid="ignore"):  # a NaN of some kinds
        before, after = np.asarray(first, np.float64), np.asarray(second, np.float64)
    finite = np.isfinite(before) & np.isfinite(after)
    if not finite.all():
        same = finite | (before == after) | (np.isnan(before) & np.isnan(after))
        if not same.all():
            return float("inf")
        before, after = before[finite], after[finite]
        if before.size == 0:
            return 0.0
    difference = np.abs(after - before)
    if not difference.any():
        return 0.0
    largest = float(np.max(np.abs(before)))
    if largest == 0:
        return float("inf")
    scaled = before / largest  # its squares do not overflow
    rms = largest * float(np.sqrt(np.mean(np.square(scaled))))
    return float(np.max(difference / np.maximum(np.abs(before), rms)))


def judge(
    first: np.ndarray,
    second: np.ndarray,
    *,
    dtype: str,
    mode: str,
    disturbed_by: float,
    coarsest: str,
    thresholds: Mapping[str, float] = THRESHOLDS,
    most_times: float = MOST_TIMES,
    order_free: bool = False,
) -> Change:
    """Return what became of an output, and whether that is too much.

    Args:
        first, second: the output and that of the second run, as values; of one shape.
        dtype: of the output.
        mode: the disturbance, `pert_mode`.
        disturbed_by: the relative change of the inputs.
        coarsest: the coarsest dtype among those that compute.
        thresholds: by MindSpore's names of dtypes; those that are not there are the usual ones.
        order_free: whether the inputs were reordered where the order does not count.
    """
    threshold = {**THRESHOLDS, **thresholds}.get(dtype, THRESHOLDS["Float32"])
    change = relative_change(first, second)
    differing = first.size - int(
        np.count_nonzero((first == second) | (np.isnan(first) & np.isnan(second)))
    )
    if mode == NO_CHANGE:
        return Change(change, differing, None, threshold, differing == 0)
    went_in = max(disturbed_by, FORMATS[coarsest].spacing if coarsest in FORMATS else 0.0)
    ratio = change / went_in if went_in else None
    if mode == CHANGE_VALUE:
        rounding = FORMATS[dtype].spacing if dtype in FORMATS else 0.0
        consistent = not order_free or change <= max(threshold, _ROUNDINGS * rounding)
    else:
        consistent = change <= max(threshold, most_times * went_in)
    return Change(change, differing, ratio, threshold, bool(consistent))


def coarsest_of(dtypes: Sequence[str]) -> str:
    """Return the floating dtype with the fewest bits of mantissa; "" where none floats."""
    floating = [dtype for dtype in dtypes if dtype in FORMATS]
    return min(floating, key=lambda dtype: FORMATS[dtype].mantissa, default="")
