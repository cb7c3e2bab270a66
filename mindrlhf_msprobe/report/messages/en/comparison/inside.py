"""What differs inside one record: where along its axes, and by which change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.inside import CHOICES, VALUES
from mindrlhf_msprobe.report.messages.chosen import chosen, joined
from mindrlhf_msprobe.report.messages.en.words import count
from mindrlhf_msprobe.report.messages.numbers import computed, order

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


_PIECES: Mapping[str, Text] = {
    **VALUES,
    "only_there": "Only {all_where}",
    "all_where": joined("where", ", "),
    "all_of_prompts": ": all of {prompt_or_prompts} {all_prompts}",
    "prompt_or_prompts": lambda prompts, **_: "prompt" if len(prompts) == 1 else "prompts",
    "all_prompts": lambda prompts, **_: ", ".join(map(str, prompts)),
    "and_change": "; {change}",
    "change_alone": lambda change, **_: change[:1].upper() + change[1:],
    "n_elements": " ({elements} of {size} elements differ)",
    "along": lambda axis, name, **_: _along(axis, name),
    "element_or_elements": lambda count, **_: "element" if count == 1 else "elements",
    "n_steps": count("ulps", "step"),
    "noun": lambda name, count, **_: _NOUNS[name] + ("" if count == 1 else "s"),
    "plain_axis": "{few_spans} of {size} along axis {axis}{from_there_alone}",
    "named_axis": "{noun} {few_spans} of {size} (axis {axis}{from_there})",
    "to_the_end": ", from there on",
    "to_the_end_alone": " (from there on)",
}


def _elsewhere(a: str | None, b: str | None, **_: Any) -> str:
    held = []
    if b is not None:
        held.append(f"what A holds here, B holds at {b}")
    if a is not None:
        held.append(f"what B holds here, A holds at {a}")
    return "another parameter: " + "; ".join(held)


TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "differs": "{only}{of_prompts}{changed}{how_many}.",
        "element": "{element_or_elements} {few_spans} of {size}",
        "axis": "{places}",
        "factor": computed("×", "max, min, mean and norm say", "factor", _COMPUTED),
        "offset": computed("+", "the statistics say", "offset", _COMPUTED),
        "rounded": "{side} is {other_side} rounded to {dtype}, element by element",
        "order": _order,
        "order_inside": (
            "moved, not changed: {along}, each row holds the same elements in another order"
        ),
        "shifted": "moved, not changed: {along}, B is A shifted by {by}, B[i] = {shifted_index}",
        "transposed": "transposed: B is A with rows for columns",
        "rotary_base": "rotary embedding: the table of A has the base {a:g}, that of B {b:g}",
        "epsilon": "normalisation: A was computed with an epsilon of {a:g}, B with {b:g}",
        "elsewhere": _elsewhere,
        "moved": "moved, not changed: the same elements in other places",
        "rounding": "rounding: no element is further away than {n_steps} of its dtype (ulp)",
        "same_statistics": (
            "max, min, mean and norm are the same, the bytes are not, as where values were moved "
            "rather than changed; full tensors show it"
        ),
    },
)
