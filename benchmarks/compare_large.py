"""What comparing two long runs of statistics costs, beside parsing their journals with json.

    python benchmarks/compare_large.py [--steps N] [--ranks N] [--entries N] [--different SHARE]
        [--shifted] [--all-rows] [--columns] [--directory DIR]

Makes two runs through the package's own writer: every step of every rank holds five phases, key
data aside, whose entries have an input, a parameter and an output each, with statistics and
fingerprints. One fault is planted in B: from one cell of rank 1 on, in the step that leaves about
SHARE of all records behind it, everything of all ranks differs. With `--scattered`, every step of
every rank has its share instead, from the same cell on. With `--shifted`, the entries of B have
other sequence numbers and other call stacks, so that no journal agrees byte for byte.

With `--columns`, both runs are exported before, and their columns are read instead of journals.

Told are: processor seconds (user and system, children included) of `compare`, and of reading and
parsing all journals of both with the standard json module; the peak of private memory of all
processes, with these runs and with twice as many steps; and the bytes of the tables. The place
that is named is checked.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from compare_common import arguments, command, workspace
from compare_memory import INTERVAL, family, private_bytes

from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.leaves import Leaf
from mindrlhf_msprobe.storage.writing.writer import RunWriter

PHASES = (
    "actor_generate_sequences",
    "actor_compute_log_prob",
    "reference_compute_log_prob",
    "critic_compute_values",
    "actor_update",
)
RECORDS = 3  # of an entry
SWITCHES = (
    "msprobe",
    "actor_infer_dump",
    "actor_train_dump",
    "reference_dump",
    "critic_train_dump",
)
PARSE = """
import json, sys
from pathlib import Path
for root in sys.argv[1:]:
    for path in Path(root).rglob("records.jsonl"):
        for line in path.read_bytes().splitlines():
            json.loads(line)
