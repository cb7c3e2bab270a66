"""Numbers as both languages write them: spans of places, places that moved."""

from __future__ import annotations

from collections.abc import Sequence

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
