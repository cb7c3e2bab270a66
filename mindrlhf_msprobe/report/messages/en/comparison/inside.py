"""What differs inside one record: where along its axes, and by which change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.en.words import counted
from mindrlhf_msprobe.report.messages.numbers import (
    computed,
    few_spans,
    is_to_the_end,
    order,
    other_run,
)

#: What axes are called.
_NOUNS = {
    "sample": "sample",
    "token": "token",
    "head": "head",
    "channel": "channel",
    "token_id": "token id",
    "row": "row",
}


def _differs(
    where: Sequence[str],
    prompts: Sequence[int],
    change: str | None,
    elements: int | None,
    size: int | None,
    **_: Any,
) -> str:
    words = "only " + ", ".join(where) if where else ""
    if prompts:
        words += f": all of prompt{'' if len(prompts) == 1 else 's'} "
        words += ", ".join(map(str, prompts))
    if change is not None:
        words = "; ".join(filter(None, [words, change]))
    if elements is not None:
        words += f" ({elements} of {size} elements differ)"
    return words[:1].upper() + words[1:] + "."


def _element(spans: Sequence[Sequence[int]], size: int, count: int, **_: Any) -> str:
    return f"element{'' if count == 1 else 's'} {few_spans(spans)} of {size}"


def _axis(
    axis: int,
    name: str | None,
    size: int,
    spans: Sequence[Sequence[int]],
    count: int,
    **_: Any,
) -> str:
    to_the_end = is_to_the_end(spans, size)
    places = f"{few_spans(spans)} of {size}"
    if name is None:
        return f"{places} along axis {axis}{' (from there on)' if to_the_end else ''}"
    noun = _NOUNS[name] + ("" if count == 1 else "s")
    return f"{noun} {places} (axis {axis}{', from there on' if to_the_end else ''})"


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


def _rounded(side: str, dtype: str, **_: Any) -> str:
    return f"{side} is {other_run(side)} rounded to {dtype}, element by element"


_order = order(
    _along,
    turned="moved, not changed: {along}, B is A turned by {by} of {size}",
    moved="moved, not changed: {along}, in another order: {pairs}",
)


def _shifted(axis: int, name: str | None, by: int, **_: Any) -> str:
    along = _along(axis, name)
    return f"moved, not changed: {along}, B is A shifted by {by}, B[i] = A[i{-by:+d}]"


def _order_inside(axis: int, name: str | None, **_: Any) -> str:
    return (
        f"moved, not changed: {_along(axis, name)}, each row holds the same elements in another "
        f"order"
    )


def _rounding(ulps: int, **_: Any) -> str:
    return f"rounding: no element is further away than {counted(ulps, 'step')} of its dtype (ulp)"


TEXTS: Mapping[str, Any] = {
    "differs": _differs,
    "element": _element,
    "axis": _axis,
    "factor": computed("×", "max, min, mean and norm say", "factor", _COMPUTED),
    "offset": computed("+", "the statistics say", "offset", _COMPUTED),
    "rounded": _rounded,
    "order": _order,
    "order_inside": _order_inside,
    "shifted": _shifted,
    "moved": "moved, not changed: the same elements in other places",
    "rounding": _rounding,
    "same_statistics": (
        "max, min, mean and norm are the same, the bytes are not, as where values were moved "
        "rather than changed; full tensors show it"
    ),
}
