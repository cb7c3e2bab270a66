"""What the checks of what reinforcement learning must satisfy say, in English."""

from __future__ import annotations

from mindrlhf_msprobe.report.messages import Text

BOTH_RANDOM = "; neither was loaded from a checkpoint, so both begin with random weights"


def _reference(mean: float, random: bool) -> str:
    said = (
        "the reference is not the initial actor: before the first update ref_log_prob and "
        f"old_log_prob differ by {mean:.3g} on average"
    )
    return said + BOTH_RANDOM * random


def _rollout_gap(mean: float, p99: float, probability: float, limit: float, float32: bool) -> str:
    said = (
        "rollout and training do not agree on the sampled tokens: log-probabilities differ by "
        f"{mean:.3g} on average (p99 {p99:.3g}), probabilities by {probability:.3g}; "
    )
    if float32:
        return said + f"float32 networks stay below {limit:g} nats"
    return said + f"rounding leaves probabilities within {limit:g}"


def _advantages(mean: float, grouped: bool) -> str:
    over = "of a prompt's samples" if grouped else "of the whitened advantages"
    return f"the advantages are not centred: the mean {over} is {mean:.3g}"


def _identical(count: int, all: bool) -> str:
    if all:
        return f"all {count} responses are identical"
    return "the responses to one prompt are identical, for each prompt"


TEXTS: dict[str, Text] = {
    "reference": _reference,
    "rows_unknown": "which rows of {keys} belong together is not known",
    "rollout_gap": _rollout_gap,
    "ratio": (
        "the policy is not the old one in the first micro-step: ratio differs from 1, or log_prob "
        "from old_log_prob, by {mean:.3g} on average"
    ),
    "kl_negative": "{key} is negative (down to {least:.3g}) and never positive",
    "clip_fraction": (
        "{fraction:.0%} of the ratios are outside {low:g} to {high:g}, for {steps} steps in a row"
    ),
    "entropy_collapse": "the policy's entropy fell from {before:.3g} to {now:.3g} nats a token",
    "advantages": _advantages,
    "groups_unknown": "which samples have the same prompt is not known",
    "advantages_unknown": "neither one a sample nor whitened: their mean need not be 0",
    "equal_rewards": "in {equal} of {count} groups all rewards are equal: they give no signal",
    "identical": _identical,
    "empty": "{empty} of {count} responses are empty",
    "no_eos": "the tokens that end and fill up a response are not recorded",
    "cut": "{cut} of {count} responses were cut at {limit} tokens",
    "pad_inside": "{bad} of {count} responses go on behind the token that ends or fills them up",
    "same_prompts": "the same {count} prompts as in the step before",
    "repeated_prompts": "{repeated} of {count} prompts are there more often than others",
    "mask_empty": "the mask selects nothing",
    "mask_unknown": "the tokens under the mask, or the responses, are not recorded as token ids",
    "mask_wrong": "the mask selects other tokens than a response's: in row {row} {tokens}",
    "cause_reference_weights": "the reference was loaded from another checkpoint than the actor",
    "cause_reference_settings": "the reference runs with other settings (precision, dropout, mask)",
    "cause_old_weights": "the old policy's weights are not those of the actor before this update",
    "cause_dropout": "dropout, or training mode, in one of the two passes",
    "cause_temperature": "another temperature, mask or order of the samples in one of the passes",
    "cause_not_synchronised": "the network that generates was not given the last update's weights",
    "cause_rollout_dtype": (
        "another dtype in one of the two networks: lm_head, rotary cache, the sampler's softmax"
    ),
    "cause_cache": "positions, mask or key/value cache of the generation token by token",
    "cause_kl_sign": "the sign of the estimator, or the order of its arguments",
    "cause_kl_rows": "log-probabilities of different tokens were subtracted from each other",
    "cause_learning_rate": "the learning rate is too large, or too many updates use one batch",
    "cause_entropy_bonus": "no entropy bonus, or a KL coefficient that is too small",
    "cause_centring": "the group's mean, or the batch's, was not subtracted",
    "cause_groups": "samples of different prompts were taken for one group",
    "cause_greedy": "generation does not sample (do_sample, temperature, top_k)",
    "cause_same_seed": "each sample is generated with the same seed",
    "cause_eos_ignored": "generation does not stop at the token that ends a response",
    "cause_shift": "the mask is shifted against the tokens (of the next token, or of this one)",
    "cause_lengths": "the lengths of prompts or responses that the mask was made of are wrong",
}
