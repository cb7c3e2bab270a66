"""Which pieces say what differs before any tensor and may explain a divergence."""

from __future__ import annotations

from collections.abc import Mapping

from mindrlhf_msprobe.report.messages.chosen import Choice, unless_none

CHOICES: Mapping[str, Choice] = {
    "whose_weights": unless_none("role", "of_role", "of_networks"),
    "which_seed": lambda name, **_: None if name == "mindspore" else "seed_name",
    "since": unless_none("step", "since_step"),
    "value_a": unless_none("a", "a_is_set", "not_set"),
    "value_b": unless_none("b", "b_is_set", "not_set"),
    "how_many": lambda count, **_: "one_setting" if count == 1 else "several_settings",
}
