"""Which pieces say what is to blame."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages.chosen import Choice, unless_none, when
from mindrlhf_msprobe.report.messages.numbers import other_run


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


CHOICES: Mapping[str, Choice] = {
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
}

#: Pieces that are the same in both languages.
VALUES = {
    "next_micro_step": lambda micro_step, **_: str(micro_step + 1),
    "other_run": lambda run, **_: other_run(run),
}
