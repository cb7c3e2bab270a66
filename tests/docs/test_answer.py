"""The READMEs' picture shows what `compare` prints, and is what its script draws."""

from __future__ import annotations

import importlib.util

import pytest
from documents import ROOT, unlike

PICTURE = ROOT / "docs" / "answer.svg"


@pytest.fixture(scope="module")
def script():
    """Return docs/answer.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("answer", ROOT / "docs" / "answer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("readme", ["README.md", "README_CN.md"])
def test_the_readme_shows_the_picture(readme):
    """Both READMEs show it, near the top."""
    top = (ROOT / readme).read_text(encoding="utf-8").partition("\n## ")[0]
    assert "](docs/answer.svg)" in top


def test_the_picture_is_what_the_script_draws(script):
    """Nobody edits the picture by hand: its rows are those of the text that it carries."""
    picture = PICTURE.read_text(encoding="utf-8")
    assert script.draw(script.text_of(picture)) == picture


def test_the_picture_shows_what_the_demo_prints(script, demo):
    """Line by line the answer of the demo; draw it again with docs/answer.py if this fails."""
    _, done = demo
    printed = script.as_shown(done.stdout.replace("demo_out/comparison", "out"))
    shown = script.text_of(PICTURE.read_text(encoding="utf-8"))
    wrong = unlike(f"{shown}…", printed)
    assert wrong is None, f"was not printed: {wrong}\n{printed}"


def test_long_lines_are_wrapped_and_nothing_is_lost(script):
    """Every word of a line that is wider than the terminal is in the picture, Chinese too."""
    text = "结论: " + "差异" * 80 + " " + "word<&> " * 40
    rows = script._rows(text)
    assert len(rows) > 3
    assert all(script._columns(row) <= script.COLUMNS for _, row in rows)
    assert "".join(row for _, row in rows).replace(" ", "") == text.replace(" ", "")
    assert script.text_of(script.draw(text)) == text
