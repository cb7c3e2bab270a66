"""A run against runs that are known to be healthy: what those never did, and slow drift."""

from mindrlhf_msprobe.checks.rules.healthy.bounds import Range
from mindrlhf_msprobe.checks.rules.healthy.drift import Drift

__all__ = ["Drift", "Range"]
