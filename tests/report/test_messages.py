"""Messages: codes with parameters, and the words for them in each language."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import string

import pytest

from mindrlhf_msprobe.common.message import Message, message, read_message, read_messages
from mindrlhf_msprobe.report import messages
from mindrlhf_msprobe.report.messages import LANGUAGES, text_of


def areas(lang):
    folder = importlib.import_module(f"{messages.__name__}.{lang}")
    return {m.name for m in pkgutil.iter_modules(folder.__path__)} - {"words"}


def texts(lang, area):
    return importlib.import_module(f"{messages.__name__}.{lang}.{area}").TEXTS


def parameters(text):
    """Return the names of the parameters that a text is made of."""
    if callable(text):
        return set(inspect.signature(text).parameters) - {"_"}
    return {
        name.split(".")[0].split("[")[0] for _, name, _, _ in string.Formatter().parse(text) if name
    }


def test_both_languages_say_the_same():
    """Every code has words in both, made of the same parameters."""
    assert areas("en") == areas("zh")
    for area in areas("en"):
        english, chinese = texts("en", area), texts("zh", area)
        assert set(english) == set(chinese), area
        for name, text in english.items():
            if not callable(text) and not callable(chinese[name]):
                assert parameters(text) == parameters(chinese[name]), f"{area}.{name}"


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_code_that_is_not_known_is_said_as_it_is(lang):
    """A run of a newer version holds such ones."""
    assert text_of(message("coverage.no_such", cells=3), lang) == "coverage.no_such(cells=3)"
    assert text_of(message("no_such.area"), lang) == "no_such.area"
    assert text_of(message("../etc.passwd"), lang) == "../etc.passwd"


def test_a_text_of_an_older_version_stays_as_it_is():
    """Yesterday's runs hold sentences."""
    read = read_message("its gradients: they are not seen")
    assert read is not None
    assert text_of(read, "zh") == "its gradients: they are not seen"


def test_messages_survive_json():
    """Also those inside others."""
    inner = message("area.inner", n=1)
    outer = Message("area.outer", {"why": inner, "names": ["a", "b"], "none": None})
    assert read_message(outer.as_json()) == outer
    assert read_messages([outer.as_json(), 7, {"code": 3}, "text"])[0] == outer
    assert len(read_messages([outer.as_json(), 7, {"code": 3}, "text"])) == 2
