"""Plurals, ordinals and lists in English."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from mindrlhf_msprobe.common.printable import spans
from mindrlhf_msprobe.report.messages import templates

__all__ = [
    "count",
    "counted",
    "few",
    "listed",
    "non_finite",
    "ordinal",
    "reasons",
    "section_words",
    "some",
    "spans",
]


def counted(number: int, what: str) -> str:
    """Return `1 record`, `2 records`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def count(number: str, what: str) -> Callable[..., str]:
    """Return a piece: how many there are, of a parameter, as `counted`."""
    return lambda **params: counted(params[number], what)


def ordinal(number: int) -> str:
    """Return a number from 1 on in words: first, second, 11th."""
    if number <= len(_ORDINALS):
        return _ORDINALS[number - 1]
    ending = "th" if number // 10 % 10 == 1 else _ENDINGS.get(number % 10, "th")
    return f"{number}{ending}"


_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


def listed(items: Sequence[str], last: str = "and") -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    return templates.listed(items, last, ", ")


some = partial(templates.some, between=", ", more=" and {left} more")
few = partial(templates.few, between=", ", more=" and {left} more")
non_finite = partial(templates.non_finite, each="{} {}", between=" and ")
reasons = partial(templates.reasons, between="; ")


def section_words(name: str) -> str:
    """Return what a section of run.json is called."""
    return _SECTIONS.get(name, name.replace("_", " "))


_SECTIONS = {
    "networks": "the settings of networks and optimizers",
    "generation_settings": "what generation ran with",
}
