"""The layout of a run, as far as it recorded it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from mindrlhf_msprobe.comparison.layouts.layout import Layout
from mindrlhf_msprobe.storage.foreign.checkpoints.strategy import Strategy, recorded_cut
from mindrlhf_msprobe.storage.manifest.parallel import sizes_below
from mindrlhf_msprobe.storage.reading.reader import Run

_OUTSIDE = ("pp", "dp", "ep", "cp", "tp")  # outermost first, as MindFormers and Megatron count


def layout_of(run: Run) -> Layout | None:
    """Return the layout of a run by the parallel sizes that its networks, or its trainer, said.

    With it, how parameters are cut, as far as networks that were compiled in parallel said it.

    None where it did not record any, where they are not those of the job, where its networks have
    unlike ones, and where it has one rank.
    """
    size = world_size(run)
    if size == 1:
        return None
    found = {axes for sizes in _said(run) if (axes := _grid(sizes, size)) is not None}
    if len(found) != 1:
        return None
    grid = dict(next(iter(found)))
    return replace(Layout.from_sizes(grid), strategy=_strategy(run, size, grid["pp"]))


def _strategy(run: Run, size: int, stages: int) -> Strategy:
    """Return how the ranks of each stage cut their parameters; without those said in two ways."""
    found: Strategy = {stage: {} for stage in range(stages)}
    unlike: set[tuple[int, str]] = set()
    for file in run.run_files:
        rank = file.world.rank or 0
        stage = min(rank * stages // size, stages - 1)
        for network in file.networks:
            for name, held in (network.strategy or {}).items():
                cut = recorded_cut(held)
                if cut is None or math.prod(cut.devices) * stages != size:
                    continue
                if found[stage].setdefault(name, cut) != cut:
                    unlike.add((stage, name))
    for stage, name in unlike:
        del found[stage][name]
    return found if any(found.values()) else {}


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
