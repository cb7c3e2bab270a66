"""One small network recorded as a whole, and as ranks of any layout would record it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from helpers.runs import Recording
from mindrlhf_msprobe.capture.tensors.summary import HostTensor
from mindrlhf_msprobe.storage.leaves import Shard, ShardAxis

PHASE = "actor_compute_log_prob"
AXES = ("pp", "dp", "cp", "ep", "tp")
SHARDS = {
    r"wq.*(parameters\.weight)": {"tp": 0},
    r"wq.*output": {"dp": 0, "cp": 1, "tp": 2},
    r"wo.*parameters\.weight": {"tp": 1},
    r"wo.*input": {"dp": 0, "cp": 1, "tp": -1},
    r"wo.*output": {"dp": 0, "cp": 1, "tp": "partial"},
    r"experts.*parameters": {"ep": 0},
    r"head.*output|head.*input|embed.*output|experts.*put|root.*put|logits": {"dp": 0, "cp": 1},
}


@dataclass
class Cell:
    """One call: its values, and how each is cut; a place is a record's name without the cell."""

    name: str
    stage: int
    inputs: list[Any]
    parameters: dict[str, Any]
    output: Any
    cuts: dict[str, dict[str, Any]] = field(default_factory=dict)


def network(random: np.random.Generator, *, batch=4, tokens=8, width=8, layers=4) -> list[Cell]:
    """Return the calls of a whole network, of small whole numbers, so that sums are exact."""

    def some(*shape):
        return random.integers(-50, 50, size=shape).astype(np.float32)

    rows = {"dp": 0, "cp": 1}
    x = (batch, tokens, width)
    ids = random.integers(0, 1000, size=(batch, tokens)).astype(np.int32)
    cells = [Cell("embed", 0, [ids], {"weight": some(16, width)}, some(*x), {"*": rows})]
    for i in range(layers):
        stage = i * 2 // layers
        cells.append(
            Cell(
                f"layers.{i}.wq",
                stage,
                [some(*x)],
                {"weight": some(width, width)},
                some(*x),
                {"*": rows, "parameters": {"tp": 0}, "output": {**rows, "tp": 2}},
            )
        )
        cells.append(
            Cell(
                f"layers.{i}.wo",
                stage,
                [some(*x)],
                {"weight": some(width, width)},
                some(*x),
                {
                    "*": rows,
                    "input": {**rows, "tp": 2},
                    "parameters": {"tp": 1},
                    "output": {**rows, "tp": "partial"},
                },
            )
        )
        experts = {"w1": some(4, width, width)}
        name = f"layers.{i}.experts"
        cuts = {"*": rows, "parameters": {"ep": 0}}
        cells.append(Cell(name, stage, [some(*x)], experts, some(*x), cuts))
    cells.append(Cell("head", 1, [some(*x)], {"weight": some(16, width)}, some(*x), {"*": rows}))
    return cells


def cut(value: Any, how: Mapping[str, Any], grid: Mapping[str, int], at: Mapping[str, int]) -> Any:
    """Return what one place of a grid holds of a value."""
    for axis, dim in how.items():
        size, place = grid.get(axis, 1), at.get(axis, 0)
        if size == 1:
            continue
        if dim == "partial":
            part = np.floor(value / size)
            value = part if place else value - part * (size - 1)
        else:
            value = np.split(value, size, axis=dim)[place]
    return np.ascontiguousarray(value)


def places(grid: Mapping[str, int]) -> dict[int, dict[str, int]]:
    """Return the place of each rank, the last axis fastest."""
    every = itertools.product(*(range(n) for n in grid.values()))
    return {rank: dict(zip(grid, place)) for rank, place in enumerate(every)}


def record_split(
    root: Path,
    cells: list[Cell],
    grid: Mapping[str, int],
    *,
    change: Callable[[int, str, Any], Any] = lambda rank, place, value: value,
    skip: tuple[int, ...] = (),
    local_names: bool = False,
    order: list[int] | None = None,
    says_shards: bool = False,
    **settings: Any,
) -> Path:
    """Record a network as the ranks of a grid do.

    Args:
        change: called with (rank, `<cell>.<io>`, value); returns what is recorded.
        skip: ranks that record nothing.
        local_names: count the layers of each stage from 0.
        order: rows of the batch in the order in which ranks have them.
        says_shards: let each value say which part it is, as a DTensor does.
    """
    for rank, at in places(grid).items():
        if rank in skip:
            continue
        recording = Recording(root, rank=rank, **{"task": "tensor", **settings})

        def held(cell: Cell, io: str, value: Any, rank: int = rank, at: Any = at) -> Any:
            how = cell.cuts.get(io, cell.cuts["*"] if io != "parameters" else {})
            if order is not None and "dp" in how:
                value = np.take(value, order, axis=0)
            part = change(rank, f"{cell.name}.{io}", cut(value, how, grid, at))
            if not says_shards:
                return part
            axes = {
                axis: ShardAxis(size, at[axis], how.get(axis, "copy"))
                for axis, size in grid.items()
            }
            dtype = str(part.dtype).capitalize()
            return HostTensor("mindspore.Tensor", dtype, part, Shard(value.shape, axes))

        with recording.phase(PHASE):
            for cell in cells:
                if grid.get("pp", 1) > 1 and cell.stage != at["pp"]:
                    continue
                name = cell.name
                if local_names and grid.get("pp", 1) > 1 and name.startswith("layers."):
                    number = int(name.split(".")[1]) - 2 * at["pp"]
                    name = ".".join(["layers", str(number), *name.split(".")[2:]])
                output = held(cell, "output", cell.output)
                recording.call(
                    name,
                    "Dense",
                    lambda *_, output=output: output,
                    *[held(cell, "input", value) for value in cell.inputs],
                    parameters={
                        n: held(cell, "parameters", value) for n, value in cell.parameters.items()
                    },
                )
        logits = held(cells[-1], "output", cells[-1].output)
        if grid.get("pp", 1) == 1 or at["pp"] == grid["pp"] - 1:
            recording.data("logits", logits)
        recording.end_step()
        recording.close()
    return Path(root)
