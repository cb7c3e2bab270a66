"""What both languages decide alike: which pieces of a text the parameters choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.common.printable import few_numbers, spans
from mindrlhf_msprobe.report.messages.templates import (
    Choice,
    few_spans,
    is_to_the_end,
    other_run,
    unless_none,
    when,
)

#: Which pieces checks say, whatever the rule, and those of ranks.
CHECKS_CHOICES: Mapping[str, Choice] = {
    "notes": when("note", "n_notes"),
    "on_ranks": when("ranks", "on_these_ranks"),
    "of_line": when("line", "line_of_file"),
    "how_called": when("lacking", "recorded_less", "called_otherwise"),
}


def _earlier_steps(steps: int, step: int, **_: Any) -> str | None:
    if not steps:
        return None
    if steps != step:  # some were not recorded, or the first is not step 0
        return "some_earlier_steps"
    return "step_0" if step == 1 else "steps_from_0"


def _before(records: int, steps: int, **_: Any) -> str | None:
    if records:
        return "records_before"
    return "steps_before" if steps else None


def _weights(compared: int, different: int, only_in_a: int, only_in_b: int) -> str:
    if compared and not (different or only_in_a or only_in_b):
        return "all_weights_agree"
    return "some_weights_differ" if compared or only_in_a or only_in_b else "no_weights"


def _stopped(state: str, **_: Any) -> str:
    return f"stop_{state}" if state in ("running", "killed", "interrupted") else "stop"


def _on_rank_0(ranks: Sequence[int], **_: Any) -> str | None:
    return None if tuple(ranks) == (0,) else "on_ranks"


def _occasion(micro_step: int | None, call: int | None, **_: Any) -> str | None:
    if call is not None:
        return "nth_call"
    return None if micro_step is None else "of_micro_step"


def _where_called(cell: str | None, **_: Any) -> str | None:
    if cell is None:
        return None
    return "inside_cell" if cell else "outside_cells"


#: Which pieces say the answer of a comparison.
CONSOLE_CHOICES: Mapping[str, Choice] = {
    "its_gradient": when("backward", "of_gradient"),
    "where_called": _where_called,
    "at_line": when("line", "on_line"),
    "phases_before": when("phases", "phases_and"),
    "and_phases": when("phases", "n_phases"),
    "how_close": lambda compared, **_: "some_close" if compared > 1 else "one_close",
    "of_phase": when("phase", "in_phase"),
    "in_micro_step": when("micro_step", "of_micro_step"),
    "which_hold": when("several", "some_hold", "it_holds"),
    "relative_too": unless_none("relative", "max_relative"),
    "the_last": when("last", "last_that_agrees"),
    "beginning": lambda unless, **_: f"begin_{unless}" if unless else "begin",
    "again": when("one_run", "one_again", "both_again"),
    "where_alone": lambda only_in, **_: "in_both" if only_in == "both" else "in_one",
    "took": unless_none("seconds", "took_seconds"),
    "all_counts": when("counts", "each_count", "none"),
    "occasion": _occasion,
    "at_what_time": when("first", "at_first", "later"),
    "how_stopped": _stopped,
    "on_other_ranks": _on_rank_0,
    "with_error": when("error", "its_error"),
    "what_agreed": _before,
    "earlier_steps": _earlier_steps,
    "and_earlier": when("steps", "earlier_too"),
    "found_then": lambda relation, **_: f"then_{relation}",
    "looked": when("all_cells", "looked_at_all"),
    "agreed_then": when("agreed", "agreed_before_it"),
    "of_each": when("one_run", None, "each_run"),
    "from_cells": when("estimated", "estimated_from_cells"),
    "of_weights": _weights,
    "alone_in_a": when("only_in_a", "n_only_in_a"),
    "alone_in_b": when("only_in_b", "n_only_in_b"),
    "of_name": when("name", "with_name"),
}

#: Pieces of them that are the same in both languages.
CONSOLE_VALUES = {
    "rank_spans": lambda ranks, **_: spans(ranks),
    "sorted_ranks": lambda ranks, **_: spans(sorted(ranks)),
    "step_before": lambda step, **_: str(step - 1),
}


def _fingerprints(fingerprints_agree: bool | None, **_: Any) -> str | None:
    if fingerprints_agree is None:
        return None
    return "fingerprints_agree_then" if fingerprints_agree else "fingerprints_differ"


def _several(one: str, more: str) -> Choice:
    return lambda updates, **_: more if updates > 1 else one


def _unseen(filtered: bool, ranks_unseen: bool, **_: Any) -> str | None:
    """Return what else may be to blame, because it was not recorded."""
    if filtered and ranks_unseen:
        return "unseen_both"
    return "unseen_cells" if filtered else "unseen_ranks" if ranks_unseen else None


def _state(step: int | None = None, micro_step: int | None = None, **_: Any) -> str:
    if step is None:
        return "initial_weights"
    return "weights_of_step" if micro_step is None else "weights_of_micro_step"


def _other(of_trained: str) -> Choice:
    """Return what the network has in the other run."""
    return lambda other, **_: of_trained if other == "current" else "other_state" if other else None


def _why_not_moved(trained: str | None, trained_agrees: bool, **_: Any) -> str:
    if trained is None:
        return "trained_by_none"
    return "trained_agrees_then" if trained_agrees else "update_between_unknown"


def _still(weights_moved: bool | None, kept_in: str | None = None, **_: Any) -> str | None:
    """Return what is said of weights that did not change between two calls."""
    return "weights_kept_in_one" if kept_in else "weights_kept" if weights_moved is False else None


def _about_inputs(inputs: bool, means: Any = None, **_: Any) -> str | None:
    """Return what is said of what a loss is given; nothing is asked for where all is told."""
    return "inputs_agree" if inputs else None if means else "inputs_in_part"


_FEW = 8  # times as many parameters as those that differ: an optimizer acts on all of them


def _means_told(
    means: Any = None, possible_means: Any = None, zero: Sequence[str] = (), **_: Any
) -> str | None:
    if means:
        return "two_means"
    if possible_means:
        return "possible_means"
    return "value_is_zero" if zero else None


def _not_saved(
    given: Sequence[str] = (), unlike: Sequence[str] = (), missing: Sequence[str] = (), **_: Any
) -> str | None:
    """Return what is said of what a loss is given and was not saved; loss_inputs holds it all."""
    if not (given or unlike):
        return "save_inputs"
    return None if "loss_inputs" in (*given, *unlike) else f"save_{'_and_'.join((*missing, 'set'))}"


#: Which pieces say what a first difference is, what it means, and what is to blame.
EXPLANATION_CHOICES: Mapping[str, Choice] = {
    "named": when("argument", "of_argument", "unnamed"),
    "happened_to_it": lambda status, **_: f"is_{status}",
    "noted": when("note", "with_note"),
    "where": when("inside", "inside_cell", "before_in_step"),
    "fingerprints": _fingerprints,
    "whose_file": lambda run=None, **_: "file_of_run" if run else "file_of_one",
    "around_it": when("cell", "in_cell_around", "unnamed"),
    "at_line": when("line", "in_line", "unnamed"),
    "what_entered": when("entered", "entered_close", "entered_equal"),
    "what_agrees": lambda given, **_: f"agree_{given}",
    "children": when("inside", "children_agree"),
    "in_container": when("container", "inside_container", "unnamed"),
    "makers": when("not_recorded", "makers_not_recorded"),
    "which_cells": when("phase", "cells_of_phase", "cells_before"),
    "from_where": when("close", "some_close", "all_agree"),
    "others": lambda between, **_: "others_between" if between else None,
    "after_which": when("updated", "after_update", "after_call"),
    "still": _still,
    "gradients_too": when("gradients", "gradients_agree"),
    "unrecorded_gradients": when("gradients", None, "or_gradients"),
    "state_too": when("before", "state_agrees"),
    "initial_state": when("before", None, "or_initial_state"),
    "or_batch": lambda batch_agrees=False, **_: None if batch_agrees else "batch_or",
    "its_batch": lambda batch_agrees=False, **_: "batch_agreed" if batch_agrees else None,
    "update": _several("one_update", "update_of_several"),
    "optimizer_step": _several("one_optimizer_step", "optimizer_step_of_several"),
    "clipping": when("clipped", None, "and_clipping"),
    "no_move": unless_none("unmoved", "unmoved_in"),
    "unseen": lambda **known: "unseen_gradients" if _unseen(**known) else None,
    "unseen_of": _unseen,
    "gradients_or_more": when("weights", "its_gradients", "its_gradients_and_weights"),
    "by": when("exact", None, "by_statistics"),
    "state": _state,
    "state_of_other": lambda other, **_: f"other_{_state(**other)}",
    "other_kept": _other("other_is_current"),
    "other_followed": _other("other_followed_too"),
    "whose": unless_none("run", "in_one_run"),
    "why_not_moved": _why_not_moved,
    "where_sampled": when("last", "sampled_last", "sampled_next"),
    "new_prompt": when("prompt", "prompt_begins"),
    "what_differs": when("last", "responses_differ", "next_tokens_differ"),
    "of_rewards": when("rewards", "of_reward_functions"),
    "means_told": _means_told,
    "whose_zero": lambda zero=(), **_: f"zero_{'_'.join(zero)}" if zero else None,
    "mean_of_a": lambda means, **_: f"mean_of_{means['A']}",
    "mean_of_b": lambda means, **_: f"mean_of_{means['B']}",
    "by_factor": lambda factor=None, **_: None if factor is None else "times_factor",
    "held_before": lambda copied=False, **_: "held_in_copy" if copied else "held_in_phase",
    "when_changed": lambda copied=False, **_: (
        "changed_behind_update" if copied else "changed_in_between"
    ),
    "or_written": lambda parameters, of, **_: "if_written" if _FEW * parameters < of else None,
    "of_what_made": lambda parts=(), **_: "made_of_parts" if parts else "made_of_tokens",
    "coefficients_told": lambda coefficients=None, **_: (
        None if coefficients is None else "two_coefficients"
    ),
    "factor_told": lambda factor=None, means=None, **_: (
        None if factor is None or means else "one_factor"
    ),
    "of_counts": lambda counts=None, **_: "two_counts" if counts else None,
    "inputs_too": _about_inputs,
    "given_too": lambda given=(), **_: "given_agree" if given else None,
    "given_unlike": lambda unlike=(), **_: "given_differ" if unlike else None,
    "not_saved": _not_saved,
}

#: Pieces of them that are the same in both languages.
EXPLANATION_VALUES = {
    "next_micro_step": lambda micro_step, **_: str(micro_step + 1),
    "other_run": lambda run, **_: other_run(run),
}


def _changed(
    change: str | None, where: Sequence[str], prompts: Sequence[int], **_: Any
) -> str | None:
    if not change:
        return None
    return "and_change" if where or prompts else "change_alone"


#: Which pieces say where inside a record the difference is, and by which change.
INSIDE_CHOICES: Mapping[str, Choice] = {
    "only": when("where", "only_there"),
    "of_prompts": when("prompts", "all_of_prompts"),
    "changed": _changed,
    "how_many": unless_none("elements", "n_elements"),
    "how_far_shifted": when("whole", "all_shifted", "partly_shifted"),
    "the_rest": lambda filled, whole, **_: (
        "unknown_there" if not whole else "kept_there" if filled is None else "filled_there"
    ),
    "which": when("every", "in_every", "in_each_different"),
    "beside_it": lambda epsilon, root=False, **_: (
        None if not epsilon else "with_epsilon_in_root" if root else "with_epsilon"
    ),
    "places": unless_none("name", "named_axis", "plain_axis"),
    "from_there": lambda spans, size, **_: "to_the_end" if is_to_the_end(spans, size) else None,
    "from_there_alone": (
        lambda spans, size, **_: "to_the_end_alone" if is_to_the_end(spans, size) else None
    ),
}

#: Pieces of them that are the same in both languages.
INSIDE_VALUES = {
    "few_spans": lambda spans, **_: few_spans(spans),
    "other_side": lambda side, **_: other_run(side),
    "epsilons": lambda epsilon, **_: " … ".join(dict.fromkeys(f"{e:.2g}" for e in epsilon)),
    "shifted_index": lambda by, **_: f"A[i{-by:+d}]",
}


#: Which pieces the log says while a training is recorded.
LOG_CHOICES: Mapping[str, Choice] = {
    "and_left": when("left", "n_left"),
    "and_texts_left": when("left", "n_texts_left"),
    "which_steps": when("first", "steps_after", "all_steps"),
    "where_noted": when("noted", "see_run_file"),
    "trainer_of": when("where", "trainer_there", "trainer_of_mindrlhf"),
}


def _name(setting: str, phases: Sequence[str], more: int, of_phase: bool, **_: Any) -> str:
    """Return where the phases stand: before the setting, behind it, or alone."""
    if not phases:
        return "setting_and_more"
    if not of_phase:
        return "setting_in_phases"
    return "setting_of_phases" if setting or more else "all_phases"


def _placed(ranks: Sequence[int], setting: str, step: int | None, **known: Any) -> str:
    what = setting or known["more"] or known["phases"] or step is not None
    return "name_of_step" if not ranks else "name_of_ranks" if what else "of_ranks"


#: Which pieces say what could not be compared before any tensor, and what differs there.
PREFLIGHT_CHOICES: Mapping[str, Choice] = {
    "placed": _placed,
    "whole_name": _name,
    "and_more": when("more", "more_cells"),
    "from_step": unless_none("step", "on_from_step"),
    "no_run_file": lambda sides, **_: "one_has_none" if len(sides) == 1 else "both_have_none",
    "whose_ranks": when("ranks", "of_some_ranks"),
    "kind_of_cell": when("kind", "cell_of_kind", "any_cell"),
    "whose_weights": unless_none("role", "of_role", "of_networks"),
    "which_seed": lambda name, **_: None if name == "mindspore" else "seed_name",
    "since": unless_none("step", "since_step"),
    "value_a": unless_none("a", "a_is_set", "not_set"),
    "value_b": unless_none("b", "b_is_set", "not_set"),
    "how_many": lambda count, **_: "one_setting" if count == 1 else "several_settings",
}

#: Pieces of them that are the same in both languages.
PREFLIGHT_VALUES = {
    "rank_numbers": lambda ranks, **_: few_numbers(ranks),
}


#: Which pieces say how a quantity goes over the steps.
TREND_CHOICES: Mapping[str, Choice] = {
    "and_more": lambda more, **_: "n_more" if more > 0 else None,
    "nearest": when("near", "the_nearest"),
    "at_steps": lambda count, steps, **_: None if count == steps else "at_n_steps",
}

#: By area.
CHOICES: Mapping[str, Mapping[str, Choice]] = {
    "check_ranks": CHECKS_CHOICES,
    "checks": CHECKS_CHOICES,
    "console": CONSOLE_CHOICES,
    "culprit": EXPLANATION_CHOICES,
    "explanation": EXPLANATION_CHOICES,
    "inside": INSIDE_CHOICES,
    "log": LOG_CHOICES,
    "preflight": PREFLIGHT_CHOICES,
    "remark": PREFLIGHT_CHOICES,
    "trend": TREND_CHOICES,
}
