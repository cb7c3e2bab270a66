"""What beyond the record that differs first is to blame, and the evidence for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.culprit import CHOICES, VALUES
from mindrlhf_msprobe.report.messages.chosen import chosen, joined
from mindrlhf_msprobe.report.messages.en.words import count, ordinal

_PIECES: Mapping[str, Text] = {
    **VALUES,
    "of_parameters": count("of", "parameter"),
    "backward_records": count("backward", "record"),
    "agreeing_records": count("agree", "record"),
    "nth": lambda number, **_: ordinal(number),
    "phases": joined("record", " and "),
    "parameter": "Everything before it agrees, but the cell already holds another parameter",
    "choice": "seed, temperature, top-p, top-k, post-processing",
    "batch_or": "the batch or ",
    "batch_agreed": " (its batch agrees: loss_inputs)",
    "one_update": "{phase} of step {step}",
    "update_of_several": "{one_update}, micro-step {micro_step}",
    "one_optimizer_step": "the optimizer step of {phase} in step {step} {settings}",
    "optimizer_step_of_several": (
        "the optimizer step after micro-step {micro_step} of {phase} in step {step} {settings}"
    ),
    "settings": "(lr, weight decay, {clipping}state)",
    "and_clipping": "scaling or clipping of the gradients before it, ",
    "unmoved_in": (
        " In {unmoved} that step changed no parameter: an lr of 0, or a step that was skipped."
    ),
    "unseen_gradients": (" But gradients {unseen_of} may differ, and act through a sum or a norm."),
    "unseen_cells": "of cells that were left out by include/exclude",
    "unseen_ranks": "of ranks that were not recorded",
    "unseen_both": "{unseen_cells} and {unseen_ranks}",
    "began_alike": (
        "The gradients of the update before it, {update}, and the weights it began with agree bit "
        "for bit"
    ),
    "to_blame": "differ in {parameters} of {of_parameters}: {optimizer_step} is to blame",
    "its_gradients": "Its gradients",
    "its_gradients_and_weights": "Its gradients and the weights it began with",
    "by_statistics": " (by statistics: without fingerprints that is no proof)",
    "initial_weights": "its initial weights",
    "weights_of_step": "the weights of step {step}",
    "weights_of_micro_step": "the weights of step {step}, micro-step {micro_step}",
    "other_initial_weights": "{initial_weights}",
    "other_weights_of_step": "the weights of step {other[step]}",
    "other_weights_of_micro_step": (
        "the weights of step {other[step]}, micro-step {other[micro_step]}"
    ),
    "other_state": " In {other_run} it has {state_of_other}.",
    "other_is_current": " In {other_run} it has those of {trained}, as it should.",
    "other_followed_too": " In {other_run} it has them, too.",
    "in_one_run": " In {other_run} this network has the weights of {trained}, in {run} not.",
    "trained_by_none": (
        ". No phase trains this network: look at what changed it in {other_run} (loading, weight "
        "synchronisation, a value that was written into a parameter), or at why {run} left that "
        "out."
    ),
    "trained_agrees_then": (
        ", while the weights of {trained} agree: {run} was not synchronised, or {other_run} should "
        "not have been."
    ),
    "update_between_unknown": (
        ": {run} was not synchronised or not updated, or {other_run} should not have been. The "
        "update between was not recorded."
    ),
    "sampled_last": (
        "Every recorded cell of {phase} agrees, the outputs of token {token}, the last one, bit "
        "for bit: the choice of the last token ({choice}), or what was made of the tokens "
        "afterwards, is where the runs diverge."
    ),
    "sampled_next": (
        "The outputs of the network for token {token} (its logits) agree bit for bit, the tokens "
        "it is given next differ: the choice of the token ({choice}) is where the runs diverge"
        "{new_prompt}."
    ),
    "prompt_begins": ", or a new prompt begins here",
    "responses_differ": "the responses",
    "next_tokens_differ": "the tokens it is given next",
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "earlier_update": (
            "{key} agrees in micro-step {micro_step} and differs in micro-step {next_micro_step}: "
            "the {nth} update ({phase} of micro-step {micro_step}: its gradients or its optimizer "
            "step) is to blame, or {or_batch}the forward pass of micro-step {next_micro_step}"
            "{its_batch}, and key data alone do not tell which: record the cells of {phases}, "
            "gradients included, in step {step} of both runs to decide."
        ),
        "optimizer": "{began_alike}; the weights after it {to_blame}.{no_move}{unseen}",
        "before_optimizer": (
            "The gradients as they enter the optimizer differ, all {gradients} of them, and the "
            "{backward_records} of the backward pass of {phase} agree bit for bit: look at what "
            "stands between the two (clipping, loss scale, accumulation, reduction across ranks), "
            "not at this cell."
        ),
        "optimizer_or_synchronisation": (
            "{began_alike}; these weights {to_blame}, or what brings the weights from the trained "
            "network here. The weights of {phase} after it, which would tell, were not recorded."
            "{no_move}{unseen}"
        ),
        "update_close": (
            "{parameter}: the gradients of the update before it, {update}, or the weights it began "
            "with agree only within a tolerance or by statistics, so either these small "
            "differences grew, or {optimizer_step} is to blame.{no_move}"
        ),
        "gradients_not_recorded": (
            "{gradients_or_more} in {update}, were not recorded of both runs; record that step "
            "with directions: [forward, backward] to tell the optimizer from the gradients."
            "{no_move}"
        ),
        "update_not_recorded": (
            "The update before it, {phase} of step {step}, was not recorded: record step {step} as "
            "well to tell loading, synchronisation and optimizer apart."
        ),
        "not_synchronised": (
            "{parameter}. In {run} the network of {phase} still has {state}, in {parameters} of "
            "{of_parameters} that are others in {trained} by now{by}: not synchronised."
            "{other_kept}"
        ),
        "synchronisation": (
            "{parameter}, in {parameters} of {of_parameters}. The weights of {trained} at that "
            "time agree: what brings them to the network of {phase} is to blame (loading, weight "
            "synchronisation, conversion).{whose}"
        ),
        "follows_trained": (
            "{parameter}. In {run} the network of {phase} was changed to the weights of {trained}, "
            "in {parameters} of {of_parameters}{by}: it was updated with them, or is the same "
            "network.{other_followed}"
        ),
        "not_moved": (
            "{parameter}. In {run} none of {of_parameters} has changed since step {step}{by}, in "
            "{other_run} {parameters} of them{why_not_moved}"
        ),
        "changed_between": (
            "{parameter}, in {parameters} of {of_parameters}. In {since}, before it in this step, "
            "the parameter agrees, and in {other_run} it is still the same: in {run} it was "
            "changed between the two, where nothing is updated (loading, weight synchronisation, "
            "conversion)."
        ),
        "sampling": "{where_sampled}",
        "sampling_or_logits": (
            "The outputs of the network for token {token} (its logits) agree only within a "
            "tolerance or by statistics, {what_differs} differ: either these small differences tip "
            "a token over, or its choice ({choice}) is where the runs diverge."
        ),
        "loss": (
            "What the loss is given (loss_inputs) and log_prob agree bit for bit in this "
            "micro-step, {agreeing_records}: what the loss computes of them is to blame (its code, "
            "or what it is set to: beta, clipping, how it is averaged), not the forward pass of "
            "the network."
        ),
        "schedule": (
            "No cell of {phase} computes it: it is set for the update, by the schedule of the "
            "optimizer or by how many updates it has counted."
        ),
    },
)
