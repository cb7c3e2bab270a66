"""The table of medians that the benchmarks of a step print."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def print_medians(seconds: Mapping[str, Sequence[float]], plain: str) -> None:
    """Print the median of each kind, and its ratio to that of the kind `plain`.

    Args:
        seconds: what each kind took, of every round.
        plain: the kind that the others are held against.
    """
    width = max(map(len, seconds))
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    for name, median in medians.items():
        ratio = median / medians[plain]
        sys.stdout.write(f"{name:{width}} {median * 1000:9.2f} ms  {ratio:7.2f}\n")


def alternating(
    kinds: Mapping[str, Callable[[Callable[[], Any]], Any]], step: Callable[[], Any], rounds: int
) -> dict[str, list[float]]:
    """Return what each kind of step takes, in seconds: all kinds in turn, round by round.

    Args:
        kinds: runs a step in one way.
        rounds: how many are counted; one before them warms up.
    """
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for round_ in range(rounds + 1):
        for name, run in kinds.items():
            began = time.perf_counter()
            run(step)
            if round_:
                times[name].append(time.perf_counter() - began)
    return times
