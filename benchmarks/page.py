"""What the report page of a large pair of runs costs: to write, to keep, and to open.

    python benchmarks/page.py [--steps N] [--ranks N] [--entries N] [--different SHARE] [--keep DIR]
        [--rounds N] [--open PAGE]

The runs are those of compare_large.py with key data beside them: prompts and responses, rewards,
losses. One cell of B is faulty from the step on that leaves SHARE of all records behind it, and
everything after it differs. Told are, of a quarter, of half and of all steps: the bytes of the
page; the processor seconds of `report`, of `compare` and of `check`, each a whole command, beside
those of parsing all journals with the standard json module; of writing the page alone, once both
runs are compared and checked, the same, three times in one process; the peak of private memory;
and the time until a Chromium that has just been started has drawn the first view, or, in
a window 2000 pixels high, the view of charts, the median of the rounds. The parts that a run has
not are counted by the page itself. Without playwright and Chromium nothing is opened. `--open`
opens a page that is there, and does nothing else.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from compare_common import arguments, command, workspace
from compare_large import PARSE, Size, processor_seconds, write_rank
from page_common import opening

from mindrlhf_msprobe.capture.recording.saves import describe_key_data
from mindrlhf_msprobe.storage.writing.writer import RunWriter

PROMPTS = 8  # of a rank and step
WORDS = ["a", "model", "answers", "questions", "about", "numbers", "in", "words", "that", "differ"]


def key_data(step: int, rank: int, changed: bool) -> dict[str, Any]:
    """Return what a trainer saves in a step of one rank."""
    draw = random.Random(f"{step} {rank} {changed}")
    prompts = random.Random(f"{step} {rank}")
    apart = changed * 0.01
    return {
        "prompts": [" ".join(prompts.choices(WORDS, k=40)) for _ in range(PROMPTS)],
        "responses": [" ".join(draw.choices(WORDS, k=120)) for _ in range(PROMPTS)],
        "rewards": [draw.gauss(0.5, 0.1) for _ in range(PROMPTS)],
        "loss": 2 * math.exp(-step / 50) + apart,
        "kl_loss": 0.1 + step / 1000 + apart,
    }


def write_runs(root: Path, size: Size) -> list[Path]:
    """Make both runs, unless they are there."""
    runs = [root / "A", root / "B"]
    if (root / "made").exists():
        return runs
    os.environ["RANK_SIZE"] = str(size.ranks)

    def save(writer: RunWriter, step: int, rank: int, changed: bool) -> None:
        sequence = size.entries * 4  # behind the phases
        for key, value in key_data(step, rank, changed).items():
            described = describe_key_data(key, value, fingerprint=True)
            sequence += 1
            content = {"seq": sequence, "phase": None, "data": described.structure}
            writer.save_key_data(key, step, 0, lambda c=content: c, described.arrays)

    for number, run in enumerate(runs):
        for rank in range(size.ranks):
            differs = size.fault[0] if number else size.steps

            def each(writer: RunWriter, step: int, rank: int = rank, first: int = differs) -> None:
                save(writer, step, rank, step > first)

            write_rank(run, rank, size, bool(number), False, each)
    (root / "made").touch()
    return runs


#: Prints how many times parsing both runs takes what writing their page alone does.
ALONE = """
import gc, json, sys, tempfile, time
from pathlib import Path
from mindrlhf_msprobe import check_runs, compare_runs, open_run
from mindrlhf_msprobe.report.page.page import Shown, write_page

def seconds(call):
    began = time.process_time()
    call()
    return time.process_time() - began

def parse():
    for run in sys.argv[1:]:
        for journal in Path(run).rglob("records.jsonl"):
            for line in journal.open("rb"):
                json.loads(line)

gc.set_threshold(200_000)  # as the command does
comparison, checks = compare_runs(*sys.argv[1:]), check_runs(sys.argv[1:]).runs
with tempfile.TemporaryDirectory() as made:
    for _ in range(3):
        runs = tuple(map(open_run, sys.argv[1:]))
        parsing = seconds(parse)
        page = seconds(lambda: write_page(Shown(runs, comparison, checks), Path(made) / "p.html"))
        print(f"{page / parsing:.2f}")
"""


def measure(root: Path, scratch: Path, size: Size, rounds: int) -> None:
    """Write the page of runs of one size, and print what it took."""
    runs = write_runs(root, size)
    page, out = scratch / f"report{size.steps}.html", scratch / f"out{size.steps}"
    tool = [sys.executable, "-m", "mindrlhf_msprobe"]
    lines = {
        "json": [sys.executable, "-c", PARSE, *map(str, runs)],
        "compare": command(*runs, out),
        "check A": [*tool, "check", str(runs[0])],
        "check B": [*tool, "check", str(runs[1])],
        "report": [*tool, "report", *map(str, runs), "-o", str(page)],
    }
    spent = {name: processor_seconds(line) for name, line in lines.items()}
    parsing = spent["json"][0]
    print(f"{size.steps} steps, {size.ranks} ranks, {size.entries} entries of a step and rank:")
    for name, (seconds, peak) in spent.items():
        ratio = f"{seconds / parsing:5.2f} times json"
        print(f"  {name:8} {seconds:7.1f} s of CPU, {ratio}; private memory {peak / 1e6:.0f} MB")
    first = json.loads((out / "verdict.json").read_bytes())["first_divergence"]
    if (first["step"], first["rank"]) != size.fault[:2]:
        sys.exit(f"planted {size.fault}, but found {first['step'], first['rank']}")
    alone = subprocess.run(
        [sys.executable, "-c", ALONE, *map(str, runs)], capture_output=True, text=True, check=True
    )
    print(f"  the page alone: {', '.join(alone.stdout.split())} times json")
    print(f"  page     {page.stat().st_size / 1e6:7.1f} MB")
    if importlib.util.find_spec("playwright"):
        measure_opening(page, rounds)


def measure_opening(page: Path, rounds: int) -> None:
    """Open a page again and again, and print how long it took to draw."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        print(f"  first view drawn after {opening(driver, page, rounds)}")
        print(f"  charts drawn after {opening(driver, page, rounds, 'course')}")


def main() -> None:
    parser = arguments(__doc__, reference=False)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--entries", type=int, default=300)
    parser.add_argument("--different", type=float, default=0.4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--keep", metavar="DIR", help="make the runs here, or use those made here")
    parser.add_argument("--open", type=Path, metavar="PAGE", help="open this page only")
    options = parser.parse_args()
    if options.open:
        measure_opening(options.open, options.rounds)
        return
    with workspace(options.directory) as scratch:
        for share in (4, 2, 1):
            steps = max(1, options.steps // share)
            size = Size(steps, options.ranks, options.entries, options.different, False)
            root = Path(options.keep) if options.keep else scratch
            measure(root / str(steps), scratch, size, options.rounds)


if __name__ == "__main__":
    main()
