"""The table of medians that the benchmarks of a step print."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence


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
