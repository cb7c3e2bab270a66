"""The layout of a run, as far as it recorded it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mindrlhf_msprobe.comparison.layouts.layout import Layout
from mindrlhf_msprobe.storage.manifest.parallel import sizes_below
from mindrlhf_msprobe.storage.reading.reader import Run

_OUTSIDE = ("pp", "dp", "ep", "cp", "tp")  # outermost first, as MindFormers and Megatron count


def layout_of(run: Run) -> Layout | None:
    """Return the layout of a run by the parallel sizes that its networks, or its trainer, said.

    None where it did not record any, where they are not those of the job, where its networks have
    unlike ones, and where it has one rank.
    """
    size = world_size(run)
    if size == 1:
        return None
    found = {axes for sizes in _said(run) if (axes := _grid(sizes, size)) is not None}
    if len(found) != 1:
        return None
    return Layout.from_sizes(dict(next(iter(found))))


def world_size(run: Run) -> int:
    """Return how many ranks the job of a run had."""
    sizes = {file.world.size for file in run.run_files if file.world.size}
    return max([*sizes, max(run.ranks, default=0) + 1])


def _said(run: Run) -> Iterator[dict[str, int]]:
    of_networks = [
        {axis: size for axis, size in network.parallel.items() if type(size) is int and size > 0}
        for file in run.run_files
        for network in file.networks
        if network.parallel
    ]
    yield from of_networks or sizes_below(run.configurations())


def _grid(sizes: dict[str, int], world: int) -> tuple[tuple[str, int], ...] | None:
    """Return the axes of a job, None if these are not its sizes; experts divide the data part."""
    experts = sizes.get("ep", 1)
    sizes = {axis: sizes.get(axis, 1) for axis in _OUTSIDE}
    others = sizes["pp"] * sizes["cp"] * sizes["tp"]
    if world % others:
        return None
    data = world // others
    if sizes["dp"] not in (1, data) or data % experts:
        return None
    sizes |= {"dp": data // experts, "ep": experts}
    assert math.prod(sizes.values()) == world
    return tuple(sizes.items())
