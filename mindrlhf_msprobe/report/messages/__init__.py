"""Messages → text, in English and Chinese: the only place with sentences for readers of an answer.

Each language is a folder with one module an area, in rooms by who says it; a module's `TEXTS` maps
the name of a code to a template (`str.format` with the parameters) or, where words depend on the
parameters, to a function of them; `choices/` decides for both languages which words are said, where
that depends on the parameters alike. `coverage.no_gradients` is `no_gradients` in `coverage.py`,
whatever its room. What areas have in common in one language (plurals, ordinals, lists) is in its
`words.py`.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import string
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from mindrlhf_msprobe.common.message import TEXT, Message, message
from mindrlhf_msprobe.common.text.language import LANGUAGES, language

#: What one code says: a template, or a function of the parameters.
Text = str | Callable[..., str]

_BETWEEN = {"en": "; ", "zh": "；"}

__all__ = ["LANGUAGES", "Text", "paragraph", "say", "text_of", "texts_of"]


def text_of(message: Message, lang: str | None = None) -> str:
    """Return what a message says.

    Args:
        lang: `en` or `zh`; None: the one that was chosen (`--lang`), else the locale's.

    A code that this version does not know is said as it is, with its parameters: a run may come
    from a newer version.
    """
    lang = language() if lang is None else lang
    params = {name: _said(value, lang) for name, value in message.params.items()}
    if message.code == TEXT:
        return str(params.get("text", ""))
    area, _, name = message.code.partition(".")
    found = _texts(lang, area).get(name)
    try:
        if callable(found):
            return found(**params)
        if found is not None:
            return _QUOTING.vformat(found, (), params) if "!r" in found else found.format(**params)
    except Exception:  # parameters from a file may be anything
        pass
    shown = ", ".join(f"{key}={value}" for key, value in params.items())
    return f"{message.code}({shown})" if shown else message.code


def say(code: str, /, **params: Any) -> str:
    """Return what a code says of these parameters, in the language that is spoken."""
    return text_of(message(code, **params))


def texts_of(
    messages: Iterable[Message], lang: str | None = None, between: str | None = None
) -> str:
    """Return what several messages say, one behind the other, by default with a semicolon."""
    lang = language() if lang is None else lang
    between = _BETWEEN[lang] if between is None else between
    return between.join(filter(None, (text_of(message, lang) for message in messages)))


def paragraph(messages: Iterable[Message], lang: str | None = None) -> str:
    """Return several messages, each of which is a whole sentence or several, as one text."""
    lang = language() if lang is None else lang
    return texts_of(messages, lang, between="" if lang == "zh" else " ")


def _said(value: Any, lang: str) -> Any:
    if isinstance(value, Message):
        return text_of(value, lang)
    if isinstance(value, Mapping):
        return {name: _said(item, lang) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        said = [_said(item, lang) for item in value]
        # What holds no message stays what it is: a tuple is shown as one.
        return value if all(a is b for a, b in zip(said, value)) else said
    return value


class _Quoting(string.Formatter):
    """Shows texts in quotes as they are: of a pattern, repr() would double every backslash."""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        shown = super().convert_field(value, conversion)
        if conversion == "r" and isinstance(value, str):
            return shown.replace("\\\\", "\\")
        return shown


_QUOTING = _Quoting()


def message_of(text: str, area: str) -> Message | None:
    """Return the message of an area that says a text in English, None if none does.

    Texts that depend on their parameters by more than a template are not known by it.
    """
    for name, pattern in _patterns(area).items():
        if (found := pattern.fullmatch(text)) is not None:
            return Message(f"{area}.{name}", found.groupdict())
    return None


@cache
def _patterns(area: str) -> Mapping[str, re.Pattern[str]]:
    parsed = {
        name: [*string.Formatter().parse(text)]
        for name, text in _texts("en", area).items()
        if isinstance(text, str)
    }
    return {
        name: re.compile("".join(re.escape(t) + (f"(?P<{n}>.+)" if n else "") for t, n, _, _ in of))
        for name, of in parsed.items()
        if any(letter.isalpha() for text, _, _, _ in of for letter in text)
    }


@cache
def areas(lang: str) -> Mapping[str, str]:
    """Return the module of each area, in a language."""
    found = pkgutil.walk_packages([f"{__path__[0]}/{lang}"], f"{__name__}.{lang}.")
    rooms = (module.name for module in found if module.ispkg)
    return {
        module.name: f"{room}.{module.name}"
        for room in rooms
        for module in pkgutil.iter_modules(importlib.import_module(room).__path__)
    }


@cache
def _texts(lang: str, area: str) -> Mapping[str, Text]:
    module = areas(lang).get(area)
    return {} if module is None else importlib.import_module(module).TEXTS
