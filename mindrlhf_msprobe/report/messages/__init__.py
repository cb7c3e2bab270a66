"""Messages → text, in English and Chinese: the only place with sentences for readers of an answer.

`texts/` has the sentences, a file a subject, both languages side by side: area → name of the code →
language → template (`str.format` with the parameters); what stands under `#` is a comment.
`coverage.no_gradients` is `no_gradients` of the area `coverage`; several areas may share a file
(`_SHARED`). `coverage.pieces` are parts of the templates of `coverage` that parameters choose:
`choices.py` decides which, for both languages. Where the words themselves depend on the parameters
(plurals, lists), `en/` and `zh/` have functions of them, in modules of the files' names: `TEXTS`
and `PIECES` of the area called as the file, `LOST` and `LOST_PIECES` of another one, as `lost`.
"""

from __future__ import annotations

import importlib
import json
import string
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mindrlhf_msprobe.common.language import LANGUAGES, language
from mindrlhf_msprobe.common.message import TEXT, Message, message
from mindrlhf_msprobe.report.messages.choices import CHOICES
from mindrlhf_msprobe.report.messages.templates import Text, chosen

_TEXTS = Path(__file__).parent / "texts"
_COMMENT = "#"  # the name of what is no text, in the files

#: By file: the areas that it holds beside the one of its own name.
_SHARED = {
    "checks": (
        "check_accuracy",
        "check_benchmark",
        "check_healthy",
        "check_history",
        "check_non_finite",
        "check_ranks",
        "check_rl",
        "check_weights",
    ),
    "config": ("collect", "mapping", "pattern"),
    "coverage": ("fault", "lost", "mindspore", "unread"),
    "explanation": ("culprit", "inside"),
    "help": ("argument", "cli"),
    "listing": ("demo", "estimate", "suggest"),
    "log": ("live", "trainer"),
    "note": ("preflight", "remark", "suspicion", "tolerance"),
    "page": ("report",),
    "pairing": ("layout", "tokens"),
    "replay": ("accuracy", "benchmark", "replay_script", "second"),
    "tables": ("legend", "trend"),
}

_BETWEEN = {"en": "; ", "zh": "；"}

__all__ = ["LANGUAGES", "Text", "paragraph", "say", "text_of", "texts_in", "texts_of"]


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
    found = texts_in(lang, area).get(name)
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


@cache
def areas() -> Mapping[str, str]:
    """Return the file of each area, by name."""
    files = sorted(file.stem for file in _TEXTS.glob("*.json"))
    return {area: file for file in files for area in (file, *_SHARED.get(file, ()))}


@cache
def texts_in(lang: str, area: str) -> Mapping[str, Text]:
    """Return the texts of an area in a language, by the names of their codes."""
    if (file := areas().get(area)) is None:
        return {}
    made = _functions(lang, file).get("TEXTS" if file == area else area.upper(), {})
    texts = {**_templates(lang, file, area), **made}
    return chosen(CHOICES.get(area, {}), pieces_in(lang, area), texts)


def pieces_in(lang: str, area: str) -> Mapping[str, Text]:
    """Return the parts of an area's templates that parameters choose, by name."""
    file = areas()[area]
    name = "PIECES" if file == area else f"{area.upper()}_PIECES"
    return {**_templates(lang, file, f"{area}.pieces"), **_functions(lang, file).get(name, {})}


def _templates(lang: str, file: str, area: str) -> dict[str, Text]:
    found = _read(file).get(area, {})
    return {n: texts[lang] for n, texts in found.items() if n != _COMMENT and lang in texts}


@cache
def _read(file: str) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    found: Mapping[str, Mapping[str, Mapping[str, str]]]
    found = json.loads((_TEXTS / f"{file}.json").read_text("utf-8"))
    return found


@cache
def _functions(lang: str, file: str) -> Mapping[str, Any]:
    """Return the names of a language's module of functions; none where there is no such module."""
    name = f"{__name__}.{lang}.{file}"
    return vars(importlib.import_module(name)) if find_spec(name) is not None else {}
