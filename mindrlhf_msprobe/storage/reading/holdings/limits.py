"""What a run does not hold by choice: what its configuration left out, and what was thinned."""

from __future__ import annotations

from collections.abc import Iterator

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage.manifest import thinned
from mindrlhf_msprobe.storage.reading.reader import Run


def limits_of(run: Run) -> list[Message]:
    """Return what a run was configured not to record of its layers, and what `keep_mb` removed.

    Phases that are switched off are not among it: what was asked for is what is looked at.
    """
    return [*_configured(run), *thinned_of(run)]


def _configured(run: Run) -> Iterator[Message]:
    config = run.config(min(run.ranks, default=0))
    if config is None or not run.phases:
        return
    outside = [step for step in run.steps if not config.step_start <= step <= config.step_end]
    if outside:
        steps = {"first": config.step_start, "last": config.step_end}
        yield message("coverage.steps_outside", **steps)
    if config.steps:
        yield message("coverage.steps_not_chosen", steps=list(config.steps))
    if config.step_interval > 1:
        chosen = {"interval": config.step_interval, "first": config.step_start}
        yield message("coverage.step_interval", **chosen)
    if config.include or config.exclude:
        yield message("coverage.cells_left_out")
    if config.entries:
        yield message("coverage.entries_left_out", entries=list(config.entries))
    if config.scope:
        yield message("coverage.outside_scope", first=config.scope[0], last=config.scope[1])
    for name in sorted({"forward", "backward"} - {*config.directions}):
        directions = list(config.directions)
        yield message("coverage.direction_off", direction=name, directions=directions)
    for name in sorted({"input", "output"} - {*config.parts}):
        yield message("coverage.part_off", part=name, parts=list(config.parts))
    if not config.parameters:
        yield message("coverage.parameters_off")


def thinned_of(run: Run) -> Iterator[Message]:
    """Yield of which steps what was removed, and on which ranks."""
    for kind in thinned.KINDS:
        spans = {
            rank: removed
            for file in run.run_files
            if (rank := file.rank) is not None and (removed := file.thinned[kind])
        }
        if spans:
            shown = max(spans.values(), key=len)
            yield message("coverage.thinned_steps", what=kind, ranks=sorted(spans), steps=shown)
