"""CPU of checking a long run, as a multiple of what orjson alone needs to parse its journals.

    python benchmarks/check_long_run.py [--steps N] [--ranks N] [--entries N] [--rounds N]
        [--directory DIR] [--columns] [--profile]

The run is made up: entries with inputs, outputs and parameters of a forward and a backward pass,
gradients of parameters, all with statistics and fingerprints that change from step to step. Both
sides are processes of their own; the best of the rounds counts, less what an empty check takes.
With `--columns` the run is exported before. Peak memory is shown of a quarter of the steps, and of
all of them: it should not grow. Beside it, what a trend of one quantity takes.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

PHASES = (
    ("actor_compute_log_prob", 0.2),
    ("reference_compute_log_prob", 0.2),
    ("actor_update", 0.6),
)

PARSE = """
import resource, sys
from pathlib import Path
import orjson
for path in Path(sys.argv[1]).rglob("records.jsonl"):
    for line in path.read_bytes().split(b"\\n"):
        if line:
            orjson.loads(line)
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
CHECK = """
import gc, resource, sys
gc.set_threshold(200_000)
from mindrlhf_msprobe import check_run
result = check_run(sys.argv[1])
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss, len(result.all_findings), *result.checked)
"""


TREND = """
import resource, sys
from mindrlhf_msprobe import open_run
open_run(sys.argv[1]).trend(derived="gradient_norm")
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def leaf(
    draw: random.Random, shape: list[int], what: str, version: str | None = None
) -> dict[str, object]:
    bits = random.Random(version).getrandbits(128) if version else draw.getrandbits(128)
    largest = draw.gauss(3.0, 0.1)
    return {
        **{"type": "mindspore.Tensor", "dtype": "Float32", "shape": shape},
        **{"Max": largest, "Min": -largest, "Mean": draw.gauss(0, 0.01)},
        **{"Norm": draw.gauss(50.0, 1.0), "nan_count": 0, "inf_count": 0},
        "fingerprint": f"xxh3_128:{bits if what else 7:032x}",
    }


def lines(draw: random.Random, phase: str, count: int, step: int, seq: int) -> list[str]:
    made = []
    train = phase == "actor_update"
    # All ranks have the same weights, those of the reference stay, and others move with each step.
    now = 0 if phase == "reference_compute_log_prob" else step
    cells = count if not train else count // 2
    for number in range(cells):
        cell = f"model.layers.{number // 8}.block{number % 8}.dense"
        entry: dict[str, object] = {
            **{"entry": f"Cell.{cell}.Dense.forward.0", "seq": seq, "end": seq + 1},
            **{"parent": "Cell.root.Network.forward.0", "opening": 0, "stack": number % 16},
        }
        if number < 16:
            entry["frames"] = [f"File model.py, line {line}, in construct" for line in range(6)]
        entry["input_args"] = [leaf(draw, [8, 128, 256], "x"), leaf(draw, [1, 1, 128, 128], "")]
        entry["input_kwargs"] = {}
        entry["parameters"] = {
            "weight": leaf(draw, [256, 256], "w", f"{cell} weight {now}"),
            "bias": leaf(draw, [256], "b", f"{cell} bias {now}"),
        }
        entry["output"] = [leaf(draw, [8, 128, 256], "y")]
        made.append(json.dumps(entry))
        seq += 2
    for number in reversed(range(count - cells)):
        cell = f"model.layers.{number // 8}.block{number % 8}.dense"
        entry = {
            **{"entry": f"Cell.{cell}.Dense.backward.0", "seq": seq, "end": seq + 1},
            **{"parent": None, "opening": 0},
            "input": [leaf(draw, [8, 128, 256], "dy")],
            "output": [leaf(draw, [8, 128, 256], "dx")],
        }
        if number % 3 == 0:
            reduced = f"{cell} gradient {step}"
            entry = {
                **{"entry": f"Cell.{cell}.Dense.parameters_grad.0", "seq": seq, "end": seq},
                **{"parent": None, "opening": 0},
                "parameters_grad": {"weight": [leaf(draw, [256, 256], "g", reduced)]},
            }
        made.append(json.dumps(entry))
        seq += 2
    return made


def write_run(root: Path, steps: int, ranks: int, entries: int) -> None:
    draw = random.Random(0)
    for step in range(steps):
        for rank in range(ranks):
            seq = step * entries * 2
            for phase, share in PHASES:
                directory = root / phase / f"step{step}" / f"rank{rank}"
                directory.mkdir(parents=True)
                made = lines(draw, phase, round(entries * share), step, seq)
                (directory / "records.jsonl").write_text("\n".join(made) + "\n")
                seq += len(made) * 2


def measured(program: str, root: Path, rounds: int) -> tuple[float, float, list[str]]:
    """Return the least CPU seconds, the peak memory in MiB, and what else it printed."""
    best, peak, rest = float("inf"), 0.0, [""]
    for _ in range(rounds):
        command = [sys.executable, "-c", program, str(root)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        best, peak, rest = min(best, float(out[0])), max(peak, int(out[1]) / 1024), out[2:]
    return best, peak, rest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--entries", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory")
    parser.add_argument("--columns", action="store_true", help="read columns, not journals")
    parser.add_argument("--profile", action="store_true", help="show where the time goes instead")
    options = parser.parse_args()
    with ExitStack() as stack:
        named = options.directory
        root = Path(named or stack.enter_context(tempfile.TemporaryDirectory()))
        sizes = {"one": 1, "quarter": max(1, options.steps // 4), "whole": options.steps}
        for name, steps in sizes.items():
            if not (root / name).exists():
                write_run(root / name, steps, options.ranks, options.entries)
            if options.columns:
                line = [sys.executable, "-m", "mindrlhf_msprobe", "export", str(root / name)]
                subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        if options.profile:
            import cProfile
            import pstats

            from mindrlhf_msprobe import check_run

            with cProfile.Profile() as profile:
                check_run(root / "quarter")
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
            return
        empty = measured(CHECK, root / "one", options.rounds)[0]
        parsed_one = measured(PARSE, root / "one", options.rounds)[0]
        parsed, _, _ = measured(PARSE, root / "whole", options.rounds)
        checked, peak, rest = measured(CHECK, root / "whole", options.rounds)
        _, quarter, _ = measured(CHECK, root / "quarter", 1)
        total = options.steps * options.ranks * options.entries
        print(f"{total} entries; checked by {len(rest) - 1} rules, {rest[0]} findings")
        print(f"orjson  {parsed - parsed_one:7.2f} s of CPU")
        print(f"check   {checked - empty:7.2f} s of CPU")
        print(f"ratio   {(checked - empty) / (parsed - parsed_one):7.2f}")
        trend, _, _ = measured(TREND, root / "whole", options.rounds)
        print(f"trend   {trend:7.2f} s of CPU, of gradient_norm in all steps")
        print(f"memory  {peak:7.0f} MiB; of a quarter of the steps {quarter:.0f} MiB")


if __name__ == "__main__":
    main()
