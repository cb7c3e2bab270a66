"""One quantity over the steps (`trend`), and the gradients of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.en.words import counted


def _more(more: int) -> str:
    return f" and {more} more" if more > 0 else ""


def _nearest(near: Sequence[str]) -> str:
    return f" Nearest: {', '.join(near)}." if near else ""


def _not_finite(steps: str, more: int) -> str:
    return f"; NaN or Inf at step {steps}{_more(more)}"


def _summary(count: int, steps: int, first: str, last: str, low: str, high: str) -> str:
    of = "" if count == steps else f" at {counted(steps, 'step')}"
    return f"{counted(count, 'value')}{of}: first {first}, last {last}, min {low}, max {high}"


def _none_finite(count: int) -> str:
    return f"{counted(count, 'value')}, none finite"


def _nothing(path: str, asked: str, near: Sequence[str]) -> str:
    return f"{path} holds no record, key or derived quantity {asked!r}.{_nearest(near)}"


def _unknown(what: str, held: bool = True) -> Any:
    def text(path: str, name: str, near: Sequence[str]) -> str:
        there = f"{path} holds no {what} {name!r}." if held else f"There is no {what} {name!r}."
        return there + _nearest(near)

    return text


def _no_key(names: Sequence[str]) -> str:
    return f"the run holds no {' and no '.join(names)}: save it with save_data (key_data_dump)"


def _rows_unknown(
    key: str, count: int, shape: Any, other: str, other_count: int, other_shape: Any
) -> str:
    return (
        f"{counted(count, 'save')} of {key} {shape}, {other_count} of {other} {other_shape}: which "
        f"rows belong together is not recorded; save {other} of the same rows, or loss_inputs"
    )


def _steps_alone(side: str, steps: str, more: int) -> str:
    return f"Not compared: step {steps}{_more(more)}, which run {side} alone has"


def _more_series(count: int) -> str:
    return f"{count} more series are not plotted: --plots, --key, --record choose; --csv has all"


def _similarity_summary(count: int, first: str, last: str, parameters: int, size: int) -> str:
    return (
        f"{counted(count, 'update')}: first {first}, last {last}; "
        f"{counted(parameters, 'parameter')}, {size} elements"
    )


def _gradients_alike(updates: int, parameters: int) -> str:
    return (
        f"Nothing suspicious in {counted(updates, 'update')} of {counted(parameters, 'parameter')}"
    )


def _gradients_fall(place: str, count: int) -> str:
    return f"Suspicious from {place} on ({counted(count, 'place')}):"


TEXTS: dict[str, Any] = {
    "reading": "reading",
    "rank": "rank {rank}",
    "summary": _summary,
    "not_finite": _not_finite,
    "none_finite": _none_finite,
    "no_series": "nothing recorded",
    "more_series": _more_series,
    "more_problems": "{count} more problems",
    "not_available": "Not available:",
    "missing": "  {name}: {why}",
    "nothing_matches": _nothing,
    "no_numbers": "What {asked!r} matches in {path} has no {statistic}: "
    "texts, empty tensors, or statistics that were not recorded.",
    "unknown_statistic": _unknown("statistic", held=False),
    "unknown_derived": _unknown("derived quantity", held=False),
    "unknown_key": _unknown("key"),
    "unknown_phase": _unknown("phase"),
    "unknown_rank": _unknown("rank"),
    "bad_pattern": "The pattern {pattern!r} cannot be used: {why}.",
    "no_tensorboardx": "--tensorboard needs tensorboardX, which cannot be imported ({why}): "
    "pip install tensorboardX",
    "no_key_data": "the run holds no key data: record it with key_data_dump",
    "no_key": _no_key,
    "no_one_tensor": "{key} is not one tensor",
    "unread_key": "{key} cannot be read: {why}",
    "rows_unknown": _rows_unknown,
    "no_pad": "{key} holds tokens, and neither a mask was saved nor is pad_token_id in "
    "configurations.json",
    "no_gradients": "no gradients of parameters are recorded: actor_train_dump or "
    "critic_train_dump, with backward among the directions",
    "no_moments": "no parameters of an optimizer are recorded: they are where the optimizer is a "
    "cell of a watched network",
    "no_parameters": "no parameters of an update are recorded: actor_train_dump or "
    "critic_train_dump, with parameters: true",
    "parameters_once": "parameters are recorded once: two steps are needed",
    "parameters_without_elements": "parameters are recorded as statistics: task: tensor records "
    "their elements",
    "rows_by_value": "rows were found by their values; updates where they cannot be are left out",
    "without_mask": "no mask is saved: all tokens count, padding as well",
    "clip_range": "clip range {low} below and {high} above 1, of configurations.json",
    "usual_clip_range": "clip range {low} below and {high} above 1: configurations.json names none",
    "length_of_loss": "of the rows that the loss was given: packed rows hold several responses",
    "kl_of_old": "of old_log_prob, the policy before the update",
    "in_characters": "in characters: neither tokens nor a mask are saved",
    "pad": "tokens other than pad_token_id {pad}",
    "gradients_of_two": "--gradients compares two runs; expected RUN RUN2.",
    "same_run": "Both runs are the same directory: {path}.",
    "bad_threshold": "--first is {first}, --fall is {fall}; expected -1 to 1 and 0 to 2.",
    "gradient_alone": "only in run {side}",
    "gradient_shapes": "shapes {a} and {b}",
    "gradient_statistics": "the signs of neither or one run are recorded, and not all elements: "
    "task: grad_probe or task: tensor",
    "similarity": "similarity of gradients, weighted by elements",
    "similarity_summary": _similarity_summary,
    "gradients_alike": _gradients_alike,
    "gradients_fall": _gradients_fall,
    "no_gradients_compared": "No gradients could be compared: both runs need them at the same "
    "steps, as elements (task: tensor) or signs (task: grad_probe)",
    "more_suspicious": "and {count} more: --csv has all",
    "steps_alone": _steps_alone,
    "place": "step {step}, rank {rank}, {phase}, update {update}, {parameter}",
    "first_low": "first similarity {value}",
    "fall": "similarity fell from {before} to {value}",
    "not_finite_gradient": "NaN or Inf in the gradient",
    "not_compared": "not compared: {why}",
    "no_matched": "{a} and {b} have no gradients of the same steps and ranks to compare.",
    "no_pictures": "similarities_picture was not written: it needs matplotlib (pip install "
    "matplotlib); similarities.csv has the numbers",
}
