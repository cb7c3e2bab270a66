"""Saving key data with statistics and fingerprint, against np.save of the same array.

    python benchmarks/key_data_saving.py [--elements N] [--rounds N] [--dir DIR]

Both write to DIR, best on tmpfs (default: /dev/shm); the probe's time ends when `step()` returns,
that is when everything is readable.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import numpy as np
from median_table import print_medians

from mindrlhf_msprobe import Probe


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--elements", type=int, default=1 << 22)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--dir", default="/dev/shm")
    arguments = parser.parse_args()
    array = np.random.default_rng(0).standard_normal(arguments.elements, np.float32)
    tensor = ms.Tensor(array) * 1
    tensor.asnumpy()
    root = Path(tempfile.mkdtemp(dir=arguments.dir))
    probe = Probe.from_config(
        {"msprobe": True, "key_data_dump": True, "dump_path": str(root / "run")}
    )
    times: dict[str, list[float]] = {"np.save": [], "save_data": [], "save_data and step": []}
    try:
        for round_ in range(arguments.rounds + 3):
            began = time.perf_counter()
            np.save(root / f"plain{round_ % 2}.npy", array)
            saved = time.perf_counter()
            probe.save_data(values=tensor)
            handed_over = time.perf_counter()
            probe.step()
            written = time.perf_counter()
            if round_ >= 3:
                times["np.save"].append(saved - began)
                times["save_data"].append(handed_over - saved)
                times["save_data and step"].append(written - saved)
            shutil.rmtree(root / "run" / "data")
            (root / f"plain{round_ % 2}.npy").unlink()
    finally:
        probe.close()
        shutil.rmtree(root)
    print_medians(times, "np.save")


if __name__ == "__main__":
    main()
