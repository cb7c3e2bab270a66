"""Numbers as both languages write them: spans of places, places that moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

_FEW = 6


def few_spans(spans: Sequence[Sequence[int]]) -> str:
    """Return spans of places as `0-2, 5`, at most a few of them."""
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in spans[:_FEW]]
    return ", ".join(shown) + (", …" if len(spans) > _FEW else "")


def few_pairs(moved: Sequence[Sequence[int]], of: int) -> str:
    """Return which places of B hold which ones of A: `B[0] = A[2], …`; `of` is how many moved."""
    shown = [f"B[{i}] = A[{j}]" for i, j in moved[:_FEW]]
    return ", ".join(shown) + (", …" if of > len(shown) else "")


def formula(
    sign: str,
    value: float,
    divisors: str,
    fraction: Sequence[int] | None = None,
    root: Sequence[int] | None = None,
    ddof: int = 0,
    **_: object,
) -> str:
    """Return how B comes of A, with what a factor is: a fraction, or the root of one.

    Args:
        divisors: the language's words for a factor of standard deviations, of `{n}` and `{less}`.
    """
    said = f"B = A {sign} {factor_number(value)}"
    if fraction is not None:
        p, q = fraction
        return said if q == 1 else f"{said} = {p}/{q}"
    if root is None:
        return said
    p, q = root
    said += f" = √({p}/{q})" if q > 1 else f" = √{p}"
    return said + (divisors.format(n=ddof, less=ddof - 1) if ddof > 2 else "")


def factor_number(value: float) -> str:
    """Return a number that stands behind a sign, in brackets where it has one of its own."""
    return f"({value:.7g})" if value < 0 else f"{value:.7g}"


def computed(sign: str, said_by: str, key: str, words: Mapping[str, str]) -> Callable[..., str]:
    """Return the text of a change by one number, which the parameter `key` is.

    Args:
        said_by: what says so where only statistics are known.
        words: the language's, by `every` and `each` (element that differs), of the formula;
            `within`, of how exactly it holds, and `exactly`; `divisors`, as `formula` takes them.
    """

    def text(basis: str, within: float, every: bool, **known: Any) -> str:
        said = formula(sign, known.pop(key), words["divisors"], **known)
        exact = words["within"].format(within) if within else words["exactly"]
        if basis == "statistics":
            return f"{said_by} {said}{exact}"
        return f"{words['every' if every else 'each'].format(said)}{exact}"

    return text


def order(along: Callable[[int, Any], str], turned: str, moved: str) -> Callable[..., str]:
    """Return the text of elements that stand in another order along an axis.

    Args:
        along: the language's words for an axis and what it is called.
        turned, moved: those for a rotation, of `{by}` and `{size}`, and for any other order, of
            `{pairs}`; both of `{along}`.
    """

    def text(axis: int, name: str | None, **known: Any) -> str:
        if (by := known.get("turned")) is not None:
            return turned.format(along=along(axis, name), by=by, size=known.get("size", 0))
        pairs = few_pairs(known["from"], known.get("moved", 0))
        return moved.format(along=along(axis, name), pairs=pairs)

    return text


def is_to_the_end(spans: Sequence[Sequence[int]], size: int) -> bool:
    """Return whether one span reaches from a place behind the first one to the end of an axis."""
    first, last = spans[0]
    return len(spans) == 1 and bool(first) and last == size - 1


def other_run(run: str) -> str:
    """Return B for A, and A for B."""
    return "B" if run == "A" else "A"
