"""Lists of names as both languages write them: each gives its own separators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
            k: self._between.join(v) for k, v in params.items() if isinstance(v, (list, tuple))
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
