"""One run → findings: on what storage reads alone. Nothing in here knows MindSpore."""

from mindrlhf_msprobe.checks.registry.rule import rule

__all__ = ["rule"]
