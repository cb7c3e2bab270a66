"""What recording operators costs: inside one layer, in all of a step, and against msprobe.

The step of step_overhead.py: without a probe; with the cells of one layer recorded, and with its
cells and operators; with the operators of all cells, beside the cells or alone; and where
mindstudio-probe is installed, the same under its PrecisionDebugger. The kinds alternate in one
process. On CPU msprobe cannot compute a norm (there is no kernel for mint.norm), so that function
is replaced by MindSpore's other one.

    python benchmarks/operators.py [--rounds N] [--dir DIR] [--level L1|mix]

With msprobe, in an environment that has it and numpy 1:

    PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python PYTHON_OF_THAT_ENVIRONMENT benchmarks/operators.py
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import mindspore as ms
from mindspore import mint, nn, ops
from step_overhead import training_step

from mindrlhf_msprobe import Probe

LAYER = [r"blocks\.1"]


def of_probe(
    settings: dict[str, Any], path: Path, network: nn.Cell
) -> Callable[[Callable[[], Any]], None]:
    on = {"msprobe": True, "actor_train_dump": True, "step_end": 10**6, "dump_path": str(path)}
    probe = Probe.from_config({**on, **settings})
    probe.watch(actor=network)

    def run(step: Callable[[], Any]) -> None:
        with probe.phase("actor_update"):
            step()
        probe.step()

    return run


def of_msprobe(
    level: str, path: Path, network: nn.Cell
) -> Callable[[Callable[[], Any]], None] | None:
    if find_spec("msprobe") is None:
        return None
    mint.norm = ops.norm
    from msprobe.mindspore import PrecisionDebugger

    section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    content = {"task": "statistics", "level": level, "dump_path": str(path), "rank": [], "step": []}
    config = path.with_suffix(".json")
    config.write_text(json.dumps({**content, "statistics": section}))
    debugger = PrecisionDebugger(config_path=str(config))

    def run(step: Callable[[], Any]) -> None:
        debugger.start(network)
        step()
        debugger.stop()
        debugger.step()

    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--level", choices=("L1", "mix"), default="mix")
    arguments = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    root = Path(tempfile.mkdtemp(dir=arguments.dir))
    network, _, step = training_step()
    level = arguments.level
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        kinds = {
            "no probe": lambda step: step(),
            "cells of one layer": of_probe({"include": LAYER}, root / "a", network),
            f"{level} in one layer": of_probe(
                {"include": LAYER, "level": level}, root / "b", network
            ),
            level: of_probe({"level": level}, root / "c", network),
            f"msprobe {level}": of_msprobe(level, root / "d", network),
        }
        kinds = {name: run for name, run in kinds.items() if run is not None}
        times: dict[str, list[float]] = {name: [] for name in kinds}
        worked: dict[str, list[float]] = {name: [] for name in kinds}
        try:
            for round_ in range(arguments.rounds + 2):
                for name, run in list(kinds.items())[:: 1 if round_ % 2 else -1]:
                    began, processor = time.perf_counter(), time.process_time()
                    run(step)
                    if round_ >= 2:  # the first rounds warm up
                        times[name].append(time.perf_counter() - began)
                        worked[name].append(time.process_time() - processor)
        finally:
            shutil.rmtree(root)
    for what, of in (("time", times), ("processor time", worked)):
        show(what, of, level)


def show(what: str, seconds: dict[str, list[float]], level: str) -> None:
    """Print the medians of one way to measure, and what they are to each other."""
    print(what)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    plain = medians["no probe"]
    for name, median in medians.items():
        print(f"  {name:20} {median * 1000:8.1f} ms  {median / plain:5.2f}")

    def added(name: str) -> float:
        return statistics.median(b - a for a, b in zip(seconds["no probe"], seconds[name]))

    layer = zip(seconds["cells of one layer"], seconds[f"{level} in one layer"])
    ratio = statistics.median(b / a for a, b in layer)
    print(f"  {level} in one layer / its cells: {ratio:.3f}")
    if f"msprobe {level}" in seconds:
        ours, theirs = added(level), added(f"msprobe {level}")
        print(
            f"  added to the step: {ours * 1000:.0f} ms, msprobe {theirs * 1000:.0f} ms: "
            f"{theirs / ours:.1f} times"
        )


if __name__ == "__main__":
    main()
