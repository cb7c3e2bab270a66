"""One run → findings: on what storage reads alone. Nothing in here knows MindSpore."""

from mindrlhf_msprobe.checks.rule import rule

__all__ = ["rule"]
