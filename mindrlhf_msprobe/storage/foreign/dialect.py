"""How the tools differ whose files are read, as far as a comparison has to know.

A comparison knows no tool by its name: it asks the dialects of what it compares.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mindrlhf_msprobe.common.frozen import dataclass
from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage.arrays.npy import BFLOAT16, rounded


@dataclass(frozen=True)
class Precision:
    """A dtype in which statistics may have been computed.

    Attributes:
        rounding: takes a number to the nearest one of the dtype; None where that is all there is.
        error: what a sum may be off, relative to what is summed.
        largest: the largest finite number of the dtype, beyond which a sum overflows.
    """

    rounding: Callable[[float], float] | None
    error: float
    largest: float


@dataclass(frozen=True)
class Dialect:
    """What one tool's files say, and what they never do.

    Attributes:
        name: the tool's; "" of this package.
        precisions: of statistics; none where they are exact: summed in float64, NaN if one element
            is NaN.
        timed: each entry says when it ran.
        records_cells: it may hold what cells received and returned, not key data alone.
        first_step: the number of its first step; a recording counts from 0.
        printed: its numbers are printed ones, with no more digits than these.
        numbers_single: a single tensor of key data may be saved as the first one of a list is.
        no_root, no_absent_gradient, no_other_keys: why there is no outermost cell, no gradient
            that is None, and nothing but what the trainer saved by name; None where there is.
    """

    name: str = ""
    precisions: tuple[Precision, ...] = ()
    timed: bool = True
    records_cells: bool = True
    first_step: int = 0
    printed: bool = False
    numbers_single: bool = False
    no_root: Message | None = None
    no_absent_gradient: Message | None = None
    no_other_keys: Message | None = None


def _float16(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float16(value))


def _bfloat16(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(rounded(np.array([value], np.float32), BFLOAT16)[0])


#: This package's own.
OWN = Dialect()
#: msprobe's. Its statistics are MindSpore's operators on the tensor: they sum float32 in float32,
#: float16 in float16, and in a network under `to_float` they round whatever the cell takes or holds
#: to that dtype first; on CPU its max and min pass over NaN. <key>.npy and <key>0.npy are the same.
MSPROBE = Dialect(
    name="msprobe",
    precisions=(
        Precision(None, 1e-5, float(np.finfo(np.float32).max)),
        Precision(_float16, 2.0**-10, float(np.finfo(np.float16).max)),
        Precision(_bfloat16, 2.0**-7, _bfloat16(3.38e38)),
    ),
    timed=False,
    numbers_single=True,
    no_root=message("coverage.msprobe_no_root"),
    no_absent_gradient=message("coverage.msprobe_no_gradient"),
    no_other_keys=message("coverage.msprobe_never_saved"),
)

#: That of MindSpore's own Dump, whose statistics a device may sum in the dtype of the tensor
#: (`device_stat_precision_mode: low`).
MINDSPORE = Dialect(name="mindspore", precisions=MSPROBE.precisions)
#: That of MindFormers' monitor: scalars alone.
MINDFORMERS = Dialect(
    name="mindformers",
    timed=False,
    records_cells=False,
    first_step=1,
    printed=True,
    no_other_keys=message("coverage.monitor_never_saved"),
)
#: That of the rollouts that hyper-parallel's RL trainer writes: key data alone.
HYPER_RL = Dialect(
    name="hyper_rl",
    timed=False,
    records_cells=False,
    no_other_keys=message("coverage.hyper_rl_never_saved"),
)


#: Every dialect by its name, as leaves have it.
DIALECTS = {dialect.name: dialect for dialect in (OWN, MSPROBE, MINDSPORE, MINDFORMERS, HYPER_RL)}
