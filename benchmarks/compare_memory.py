"""Time and peak private memory of comparing one pair of tensors, as it grows 4 and 16 times.

    python benchmarks/compare_memory.py [--elements N] [--equal] [--workers N] [--directory DIR]

The largest pair has N elements (64 Mi; 1073741824 makes 2 x 4 GB). Private memory is Private_Clean
+ Private_Dirty of the command and its children, read from smaps_rollup again and again. Pages of
the mapped input files count as Private_Clean there while no other process maps them; they belong to
the page cache, so that what is anonymous bounds the first figure. The second one has them in.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from compare_common import arguments, command, workspace, write_key_data

INTERVAL = 0.005  # s between two samples


def family(process: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    found = [process]
    for identity in found:
        try:
            for thread in Path(f"/proc/{identity}/task").iterdir():
                found += map(int, (thread / "children").read_text().split())
        except OSError:  # the process or the thread just ended
            continue
    return found


def private_bytes(process: int) -> tuple[int, int]:
    """Return (private bytes without pages of files, all private bytes) of one process."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:  # it just ended
        return 0, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}
    private = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return min(private, sizes["Anonymous"]), private


def measured(line: list[str]) -> tuple[float, int, int]:
    """Run a command; return its seconds and its peaks of private memory, without and with files."""
    began, peak, peak_with_files = time.perf_counter(), 0, 0
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        sizes = [private_bytes(identity) for identity in family(process.pid)]
        peak = max(peak, sum(size for size, _ in sizes))
        peak_with_files = max(peak_with_files, sum(size for _, size in sizes))
        time.sleep(INTERVAL)
    return time.perf_counter() - began, peak, peak_with_files


def main() -> None:
    parser = arguments(__doc__, reference=False)
    parser.add_argument("--elements", type=int, default=64 << 20)
    parser.add_argument("--equal", action="store_true", help="compare an equal pair")
    parser.add_argument("--workers", help="processes that compare (default: as compare decides)")
    options = parser.parse_args()
    first: tuple[float, int] | None = None
    for factor in (1, 4, 16):
        with workspace(options.directory) as root:
            write_key_data(root, 1, options.elements * factor // 16, options.equal)
            line = command(root / "A", root / "B", root / "out")
            line += ["--workers", options.workers] if options.workers else []
            times, peaks, peaks_with_files = zip(*(measured(line) for _ in range(3)))
        took, peak, with_files = min(times), max(peaks), max(peaks_with_files)
        first = first or (took, peak)
        print(
            f"{factor:2} x: {took:6.2f} s ({took / first[0]:.2f} x), private memory "
            f"{peak / 1e6:.0f} MB ({peak / first[1]:.2f} x), "
            f"with mapped pages of files {with_files / 1e6:.0f} MB"
        )


if __name__ == "__main__":
    main()
