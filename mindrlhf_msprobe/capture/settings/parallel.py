"""How a network divides its work over ranks, as its configuration says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.storage.manifest.parallel import sizes_in

_MOST_CELLS = 64  # that are asked for their configuration


def parallel_sizes(cells: Iterable[nn.Cell]) -> dict[str, int]:
    """Return the parallel sizes of the first cell that has any, by their names here.

    Asked is the `parallel_config` of a cell or of its `config`, as MindFormers has it, then the
    `config` itself, as it is where Megatron's names are used.
    """
    for cell, _ in zip(cells, range(_MOST_CELLS)):
        own = vars(cell)
        config = own.get("config", own.get("transformer_config"))
        for held in (own.get("parallel_config"), _of(config, "parallel_config"), config):
            found = sizes_in(_Read(held)) if held is not None else {}
            if found:
                return found
    return {}


def _of(held: Any, name: str) -> Any:
    if isinstance(held, Mapping):
        return held.get(name)
    try:
        return getattr(held, name, None)
    except Exception:  # a property of the trainer's
        return None


class _Read:
    """The settings of an object or of a mapping, as a mapping has them."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def get(self, name: str) -> Any:
        """Return a setting, or None."""
        return _of(self._held, name)
