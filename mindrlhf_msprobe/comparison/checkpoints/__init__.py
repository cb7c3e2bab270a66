"""Two checkpoints → what their parameters are to each other, in pieces of a few MiB."""

from mindrlhf_msprobe.comparison.checkpoints.compare import compare_checkpoints

__all__ = ["compare_checkpoints"]
