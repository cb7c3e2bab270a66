"""MindRLHF's own GRPO example on CPU, in graph mode, with the probe and without it.

    MINDRLHF_PATH=CHECKOUT python benchmarks/mindrlhf_overhead.py [--epochs N] [--dir DIR]

A tiny model (tests/integrations/drivers/mindrlhf_on_cpu.py), so what recording and compiling cost
weighs more than in a training of any size. Each kind of training is a process of its own, started
by `mindrlhf-msprobe run`. The first step counts from the building of the trainer on, which
compiles; of the later ones the median is given. MindRLHF needs mindformers, jsonlines,
latex2sympy2_extended.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TIMES = "MINDRLHF_TIMES"
LAYERS = {"actor_infer_dump": True, "actor_train_dump": True, "reference_dump": True}
ALL = {"msprobe": True, **LAYERS, "token_range_end": 2, "step_end": 10**6}
KINDS: dict[str, dict[str, Any]] = {
    "msprobe: false": {"msprobe": False},
    "all phases off": {"msprobe": True},
    "key data": {"msprobe": True, "key_data_dump": True},
    "layers, outside the step window": {**ALL, "step_start": 10**6},
    "layers, tokens 0 to 2": ALL,
    "layers and key data": {**ALL, "key_data_dump": True},
}


def train() -> None:
    """Run MindRLHF's example and write down the seconds of its steps."""
    sys.path.insert(0, str(ROOT / "tests" / "integrations" / "drivers"))
    from mindrlhf_on_cpu import replace_parts_of_mindrlhf, replace_what_a_cpu_lacks

    checkout = Path(os.environ["MINDRLHF_PATH"])
    sys.path.insert(0, str(checkout))
    replace_what_a_cpu_lacks()
    replace_parts_of_mindrlhf()
    from mindrlhf.trainer.spmd.grpo_experience_maker import GRPOExperienceMaker
    from mindrlhf.trainer.spmd.grpo_trainer import GRPOTrainer
    from mindrlhf.worker.infer_worker import InferWorker
    from mindrlhf.worker.train_worker import TrainWorker

    moments: dict[str, list[tuple[float, float]]] = {}

    def timed(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def measured(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                moments.setdefault(name, []).append((began, time.perf_counter()))

        setattr(owner, name, measured)

    timed(GRPOTrainer, "__init__")
    timed(GRPOExperienceMaker, "make_experience")
    timed(InferWorker, "generate")
    timed(TrainWorker, "train")
    example = checkout / "examples" / "grpo" / "qwen_grpo_tutorial" / "main.py"
    runpy.run_path(str(example), run_name="__main__")
    starts = [began for began, _ in moments["make_experience"]]
    first = starts[1] - moments["__init__"][0][0]
    found = {
        "first": first,
        "later": [after - before for before, after in itertools.pairwise(starts[1:])],
        "generate": [end - began for began, end in moments["generate"][1:]],
        "train": [end - began for began, end in moments["train"][1:]],
    }
    Path(os.environ[TIMES]).write_text(json.dumps(found))


def measure(name: str, section: dict[str, Any], directory: Path, epochs: int) -> dict[str, Any]:
    """Return the seconds of one kind of training."""
    sys.path.insert(0, str(ROOT / "tests" / "integrations" / "drivers"))
    from mindrlhf_on_cpu import write_files

    root = directory / name.replace(" ", "_").replace(":", "")
    section = {**section, "dump_path": str(root / "run")}
    config = write_files(root, os.environ["MINDRLHF_PATH"], mode=0, section=section, epochs=epochs)
    result = subprocess.run(
        [sys.executable, "-m", "mindrlhf_msprobe", "run", __file__, "--config", str(config)],
        cwd=root,
        env={**os.environ, TIMES: str(root / "times.json"), "LOG_MF_PATH": str(root / "logs")},
        capture_output=True,
        text=True,
    )
    if result.returncode:
        sys.exit(result.stdout[-2000:] + result.stderr[-4000:])
    found: dict[str, Any] = json.loads((root / "times.json").read_text())
    manifest = root / "run" / "run.json"
    if manifest.is_file():
        found["cost"] = json.loads(manifest.read_text())["recording"].get("graphs")
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--dir", default="/dev/shm")
    parser.add_argument("--only", action="append", help="a kind; the first is always measured")
    arguments = parser.parse_args()
    if not os.environ.get("MINDRLHF_PATH"):
        sys.exit("set MINDRLHF_PATH to a checkout of MindRLHF")
    plain: dict[str, Any] = {}
    print(f"{'':34} {'first step':>16} {'later steps':>18} {'generation':>18} {'update':>18}")
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        for name, section in KINDS.items():
            if plain and arguments.only and name not in arguments.only:
                continue
            found = measure(name, section, Path(directory), arguments.epochs)
            plain = plain or found
            columns = [f"{found['first']:8.1f} s {found['first'] / plain['first']:5.2f}"]
            for part in ("later", "generate", "train"):
                median, of_plain = (statistics.median(x[part]) for x in (found, plain))
                columns.append(f"{median * 1000:9.0f} ms {median / of_plain:5.2f}")
            print(f"{name:34} {columns[0]:>16} " + " ".join(f"{c:>18}" for c in columns[1:]))
            if found.get("cost"):
                print(f"{'':34} {json.dumps(found['cost'])}")


if __name__ == "__main__":
    if TIMES in os.environ:
        train()
    else:
        main()
