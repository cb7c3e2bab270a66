"""The metrics of rollout against training as key data, as a run holds them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mindrlhf_msprobe.findings.mismatch import Mismatches
from mindrlhf_msprobe.phases import ROLLOUT_CORR
from mindrlhf_msprobe.report.staging import beside
from mindrlhf_msprobe.storage import layout
from mindrlhf_msprobe.storage.arrays.atomic import write_json
from mindrlhf_msprobe.storage.arrays.fingerprint import fingerprint
from mindrlhf_msprobe.storage.arrays.npy import save_npy
from mindrlhf_msprobe.storage.leaves import Leaf

_DTYPE = "Float64"


def write_key_data(found: Mismatches, output: Path) -> list[Path]:
    """Write the metrics of each step and rank below `data/`; return the key's directory, if any.

    All are one key, which names a directory, as a key does: `rollout_corr/kl` is `kl` in it,
    `training/rollout_probs_diff_mean` is `training.rollout_probs_diff_mean`.

    Raises:
        OutputError: they cannot be written.
    """
    held = [one for one in found.found if one.metrics]
    for one in held:
        write_metrics(output, (one.step, one.rank, 0), one.metrics)
    return [output / layout.KEY_DATA_DIR / ROLLOUT_CORR] if held else []


def write_metrics(output: Path, at: tuple[int, int, int], metrics: Mapping[str, float]) -> None:
    """Write one save of all metrics.

    Args:
        at: step, rank, micro-step.

    Raises:
        OutputError: they cannot be written.
    """
    directory = layout.key_data_dir(output, ROLLOUT_CORR, *at)
    data: dict[str, Any] = {}
    paths = [name.removeprefix(f"{ROLLOUT_CORR}/").split("/") for name in metrics]
    names = [layout.file_name(".".join([ROLLOUT_CORR, *path])) for path in paths]
    description = layout.file_name(ROLLOUT_CORR, ".json")
    with beside(*(directory / name for name in (*names, description))) as (*arrays, last):
        for part, name, path, value in zip(arrays, names, paths, metrics.values()):
            array = np.array(value)
            save_npy(part, array)
            leaf = Leaf(
                *("numpy.ndarray", _DTYPE, ()),
                *(value, value, value, abs(value)),
                nan_count=int(math.isnan(value)),
                inf_count=int(math.isinf(value)),
                fingerprint=fingerprint(_DTYPE, array),
                data_name=name,
            )
            inside = data
            for part_of_name in path[:-1]:
                inside = inside.setdefault(part_of_name, {})
            inside[path[-1]] = leaf.to_key_data_json()
        write_json(last, {"data": data})