"""


class Size:
    """How much is recorded, and from where on it differs.

    Args:
        different: the share of records that differ.
        scattered: whether each step of each rank has this share.
    """

    def __init__(
        self, steps: int, ranks: int, entries: int, different: float, scattered: bool
    ) -> None:
        self.steps, self.ranks, self.entries = steps, ranks, entries
        self.different, self.scattered = different, scattered

    @property
    def records(self) -> int:
        return self.steps * self.ranks * self.entries * RECORDS

    @property
    def fault(self) -> tuple[int, int, int]:
        """Step, rank and number of the first entry whose output differs."""
        if self.scattered:
            return 0, 0, int(self.entries * (1 - self.different))
        return max(0, int(self.steps * (1 - self.different))), min(1, self.ranks - 1), 2

    def differs(self, step: int, rank: int, number: int) -> bool:
        """Tell whether the output of an entry differs."""
        first, origin, at = self.fault
        if self.scattered:
            return number >= at
        return step > first or (step == first and rank == origin and number >= at)


def cell_of(number: int) -> str:
    return "root" if not number else f"model.layers.{number // 6}.block.linear_{number % 6}"


def entry_name(number: int) -> str:
    kind = "Model" if not number else "Linear"
    return f"Cell.{cell_of(number)}.{kind}.forward.0"


def leaf(seed: str) -> dict[str, Any]:
    numbers = random.Random(seed)
    values = [numbers.gauss(0, 1) for _ in range(4)]
    return Leaf(
        "mindspore.Tensor",
        "Float32",
        (2, 1024, 4096),
        *(values[0] + 5, values[1] - 5, values[2], abs(values[3]) * 100),
        nan_count=0,
        inf_count=0,
        fingerprint=f"xxh3_128:{numbers.getrandbits(128):032x}",
    ).to_json()


def write_rank(
    root: Path,
    rank: int,
    size: Size,
    changed: bool,
    shifted: bool,
    also: Callable[[RunWriter, int], None] = lambda writer, step: None,
) -> None:
    """Record one rank.

    Args:
        also: called before each step ends: writes what else it has.
    """
    config = ProbeConfig(
        dump_path=str(root), step_end=size.steps, token_range_end=9, **dict.fromkeys(SWITCHES, True)
    )
    writer = RunWriter(
        root, rank=rank, config=config.to_json(), existing="refuse", task="statistics"
    )
    frames = tuple(f"File /job{int(shifted)}/train.py, line {n}, in step" for n in range(4))
    each = size.entries // len(PHASES)
    for step in range(size.steps):
        sequence = 7 * shifted
        for number in range(size.entries):
            inside = number % each
            if not inside:
                root_seq, sequence = sequence, sequence + 1
            place = f"{step} {rank} {number}"
            before = f"{step} {rank} {max(number - 1, 0)}"
            mine, given = (
                changed and n >= 0 and size.differs(step, rank, n) for n in (number, number - 1)
            )
            values: dict[str, Any] = {
                "input_args": [leaf(f"{before}{' B' if given else ''}")],
                "input_kwargs": {},
                "parameters": {"weight": leaf(f"{inside} {rank} weight")},
                "output": [leaf(f"{place}{' B' if mine else ''}")],
            }
            line = JournalLine(
                entry_name(inside),
                sequence if inside else root_seq,
                sequence + 1 if inside else root_seq + 2 * each + 1,
                entry_name(0) if inside else None,
                values=values,
                frames=frames,
            )
            sequence += 2 if inside else 0
            writer.sink(PHASES[number // each], step).append(line)
            if inside == each - 1:
                sequence += 2
        also(writer, step)
        writer.end_step(step, {})
    writer.close()


def write_runs(root: Path, size: Size, shifted: bool) -> tuple[Path, Path]:
    """Make both runs, unless they are there."""
    runs = root / "A", root / "B"
    if not (root / "made").exists():
        os.environ["RANK_SIZE"] = str(size.ranks)
        for changed, run in enumerate(runs):
            for rank in range(size.ranks):
                write_rank(run, rank, size, bool(changed), bool(changed) and shifted)
        (root / "made").touch()
    return runs


def processor_seconds(line: list[str]) -> tuple[float, int]:
    """Run a command; return its user and system seconds and its peak of private memory."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    )
    peak = 0
    stop = threading.Event()

    def look() -> None:
        nonlocal peak
        while not stop.wait(INTERVAL * 4):
            peak = max(peak, sum(private_bytes(i)[0] for i in family(process.pid)))

    watcher = threading.Thread(target=look)
    watcher.start()
    _, said = process.communicate()
    stop.set()
    watcher.join()
    if process.returncode not in (0, 1):
        sys.exit(f"{line} ended with {process.returncode}: {said.decode()[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, peak


def sizes(root: Path, whole: Size) -> Iterator[tuple[Path, Size]]:
    for factor in (1, 2):
        yield (
            root / str(factor),
            Size(
                whole.steps * factor, whole.ranks, whole.entries, whole.different, whole.scattered
            ),
        )


def check_place(verdict: dict[str, Any], size: Size) -> str:
    """Return the place that was named, having made sure that it is the planted one."""
    step, rank, number = size.fault
    each = size.entries // len(PHASES)
    first = verdict["first_divergence"]
    found = first["step"], first["rank"], first["phase"], first["entry"]
    planted = step, rank, PHASES[number // each], entry_name(number % each)
    if found != planted:
        sys.exit(f"planted {planted}, but found {found}")
    return f"step {step}, rank {rank}, {planted[2]}, {planted[3]}"


def with_columns(runs: tuple[Path, Path]) -> list[Path]:
    """Export both runs; return the files."""
    for run in runs:
        line = [sys.executable, "-m", "mindrlhf_msprobe", "export", str(run)]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    return [path for run in runs for path in run.glob("columns.rank*.parquet")]


def bytes_of(path: Path) -> int:
    return path.stat().st_size


def journal_bytes(run: Path) -> int:
    return sum(map(bytes_of, run.rglob("records.jsonl")))


def main() -> None:
    parser = arguments(__doc__, reference=False)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--entries", type=int, default=300)
    parser.add_argument("--different", type=float, default=0.04)
    parser.add_argument("--scattered", action="store_true")
    parser.add_argument("--shifted", action="store_true")
    parser.add_argument("--all-rows", action="store_true")
    parser.add_argument("--columns", action="store_true")
    parser.add_argument("--keep", metavar="DIR", help="make the runs here, or use those made here")
    options = parser.parse_args()
    whole = Size(
        options.steps, options.ranks, options.entries, options.different, options.scattered
    )
    with workspace(options.directory) as scratch:
        root = Path(options.keep) if options.keep else scratch
        for directory, size in sizes(root, whole):
            runs = write_runs(directory, size, options.shifted)
            copies = with_columns(runs) if options.columns else []
            parsing, _ = processor_seconds([sys.executable, "-c", PARSE, *map(str, runs)])
            out = scratch / f"out{size.steps}"
            line = command(*runs, out) + ["--all-rows"] * options.all_rows
            spent, peak = processor_seconds(line)
            verdict = json.loads((out / "verdict.json").read_bytes())
            counts = verdict["counts"]
            total = sum(counts.values())
            made = sum(path.stat().st_size for path in out.iterdir())
            print(
                f"{total:>9,} records, {counts['identical'] / total:.1%} identical: "
                f"{spent:.1f} s of CPU, json {parsing:.1f} s ({spent / parsing:.2f} times); "
                f"{spent / total * 1e6:.0f} us a record; private memory {peak / 1e6:.0f} MB; "
                f"{made / 1e6:.1f} MB of tables"
            )
            print(f"          {check_place(verdict, size)}")
            if copies:
                share = sum(map(bytes_of, copies)) / sum(map(journal_bytes, runs))
                print(f"          columns take 1/{1 / share:.1f} of the journals' bytes")
            for path in copies:
                path.unlink()


if __name__ == "__main__":
    main()
