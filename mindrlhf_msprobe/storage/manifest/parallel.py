"""The parallel sizes in a trainer's configuration, under the names of several trainers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Our name of each size → what trainers call it: MindFormers, then Megatron.
_NAMES = {
    "dp": ("data_parallel", "data_parallel_size"),
    "tp": ("model_parallel", "tensor_parallel", "tensor_model_parallel_size"),
    "pp": ("pipeline_stage", "pipeline_stages", "pipeline_model_parallel_size"),
    "cp": ("context_parallel", "context_parallel_size"),
    "ep": ("expert_parallel", "expert_model_parallel_size"),
}
_MOST = 1 << 20
_DEEPEST = 4


def sizes_in(setting: Callable[[str], Any]) -> dict[str, int]:
    """Return the parallel sizes of which a configuration says the tensor or the data part.

    Args:
        setting: returns a setting by its name, or None.
    """
    found: dict[str, int] = {}
    for axis, names in _NAMES.items():
        values = map(setting, names)
        size = next((v for v in values if type(v) is int and 0 < v < _MOST), None)
        if size is not None:
            found[axis] = size
    return found if {"dp", "tp"} & {*found} else {}


def sizes_below(content: Any, depth: int = 0) -> list[dict[str, int]]:
    """Return the parallel sizes of every `parallel_config` in a trainer's configurations."""
    if not isinstance(content, Mapping) or depth > _DEEPEST:
        return []
    found = []
    for name, value in content.items():
        if name == "parallel_config" and isinstance(value, Mapping):
            found += [sizes] if (sizes := sizes_in(value.get)) else []
        else:
            found += sizes_below(value, depth + 1)
    return found
