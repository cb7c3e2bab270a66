"""Two runs → findings and a verdict. Nothing in here knows MindSpore."""

from mindrlhf_msprobe.comparison.blocks import Tolerance
from mindrlhf_msprobe.comparison.compare import compare_runs

__all__ = ["Tolerance", "compare_runs"]
