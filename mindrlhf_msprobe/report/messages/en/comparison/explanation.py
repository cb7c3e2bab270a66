"""Why two runs first differ at a record: what happened to it, and what that means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.en.words import counted, ordinal

_HAPPENED = {
    "unreadable": "cannot be read",
    "only_in_a": "was recorded in A only",
    "only_in_b": "was recorded in B only",
    "dtype_mismatch": "has another dtype",
    "shape_mismatch": "has another shape",
    "non_finite": "is NaN or infinite on one side only",
    "different": "differs",
}

_GIVEN = {
    "inputs_and_parameters": "Its inputs and its parameters agree",
    "inputs": "Its inputs agree",
    "gradient": "The gradient that arrived at it and everything before it agree",
}


def _happened(record: str, argument: str, status: str, note: str, **_: Any) -> str:
    named = f" ({argument})" if argument else ""
    return f"{record}{named} {_HAPPENED[status]}{f' ({note})' if note else ''}."


def _left_out(records: int, inside: bool, **_: Any) -> str:
    where = "inside this cell" if inside else "before it in this step"
    return (
        f"The comparison left out {counted(records, 'record')} {where} (--include, --exclude), "
        f"and one of those may be to blame: compare without leaving them out."
    )


def _given_left_out(given: Sequence[str], **_: Any) -> str:
    return (
        f"What the cell was given differs as well, which the comparison left out: "
        f"{', '.join(given)}. The origin lies before it."
    )


def _not_reached(stopped: str, other: str, records: int, **_: Any) -> str:
    return (
        f"Everything that both recorded agrees. {stopped} had stopped; {other} went on with this "
        f"record, and has {counted(records, 'record')} that {stopped} did not reach."
    )


def _unreadable(fingerprints_agree: bool | None, **_: Any) -> str:
    why = "Nothing is known of its elements, so nothing is to blame yet but the file"
    if fingerprints_agree is None:
        return f"{why}."
    return (
        f"{why}; the fingerprints that were recorded {'agree' if fingerprints_agree else 'differ'}."
    )


def _file_changed(run: str | None = None, **_: Any) -> str:
    file = f"the file of {run}" if run else "a file"
    return (
        f"By the fingerprints both runs recorded the same; the elements in {file} do not agree "
        f"with its fingerprint any more. Nothing can be said about the computation: restore the "
        f"file or record again, then compare again."
    )


def _cell_computed(given: str, inside: bool, **_: Any) -> str:
    children = ", and so does everything recorded inside it" if inside else ""
    return f"{_GIVEN[given]}{children}: this cell computed something else."


def _ran_in_one_run(container: str | None, **_: Any) -> str:
    return f"The cell ran{f' inside {container}' if container else ''} in one run only."


def _step_input(not_recorded: str | None, **_: Any) -> str:
    made = f", and the cells of {not_recorded} were not recorded" if not_recorded else ""
    return f"What enters the phases of this step differs already{made}."


def _cells_agree(phase: str | None, close: int, records: int, **_: Any) -> str:
    which = f"of {phase} agrees" if phase else "before it agrees"
    if not close:
        return f"Every recorded cell {which}: the trainer's own arithmetic made it differ."
    return (
        f"Every recorded cell {which}, but {close} of their {records} records only within the "
        f"tolerance or by statistics: it may come of these small differences, or of the trainer's "
        f"own arithmetic."
    )


def _nth_call(
    phase: str,
    earlier: int,
    between: Sequence[str],
    updated: bool,
    weights_moved: bool | None,
    **_: Any,
) -> str:
    others = f", with {' and '.join(between)} between" if between else ""
    update = " update" if updated else ""
    still = "; its weights did not change between" if weights_moved is False else ""
    return (
        f"This is the {ordinal(earlier + 1)} call of {phase} in this step, after the "
        f"{ordinal(earlier)}{update}{others}{still}."
    )


TEXTS: Mapping[str, Any] = {
    "happened": _happened,
    "left_out": _left_out,
    "left_out_all": (
        "All cells and the other keys were left out of the comparison (--keys), and one of those "
        "may be to blame: compare without leaving them out."
    ),
    "given_left_out": _given_left_out,
    "given_differs": "What it was given differs.",
    "given_agrees": "What the cell was given agrees.",
    "place_unreadable": "Nothing of this step and rank can be compared.",
    "phase_unreadable": "Nothing of this phase can be compared.",
    "unreadable": _unreadable,
    "unreadable_files": (
        "Nothing is known of what was lost with it, so nothing is to blame yet but the file."
    ),
    "file_changed": _file_changed,
    "not_reached": _not_reached,
    "ended_in_one_run": "What it was given agrees; it ended in one run only.",
    "gradient_in_one_run": (
        "Everything before it agrees; a gradient is there in one run, and None in the other."
    ),
    "returned_otherwise": "What it was given agrees; what it returned is put together otherwise.",
    "parameter_gradient": (
        "Everything before it agrees: the gradient of this cell's parameters was computed "
        "otherwise."
    ),
    "gradient_at_optimizer": (
        "It stands as it entered the optimizer: clipping, unscaling, accumulation and reduction "
        "across ranks come before that, and may be to blame as well."
    ),
    "cell_computed": _cell_computed,
    "parameter_in_one_run": (
        "Everything before it agrees, but the cell has this parameter in one run only, or it was "
        "recorded in one run only."
    ),
    "parameter": (
        "Everything before it agrees, but the cell already holds another parameter: look at "
        "loading, at weight synchronisation or at the previous update."
    ),
    "container": (
        "{container} was given the same and handed this cell another {given}: the code of the "
        "container itself, outside its cells, is the origin, or a parameter that it uses without "
        "calling its cell."
    ),
    "gradient_after": (
        "All {records} records of {phase} before it agree; the gradient that arrives differs: look "
        "at what follows this cell, e.g. the loss."
    ),
    "input_after": (
        "All {records} records of {phase} before it agree; what entered this cell was made outside "
        "the recorded cells."
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
    "phase_input": ("What entered {phase} differs already: look at what the trainer handed to it."),
    "not_on_disk": (
        "{run} recorded more than is on disk: {why}. Nothing can be said about the computation."
    ),
    "nothing_of_step": "{run} recorded nothing of step {step} here.",
    "nothing_of_phase": "{run} recorded nothing of {phase} in this step.",
    "other_elements": "Both saved {key}, with other elements in it.",
    "saved_in_one_run": "The trainer saved it in one run only.",
    "ran_in_one_run": _ran_in_one_run,
    "step_input": _step_input,
    "some_tokens": (
        "Every recorded cell of {phase} agrees, but only some of its tokens were recorded."
    ),
    "cells_agree": _cells_agree,
    "phase_not_recorded": (
        "The cells of {phase}, which it comes from, were not recorded in both runs, nor were the "
        "weights they ran with: {switch}: true fingerprints these, too."
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
    "but_no_parameters": (
        "But its parameters were not recorded (parameters: false), and may be to blame."
    ),
    "nth_call": _nth_call,
}
