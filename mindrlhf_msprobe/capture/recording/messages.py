"""What recording says in the log: each thing once, however often it happens."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.capture.settings.configurations import as_text
from mindrlhf_msprobe.common.message import Message, as_messages, message
from mindrlhf_msprobe.common.printable import size
from mindrlhf_msprobe.config import NO_END, ProbeConfig
from mindrlhf_msprobe.log import inform, logger, warn
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.manifest.coverage import MINDSPORE, OPTIMIZERS, PHASES
from mindrlhf_msprobe.storage.reading.estimate import free_bytes
from mindrlhf_msprobe.storage.writing.directory import missing_ranks, world_of
from mindrlhf_msprobe.storage.writing.ledger import KEY_DATA


def log_start(config: ProbeConfig, root: Path, step: int, *, continues: bool) -> None:
    """Say where is recorded and what; `continues`: an earlier attempt's run."""
    if config.keep_mb:
        warn("log.keeps", keep=size(config.keep_mb << 20), root=str(root))
    phases = [p.name for p in config.phase_table().values() if config.records_phase(p)]
    parts = (
        (message("log.layers", phases=phases, steps=_steps(config)), phases),
        (message("console.key_data"), config.key_data_dump),
        (message("log.configurations"), config.configurations_dump),
    )
    what = [part for part, wanted in parts if wanted] or [message("log.nothing_on")]
    inform("log.recording", root=str(root), step=step, what=what, continues=continues)


def log_fault(what: Message, step: int, error: BaseException) -> None:
    """Say what could not be recorded; with the traceback at level debug."""
    said = message("log.fault", what=what, step=step, kind=type(error).__name__, error=error)
    logger.warning("%s", said, exc_info=error if logger.isEnabledFor(logging.DEBUG) else None)


def log_left_out(kind: str, name: str, why: str | Message) -> None:
    """Say what is not recorded although it is switched on, and why.

    Args:
        kind, name: as they stand under `coverage`.
    """
    what: str | Message = name
    if kind == PHASES:
        what = message("log.layers_of", phase=name)
    elif kind == OPTIMIZERS:
        what = message("lost.optimizer_state")
    elif kind == MINDSPORE:
        what = message("log.needs_mindspore", name=name)
    warn("log.left_out", what=what, why=[*as_messages(why)])


def log_texts(texts: Mapping[str, Any]) -> None:
    """Say which values of the configurations were written as texts: place → value."""
    shown = [
        message("log.text", path=path, kind=type(value).__name__, text=as_text(value)[:80])
        for path, value in itertools.islice(texts.items(), 10)
    ]
    if shown:
        warn("log.texts", what=shown, left=len(texts) - len(shown))


def why_nothing(config: ProbeConfig, phase: str, first: int, last: int) -> Message:
    """Return why a phase that is switched on, and ran in these steps, may have left nothing."""
    if "forward" not in config.directions:
        return message("log.no_forward")
    if config.steps and not any(first <= step <= last for step in config.steps):
        return message("log.meets_none", what=f"steps {list(config.steps)}")
    if last < config.step_start or first > config.step_end:
        window = f"step_start {config.step_start} … step_end {config.step_end}"
        return message("log.meets_none", what=window)
    if not any(map(config.records_step, range(first, last + 1))):
        every = f"step_start {config.step_start}, step_interval {config.step_interval}"
        return message("log.meets_none", what=every)
    limits = [
        f"{name} {list(getattr(config, name))}"
        for name in ("include", "exclude", "entries", "scope")
        if getattr(config, name)
    ]
    if config.phase_table()[phase].counts_tokens:
        start, end = config.token_range_start, config.token_range_end
        limits.insert(0, f"token_range_start {start} … token_range_end {end}")
    return message("log.look_at", what=limits) if limits else message("log.no_cell_ended")


def _steps(config: ProbeConfig) -> Message:
    if config.step_interval > 1:
        steps = _steps(replace(config, step_interval=1))
        return message("log.every_nth_step", interval=config.step_interval, steps=steps)
    if config.step_end < NO_END:
        return message("log.steps", first=config.step_start, last=config.step_end)
    return message("log.steps_from", first=config.step_start)


_RANKS = 8  # that are named


def log_disk_room(config: ProbeConfig, root: Path, step: int, written: Mapping[str, int]) -> None:
    """Log what the first recorded step took, and warn if the rest of the window will not fit.

    Args:
        root: the run's directory.
        step: the step that was recorded.
        written: bytes by phase, key data included, of this rank.

    Raises:
        OSError: the file system of `root` does not tell.
    """
    taken = sum(written.values())
    ranks = len(config.ranks) or world_of()["size"]
    left = config.steps_from(step + 1)
    more = taken * (left or 0)
    if config.keep_mb:
        more = min(more, max(0, (config.keep_mb << 20) - taken))
    needed, free = more * ranks, free_bytes(root)
    named = {KEY_DATA: message("console.key_data")}
    parts = [(named.get(name, name), size(count)) for name, count in written.items() if count]
    took = message("log.took", step=step, size=size(taken), parts=parts)
    there = {"free": size(free), "root": str(root)}
    if left is None:  # nobody knows how many are left
        inform("log.room", took=took, **there)
        return
    rest = {"last": config.step_end, "ranks": ranks, "needed": size(needed), **there}
    if needed > free:
        warn("log.no_room_for_rest", took=took, **rest)
    else:
        inform("log.room_for_rest", took=took, **rest)


def log_missing_ranks(config: ProbeConfig, root: Path, rank: int) -> None:
    """Warn of ranks of this job that have not begun to write into `root`.

    The lowest rank that does write there says so.

    Raises:
        OSError: `root` cannot be listed.
    """
    ranks = world_of()["size"]
    missing = missing_ranks(root, ranks, config.ranks)
    here = map(layout.manifest_rank, layout.manifests(root))
    if missing and min(here, default=rank) == rank:
        shown = ", ".join(map(str, missing[:_RANKS])) + ", …" * (len(missing) > _RANKS)
        warn("log.missing_ranks", count=len(missing), ranks=ranks, root=str(root), shown=shown)
