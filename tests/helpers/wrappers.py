"""Cells that stand around another one and go by its names, as those of hyper-parallel do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import mindspore as ms
from mindspore import nn

#: MindSpore 2.10 recomputes in a second way, in which gradients flow through the first run.
WAYS = (
    {"use_reentrant": False}
    if "use_reentrant" in inspect.signature(ms.recompute).parameters
    else {}
)


class CheckpointWrapper(nn.Cell):
    """Recomputes the cell it holds, and leaves its own part out of the names."""

    _PREFIX = "_ckpt_wrapped_module."

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self._ckpt_wrapped_module = cell

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        return ms.recompute(self._ckpt_wrapped_module, *args, **kwargs, **WAYS)

    def cells_and_names(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Cell]]:
        for name, cell in super().cells_and_names(*args, **kwargs):
            yield name.replace(self._PREFIX, ""), cell

    def parameters_and_names(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        for name, parameter in super().parameters_and_names(*args, **kwargs):
            yield name.replace(self._PREFIX, ""), parameter


class SwapWrapper(CheckpointWrapper):
    """Runs the cell it holds; hyper-parallel's moves what it keeps to the host."""

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        return self._ckpt_wrapped_module(*args, **kwargs)
