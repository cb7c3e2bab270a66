"""How a network divides its work over ranks, as its configuration says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mindspore import nn

from mindrlhf_msprobe.storage.manifest.parallel import sizes_in

_MOST_PARAMETERS = 1 << 16
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


def strategy_of(root: nn.Cell) -> dict[str, dict[str, list[int]]]:
    """Return how the parameters of a network that was compiled in parallel are cut.

    Returns:
        Name → `devices`, the device matrix, and `map`, the axes of it over which each axis of the
        parameter is cut, as `Cell.parameter_layout_dict` has them. Parameters that are cut
        unevenly, or once more by the optimizer, are left out: their shapes tell it.
    """
    try:
        layouts = dict(root.parameter_layout_dict)
    except Exception:  # a property of the trainer's
        return {}
    found: dict[str, dict[str, list[int]]] = {}
    for name, layout in [*layouts.items()][:_MOST_PARAMETERS]:
        if not isinstance(layout, (list, tuple)) or len(layout) < 2:
            continue
        devices, tensor_map, *rest = layout
        uneven = len(rest) > 2 and (rest[1] != 0 or not rest[2])
        by_optimizer = len(rest) > 3 and bool(rest[3])
        if not uneven and not by_optimizer and _are_sizes(devices) and _are_sizes(tensor_map):
            found[str(name)] = {"devices": [*devices], "map": [*tensor_map]}
    return found


def _are_sizes(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(type(n) is int for n in value)


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
