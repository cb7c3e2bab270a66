"""What differs inside the first divergence, in words."""

from __future__ import annotations

from typing import Any

from mindrlhf_msprobe.findings import Change, Inside, Some

_FEW = 6


def inside_words(inside: Inside | None) -> str:
    """Return what differs inside a record as one sentence, "" where nothing certain is known."""
    if inside is None:
        return ""
    parts = [_where(some, inside) for some in inside.where]
    words = "only " + ", ".join(parts) if parts else ""
    if inside.prompts:
        numbers = ", ".join(map(str, inside.prompts))
        words += f": all of prompt{'' if len(inside.prompts) == 1 else 's'} {numbers}"
    if inside.change is not None:
        words = "; ".join(filter(None, [words, _change(inside.change, inside)]))
    if inside.elements is not None:
        words += f" ({inside.elements} of {inside.size} elements differ)"
    return words[:1].upper() + words[1:] + "."


def _where(some: Some, inside: Inside) -> str:
    spans = [str(a) if a == b else f"{a}-{b}" for a, b in some.spans[:_FEW]]
    more = ", …" if len(some.spans) > _FEW else ""
    places = f"{', '.join(spans)}{more} of {some.size}"
    if some.what == "element":
        return f"element{'' if some.count == 1 else 's'} {places}"
    first, last = some.spans[0]
    to_the_end = len(some.spans) == 1 and first and last == some.size - 1
    name = dict(inside.axes).get(some.axis)
    if name is None:
        return f"{places} along axis {some.axis}{' (from there on)' if to_the_end else ''}"
    noun = NOUNS[name] + ("" if some.count == 1 else "s")
    return f"{noun} {places} (axis {some.axis}{', from there on' if to_the_end else ''})"


#: What axes are called.
NOUNS = {
    "sample": "sample",
    "token": "token",
    "head": "head",
    "channel": "channel",
    "token_id": "token id",
    "row": "row",
}


def _along(known: dict[str, Any], inside: Inside) -> str:
    """Return along which axis something holds: over all its tokens, say."""
    name = dict(inside.axes).get(known["axis"])
    named = f" ({NOUNS[name]}s)" if name is not None else ""
    return f"along axis {known['axis']}{named}"


def _change(change: Change, inside: Inside) -> str:
    known = change.parameters
    if change.kind in ("factor", "offset"):
        sign = "×" if change.kind == "factor" else "+"
        value = _number(known[change.kind])
        exact = f", to {known['within']:.1e}" if known["within"] else ", exactly"
        if inside.basis == "statistics":
            which = "max, min, mean and norm say" if sign == "×" else "the statistics say"
            return f"{which} B = A {sign} {value}{_named(known)}{exact}"
        each = "in every element" if known["every"] else "in each element that differs"
        return f"B = A {sign} {value}{_named(known)} {each}{exact}"
    return _OTHERS[change.kind](known, inside)


def _number(value: float) -> str:
    return f"({value:.7g})" if value < 0 else f"{value:.7g}"


def _named(known: dict[str, Any]) -> str:
    """Return what a factor is: a fraction, or the root of one."""
    if "fraction" in known:
        p, q = known["fraction"]
        return "" if q == 1 else f" = {p}/{q}"
    if "root" not in known:
        return ""
    p, q = known["root"]
    root = f" = √({p}/{q})" if q > 1 else f" = √{p}"
    n = known.get("ddof", 0)
    ddof = f", as between standard deviations that divide by {n} and by {n - 1} (ddof)"
    return root + (ddof if n > 2 else "")


def _rounded(known: dict[str, Any], inside: Inside) -> str:
    side, other = known["side"], "A" if known["side"] == "B" else "B"
    return f"{side} is {other} rounded to {known['dtype']}, element by element"


def _order(known: dict[str, Any], inside: Inside) -> str:
    along = _along(known, inside)
    if "turned" in known:
        return f"moved, not changed: {along}, B is A turned by {known['turned']} of {known['size']}"
    pairs = [f"B[{i}] = A[{j}]" for i, j in known["from"][:_FEW]]
    more = ", …" if known["moved"] > len(pairs) else ""
    return f"moved, not changed: {along}, in another order: {', '.join(pairs)}{more}"


def _shifted(known: dict[str, Any], inside: Inside) -> str:
    by = known["by"]
    along = _along(known, inside)
    return f"moved, not changed: {along}, B is A shifted by {by}, B[i] = A[i{-by:+d}]"


_OTHERS = {
    "rounded": _rounded,
    "order": _order,
    "shifted": _shifted,
    "order_inside": lambda known, inside: (
        f"moved, not changed: {_along(known, inside)}, each row holds the same elements in "
        f"another order"
    ),
    "moved": lambda known, inside: "moved, not changed: the same elements in other places",
    "rounding": lambda known, inside: (
        f"rounding: no element is further away than {known['ulps']} "
        f"step{'' if known['ulps'] == 1 else 's'} of its dtype (ulp)"
    ),
    "same_statistics": lambda known, inside: (
        "max, min, mean and norm are the same, the bytes are not, as where values were moved "
        "rather than changed; full tensors tell"
    ),
}
