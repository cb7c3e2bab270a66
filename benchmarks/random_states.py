"""What it costs to ask in which states the random generators are, once a step.

python benchmarks/random_states.py
"""

import statistics
import time

import mindspore

from mindrlhf_msprobe.capture.settings.environment import RandomStates
from mindrlhf_msprobe.storage.arrays.atomic import dump_json

STEPS = 1000


def main() -> None:
    mindspore.manual_seed(1)
    states = RandomStates(lambda what, error: print(what, error))
    states.note(0)
    taken = []
    for step in range(1, STEPS + 1):
        start = time.perf_counter()
        states.note(step)
        taken.append(time.perf_counter() - start)
    print(f"{statistics.median(taken) * 1e3:.2f} ms a step (median of {STEPS})")
    print(f"{len(dump_json(states.content)) / STEPS:.0f} bytes of run.json a step")


if __name__ == "__main__":
    main()
