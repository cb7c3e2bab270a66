"""Which language answers are given in."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

LANGUAGES = ("en", "zh")
_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")  # the first that is set counts, as in a shell
#: What a caller chose, which goes before the locale.
_CHOSEN: ContextVar[str | None] = ContextVar("language", default=None)
#: The same for the whole process: its threads have contexts of their own, and so has its end.
_of_process: str | None = None

_P = ParamSpec("_P")
_R = TypeVar("_R")


def language() -> str:
    """Return the language that a caller chose; else `zh` where the locale is Chinese, or `en`."""
    if (chosen := _CHOSEN.get() or _of_process) is not None:
        return chosen
    named = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), "")
    return "zh" if named.lower().startswith("zh") else "en"


@contextmanager
def speaking(lang: str | None) -> Iterator[None]:
    """Give answers in a language for as long as the block runs; None leaves it as it is."""
    before = _CHOSEN.set(_CHOSEN.get() if lang is None else lang)
    try:
        yield
    finally:
        _CHOSEN.reset(before)


def speak(lang: str | None) -> None:
    """Give answers in a language from now on, in all threads; None: in the locale's."""
    global _of_process
    _of_process = lang


def in_its_language(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have a function speak the language that its keyword `lang` names, if it names one."""

    @functools.wraps(function)
    def speaks(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        lang = kwargs.get("lang")
        with speaking(lang if isinstance(lang, str) and lang in LANGUAGES else None):
            return function(*args, **kwargs)

    return speaks
