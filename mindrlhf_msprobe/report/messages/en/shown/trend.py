"""One quantity over the steps (`trend`), and the gradients of two runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.trend import CHOICES
from mindrlhf_msprobe.report.messages.chosen import chosen, joined
from mindrlhf_msprobe.report.messages.en.words import count

_PIECES: Mapping[str, Text] = {
    "n_more": " and {more} more",
    "nearest_names": joined("near", ", "),
    "the_nearest": " Nearest: {nearest_names}.",
    "n_values": count("count", "value"),
    "n_saves": count("count", "save"),
    "n_updates": count("count", "update"),
    "all_updates": count("updates", "update"),
    "n_places": count("count", "place"),
    "n_steps": count("steps", "step"),
    "n_parameters": count("parameters", "parameter"),
    "at_n_steps": " at {n_steps}",
    "all_names": joined("names", " and no "),
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "reading": "reading",
        "rank": "rank {rank}",
        "summary": "{n_values}{at_steps}: first {first}, last {last}, min {low}, max {high}",
        "not_finite": "; NaN or Inf at step {steps}{and_more}",
        "none_finite": "{n_values}, none finite",
        "no_series": "nothing recorded",
        "more_series": (
            "{count} more series are not plotted: --plots, --key, --record choose; --csv has all"
        ),
        "more_problems": "{count} more problems",
        "without": "{path}: not held: {what}",
        "not_available": "Not available:",
        "missing": "  {name}: {why}",
        "nothing_matches": "{path} holds no record, key or derived quantity {asked!r}.{nearest}",
        "no_numbers": (
            "What {asked!r} matches in {path} has no {statistic}: texts, empty tensors, or "
            "statistics that were not recorded."
        ),
        "unknown_statistic": "There is no statistic {name!r}.{nearest}",
        "unknown_derived": "There is no derived quantity {name!r}.{nearest}",
        "unknown_key": "{path} holds no key {name!r}.{nearest}",
        "unknown_phase": "{path} holds no phase {name!r}.{nearest}",
        "unknown_rank": "{path} holds no rank {name!r}.{nearest}",
        "bad_pattern": "The pattern {pattern!r} cannot be used: {why}.",
        "no_tensorboardx": (
            "--tensorboard needs tensorboardX, which cannot be imported ({why}): pip install "
            "tensorboardX"
        ),
        "no_key_data": "the run holds no key data: record it with key_data_dump",
        "no_key": "the run holds no {all_names}: save it with save_data (key_data_dump)",
        "no_one_tensor": "{key} is not one tensor",
        "unread_key": "{key} cannot be read: {why}",
        "rows_unknown": (
            "{n_saves} of {key} {shape}, {other_count} of {other} {other_shape}: which rows belong "
            "together is not recorded; save {other} of the same rows, or loss_inputs"
        ),
        "no_pad": (
            "{key} holds tokens, and neither a mask was saved nor is pad_token_id in "
            "configurations.json"
        ),
        "no_gradients": (
            "no gradients of parameters are recorded: actor_train_dump or critic_train_dump, with "
            "backward among the directions"
        ),
        "no_moments": "no state of an optimizer is recorded (optimizer_state: true)",
        "no_parameters": (
            "no parameters of an update are recorded: actor_train_dump or critic_train_dump, with "
            "parameters: true"
        ),
        "parameters_once": "parameters are recorded once: two steps are needed",
        "parameters_without_elements": (
            "parameters are recorded as statistics: task: tensor records their elements"
        ),
        "rows_by_value": (
            "rows were found by their values; updates where they cannot be are left out"
        ),
        "without_mask": "no mask is saved: all tokens count, padding as well",
        "rows_by_tokens": (
            "rows were found by their tokens in what the loss was given; responses that cannot be "
            "are left out"
        ),
        "rows_by_old_tokens": (
            "rows were found by the tokens that old_log_prob is of; responses that cannot be are "
            "left out"
        ),
        "saves_left_out": "saves whose shapes differ are left out",
        "mask_of_rollout": "no mask is saved: zeros at the end of a row are padding",
        "non_finite_left_out": (
            "NaN and Inf are left out; rollout_corr/non_finite_tokens counts them"
        ),
        "shapes_apart": (
            "rollout_log_prob, training_log_prob and mask have shapes {rollout}, {training} and "
            "{mask}; expected one shape [..., tokens]."
        ),
        "no_token": "no token counts: all responses are empty, or all tokens masked",
        "no_finite_token": "of no token that counts both log-probabilities are finite",
        "one_token": "not defined for one token",
        "all_equal": "not defined where all values are equal",
        "clip_range": "clip range {low} below and {high} above 1, of configurations.json",
        "usual_clip_range": (
            "clip range {low} below and {high} above 1: configurations.json names none"
        ),
        "length_of_loss": "of the rows that the loss was given: packed rows hold several responses",
        "kl_of_old": "of old_log_prob, the policy before the update",
        "in_characters": "in characters: neither tokens nor a mask are saved",
        "pad": "tokens other than pad_token_id {pad}",
        "gradients_of_two": "--gradients compares two runs; expected RUN RUN2.",
        "same_run": "Both runs are the same directory: {path}.",
        "bad_threshold": "--first is {first}, --fall is {fall}; expected -1 to 1 and 0 to 2.",
        "gradient_alone": "only in run {side}",
        "gradient_shapes": "shapes {a} and {b}",
        "gradient_statistics": (
            "the signs of neither or one run are recorded, and not all elements: task: grad_probe "
            "or task: tensor"
        ),
        "similarity": "similarity of gradients, weighted by elements",
        "similarity_summary": (
            "{n_updates}: first {first}, last {last}; {n_parameters}, {size} elements"
        ),
        "gradients_alike": "Nothing suspicious in {all_updates} of {n_parameters}",
        "gradients_fall": "Suspicious from {place} on ({n_places}):",
        "no_gradients_compared": (
            "No gradients could be compared: both runs need them at the same steps, as elements "
            "(task: tensor) or signs (task: grad_probe)"
        ),
        "more_suspicious": "and {count} more: --csv has all",
        "steps_alone": "Not compared: step {steps}{and_more}, which run {side} alone has",
        "place": "step {step}, rank {rank}, {phase}, update {update}, {parameter}",
        "first_low": "first similarity {value}",
        "fall": "similarity fell from {before} to {value}",
        "not_finite_gradient": "NaN or Inf in the gradient",
        "not_compared": "not compared: {why}",
        "no_matched": "{a} and {b} have no gradients of the same steps and ranks to compare.",
        "no_pictures": (
            "similarities_picture was not written: it needs matplotlib (pip install matplotlib); "
            "similarities.csv has the numbers"
        ),
    },
)
