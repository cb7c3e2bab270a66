"""A tensor that is spread over ranks, with the members of hyper-parallel's DTensor.

hyper-parallel is on no package index. As there, every operator on such a tensor goes to a
dispatcher, and this one refuses all of them.
"""

from __future__ import annotations

from typing import Any

from mindspore import Tensor


class Placement:
    def is_replicate(self) -> bool:
        return False

    def is_partial(self) -> bool:
        return False


class Replicate(Placement):
    def is_replicate(self) -> bool:
        return True


class Shard(Placement):
    def __init__(self, dim: int) -> None:
        self.dim = dim


class Partial(Placement):
    def __init__(self, reduce_op: str = "sum") -> None:
        self.reduce_op = reduce_op

    def is_partial(self) -> bool:
        return True


class Mesh:
    """A device mesh, whose ranks are counted row by row."""

    def __init__(self, rank: int, **axes: int) -> None:
        self.rank = rank
        self.mesh_dim_names = tuple(axes)
        self.mesh_shape = tuple(axes.values())

    def get_coordinate(self) -> list[int]:
        found, left = [], self.rank
        for size in reversed(self.mesh_shape):
            left, place = divmod(left, size)
            found.append(place)
        return found[::-1]


class DTensor(Tensor):
    """A part of a tensor."""

    def __init__(self, local: Tensor, mesh: Mesh, *placements: Placement) -> None:
        super().__init__(local)
        self._local_tensor = local
        self.device_mesh_, self.placements_ = mesh, placements

    @property
    def device_mesh(self) -> Mesh:
        return self.device_mesh_

    @property
    def placements(self) -> tuple[Placement, ...]:
        return self.placements_

    @property
    def shape(self) -> tuple[int, ...]:
        whole = list(self._local_tensor.shape)
        for placement, size in zip(self.placements_, self.device_mesh_.mesh_shape):
            if isinstance(placement, Shard):
                whole[placement.dim] *= size
        return tuple(whole)

    def to_local(self) -> Tensor:
        return self._local_tensor

    def asnumpy(self) -> Any:
        return self._local_tensor.asnumpy()


def _refuse(name: str) -> Any:
    def refuses(self: DTensor, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"the dispatcher has no distributed implementation of {name}")

    return refuses


_OWN = {*vars(DTensor), "dtype", "hooks", "register_hook", "requires_grad"}
for _name in dir(Tensor):
    _public = not _name.startswith("_") or _name in ("__add__", "__sub__", "__mul__", "__neg__")
    if _public and _name not in _OWN and callable(getattr(Tensor, _name, None)):
        setattr(DTensor, _name, _refuse(_name))
for _name in ("nbytes", "itemsize", "size"):
    setattr(DTensor, _name, property(_refuse(_name)))
