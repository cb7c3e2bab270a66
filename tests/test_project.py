"""The project's own promises: the README's commands, the examples, the licence."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mindrlhf_msprobe import load_config
from mindrlhf_msprobe.demo.command import EXAMPLE, example_path

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("path", sorted((ROOT / "yaml_examples").glob("*.yaml")), ids=str)
def test_every_example_can_be_loaded(path):
    """Each file of yaml_examples holds a section that is accepted and switched on."""
    assert load_config(path).msprobe


def test_the_demo_reads_the_example_at_the_top_of_the_repository():
    """The demo's YAML is the one users see in yaml_examples."""
    assert example_path(EXAMPLE).read_bytes() == (ROOT / "yaml_examples" / EXAMPLE).read_bytes()


@pytest.mark.parametrize("readme", ["README.md", "README_CN.md"])
def test_the_readmes_have_the_two_commands(readme):
    """Both READMEs give one command line for the demo and one for the tests, the same ones."""
    commands = [
        line
        for line in (ROOT / readme).read_text(encoding="utf-8").splitlines()
        if line.startswith("python3.11 -m venv")
    ]
    assert len(commands) == 2
    assert commands[0].endswith("mindrlhf-msprobe demo --output demo_out")
    assert commands[1].endswith("python -m pytest -n 2 --dist loadfile")


@pytest.mark.parametrize("document", sorted(p.name for p in (ROOT / "docs" / "en").glob("*.md")))
def test_documents_are_in_both_languages(document):
    """Every English document has its Chinese mirror with as many headings, tables and blocks."""
    english = (ROOT / "docs" / "en" / document).read_text(encoding="utf-8")
    chinese = (ROOT / "docs" / "zh" / document).read_text(encoding="utf-8")
    for mark in ("\n#", "\n|", "\n```"):
        assert english.count(mark) == chinese.count(mark), mark


def private_names(module):
    """Yield what a module takes of MindSpore that is not public."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (n for n in names if n.startswith("mindspore.") and "._" in n)
        constant = isinstance(node, ast.Constant) and node.value
        name = node.attr if isinstance(node, ast.Attribute) else constant
        if name in ("_executor", "_pynative_executor", "_c_expression"):
            yield name


def test_private_names_of_mindspore_are_in_one_module():
    """A version that names them otherwise is met in one place."""
    package = ROOT / "mindrlhf_msprobe"
    found = {str(p.relative_to(package)) for p in package.rglob("*.py") if [*private_names(p)]}
    assert found == {"capture/framework/private.py"}
