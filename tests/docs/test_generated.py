"""The generated parts of the documents are fresh, and say something of every key and name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from documents import ROOT

from mindrlhf_msprobe import ProbeConfig

_SPEC = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
generate = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(generate)


def names_of(texts: dict[str, str]) -> list[str]:
    return [name for names in texts if names for name in names.split(", ")]


def test_every_key_is_described_once() -> None:
    """With what it means in both languages; its default is ProbeConfig's."""
    groups = generate.read("configuration.yaml")
    assert sorted(key for group in groups for key in names_of(group["keys"])) == sorted(
        ProbeConfig().to_json()
    )
    assert all(
        text[lang] for group in groups for text in group["keys"].values() for lang in ("en", "zh")
    )


@pytest.mark.parametrize("name", generate.DESCRIBED)
def test_every_member_is_described_in_chinese(name: str) -> None:
    """The members that the docstrings describe, each in one row; none that is not there."""
    assert sorted(names_of(generate.read("api_zh.yaml")[name])) == sorted(generate.members_of(name))


@pytest.mark.parametrize("page", generate.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_page_is_fresh(page: Path) -> None:
    """`python docs/generate.py` would not change it."""
    assert page.read_text(encoding="utf-8") == generate.pages()[page]


@pytest.mark.parametrize(("readme", "language"), [("README.md", "en"), ("README_CN.md", "zh")])
def test_the_readme_leads_to_it(readme: str, language: str) -> None:
    """Among the documents at the end of both READMEs."""
    assert f"](docs/{language}/api.md)" in (ROOT / readme).read_text(encoding="utf-8")
