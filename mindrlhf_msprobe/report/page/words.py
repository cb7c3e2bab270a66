"""Texts in both languages: the page switches between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.common.text.language import LANGUAGES, speaking
from mindrlhf_msprobe.report.messages import paragraph, text_of, texts_of

#: A text, or where the languages differ [English, Chinese].
Words = str | list[str]


def both(make: Callable[[], str]) -> Words:
    """Return what a function says in each language."""
    found = []
    for lang in LANGUAGES:
        with speaking(lang):
            found.append(make())
    return found[0] if found[0] == found[1] else found


def said(message: Message) -> Words:
    """Return what a message says in each language."""
    return both(lambda: text_of(message))


def all_said(messages: Iterable[Message]) -> Words:
    """Return what several messages say, one behind the other."""
    held = tuple(messages)
    return both(lambda: texts_of(held))


def paragraph_said(messages: Iterable[Message]) -> Words:
    """Return whole sentences as one text."""
    held = tuple(messages)
    return both(lambda: paragraph(held))


def spoken(code: str, **params: Any) -> Words:
    """Return what a code says in each language."""
    return said(Message(code, params))


def each_said(lines: Callable[[], Iterable[str]]) -> list[Words]:
    """Return lines that a function makes, as many in each language."""
    found = []
    for lang in LANGUAGES:
        with speaking(lang):
            found.append([*lines()])
    return [a if a == b else [a, b] for a, b in zip(*found)]


def known(**values: Any) -> dict[str, Any]:
    """Return what is known: without None."""
    return {name: value for name, value in values.items() if value is not None}
