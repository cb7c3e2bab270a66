"""What a `compare` of next to nothing costs: starting, importing, writing tables.

    python benchmarks/compare_start.py [--rounds N] [--directory DIR]

Eight pairs of 1 000 float32 under eight keys. Beside it, in turn, an interpreter that does nothing
and one that imports numpy; and the command on one core. The best round counts.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from compare_common import arguments, command, workspace, write_key_data


class Cost(NamedTuple):
    """Seconds of one process and its children."""

    wall: float
    cpu: float


def cost(line: Sequence[str], cores: set[int]) -> Cost:
    """Run a command on these cores; bytecode may be written."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        line,
        env=environment,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = [new - old for new, old in zip(after[:2], before[:2])]  # in user mode, in the kernel
    return Cost(wall, sum(used))


def main() -> None:
    parser = arguments(__doc__, reference=False)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    cores = os.sched_getaffinity(0)
    one_thread = "import os; os.environ['OPENBLAS_NUM_THREADS'] = '1'; "
    with workspace(options.directory) as root:
        write_key_data(root, 8, 1000, equal=False)
        compare = command(root / "A", root / "B", root / "out")
        lines = {
            "an empty interpreter": ([sys.executable, "-c", "pass"], cores),
            "import numpy": ([sys.executable, "-c", f"{one_thread}import numpy"], cores),
            "compare": (compare, cores),
            "compare on one core": (compare, {min(cores)}),
        }
        found: dict[str, list[Cost]] = {name: [] for name in lines}
        for _ in range(options.rounds):  # in turn, so that whatever else happens hits all
            for name, (line, where) in lines.items():
                found[name].append(cost(line, where))
    for name, costs in found.items():
        wall, cpu = (min(values) for values in zip(*costs))
        print(f"{name:24} {wall:.3f} s, CPU {cpu:.3f} s")


if __name__ == "__main__":
    main()
