"""What texts of both languages are made of: lists, numbers, and pieces that parameters choose.

Each language gives its own words and separators. Which piece is said is decided once, in
`choices.py`, for both.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: What one code says: a template, or a function of the parameters.
Text = str | Callable[..., str]

_FEW = 8
#: How a parameter is shown in its clause; others as they are.
Shown = Mapping[str, Callable[[Any], str]]


def listed(items: Sequence[object], last: str, between: str) -> str:
    """Return `a`, `a and b`, `a, b and c`, with the language's own word and sign."""
    texts = [str(item) for item in items]
    if len(texts) < 2:
        return "".join(texts)
    return f"{between.join(texts[:-1])} {last} {texts[-1]}"


def some(names: Sequence[object], left: int, between: str, more: str) -> str:
    """Return names, and how many are left out; `more` says so of `{left}`."""
    shown = between.join(map(str, names))
    return shown + (more.format(left=left) if left > 0 else "")


def few(names: Sequence[object], between: str, more: str) -> str:
    """Return the first names, and how many more there are."""
    return some(names[:_FEW], len(names) - _FEW, between, more)


def reasons(why: object, between: str) -> str:
    """Return one reason, or several behind each other."""
    return between.join(map(str, why if isinstance(why, (list, tuple)) else [why]))


def non_finite(nan: int, inf: int, each: str, between: str) -> str:
    """Return how many elements are NaN and how many infinite, of those that there are."""
    return between.join(each.format(n, what) for n, what in ((nan, "NaN"), (inf, "Inf")) if n)


def not_finite(whole: str, uncounted: str, between: str, **parts: Callable[..., str]) -> Text:
    """Return how many elements of A, and of B, are NaN and infinite.

    Args:
        whole: of `{runs}` and the parameters; `uncounted` where it is not known how many there are.
        parts: further places of `whole`, made of the parameters.
    """

    def text(elements: int | None, **counts: int) -> str:
        each = "{1}" if elements is None else "{0} {1}"
        runs = {run: (counts[f"nan_{run}"], counts[f"inf_{run}"]) for run in "ab"}
        said = {run: non_finite(*of, each=each, between=between) for run, of in runs.items()}
        together = ", ".join(f"{run.upper()}: {words}" for run, words in said.items() if words)
        known = {"elements": elements, "runs": together}
        template = uncounted if elements is None else whole
        return template.format(**known, **{name: part(**known) for name, part in parts.items()})

    return text


def made(template: str, **parts: Callable[..., str]) -> Callable[..., str]:
    """Return a text of a template, some places of which functions make of all parameters."""

    def text(**params: Any) -> str:
        return template.format(**{**params, **{n: part(**params) for n, part in parts.items()}})

    return text


def by(name: str, texts: Mapping[Any, Callable[..., str]]) -> Callable[..., str]:
    """Return the text that one parameter chooses."""
    return lambda **params: texts[params[name]](**params)


def named(name: str, texts: Mapping[str, str]) -> Callable[..., str]:
    """Return the template that one parameter names; what is in none is said as it is."""
    return lambda **params: texts.get(params[name], f"{{{name}}}").format(**params)


class Joined:
    """A template whose lists are joined by the same words, e.g. `; ` or ` and `.

    Args:
        template: for `str.format`.
        between: what stands between the items of a list.
    """

    def __init__(self, template: str, between: str) -> None:
        self.template = template
        self._between = between

    def __call__(self, **params: Any) -> str:
        """Return the text of these parameters."""
        lists = {
            name: self._between.join(map(str, value))
            for name, value in params.items()
            if isinstance(value, (list, tuple))
        }
        return self.template.format(**{**params, **lists})


def clauses(
    whole: str, between: str, parts: Mapping[str, str], shown: Shown | None = None
) -> Callable[..., str]:
    """Return a text of one clause for each parameter that is there: neither none, empty nor false.

    Args:
        whole: the text around them, of `{clauses}`; without any clause nothing is said.
        parts: parameter → its clause, in the order in which they stand.
    """

    def text(**params: Any) -> str:
        said = [
            clause.format(shown[name](params[name]) if shown and name in shown else params[name])
            for name, clause in parts.items()
            if params[name]
        ]
        return whole.format(clauses=between.join(said)) if said else ""

    return text


def either(patterns: Sequence[str], word: str) -> str:
    """Return patterns as they were written, in quotes."""
    return f" {word} ".join(f"'{pattern}'" for pattern in patterns)


_FEW_SPANS = 6


def few_spans(spans: Sequence[Sequence[int]]) -> str:
    """Return spans of places as `0-2, 5`, at most a few of them."""
    shown = [
        str(first) if first == last else f"{first}-{last}" for first, last in spans[:_FEW_SPANS]
    ]
    return ", ".join(shown) + (", …" if len(spans) > _FEW_SPANS else "")


def few_pairs(moved: Sequence[Sequence[int]], of: int) -> str:
    """Return which places of B hold which ones of A: `B[0] = A[2], …`; `of` is how many moved."""
    shown = [f"B[{i}] = A[{j}]" for i, j in moved[:_FEW_SPANS]]
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
    said = f"B = A {sign} ({value:.7g})" if value < 0 else f"B = A {sign} {value:.7g}"
    if fraction is not None:
        p, q = fraction
        return said if q == 1 else f"{said} = {p}/{q}"
    if root is None:
        return said
    p, q = root
    said += f" = √({p}/{q})" if q > 1 else f" = √{p}"
    return said + (divisors.format(n=ddof, less=ddof - 1) if ddof > 2 else "")


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


#: Names the piece that the parameters choose; None: nothing is said.
Choice = Callable[..., str | None]


class _Places(dict[str, Any]):
    """What the places of a template stand for: parameters, else choices, else pieces."""

    def __init__(
        self, params: Mapping[str, Any], pieces: Mapping[str, Text], choices: Mapping[str, Choice]
    ) -> None:
        super().__init__(params)
        self._pieces, self._choices = pieces, choices

    def __missing__(self, name: str) -> str:
        piece = self._choices[name](**self) if name in self._choices else name
        if piece is None:
            return ""
        found = self._pieces[piece]
        return found(**self) if callable(found) else found.format_map(self)


def chosen(
    choices: Mapping[str, Choice], pieces: Mapping[str, Text], texts: Mapping[str, Text]
) -> dict[str, Text]:
    """Return the texts of an area; a template without a choice or piece stays as it is.

    Args:
        choices: of both languages: place of a template → the function that names its piece.
        pieces: the language's: name → template, which may have such places, too, or function.
        texts: name of a code → template or function.
    """

    def with_pieces(template: str) -> Text:
        places = {name for _, name, _, _ in string.Formatter().parse(template)}
        if not places & (choices.keys() | pieces.keys()):
            return template
        return lambda **params: template.format_map(_Places(params, pieces, choices))

    return {name: t if callable(t) else with_pieces(t) for name, t in texts.items()}


def when(name: str, yes: str | None, no: str | None = None) -> Choice:
    """Return the choice by whether a parameter is there: neither None, empty nor false."""
    return lambda **params: yes if params[name] else no


def unless_none(name: str, piece: str, none: str | None = None) -> Choice:
    """Return the choice by whether a parameter is None."""
    return lambda **params: none if params[name] is None else piece


def joined(name: str, between: str) -> Callable[..., str]:
    """Return a piece: the items of a list."""
    return lambda **params: between.join(params[name])
