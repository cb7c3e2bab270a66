"""Where the first NaN or infinity was born, and how it spread."""

from mindrlhf_msprobe.checks.rules.non_finite.first import FirstNonFinite

__all__ = ["FirstNonFinite"]
