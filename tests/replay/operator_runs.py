"""Runs that hold entries of operators, written as recording writes them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.replay.offline.computing import Recomputed
from mindrlhf_msprobe.replay.offline.judging import by_kernels, worded
from mindrlhf_msprobe.storage.arrays.npy import (
    bfloat16_bits_to_float32,
    dtype_name,
    float32_to_bfloat16_bits,
)


@dataclass(frozen=True)
class BFloat16:
    """Elements that stand for a tensor of bfloat16."""

    array: np.ndarray

    @classmethod
    def of(cls, array: np.ndarray) -> BFloat16:
        return cls(bfloat16_bits_to_float32(float32_to_bfloat16_bits(array)))


@dataclass(frozen=True)
class Leaf:
    """What stands in the journal as it is."""

    content: dict[str, Any]


@dataclass
class Operation:
    """One call: `Mint.add`, its arguments and what it returned; gradients, if it went backward."""

    operator: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    output: tuple[Any, ...] = ()
    arriving: tuple[Any, ...] | None = None
    leaving: tuple[Any, ...] = ()
    attributes: dict[str, Any] | None = None


def replayed(side: Recomputed) -> dict[str, Any]:
    """Return what kernels say of a side: verdict, values, and notes in words."""
    found = by_kernels(side)
    return {**vars(found), "notes": [worded(code, **params) for code, params in found.notes]}


def write_run(
    root: Path,
    operations: list[Operation],
    *,
    phase: str = "actor_update",
    step: int = 0,
    elements: bool = True,
) -> Path:
    """Write a run of one rank and return its path.

    Args:
        elements: whether tensors are stored; else there are statistics alone.
    """
    directory = root / phase / f"step{step}" / "rank0"
    tensors = directory / "dump_tensor_data"
    tensors.mkdir(parents=True)
    counts: dict[str, int] = {}
    lines: list[dict[str, Any]] = []

    def described(value: Any, name: str) -> Any:
        if isinstance(value, Leaf):
            return value.content
        if isinstance(value, (tuple, list)):
            return [described(item, f"{name}.{i}") for i, item in enumerate(value)]
        dtype = ""
        if isinstance(value, BFloat16):
            value, dtype = value.array, "BFloat16"
        if isinstance(value, np.ndarray):
            content: dict[str, Any] = {
                "type": "mindspore.Tensor",
                "dtype": dtype or dtype_name(value.dtype),
                "shape": list(value.shape),
            }
            if value.size:
                numbers = (float(value.max()), float(value.min()), float(value.mean()))
                for key, number in zip(("Max", "Min", "Mean"), numbers):
                    content[key] = number if math.isfinite(number) else str(number)
            if elements:
                content["data_name"] = f"{len([*tensors.iterdir()])}.npy"
                np.save(tensors / content["data_name"], value)
            return content
        return {"type": type(value).__name__, "value": value}

    for seq, one in enumerate(operations):
        call = counts.get(one.operator, 0)
        counts[one.operator] = call + 1
        for direction in ("forward", "backward"):
            entry = f"{one.operator}.{call}.{direction}"
            if direction == "forward":
                values: dict[str, Any] = {
                    "input_args": described(one.args, f"{entry}.input"),
                    "input_kwargs": {
                        k: described(v, f"{entry}.input.{k}") for k, v in one.kwargs.items()
                    },
                    "output": described(one.output, f"{entry}.output"),
                }
            elif one.arriving is None:
                continue
            else:
                values = {
                    "input": described(one.arriving, f"{entry}.input"),
                    "output": described(one.leaving, f"{entry}.output"),
                }
            if direction == "forward" and one.attributes is not None:
                values = {"attributes": one.attributes, **values}
            at = 4 * seq + 2 * (direction == "backward")
            place = {"seq": at, "end": at + 1, "parent": None, "opening": 0, "cell": ""}
            lines.append({"entry": entry, **place, **values})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "records.jsonl").write_text(text, encoding="utf-8")
    return root
