"""Texts of pieces: which piece is said is decided once, in `choices/`, for both languages."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text

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
