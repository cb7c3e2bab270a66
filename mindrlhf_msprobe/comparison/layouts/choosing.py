"""Which layouts two runs have, and what of it is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.common.text.numbers import few_numbers
from mindrlhf_msprobe.comparison.layouts.layout import Layout, load_layouts
from mindrlhf_msprobe.comparison.layouts.recorded import layout_of, world_size
from mindrlhf_msprobe.comparison.layouts.side import laid_out
from mindrlhf_msprobe.comparison.steps.step_of_rank import Job
from mindrlhf_msprobe.errors import UsageError
from mindrlhf_msprobe.storage.reading.reader import Run


def choose(job: Job, path: str | Path | None, *, within_one: bool) -> tuple[Job, list[Message]]:
    """Return the job with both sides put together, where their layouts are not the same.

    Args:
        path: of the file of layouts; None: those that the runs recorded, if both did.

    Raises:
        ConfigError: the file is wrong.
        UsageError: a layout is not that of its run, or goes with another choice.
    """
    found = _layouts(job, path, within_one=within_one)
    if found is None:
        return job, []
    sides = [laid_out(side, layout) for side, layout in zip(job.sides, found)]
    runs = job.sides[0].run, job.sides[1].run
    return replace(job, sides=(sides[0], sides[1])), _notes(runs, found)


def _layouts(
    job: Job, path: str | Path | None, *, within_one: bool
) -> tuple[Layout | None, Layout | None] | None:
    """Return the layouts by which both sides are put together; None: rank is compared with rank."""
    rank_by_rank = bool(job.noise) or any(side.only_ranks for side in job.sides)
    if path is not None and (within_one or rank_by_rank):
        raise UsageError.saying("layout.not_with")
    if path is None and rank_by_rank:
        return None
    runs = job.sides[0].run, job.sides[1].run
    found = layout_of(runs[0]), layout_of(runs[1])
    if path is not None:
        found = load_layouts(path, (len(runs[0].ranks), len(runs[1].ranks)), found)
    if _is_one_layout(*found) and not any(map(_reduces_micro_batches, found)):
        return None
    if path is None:
        return found if all(map(_is_known, runs, found)) else None
    for name, run, layout in zip("AB", runs, found):
        _check(name, run, layout)
    return found


def _reduces_micro_batches(layout: Layout | None) -> bool:
    return layout is not None and layout.micro_batches is not None


def _notes(runs: tuple[Run, Run], layouts: tuple[Layout | None, Layout | None]) -> list[Message]:
    """Say how the ranks of each side were put together, then which of them it lacks."""
    sides = [
        (name, run, layout) for name, run, layout in zip("AB", runs, layouts) if layout is not None
    ]
    joined = [
        message("layout.joined", side=name, ranks=layout.size, axes=_shown(layout))
        for name, _, layout in sides
    ]
    absent = [
        message("layout.absent_ranks", side=name, ranks=few_numbers(missing))
        for name, run, layout in sides
        if (missing := sorted({*layout.places} - {*run.ranks}))
    ]
    return [*joined, *absent]


def _is_one_layout(a: Layout | None, b: Layout | None) -> bool:
    """Return whether two runs have one layout; a strategy that one alone has is no other one."""
    if a is None or b is None or (a.strategy and b.strategy):
        return a == b
    return replace(a, strategy={}) == replace(b, strategy={})


def _is_known(run: Run, layout: Layout | None) -> bool:
    return layout is not None or world_size(run) == 1


def _shown(layout: Layout) -> str:
    shown = layout.cut or layout.axes
    return ", ".join(f"{axis} {layout.axes[axis]}" for axis in shown)


def _check(name: str, run: Run, layout: Layout | None) -> None:
    """Refuse a layout that is not that of a run."""
    ranks = run.ranks
    if layout is None and len(ranks) > 1:
        raise UsageError.saying("layout.no_layout", side=name, ranks=few_numbers(ranks))
    if layout is not None and (others := sorted({*ranks} - {*layout.places})):
        what = {"side": name, "size": layout.size, "ranks": few_numbers(others)}
        raise UsageError.saying("layout.other_ranks", **what)
    world = max((file.world.size or 0 for file in run.run_files), default=0)
    if layout is not None and 1 < world < layout.size:
        raise UsageError.saying("layout.other_world", side=name, size=layout.size, world=world)
