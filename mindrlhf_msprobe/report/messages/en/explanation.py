"""Why two runs first differ at a record: what happened to it, and what that means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.choices import (
    EXPLANATION_VALUES,
    INSIDE_VALUES,
)
from mindrlhf_msprobe.report.messages.en.words import count, ordinal
from mindrlhf_msprobe.report.messages.templates import computed, joined, order

PIECES: Mapping[str, Any] = {
    "n_records": count("records", "record"),
    "all_given": joined("given", ", "),
    "all_changes": joined("changes", ", "),
    "all_between": joined("between", " and "),
    "nth": lambda earlier, **_: ordinal(earlier),
    "next_one": lambda earlier, **_: ordinal(earlier + 1),
    "all_keys": joined("keys", ", "),
}


CULPRIT_PIECES: Mapping[str, Any] = {
    **EXPLANATION_VALUES,
    "of_parameters": count("of", "parameter"),
    "backward_records": count("backward", "record"),
    "agreeing_records": count("agree", "record"),
    "nth": lambda number, **_: ordinal(number),
    "phases": joined("record", " and "),
    "all_agreeing": joined("agree", ", "),
    "all_given": joined("given", ", "),
    "all_unlike": joined("unlike", ", "),
    "given_agrees": lambda given, **_: "agrees" if len(given) == 1 else "agree",
    "unlike_do": lambda unlike, **_: "does" if len(unlike) == 1 else "do",
    "they_agree": lambda agree, **_: "agrees" if len(agree) == 1 else "agree",
    "all_parts": joined("parts", ", "),
    "coefficient_a": lambda coefficients, **_: f"{coefficients['A']:.4g}",
    "coefficient_b": lambda coefficients, **_: f"{coefficients['B']:.4g}",
    "possible_of_a": lambda possible_means, **_: _means(possible_means["A"]),
    "possible_of_b": lambda possible_means, **_: _means(possible_means["B"]),
    "count_over": lambda counts, **_: _counted(*counts[0]),
    "count_under": lambda counts, **_: _counted(*counts[1]),
}


def _means(names: Sequence[str]) -> str:
    said = {
        "tokens": "all tokens",
        "sequences": "each sequence, then over the sequences,",
        "places": "all places, padding among them,",
    }
    return " or ".join(said[name] for name in names)


def _counted(what: str, number: int) -> str:
    """Return a number of the batch with what it counts."""
    names = {"samples": "sequences", "tokens": "counted tokens", "places": "places"}
    return f"{number} {names[what]}" if what in names else str(number)


#: What axes are called.
_NOUNS = {
    "sample": "sample",
    "token": "token",
    "head": "head",
    "channel": "channel",
    "token_id": "token id",
    "row": "row",
}


def _along(axis: int, name: str | None) -> str:
    """Return along which axis something holds: over all its tokens, say."""
    return f"along axis {axis}" + ("" if name is None else f" ({_NOUNS[name]}s)")


_COMPUTED = {
    "every": "{} in every element",
    "each": "{} in each element that differs",
    "within": ", to {:.1e}",
    "exactly": ", exactly",
    "divisors": ", as between standard deviations that divide by {n} and by {less} (ddof)",
}


_order = order(
    _along,
    turned="moved, not changed: {along}, B is A turned by {by} of {size}",
    moved="moved, not changed: {along}, in another order: {pairs}",
)


INSIDE_PIECES: Mapping[str, Any] = {
    **INSIDE_VALUES,
    "all_where": joined("where", ", "),
    "prompt_or_prompts": lambda prompts, **_: "prompt" if len(prompts) == 1 else "prompts",
    "all_prompts": lambda prompts, **_: ", ".join(map(str, prompts)),
    "change_alone": lambda change, **_: change[:1].upper() + change[1:],
    "along": lambda axis, name, **_: _along(axis, name),
    "places_that_came": lambda by, **_: f"the {'first' if by > 0 else 'last'} {abs(by)}",
    "place_or_places": lambda count, **_: "place" if count == 1 else "places",
    "element_or_elements": lambda count, **_: "element" if count == 1 else "elements",
    "n_steps": count("ulps", "step"),
    "noun": lambda name, count, **_: _NOUNS[name] + ("" if count == 1 else "s"),
}


def _elsewhere(a: str | None, b: str | None, **_: Any) -> str:
    held = []
    if b is not None:
        held.append(f"what A holds here, B holds at {b}")
    if a is not None:
        held.append(f"what B holds here, A holds at {a}")
    return "another parameter: " + "; ".join(held)


#: What differs inside one record: where along its axes, and by which change.
INSIDE: Mapping[str, Any] = {
    "factor": computed("×", "max, min, mean and norm say", "factor", _COMPUTED),
    "offset": computed("+", "the statistics say", "offset", _COMPUTED),
    "order": _order,
    "elsewhere": _elsewhere,
}
