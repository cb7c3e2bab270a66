"""Which pieces say how a quantity goes over the steps."""

from __future__ import annotations

from collections.abc import Mapping

from mindrlhf_msprobe.report.messages.chosen import Choice, when

CHOICES: Mapping[str, Choice] = {
    "and_more": lambda more, **_: "n_more" if more > 0 else None,
    "nearest": when("near", "the_nearest"),
    "at_steps": lambda count, steps, **_: None if count == steps else "at_n_steps",
}
