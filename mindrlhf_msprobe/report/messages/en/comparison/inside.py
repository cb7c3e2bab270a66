"""What differs inside one record: where along its axes, and by which change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mindrlhf_msprobe.report.messages.en.words import counted
from mindrlhf_msprobe.report.messages.numbers import few_pairs, few_spans, formula

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
    first, last = spans[0]
    to_the_end = len(spans) == 1 and first and last == size - 1
    places = f"{few_spans(spans)} of {size}"
    if name is None:
        return f"{places} along axis {axis}{' (from there on)' if to_the_end else ''}"
    noun = _NOUNS[name] + ("" if count == 1 else "s")
    return f"{noun} {places} (axis {axis}{', from there on' if to_the_end else ''})"


def _along(axis: int, name: str | None) -> str:
    """Return along which axis something holds: over all its tokens, say."""
    return f"along axis {axis}" + ("" if name is None else f" ({_NOUNS[name]}s)")


def _computed(sign: str, said_by: str, key: str) -> Callable[..., str]:
    """Return the text of a change by one number, which `key` names."""

    def text(basis: str, within: float, every: bool, **known: Any) -> str:
        exact = f", to {within:.1e}" if within else ", exactly"
        said = formula(sign, known.pop(key), _DIVISORS, **known)
        if basis == "statistics":
            return f"{said_by} {said}{exact}"
        each = "in every element" if every else "in each element that differs"
        return f"{said} {each}{exact}"

    return text


_DIVISORS = ", as between standard deviations that divide by {n} and by {less} (ddof)"


def _rounded(side: str, dtype: str, **_: Any) -> str:
    return f"{side} is {'A' if side == 'B' else 'B'} rounded to {dtype}, element by element"


def _order(
    axis: int,
    name: str | None,
    size: int = 0,
    turned: int | None = None,
    moved: int = 0,
    **known: Any,
) -> str:
    along = _along(axis, name)
    if turned is not None:
        return f"moved, not changed: {along}, B is A turned by {turned} of {size}"
    pairs = few_pairs(known["from"], moved)
    return f"moved, not changed: {along}, in another order: {pairs}"


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
    "factor": _computed("×", "max, min, mean and norm say", "factor"),
    "offset": _computed("+", "the statistics say", "offset"),
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
