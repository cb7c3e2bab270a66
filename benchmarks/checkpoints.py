"""What comparing two large checkpoints costs, beside reading their bytes once.

    python benchmarks/checkpoints.py [--megabytes N] [--rounds N] [--directory DIR]

`shards` are two directories of four .safetensors of bfloat16 each, with an index, in which a
thousandth of one parameter differs. For all others it makes a MindSpore .ckpt, whose parameters of
more than 512 MB are cut into slices, and two .safetensors, one with the same float32 values and one
with these rounded to bfloat16. `compare` of the .ckpt with each of them, and with a .safetensors in
which a thousandth of the elements differs, stands beside reading both files in pieces of 4 MiB with
as many threads. Told are seconds (the median of the rounds), their ratio, processor seconds, and
the peak memory of the process beside that of a comparison of two tiny checkpoints.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from mindrlhf_msprobe.common.processes import available_cores
from mindrlhf_msprobe.storage.arrays.npy import float32_to_bfloat16_bits

PIECE = 4 << 20
SLICE = 512 << 20
CASES = ["same", "different", "bfloat16", "shards"]
CODE = """
import sys, time
from mindrlhf_msprobe import compare_checkpoints
begin, used = time.perf_counter(), time.process_time()
found = compare_checkpoints(*sys.argv[1:])
seconds, processor = time.perf_counter() - begin, time.process_time() - used
(peak,) = (line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(found.status.value, seconds, processor, peak, found.elements)
"""


def main() -> None:
    """Make the files, and measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory")
    parser.add_argument("--only", choices=CASES, action="append")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        folder = Path(directory)
        cases = arguments.only or CASES
        make(folder, arguments.megabytes << 20 if {*cases} - {"shards"} else 0)
        (_, _, idle) = compared(folder / "tiny.ckpt", folder / "tiny.safetensors")
        for name in cases:
            both = folder / "a.ckpt", folder / f"{name}.safetensors"
            files = both
            if name == "shards":
                both = folder / "shards_a", folder / "shards_b"
                files = make_shards(both, arguments.megabytes << 20)
            reads = [read(files) for _ in range(arguments.rounds)]
            runs = [compared(*both) for _ in range(arguments.rounds)]
            plain, seconds = statistics.median(reads), statistics.median(run[0] for run in runs)
            processor = statistics.median(run[1] for run in runs)
            peak = max(run[2] for run in runs)
            size = sum(file.stat().st_size for file in files) >> 20
            print(
                f"{name}: {size} MiB; reading {plain:.2f} s, compare {seconds:.2f} s, "
                f"{seconds / plain:.2f} times, of reading both twice {seconds / plain / 2:.2f} "
                f"(processor {processor:.2f} s); peak "
                f"{peak >> 10} MiB, {(peak - idle) >> 10} MiB above a tiny pair"
            )


def make(folder: Path, size: int) -> None:
    """Write the checkpoints: one parameter of 3/4 of the bytes, and many small ones."""
    rng = np.random.default_rng(0)
    large = rng.standard_normal(size * 3 // 4 // 4, np.float32)
    arrays = {"embedding.weight": large}
    rest = size - large.nbytes
    arrays |= {
        f"layers.{i}.weight": rng.standard_normal((1024, 1024), np.float32)
        for i in range(rest >> 22)
    }
    write_ckpt(folder / "a.ckpt", arrays)
    write_safetensors(folder / "same.safetensors", arrays)
    rounded = {name: float32_to_bfloat16_bits(array) for name, array in arrays.items()}
    write_safetensors(folder / "bfloat16.safetensors", rounded)
    for array in arrays.values():
        array.reshape(-1)[::1000] += 1
    write_safetensors(folder / "different.safetensors", arrays)
    tiny = {"w": np.zeros(3, np.float32)}
    write_ckpt(folder / "tiny.ckpt", tiny)
    write_safetensors(folder / "tiny.safetensors", tiny)


def make_shards(directories: tuple[Path, Path], size: int) -> tuple[Path, ...]:
    """Write two sharded checkpoints of bfloat16 of about `size` bytes; return their files."""
    rng = np.random.default_rng(1)
    names = [[f"layers.{4 * i + shard}.weight" for i in range(size >> 25)] for shard in range(4)]
    files = []
    for directory in directories:
        directory.mkdir()
    for shard, own in enumerate(names):
        arrays = {
            name: float32_to_bfloat16_bits(rng.standard_normal((2048, 2048), np.float32))
            for name in own
        }
        for number, directory in enumerate(directories):
            if number and not shard:
                arrays[own[0]].reshape(-1)[::1000] ^= 1
            files.append(directory / f"model-{shard + 1:05}-of-00004.safetensors")
            write_safetensors(files[-1], arrays)
    homes = {
        n: f"model-{s + 1:05}-of-00004.safetensors" for s, own in enumerate(names) for n in own
    }
    for directory in directories:
        index = directory / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": homes}))
    return tuple(files)


def varint(value: int) -> bytes:
    """Return a whole number as protobuf writes it."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def write_ckpt(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a .ckpt as MindSpore does, large parameters in slices."""
    with open(path, "wb") as file:
        for name, array in arrays.items():
            content = memoryview(array.reshape(-1)).cast("B")
            dims = b"".join(b"\x08" + varint(n) for n in array.shape)
            for at in range(0, len(content), SLICE):
                piece = content[at : at + SLICE]
                head = dims + b"\x12\x07Float32\x1a" + varint(len(piece))
                tag = b"\x0a" + varint(len(name)) + name.encode()
                tensor = b"\x12" + varint(len(head) + len(piece)) + head
                file.write(b"\x0a" + varint(len(tag) + len(tensor) + len(piece)) + tag + tensor)
                file.write(piece)


def write_safetensors(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a .safetensors of float32, or of bfloat16 as uint16."""
    header, at = {}, 0
    for name, array in arrays.items():
        dtype = "BF16" if array.dtype == np.uint16 else "F32"
        places = [at, at + array.nbytes]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": places}
        at += array.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(memoryview(array.reshape(-1)).cast("B"))


def read(files: tuple[Path, ...]) -> float:
    """Return the seconds that reading all bytes takes."""
    pieces = [(path, at) for path in files for at in range(0, path.stat().st_size, PIECE)]

    def one(place: tuple[Path, int]) -> None:
        file = os.open(place[0], os.O_RDONLY)
        os.preadv(file, [bytearray(PIECE)], place[1])
        os.close(file)

    begin = time.perf_counter()
    with ThreadPoolExecutor(min(available_cores(), 4)) as pool:
        list(pool.map(one, pieces))
    return time.perf_counter() - begin


def compared(a: Path, b: Path) -> tuple[float, float, int]:
    """Return seconds, processor seconds and peak memory in KiB of a comparison."""
    command = [sys.executable, "-c", CODE, str(a), str(b)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(found[1]), float(found[2]), int(found[3])


if __name__ == "__main__":
    main()
