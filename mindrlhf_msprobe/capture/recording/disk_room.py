"""What is said after the first step: whether the disk has room for the rest, who writes there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.common.text.numbers import size
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.log import inform, warn
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.directory.job import missing_ranks, world_of
from mindrlhf_msprobe.storage.reading.holdings.estimate import free_bytes
from mindrlhf_msprobe.storage.writing.ledger import KEY_DATA

_RANKS = 8  # that are named


def log_disk_room(config: ProbeConfig, root: Path, step: int, written: Mapping[str, int]) -> None:
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
    left = config.steps_from(step + 1)
    more = taken * (left or 0)
    if config.keep_mb:
        more = min(more, max(0, (config.keep_mb << 20) - taken))
    needed, free = more * ranks, free_bytes(root)
    named = {KEY_DATA: message("listing.key_data")}
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
