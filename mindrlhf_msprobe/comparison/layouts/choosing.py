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
    a, b = (side.run for side in job.sides)
    if path is not None and (within_one or job.noise or any(side.only_ranks for side in job.sides)):
        raise UsageError.saying("layout.not_with")
    if path is None:
        if job.noise or any(side.only_ranks for side in job.sides):
            return job, []
        found = layout_of(a), layout_of(b)
    else:
        found = load_layouts(path, (len(a.ranks), len(b.ranks)), (layout_of(a), layout_of(b)))
    regrouped = any(layout is not None and layout.micro_batches for layout in found)
    if _is_one_layout(*found) and not regrouped:
        return job, []
    for name, run, layout in zip("AB", (a, b), found):
        _check(name, run, layout, given=path is not None)
    if path is None and not all(map(_is_known, (a, b), found)):
        return job, []
    sides = [laid_out(side, layout) for side, layout in zip(job.sides, found)]
    notes = [
        message("layout.joined", side=name, ranks=layout.size, axes=_shown(layout))
        for name, layout in zip("AB", found)
        if layout is not None
    ]
    absent = [
        message("layout.absent_ranks", side=name, ranks=few_numbers(missing))
        for name, run, layout in zip("AB", (a, b), found)
        if layout is not None and (missing := sorted({*layout.places} - {*run.ranks}))
    ]
    return replace(job, sides=(sides[0], sides[1])), [*notes, *absent]


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


def _check(name: str, run: Run, layout: Layout | None, *, given: bool) -> None:
    """Refuse a layout that is not that of a run."""
    if not given:
        return
    ranks = run.ranks
    if layout is None and len(ranks) > 1:
        raise UsageError.saying("layout.no_layout", side=name, ranks=few_numbers(ranks))
    if layout is not None and (others := sorted({*ranks} - {*layout.places})):
        what = {"side": name, "size": layout.size, "ranks": few_numbers(others)}
        raise UsageError.saying("layout.other_ranks", **what)
    world = max((file.world.size or 0 for file in run.run_files), default=0)
    if layout is not None and 1 < world < layout.size:
        raise UsageError.saying("layout.other_world", side=name, size=layout.size, world=world)
