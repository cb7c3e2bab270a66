"""Messages → text, in English and Chinese: the only place with sentences for readers of an answer.

`texts/` has the sentences, a file a subject, a line a language: the code `coverage.no_gradients`
has its templates under `no_gradients.en` and `no_gradients.zh` of the area `coverage`, and
`no_gradients.#` is a comment. `templates.py` says what may stand in their braces. A text that
another code has, too, stands once: `"state_different": "tables.different"` says what that one says.
`coverage.pieces` are parts of the templates of `coverage`; where several parameters decide which of
them is said, `words.py` does so for both languages. It has lists, ordinals and names as each
language shows them, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.language import LANGUAGES, language
from mindrlhf_msprobe.common.message import TEXT, Message, message
from mindrlhf_msprobe.report.messages.templates import Parameters, Speaker
from mindrlhf_msprobe.report.messages.words import CHOICES, SHAPES

_TEXTS = Path(__file__).parent / "texts"
_COMMENT = "#"  # the name of what is no text, in the files

_BETWEEN = {"en": "; ", "zh": "；"}

__all__ = ["LANGUAGES", "paragraph", "say", "text_of", "texts_in", "texts_of"]


def text_of(message: Message, lang: str | None = None) -> str:
    """Return what a message says.

    Args:
        lang: `en` or `zh`; None: the one that was chosen (`--lang`), else the locale's.

    A code that this version does not know is said as it is, with its parameters: a run may come
    from a newer version.
    """
    return _text(message, (), language() if lang is None else lang)


def say(code: str, /, *of: object, **params: Any) -> str:
    """Return what a code says, in the language that is spoken.

    Args:
        of: what it is said of: the parameters that are not given are attributes of these.
    """
    return _text(message(code, **params), of, language())


def _text(message: Message, of: Sequence[object], lang: str) -> str:
    params = {name: _said(value, lang) for name, value in message.params.items()}
    if message.code == TEXT:
        return str(params.get(lang, params.get("text", "")))
    area, _, name = message.code.partition(".")
    found = texts_in(lang, area).get(name)
    try:
        if found is not None:
            return _speaker(lang, area).text(found, Parameters(params, of))
    except Exception:  # parameters from a file may be anything
        pass
    shown = ", ".join(f"{key}={value}" for key, value in params.items())
    return f"{message.code}({shown})" if shown else message.code


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


@cache
def texts_in(lang: str, area: str) -> Mapping[str, str]:
    """Return the templates of an area, or of its pieces, in a language, by the names of codes."""
    templates = {}
    for key, text in areas().get(area, {}).items():
        name, _, of = key.rpartition(".")
        if name and of == lang:
            templates[name] = text
        elif not name and key != _COMMENT:  # the text is the code that has it
            other, _, same = text.rpartition(".")
            if (shared := areas()[other].get(f"{same}.{lang}")) is not None:
                templates[key] = shared
    return templates


@cache
def areas() -> Mapping[str, Mapping[str, str]]:
    """Return the content of all files, by area; an area's pieces as an area of their own."""
    found: dict[str, Mapping[str, str]] = {}
    for file in _TEXTS.glob("*.json"):
        found |= json.loads(file.read_text("utf-8"))
    del found[_COMMENT]
    return found


@cache
def _speaker(lang: str, area: str) -> Speaker:
    return Speaker(texts_in(lang, f"{area}.pieces"), CHOICES.get(area, {}), SHAPES[lang])
