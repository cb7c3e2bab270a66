"""save, save_grad and step: msprobe's functions of these names, also for use inside a construct.

MindSpore compiles `save` and `save_grad` where a graph calls them.
"""

from __future__ import annotations

from typing import Any

from mindrlhf_msprobe.capture.graph.compiled import gradient_saved, saved
from mindrlhf_msprobe.capture.graph.keydata import (
    SAVE_GRADIENT_NOW,
    SAVE_NOW,
    SAVING,
    SAVING_GRADIENT,
)
from mindrlhf_msprobe.common.current import CURRENT
from mindrlhf_msprobe.errors import UsageError


def save(save_dir: Any, name: Any, data: Any) -> None:
    """Save key data with the newest probe whose run has not ended.

    May be called anywhere, also inside a construct that MindSpore compiles; there the value is
    saved whenever the graph runs. The n-th save of a name in a step is its micro-step n.

    Args:
        save_dir: taken for msprobe's sake; the data lie in the probe's dump_path.
        name: the key, a text; inside a graph a constant.
        data: as for `Probe.save_data`; inside a graph tensors, constants, and tuples, lists and
            dicts of them.
    """
    mode = SAVING(name)
    if mode == "now":
        SAVE_NOW(name, data)
    elif mode == "later":
        saved(name, data)


def save_grad(save_dir: Any, name: Any, tensor: Any) -> Any:
    """Return a tensor as it is, and save its gradient as key data, as `<name>_grad`, when it comes.

    Use what is returned in the place of the tensor. May be called where `save` may.

    Args:
        save_dir: taken for msprobe's sake; the data lie in the probe's dump_path.
        name: a text; inside a graph a constant.
        tensor: of floating point or complex numbers.
    """
    mode = SAVING_GRADIENT(name)
    if mode == "now":
        return SAVE_GRADIENT_NOW(name, tensor)
    if mode == "later":
        return gradient_saved(name, tensor)
    return tensor


def step() -> None:
    """End the training step of the newest probe whose run has not ended; see `Probe.step`.

    Graphs that still run are waited for. Where a phase is open this does nothing but say so once.
    """
    probe = CURRENT.probe_for("step()")
    if probe is not None:
        try:
            probe.step()
        except UsageError as error:
            CURRENT.log_once(error.said)
