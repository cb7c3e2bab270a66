"""Which layouts two runs have, and what of it is said."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.printable import few_numbers
from mindrlhf_msprobe.comparison.layouts.layout import Layout, load_layouts
from mindrlhf_msprobe.comparison.layouts.side import laid_out
from mindrlhf_msprobe.comparison.pairing.view import View
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.storage.foreign.checkpoints.strategy import Strategy, recorded_cut
from mindrlhf_msprobe.storage.manifest.variables import sizes_below
from mindrlhf_msprobe.storage.reading.reader import Run

_OUTSIDE = ("pp", "dp", "ep", "cp", "tp")  # outermost first, as MindFormers and Megatron count


def choose(
    sides: tuple[View, View], path: str | Path | None, *, within_one: bool, has_noise: bool
) -> tuple[tuple[View, View], list[Message]]:
    """Return both sides put together, where their layouts are not the same.

    Args:
        path: of the file of layouts; None: those that the runs recorded, if both did.

    Raises:
        ConfigError: the file is wrong.
        UsageError: a layout is not that of its run, or goes with another choice.
    """
    rank_by_rank = has_noise or any(side.only_ranks for side in sides)
    if path is not None and (within_one or rank_by_rank):
        raise UsageError.saying("layout.not_with")
    found = None if path is None and rank_by_rank else _layouts(sides[0].run, sides[1].run, path)
    if found is None:
        return sides, []
    whole = [laid_out(side, layout) for side, layout in zip(sides, found)]
    joined, absent = [], []
    for name, side, layout in zip("AB", sides, found):
        if layout is None:
            continue
        axes = ", ".join(f"{axis} {layout.axes[axis]}" for axis in layout.cut or layout.axes)
        joined.append(message("layout.joined", side=name, ranks=layout.size, axes=axes))
        if missing := sorted({*layout.places} - {*side.run.ranks}):
            said = {"side": name, "ranks": few_numbers(missing)}
            absent.append(message("layout.absent_ranks", **said))
    return (whole[0], whole[1]), [*joined, *absent]


def _layouts(
    a_run: Run, b_run: Run, path: str | Path | None
) -> tuple[Layout | None, Layout | None] | None:
    """Return the layouts by which both sides are put together; None: rank is compared with rank."""
    runs = a_run, b_run
    found = layout_of(a_run), layout_of(b_run)
    if path is not None:
        found = load_layouts(path, (len(runs[0].ranks), len(runs[1].ranks)), found)
    reduced = any(layout and layout.micro_batches is not None for layout in found)
    a, b = found
    if a is not None and b is not None and not (a.strategy and b.strategy):
        a, b = replace(a, strategy={}), replace(b, strategy={})  # one alone tells nothing apart
    if a == b and not reduced:
        return None
    if path is None:
        known = (layout or world_size(run) == 1 for run, layout in zip(runs, found))
        return found if all(known) else None
    for name, run, layout in zip("AB", runs, found):  # one that is not that of its run
        ranks = run.ranks
        if layout is None and len(ranks) > 1:
            raise UsageError.saying("layout.no_layout", side=name, ranks=few_numbers(ranks))
        if layout is None:
            continue
        said = {"side": name, "size": layout.size}
        if others := sorted({*ranks} - {*layout.places}):
            raise UsageError.saying("layout.other_ranks", **said, ranks=few_numbers(others))
        world = max((file.world.size or 0 for file in run.run_files), default=0)
        if 1 < world < layout.size:
            raise UsageError.saying("layout.other_world", **said, world=world)
    return found


def layout_of(run: Run) -> Layout | None:
    """Return the layout of a run by the device mesh of its networks' parameters, if they say it.

    Else by the parallel sizes that its networks, or its trainer, said; with them, how parameters
    are cut, as far as networks that were compiled in parallel said it.

    None where it did not record any, where they are not those of the job, where its networks have
    unlike ones, and where it has one rank.
    """
    size = world_size(run)
    if size == 1:
        return None
    if (of_mesh := _of_mesh(run, size)) is not None:
        return of_mesh
    of_networks = [
        {axis: n for axis, n in network.parallel.items() if type(n) is int and n > 0}
        for file in run.run_files
        for network in file.networks
        if network.parallel
    ]
    said = of_networks or sizes_below(run.configurations())
    found = {axes for sizes in said if (axes := _grid(sizes, size)) is not None}
    if len(found) != 1:
        return None
    grid = dict(next(iter(found)))
    return replace(Layout.from_sizes(grid), strategy=_strategy(run, size, grid["pp"]))


def _of_mesh(run: Run, size: int) -> Layout | None:
    """Return the layout by the mesh over which every rank of a run says its parameters are."""
    axes: set[tuple[tuple[str, int], ...]] = set()
    places: dict[int, tuple[int, ...]] = {}
    for file in run.run_files:
        rank = file.world.rank or 0
        for network in file.networks:
            mesh = {
                axis: (held["size"], held["place"])
                for axis, held in (network.mesh or {}).items()
                if isinstance(held, dict)
                and type(held.get("size")) is type(held.get("place")) is int
                and 0 <= held["place"] < held["size"] <= size
            }
            if mesh:
                axes.add(tuple((axis, size_of) for axis, (size_of, _) in mesh.items()))
                places[rank] = tuple(place for _, place in mesh.values())
    if len(axes) != 1:
        return None
    grid = dict(next(iter(axes)))
    if math.prod(grid.values()) != size:
        return None
    whole = Layout.from_sizes(grid)
    if sorted(places.values()) != sorted(whole.places.values()):
        return None
    return replace(whole, places=places)


def _strategy(run: Run, size: int, stages: int) -> Strategy:
    """Return how the ranks of each stage cut their parameters, where they agree on it."""
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
