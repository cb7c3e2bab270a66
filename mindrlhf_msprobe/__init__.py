"""Record what every phase of a reinforcement-learning step computed; find where two runs diverge.

The public names load what they need when they are first used, so that importing this package
costs next to nothing and a switched-off probe imports nothing at all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Probe": "mindrlhf_msprobe.probe",
    "ProbeConfig": "mindrlhf_msprobe.config",
    "load_config": "mindrlhf_msprobe.config",
    "open_run": "mindrlhf_msprobe.api",
    "Run": "mindrlhf_msprobe.api",
    "check_run": "mindrlhf_msprobe.api",
    "check_runs": "mindrlhf_msprobe.api",
    "compare_checkpoints": "mindrlhf_msprobe.api",
    "compare_runs": "mindrlhf_msprobe.api",
    "compare_shard": "mindrlhf_msprobe.api",
    "reduce_shards": "mindrlhf_msprobe.api",
    "Tolerance": "mindrlhf_msprobe.comparison",
    "MsProbe": "mindrlhf_msprobe.compat.shared",
    "GradComparator": "mindrlhf_msprobe.compat.comparing",
    "PrecisionDebugger": "mindrlhf_msprobe.compat.debugger",
    "SingleComparator": "mindrlhf_msprobe.compat.single",
    "SingleSave": "mindrlhf_msprobe.compat.single",
    "compare_distributed": "mindrlhf_msprobe.compat.comparing",
    "seed_all": "mindrlhf_msprobe.compat.seeds",
    # Not in __all__: what messages say, for the rooms below, which do not know where it is made.
    "text_of": "mindrlhf_msprobe.report.messages",
    "texts_of": "mindrlhf_msprobe.report.messages",
    # Not in __all__: it needs MindSpore, which what only compares runs does without.
    "ProbeCallback": "mindrlhf_msprobe.integrations.mindformers",
    # Not in __all__: scripts say `from … import *`, and have names like these of their own.
    "compare": "mindrlhf_msprobe.compat.comparing",
    "save": "mindrlhf_msprobe.capture.graph.compiled",
    "save_grad": "mindrlhf_msprobe.capture.graph.compiled",
    "step": "mindrlhf_msprobe.capture.graph.compiled",
    "MsprobeError": "mindrlhf_msprobe.errors",
    "ConfigError": "mindrlhf_msprobe.errors",
    "UsageError": "mindrlhf_msprobe.errors",
    "RunError": "mindrlhf_msprobe.errors",
}

__all__ = [
    "ConfigError",
    "GradComparator",
    "MsProbe",
    "MsprobeError",
    "PrecisionDebugger",
    "Probe",
    "ProbeConfig",
    "Run",
    "RunError",
    "SingleComparator",
    "SingleSave",
    "Tolerance",
    "UsageError",
    "__version__",
    "check_run",
    "check_runs",
    "compare_checkpoints",
    "compare_distributed",
    "compare_runs",
    "compare_shard",
    "load_config",
    "open_run",
    "reduce_shards",
    "seed_all",
]

if TYPE_CHECKING:
    from mindrlhf_msprobe.api import (
        Run,
        check_run,
        check_runs,
        compare_checkpoints,
        compare_runs,
        compare_shard,
        open_run,
        reduce_shards,
    )
    from mindrlhf_msprobe.capture.graph.compiled import save as save
    from mindrlhf_msprobe.capture.graph.compiled import save_grad as save_grad
    from mindrlhf_msprobe.capture.graph.compiled import step as step
    from mindrlhf_msprobe.comparison import Tolerance
    from mindrlhf_msprobe.compat.comparing import GradComparator, compare_distributed
    from mindrlhf_msprobe.compat.comparing import compare as compare
    from mindrlhf_msprobe.compat.debugger import PrecisionDebugger
    from mindrlhf_msprobe.compat.seeds import seed_all
    from mindrlhf_msprobe.compat.shared import MsProbe
    from mindrlhf_msprobe.compat.single import SingleComparator, SingleSave
    from mindrlhf_msprobe.config import ProbeConfig, load_config
    from mindrlhf_msprobe.errors import ConfigError, MsprobeError, RunError, UsageError
    from mindrlhf_msprobe.integrations.mindformers import ProbeCallback as ProbeCallback
    from mindrlhf_msprobe.probe import Probe


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
