"""Operators that have no formula, computed by MindSpore's kernels of float64 in another process."""
