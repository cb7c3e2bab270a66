"""Two runs → findings and a verdict. Nothing in here knows MindSpore."""

from mindrlhf_msprobe.comparison.judging.tolerance import Tolerance

__all__ = ["Tolerance"]
