"""seed_all: the seeds of a training, its determinism, and dropout, as msprobe sets them."""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from typing import Any

from mindrlhf_msprobe.errors import UsageError

_LARGEST = 2**32 - 1  # that numpy takes
_REMOVED = "_msprobe_without_dropout"


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = False) -> None:
    """Set the seeds of Python, numpy and MindSpore. Call it before the networks are built.

    Where PyTorch is imported, its seed and its determinism are set, too, and MindSpore may be
    missing; its dropout stays.

    Args:
        seed: 0 … 2**32 - 1.
        mode: whether MindSpore's operators and the communication compute deterministically.
        rm_dropout: makes the dropout of everything built from now on drop nothing.

    Raises:
        UsageError: an argument has the wrong type, or the seed is out of range.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _LARGEST:
        raise UsageError.saying("error.seed", seed=seed, largest=_LARGEST)
    for name, value in (("mode", mode), ("rm_dropout", rm_dropout)):
        if not isinstance(value, bool):
            raise UsageError.saying("error.seed_flag", name=name, value=value)
    import numpy

    torch = sys.modules.get("torch")
    torch = torch if hasattr(torch, "manual_seed") else None
    os.environ["PYTHONHASHSEED"] = str(seed)
    os.environ["HCCL_DETERMINISTIC"] = str(mode).lower()
    random.seed(seed)
    numpy.random.seed(seed)
    if torch is not None:
        torch.manual_seed(seed)
        torch.use_deterministic_algorithms(mode, warn_only=True)
    if torch is not None and importlib.util.find_spec("mindspore") is None:
        return
    import mindspore

    mindspore.set_seed(seed)
    mindspore.set_context(deterministic="ON" if mode else "OFF")
    if rm_dropout:
        _remove_dropout()


def _remove_dropout() -> None:
    """Replace MindSpore's dropouts where networks look them up when they are built or run."""
    from mindspore import mint, ops

    if getattr(ops.Dropout, _REMOVED, False):
        return
    for name in ("Dropout", "Dropout2D", "Dropout3D"):
        kept = _with_rate(getattr(ops, name), "keep_prob", 1.0)
        for module in (ops, ops.operations, ops.operations.nn_ops):
            setattr(module, name, kept)
    mint.nn.Dropout = _with_rate(mint.nn.Dropout, "p", 0.0)
    mint.nn.functional.dropout = _dropout


def _with_rate(kind: Any, name: str, rate: float) -> Any:
    """Return a dropout's class whose first argument, whatever it is given, is `rate`."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop(name, None)
        kind.__init__(self, rate, *args[1:], **kwargs)

    # MindSpore finds the kernel of an operator by its class's name.
    return type(kind.__name__, (kind,), {"__init__": __init__, _REMOVED: True})


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return input
