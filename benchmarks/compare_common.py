"""What the compare_*.py scripts share: data as msprobe lays it out, both tools, timing."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

CELL = "Cell.layers.{}.dense.Dense.forward.0"
BLOCK = 1 << 24  # elements made at a time
STATISTICS = "max", "min", "mean"


def arguments(description: str | None, reference: bool = True) -> argparse.ArgumentParser:
    """Return a parser with the options that all scripts have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", help="where the data are made (default: a temporary one)")
    if reference:
        parser.add_argument(
            "--reference-python",
            metavar="PATH",
            help="python of an environment with mindspore and mindstudio-probe",
        )
    return parser


@contextmanager
def workspace(directory: str | None) -> Iterator[Path]:
    """Make a directory for the data, and remove it afterwards."""
    root = Path(tempfile.mkdtemp(prefix="compare_", dir=directory))
    try:
        yield root
    finally:
        shutil.rmtree(root)


def pair(seed: int, size: int, equal: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return two float32 arrays of `size` elements: normal ones, and with 1e-4 of noise added."""
    random = np.random.default_rng(seed)
    a = random.standard_normal(size, np.float32)
    return a, a if equal else a + np.float32(1e-4) * random.standard_normal(size, np.float32)


def write_pair(paths: Sequence[Path], seed: int, size: int, equal: bool) -> list[np.ndarray]:
    """Write two such arrays, of any size, and return them as they are mapped."""
    shape = (size,)
    maps = [np.lib.format.open_memmap(p, "w+", np.float32, shape) for p in paths]
    for number, at in enumerate(range(0, size, BLOCK)):
        part = slice(at, min(size, at + BLOCK))
        for mapped, array in zip(maps, pair(seed + 1000 * number, part.stop - at, equal)):
            mapped[part] = array
    return list(maps)


def statistics(array: np.ndarray) -> dict[str, float]:
    """Return the statistics that stand beside a stored tensor."""
    numbers = {name: float(getattr(array, name)()) for name in STATISTICS}
    return {**numbers, "norm": float(np.linalg.norm(array))}


def write_key_data(root: Path, pairs: int, size: int, equal: bool, keys: int = 8) -> None:
    """Write A and B as msprobe's SingleSave does: `pairs` tensors, spread over keys and steps."""
    for i in range(pairs):
        place = f"data/key{i % keys}/step{i // keys}/rank0/micro_step0"
        directories = [root / side / place for side in "AB"]
        for directory in directories:
            directory.mkdir(parents=True)
        files = [directory / f"key{i % keys}.npy" for directory in directories]
        for directory, array in zip(directories, write_pair(files, i, size, equal)):
            content = {"data": {**statistics(array), "shape": list(array.shape)}}
            (directory / f"key{i % keys}.json").write_text(json.dumps(content))


def write_dumps(root: Path, records: int, size: int, equal: bool) -> None:
    """Write A and B as msprobe's cell dumps of task tensor: an input and an output a cell."""
    for side in "AB":
        (root / side / "step0/rank0/dump_tensor_data").mkdir(parents=True)
    data: dict[str, dict[str, object]] = {"A": {}, "B": {}}
    for cell in range(records // 2):
        name = CELL.format(cell)
        for side in "AB":
            data[side][name] = {"input_args": [], "input_kwargs": {}, "output": []}
        for j, (place, io) in enumerate((("input_args", "input"), ("output", "output"))):
            for side, array in zip("AB", pair(2 * cell + j, size, equal)):
                leaf = _dumped(root / side / "step0/rank0", f"{name}.{io}.0.npy", array)
                data[side][name][place].append(leaf)  # type: ignore[index]
    for side in "AB":
        _write_dump_files(root / side / "step0/rank0", data[side])


def _dumped(directory: Path, name: str, array: np.ndarray) -> dict[str, object]:
    np.save(directory / "dump_tensor_data" / name, array)
    numbers = {key.capitalize(): value for key, value in statistics(array).items()}
    kind = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": list(array.shape)}
    return {**kind, **numbers, "data_name": name}


def _write_dump_files(directory: Path, data: dict[str, object]) -> None:
    dump = {
        "task": "tensor",
        "level": "L0",
        "framework": "mindspore",
        "dump_data_dir": str(directory / "dump_tensor_data"),
        "data": data,
    }
    (directory / "dump.json").write_text(json.dumps(dump))
    frames = ["File train.py, line 1, in step, \n network(x)"]
    (directory / "stack.json").write_text(json.dumps({"0": [list(data), frames]}))
    (directory / "construct.json").write_text(json.dumps(dict.fromkeys(data)))


def command(a: Path, b: Path, out: Path) -> list[str]:
    """Return the command line that compares two runs."""
    return [sys.executable, "-m", "mindrlhf_msprobe", "compare", str(a), str(b), "-o", str(out)]


def seconds(line: Sequence[str], accepted: tuple[int, ...] = (0, 1)) -> float:
    """Run a command and return how long it took; its output is shown if it fails.

    Bytecode may be written, so that from the second round on it is at hand, as it is for a package
    that was installed.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    took = time.perf_counter() - began
    if done.returncode not in accepted:
        sys.exit(
            f"{line} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return took


def best(line_of: Sequence[Sequence[str]], accepted: tuple[int, ...] = (0, 1)) -> float:
    """Return the shortest time of several runs of a command, each with an output of its own."""
    return min(seconds(line, accepted) for line in line_of)


def tables(directory: Path) -> int:
    """Count the tables a tool wrote, so that no ratio is one of work not done."""
    return sum(path.suffix in (".xlsx", ".csv") for path in directory.rglob("*"))
