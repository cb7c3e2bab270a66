"""Tensors that are spread over ranks, as hyper-parallel's DTensor: the part that this rank holds.

Nothing is asked of such a tensor but what it says of itself: any operator on it goes through a
dispatcher of its own, which refuses what it does not know and may wait for other ranks.

Written from the source of hyper-parallel (mindspore-ai, `core/dtensor.py`, `core/device_mesh.py`,
`core/placement_types.py`), which is on no package index; tried on a stand-in with its members.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from mindrlhf_msprobe.storage.shards import COPY, MEAN, SUM, Shard, ShardAxis

_MEMBERS = ("to_local", "device_mesh", "placements")
_SUMS = {"sum": SUM, "avg": MEAN, "mean": MEAN}


@lru_cache(maxsize=256)
def _is_sharded(kind: type) -> bool:
    return all(hasattr(kind, name) for name in _MEMBERS)


def is_sharded(tensor: Any) -> bool:
    """Return whether a tensor is spread over ranks and says how."""
    kind: Any = type(tensor)
    return _is_sharded(kind)


def local_of(tensor: Any) -> Any:
    """Return the part of a tensor that this rank holds; of any other tensor itself."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def shard_of(tensor: Any) -> Shard | None:
    """Return which part this rank holds; None of a tensor that is not spread, or does not say."""
    if not is_sharded(tensor):
        return None
    try:
        return _shard(tensor)
    except Exception:
        # Its elements are recorded all the same: of another version, it may say it otherwise.
        return None


def mesh_of(parameters: Iterable[Any]) -> dict[str, dict[str, int]]:
    """Return the largest device mesh over which parameters are spread; empty where none is.

    By axis its `size` and the `place` of this rank, as run.json holds it.
    """
    largest: Shard | None = None
    for parameter in filter(is_sharded, parameters):
        shard = shard_of(parameter)
        if shard is not None and (largest is None or shard.ranks > largest.ranks):
            largest = shard
    if largest is None:
        return {}
    return {
        name: {"size": axis.size, "place": axis.place}
        for name, axis in largest.axes.items()
        if axis.place is not None
    }


def _shard(tensor: Any) -> Shard:
    mesh = tensor.device_mesh
    sizes = [int(size) for size in mesh.mesh_shape]
    names = [str(name) for name in mesh.mesh_dim_names or map("axis{}".format, range(len(sizes)))]
    at = mesh.get_coordinate()
    places = [None] * len(sizes) if at is None else [int(place) for place in at]
    axes = {
        name: ShardAxis(size, place, _how(placement, len(tensor.shape)))
        for name, size, place, placement in zip(names, sizes, places, tensor.placements)
    }
    return Shard(tuple(map(int, tensor.shape)), axes)


def _how(placement: Any, dimensions: int) -> int | str:
    """Return what layout.yaml calls a placement."""
    if placement.is_replicate():
        return COPY
    if type(placement).__name__ == "Shard":  # others cut in another order
        return int(placement.dim) % max(dimensions, 1)
    if placement.is_partial():
        return _SUMS.get(str(placement.reduce_op), f"partial {placement.reduce_op}")
    return str(placement)
