"""The script of the report page: its labels are written, and it makes nothing of texts but text."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from mindrlhf_msprobe.report.messages import texts_in

STATIC = files("mindrlhf_msprobe.report.page") / "static"
SCRIPTS = {one.name: one.read_text("utf-8") for one in STATIC.iterdir() if one.name.endswith(".js")}
#: Labels whose names the script makes of what it is given: a view, a status, a cause.
MADE = re.compile(
    "(view|title|side|run|state|status|flag|io|cause|field|step|rank|role|agreement)_"
)

TEXTS = texts_in("en", "page")


def test_every_label_that_is_shown_is_written_and_every_written_one_is_shown():
    """A label without words would be shown as its name; one that nothing shows would only grow."""
    script = "\n".join(SCRIPTS.values())
    assert {*re.findall(r'R\.w\(\s*"(\w+)"\s*[,)]', script)} <= {*TEXTS}
    named = {*re.findall(r'"(\w+)"', script)}
    assert {name for name in TEXTS if name not in named and not MADE.match(name)} == set()


def test_a_label_names_only_what_the_script_fills_in():
    """The script fills in names in braces; a format of Python's would be shown as it stands."""
    for name, text in TEXTS.items():
        assert not {*re.sub(r"\{\w+\}", "", text)} & {*"{}"}, name


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_makes_no_markup_of_data_and_asks_no_network(name):
    """Texts of a dump reach the page as text; the page's policy is not all there is."""
    wrong = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function"
    )
    wrong += r"|\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon|https?://|import\("
    # What elements of a drawing are made in is a name, and nothing is asked for there.
    script = SCRIPTS[name].replace('"http://www.w3.org/2000/svg"', "")
    assert re.findall(wrong, script) == []
