"""Of which operators `task: accuracy_check` has an opinion: by formula, or by a kernel of float64.

Operators without a formula are called with some arrays and numbers; those that take none of these
are counted as not tried. Operators that draw, communicate or write are left out.

    python benchmarks/opinions.py [--names]
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict

import numpy as np

from mindrlhf_msprobe.capture.operators.inventory import Operator, installed_operators
from mindrlhf_msprobe.replay.kernels import KernelCall, KernelProcess, NoAnswerError
from mindrlhf_msprobe.replay.kinds import communicates, draws, writes
from mindrlhf_msprobe.replay.precise.formulas.answering import has_formula
from mindrlhf_msprobe.replay.precise.values import leaves_of

_RANDOM = np.random.default_rng(0)
_SHAPES = ((4, 4), (2, 4, 8), (2, 4, 8, 8), (2, 3, 4, 8, 8), (6,))
_BESIDE = ((), (1,), (2,), ((2, 2),), ((1, 1),), (0, 1), (0.5,), (2, 1))
_BY_KERNEL, _ONLY_FORWARD, _NONE = "by a kernel", "by a kernel, forward only", "none"


def _calls() -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for shape, count in itertools.product(_SHAPES, (1, 2, 3)):
        arrays = tuple(_RANDOM.uniform(0.2, 0.8, shape) for _ in range(count))
        found += [(*arrays, *beside) for beside in _BESIDE]
    return found


def _opinion(kernels: KernelProcess, operator: Operator, calls: list[tuple[object, ...]]) -> str:
    """Return how an operator without a formula is judged."""
    refused = "not tried"
    for args in calls:
        draws_of = (tuple(x for x in leaves_of(args) if isinstance(x, np.ndarray)),)
        call = KernelCall(operator.full_name, args, {}, draws_of)
        try:
            (outputs,) = kernels.compute(call).results
        except NoAnswerError as error:
            if "lower_precision" in str(error):
                refused = _NONE
            continue
        first = outputs[0] if outputs else None
        if first is None or first.dtype.kind != "f":
            return _BY_KERNEL
        arriving = (np.ones(first.shape),)
        try:
            kernels.compute(KernelCall(operator.full_name, args, {}, draws_of, {}, arriving))
        except NoAnswerError:
            refused = _ONLY_FORWARD
            continue
        return _BY_KERNEL
    return refused


def main() -> None:
    """Count, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true")
    asked = parser.parse_args()
    kernels, found = KernelProcess(most_starts=1000), defaultdict(set)
    calls = _calls()
    opinions: dict[str, str] = {}
    for operator in installed_operators():
        name = operator.name
        if draws(name) or writes(name) or communicates(operator.kind, name):
            continue
        if has_formula(operator.kind, name):
            found["by formula"].add(operator.full_name)
            continue
        key = operator.full_name
        opinions[key] = _opinion(kernels, operator, calls)
        found[opinions[key]].add(key)
    kernels.end()
    for kind, names in found.items():
        print(f"{kind}: {len(names)}")
        if asked.names and kind != "by formula":
            print("  " + ", ".join(sorted(names)))


if __name__ == "__main__":
    main()
