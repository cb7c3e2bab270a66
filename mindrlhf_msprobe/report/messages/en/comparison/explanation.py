"""Why two runs first differ at a record: what happened to it, and what that means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.explanation import CHOICES
from mindrlhf_msprobe.report.messages.chosen import chosen, joined
from mindrlhf_msprobe.report.messages.en.words import count, ordinal

_PIECES: Mapping[str, Text] = {
    "n_records": count("records", "record"),
    "all_given": joined("given", ", "),
    "all_changes": joined("changes", ", "),
    "all_between": joined("between", " and "),
    "nth": lambda earlier, **_: ordinal(earlier),
    "next_one": lambda earlier, **_: ordinal(earlier + 1),
    "unnamed": "",
    "of_argument": " ({argument})",
    "is_unreadable": "cannot be read",
    "is_only_in_a": "was recorded in A only",
    "is_only_in_b": "was recorded in B only",
    "is_dtype_mismatch": "has another dtype",
    "is_shape_mismatch": "has another shape",
    "is_non_finite": "is NaN or infinite on one side only",
    "is_different": "differs",
    "with_note": " ({note})",
    "inside_cell": "inside this cell",
    "before_in_step": "before it in this step",
    "fingerprints_agree_then": "; the fingerprints that were recorded agree",
    "fingerprints_differ": "; the fingerprints that were recorded differ",
    "file_of_run": "the file of {run}",
    "file_of_one": "a file",
    "in_cell_around": " in {cell}",
    "in_line": ", {line}",
    "entered_close": "what entered is {entered:.2g} apart",
    "entered_equal": "what entered agrees",
    "agree_inputs_and_parameters": "Its inputs and its parameters agree",
    "agree_inputs": "Its inputs agree",
    "agree_gradient": "The gradient that arrived at it and everything before it agree",
    "children_agree": ", and so does everything recorded inside it",
    "inside_container": " inside {container}",
    "makers_not_recorded": ", and the cells of {not_recorded} were not recorded",
    "cells_of_phase": "of {phase} agrees",
    "cells_before": "before it agrees",
    "all_agree": ": the trainer's own arithmetic made it differ.",
    "some_close": (
        ", but {close} of their {records} records only within the tolerance or by statistics: it "
        "may come of these small differences, or of the trainer's own arithmetic."
    ),
    "others_between": ", with {all_between} between",
    "after_update": "the {nth} update",
    "after_call": "the {nth}",
    "weights_kept": "; its weights did not change between",
    "gradients_agree": ", the gradients of this update among it",
    "or_gradients": "gradients, which were not recorded, ",
    "state_agrees": ", and so does its state after step {step}",
    "or_initial_state": "the state that it began with (a checkpoint), ",
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "happened": "{record}{named} {happened_to_it}{noted}.",
        "left_out": (
            "The comparison left out {n_records} {where} (--include, --exclude), and one of those "
            "may be to blame: compare without leaving them out."
        ),
        "left_out_all": (
            "All cells and the other keys were left out of the comparison (--keys), and one of "
            "those may be to blame: compare without leaving them out."
        ),
        "given_left_out": (
            "What the cell was given differs as well, which the comparison left out: {all_given}. "
            "The origin lies before it."
        ),
        "given_differs": "What it was given differs.",
        "given_agrees": "What the cell was given agrees.",
        "place_unreadable": "Nothing of this step and rank can be compared.",
        "phase_unreadable": "Nothing of this phase can be compared.",
        "unreadable": (
            "Nothing is known of its elements, so nothing is to blame yet but the file"
            "{fingerprints}."
        ),
        "layout_unfit": (
            "The layout that was given does not fit what was recorded; the files are not to blame, "
            "and nothing is said of the computation: correct the layout, then compare again."
        ),
        "unreadable_files": (
            "Nothing is known of what was lost with it, so nothing is to blame yet but the file."
        ),
        "file_changed": (
            "By the fingerprints both runs recorded the same; the elements in {whose_file} do not "
            "agree with its fingerprint any more. Nothing can be said about the computation: "
            "restore the file or record again, then compare again."
        ),
        "not_reached": (
            "Everything that both recorded agrees. {stopped} had stopped; {other} went on with "
            "this record, and has {n_records} that {stopped} did not reach."
        ),
        "ended_in_one_run": "What it was given agrees; it ended in one run only.",
        "gradient_in_one_run": (
            "Everything before it agrees; a gradient is there in one run, and None in the other."
        ),
        "returned_otherwise": (
            "What it was given agrees; what it returned is put together otherwise."
        ),
        "parameter_gradient": (
            "Everything before it agrees: the gradient of this cell's parameters was computed "
            "otherwise."
        ),
        "gradient_at_optimizer": (
            "It stands as it entered the optimizer: clipping, unscaling, accumulation and "
            "reduction across ranks come before that, and may be to blame as well."
        ),
        "cell_computed": "{what_agrees}{children}: this cell computed something else.",
        "born": (
            "That is ordinary rounding; the error is born at {record}"
            "{around_it}{at_line}: it is {distance:.2g} of its size there, beyond what rounding "
            "explains, and {what_entered}."
        ),
        "not_mindspores": "In {runs} it is not MindSpore's own: {by} stands in its place.",
        "operator_computed": "{what_agrees}: this operator computed something else.",
        "one_attribute": "{name} is {a} in A and {b} in B",
        "other_attributes": "Its attributes differ, and are to blame: {all_changes}.",
        "but_random": (
            "But it draws random numbers: seeds and what was drawn before may be to blame."
        ),
        "but_other_ranks": (
            "But it exchanges data: what another rank handed to it may be to blame."
        ),
        "parameter_in_one_run": (
            "Everything before it agrees, but the cell has this parameter in one run only, or it "
            "was recorded in one run only."
        ),
        "optimizer_state": (
            "Everything before it agrees{gradients_too}{state_too}; what the optimizer keeps for "
            "its next update does not: look at {unrecorded_gradients}{initial_state}the settings "
            "of the optimizer or its kernel."
        ),
        "parameter": (
            "Everything before it agrees, but the cell already holds another parameter: look at "
            "loading, at weight synchronisation or at the previous update."
        ),
        "container": (
            "{container} was given the same and handed this cell another {given}: the code of the "
            "container itself, outside its cells, is the origin, or a parameter that it uses "
            "without calling its cell."
        ),
        "container_of_operator": (
            "{container} was given the same and handed this operator another {given}: its own code "
            "between the recorded operators is the origin (Python, numpy, an operator that is not "
            "recorded), or a parameter that it uses."
        ),
        "gradient_after_operators": (
            "All {records} records of {phase} before it agree; the gradient that arrives differs: "
            "it was made by something that was not recorded."
        ),
        "input_after_operators": (
            "All {records} records of {phase} before it agree; what this operator was given was "
            "made by something that was not recorded, or is a parameter."
        ),
        "gradient_after": (
            "All {records} records of {phase} before it agree; the gradient that arrives differs: "
            "look at what follows this cell, e.g. the loss."
        ),
        "input_after": (
            "All {records} records of {phase} before it agree; what entered this cell was made "
            "outside the recorded cells."
        ),
        "first_recorded_operator": (
            "It is the first recorded operator of {phase}; what it was given was made by something "
            "that was not recorded, or is a parameter."
        ),
        "first_recorded_cell": "It is the first recorded cell of {phase}.",
        "gradient": (
            "The gradient that arrives differs: look at what follows this cell, e.g. the loss."
        ),
        "input": "What entered this cell was made outside the recorded cells.",
        "token_input": (
            "What entered the pass of token {token} differs; the earlier comparison says what came "
            "before it."
        ),
        "first_token": "Token {token} is the first one recorded: an earlier one may have differed.",
        "phase_input": (
            "What entered {phase} differs already: look at what the trainer handed to it."
        ),
        "not_on_disk": (
            "{run} recorded more than is on disk: {why}. Nothing can be said about the computation."
        ),
        "nothing_of_step": "{run} recorded nothing of step {step} here.",
        "nothing_of_phase": "{run} recorded nothing of {phase} in this step.",
        "other_elements": "Both saved {key}, with other elements in it.",
        "saved_in_one_run": "The trainer saved it in one run only.",
        "ran_in_one_run": "The cell ran{in_container} in one run only.",
        "called_in_one_run": "The operator was called{in_container} in one run only.",
        "step_input": "What enters the phases of this step differs already{makers}.",
        "some_tokens": (
            "Every recorded cell of {phase} agrees, but only some of its tokens were recorded."
        ),
        "cells_agree": "Every recorded cell {which_cells}{from_where}",
        "phase_not_recorded": (
            "The cells of {phase}, which it comes from, were not recorded in both runs, nor were "
            "the weights they ran with: {switch}: true fingerprints these, too."
        ),
        "no_cell_before": (
            "No cell before it was recorded in both runs; all key data before it agree."
        ),
        "but_filtered": (
            "But cells were left out by include/exclude, and one of those may be to blame."
        ),
        "but_not_bitwise": (
            "But some records agree within a tolerance or by statistics only, not bit for bit."
        ),
        "but_opaque": (
            "But {record} is a value of type {type}, which cannot be compared, and may be to blame."
        ),
        "but_gap": "But {record} was not compared ({why}), and may be to blame.",
        "but_no_parameters": (
            "But its parameters were not recorded (parameters: false), and may be to blame."
        ),
        "nth_call": (
            "This is the {next_one} call of {phase} in this step, after {after_which}{others}"
            "{still}."
        ),
    },
)
