"""Runs that hold gradients alone, with elements, signs or statistics, and msprobe's like them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from helpers.runs import Recording
from mindrlhf_msprobe.capture.tensors.summary import HostTensor, summarise
from mindrlhf_msprobe.storage.arrays.npy import dtype_name
from mindrlhf_msprobe.storage.arrays.signs import packed_signs, shares_within

BOUNDS = (-1.0, 0.0, 1.0)


def record_gradients(
    root: Path,
    steps: Mapping[int, Any],
    *,
    ranks: tuple[int, ...] = (0,),
    signs: bool = True,
    phase: str = "actor_update",
    **settings: Any,
) -> Path:
    """Record gradients and return the run's directory.

    Args:
        steps: step → one mapping of cell → gradient of its weight an update, or a list of them.
        signs: whether their signs and shares are recorded, as grad_probe does.
    """
    for rank in ranks:
        recording = Recording(root, rank=rank, **settings)
        for step, updates in steps.items():
            recording.step = step
            with recording.phase(phase):
                opening = recording.opening
                sink = recording.writer.sink(phase, step)
                for number, gradients in enumerate(
                    [updates] if isinstance(updates, dict) else updates
                ):
                    for cell, gradient in gradients.items():
                        name = f"Cell.{cell}.Dense.parameters_grad.{number}"
                        line = opening.line(name, opening.now(), None, None)
                        line.end = opening.now()
                        record = f"{name}.weight"
                        host = HostTensor("mindspore.Tensor", dtype_name(gradient.dtype), gradient)
                        leaf = summarise(host)
                        if signs:
                            file = sink.save(f"{record}.signs", packed_signs(gradient), None)
                            shares = tuple(shares_within(gradient, BOUNDS))
                            leaf = replace(leaf, signs=file, shares=shares)
                        if recording.config.task == "tensor":
                            leaf = replace(leaf, data_name=sink.save(record, gradient, None))
                        line.values["parameters_grad"] = {"weight": [leaf.to_json()]}
                        sink.append(line)
            recording.end_step()
        recording.close()
    return Path(root)


def probed_by_msprobe(
    root: Path, steps: Mapping[int, dict[str, np.ndarray]], rank: int = 0
) -> Path:
    """Write gradients as msprobe's grad_probe does at level L1, and return the directory."""
    for step, gradients in steps.items():
        directory = root / f"rank{rank}" / f"step{step}"
        directory.mkdir(parents=True)
        lines = ["param_name,max,min,norm,shape"]
        for name, gradient in gradients.items():
            np.save(directory / f"{name}.npy", gradient > 0)
            shape = list(gradient.shape)
            lines.append(f'{name},{gradient.max()},{gradient.min()},1.0,"{shape}"')
        (directory.parent / f"grad_summary_{step}.csv").write_text("\n".join(lines) + "\n")
    return root
