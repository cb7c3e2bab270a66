"""How long `import mindrlhf_msprobe` takes, beside an interpreter that imports nothing."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

RUNS = 15


def seconds(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def main() -> None:
    empty, package = [], []
    for _ in range(RUNS):  # in turn, so that whatever else the machine does hits both
        empty.append(seconds("pass"))
        package.append(seconds("import mindrlhf_msprobe"))
    a, b = statistics.median(empty), statistics.median(package)
    print(
        f"empty interpreter {a:.3f} s, with the import {b:.3f} s: {b - a:.3f} s, {b / a:.2f} times"
    )


if __name__ == "__main__":
    main()
