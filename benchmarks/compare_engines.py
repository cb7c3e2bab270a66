"""Ray beside the local engine, with the same number of workers on the same files.

    python benchmarks/compare_engines.py [--workers N] [--pairs N] [--elements N] [--rounds N]
        [--ranks N] [--steps N] [--entries N] [--directory DIR]

Both compare in this process, one after the other, without tables; Ray is started before its time
is taken, and how long that took is printed beside it. The best of the rounds counts.

Compared are `pairs` tensors of one rank; with `--ranks` statistics instead, of so many ranks, each
with `steps` and `entries`, as compare_large.py writes them.
"""

from __future__ import annotations

import logging
import time

from compare_common import arguments, workspace, write_key_data
from compare_large import Size, write_rank

from mindrlhf_msprobe import compare_runs


def main() -> None:
    import ray

    parser = arguments(__doc__, reference=False)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--entries", type=int, default=250)
    options = parser.parse_args()
    with workspace(options.directory) as root:
        if options.ranks:
            size = Size(options.steps, options.ranks, options.entries, 0.01, scattered=False)
            for rank in range(options.ranks):
                for side in "AB":
                    write_rank(root / side, rank, size, changed=side == "B", shifted=False)
        else:
            write_key_data(root, options.pairs, options.elements, equal=False)

        def best(engine: str) -> float:
            return min(seconds(engine) for _ in range(options.rounds))

        def seconds(engine: str) -> float:
            began = time.perf_counter()
            compare_runs(root / "A", root / "B", engine=engine, workers=options.workers)
            return time.perf_counter() - began

        local = best("local")
        began = time.perf_counter()
        ray.init(num_cpus=options.workers, include_dashboard=False, logging_level=logging.ERROR)
        started = time.perf_counter() - began
        cluster = best("ray")
        ray.shutdown()
    print(f"local {local:6.2f} s with {options.workers} workers")
    print(f"ray   {cluster:6.2f} s with {options.workers} workers, started in {started:.1f} s")
    print(f"ray takes {cluster / local:.1f} times as long")


if __name__ == "__main__":
    main()
