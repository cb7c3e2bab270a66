"""What is said after the first step: whether the disk has room for the rest, who writes there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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
    said = f"step {step} took {size(taken)} of this rank ({parts})"
    if config.step_end == NO_END:  # nobody knows how many are left
        logger.info("%s; %s are free at %s", said, size(free), root)
        return
    rest = f"the steps up to step_end {config.step_end} of {ranks} rank(s) need "
    rest += f"{size(needed)} more, {size(free)} are free at {root}"
    if needed > free:
        logger.warning(
            "%s; %s. What does not fit will be lost: record fewer steps, phases or cells, or "
            "choose a dump_path with more room.",
            said,
            rest,
        )
    else:
        logger.info("%s; %s", said, rest)


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
        logger.warning(
            "%d of the %d ranks have not begun to write into %s yet (%s). If they do not come: "
            "their nodes do not share this storage, or their dump_path is another one; what they "
            "write is put together with `mindrlhf-msprobe merge` when the job has ended.",
            len(missing),
            ranks,
            root,
            shown,
        )
