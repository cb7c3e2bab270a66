"""What libraries that were decided against would cost, beside what is there instead.

    pip install --target DIR loky pebble pydantic msgspec "ml_dtypes<0.6" XlsxWriter
    PYTHONPATH=DIR python benchmarks/libraries.py

Imports in CPU time, the median of 7 processes. The pools get one task whose worker is killed, as
the system does when memory runs out, among seven others. What is not installed is left out.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from compare_common import write_key_data

from mindrlhf_msprobe.comparison.engine.executor import StepTask
from mindrlhf_msprobe.comparison.engine.local_workers import LocalWorkers
from mindrlhf_msprobe.comparison.pairing.view import View
from mindrlhf_msprobe.comparison.steps.step_of_rank import Job
from mindrlhf_msprobe.storage.arrays.npy import bfloat16_bits_to_float32, float32_to_bfloat16_bits
from mindrlhf_msprobe.storage.reading.reader import open_run

IMPORTS = {
    "pydantic, one model": "import pydantic; type('M', (pydantic.BaseModel,), {})",
    "msgspec": "import msgspec",
    "XlsxWriter": "import xlsxwriter",
    "loky": "import loky",
    "pebble": "import pebble",
    "rich.console": "from rich.console import Console",
    "this package's config": "import mindrlhf_msprobe.config",
}
POOLS = {
    "loky": "from loky import get_reusable_executor as pool\nsubmit = pool(max_workers=2).submit",
    "pebble": (
        "import pebble, multiprocessing as m\n"
        "pool = pebble.ProcessPool(2, context=m.get_context('spawn'))\n"
        "submit = lambda function, *given: pool.schedule(function, args=given)"
    ),
}
GUARDED = "if __name__ == '__main__': main()"
SCRIPT = """
import os, time
def task(number):
    if number == 3: os.kill(os.getpid(), 9)
    time.sleep(0.05); return number
def main():
    began = time.perf_counter()
    {start}
    submit(task, 0).result()
    print(f"first result after {{time.perf_counter() - began:.2f}} s", end=", ")
    futures, lost = [submit(task, i) for i in range(8)], 0
    for future in futures:
        try: future.result()
        except BaseException: lost += 1
    print(f"{{lost}} of 8 tasks lost", flush=True); os._exit(0)
{call}
"""


def cpu(statement: str) -> float:
    """Return the milliseconds of CPU that a statement takes in a new process."""
    timed = f"import time; t = time.process_time(); {statement}; print(time.process_time() - t)"
    found = [subprocess.check_output([sys.executable, "-c", timed], text=True) for _ in range(7)]
    return 1000 * median(map(float, found))


def pool(name: str, call: str) -> str:
    """Return what a script says that uses a pool, or the end of its error."""
    start = POOLS[name].replace("\n", "\n    ")
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "script.py"
        script.write_text(SCRIPT.format(start=start, call=call))
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def own_workers() -> float:
    """Return the seconds until this package's own workers give their first result."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write_key_data(root, 8, 1000, equal=True)
        sides = View(open_run(root / "A")), View(open_run(root / "B"))
        began = time.perf_counter()
        workers = LocalWorkers(Job(sides), 2)
        workers.expect(2)
        step, rank = min(sides[0].rank_steps())
        workers.submit(StepTask((step,), rank))
        workers.next_result()
        seconds = time.perf_counter() - began
        workers.close()
    return seconds


def conversion(function, *arguments) -> float:
    """Return the milliseconds of CPU of a call, the least of nine."""
    seconds = []
    for _ in range(9):
        began = time.process_time()
        function(*arguments)
        seconds.append(time.process_time() - began)
    return 1000 * min(seconds)


def main() -> None:
    for name, statement in IMPORTS.items():
        if importlib.util.find_spec(statement.split()[1].partition(";")[0].partition(".")[0]):
            print(f"import of {name}: {cpu(statement):.0f} ms")
    for name in POOLS:
        if importlib.util.find_spec(name):
            print(f"{name}: {pool(name, GUARDED)}")
            print(f"{name}, script without a guard: {pool(name, 'main()')}")
    print(f"own workers: first result after {own_workers():.2f} s")
    values = np.random.default_rng(0).normal(size=1 << 22).astype(np.float32)
    bits = float32_to_bfloat16_bits(values)
    there = conversion(float32_to_bfloat16_bits, values)
    print(f"4 M to bfloat16 {there:.1f} ms, back {conversion(bfloat16_bits_to_float32, bits):.1f}")
    if importlib.util.find_spec("ml_dtypes"):
        import ml_dtypes

        low = values.astype(ml_dtypes.bfloat16)
        there, back = (conversion(x.astype, d) for x, d in ((values, low.dtype), (low, np.float32)))
        print(f"… by ml_dtypes {there:.1f} ms, back {back:.1f}")


if __name__ == "__main__":
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    main()
