"""Runs with a line in every file beside the journals, and lines that are not as they should be."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from helpers.health_runs import HealthRun, a_nan, tensor

WHERE = {"step": 1, "rank": 0, "phase": "actor_update"}
WRONG = {
    **{"record": "Cell.a.Dense.forward.0.output.0", "opinion": "wrong", "at": [0, 1]},
    **{"ratio": 9.0, "error": 1.0, "explained": 0.1, "actual": 1.0, "exact": 2.0, "reason": ""},
}
OPINION = {
    **WHERE,
    **{"entry": "Cell.a.Dense.forward.0", "cell": "a", "precision": "Float32"},
    **{"seconds": 0.1, "needed": True, "tensors": [WRONG]},
}
ROW = {
    **WHERE,
    **{"entry": "Cell.a.Dense.forward.0", "pert_mode": "add_noise", "handler_type": "check"},
    **{"stage": "forward", "output_index": 0, "path": "0", "dtype": "Float32", "shape": [2, 3]},
    **{"change": 3.0, "ratio": 3.0, "threshold": 0.1, "disturbed_by": 1e-3, "consistent": False},
    **{"differing": 4, "coarsest": "Float32"},
}
#: What no field holds, or none of most: numbers beyond every float, texts that have no UTF-8, ….
HOSTILE = [
    *(None, True, -1, 0.5, 1e308, int("9" * 400), -int("9" * 400), float("inf"), 2**63),
    *("", "x" * 5000, "\ud800", "NaN", [], {}, [[], 1], [int("9" * 400)], [None], ["a"], {"a": 1}),
]


def raw(content: Any) -> bytes:
    """Return JSON as a line holds it; an infinity as a number that no float holds."""
    return json.dumps(content).replace("Infinity", "1e999").encode()


def hostile(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (path, value) of each value in some JSON, with each that it could be instead."""
    yield from ((at, value) for value in HOSTILE)
    items = content.items() if isinstance(content, dict) else ()
    if isinstance(content, list):
        items = enumerate(content[:2])
    for name, item in items:
        yield from hostile(item, (*at, name))


def changed(content: Any, at: tuple[Any, ...], value: Any) -> Any:
    """Return JSON with another value at one place."""
    if not at:
        return value
    content = copy.deepcopy(content)
    inside = content
    for name in at[:-1]:
        inside = inside[name]
    inside[at[-1]] = value
    return content


def write_lines(run: Path, name: str, *lines: Mapping[str, Any] | bytes) -> None:
    """Write a file of lines into a run."""
    whole = [line if isinstance(line, bytes) else raw(line) for line in lines]
    (run / name).write_bytes(b"".join(line + b"\n" for line in whole))


def small_run(root: Path, *, nan: bool = True) -> Path:
    """Return a run of two steps with records, parameters, gradients and key data.

    Args:
        nan: whether an output of the second step holds one.
    """
    run = HealthRun(root)
    for step in range(2):
        weight = tensor(shape=(4, 4), fingerprint=f"xxh3_128:{step}")
        with run.phase("actor_generate_sequences"), run.cell("root"):
            run.call("a", parameters={"weight": weight})
        run.data("responses", np.arange(12).reshape(2, 6) + step)
        run.data("old_log_prob", np.full((2, 6), -0.5))
        with run.phase("actor_update"):
            with run.cell("root", frames=("f.py, line 1, in g",)):
                output = a_nan() if nan and step else None
                run.call("a", output=output, parameters={"weight": weight})
            run.call("a", direction="backward")
            run.gradients("a", weight=tensor(shape=(4, 4)))
        run.data("loss", 0.5)
        run.end_step()
    return run.close()
