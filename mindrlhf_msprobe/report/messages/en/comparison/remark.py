"""What differs before any tensor and may explain a divergence, in English."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.remark import CHOICES
from mindrlhf_msprobe.report.messages.chosen import chosen
from mindrlhf_msprobe.report.messages.en.words import count

_PIECES: Mapping[str, Text] = {
    "agree": "The initial weights of the {whose_weights} agree ({n_parameters})",
    "of_role": "{role}",
    "of_networks": "{networks} networks",
    "n_parameters": count("parameters", "parameter"),
    "n_compared": count("compared", "parameter"),
    "n_settings": count("count", "setting"),
    "capital": lambda what, **_: what[0].upper() + what[1:],
    "seed_name": " {name}",
    "since_step": " from step {step} on",
    "a_is_set": "{a}",
    "b_is_set": "{b}",
    "not_set": "not set",
    "against": "{value_a} against {value_b}",
    "first_setting": "{section} {name}: {against}",
    "one_setting": "1 setting differs: {first_setting}",
    "several_settings": "{n_settings} differ, the first: {first_setting}",
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "weights_agree": "{agree}.",
        "weights_agree_but": "{agree}, but {but}.",
        "only_random": (
            "{agree}; of the settings, only the state of Python's random generator differs."
        ),
        "no_setting": "{agree}, and no setting that both recorded differs.",
        "weights_differ": (
            "The initial weights of the {role} differ in {different} of {n_compared}, first "
            "{first}: look at the checkpoint that was loaded."
        ),
        "other_parameters": (
            "The networks of the {role} do not have the same parameters: {count} stand in one run "
            "alone, first {first} in {side}."
        ),
        "sentence": "{capital}.",
        "seed": "the seed{which_seed} differs: {against}",
        "generator": "{whose}'s random generator was in another state{since}",
        "determinism": "the determinism setting {name} differs: {against}",
        "settings": "{how_many}",
    },
)
