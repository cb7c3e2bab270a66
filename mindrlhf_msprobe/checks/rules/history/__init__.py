"""A run against its own past: jumps, gradients by layer, activations, routing of experts."""

from mindrlhf_msprobe.checks.rules.history.activations import Dead
from mindrlhf_msprobe.checks.rules.history.kurtosis import Kurtosis
from mindrlhf_msprobe.checks.rules.history.norms import Jump, gradients
from mindrlhf_msprobe.checks.rules.history.routing import Routing

__all__ = ["Dead", "Jump", "Kurtosis", "Routing", "gradients"]
