"""What computing again costs: `task: accuracy_check` and `task: free_benchmark` against the step.

The step of step_overhead.py: without a probe; with the layers of one block, or all cells, computed
again in float64 by numpy (accuracy_check) or run again by MindSpore (free_benchmark); with the
operators of one block as well (mix). The kinds alternate in one process.

    python benchmarks/second_runs.py [--rounds N] [--dir DIR]
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
from operators import LAYER, of_probe
from step_overhead import training_step

_ONE: dict[str, Any] = {"include": LAYER}
_MIX: dict[str, Any] = {"include": LAYER, "level": "mix"}
_KINDS: dict[str, dict[str, Any]] = {
    "statistics, all cells": {"task": "statistics"},
    **{
        f"accuracy_check, {where}": {"task": "accuracy_check", **how}
        for where, how in {
            "one block": _ONE,
            "one block, mix": _MIX,
            "one block, budget 0.5": {**_ONE, "budget": 0.5},
            "all cells": {},
        }.items()
    },
    **{
        f"free_benchmark {mode}, {where}": {"task": "free_benchmark", "pert_mode": mode, **how}
        for mode in ("no_change", "bit_noise")
        for where, how in {"one block": _ONE, "one block, mix": _MIX, "all cells": {}}.items()
    },
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", default="/dev/shm")
    arguments = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    root = Path(tempfile.mkdtemp(dir=arguments.dir))
    network, _, step = training_step()
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            kinds = {
                name: of_probe(settings, root / str(number), network)
                for number, (name, settings) in enumerate(_KINDS.items())
            }
            plain = {"no probe": lambda step: step()}
            times = alternating({**plain, **kinds}, step, arguments.rounds)
    finally:
        shutil.rmtree(root)
    print_medians(times, "no probe")


if __name__ == "__main__":
    main()
