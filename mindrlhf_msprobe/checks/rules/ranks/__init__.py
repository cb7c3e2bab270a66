"""Ranks that do not do the same, or do not hold the same."""

from mindrlhf_msprobe.checks.rules.ranks.entries import RecordedAlike
from mindrlhf_msprobe.checks.rules.ranks.replicas import Replicas
from mindrlhf_msprobe.checks.rules.ranks.settings import settings_alike

__all__ = ["RecordedAlike", "Replicas", "settings_alike"]
