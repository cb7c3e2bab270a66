"""Which pieces say what the checks of ranks found."""

from __future__ import annotations

from collections.abc import Mapping

from mindrlhf_msprobe.report.messages.chosen import Choice, when

CHOICES: Mapping[str, Choice] = {"how_called": when("lacking", "recorded_less", "called_otherwise")}
