"""What is said after the first step: whether the disk has room for the rest, who writes there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.common.numbers import size
from mindrlhf_msprobe.config import NO_END, ProbeConfig
from mindrlhf_msprobe.log import logger
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.directory.job import missing_ranks, world_of
from mindrlhf_msprobe.storage.reading.estimate import free_bytes

_RANKS = 8  # that are named


def tell_room(config: ProbeConfig, root: Path, step: int, written: Mapping[str, int]) -> None:
    """Log what the first recorded step took, and warn if the rest of the window will not fit.

    Args:
        root: the run's directory.
        step: the step that was recorded.
        written: bytes by phase, key data included, of this rank.

    Raises:
        OSError: the file system of `root` cannot be asked.
    """
    taken = sum(written.values())
    ranks = len(config.ranks) or world_of()["size"]
    later = [number for number in config.steps if number > step]
    left = len(later) if config.steps else max(0, config.step_end - step)
    needed, free = taken * ranks * left, free_bytes(root)
    parts = ", ".join(f"{name} {size(count)}" for name, count in written.items() if count)
    took = message("log.took", step=step, size=size(taken), parts=parts)
    there = {"free": size(free), "root": str(root)}
    if config.step_end == NO_END:  # nobody knows how many are left
        logger.info("%s", message("log.room", took=took, **there))
        return
    rest = {"last": config.step_end, "ranks": ranks, "needed": size(needed), **there}
    if needed > free:
        logger.warning("%s", message("log.no_room_for_rest", took=took, **rest))
    else:
        logger.info("%s", message("log.room_for_rest", took=took, **rest))


def tell_missing_ranks(config: ProbeConfig, root: Path, rank: int) -> None:
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
        known = {"count": len(missing), "ranks": ranks, "root": str(root), "shown": shown}
        logger.warning("%s", message("log.missing_ranks", **known))
