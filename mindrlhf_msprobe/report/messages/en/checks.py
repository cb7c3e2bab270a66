"""What checks say, in English."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mindrlhf_msprobe.common.printable import few_numbers
from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.en.words import count, counted, non_finite
from mindrlhf_msprobe.report.messages.templates import by, made, named

_LACKS = {
    "numbers": "the run holds no statistics of tensors",
    "layers": "the run holds no layer data",
    "parameters": "the run holds no parameters (record with parameters: true)",
    "gradients": "the run holds no gradients of parameters",
    "backward": "the run holds no backward entries",
    "fingerprints": "the run holds no fingerprints (record with fingerprint: true)",
    "elements": "the run holds no full tensors of activations (record with task: tensor)",
    "opinions": "nothing was computed a second time (record with task: accuracy_check)",
    "healthy": "no healthy run was given (--healthy RUN)",
    "key": "none of these key data were saved: {names}",
    "phase": "none of these phases was recorded: {names}",
    "ranks": "it needs {count} ranks at least",
    "steps": "it needs {count} steps at least",
}


def _unhealthy(path: str, error: int, warning: int, note: int) -> str:
    found = [(error, "error"), (warning, "warning"), (note, "note")]
    return f"UNHEALTHY {path}: " + ", ".join(counted(n, what) for n, what in found if n)


PIECES: Mapping[str, Any] = {
    "all_notes": count("note", "note"),
    "n_rules": count("rules", "rule"),
    "n_steps": count("steps", "step"),
    "n_ranks": count("ranks", "rank"),
    "n_runs": count("runs", "run"),
}

TEXTS: Mapping[str, Any] = {
    "lacks": named("kind", _LACKS),
    "run_unhealthy": _unhealthy,
}

#: What the checks of accuracy say.
CHECK_ACCURACY: Mapping[str, Any] = {
    "wrong": lambda call, cell, tensor, precision, error, explained, reason: (
        f"{call} computes {tensor} wrongly"
        + (f" (in {cell})" if cell and not call.startswith("Cell.") else "")
        + (
            f": relative error {error:.2g} to float64, rounding of {precision} explains "
            f"{explained:.2g}"
            if not reason
            else ": not finite, while the exact result is"
            if reason == "not_finite"
            else ": not what the exact computation gives"
        )
    ),
}


def _what(stage: str, path: str) -> str:
    if stage == "backward":
        return f"the gradient {path}"
    return f"output {path}"


def _changes(path: str, stage: str, change: float | None, by: float | None, mode: str) -> str:
    how = "becomes NaN or Inf" if change is None else f"changes by {change:.3g}"
    if mode == "improve_precision":
        return f"{_what(stage, path)} {how} in higher precision"
    of_inputs = "are exchanged" if by is None else f"change by {by:.3g}"  # with NaN or Inf
    return f"{_what(stage, path)} {how} where the inputs {of_inputs} ({mode})"


def _not_deterministic(path: str, stage: str, differing: int, size: int) -> str:
    return (
        f"{_what(stage, path)} is another one when the call runs again on the same inputs: "
        f"{differing} of {size} elements differ"
    )


#: What the check of results of second runs says.
CHECK_BENCHMARK: Mapping[str, Any] = {
    "changes": _changes,
    "not_deterministic": _not_deterministic,
}


def _and_others(said: str) -> Callable[..., str]:
    def text(others: int) -> str:
        return f"{said} ({others} more in this step)" if others else said

    return text


#: What the checks against healthy runs say.
CHECK_HEALTHY: Mapping[str, Any] = {
    "finite": _and_others("not finite, which it always is in healthy runs"),
    "dtype": _and_others("a dtype that healthy runs do not have here"),
    "shape": _and_others("a shape that healthy runs do not have here"),
    "range": _and_others("a norm far outside the range of healthy runs"),
    "unknown": _and_others("an entry that healthy runs do not have"),
    "calls": _and_others("another number of calls than in any step of healthy runs"),
    "drift": _and_others("drifts away from what healthy runs do in the same steps"),
}


def _jump(factor: float, others: int) -> str:
    more = f", and so do {others} other records of this step" if others else ""
    return f"the norm jumps by a factor of {factor:.3g} against the steps before{more}"


def _gradients(ratio: float, explode: bool) -> str:
    how = "explode" if explode else "vanish"
    return f"gradients {how} towards the first layer: {ratio:.3g} times between first and last"


def _kurtosis(kurtosis: float, median: float, others: int) -> str:
    more = f", and so does that of {others} other outputs of this step" if others else ""
    return (
        f"kurtosis rises to {kurtosis:.3g} from {median:.3g} in the steps before "
        f"(normal distribution: 3): some elements are far beyond the others{more}"
    )


def _kurtosis_high(kurtosis: float, others: int) -> str:
    more = f", and that of {others} other outputs is high as well" if others else ""
    return f"kurtosis is {kurtosis:.3g} (normal distribution: 3){more}"


#: What the checks of a run against its own past say.
CHECK_HISTORY: Mapping[str, Any] = {
    "jump": _jump,
    "gradients": _gradients,
    "kurtosis": _kurtosis,
    "kurtosis_high": _kurtosis_high,
}


def _held(nan: int, inf: int, size: int, **_: object) -> str:
    return f"{non_finite(nan, inf)} in {counted(size, 'element')}"


def _called(operator: str, cell: str | None, line: str, **_: object) -> str:
    where = "" if cell is None else f" inside {cell}" if cell else " outside every cell"
    return f"{operator}{where} ({line})" if line else f"{operator}{where}"


_holds = partial(made, held=_held)
_of_operator = partial(made, held=_held, called=_called)


def _carried(ranks: list[int], origin: int, step: int, kind: str, collective: str) -> str:
    of = f"{'rank' if len(ranks) == 1 else 'ranks'} {few_numbers(ranks)}"
    if collective:
        how = f"through the collective {collective}"
    elif kind == "gradient":
        how = "through the reduction of gradients (their own backward entries were finite before)"
    elif kind == "parameter":
        how = "through the parameters: gradients were reduced over ranks, or weights synchronised"
    elif kind == "data":
        how = "by what the trainer exchanged between ranks: a reduced loss or norm, gathered data"
    elif kind == "output":
        how = "through a collective in this cell: its output is the same on both, its input is not"
    else:
        how = "by what this cell was given"
    return f"non-finite on {of} from here on: it came from rank {origin}, step {step}, {how}"


def _retried(steps: int) -> str:
    again = f" ({steps} steps in a row)" if steps > 1 else ""
    return (
        f"gradients overflowed under the loss scale and the step was skipped{again}: normal "
        "for dynamic loss scaling"
    )


#: What the check for NaN and infinity says.
CHECK_NON_FINITE: Mapping[str, Any] = {
    "born": by(
        "backward",
        {
            False: _holds(
                "the output of this cell holds {held}; its inputs and parameters are finite"
            ),
            True: _holds(
                "the gradient that leaves this cell holds {held}; the one that arrives is finite"
            ),
        },
    ),
    "born_of_operator": by(
        "backward",
        {
            False: _of_operator("the output of {called} holds {held}; its inputs are finite"),
            True: _of_operator(
                "the gradient that leaves {called} holds {held}; the one that arrives is finite"
            ),
        },
    ),
    "in_container_operator": _holds(
        "an input of this operator holds {held}, and {container}, which calls it, was given finite "
        "values: it arose in that container's own code, between the recorded operators"
    ),
    "came_in_operator": _holds(
        "what this operator of {phase} was given holds {held}; nothing recorded before it is "
        "non-finite, so it came from something that was not recorded"
    ),
    "in_container": _holds(
        "an input of this cell holds {held}, and {container}, which calls it, was given finite "
        "values: it arose in that container's own code"
    ),
    "came_in": _holds(
        "what this cell of {phase} was given holds {held}; nothing recorded before it is "
        "non-finite, so it came from outside the recorded cells"
    ),
    "parameter": by(
        "gradients_finite",
        {
            True: _holds(
                "a parameter holds {held} after the update, and its gradients were finite: it "
                "arose in the optimizer"
            ),
            False: _holds(
                "a parameter holds {held} when the cell is entered; everything recorded before is "
                "finite: it came with the last update, or was loaded"
            ),
        },
    ),
    "parameter_after_gap": _holds(
        "a parameter holds {held} when the cell is entered; everything of step {before} is finite, "
        "and nothing is recorded between: it arose there"
    ),
    "parameter_of_ranks": _holds(
        "a parameter holds {held} after the update, and its gradients on this rank were finite: "
        "it came from the gradients of another rank ({others} not looked at), or arose in the "
        "optimizer"
    ),
    "optimizer_state": by(
        "gradients_finite",
        {
            False: _holds("what the optimizer keeps for its next update holds {held}"),
            True: _holds(
                "what the optimizer keeps for its next update holds {held}, and the gradients "
                "were finite: it arose in the optimizer"
            ),
        },
    ),
    "parameter_at_first": _holds("a parameter holds {held} when it is first seen"),
    "gradient": _holds(
        "the gradient of a parameter holds {held}, and every recorded backward entry before is "
        "finite: it arose in between (accumulation, reduction over ranks, unscaling, clipping)"
    ),
    "data": _holds("{key} holds {held}; everything recorded before it is finite"),
    "zero_deviation": _holds(
        "advantages hold {held}; the rewards of these samples are all {rewards:g}, so their "
        "standard deviation is 0"
    ),
    "carried": _carried,
    "retried": _retried,
}


def _ranks(name: str) -> Text:
    def text(**params: Any) -> str:
        ranks = params[name]
        return f"{'rank' if len(ranks) == 1 else 'ranks'} {few_numbers(ranks)}"

    return text


CHECK_RANKS_PIECES: Mapping[str, Any] = {
    "those_ranks": _ranks("ranks"),
    "other_ranks": _ranks("others"),
    "n_cells": count("cells", "cell"),
    "n_times": count("count", "time"),
    "n_ranks": count("of", "rank"),
    "n_parameters": count("parameters", "parameter"),
    "n_records": count("records", "record"),
}


def _verb(one: str, several: str, number: str = "count") -> Callable[..., str]:
    """Return a piece: what one of them does, or several do, by how many a parameter says."""
    return lambda **params: one if params[number] == 1 else several


CHECK_HISTORY_PIECES: Mapping[str, Any] = {
    "n_activations": count("count", "activation"),
    "they_are": _verb("is", "are"),
    "their": _verb("its", "their"),
}

CHECK_RL_PIECES: Mapping[str, Any] = {
    "n_groups": count("count", "group"),
    "n_responses": count("count", "response"),
    "they_are": _verb("is", "are", "empty"),
    "n_prompts": count("count", "prompt"),
    "go": _verb("goes", "go", "bad"),
    "they_recur": _verb("is", "are", "repeated"),
    "were": _verb("was", "were", "cut"),
}

CHECK_WEIGHTS_PIECES: Mapping[str, Any] = {
    "n_parameters": count("count", "parameter"),
    "of_parameters": count("total", "parameter"),
    "they_change": _verb("changes", "change"),
    "they_have": _verb("has", "have"),
    "they_do": _verb("does", "do"),
    "their": _verb("its", "their"),
}


def _not_synchronised(count: int, first: str, total: int, still: int | None) -> str:
    since = "" if still is None else f"; they are those that the training had in step {still}"
    return (
        f"{count} of {counted(total, 'parameter')} {'is' if count == 1 else 'are'} not those "
        f"of the network that is trained, e.g. {first}{since}"
    )


def _reference(count: int, first: str, total: int, random: bool) -> str:
    said = (
        f"the reference is not the initial actor: {count} of {counted(total, 'parameter')} "
        f"{'differs' if count == 1 else 'differ'} before the first update, e.g. {first}"
    )
    return said + BOTH_RANDOM * random


#: What the checks of weights and gradients say.
CHECK_WEIGHTS: Mapping[str, Any] = {
    "not_synchronised": _not_synchronised,
    "reference": _reference,
}


BOTH_RANDOM = "; neither was loaded from a checkpoint, so both begin with random weights"


def _unlike_reference(mean: float, random: bool) -> str:
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


CHECK_RL: Mapping[str, Any] = {
    "reference": _unlike_reference,
    "rollout_gap": _rollout_gap,
    "advantages": _advantages,
    "identical": _identical,
}
