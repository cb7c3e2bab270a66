"""How fast training against inference is: one step of a rollout and a training, row by row.

    python benchmarks/mismatch.py [--samples N] [--prompt N] [--response N] [--layers N]
        [--hidden N] [--values N] [--task tensor|sketch] [--directory DIR]

A run is made that holds, of each of --values values of each layer, the training's tensor [samples,
tokens, hidden], in another order of the samples, and the rollout's: a prefill and a decode call for
each further token, 1e-7 apart. Told are the seconds of `mismatch` as a whole command, and those of
`compare` of two runs whose training phases hold as many bytes, with one worker and with all, in
turn, all files in the page cache; the speed of `mismatch` against that of each `compare` (medians
of the rounds, seconds and processor time); and the peak of private memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from compare_common import arguments, workspace
from compare_large import SWITCHES, processor_seconds

from mindrlhf_msprobe.capture.tensors.summary import Summaries, bytes_of_sketch, to_host
from mindrlhf_msprobe.config import ProbeConfig
from mindrlhf_msprobe.storage.arrays.sketches import (
    ALGORITHM,
    MASK,
    SKETCH,
    WHOLE,
    SketchPlace,
    block_for,
    kept_of,
)
from mindrlhf_msprobe.storage.journal_line import JournalLine
from mindrlhf_msprobe.storage.writing.writer import RunWriter

ROLLOUT, TRAINING = "actor_generate_sequences", "actor_compute_log_prob"
NOISE = np.float32(1e-7)


class Recording:
    """Writes calls of a network of one step as a probe does."""

    def __init__(self, root: Path, task: str) -> None:
        switches = dict.fromkeys(SWITCHES, True)
        config = ProbeConfig(dump_path=str(root), task=task, token_range_end=1 << 20, **switches)
        self._writer = RunWriter(
            root, rank=0, config=config.to_json(), existing="refuse", task=task
        )
        self._task = task
        self._seq = 0
        self._summaries = Summaries()

    def call(
        self,
        phase: str,
        number: int,
        given: dict[str, np.ndarray],
        outputs: dict[str, list[np.ndarray]],
    ) -> None:
        """Write one call.

        Args:
            given: what the network is given, by the names of its arguments.
            outputs: cell → what it returns.
        """
        sink = self._writer.sink(phase, 0)
        root = f"Cell.root.Network.forward.{number}"
        begun, self._seq = self._seq, self._seq + 1

        def described(value: np.ndarray, record: str) -> dict[str, object]:
            host = to_host(value)
            leaf = self._summaries.describe(host)
            kept = WHOLE if self._task == "tensor" else kept_of(leaf.dtype, leaf.shape)
            name = sketch = None
            if kept in (WHOLE, MASK):
                name = sink.save(record, value, leaf.fingerprint)
            elif kept == SKETCH:
                offset = sink.save_sketch(leaf.fingerprint or "", lambda: bytes_of_sketch(host))
                sketch = SketchPlace(ALGORITHM, block_for(host.dtype), offset)
            return leaf.stored(name, fingerprint=True, sketch=sketch).to_json()

        for cell, values in outputs.items():
            entry = f"Cell.{cell}.Layer.forward.{number}"
            leaves = [described(v, f"{entry}.output.{at}") for at, v in enumerate(values)]
            sink.append(
                JournalLine(entry, self._seq, self._seq + 1, root, values={"output": leaves})
            )
            self._seq += 2
        leaves = [described(v, f"{root}.input.{at}") for at, v in enumerate(given.values())]
        values = {"input_args": leaves}
        sink.append(JournalLine(root, begun, self._seq, values=values, input_names=tuple(given)))
        self._seq += 1

    def close(self) -> None:
        """End the run."""
        self._writer.end_step(0, {})
        self._writer.close()


def layer(options: argparse.Namespace, number: int, at: int) -> np.ndarray:
    """Return one value of one layer for all tokens, float32 [samples, tokens, hidden]."""
    shape = options.samples, options.prompt + options.response, options.hidden
    return np.random.default_rng([number, at]).standard_normal(shape, np.float32)


def write_run(root: Path, options: argparse.Namespace) -> None:
    """Write the rollout and the training of one step, a call of the network at a time."""
    recording = Recording(root, options.task)
    tokens = options.prompt + options.response
    random = np.random.default_rng(0)
    ids = random.integers(1, 50_000, (options.samples, tokens), np.int32)
    order = random.permutation(options.samples)
    cells = [f"layers.{number}" for number in range(options.layers)]
    every = {
        cell: [layer(options, number, at) for at in range(options.values)]
        for number, cell in enumerate(cells)
    }
    moved = {cell: [np.ascontiguousarray(v[order]) for v in vs] for cell, vs in every.items()}
    recording.call(TRAINING, 0, {"input_ids": np.ascontiguousarray(ids[order])}, moved)
    del moved
    spans = [(0, options.prompt), *((at, at + 1) for at in range(options.prompt, tokens))]
    for number, (start, stop) in enumerate(spans):
        positions = np.tile(np.arange(start, stop, dtype=np.int32), (options.samples, 1))
        given = {"input_ids": np.ascontiguousarray(ids[:, start:stop]), "position_ids": positions}
        outputs = {
            cell: [np.ascontiguousarray(value[:, start:stop]) * (1 + NOISE) for value in values]
            for cell, values in every.items()
        }
        recording.call(ROLLOUT, number, given, outputs)
    recording.close()


def write_plain(root: Path, options: argparse.Namespace, factor: np.float32) -> None:
    """Write a training of as many bytes as one side of the run has."""
    recording = Recording(root, options.task)
    shape = options.samples, options.prompt + options.response
    ids = np.random.default_rng(0).integers(1, 50_000, shape, np.int32)
    outputs = {
        f"layers.{n}": [layer(options, n, at) * factor for at in range(options.values)]
        for n in range(options.layers)
    }
    recording.call(TRAINING, 0, {"input_ids": ids}, outputs)
    recording.close()


def main() -> None:
    parser = arguments(__doc__, reference=False)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--response", type=int, default=256)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--values", type=int, default=1)
    parser.add_argument("--task", choices=("tensor", "sketch"), default="tensor")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with workspace(options.directory) as root:
        write_run(root / "run", options)
        for name, factor in (("A", np.float32(1)), ("B", 1 + NOISE)):
            write_plain(root / name, options, np.float32(factor))
        tool = [sys.executable, "-m", "mindrlhf_msprobe"]
        runs, out = [str(root / "A"), str(root / "B")], ["-o", str(root / "out")]
        lines = {
            "mismatch": [*tool, "mismatch", str(root / "run")],
            "compare, one worker": [*tool, "compare", *runs, *out, "--workers", "1"],
            "compare": [*tool, "compare", *runs, *out],
        }
        size = sum(f.stat().st_size for f in (root / "run").rglob("*") if f.is_file())
        print(f"{size / 1e9:.2f} GB, {os.cpu_count()} processors, task {options.task}")
        found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in lines}
        for _ in range(options.rounds):
            for name, line in lines.items():
                found[name].append(timed(line))
        for name, rounds in found.items():
            seconds, cpu, peak = min(rounds)
            print(f"  {name:20} {seconds:6.2f} s, {cpu:6.2f} s of CPU, {peak / 1e6:.0f} MB private")
            speeds = [
                statistics.median(r[at] / m[at] for m, r in zip(found["mismatch"], rounds))
                for at in (0, 1)
            ]
            if name != "mismatch":
                print("    mismatch is {:.2f} times as fast, by CPU {:.2f}".format(*speeds))


def timed(line: list[str]) -> tuple[float, float, int]:
    """Return the seconds, the processor seconds and the peak of private memory of a command."""
    began = time.perf_counter()
    cpu, peak = processor_seconds(line)
    return time.perf_counter() - began, cpu, peak


if __name__ == "__main__":
    main()
