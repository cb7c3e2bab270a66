"""How much of the speed at which the machine reads the same files a comparison reaches.

    python benchmarks/compare_bandwidth.py [--pairs N] [--elements N] [--equal] [--workers N]
        [--directory DIR]

Reading is a plain loop of readinto over all files from the page cache, in as many processes as
there are processors; the comparison is timed as a whole command, and as its arithmetic alone on
mapped files in as many processes.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path

from compare_common import arguments, best, command, workspace, write_key_data

from mindrlhf_msprobe.comparison.judging.arrays import compare_arrays
from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance
from mindrlhf_msprobe.storage.arrays.npy import open_npy

CHUNK = 1 << 20
ROUNDS = 3


def read(path: Path) -> None:
    """Read a file into one buffer again and again."""
    buffer = bytearray(CHUNK)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def compare(paths: tuple[Path, Path]) -> None:
    compare_arrays(open_npy(paths[0]), open_npy(paths[1]), Tolerance())


def shortest(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    parser = arguments(__doc__, reference=False)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--equal", action="store_true", help="compare equal pairs")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    fork = multiprocessing.get_context("fork")
    with workspace(options.directory) as root, fork.Pool(options.workers) as pool:
        write_key_data(root, options.pairs, options.elements, options.equal)
        sides = [sorted((root / side).rglob("*.npy")) for side in "AB"]
        size = sum(path.stat().st_size for side in sides for path in side)
        reading = shortest(lambda: pool.map(read, sides[0] + sides[1]))
        kernel = shortest(lambda: pool.map(compare, list(zip(*sides))))
        lines = [command(root / "A", root / "B", root / f"out{i}") for i in range(ROUNDS)]
        whole = best(lines)
    for name, took in (("readinto", reading), ("arithmetic", kernel), ("command", whole)):
        print(f"{name:10} {took:7.3f} s {size / took / 1e9:6.2f} GB/s {reading / took:6.1%}")


if __name__ == "__main__":
    main()
