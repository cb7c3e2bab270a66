"""The READMEs' picture shows what `compare` prints, and is what its script draws."""

from __future__ import annotations

import importlib.util
import re

import pytest
from documents import ROOT, unlike

PICTURES = {"en": ROOT / "docs" / "answer.svg", "zh": ROOT / "docs" / "answer_zh.svg"}
READMES = {"en": "README.md", "zh": "README_CN.md"}


@pytest.fixture(scope="module")
def script():
    """Return docs/answer.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("answer", ROOT / "docs" / "answer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("lang", PICTURES)
def test_the_readme_shows_the_picture(lang):
    """Each README shows it in its language, near the top."""
    top = (ROOT / READMES[lang]).read_text(encoding="utf-8").partition("\n## ")[0]
    assert f"](docs/{PICTURES[lang].name})" in top


@pytest.mark.parametrize("lang", PICTURES)
def test_the_picture_is_what_the_script_draws(script, lang):
    """Nobody edits the picture by hand: its rows are those of the text that it carries."""
    picture = PICTURES[lang].read_text(encoding="utf-8")
    assert script.draw(script.text_of(picture), lang) == picture


@pytest.mark.parametrize("lang", PICTURES)
def test_the_picture_shows_what_is_printed(script, demo, lang):
    """Line by line the answer on the demo's runs; `make picture` draws it again."""
    output, _ = demo
    printed = script.answer(str(output / "run_a"), str(output / "run_b"), "--lang", lang)
    shown = script.text_of(PICTURES[lang].read_text(encoding="utf-8"))
    wrong = unlike(_comparable(shown), _comparable(printed))
    assert wrong is None, f"was not printed: {wrong}\n{printed}"


def _comparable(text):
    """Return a text without what depends on the machine, where it is said in Chinese."""
    lines = [re.sub(r"^(差异传播（[^（）]*）).*", r"\1", line) for line in text.splitlines()]
    return "\n".join(re.sub(r"(用时 )[0-9.]+ s：.*", r"\1", line) for line in lines)


def test_long_lines_are_wrapped_and_nothing_is_lost(script):
    """Every word of a line that is wider than the terminal is in the picture, Chinese too."""
    text = "结论: " + "差异" * 80 + " " + "word<&> " * 40
    rows = script._rows(text)
    assert len(rows) > 3
    assert all(script._columns(row) <= script.COLUMNS for _, row in rows)
    assert "".join(row for _, row in rows).replace(" ", "") == text.replace(" ", "")
    assert script.text_of(script.draw(text)) == text
