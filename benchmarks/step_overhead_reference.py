"""The step of step_overhead.py under msprobe's PrecisionDebugger, against the same step without it.

    PYTHON_OF_ITS_ENVIRONMENT benchmarks/step_overhead_reference.py [--rounds N] [--dir DIR]

Runs in an environment with mindspore and mindstudio-probe. On CPU the tool cannot compute a norm
(there is no kernel for mint.norm), so that function is replaced by MindSpore's other one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import mindspore as ms
from median_table import print_medians
from mindspore import mint, ops
from step_overhead import training_step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dir", default="/dev/shm")
    arguments = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    mint.norm = ops.norm
    root = Path(tempfile.mkdtemp(dir=arguments.dir))
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        from msprobe.mindspore import PrecisionDebugger

        network, _, step = training_step()
        times: dict[str, list[float]] = {"no tool": [], "statistics": []}
        config = root / "config.json"
        section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
        content = {"task": "statistics", "level": "L0", "dump_path": str(root / "dump")}
        content |= {"rank": [], "step": [], "statistics": section}
        config.write_text(json.dumps(content))
        debugger = PrecisionDebugger(config_path=str(config))
        try:
            for round_ in range(arguments.rounds + 2):
                for name, seconds in times.items():
                    began = time.perf_counter()
                    if name == "no tool":
                        step()
                    else:
                        debugger.start(network)
                        step()
                        debugger.stop()
                        debugger.step()
                    if round_ >= 2:  # the first rounds warm up
                        seconds.append(time.perf_counter() - began)
        finally:
            dumps = sorted(root.rglob("dump.json"))
            entries = json.loads(dumps[-1].read_text())["data"] if dumps else {}
            shutil.rmtree(root)
    print_medians(times, "no tool")
    sys.stdout.write(f"entries in the last step: {len(entries)}\n")


if __name__ == "__main__":
    main()
