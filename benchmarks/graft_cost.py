"""What a graft costs a training step, against recording the tensor that it puts in.

The step of step_overhead.py, in PyNative mode: without a probe; with statistics of one linear cell;
with its elements; with its output put in from a run that recorded the elements of all cells. The
kinds alternate in one process.

    python benchmarks/graft_cost.py [--rounds N] [--dir DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import mindspore as ms
from median_table import alternating, print_medians
from operators import of_probe
from step_overhead import training_step

_CELL = {"include": [r"^blocks\.1\.attention\.out$"]}
_ENTRY = "Cell.blocks.1.attention.out.Dense"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dir", default="/dev/shm")
    arguments = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    root = Path(tempfile.mkdtemp(dir=arguments.dir))
    network, _, step = training_step()
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            source = of_probe({"task": "tensor"}, root / "source", network)
            for _ in range(arguments.rounds + 1):
                source(step)
            graft = {"from": str(root / "source"), "entries": [_ENTRY]}
            kinds: dict[str, dict[str, Any]] = {
                "statistics of the cell": _CELL,
                "its elements": {**_CELL, "task": "tensor"},
                "its output put in": {**_CELL, "graft": graft},
            }
            runs = {
                name: of_probe(settings, root / str(number), network)
                for number, (name, settings) in enumerate(kinds.items())
            }
            plain = {"no probe": lambda step: step()}
            times = alternating({**plain, **runs}, step, arguments.rounds)
    finally:
        shutil.rmtree(root)
    print_medians(times, "no probe")


if __name__ == "__main__":
    main()
