"""Which variables and versions of an environment are recorded, nothing that may be secret; and the
parallel sizes in a trainer's configuration, under the names of several trainers.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping
from typing import Any

from mindrlhf_msprobe.common.printable import cut
from mindrlhf_msprobe.common.secret import could_be_secret, is_secret_name
from mindrlhf_msprobe.config import OVERRIDES
from mindrlhf_msprobe.storage.layout import WITHHELD

# Everything that steers MindSpore, CANN, their communication and the host's arithmetic.
_PREFIXES = (
    *("MS_", "MSPROBE_", "MINDSPORE_", "MINDFORMERS_", "MF_", "GLOG_"),
    *("ASCEND_", "ACL_", "NPU_", "HCCL_", "LCCL_", "ATB_", "ASDOPS_", "GE_", "TE_", "OPP_"),
    *("RANK_", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "DEVICE_"),
    *("OMP_", "KMP_", "MKL_", "OPENBLAS_", "CUBLAS_", "NCCL_"),
)
_NAMES = (
    *("RANK", "WORLD_SIZE", "TASK_QUEUE_ENABLE", "CPU_AFFINITY_CONF", "COMBINED_ENABLE"),
    *("CUDA_VISIBLE_DEVICES", "INF_NAN_MODE_ENABLE", "INF_NAN_MODE_FORCE_DISABLE"),
    *("ENABLE_LAZY_INLINE", "ENABLE_CELL_REUSE", "GRAPH_OP_RUN", "LD_PRELOAD", "PYTHONOPTIMIZE"),
)
#: The variables that decide whether a computation can be repeated.
_DETERMINISM = (
    *("HCCL_DETERMINISTIC", "LCCL_DETERMINISTIC", "TE_PARALLEL_COMPILER"),
    *("ATB_MATMUL_SHUFFLE_K_ENABLE", "ATB_LLM_LCOC_ENABLE", "CUSTOM_MATMUL_SHUFFLE"),
    *("ASCEND_LAUNCH_BLOCKING", "MS_DEV_LAUNCH_BLOCKING", "CUBLAS_WORKSPACE_CONFIG"),
)


#: The packages whose versions stand beside that of Python.
PACKAGES = ("mindspore", "mindformers", "numpy")


def versions() -> dict[str, str | None]:
    """Return the versions that a run notes; None of what is not installed."""
    own = {"python": platform.python_version(), "platform": sys.platform}
    return {**own, **{name: version_of(name) for name in PACKAGES}}


def version_of(distribution: str) -> str | None:
    """Return the version of an installed package, or None."""
    from importlib import metadata  # slow to import, and only a run that is recorded needs it

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def variables_of_field(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the field, by name; never one that could hold a secret.

    A name is taken by its prefix and refused for a word such as TOKEN or KEY in it; a value that
    looks like a credential is replaced by `WITHHELD`, a long one is cut. Those which stand among
    the seeds, the determinism settings and, as `OVERRIDES`, the configuration are left out here.
    """
    names = [
        name
        for name in sorted(environment)
        if (name.startswith(_PREFIXES) or name in _NAMES)
        if name not in (*_DETERMINISM, OVERRIDES)
        if len(name) <= 128 and not is_secret_name(name)
    ]
    return {name: str(recordable(environment[name])) for name in names[:500]}


def variables_of_determinism(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that decide whether a computation can be repeated; None is not set."""
    return {name: recordable(environment.get(name)) for name in _DETERMINISM}


def recordable(value: str | None) -> str | None:
    """Return a value as it may be written: withheld if it could be a secret, cut if it is long."""
    if value is None:
        return None
    if len(value) > 4096 or could_be_secret(value, 4096):  # a longer value is no setting
        return WITHHELD
    return cut(value, 512, with_length=True)


#: Our name of each size → what trainers call it: MindFormers, then Megatron.
_SIZES = {
    "dp": ("data_parallel", "data_parallel_size"),
    "tp": ("model_parallel", "tensor_parallel", "tensor_model_parallel_size"),
    "pp": ("pipeline_stage", "pipeline_stages", "pipeline_model_parallel_size"),
    "cp": ("context_parallel", "context_parallel_size"),
    "ep": ("expert_parallel", "expert_model_parallel_size"),
}


def sizes_in(setting: Callable[[str], Any]) -> dict[str, int]:
    """Return the parallel sizes of which a configuration says the tensor or the data part.

    Args:
        setting: returns a setting by its name, or None.
    """
    found: dict[str, int] = {}
    for axis, names in _SIZES.items():
        values = map(setting, names)
        size = next((v for v in values if type(v) is int and 0 < v < 1 << 20), None)
        if size is not None:
            found[axis] = size
    return found if {"dp", "tp"} & {*found} else {}


def sizes_below(content: Any, depth: int = 0) -> list[dict[str, int]]:
    """Return the parallel sizes of every `parallel_config` in a trainer's configurations."""
    if not isinstance(content, Mapping) or depth > 4:
        return []
    found = []
    for name, value in content.items():
        if name == "parallel_config" and isinstance(value, Mapping):
            found += [sizes] if (sizes := sizes_in(value.get)) else []
        else:
            found += sizes_below(value, depth + 1)
    return found
